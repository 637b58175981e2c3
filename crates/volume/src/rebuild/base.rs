//! What the rebuilt index begins with, instead of with nothing: a snapshot, or the pin of a fork or restore.
//!
//! Its index says what packs do not: what had been zeroed up to there, and to what the volume was set back. Only one
//! whose index can be read counts.

use super::target::Target;
use super::{RebuildError, RebuildPort, Unknown};
use crate::check::footers::PackPart;
use crate::check::no_answer;
use crate::check::walk::Walk;
use crate::driver::StoreError;
use crate::hostlog::marks::Pin;
use crate::hostlog::names::{INDEX_PREFIX, PIN_PREFIX};
use crate::object::root::Root;
use crate::units::{Epoch, Lsn};

/// The label of what a restore keeps: it has the name of the snapshot.
const BEFORE_RESTORE_LABEL: &str = "before-restore-of";

/// The state with which the index begins.
#[derive(Debug, Default)]
pub(super) struct Base {
    /// The history up to here is in it.
    pub(super) lsn: Lsn,
    /// Its index; none: nothing.
    pub(super) root: Option<Root>,
    /// What it is called, and its own LSN.
    pub(super) name: Option<(String, Lsn)>,
    /// The newest epoch that pins of the volume say.
    pub(super) epoch: Epoch,
    pub(super) unknown: Vec<Unknown>,
}

/// A restore, by what it kept.
struct SetBack {
    at: Lsn,
    snapshot: String,
}

pub(super) async fn find(
    port: &impl RebuildPort,
    target: &Target,
    parts: &[PackPart],
) -> Result<Base, RebuildError> {
    let mut base = Base::default();
    let pins = read_pins(port, target).await?;
    base.epoch = pins
        .iter()
        .map(|pin| pin.root.epoch)
        .max()
        .unwrap_or(Epoch(0));
    let most = target.root.as_ref().map_or(Lsn(u64::MAX), |root| root.lsn);
    let snapshots = target
        .others
        .values()
        .filter(|root| is_snapshot_of(root, target));
    // A rebuild's own pin says no more than packs do.
    let pinned = pins.iter().filter(|pin| pin.parent != pin.child);
    let mut candidates: Vec<(&Root, Lsn)> = snapshots
        .chain(pinned.map(|pin| &pin.root))
        .map(|root| (root, root.lsn))
        .filter(|(_, lsn)| *lsn <= most)
        .collect();
    let set_back = last_set_back(target, parts, most);
    if let Some(SetBack { at, snapshot }) = &set_back {
        let restored = target.others.get(snapshot);
        candidates.extend(
            restored
                .filter(|root| !root.deleted)
                .map(|root| (root, *at)),
        );
    }
    candidates.sort_by_key(|(_, lsn)| std::cmp::Reverse(*lsn));
    for (root, lsn) in candidates {
        if !is_index_whole(port, root).await? {
            continue;
        }
        base.lsn = lsn;
        base.name = Some((root.name.clone(), root.lsn));
        base.root = Some(root.clone());
        break;
    }
    if let Some(SetBack { at, snapshot }) = set_back.filter(|set_back| base.lsn < set_back.at) {
        base.unknown.push(Unknown::SetBack { at, snapshot });
    }
    Ok(base)
}

/// Whether the root is that of a snapshot of the volume, and all that it holds may be in the volume.
fn is_snapshot_of(root: &Root, target: &Target) -> bool {
    let lineage = root.lineage();
    let is_of = lineage.first().is_some_and(|of| of.volume == target.volume);
    root.labels().is_some() && !root.deleted && is_of
}

/// The last restore, as far as what was kept of the state before it says. The restore has the LSN behind that state;
/// if a slice has this LSN, the restore came to nothing.
fn last_set_back(target: &Target, parts: &[PackPart], most: Lsn) -> Option<SetBack> {
    let kept = target
        .others
        .values()
        .filter(|root| is_snapshot_of(root, target));
    let restores = kept.filter_map(|root| {
        let labels = root.labels()?;
        let of = labels.iter().find(|(key, _)| key == BEFORE_RESTORE_LABEL)?;
        let snapshot = of.1.clone();
        Some(SetBack {
            at: root.lsn.next(),
            snapshot,
        })
    });
    let is_written = |at: Lsn| {
        let own = parts.iter().map(|part| &part.slice);
        let mut own = own.filter(|slice| slice.origin == target.volume);
        own.any(|slice| slice.begin <= at && at <= slice.last)
    };
    restores
        .filter(|it| it.at <= most && !is_written(it.at))
        .max_by_key(|it| it.at)
}

/// The pins that hold something for the volume.
async fn read_pins(port: &impl RebuildPort, target: &Target) -> Result<Vec<Pin>, RebuildError> {
    let keys = port.list(PIN_PREFIX).await;
    let keys = keys.map_err(|error| no_answer(PIN_PREFIX, &error))?;
    let id = target.volume.to_string();
    let mut pins = Vec::new();
    for (key, _) in keys.into_iter().filter(|(key, _)| key.contains(&id)) {
        match port.get(&key).await {
            Ok((data, _)) => pins.extend(Pin::decode(&data)),
            Err(StoreError::NotFound) => {}
            Err(error) => return Err(no_answer(&key, &error).into()),
        }
    }
    pins.retain(|pin| pin.child == target.volume);
    Ok(pins)
}

async fn is_index_whole(port: &impl RebuildPort, root: &Root) -> Result<bool, RebuildError> {
    let damaged = Walk::new(port, false).damaged_objects(root).await?;
    Ok(!damaged.iter().any(|key| key.starts_with(INDEX_PREFIX)))
}
