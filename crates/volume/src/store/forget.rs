//! A person's word that a volume is gone for good whose root somebody removed from the store.
//!
//! Without a root nobody knows what a volume had, so all of it stays, and the collector stands still until the root
//! is put back or somebody says this. It never touches a volume that has a root, whatever it is called.

use std::sync::Arc;

use crate::engine::Engine;
use crate::error::OpenError;
use crate::object::root::Root;
use crate::object::{ROOT_PREFIX, SNAPSHOT_PREFIX, snapshot_of_root_key, volume_of_root_key};
use crate::store::catalog::{first_root, keep_tombstone};
use crate::store::holds::local_tails;
use crate::store::roots::{list_keys, read_any_root};
use crate::store::volume_spec::VolumeSpec;
use crate::units::VolumeId;

/// The name that a tombstone has of a volume whose own nobody knows any more.
const NO_NAME: &str = "forgotten";

/// Keeps a tombstone of a volume that has no root: what only it reached is garbage from now on.
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

/// Reads all roots: which of them a volume has is in no key.
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
            // It may be the one that is to be forgotten.
            Err(error) => return Err(error),
        }
    }
    Ok(())
}
