//! What leaves the trash for good: its names are taken away, and what nothing else names is garbage from then on.
//!
//! First the root says that it is going, so that nobody restores it any more; then its snapshots are deleted which no
//! other volume of the name has, then it names nothing. What a crash leaves is gone on with by whoever empties the trash next.

use std::sync::Arc;

use crate::driver::{StoreError, StoreOp, StoreReply};
use crate::engine::Engine;
use crate::error::OpenError;
use crate::hostlog::root_updates::{UpdateOutcome, update_root};
use crate::object::root::{Root, TrashMark};
use crate::store::flow::upload_state::KnownRoot;
use crate::store::forks::{delete_snapshot_of, open_snapshot};
use crate::store::host_log::log_procedures::{KeyPrefixes, log_port, with_patience};
use crate::store::objects::{store_error, store_with_retry};
use crate::store::parts::{KEYS_AT_ONCE, ListPlace};
use crate::store::roots::unusable_root_error;
use crate::store::trash::entries::{
    AsideWalk, SnapshotWalk, TrashEntry, TrashedVolume, aside_of, find, has_left, list_uncounted,
};
use crate::store::trash::namesakes::Namesakes;
use crate::store::trash::rooted::RootedVolumes;
use crate::units::Epoch;

/// Failures of the store with so many entries in a row: it is asked for no more of them.
const STORE_FAILURES_MAX: usize = 3;

/// Lets the volume go that has this id, or of those that had this name the one that was deleted last.
pub(crate) async fn empty(engine: &Arc<Engine>, which: &str) -> Result<(), OpenError> {
    engine.host_log.check_not_stopped()?;
    let entry = find(engine, which).await?;
    check_not_in_use(engine, &entry).await?;
    empty_entry(engine, &entry, true).await
}

/// Lets everything go whose time is over, as this host's clock has it. How many volumes that were. One that cannot go keeps no
/// other.
pub(crate) async fn empty_expired(engine: &Arc<Engine>) -> Result<usize, OpenError> {
    let now = engine.jobs.now().unix_ms;
    let (mut gone, mut failures) = (0, 0);
    let mut place = ListPlace {
        after: None,
        limit: KEYS_AT_ONCE,
    };
    loop {
        let part = list_uncounted(engine, &place).await?;
        let volumes = part.items.iter().map(|item| &item.volume);
        for volume in volumes.filter(|volume| volume.until_unix_ms <= now) {
            match empty_if_expired(engine, volume, now).await {
                Ok(is_gone) => {
                    gone += usize::from(is_gone);
                    failures = 0;
                }
                Err(error) if canary::active!("one_entry_keeps_all_others") => return Err(error),
                Err(error) => {
                    failures += usize::from(matches!(error, OpenError::Store(_)));
                    if failures >= STORE_FAILURES_MAX {
                        return Err(error);
                    }
                    tracing::warn!(
                        volume = volume.name,
                        id = %volume.id,
                        %error,
                        "a volume stays in the trash though its time is over"
                    );
                }
            }
        }
        match part.next {
            None => break,
            next => place.after = next,
        }
    }
    remove_uncounted(engine, now).await?;
    Ok(gone)
}

/// Lets one go, if its time is over yet: another may have been deleted anew meanwhile, and be kept longer.
async fn empty_if_expired(
    engine: &Arc<Engine>,
    volume: &TrashedVolume,
    now: u64,
) -> Result<bool, OpenError> {
    let entry = match find(engine, &volume.id.to_string()).await {
        Ok(entry) if entry.mark.until_unix_ms <= now => entry,
        Ok(_) | Err(OpenError::NotInTrash(_)) => return Ok(false),
        Err(error) => return Err(error),
    };
    check_not_in_use(engine, &entry).await?;
    empty_entry(engine, &entry, true).await?;
    tracing::info!(volume = volume.name, id = %volume.id, "a volume left the trash: its time is over");
    Ok(true)
}

/// Removes copies of volumes that have a newer root, once their time is over: nobody would look for them.
async fn remove_uncounted(engine: &Arc<Engine>, now: u64) -> Result<(), OpenError> {
    let mut rooted = RootedVolumes::new(engine);
    let mut walk = AsideWalk::new(engine, "")?;
    while let Some(group) = walk.next().await? {
        for entry in group.entries {
            if let Some(key) = &entry.aside
                && entry.mark.until_unix_ms <= now
                && has_left(engine, &mut rooted, &entry).await?
            {
                remove(engine, key).await?;
            }
        }
    }
    Ok(())
}

/// Refuses to let a volume go of which a snapshot is attached here, as long as all of it can be had back.
async fn check_not_in_use(engine: &Engine, entry: &TrashEntry) -> Result<(), OpenError> {
    if !open_snapshot::has_any(engine, entry.name()) || canary::active!("trash_goes_in_use") {
        return Ok(());
    }
    let mut walk = SnapshotWalk::of(engine, entry);
    while let Some(snapshots) = walk.next().await? {
        let mut names = snapshots.into_iter().map(|snapshot| snapshot.root.name);
        if let Some(open) = names.find(|name| open_snapshot::find(engine, name).is_some()) {
            return Err(OpenError::InUse(open));
        }
    }
    Ok(())
}

