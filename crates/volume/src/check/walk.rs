//! From a root to all that it names.
//!
//! What was found below a block is kept, so that forks and snapshots that share it are told the same without reading it
//! again.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use super::blocks::{Extent, UnreadableSectors, extents_of_footer, extents_of_page};
use super::packs::Packs;
use super::rootless::{KnownRoots, Rootless, RootlessVolume, find_among, read_roots};
use super::{
    CheckCounts, CheckError, CheckPort, CheckReport, DAMAGE_MAX, Damage, DamageKind, Fault,
    ObjectReadError, READS_MAX, SIDE_BY_SIDE, no_answer, read_range,
};
use crate::driver::{StoreError, Version};
use crate::jobs::join_all;
use crate::object::node::{Node, decode_node};
use crate::object::pack::{Footer, TRAILER_BYTES, decode_footer};
use crate::object::page::{BlockRef, NODE_PAGES, PAGE_SECTORS, Page, decode_of_any, decode_page};
use crate::object::root::{DeltaRef, RenameStep, Root};
use crate::object::sessions::SessionNames;
use crate::object::{
    FormatError, ObjectId, ROOT_PREFIX, SNAPSHOT_PREFIX, SNAPSHOT_SIGN, name_of_root_key, root_key,
    snapshot_of_root_key, snapshots_of,
};
use crate::store::catalog::volume_spec::check_name;
use crate::store::forks::snapshot_list::check_snapshot_name;
use crate::units::{Span, VolumeId};

/// So often a root is read again that moved while what it named was read.
const ROUNDS_MAX: u32 = 8;

/// An index block, or a footer and the window that a root has of it.
type BlockPlace = (ObjectId, u64, u64);

/// Looks at one root after the other.
pub(crate) struct Walk<'a, P> {
    port: &'a P,
    is_deep: bool,
    /// Of everything that was read.
    sessions: SessionNames,
    packs: Packs,
    /// Blocks that were looked at with all that is below them, and what is lost there.
    seen: HashMap<BlockPlace, Arc<[UnreadableSectors]>>,
    /// Packs whose footers roots name.
    footers: HashSet<ObjectId>,
    roots: KnownRoots,
    /// Volumes and snapshots that were looked at.
    checked: BTreeSet<VolumeId>,
    /// What was renamed, with the names that it got.
    renamed: BTreeMap<VolumeId, String>,
    report: CheckReport,
}

