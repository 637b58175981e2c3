//! The trash: deleted volumes that can be had back.
//!
//! The engine keeps them; this file lets go of what serves a volume before that is moved there.

use std::time::Duration;

use volume::{ListPlace, TrashedVolume};

use crate::control_plane::{ControlPlane, attach};
use crate::failure::{Failure, Result};
use crate::model::{self, RestoreTrashed, TrashList, Volume};

impl ControlPlane {
    /// Moves a volume to the trash, or, `now`, deletes it for good.
    pub(crate) async fn delete(&self, name: &str, now: bool) -> Result<()> {
        let _lock = self.volume_locks.lock(name).await;
        attach::refuse_snapshot(name)?;
        let open = self.volumes.get(name);
        if let Some(open) = &open {
            self.check_no_disk(name)?;
            self.check_no_connections(name)?;
            if let Err(failure) = self.close(open).await {
                self.restore_export(open);
                return Err(failure);
            }
        }
        let keep = self.settings.trash_keep();
        let deleted = match now || keep == Duration::ZERO {
            true => self.host.delete_volume(name),
            false => {
                let keep_ms = u64::try_from(keep.as_millis()).unwrap_or(u64::MAX);
                self.host.trash_volume(name, keep_ms)
            }
        };
        deleted.await.map_err(Failure::from)?;
        if let Some(open) = open {
            self.boot_sets.remove(open.info.id);
        }
        self.waiting.remove(name);
        self.starts.take_back(name);
        self.disks.attached.remove(name)
    }

    pub(crate) async fn trash(&self, place: ListPlace) -> Result<TrashList> {
        let part = self.host.list_trash(place).await.map_err(Failure::from)?;
        Ok(TrashList {
            volumes: part.items.into_iter().map(describe).collect(),
            next: part.next,
        })
    }

    /// Gives a volume back that has this id, or the last one that had this name.
    pub(crate) async fn restore_from_trash(
        &self,
        which: &str,
        request: RestoreTrashed,
    ) -> Result<Volume> {
        let name = request.name.as_deref();
        let _lock = self.volume_locks.lock(name.unwrap_or(which)).await;
        let restored = self.host.restore_from_trash(which, name).await;
        let restored = restored.map_err(Failure::from)?;
        tracing::info!(volume = restored.name, id = %restored.id, "a volume came back from the trash");
        Ok(self.describe(&restored))
    }

    /// Lets a volume in the trash go for good.
    pub(crate) async fn empty_trash(&self, which: &str) -> Result<()> {
        let emptied = self.host.empty_trash(which).await;
        emptied.map_err(Failure::from)
    }
}

fn describe(found: TrashedVolume) -> model::TrashedVolume {
    model::TrashedVolume {
        name: found.name,
        id: found.id.to_string(),
        size_bytes: found.bytes,
        snapshots: found.snapshots,
        deleted_unix_ms: found.deleted_unix_ms,
        until_unix_ms: found.until_unix_ms,
    }
}
