//! Snapshots that the log keeps and the store is to have: what [`super::store_kept`] takes up next.
//!
//! Memory only; what the log keeps is said by the tails.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::jobs::Signal;
use crate::lock::lock;
use crate::request::tail::Tail;
use crate::sync::Mutex;
use crate::units::VolumeId;

/// Snapshots of live volumes that are to be brought to the store.
#[derive(Debug, Default)]
pub(crate) struct DueSnapshots {
    due: Mutex<VecDeque<(Arc<Tail>, VolumeId)>>,
    changed: Signal,
}

impl DueSnapshots {
    pub(super) fn add(&self, tail: &Arc<Tail>, id: VolumeId) {
        lock(&self.due).push_back((Arc::clone(tail), id));
        self.changed.wake_all();
    }

    /// All that the log keeps of a volume that has just gone live.
    pub(in crate::store) fn add_all(&self, tail: &Arc<Tail>) {
        for record in tail.kept_snapshots() {
            self.add(tail, record.id);
        }
    }

    /// The next one, when there is one.
    pub(super) async fn next(&self) -> (Arc<Tail>, VolumeId) {
        self.changed
            .wait_until(|| lock(&self.due).pop_front())
            .await
    }
}
