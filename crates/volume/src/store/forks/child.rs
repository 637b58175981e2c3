//! Creates a child of a volume: its first root, the pin that holds what that root names, and the second read of
//! the parent between the two.
//!
//! The order keeps the child's objects in the store: the pin is written before the parent is read again, so a
//! collector that finds the parent without an object also finds the pin. A parent that moved meanwhile, or that
//! another host took, makes no child. An unknown outcome leaves a pin and perhaps the child, but never a child
//! without a pin.

use std::sync::Arc;

use crate::driver::{StoreError, StoreOp, StoreReply};
use crate::engine::Engine;
use crate::error::OpenError;
use crate::hostlog::marks::Pin;
use crate::hostlog::names::{Position, pin_key, restore_pin_key};
use crate::object::SNAPSHOT_SIGN;
use crate::object::extensions::Labels;
use crate::object::pack::Ancestor;
use crate::object::root::{DeltaRef, Owner, Root};
use crate::object::sessions::SessionNames;
use crate::request::tail::Tail;
use crate::store::catalog::name_locks::lock_point;
use crate::store::catalog::volume_spec::VolumeSpec;
use crate::store::catalog::{create_root_once, first_root};
use crate::store::flow::upload_state::KnownRoot;
use crate::store::forks::kept_forks::{FIRST_HOLD, find_fork};
use crate::store::objects::{ATTEMPTS_MAX, store_error, store_with_retry};
use crate::store::rename::signs::check_free_of_renaming;
use crate::store::roots::read_any_root;
use crate::store::trash::entries::why_taken;
use crate::units::{Epoch, Lsn, VolumeId};

/// The specification of a child.
#[derive(Clone, Debug)]
pub(in crate::store) struct ChildSpec {
    /// Its name.
    pub(in crate::store) name: String,
    /// It is a snapshot, with these labels.
    pub(in crate::store) labels: Option<Labels>,
    /// Its identity, if it has one already: an earlier attempt may have created it.
    pub(in crate::store) id: Option<VolumeId>,
    /// When it was taken, if it is a copy of a snapshot of another store, in milliseconds since 1970.
    pub(in crate::store) copied_unix_ms: Option<u64>,
    /// This host may serve it already, and then its root says so.
    pub(in crate::store) may_be_served: bool,
    /// An earlier attempt may have created it, also one of an earlier process.
    pub(in crate::store) is_repeated: bool,
}

/// The state of a volume that a child begins with.
#[derive(Debug)]
pub(in crate::store) struct ParentState {
    /// The parent's root with its version.
    pub(in crate::store) head: KnownRoot,
    /// The packs of a log that lie over the root.
    pub(in crate::store) beyond: Vec<DeltaRef>,
    /// Their sessions.
    pub(in crate::store) sessions: SessionNames,
    /// The LSN of the state.
    pub(in crate::store) lsn: Lsn,
    /// The size at that point.
    pub(in crate::store) bytes: u64,
    /// The time of the state, in milliseconds since 1970.
    pub(in crate::store) unix_ms: u64,
}

/// The outcome of creating a child.
pub(in crate::store) enum Outcome {
    Made(Box<Root>),
    /// The parent's root moved before the pin was written, or the parent was deleted.
    Moved(Box<KnownRoot>),
}

/// Refuses a name that is taken.
pub(in crate::store) async fn check_free(engine: &Engine, name: &str) -> Result<(), OpenError> {
    match read_any_root(engine, name).await {
        Ok(head) if head.root.deleted => check_free_of_renaming(engine, &head.root).await,
        Ok(head) if name.contains(SNAPSHOT_SIGN) => Err(why_taken(engine, &head).await?),
        Ok(_) => Err(OpenError::Exists(name.to_owned())),
        Err(OpenError::NoSuchVolume(_)) => Ok(()),
        Err(error) => Err(error),
    }
}

