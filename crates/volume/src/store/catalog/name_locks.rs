//! Locks on the names of volumes and snapshots that are being opened, closed, made, restored or deleted on this
//! host.
//!
//! In memory only. Between hosts the versions of roots exclude each other.

use std::sync::Arc;

use crate::engine::Engine;
use crate::error::OpenError;
use crate::lock::lock;
use crate::object::SNAPSHOT_SIGN;

/// Holds a volume's name while it is opened, closed or deleted.
pub(crate) struct NameLock {
    engine: Arc<Engine>,
    name: String,
}

impl NameLock {
    pub(crate) fn take(engine: &Arc<Engine>, name: &str) -> Result<NameLock, OpenError> {
        if !lock(&engine.locked_names).insert(name.to_owned()) {
            return Err(OpenError::InUse(name.to_owned()));
        }
        Ok(NameLock {
            engine: Arc::clone(engine),
            name: name.to_owned(),
        })
    }
}

/// The same for an operation on points in time. It opens nothing, so the error says that the name is busy, not
/// that it is attached.
pub(crate) fn lock_point(engine: &Arc<Engine>, name: &str) -> Result<NameLock, OpenError> {
    NameLock::take(engine, name).map_err(|_| OpenError::Busy(name.to_owned()))
}

/// The same for making a snapshot: refused while its volume is being opened, closed or deleted.
pub(crate) fn lock_snapshot(
    engine: &Arc<Engine>,
    volume: &str,
    name: &str,
) -> Result<NameLock, OpenError> {
    let lock_of_name = lock_point(engine, name)?;
    match lock(&engine.locked_names).contains(volume)
        && !canary::active!("deletion_passes_a_snapshot")
    {
        true => Err(OpenError::Busy(volume.to_owned())),
        false => Ok(lock_of_name),
    }
}

/// Refuses the deletion of a volume, whose name the caller has locked, while a snapshot of it is being made or
/// deleted.
pub(crate) fn check_no_snapshot_is_locked(engine: &Engine, volume: &str) -> Result<(), OpenError> {
    let locked = lock(&engine.locked_names);
    let is_of_volume = |name: &&String| {
        let of = name.split_once(SNAPSHOT_SIGN).map(|(volume, _)| volume);
        of == Some(volume) && !canary::active!("deletion_passes_a_snapshot")
    };
    match locked.iter().find(is_of_volume) {
        Some(name) => Err(OpenError::Busy(name.clone())),
        None => Ok(()),
    }
}

impl Drop for NameLock {
    fn drop(&mut self) {
        lock(&self.engine.locked_names).remove(&self.name);
    }
}
