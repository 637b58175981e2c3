//! The gate of one hardware queue: its flags, its in-flight count, and "must this queue run?".
//!
//! Four lines of cache, each with one kind of writer: the *flags* are copies of the device's and
//! are written by the rare side under the device's mutex; `started` is written by the queue's
//! owner alone, with plain stores; `finished` by whoever completes; the *pending* counts by
//! whoever holds the dispatch list's lock. In flight is `started - finished`. Nothing here knows
//! what a request is, and nothing here waits.
//!
//! The pairings, each noted again where its sides are:
//!
//! - **P1, admission and quiesce.** Hot: count in, `light`, read the flags ([`Gate::enter`]).
//!   Rare: set the flags, `heavy`, read the counts. A request either sees the flag, or is counted.
//! - **P2, dispatch list and unquiesce.** Hot: publish the pending count, `light`, read the flags
//!   ([`Gate::must_run`]). Rare: clear the flags, `heavy`, read the pending count. Either the
//!   enqueuer sees the flag cleared, or unquiesce sees the request; whoever sees it kicks the owner.
//! - **P3, completion and everything that waits for one** (a drain; a request that wants a tag).
//!   Both sides step on `finished` with a read-modify-write: the completer adds one, the waiter
//!   adds zero. One of the two steps comes second, and acquires what the other side wrote before
//!   its own. So a completion needs no fence in either form of the barrier.

use crate::barrier::Barrier;
use crate::sync::{AtomicBool, AtomicU32, AtomicU64, Ordering};

/// The device is quiesced: nothing is admitted.
pub(crate) const QUIESCED: u32 = 1;
/// The device is cancelled: what is parked or arrives completes with the device's error.
pub(crate) const CANCELLED: u32 = 2;

/// A cache line of its own, and its neighbour, which processors fetch along with it.
#[repr(align(128))]
struct Line<T>(T);

pub(crate) struct Gate {
    flags: Line<AtomicU32>,
    started: Line<AtomicU64>,
    finished: Line<AtomicU64>,
    pending: Line<Pending>,
    barrier: Barrier,
}

/// What the dispatch list holds, for looks without its lock.
struct Pending {
    /// Requests that could be run if the gate is open.
    runnable: AtomicU32,
    /// Requests that a cancel completes; contains the runnable ones.
    parked: AtomicU32,
    /// Woken requests that are in flight already: they run whatever the gate says.
    resumed: AtomicU32,
    /// A kick is on its way to the owner; further ones are saved.
    kicked: AtomicBool,
}

/// The counts that [`Gate::publish`] makes visible.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) runnable: u32,
    pub(crate) parked: u32,
    pub(crate) resumed: u32,
}

/// The answer of [`Gate::enter`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Enter {
    /// Counted in; leave exactly once. `ticket` numbers the admissions of this queue.
    In { ticket: u64 },
    /// The gate is shut. `counted`: it shut while this call counted itself in, and the count
    /// stands; leave.
    Shut { cancelled: bool, counted: bool },
}

impl Gate {
    pub(crate) fn new(barrier: Barrier) -> Gate {
        Gate {
            flags: Line(AtomicU32::new(0)),
            started: Line(AtomicU64::new(0)),
            finished: Line(AtomicU64::new(0)),
            pending: Line(Pending {
                runnable: AtomicU32::new(0),
                parked: AtomicU32::new(0),
                resumed: AtomicU32::new(0),
                kicked: AtomicBool::new(false),
            }),
            barrier,
        }
    }

    /// The flags as the hot side sees them. Acquire pairs with the Release in [`Gate::set_flags`]:
    /// who sees a flag cleared also sees all that was changed while it was set (a resize, say).
    /// This is what the kernel's dispatch path has a second barrier for; the order of the load
    /// that decides does it here, in both forms of the barrier, and costs nothing on x86.
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

    /// Rare side, under the device's mutex. The caller passes `heavy` before it trusts a count.
    pub(crate) fn set_flags(&self, flags: u32) {
        self.flags.0.store(flags, Ordering::Release);
    }

