//! The one place that chooses the locks and atomics of this crate.
//!
//! An ordinary build uses the standard library's. The feature `shuttle` uses those of the model checker, so the
//! code that `models` checks is the code that ships: nothing of this crate that more than one thread sees
//! may take its locks or atomics from elsewhere. Reference counts and cells that are set once are the
//! standard library's everywhere, and so are the words of an index ring: only who holds the tail's lock
//! touches them, and the process that comes after this one.

#[cfg(feature = "shuttle")]
pub(crate) use shuttle::sync::{Mutex, MutexGuard, atomic};
#[cfg(not(feature = "shuttle"))]
pub(crate) use std::sync::{Mutex, MutexGuard, atomic};
