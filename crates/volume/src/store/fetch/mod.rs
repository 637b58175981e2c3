//! Fetches chunks and index blocks from the store, once for all requests that wait for them.
//!
//! A fetched chunk is verified, lands in the memory file, wakes the waiters, and is then copied
//! to the disk cache in the background, so that a slow or full cache disk delays no request. While
//! the store is unreachable a fetch waits and tries again (S10); bytes that fail their checksum
//! twice are an I/O error and are never served (S8), and so is what lies behind the end of an object that is
//! shorter than its index says.
//!
//! [`table`] knows who waits for what. [`read_ahead`] fetches what sequential readers, which [`streams`] knows, will
//! ask for next, and what was read first after the opening before ([`boot_set`]); [`warm_up`] what another host has at hand.

pub(crate) mod boot_set;
pub(crate) mod read_ahead;
pub(crate) mod streams;
pub(crate) mod table;
pub(crate) mod warm_up;

use std::future::Future;
use std::sync::Arc;
use std::task::Waker;

use blkmq::error::ErrorKind;
use blkmq::io::FileId;

use crate::cache::ChunkKey;
use crate::driver::{ComputeKind, DiskOp};
use crate::engine::Engine;
use crate::object::pack::Chunk;
use crate::object::{FormatError, ObjectId};
use crate::request::tail::Tail;
use crate::store::fetch::table::{FetchKey, FetchTarget, chunk_key};
use crate::store::fold::index_blocks;
use crate::store::objects::{RangeError, read_range};

/// Chunks of a pack that are closer to each other than this share a range request.
pub(in crate::store) const GAP_BYTES: u64 = 64 << 10;
/// The longest range of one request.
const RANGE_BYTES_MAX: u64 = 4 << 20;

/// Starts the fetches of those of `targets` that are not in flight, and has `waker` woken as each arrives.
///
/// # Errors
///
/// If one of them failed a moment ago.
pub(crate) fn request(
    engine: &Arc<Engine>,
    tail: &Arc<Tail>,
    targets: Vec<FetchTarget>,
    waker: &Waker,
) -> Result<(), ErrorKind> {
    let now = engine.jobs.now().mono_ns;
    let missing = engine
        .fetches
        .register(targets, waker, now, |key| match key {
            FetchKey::Chunk(key) => engine.cache.contains(key),
            FetchKey::Block(key) => engine.blocks.contains(key),
        })?;
    for group in grouped(missing.chunks, RANGE_BYTES_MAX) {
        let (engine, tail) = (Arc::clone(engine), Arc::clone(tail));
        engine.fetches.begin_request();
        engine.clone().jobs.spawn(async move {
            fetch_chunks(&engine, &tail, group).await;
            engine.fetches.end_request();
            engine.streams.on_fetched(false);
        });
    }
    for target in missing.blocks {
        let (engine, tail) = (Arc::clone(engine), Arc::clone(tail));
        engine
            .clone()
            .jobs
            .spawn(index_blocks::fetch(engine, tail, target));
    }
    if missing.any_cached {
        waker.wake_by_ref();
    }
    Ok(())
}

/// Chunks of one pack that lie close together, in order of their offset; a group fits a range of `bytes_max`
/// unless it is one chunk.
pub(crate) fn grouped(mut chunks: Vec<Arc<Chunk>>, bytes_max: u64) -> Vec<Vec<Arc<Chunk>>> {
    chunks.sort_by_key(|chunk| (chunk.pack, chunk.offset));
    chunks.dedup_by_key(|chunk| (chunk.pack, chunk.offset));
    let mut groups: Vec<Vec<Arc<Chunk>>> = Vec::new();
    for chunk in chunks {
        let joins = groups.last().is_some_and(|group| {
            let (first, last) = (&group[0], &group[group.len() - 1]);
            if last.pack != chunk.pack {
                return false;
            }
            let gap = u64::from(chunk.offset).saturating_sub(end_of(last));
            let range = u64::from(chunk.offset) + u64::from(chunk.stored) - u64::from(first.offset);
            gap <= GAP_BYTES && range <= bytes_max
        });
        match groups.last_mut().filter(|_| joins) {
            Some(group) => group.push(chunk),
            None => groups.push(vec![chunk]),
        }
    }
    groups
}

fn end_of(chunk: &Chunk) -> u64 {
    u64::from(chunk.offset) + u64::from(chunk.stored)
}

/// Fetches the chunks of a group, and wakes their waiters once all are here.
pub(crate) async fn fetch_chunks(engine: &Arc<Engine>, tail: &Arc<Tail>, group: Vec<Arc<Chunk>>) {
    let contents = read_chunks(engine, tail, &group).await;
    let mut storing = Vec::new();
    for (chunk, content) in group.iter().zip(contents) {
        let content = match content {
            Ok(content) => Ok(content),
            Err(OpenFailure::Read(error)) => Err(error),
            Err(OpenFailure::Damaged(error)) => open_again(engine, tail, chunk, &error).await,
        };
        storing.push(content.map(|content| store_in_memory(engine, chunk, content)));
        if canary::active!("fetch_over_newer_write") {
            tail.lock().layers.top.remove(chunk.span, |_, _| {});
        }
    }
    // All writes are in flight by now.
    let mut ended = Vec::new();
    for (chunk, storing) in group.iter().zip(storing) {
        let result = match storing {
            Ok(storing) => storing.await,
            Err(error) => Err(error),
        };
        ended.push((FetchKey::Chunk(chunk_key(chunk)), result));
    }
    engine.fetches.complete(ended, engine.jobs.now().mono_ns);
}

