//! What deleted roots say of renamings: whether a name is free, and which name a volume has now.
//!
//! Reads only. A name that is kept for a volume counts as taken for as long as that volume's root may leave for it.

use std::sync::Arc;

use crate::engine::Engine;
use crate::error::OpenError;
use crate::object::SNAPSHOT_SIGN;
use crate::object::root::{RenameMark, RenameStep, Root};
use crate::store::flow::upload_state::KnownRoot;
use crate::store::rename::identity::find_volume;
use crate::store::roots::renamed::follow_names;
use crate::store::roots::{read_any_root, why_not_there};
use crate::units::VolumeId;

/// Refuses to take the name of a deleted root that a renaming holds.
pub(in crate::store) async fn check_free_of_renaming(
    engine: &Engine,
    standing: &Root,
) -> Result<(), OpenError> {
    let Some(mark) = standing.rename_mark() else {
        return Ok(());
    };
    let is_free = match mark.step {
        RenameStep::Gone => true,
        RenameStep::Leaving => canary::active!("name_of_a_leaving_volume_is_free"),
        RenameStep::Kept => !may_leave_for(engine, standing, &mark).await?,
    };
    match is_free {
        true => Ok(()),
        false => Err(why_not_there(standing)),
    }
}

/// Whether the volume for which this root keeps a name has left for it, or may yet. It leaves by an update of its root
/// as that was in the mark's epoch, and the epochs of a name never go back.
async fn may_leave_for(engine: &Engine, kept: &Root, mark: &RenameMark) -> Result<bool, OpenError> {
    let head = match read_any_root(engine, &mark.other).await {
        // Somebody removed it, and may put it back.
        Err(OpenError::NoSuchVolume(_)) => return Ok(true),
        head => head?,
    };
    let has_left = leaves_for(&head.root, kept.volume);
    Ok(has_left || head.root.epoch <= mark.epoch)
}

/// Whether it is the root of a volume that is on its way to the name which the root of this identity keeps.
pub(super) fn leaves_for(root: &Root, kept: VolumeId) -> bool {
    let mark = root.rename_mark();
    mark.is_some_and(|mark| mark.step == RenameStep::Leaving && mark.volume == kept)
}

/// The root of a volume that had this name, under its name of today: by the names that it got, or by its identity where
/// another has taken one of them. A volume that is on its way is told as it stands. One that has no root: what
/// stands under this name.
pub(in crate::store) async fn read_root_by_old_name(
    engine: &Arc<Engine>,
    name: &str,
    volume: VolumeId,
) -> Result<KnownRoot, OpenError> {
    let under_name = read_any_root(engine, name).await;
    let trail = match &under_name {
        Ok(standing) => follow_names(engine, standing, volume).await?,
        Err(OpenError::NoSuchVolume(_)) => None,
        Err(_) => return under_name,
    };
    if trail.is_some() || canary::active!("rescue_follows_names_alone") {
        return trail.map_or(under_name, Ok);
    }
    match find_volume(engine, volume).await? {
        Some(found) => Ok(found),
        None => under_name,
    }
}

/// The name that a snapshot gets when its volume does.
pub(super) fn renamed_snapshot(snapshot: &str, new: &str) -> String {
    let own = snapshot.split_once(SNAPSHOT_SIGN);
    let own = own.map_or(snapshot, |(_, own)| own);
    format!("{new}{SNAPSHOT_SIGN}{own}")
}
