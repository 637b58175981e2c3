//! The counters of a queue: its thread counts, any thread reads.

use std::sync::atomic::{AtomicU64, Ordering};

/// What one hardware queue has counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct QueueStats {
    /// Requests that the handler got.
    pub requests: u64,
    /// Results that were committed.
    pub commits: u64,
    /// Tags that the driver aborted.
    pub aborts: u64,
    /// Tags that the server had when the driver aborted the first one.
    pub owned_at_abort: u64,
    /// Commands that were issued again after the driver refused them.
    pub retries: u64,
    /// Results that the driver refused until they were replaced by EIO.
    pub commits_lost: u64,
    /// Requests that were dropped unanswered.
    pub dropped: u64,
    /// Calls of the handler that panicked.
    pub panics: u64,
    /// Requests whose buffer slot was in use, so that their bytes went another way.
    pub fallbacks: u64,
    /// Plans whose bytes were moved between the request's slot and files, without a copy.
    pub uncopied: u64,
    /// Plans whose bytes were copied through memory of the server.
    pub copied: u64,
    /// Requests that had to wait for a buffer or a slot.
    pub waits: u64,
    /// Requests that were left for the next server.
    pub abandoned: u64,
    /// Requests whose answer or description made no sense.
    pub faults: u64,
}

/// The counters behind [`QueueStats`].
#[derive(Debug, Default)]
pub struct Counters {
    pub(super) requests: Count,
    pub(super) commits: Count,
    pub(super) aborts: Count,
    pub(super) owned_at_abort: Count,
    pub(super) retries: Count,
    pub(super) commits_lost: Count,
    dropped: AtomicU64,
    pub(super) panics: Count,
    pub(super) fallbacks: Count,
    pub(super) uncopied: Count,
    pub(super) copied: Count,
    pub(super) waits: Count,
    pub(super) abandoned: Count,
    pub(super) faults: Count,
}

/// A number that one thread counts up and others read.
#[derive(Debug, Default)]
pub(super) struct Count(AtomicU64);

impl Count {
    pub(super) fn add(&self, more: u64) {
        // One writer: no need for a read-modify-write on the hot path.
        self.set(self.get() + more);
    }

    pub(super) fn increment(&self) {
        self.add(1);
    }

    pub(super) fn set(&self, to: u64) {
        self.0.store(to, Ordering::Relaxed);
    }

    fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

impl Counters {
    /// A request was dropped, on whatever thread.
    pub(crate) fn count_dropped(&self) {
        self.dropped.fetch_add(1, Ordering::Relaxed);
    }

    /// The present values.
    pub fn stats(&self) -> QueueStats {
        QueueStats {
            requests: self.requests.get(),
            commits: self.commits.get(),
            aborts: self.aborts.get(),
            owned_at_abort: self.owned_at_abort.get(),
            retries: self.retries.get(),
            commits_lost: self.commits_lost.get(),
            dropped: self.dropped.load(Ordering::Relaxed),
            panics: self.panics.get(),
            fallbacks: self.fallbacks.get(),
            uncopied: self.uncopied.get(),
            copied: self.copied.get(),
            waits: self.waits.get(),
            abandoned: self.abandoned.get(),
            faults: self.faults.get(),
        }
    }
}
