//! Another name for a volume, which keeps its identity, history and snapshots.
//!
//! Names are in the keys of roots, so the root goes from one key to another, in steps that whoever comes next goes on
//! with:
//!
//! 1. the new name is *kept*, by a deleted root of an identity of its own that says for which volume and which epoch;
//! 2. the volume's root becomes *leaving*: from here on it is renamed. It is deleted, and holds what it held;
//! 3. its snapshots go over one by one, then the volume arrives: [`arrival`];
//! 4. what is left under the old name says where the volume is: it is *gone*, and the name is free.
//!
//! Only the second step decides, by one conditional update of the root that the first step named. Nobody opens a volume
//! between it and its arrival, and never does a volume have two roots that can be opened. [`signs`] says what each of
//! these roots means to others, [`identity`] finds a volume wherever names have gone, and [`strays`] has snapshots
//! follow that came too late.

pub(crate) mod arrival;
pub(in crate::store) mod identity;
pub(crate) mod signs;
pub(crate) mod strays;

use std::sync::Arc;

use crate::driver::Version;
use crate::engine::Engine;
use crate::error::OpenError;
use crate::hostlog::names::Position;
use crate::hostlog::root_updates::UpdateOutcome;
use crate::lock::lock;
use crate::object::SNAPSHOT_SIGN;
use crate::object::root::{RenameMark, RenameStep, Root};
use crate::request::tail::Tail;
use crate::store::catalog::name_locks::{NameLock, check_no_snapshot_is_locked, lock_point};
use crate::store::catalog::volume_spec::{VolumeInfo, VolumeSpec, check_name};
use crate::store::catalog::{check_all_stored, end_hold, first_root};
use crate::store::flow::upload_state::KnownRoot;
use crate::store::forks::child::check_free;
use crate::store::forks::kept_forks::check_no_fork;
use crate::store::forks::kept_snapshots::wait_fork_in_store;
use crate::store::open::endings;
use crate::store::open::holds::{check_not_held, is_held_here, local_tails};
use crate::store::open::{discard_tail, tail_claim::TailClaim};
use crate::store::rename::arrival::{SnapshotsOf, finish, put_root};
use crate::store::rename::signs::{check_free_of_renaming, leaves_for, renamed_snapshot};
use crate::store::rename::strays::follow_all;
use crate::store::roots::renamed::why_not_there_now;
use crate::store::roots::{read_any_root, read_root, replace_root};
use crate::units::Epoch;

/// Gives a volume that nobody has open another name, or goes on where that was cut short.
pub(crate) async fn rename(
    engine: &Arc<Engine>,
    old: &str,
    new: &str,
) -> Result<VolumeInfo, OpenError> {
    check_name(old)?;
    check_name(new)?;
    if old == new {
        return Err(OpenError::Invalid(format!(
            "volume {old} has this name already: say another"
        )));
    }
    engine.host_log.check_not_stopped()?;
    // Without the locks of the names, which its root needs.
    wait_fork_in_store(engine, old).await?;
    let _locks = lock_names(engine, old, new)?;
    check_no_fork(engine, new, None)?;
    endings::ask_store_first(engine, old);
    endings::ask_store_first(engine, new);
    let standing = read_any_root(engine, old).await?;
    let mark = standing.root.rename_mark();
    let is_same = mark.as_ref().is_some_and(|mark| mark.other == new);
    let leaving = match mark.map(|mark| mark.step) {
        Some(RenameStep::Leaving) if is_same => standing,
        // It was done before. Another may have the name by now, and the volume a third one.
        Some(RenameStep::Gone) if is_same => {
            let known = standing.root.rename_mark().map(|mark| mark.volume);
            return match info_of(engine, new).await {
                Ok(renamed) if Some(renamed.id) == known => Ok(renamed),
                Err(error @ OpenError::Store(_)) => Err(error),
                _ => Err(why_not_there_now(engine, &standing).await),
            };
        }
        None if !standing.root.deleted => leave(engine, standing, new).await?,
        _ => return Err(why_not_there_now(engine, &standing).await),
    };
    let renamed = match leaving.root.is_leaving() {
        true => finish_with_all(engine, leaving).await?,
        false => info_of(engine, new).await?,
    };
    tracing::info!(volume = new, id = %renamed.id, "a volume was renamed: it was {old}");
    Ok(renamed)
}

