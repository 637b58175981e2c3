//! Reading roots, and an owner's updates of them: fold, growth, close, and what a poisoned log cannot
//! record.
//!
//! An update begins with what the host's log has stored: the mark, and the packs up to it. It is repeated until
//! the store answers. Within an epoch only this process writes the root, because each opening takes an epoch of
//! its own. [`turn`] says whose update is next, [`checks`] and [`watch`] read roots to see whether they are there, [`renamed`]
//! what name a volume has now.

pub(in crate::store) mod checks;
pub(in crate::store) mod renamed;
pub(crate) mod turn;
pub(crate) mod watch;
pub(crate) mod watch_state;

use std::sync::Arc;

use crate::driver::{StoreError, StoreOp, StoreReply, Version};
use crate::engine::Engine;
use crate::error::OpenError;
use crate::hostlog::names::Position;
use crate::hostlog::root_updates::{
    OwnerView, OwnersError, OwnersUpdate, UpdateError, UpdateOutcome, update_own_root, update_root,
};
use crate::hostlog::stop::Stop;
use crate::object::root::{RenameStep, Root};
use crate::object::root_key;
use crate::request::tail::Tail;
use crate::store::flow::upload_state::{KnownRoot, RootUpdate};
use crate::store::host_log::log_procedures::{
    KeyPrefixes, log_port, mark, stop_host, with_patience,
};
use crate::store::objects::{ATTEMPTS_MAX, store_error, store_with_retry};
use crate::store::roots::renamed::why_not_there_now;
use crate::sync::atomic::Ordering;

/// Roots that a list reads in parallel.
pub(in crate::store) const READS_AT_ONCE: usize = 32;

/// Lists the keys below a prefix.
pub(crate) async fn list_keys(engine: &Engine, prefix: &str) -> Result<Vec<String>, OpenError> {
    let op = StoreOp::List {
        prefix: prefix.to_owned(),
    };
    match store_with_retry(engine, op).await {
        Ok(StoreReply::Keys(keys)) => Ok(keys.into_iter().map(|(key, _)| key).collect()),
        Ok(_) => Err(OpenError::Store("the store's list does not fit".into())),
        Err(error) => Err(store_error("list", prefix, &error)),
    }
}

pub(crate) async fn read_root(engine: &Engine, name: &str) -> Result<KnownRoot, OpenError> {
    match read_any_root(engine, name).await? {
        head if head.root.deleted => Err(why_not_there_now(engine, &head).await),
        head => Ok(head),
    }
}

/// The error for whoever looks for a volume or snapshot under the name of a deleted root.
pub(in crate::store) fn why_not_there(deleted: &Root) -> OpenError {
    let name = deleted.name.clone();
    let Some(mark) = deleted.rename_mark() else {
        return OpenError::NoSuchVolume(name);
    };
    match mark.step {
        RenameStep::Gone => OpenError::Renamed {
            name,
            new_name: mark.other,
        },
        RenameStep::Leaving => OpenError::Renaming {
            name,
            new_name: mark.other,
        },
        RenameStep::Kept => OpenError::Renaming {
            name: mark.other,
            new_name: name,
        },
    }
}

/// Reads a root, even if it is a tombstone.
pub(crate) async fn read_any_root(engine: &Engine, name: &str) -> Result<KnownRoot, OpenError> {
    let key = root_key(name);
    match store_with_retry(engine, StoreOp::Get { key: key.clone() }).await {
        Ok(StoreReply::Object { data, version }) => {
            let root = Root::decode(&data)
                .map_err(|error| OpenError::Corrupt(format!("{key}: {error}")))?;
            if root.name != name {
                return Err(OpenError::Corrupt(format!(
                    "{key} is the root of volume {:?}: it was copied or moved; put it back",
                    root.name
                )));
            }
            Ok(KnownRoot { root, version })
        }
        Ok(_) => Err(OpenError::Store(format!(
            "{key}: the store's answer does not fit"
        ))),
        Err(StoreError::NotFound) => Err(OpenError::NoSuchVolume(name.to_owned())),
        Err(error) => Err(store_error("read", &key, &error)),
    }
}

