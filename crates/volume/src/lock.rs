//! How the engine takes its locks.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks a mutex whose sections never leave broken state behind: a panic elsewhere on the
/// thread does not make the data wrong, so poisoning is not passed on. A tail's lock is no such
/// mutex, see [`crate::request::tail::Tail::lock`].
pub(crate) fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