impl<'a, P: CheckPort> Walk<'a, P> {
    pub(crate) fn new(port: &'a P, is_deep: bool) -> Walk<'a, P> {
        Walk {
            port,
            is_deep,
            sessions: SessionNames::default(),
            packs: Packs::default(),
            seen: HashMap::new(),
            footers: HashSet::new(),
            roots: KnownRoots::default(),
            checked: BTreeSet::new(),
            renamed: BTreeMap::new(),
            report: CheckReport::default(),
        }
    }

    pub(super) async fn run(mut self, names: &[String]) -> Result<CheckReport, CheckError> {
        let is_all = names.is_empty();
        let all = match is_all {
            true => self.all_roots().await?,
            false => self.named_roots(names).await?,
        };
        for name in all {
            self.check_root(&name).await?;
            self.port.on_progress(&self.report.counts);
        }
        self.check_renamed().await?;
        if is_all && !canary::active!("the_check_believes_the_list_of_roots") {
            self.check_rootless().await?;
        }
        Ok(self.report)
    }

    /// Looks at what was read under its old name when that was gone already, and under its new one before it was there.
    async fn check_renamed(&mut self) -> Result<(), CheckError> {
        for _ in 0..ROUNDS_MAX {
            let mut renamed = std::mem::take(&mut self.renamed);
            renamed.retain(|volume, _| !self.checked.contains(volume));
            if renamed.is_empty() || canary::active!("the_check_looks_once") {
                return Ok(());
            }
            for name in renamed.values() {
                self.check_root(name).await?;
            }
        }
        Ok(())
    }

    /// Names the volumes that have packs or snapshots, and no root.
    async fn check_rootless(&mut self) -> Result<(), CheckError> {
        let named = std::mem::take(&mut self.footers);
        let is_named = |pack: ObjectId| named.contains(&pack) || self.packs.is_known(pack);
        let Rootless { lost, elsewhere } = find_among(self.port, &self.roots, is_named).await?;
        for name in elsewhere {
            self.check_root(&name).await?;
        }
        for RootlessVolume { name, bytes, .. } in lost {
            let why = "its root is not in the store, and its packs or snapshots are";
            let fault = Fault::new(DamageKind::Missing, why);
            let whole = Span::new(0, bytes / blkmq::io::SECTOR_BYTES);
            self.add_damage(&name, root_key(&name), fault, whole);
        }
        Ok(())
    }

    /// What of the root's index and packs cannot be read, as keys of objects.
    pub(crate) async fn damaged_objects(&mut self, root: &Root) -> Result<Vec<String>, CheckError> {
        let lost = self.walk(root).await?;
        Ok(lost.into_iter().map(|lost| lost.object).collect())
    }

    async fn list(&self, prefix: &str) -> Result<Vec<String>, CheckError> {
        let keys = self.port.list(prefix).await;
        let keys = keys.map_err(|error| no_answer(prefix, &error))?;
        Ok(keys.into_iter().map(|(key, _)| key).collect())
    }

    async fn all_roots(&self) -> Result<Vec<String>, CheckError> {
        let volumes = self.list(ROOT_PREFIX).await?;
        let snapshots = self.list(SNAPSHOT_PREFIX).await?;
        let keys = volumes.iter().chain(&snapshots);
        let mut names: Vec<String> = keys.filter_map(|key| name_of_root_key(key)).collect();
        names.sort_unstable();
        Ok(names)
    }

    /// Those that are named, and the snapshots of volumes that are.
    async fn named_roots(&self, names: &[String]) -> Result<Vec<String>, CheckError> {
        let mut all = Vec::new();
        for name in names {
            let is_snapshot = name.contains(SNAPSHOT_SIGN);
            let valid = match is_snapshot {
                true => check_snapshot_name(name).map(drop),
                false => check_name(name),
            };
            valid.map_err(|error| CheckError::BadName(name.clone(), error.to_string()))?;
            let is_there = |root: &Root| !root.deleted || root.is_leaving();
            match self.read_root(name).await? {
                Some((Ok(root), _)) if is_there(&root) => {}
                Some((Ok(root), _)) => return Err(self.why_not_there(&root).await?),
                // As it always was: what cannot be read is no volume.
                _ => return Err(CheckError::NoSuchVolume(name.clone())),
            }
            all.push(name.clone());
            if !is_snapshot {
                let keys = self.list(&snapshots_of(name)).await?;
                all.extend(keys.iter().filter_map(|key| snapshot_of_root_key(key)));
            }
        }
        Ok(all)
    }

    /// The error for whoever asks by the name of a deleted root: with its name of today, if it was renamed.
    async fn why_not_there(&self, deleted: &Root) -> Result<CheckError, CheckError> {
        let name = deleted.name.clone();
        let missing = CheckError::NoSuchVolume(name.clone());
        let mark = deleted.rename_mark();
        let Some(mark) = mark.filter(|mark| mark.step == RenameStep::Gone) else {
            return Ok(missing);
        };
        let is_it = |root: &Root| {
            let is_there = !root.deleted || root.is_leaving();
            is_there && root.volume == mark.volume
        };
        let mut standing = read_roots(self.port).await?.into_iter();
        let found = standing.find(|(_, root)| root.as_ref().is_some_and(is_it));
        Ok(found.map_or(missing, |(new, _)| CheckError::Renamed(name, new)))
    }

    /// A root as it stands; none: there is none.
    async fn read_root(
        &self,
        name: &str,
    ) -> Result<Option<(Result<Root, FormatError>, Version)>, CheckError> {
        let key = root_key(name);
        let mut reads = 0;
        loop {
            let (data, version) = match self.port.get(&key).await {
                Ok(found) => found,
                Err(StoreError::NotFound) => return Ok(None),
                Err(error) => return Err(no_answer(&key, &error)),
            };
            let root = Root::decode(&data);
            reads += 1;
            if root.is_ok() || reads == READS_MAX {
                return Ok(Some((root, version)));
            }
        }
    }

    async fn check_root(&mut self, name: &str) -> Result<(), CheckError> {
        for _ in 0..ROUNDS_MAX {
            // One that was listed, and is gone, was deleted.
            let Some((root, version)) = self.read_root(name).await? else {
                return Ok(());
            };
            self.roots.insert(name, root.as_ref().ok());
            let (root, lost) = match root {
                Ok(root) if root.deleted && !root.is_leaving() => {
                    let mark = root.rename_mark();
                    let gone = mark.filter(|mark| mark.step == RenameStep::Gone);
                    self.renamed
                        .extend(gone.map(|mark| (mark.volume, mark.other)));
                    return Ok(());
                }
                // Under the name that it had, or gets.
                Ok(root) if self.checked.contains(&root.volume) => return Ok(()),
                Ok(root) => {
                    let lost = self.walk(&root).await?;
                    (root, lost)
                }
                Err(error) => {
                    self.count(name);
                    self.add_damage(name, root_key(name), Fault::from(error), Span::new(0, 0));
                    return Ok(());
                }
            };
            let is_whole = lost
                .iter()
                .all(|lost| lost.fault.kind == DamageKind::LostBefore);
            if !is_whole && !canary::active!("the_check_believes_the_first_root") {
                match self.read_root(name).await? {
                    None => return Ok(()),
                    Some((_, now)) if now != version => continue,
                    Some(_) => {}
                }
            }
            self.count(name);
            self.checked.insert(root.volume);
            self.add_lost(name, &root, lost);
            return Ok(());
        }
        Err(CheckError::Moving(name.to_owned()))
    }

    fn count(&mut self, name: &str) {
        let counts = &mut self.report.counts;
        match name.contains(SNAPSHOT_SIGN) {
            true => counts.snapshots += 1,
            false => counts.volumes += 1,
        }
    }

    /// Damage by object, within the volume's size.
    fn add_lost(&mut self, name: &str, root: &Root, lost: Vec<UnreadableSectors>) {
        let whole = Span::new(0, root.bytes / blkmq::io::SECTOR_BYTES);
        let mut by_object: BTreeMap<(String, DamageKind), (Fault, Vec<Span>)> = BTreeMap::new();
        for UnreadableSectors {
            object,
            span,
            fault,
        } in lost
        {
            let found = by_object.entry((object, fault.kind));
            let (_, spans) = found.or_insert_with(|| (fault, Vec::new()));
            spans.push(span.intersect(whole));
        }
        for ((object, _), (fault, spans)) in by_object {
            let start = spans.iter().map(|span| span.start).min().unwrap_or(0);
            let sectors = spans.iter().map(|span| span.sectors()).sum();
            self.add_damage(name, object, fault, Span::new(start, sectors));
        }
    }

    fn add_damage(&mut self, name: &str, object: String, fault: Fault, span: Span) {
        if self.report.damage.len() == DAMAGE_MAX {
            self.report.has_more = true;
            return;
        }
        self.report.damage.push(Damage {
            volume: name.to_owned(),
            object,
            kind: fault.kind,
            why: fault.why,
            offset: span.start * blkmq::io::SECTOR_BYTES,
            bytes: span.bytes(),
        });
    }

    /// What a root names and cannot be read.
    async fn walk(&mut self, root: &Root) -> Result<Vec<UnreadableSectors>, CheckError> {
        let whole = Span::new(0, root.bytes / blkmq::io::SECTOR_BYTES);
        if let Err(error) = self.sessions.extend(root.sessions.iter()) {
            let (object, fault) = (root_key(&root.name), error.into());
            return Ok(vec![UnreadableSectors {
                object,
                span: whole,
                fault,
            }]);
        }
        let mut lost = self.walk_deltas(root).await?;
        // A fork has blocks of the volumes that it was forked from.
        let lineage = root.lineage();
        let ancestors = lineage.iter().map(|ancestor| ancestor.volume);
        let volumes: Arc<[VolumeId]> = [root.volume].into_iter().chain(ancestors).collect();
        for (number, block) in &root.nodes {
            lost.extend(self.walk_node(root, &volumes, *number, *block).await?);
        }
        Ok(lost)
    }

    async fn walk_deltas(&mut self, root: &Root) -> Result<Vec<UnreadableSectors>, CheckError> {
        self.footers
            .extend(root.deltas.iter().map(|delta| delta.pack));
        let mut lost = Vec::new();
        for window in root.deltas.chunks(SIDE_BY_SIDE) {
            let mut fresh: Vec<(&DeltaRef, String)> = Vec::new();
            for delta in window {
                match (
                    self.seen.get(&delta_place(delta)),
                    self.sessions.pack_key(delta.pack),
                ) {
                    (Some(known), _) => lost.extend(known.iter().cloned()),
                    (None, Ok(key)) => fresh.push((delta, key)),
                    (None, Err(error)) => lost.push(UnreadableSectors {
                        object: root_key(&root.name),
                        span: delta.span,
                        fault: error.into(),
                    }),
                }
            }
            let reads = fresh
                .iter()
                .map(|(delta, key)| Box::pin(read_footer(self.port, delta, key)));
            for ((delta, key), read) in fresh.iter().zip(join_all(reads.collect()).await) {
                self.count_block(u64::from(delta.footer_bytes));
                let below = match self.register_sessions(read, |footer| vec![footer.session])? {
                    Ok(footer) => {
                        let extents = extents_of_footer(root, delta, &footer.sections);
                        self.check_extents(root, key, &extents).await?
                    }
                    Err(fault) => vec![UnreadableSectors {
                        object: key.clone(),
                        span: delta.span,
                        fault,
                    }],
                };
                lost.extend(self.keep(delta_place(delta), below));
            }
        }
        Ok(lost)
    }

    async fn walk_node(
        &mut self,
        root: &Root,
        volumes: &Arc<[VolumeId]>,
        number: u64,
        block: BlockRef,
    ) -> Result<Vec<UnreadableSectors>, CheckError> {
        if let Some(known) = self.seen.get(&block_place(block)) {
            return Ok(known.to_vec());
        }
        let span = Span::new(
            number * NODE_PAGES * PAGE_SECTORS,
            NODE_PAGES * PAGE_SECTORS,
        );
        let of = (number, block);
        let (object, read) = self.read_block(volumes, of, decode_node).await?;
        self.count_block(u64::from(block.bytes));
        let node = match self.register_sessions(read, |node: &Node| node.sessions().collect())? {
            Ok(node) => node,
            Err(fault) => {
                let lost = vec![UnreadableSectors {
                    object,
                    span,
                    fault,
                }];
                return Ok(self.keep(block_place(block), lost));
            }
        };
        let mut lost = Vec::new();
        let pages: Vec<(u64, BlockRef)> = node.pages().collect();
        for window in pages.chunks(SIDE_BY_SIDE) {
            lost.extend(self.walk_pages(root, volumes, window).await?);
            self.port.on_progress(&self.report.counts);
        }
        Ok(self.keep(block_place(block), lost))
    }

    async fn walk_pages(
        &mut self,
        root: &Root,
        volumes: &Arc<[VolumeId]>,
        pages: &[(u64, BlockRef)],
    ) -> Result<Vec<UnreadableSectors>, CheckError> {
        let mut lost = Vec::new();
        let mut fresh = Vec::new();
        for (number, block) in pages {
            match self.seen.get(&block_place(*block)) {
                Some(known) => lost.extend(known.iter().cloned()),
                None => fresh.push((*number, *block)),
            }
        }
        let reads = fresh
            .iter()
            .map(|of| Box::pin(self.read_block(volumes, *of, decode_page)));
        let reads = join_all(reads.collect()).await;
        for ((number, block), read) in fresh.into_iter().zip(reads) {
            let (key, read) = read?;
            self.count_block(u64::from(block.bytes));
            let below =
                match self.register_sessions(read, |page: &Page| page.sessions().collect())? {
                    Ok(page) => {
                        self.check_extents(root, &key, &extents_of_page(&page))
                            .await?
                    }
                    Err(fault) => vec![UnreadableSectors {
                        object: key,
                        span: Span::new(number * PAGE_SECTORS, PAGE_SECTORS),
                        fault,
                    }],
                };
            lost.extend(self.keep(block_place(block), below));
        }
        Ok(lost)
    }

    /// What is lost of extents that the object of this key lists.
    async fn check_extents(
        &mut self,
        root: &Root,
        key: &str,
        extents: &[Extent],
    ) -> Result<Vec<UnreadableSectors>, CheckError> {
        let is_foreign = |extent: &&Extent| !root.is_origin(extent.chunk.origin);
        let foreign = extents
            .iter()
            .filter(is_foreign)
            .map(|extent| UnreadableSectors {
                object: key.to_owned(),
                span: extent.span,
                fault: Fault::new(
                    DamageKind::Corrupt,
                    "it names content of a volume that this one was not forked from",
                ),
            });
        let mut lost: Vec<UnreadableSectors> = foreign.collect();
        let (sessions, counts) = (&self.sessions, &mut self.report.counts);
        let checked = self
            .packs
            .check(self.port, sessions, extents, self.is_deep, counts);
        lost.extend(checked.await?);
        Ok(lost)
    }

    /// What was read, if the sessions that it lists are what others say they are.
    fn register_sessions<T>(
        &mut self,
        read: Result<T, ObjectReadError>,
        sessions: impl Fn(&T) -> Vec<crate::hostlog::names::SessionName>,
    ) -> Result<Result<T, Fault>, CheckError> {
        match read {
            Ok(found) => Ok(match self.sessions.extend(sessions(&found)) {
                Ok(()) => Ok(found),
                Err(error) => Err(error.into()),
            }),
            Err(ObjectReadError::Fault(fault)) => Ok(Err(fault)),
            Err(ObjectReadError::Ended(error)) => Err(error),
        }
    }

    fn count_block(&mut self, bytes: u64) {
        let counts: &mut CheckCounts = &mut self.report.counts;
        counts.index_blocks += 1;
        counts.bytes_read += bytes;
    }

    fn keep(&mut self, place: BlockPlace, lost: Vec<UnreadableSectors>) -> Vec<UnreadableSectors> {
        self.seen.insert(place, lost.as_slice().into());
        lost
    }

    /// The key of a block's object, and the block.
    async fn read_block<T: Send + 'static>(
        &self,
        volumes: &Arc<[VolumeId]>,
        (number, block): (u64, BlockRef),
        decode: fn(VolumeId, u64, &[u8]) -> Result<T, FormatError>,
    ) -> Result<(String, Result<T, ObjectReadError>), CheckError> {
        let key = self.sessions.index_key(block.object);
        let key = key.map_err(|error| CheckError::Bug(format!("{}: {error}", block.object)))?;
        let volumes = Arc::clone(volumes);
        let decode =
            move |data: &[u8]| decode_of_any(&volumes, |volume| decode(volume, number, data));
        let range = (u64::from(block.offset), u64::from(block.bytes));
        let read = read_range(self.port, &key, range, decode).await;
        Ok((key, read))
    }
}

fn block_place(block: BlockRef) -> BlockPlace {
    (block.object, u64::from(block.offset), u64::MAX)
}

fn delta_place(delta: &DeltaRef) -> BlockPlace {
    (delta.pack, delta.footer_offset, delta.span.start)
}

async fn read_footer(
    port: &impl CheckPort,
    delta: &DeltaRef,
    key: &str,
) -> Result<Footer, ObjectReadError> {
    let len = u64::from(delta.footer_bytes) + TRAILER_BYTES as u64;
    let pack = delta.pack;
    let decode = move |data: &[u8]| decode_footer(pack, data);
    read_range(port, key, (delta.footer_offset, len), decode).await
}
