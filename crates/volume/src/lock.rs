//! How the engine takes its locks, and what a panic under one of them means.
//!
//! Sections are short memory work, but no test can show that each of them is whole at every step. So
//! nobody goes on behind one that a panic left: the server ends the process (S1: nothing that was
//! acknowledged is lost) before the lock is let go, and elsewhere whoever takes it next panics too. A tail's
//! lock is another matter, see [`crate::request::tail::Tail::lock`]: what it protects can be given up alone.

use std::ops::{Deref, DerefMut};
use std::sync::OnceLock;
use std::thread::panicking;

use crate::sync::{Mutex, MutexGuard};

static ON_PANIC: OnceLock<fn()> = OnceLock::new();

/// What is to be done when a panic unwinds through a section under one of the engine's locks, while it is
/// still held: a server ends its process. Whoever says it first in a process decides.
pub fn on_panic_under_lock(handler: fn()) {
    // A second server in one process wants the same.
    let _ = ON_PANIC.set(handler);
}

/// A lock that is held.
#[derive(Debug)]
pub(crate) struct LockGuard<'a, T: ?Sized> {
    inner: MutexGuard<'a, T>,
    /// It was taken while the thread unwound already: the section itself did not panic.
    in_unwinding: bool,
}

impl<T: ?Sized> Deref for LockGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.inner
    }
}

impl<T: ?Sized> DerefMut for LockGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.inner
    }
}

impl<T: ?Sized> Drop for LockGuard<'_, T> {
    fn drop(&mut self) {
        if panicking()
            && !self.in_unwinding
            && !canary::active!("panic_passed_over")
            && let Some(handler) = ON_PANIC.get()
        {
            handler();
        }
    }
}

/// Takes a lock.
///
/// # Panics
/// If a panic left what it protects half changed.
pub(crate) fn lock<T: ?Sized>(mutex: &Mutex<T>) -> LockGuard<'_, T> {
    let inner = mutex.lock().unwrap_or_else(|left| {
        if canary::active!("panic_passed_over") {
            return left.into_inner();
        }
        panic!("a panic left a part of the engine half changed; start the process again")
    });
    LockGuard {
        inner,
        in_unwinding: panicking(),
    }
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "a panic needs a thread to end")]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    static CALLS: AtomicUsize = AtomicUsize::new(0);

    /// Locks while it is dropped, as engine code that unwinds does.
    struct LocksOnDrop<'a>(&'a Mutex<u32>);

    impl Drop for LocksOnDrop<'_> {
        fn drop(&mut self) {
            *lock(self.0) += 1;
        }
    }

    /// Panics in threads of its own, with a bug planted there or none.
    fn panic_in_and_out_of_sections(planted: Option<&'static str>) {
        CALLS.store(0, Ordering::Relaxed);
        let (beside, inside) = (Mutex::new(0), Mutex::new(0));
        let panics = |section: &(dyn Fn() + Sync)| {
            let section = || {
                canary::plant(planted);
                section();
            };
            std::thread::scope(|scope| scope.spawn(section).join().unwrap_err());
        };
        panics(&|| {
            let _drops = LocksOnDrop(&beside);
            panic!("outside of any section");
        });
        assert_eq!(
            CALLS.load(Ordering::Relaxed),
            0,
            "a lock taken in unwinding is whole"
        );
        assert_eq!(*lock(&beside), 1);
        panics(&|| {
            let mut half = lock(&inside);
            *half = 1;
            panic!("inside of a section");
        });
        assert_eq!(CALLS.load(Ordering::Relaxed), 1);
        panics(&|| drop(lock(&inside)));
    }

    #[test]
    fn a_panic_under_a_lock_is_told_while_it_is_held_and_nobody_goes_on_behind_it() {
        on_panic_under_lock(|| {
            CALLS.fetch_add(1, Ordering::Relaxed);
        });
        panic_in_and_out_of_sections(None);
        let planted = || panic_in_and_out_of_sections(Some("panic_passed_over"));
        assert!(std::panic::catch_unwind(planted).is_err());
    }
}
