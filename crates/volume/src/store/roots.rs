//! Reading and replacing roots: the only writes to the store that another host can win.
//!
//! Every conditional update has three outcomes: won, lost, unknown. After an unknown one the
//! identical bytes are sent again until the root's version has moved; then it is read back and
//! looked through for our own nonce, which a root keeps for some commits. Nothing else tells a
//! commit of ours from a stranger's: not the epoch, and not the name.

use std::sync::atomic::Ordering;

use crate::driver::{StoreError, StoreOp, StoreReply, Version};
use crate::engine::Engine;
use crate::error::OpenError;
use crate::object::root::Root;
use crate::object::root_key;
use crate::request::tail::Tail;
use crate::store::objects::{ATTEMPTS_MAX, store_error, store_with_retry};
use crate::store::upload_state::KnownRoot;

pub(crate) async fn read_root(engine: &Engine, name: &str) -> Result<KnownRoot, OpenError> {
    match read_any_root(engine, name).await? {
        head if head.root.deleted => Err(OpenError::NoSuchVolume(name.to_owned())),
        head => Ok(head),
    }
}

/// The root that stands there, even if it is marked as deleted.
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

/// The root to build the next commit on. An earlier commit of this host whose outcome is not known
/// is settled first.
///
/// If it took effect, the next one replaces it, but builds on the content of the root before it,
/// the one that the index in memory stands for: if the late one folded deltas, it lists pages of
/// which the index knows nothing. Nothing is missed: until an upload ends, all that it brought is
/// brought again by the next.
pub(crate) async fn settled_head(engine: &Engine, tail: &Tail) -> Result<KnownRoot, OpenError> {
    let head = tail.upload.head();
    let head = head.ok_or_else(|| OpenError::InUse(tail.name().to_owned()))?;
    let Some(unsettled) = tail.upload.unsettled() else {
        return Ok(head);
    };
    let late = commit_prepared(engine, tail, unsettled, &head).await?;
    tail.upload.note_landed_late(late.root.lsn);
    let head = KnownRoot {
        root: Root {
            sequence: late.root.sequence,
            nonce: late.root.nonce,
            earlier: late.root.earlier,
            ..head.root
        },
        version: late.version,
    };
    tail.upload.set_head(head.clone());
    Ok(head)
}

/// The commit: `root` replaces `head` if that is what still stands there.
pub(crate) async fn commit_root(
    engine: &Engine,
    tail: &Tail,
    root: Root,
    head: &KnownRoot,
) -> Result<KnownRoot, OpenError> {
    let next = KnownRoot {
        root: root.succeeding(&head.root, engine.next_nonce(), engine.jobs.now().unix_ms),
        version: head.version.clone(),
    };
    commit_prepared(engine, tail, next, head).await
}

/// Commits a root that has its number and nonce, over the version that goes with it.
async fn commit_prepared(
    engine: &Engine,
    tail: &Tail,
    next: KnownRoot,
    head: &KnownRoot,
) -> Result<KnownRoot, OpenError> {
    let KnownRoot { root, version } = &next;
    tail.upload
        .uploaded_bytes
        .fetch_add(root.encode().len() as u64, Ordering::Relaxed);
    let unknown = tail.upload.unsettled().is_some();
    let outcome = repeat_update(engine, root, version, unknown).await;
    tail.upload.set_unsettled(match outcome {
        ReplaceOutcome::Unsettled(_) => Some(next.clone()),
        _ => None,
    });
    match outcome {
        ReplaceOutcome::Won(version) => Ok(KnownRoot {
            root: next.root,
            version,
        }),
        // The bug that this canary puts back: an epoch says nothing about who wrote a root.
        ReplaceOutcome::Conflict(found)
            if canary::active!("foreign_root_of_equal_epoch") && found.root.epoch == root.epoch =>
        {
            tail.upload.set_head(KnownRoot {
                root: Root {
                    sequence: found.root.sequence,
                    ..head.root.clone()
                },
                version: found.version,
            });
            Err(OpenError::Store("an earlier commit took effect".into()))
        }
        // The same root was written again, by whoever restored it: its version is another.
        ReplaceOutcome::Conflict(found) if found.root.nonce == head.root.nonce => {
            tail.upload.set_head(KnownRoot {
                root: head.root.clone(),
                version: found.version,
            });
            Err(OpenError::Store(format!(
                "{} was written again by somebody; trying again",
                root_key(tail.name())
            )))
        }
        ReplaceOutcome::Conflict(found) => Err(lost_to(tail, &head.root, &found.root)),
        ReplaceOutcome::Missing if canary::active!("missing_root_is_a_fence") => {
            Err(OpenError::Fenced(tail.name().to_owned()))
        }
        ReplaceOutcome::Missing => Err(OpenError::RootMissing(tail.name().to_owned())),
        ReplaceOutcome::Failed(error) | ReplaceOutcome::Unsettled(error) => Err(error),
    }
}

