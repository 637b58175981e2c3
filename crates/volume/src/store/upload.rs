//! Bringing a tail to the store (S3): freeze, coalesce, write packs, then one root.
//!
//! Per volume one upload at a time. The order is what makes a crash anywhere harmless:
//!
//! 1. freeze the top layer as of a cut;
//! 2. wait until a frame up to the cut is durable, so that the local state never falls behind the
//!    store's and its LSNs are never given out twice;
//! 3. write packs (and, when deltas have piled up, folded index pages): all of it unreferenced;
//! 4. replace the root by conditional update: the commit. An unknown outcome is read back;
//! 5. note it in the log, turn the uploaded extents into clean ones, and let the layers go.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use blkmq::io::{FileId, SECTOR_BYTES};

use crate::driver::StoreOp;
use crate::engine::Engine;
use crate::error::OpenError;
use crate::lock::lock;
use crate::log::frame::Record;
use crate::log::layout::BLOCK_SECTORS;
use crate::map::ExtentMap;
use crate::map::index::delta_of;
use crate::map::layers::{CleanExtent, DirtyExtent, LogAddr, merge};
use crate::object::pack::{Pack, PackWriter};
use crate::object::root::DeltaRef;
use crate::request::tail::{EXTENTS_PER_LOCK, Status, Tail};
use crate::store::fold;
use crate::store::objects::put;
use crate::store::roots::{commit_root, settled_head};
use crate::units::{Lsn, Span};

/// Content gathered before it is compressed into the pack at hand.
const BATCH_BYTES: u64 = 8 << 20;
/// Content compressed between two pauses: about a millisecond's worth.
const PAUSE_BYTES: usize = 512 << 10;
/// The longest read of the log.
const READ_BYTES: u64 = 1 << 20;

/// Runs as long as the tail is live.
pub(crate) async fn run(engine: Arc<Engine>, tail: Arc<Tail>) {
    let upload = &tail.upload;
    let mut delay = engine.options.retry_ns;
    loop {
        let live = upload
            .changed
            .wait_until(|| {
                if tail.lock().status != Status::Live {
                    return Some(false);
                }
                let wanted = upload.wanted.load(Ordering::Acquire) > tail.stored().0;
                (wanted || upload.needs_grow()).then_some(true)
            })
            .await;
        if !live {
            return;
        }
        let result = upload_once(&engine, &tail).await;
        if let Err(error) = &result {
            abort_upload(&engine, &tail, error);
        }
        *lock(&upload.error) = result.as_ref().err().map(ToString::to_string);
        upload.set_refusal(result.as_ref().err().filter(|e| is_refusal(e)).cloned());
        upload.changed.wake_all();
        engine.request_reclaim();
        match result {
            Ok(()) => delay = engine.options.retry_ns,
            Err(error) if is_final(&error) => return,
            Err(error) => {
                tracing::warn!(volume = tail.name(), %error, "an upload failed; trying again");
                engine.port.sleep(delay).await;
                delay = (delay * 2).min(engine.options.retry_ns * 30);
            }
        }
    }
}

/// Ends when everything up to `lsn` is in the store, or never will be.
pub(crate) async fn wait_stored(engine: &Engine, tail: &Tail, lsn: Lsn) -> Result<(), OpenError> {
    tail.upload.request(lsn);
    tail.upload
        .changed
        .wait_until(|| {
            if tail.stored() >= lsn {
                return Some(Ok(()));
            }
            // Only what durable frames cover is uploaded from a poisoned log (R10). Commits after
            // the last frame may hide some of it in the map: then it takes a restart, which goes
            // back to the last frame.
            if engine.poisoned.load(Ordering::Acquire) && tail.framed() < tail.newest() {
                return Some(Err(OpenError::Poisoned));
            }
            match tail.lock().status {
                Status::Live => tail.upload.refusal().map(Err),
                status => Some(Err(end_of(tail, status))),
            }
        })
        .await
}

