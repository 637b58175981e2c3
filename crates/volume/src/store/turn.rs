//! Whose turn it is to replace a volume's root: one update at a time.
//!
//! Held from the look at the root that stands to what the new one changes in memory, so whoever has it
//! finds the index just as that root describes it. Nothing slow is done under it but the update itself.

use crate::jobs::Signal;
use crate::sync::atomic::{AtomicBool, Ordering};

/// The right to replace the root.
#[derive(Debug, Default)]
pub(crate) struct RootTurn {
    taken: AtomicBool,
    free: Signal,
}

/// Holds it.
#[derive(Debug)]
pub(crate) struct RootTurnGuard<'a>(&'a RootTurn);

impl RootTurn {
    /// Ends when it is the caller's turn.
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
