//! Which volume is to be rebuilt, and whether its root may be replaced.
//!
//! A root that can be read and whose index can be read is never replaced. Where it can be read and its index cannot, it
//! still says everything but where the content is; where it cannot, the volume is known by what its packs say.

use std::collections::{BTreeMap, BTreeSet};

use super::{RebuildError, RebuildPort, RebuildRequest};
use crate::check::footers::PackPart;
use crate::check::rootless::{RootlessVolume, add_slice, read_roots};
use crate::check::walk::Walk;
use crate::check::{CheckPort, no_answer};
use crate::driver::{StoreError, Version};
use crate::hostlog::marks::Pin;
use crate::hostlog::names::{INDEX_PREFIX, PIN_PREFIX, tombstone_key, trash_prefix};
use crate::object::pack::Lineage;
use crate::object::root::{RenameStep, Root};
use crate::object::{FormatError, SNAPSHOT_SIGN, root_key};
use crate::store::catalog::volume_spec::{check_name, check_size};
use crate::store::forks::snapshot_list::check_snapshot_name;
use crate::units::{Lsn, VolumeId, VolumeSize};

/// The volume.
pub(super) struct Target {
    pub(super) volume: VolumeId,
    /// The name under which it is published.
    pub(super) name: String,
    pub(super) size: VolumeSize,
    /// What it was forked from.
    pub(super) lineage: Lineage,
    /// Its root, if that can be read.
    pub(super) root: Option<Root>,
    /// What stands in the root's place; none: nothing.
    pub(super) version: Option<Version>,
    /// All other roots of volumes and snapshots that can be read, tombstones included.
    pub(super) others: BTreeMap<String, Root>,
}

impl Target {
    /// The volumes whose content may be in it, itself first.
    pub(super) fn origins(&self) -> Vec<VolumeId> {
        let ancestors = self.lineage.iter().map(|ancestor| ancestor.volume);
        [self.volume].into_iter().chain(ancestors).collect()
    }

    /// Up to here the volume was committed, as far as roots say: its own, and those of snapshots and forks.
    pub(super) fn known_lsn(&self) -> Lsn {
        let of_root = |root: &Root| {
            let own = (root.volume == self.volume).then_some(root.lsn);
            let lineage = root.lineage();
            let below = lineage.iter().filter(|it| it.volume == self.volume);
            own.into_iter().chain(below.map(|it| it.last)).max()
        };
        let others = self.others.values().filter_map(of_root);
        let own = self.root.as_ref().map(|root| root.lsn);
        others.chain(own).max().unwrap_or_default()
    }
}

/// Finds the volume.
pub(super) async fn find(
    port: &impl RebuildPort,
    request: &RebuildRequest,
    parts: &[PackPart],
) -> Result<Target, RebuildError> {
    let name = &request.name;
    check_names(request)?;
    let mut others = all_roots(port).await?;
    let standing = read_root(port, name).await?;
    let before = others.remove(name).map(|root| root.volume);
    if let Some((Some(root), _)) = &standing
        && before != Some(root.volume)
    {
        return Err(RebuildError::Outrun(root_key(name)));
    }
    let mut version = None;
    if let Some((root, at)) = standing {
        match root {
            Some(root) if !root.deleted && is_wanted(request, root.volume) => {
                let size = size_of(request, root.size())?;
                check_index_lost(port, &root).await?;
                return Ok(Target {
                    volume: root.volume,
                    name: root.name.clone(),
                    size,
                    lineage: root.lineage(),
                    root: Some(root),
                    version: Some(at),
                    others,
                });
            }
            Some(root) => {
                // Its name is another volume's, or was.
                if let (Some(mark), None) = (root.rename_mark(), &request.volume)
                    && mark.step != RenameStep::Kept
                {
                    let mut standing = others.iter().filter(|(_, root)| !root.deleted);
                    let found = standing.find(|(_, root)| root.volume == mark.volume);
                    let new = found.map_or(mark.other, |(new, _)| new.clone());
                    return Err(RebuildError::Renamed(name.clone(), new));
                }
                let is_tombstone = root.deleted;
                if is_tombstone && request.volume.is_none() {
                    return Err(RebuildError::Deleted(name.clone()));
                }
                if request.new_name.is_none() {
                    return Err(RebuildError::Taken(name.clone()));
                }
                others.insert(name.clone(), root);
            }
            None => version = Some(at),
        }
    }
    if name.contains(SNAPSHOT_SIGN) {
        return Err(RebuildError::Snapshot(name.clone()));
    }
    find_rootless(port, request, parts, others, version).await
}

