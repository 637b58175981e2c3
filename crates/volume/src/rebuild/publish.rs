//! Writes the new root: a pin first, which keeps what it names, then a look whether that is still there, then the root.
//!
//! The root is created where there is none, and replaces what cannot be used only in the version that was read.

use std::collections::BTreeSet;

use blkmq::io::SECTOR_BYTES;

use super::base::Base;
use super::content::Content;
use super::line::Lines;
use super::logs::Logs;
use super::target::Target;
use super::{RebuildError, RebuildPort, RebuildRequest};
use crate::check::footers::list_packs;
use crate::check::no_answer;
use crate::driver::StoreError;
use crate::hostlog::marks::Pin;
use crate::hostlog::names::{Position, SessionName, restore_pin_key};
use crate::object::root::{DeltaRef, Root};
use crate::object::{FormatError, ObjectId, root_key};
use crate::units::Epoch;

/// The bits of an epoch that a rebuild without a root sets: more than openings leave no trace in the store.
const EPOCH_STEP_BITS: u32 = 32;
/// The bits of a sequence below those of its epoch.
const SEQUENCE_BITS: u32 = 16;
/// So often the root is sent again that may have been written.
const ATTEMPTS_MAX: u32 = 3;

/// The volume's new root.
pub(super) fn root_of(
    target: &Target,
    base: &Base,
    lines: &Lines,
    content: &Content,
    logs: &Logs,
    request: &RebuildRequest,
) -> Result<Root, RebuildError> {
    let lsn = lines.lsn.max(base.lsn);
    let mut root = match &target.root {
        Some(root) => replaced_root(root),
        None => {
            let seen = lines.newest.map_or(Epoch(0), |(epoch, _)| epoch);
            let seen = seen.max(logs.epoch).max(base.epoch);
            first_root(target, epoch_above(seen, request.unix_ms), request.nonce)
        }
    };
    root.lsn = lsn;
    root.first = lsn.next();
    root.unix_ms = request.unix_ms;
    root.bytes = target
        .size
        .bytes
        .max((content.end * SECTOR_BYTES).next_multiple_of(4096));
    root.predecessor = match root.labels() {
        Some(_) => None,
        None => logs.predecessor(target, &lines.newest),
    };
    root.deltas = base
        .root
        .iter()
        .flat_map(|base| base.deltas.clone())
        .collect();
    root.nodes = base
        .root
        .as_ref()
        .map(|base| base.nodes.clone())
        .unwrap_or_default();
    let visible = content.visible.iter().map(|nth| &lines.taken[*nth]);
    root.deltas.extend(visible.clone().map(|part| part.delta));
    let sessions = base.root.iter().flat_map(|base| base.sessions.iter());
    root.sessions = Default::default();
    let named = root
        .sessions
        .extend(sessions.chain(visible.map(|part| part.session)));
    named.map_err(|error: FormatError| RebuildError::Invalid(format!("{}: {error}", root.name)))?;
    // No older state can be told of it: packs that only older ones needed may be gone.
    root.set_folded(lsn);
    Ok(root)
}

/// A root that says everything but where the content is. A snapshot has no epochs; a volume's owner is fenced, and may
/// go on with its tail.
fn replaced_root(root: &Root) -> Root {
    let mut next = Root {
        sequence: root.sequence + 1,
        ..root.clone()
    };
    if root.labels().is_none() {
        next.epoch = Epoch(root.epoch.0 + 1);
        next.owner = None;
        next.claimant = None;
        next.mark = Position::default();
    }
    next
}

/// The root of a volume of which no root is left.
fn first_root(target: &Target, epoch: Epoch, nonce: u64) -> Root {
    let mut root = Root {
        volume: target.volume,
        name: target.name.clone(),
        bytes: target.size.bytes,
        block: target.size.block,
        epoch,
        since: epoch,
        first: Default::default(),
        sequence: epoch.0.saturating_mul(1 << SEQUENCE_BITS),
        nonce,
        earlier: Vec::new(),
        writer: SessionName::default(),
        owner: None,
        claimant: None,
        predecessor: None,
        mark: Position::default(),
        peers: Vec::new(),
        deleted: false,
        lsn: Default::default(),
        unix_ms: 0,
        deltas: Vec::new(),
        nodes: Vec::new(),
        sessions: Default::default(),
        extensions: Default::default(),
    };
    if !target.lineage.is_empty() {
        root.set_lineage(&target.lineage);
    }
    root
}

/// An epoch above all that any host may have taken, although most openings leave no trace but in the root: a step of
/// 2^32, and the time, so that a second rebuild is above the first one although that left no trace either.
fn epoch_above(seen: Epoch, unix_ms: u64) -> Epoch {
    let step = (seen.0 >> EPOCH_STEP_BITS) + 1;
    let seconds = (unix_ms / 1000) & ((1 << EPOCH_STEP_BITS) - 1);
    if canary::active!("the_rebuild_takes_the_next_epoch") {
        return Epoch(seen.0 + 1);
    }
    Epoch((step << EPOCH_STEP_BITS) | seconds)
}

/// Writes the root.
pub(super) async fn publish(
    port: &impl RebuildPort,
    target: &Target,
    root: &Root,
    request: &RebuildRequest,
) -> Result<(), RebuildError> {
    let pin = Pin {
        parent: root.volume,
        child: root.volume,
        writer: SessionName::default(),
        root: root.clone(),
    };
    let key = restore_pin_key(root.volume, root.volume, request.nonce);
    write(port, &key, pin.encode(), None).await?;
    check_packs(port, root).await?;
    let version = target.version.clone();
    write(port, &root_key(&root.name), root.encode(), version).await
}

/// Looks whether the packs are still there, now that the pin keeps them.
async fn check_packs(port: &impl RebuildPort, root: &Root) -> Result<(), RebuildError> {
    let listed = list_packs(port).await?;
    let listed: BTreeSet<ObjectId> = listed.iter().map(|pack| pack.id()).collect();
    let is_gone = |delta: &&DeltaRef| !listed.contains(&delta.pack);
    match root.deltas.iter().find(is_gone) {
        None => Ok(()),
        Some(delta) => {
            let key = root.sessions.pack_key(delta.pack).unwrap_or_default();
            Err(RebuildError::Outrun(key))
        }
    }
}

/// Creates an object, or replaces it in this version.
async fn write(
    port: &impl RebuildPort,
    key: &str,
    data: Vec<u8>,
    version: Option<crate::driver::Version>,
) -> Result<(), RebuildError> {
    for _ in 0..ATTEMPTS_MAX {
        let written = match &version {
            None => port.create(key, data.clone()).await,
            Some(version) => port.update(key, data.clone(), version.clone()).await,
        };
        match written {
            Ok(()) => return Ok(()),
            Err(StoreError::PreconditionFailed | StoreError::Unknown(_)) => {}
            Err(error) => return Err(no_answer(key, &error).into()),
        }
        // It stands there already, or the outcome is not known.
        match port.get(key).await {
            Ok((found, _)) if found == data => return Ok(()),
            Ok((_, now)) if version.as_ref() == Some(&now) => {}
            Ok(_) => return Err(RebuildError::Outrun(key.to_owned())),
            Err(StoreError::NotFound) => {}
            Err(error) => return Err(no_answer(key, &error).into()),
        }
    }
    Err(RebuildError::NoOutcome(key.to_owned()))
}
