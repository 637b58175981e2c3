//! The volumes of a store: creating, listing, showing and deleting them.
//!
//! Nothing here opens a volume or takes its epoch. It must never delete a volume that a host holds. [`name_locks`] lets
//! one procedure at a time make or remove a name, [`volume_spec`] says what a volume may be.

pub(crate) mod name_locks;
pub(crate) mod volume_spec;

use std::sync::Arc;

use crate::driver::{StoreError, StoreOp};
use crate::engine::Engine;
use crate::error::OpenError;
use crate::hostlog::names::{Position, SessionName, tombstone_key, trash_key};
use crate::hostlog::publisher::Batch;
use crate::hostlog::root_updates::{UpdateOutcome, update_root};
use crate::hostlog::scan::read_stored;
use crate::object::root::{RenameMark, RenameStep, Root, TrashMark};
use crate::request::tail::Tail;
use crate::store::catalog::name_locks::{NameLock, check_no_snapshot_is_locked};
use crate::store::catalog::volume_spec::{
    VolumeInfo, VolumeSpec, check_name, check_size, check_spec,
};
use crate::store::flow;
use crate::store::flow::upload_state::KnownRoot;
use crate::store::forks::kept_forks::{self, check_no_fork};
use crate::store::forks::snapshot_list::list_snapshots;
use crate::store::host_log::log_procedures::{KeyPrefixes, log_port, on_progress, with_patience};
use crate::store::objects::{ATTEMPTS_MAX, store_error, store_with_retry};
use crate::store::open::endings;
use crate::store::open::holds::{check_not_held, is_held_here, local_tails};
use crate::store::open::tail_claim::TailClaim;
use crate::store::open::{OpenMode, discard_tail, take_epoch};
use crate::store::parts::{ListPart, ListPlace, PartBuilder, RootWalk};
use crate::store::rename::identity::find_volume;
use crate::store::rename::signs::check_free_of_renaming;
use crate::store::roots::{
    FoundRoot, put_first_root, read_any_root, read_root, unusable_root_error, why_not_there,
};
use crate::sync::atomic::Ordering;
use crate::units::{Epoch, Lsn, VolumeId};

/// Makes an open volume larger. What is added reads as zeroes.
pub(crate) async fn grow(tail: &Arc<Tail>, bytes: u64) -> Result<(), OpenError> {
    check_size(bytes)?;
    if tail.is_snapshot() {
        return Err(OpenError::Invalid(format!(
            "{name} is a snapshot, whose size stays: make a volume of it with `firn fork {name} NEW`",
            name = tail.name()
        )));
    }
    let now = tail.lock().geometry.bytes;
    if bytes < now {
        return Err(OpenError::Invalid(format!(
            "size {bytes} bytes: volume {} has {now}, and a volume never shrinks: what is beyond \
             would be lost; create a smaller one and copy",
            tail.name()
        )));
    }
    flow::wait_grown(tail, bytes).await
}

pub(crate) async fn create(
    engine: &Arc<Engine>,
    spec: VolumeSpec,
) -> Result<VolumeInfo, OpenError> {
    check_spec(&spec)?;
    create_root(engine, first_root(engine, spec)).await
}

/// Creates the first root of a volume, if no other volume has the name.
pub(crate) async fn create_root(engine: &Arc<Engine>, root: Root) -> Result<VolumeInfo, OpenError> {
    create_root_once(engine, root, false).await
}

/// The same; `is_repeated`: an attempt of before may have created it. Then somebody may have deleted or renamed the volume
/// since, and its name may be another's: it is not made a second time.
pub(crate) async fn create_root_once(
    engine: &Arc<Engine>,
    root: Root,
    is_repeated: bool,
) -> Result<VolumeInfo, OpenError> {
    check_no_fork(engine, &root.name, Some(root.volume))?;
    let is_of_root = |tail: &Arc<Tail>| tail.id().volume == root.volume;
    // A fork's first root continues the hold that it has here.
    if !engine.tails_named(&root.name).iter().any(is_of_root) {
        endings::ask_store_first(engine, &root.name);
    }
    let Some(FoundRoot { head, may_be_put }) = put_first_root(engine, &root).await? else {
        return Ok(VolumeInfo::of(&root));
    };
    if is_of(&head.root, root.volume) {
        return Ok(VolumeInfo::of(&root));
    }
    let is_repeated = is_repeated || may_be_put;
    if is_repeated && was_deleted(engine, root.volume).await? {
        return Ok(VolumeInfo::of(&root));
    }
    if !head.root.deleted {
        return Err(OpenError::Exists(root.name));
    }
    // A tombstone: the name is free, unless a volume is on its way from there or to it.
    check_free_of_renaming(engine, &head.root).await?;
    if is_repeated && has_another_name(engine, root.volume).await? {
        return Ok(VolumeInfo::of(&root));
    }
    create_again(engine, root, &head).await
}

