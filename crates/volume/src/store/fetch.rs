//! Fetches: bringing chunks and index pages from the store, once for all who wait for them.
//!
//! A fetched chunk is verified, lands in the memory file, wakes the waiters, and is then copied
//! to the disk cache in the background, so that a slow or full cache disk delays nobody. While
//! the store is unreachable a fetch waits and tries again (S10); bytes that fail their checksum
//! twice are an I/O error and are never served (S8).

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::task::Waker;

use blkmq::error::ErrorKind;
use blkmq::io::FileId;

use crate::cache::ChunkKey;
use crate::driver::{StoreError, StoreOp, StoreReply};
use crate::engine::Engine;
use crate::jobs::lock;
use crate::log::ring::TailId;
use crate::object::pack::Chunk;
use crate::object::page::{BlockRef, decode_page};
use crate::request::tail::Tail;

/// Neighbours in a pack closer than this share a range request.
const GAP_BYTES: u64 = 64 << 10;
/// The longest range of one request.
const RANGE_BYTES_MAX: u64 = 4 << 20;
/// How long a failure is remembered for the reads that wait for it.
const FAILURE_NS: u64 = 1_000_000_000;

/// Something that a read needs.
#[derive(Clone, Debug)]
pub(crate) enum FetchTarget {
    Chunk(Arc<Chunk>),
    Page { number: u64, block: BlockRef },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Key {
    Chunk(ChunkKey),
    Page(TailId, u64),
}

#[derive(Debug, Default)]
struct State {
    in_flight: BTreeMap<Key, Vec<Waker>>,
    failed: BTreeMap<Key, (ErrorKind, u64)>,
}

/// All fetches of a host.
#[derive(Debug, Default)]
pub(crate) struct FetchTable {
    state: Mutex<State>,
}

pub(crate) fn chunk_key(chunk: &Chunk) -> ChunkKey {
    ChunkKey {
        pack: chunk.pack,
        offset: chunk.offset,
    }
}

impl FetchTable {
    /// Makes sure that all of `needs` are being fetched and wakes `waker` as each arrives.
    ///
    /// # Errors
    /// If one of them failed just now.
    pub(crate) fn request(
        &self,
        engine: &Arc<Engine>,
        tail: &Arc<Tail>,
        needs: Vec<FetchTarget>,
        waker: &Waker,
    ) -> Result<(), ErrorKind> {
        let now = engine.jobs.now().mono_ns;
        let mut chunks = Vec::new();
        let mut pages = Vec::new();
        let mut arrived = false;
        {
            let mut state = lock(&self.state);
            state.failed.retain(|_, (_, until)| *until > now);
            let key_of = |need: &FetchTarget| match need {
                FetchTarget::Chunk(chunk) => Key::Chunk(chunk_key(chunk)),
                FetchTarget::Page { number, .. } => Key::Page(tail.id(), *number),
            };
            // Before anything is entered below: who enters a key must also fetch it.
            for need in &needs {
                if let Some((error, _)) = state.failed.get(&key_of(need)) {
                    return Err(*error);
                }
            }
            for need in needs {
                let key = key_of(&need);
                if let Some(waiters) = state.in_flight.get_mut(&key) {
                    // A read that waits for many looks again as each arrives: without this its
                    // wakers would multiply.
                    if !waiters.iter().any(|held| held.will_wake(waker)) {
                        waiters.push(waker.clone());
                    }
                    continue;
                }
                // It may have arrived between the look at the cache and this lock: whoever
                // fetched it put it there before taking the key out of `in_flight`.
                if matches!(key, Key::Chunk(key) if engine.cache.contains(key)) {
                    arrived = true;
                    continue;
                }
                state.in_flight.insert(key, vec![waker.clone()]);
                match need {
                    FetchTarget::Chunk(chunk) => chunks.push(chunk),
                    FetchTarget::Page { number, block } => pages.push((number, block)),
                }
            }
        }
        for group in grouped(chunks) {
            let (engine, tail) = (Arc::clone(engine), Arc::clone(tail));
            engine
                .clone()
                .jobs
                .spawn(async move { fetch_chunks(&engine, &tail, group).await });
        }
        for (number, block) in pages {
            let (engine, tail) = (Arc::clone(engine), Arc::clone(tail));
            engine.clone().jobs.spawn(async move {
                fetch_page(&engine, &tail, number, block).await;
            });
        }
        if arrived {
            waker.wake_by_ref();
        }
        Ok(())
    }