/// Finds the volume by what its packs say, or the pin of a fork that has none.
async fn find_rootless(
    port: &impl RebuildPort,
    request: &RebuildRequest,
    parts: &[PackPart],
    others: BTreeMap<String, Root>,
    mut version: Option<Version>,
) -> Result<Target, RebuildError> {
    let found = find_volume(port, request, parts, &others).await;
    let pinned = match &found {
        Err(RebuildError::NotFound(..)) => pinned_root(port, request, &others).await?,
        _ => None,
    };
    let volume = match &pinned {
        Some(root) => root.volume,
        None => found?,
    };
    let name = match &request.new_name {
        Some(new) => {
            version = None;
            if read_root(port, new).await?.is_some() {
                return Err(RebuildError::Taken(new.clone()));
            }
            new.clone()
        }
        None => request.name.clone(),
    };
    let is_own = |part: &&PackPart| {
        let slice = &part.slice;
        slice.origin == volume && !slice.is_copy_of_a_fork()
    };
    let own = parts.iter().filter(is_own);
    let newest = own.max_by_key(|part| (part.slice.epoch, part.slice.last));
    let said = match (newest, &pinned) {
        (Some(PackPart { slice, .. }), _) => Some((slice.volume.size, slice.lineage.clone())),
        (None, Some(root)) => Some((root.size(), root.lineage())),
        (None, None) => None,
    };
    let (size, lineage) = said.ok_or_else(|| RebuildError::NotFound(name.clone(), Vec::new()))?;
    Ok(Target {
        volume,
        name,
        size: size_of(request, size)?,
        lineage,
        root: None,
        version,
        others,
    })
}

fn check_names(request: &RebuildRequest) -> Result<(), RebuildError> {
    let name = &request.name;
    let valid = match name.contains(SNAPSHOT_SIGN) {
        true => check_snapshot_name(name).map(drop),
        false => check_name(name),
    };
    let new_name = request.new_name.iter();
    let valid = new_name.fold(valid, |valid, new| valid.and_then(|()| check_name(new)));
    valid.map_err(|error| RebuildError::Invalid(error.to_string()))
}

/// The first root of a fork that was never written: the pin that was there before the root has it, until a collector
/// has found that it is not needed. A volume that was renamed has such a pin, too, and its root.
async fn pinned_root(
    port: &impl RebuildPort,
    request: &RebuildRequest,
    others: &BTreeMap<String, Root>,
) -> Result<Option<Root>, RebuildError> {
    let pins = read_pins(port, "").await?;
    let mut roots = pins.into_iter().map(|pin| pin.root);
    let has_root = |root: &Root| {
        let is_rooted = others.values().any(|other| other.volume == root.volume);
        is_rooted && !canary::active!("pinned_volume_is_lost")
    };
    let wanted = |root: &Root| {
        let is_it = match request.volume {
            Some(id) => root.volume == id,
            None => root.name == request.name,
        };
        is_it && !has_root(root)
    };
    let Some(root) = roots.find(wanted) else {
        return Ok(None);
    };
    match is_deleted(port, root.volume).await? {
        true => Err(RebuildError::Deleted(request.name.clone())),
        false => Ok(Some(root)),
    }
}

/// Pins whose keys have a text in them.
pub(super) async fn read_pins(
    port: &impl RebuildPort,
    part: &str,
) -> Result<Vec<Pin>, RebuildError> {
    let keys = port.list(PIN_PREFIX).await;
    let keys = keys.map_err(|error| no_answer(PIN_PREFIX, &error))?;
    let mut pins = Vec::new();
    for (key, _) in keys.into_iter().filter(|(key, _)| key.contains(part)) {
        match port.get(&key).await {
            Ok((data, _)) => pins.extend(Pin::decode(&data)),
            Err(StoreError::NotFound) => {}
            Err(error) => return Err(no_answer(&key, &error).into()),
        }
    }
    Ok(pins)
}