/// The root of a volume that nobody has opened yet.
pub(crate) fn first_root(engine: &Engine, spec: VolumeSpec) -> Root {
    Root {
        volume: engine.next_volume_id(),
        name: spec.name,
        bytes: spec.bytes,
        block: spec.block,
        epoch: Epoch(0),
        since: Epoch(0),
        first: Lsn::ZERO.next(),
        sequence: 0,
        nonce: engine.next_nonce(),
        earlier: Vec::new(),
        writer: SessionName::default(),
        owner: None,
        claimant: None,
        predecessor: None,
        mark: Position::default(),
        peers: Vec::new(),
        deleted: false,
        lsn: Lsn::ZERO,
        unix_ms: engine.jobs.now().unix_ms,
        deltas: Vec::new(),
        nodes: Vec::new(),
        sessions: Default::default(),
        extensions: Default::default(),
    }
}

/// Replaces the tombstone of a deleted volume by a new volume. The epochs of a name never go back: a host that
/// missed the deletion must not find its own epoch in the new volume's root.
async fn create_again(
    engine: &Arc<Engine>,
    root: Root,
    tombstone: &KnownRoot,
) -> Result<VolumeInfo, OpenError> {
    let epoch = if canary::active!("foreign_root_of_equal_epoch") {
        Epoch(0)
    } else {
        Epoch(tombstone.root.epoch.0 + 1)
    };
    // A hold that began before the root was written is known by its beginning.
    let since = match root.owner {
        Some(_) => root.since,
        None => epoch,
    };
    let root = Root {
        epoch: epoch.max(root.epoch),
        since,
        sequence: tombstone.root.sequence + 1,
        ..root
    };
    keep_tombstone(engine, &tombstone.root).await?;
    let port = log_port(engine);
    let update = async {
        let updated = update_root(&port, &root, &tombstone.version).await;
        updated.map_err(|error| unusable_root_error(&root.name, &error))
    };
    let keys = KeyPrefixes::default().with_root(&root.name);
    match with_patience(engine, &root.name, keys, update).await? {
        UpdateOutcome::Won(_) => Ok(VolumeInfo::of(&root)),
        // The create took effect, and a host has opened the volume since.
        UpdateOutcome::Lost(found) if is_of(&found.root, root.volume) => Ok(VolumeInfo::of(&root)),
        UpdateOutcome::Lost(_) => Err(OpenError::Exists(root.name)),
    }
}

/// Whether the root that stands under a name is of this volume, or says that the volume was renamed from there. Then it was
/// made: a creation whose answer was lost must not make it a second time.
fn is_of(standing: &Root, volume: VolumeId) -> bool {
    let is_gone = |mark: RenameMark| mark.step == RenameStep::Gone && mark.volume == volume;
    let was_renamed = standing.rename_mark().is_some_and(is_gone);
    standing.volume == volume || (was_renamed && !canary::active!("renamed_volume_is_made_again"))
}

/// Whether the volume had a root and was deleted, and another has taken its name since.
async fn was_deleted(engine: &Engine, volume: VolumeId) -> Result<bool, OpenError> {
    if canary::active!("deleted_fork_comes_back") {
        return Ok(false);
    }
    let key = tombstone_key(volume);
    match store_with_retry(engine, StoreOp::Get { key: key.clone() }).await {
        Ok(_) => Ok(true),
        Err(StoreError::NotFound) => Ok(false),
        Err(error) => Err(store_error("read", &key, &error)),
    }
}

