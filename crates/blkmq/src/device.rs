//! A device: its queues, and the transitions that happen once per device (R4).
//!
//! Quiesce, unquiesce, cancel, re-arm, and adding a queue are decided under one sleeping mutex,
//! which no ring thread takes. The device's flags under that mutex are the truth; each queue has
//! a copy, so that its fast path stays on its own cache line, and the copies match whenever the
//! mutex is free (checked at every unlock in debug builds). However many queues there are, one
//! transition is one grace period.

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Weak};
use std::time::Duration;

use crate::barrier::Barrier;
use crate::drain::{QuiesceGuard, Waiters};
use crate::error::ErrorKind;
use crate::gate::{CANCELLED, Gate, QUIESCED};
use crate::may_block::{SleepGuard, SleepLock, SmallLock, may_block};
use crate::queue::{Completer, Kick, Queue};
use crate::sync::{AtomicU64, Ordering};
use crate::tags::Tag;

/// What the device needs of a queue, whatever its requests are.
pub(crate) trait Member: Send + Sync {
    fn gate(&self) -> &Gate;
    /// Kicks the owner if one look, behind the barrier that the caller has passed, says so.
    fn kick_if_listed(&self);
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
    /// Parked requests.
    pub parked: usize,
}

/// Where ring threads post the work that may sleep.
pub trait ControlThread: Send + Sync {
    /// Called on a ring thread; must not wait. The control thread calls [`CancelWork::run`].
    fn post(&self, work: CancelWork);
}

/// How a device is made.
#[derive(Clone, Default)]
pub struct DeviceOptions {
    /// The form of the paired barriers; by default what the kernel offers.
    pub barrier: Barrier,
    /// How long a request may stay parked; by default for ever (S10).
    pub park_timeout: Option<Duration>,
    /// Where [`Device::request_cancel`] posts its work. Needed by devices with ring threads.
    pub control: Option<Arc<dyn ControlThread>>,
}

impl fmt::Debug for DeviceOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeviceOptions")
            .field("barrier", &self.barrier)
            .field("park_timeout", &self.park_timeout)
            .finish_non_exhaustive()
    }
}

/// What a device has been through.
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

/// A device and its hardware queues.
pub struct Device {
    name: String,
    options: DeviceOptions,
    admin: SleepLock<Admin>,
    /// The error of the cancel in force. Written under the mutex; owners read it when they see
    /// their copy of the flag.
    cancel_error: SmallLock<Option<ErrorKind>>,
    /// Twice the number of re-arms, plus one if a cancel was asked for since the last.
    cancel_asked: AtomicU64,
    drain_waiters: Waiters,
    dropped: AtomicU64,
}

#[derive(Default)]
struct Admin {
    queues: Vec<Weak<dyn Member>>,
    next_queue: u32,
    quiesce_depth: u32,
    cancelled: bool,
    gone: bool,
    counts: DeviceCounts,
}

impl Admin {
    fn flags(&self) -> u32 {
        let quiesced = if self.quiesce_depth > 0 { QUIESCED } else { 0 };
        let cancelled = if self.cancelled { CANCELLED } else { 0 };
        quiesced | cancelled
    }

    fn members(&mut self) -> Vec<Arc<dyn Member>> {
        self.queues.retain(|queue| queue.strong_count() > 0);
        self.queues.iter().filter_map(Weak::upgrade).collect()
    }

    /// Sets every queue's copy. The caller then passes the rare side's barrier, once.
    fn set_copies(&mut self) -> Vec<Arc<dyn Member>> {
        let flags = self.flags();
        let members = self.members();
        for member in &members {
            member.gate().set_flags(flags);
        }
        members
    }
}

/// The hold on the mutex. Letting it go asserts that every copy matches the device.
struct AdminGuard<'a>(SleepGuard<'a, Admin>);

