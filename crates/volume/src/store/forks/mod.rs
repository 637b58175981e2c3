//! Points in time (S6): snapshots and forks.
//!
//! A snapshot is a closed volume of its own that nobody writes to; a fork is one that anybody may open. Both
//! share the objects of the state that they begin with, by name. [`live_parent`] takes that state from a volume
//! that is served here, [`stored_parent`] from any other; [`child`] creates the child from what the store has
//! then. A snapshot of a volume that is live here can be in the log first: [`keep`] puts it there, for a [`group`] of volumes at one cut, [`kept_snapshots`] knows
//! it, and [`store_kept`] brings it to the store. So can a fork: [`keep_fork`] and [`kept_forks`]. [`restore`] sets a volume back to a snapshot, [`open_snapshot`] serves one. Readers never need the
//! parent: a root names all that it needs.

pub(in crate::store) mod child;
pub(crate) mod due_snapshots;
pub(crate) mod group;
mod held_point;
mod keep;
mod keep_fork;
pub(in crate::store) mod kept_forks;
pub(crate) mod kept_snapshots;
pub(crate) mod known_names;
mod live_parent;
pub(crate) mod open_snapshot;
pub(crate) mod restore;
pub(crate) mod snapshot_list;
pub(crate) mod store_kept;
mod stored_parent;

use std::sync::Arc;

use crate::engine::Engine;
use crate::error::OpenError;
use crate::hostlog::root_updates::{UpdateOutcome, update_root};
use crate::object::extensions::Labels;
use crate::object::root::Root;
use crate::object::{SNAPSHOT_SIGN, root_key};
use crate::request::tail::{Status, Tail};
use crate::store::catalog;
use crate::store::catalog::name_locks::{NameLock, lock_point, lock_snapshot};
use crate::store::catalog::volume_spec::{VolumeInfo, VolumeOwner, check_name};
use crate::store::flow::upload_state::KnownRoot;
use crate::store::forks::child::{ChildSpec, check_free};
use crate::store::forks::snapshot_list::{SnapshotInfo, check_labels, check_snapshot_name};
use crate::store::host_log::log_procedures::{KeyPrefixes, log_port, with_patience};
use crate::store::open::holds::{check_not_held, is_held_here, local_tails};
use crate::store::rename::strays;
use crate::store::roots::checks::wait_checked;
use crate::store::roots::{read_any_root, read_root, unusable_root_error, why_not_there};
use crate::units::VolumeId;

/// What has a new snapshot or fork when the call that makes it ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Durability {
    /// The log of the host that has the volume open: it is as durable as a FLUSH, and goes to the store by itself. Of a volume that is not open here, the store.
    #[default]
    Log,
    /// The store. If that fails, nothing was made.
    Store,
}

/// Makes a snapshot `VOLUME@SNAPSHOT` of the volume's present state. `copied_unix_ms`: it is a copy of one that was taken
/// then, in another store; such a one is in the store when this ends.
pub(crate) async fn create_snapshot(
    engine: &Arc<Engine>,
    name: &str,
    labels: Labels,
    durability: Durability,
    copied_unix_ms: Option<u64>,
) -> Result<SnapshotInfo, OpenError> {
    let (volume, _) = check_snapshot_name(name)?;
    check_labels(&labels)?;
    // Before the lock of the name: the check takes that of the volume.
    wait_volume_checked(engine, volume).await?;
    let _busy = lock_snapshot(engine, volume, name)?;
    kept_snapshots::check_not_kept(engine, name)?;
    if durability == Durability::Log && copied_unix_ms.is_none() {
        engine.host_log.check_not_stopped()?;
        if let Some(tail) = live_tail(engine, volume)
            && let Some(taken) = keep::take(engine, &[(tail, name.to_owned())], &labels).await?
        {
            let taken = taken.into_iter().next();
            return taken.ok_or_else(|| OpenError::Busy(name.to_owned()));
        }
    }
    if let Some(tail) = served_tail(engine, volume) {
        tail.snapshot_names.add(name);
    }
    let spec = ChildSpec {
        name: name.to_owned(),
        labels: Some(labels),
        id: None,
        copied_unix_ms,
        may_be_served: false,
        is_repeated: false,
    };
    let (mut root, _) = make_child(engine, volume, &spec).await?;
    // A volume that is live here has the name yet.
    if live_tail(engine, volume).is_none() {
        match strays::follow_made(engine, &root).await {
            Ok(Some(new)) => root.name = new,
            Ok(None) => {}
            // It is there all the same, and a pass of a collector goes on with it.
            Err(error) => {
                tracing::warn!(snapshot = name, %error, "it may have stayed behind its volume");
            }
        }
    }
    Ok(SnapshotInfo::of(&root))
}

