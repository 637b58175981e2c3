//! Figures of a queue, counted by its thread and read by all.

use std::sync::atomic::{AtomicU64, Ordering};

/// Figures of one hardware queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct QueueStats {
    /// Requests that were handed to the handler.
    pub requests: u64,
    /// Results that were given to the driver.
    pub commits: u64,
    /// Tags that the driver retired.
    pub aborts: u64,
    /// Tags that the server had when the driver retired the first one.
    pub owned_at_abort: u64,
    /// Commands that were sent again after the driver refused them.
    pub rearms: u64,
    /// Results that the driver refused until they were given up for EIO.
    pub commits_lost: u64,
    /// Requests that were dropped unanswered.
    pub dropped: u64,
    /// Calls of the handler that panicked.
    pub panics: u64,
    /// Requests whose buffer slot was taken, so that their bytes went another way.
    pub fallbacks: u64,
    /// Plans whose bytes were moved between the request's slot and files, without a copy.
    pub uncopied: u64,
    /// Plans whose bytes passed through memory of the server.
    pub copied: u64,
    /// Requests that had to wait for a buffer or a slot.
    pub waits: u64,
    /// Requests that were left with the driver.
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
    pub(super) rearms: Count,
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

    pub(super) fn one(&self) {
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

    /// The figures now.
    pub fn stats(&self) -> QueueStats {
        QueueStats {
            requests: self.requests.get(),
            commits: self.commits.get(),
            aborts: self.aborts.get(),
            owned_at_abort: self.owned_at_abort.get(),
            rearms: self.rearms.get(),
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