/// What stands where a first root was to be put.
pub(in crate::store) struct FoundRoot {
    pub(in crate::store) head: KnownRoot,
    /// A request to put the root there may have taken effect before.
    pub(in crate::store) may_be_put: bool,
}

/// Puts a root where nothing stands; none: it stands there. Else what does, which may be the same root by an earlier
/// request, or what became of it. It is put there once at most, however late a request takes effect.
pub(in crate::store) async fn put_first_root(
    engine: &Engine,
    root: &Root,
) -> Result<Option<FoundRoot>, OpenError> {
    let key = root_key(&root.name);
    let op = StoreOp::Create {
        key: key.clone(),
        data: root.encode(),
    };
    let (mut delay, mut may_be_put) = (engine.options.retry_ns, false);
    for _ in 0..ATTEMPTS_MAX {
        match store_with_retry(engine, op.clone()).await {
            Ok(_) => return Ok(None),
            Err(StoreError::PreconditionFailed) => {}
            Err(StoreError::Unknown(_)) => may_be_put = true,
            Err(error) => return Err(store_error("create", &key, &error)),
        }
        // A root exists, or the outcome is not known: it is read to see which.
        match read_any_root(engine, &root.name).await {
            Ok(head) => return Ok(Some(FoundRoot { head, may_be_put })),
            // The request did not take effect, or not yet: the same bytes again.
            Err(OpenError::NoSuchVolume(_)) => {}
            Err(error) => return Err(error),
        }
        engine.port.sleep(delay).await;
        delay *= 2;
    }
    Err(OpenError::Store(format!(
        "{key}: the store did not say whether it was written; it is not there now: try again"
    )))
}

/// Replaces a root, and says whose is there then. Gives up when the store has not answered for long.
pub(in crate::store) async fn replace_root(
    engine: &Arc<Engine>,
    root: &Root,
    expected: &Version,
) -> Result<UpdateOutcome, OpenError> {
    let name = &root.name;
    let port = log_port(engine);
    let update = async {
        let updated = update_root(&port, root, expected).await;
        updated.map_err(|error| unusable_root_error(name, &error))
    };
    let keys = KeyPrefixes::default().with_root(name);
    with_patience(engine, name, keys, update).await
}

/// The error for a root that cannot be updated.
pub(crate) fn unusable_root_error(name: &str, error: &UpdateError) -> OpenError {
    match error {
        UpdateError::Missing => OpenError::RootMissing(name.to_owned()),
        UpdateError::Unreadable(error) => {
            OpenError::Corrupt(format!("{}: {error}", root_key(name)))
        }
    }
}

/// Begins an update, during a turn at the root: the known root with all that the log has stored since.
pub(crate) async fn begin_update(
    engine: &Arc<Engine>,
    tail: &Tail,
) -> Result<RootUpdate, OpenError> {
    // Mark and packs are taken together: the packs of a record are added before the publisher is free.
    let mut publisher = engine.host_log.publisher().await;
    let mark = mark(engine, &mut publisher).await?;
    update_at(engine, tail, mark, publisher.state().next)
}

/// Begins the update that closes the volume, behind the record that ended its epoch. Nobody needs a mark of a closed
/// volume, so the position before that record was looked at last when the record was.
pub(crate) async fn begin_closing(
    engine: &Arc<Engine>,
    tail: &Tail,
) -> Result<RootUpdate, OpenError> {
    let publisher = engine.host_log.publisher().await;
    // What stopped it may have been met by whoever had the publisher.
    engine.host_log.check_not_stopped()?;
    update_at(engine, tail, Position::default(), publisher.state().next)
}

