//! Copies the chunks of a step into a new pack, which nothing names yet.
//!
//! Each chunk is read and verified. One that is wanted as a whole is copied as it is stored; of others the wanted part is
//! compressed anew. Origin, address and LSN stay, so the copy says of what commit its content is, as the chunk did.
//! A chunk that cannot be read is not copied: what a page has of it stays where it is.
//!
//! In the footer the pack's slices are *copies* (docs/format.md): the state at one LSN, as far as the pack has it. They
//! are no part of the history, for a rebuild: they fill no gap in it, and say nothing of its holds.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bytes::Bytes;

use super::walk::{Part, StepPlan};
use crate::cache::ChunkKey;
use crate::driver::ComputeKind;
use crate::engine::Engine;
use crate::error::OpenError;
use crate::jobs::join_all;
use crate::object::ObjectId;
use crate::object::pack::{Chunk, Codec, Item, Slice, VolumeLabel};
use crate::object::pack_writer::{Pack, PackWriter};
use crate::object::page::{BlockRef, Page};
use crate::object::root::Root;
use crate::request::tail::Tail;
use crate::store::fetch::table::chunk_key;
use crate::store::fetch::{copy_to_disk, grouped};
use crate::store::host_log::unnamed::UnnamedObject;
use crate::store::immutable::write;
use crate::store::objects::{RangeError, read_range};
use crate::units::{Epoch, Lsn, Span, VolumeId};

/// The longest range of one request.
const RANGE_BYTES_MAX: u64 = 4 << 20;
/// Ranges that are read side by side: few, for clients' reads come first.
const READS_AT_ONCE: usize = 4;

/// A part that stands elsewhere now, too.
#[derive(Clone, Debug)]
pub(super) struct Relocation {
    pub(super) from: Part,
    pub(super) to: Arc<Chunk>,
}

/// A step whose pack is in the store.
#[derive(Debug)]
pub(super) struct StepCopy {
    pub(super) pack: UnnamedObject,
    /// Ascending.
    pub(super) moved: Vec<Relocation>,
    /// The pages as they were when the step was gathered.
    pub(super) pages: BTreeMap<u64, (BlockRef, Arc<Page>)>,
    pub(super) written: u64,
    /// Content that the cache has under the name of the old chunk.
    pub(super) cached: Vec<(ChunkKey, Vec<u8>)>,
}

/// A chunk that was read and verified.
struct VerifiedChunk {
    stored: Vec<u8>,
    /// Empty if nobody needs it.
    content: Vec<u8>,
}

type VerifiedChunks = BTreeMap<ChunkKey, VerifiedChunk>;

/// Copies; none: nothing could be read.
pub(super) async fn copy(
    engine: &Arc<Engine>,
    tail: &Arc<Tail>,
    step: StepPlan,
) -> Result<Option<StepCopy>, OpenError> {
    // Stored bytes, and the pack.
    let bytes = 2 * step.chunk_bytes;
    let _permit = engine.upload_budget.acquire(tail.id(), bytes).await;
    let keys = step.parts.iter().map(|part| chunk_key(&part.chunk));
    let cached: BTreeSet<ChunkKey> = keys.filter(|key| engine.cache.contains(*key)).collect();
    let cut = step.parts.iter().filter(|part| !part.is_whole());
    let cut = cut.map(|part| chunk_key(&part.chunk));
    let unpacked: Arc<BTreeSet<ChunkKey>> = Arc::new(cut.chain(cached.iter().copied()).collect());
    let opened = read_chunks(engine, tail, &step.parts, &unpacked).await?;
    let head = tail.upload.head();
    let root = head
        .ok_or_else(|| OpenError::InUse(tail.name().to_owned()))?
        .root;
    let lsn = match canary::active!("copies_are_of_the_newest_lsn") {
        true => tail.newest(),
        false => step.lsn,
    };
    let slices = CopySlices::new(&root, tail, lsn);
    let is_there = |part: &Part| {
        let is_damaged = part.chunk.codec == Codec::Damaged;
        let origin = slices.of(part.chunk.origin).is_some();
        origin && (is_damaged || opened.contains_key(&chunk_key(&part.chunk)))
    };
    let parts: Vec<Part> = step.parts.into_iter().filter(is_there).collect();
    if parts.is_empty() {
        return Ok(None);
    }
    let object = engine.next_object();
    let (session, number) = (object.session(), object.id().number);
    let build = move || {
        let mut writer = PackWriter::new(session, number);
        writer.add_slice(&slices.own);
        for part in &parts {
            add_part(&mut writer, &slices, part, &opened);
        }
        let pack = writer.finish_parts();
        let moved = moved(parts, &pack);
        let hot = cached_content(&moved, &opened, &cached);
        (pack, moved, hot)
    };
    let cost = step.chunk_bytes;
    let built = engine.port.compute(ComputeKind::Pack, cost, build).await?;
    let (pack, moved, cached) = built;
    let written = pack.bytes.len() as u64;
    put(engine, tail, &pack.key(), pack.bytes.into()).await?;
    Ok(Some(StepCopy {
        pack: object,
        moved,
        pages: step.pages,
        written,
        cached,
    }))
}