fn is_wanted(request: &RebuildRequest, volume: VolumeId) -> bool {
    request.new_name.is_none() && request.volume.is_none_or(|wanted| wanted == volume)
}

fn size_of(request: &RebuildRequest, known: VolumeSize) -> Result<VolumeSize, RebuildError> {
    match request.bytes {
        None => Ok(known),
        Some(bytes) if bytes < known.bytes => Err(RebuildError::TooSmall(known.bytes)),
        Some(bytes) => {
            check_size(bytes).map_err(|error| RebuildError::Invalid(error.to_string()))?;
            Ok(VolumeSize { bytes, ..known })
        }
    }
}

/// A root, if it can be used, and its version. One that a newer firn wrote is no lost one.
async fn read_root(
    port: &impl RebuildPort,
    name: &str,
) -> Result<Option<(Option<Root>, Version)>, RebuildError> {
    let key = root_key(name);
    match port.get(&key).await {
        Ok((data, version)) => match Root::decode(&data) {
            Ok(root) => Ok(Some((Some(root).filter(|root| root.name == name), version))),
            Err(error @ FormatError::Newer(_)) if !canary::active!("a_newer_root_is_lost") => {
                Err(RebuildError::Invalid(format!("{key}: {error}")))
            }
            Err(_) => Ok(Some((None, version))),
        },
        Err(StoreError::NotFound) => Ok(None),
        Err(error) => Err(no_answer(&key, &error).into()),
    }
}

/// Refuses a root whose index can be read.
async fn check_index_lost(port: &impl CheckPort, root: &Root) -> Result<(), RebuildError> {
    let damaged = Walk::new(port, false).damaged_objects(root).await?;
    let is_lost = damaged.iter().any(|key| key.starts_with(INDEX_PREFIX));
    match is_lost || canary::active!("a_whole_root_is_rebuilt") {
        true => Ok(()),
        false => Err(RebuildError::Whole(root.name.clone())),
    }
}

/// The roots of all volumes and snapshots, tombstones included.
async fn all_roots(port: &impl RebuildPort) -> Result<BTreeMap<String, Root>, RebuildError> {
    let roots = read_roots(port).await?.into_iter();
    Ok(roots
        .filter_map(|(name, root)| Some((name, root?)))
        .collect())
}

/// The volume without a root that had the name when its newest pack was written.
async fn find_volume(
    port: &impl RebuildPort,
    request: &RebuildRequest,
    parts: &[PackPart],
    others: &BTreeMap<String, Root>,
) -> Result<VolumeId, RebuildError> {
    let rooted: BTreeSet<VolumeId> = others.values().map(|root| root.volume).collect();
    let mut lost: BTreeMap<VolumeId, RootlessVolume> = BTreeMap::new();
    for part in parts {
        let slice = &part.slice;
        if rooted.contains(&slice.origin) {
            continue;
        }
        add_slice(&mut lost, slice);
    }
    let wanted = |volume: &RootlessVolume| match request.volume {
        Some(id) => volume.volume == id,
        None => volume.name == request.name,
    };
    let mut found: Vec<RootlessVolume> = Vec::new();
    let mut deleted = false;
    for volume in lost.values().filter(|volume| wanted(volume)) {
        match is_deleted(port, volume.volume).await? {
            true => deleted = true,
            false => found.push(volume.clone()),
        }
    }
    match &found[..] {
        [one] => Ok(one.volume),
        [] if deleted => Err(RebuildError::Deleted(request.name.clone())),
        [] => {
            let others = lost.into_values().collect();
            Err(RebuildError::NotFound(request.name.clone(), others))
        }
        _ => Err(RebuildError::Ambiguous(request.name.clone(), found)),
    }
}

/// Whether the volume was deleted, and another took its name.
async fn is_deleted(port: &impl RebuildPort, volume: VolumeId) -> Result<bool, RebuildError> {
    let tombstone = tombstone_key(volume);
    match port.get(&tombstone).await {
        Ok(_) => return Ok(true),
        Err(StoreError::NotFound) => {}
        Err(error) => return Err(no_answer(&tombstone, &error).into()),
    }
    let prefix = trash_prefix(volume);
    let aside = port.list(&prefix).await;
    let aside = aside.map_err(|error| no_answer(&prefix, &error))?;
    Ok(!aside.is_empty())
}