/// Why a tail that is not live stores nothing more.
fn end_of(tail: &Tail, status: Status) -> OpenError {
    if status == Status::Broken {
        return broken_error(tail);
    }
    let refusal = tail.upload.refusal();
    refusal.unwrap_or_else(|| OpenError::Fenced(tail.name().to_owned()))
}

/// Another host's history stands in the store, or none that this host's continues: nothing is
/// completed here any more.
fn is_final(error: &OpenError) -> bool {
    matches!(
        error,
        OpenError::Fenced(_) | OpenError::Deleted(_) | OpenError::StoreWentBack { .. }
    )
}

/// Nothing can be stored, and who waits for that must hear of it.
fn is_refusal(error: &OpenError) -> bool {
    is_final(error) || matches!(error, OpenError::RootMissing(_))
}

/// Ends when the volume has this size, in the store and here, or never will have.
pub(crate) async fn wait_grown(tail: &Tail, bytes: u64) -> Result<(), OpenError> {
    tail.upload.grow(bytes);
    let size = || {
        let inner = tail.lock();
        match inner.status {
            _ if inner.geometry.bytes >= bytes => Some(Ok(())),
            Status::Live => tail.upload.refusal().map(Err),
            status => Some(Err(end_of(tail, status))),
        }
    };
    tail.upload.changed.wait_until(size).await
}

fn broken_error(tail: &Tail) -> OpenError {
    OpenError::Corrupt(format!(
        "{}: the server failed inside a commit and serves it no more; restart the server: nothing \
         that was acknowledged is lost",
        tail.name()
    ))
}

/// Ends a failed upload: the frozen layers may be merged again.
fn abort_upload(engine: &Engine, tail: &Tail, error: &OpenError) {
    let mut inner = tail.lock();
    inner.uploading = false;
    if is_final(error) && inner.status == Status::Live {
        inner.status = Status::Fenced;
        drop(inner);
        tracing::error!(
            volume = tail.name(),
            %error,
            "fenced: nothing more of it is completed here"
        );
        engine.wake_parked();
    }
}

/// One upload.
async fn upload_once(engine: &Arc<Engine>, tail: &Arc<Tail>) -> Result<(), OpenError> {
    let head = settled_head(engine, tail).await?;
    tail.lock().uploading = true;
    let Some((cut, frozen)) = tail.freeze() else {
        return Err(broken_error(tail));
    };
    let round = engine.committer().next_round();
    if tail.framed() < cut && !engine.committer().durable(engine, round).await {
        return Err(OpenError::Poisoned);
    }
    let mut hidden = Vec::new();
    let merged = merge(frozen.iter().map(|layer| &*layer.map), |addr, sectors| {
        hidden.push((addr, sectors));
    });
    drop(frozen);
    let mut root = head.root.clone();
    root.lsn = cut;
    root.bytes = root.bytes.max(tail.upload.grow.load(Ordering::Acquire));
    let packs = write_packs(engine, tail, &merged).await?;
    for pack in packs {
        root.deltas.push(pack.reference);
        for items in pack.items.chunks(EXTENTS_PER_LOCK) {
            // Early and harmless: the frozen layers hide all of it until the root is committed.
            let mut inner = tail.lock();
            for item in items {
                let (span, delta) = delta_of(item);
                inner.index.apply_delta(span, delta);
            }
        }
    }
    let folded = fold::fold_if_due(engine, tail, &mut root).await?;
    let head = commit_root(engine, tail, root, &head).await?;
    // Only now: what is written beyond the old size must be in the volume for the next opener.
    tail.lock().geometry.bytes = head.root.bytes;
    tail.upload.set_head(head);
    if let Some(folded) = folded {
        let deltas = tail.lock().index.apply_fold(folded.pages, folded.nodes);
        drop(deltas);
    }
    tail.set_stored(cut);
    mark_clean(engine, tail, cut, merged, hidden);
    // The record spares recovery the uploaded extents, and lets their segments be reused.
    engine
        .committer()
        .record(engine, Record::Tail(tail.record()));
    Ok(())
}