/// Pins what the child needs, reads the parent again, and creates the child.
pub(in crate::store) async fn put_child(
    engine: &Arc<Engine>,
    parent: &ParentState,
    spec: &ChildSpec,
) -> Result<Outcome, OpenError> {
    let root = child_root(engine, parent, spec)?;
    let volume = parent.head.root.volume;
    let pin = match spec.id {
        // An earlier attempt may have left one, which names the state as it was written then.
        Some(_) => restore_pin_key(volume, root.volume, engine.next_nonce()),
        None => pin_key(volume, root.volume),
    };
    let is_late = canary::active!("pin_follows_the_look");
    if !is_late && !canary::active!("child_without_a_pin") {
        write_pin(engine, pin.clone(), volume, &root).await?;
    }
    let standing = match read_any_root(engine, &parent.head.root.name).await {
        Ok(standing) => standing,
        Err(error) => {
            remove_pin(engine, pin).await;
            return Err(error);
        }
    };
    if !is_unmoved(&standing, &parent.head) && !canary::active!("no_look_after_the_pin") {
        remove_pin(engine, pin).await;
        return Ok(Outcome::Moved(Box::new(standing)));
    }
    if is_late {
        write_pin(engine, pin.clone(), volume, &root).await?;
    }
    match create_child(engine, root, spec).await {
        Ok(root) => Ok(Outcome::Made(Box::new(root))),
        Err(error) => {
            if is_never_made(&error) {
                remove_pin(engine, pin).await;
            }
            Err(error)
        }
    }
}

/// Creates the child's root. One that may be opened before it has a root is opened before this, and then the root says
/// that this host holds it, or after it, like any other.
async fn create_child(
    engine: &Arc<Engine>,
    mut root: Root,
    spec: &ChildSpec,
) -> Result<Root, OpenError> {
    let _busy = match spec.may_be_served {
        true => Some(lock_point(engine, &root.name)?),
        false => None,
    };
    let is_of_child = |tail: &Arc<Tail>| tail.id().volume == root.volume && !tail.is_rescue();
    let is_served = engine.tails().iter().any(is_of_child);
    if is_served && !canary::active!("served_fork_has_no_holder") {
        hold_from_the_beginning(engine, &mut root);
    } else if spec.may_be_served {
        note_sent_unheld(engine, &root);
    }
    let created = create_root_once(engine, root.clone(), spec.is_repeated).await;
    created.map(|_| root)
}

/// A root that names no holder is about to be sent, and its answer may be lost: nobody may open the fork here as one that has no
/// root. The caller holds the lock of its name.
fn note_sent_unheld(engine: &Engine, root: &Root) {
    let Some((parent, _)) = find_fork(engine, &root.name) else {
        return;
    };
    if let Some(kept) = parent.lock().points.find_kept(root.volume) {
        kept.sent_unheld = !canary::active!("unheld_root_is_forgotten");
    }
}

/// Whether a child that was not created with this error never will be: its name is another's, and what was sent expects that
/// nobody has it. Its pin is needless then, and no root of the child would ever tell a collector so.
pub(in crate::store) fn is_never_made(error: &OpenError) -> bool {
    match error {
        OpenError::Exists(_) | OpenError::Busy(_) => true,
        OpenError::Renaming { .. } => !canary::active!("refused_child_leaves_its_pin"),
        _ => false,
    }
}

/// The child's first root.
pub(in crate::store) fn child_root(
    engine: &Engine,
    parent: &ParentState,
    spec: &ChildSpec,
) -> Result<Root, OpenError> {
    let from = &parent.head.root;
    let folded = from.folded_lsn().unwrap_or(from.lsn);
    if folded > parent.lsn {
        return Err(OpenError::Internal(format!(
            "{}: pages hold what came after LSN {}",
            from.name, parent.lsn.0
        )));
    }
    let mut root = first_root(
        engine,
        VolumeSpec {
            name: spec.name.clone(),
            bytes: parent.bytes,
            block: from.block,
        },
    );
    root.volume = spec.id.unwrap_or(root.volume);
    root.lsn = parent.lsn;
    if !canary::active!("snapshot_is_taken_when_stored") {
        root.unix_ms = spec.copied_unix_ms.unwrap_or(parent.unix_ms);
    }
    root.first = parent.lsn.next();
    let above = from.lineage();
    let mut lineage: Vec<Ancestor> = above.to_vec();
    // Nobody writes to a snapshot, so no chunk has its id.
    if from.labels().is_none() {
        let volume = from.volume;
        lineage.insert(
            0,
            Ancestor {
                volume,
                last: parent.lsn,
            },
        );
    }
    root.set_lineage(&lineage);
    root.set_folded(folded);
    if let Some(labels) = &spec.labels {
        root.set_labels(labels);
    }
    root.nodes = from.nodes.clone();
    let deltas = from.deltas.iter().chain(&parent.beyond);
    let is_of_state = |delta: &&DeltaRef| {
        delta.last <= parent.lsn || canary::active!("child_has_what_came_later")
    };
    root.deltas = deltas.filter(is_of_state).copied().collect();
    let sessions = from.sessions.iter().chain(parent.sessions.iter());
    let named = root.sessions.extend(sessions);
    named.map_err(|error| OpenError::Corrupt(format!("{}: {error}", from.name)))?;
    Ok(root)
}