/// Whether the volume, which has no root under its first name, has one under another. All roots are read for that, once
/// before the name is taken.
async fn has_another_name(engine: &Arc<Engine>, volume: VolumeId) -> Result<bool, OpenError> {
    Ok(!canary::active!("renamed_volume_is_made_again")
        && find_volume(engine, volume).await?.is_some())
}

/// Keeps a deleted volume's tombstone under a key of its own before another volume takes its name: logs may name
/// the deleted volume for a long time, and a volume with neither root nor tombstone is taken for one whose root
/// somebody removed and may put back.
pub(in crate::store) async fn keep_tombstone(
    engine: &Engine,
    tombstone: &Root,
) -> Result<(), OpenError> {
    if tombstone.rename_mark().is_some() {
        // It is no volume's.
        return Ok(());
    }
    put_aside(engine, tombstone).await?;
    let key = tombstone_key(tombstone.volume);
    let mut root = Root {
        deltas: Vec::new(),
        nodes: Vec::new(),
        sessions: Default::default(),
        ..tombstone.clone()
    };
    root.clear_trash_mark();
    let op = StoreOp::Create {
        key: key.clone(),
        data: root.encode(),
    };
    match store_with_retry(engine, op).await {
        Ok(_) | Err(StoreError::PreconditionFailed) => Ok(()),
        Err(error) => Err(store_error("create", &key, &error)),
    }
}

/// A volume in the trash goes on to hold what it names, and can be had back, though another takes its name. Refuses one whose
/// root has moved: nobody can take its name by this root any more.
async fn put_aside(engine: &Engine, root: &Root) -> Result<(), OpenError> {
    if !root.is_in_trash() || canary::active!("name_is_taken_before_it_is_put_aside") {
        return Ok(());
    }
    let key = trash_key(root.volume, root.epoch);
    let op = StoreOp::Create {
        key: key.clone(),
        data: root.encode(),
    };
    match store_with_retry(engine, op).await {
        // Whoever was about to take the name before.
        Ok(_) | Err(StoreError::PreconditionFailed) => {}
        Err(error) => return Err(store_error("create", &key, &error)),
    }
    if canary::active!("late_hands_put_aside") {
        return Ok(());
    }
    let found = match read_any_root(engine, &root.name).await {
        Err(OpenError::NoSuchVolume(name)) => return Err(OpenError::RootMissing(name)),
        found => found?.root,
    };
    if (found.volume, found.epoch) == (root.volume, root.epoch) {
        return Ok(());
    }
    if found.volume == root.volume {
        // The copy came too late to count, whoever made it.
        let op = StoreOp::Delete { key: key.clone() };
        if let Err(error) = store_with_retry(engine, op).await {
            tracing::warn!(
                key,
                ?error,
                "a copy that counts no more is not removed: a pass will do it"
            );
        }
    }
    match found.deleted {
        true => Err(OpenError::Busy(root.name.clone())),
        false => Err(OpenError::Exists(root.name.clone())),
    }
}

/// Deletes a volume for good, or, if it is said for how long it is to be kept, moves it to the trash.
pub(crate) async fn delete(
    engine: &Arc<Engine>,
    name: &str,
    keep_ms: Option<u64>,
) -> Result<(), OpenError> {
    check_name(name)?;
    let _busy = NameLock::take(engine, name)?;
    check_no_snapshot_is_locked(engine, name)?;
    endings::ask_store_first(engine, name);
    let mut first = None;
    for _ in 0..ATTEMPTS_MAX {
        // Another host that only maintained it may have updated the root meanwhile; of any other the next look tells.
        if try_delete(engine, name, keep_ms, &mut first).await? {
            return Ok(());
        }
    }
    Err(OpenError::InUse(name.to_owned()))
}

