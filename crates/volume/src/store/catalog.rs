//! The volumes of a store: creating, listing, showing and deleting them.
//!
//! Nothing here opens a volume or takes its epoch; a volume that anybody holds is not deleted.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::driver::{StoreError, StoreOp, StoreReply};
use crate::engine::Engine;
use crate::error::OpenError;
use crate::object::root::Root;
use crate::object::{ROOT_PREFIX, root_key, volume_of_root_key};
use crate::request::tail::{Status, Tail};
use crate::store::open::{NameLock, discard_tail, local_tails};
use crate::store::roots::{
    ReplaceOutcome, read_any_root, read_root, replace_root, store_error, store_with_retry,
};
use crate::store::upload;
use crate::units::{Epoch, HostId, Lsn, VolumeId};

/// The longest name.
const NAME_BYTES_MAX: usize = 64;
/// The largest volume: 64 TiB keeps a root small.
const BYTES_MAX: u64 = 64 << 40;

/// A volume to be created.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolumeSpec {
    /// 1 to 64 of `A-Z a-z 0-9 . _ -`, beginning with a letter or digit.
    pub name: String,
    /// Size in bytes, a multiple of 4096.
    pub bytes: u64,
    /// Logical block size in bytes, 512 or 4096.
    pub block: u32,
}

/// What the store says of a volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolumeInfo {
    /// Its name.
    pub name: String,
    /// Its identity.
    pub id: VolumeId,
    /// Its size in bytes.
    pub bytes: u64,
    /// Its logical block size in bytes.
    pub block: u32,
    /// How often it was opened.
    pub epoch: Epoch,
    /// The newest commit in the store.
    pub stored: Lsn,
    /// When the root was written, milliseconds since 1970.
    pub unix_ms: u64,
    /// The host that holds it, and what it is called.
    pub owner: Option<(HostId, String)>,
}

impl VolumeInfo {
    pub(crate) fn of(root: &Root) -> VolumeInfo {
        VolumeInfo {
            name: root.name.clone(),
            id: root.volume,
            bytes: root.bytes,
            block: root.block,
            epoch: root.epoch,
            stored: root.lsn,
            unix_ms: root.unix_ms,
            owner: root
                .owner
                .as_ref()
                .map(|owner| (owner.host, owner.label.clone())),
        }
    }
}

/// Is this a name for a volume?
///
/// # Errors
/// Says what is wrong with it.
pub fn check_name(name: &str) -> Result<(), OpenError> {
    let allowed = |c: u8| c.is_ascii_alphanumeric() || matches!(c, b'.' | b'_' | b'-');
    let begins_well = name
        .as_bytes()
        .first()
        .is_some_and(u8::is_ascii_alphanumeric);
    if begins_well && name.len() <= NAME_BYTES_MAX && name.bytes().all(allowed) {
        return Ok(());
    }
    Err(OpenError::Invalid(format!(
        "{name:?} is not a volume name: use 1 to {NAME_BYTES_MAX} letters, digits, '.', '_' or \
         '-', beginning with a letter or digit"
    )))
}

fn check_spec(spec: &VolumeSpec) -> Result<(), OpenError> {
    check_name(&spec.name)?;
    if !matches!(spec.block, 512 | 4096) {
        return Err(OpenError::Invalid(format!(
            "block size {}: it must be 512 or 4096",
            spec.block
        )));
    }
    check_size(spec.bytes)
}

fn check_size(bytes: u64) -> Result<(), OpenError> {
    if bytes == 0 || !bytes.is_multiple_of(4096) || bytes > BYTES_MAX {
        return Err(OpenError::Invalid(format!(
            "size {bytes} bytes: it must be a multiple of 4096, above zero and at most 64 TiB"
        )));
    }
    Ok(())
}

/// Makes an open volume larger. What is added reads as zeroes.
pub(crate) async fn grow(tail: &Arc<Tail>, bytes: u64) -> Result<(), OpenError> {
    check_size(bytes)?;
    let now = tail.lock().geometry.bytes;
    if bytes < now {
        return Err(OpenError::Invalid(format!(
            "size {bytes} bytes: volume {} has {now}, and a volume never shrinks: what is beyond \
             would be lost; create a smaller one and copy",
            tail.name()
        )));
    }
    upload::wait_grown(tail, bytes).await
}

