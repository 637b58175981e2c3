//! Volumes that have packs or snapshots, and neither a root nor a tombstone: somebody removed their roots.
//!
//! A volume has one of the two from before its first pack and for ever, see store-protocol.md. Each footer says whose
//! a pack is, what the volume was called and how large it was. Where a snapshot names all packs of its volume, its
//! own name says that there was one. Before a volume is called lost all roots are read until it is certain that it has none:
//! one that gets another name meanwhile may be read under neither.

use std::collections::{BTreeMap, BTreeSet};

use super::footers::{ListedPack, list_packs, read_parts};
use super::{CheckError, CheckPort, SIDE_BY_SIDE, no_answer};
use crate::driver::StoreError;
use crate::hostlog::names::{TOMB_PREFIX, TRASH_PREFIX};
use crate::jobs::join_all;
use crate::object::name_table::NameTable;
use crate::object::pack::Slice;
use crate::object::root::Root;
use crate::object::{
    ObjectId, ROOT_PREFIX, SNAPSHOT_PREFIX, SNAPSHOT_SIGN, name_of_root_key, root_key,
};
use crate::units::{Lsn, VolumeId, parse_hex_identity};

/// Looks through all roots before it is given up: of two that follow each other nobody may have got another name.
const LOOKS_MAX: u32 = 16;

/// A volume without a root.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RootlessVolume {
    /// Its id.
    pub volume: VolumeId,
    /// What it was called when its newest pack was written.
    pub name: String,
    /// Its size then.
    pub bytes: u64,
    /// The newest LSN of its packs.
    pub last: Lsn,
    /// How many packs that nothing names have something of it.
    pub packs: u64,
}

/// Counts a slice of a pack for its volume, of which the newest slice says name and size.
pub(crate) fn add_slice(volumes: &mut BTreeMap<VolumeId, RootlessVolume>, slice: &Slice) {
    if slice.is_copy_of_a_fork() {
        return;
    }
    let volume = volumes.entry(slice.origin).or_insert(RootlessVolume {
        volume: slice.origin,
        name: String::new(),
        bytes: 0,
        last: Lsn::ZERO,
        packs: 0,
    });
    volume.packs += 1;
    if slice.last >= volume.last {
        volume.last = slice.last;
        volume.name = slice.volume.name.to_string();
        volume.bytes = slice.volume.size.bytes;
    }
}

/// Which volumes have roots.
#[derive(Debug, Default)]
pub(crate) struct KnownRoots {
    volumes: BTreeSet<VolumeId>,
    /// Names of roots that cannot be decoded: whose they are is not known.
    unreadable: BTreeSet<String>,
    /// Names of volumes that have a root, or a tombstone.
    names: BTreeSet<String>,
    /// What snapshots say of their volumes, by the name of the volume.
    parents: BTreeMap<String, RootlessVolume>,
}

impl KnownRoots {
    pub(crate) fn insert(&mut self, name: &str, root: Option<&Root>) {
        match name.split_once(SNAPSHOT_SIGN) {
            None => drop(self.names.insert(name.to_owned())),
            Some((volume, _)) => self.insert_parent(volume, root),
        }
        match root {
            Some(root) => drop(self.volumes.insert(root.volume)),
            None => drop(self.unreadable.insert(name.to_owned())),
        }
    }

    /// Notes the volume of a snapshot, as the newest of its snapshots has it.
    fn insert_parent(&mut self, name: &str, snapshot: Option<&Root>) {
        let Some(snapshot) = snapshot else { return };
        let lineage = snapshot.lineage();
        let Some(parent) = lineage.first() else {
            return;
        };
        let known = self.parents.get(name);
        if known.is_none_or(|known| known.last < snapshot.lsn) {
            let volume = RootlessVolume {
                volume: parent.volume,
                name: name.to_owned(),
                bytes: snapshot.bytes,
                last: snapshot.lsn,
                packs: 0,
            };
            self.parents.insert(name.to_owned(), volume);
        }
    }
}

/// The volumes without a root.
///
/// # Errors
/// If the store gives no answer.
pub async fn find_rootless(port: &impl CheckPort) -> Result<Vec<RootlessVolume>, CheckError> {
    let mut roots = KnownRoots::default();
    for (name, root) in read_roots(port).await? {
        roots.insert(&name, root.as_ref());
    }
    let found = find_among(port, &roots, |_| false).await?;
    Ok(found.lost)
}

/// The roots of all volumes and snapshots by name; none where one cannot be decoded. Whose root is not among them had none
/// at one moment between call and return.
///
/// # Errors
/// If the store gives no answer, or volumes get other names faster than roots are read.
pub(crate) async fn read_roots(
    port: &impl CheckPort,
) -> Result<Vec<(String, Option<Root>)>, CheckError> {
    let mut before: Option<NameTable> = None;
    for _ in 0..LOOKS_MAX {
        let roots = read_roots_once(port).await?;
        let mut table = NameTable::default();
        for (name, root) in &roots {
            root.iter().for_each(|root| table.insert(name, root));
        }
        let is_certain = before.is_some_and(|before| table.confirms(&before));
        if is_certain || canary::active!("a_rebuild_looks_once") {
            return Ok(roots);
        }
        before = Some(table);
    }
    Err(CheckError::NamesMoving)
}

