//! Points in time: snapshots of volumes, and volumes that begin as others were.
//!
//! The engine makes them; this file keeps changes of one volume in order and says what was made.

use std::time::{SystemTime, UNIX_EPOCH};

use volume::{Durability, ListPlace, OpenMode, SnapshotInfo};

use crate::control_plane::ControlPlane;
use crate::control_plane::schedules::check_labels;
use crate::failure::{Failure, FailureCode, Result};
use crate::model::{
    CreateSnapshot, CreateSnapshotGroup, ForkVolume, Forked, Restored, Snapshot, SnapshotList,
    SnapshotWait,
};

fn describe(info: SnapshotInfo) -> Snapshot {
    Snapshot {
        attached: None,
        stored: info.is_stored,
        name: info.name,
        id: info.id.to_string(),
        volume_id: info.of.map(|volume| volume.to_string()),
        size_bytes: info.bytes,
        lsn: info.lsn.0,
        taken_unix_ms: info.unix_ms,
        labels: info.labels.into_iter().collect(),
    }
}

fn durability(wait: SnapshotWait) -> Durability {
    match wait {
        SnapshotWait::Log => Durability::Log,
        SnapshotWait::Store => Durability::Store,
    }
}

impl ControlPlane {
    pub(crate) async fn create_snapshot(
        &self,
        volume: &str,
        request: CreateSnapshot,
    ) -> Result<Snapshot> {
        check_labels(&request.labels)?;
        self.take_snapshot(volume, request).await
    }

    /// The same with any label.
    pub(super) async fn take_snapshot(
        &self,
        volume: &str,
        request: CreateSnapshot,
    ) -> Result<Snapshot> {
        let name = format!("{volume}@{}", request.name);
        let labels = request.labels.into_iter().collect();
        let durability = durability(request.wait);
        let created = match request.copied_unix_ms {
            None => self.host.create_snapshot(&name, labels, durability),
            Some(unix_ms) => self.host.copy_snapshot(&name, labels, unix_ms),
        };
        created.await.map(describe).map_err(Failure::from)
    }

    /// Takes snapshots of several volumes at one moment.
    pub(crate) async fn create_snapshot_group(
        &self,
        request: CreateSnapshotGroup,
    ) -> Result<SnapshotList> {
        check_labels(&request.labels)?;
        let labels = request.labels.into_iter().collect();
        let durability = durability(request.wait);
        let taken = self
            .host
            .create_snapshot_group(&request.names, labels, durability);
        let taken = taken.await.map_err(Failure::from)?;
        Ok(SnapshotList {
            snapshots: taken.into_iter().map(describe).collect(),
            next: None,
        })
    }

    pub(crate) async fn snapshots(&self, volume: &str, place: ListPlace) -> Result<SnapshotList> {
        let listed = self.host.list_snapshots(volume, place);
        let part = listed.await.map_err(Failure::from)?;
        if part.items.is_empty() {
            // There may be no such volume, and an empty list would not say so.
            self.host.show_volume(volume).await.map_err(Failure::from)?;
        }
        let snapshots = part.items.into_iter();
        Ok(SnapshotList {
            snapshots: snapshots
                .map(|info| self.with_address(describe(info)))
                .collect(),
            next: part.next,
        })
    }

    pub(crate) async fn delete_snapshot(&self, volume: &str, snapshot: &str) -> Result<()> {
        let name = format!("{volume}@{snapshot}");
        let _lock = self.volume_locks.lock(&name).await;
        if self.volumes.get(&name).is_some() {
            return Err(Failure::new(
                FailureCode::VolumeInUse,
                format!("snapshot {name} is attached; detach it first: firn detach {name}"),
            ));
        }
        self.check_no_waiting_disk(&name)?;
        let deleted = self.host.delete_snapshot(&name).await;
        match deleted {
            Err(error) => Err(self.failure_of_point(volume, error).await),
            Ok(()) => {
                self.waiting.remove(&name);
                self.disks.attached.remove(&name)
            }
        }
    }