/// A new fork.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fork {
    /// The new volume; its stored LSN is its parent's.
    pub volume: VolumeInfo,
    /// Another host that has the parent open: writes that it has not uploaded are not in the fork.
    pub parent_holder: Option<VolumeOwner>,
    /// The store has it. If not, the log of this host has, which can open it; others can when it is stored.
    pub is_stored: bool,
}

/// Makes a fork of a volume's present state, or of a snapshot. Of a volume that is live here it can be in the log first;
/// otherwise this ends when the store has it.
pub(crate) async fn fork(
    engine: &Arc<Engine>,
    parent: &str,
    name: &str,
    durability: Durability,
) -> Result<Fork, OpenError> {
    check_name(name)?;
    match parent.contains(SNAPSHOT_SIGN) {
        true => drop(check_snapshot_name(parent)?),
        false => check_name(parent)?,
    }
    let _busy = lock_point(engine, name)?;
    kept_forks::check_no_fork(engine, name, None)?;
    if durability == Durability::Log {
        engine.host_log.check_not_stopped()?;
        wait_volume_checked(engine, parent).await?;
        if let Some(tail) = live_tail(engine, parent)
            && let Some(fork) = keep_fork::take(engine, &tail, name).await?
        {
            return Ok(fork);
        }
    }
    kept_snapshots::wait_in_store(engine, parent).await?;
    if served_tail(engine, parent).is_none() {
        kept_snapshots::wait_fork_in_store(engine, parent).await?;
    }
    let spec = ChildSpec {
        name: name.to_owned(),
        labels: None,
        id: None,
        copied_unix_ms: None,
        may_be_served: false,
        is_repeated: false,
    };
    let (root, parent_holder) = make_child(engine, parent, &spec).await?;
    Ok(Fork {
        volume: VolumeInfo::of(&root),
        parent_holder,
        is_stored: true,
    })
}

/// Deletes a volume for good, or, if it is said for how long it is to be kept, moves it to the trash. A fork that only the
/// log has, and that nobody has opened, is not there any more.
pub(crate) async fn delete_volume(
    engine: &Arc<Engine>,
    name: &str,
    keep_ms: Option<u64>,
) -> Result<(), OpenError> {
    check_name(name)?;
    // Without the lock of the name, which its root needs.
    kept_snapshots::wait_if_fork_is_sent(engine, name).await?;
    {
        let _busy = NameLock::take(engine, name)?;
        if keep_fork::delete(engine, name).await? {
            return Ok(());
        }
    }
    catalog::delete(engine, name, keep_ms).await
}

/// Creates a child; returns its first root, and the other host that has its parent open.
async fn make_child(
    engine: &Arc<Engine>,
    parent: &str,
    spec: &ChildSpec,
) -> Result<(Root, Option<VolumeOwner>), OpenError> {
    engine.host_log.check_not_stopped()?;
    match make_child_of(engine, parent, spec).await {
        // The creation of its root says whether the name is free; asking before would be a request more. Who has it is asked
        // for now: it may be in the trash.
        Err(taken @ OpenError::Exists(_)) => match check_free(engine, &spec.name).await {
            Ok(()) | Err(OpenError::Store(_)) => Err(taken),
            Err(why) => Err(why),
        },
        made => made,
    }
}

async fn make_child_of(
    engine: &Arc<Engine>,
    parent: &str,
    spec: &ChildSpec,
) -> Result<(Root, Option<VolumeOwner>), OpenError> {
    wait_volume_checked(engine, parent).await?;
    if let Some(tail) = live_tail(engine, parent) {
        let root = live_parent::make_child(engine, &tail, spec).await?;
        return Ok((root, None));
    }
    let head = match read_root(engine, parent).await {
        Err(OpenError::NoSuchVolume(name)) => return Err(stored_parent::no_parent(name)),
        head => head?,
    };
    check_nothing_waits(engine, &head.root, spec)?;
    let tails = local_tails(engine, head.root.volume);
    let holder = match is_held_here(engine, &head.root, &tails) {
        true => None,
        false => VolumeInfo::of(&head.root).owner,
    };
    let root = stored_parent::make_child(engine, head, spec).await?;
    Ok((root, holder))
}

/// Waits until the root of the volume was read, if it is served here.
async fn wait_volume_checked(engine: &Engine, name: &str) -> Result<(), OpenError> {
    match served_tail(engine, name) {
        Some(tail) => wait_checked(&tail).await,
        None => Ok(()),
    }
}

