//! Forgets a volume whose root somebody removed from the store, when an operator confirms that it is gone for
//! good.
//!
//! Without its root nothing tells which objects a volume had, so the collector removes nothing at all until the
//! root is put back or the volume is forgotten. A volume that has a root is never touched, whatever its name: roots are
//! looked for until it is certain that there was a moment without one, because a volume that gets another name meanwhile
//! may be read under neither. Behind that moment it has none either: a renaming brings a volume to a name that is
//! kept for it, and names that are kept for this one are given back before.

use std::sync::Arc;

use crate::engine::Engine;
use crate::error::OpenError;
use crate::object::root::Root;
use crate::object::{ROOT_PREFIX, SNAPSHOT_PREFIX};
use crate::store::catalog::volume_spec::VolumeSpec;
use crate::store::catalog::{first_root, keep_tombstone};
use crate::store::open::holds::local_tails;
use crate::store::rename::give_back_name;
use crate::store::rename::identity::find_roots;
use crate::units::VolumeId;

/// The name in the tombstone of a volume whose own name is not known any more.
const NO_NAME: &str = "forgotten";

/// Looks for names that are kept for the volume: one that lives may have new ones kept as fast as they are given back.
const LOOKS_MAX: u32 = 5;

/// Writes a tombstone of a volume that has no root: objects that only this volume reached become garbage.
pub(crate) async fn forget(engine: &Arc<Engine>, volume: VolumeId) -> Result<(), OpenError> {
    engine.host_log.check_not_stopped()?;
    let tails = local_tails(engine, volume);
    if let Some(tail) = tails.iter().find(|tail| tail.lock().status.serves()) {
        return Err(OpenError::InUse(tail.name().to_owned()));
    }
    check_has_no_root(engine, volume).await?;
    let spec = VolumeSpec {
        name: NO_NAME.to_owned(),
        bytes: 1 << 20,
        block: 512,
    };
    let tombstone = Root {
        volume,
        deleted: true,
        ..first_root(engine, spec)
    };
    keep_tombstone(engine, &tombstone).await
}

/// Refuses a volume that has a root, and sees to it that none arrives of a renaming that was on its way when its root was
/// removed.
async fn check_has_no_root(engine: &Arc<Engine>, volume: VolumeId) -> Result<(), OpenError> {
    for _ in 0..LOOKS_MAX {
        // A root's key does not have the volume's id.
        let found = find_roots(engine, &[ROOT_PREFIX, SNAPSHOT_PREFIX], volume).await?;
        if let Some(standing) = found.own.first() {
            return Err(OpenError::Invalid(format!(
                "volume {volume} has a root, {}: it is not forgotten; delete it by its name",
                standing.root.name
            )));
        }
        if found.kept.is_empty() || canary::active!("forgotten_volume_arrives") {
            return Ok(());
        }
        for kept in &found.kept {
            give_back_name(engine, &kept.root, &kept.version).await?;
        }
    }
    Err(OpenError::Store(format!(
        "volume {volume} is being renamed, and is not forgotten: see `firn volume list`, and try again"
    )))
}