    /// Says where a snapshot is reached, if it is attached here.
    fn with_address(&self, snapshot: Snapshot) -> Snapshot {
        let name = &snapshot.name;
        let open = self.volumes.get(name);
        let open = open.filter(|open| open.info.id.to_string() == snapshot.id);
        let device = || self.disks.describe(name).map(|disk| disk.device);
        let attached =
            open.and_then(|_| device().or_else(|| self.nbd.uris(name).into_iter().next()));
        Snapshot {
            attached,
            ..snapshot
        }
    }

    /// Sets a volume that nobody uses back to its snapshot. One that is open here is open again afterwards.
    pub(crate) async fn restore_volume(&self, volume: &str, snapshot: &str) -> Result<Restored> {
        let _lock = self.volume_locks.lock(volume).await;
        let open = self.volumes.get(volume);
        self.check_no_disk(volume)?;
        self.check_no_waiting_disk(volume)?;
        if let Some(open) = &open {
            // Before anything is closed for it.
            let found = self.host.show_snapshot(&format!("{volume}@{snapshot}"));
            found.await.map_err(Failure::from)?;
            self.check_no_connections(volume)?;
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
        let restored = match restored {
            Ok(restored) => Ok(restored),
            Err(error @ volume::OpenError::NoSuchSnapshot(_)) => {
                Err(self.failure_of_point(volume, error).await)
            }
            Err(error) => {
                let failure = Failure::from(error);
                let detail = format!(
                    "{}; if {kept} is in `firn snapshot list {volume}`, it is what the volume held",
                    failure.detail
                );
                Err(Failure::new(failure.code, detail))
            }
        };
        if open.is_some() {
            // Whatever became of it: it was served, and its clients may come back.
            self.open_again(volume).await;
        }
        let restored = restored?;
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

    /// Where there is no such snapshot there may be no such volume, which helps more.
    pub(super) async fn failure_of_point(&self, volume: &str, error: volume::OpenError) -> Failure {
        if let volume::OpenError::NoSuchSnapshot(_) = error
            && let Err(missing @ volume::OpenError::NoSuchVolume(_)) =
                self.host.show_volume(volume).await
        {
            return Failure::from(missing);
        }
        Failure::from(error)
    }

    /// Opens a volume that was closed for a restore; now or later, like one that the store does not give at a start.
    async fn open_again(&self, volume: &str) {
        let Err(failure) = self.open(volume, OpenMode::default()).await else {
            return;
        };
        tracing::error!(volume, %failure, "the volume cannot be opened again yet; it is retried");
        self.reopen_later(volume, failure);
    }

    /// A volume that was served is not, and is to be again.
    pub(crate) fn reopen_later(&self, volume: &str, failure: Failure) {
        self.waiting.set(volume, failure);
        self.reopens.request(volume);
    }

    /// Fails if a disk is recorded that waits for its volume: whoever has it mounted knows one content.
    fn check_no_waiting_disk(&self, volume: &str) -> Result<()> {
        let disk = self.disks.attached.disk(volume);
        if disk.is_none() {
            return Ok(());
        }
        Err(Failure::new(
            FailureCode::NotOpenYet,
            format!(
                "volume {volume} has a disk that waits for it: wait until it is open and detach the disk, or \
                 remove it with `firn detach --force {volume}`, which fails the requests that wait"
            ),
        ))
    }

    /// Makes a volume that begins as `parent`, a volume or `VOLUME@SNAPSHOT`, is now.
    pub(crate) async fn fork_volume(&self, parent: &str, request: ForkVolume) -> Result<Forked> {
        let _lock = self.volume_locks.lock(&request.name).await;
        let wait = durability(request.wait);
        let forked = self.host.fork_volume(parent, &request.name, wait).await;
        let forked = forked.map_err(Failure::from)?;
        let lsn = forked.volume.stored.0;
        let holder = forked.parent_holder.map(|holder| holder.label);
        tracing::info!(parent, fork = %request.name, lsn, holder, "a volume was forked");
        Ok(Forked {
            volume: self.describe(&forked.volume),
            parent_lsn: lsn,
            parent_holder: holder,
            stored: forked.is_stored,
        })
    }
}
