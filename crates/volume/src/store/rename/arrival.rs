//! How a volume that has left its old name arrives under the new one: its snapshots first, then the volume.
//!
//! Every step looks at what stands there and can be done again, by anybody, also beside another who does it. What a root
//! names is pinned before it has another key, so a collector that reads the new key too early and the old one too
//! late finds it by the pin.

use std::sync::Arc;

use crate::engine::Engine;
use crate::error::OpenError;
use crate::hostlog::names::restore_pin_key;
use crate::hostlog::root_updates::UpdateOutcome;
use crate::object::pack::Lineage;
use crate::object::root::{RenameMark, RenameStep, Root};
use crate::object::root_key;
use crate::object::sessions::SessionNames;
use crate::store::catalog::keep_tombstone;
use crate::store::catalog::volume_spec::VolumeInfo;
use crate::store::flow::upload_state::KnownRoot;
use crate::store::forks::child::{is_unmoved, write_pin};
use crate::store::parts::RootWalk;
use crate::store::rename::signs::renamed_snapshot;
use crate::store::rename::{above, info_of, time_of};
use crate::store::roots::{
    READS_AT_ONCE, put_first_root, read_any_root, replace_root, why_not_there,
};
use crate::store::trash::entries::why_taken;
use crate::units::{Epoch, VolumeId};

/// Takes a volume, or a snapshot that follows one, which has left its old name to the end of its way.
pub(super) async fn finish(
    engine: &Arc<Engine>,
    leaving: KnownRoot,
) -> Result<VolumeInfo, OpenError> {
    let Some(mark) = leaving.root.rename_mark() else {
        return Err(why_not_there(&leaving.root));
    };
    if leaving.root.labels().is_none() {
        move_snapshots(engine, &leaving, &mark.other).await?;
    }
    arrive(engine, &leaving.root, &mark).await?;
    let gone = gone_root(engine, &leaving.root, leaving.root.volume, &mark.other);
    // Whoever was quicker has done the same.
    replace_root(engine, &gone, &leaving.version).await?;
    info_of(engine, &mark.other).await
}

/// Puts the root under its new name, unless that was done.
async fn arrive(engine: &Arc<Engine>, leaving: &Root, mark: &RenameMark) -> Result<(), OpenError> {
    let new = &mark.other;
    let standing = match read_any_root(engine, new).await {
        Err(OpenError::NoSuchVolume(new)) => return Err(OpenError::RootMissing(new)),
        standing => standing?,
    };
    if !is_kept_for(&standing.root, leaving, mark) {
        // That root is replaced by the volume's alone, and the epochs of a name never go back.
        return match standing.root.epoch > mark.epoch {
            true => Ok(()),
            false => Err(OpenError::Corrupt(format!(
                "{}: it is older than what volume {} left for: the store was set back, or not all of it; put it back",
                root_key(new),
                leaving.name
            ))),
        };
    }
    let epoch = Epoch(leaving.epoch.0.max(standing.root.epoch.0) + 1);
    let mut root = Root {
        name: new.clone(),
        epoch,
        since: epoch,
        first: leaving.lsn.next(),
        sequence: leaving.sequence + 1,
        deleted: false,
        unix_ms: time_of(engine, leaving),
        ..leaving.clone()
    };
    root.clear_rename_mark();
    let root = above(root, &standing.root);
    pin(engine, &root).await?;
    match replace_root(engine, &root, &standing.version).await? {
        UpdateOutcome::Won(_) => Ok(()),
        // Another has done it. If not, the next attempt sees that.
        UpdateOutcome::Lost(found) if found.root.volume != mark.volume => Ok(()),
        UpdateOutcome::Lost(_) => Err(OpenError::Busy(new.clone())),
    }
}

/// Whether a root is the one that keeps the new name for this leave of the volume: it may have left for the same name
/// before, by another host's attempt, which comes late.
fn is_kept_for(standing: &Root, leaving: &Root, mark: &RenameMark) -> bool {
    if canary::active!("kept_name_is_told_by_its_volume") {
        let kept = standing.rename_mark();
        return kept.is_some_and(|kept| kept.volume == leaving.volume);
    }
    standing.volume == mark.volume
}

/// Keeps what a root names while it goes from one key to another.
async fn pin(engine: &Engine, root: &Root) -> Result<(), OpenError> {
    if canary::active!("renamed_without_a_pin") {
        return Ok(());
    }
    let key = restore_pin_key(root.volume, root.volume, engine.next_nonce());
    write_pin(engine, key, root.volume, root).await
}

/// What is left under a name that a volume or snapshot had: an identity of its own, for it says nothing of the other's.
pub(super) fn gone_root(engine: &Engine, from: &Root, volume: VolumeId, new: &str) -> Root {
    let identity = match canary::active!("old_name_has_the_volumes_identity") {
        true => from.volume,
        false => engine.next_volume_id(),
    };
    let mut root = Root {
        volume: identity,
        epoch: Epoch(from.epoch.0 + 1),
        sequence: from.sequence + 1,
        deleted: true,
        unix_ms: engine.jobs.now().unix_ms,
        deltas: Vec::new(),
        nodes: Vec::new(),
        sessions: SessionNames::default(),
        extensions: Default::default(),
        ..from.clone()
    };
    root.set_rename_mark(&RenameMark {
        step: RenameStep::Gone,
        other: new.to_owned(),
        volume,
        epoch: Epoch::default(),
    });
    root
}

