//! A volume out of the trash: under its own name and identity as long as nobody took the name, else as a fork.
//!
//! In place it is one conditional update: its snapshots were never gone. Under another name a new volume begins as it
//! was, and so do its snapshots; then the entry goes. Whatever ends it before that leaves the entry in the trash.

use std::sync::Arc;

use crate::engine::Engine;
use crate::error::OpenError;
use crate::hostlog::root_updates::{UpdateOutcome, update_root};
use crate::object::root::Root;
use crate::object::sessions::SessionNames;
use crate::store::catalog::create_root;
use crate::store::catalog::name_locks::lock_point;
use crate::store::catalog::volume_spec::{VolumeInfo, check_name};
use crate::store::flow::upload_state::KnownRoot;
use crate::store::forks::child::{
    ChildSpec, Outcome, ParentState, check_free, child_root, drop_pin, is_never_made, is_unmoved,
    put_child, put_pin,
};
use crate::store::forks::kept_forks::check_no_fork;
use crate::store::host_log::log_procedures::{KeyPrefixes, log_port, with_patience};
use crate::store::open::endings;
use crate::store::roots::unusable_root_error;
use crate::store::trash::empty::empty_entry;
use crate::store::trash::entries::{SnapshotWalk, TrashEntry, find};
use crate::units::Epoch;

/// Gives the volume back that has this id, or of those that had this name the one that was deleted last; under
/// its own name if no other is said.
pub(crate) async fn restore(
    engine: &Arc<Engine>,
    which: &str,
    new_name: Option<&str>,
) -> Result<VolumeInfo, OpenError> {
    engine.host_log.check_not_stopped()?;
    let entry = find(engine, which).await?;
    let old_name = entry.name().to_owned();
    let name = new_name.unwrap_or(&old_name);
    check_name(name)?;
    if entry.mark.is_going {
        return Err(OpenError::Invalid(format!(
            "{old_name} is on its way out of the trash: a part of it is deleted already"
        )));
    }
    let _busy = lock_point(engine, name)?;
    check_no_fork(engine, name, None)?;
    endings::ask_store_first(engine, name);
    if name == old_name && entry.aside.is_none() {
        return in_place(engine, &entry).await;
    }
    match check_free(engine, name).await {
        Err(OpenError::Exists(_)) if new_name.is_none() => {
            return Err(OpenError::Invalid(format!(
                "another volume has the name {name} by now: give this one another with `firn trash restore \
                 {which} --as NEW`"
            )));
        }
        checked => checked?,
    }
    as_fork(engine, &entry, name).await
}

/// Takes the mark of the trash off the root.
async fn in_place(engine: &Arc<Engine>, entry: &TrashEntry) -> Result<VolumeInfo, OpenError> {
    let standing = &entry.head.root;
    let epoch = Epoch(standing.epoch.0 + 1);
    let mut root = Root {
        epoch,
        since: epoch,
        first: standing.lsn.next(),
        sequence: standing.sequence + 1,
        deleted: false,
        unix_ms: engine.jobs.now().unix_ms,
        ..standing.clone()
    };
    root.clear_trash_mark();
    let name = entry.name();
    let port = log_port(engine);
    let update = async {
        let updated = update_root(&port, &root, &entry.head.version).await;
        updated.map_err(|error| unusable_root_error(name, &error))
    };
    let keys = KeyPrefixes::default().with_root(name);
    match with_patience(engine, name, keys, update).await? {
        UpdateOutcome::Won(_) => Ok(VolumeInfo::of(&root)),
        // An earlier attempt at it took effect late.
        UpdateOutcome::Lost(found) if found.root.volume == root.volume && !found.root.deleted => {
            Ok(VolumeInfo::of(&found.root))
        }
        UpdateOutcome::Lost(_) => Err(moved(name)),
    }
}

fn moved(name: &str) -> OpenError {
    OpenError::Store(format!(
        "{name}: another host has just taken it from the trash, or its name: see `firn trash list`, and try again"
    ))
}

