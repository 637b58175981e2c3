//! What is in the trash, and under which names.
//!
//! Reads only. A root that was put aside counts as long as its volume has no other root, under whatever name: one that was
//! restored in place while somebody was about to take its name has left the trash, and may have been renamed since.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use crate::driver::{StoreError, StoreOp, StoreReply};
use crate::engine::Engine;
use crate::error::OpenError;
use crate::hostlog::names::{TRASH_PREFIX, trash_prefix};
use crate::jobs::join_all;
use crate::object::pack::Lineage;
use crate::object::root::{RenameStep, Root, TrashMark};
use crate::store::catalog::volume_spec::check_name;
use crate::store::flow::upload_state::KnownRoot;
use crate::store::objects::{store_error, store_with_retry};
use crate::store::parts::{KEYS_AT_ONCE, ListPart, ListPlace, PartBuilder, RootWalk, list_part};
use crate::store::rename::identity::find_volume;
use crate::store::roots::{READS_AT_ONCE, list_keys, read_any_root};
use crate::store::trash::rooted::RootedVolumes;
use crate::units::{VolumeId, parse_hex_identity};

/// What the places of those begin with whose names others have taken; no name has a colon.
const ASIDE: &str = "aside:";

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

impl TrashedVolume {
    fn of(entry: &TrashEntry) -> TrashedVolume {
        TrashedVolume {
            name: entry.name().to_owned(),
            id: entry.volume(),
            bytes: entry.head.root.bytes,
            deleted_unix_ms: entry.mark.deleted_unix_ms,
            until_unix_ms: entry.mark.until_unix_ms,
            snapshots: 0,
        }
    }
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
            None => read_standing(engine, self.name()).await?,
        };
        let is_same =
            |head: &KnownRoot| head.root.volume == self.volume() && head.root.is_in_trash();
        Ok(found.filter(is_same))
    }
}

/// A part of what is in the trash: by name, and behind that those whose names others have taken, by id. One whose name is
/// taken meanwhile may be told twice.
pub(crate) async fn list(
    engine: &Arc<Engine>,
    place: &ListPlace,
) -> Result<ListPart<TrashedVolume>, OpenError> {
    let part = list_uncounted(engine, place).await?;
    let mut items = Vec::new();
    for UncountedVolume {
        mut volume,
        lineage,
    } in part.items
    {
        let mut walk = SnapshotWalk::new(engine, &volume.name, volume.id, lineage);
        while let Some(roots) = walk.next().await? {
            volume.snapshots += roots.len();
        }
        items.push(volume);
    }
    Ok(ListPart {
        items,
        next: part.next,
    })
}

/// A volume in the trash whose snapshots were not counted yet.
pub(super) struct UncountedVolume {
    pub(super) volume: TrashedVolume,
    lineage: Lineage,
}

impl UncountedVolume {
    fn of(entry: &TrashEntry) -> UncountedVolume {
        UncountedVolume {
            volume: TrashedVolume::of(entry),
            lineage: entry.head.root.lineage(),
        }
    }
}

/// The same without the numbers of snapshots.
pub(super) async fn list_uncounted(
    engine: &Arc<Engine>,
    place: &ListPlace,
) -> Result<ListPart<UncountedVolume>, OpenError> {
    let mut part = PartBuilder::new(place.limit);
    let after = place.after.as_deref();
    let aside = after.and_then(|after| after.strip_prefix(ASIDE));
    if aside.is_none() {
        after.map_or(Ok(()), check_name)?;
        let mut walk = RootWalk::of_volumes(engine, after);
        while let Some(roots) = walk.next(READS_AT_ONCE).await? {
            for head in roots {
                let name = head.root.name.clone();
                let entry = TrashEntry::of(head, None);
                if !part.add(&name, entry.as_ref().map(UncountedVolume::of)) {
                    return Ok(part.finish());
                }
            }
        }
        part.pass(ASIDE);
    }
    // After the roots: one that is put aside stands there before its name is taken.
    let mut rooted = RootedVolumes::new(engine);
    let mut walk = AsideWalk::new(engine, aside.unwrap_or_default())?;
    while let Some(group) = walk.next().await? {
        let entry = match newest(group.entries) {
            Some(entry) if !has_root(engine, &mut rooted, &entry).await? => Some(entry),
            _ => None,
        };
        let next = format!("{ASIDE}{}", group.volume);
        if !part.add(&next, entry.as_ref().map(UncountedVolume::of)) {
            return Ok(part.finish());
        }
    }
    Ok(part.finish())
}

/// A walk through the snapshots that a volume in the trash has: its own, and those that it has of what it was before it came
/// out of the trash.
pub(super) struct SnapshotWalk<'a> {
    walk: RootWalk<'a>,
    volume: VolumeId,
    lineage: Lineage,
}