pub(crate) async fn create(
    engine: &Arc<Engine>,
    spec: VolumeSpec,
) -> Result<VolumeInfo, OpenError> {
    check_spec(&spec)?;
    let root = Root {
        volume: engine.next_volume_id(),
        name: spec.name.clone(),
        bytes: spec.bytes,
        block: spec.block,
        epoch: Epoch(0),
        since: Epoch(0),
        sequence: 0,
        nonce: engine.next_nonce(),
        owner: None,
        deleted: false,
        lsn: Lsn::ZERO,
        unix_ms: engine.jobs.now().unix_ms,
        deltas: Vec::new(),
        nodes: Vec::new(),
        extensions: Vec::new(),
    };
    let key = root_key(&spec.name);
    let op = StoreOp::Create {
        key: key.clone(),
        data: root.encode(),
    };
    match store_with_retry(engine, op).await {
        Ok(_) => return Ok(VolumeInfo::of(&root)),
        Err(StoreError::PreconditionFailed | StoreError::Unknown(_)) => {}
        Err(error) => return Err(store_error(&key, &error)),
    }
    // Somebody's root is there, or it is not known: look for our own.
    match read_any_root(engine, &spec.name).await {
        Ok(head) if head.root.nonce == root.nonce => Ok(VolumeInfo::of(&root)),
        // What a deletion leaves: the name is free.
        Ok(head) if head.root.deleted => match replace_root(engine, &root, &head.version).await? {
            ReplaceOutcome::Won(_) => Ok(VolumeInfo::of(&root)),
            ReplaceOutcome::Conflict(_) | ReplaceOutcome::Missing => {
                Err(OpenError::Exists(spec.name))
            }
        },
        Ok(_) => Err(OpenError::Exists(spec.name)),
        Err(OpenError::NoSuchVolume(_)) => Err(OpenError::Store(format!(
            "{key}: the store did not say whether it was written; it is not there now: try again"
        ))),
        Err(error) => Err(error),
    }
}

pub(crate) async fn delete(engine: &Arc<Engine>, name: &str) -> Result<(), OpenError> {
    check_name(name)?;
    let _busy = NameLock::take(engine, name)?;
    let head = read_root(engine, name).await?;
    let tails = local_tails(engine, head.root.volume);
    if tails.iter().any(|tail| tail.lock().status == Status::Live) {
        return Err(OpenError::InUse(name.to_owned()));
    }
    let foreign = head
        .root
        .owner
        .as_ref()
        .filter(|owner| owner.host != engine.host);
    if let Some(owner) = foreign {
        return Err(OpenError::Held {
            volume: name.to_owned(),
            owner: format!("{} ({})", owner.label, owner.host),
            stored_lsn: head.root.lsn.0,
        });
    }
    // The mark fences whoever opens it at this moment. The object stays: a store has no conditional
    // deletion, so one that takes effect late would remove a new volume of the same name.
    let root = Root {
        epoch: Epoch(head.root.epoch.0 + 1),
        sequence: head.root.sequence + 1,
        nonce: engine.next_nonce(),
        deleted: true,
        ..head.root
    };
    match replace_root(engine, &root, &head.version).await? {
        ReplaceOutcome::Won(_) => {}
        ReplaceOutcome::Conflict(_) | ReplaceOutcome::Missing => {
            return Err(OpenError::InUse(name.to_owned()));
        }
    }
    for tail in tails {
        discard_tail(engine, &tail);
    }
    Ok(())
}

pub(crate) async fn show(engine: &Arc<Engine>, name: &str) -> Result<VolumeInfo, OpenError> {
    check_name(name)?;
    Ok(VolumeInfo::of(&read_root(engine, name).await?.root))
}

pub(crate) async fn list(engine: &Arc<Engine>) -> Result<Vec<VolumeInfo>, OpenError> {
    let op = StoreOp::List {
        prefix: ROOT_PREFIX.to_owned(),
    };
    let keys = match store_with_retry(engine, op).await {
        Ok(StoreReply::Keys(keys)) => keys,
        Ok(_) => return Err(OpenError::Store("the store's list does not fit".into())),
        Err(error) => return Err(store_error(ROOT_PREFIX, &error)),
    };
    let mut infos = BTreeMap::new();
    for name in keys.iter().filter_map(|key| volume_of_root_key(key)) {
        match read_root(engine, name).await {
            Ok(head) => {
                infos.insert(name.to_owned(), VolumeInfo::of(&head.root));
            }
            // Deleted between the list and the look.
            Err(OpenError::NoSuchVolume(_)) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(infos.into_values().collect())
}
