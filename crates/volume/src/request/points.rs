//! Points in a volume's history that are about to become snapshots or forks: cuts between two commits.
//!
//! As long as a point is held no slice, merge or retry spans it, and no fold takes anything newer into
//! pages: so once the store has everything up to it, the packs up to there are the volume as it was.
//!
//! Some of them are snapshots that the log keeps: their points are held until each has a root in the store, over
//! restarts of the process, too.

use std::sync::Arc;

use crate::log::snapshot_record::SnapshotRecord;
use crate::request::fork_base::ForkBase;
use crate::units::{Lsn, VolumeId};

/// So many of one volume at once: each keeps log bytes that were written over since.
pub(crate) const POINTS_MAX: usize = 8;

/// Those of one tail.
#[derive(Debug, Default)]
pub(crate) struct Points {
    /// In no order.
    held: Vec<Lsn>,
    /// A fold is due and goes before the next point: points that overlap without a gap would put it off for ever.
    is_fold_next: bool,
    /// In the order in which they were taken. The point of each is held.
    kept: Vec<KeptSnapshot>,
    /// How many were released.
    ended: u64,
}

/// A snapshot or fork that is in the log and has no root in the store yet.
#[derive(Clone, Debug)]
pub(crate) struct KeptSnapshot {
    pub(crate) record: SnapshotRecord,
    /// A durable frame has it.
    pub(crate) is_durable: bool,
    /// Its root may have been sent to the store, by this process or one before.
    pub(crate) may_be_stored: bool,
    /// Why the store does not have it, if it was tried.
    pub(crate) failure: Option<String>,
    /// A root that says that nobody has the fork open was sent, and may arrive at any time: the fork is not opened before it
    /// has its root.
    pub(crate) sent_unheld: bool,
    /// What a fork reads that this process has taken.
    pub(crate) base: Option<Arc<ForkBase>>,
}

impl Points {
    /// The first one after a cut; without one, whatever comes.
    pub(crate) fn after(&self, cut: Lsn) -> Lsn {
        let later = self.held.iter().filter(|point| **point > cut);
        match canary::active!("slice_spans_a_point") {
            true => Lsn(u64::MAX),
            false => later.min().copied().unwrap_or(Lsn(u64::MAX)),
        }
    }

    /// The newest, or zero.
    pub(crate) fn newest(&self) -> Lsn {
        match canary::active!("merge_spans_a_point") {
            true => Lsn::ZERO,
            false => self.held.iter().max().copied().unwrap_or_default(),
        }
    }

    /// Whether none is held.
    pub(crate) fn is_empty(&self) -> bool {
        self.held.is_empty()
    }

    /// Whether there are as many as there may be.
    pub(crate) fn is_full(&self) -> bool {
        self.held.len() >= POINTS_MAX && !canary::active!("points_without_number")
    }

    /// How many were released since the tail was opened: whoever waits for a turn sees that it comes nearer.
    pub(crate) fn ended(&self) -> u64 {
        self.ended
    }

    /// Whether a fold goes before the next point.
    pub(crate) fn is_fold_next(&self) -> bool {
        self.is_fold_next && !canary::active!("points_starve_folds")
    }

    pub(crate) fn set_fold_next(&mut self, is_fold_next: bool) {
        self.is_fold_next = is_fold_next;
    }

    /// The snapshots that the log keeps.
    pub(crate) fn kept(&self) -> &[KeptSnapshot] {
        &self.kept
    }

    /// The one of this id.
    pub(crate) fn find_kept(&mut self, id: VolumeId) -> Option<&mut KeptSnapshot> {
        self.kept.iter_mut().find(|kept| kept.record.id == id)
    }

    /// The log keeps this one: its point is held until [`Points::remove`].
    pub(crate) fn keep(&mut self, snapshot: KeptSnapshot) {
        self.add(snapshot.record.lsn);
        self.kept.push(snapshot);
    }

    /// The log is to keep it no more. Returns it if it did; its point is still held, once.
    pub(crate) fn forget(&mut self, id: VolumeId) -> Option<KeptSnapshot> {
        let at = self.kept.iter().position(|kept| kept.record.id == id)?;
        Some(self.kept.remove(at))
    }

    pub(crate) fn add(&mut self, point: Lsn) {
        self.held.push(point);
    }

    pub(crate) fn remove(&mut self, point: Lsn) {
        if let Some(at) = self.held.iter().position(|held| *held == point) {
            self.held.swap_remove(at);
            self.ended += 1;
        }
    }
}