/// Goes on with a renaming that a pass of the collector found, unless somebody is at it.
pub(crate) async fn go_on(engine: &Arc<Engine>, old: &str) -> Result<(), OpenError> {
    let standing = read_any_root(engine, old).await?;
    let Some(mark) = standing.root.rename_mark() else {
        return Ok(());
    };
    match mark.step {
        RenameStep::Leaving => {}
        RenameStep::Kept => {
            free_name(engine, &standing.root).await;
            return Ok(());
        }
        RenameStep::Gone => return Ok(()),
    }
    let _locks = lock_names(engine, old, &mark.other)?;
    let renamed = finish_with_all(engine, standing).await?;
    tracing::info!(volume = renamed.name, id = %renamed.id, "a renaming that was cut short was gone on with: it was {old}");
    Ok(())
}

/// Takes what has left its name to the end of its way, and behind it the snapshots that were made meanwhile.
async fn finish_with_all(
    engine: &Arc<Engine>,
    leaving: KnownRoot,
) -> Result<VolumeInfo, OpenError> {
    let left = leaving.root.clone();
    let renamed = finish(engine, leaving).await?;
    if left.labels().is_none() {
        follow_all(engine, &left).await;
    }
    Ok(renamed)
}

fn lock_names(
    engine: &Arc<Engine>,
    old: &str,
    new: &str,
) -> Result<(NameLock, NameLock), OpenError> {
    let locks = (lock_point(engine, old)?, lock_point(engine, new)?);
    check_no_snapshot_is_locked(engine, old)?;
    check_no_snapshot_is_locked(engine, new)?;
    Ok(locks)
}

/// Keeps the new name and makes the volume leave the old one. Nothing is changed that a refusal would leave.
async fn leave(engine: &Arc<Engine>, head: KnownRoot, new: &str) -> Result<KnownRoot, OpenError> {
    let old = head.root.name.clone();
    let tails = local_tails(engine, head.root.volume);
    check_closed(engine, &head.root, &tails)?;
    check_names_free(engine, &head.root, new).await?;
    let head = match head.root.owner.is_some() || head.root.predecessor.is_some() {
        true => end_hold(engine, &old).await?,
        false => head,
    };
    // The root was read before the name is kept for this epoch of it.
    let kept = keep_name(engine, &head.root, new).await?;
    let leaving = leaving_root(engine, &head.root, &kept);
    let left = match replace_root(engine, &leaving, &head.version).await? {
        UpdateOutcome::Won(found) | UpdateOutcome::Lost(found) => KnownRoot {
            root: found.root,
            version: found.version,
        },
    };
    // Also if another attempt did it, which went on from the same kept name, or has come to the end.
    let has_gone = |mark: RenameMark| {
        mark.step == RenameStep::Gone && (mark.volume, &*mark.other) == (head.root.volume, new)
    };
    if left.root.rename_mark().is_some_and(has_gone) {
        return Ok(left);
    }
    if !leaves_for(&left.root, kept.volume) {
        free_name(engine, &kept).await;
        return Err(OpenError::Store(format!(
            "volume {old} was opened or changed by another host meanwhile, and was not renamed: see `firn volume show \
             {old}`, and try again"
        )));
    }
    lock(&engine.claims).remove(&head.root.volume);
    // The store has all of them, and they continue nothing any more.
    for tail in tails.iter().filter(|tail| !tail.is_rescue()) {
        discard_tail(engine, tail);
    }
    Ok(left)
}

/// Refuses a volume that is open anywhere, or of which this log has what the store lacks.
fn check_closed(engine: &Engine, root: &Root, tails: &[Arc<Tail>]) -> Result<(), OpenError> {
    let old = &root.name;
    if tails.iter().any(|tail| tail.lock().status.serves()) {
        return Err(OpenError::InUse(old.clone()));
    }
    let prefix = format!("{old}{SNAPSHOT_SIGN}");
    if let Some(open) = lock(&engine.open_snapshots)
        .keys()
        .find(|name| name.starts_with(&prefix))
    {
        return Err(OpenError::InUse(open.clone()));
    }
    check_all_stored(old, tails)?;
    for tail in tails {
        TailClaim::check_free(engine, tail)?;
    }
    match is_held_here(engine, root, tails) {
        true => Ok(()),
        false => check_not_held(engine, root),
    }
}

/// Refuses a name that is taken, or one under which a snapshot would find its own taken.
async fn check_names_free(engine: &Engine, root: &Root, new: &str) -> Result<(), OpenError> {
    match read_any_root(engine, new).await {
        // An earlier attempt keeps it.
        Ok(kept) if keeps_for(&kept.root, root) => {}
        Ok(_) => check_free(engine, new).await?,
        Err(OpenError::NoSuchVolume(_)) => {}
        Err(error) => return Err(error),
    }
    let mut walk = SnapshotsOf::new(engine, root);
    while let Some(snapshots) = walk.next().await? {
        for snapshot in &snapshots {
            check_free(engine, &renamed_snapshot(&snapshot.root.name, new)).await?;
        }
    }
    Ok(())
}

