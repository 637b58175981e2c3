//! The small mutex: the standard library's, or loom's when the out-queue is model-checked, with
//! optional counting of contended takes.
//!
//! Owns nothing but that choice. It is for lists that many append to, held for a few instructions;
//! it must never be held while a socket is touched or a message freed, and debug builds check that.
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "a blocking send waits until its deadline; the meter reads the clock"
)]

use std::ops::{Deref, DerefMut};
use std::sync::PoisonError;
use std::time::Instant;

#[cfg(feature = "loom")]
use loom::sync as imp;
#[cfg(not(feature = "loom"))]
use std::sync as imp;

use crate::lockcheck::HeldMark;

/// Where a lock is taken, for the benchmark's table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Site {
    /// `send` and `try_send`.
    Send,
    /// `keepalive`.
    Keepalive,
    /// Done, revoke, close, load.
    Control,
    /// The worker takes the next message.
    Next,
    /// The worker removes what was acknowledged.
    Acked,
    /// The worker changes the state.
    State,
    /// Only in the benchmark's one-lock variant: the worker reads its socket.
    Receive,
    /// Only there: the worker fills and writes its socket.
    Transmit,
    /// The worker's inbox: a command is posted.
    Post,
    /// The worker's inbox: the commands are taken.
    Take,
}

#[cfg(feature = "meter")]
impl Site {
    /// All of them, in the order of the counters.
    pub const ALL: [Self; SITES] = [
        Self::Send,
        Self::Keepalive,
        Self::Control,
        Self::Next,
        Self::Acked,
        Self::State,
        Self::Receive,
        Self::Transmit,
        Self::Post,
        Self::Take,
    ];
}

/// A mutex that debug builds track and the feature `meter` counts.
#[derive(Debug)]
pub(crate) struct Lock<T> {
    mutex: imp::Mutex<T>,
    #[cfg(feature = "meter")]
    meter: meter::Meter,
}

/// The lock, held.
#[derive(Debug)]
pub(crate) struct Guard<'a, T> {
    // Dropped in this order: the hold is noted as over before the lock is open, never after.
    #[cfg(feature = "meter")]
    _held: Option<meter::HoldTimer<'a>>,
    _holding: HeldMark,
    guard: imp::MutexGuard<'a, T>,
    #[cfg(feature = "meter")]
    lock: &'a Lock<T>,
}

impl<T> Lock<T> {
    pub(crate) fn new(value: T) -> Self {
        Self {
            mutex: imp::Mutex::new(value),
            #[cfg(feature = "meter")]
            meter: meter::Meter::default(),
        }
    }

    #[cfg(not(feature = "meter"))]
    pub(crate) fn lock(&self, _: Site) -> Guard<'_, T> {
        // A panic under the lock leaves the lists whole: every change in it is a push, a pop or
        // a counter, so the data is used on.
        let guard = self.mutex.lock().unwrap_or_else(PoisonError::into_inner);
        Guard {
            _holding: HeldMark::begin(),
            guard,
        }
    }

    #[cfg(feature = "meter")]
    pub(crate) fn lock(&self, site: Site) -> Guard<'_, T> {
        let guard = match self.mutex.try_lock() {
            Ok(guard) => guard,
            Err(_) => {
                let (start, holder) = (Instant::now(), self.meter.holder());
                let guard = self.mutex.lock().unwrap_or_else(PoisonError::into_inner);
                self.meter.record_wait(site, holder, start.elapsed());
                guard
            }
        };
        let _held = self.meter.begin_hold(site);
        Guard {
            _held,
            _holding: HeldMark::begin(),
            guard,
            lock: self,
        }
    }

    /// The same without the debug note of a small lock: under this one sockets are touched and
    /// messages freed, which is its fault.
    #[cfg(feature = "meter")]
    fn lock_outer(&self, site: Site) -> OuterGuard<'_, T> {
        let Guard { _held, guard, .. } = self.lock(site);
        OuterGuard {
            _held,
            _guard: guard,
        }
    }

    #[cfg(feature = "meter")]
    pub(crate) fn stats(&self) -> LockStats {
        self.meter.stats()
    }
}

#[cfg(feature = "meter")]
struct OuterGuard<'a, T> {
    _held: Option<meter::HoldTimer<'a>>,
    _guard: imp::MutexGuard<'a, T>,
}

#[cfg(feature = "meter")]
impl<T> Drop for OuterGuard<'_, T> {
    fn drop(&mut self) {}
}

impl<T> Deref for Guard<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.guard
    }
}

impl<T> DerefMut for Guard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.guard
    }
}

/// A condition variable for [`Guard`]s.
#[derive(Debug)]
pub(crate) struct Condvar(imp::Condvar);

impl Condvar {
    pub(crate) fn new() -> Self {
        Self(imp::Condvar::new())
    }

    pub(crate) fn notify_one(&self) {
        self.0.notify_one();
    }

    pub(crate) fn notify_all(&self) {
        self.0.notify_all();
    }

