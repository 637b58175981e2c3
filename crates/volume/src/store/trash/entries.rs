//! What is in the trash, and under which names.
//!
//! Reads only. A root that was put aside counts as long as its volume has no other root: one that was restored in
//! place while somebody was about to take its name has left the trash.

use std::collections::BTreeMap;

use crate::driver::{StoreError, StoreOp, StoreReply};
use crate::engine::Engine;
use crate::error::OpenError;
use crate::hostlog::names::{TRASH_PREFIX, trash_prefix};
use crate::jobs::join_all;
use crate::object::root::{Root, TrashMark};
use crate::object::{ROOT_PREFIX, volume_of_root_key};
use crate::store::flow::upload_state::KnownRoot;
use crate::store::forks::snapshot_roots::snapshot_roots;
use crate::store::objects::{store_error, store_with_retry};
use crate::store::roots::{list_keys, read_any_root};
use crate::units::{VolumeId, parse_hex_identity};

/// Roots that are read side by side.
const READS_AT_ONCE: usize = 32;

/// A volume in the trash.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TrashedVolume {
    /// The name that it had.
    pub name: String,
    /// Its identity.
    pub id: VolumeId,
    /// Its size in bytes.
    pub bytes: u64,
    /// When it was deleted, milliseconds since 1970.
    pub deleted_unix_ms: u64,
    /// Until when it is kept at least.
    pub until_unix_ms: u64,
    /// How many snapshots it has.
    pub snapshots: usize,
}

/// A root in the trash, and where it stands.
#[derive(Clone, Debug)]
pub(super) struct TrashEntry {
    pub(super) head: KnownRoot,
    pub(super) mark: TrashMark,
    /// The key under which it was put aside; none: it stands under its name.
    pub(super) aside: Option<String>,
}

impl TrashEntry {
    pub(super) fn volume(&self) -> VolumeId {
        self.head.root.volume
    }

    pub(super) fn name(&self) -> &str {
        &self.head.root.name
    }

    fn of(head: KnownRoot, aside: Option<String>) -> Option<TrashEntry> {
        let mark = head.root.trash_mark()?;
        Some(TrashEntry { head, mark, aside })
    }

    /// The entry as it stands now; none: it is gone, or another root is there.
    pub(super) async fn read_again(&self, engine: &Engine) -> Result<Option<KnownRoot>, OpenError> {
        let found = match &self.aside {
            Some(key) => read_aside(engine, key).await?,
            None => match read_any_root(engine, self.name()).await {
                Ok(head) => Some(head),
                Err(OpenError::NoSuchVolume(_)) => None,
                Err(error) => return Err(error),
            },
        };
        let is_same =
            |head: &KnownRoot| head.root.volume == self.volume() && head.root.is_in_trash();
        Ok(found.filter(is_same))
    }
}

/// All that is in the trash, what was deleted first in front.
pub(crate) async fn list(engine: &Engine) -> Result<Vec<TrashedVolume>, OpenError> {
    let mut listed = Vec::new();
    for entry in all(engine).await? {
        let snapshots = snapshots_of(engine, &entry).await?.len();
        listed.push(TrashedVolume {
            name: entry.name().to_owned(),
            id: entry.volume(),
            bytes: entry.head.root.bytes,
            deleted_unix_ms: entry.mark.deleted_unix_ms,
            until_unix_ms: entry.mark.until_unix_ms,
            snapshots,
        });
    }
    Ok(listed)
}

/// The snapshots that a volume in the trash has.
pub(super) async fn snapshots_of(
    engine: &Engine,
    entry: &TrashEntry,
) -> Result<Vec<KnownRoot>, OpenError> {
    let mut found = snapshot_roots(engine, entry.name()).await?;
    let is_its = |head: &KnownRoot| {
        let lineage = head.root.lineage();
        lineage.first().map(|parent| parent.volume) == Some(entry.volume())
    };
    found.retain(is_its);
    Ok(found)
}

/// The one that was deleted last of those that had this name, or that has this id.
pub(super) async fn find(engine: &Engine, which: &str) -> Result<TrashEntry, OpenError> {
    let id = parse_hex_identity(which).map(VolumeId);
    let entries = match id {
        Some(_) => all(engine).await?,
        None => of_name(engine, which).await?,
    };
    let is_it = |entry: &TrashEntry| entry.name() == which || Some(entry.volume()) == id;
    let mut found = entries.into_iter().rev();
    found
        .find(is_it)
        .ok_or_else(|| OpenError::NotInTrash(which.to_owned()))
}

/// Those that had this name, what was deleted first in front.
pub(super) async fn of_name(engine: &Engine, name: &str) -> Result<Vec<TrashEntry>, OpenError> {
    let under = match read_any_root(engine, name).await {
        Ok(head) => Some(head),
        Err(OpenError::NoSuchVolume(_)) => None,
        Err(error) => return Err(error),
    };
    let mut found = all_aside(engine).await?;
    found.retain(|entry| entry.name() == name);
    Ok(in_order(under.into_iter().collect(), found))
}

