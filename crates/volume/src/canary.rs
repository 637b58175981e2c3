//! Planted bugs, so that the simulator and the tests in guests can prove that they would see the
//! real ones.
//!
//! Compiled to nothing unless built with `--cfg canary`; then chosen at run time, so that one
//! build serves all of them: per thread in the simulator, whose worlds run side by side, and for
//! the whole process in a server.

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
    use std::sync::OnceLock;

    use super::Canary;

    thread_local! {
        static CHOSEN: Cell<Option<Canary>> = const { Cell::new(None) };
    }

    static EVERYWHERE: OnceLock<Canary> = OnceLock::new();

    /// Plants `canary` for this thread, or none.
    pub fn plant(canary: Option<Canary>) {
        CHOSEN.set(canary);
    }

    /// Plants a canary, by its name, in all threads for good. `None` if there is none of that name
    /// or one was planted before.
    pub fn plant_everywhere(name: &str) -> Option<Canary> {
        let named = |canary: &Canary| format!("{canary:?}") == name;
        let canary = Canary::ALL.into_iter().find(named)?;
        EVERYWHERE.set(canary).ok().map(|()| canary)
    }

    pub(crate) fn active(canary: Canary) -> bool {
        CHOSEN.get().or_else(|| EVERYWHERE.get().copied()) == Some(canary)
    }
}

#[cfg(canary)]
pub(crate) use chosen::active;
#[cfg(canary)]
pub use chosen::{plant, plant_everywhere};

#[cfg(not(canary))]
#[inline(always)]
pub(crate) fn active(_canary: Canary) -> bool {
    false
}
