//! The list of a volume's snapshots, and the rules for names and labels.
//!
//! Reads only. The list is of names: the roots of a volume's snapshots stand under one prefix.

use std::collections::BTreeMap;

use crate::engine::Engine;
use crate::error::OpenError;
use crate::log::snapshot_record::SnapshotRecord;
use crate::object::SNAPSHOT_SIGN;
use crate::object::extensions::Labels;
use crate::object::root::Root;
use crate::request::points::KeptSnapshot;
use crate::store::catalog::volume_spec::check_name;
use crate::store::flow::upload_state::KnownRoot;
use crate::store::forks::kept_snapshots::kept_of;
use crate::store::parts::{ListPart, ListPlace, PartBuilder, RootWalk};
use crate::store::roots::{read_any_root, read_root};
use crate::store::trash::entries::find_in_trash;
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

/// A part of the snapshots of a volume, by name; those of an earlier volume of the same name are among them. Those of a
/// volume in the trash are hidden.
pub(crate) async fn list_snapshots(
    engine: &Engine,
    volume: &str,
    place: &ListPlace,
) -> Result<ListPart<SnapshotInfo>, OpenError> {
    check_name(volume)?;
    let after = match &place.after {
        None => None,
        Some(after) => match check_snapshot_name(after)? {
            (of, after) if of == volume => Some(after),
            _ => {
                return Err(OpenError::Invalid(format!(
                    "{after:?} is no snapshot of {volume}: a list goes on behind a name of its own"
                )));
            }
        },
    };
    // Before the store is asked: one that has its root meanwhile is found there.
    let mut kept = kept_behind(engine, volume, place.after.as_deref());
    let mut walk = RootWalk::of_snapshots(engine, volume, after);
    let mut parents = Parents::read(engine, volume).await?;
    let mut part = PartBuilder::new(place.limit);
    while let Some(roots) = walk.next(part.wanted()).await? {
        for KnownRoot { root, .. } in roots {
            while let Some(before) = kept.first_entry().filter(|kept| *kept.key() < root.name) {
                let (name, info) = before.remove_entry();
                if !part.add(&name, Some(info)) {
                    return Ok(part.finish());
                }
            }
            // What stands there may be the tombstone of one that had the name before.
            let kept = kept
                .remove(&root.name)
                .filter(|kept| kept.id != root.volume);
            // One that is on its way after its volume is told as it was, so that nobody takes it for lost.
            let is_there = !root.deleted || root.is_leaving();
            let info = is_there.then(|| SnapshotInfo::of(&root));
            let info = match info {
                Some(info) if parents.hide(&info).await? => None,
                info => info,
            };
            if !part.add(&root.name, info.or(kept)) {
                return Ok(part.finish());
            }
        }
    }
    for (name, info) in kept {
        if !part.add(&name, Some(info)) {
            return Ok(part.finish());
        }
    }
    Ok(part.finish())
}

/// The snapshots of a volume that the log keeps, and whose names are behind this one.
fn kept_behind(
    engine: &Engine,
    volume: &str,
    after: Option<&str>,
) -> BTreeMap<String, SnapshotInfo> {
    let is_listed = |kept: &KeptSnapshot| {
        let is_behind = after.is_none_or(|after| kept.record.name.as_str() > after);
        kept.is_durable && is_behind
    };
    let kept = kept_of(engine, volume).into_iter();
    let kept = kept.filter(|(_, kept)| is_listed(kept));
    kept.map(|(tail, kept)| {
        let info = SnapshotInfo::of_kept(tail.id().volume, &kept.record);
        (info.name.clone(), info)
    })
    .collect()
}

/// One snapshot, as a list has it.
pub(crate) async fn show_snapshot(engine: &Engine, name: &str) -> Result<SnapshotInfo, OpenError> {
    let (volume, _) = check_snapshot_name(name)?;
    let missing = || OpenError::NoSuchSnapshot(name.to_owned());
    let kept = kept_behind(engine, volume, None).remove(name);
    let head = match read_root(engine, name).await {
        Err(OpenError::NoSuchVolume(_)) => return kept.ok_or_else(missing),
        Err(renamed @ (OpenError::Renamed { .. } | OpenError::RenamedAndGone { .. })) => {
            return kept.ok_or(renamed);
        }
        head => head?,
    };
    let info = SnapshotInfo::of(&head.root);
    let mut parents = Parents::read(engine, volume).await?;
    match parents.hide(&info).await? {
        true => Err(missing()),
        false => Ok(info),
    }
}

/// Volumes that have, or had, one name, and which of them are in the trash.
struct Parents<'a> {
    engine: &'a Engine,
    name: &'a str,
    /// What stands under the name.
    standing: Option<KnownRoot>,
    in_trash: BTreeMap<VolumeId, bool>,
}

impl Parents<'_> {
    async fn read<'a>(engine: &'a Engine, name: &'a str) -> Result<Parents<'a>, OpenError> {
        let standing = match read_any_root(engine, name).await {
            Ok(head) => Some(head),
            Err(OpenError::NoSuchVolume(_)) => None,
            Err(error) => return Err(error),
        };
        Ok(Parents {
            engine,
            name,
            standing,
            in_trash: BTreeMap::new(),
        })
    }

    /// Whether a snapshot is hidden: its volume is in the trash.
    async fn hide(&mut self, info: &SnapshotInfo) -> Result<bool, OpenError> {
        let Some(parent) = info.of else {
            return Ok(false);
        };
        let standing = self.standing.as_ref();
        // One that came out of the trash has those of what it was.
        let own = standing.filter(|head| !head.root.deleted);
        if own.is_some_and(|head| head.root.is_origin(parent)) {
            return Ok(false);
        }
        if let Some(known) = self.in_trash.get(&parent) {
            return Ok(*known);
        }
        let found = find_in_trash(self.engine, self.name, standing, parent)
            .await?
            .is_some();
        self.in_trash.insert(parent, found);
        Ok(found)
    }
}