    /// Counts the calling owner in, unless the gate is shut. Hot side of P1. Owner only.
    #[inline]
    pub(crate) fn enter(&self) -> Enter {
        // A look that saves a shut gate the count; the one that decides is below.
        let flags = self.flags();
        if flags != 0 {
            return Enter::Shut {
                cancelled: flags & CANCELLED != 0,
                counted: false,
            };
        }
        // One writer, so a plain store does. It comes before the look at the flags (P1).
        let started = self.started.0.load(Ordering::Relaxed);
        self.started
            .0
            .store(started.wrapping_add(1), Ordering::Relaxed);
        if !canary::active!("admit_without_barrier") && !canary::active!("flags_without_acquire") {
            self.barrier.light();
        }
        let flags = self.flags();
        if flags == 0 {
            return Enter::In { ticket: started };
        }
        Enter::Shut {
            cancelled: flags & CANCELLED != 0,
            counted: true,
        }
    }

    /// One request is no longer in flight. Any thread. P3: after this step, look at what waits.
    #[inline]
    pub(crate) fn leave(&self) {
        let relaxed = canary::active!("leave_without_order");
        let order = if relaxed {
            Ordering::Relaxed
        } else {
            Ordering::AcqRel
        };
        self.finished.0.fetch_add(1, order);
    }

    /// The waiting side of P3: after this, what a completer wrote before its step is visible here,
    /// or what this thread wrote before is visible to the completer.
    pub(crate) fn meet_completers(&self) -> u64 {
        self.finished.0.fetch_add(0, Ordering::AcqRel)
    }

    /// How many requests are in flight. Exact once the gate is shut and the grace period is over;
    /// otherwise a figure for reports.
    pub(crate) fn in_flight(&self) -> u64 {
        let finished = self.meet_completers();
        self.started
            .0
            .load(Ordering::Acquire)
            .wrapping_sub(finished)
    }

    /// Makes the dispatch list's counts visible. Under its lock.
    pub(crate) fn publish(&self, counts: Counts) {
        let pending = &self.pending.0;
        pending.runnable.store(counts.runnable, Ordering::Release);
        pending.parked.store(counts.parked, Ordering::Release);
        pending.resumed.store(counts.resumed, Ordering::Release);
    }

    /// Whether requests are ready to run before a new one. Owner only, and a hint: a request that
    /// another thread submits at this moment may come before or after.
    #[inline]
    pub(crate) fn line_ahead(&self) -> bool {
        self.pending.0.runnable.load(Ordering::Relaxed) != 0
    }

    /// One look, without a lock, at whether the owner has something to do.
    #[inline]
    pub(crate) fn has_pending(&self) -> bool {
        let pending = &self.pending.0;
        if pending.resumed.load(Ordering::Acquire) != 0 {
            return true;
        }
        match self.flags() {
            0 => pending.runnable.load(Ordering::Acquire) != 0,
            flags => flags & CANCELLED != 0 && pending.parked.load(Ordering::Acquire) != 0,
        }
    }

    /// "Must this queue run?" Looks; where it sees nothing to do, passes the barrier and looks
    /// again. Hot side of P2: what the caller published before this call, and the flags that the
    /// rare side changes, cannot both stay unseen.
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

    /// Whether the caller is the one who has to deliver the kick. AcqRel: the owner, which clears
    /// the mark before it looks, sees what was published before a kick that was saved.
    pub(crate) fn claim_kick(&self) -> bool {
        !self.pending.0.kicked.swap(true, Ordering::AcqRel)
    }

    /// The owner has come: later kicks must be delivered again.
    #[inline]
    pub(crate) fn answer_kick(&self) {
        // A kick that is being delivered right now brings the owner back after it is visible.
        if self.pending.0.kicked.load(Ordering::Relaxed) {
            self.pending.0.kicked.swap(false, Ordering::AcqRel);
        }
    }
}
