//! What the rebuilt index begins with, instead of with nothing: a snapshot, or the pin of a fork or restore.
//!
//! Its index says what packs do not: what had been zeroed up to there, and to what the volume was set back. Only one
//! whose index can be read counts.

use super::holds::HoldStarts;
use super::logs::{CommitEvidence, Logs};
use super::target::{Target, read_pins};
use super::{RebuildError, RebuildPort, Unknown};
use crate::check::footers::PackPart;
use crate::check::walk::Walk;
use crate::hostlog::names::INDEX_PREFIX;
use crate::object::root::Root;
use crate::units::{Epoch, Lsn, VolumeId};

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

/// The slices of the store, as far as they say whether something was written at an LSN.
struct Slices<'a> {
    parts: &'a [PackPart],
    logs: &'a Logs,
}

impl Slices<'_> {
    /// Whether a slice of the volume has this LSN that may have been committed. A restore takes an LSN of its own: if a
    /// slice has it, the restore came to nothing.
    fn have(&self, volume: VolumeId, lsn: Lsn) -> bool {
        let own = || self.parts.iter().filter(|part| part.slice.origin == volume);
        let holds = HoldStarts::of(own().map(|part| &part.slice));
        own().any(|part| {
            let slice = &part.slice;
            let has = slice.begin <= lsn && lsn <= slice.last && !holds.make_void(slice);
            has && self.logs.commit_evidence(part) != CommitEvidence::NotCommitted
        })
    }
}

pub(super) async fn find(
    port: &impl RebuildPort,
    target: &Target,
    parts: &[PackPart],
    logs: &Logs,
) -> Result<Base, RebuildError> {
    let mut base = Base::default();
    let slices = Slices { parts, logs };
    let mut pins = read_pins(port, &target.volume.to_string()).await?;
    pins.retain(|pin| pin.child == target.volume);
    let epochs = pins.iter().map(|pin| pin.root.epoch);
    base.epoch = epochs.max().unwrap_or(Epoch(0));
    let most = target.root.as_ref().map_or(Lsn(u64::MAX), |root| root.lsn);
    let others = target.others.values();
    let snapshots = others.filter(|root| parent_of(root, target).is_some());
    // A rebuild's own pin says no more than packs do.
    let pinned = pins.iter().filter(|pin| pin.parent != pin.child);
    let pinned = pinned.map(|pin| &pin.root);
    let mut candidates: Vec<(&Root, Lsn)> = snapshots
        .chain(pinned.filter(|root| !slices.have(target.volume, root.lsn)))
        .map(|root| (root, root.lsn))
        .filter(|(_, lsn)| *lsn <= most)
        .collect();
    let set_back = last_set_back(target, &slices, most);
    if let Some(SetBack { at, snapshot }) = &set_back {
        let restored = target.others.get(snapshot);
        let restored = restored.filter(|root| !root.deleted);
        candidates.extend(restored.map(|root| (root, *at)));
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

/// The volume of which the root is a snapshot, if what that holds is the beginning of the target's history: the target
/// itself, or one that it was forked from, later.
fn parent_of(root: &Root, target: &Target) -> Option<VolumeId> {
    let of = root.lineage().first()?.volume;
    let above = target.lineage.iter().find(|above| above.volume == of);
    let is_of = of == target.volume || above.is_some_and(|above| root.lsn <= above.last);
    (root.labels().is_some() && !root.deleted && is_of).then_some(of)
}

/// The last restore, as far as what was kept of the state before it says: it has the LSN behind that state.
fn last_set_back(target: &Target, slices: &Slices<'_>, most: Lsn) -> Option<SetBack> {
    let restores = target.others.values().filter_map(|root| {
        let parent = parent_of(root, target)?;
        let labels = root.labels()?;
        let of = labels.iter().find(|(key, _)| key == BEFORE_RESTORE_LABEL)?;
        let at = root.lsn.next();
        let above = target.lineage.iter().find(|above| above.volume == parent);
        let is_behind = above.is_some_and(|above| at > above.last);
        let has_happened = !is_behind && !slices.have(parent, at);
        has_happened.then(|| SetBack {
            at,
            snapshot: of.1.clone(),
        })
    });
    restores.filter(|it| it.at <= most).max_by_key(|it| it.at)
}

async fn is_index_whole(port: &impl RebuildPort, root: &Root) -> Result<bool, RebuildError> {
    let damaged = Walk::new(port, false).damaged_objects(root).await?;
    Ok(!damaged.iter().any(|key| key.starts_with(INDEX_PREFIX)))
}
