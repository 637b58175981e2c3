//! The ladder of watermarks: how far the newest write, the flushed and the stored state are.

use std::collections::VecDeque;

use crate::units::{Lsn, Now};

/// One rung: everything up to `lsn` has reached it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Watermark {
    /// The newest commit that has reached it.
    pub lsn: Lsn,
    /// Milliseconds since the oldest commit that has *not* reached it was acknowledged; zero if
    /// all have. Exact to the nearest sample taken (one every 100 ms).
    pub age_ms: u64,
}

/// Where a volume stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Watermarks {
    /// Survives the death of the process (S1).
    pub acked: Watermark,
    /// Survives loss of power (S2).
    pub flushed: Watermark,
    /// Survives the loss of the host (S3).
    pub stored: Watermark,
    /// Milliseconds by which the recovery point is missed now; zero while it holds.
    pub overdue_ms: u64,
}

/// When which commit was acknowledged, one sample per interval, only for what is not stored yet.
#[derive(Debug, Default)]
pub(crate) struct CommitAges {
    /// (first LSN of the interval, when), ascending.
    samples: VecDeque<(Lsn, u64)>,
}

/// Interval between samples.
const SAMPLE_NS: u64 = 100_000_000;
/// Samples kept; when exceeded every second one goes, so memory stays bounded in an outage.
const SAMPLES_MAX: usize = 4096;

impl CommitAges {
    /// Commits from `first` on are acknowledged now.
    pub(crate) fn on_acknowledged(&mut self, first: Lsn, now_ns: u64) {
        if self
            .samples
            .back()
            .is_none_or(|(_, at)| now_ns >= at + SAMPLE_NS)
        {
            self.samples.push_back((first, now_ns));
            if self.samples.len() > SAMPLES_MAX {
                let mut keep = false;
                self.samples.retain(|_| {
                    keep = !keep;
                    keep
                });
            }
        }
    }

    /// Everything up to `lsn` is stored: its age is not needed any more.
    pub(crate) fn on_stored(&mut self, lsn: Lsn) {
        while self
            .samples
            .get(1)
            .is_some_and(|(next, _)| *next <= lsn.next())
        {
            self.samples.pop_front();
        }
    }

    /// When the oldest commit after `lsn` was acknowledged, at the latest.
    pub(crate) fn oldest_after(&self, lsn: Lsn, newest: Lsn) -> Option<u64> {
        if newest <= lsn {
            return None;
        }
        let before = self
            .samples
            .partition_point(|(first, _)| *first <= lsn.next());
        self.samples
            .get(before.saturating_sub(1))
            .map(|(_, at)| *at)
    }

    pub(crate) fn watermark(&self, lsn: Lsn, newest: Lsn, now: Now) -> Watermark {
        let mut since = self.oldest_after(lsn, newest);
        if canary::active!("exposure_is_of_the_newest") {
            since = since.and(self.samples.back().map(|(_, at)| *at));
        }
        let age_ms = since.map_or(0, |at| now.mono_ns.saturating_sub(at) / 1_000_000);
        Watermark { lsn, age_ms }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Now {
        Now {
            mono_ns: ms * 1_000_000,
            unix_ms: 0,
        }
    }

    #[test]
    fn a_rung_is_as_old_as_the_oldest_write_that_has_not_reached_it() {
        let mut ages = CommitAges::default();
        ages.on_acknowledged(Lsn(1), at(0).mono_ns);
        ages.on_acknowledged(Lsn(5), at(1000).mono_ns);
        ages.on_acknowledged(Lsn(9), at(2000).mono_ns);
        assert_eq!(ages.watermark(Lsn(9), Lsn(9), at(3000)).age_ms, 0);
        assert_eq!(ages.watermark(Lsn(4), Lsn(9), at(3000)).age_ms, 2000);
        assert_eq!(ages.watermark(Lsn(0), Lsn(9), at(3000)).age_ms, 3000);
        ages.on_stored(Lsn(4));
        assert_eq!(ages.watermark(Lsn(4), Lsn(9), at(3000)).age_ms, 2000);
    }
}