/// Whether `kept` keeps its name for this very root.
fn keeps_for(kept: &Root, root: &Root) -> bool {
    let is_for = |mark: RenameMark| {
        let is_of = mark.volume == root.volume && mark.other == root.name;
        mark.step == RenameStep::Kept && is_of && mark.epoch == root.epoch
    };
    kept.rename_mark().is_some_and(is_for)
}

/// Keeps the new name for the volume's root as it is in this epoch.
async fn keep_name(engine: &Arc<Engine>, of: &Root, new: &str) -> Result<Root, OpenError> {
    let standing = match read_any_root(engine, new).await {
        Ok(standing) => Some(standing),
        Err(OpenError::NoSuchVolume(_)) => None,
        Err(error) => return Err(error),
    };
    match &standing {
        Some(kept) if keeps_for(&kept.root, of) => return Ok(kept.root.clone()),
        Some(standing) if !standing.root.deleted => return Err(OpenError::Exists(new.to_owned())),
        Some(standing) => check_free_of_renaming(engine, &standing.root).await?,
        None => {}
    }
    let spec = VolumeSpec {
        name: new.to_owned(),
        bytes: of.bytes,
        block: of.block,
    };
    let mut kept = Root {
        deleted: true,
        ..first_root(engine, spec)
    };
    kept.set_rename_mark(&RenameMark {
        step: RenameStep::Kept,
        other: of.name.clone(),
        volume: of.volume,
        epoch: of.epoch,
    });
    let kept = match &standing {
        Some(standing) => above(kept, &standing.root),
        None => kept,
    };
    match put_root(engine, &kept, standing.as_ref()).await? {
        true => Ok(kept),
        false => Err(OpenError::Busy(new.to_owned())),
    }
}

/// Epochs and sequences of a name never go back.
pub(super) fn above(root: Root, standing: &Root) -> Root {
    Root {
        epoch: root.epoch.max(Epoch(standing.epoch.0 + 1)),
        sequence: root.sequence.max(standing.sequence + 1),
        ..root
    }
}

/// The root of a volume or snapshot on its way to the name that `kept` keeps.
fn leaving_root(engine: &Engine, head: &Root, kept: &Root) -> Root {
    let mut root = Root {
        epoch: Epoch(head.epoch.0 + 1),
        sequence: head.sequence + 1,
        owner: None,
        claimant: None,
        predecessor: None,
        mark: Position::default(),
        deleted: true,
        unix_ms: time_of(engine, head),
        ..head.clone()
    };
    root.set_rename_mark(&RenameMark {
        step: RenameStep::Leaving,
        other: kept.name.clone(),
        volume: kept.volume,
        epoch: kept.epoch,
    });
    root
}

/// The time in a root that gets another name: a snapshot keeps that at which it was taken.
fn time_of(engine: &Engine, root: &Root) -> u64 {
    match root.labels() {
        Some(_) => root.unix_ms,
        None => engine.jobs.now().unix_ms,
    }
}

/// Gives a name back that was kept for nothing, if it can be told that it is. One that stays is nobody's loss: it is free
/// once its volume has gone on.
async fn free_name(engine: &Arc<Engine>, kept: &Root) {
    let freed = async {
        let standing = read_any_root(engine, &kept.name).await?;
        if standing.root.volume != kept.volume {
            return Ok(());
        }
        check_free_of_renaming(engine, &standing.root).await?;
        give_back_name(engine, &standing.root, &standing.version).await
    };
    if let Err(error) = freed.await {
        tracing::debug!(name = kept.name, %error, "a name stays kept for a volume that was not renamed");
    }
}

/// Gives a kept name back, if this root keeps it still. Only for a volume that cannot have left for it, or has no root any
/// more: with another identity there, nothing arrives for which the name was kept.
pub(in crate::store) async fn give_back_name(
    engine: &Arc<Engine>,
    kept: &Root,
    version: &Version,
) -> Result<(), OpenError> {
    let mut root = above(kept.clone(), kept);
    root.volume = engine.next_volume_id();
    root.clear_rename_mark();
    replace_root(engine, &root, version).await.map(drop)
}

/// The volume as it stands under a name.
pub(super) async fn info_of(engine: &Engine, name: &str) -> Result<VolumeInfo, OpenError> {
    let head = read_root(engine, name).await?;
    Ok(VolumeInfo::of(&head.root))
}
