//! The one place that chooses whose locks, atomics and thread-locals this crate is made of.
//!
//! An ordinary build takes the standard library's. `--cfg loom` and `--cfg shuttle` take those
//! model checkers' twins, so the code that is proved is the code that ships. Reference counts
//! stay the standard library's everywhere: they are not what the models are about.

#[cfg(loom)]
mod imp {
    pub(crate) use loom::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, fence};
    pub(crate) use loom::sync::{Mutex, MutexGuard};
    #[cfg(debug_assertions)]
    pub(crate) use loom::thread_local;
}

#[cfg(shuttle)]
mod imp {
    pub(crate) use shuttle::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, fence};
    pub(crate) use shuttle::sync::{Mutex, MutexGuard};
    #[cfg(debug_assertions)]
    pub(crate) use shuttle::thread_local;
}

#[cfg(not(any(loom, shuttle)))]
mod imp {
    pub(crate) use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, fence};
    pub(crate) use std::sync::{Mutex, MutexGuard};
    #[cfg(debug_assertions)]
    pub(crate) use std::thread_local;
}

pub(crate) use imp::*;
