//! The snapshots of a tail that the log keeps, for the log and for who loses them.

use crate::log::snapshot_record::SnapshotRecord;
use crate::request::tail::Tail;

impl Tail {
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
            tracing::error!(
                snapshot = record.name,
                lsn = record.lsn.0,
                "it was in the log of this host alone, and the volume goes on without that: there is no such \
                 snapshot any more"
            );
        }
    }
}
