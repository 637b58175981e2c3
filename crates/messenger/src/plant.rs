//! Planted bugs: each breaks one rule on purpose, so that the tests can show that they would
//! notice.
//!
//! A plant is chosen at run time and for one thread, so no rebuild is needed to try them all. The
//! switch exists only in test builds and under the feature `plants`; elsewhere asking for a plant is a
//! constant `false`.

/// A rule that can be broken on purpose.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Plant {
    /// The worker sees the queue empty in one hold and clears "kicked" in another.
    ClearPendingOutsideLock,
    /// A sender tests for close in one hold and pushes in another.
    PushAfterClose,
    /// The receiver counts a message as received while its payload is still on the way.
    AckBeforeInOrderReceipt,
    /// The sequence number is given when a message is queued.
    SequenceAtEnqueue,
    /// Acknowledged messages are freed under the lock.
    FreeUnderLock,
    /// The receiver delivers what it has already seen.
    DeliverTwice,
    /// After a reconnect the unacknowledged messages go behind the queue, not before it.
    RequeueBehind,
}

#[cfg(any(test, feature = "plants"))]
mod switch {
    use super::Plant;
    use std::cell::Cell;

    std::thread_local! {
        static ACTIVE: Cell<Option<Plant>> = const { Cell::new(None) };
    }

    /// Runs `f` with `plant` active on this thread.
    pub fn with_plant<T>(plant: Plant, f: impl FnOnce() -> T) -> T {
        struct Reset;
        impl Drop for Reset {
            fn drop(&mut self) {
                ACTIVE.set(None);
            }
        }
        ACTIVE.set(Some(plant));
        let _reset = Reset;
        f()
    }

    pub(crate) fn planted(plant: Plant) -> bool {
        ACTIVE.get() == Some(plant)
    }
}

#[cfg(any(test, feature = "plants"))]
pub(crate) use switch::planted;
#[cfg(any(test, feature = "plants"))]
pub use switch::with_plant;

#[cfg(not(any(test, feature = "plants")))]
pub(crate) const fn planted(_: Plant) -> bool {
    false
}