/// The uploaded extents are clean now; the layers that held them are dropped.
fn mark_clean(
    engine: &Arc<Engine>,
    tail: &Tail,
    cut: Lsn,
    merged: ExtentMap<DirtyExtent>,
    hidden: Vec<(LogAddr, u64)>,
) {
    let extents: Vec<(Span, DirtyExtent)> =
        merged.iter().map(|(span, dirty)| (span, *dirty)).collect();
    for part in extents.chunks(EXTENTS_PER_LOCK) {
        let mut inner = tail.lock();
        for (span, dirty) in part {
            let release_clean = |part: Span, old: CleanExtent| {
                engine.segments.release_clean(old.0, part.sectors());
            };
            match dirty.addr {
                Some(addr) => {
                    engine.segments.add_clean(addr, span.sectors());
                    inner
                        .layers
                        .clean
                        .insert(*span, CleanExtent(addr), release_clean);
                }
                None => inner.layers.clean.remove(*span, release_clean),
            }
        }
    }
    let gone = {
        let mut inner = tail.lock();
        inner.uploading = false;
        inner.ages.stored(cut);
        let keep = inner
            .layers
            .frozen
            .partition_point(|layer| layer.last <= cut);
        inner.layers.frozen.drain(..keep).collect::<Vec<_>>()
    };
    drop(gone);
    // Only now does no dirty map name these bytes any more.
    let born = extents
        .iter()
        .filter_map(|(span, d)| d.addr.map(|addr| (addr, span.sectors())));
    for (addr, sectors) in born.chain(hidden) {
        tail.release_dirty(&engine.segments, addr, sectors);
    }
}

/// A pack that is in the store.
struct UploadedPack {
    reference: DeltaRef,
    items: Vec<crate::object::pack::Item>,
}

/// A run of content that becomes one chunk: neighbours in the volume, up to the chunk size.
struct Run {
    span: Span,
    lsn: Lsn,
    parts: Vec<(Span, LogAddr)>,
}

/// Writes everything in `merged` into packs.
async fn write_packs(
    engine: &Arc<Engine>,
    tail: &Tail,
    merged: &ExtentMap<DirtyExtent>,
) -> Result<Vec<UploadedPack>, OpenError> {
    let volume = tail.id().volume;
    let mut uploaded = Vec::new();
    let mut writer = PackWriter::new(engine.next_object());
    let mut batch: Vec<Run> = Vec::new();
    let mut bytes = 0;
    for (span, dirty) in merged.iter() {
        let Some(addr) = dirty.addr else {
            writer.add_zeroes(volume, span, dirty.lsn);
            continue;
        };
        append_run(
            &mut batch,
            span,
            addr,
            dirty.lsn,
            u64::from(engine.options.chunk_bytes) / SECTOR_BYTES,
        );
        bytes += span.bytes();
        if bytes >= BATCH_BYTES {
            // The last run may still grow.
            let last = batch.pop();
            pack_batch(engine, tail, &mut writer, &batch, &mut uploaded).await?;
            batch = last.into_iter().collect();
            bytes = batch.iter().map(|run| run.span.bytes()).sum();
        }
    }
    pack_batch(engine, tail, &mut writer, &batch, &mut uploaded).await?;
    if !writer.is_empty() {
        uploaded.push(put_pack(engine, tail, writer.finish()).await?);
    }
    Ok(uploaded)
}

fn append_run(batch: &mut Vec<Run>, span: Span, addr: LogAddr, lsn: Lsn, most: u64) {
    let mut at = span.start;
    while at < span.end {
        let joins = batch
            .last()
            .filter(|run| run.span.end == at && run.span.sectors() < most);
        let room = joins.map_or(most, |run| most - run.span.sectors());
        let part = Span {
            start: at,
            end: span.end.min(at + room),
        };
        let place = (part, addr.skip(at - span.start));
        if joins.is_some() {
            let run = batch.last_mut().expect("it was just looked at");
            run.span.end = part.end;
            run.lsn = run.lsn.max(lsn);
            run.parts.push(place);
        } else {
            batch.push(Run {
                span: part,
                lsn,
                parts: vec![place],
            });
        }
        at = part.end;
    }
}

