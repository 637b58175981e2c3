//! Restores a volume to one of its snapshots, under its own name and identity, while nobody has it open.
//!
//! The volume's present state is kept as another snapshot. The epoch rises, so a host that still believes to have
//! the volume is fenced, and slices of older epochs in any log no longer count. LSNs continue, so no number is
//! given to two writes.
//!
//! The hold ends before the copy is made: what a predecessor uploads up to then is in the copy, and after that it
//! can upload nothing. A restore that fails later leaves the volume as it was, and perhaps the copy.

use std::sync::Arc;

use crate::engine::Engine;
use crate::error::OpenError;
use crate::hostlog::names::Position;
use crate::hostlog::root_updates::{UpdateOutcome, update_root};
use crate::object::root::Root;
use crate::request::tail::{Status, Tail};
use crate::store::catalog::name_locks::lock_point;
use crate::store::catalog::volume_spec::VolumeInfo;
use crate::store::catalog::{check_all_stored, end_hold};
use crate::store::flow::upload_state::KnownRoot;
use crate::store::forks::child::{ChildSpec, check_free, is_unmoved, put_restore_pin, remove_pin};
use crate::store::forks::kept_snapshots::check_not_kept;
use crate::store::forks::snapshot_list::check_snapshot_name;
use crate::store::forks::stored_parent;
use crate::store::host_log::log_procedures::{KeyPrefixes, log_port, with_patience};
use crate::store::open::discard_tail;
use crate::store::open::endings;
use crate::store::open::holds::{check_not_held, is_held_here, local_tails};
use crate::store::roots::{read_root, unusable_root_error};
use crate::units::Epoch;

/// Restores the snapshot's volume to it. The volume's present state becomes the snapshot `kept`.
pub(crate) async fn restore(
    engine: &Arc<Engine>,
    name: &str,
    kept: &str,
) -> Result<VolumeInfo, OpenError> {
    let (volume, _) = check_snapshot_name(name)?;
    check_snapshot_name(kept)?;
    engine.host_log.check_not_stopped()?;
    let _busy = lock_point(engine, volume)?;
    endings::ask_store_first(engine, volume);
    let snapshot = read_snapshot(engine, name).await?;
    let head = read_closed_root(engine, volume).await?;
    if !is_of_history(&snapshot.root, &head.root) {
        return Err(OpenError::Invalid(format!(
            "{name} is no snapshot of the volume that has the name {volume} now: make a volume of it with \
             `firn fork {name} NEW`"
        )));
    }
    let spec = ChildSpec {
        name: kept.to_owned(),
        labels: Some(vec![("before-restore-of".into(), name.into())]),
        id: None,
        copied_unix_ms: None,
        may_be_served: false,
        is_repeated: false,
    };
    check_not_kept(engine, kept)?;
    check_free(engine, kept).await?;
    if canary::active!("restore_keeps_what_was_there_too_early") {
        stored_parent::make_child(engine, head.clone(), &spec).await?;
    }
    let head = match head.root.owner.is_some() || head.root.predecessor.is_some() {
        true => end_hold(engine, volume).await?,
        false => head,
    };
    if !canary::active!("restore_keeps_what_was_there_too_early") {
        let copy = stored_parent::make_child(engine, head.clone(), &spec).await?;
        if copy.lsn != head.root.lsn {
            return Err(root_changed_error(volume));
        }
    }
    let root = restored_root(engine, &head.root, &snapshot.root)?;
    let pin = put_restore_pin(engine, snapshot.root.volume, &root).await?;
    if let Err(error) = check_unmoved(engine, &snapshot).await {
        // No update was sent that could name what the pin holds.
        remove_pin(engine, pin).await;
        return Err(error);
    }
    let port = log_port(engine);
    let update = async {
        let updated = update_root(&port, &root, &head.version).await;
        updated.map_err(|error| unusable_root_error(volume, &error))
    };
    let keys = KeyPrefixes::default().with_root(volume);
    match with_patience(engine, volume, keys, update).await? {
        UpdateOutcome::Won(_) => {}
        UpdateOutcome::Lost(_) => {
            // This restore's update expects a version that is gone, so it can never take effect.
            remove_pin(engine, pin).await;
            return Err(root_changed_error(volume));
        }
    }
    let dormant = |tail: &&Arc<Tail>| {
        !tail.is_rescue()
            && tail.lock().status == Status::Dormant
            && tail.newest() <= tail.stored_lsn()
    };
    // The copy has what these tails hold, and they continue no root any more.
    for tail in local_tails(engine, root.volume).iter().filter(dormant) {
        discard_tail(engine, tail);
    }
    Ok(VolumeInfo::of(&root))
}

