//! Points in a volume's history that are about to become snapshots or forks: cuts between two commits.
//!
//! As long as a point is held no slice, merge or retry spans it, and no fold takes anything newer into
//! pages: so once the store has everything up to it, the packs up to there are the volume as it was.

use crate::units::Lsn;

/// Those of one tail, in no order.
#[derive(Debug, Default)]
pub(crate) struct Points(Vec<Lsn>);

impl Points {
    /// The first one after a cut; without one, whatever comes.
    pub(crate) fn after(&self, cut: Lsn) -> Lsn {
        let later = self.0.iter().filter(|point| **point > cut);
        match canary::active!("slice_spans_a_point") {
            true => Lsn(u64::MAX),
            false => later.min().copied().unwrap_or(Lsn(u64::MAX)),
        }
    }

    /// The newest, or zero.
    pub(crate) fn newest(&self) -> Lsn {
        match canary::active!("merge_spans_a_point") {
            true => Lsn::ZERO,
            false => self.0.iter().max().copied().unwrap_or_default(),
        }
    }

    /// Whether none is held.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn add(&mut self, point: Lsn) {
        self.0.push(point);
    }

    pub(crate) fn remove(&mut self, point: Lsn) {
        if let Some(at) = self.0.iter().position(|held| *held == point) {
            self.0.swap_remove(at);
        }
    }
}
