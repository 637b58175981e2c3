//! The admission gate of one hardware queue: its flags, its in-flight count, and "must this queue
//! run?".
//!
//! Four cache lines, each with one kind of writer: the *flags* are copies of the device's, written
//! by the rare side under the device's mutex; `started` is written by the queue's owner alone, with
//! plain stores; `finished` by the threads that complete; the *pending* counts under the dispatch
//! list's lock. In flight is `started - finished`. The gate knows nothing of requests and never
//! waits.
//!
//! The pairs of barriers (each is named again at both of its sides):
//!
//! - **P1, admission and quiesce.** Hot: add to `started`, `light`, read the flags ([`Gate::enter`]).
//!   Rare: set the flags, `heavy`, read the counts. A request sees the flag, or is counted.
//! - **P2, dispatch list and unquiesce.** Hot: publish the pending count, `light`, read the flags
//!   ([`Gate::must_run`]). Rare: clear the flags, `heavy`, read the pending count. Either the
//!   enqueuer sees the flag cleared, or unquiesce sees the request; the side that sees it kicks the
//!   owner.
//! - **P3, completion and what waits for one** (a drain; a request that needs a tag). Both sides do
//!   a read-modify-write of `finished`: the completer adds one, the waiter adds zero. The later of
//!   the two acquires what the other thread wrote before its own. So a completion needs no fence in
//!   either form of the barrier.

use crate::barrier::Barrier;
use crate::sync::{AtomicBool, AtomicU32, AtomicU64, Ordering};

/// The device is quiesced: nothing is admitted.
pub(crate) const QUIESCED: u32 = 1;
/// The device is cancelled: parked and new requests complete with the device's error.
pub(crate) const CANCELLED: u32 = 2;

/// A cache line of its own, and the adjacent one, which processors prefetch with it.
#[repr(align(128))]
struct CachePadded<T>(T);

pub(crate) struct Gate {
    flags: CachePadded<AtomicU32>,
    started: CachePadded<AtomicU64>,
    finished: CachePadded<AtomicU64>,
    pending: CachePadded<Pending>,
    barrier: Barrier,
}

/// What the dispatch list holds, to be read without its lock.
struct Pending {
    /// Requests that can run if the gate is open.
    runnable: AtomicU32,
    /// Requests that a cancel completes, the runnable ones included.
    cancellable: AtomicU32,
    /// Woken requests that are in flight already: they run even if the gate is shut.
    woken_syncs: AtomicU32,
    /// A kick is on its way to the owner; no other is sent until the owner runs.
    kicked: AtomicBool,
}

/// The counts that [`Gate::publish_counts`] makes visible.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct PendingCounts {
    pub(crate) runnable: u32,
    pub(crate) cancellable: u32,
    pub(crate) woken_syncs: u32,
}

/// The result of [`Gate::enter`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Entry {
    /// Counted in flight: call [`Gate::exit`] exactly once. `ticket` numbers the admissions.
    Open { ticket: u64 },
    /// The gate is shut. `counted`: it was shut during this call, which is counted in flight:
    /// call [`Gate::exit`].
    Shut { cancelled: bool, counted: bool },
}

impl Gate {
    pub(crate) fn new(barrier: Barrier) -> Gate {
        Gate {
            flags: CachePadded(AtomicU32::new(0)),
            started: CachePadded(AtomicU64::new(0)),
            finished: CachePadded(AtomicU64::new(0)),
            pending: CachePadded(Pending {
                runnable: AtomicU32::new(0),
                cancellable: AtomicU32::new(0),
                woken_syncs: AtomicU32::new(0),
                kicked: AtomicBool::new(false),
            }),
            barrier,
        }
    }

    /// The flags as the hot side sees them. Acquire pairs with the Release in [`Gate::set_flags`]:
    /// a thread that sees a flag cleared also sees all that was changed while it was set (by a
    /// resize, say). blk-mq's dispatch path has a second barrier for this; here the acquire load
    /// does it, in both forms of the barrier, and costs nothing on x86.
    #[inline]
    pub(crate) fn flags(&self) -> u32 {
        let relaxed = canary::active!("flags_without_acquire");
        let order = if relaxed {
            Ordering::Relaxed
        } else {
            Ordering::Acquire
        };
        self.flags.0.load(order)
    }

