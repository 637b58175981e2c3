//! The one place that chooses the locks, atomics and thread-locals of this crate.
//!
//! An ordinary build uses the standard library's. The features `loom` and `shuttle` use those of the
//! model checkers, so the code that is checked is the code that ships. Reference counts are the
//! standard library's everywhere: the models do not check them.

#[cfg(feature = "loom")]
mod imp {
    pub(crate) use loom::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, fence};
    pub(crate) use loom::sync::{Mutex, MutexGuard};
    #[cfg(debug_assertions)]
    pub(crate) use loom::thread_local;
}

#[cfg(feature = "shuttle")]
mod imp {
    pub(crate) use shuttle::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, fence};
    pub(crate) use shuttle::sync::{Mutex, MutexGuard};
    #[cfg(debug_assertions)]
    pub(crate) use shuttle::thread_local;
}

#[cfg(not(any(feature = "loom", feature = "shuttle")))]
mod imp {
    pub(crate) use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, fence};
    pub(crate) use std::sync::{Mutex, MutexGuard};
    #[cfg(debug_assertions)]
    pub(crate) use std::thread_local;
}

pub(crate) use imp::*;
