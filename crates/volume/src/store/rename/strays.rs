//! Snapshots that were made at the very moment when their volume left its name, and stayed behind: they follow it.
//!
//! By the steps of a volume: the new name is kept, the snapshot leaves the old one and arrives, and what is left is gone.
//! Whoever makes such a snapshot looks for it, the renaming does at its end, and each pass of a collector. It must never
//! move a snapshot of what stands under its name now, or of what that was before. One whose new name is taken stays.

use std::sync::Arc;

use crate::engine::Engine;
use crate::error::OpenError;
use crate::hostlog::root_updates::UpdateOutcome;
use crate::object::SNAPSHOT_SIGN;
use crate::object::root::{RenameStep, Root};
use crate::store::catalog::name_locks::lock_point;
use crate::store::flow::upload_state::KnownRoot;
use crate::store::open::holds::local_tails;
use crate::store::rename::arrival::{SnapshotsOf, finish, gone_root};
use crate::store::rename::identity::find_volume;
use crate::store::rename::signs::{leaves_for, renamed_snapshot};
use crate::store::rename::{free_name, keep_name, leaving_root};
use crate::store::roots::{read_any_root, replace_root};
use crate::store::trash::entries::why_taken;
use crate::units::VolumeId;

/// Has those follow that came too late to go with a volume which has left this name.
pub(super) async fn follow_all(engine: &Arc<Engine>, left: &Root) {
    let mut walk = SnapshotsOf::new(engine, left);
    loop {
        let found = match walk.next().await {
            Ok(Some(found)) => found,
            Ok(None) => return,
            Err(error) => {
                tracing::warn!(volume = left.name, %error, "it is not known whether a snapshot stayed behind");
                return;
            }
        };
        for snapshot in found {
            let name = &snapshot.root.name;
            if let Err(error) = follow(engine, name).await {
                tracing::warn!(snapshot = name, %error, "it stays under this name, and its volume has another");
            }
        }
    }
}

/// Gives a snapshot the name that it would have if it had gone with its volume, and returns that, also if it did; none: it
/// is where it belongs, or nobody can say where that is.
pub(crate) async fn follow(engine: &Arc<Engine>, name: &str) -> Result<Option<String>, OpenError> {
    let _busy = lock_point(engine, name)?;
    follow_locked(engine, name).await
}

/// The same for one that was just made, whose name the caller has locked.
pub(in crate::store) async fn follow_made(
    engine: &Arc<Engine>,
    made: &Root,
) -> Result<Option<String>, OpenError> {
    match is_at_home(engine, made).await? {
        true => Ok(None),
        false => follow_locked(engine, &made.name).await,
    }
}

async fn follow_locked(engine: &Arc<Engine>, name: &str) -> Result<Option<String>, OpenError> {
    let snapshot = match read_any_root(engine, name).await {
        Ok(head) if !head.root.deleted => head,
        // The renaming has taken it along, or it was deleted.
        Ok(head) => {
            let gone = head.root.rename_mark();
            let gone = gone.filter(|mark| mark.step == RenameStep::Gone);
            return Ok(gone.map(|mark| mark.other));
        }
        Err(OpenError::NoSuchVolume(_)) => return Ok(None),
        Err(error) => return Err(error),
    };
    let Some(parent) = parent_of(&snapshot.root) else {
        return Ok(None);
    };
    let stays = canary::active!("late_snapshots_stay") || canary::active!("snapshots_stay_behind");
    if stays || is_at_home(engine, &snapshot.root).await? {
        return Ok(None);
    }
    let volume = match find_volume(engine, parent).await? {
        Some(head) if !head.root.deleted && may_get_snapshots(engine, &head.root) => head.root,
        _ => return Ok(None),
    };
    let new = renamed_snapshot(name, &volume.name);
    if new == name {
        return Ok(None);
    }
    let _busy = lock_point(engine, &new)?;
    for tail in local_tails(engine, parent) {
        tail.snapshot_names.add(&new);
    }
    move_to(engine, snapshot, &new).await?;
    tracing::info!(
        snapshot = name,
        new,
        "a snapshot that stayed behind when its volume was renamed has followed it"
    );
    Ok(Some(new))
}

/// The volume that a snapshot was taken of.
fn parent_of(snapshot: &Root) -> Option<VolumeId> {
    snapshot.lineage().first().map(|parent| parent.volume)
}

/// Whether its volume has, or had, the name that its own begins with, or goes from there at this moment and takes it along.
async fn is_at_home(engine: &Engine, snapshot: &Root) -> Result<bool, OpenError> {
    let volume = snapshot.name.split_once(SNAPSHOT_SIGN);
    let (Some((volume, _)), Some(parent)) = (volume, parent_of(snapshot)) else {
        return Ok(true);
    };
    match read_any_root(engine, volume).await {
        Ok(KnownRoot { root, .. }) => {
            Ok(root.volume == parent || (!root.deleted && root.is_origin(parent)))
        }
        Err(OpenError::NoSuchVolume(_)) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Whether nobody else holds the volume: its holder alone makes snapshots of it, and knows which names are free.
fn may_get_snapshots(engine: &Engine, root: &Root) -> bool {
    let owner = root.owner.as_ref().map(|owner| owner.host);
    let claimant = root.claimant.as_ref().map(|claimant| claimant.host);
    let predecessor = root.predecessor.map(|before| before.host);
    let mut holders = [owner, claimant, predecessor].into_iter().flatten();
    holders.all(|host| host == engine.host)
}

async fn move_to(engine: &Arc<Engine>, snapshot: KnownRoot, new: &str) -> Result<(), OpenError> {
    let id = snapshot.root.volume;
    match read_any_root(engine, new).await {
        // An earlier attempt put it there, or a request of the renaming that came late. It may have been deleted since.
        Ok(standing) if standing.root.volume == id => {
            let gone = gone_root(engine, &snapshot.root, id, new);
            return replace_root(engine, &gone, &snapshot.version)
                .await
                .map(drop);
        }
        Ok(standing) if !standing.root.deleted => return Err(why_taken(engine, &standing).await?),
        Ok(_) | Err(OpenError::NoSuchVolume(_)) => {}
        Err(error) => return Err(error),
    }
    let kept = keep_name(engine, &snapshot.root, new).await?;
    let leaving = leaving_root(engine, &snapshot.root, &kept);
    let left = match replace_root(engine, &leaving, &snapshot.version).await? {
        UpdateOutcome::Won(found) | UpdateOutcome::Lost(found) => KnownRoot {
            root: found.root,
            version: found.version,
        },
    };
    if !leaves_for(&left.root, kept.volume) {
        free_name(engine, &kept).await;
        return Err(OpenError::Busy(snapshot.root.name));
    }
    finish(engine, left).await.map(drop)
}