/// The volume of this name that is served here, checked or unchecked.
fn served_tail(engine: &Engine, name: &str) -> Option<Arc<Tail>> {
    let is_served = |tail: &Arc<Tail>| {
        tail.name() == name && !tail.is_for_maintenance() && tail.lock().status.serves()
    };
    engine.tails().into_iter().find(is_served)
}

/// The volume of this name that is live here, for clients.
fn live_tail(engine: &Engine, name: &str) -> Option<Arc<Tail>> {
    let is_live = |tail: &Arc<Tail>| {
        tail.name() == name && !tail.is_for_maintenance() && tail.lock().status == Status::Live
    };
    engine.tails().into_iter().find(is_live)
}

/// Refuses a child of the stored state if this log has acknowledged writes that the store lacks.
fn check_nothing_waits(engine: &Engine, root: &Root, spec: &ChildSpec) -> Result<(), OpenError> {
    let tails = local_tails(engine, root.volume);
    let waits =
        |tail: &Arc<Tail>| !tail.is_rescue() && tail.newest() > tail.stored_lsn().max(root.lsn);
    if is_held_here(engine, root, &tails) && tails.iter().any(waits) {
        return Err(OpenError::Invalid(format!(
            "volume {} has writes on this host that the store lacks, and is not open here: attach it, or \
             wait until the server has opened it, and try again",
            root.name
        )));
    }
    // A fork of another host's volume begins with what the store has of it, and the result says so. A snapshot
    // must be of one moment.
    match spec.labels.is_some() && !is_held_here(engine, root, &tails) {
        true => check_not_held(engine, root),
        false => Ok(()),
    }
}

/// Refuses to change a snapshot whose volume is on its way to another name: it may stand there by now, too.
async fn check_not_leaving(engine: &Engine, snapshot: &str) -> Result<(), OpenError> {
    let volume = snapshot.split_once(SNAPSHOT_SIGN);
    let volume = volume.map_or(snapshot, |(volume, _)| volume);
    match read_any_root(engine, volume).await {
        Ok(head) if head.root.is_leaving() => Err(why_not_there(&head.root)),
        // A snapshot outlives its volume.
        Ok(_) | Err(OpenError::NoSuchVolume(_)) => Ok(()),
        Err(error) => Err(error),
    }
}

/// Deletes a snapshot. Forks of it stay as they are.
pub(crate) async fn delete_snapshot(engine: &Arc<Engine>, name: &str) -> Result<(), OpenError> {
    delete_snapshot_of(engine, name, None).await
}

/// The same, if it is this one: another may have the name by now.
pub(in crate::store) async fn delete_snapshot_of(
    engine: &Arc<Engine>,
    name: &str,
    id: Option<VolumeId>,
) -> Result<(), OpenError> {
    check_snapshot_name(name)?;
    kept_snapshots::wait_if_sent(engine, name).await?;
    let _busy = lock_point(engine, name)?;
    if keep::delete(engine, name, id).await? {
        return Ok(());
    }
    if open_snapshot::find(engine, name).is_some()
        && !canary::active!("attached_snapshot_is_deleted")
    {
        return Err(OpenError::InUse(name.to_owned()));
    }
    let missing = || OpenError::NoSuchSnapshot(name.to_owned());
    let head = match read_any_root(engine, name).await {
        // It is on its way after its volume.
        Ok(KnownRoot { root, .. }) if root.is_leaving() => return Err(why_not_there(&root)),
        Ok(KnownRoot { root, .. }) if root.deleted => return Err(missing()),
        Err(OpenError::NoSuchVolume(_)) => return Err(missing()),
        head => head?,
    };
    if id.is_some_and(|id| id != head.root.volume) {
        return Err(missing());
    }
    if head.root.labels().is_none() {
        return Err(OpenError::Corrupt(format!(
            "{}: it is no snapshot",
            root_key(name)
        )));
    }
    check_not_leaving(engine, name).await?;
    let tombstone = child::tombstone_of(engine, &head.root);
    let port = log_port(engine);
    let update = async {
        let updated = update_root(&port, &tombstone, &head.version).await;
        updated.map_err(|error| unusable_root_error(name, &error))
    };
    let keys = KeyPrefixes::default().with_root(name);
    match with_patience(engine, name, keys, update).await? {
        UpdateOutcome::Won(_) => Ok(()),
        UpdateOutcome::Lost(found) if found.root.rename_mark().is_some() => {
            Err(why_not_there(&found.root))
        }
        // An earlier attempt took effect late, or another host has deleted it.
        UpdateOutcome::Lost(found)
            if found.root.deleted && found.root.volume == tombstone.volume =>
        {
            Ok(())
        }
        UpdateOutcome::Lost(_) => Err(OpenError::Busy(name.to_owned())),
    }
}
