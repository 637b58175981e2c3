//! When this host last read the roots of volumes whose writes wait: one check at a time, seconds apart.
//!
//! It knows no volume and no store; [`super::watch`] reads the roots.

use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use crate::units::SECOND_NS;

/// The time between two checks.
const LOOK_INTERVAL_NS: u64 = 5 * SECOND_NS;

/// The schedule of a host's checks.
#[derive(Debug, Default)]
pub(crate) struct RootWatchState {
    looks: AtomicBool,
    looked_ns: AtomicU64,
}

impl RootWatchState {
    /// Begins a check, if one is due and none is running.
    pub(crate) fn begin(&self, now_ns: u64) -> bool {
        let due_ns = self.looked_ns.load(Ordering::Relaxed) + LOOK_INTERVAL_NS;
        now_ns >= due_ns && !self.looks.swap(true, Ordering::AcqRel)
    }

    pub(crate) fn end(&self, now_ns: u64) {
        self.looked_ns.store(now_ns, Ordering::Relaxed);
        self.looks.store(false, Ordering::Release);
    }
}