impl Drop for AdminGuard<'_> {
    fn drop(&mut self) {
        if cfg!(debug_assertions) && !std::thread::panicking() {
            let flags = self.0.flags();
            for member in self.0.members() {
                assert_eq!(
                    member.gate().flags(),
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

impl Device {
    /// A device without queues. `name` is for reports.
    pub fn new(name: impl Into<String>, options: DeviceOptions) -> Arc<Device> {
        Arc::new(Device {
            name: name.into(),
            options,
            admin: SleepLock::new("a device's admin mutex", Admin::default()),
            cancel_error: SmallLock::new("cancel error", None),
            cancel_asked: AtomicU64::new(0),
            drain_waiters: Waiters::new(),
            dropped: AtomicU64::new(0),
        })
    }

    /// The name it was made with.
    pub fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn barrier(&self) -> Barrier {
        self.options.barrier
    }

    pub(crate) fn park_timeout(&self) -> Option<Duration> {
        self.options.park_timeout
    }

    pub(crate) fn cancel_error(&self) -> Option<ErrorKind> {
        *self.cancel_error.lock()
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
            self.options.barrier.heavy();
        }
    }

    /// Adds a hardware queue of `depth` tags (1 to 4096). It starts with the device's state: on a
    /// quiesced device it parks, on a cancelled one it refuses. Send the queue to the thread that
    /// will own it; drop it to remove it. May sleep.
    pub fn add_queue<T: Send + 'static>(
        self: &Arc<Self>,
        depth: u16,
        completer: Arc<dyn Completer<T>>,
        kick: Arc<dyn Kick>,
    ) -> Queue<T> {
        let mut admin = self.lock_admin();
        // A queue's memory may have to be waited for. The holder of this mutex may do that; a spin
        // lock here would forbid it, and nobody ever waits for this mutex on a hot path.
        may_block("making a queue");
        let id = admin.next_queue;
        admin.next_queue += 1;
        let queue = Queue::new(id, Arc::clone(self), depth, completer, kick);
        let member = queue.member();
        // Nobody else has the queue yet, so its copy needs no grace period.
        member.gate().set_flags(admin.flags());
        admin.queues.push(Arc::downgrade(&member));
        queue
    }

    /// Shuts the gate: when this returns, no request that is not in flight already gets by. The
    /// guard says what still is, and waits for it; dropping the guard opens the gate again. Nests:
    /// the gate opens when the last guard goes. May sleep, for as long as another transition takes.
    pub fn quiesce(self: &Arc<Self>) -> QuiesceGuard {
        let mut admin = self.lock_admin();
        admin.quiesce_depth += 1;
        let members = if admin.quiesce_depth == 1 {
            admin.counts.quiesces += 1;
            let members = admin.set_copies();
            self.grace_period(&mut admin);
            members
        } else {
            // The gate was shut, and the grace period passed, under this mutex.
            admin.members()
        };
        drop(admin);
        QuiesceGuard::new(Arc::clone(self), members)
    }

    pub(crate) fn unquiesce(&self) {
        let mut admin = self.lock_admin();
        admin.quiesce_depth -= 1;
        if admin.quiesce_depth > 0 {
            return;
        }
        if canary::active!("unquiesce_looks_before_it_clears") {
            admin
                .members()
                .iter()
                .for_each(|member| member.kick_if_listed());
            admin.set_copies();
            self.options.barrier.heavy();
            return;
        }
        let members = admin.set_copies();
        if !canary::active!("unquiesce_without_barrier") {
            self.options.barrier.heavy();
        }
        drop(admin);
        // Rare side of P2: cleared, barrier passed, now look at what is listed. Outside the mutex,
        // because a kick is the transport's code.
        members.iter().for_each(|member| member.kick_if_listed());
    }

    /// Cancels the device: parked and future requests complete with `error`, by their owners;
    /// requests in flight are left to whoever has them. Decided once: answers whether this call
    /// did it. On a device that is cancelled already, or gone, it does nothing. May sleep.
    pub fn cancel(&self, error: ErrorKind) -> bool {
        self.cancel_if(error, || true)
    }

    /// Lock, test, set all, one grace period, unlock. The test is under the lock: decided by an
    /// unlocked read, each queue of a dying device would do it all again.
    fn cancel_if(&self, error: ErrorKind, still_wanted: impl FnOnce() -> bool) -> bool {
        let decide = |admin: &Admin| !admin.cancelled && !admin.gone;
        let unlocked = canary::active!("cancel_decided_unlocked") && decide(&self.lock_admin());
        let mut admin = self.lock_admin();
        if !(unlocked || decide(&admin) && still_wanted()) {
            return false;
        }
        *self.cancel_error.lock() = Some(error);
        self.cancel_asked.fetch_or(1, Ordering::AcqRel);
        admin.cancelled = true;
        admin.counts.cancels += 1;
        let members = admin.set_copies();
        self.grace_period(&mut admin);
        drop(admin);
        members.iter().for_each(|member| member.kick_if_listed());
        true
    }

    /// Asks for a cancel from a thread that must not sleep. However many ask, one wins and posts
    /// the work to the control thread. Answers whether this call did.
    pub fn request_cancel(self: &Arc<Self>, error: ErrorKind) -> bool {
        let asked = self.cancel_asked.load(Ordering::Acquire);
        let won = asked & 1 == 0
            && self
                .cancel_asked
                .compare_exchange(asked, asked | 1, Ordering::AcqRel, Ordering::Relaxed)
                .is_ok();
        if won {
            let work = CancelWork {
                device: Arc::clone(self),
                error,
                epoch: asked | 1,
            };
            match &self.options.control {
                Some(control) => control.post(work),
                None => work.run(),
            }
        }
        won
    }

    /// Takes a cancel back, for the device and all its queues together. Answers whether there was
    /// one to take back. May sleep.
    pub fn rearm(&self) -> bool {
        let mut admin = self.lock_admin();
        if !admin.cancelled || admin.gone {
            return false;
        }
        admin.cancelled = false;
        *self.cancel_error.lock() = None;
        // From odd to the next even number: what was asked for before this moment is void.
        self.cancel_asked.fetch_add(1, Ordering::AcqRel);
        let members = if canary::active!("copies_not_rearmed") {
            Vec::new()
        } else {
            admin.set_copies()
        };
        self.options.barrier.heavy();
        drop(admin);
        members.iter().for_each(|member| member.kick_if_listed());
        true
    }

    /// Takes the device away for good: cancels it with [`ErrorKind::Closed`] unless it is
    /// cancelled already. Every later cancel or re-arm is a no-op. May sleep.
    pub fn remove(&self) {
        self.cancel(ErrorKind::Closed);
        self.lock_admin().gone = true;
    }

    /// What the device has been through. May sleep.
    pub fn counts(&self) -> DeviceCounts {
        let counts = self.lock_admin().counts;
        DeviceCounts {
            dropped: self.dropped.load(Ordering::Relaxed),
            ..counts
        }
    }

    /// What every queue holds now. May sleep.
    pub fn load(&self) -> Vec<QueueLoad> {
        let members = self.lock_admin().members();
        members.iter().map(|member| member.load()).collect()
    }

    /// A request left flight while a flag was set: whoever waits for a drain looks again.
    pub(crate) fn progress(&self) {
        self.drain_waiters.wake_all();
        if canary::active!("sleep_on_the_completion_path") {
            self.counts();
        }
    }

    pub(crate) fn drain_waiters(&self) -> &Waiters {
        &self.drain_waiters
    }
}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Device")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

/// A cancel that a ring thread handed over.
pub struct CancelWork {
    device: Arc<Device>,
    error: ErrorKind,
    epoch: u64,
}

impl CancelWork {
    /// Does it. On the control thread: may sleep. Void if the device was re-armed since.
    pub fn run(self) {
        let epoch = self.epoch;
        let asked = &self.device.cancel_asked;
        self.device
            .cancel_if(self.error, || asked.load(Ordering::Acquire) == epoch);
    }
}

impl fmt::Debug for CancelWork {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "CancelWork(cancel {} with {:?})",
            self.device.name, self.error
        )
    }
}
