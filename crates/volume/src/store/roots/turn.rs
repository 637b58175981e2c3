//! Whose turn it is to replace a volume's root: one update at a time.
//!
//! A turn lasts from reading the root to applying the new one in memory, so its holder finds the index as the
//! root describes it. Nothing slow is done during a turn but the update itself.

use crate::jobs::Signal;
use crate::sync::atomic::{AtomicBool, Ordering};

/// The right to replace the root.
#[derive(Debug, Default)]
pub(crate) struct RootTurn {
    taken: AtomicBool,
    free: Signal,
}

/// Holds the turn.
#[derive(Debug)]
pub(crate) struct RootTurnGuard<'a>(&'a RootTurn);

impl RootTurn {
    /// Somebody holds the turn.
    pub(crate) fn is_taken(&self) -> bool {
        self.taken.load(Ordering::Acquire)
    }

    /// Waits for the caller's turn.
    pub(crate) async fn take(&self) -> RootTurnGuard<'_> {
        let take = || (!self.taken.swap(true, Ordering::AcqRel)).then_some(());
        self.free.wait_until(take).await;
        RootTurnGuard(self)
    }
}

impl Drop for RootTurnGuard<'_> {
    fn drop(&mut self) {
        self.0.taken.store(false, Ordering::Release);
        self.0.free.wake_all();
    }
}
