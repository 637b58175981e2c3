//! The list of a volume's snapshots, and the rules for names and labels.
//!
//! Reads only. The list is of names: the roots of a volume's snapshots stand under one prefix.

use std::collections::{BTreeMap, BTreeSet};

use crate::engine::Engine;
use crate::error::OpenError;
use crate::log::snapshot_record::SnapshotRecord;
use crate::object::SNAPSHOT_SIGN;
use crate::object::extensions::Labels;
use crate::object::root::Root;
use crate::store::catalog::volume_spec::check_name;
use crate::store::forks::kept_snapshots::kept_of;
use crate::store::forks::snapshot_roots::snapshot_roots;
use crate::store::roots::read_any_root;
use crate::store::trash::entries::is_in_trash;
use crate::units::{Lsn, VolumeId};

/// Labels of one snapshot, and bytes of a key or a value.
const LABELS_MAX: usize = 64;
const LABEL_BYTES_MAX: usize = 256;

/// What the store says of a snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SnapshotInfo {
    /// Its name, `VOLUME@SNAPSHOT`.
    pub name: String,
    /// Its identity.
    pub id: VolumeId,
    /// The volume that it was taken of.
    pub of: Option<VolumeId>,
    /// The volume's size at that point, in bytes.
    pub bytes: u64,
    /// The newest commit in it.
    pub lsn: Lsn,
    /// When it was taken, in milliseconds since 1970.
    pub unix_ms: u64,
    /// Its labels.
    pub labels: Labels,
    /// The store has it; otherwise only the log of this host, yet.
    pub is_stored: bool,
}

impl SnapshotInfo {
    pub(super) fn of(root: &Root) -> SnapshotInfo {
        SnapshotInfo {
            name: root.name.clone(),
            id: root.volume,
            of: root.lineage().first().map(|parent| parent.volume),
            bytes: root.bytes,
            lsn: root.lsn,
            unix_ms: root.unix_ms,
            labels: root.labels().unwrap_or_default(),
            is_stored: true,
        }
    }

    /// One of the volume `of` that the log keeps.
    pub(super) fn of_kept(of: VolumeId, record: &SnapshotRecord) -> SnapshotInfo {
        SnapshotInfo {
            name: record.name.clone(),
            id: record.id,
            of: Some(of),
            bytes: record.bytes,
            lsn: record.lsn,
            unix_ms: record.unix_ms,
            labels: record.labels.clone(),
            is_stored: false,
        }
    }
}

/// Volume and snapshot, if it is a name for a snapshot.
///
/// # Errors
/// Says what is wrong with it.
pub fn check_snapshot_name(name: &str) -> Result<(&str, &str), OpenError> {
    let Some((volume, snapshot)) = name.split_once(SNAPSHOT_SIGN) else {
        return Err(OpenError::Invalid(format!(
            "{name:?} names no snapshot: say VOLUME@SNAPSHOT"
        )));
    };
    check_name(volume)?;
    match check_name(snapshot) {
        Ok(()) => Ok((volume, snapshot)),
        Err(_) => Err(OpenError::Invalid(format!(
            "{snapshot:?} is not a name for a snapshot: use 1 to 64 letters, digits, '.', '_' or '-', \
             beginning with a letter or digit"
        ))),
    }
}

/// Are these labels for a snapshot?
pub(super) fn check_labels(labels: &[(String, String)]) -> Result<(), OpenError> {
    if labels.len() > LABELS_MAX {
        return Err(OpenError::Invalid(format!(
            "{} labels: a snapshot has at most {LABELS_MAX}",
            labels.len()
        )));
    }
    let is_too_long = |text: &str| text.len() > LABEL_BYTES_MAX;
    for (nth, (key, value)) in labels.iter().enumerate() {
        if key.is_empty() || is_too_long(key) || is_too_long(value) {
            return Err(OpenError::Invalid(format!(
                "label {key:?}: a key has 1 to {LABEL_BYTES_MAX} bytes, a value at most as many"
            )));
        }
        if labels[..nth].iter().any(|(other, _)| other == key) {
            return Err(OpenError::Invalid(format!("label {key:?} is given twice")));
        }
    }
    Ok(())
}

/// The snapshots of a volume, the oldest first: ordered by content, because clocks differ. Snapshots of an
/// earlier volume of the same name come first, if the clock was right. Those of a volume in the trash are
/// hidden.
pub(crate) async fn list_snapshots(
    engine: &Engine,
    volume: &str,
) -> Result<Vec<SnapshotInfo>, OpenError> {
    check_name(volume)?;
    // Before the store is asked: one that has its root meanwhile is found there.
    let kept = kept_of(engine, volume);
    let roots = snapshot_roots(engine, volume).await?;
    let found = roots.iter().map(|head| SnapshotInfo::of(&head.root));
    let mut found: Vec<SnapshotInfo> = found.collect();
    let parents: BTreeSet<VolumeId> = found.iter().filter_map(|info| info.of).collect();
    for parent in hidden(engine, volume, parents).await? {
        found.retain(|info| info.of != Some(parent));
    }
    for (tail, kept) in kept {
        let is_listed = found.iter().any(|info| info.id == kept.record.id);
        if kept.is_durable && !is_listed {
            found.push(SnapshotInfo::of_kept(tail.id().volume, &kept.record));
        }
    }
    sort_by_age(&mut found);
    Ok(found)
}

/// Those of the parents that are in the trash.
async fn hidden(
    engine: &Engine,
    name: &str,
    parents: BTreeSet<VolumeId>,
) -> Result<Vec<VolumeId>, OpenError> {
    let standing = match read_any_root(engine, name).await {
        Ok(head) => Some(head.root),
        Err(OpenError::NoSuchVolume(_)) => None,
        Err(error) => return Err(error),
    };
    // One that came out of the trash has those of what it was.
    let own = standing.filter(|root| !root.deleted);
    let is_own = |parent: &VolumeId| own.as_ref().is_some_and(|root| root.is_origin(*parent));
    let mut hidden = Vec::new();
    for parent in parents.into_iter().filter(|parent| !is_own(parent)) {
        if is_in_trash(engine, name, parent).await? {
            hidden.push(parent);
        }
    }
    Ok(hidden)
}

fn sort_by_age(found: &mut [SnapshotInfo]) {
    let mut begun: BTreeMap<Option<VolumeId>, u64> = BTreeMap::new();
    for info in found.iter() {
        let first = begun.entry(info.of).or_insert(info.unix_ms);
        *first = info.unix_ms.min(*first);
    }
    let order = |info: &SnapshotInfo| (begun[&info.of], info.of, info.lsn, info.unix_ms);
    found.sort_by(|one, other| {
        let by_age = order(one).cmp(&order(other));
        by_age.then_with(|| one.name.cmp(&other.name))
    });
}
