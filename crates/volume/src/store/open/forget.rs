//! Forgets a volume whose root somebody removed from the store, when an operator confirms that it is gone for
//! good.
//!
//! Without its root nothing tells which objects a volume had, so the collector removes nothing at all until the
//! root is put back or the volume is forgotten. A volume that has a root is never touched, whatever its name.

use std::sync::Arc;

use crate::engine::Engine;
use crate::error::OpenError;
use crate::object::root::Root;
use crate::object::{ROOT_PREFIX, SNAPSHOT_PREFIX, snapshot_of_root_key, volume_of_root_key};
use crate::store::catalog::volume_spec::VolumeSpec;
use crate::store::catalog::{first_root, keep_tombstone};
use crate::store::open::holds::local_tails;
use crate::store::roots::{list_keys, read_any_root};
use crate::units::VolumeId;

/// The name in the tombstone of a volume whose own name is not known any more.
const NO_NAME: &str = "forgotten";

/// Writes a tombstone of a volume that has no root: objects that only this volume reached become garbage.
pub(crate) async fn forget(engine: &Arc<Engine>, volume: VolumeId) -> Result<(), OpenError> {
    engine.host_log.check_not_stopped()?;
    let tails = local_tails(engine, volume);
    if let Some(tail) = tails.iter().find(|tail| tail.lock().status.serves()) {
        return Err(OpenError::InUse(tail.name().to_owned()));
    }
    for prefix in [ROOT_PREFIX, SNAPSHOT_PREFIX] {
        check_has_no_root(engine, prefix, volume).await?;
    }
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

/// Reads all roots, because a root's key does not have the volume's id.
async fn check_has_no_root(
    engine: &Engine,
    prefix: &str,
    volume: VolumeId,
) -> Result<(), OpenError> {
    for key in list_keys(engine, prefix).await? {
        let name = volume_of_root_key(&key).map(str::to_owned);
        let Some(name) = name.or_else(|| snapshot_of_root_key(&key)) else {
            continue;
        };
        match read_any_root(engine, &name).await {
            Ok(head) if head.root.volume == volume => {
                return Err(OpenError::Invalid(format!(
                    "volume {volume} has a root, {name}: it is not forgotten; delete it by its name"
                )));
            }
            Ok(_) | Err(OpenError::NoSuchVolume(_)) => {}
            // This may be the root of the volume in question.
            Err(error) => return Err(error),
        }
    }
    Ok(())
}