impl SnapshotWalk<'_> {
    pub(super) fn of<'a>(engine: &'a Engine, entry: &TrashEntry) -> SnapshotWalk<'a> {
        let lineage = entry.head.root.lineage();
        SnapshotWalk::new(engine, entry.name(), entry.volume(), lineage)
    }

    fn new<'a>(
        engine: &'a Engine,
        name: &str,
        volume: VolumeId,
        lineage: Lineage,
    ) -> SnapshotWalk<'a> {
        SnapshotWalk {
            walk: RootWalk::of_snapshots(engine, name, None),
            volume,
            lineage,
        }
    }

    /// The next ones, perhaps none at all where there are more; none: that was the last one.
    pub(super) async fn next(&mut self) -> Result<Option<Vec<KnownRoot>>, OpenError> {
        let Some(mut found) = self.walk.next(READS_AT_ONCE).await? else {
            return Ok(None);
        };
        let is_its = |head: &KnownRoot| {
            let Some(parent) = parent_of(head) else {
                return false;
            };
            let is_above = || self.lineage.iter().any(|above| above.volume == parent);
            let is_above = || is_above() && !canary::active!("trash_leaves_what_was_inherited");
            !head.root.deleted && (parent == self.volume || is_above())
        };
        found.retain(is_its);
        Ok(Some(found))
    }
}

/// The volume of a snapshot.
pub(super) fn parent_of(snapshot: &KnownRoot) -> Option<VolumeId> {
    let lineage = snapshot.root.lineage();
    lineage.first().map(|parent| parent.volume)
}

/// The one that was deleted last of those that had this name, or that has this id.
pub(super) async fn find(engine: &Arc<Engine>, which: &str) -> Result<TrashEntry, OpenError> {
    if let Some(id) = parse_hex_identity(which).map(VolumeId)
        && let Some(entry) = of_id(engine, id).await?
    {
        return Ok(entry);
    }
    let mut found = of_name(engine, which).await?;
    found
        .pop()
        .ok_or_else(|| OpenError::NotInTrash(which.to_owned()))
}

async fn of_id(engine: &Arc<Engine>, id: VolumeId) -> Result<Option<TrashEntry>, OpenError> {
    let keys = aside_of(engine, id).await?;
    let mut aside = newest(read_all_aside(engine, &keys).await?);
    if let Some(entry) = &aside {
        match read_standing(engine, entry.name()).await? {
            Some(head) if head.root.volume == id => return Ok(TrashEntry::of(head, None)),
            // It was renamed, so it was not in the trash then.
            Some(head) if was_renamed_from(&head, id) => aside = None,
            _ => {}
        }
    }
    match find_volume(engine, id).await? {
        // One that is leaving its name may be in the trash under the other.
        Some(head) if head.root.is_leaving() => Ok(None),
        Some(head) => Ok(TrashEntry::of(head, None)),
        None => Ok(aside),
    }
}

/// Those that had this name, what was deleted first in front.
async fn of_name(engine: &Arc<Engine>, name: &str) -> Result<Vec<TrashEntry>, OpenError> {
    let under = read_standing(engine, name).await?;
    let mut found = Vec::new();
    let mut rooted = RootedVolumes::new(engine);
    let mut walk = AsideWalk::new(engine, "")?;
    while let Some(group) = walk.next().await? {
        let had_it = |entry: &TrashEntry| entry.name() == name;
        for entry in group.entries.into_iter().filter(had_it) {
            let is_its = under
                .as_ref()
                .is_some_and(|head| is_of(head, entry.volume()));
            if !is_its && rooted.find(entry.volume()).await?.is_none() {
                found.push(entry);
            }
        }
    }
    Ok(in_order(under.into_iter().collect(), found))
}