/// Deletes a volume whose name the caller has locked, the one that the first attempt found. False: its root was updated since
/// it was read.
async fn try_delete(
    engine: &Arc<Engine>,
    name: &str,
    keep_ms: Option<u64>,
    first: &mut Option<VolumeId>,
) -> Result<bool, OpenError> {
    let head = read_root(engine, name).await?;
    if *first.get_or_insert(head.root.volume) != head.root.volume {
        // The one that was meant is gone, and this one is new.
        return Err(OpenError::InUse(name.to_owned()));
    }
    let tails = local_tails(engine, head.root.volume);
    if tails.iter().any(|tail| tail.lock().status.serves()) {
        return Err(OpenError::InUse(name.to_owned()));
    }
    match keep_ms {
        None => {
            check_no_snapshots(engine, name).await?;
            check_no_logged_forks(name, &tails)?;
        }
        // It is to come back as it was.
        Some(_) => check_all_stored(name, &tails)?,
    }
    for tail in &tails {
        TailClaim::check_free(engine, tail)?;
    }
    if !is_held_here(engine, &head.root, &tails) {
        check_not_held(engine, &head.root)?;
    }
    let head = match head.root.owner.is_some() || head.root.predecessor.is_some() {
        true => end_hold(engine, name).await?,
        false => head,
    };
    // The tombstone's epoch fences a host that opens the volume at this moment. The object stays: stores have no
    // conditional deletion, so a late deletion could remove a new volume of the same name.
    let now_ms = engine.jobs.now().unix_ms;
    let mut root = Root {
        epoch: Epoch(head.root.epoch.0 + 1),
        sequence: head.root.sequence + 1,
        owner: None,
        claimant: None,
        mark: Position::default(),
        deleted: true,
        unix_ms: now_ms,
        ..head.root.clone()
    };
    if let Some(keep_ms) = keep_ms {
        root.set_trash_mark(TrashMark {
            deleted_unix_ms: now_ms,
            until_unix_ms: now_ms.saturating_add(keep_ms),
            is_going: false,
        });
    }
    let port = log_port(engine);
    let update = async {
        let updated = update_root(&port, &root, &head.version).await;
        updated.map_err(|error| unusable_root_error(name, &error))
    };
    let keys = KeyPrefixes::default().with_root(name);
    match with_patience(engine, name, keys, update).await? {
        UpdateOutcome::Won(_) => {}
        UpdateOutcome::Lost(found)
            if found.root.rename_mark().is_some()
                && !canary::active!("leaving_volume_is_a_deleted_one") =>
        {
            return Err(why_not_there(&found.root));
        }
        // An earlier attempt took effect late, or another host has deleted the volume.
        UpdateOutcome::Lost(found) if found.root.deleted && found.root.volume == root.volume => {}
        UpdateOutcome::Lost(found) if found.root.volume == root.volume => return Ok(false),
        UpdateOutcome::Lost(_) => return Err(OpenError::InUse(name.to_owned())),
    }
    // What is kept for rescue is nobody's to drop with what can be had back.
    let goes = |tail: &&Arc<Tail>| keep_ms.is_none() || !tail.is_rescue();
    for tail in tails.iter().filter(goes) {
        discard_tail(engine, tail);
    }
    Ok(true)
}

/// Refuses a volume that would go on from what the store has of it, set back, renamed or back from the trash, without what
/// clients were told is there: writes, and snapshots that only the log has.
pub(in crate::store) fn check_all_stored(name: &str, tails: &[Arc<Tail>]) -> Result<(), OpenError> {
    let own = || tails.iter().filter(|tail| !tail.is_rescue());
    let keeps = |forks: bool| {
        own().any(|tail| {
            let inner = tail.lock();
            let mut kept = inner.points.kept().iter();
            kept.any(|kept| kept.record.is_fork == forks)
        }) && !canary::active!("closed_volume_leaves_snapshots_in_the_log")
    };
    let what = if own().any(|tail| tail.newest() > tail.stored_lsn()) {
        "writes"
    } else if keeps(false) {
        "snapshots"
    } else if keeps(true) {
        "forks"
    } else {
        return Ok(());
    };
    Err(OpenError::Invalid(format!(
        "volume {name} has {what} on this host that the store lacks, and would be without them: attach and detach it first"
    )))
}

/// Refuses to delete a volume of which the log here has forks that the store lacks: they live on, and begin with what it is.
fn check_no_logged_forks(name: &str, tails: &[Arc<Tail>]) -> Result<(), OpenError> {
    let mut own = tails.iter().filter(|tail| !tail.is_rescue());
    let has_forks = |tail: &Arc<Tail>| {
        let inner = tail.lock();
        inner.points.kept().iter().any(|kept| kept.record.is_fork)
    };
    match own.any(has_forks) && !canary::active!("volume_is_deleted_before_its_forks_are_stored") {
        false => Ok(()),
        true => Err(OpenError::Invalid(format!(
            "volume {name} has forks on this host that the store lacks, and they would be lost with it: attach and detach it first"
        ))),
    }
}

