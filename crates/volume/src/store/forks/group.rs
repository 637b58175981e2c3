//! Crash-consistent groups (S6): snapshots of several volumes at one cut of the host.
//!
//! What a client wrote to one volume once another one had answered it is in the group only if that answer's write is, too:
//! a database's log is never ahead of its data. All are in the log by one frame, and go to the store one by one; each names
//! all members by its label, so whoever lacks one sees that the group is not whole. It must never take volumes that another
//! host serves: hosts have no common moment.

use std::sync::Arc;

use crate::engine::Engine;
use crate::error::OpenError;
use crate::object::extensions::Labels;
use crate::store::catalog::name_locks::lock_snapshot;
use crate::store::forks::snapshot_list::{SnapshotInfo, check_labels, check_snapshot_name};
use crate::store::forks::{Durability, keep, kept_snapshots, live_tail, wait_volume_checked};
use crate::store::roots::read_any_root;

/// Volumes of one group: a lock of each is held for a moment.
const MEMBERS_MAX: usize = 16;
/// The label that names the members, with spaces between.
const LABEL: &str = "group";

/// Makes snapshots `VOLUME@SNAPSHOT` of several volumes, all as they are at one moment. In the log they are all or none;
/// if the store is waited for and fails, they stay in the log and go there later.
pub(crate) async fn create_group(
    engine: &Arc<Engine>,
    names: &[String],
    labels: Labels,
    durability: Durability,
) -> Result<Vec<SnapshotInfo>, OpenError> {
    let volumes = check_members(names)?;
    let labels = with_group_label(names, labels)?;
    // Before any lock, as for one snapshot.
    for volume in &volumes {
        wait_volume_checked(engine, volume).await?;
    }
    let mut locks = Vec::new();
    for (volume, name) in volumes.iter().zip(names) {
        locks.push(lock_snapshot(engine, volume, name)?);
        kept_snapshots::check_not_kept(engine, name)?;
    }
    engine.host_log.check_not_stopped()?;
    let mut members = Vec::new();
    for (volume, name) in volumes.iter().zip(names) {
        let tail = live_tail(engine, volume).ok_or_else(|| {
            OpenError::Invalid(format!(
                "volume {volume} is not open here: a group is one moment of the volumes that one server has open; attach \
                 it here, or leave it out"
            ))
        })?;
        members.push((tail, name.clone()));
    }
    let taken = keep::take(engine, &members, &labels).await?;
    let mut infos = taken.ok_or_else(|| {
        OpenError::Store(
            "the snapshots that wait for the store leave no room in the log for a group: nothing was made; try again when \
             the store has taken some"
                .to_owned(),
        )
    })?;
    if durability == Durability::Store {
        for (info, name) in infos.iter_mut().zip(names) {
            kept_snapshots::wait_in_store(engine, name).await?;
            check_stored(engine, info).await?;
            info.is_stored = true;
        }
    }
    Ok(infos)
}

/// That the store has this very snapshot. The log keeps it no more also if its volume was taken over meanwhile, or if it is
/// stored under another name, because somebody else's snapshot has its own.
async fn check_stored(engine: &Engine, info: &SnapshotInfo) -> Result<(), OpenError> {
    let found = match read_any_root(engine, &info.name).await {
        Err(OpenError::NoSuchVolume(_)) => None,
        found => Some(found?.root),
    };
    match found {
        Some(root) if root.volume == info.id && !root.deleted => Ok(()),
        _ => Err(OpenError::Store(format!(
            "{} of the group is not in the store under its name, so the group is not whole: its volume was taken over, it was \
             deleted, or the name was taken; the server's log says which. Look at `firn snapshot list`, and take the group again",
            info.name
        ))),
    }
}

/// The volumes of the names: more than one, each once.
fn check_members(names: &[String]) -> Result<Vec<&str>, OpenError> {
    if !(2..=MEMBERS_MAX).contains(&names.len()) {
        return Err(OpenError::Invalid(format!(
            "a group has 2 to {MEMBERS_MAX} snapshots, and this one {}",
            names.len()
        )));
    }
    let mut volumes = Vec::new();
    for name in names {
        let (volume, _) = check_snapshot_name(name)?;
        if volumes.contains(&volume) {
            return Err(OpenError::Invalid(format!(
                "volume {volume} is twice in the group: it has one state at a time"
            )));
        }
        volumes.push(volume);
    }
    Ok(volumes)
}

/// The labels with that of the group.
fn with_group_label(names: &[String], mut labels: Labels) -> Result<Labels, OpenError> {
    if labels.iter().any(|(key, _)| key == LABEL) {
        return Err(OpenError::Invalid(format!(
            "the label {LABEL} names a group's members: leave it out"
        )));
    }
    labels.push((LABEL.to_owned(), names.join(" ")));
    check_labels(&labels).map_err(|error| {
        OpenError::Invalid(format!(
            "{error}; the label {LABEL} has the names of all members, with spaces between"
        ))
    })?;
    Ok(labels)
}