async fn read_roots_once(port: &impl CheckPort) -> Result<Vec<(String, Option<Root>)>, CheckError> {
    let mut roots = Vec::new();
    for prefix in [ROOT_PREFIX, SNAPSHOT_PREFIX] {
        let keys = port.list(prefix).await;
        let keys = keys.map_err(|error| no_answer(prefix, &error))?;
        let names = keys.iter().filter_map(|(key, _)| name_of_root_key(key));
        let names: Vec<String> = names.collect();
        for window in names.chunks(SIDE_BY_SIDE) {
            let keys: Vec<String> = window.iter().map(|name| root_key(name)).collect();
            let reads = keys.iter().map(|key| Box::pin(port.get(key)));
            for (name, found) in window.iter().zip(join_all(reads.collect()).await) {
                match found {
                    Ok((data, _)) => roots.push((name.clone(), Root::decode(&data).ok())),
                    Err(StoreError::NotFound) => {}
                    Err(error) => return Err(no_answer(&root_key(name), &error)),
                }
            }
        }
    }
    Ok(roots)
}

/// Volumes that seemed to have no root.
#[derive(Debug, Default)]
pub(crate) struct Rootless {
    /// Those that have none.
    pub(crate) lost: Vec<RootlessVolume>,
    /// The names of those that have one, which was not found at first.
    pub(crate) elsewhere: Vec<String>,
}

/// The volumes without a root among those of packs that nothing names, and of snapshots.
pub(crate) async fn find_among(
    port: &impl CheckPort,
    roots: &KnownRoots,
    is_named: impl Fn(ObjectId) -> bool,
) -> Result<Rootless, CheckError> {
    let mut packs = list_packs(port).await?;
    packs.retain(|pack| !is_named(pack.id()));
    let deleted = deleted_volumes(port).await?;
    let mut found: BTreeMap<VolumeId, RootlessVolume> = BTreeMap::new();
    for part in read_parts(port, &recorded(packs), |_| {}).await? {
        for part in part.into_iter().flatten() {
            let slice = part.slice;
            if roots.volumes.contains(&slice.origin) || deleted.contains(&slice.origin) {
                continue;
            }
            add_slice(&mut found, &slice);
        }
    }
    let mut lost = Vec::new();
    for volume in found.into_values() {
        if !roots.unreadable.contains(&volume.name) && !has_root_now(port, &volume).await? {
            lost.push(volume);
        }
    }
    for (name, volume) in &roots.parents {
        let is_found = lost.iter().any(|found| found.name == *name);
        if !is_found && !roots.names.contains(name) && !has_any_root_now(port, name).await? {
            lost.push(volume.clone());
        }
    }
    look_again(port, lost).await
}

/// Divides volumes that seem to have no root into those that have none, and those that got another name.
async fn look_again(
    port: &impl CheckPort,
    mut lost: Vec<RootlessVolume>,
) -> Result<Rootless, CheckError> {
    let mut elsewhere = Vec::new();
    if lost.is_empty() || canary::active!("the_check_looks_once") {
        return Ok(Rootless { lost, elsewhere });
    }
    let standing = read_roots(port).await?;
    let standing = standing.into_iter();
    let standing: Vec<(String, Root)> = standing
        .filter_map(|(name, root)| Some((name, root?)))
        .collect();
    lost.retain(|volume| {
        // A snapshot tells of the volume that it was taken of, which may have been deleted when another came of it.
        let counts = |root: &Root| volume.packs > 0 || !root.deleted || root.is_leaving();
        let is_its = |(_, root): &&(String, Root)| root.volume == volume.volume && counts(root);
        let before = elsewhere.len();
        elsewhere.extend(standing.iter().filter(is_its).map(|(name, _)| name.clone()));
        elsewhere.len() == before
    });
    Ok(Rootless { lost, elsewhere })
}

/// Whether a volume of the name was made after the roots were listed.
async fn has_any_root_now(port: &impl CheckPort, name: &str) -> Result<bool, CheckError> {
    let key = root_key(name);
    match port.get(&key).await {
        Ok(_) => Ok(true),
        Err(StoreError::NotFound) => Ok(false),
        Err(error) => Err(no_answer(&key, &error)),
    }
}

/// Whether the volume was made after the roots were listed.
async fn has_root_now(port: &impl CheckPort, volume: &RootlessVolume) -> Result<bool, CheckError> {
    let key = root_key(&volume.name);
    match port.get(&key).await {
        Ok((data, _)) => Ok(Root::decode(&data).is_ok_and(|root| root.volume == volume.volume)),
        Err(StoreError::NotFound) => Ok(false),
        Err(error) => Err(no_answer(&key, &error)),
    }
}

/// Packs that no record names before a root does (those of rescue forks) may be on the way to their first root.
fn recorded(mut packs: Vec<ListedPack>) -> Vec<ListedPack> {
    packs.retain(|pack| pack.session.session.number > 0);
    packs
}

/// Volumes that have a tombstone, or are in the trash, behind a name that another has.
async fn deleted_volumes(port: &impl CheckPort) -> Result<BTreeSet<VolumeId>, CheckError> {
    let mut deleted = BTreeSet::new();
    for prefix in [TOMB_PREFIX, TRASH_PREFIX] {
        let keys = port.list(prefix).await;
        for (key, _) in keys.map_err(|error| no_answer(prefix, &error))? {
            let id = key
                .strip_prefix(prefix)
                .and_then(|key| key.split('/').next());
            deleted.extend(id.and_then(parse_hex_identity).map(VolumeId));
        }
    }
    Ok(deleted)
}
