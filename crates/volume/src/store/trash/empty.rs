//! What leaves the trash for good: its names are taken away, and what nothing else names is garbage from then on.
//!
//! First the root says that it is going, so that nobody restores it any more; then its snapshots are deleted, then
//! it names nothing. What a crash leaves is gone on with by whoever empties the trash next.

use std::sync::Arc;

use crate::driver::{StoreError, StoreOp, StoreReply};
use crate::engine::Engine;
use crate::error::OpenError;
use crate::hostlog::root_updates::{UpdateOutcome, update_root};
use crate::object::root::{Root, TrashMark};
use crate::store::flow::upload_state::KnownRoot;
use crate::store::forks::delete_snapshot_of;
use crate::store::host_log::log_procedures::{KeyPrefixes, log_port, with_patience};
use crate::store::objects::{store_error, store_with_retry};
use crate::store::parts::{KEYS_AT_ONCE, ListPlace};
use crate::store::roots::{read_root, unusable_root_error};
use crate::store::trash::entries::{
    AsideWalk, SnapshotWalk, TrashEntry, TrashedVolume, aside_of, find, has_left, list_uncounted,
};
use crate::units::Epoch;

/// Lets the volume go that has this id, or of those that had this name the one that was deleted last.
pub(crate) async fn empty(engine: &Arc<Engine>, which: &str) -> Result<(), OpenError> {
    engine.host_log.check_not_stopped()?;
    let entry = find(engine, which).await?;
    empty_entry(engine, &entry, true).await
}

/// Lets everything go whose time is over, as this host's clock has it. How many volumes that were.
pub(crate) async fn empty_expired(engine: &Arc<Engine>) -> Result<usize, OpenError> {
    let now = engine.jobs.now().unix_ms;
    let mut gone = 0;
    let mut place = ListPlace {
        after: None,
        limit: KEYS_AT_ONCE,
    };
    loop {
        let part = list_uncounted(engine, &place).await?;
        let expired = |volume: &&TrashedVolume| volume.until_unix_ms <= now;
        for volume in part.items.iter().filter(expired) {
            match find(engine, &volume.id.to_string()).await {
                // Another may have been deleted anew meanwhile, and be kept longer.
                Ok(entry) if entry.mark.until_unix_ms <= now => {
                    empty_entry(engine, &entry, true).await?;
                    tracing::info!(volume = volume.name, id = %volume.id, "a volume left the trash: its time is over");
                    gone += 1;
                }
                Ok(_) | Err(OpenError::NotInTrash(_)) => {}
                Err(error) => return Err(error),
            }
        }
        match part.next {
            None => break,
            next => place.after = next,
        }
    }
    // Of volumes that have a newer root: nobody would look for them.
    let mut walk = AsideWalk::new(engine, "")?;
    while let Some(group) = walk.next().await? {
        for entry in group.entries {
            if let Some(key) = &entry.aside
                && entry.mark.until_unix_ms <= now
                && has_left(engine, &entry).await?
            {
                remove(engine, key).await?;
            }
        }
    }
    Ok(gone)
}

/// Takes the names of an entry away, and those of its snapshots if they are to go with it.
pub(super) async fn empty_entry(
    engine: &Arc<Engine>,
    entry: &TrashEntry,
    with_snapshots: bool,
) -> Result<(), OpenError> {
    let head = match entry.mark.is_going {
        true => entry.head.clone(),
        false => {
            let mut root = entry.head.root.clone();
            root.sequence += 1;
            root.set_trash_mark(TrashMark {
                is_going: true,
                ..entry.mark
            });
            replace(engine, entry, &entry.head, root).await?
        }
    };
    let with_snapshots = with_snapshots && !is_inherited(engine, entry).await?;
    if with_snapshots && !canary::active!("trash_leaves_snapshots") {
        let mut walk = SnapshotWalk::new(engine, entry.name(), entry.volume());
        while let Some(snapshots) = walk.next().await? {
            for snapshot in snapshots {
                let deleted =
                    delete_snapshot_of(engine, &snapshot.root.name, Some(snapshot.root.volume));
                match deleted.await {
                    Ok(()) | Err(OpenError::NoSuchSnapshot(_)) => {}
                    Err(error) => return Err(error),
                }
            }
        }
    }
    if entry.aside.is_none() {
        let root = emptied(engine, &head.root);
        replace(engine, entry, &head, root).await?;
    }
    // Such a key is never used again: a removal that takes effect late removes nothing else.
    for key in aside_of(engine, entry.volume()).await? {
        remove(engine, &key).await?;
    }
    Ok(())
}

/// Whether a volume that came of this one has its name, and so its snapshots: it was restored, and that was cut short.
async fn is_inherited(engine: &Engine, entry: &TrashEntry) -> Result<bool, OpenError> {
    if canary::active!("trash_takes_what_was_inherited") {
        return Ok(false);
    }
    match read_root(engine, entry.name()).await {
        Ok(head) => Ok(head.root.is_origin(entry.volume())),
        Err(OpenError::NoSuchVolume(_) | OpenError::Renamed { .. }) => Ok(false),
        Err(error) => Err(error),
    }
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