/// Content of moved parts goes to the cache disk under its new name, if it was in the cache under the old one.
pub(super) fn keep_cached(engine: &Arc<Engine>, cached: Vec<(ChunkKey, Vec<u8>)>) {
    for (key, mut content) in cached {
        content.resize(content.len().next_multiple_of(4096), 0);
        copy_to_disk(engine, key, content);
    }
}

fn cached_content(
    moved: &[Relocation],
    opened: &VerifiedChunks,
    cached: &BTreeSet<ChunkKey>,
) -> Vec<(ChunkKey, Vec<u8>)> {
    let is_cached = |moved: &&Relocation| cached.contains(&chunk_key(&moved.from.chunk));
    let content = |moved: &Relocation| {
        let opened = opened.get(&chunk_key(&moved.from.chunk))?;
        Some((
            chunk_key(&moved.to),
            content_of(&moved.from, opened).to_vec(),
        ))
    };
    moved.iter().filter(is_cached).filter_map(content).collect()
}

fn content_of<'a>(part: &Part, opened: &'a VerifiedChunk) -> &'a [u8] {
    let from = Span::new(0, u64::from(part.skip)).bytes() as usize;
    &opened.content[from..from + part.span.bytes() as usize]
}

fn add_part(writer: &mut PackWriter, slices: &CopySlices, part: &Part, opened: &VerifiedChunks) {
    let chunk = &part.chunk;
    let Some(slice) = slices.of(chunk.origin) else {
        return;
    };
    match opened.get(&chunk_key(chunk)) {
        _ if chunk.codec == Codec::Damaged => writer.add_damaged(slice, part.span, chunk.lsn),
        Some(opened) if part.is_whole() => writer.add_stored(slice, chunk, &opened.stored),
        Some(opened) => writer.add(slice, part.span, chunk.lsn, content_of(part, opened)),
        None => debug_assert!(false, "left out before"),
    }
}

/// Where each part stands in the pack.
fn moved(parts: Vec<Part>, pack: &Pack) -> Vec<Relocation> {
    let items = pack.sections.iter().flat_map(|section| &section.items);
    let chunks = items.filter_map(|item| match item {
        Item::Chunk(chunk) => Some((chunk.span, Arc::new(chunk.clone()))),
        Item::Zeroes { .. } => None,
    });
    let places: BTreeMap<(u64, u64), Arc<Chunk>> = chunks
        .map(|(span, chunk)| ((span.start, span.end), chunk))
        .collect();
    let place = |from: Part| {
        let to = places.get(&(from.span.start, from.span.end))?;
        let to = Arc::clone(to);
        Some(Relocation { from, to })
    };
    parts.into_iter().filter_map(place).collect()
}

/// The slices of a pack of copies, by the volume in which content was written.
struct CopySlices {
    /// In each pack, if only to say whose it is.
    own: Slice,
    ancestors: BTreeMap<VolumeId, Slice>,
}

impl CopySlices {
    fn new(root: &Root, tail: &Tail, lsn: Lsn) -> CopySlices {
        let lineage = root.lineage();
        let own = Slice {
            origin: root.volume,
            epoch: root.epoch,
            first: root.first,
            since: root.since,
            begin: lsn.next(),
            last: lsn,
            packs: 0,
            volume: VolumeLabel {
                name: root.name.as_str().into(),
                size: tail.size(),
            },
            lineage: lineage.clone(),
        };
        let mut ancestors = BTreeMap::new();
        for (nth, ancestor) in lineage.iter().enumerate() {
            let slice = Slice {
                origin: ancestor.volume,
                epoch: Epoch(0),
                first: Lsn::ZERO,
                since: Epoch(0),
                begin: ancestor.last.next(),
                last: ancestor.last,
                // What that volume is called, and how large it is, is not known here.
                volume: VolumeLabel {
                    name: "".into(),
                    ..own.volume.clone()
                },
                lineage: lineage[nth + 1..].into(),
                ..own.clone()
            };
            ancestors.insert(ancestor.volume, slice);
        }
        CopySlices { own, ancestors }
    }