    /// Rare side, under the device's mutex. The caller passes `heavy` before it relies on a count.
    pub(crate) fn set_flags(&self, flags: u32) {
        self.flags.0.store(flags, Ordering::Release);
    }

    /// Counts a request in flight, unless the gate is shut. Hot side of P1. Owner only.
    #[inline]
    pub(crate) fn enter(&self) -> Entry {
        // Saves a shut gate the count. The check that decides is below.
        let flags = self.flags();
        if flags != 0 {
            return Entry::Shut {
                cancelled: flags & CANCELLED != 0,
                counted: false,
            };
        }
        // There is one writer, so a plain store is enough. It precedes the read of the flags (P1).
        let started = self.started.0.load(Ordering::Relaxed);
        self.started
            .0
            .store(started.wrapping_add(1), Ordering::Relaxed);
        if !canary::active!("admit_without_barrier") && !canary::active!("flags_without_acquire") {
            self.barrier.light();
        }
        let flags = self.flags();
        if flags == 0 {
            return Entry::Open { ticket: started };
        }
        Entry::Shut {
            cancelled: flags & CANCELLED != 0,
            counted: true,
        }
    }

    /// One request is no longer in flight. Any thread. P3: check for waiters after this call.
    #[inline]
    pub(crate) fn exit(&self) {
        let relaxed = canary::active!("leave_without_order");
        let order = if relaxed {
            Ordering::Relaxed
        } else {
            Ordering::AcqRel
        };
        self.finished.0.fetch_add(1, order);
    }

    /// The waiting side of P3: what a completer wrote before [`Gate::exit`] is visible after this
    /// call, or what this thread wrote before is visible to the completer after `exit`.
    pub(crate) fn sync_with_completions(&self) -> u64 {
        self.finished.0.fetch_add(0, Ordering::AcqRel)
    }

    /// How many requests are in flight. Exact once the gate is shut and the grace period is over,
    /// before that an estimate for reports.
    pub(crate) fn in_flight(&self) -> u64 {
        let finished = self.sync_with_completions();
        self.started
            .0
            .load(Ordering::Acquire)
            .wrapping_sub(finished)
    }

    /// Publishes the dispatch list's counts. Under its lock.
    pub(crate) fn publish_counts(&self, counts: PendingCounts) {
        let pending = &self.pending.0;
        pending.runnable.store(counts.runnable, Ordering::Release);
        pending
            .cancellable
            .store(counts.cancellable, Ordering::Release);
        pending
            .woken_syncs
            .store(counts.woken_syncs, Ordering::Release);
    }

    /// Whether listed requests have to run before a new one. Owner only, and a hint: a request
    /// that another thread submits at this moment may come before or after.
    #[inline]
    pub(crate) fn has_runnable(&self) -> bool {
        self.pending.0.runnable.load(Ordering::Relaxed) != 0
    }

    /// Whether the owner has something to do, without a lock and without the barrier.
    #[inline]
    pub(crate) fn has_pending(&self) -> bool {
        let pending = &self.pending.0;
        if pending.woken_syncs.load(Ordering::Acquire) != 0 {
            return true;
        }
        match self.flags() {
            0 => pending.runnable.load(Ordering::Acquire) != 0,
            flags => flags & CANCELLED != 0 && pending.cancellable.load(Ordering::Acquire) != 0,
        }
    }

    /// "Must this queue run?" Checks, and if there is nothing to do, passes the barrier and checks
    /// again. Hot side of P2: it cannot be that this call misses the flags that the rare side
    /// changed and the rare side misses what the caller published.
    #[inline]
    pub(crate) fn must_run(&self) -> bool {
        if self.has_pending() {
            return true;
        }
        if !canary::active!("must_run_without_barrier") {
            self.barrier.light();
        }
        self.has_pending()
    }

    /// Whether the caller has to send the kick. AcqRel: the owner clears `kicked` before it checks,
    /// so it sees what was published before a kick that was not sent.
    pub(crate) fn claim_kick(&self) -> bool {
        !self.pending.0.kicked.swap(true, Ordering::AcqRel)
    }

    /// The owner runs: later kicks must be sent again.
    #[inline]
    pub(crate) fn clear_kick(&self) {
        // A kick that is being sent right now makes the owner run again after it is visible.
        if self.pending.0.kicked.load(Ordering::Relaxed) {
            self.pending.0.kicked.swap(false, Ordering::AcqRel);
        }
    }
}