/// Takes the names of an entry away, and those of its snapshots if they are to go with it.
pub(super) async fn empty_entry(
    engine: &Arc<Engine>,
    entry: &TrashEntry,
    with_snapshots: bool,
) -> Result<(), OpenError> {
    let head = match entry.mark.is_going {
        true => entry.head.clone(),
        false => replace(engine, entry, &entry.head, going(entry)).await?,
    };
    if with_snapshots && !canary::active!("trash_leaves_snapshots") {
        delete_snapshots(engine, entry).await?;
    }
    // The newest copy counts, as long as the root is not there: it goes last. Such a key is never used again: a removal that
    // takes effect late removes nothing else.
    let mut copies = aside_of(engine, entry.volume()).await?;
    copies.sort();
    for key in copies {
        remove(engine, &key).await?;
    }
    if entry.aside.is_none() {
        let root = emptied(engine, &head.root);
        replace(engine, entry, &head, root).await?;
    }
    Ok(())
}

/// The root with the mark that it is leaving the trash. Under its name it has an epoch of its own by that, and so a key of its
/// own if the name is taken now: a copy of before says that it can be had back.
fn going(entry: &TrashEntry) -> Root {
    let mut root = entry.head.root.clone();
    root.sequence += 1;
    if entry.aside.is_none() && !canary::active!("going_volume_keeps_its_epoch") {
        root.epoch = Epoch(root.epoch.0 + 1);
    }
    root.set_trash_mark(TrashMark {
        is_going: true,
        ..entry.mark
    });
    root
}

/// Deletes the snapshots of an entry that no other volume of its name has, too.
async fn delete_snapshots(engine: &Arc<Engine>, entry: &TrashEntry) -> Result<(), OpenError> {
    let mut namesakes = None;
    let mut walk = SnapshotWalk::of(engine, entry);
    while let Some(snapshots) = walk.next().await? {
        for snapshot in snapshots {
            // Read behind the mark: from then on none comes that has what this one has.
            let others = match namesakes {
                Some(ref read) => read,
                None => &*namesakes.insert(Namesakes::read(engine, entry).await?),
            };
            if others.have(&snapshot) {
                continue;
            }
            let deleted =
                delete_snapshot_of(engine, &snapshot.root.name, Some(snapshot.root.volume));
            match deleted.await {
                Ok(()) | Err(OpenError::NoSuchSnapshot(_)) => {}
                Err(error) => return Err(error),
            }
        }
    }
    Ok(())
}

/// What is left: it names nothing.
fn emptied(engine: &Engine, standing: &Root) -> Root {
    let mut root = Root {
        epoch: Epoch(standing.epoch.0 + 1),
        sequence: standing.sequence + 1,
        unix_ms: engine.jobs.now().unix_ms,
        deltas: Vec::new(),
        nodes: Vec::new(),
        ..standing.clone()
    };
    root.clear_trash_mark();
    root
}

/// Puts another root into the place of an entry's.
async fn replace(
    engine: &Arc<Engine>,
    entry: &TrashEntry,
    standing: &KnownRoot,
    root: Root,
) -> Result<KnownRoot, OpenError> {
    let Some(key) = &entry.aside else {
        return replace_named(engine, standing, root).await;
    };
    let op = StoreOp::Update {
        key: key.clone(),
        data: root.encode(),
        version: standing.version.clone(),
    };
    match store_with_retry(engine, op).await {
        Ok(StoreReply::Written { version }) => Ok(KnownRoot { root, version }),
        Ok(_) => Err(OpenError::Store(format!(
            "{key}: the store's answer does not fit"
        ))),
        // Another host is at it, or did it, or this one whose answer was lost.
        Err(StoreError::PreconditionFailed | StoreError::NotFound) => Err(busy(entry)),
        Err(error) => Err(store_error("update", key, &error)),
    }
}

async fn replace_named(
    engine: &Arc<Engine>,
    standing: &KnownRoot,
    root: Root,
) -> Result<KnownRoot, OpenError> {
    let name = &root.name;
    let port = log_port(engine);
    let update = async {
        let updated = update_root(&port, &root, &standing.version).await;
        updated.map_err(|error| unusable_root_error(name, &error))
    };
    let keys = KeyPrefixes::default().with_root(name);
    match with_patience(engine, name, keys, update).await? {
        UpdateOutcome::Won(found) => Ok(KnownRoot {
            root: found.root,
            version: found.version,
        }),
        UpdateOutcome::Lost(_) => Err(OpenError::Busy(name.clone())),
    }
}

fn busy(entry: &TrashEntry) -> OpenError {
    OpenError::Busy(entry.name().to_owned())
}

async fn remove(engine: &Engine, key: &str) -> Result<(), OpenError> {
    let op = StoreOp::Delete {
        key: key.to_owned(),
    };
    match store_with_retry(engine, op).await {
        Ok(_) | Err(StoreError::NotFound) => Ok(()),
        Err(error) => Err(store_error("remove", key, &error)),
    }
}