/// What stands under a name.
pub(super) async fn read_standing(
    engine: &Engine,
    name: &str,
) -> Result<Option<KnownRoot>, OpenError> {
    match read_any_root(engine, name).await {
        Ok(head) => Ok(Some(head)),
        Err(OpenError::NoSuchVolume(_)) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Whether a root is the volume's, or tells what name the volume got.
pub(super) fn is_of(standing: &KnownRoot, volume: VolumeId) -> bool {
    standing.root.volume == volume || was_renamed_from(standing, volume)
}

/// Whether the volume had this root's name and has another: it was no more in the trash then.
fn was_renamed_from(standing: &KnownRoot, volume: VolumeId) -> bool {
    let mark = standing.root.rename_mark();
    let gone = mark.filter(|mark| mark.step == RenameStep::Gone);
    gone.is_some_and(|mark| mark.volume == volume)
}

/// Whether what was put aside has a root of its own: then that alone says whether it is in the trash.
async fn has_root(
    engine: &Engine,
    rooted: &mut RootedVolumes<'_>,
    entry: &TrashEntry,
) -> Result<bool, OpenError> {
    match read_standing(engine, entry.name()).await? {
        Some(head) if is_of(&head, entry.volume()) => Ok(true),
        _ => Ok(rooted.find(entry.volume()).await?.is_some()),
    }
}

/// Whether what was put aside is of a volume that is in the trash no more: it was restored while somebody was about to
/// take its name.
pub(super) async fn has_left(
    engine: &Engine,
    rooted: &mut RootedVolumes<'_>,
    entry: &TrashEntry,
) -> Result<bool, OpenError> {
    match read_standing(engine, entry.name()).await? {
        Some(head) if is_of(&head, entry.volume()) => Ok(!head.root.is_in_trash()),
        _ => Ok(rooted.find(entry.volume()).await? == Some(true)),
    }
}

/// Of the roots of one volume that were put aside the one that counts.
fn newest(entries: Vec<TrashEntry>) -> Option<TrashEntry> {
    let newest = entries.into_iter();
    newest.max_by_key(|entry| entry.head.root.epoch)
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

/// The roots of one volume that were put aside.
pub(super) struct AsideGroup {
    /// The id in their keys.
    pub(super) volume: String,
    pub(super) entries: Vec<TrashEntry>,
}

/// A walk through the roots that were put aside, also of volumes that have others.
pub(super) struct AsideWalk<'a> {
    engine: &'a Engine,
    place: String,
    is_done: bool,
    waiting: VecDeque<(String, Vec<String>)>,
}

impl AsideWalk<'_> {
    /// Behind the volume of this id; none: from the first on.
    pub(super) fn new<'a>(engine: &'a Engine, after: &str) -> Result<AsideWalk<'a>, OpenError> {
        if !after.is_empty() && parse_hex_identity(after).is_none() {
            return Err(OpenError::Invalid(format!(
                "{ASIDE}{after}: it is not what `next` of a part of the trash said"
            )));
        }
        Ok(AsideWalk {
            engine,
            place: behind(after),
            is_done: false,
            waiting: VecDeque::new(),
        })
    }

    pub(super) async fn next(&mut self) -> Result<Option<AsideGroup>, OpenError> {
        while self.waiting.is_empty() {
            if self.is_done {
                return Ok(None);
            }
            self.list_more().await?;
        }
        let Some((volume, keys)) = self.waiting.pop_front() else {
            return Ok(None);
        };
        let entries = read_all_aside(self.engine, &keys).await?;
        Ok(Some(AsideGroup { volume, entries }))
    }

    async fn list_more(&mut self) -> Result<(), OpenError> {
        let keys = list_part(self.engine, TRASH_PREFIX, &self.place).await?;
        self.is_done = keys.len() < KEYS_AT_ONCE;
        let mut groups: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for key in keys {
            let below = key.strip_prefix(TRASH_PREFIX).unwrap_or_default();
            let volume = below.split('/').next().unwrap_or_default().to_owned();
            groups.entry(volume).or_default().push(key);
        }
        // The last volume may have more of them.
        if !self.is_done && groups.len() > 1 {
            groups.pop_last();
        }
        if let Some((last, _)) = groups.last_key_value() {
            self.place = behind(last);
        }
        self.waiting.extend(groups);
        Ok(())
    }
}

/// The place behind the keys of a volume: epochs are hexadecimal digits.
fn behind(volume: &str) -> String {
    match volume {
        "" => String::new(),
        volume => format!("{TRASH_PREFIX}{volume}/z"),
    }
}

async fn read_all_aside(engine: &Engine, keys: &[String]) -> Result<Vec<TrashEntry>, OpenError> {
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

/// The volume in the trash that has the snapshots of the volume of this id under this name, if one has: they are hidden. It is
/// that one, or one that came of it. `standing` is what stands under the name.
pub(in crate::store) async fn find_in_trash(
    engine: &Engine,
    name: &str,
    standing: Option<&KnownRoot>,
    volume: VolumeId,
) -> Result<Option<VolumeId>, OpenError> {
    if let Some(head) = standing.filter(|head| head.root.is_origin(volume)) {
        let root = &head.root;
        if root.is_in_trash() {
            return Ok(Some(root.volume));
        }
        if root.volume == volume || !root.deleted {
            return Ok(None);
        }
    }
    let keys = aside_of(engine, volume).await?;
    let entries = read_all_aside(engine, &keys).await?;
    if entries.iter().any(|entry| entry.name() == name) {
        return Ok(Some(volume));
    }
    let mut walk = AsideWalk::new(engine, "")?;
    while let Some(group) = walk.next().await? {
        let has = |entry: &&TrashEntry| entry.name() == name && entry.head.root.is_origin(volume);
        if let Some(entry) = group.entries.iter().find(has) {
            return Ok(Some(entry.volume()));
        }
    }
    Ok(None)
}

/// What keeps a snapshot's name.
pub(in crate::store) async fn why_taken(
    engine: &Engine,
    head: &KnownRoot,
) -> Result<OpenError, OpenError> {
    let name = &head.root.name;
    let volume = name.split('@').next().unwrap_or_default();
    let of = match parent_of(head) {
        Some(of) => {
            let standing = read_standing(engine, volume).await?;
            find_in_trash(engine, volume, standing.as_ref(), of).await?
        }
        None => None,
    };
    Ok(match of {
        None => OpenError::Exists(name.clone()),
        Some(of) => OpenError::Invalid(format!(
            "{name} is a snapshot of a volume {volume} that is in the trash: choose another name, or free this one with \
             `firn trash restore {of} --as NEW` or `firn trash empty {of}`"
        )),
    })
}
