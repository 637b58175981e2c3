//! The snapshots of a tail that the log keeps, for the log and for who loses them.

use crate::log::snapshot_record::SnapshotRecord;
use crate::request::tail::Tail;

/// Snapshots and forks of a volume that the log has and the store does not, yet.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LogSnapshots {
    /// How many snapshots there are.
    pub count: u64,
    /// How many forks.
    pub forks: u64,
    /// Why one of them could not be brought to the store when that was tried last.
    pub failure: Option<String>,
}

impl Tail {
    /// What there is in the log alone.
    pub(super) fn log_snapshots(&self) -> LogSnapshots {
        let inner = self.lock();
        let kept = inner.points.kept();
        LogSnapshots {
            count: kept.iter().filter(|kept| !kept.record.is_fork).count() as u64,
            forks: kept.iter().filter(|kept| kept.record.is_fork).count() as u64,
            failure: kept.iter().find_map(|kept| kept.failure.clone()),
        }
    }

    /// The snapshots that the log keeps for the store.
    pub(crate) fn kept_snapshots(&self) -> Vec<SnapshotRecord> {
        let inner = self.lock();
        let kept = inner.points.kept().iter();
        match canary::active!("checkpoint_forgets_snapshots") {
            true => Vec::new(),
            false => kept.map(|kept| kept.record.clone()).collect(),
        }
    }

    /// Says which snapshots go because their volume goes on without what this log has of it.
    pub(crate) fn report_lost_snapshots(&self) {
        for record in self.kept_snapshots() {
            let what = if record.is_fork { "fork" } else { "snapshot" };
            tracing::error!(
                name = record.name,
                lsn = record.lsn.0,
                "it was in the log of this host alone, and the volume goes on without that: there is no such \
                 {what} any more"
            );
        }
    }
}