/// Refuses to delete a volume that has snapshots: each is deleted by its own name.
async fn check_no_snapshots(engine: &Engine, name: &str) -> Result<(), OpenError> {
    let mut place = ListPlace {
        after: None,
        limit: 1,
    };
    loop {
        let part = list_snapshots(engine, name, &place).await?;
        if let Some(first) = part.items.first() {
            return Err(OpenError::Invalid(format!(
                "volume {name} has snapshots: delete them first, which begin with `firn snapshot delete {}`; forks of it \
                 may stay",
                first.name
            )));
        }
        match part.next {
            None => return Ok(()),
            next => place.after = next,
        }
    }
}

/// Takes a volume that this host held, and ends its epoch in the log, so that no copy of this host can continue
/// it.
pub(in crate::store) async fn end_hold(
    engine: &Arc<Engine>,
    name: &str,
) -> Result<KnownRoot, OpenError> {
    endings::ask_store_first(engine, name);
    let (head, _) = take_epoch(engine, name, OpenMode::default(), None).await?;
    if !engine.poisoned.load(Ordering::Acquire) {
        let Root { volume, epoch, .. } = head.root;
        let batch = Batch {
            floor: engine.unnamed.floor(),
            volumes: vec![(volume, epoch)],
            ends: vec![0],
            ..Batch::default()
        };
        let end = async {
            let mut publisher = engine.host_log.publisher().await;
            publisher.attach(volume, name.to_owned(), epoch);
            let ended = publisher.publish(batch).await;
            publisher.detach(volume);
            on_progress(engine, ended)
        };
        let keys = KeyPrefixes::default().with_host(engine.host);
        with_patience(engine, name, keys, end).await?;
    }
    Ok(head)
}

pub(crate) async fn show(engine: &Arc<Engine>, name: &str) -> Result<VolumeInfo, OpenError> {
    check_name(name)?;
    if let Some((parent, kept)) = kept_forks::find_fork(engine, name) {
        return Ok(kept_forks::info_of(&kept, parent.size().block));
    }
    let root = read_root(engine, name).await?.root;
    let port = log_port(engine);
    let read = async { Ok(read_stored(&port, &root).await) };
    let keys = KeyPrefixes::of_holder(&root);
    let stored = with_patience(engine, name, keys, read).await?;
    let stored = stored.unwrap_or_else(|error| {
        tracing::warn!(
            volume = name,
            ?error,
            "the log of its holder cannot be read: what is shown as stored is what its root says"
        );
        root.lsn
    });
    let info = VolumeInfo::of(&root);
    Ok(VolumeInfo { stored, ..info })
}

/// A part of the volumes of the store, by name.
pub(crate) async fn list(
    engine: &Engine,
    place: &ListPlace,
) -> Result<ListPart<VolumeInfo>, OpenError> {
    if let Some(after) = &place.after {
        check_name(after)?;
    }
    // Before the store is asked: one that has its root meanwhile is found there.
    let mut kept = kept_forks::forks_behind(engine, place.after.as_deref());
    let mut walk = RootWalk::of_volumes(engine, place.after.as_deref());
    let mut part = PartBuilder::new(place.limit);
    while let Some(roots) = walk.next(part.wanted()).await? {
        for KnownRoot { root, .. } in roots {
            while let Some(before) = kept.first_entry().filter(|kept| *kept.key() < root.name) {
                let (name, info) = before.remove_entry();
                if !part.add(&name, Some(info)) {
                    return Ok(part.finish());
                }
            }
            // What stands there may be the tombstone of a volume that had the name before.
            let kept = kept.remove(&root.name);
            // One that is on its way is told as it was, so that nobody takes it for lost.
            let is_there = !root.deleted || root.is_leaving();
            let info = is_there.then(|| VolumeInfo::of(&root));
            if !part.add(&root.name, info.or(kept)) {
                return Ok(part.finish());
            }
        }
    }
    for (name, info) in kept {
        if !part.add(&name, Some(info)) {
            return Ok(part.finish());
        }
    }
    Ok(part.finish())
}
