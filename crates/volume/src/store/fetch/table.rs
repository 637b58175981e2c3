//! Which requests wait for which fetch, and which fetch failed a moment ago.
//!
//! Memory only, under one short lock: a chunk or page that many reads need is fetched once. [`super`] does
//! the fetches.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::task::Waker;

use blkmq::error::ErrorKind;

use crate::cache::ChunkKey;
use crate::cache::blocks::{BlockTarget, block_key};
use crate::lock::lock;
use crate::object::pack::Chunk;
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicUsize, Ordering};

/// How long a failure is kept for the reads that waited for it.
const FAILURE_NS: u64 = 1_000_000_000;

/// What a read needs from the store.
#[derive(Clone, Debug)]
pub(crate) enum FetchTarget {
    Chunk(Arc<Chunk>),
    Block(BlockTarget),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum FetchKey {
    Chunk(ChunkKey),
    /// An index block.
    Block(ChunkKey),
}

#[derive(Debug, Default)]
struct State {
    in_flight: BTreeMap<FetchKey, Vec<Waker>>,
    failed: BTreeMap<FetchKey, (ErrorKind, u64)>,
}

/// All fetches of a host.
#[derive(Debug, Default)]
pub(crate) struct FetchTable {
    state: Mutex<State>,
    /// Requests in flight to the store that clients wait for.
    client_requests: AtomicUsize,
}

pub(crate) fn chunk_key(chunk: &Chunk) -> ChunkKey {
    ChunkKey {
        pack: chunk.pack,
        offset: chunk.offset,
    }
}

/// What the caller of [`FetchTable::register`] must fetch.
#[derive(Debug, Default)]
pub(crate) struct MissingTargets {
    pub(crate) chunks: Vec<Arc<Chunk>>,
    pub(crate) blocks: Vec<BlockTarget>,
    /// A target has come into the cache meanwhile: the read may plan again at once.
    pub(crate) any_cached: bool,
}

impl FetchTable {
    /// Registers `waker` for all of `targets`, and returns those that are not in flight, for the caller to fetch.
    ///
    /// # Errors
    ///
    /// If one of them failed a moment ago; then nothing is registered.
    pub(crate) fn register(
        &self,
        targets: Vec<FetchTarget>,
        waker: &Waker,
        now_ns: u64,
        is_cached: impl Fn(FetchKey) -> bool,
    ) -> Result<MissingTargets, ErrorKind> {
        let mut missing = MissingTargets::default();
        let mut state = lock(&self.state);
        state.failed.retain(|_, (_, until)| *until > now_ns);
        let key_of = |target: &FetchTarget| match target {
            FetchTarget::Chunk(chunk) => FetchKey::Chunk(chunk_key(chunk)),
            FetchTarget::Block(target) => FetchKey::Block(block_key(target.block)),
        };
        // Checked before anything is registered below: a registered key must also be fetched.
        for target in &targets {
            if let Some((error, _)) = state.failed.get(&key_of(target)) {
                return Err(*error);
            }
        }
        for target in targets {
            let key = key_of(&target);
            if let Some(waiters) = state.in_flight.get_mut(&key) {
                // A read that waits for many plans again as each is there: without this check its
                // wakers would multiply.
                if !waiters.iter().any(|other| other.will_wake(waker)) {
                    waiters.push(waker.clone());
                }
                continue;
            }
            // It may have been fetched between the look-up in the cache and this lock: the fetch
            // puts it into the cache before it removes the key from `in_flight`.
            if is_cached(key) {
                missing.any_cached = true;
                continue;
            }
            state.in_flight.insert(key, vec![waker.clone()]);
            match target {
                FetchTarget::Chunk(chunk) => missing.chunks.push(chunk),
                FetchTarget::Block(target) => missing.blocks.push(target),
            }
        }
        Ok(missing)
    }

    /// Registers chunks that nobody waits for yet, and returns those that are neither in flight nor cached, for
    /// the caller to fetch.
    pub(crate) fn register_ahead(
        &self,
        chunks: Vec<Arc<Chunk>>,
        is_cached: impl Fn(ChunkKey) -> bool,
    ) -> Vec<Arc<Chunk>> {
        let mut state = lock(&self.state);
        let mut missing = Vec::new();
        for chunk in chunks {
            let key = FetchKey::Chunk(chunk_key(&chunk));
            let is_known = state.in_flight.contains_key(&key) || state.failed.contains_key(&key);
            if !is_known && !is_cached(chunk_key(&chunk)) {
                state.in_flight.insert(key, Vec::new());
                missing.push(chunk);
            }
        }
        missing
    }

    /// Counts a request to the store that a client waits for.
    pub(crate) fn begin_request(&self) {
        self.client_requests.fetch_add(1, Ordering::AcqRel);
    }

    /// Ends the count of that request.
    pub(crate) fn end_request(&self) {
        self.client_requests.fetch_sub(1, Ordering::AcqRel);
    }

    /// Whether clients wait for requests to the store.
    pub(crate) fn has_client_requests(&self) -> bool {
        self.client_requests.load(Ordering::Acquire) > 0
    }

    /// Wakes all waiters to plan again, because a volume was closed or fenced.
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

    /// Ends the fetches of these keys, and wakes each of their waiters once, to plan again.
    pub(crate) fn complete(
        &self,
        ended: impl IntoIterator<Item = (FetchKey, Result<(), ErrorKind>)>,
        now: u64,
    ) {
        let mut woken: Vec<Waker> = Vec::new();
        let mut state = lock(&self.state);
        for (key, result) in ended {
            // A fetch that was given up says nothing about the object: the next opening of the volume fetches it
            // anew.
            if let Err(error) = result
                && error != ErrorKind::Closed
            {
                state.failed.insert(key, (error, now + FAILURE_NS));
            }
            for waker in state.in_flight.remove(&key).unwrap_or_default() {
                if !woken.iter().any(|other| other.will_wake(&waker)) {
                    woken.push(waker);
                }
            }
        }
        drop(state);
        woken.into_iter().for_each(Waker::wake);
    }
}