    fn of(&self, origin: VolumeId) -> Option<&Slice> {
        match origin == self.own.origin {
            true => Some(&self.own),
            false => self.ancestors.get(&origin),
        }
    }
}

/// Reads the chunks that have stored bytes. Those that cannot be read are left out.
async fn read_chunks(
    engine: &Arc<Engine>,
    tail: &Arc<Tail>,
    parts: &[Part],
    unpacked: &Arc<BTreeSet<ChunkKey>>,
) -> Result<VerifiedChunks, OpenError> {
    let mut chunks: BTreeMap<ChunkKey, Arc<Chunk>> = BTreeMap::new();
    for part in parts
        .iter()
        .filter(|part| part.chunk.codec != Codec::Damaged)
    {
        let key = chunk_key(&part.chunk);
        chunks.entry(key).or_insert_with(|| Arc::clone(&part.chunk));
    }
    let groups = grouped(chunks.into_values().collect(), RANGE_BYTES_MAX);
    let mut opened = VerifiedChunks::new();
    let mut failed: Vec<Arc<Chunk>> = Vec::new();
    for groups in groups.chunks(READS_AT_ONCE) {
        let reads = groups
            .iter()
            .map(|group| Box::pin(read_group(engine, tail, group, unpacked)));
        for read in join_all(reads.collect()).await {
            let read = read?;
            failed.extend(read.failed);
            opened.extend(read.opened);
        }
    }
    // Each by itself, once more: it may have been damaged on its way, or its neighbour is gone.
    for chunk in failed {
        let read = read_group(engine, tail, &[chunk], unpacked).await?;
        for chunk in read.failed {
            let (volume, pack, offset) = (tail.name(), chunk.pack, chunk.offset);
            tracing::error!(volume, %pack, offset, "a chunk cannot be read: it is not compacted");
            engine.compaction.on_unreadable(tail.id().volume, pack);
        }
        opened.extend(read.opened);
    }
    Ok(opened)
}

#[derive(Default)]
struct GroupRead {
    opened: Vec<(ChunkKey, VerifiedChunk)>,
    failed: Vec<Arc<Chunk>>,
}

/// Reads chunks of one pack that lie close together, and verifies each.
async fn read_group(
    engine: &Arc<Engine>,
    tail: &Tail,
    group: &[Arc<Chunk>],
    unpacked: &Arc<BTreeSet<ChunkKey>>,
) -> Result<GroupRead, OpenError> {
    let end = |chunk: &Chunk| u64::from(chunk.offset) + u64::from(chunk.stored);
    let start = u64::from(group[0].offset);
    let behind = group.iter().map(|chunk| end(chunk)).max().unwrap_or(start);
    let pack: ObjectId = group[0].pack;
    let key = engine.names.pack_key(pack);
    let key = key.map_err(|error| OpenError::Corrupt(format!("pack {pack}: {error}")))?;
    let data = match read_range(engine, tail, key, start, behind - start).await {
        Ok(data) => data,
        Err(RangeError::Closed) => return Err(OpenError::InUse(tail.name().to_owned())),
        Err(RangeError::Missing | RangeError::TooShort) => {
            return Ok(GroupRead {
                failed: group.to_vec(),
                ..GroupRead::default()
            });
        }
    };
    let (chunks, bytes) = (group.to_vec(), data.len() as u64);
    let unpacked = Arc::clone(unpacked);
    let open = move || {
        let mut read = GroupRead::default();
        for chunk in chunks {
            let at = (u64::from(chunk.offset) - start) as usize;
            let stored = data.get(at..at + chunk.stored as usize).unwrap_or_default();
            match chunk.open(stored) {
                Ok(mut content) => {
                    if !unpacked.contains(&chunk_key(&chunk)) {
                        content = Vec::new();
                    }
                    let stored = stored.to_vec();
                    let opened = VerifiedChunk { stored, content };
                    read.opened.push((chunk_key(&chunk), opened));
                }
                Err(_) => read.failed.push(chunk),
            }
        }
        read
    };
    let opened = engine.port.compute(ComputeKind::Decode, bytes, open);
    opened.await.map_err(OpenError::from)
}

/// Writes the pack, and repeats that as long as the volume is served.
async fn put(engine: &Arc<Engine>, tail: &Tail, key: &str, data: Bytes) -> Result<(), OpenError> {
    let mut delay = engine.options.retry_ns;
    loop {
        match write(engine, key, &data).await {
            Ok(()) => return Ok(()),
            Err(error) if tail.lock().check_serving().is_err() => return Err(error),
            Err(error) => tracing::warn!(volume = tail.name(), %error, "trying again"),
        }
        engine.port.sleep(delay).await;
        delay = (delay * 2).min(engine.options.retry_ns * 30);
    }
}