    /// Waits for a notification, or until the deadline; whether it came in time.
    pub(crate) fn wait<'a, T>(
        &self,
        guard: Guard<'a, T>,
        deadline: Option<Instant>,
    ) -> (Guard<'a, T>, bool) {
        #[cfg(feature = "meter")]
        let lock = guard.lock;
        let Guard {
            guard, _holding, ..
        } = guard;
        drop(_holding);
        let (guard, in_time) = match deadline {
            None => (
                self.0.wait(guard).unwrap_or_else(PoisonError::into_inner),
                true,
            ),
            Some(deadline) => {
                let left = deadline.saturating_duration_since(Instant::now());
                let (guard, timeout) = self
                    .0
                    .wait_timeout(guard, left)
                    .unwrap_or_else(PoisonError::into_inner);
                (guard, !timeout.timed_out())
            }
        };
        let guard = Guard {
            #[cfg(feature = "meter")]
            _held: None,
            _holding: HeldMark::begin(),
            guard,
            #[cfg(feature = "meter")]
            lock,
        };
        (guard, in_time)
    }
}

/// A metered mutex that guards nothing by itself: the benchmark's one-lock variant holds it around
/// queue and socket work alike.
#[cfg(feature = "meter")]
#[derive(Debug)]
pub(crate) struct MeteredLock(Lock<()>);

#[cfg(feature = "meter")]
impl Default for MeteredLock {
    fn default() -> Self {
        Self(Lock::new(()))
    }
}

#[cfg(feature = "meter")]
impl MeteredLock {
    pub(crate) fn lock(&self, site: Site) -> impl Drop + '_ {
        self.0.lock_outer(site)
    }

    pub(crate) fn stats(&self) -> LockStats {
        self.0.stats()
    }
}

#[cfg(feature = "meter")]
pub use meter::{LockStats, SITES, SiteStats};

#[cfg(feature = "meter")]
pub(crate) mod meter {
    //! Counters in the manner of the kernel's lock statistics: only contended takes are timed,
    //! one hold in 64 is.

    use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
    use std::time::{Duration, Instant};

    use super::Site;

    /// How many places there are.
    pub const SITES: usize = 10;
    const SAMPLE: u64 = 64;

    #[derive(Debug, Default)]
    struct Counters {
        takes: AtomicU64,
        contended: AtomicU64,
        wait_ns: AtomicU64,
        wait_max_ns: AtomicU64,
        held_ns: AtomicU64,
        held_samples: AtomicU64,
        held_max_ns: AtomicU64,
        waited_for: [AtomicU64; SITES],
    }

    /// Counters of one lock.
    #[derive(Debug, Default)]
    pub(crate) struct Meter {
        sites: [Counters; SITES],
        /// Where the lock was taken last: whom a waiter waits for.
        holder: AtomicUsize,
    }

    /// Times one sampled hold.
    #[derive(Debug)]
    pub(crate) struct HoldTimer<'a>(&'a Counters, Instant);

    impl Meter {
        pub(crate) fn holder(&self) -> usize {
            self.holder.load(Relaxed)
        }

        pub(crate) fn record_wait(&self, site: Site, holder: usize, wait: Duration) {
            let ns = u64::try_from(wait.as_nanos()).unwrap_or(u64::MAX);
            let c = &self.sites[site as usize];
            c.waited_for[holder].fetch_add(ns, Relaxed);
            c.contended.fetch_add(1, Relaxed);
            c.wait_ns.fetch_add(ns, Relaxed);
            c.wait_max_ns.fetch_max(ns, Relaxed);
        }

        pub(crate) fn begin_hold(&self, site: Site) -> Option<HoldTimer<'_>> {
            self.holder.store(site as usize, Relaxed);
            let c = &self.sites[site as usize];
            let n = c.takes.fetch_add(1, Relaxed);
            n.is_multiple_of(SAMPLE)
                .then(|| HoldTimer(c, Instant::now()))
        }

        pub(crate) fn stats(&self) -> LockStats {
            LockStats(self.sites.each_ref().map(|c| SiteStats {
                takes: c.takes.load(Relaxed),
                contended: c.contended.load(Relaxed),
                wait_ns: c.wait_ns.load(Relaxed),
                wait_max_ns: c.wait_max_ns.load(Relaxed),
                held_ns: c.held_ns.load(Relaxed),
                held_samples: c.held_samples.load(Relaxed),
                held_max_ns: c.held_max_ns.load(Relaxed),
                waited_for_ns: c.waited_for.each_ref().map(|n| n.load(Relaxed)),
            }))
        }
    }

    impl Drop for HoldTimer<'_> {
        fn drop(&mut self) {
            let ns = u64::try_from(self.1.elapsed().as_nanos()).unwrap_or(u64::MAX);
            self.0.held_ns.fetch_add(ns, Relaxed);
            self.0.held_samples.fetch_add(1, Relaxed);
            self.0.held_max_ns.fetch_max(ns, Relaxed);
        }
    }

    /// What one call site's takes cost.
    #[derive(Debug, Clone, Copy, Default)]
    pub struct SiteStats {
        /// Takes.
        pub takes: u64,
        /// Takes that found the lock held.
        pub contended: u64,
        /// Time those waited.
        pub wait_ns: u64,
        /// The longest of them.
        pub wait_max_ns: u64,
        /// Time held, in the samples.
        pub held_ns: u64,
        /// Holds that were sampled, one in 64.
        pub held_samples: u64,
        /// The longest sampled hold.
        pub held_max_ns: u64,
        /// Whom those waited for: time by the site that held the lock.
        pub waited_for_ns: [u64; SITES],
    }

    /// One lock's counters by call site, in the order of [`Site`].
    #[derive(Debug, Clone, Copy, Default)]
    pub struct LockStats(pub [SiteStats; SITES]);
}
