//! Reading and replacing roots: the only writes to the store that another host can win.
//!
//! Every conditional update has three outcomes: won, lost, unknown. After an unknown one the
//! root is read back and recognised by its nonce; it is never simply sent again.

use std::sync::atomic::Ordering;

use crate::driver::{StoreError, StoreOp, StoreReply, Version};
use crate::engine::Engine;
use crate::error::OpenError;
use crate::object::root::Root;
use crate::object::root_key;
use crate::request::tail::Tail;
use crate::store::objects::{store_error, store_with_retry};
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

/// The commit: replaces the root if it is still the one that this host knows.
pub(crate) async fn commit_root(
    engine: &Engine,
    tail: &Tail,
    mut root: Root,
    version: &Version,
) -> Result<KnownRoot, OpenError> {
    root.sequence += 1;
    root.nonce = engine.next_nonce();
    root.unix_ms = engine.jobs.now().unix_ms;
    let replaced = replace_root(engine, &root, version).await?;
    tail.upload
        .uploaded_bytes
        .fetch_add(root.encode().len() as u64, Ordering::Relaxed);
    match replaced {
        ReplaceOutcome::Won(version) => Ok(KnownRoot { root, version }),
        // Only the holder of an epoch writes roots of that epoch: this is an earlier attempt of
        // our own, whose answer was lost and which took effect late. The next attempt replaces
        // it, but builds on the root before it, the one that the index in memory stands for: if
        // the late one folded deltas, it lists pages of which the index knows nothing. Nothing
        // is missed: until an upload ends, all that it brought is brought again by the next.
        ReplaceOutcome::Conflict(late) if late.root.epoch == root.epoch => {
            if let Some(known) = tail.upload.head() {
                let root = Root {
                    sequence: late.root.sequence,
                    ..known.root
                };
                let version = late.version;
                tail.upload.set_head(KnownRoot { root, version });
            }
            Err(OpenError::Store(
                "an earlier commit of this host took effect late".into(),
            ))
        }
        ReplaceOutcome::Conflict(_) | ReplaceOutcome::Missing => {
            Err(OpenError::Fenced(tail.name().to_owned()))
        }
    }
}

/// How a conditional update of a root ended.
#[derive(Debug)]
pub(crate) enum ReplaceOutcome {
    Won(Version),
    /// Something else stands there.
    Conflict(Box<KnownRoot>),
    /// Nothing stands there.
    Missing,
}

/// Replaces a root conditionally. A lost or unknown answer is decided by reading back our nonce.
pub(crate) async fn replace_root(
    engine: &Engine,
    root: &Root,
    version: &Version,
) -> Result<ReplaceOutcome, OpenError> {
    let key = root_key(&root.name);
    let nonsense = || OpenError::Store(format!("{key}: the store's answer does not fit"));
    let op = StoreOp::Update {
        key: key.clone(),
        data: root.encode(),
        version: version.clone(),
    };
    let unknown = match engine.port.store(op).await {
        Ok(StoreReply::Written { version }) => return Ok(ReplaceOutcome::Won(version)),
        Ok(_) => return Err(nonsense()),
        // A retry below us may have met its own first attempt: look before giving up.
        Err(StoreError::PreconditionFailed | StoreError::NotFound) => None,
        Err(error) => Some(error),
    };
    let mut tries = 0;
    loop {
        match engine.port.store(StoreOp::Get { key: key.clone() }).await {
            Ok(StoreReply::Object {
                data,
                version: found,
            }) => {
                let standing = Root::decode(&data)
                    .map_err(|error| OpenError::Corrupt(format!("{key}: {error}")))?;
                if standing.nonce == root.nonce {
                    return Ok(ReplaceOutcome::Won(found));
                }
                return match unknown {
                    // It did not happen, or has not yet.
                    Some(error) if found == *version => Err(store_error("update", &key, &error)),
                    _ => Ok(ReplaceOutcome::Conflict(Box::new(KnownRoot {
                        root: standing,
                        version: found,
                    }))),
                };
            }
            Err(StoreError::NotFound) => return Ok(ReplaceOutcome::Missing),
            Ok(_) => return Err(nonsense()),
            Err(error) if tries == 8 => return Err(store_error("read-back", &key, &error)),
            Err(_) => {
                tries += 1;
                engine.port.sleep(engine.options.retry_ns).await;
            }
        }
    }
}