/// Makes a volume that begins as the one in the trash was, and snapshots as that has them.
async fn as_fork(
    engine: &Arc<Engine>,
    entry: &TrashEntry,
    name: &str,
) -> Result<VolumeInfo, OpenError> {
    // Under its own name it has its snapshots already.
    let keeps_snapshots = name == entry.name();
    if !keeps_snapshots {
        let mut walk = SnapshotWalk::of(engine, entry);
        while let Some(snapshots) = walk.next().await? {
            for snapshot in &snapshots {
                check_free(engine, &snapshot_name(name, snapshot)).await?;
            }
        }
    }
    let root = put_fork(engine, entry, name).await?;
    if !keeps_snapshots {
        copy_snapshots(engine, entry, name).await.map_err(|error| {
            OpenError::Store(format!(
                "{name} is there, and its snapshots are not all: {error}; what is in the trash stays there: delete \
                 {name} and its snapshots, and try again"
            ))
        })?;
    }
    let entry = look_again(engine, entry).await.map_err(|error| {
        OpenError::Store(format!(
            "{name} is there, and perhaps not all of its snapshots: {error}"
        ))
    })?;
    // It is back; what stays of the entry holds space, and goes when its time is over.
    if let Err(error) = empty_entry(engine, &entry, !keeps_snapshots).await {
        tracing::warn!(volume = entry.name(), id = %entry.volume(), %error, "the trash keeps what came back as {name}");
    }
    Ok(VolumeInfo::of(&root))
}

/// The entry once more, behind the volume that came of it and its snapshots: nothing of it was deleted up to then if it does
/// not say that it is leaving, and whoever lets it go from now on sees that volume.
async fn look_again(engine: &Arc<Engine>, entry: &TrashEntry) -> Result<TrashEntry, OpenError> {
    if canary::active!("trash_is_not_looked_at_again") {
        return Ok(entry.clone());
    }
    match entry.read_again(engine).await? {
        Some(head) if is_unmoved(&head, &entry.head) => {
            return Ok(TrashEntry {
                head,
                ..entry.clone()
            });
        }
        _ => {}
    }
    // Its name may have been taken meanwhile: then it is another object.
    let found = match find(engine, &entry.volume().to_string()).await {
        Err(OpenError::NotInTrash(_)) => None,
        found => Some(found?),
    };
    let is_same = |found: &TrashEntry| {
        let root = &found.head.root;
        !found.mark.is_going && root.epoch == entry.head.root.epoch
    };
    found.filter(is_same).ok_or_else(|| {
        let name = entry.name();
        OpenError::Store(format!(
            "what was {name} left the trash meanwhile, by another command or because its time was over, and snapshots go \
             with it: see `firn snapshot list`"
        ))
    })
}

fn snapshot_name(volume: &str, snapshot: &KnownRoot) -> String {
    let own = snapshot.root.name.split('@').nth(1).unwrap_or_default();
    format!("{volume}@{own}")
}

fn state_of(head: &KnownRoot) -> ParentState {
    ParentState {
        head: head.clone(),
        beyond: Vec::new(),
        sessions: SessionNames::default(),
        lsn: head.root.lsn,
        bytes: head.root.bytes,
        unix_ms: head.root.unix_ms,
    }
}

/// As every child: a pin, a look whether what it is made of is there yet, the root.
async fn put_fork(engine: &Arc<Engine>, entry: &TrashEntry, name: &str) -> Result<Root, OpenError> {
    let spec = ChildSpec {
        name: name.to_owned(),
        labels: None,
        id: None,
        copied_unix_ms: None,
        may_be_served: false,
        is_repeated: false,
    };
    let root = child_root(engine, &state_of(&entry.head), &spec)?;
    put_pin(engine, entry.volume(), &root).await?;
    let standing = entry.read_again(engine).await;
    let is_there = matches!(&standing, Ok(Some(standing)) if is_unmoved(standing, &entry.head));
    if !is_there {
        drop_pin(engine, entry.volume(), root.volume).await;
        standing?;
        return Err(moved(entry.name()));
    }
    match create_root(engine, root.clone()).await {
        Ok(_) => Ok(root),
        Err(error) => {
            if is_never_made(&error) {
                drop_pin(engine, entry.volume(), root.volume).await;
            }
            Err(error)
        }
    }
}

async fn copy_snapshots(
    engine: &Arc<Engine>,
    entry: &TrashEntry,
    name: &str,
) -> Result<(), OpenError> {
    let mut walk = SnapshotWalk::of(engine, entry);
    while let Some(snapshots) = walk.next().await? {
        for snapshot in &snapshots {
            copy_snapshot(engine, snapshot, name).await?;
        }
    }
    Ok(())
}

async fn copy_snapshot(
    engine: &Arc<Engine>,
    snapshot: &KnownRoot,
    name: &str,
) -> Result<(), OpenError> {
    let spec = ChildSpec {
        name: snapshot_name(name, snapshot),
        labels: Some(snapshot.root.labels().unwrap_or_default()),
        id: None,
        copied_unix_ms: None,
        may_be_served: false,
        is_repeated: false,
    };
    match put_child(engine, &state_of(snapshot), &spec).await? {
        Outcome::Made(_) => Ok(()),
        Outcome::Moved(_) => Err(moved(&snapshot.root.name)),
    }
}
