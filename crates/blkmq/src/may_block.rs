//! Which threads may wait: the mark of ring threads, the debug check, and the two kinds of lock.
//!
//! R1: a thread that owns a ring never blocks, and nothing that can wait is called under a small
//! lock. Every function in firn that can wait calls [`may_block`] first, as the kernel's call
//! `might_sleep`. In a build with debug assertions it panics on a ring thread or under a small
//! lock; in a release build it does nothing. [`SmallLock`] is for a few instructions on memory, and
//! any thread may take it. [`SleepLock`] is for rare transitions: its holder may sleep, so a ring
//! thread never takes it.

use std::fmt;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::sync::PoisonError;

use crate::sync::{Mutex, MutexGuard};

#[cfg(debug_assertions)]
mod marks {
    //! Whether this thread owns a ring, and the small locks it holds.
    #![allow(
        clippy::missing_const_for_thread_local,
        reason = "the models' macros take no const"
    )]
    use std::cell::{Cell, RefCell};

    crate::sync::thread_local! {
        pub(super) static RING: Cell<u32> = Cell::new(0);
        pub(super) static SMALL: RefCell<Vec<&'static str>> = RefCell::new(Vec::new());
    }
}

/// Panics, in a build with debug assertions, if this thread must not wait now: it owns a ring, or
/// it holds a small lock. `what` names the wait in the message.
#[inline]
#[track_caller]
pub fn may_block(what: &str) {
    #[cfg(debug_assertions)]
    {
        if std::thread::panicking() {
            return;
        }
        marks::RING.with(|n| {
            assert!(
                n.get() == 0,
                "{what} may block, and this thread owns a ring (R1)"
            );
        });
        marks::SMALL.with(|held| {
            if let Some(lock) = held.borrow().last() {
                panic!("{what} may block, and this thread holds the small lock `{lock}` (R1)");
            }
        });
    }
    let _ = what;
}

/// Marks this thread as one that owns a ring, until the guard is dropped.
#[must_use = "the mark lasts as long as the guard"]
pub fn enter_ring_thread() -> RingThread {
    #[cfg(debug_assertions)]
    marks::RING.with(|n| n.set(n.get() + 1));
    RingThread { _here: PhantomData }
}

/// The mark of [`enter_ring_thread`].
#[derive(Debug)]
pub struct RingThread {
    /// The mark belongs to this thread.
    _here: PhantomData<*const ()>,
}

impl Drop for RingThread {
    fn drop(&mut self) {
        #[cfg(debug_assertions)]
        marks::RING.with(|n| n.set(n.get() - 1));
    }
}

/// A lock for a few instructions on memory. While it is held, [`may_block`] panics.
pub struct SmallLock<T> {
    what: &'static str,
    inner: Mutex<T>,
}

impl<T> SmallLock<T> {
    /// A lock around `value`; `what` names it in messages.
    pub fn new(what: &'static str, value: T) -> SmallLock<T> {
        SmallLock {
            what,
            inner: Mutex::new(value),
        }
    }

    /// Takes the lock. Poisoning is ignored: no code in this project holds a small lock across a
    /// call that can fail half way, so a holder that panicked left consistent memory.
    pub fn lock(&self) -> SmallGuard<'_, T> {
        let inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        #[cfg(debug_assertions)]
        marks::SMALL.with(|held| held.borrow_mut().push(self.what));
        SmallGuard {
            inner,
            _mark: SmallMark,
        }
    }
}

impl<T> fmt::Debug for SmallLock<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SmallLock({})", self.what)
    }
}

/// The guard of a held [`SmallLock`].
pub struct SmallGuard<'a, T> {
    // Declared first: the lock is released before the mark is removed.
    inner: MutexGuard<'a, T>,
    _mark: SmallMark,
}

impl<T> fmt::Debug for SmallGuard<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SmallGuard")
    }
}

impl<T> Deref for SmallGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.inner
    }
}

impl<T> DerefMut for SmallGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.inner
    }
}

struct SmallMark;

impl Drop for SmallMark {
    fn drop(&mut self) {
        // Guards may be dropped in any order, so this may remove another lock's name. The check
        // needs only the count.
        #[cfg(debug_assertions)]
        marks::SMALL.with(|held| {
            held.borrow_mut().pop();
        });
    }
}

/// A lock for rare transitions, whose holder may sleep. Taking it is itself a wait.
pub struct SleepLock<T> {
    what: &'static str,
    inner: Mutex<T>,
}

impl<T> SleepLock<T> {
    /// A lock around `value`; `what` names it in messages.
    pub fn new(what: &'static str, value: T) -> SleepLock<T> {
        SleepLock {
            what,
            inner: Mutex::new(value),
        }
    }

    /// Takes the lock, and may sleep for it. Never on a ring thread, never under a small lock.
    #[track_caller]
    pub fn lock(&self) -> SleepGuard<'_, T> {
        may_block(self.what);
        SleepGuard {
            inner: self.inner.lock().unwrap_or_else(PoisonError::into_inner),
        }
    }
}

impl<T> fmt::Debug for SleepLock<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SleepLock({})", self.what)
    }
}

/// The guard of a held [`SleepLock`].
pub struct SleepGuard<'a, T> {
    inner: MutexGuard<'a, T>,
}

impl<T> fmt::Debug for SleepGuard<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SleepGuard")
    }
}

impl<T> Deref for SleepGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.inner
    }
}

impl<T> DerefMut for SleepGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.inner
    }
}