/// The root of a fork that is served here before it has one: as if this host had opened it right after. No record of
/// this host's log is of this hold.
fn hold_from_the_beginning(engine: &Engine, root: &mut Root) {
    (root.epoch, root.since) = (FIRST_HOLD, FIRST_HOLD);
    root.writer = engine.session_name;
    root.owner = Some(Owner {
        host: engine.host,
        label: engine.label.clone(),
    });
    root.mark = engine.host_log.state().next.previous();
}

/// Writes the pin that keeps what a child's first root names, before that root is written.
pub(in crate::store) async fn put_pin(
    engine: &Engine,
    parent: VolumeId,
    root: &Root,
) -> Result<(), OpenError> {
    write_pin(engine, pin_key(parent, root.volume), parent, root).await
}

/// The same for a volume that is restored to a snapshot; returns the pin's key. A volume may be restored to one
/// snapshot repeatedly, and each restore has a pin of its own, because the collector may remove an earlier one at
/// any time.
pub(super) async fn put_restore_pin(
    engine: &Engine,
    snapshot: VolumeId,
    root: &Root,
) -> Result<String, OpenError> {
    let nonce = match canary::active!("restores_share_a_pin") {
        true => 0,
        false => engine.next_nonce(),
    };
    let key = restore_pin_key(snapshot, root.volume, nonce);
    let has_one = nonce == 0 && {
        let op = StoreOp::Get { key: key.clone() };
        store_with_retry(engine, op).await.is_ok()
    };
    if !has_one {
        write_pin(engine, key.clone(), snapshot, root).await?;
    }
    Ok(key)
}

pub(in crate::store) async fn write_pin(
    engine: &Engine,
    key: String,
    parent: VolumeId,
    root: &Root,
) -> Result<(), OpenError> {
    let pin = Pin {
        parent,
        child: root.volume,
        writer: engine.session_name,
        root: root.clone(),
    };
    let data = pin.encode();
    let op = StoreOp::Create {
        key: key.clone(),
        data: data.clone(),
    };
    let mut delay = engine.options.retry_ns;
    for _ in 0..ATTEMPTS_MAX {
        match store_with_retry(engine, op.clone()).await {
            Ok(_) => return Ok(()),
            Err(StoreError::PreconditionFailed | StoreError::Unknown(_)) => {}
            Err(error) => return Err(store_error("create", &key, &error)),
        }
        // A pin exists, or the outcome is not known: read it to see whether it is this one.
        match store_with_retry(engine, StoreOp::Get { key: key.clone() }).await {
            Ok(StoreReply::Object { data: found, .. }) if found == data => return Ok(()),
            Ok(_) => {
                return Err(OpenError::Store(format!(
                    "{key}: another host or command has just written it; nothing was made: try again"
                )));
            }
            Err(StoreError::NotFound) => {}
            Err(error) => return Err(store_error("read", &key, &error)),
        }
        engine.port.sleep(delay).await;
        delay *= 2;
    }
    Err(OpenError::Store(format!(
        "{key}: the store did not say whether it was written; it is not there now: try again"
    )))
}

/// Removes a pin when it is certain that its child will not be created. A pin that is left holds space and does
/// no other harm.
pub(in crate::store) async fn drop_pin(engine: &Engine, parent: VolumeId, child: VolumeId) {
    remove_pin(engine, pin_key(parent, child)).await;
}

/// The same by its key.
pub(super) async fn remove_pin(engine: &Engine, key: String) {
    if let Err(error) = store_with_retry(engine, StoreOp::Delete { key: key.clone() }).await {
        tracing::warn!(key, ?error, "a pin that nothing needs is not removed");
    }
}

/// Whether the root has not moved: it is the same, or an operator put the same content back.
pub(in crate::store) fn is_unmoved(standing: &KnownRoot, known: &KnownRoot) -> bool {
    let same_content = || {
        let standing = Root {
            sequence: known.root.sequence,
            ..standing.root.clone()
        };
        standing.encode() == known.root.encode()
    };
    standing.version == known.version || same_content()
}

/// The tombstone of a deleted snapshot: it names no object.
pub(super) fn tombstone_of(engine: &Engine, root: &Root) -> Root {
    Root {
        epoch: Epoch(root.epoch.0 + 1),
        sequence: root.sequence + 1,
        owner: None,
        claimant: None,
        mark: Position::default(),
        deleted: true,
        unix_ms: engine.jobs.now().unix_ms,
        deltas: Vec::new(),
        nodes: Vec::new(),
        ..root.clone()
    }
}