/// The update with what the log has up to this mark.
fn update_at(
    engine: &Arc<Engine>,
    tail: &Tail,
    mark: Position,
    next: Position,
) -> Result<RootUpdate, OpenError> {
    let known = tail.upload.head();
    let known = known.ok_or_else(|| OpenError::InUse(tail.name().to_owned()))?;
    let (lsn, packs) = tail.upload.published();
    let mut root = Root {
        mark,
        lsn: known.root.lsn.max(lsn),
        unix_ms: engine.jobs.now().unix_ms,
        bytes: tail.upload.grown_bytes(known.root.bytes),
        ..known.root.clone()
    };
    root.deltas.extend(packs.iter().copied());
    // This process's sessions wrote these packs and the update's new objects.
    let named = root.sessions.extend(engine.own_sessions());
    named.map_err(|error| OpenError::Corrupt(format!("{}: {error}", tail.name())))?;
    Ok(RootUpdate {
        root,
        known,
        packs: packs.len(),
        next,
    })
}

/// Sends the update until the store answers. When the update has won, the tail knows the new root.
pub(crate) async fn finish_update(
    engine: &Arc<Engine>,
    tail: &Tail,
    update: &RootUpdate,
) -> Result<Root, OpenError> {
    let RootUpdate {
        root,
        known,
        packs,
        next,
    } = update;
    let sent = &tail.upload.uploaded_bytes;
    sent.fetch_add(root.encode().len() as u64, Ordering::Relaxed);
    let view = OwnerView {
        host: engine.host,
        known: &known.root,
        stored: root.lsn,
        next: *next,
    };
    let port = log_port(engine);
    let name = tail.name();
    match update_own_root(&port, &view, root.clone(), &known.version).await {
        Ok(OwnersUpdate::Won(standing)) => {
            let root = standing.root.clone();
            note_size(engine, tail, &root).await;
            let head = KnownRoot {
                root: standing.root,
                version: standing.version,
            };
            tail.lock().geometry.bytes = root.bytes;
            tail.upload.on_root_updated(head, *packs);
            Ok(root)
        }
        // An operator put the same object back, or an earlier call of this process, which was cut short, wrote
        // it.
        Ok(OwnersUpdate::Moved(standing)) if standing.root.writer == known.root.writer => {
            let root = Root {
                sequence: standing.root.sequence,
                ..known.root.clone()
            };
            let version = standing.version;
            tail.upload.set_head(KnownRoot { root, version });
            // A close begins again from this root as well.
            if !canary::active!("close_is_sent_for_ever") {
                tail.upload.set_closing(None);
            }
            Err(OpenError::Store(format!(
                "{} was written again by somebody; trying again",
                root_key(name)
            )))
        }
        Ok(OwnersUpdate::Moved(_)) => {
            let what = format!("another session wrote the root of {name} in this one's epoch");
            Err(stop_host(engine, &Stop::Cloned(what)))
        }
        Ok(OwnersUpdate::Fenced) => Err(find_fenced_error(engine, tail).await),
        Err(OwnersError::Stop(stop)) => Err(stop_host(engine, &stop)),
        Err(OwnersError::Root(_)) if canary::active!("missing_root_is_a_fence") => {
            Err(OpenError::Fenced(name.to_owned()))
        }
        Err(OwnersError::Root(error)) => Err(unusable_root_error(name, &error)),
    }
}

/// Makes the volume's new size durable in the local log before a client hears of it: a start that cannot ask the
/// store must not serve a smaller volume than a client knows. If the log takes no records, the ring keeps such a
/// start from serving the volume.
async fn note_size(engine: &Arc<Engine>, tail: &Tail, root: &Root) {
    if !tail.set_size(root.size()) || canary::active!("size_is_not_noted") {
        return;
    }
    let committer = engine.committer();
    engine.record_tail(tail);
    let round = committer.next_round();
    if !committer.durable(engine, round).await {
        tail.require_check();
    }
}

/// Reads the root to name the host that has the volume now.
async fn find_fenced_error(engine: &Engine, tail: &Tail) -> OpenError {
    let name = tail.name().to_owned();
    match read_any_root(engine, &name).await {
        // Whoever renamed it has taken it over before.
        Ok(found) if found.root.rename_mark().is_some() => OpenError::Fenced(name),
        Ok(found) if found.root.deleted || found.root.volume != tail.id().volume => {
            OpenError::Deleted(name)
        }
        _ => OpenError::Fenced(name),
    }
}
