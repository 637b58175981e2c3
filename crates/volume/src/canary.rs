//! Planted bugs, so that the simulator can prove that it would see the real ones.
//!
//! Compiled to nothing unless built with `--cfg canary`; then chosen at run time, so that one
//! build serves all of them.

/// A bug that can be planted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names say it")]
pub enum Canary {
    AckBeforeRingEntry,
    LsnAtPlan,
    PerRingFrames,
    SkipSegmentSync,
    RootBeforePacks,
    ReplayPastHole,
    DropFua,
    IgnoreShortWrite,
    ReuseBeforeFrame,
    ReusePinned,
    TrustRingAfterReboot,
    FetchOverNewerWrite,
}

impl Canary {
    /// Every canary.
    pub const ALL: [Canary; 12] = [
        Canary::AckBeforeRingEntry,
        Canary::LsnAtPlan,
        Canary::PerRingFrames,
        Canary::SkipSegmentSync,
        Canary::RootBeforePacks,
        Canary::ReplayPastHole,
        Canary::DropFua,
        Canary::IgnoreShortWrite,
        Canary::ReuseBeforeFrame,
        Canary::ReusePinned,
        Canary::TrustRingAfterReboot,
        Canary::FetchOverNewerWrite,
    ];
}

#[cfg(canary)]
mod chosen {
    use std::cell::Cell;

    use super::Canary;

    thread_local! {
        static CHOSEN: Cell<Option<Canary>> = const { Cell::new(None) };
    }

    /// Plants `canary` for this thread, or none.
    pub fn plant(canary: Option<Canary>) {
        CHOSEN.set(canary);
    }

    pub(crate) fn active(canary: Canary) -> bool {
        CHOSEN.get() == Some(canary)
    }
}

#[cfg(canary)]
pub(crate) use chosen::active;
#[cfg(canary)]
pub use chosen::plant;

#[cfg(not(canary))]
#[inline(always)]
pub(crate) fn active(_canary: Canary) -> bool {
    false
}
