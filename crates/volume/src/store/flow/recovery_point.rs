//! When an upload has to begin to end before the recovery point is due, and by how much a recovery point was
//! missed.
//!
//! It only computes with times; it starts nothing. What completed at `t` is to be in the store by `t` plus the
//! recovery point: so an upload begins earlier by as long as uploads have taken lately.

use std::collections::VecDeque;

use crate::lock::lock;
use crate::sync::Mutex;

/// Uploads that count: more than there are between two folds, which make one longer.
const DURATIONS_MAX: usize = 64;
/// The largest margin for what is not measured: the bookkeeping's interval, a busy thread.
const MARGIN_NS_MAX: u64 = 1_000_000_000;

/// A tail's uploads against its recovery point.
#[derive(Debug, Default)]
pub(crate) struct RecoveryPoint {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// How long the last uploads took, the newest last.
    durations: VecDeque<u64>,
    /// The largest amount by which the recovery point was missed since it last held. Zero: it holds.
    missed_ns: u64,
}

/// What has changed since the last observation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    None,
    /// The recovery point is missed from now on.
    Missed,
    /// The recovery point holds again.
    Holds {
        missed_ns: u64,
    },
}

impl RecoveryPoint {
    /// Records the duration of an upload that succeeded.
    pub(crate) fn on_uploaded(&self, took_ns: u64) {
        let mut state = lock(&self.state);
        if state.durations.len() == DURATIONS_MAX {
            state.durations.pop_front();
        }
        state.durations.push_back(took_ns);
    }

    /// The age of the oldest commit that is not stored at which an upload has to begin.
    pub(crate) fn begin_at_ns(&self, rpo_ns: u64) -> u64 {
        if canary::active!("upload_begins_at_the_recovery_point") {
            return rpo_ns;
        }
        let state = lock(&self.state);
        // With few samples the next upload may take far longer than those measured.
        let assumed = (state.durations.len() < DURATIONS_MAX).then_some(rpo_ns / 4);
        let longest = state.durations.iter().copied().chain(assumed).max();
        let margin = (rpo_ns / 16).min(MARGIN_NS_MAX);
        // Beginning earlier is of no use: what completes meanwhile waits for the next upload.
        let lead = longest.unwrap_or(0).saturating_add(margin).min(rpo_ns / 2);
        rpo_ns - lead
    }

    /// Takes the age of the oldest commit that is not stored.
    pub(crate) fn observe(&self, oldest_age_ns: u64, rpo_ns: u64) -> Change {
        let mut state = lock(&self.state);
        let missed_ns = oldest_age_ns.saturating_sub(rpo_ns);
        let before = state.missed_ns;
        match (before, missed_ns) {
            (0, 0) => Change::None,
            (0, _) => {
                state.missed_ns = missed_ns;
                Change::Missed
            }
            (_, 0) => {
                state.missed_ns = 0;
                Change::Holds { missed_ns: before }
            }
            (_, _) => {
                state.missed_ns = before.max(missed_ns);
                Change::None
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND_NS: u64 = 1_000_000_000;
    const RPO_NS: u64 = 30 * SECOND_NS;

    #[test]
    fn an_upload_begins_as_much_before_the_recovery_point_as_the_longest_of_late_took() {
        let point = RecoveryPoint::default();
        assert_eq!(point.begin_at_ns(RPO_NS), RPO_NS - RPO_NS / 4 - SECOND_NS);
        point.on_uploaded(9 * SECOND_NS);
        for _ in 0..DURATIONS_MAX - 1 {
            point.on_uploaded(SECOND_NS);
        }
        assert_eq!(point.begin_at_ns(RPO_NS), 20 * SECOND_NS);
        point.on_uploaded(SECOND_NS);
        assert_eq!(point.begin_at_ns(RPO_NS), 28 * SECOND_NS);
        point.on_uploaded(90 * SECOND_NS);
        assert_eq!(point.begin_at_ns(RPO_NS), 15 * SECOND_NS);
        assert_eq!(point.begin_at_ns(0), 0);
    }

    #[test]
    fn a_missed_recovery_point_is_said_once_and_at_its_end_with_the_most_it_was_missed_by() {
        let point = RecoveryPoint::default();
        assert_eq!(point.observe(RPO_NS, RPO_NS), Change::None);
        assert_eq!(point.observe(RPO_NS + 1, RPO_NS), Change::Missed);
        assert_eq!(point.observe(RPO_NS + 9, RPO_NS), Change::None);
        assert_eq!(point.observe(RPO_NS + 5, RPO_NS), Change::None);
        assert_eq!(point.observe(0, RPO_NS), Change::Holds { missed_ns: 9 });
        assert_eq!(point.observe(0, RPO_NS), Change::None);
    }
}