/// Reads chunks of one pack with one request. If the pack is too short for all of them, those that it has are
/// read all the same, so that no chunk fails because of its neighbour.
async fn read_chunks(
    engine: &Engine,
    tail: &Tail,
    group: &[Arc<Chunk>],
) -> Vec<Result<Vec<u8>, OpenFailure>> {
    let mut contents = Vec::with_capacity(group.len());
    let mut parts = vec![group];
    while let Some(part) = parts.pop() {
        let (first, last) = (&part[0], &part[part.len() - 1]);
        let start = u64::from(first.offset);
        match read_pack(engine, tail, first.pack, start, end_of(last) - start).await {
            Ok(data) => contents.extend(open_chunks(engine, part, start, data).await),
            Err(RangeError::TooShort) if part.len() > 1 => {
                let (near, far) = part.split_at(part.len() / 2);
                parts.extend([far, near]);
            }
            Err(error) => {
                // Every chunk behind one that is outside of the pack is outside, too.
                let failed = |_| Err(OpenFailure::Read(error.into()));
                contents.extend((contents.len()..group.len()).map(failed));
                break;
            }
        }
    }
    contents
}

async fn read_pack(
    engine: &Engine,
    tail: &Tail,
    pack: ObjectId,
    offset: u64,
    len: u64,
) -> Result<Vec<u8>, RangeError> {
    let key = engine.names.pack_key(pack).map_err(|error| {
        tracing::error!(volume = tail.name(), %pack, %error, "a pack has no name");
        RangeError::Missing
    })?;
    read_range(engine, tail, key, offset, len).await
}

/// Why a chunk has no content.
enum OpenFailure {
    /// Its bytes could not be read.
    Read(ErrorKind),
    /// Its bytes do not match its name.
    Damaged(FormatError),
}

/// Decodes the chunks of a range that begins at `start` of their pack, in their order.
async fn open_chunks(
    engine: &Engine,
    group: &[Arc<Chunk>],
    start: u64,
    data: Vec<u8>,
) -> Vec<Result<Vec<u8>, OpenFailure>> {
    let (bytes, chunks) = (data.len() as u64, group.to_vec());
    let open = move || -> Vec<_> {
        let opened = chunks.iter().map(|chunk| {
            let at = (u64::from(chunk.offset) - start) as usize;
            // Chunks do not overlap in a pack that firn wrote; an index may say anything.
            match data.get(at..at + chunk.stored as usize) {
                None => Err(OpenFailure::Read(ErrorKind::Corrupt)),
                Some(stored) => chunk.open(stored).map_err(OpenFailure::Damaged),
            }
        });
        opened.collect()
    };
    let opened = engine.port.compute(ComputeKind::Decode, bytes, open);
    opened.await.unwrap_or_else(|_| {
        let failed = group.iter();
        failed
            .map(|_| Err(OpenFailure::Read(ErrorKind::Io)))
            .collect()
    })
}

/// Reads a chunk that failed its checksum once more.
async fn open_again(
    engine: &Engine,
    tail: &Tail,
    chunk: &Arc<Chunk>,
    error: &FormatError,
) -> Result<Vec<u8>, ErrorKind> {
    let (pack, offset) = (chunk.pack, chunk.offset);
    tracing::warn!(%pack, offset, %error, "a chunk is damaged and is read again");
    let (at, len) = (u64::from(chunk.offset), u64::from(chunk.stored));
    let again = read_pack(engine, tail, chunk.pack, at, len).await?;
    let named = Arc::clone(chunk);
    let opened = engine
        .port
        .compute(ComputeKind::Decode, len, move || named.open(&again));
    match opened.await {
        Ok(Ok(content)) => Ok(content),
        Ok(Err(error)) => {
            tracing::error!(%pack, offset, %error, "a chunk is damaged in the store");
            Err(ErrorKind::Corrupt)
        }
        Err(_) => Err(ErrorKind::Io),
    }
}

/// Writes content to the memory file at once; the copy to the disk cache follows in the background.
fn store_in_memory(
    engine: &Arc<Engine>,
    chunk: &Chunk,
    mut content: Vec<u8>,
) -> impl Future<Output = Result<(), ErrorKind>> + Send + use<> {
    let (key, bytes) = (chunk_key(chunk), content.len() as u64);
    content.resize(content.len().next_multiple_of(4096), 0);
    let now = engine.jobs.now().mono_ns;
    let engine = Arc::clone(engine);
    let writing = engine
        .cache
        .allocate_in_memory(key, bytes, now)
        .map(|allocation| {
            let (file, offset) = (FileId::MEMORY, allocation.offset);
            let data = content.clone();
            (
                allocation,
                engine.port.disk(DiskOp::Write { file, offset, data }),
            )
        });
    async move {
        let (allocation, written) = writing.ok_or(ErrorKind::Io)?;
        if written.await.is_err() {
            engine.cache.cancel(allocation);
            return Err(ErrorKind::Io);
        }
        engine.cache.fill(allocation, now);
        copy_to_disk(&engine, key, content);
        Ok(())
    }
}

/// Copies content to the disk cache in the background, unless nothing there may be evicted for it.
pub(in crate::store) fn copy_to_disk(engine: &Arc<Engine>, key: ChunkKey, content: Vec<u8>) {
    let now = engine.jobs.now().mono_ns;
    let bytes = content.len() as u64;
    let Some(mut allocation) = engine.cache.allocate_on_disk(key, bytes, now) else {
        return;
    };
    let engine = Arc::clone(engine);
    engine.clone().jobs.spawn(async move {
        // Not before: readers may wait for the content.
        allocation.set_checksum(&content);
        match engine
            .port
            .write(FileId::CACHE, allocation.offset, content)
            .await
        {
            Ok(()) => engine.cache.fill(allocation, 0),
            Err(error) => {
                let now = engine.jobs.now().mono_ns;
                engine.cache.on_write_failed(allocation, error.is_full, now);
            }
        }
    });
}
