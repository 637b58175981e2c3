//! Reading and replacing roots: the only writes to the store that can be lost to somebody else.
//!
//! Every conditional update has three outcomes: won, lost, unknown. After an unknown one the
//! root is read back and recognised by its nonce; it is never simply sent again.

use std::sync::atomic::Ordering;

use crate::driver::{StoreError, StoreOp, StoreReply, Version};
use crate::error::OpenError;
use crate::object::root::Root;
use crate::object::root_key;
use crate::request::tail::Tail;
use crate::shared::Shared;

/// How often a request of an open or create is tried again before it fails.
pub(crate) const TRIES: u32 = 5;

/// A store request that is tried again while the store is unavailable.
pub(crate) async fn patient(shared: &Shared, op: StoreOp) -> Result<StoreReply, StoreError> {
    let mut delay = shared.options.retry_ns;
    for _ in 1..TRIES {
        match shared.port.store(op.clone()).await {
            Err(StoreError::Unavailable(_)) => {}
            // Reads may be repeated whatever became of them.
            Err(StoreError::Unknown(_))
                if matches!(op, StoreOp::Get { .. } | StoreOp::GetRange { .. }) => {}
            other => return other,
        }
        shared.port.sleep(delay).await;
        delay *= 2;
    }
    shared.port.store(op).await
}

pub(crate) async fn read_root(shared: &Shared, name: &str) -> Result<Head, OpenError> {
    match read_any_root(shared, name).await? {
        head if head.root.deleted => Err(OpenError::NoSuchVolume(name.to_owned())),
        head => Ok(head),
    }
}

/// The root that stands there, even if it is marked as deleted.
pub(crate) async fn read_any_root(shared: &Shared, name: &str) -> Result<Head, OpenError> {
    let key = root_key(name);
    match patient(shared, StoreOp::Get { key: key.clone() }).await {
        Ok(StoreReply::Object { data, version }) => {
            let root = Root::decode(&data)
                .map_err(|error| OpenError::Corrupt(format!("{key}: {error}")))?;
            if root.name != name {
                return Err(OpenError::Corrupt(format!(
                    "{key} is the root of volume {:?}: it was copied or moved; put it back",
                    root.name
                )));
            }
            Ok(Head { root, version })
        }
        Ok(_) => Err(OpenError::Store(format!(
            "{key}: the store's answer does not fit"
        ))),
        Err(StoreError::NotFound) => Err(OpenError::NoSuchVolume(name.to_owned())),
        Err(error) => Err(store_error(&key, &error)),
    }
}

/// The root as this host last saw or wrote it.
#[derive(Clone, Debug)]
pub(crate) struct Head {
    pub(crate) root: Root,
    pub(crate) version: Version,
}

pub(crate) fn store_error(key: &str, error: &StoreError) -> OpenError {
    OpenError::Store(match error {
        StoreError::NotFound => format!("{key} is not in the store"),
        StoreError::Lost => format!("{key} was changed by somebody else"),
        StoreError::Unknown(why) | StoreError::Unavailable(why) | StoreError::Denied(why) => {
            format!("{key}: {why}")
        }
    })
}

/// The commit: replaces the root if it is still the one that this host knows.
pub(crate) async fn commit_root(
    shared: &Shared,
    tail: &Tail,
    mut root: Root,
    version: &Version,
) -> Result<Head, OpenError> {
    root.sequence += 1;
    root.nonce = shared.next_nonce();
    root.unix_ms = shared.jobs.now().unix_ms;
    let replaced = replace_root(shared, &root, version).await?;
    tail.upload
        .uploaded_bytes
        .fetch_add(root.encode().len() as u64, Ordering::Relaxed);
    match replaced {
        Replaced::Won(version) => Ok(Head { root, version }),
        // Only the holder of an epoch writes roots of that epoch: this is an earlier attempt of
        // our own, whose answer was lost and which took effect late. The next attempt replaces
        // it, but builds on the root before it, the one that the index in memory stands for: if
        // the late one folded deltas, it lists pages of which the index knows nothing. Nothing
        // is missed: until an upload ends, all that it brought is brought again by the next.
        Replaced::By(late) if late.root.epoch == root.epoch => {
            if let Some(known) = tail.upload.head() {
                let root = Root {
                    sequence: late.root.sequence,
                    ..known.root
                };
                let version = late.version;
                tail.upload.set_head(Head { root, version });
            }
            Err(OpenError::Store(
                "an earlier commit of this host took effect late".into(),
            ))
        }
        Replaced::By(_) | Replaced::Gone => Err(OpenError::Fenced(tail.name().to_owned())),
    }
}

/// How a conditional update of a root ended.
#[derive(Debug)]
pub(crate) enum Replaced {
    Won(Version),
    /// Something else stands there.
    By(Box<Head>),
    /// Nothing stands there.
    Gone,
}

/// Replaces a root conditionally. A lost or unknown answer is decided by reading back our nonce.
pub(crate) async fn replace_root(
    shared: &Shared,
    root: &Root,
    version: &Version,
) -> Result<Replaced, OpenError> {
    let key = root_key(&root.name);
    let nonsense = || OpenError::Store(format!("{key}: the store's answer does not fit"));
    let op = StoreOp::Update {
        key: key.clone(),
        data: root.encode(),
        version: version.clone(),
    };
    let unknown = match shared.port.store(op).await {
        Ok(StoreReply::Written { version }) => return Ok(Replaced::Won(version)),
        Ok(_) => return Err(nonsense()),
        // A retry below us may have met its own first attempt: look before giving up.
        Err(StoreError::Lost | StoreError::NotFound) => None,
        Err(error) => Some(error),
    };
    let mut tries = 0;
    loop {
        match shared.port.store(StoreOp::Get { key: key.clone() }).await {
            Ok(StoreReply::Object {
                data,
                version: found,
            }) => {
                let standing = Root::decode(&data)
                    .map_err(|error| OpenError::Corrupt(format!("{key}: {error}")))?;
                if standing.nonce == root.nonce {
                    return Ok(Replaced::Won(found));
                }
                return match unknown {
                    // It did not happen, or has not yet.
                    Some(error) if found == *version => Err(store_error(&key, &error)),
                    _ => Ok(Replaced::By(Box::new(Head {
                        root: standing,
                        version: found,
                    }))),
                };
            }
            Err(StoreError::NotFound) => return Ok(Replaced::Gone),
            Ok(_) => return Err(nonsense()),
            Err(error) if tries == 8 => return Err(store_error(&key, &error)),
            Err(_) => {
                tries += 1;
                shared.port.sleep(shared.options.retry_ns).await;
            }
        }
    }
}