/// Reads the runs' bytes from the log and adds them to the pack; a full pack is put away.
async fn pack_batch(
    engine: &Arc<Engine>,
    tail: &Tail,
    writer: &mut PackWriter,
    batch: &[Run],
    uploaded: &mut Vec<UploadedPack>,
) -> Result<(), OpenError> {
    let places: Vec<(Span, LogAddr)> = batch.iter().flat_map(|run| run.parts.clone()).collect();
    let contents = read_log(engine, &places).await?;
    let mut contents = contents.iter();
    let mut compressed = 0;
    for run in batch {
        let mut content = Vec::with_capacity(run.span.bytes() as usize);
        for bytes in contents.by_ref().take(run.parts.len()) {
            content.extend_from_slice(bytes);
        }
        writer.add(tail.id().volume, run.span, run.lsn, &content);
        compressed += content.len();
        if compressed >= PAUSE_BYTES {
            compressed = 0;
            engine.port.pause().await;
        }
        if writer.len() as u64 >= engine.options.pack_bytes {
            let full = std::mem::replace(writer, PackWriter::new(engine.next_object()));
            uploaded.push(put_pack(engine, tail, full.finish()).await?);
        }
    }
    Ok(())
}

/// Reads many places of the log: in log order, neighbours in one read.
async fn read_log(engine: &Engine, places: &[(Span, LogAddr)]) -> Result<Vec<Vec<u8>>, OpenError> {
    let mut order: Vec<usize> = (0..places.len()).collect();
    order.sort_by_key(|i| places[*i].1);
    let mut contents = vec![Vec::new(); places.len()];
    let mut rest = order.as_slice();
    while let Some((&first, _)) = rest.split_first() {
        let start = places[first].1.sector() / BLOCK_SECTORS * BLOCK_SECTORS;
        let end = |i: usize| places[i].1.sector() + places[i].0.sectors();
        let mut until = end(first);
        let mut count = 1;
        for &next in &rest[1..] {
            let near = places[next].1.sector() <= until.next_multiple_of(BLOCK_SECTORS);
            if !near || (end(next) - start) * SECTOR_BYTES > READ_BYTES {
                break;
            }
            until = until.max(end(next));
            count += 1;
        }
        let len = (until.next_multiple_of(BLOCK_SECTORS) - start) * SECTOR_BYTES;
        let data = engine
            .port
            .read(FileId::LOG, start * SECTOR_BYTES, len as usize)
            .await;
        let data = data.map_err(|error| OpenError::Disk(error.0))?;
        for &i in &rest[..count] {
            let at = ((places[i].1.sector() - start) * SECTOR_BYTES) as usize;
            contents[i] = data[at..at + places[i].0.bytes() as usize].to_vec();
        }
        rest = &rest[count..];
    }
    Ok(contents)
}

async fn put_pack(engine: &Engine, tail: &Tail, pack: Pack) -> Result<UploadedPack, OpenError> {
    let spans = pack.items.iter().map(|item| delta_of(item).0);
    let reference = DeltaRef {
        pack: pack.id,
        footer_offset: pack.footer_offset,
        footer_bytes: pack.footer_bytes,
        span: spans.reduce(Span::hull).unwrap_or_default(),
    };
    if canary::active!("root_before_packs") {
        // Asked for, not waited for: the root may be there first, or alone.
        let (key, data) = (pack.id.pack_key(), pack.bytes);
        drop(engine.port.store(StoreOp::Put { key, data }));
    } else {
        put(engine, tail, pack.id.pack_key(), pack.bytes).await?;
    }
    Ok(UploadedPack {
        reference,
        items: pack.items,
    })
}
