//! Points in time: snapshots of volumes, and volumes that begin as others were.
//!
//! The engine makes them; this file keeps changes of one volume in order and says what was made.

use volume::SnapshotInfo;

use crate::control_plane::ControlPlane;
use crate::failure::{Failure, Result};
use crate::model::{CreateSnapshot, ForkVolume, Snapshot, SnapshotList, Volume};

fn describe(info: SnapshotInfo) -> Snapshot {
    Snapshot {
        name: info.name,
        id: info.id.to_string(),
        volume_id: info.of.map(|volume| volume.to_string()),
        size_bytes: info.bytes,
        lsn: info.lsn.0,
        taken_unix_ms: info.unix_ms,
        labels: info.labels.into_iter().collect(),
    }
}

impl ControlPlane {
    pub(crate) async fn create_snapshot(
        &self,
        volume: &str,
        request: CreateSnapshot,
    ) -> Result<Snapshot> {
        let name = format!("{volume}@{}", request.name);
        let labels = request.labels.into_iter().collect();
        let created = self.host.create_snapshot(&name, labels).await;
        created.map(describe).map_err(Failure::from)
    }

    pub(crate) async fn snapshots(&self, volume: &str) -> Result<SnapshotList> {
        let found = self
            .host
            .list_snapshots(volume)
            .await
            .map_err(Failure::from)?;
        if found.is_empty() {
            // There may be no such volume, and an empty list would not say so.
            self.host.show_volume(volume).await.map_err(Failure::from)?;
        }
        Ok(SnapshotList {
            snapshots: found.into_iter().map(describe).collect(),
        })
    }

    pub(crate) async fn delete_snapshot(&self, volume: &str, snapshot: &str) -> Result<()> {
        let name = format!("{volume}@{snapshot}");
        self.host
            .delete_snapshot(&name)
            .await
            .map_err(Failure::from)
    }

    /// Makes a volume that begins as `parent`, a volume or `VOLUME@SNAPSHOT`, is now.
    pub(crate) async fn fork_volume(&self, parent: &str, request: ForkVolume) -> Result<Volume> {
        let _lock = self.volume_locks.lock(&request.name).await;
        let forked = self.host.fork_volume(parent, &request.name).await;
        let forked = forked.map_err(Failure::from)?;
        tracing::info!(parent, fork = %request.name, lsn = forked.stored.0, "a volume was forked");
        Ok(self.describe(&forked))
    }
}