async fn all(engine: &Engine) -> Result<Vec<TrashEntry>, OpenError> {
    let keys = list_keys(engine, ROOT_PREFIX).await?;
    let names = keys.iter().filter_map(|key| volume_of_root_key(key));
    let names: Vec<&str> = names.collect();
    let mut roots = Vec::new();
    for names in names.chunks(READS_AT_ONCE) {
        let reads = names
            .iter()
            .map(|name| Box::pin(read_any_root(engine, name)));
        for read in join_all(reads.collect()).await {
            match read {
                // Of others the name and the id matter alone.
                Ok(head) => roots.push(head),
                Err(OpenError::NoSuchVolume(_)) => {}
                Err(error) => return Err(error),
            }
        }
    }
    // After the roots: one that is put aside stands there before its name is taken.
    Ok(in_order(roots, all_aside(engine).await?))
}

/// Of roots under names and roots that were put aside those that are in the trash, one of each volume.
fn in_order(roots: Vec<KnownRoot>, aside: Vec<TrashEntry>) -> Vec<TrashEntry> {
    let under: BTreeMap<VolumeId, KnownRoot> = roots
        .into_iter()
        .map(|head| (head.root.volume, head))
        .collect();
    let mut entries: BTreeMap<VolumeId, TrashEntry> = BTreeMap::new();
    for entry in aside {
        let is_older = |other: &TrashEntry| other.head.root.epoch > entry.head.root.epoch;
        let volume = entry.volume();
        if !under.contains_key(&volume) && !entries.get(&volume).is_some_and(is_older) {
            entries.insert(volume, entry);
        }
    }
    let named = under.into_values();
    let named = named.filter_map(|head| TrashEntry::of(head, None));
    let mut found: Vec<TrashEntry> = entries.into_values().chain(named).collect();
    found.sort_by_key(|entry| (entry.mark.deleted_unix_ms, entry.head.root.epoch));
    found
}

/// Every root that was put aside, also of volumes that have others.
pub(super) async fn all_aside(engine: &Engine) -> Result<Vec<TrashEntry>, OpenError> {
    let keys = list_keys(engine, TRASH_PREFIX).await?;
    let mut found = Vec::new();
    for keys in keys.chunks(READS_AT_ONCE) {
        let reads = keys.iter().map(|key| Box::pin(read_aside(engine, key)));
        for (key, read) in keys.iter().zip(join_all(reads.collect()).await) {
            let entry = read?.and_then(|head| TrashEntry::of(head, Some(key.clone())));
            found.extend(entry);
        }
    }
    Ok(found)
}

/// The keys of all roots of a volume that were put aside.
pub(super) async fn aside_of(engine: &Engine, volume: VolumeId) -> Result<Vec<String>, OpenError> {
    list_keys(engine, &trash_prefix(volume)).await
}

/// A root that was put aside; none: it is gone.
async fn read_aside(engine: &Engine, key: &str) -> Result<Option<KnownRoot>, OpenError> {
    let op = StoreOp::Get {
        key: key.to_owned(),
    };
    match store_with_retry(engine, op).await {
        Ok(StoreReply::Object { data, version }) => match Root::decode(&data) {
            Ok(root) => Ok(Some(KnownRoot { root, version })),
            Err(error) => Err(OpenError::Corrupt(format!("{key}: {error}"))),
        },
        Ok(_) => Err(OpenError::Store(format!(
            "{key}: the store's answer does not fit"
        ))),
        Err(StoreError::NotFound) => Ok(None),
        Err(error) => Err(store_error("read", key, &error)),
    }
}

/// Whether a volume of this name that is in the trash has this id: its snapshots are hidden.
pub(in crate::store) async fn is_in_trash(
    engine: &Engine,
    name: &str,
    volume: VolumeId,
) -> Result<bool, OpenError> {
    let entries = of_name(engine, name).await?;
    Ok(entries.iter().any(|entry| entry.volume() == volume))
}

/// What keeps a snapshot's name.
pub(in crate::store) async fn why_taken(
    engine: &Engine,
    head: &KnownRoot,
) -> Result<OpenError, OpenError> {
    let name = &head.root.name;
    let volume = name.split('@').next().unwrap_or_default();
    let of = head.root.lineage().first().map(|parent| parent.volume);
    let is_hidden = match of {
        Some(of) => is_in_trash(engine, volume, of).await?,
        None => false,
    };
    Ok(match is_hidden {
        false => OpenError::Exists(name.clone()),
        true => OpenError::Invalid(format!(
            "{name} is a snapshot of a volume {volume} that is in the trash: choose another name, or free this one with \
             `firn trash restore {of} --as NEW` or `firn trash empty {of}`",
            of = of.unwrap_or_default()
        )),
    })
}
