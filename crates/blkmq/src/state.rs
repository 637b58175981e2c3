//! The state of a device that its queues share, and the transitions that happen once per device
//! (R4): quiesce, unquiesce, cancel, re-arm.
//!
//! Transitions are decided under one sleeping mutex, the admin mutex, which no ring thread takes.
//! The device's flags under that mutex decide; each queue has a copy, so that its fast path stays
//! on its own cache line, and the copies match whenever the mutex is free (checked at every unlock
//! in debug builds). A transition has one grace period, however many queues there are. This file
//! knows a queue only as an [`AnyQueue`], never its requests.

use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Weak};
use std::time::Duration;

use crate::barrier::Barrier;
use crate::drain::DrainWaiters;
use crate::error::ErrorKind;
use crate::gate::{CANCELLED, Gate, QUIESCED};
use crate::may_block::{SleepGuard, SleepLock, SmallLock, may_block};
use crate::sync::{AtomicU64, Ordering};
use crate::tags::Tag;

/// What the device needs of a queue, whatever the type of its requests.
pub(crate) trait AnyQueue: Send + Sync {
    fn gate(&self) -> &Gate;
    /// Kicks the owner if it has something to do. The caller has passed the barrier.
    fn kick_if_pending(&self);
    fn load(&self) -> QueueLoad;
}

/// What a queue holds at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueueLoad {
    /// The queue's number in its device.
    pub queue: u32,
    /// Requests in flight.
    pub in_flight: u64,
    /// Their tags.
    pub tags: Vec<Tag>,
    /// Requests in the dispatch list that are not in flight.
    pub parked: usize,
}

/// How many transitions a device has made, and requests it has lost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeviceCounts {
    /// Times the device went from running to quiesced.
    pub quiesces: u64,
    /// Times it went from armed to cancelled.
    pub cancels: u64,
    /// Grace periods: one per quiesce and one per cancel, however many queues.
    pub grace_periods: u64,
    /// Requests that were dropped instead of completed.
    pub dropped: u64,
}

/// A device, as its queues, its guards and its control side share it.
pub(crate) struct DeviceState {
    name: String,
    barrier: Barrier,
    park_timeout: Option<Duration>,
    admin: SleepLock<Admin>,
    /// The error of the cancel in force. Written under the admin mutex; owners read it when they
    /// see their copy of the flag.
    cancel_error: SmallLock<Option<ErrorKind>>,
    /// Twice the number of re-arms, plus one if a cancel was requested since the last.
    cancel_epoch: AtomicU64,
    drain_waiters: DrainWaiters,
    dropped: AtomicU64,
}

/// What the admin mutex protects.
#[derive(Default)]
struct Admin {
    queues: Vec<Weak<dyn AnyQueue>>,
    next_queue: u32,
    quiesce_depth: u32,
    cancelled: bool,
    removed: bool,
    counts: DeviceCounts,
}

impl Admin {
    fn flags(&self) -> u32 {
        let quiesced = if self.quiesce_depth > 0 { QUIESCED } else { 0 };
        let cancelled = if self.cancelled { CANCELLED } else { 0 };
        quiesced | cancelled
    }

    fn queues(&mut self) -> Vec<Arc<dyn AnyQueue>> {
        self.queues.retain(|queue| queue.strong_count() > 0);
        self.queues.iter().filter_map(Weak::upgrade).collect()
    }

    /// Sets every queue's copy of the flags. The caller then passes the rare side's barrier, once.
    fn set_queue_flags(&mut self) -> Vec<Arc<dyn AnyQueue>> {
        let flags = self.flags();
        let queues = self.queues();
        for queue in &queues {
            queue.gate().set_flags(flags);
        }
        queues
    }
}

/// The held admin mutex. Unlocking asserts that every queue's copy matches the device's flags.
struct AdminGuard<'a>(SleepGuard<'a, Admin>);

impl Drop for AdminGuard<'_> {
    fn drop(&mut self) {
        if cfg!(debug_assertions) && !std::thread::panicking() {
            let flags = self.0.flags();
            for queue in self.0.queues() {
                assert_eq!(
                    queue.gate().flags(),
                    flags,
                    "a queue's copy differs from its device"
                );
            }
        }
    }
}

impl Deref for AdminGuard<'_> {
    type Target = Admin;

    fn deref(&self) -> &Admin {
        &self.0
    }
}

impl DerefMut for AdminGuard<'_> {
    fn deref_mut(&mut self) -> &mut Admin {
        &mut self.0
    }
}

impl DeviceState {
    pub(crate) fn new(
        name: String,
        barrier: Barrier,
        park_timeout: Option<Duration>,
    ) -> DeviceState {
        DeviceState {
            name,
            barrier,
            park_timeout,
            admin: SleepLock::new("a device's admin mutex", Admin::default()),
            cancel_error: SmallLock::new("cancel error", None),
            cancel_epoch: AtomicU64::new(0),
            drain_waiters: DrainWaiters::new(),
            dropped: AtomicU64::new(0),
        }
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn barrier(&self) -> Barrier {
        self.barrier
    }

    pub(crate) fn park_timeout(&self) -> Option<Duration> {
        self.park_timeout
    }

    pub(crate) fn cancel_error(&self) -> Option<ErrorKind> {
        *self.cancel_error.lock()
    }

    pub(crate) fn drain_waiters(&self) -> &DrainWaiters {
        &self.drain_waiters
    }

    pub(crate) fn count_dropped(&self) {
        self.dropped.fetch_add(1, Ordering::Relaxed);
        tracing::error!(device = %self.name, "a request was dropped; it completes with EIO");
    }

    fn lock_admin(&self) -> AdminGuard<'_> {
        AdminGuard(self.admin.lock())
    }

