//! Tails that are not served: listed, shown, made volumes of, and dropped by whoever declares that loss.
//!
//! The engine keeps them and accounts their log space; this file gives each a stable id and keeps
//! a drop away from volumes that are open here.

use blkmq::io::SECTOR_BYTES;
use volume::{TailId, UnservedTail};

use crate::control_plane::ControlPlane;
use crate::failure::{Failure, FailureCode, Result};
use crate::model::{ForkRequest, ForkedVolume, RescueTail, RescueTails};

/// The id of a tail in the API: its volume's id and the epoch in which its hold began.
fn tail_id(id: TailId) -> String {
    format!("{}-{}", id.volume, id.since.0)
}

fn describe(tail: UnservedTail) -> RescueTail {
    RescueTail {
        id: tail_id(tail.id),
        volume: tail.volume,
        rescue: tail.rescue,
        newest_lsn: tail.newest.0,
        stored_lsn: tail.stored.0,
        extents: tail.extents as u64,
        log_bytes: tail.log_bytes,
    }
}

impl ControlPlane {
    pub(crate) fn rescue_tails(&self) -> RescueTails {
        let tails = self.host.unserved_tails().into_iter();
        let tails: Vec<RescueTail> = tails.map(describe).collect();
        RescueTails {
            log_bytes: tails.iter().map(|tail| tail.log_bytes).sum(),
            tails,
        }
    }

    pub(crate) fn rescue_tail(&self, id: &str) -> Result<RescueTail> {
        self.find_tail(id).map(describe)
    }

    fn find_tail(&self, id: &str) -> Result<UnservedTail> {
        let mut tails = self.host.unserved_tails().into_iter();
        tails.find(|tail| tail_id(tail.id) == id).ok_or_else(|| {
            Failure::new(
                FailureCode::NoSuchTail,
                format!("no tail {id} is kept here; see `firn rescue list`"),
            )
        })
    }

    /// Makes a volume of a tail that is kept for rescue. The tail stays until it is dropped.
    pub(crate) async fn fork_tail(&self, id: &str, request: ForkRequest) -> Result<ForkedVolume> {
        let found = self.find_tail(id)?;
        let _lock = self.volume_locks.lock(&request.name).await;
        let fork = self
            .host
            .fork_tail(found.id, &request.name, request.without_base);
        let forked = fork.await.map_err(Failure::from)?;
        tracing::info!(
            volume = %found.volume, tail = id, fork = %request.name, base_lsn = ?forked.base,
            newest_lsn = forked.newest.0, "a volume was made of a tail"
        );
        Ok(ForkedVolume {
            name: forked.volume.name,
            size_bytes: forked.volume.bytes,
            base_lsn: forked.base.map(|lsn| lsn.0),
            newest_lsn: forked.newest.0,
            damaged_bytes: forked.damaged_sectors * SECTOR_BYTES,
        })
    }

    /// Drops a tail for good. One that waits for its volume holds acknowledged writes that the next
    /// open would bring to the store: only with `force`.
    pub(crate) async fn drop_tail(&self, id: &str, force: bool) -> Result<()> {
        let found = self.find_tail(id)?;
        let name = found.volume.clone();
        let _lock = self.volume_locks.lock(&name).await;
        let open_here = self.volumes.get(&name);
        let fenced = open_here.filter(|open| open.info.id == found.id.volume);
        if fenced.is_some_and(|open| open.volume.check_serving().is_err()) {
            return Err(Failure::new(
                FailureCode::VolumeInUse,
                format!(
                    "volume {name} is still attached with this tail; first: firn detach {name}"
                ),
            ));
        }
        if !found.rescue && !force {
            return Err(Failure::new(
                FailureCode::TailWanted,
                format!(
                    "tail {id} waits for its volume {name}: once that opens, its {} extents go to the \
                     store; if the volume is gone for good, drop them with --force",
                    found.extents
                ),
            ));
        }
        let dropped = self.host.drop_tail(found.id, force).await;
        dropped.map_err(Failure::from)?;
        tracing::warn!(
            volume = %name, tail = id, extents = found.extents, log_bytes = found.log_bytes,
            "a tail was dropped, with all writes in it that the store lacks"
        );
        Ok(())
    }
}