async fn move_snapshots(
    engine: &Arc<Engine>,
    leaving: &KnownRoot,
    new: &str,
) -> Result<(), OpenError> {
    if canary::active!("snapshots_stay_behind") {
        return Ok(());
    }
    let mut walk = SnapshotsOf::new(engine, &leaving.root);
    while let Some(snapshots) = walk.next().await? {
        for snapshot in &snapshots {
            move_snapshot(engine, leaving, snapshot, new).await?;
        }
    }
    Ok(())
}

/// Gives a snapshot its new name. It is a root of its own that does not change. What is written takes the place of what
/// was read, and between the two the volume is seen to be on its way yet: it arrives when all snapshots have moved, so
/// whoever comes late, when it has perhaps gone on to a third name or come back, finds another version.
async fn move_snapshot(
    engine: &Arc<Engine>,
    leaving: &KnownRoot,
    snapshot: &KnownRoot,
    new: &str,
) -> Result<(), OpenError> {
    let (old, id) = (&snapshot.root.name, snapshot.root.volume);
    let name = renamed_snapshot(old, new);
    let standing = match read_any_root(engine, &name).await {
        Ok(standing) => Some(standing),
        Err(OpenError::NoSuchVolume(_)) => None,
        Err(error) => return Err(error),
    };
    let root = match &standing {
        // An earlier attempt put it there. It may have been deleted since.
        Some(found) if found.root.volume == id => None,
        Some(other) if !other.root.deleted => return Err(why_taken(engine, other).await?),
        standing => {
            // Above the tombstone that a deletion leaves of the one that is there: the pin is needed until this one is there,
            // however late that is.
            let epoch = Epoch(snapshot.root.epoch.0 + 2);
            let root = Root {
                name: name.clone(),
                epoch,
                ..snapshot.root.clone()
            };
            Some(match standing {
                Some(standing) => above(root, &standing.root),
                None => root,
            })
        }
    };
    if let Some(root) = &root {
        pin(engine, root).await?;
    }
    if !is_unmoved(&read_any_root(engine, old).await?, snapshot) {
        // It was deleted, or another was quicker.
        return Ok(());
    }
    let head = read_any_root(engine, &leaving.root.name).await?;
    if head.version != leaving.version && !canary::active!("late_hands_move_snapshots") {
        return Ok(());
    }
    if let Some(root) = &root
        && !put_root(engine, root, standing.as_ref()).await?
    {
        return Err(OpenError::Busy(name));
    }
    let gone = gone_root(engine, &snapshot.root, id, &name);
    replace_root(engine, &gone, &snapshot.version)
        .await
        .map(drop)
}

/// Puts a root where nothing stands, or in the place of a deleted one; false: something else came first. It stands there
/// once at most, however late the request takes effect.
pub(super) async fn put_root(
    engine: &Arc<Engine>,
    root: &Root,
    standing: Option<&KnownRoot>,
) -> Result<bool, OpenError> {
    if let Some(standing) = standing {
        keep_tombstone(engine, &standing.root).await?;
        let updated = replace_root(engine, root, &standing.version).await?;
        return Ok(match updated {
            UpdateOutcome::Won(_) => true,
            UpdateOutcome::Lost(found) => found.root.volume == root.volume,
        });
    }
    let found = put_first_root(engine, root).await?;
    Ok(found.is_none_or(|found| found.head.root.volume == root.volume))
}

/// A walk through the snapshots that go with a volume: its own, and those that it has of what it was before it came out
/// of the trash.
pub(super) struct SnapshotsOf<'a> {
    walk: RootWalk<'a>,
    volume: VolumeId,
    lineage: Lineage,
}

impl SnapshotsOf<'_> {
    pub(super) fn new<'a>(engine: &'a Engine, of: &Root) -> SnapshotsOf<'a> {
        SnapshotsOf {
            walk: RootWalk::of_snapshots(engine, &of.name, None),
            volume: of.volume,
            lineage: of.lineage(),
        }
    }

    /// The next ones, perhaps none at all where there are more; none: that was the last one.
    pub(super) async fn next(&mut self) -> Result<Option<Vec<KnownRoot>>, OpenError> {
        let Some(mut found) = self.walk.next(READS_AT_ONCE).await? else {
            return Ok(None);
        };
        let is_its = |head: &KnownRoot| {
            let Some(parent) = head.root.lineage().first().map(|parent| parent.volume) else {
                return false;
            };
            let is_above = || self.lineage.iter().any(|above| above.volume == parent);
            !head.root.deleted && (parent == self.volume || is_above())
        };
        found.retain(is_its);
        Ok(Some(found))
    }
}