    /// The one grace period of a transition, however many queues there are. After it, by P1, a
    /// request that did not see the new flags is counted in flight; by P2, one that did is listed.
    fn grace_period(&self, admin: &mut Admin) {
        admin.counts.grace_periods += 1;
        if !canary::active!("grace_period_without_barrier") {
            self.barrier.heavy();
        }
    }

    /// Adds the queue that `make` makes of its number.
    pub(crate) fn add_queue<Q>(
        &self,
        make: impl FnOnce(u32) -> Q,
        any: impl FnOnce(&Q) -> Arc<dyn AnyQueue>,
    ) -> Q {
        let mut admin = self.lock_admin();
        // Allocating a queue may wait for memory. The holder of this mutex may; under a spin lock
        // it could not, and no hot path ever waits for this mutex.
        may_block("making a queue");
        let id = admin.next_queue;
        admin.next_queue += 1;
        let queue = make(id);
        let any_queue = any(&queue);
        // No other thread has the queue yet, so its copy of the flags needs no grace period.
        any_queue.gate().set_flags(admin.flags());
        admin.queues.push(Arc::downgrade(&any_queue));
        queue
    }

    /// Shuts the gate of every queue, or nests in a quiesce that did. Returns the queues.
    pub(crate) fn quiesce(&self) -> Vec<Arc<dyn AnyQueue>> {
        let mut admin = self.lock_admin();
        admin.quiesce_depth += 1;
        if admin.quiesce_depth > 1 {
            // The gate was shut, and the grace period passed, under this mutex.
            return admin.queues();
        }
        admin.counts.quiesces += 1;
        let queues = admin.set_queue_flags();
        self.grace_period(&mut admin);
        queues
    }

    pub(crate) fn unquiesce(&self) {
        let mut admin = self.lock_admin();
        admin.quiesce_depth -= 1;
        if admin.quiesce_depth > 0 {
            return;
        }
        if canary::active!("unquiesce_checks_before_it_clears") {
            admin
                .queues()
                .iter()
                .for_each(|queue| queue.kick_if_pending());
            admin.set_queue_flags();
            self.barrier.heavy();
            return;
        }
        let queues = admin.set_queue_flags();
        if !canary::active!("unquiesce_without_barrier") {
            self.barrier.heavy();
        }
        drop(admin);
        // Rare side of P2: flags cleared, barrier passed, now check what is listed. Outside the
        // mutex, because a kick is the transport's code.
        queues.iter().for_each(|queue| queue.kick_if_pending());
    }

    /// Cancels the device, unless it is cancelled or removed, or `still_wanted` refuses. Lock,
    /// check, set all, one grace period, unlock. The check is under the lock: if it were not, each
    /// queue of a dying device would repeat all of it.
    pub(crate) fn cancel_if(&self, error: ErrorKind, still_wanted: impl FnOnce() -> bool) -> bool {
        let decide = |admin: &Admin| !admin.cancelled && !admin.removed;
        let unlocked = canary::active!("cancel_decided_unlocked") && decide(&self.lock_admin());
        let mut admin = self.lock_admin();
        if !(unlocked || decide(&admin) && still_wanted()) {
            return false;
        }
        *self.cancel_error.lock() = Some(error);
        self.cancel_epoch.fetch_or(1, Ordering::AcqRel);
        admin.cancelled = true;
        admin.counts.cancels += 1;
        let queues = admin.set_queue_flags();
        self.grace_period(&mut admin);
        drop(admin);
        queues.iter().for_each(|queue| queue.kick_if_pending());
        true
    }

    /// Requests a cancel without waiting. Returns the epoch of the request to the first caller
    /// since the last re-arm, `None` to all others.
    pub(crate) fn claim_cancel(&self) -> Option<u64> {
        let epoch = self.cancel_epoch.load(Ordering::Acquire);
        let claimed = epoch & 1 == 0
            && self
                .cancel_epoch
                .compare_exchange(epoch, epoch | 1, Ordering::AcqRel, Ordering::Relaxed)
                .is_ok();
        claimed.then_some(epoch | 1)
    }

    /// Cancels for a request of [`DeviceState::claim_cancel`], unless the device was re-armed since.
    pub(crate) fn cancel_claimed(&self, error: ErrorKind, epoch: u64) {
        self.cancel_if(error, || self.cancel_epoch.load(Ordering::Acquire) == epoch);
    }

    pub(crate) fn rearm(&self) -> bool {
        let mut admin = self.lock_admin();
        if !admin.cancelled || admin.removed {
            return false;
        }
        admin.cancelled = false;
        *self.cancel_error.lock() = None;
        // From odd to the next even number: cancels requested before this moment are void.
        self.cancel_epoch.fetch_add(1, Ordering::AcqRel);
        let queues = if canary::active!("copies_not_rearmed") {
            Vec::new()
        } else {
            admin.set_queue_flags()
        };
        self.barrier.heavy();
        drop(admin);
        queues.iter().for_each(|queue| queue.kick_if_pending());
        true
    }

    pub(crate) fn remove(&self) {
        self.cancel_if(ErrorKind::Closed, || true);
        self.lock_admin().removed = true;
    }

    pub(crate) fn counts(&self) -> DeviceCounts {
        let counts = self.lock_admin().counts;
        DeviceCounts {
            dropped: self.dropped.load(Ordering::Relaxed),
            ..counts
        }
    }

    pub(crate) fn load(&self) -> Vec<QueueLoad> {
        let queues = self.lock_admin().queues();
        queues.iter().map(|queue| queue.load()).collect()
    }

    /// A request left flight while a flag was set: the waiters for a drain check again.
    pub(crate) fn wake_drain_waiters(&self) {
        self.drain_waiters.wake_all();
        if canary::active!("sleep_on_the_completion_path") {
            self.counts();
        }
    }
}