    /// Lets all who wait look again: the volume that some of them wait for has ended.
    pub(crate) fn wake(&self) {
        let mut state = lock(&self.state);
        let waiting: Vec<Waker> = state
            .in_flight
            .values_mut()
            .flat_map(std::mem::take)
            .collect();
        drop(state);
        waiting.into_iter().for_each(Waker::wake);
    }

    fn done(&self, key: Key, result: Result<(), ErrorKind>, now: u64) {
        let waiters = {
            let mut state = lock(&self.state);
            // A fetch that was given up says nothing about the object: whoever opens the volume
            // again fetches it anew.
            if let Err(error) = result
                && error != ErrorKind::Closed
            {
                state.failed.insert(key, (error, now + FAILURE_NS));
            }
            state.in_flight.remove(&key).unwrap_or_default()
        };
        waiters.into_iter().for_each(Waker::wake);
    }
}

/// Chunks of one pack that lie close together, in order of their offset.
fn grouped(mut chunks: Vec<Arc<Chunk>>) -> Vec<Vec<Arc<Chunk>>> {
    chunks.sort_by_key(|chunk| (chunk.pack, chunk.offset));
    let mut groups: Vec<Vec<Arc<Chunk>>> = Vec::new();
    for chunk in chunks {
        let joins = groups.last().is_some_and(|group| {
            let (first, last) = (&group[0], &group[group.len() - 1]);
            if last.pack != chunk.pack {
                return false;
            }
            let gap = u64::from(chunk.offset).saturating_sub(end_of(last));
            let range = u64::from(chunk.offset) + u64::from(chunk.stored) - u64::from(first.offset);
            gap <= GAP_BYTES && range <= RANGE_BYTES_MAX
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

/// Reads a range, waiting out a store that is unavailable for as long as `tail` is served.
pub(crate) async fn read_range(
    engine: &Engine,
    tail: &Tail,
    key: String,
    offset: u64,
    len: u64,
) -> Result<Vec<u8>, ErrorKind> {
    let mut delay = engine.options.retry_ns;
    loop {
        let op = StoreOp::GetRange {
            key: key.clone(),
            offset,
            len,
        };
        match engine.port.store(op).await {
            Ok(StoreReply::Range(data)) if data.len() as u64 == len => return Ok(data),
            Ok(_) => {
                tracing::warn!(
                    key,
                    offset,
                    len,
                    "the store answered a range of another length"
                );
                return Err(ErrorKind::Io);
            }
            Err(StoreError::NotFound) => {
                tracing::error!(key, "an object that the volume needs is not in the store");
                return Err(ErrorKind::Corrupt);
            }
            Err(error) => {
                tracing::warn!(key, ?error, "a fetch failed and will be tried again");
            }
        }
        if tail.lock().serving().is_err() {
            return Err(ErrorKind::Closed);
        }
        engine.port.sleep(delay).await;
        delay = (delay * 2).min(engine.options.retry_ns * 30);
    }
}

async fn fetch_chunks(engine: &Arc<Engine>, tail: &Arc<Tail>, group: Vec<Arc<Chunk>>) {
    let (first, last) = (&group[0], &group[group.len() - 1]);
    let start = u64::from(first.offset);
    let len = end_of(last) - start;
    let data = read_range(engine, tail, first.pack.pack_key(), start, len).await;
    for chunk in &group {
        let key = Key::Chunk(chunk_key(chunk));
        let result = match &data {
            Err(error) => Err(*error),
            Ok(data) => {
                let at = (u64::from(chunk.offset) - start) as usize;
                // Chunks do not overlap in a pack that firn wrote; an index may say anything.
                match data.get(at..at + chunk.stored as usize) {
                    None => Err(ErrorKind::Corrupt),
                    Some(stored) => match open_chunk(engine, tail, chunk, stored).await {
                        Ok(content) => store_in_memory(engine, chunk, content).await,
                        Err(error) => Err(error),
                    },
                }
            }
        };
        if canary::active!("fetch_over_newer_write") {
            tail.lock().layers.top.remove(chunk.span, |_, _| {});
        }
        engine.fetches.done(key, result, engine.jobs.now().mono_ns);
    }
}

/// The chunk's content; bytes that fail their checksum are read once more.
async fn open_chunk(
    engine: &Engine,
    tail: &Tail,
    chunk: &Chunk,
    stored: &[u8],
) -> Result<Vec<u8>, ErrorKind> {
    let (pack, offset) = (chunk.pack, chunk.offset);
    match chunk.open(stored) {
        Ok(content) => return Ok(content),
        Err(error) => {
            tracing::warn!(%pack, offset, %error, "a chunk is damaged and is read again");
        }
    }
    let (at, len) = (u64::from(chunk.offset), u64::from(chunk.stored));
    let again = read_range(engine, tail, chunk.pack.pack_key(), at, len).await?;
    chunk.open(&again).map_err(|error| {
        tracing::error!(%pack, offset, %error, "a chunk is damaged in the store");
        ErrorKind::Corrupt
    })
}

/// Puts content into the memory file; the disk cache follows behind.
async fn store_in_memory(
    engine: &Arc<Engine>,
    chunk: &Chunk,
    mut content: Vec<u8>,
) -> Result<(), ErrorKind> {
    let (key, bytes) = (chunk_key(chunk), content.len() as u64);
    content.resize(content.len().next_multiple_of(4096), 0);
    let now = engine.jobs.now().mono_ns;
    let Some(allocation) = engine.cache.allocate_in_memory(key, bytes, now) else {
        return Err(ErrorKind::Io);
    };
    if let Err(error) = engine
        .port
        .write(FileId::MEMORY, allocation.offset, content.clone())
        .await
    {
        tracing::error!(error = error.0, "fetched bytes could not be kept in memory");
        engine.cache.cancel(allocation);
        return Err(ErrorKind::Io);
    }
    engine.cache.fill(allocation, now);
    if let Some(allocation) = engine.cache.allocate_on_disk(key, bytes, now) {
        let engine = Arc::clone(engine);
        engine.clone().jobs.spawn(async move {
            match engine
                .port
                .write(FileId::CACHE, allocation.offset, content)
                .await
            {
                Ok(()) => engine.cache.fill(allocation, 0),
                Err(error) => {
                    tracing::warn!(error = error.0, "the cache disk does not take writes");
                    engine.cache.cancel(allocation);
                }
            }
        });
    }
    Ok(())
}

async fn fetch_page(engine: &Arc<Engine>, tail: &Arc<Tail>, number: u64, block: BlockRef) {
    let key = Key::Page(tail.id(), number);
    let result = load_page(engine, tail, number, block).await.map(|page| {
        tail.lock()
            .index
            .insert_page(number, block, Arc::new(page), engine.options.pages_max);
    });
    engine.fetches.done(key, result, engine.jobs.now().mono_ns);
}

/// A page's content, read from the store.
pub(crate) async fn load_page(
    engine: &Engine,
    tail: &Tail,
    number: u64,
    block: BlockRef,
) -> Result<crate::map::ExtentMap<crate::object::pack::ChunkPart>, ErrorKind> {
    let (object, at, len) = (
        block.object.index_key(),
        block.offset.into(),
        block.bytes.into(),
    );
    let data = read_range(engine, tail, object, at, len).await?;
    decode_page(tail.id().volume, number, &data).map_err(|error| {
        tracing::error!(object = %block.object, page = number, %error, "an index page is damaged");
        ErrorKind::Corrupt
    })
}
