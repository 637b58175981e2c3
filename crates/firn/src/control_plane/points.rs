//! Points in time: snapshots of volumes, and volumes that begin as others were.
//!
//! The engine makes them; this file keeps changes of one volume in order and says what was made.

use std::time::{SystemTime, UNIX_EPOCH};

use volume::{OpenMode, SnapshotInfo};

use crate::control_plane::ControlPlane;
use crate::failure::{Failure, Result};
use crate::model::{CreateSnapshot, ForkVolume, Restored, Snapshot, SnapshotList, Volume};

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

    /// Sets a volume that nobody uses back to its snapshot. One that is open here is open again afterwards.
    pub(crate) async fn restore_volume(&self, volume: &str, snapshot: &str) -> Result<Restored> {
        let _lock = self.volume_locks.lock(volume).await;
        let open = self.volumes.get(volume);
        if let Some(open) = &open {
            self.check_no_disk(volume)?;
            self.check_no_connections(volume)?;
            // Before anything is closed for it.
            let listed = self
                .host
                .list_snapshots(volume)
                .await
                .map_err(Failure::from)?;
            let name = format!("{volume}@{snapshot}");
            if !listed.iter().any(|found| found.name == name) {
                return Err(Failure::from(volume::OpenError::NoSuchSnapshot(name)));
            }
            if let Err(failure) = self.close(open).await {
                self.restore_export(open);
                return Err(failure);
            }
        }
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let now_ms = now.map_or(0, |now| now.as_millis());
        let name = format!("{volume}@{snapshot}");
        let kept = format!("{volume}@before-restore-{now_ms}");
        let restored = self.host.restore_volume(&name, &kept).await;
        if open.is_some() {
            // Whatever became of it: it was served, and its clients may come back.
            let opened = self.open(volume, OpenMode::default()).await;
            if let Err(failure) = opened {
                tracing::error!(volume, %failure, "the volume is not open any more: attach it anew");
            }
        }
        let restored = restored.map_err(Failure::from)?;
        tracing::warn!(
            volume,
            snapshot,
            kept,
            "a volume was set back to a snapshot"
        );
        Ok(Restored {
            volume: self.describe(&restored),
            kept,
        })
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