/// Whether the snapshot is of the volume, or of one that it was forked from, before it was: what came out of the trash
/// under another name has its snapshots from before.
fn is_of_history(snapshot: &Root, volume: &Root) -> bool {
    let Some(of) = snapshot.lineage().first().map(|parent| parent.volume) else {
        return false;
    };
    let is_above = volume
        .lineage()
        .iter()
        .any(|above| above.volume == of && snapshot.lsn <= above.last);
    of == volume.volume || is_above
}

fn root_changed_error(volume: &str) -> OpenError {
    OpenError::Store(format!(
        "volume {volume} was opened or changed by another host meanwhile, and was not set back: see \
         `firn volume show {volume}`, and try again"
    ))
}

/// A snapshot's root.
pub(super) async fn read_snapshot(engine: &Engine, name: &str) -> Result<KnownRoot, OpenError> {
    match read_root(engine, name).await {
        Err(OpenError::NoSuchVolume(_)) => Err(OpenError::NoSuchSnapshot(name.to_owned())),
        found => found,
    }
}

/// Checks that the snapshot still stands; a later deletion finds the pin.
async fn check_unmoved(engine: &Engine, snapshot: &KnownRoot) -> Result<(), OpenError> {
    if canary::active!("restore_never_looks_again") {
        return Ok(());
    }
    let name = &snapshot.root.name;
    match is_unmoved(&read_snapshot(engine, name).await?, snapshot) {
        true => Ok(()),
        false => Err(OpenError::NoSuchSnapshot(name.clone())),
    }
}

/// Reads the root of a volume that nobody has open and of which this log holds nothing.
async fn read_closed_root(engine: &Arc<Engine>, volume: &str) -> Result<KnownRoot, OpenError> {
    let head = read_root(engine, volume).await?;
    let tails = local_tails(engine, head.root.volume);
    if tails.iter().any(|tail| tail.lock().status.serves()) {
        return Err(OpenError::InUse(volume.to_owned()));
    }
    if !is_held_here(engine, &head.root, &tails) {
        check_not_held(engine, &head.root)?;
    }
    check_all_stored(volume, &tails)?;
    Ok(head)
}

/// The snapshot's content under the volume's own history. The restore has an LSN of its own and counts as a fold
/// of everything up to it: the deltas no longer tell the states between the snapshot and now, and the root must
/// never seem to tell a state that it has passed in this way.
fn restored_root(engine: &Engine, head: &Root, snapshot: &Root) -> Result<Root, OpenError> {
    let epoch = match canary::active!("restore_keeps_the_epoch") {
        true => head.epoch,
        false => Epoch(head.epoch.0 + 1),
    };
    let leaves_no_trace = canary::active!("restore_leaves_no_trace");
    let lsn = match leaves_no_trace {
        true => head.lsn,
        false => head.lsn.next(),
    };
    let mut root = Root {
        epoch,
        since: epoch,
        lsn,
        first: lsn.next(),
        sequence: head.sequence + 1,
        owner: None,
        claimant: None,
        predecessor: None,
        mark: Position::default(),
        unix_ms: engine.jobs.now().unix_ms,
        deltas: snapshot.deltas.clone(),
        nodes: snapshot.nodes.clone(),
        ..head.clone()
    };
    root.set_folded(match leaves_no_trace {
        true => snapshot.folded_lsn().unwrap_or(snapshot.lsn),
        false => lsn,
    });
    let named = root.sessions.extend(snapshot.sessions.iter());
    named.map_err(|error| OpenError::Corrupt(format!("{}: {error}", snapshot.name)))?;
    Ok(root)
}