/// What the root that stands there says about this host, whose newest one was `known`.
fn lost_to(tail: &Tail, known: &Root, standing: &Root) -> OpenError {
    let name = tail.name().to_owned();
    if standing.volume != known.volume || standing.deleted {
        return OpenError::Deleted(name);
    }
    let back = standing.epoch < known.epoch
        || (standing.epoch == known.epoch && standing.sequence < known.sequence);
    if back {
        return OpenError::StoreWentBack {
            volume: name,
            stored_lsn: standing.lsn.0,
            known_lsn: known.lsn.0,
        };
    }
    OpenError::Fenced(name)
}

/// How a conditional update of a root ended.
#[derive(Debug)]
pub(crate) enum ReplaceOutcome {
    Won(Version),
    /// Something else stands there. If it has our nonce, ours took effect before it.
    Conflict(Box<KnownRoot>),
    /// Nothing stands there.
    Missing,
    /// It did not happen, and will not.
    Failed(OpenError),
    /// It may have happened, or may yet.
    Unsettled(OpenError),
}

/// Replaces a root conditionally.
pub(crate) async fn replace_root(
    engine: &Engine,
    root: &Root,
    version: &Version,
) -> ReplaceOutcome {
    repeat_update(engine, root, version, false).await
}

/// Sends the same update until it is known what became of it. `unknown`: an attempt may take effect
/// that was not heard of.
async fn repeat_update(
    engine: &Engine,
    root: &Root,
    version: &Version,
    mut unknown: bool,
) -> ReplaceOutcome {
    let key = root_key(&root.name);
    let update = StoreOp::Update {
        key: key.clone(),
        data: root.encode(),
        version: version.clone(),
    };
    let mut delay = engine.options.retry_ns;
    let mut last;
    let mut tries = 0;
    loop {
        last = match engine.port.store(update.clone()).await {
            Ok(StoreReply::Written { version }) => return ReplaceOutcome::Won(version),
            Err(error @ StoreError::Denied(_)) if !unknown => {
                return ReplaceOutcome::Failed(store_error("update", &key, &error));
            }
            Err(error @ (StoreError::Unavailable(_) | StoreError::Denied(_))) => {
                store_error("update", &key, &error)
            }
            answer => {
                // A retry below us may have met its own first attempt: also "lost" has to be looked at.
                unknown = true;
                match answer {
                    Err(error) => store_error("update", &key, &error),
                    Ok(_) => OpenError::Store(format!("{key}: the store's answer does not fit")),
                }
            }
        };
        if unknown {
            match read_back(engine, root, version).await {
                Ok(Some(outcome)) => return outcome,
                // It did not happen, or has not yet: the same bytes again, until the version moves.
                Ok(None) => {}
                Err(error) => last = error,
            }
        }
        tries += 1;
        if tries == ATTEMPTS_MAX {
            break;
        }
        engine.port.sleep(delay).await;
        delay *= 2;
    }
    if unknown {
        ReplaceOutcome::Unsettled(last)
    } else {
        ReplaceOutcome::Failed(last)
    }
}

/// Looks at what stands there after an update from `version` to `root` whose outcome is not known.
/// None if `version` still stands there.
async fn read_back(
    engine: &Engine,
    root: &Root,
    version: &Version,
) -> Result<Option<ReplaceOutcome>, OpenError> {
    let key = root_key(&root.name);
    match engine.port.store(StoreOp::Get { key: key.clone() }).await {
        Ok(StoreReply::Object { data, version: now }) => {
            let standing = Root::decode(&data)
                .map_err(|error| OpenError::Corrupt(format!("{key}: {error}")))?;
            if standing.nonce == root.nonce {
                return Ok(Some(ReplaceOutcome::Won(now)));
            }
            Ok((now != *version).then(|| {
                ReplaceOutcome::Conflict(Box::new(KnownRoot {
                    root: standing,
                    version: now,
                }))
            }))
        }
        Ok(_) => Err(OpenError::Store(format!(
            "{key}: the store's answer does not fit"
        ))),
        Err(StoreError::NotFound) => Ok(Some(ReplaceOutcome::Missing)),
        Err(error) => Err(store_error("read-back", &key, &error)),
    }
}
