//! What roots and pins name, with the index below them.
//!
//! A root may move while its index is read, and the objects that it named may be removed then. So a missing
//! object makes the pass read the root again, and is an error only if the root has not moved. Blocks that forks
//! share are read once.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use super::error::CollectError;
use super::named::NamedObjects;
use super::{CollectPort, SIDE_BY_SIDE};
use crate::driver::{StoreError, StoreOp, StoreReply, Version};
use crate::hostlog::marks::Pin;
use crate::hostlog::names::{PIN_PREFIX, TRASH_PREFIX};
use crate::hostlog::port::{list, read_decoded};
use crate::hostlog::root_updates::has_tombstone;
use crate::jobs::join_all;
use crate::object::node::{Node, decode_node};
use crate::object::page::{BlockRef, Page, decode_of_any, decode_page};
use crate::object::root::{RenameMark, RenameStep, Root};
use crate::object::sessions::SessionNames;
use crate::object::{
    FormatError, ObjectId, ROOT_PREFIX, SNAPSHOT_PREFIX, SNAPSHOT_SIGN, name_of_root_key, root_key,
};
use crate::units::{Epoch, VolumeId};

/// Reads of an index block that arrives short or damaged.
const READS_MAX: u32 = 5;
/// Listings of roots and pins, repeated because there were new ones.
const ROUNDS_MAX: u32 = 64;

/// Reads roots and pins.
pub(super) struct Trace<'a, P> {
    port: &'a P,
    named: &'a mut NamedObjects,
    /// The names found in everything that was read.
    sessions: SessionNames,
    /// Index blocks that were read, with everything below them.
    blocks: HashSet<(ObjectId, u32)>,
    /// Set for a pin, and for a copy that counts no more: missing objects are skipped, and all others are read.
    passes_gone: bool,
    /// How many objects were skipped.
    passed: u64,
    pub(super) roots: u64,
    /// Volumes of these roots, including deleted ones.
    pub(super) volumes: BTreeSet<VolumeId>,
    /// The newest epochs of them.
    epochs: BTreeMap<VolumeId, Epoch>,
    /// Names of volumes that are on their way to others, and names that are kept for such.
    pub(super) leaving: Vec<String>,
    /// Volumes that were renamed, with the names that they got.
    renamed: BTreeMap<VolumeId, String>,
    /// Names of volumes that are not deleted.
    names: BTreeMap<VolumeId, String>,
    /// Names of snapshots whose volumes have other names.
    pub(super) strays: Vec<String>,
    pub(super) pins: u64,
    /// Keys of needless pins: their child has a root of its own, or had one.
    pub(super) needless: Vec<String>,
    pub(super) index_blocks: u64,
    pub(super) index_bytes: u64,
}

/// Why an index was not read completely.
enum TraceError {
    /// An object that it names is missing.
    Gone(String),
    Failed(CollectError),
}

impl From<CollectError> for TraceError {
    fn from(error: CollectError) -> TraceError {
        TraceError::Failed(error)
    }
}

impl<'a, P: CollectPort> Trace<'a, P> {
    pub(super) fn new(port: &'a P, named: &'a mut NamedObjects) -> Trace<'a, P> {
        Trace {
            port,
            named,
            sessions: SessionNames::default(),
            blocks: HashSet::new(),
            passes_gone: false,
            passed: 0,
            roots: 0,
            volumes: BTreeSet::new(),
            epochs: BTreeMap::new(),
            leaving: Vec::new(),
            renamed: BTreeMap::new(),
            names: BTreeMap::new(),
            strays: Vec::new(),
            pins: 0,
            needless: Vec::new(),
            index_blocks: 0,
            index_bytes: 0,
        }
    }

    /// Reads all roots, then all pins, and repeats that as long as a listing has new ones: names flow from a root
    /// to a pin, and from there to a root that may be new.
    pub(super) async fn run(&mut self) -> Result<(), CollectError> {
        let (mut roots, mut pins) = (BTreeSet::new(), BTreeSet::new());
        let mut aside = BTreeSet::new();
        for _ in 0..ROUNDS_MAX {
            let mut is_new = false;
            let mut keys = list(self.port, ROOT_PREFIX).await;
            keys.extend(list(self.port, SNAPSHOT_PREFIX).await);
            for (key, _) in keys {
                if let Some(name) = name_of_root_key(&key)
                    && roots.insert(name.clone())
                {
                    is_new = true;
                    self.trace_root(&name).await?;
                }
            }
            is_new |= self.trace_renamed().await?;
            if canary::active!("collector_reads_no_pins") {
                return Ok(());
            }
            for (key, _) in list(self.port, PIN_PREFIX).await {
                if pins.insert(key.clone()) {
                    is_new = true;
                    self.trace_pin(&key).await?;
                }
            }
            // Behind the roots: a root is put aside before its name is taken. What a child takes from there has a
            // pin, and the root that the next list of this loop brings.
            if !canary::active!("collector_reads_no_trash") {
                for (key, _) in list(self.port, TRASH_PREFIX).await {
                    if aside.insert(key.clone()) {
                        is_new = true;
                        self.trace_aside(&key).await?;
                    }
                }
            }
            if !is_new {
                return Ok(());
            }
        }
        Err(CollectError::Moving)
    }

    /// Reads once more the names that volumes got which no root is of: they may have been read before the volume came there,
    /// and the name that it had behind that. Whether there were any.
    async fn trace_renamed(&mut self) -> Result<bool, CollectError> {
        let mut renamed = std::mem::take(&mut self.renamed);
        renamed.retain(|volume, _| !self.volumes.contains(volume));
        for name in renamed.values() {
            match self.trace_root(name).await {
                // Somebody removed it. If anything of it is left, that tells.
                Err(CollectError::Missing(key)) if key == root_key(name) => {}
                traced => traced?,
            }
        }
        Ok(!renamed.is_empty())
    }

    async fn trace_root(&mut self, name: &str) -> Result<(), CollectError> {
        self.roots += 1;
        let mut before: Option<Version> = None;
        loop {
            let key = root_key(name);
            let found = read_decoded(self.port, &key, Root::decode).await;
            let found = found.map_err(|error| CollectError::Unreadable(key.clone(), error))?;
            // Nobody removes a root. If somebody did, what it named is not the collector's to judge.
            let (root, version) = found.ok_or_else(|| CollectError::Missing(key.clone()))?;
            self.volumes.insert(root.volume);
            let newest = self.epochs.entry(root.volume).or_default();
            *newest = root.epoch.max(*newest);
            let in_trash = root.is_in_trash() && !canary::active!("trash_holds_nothing");
            let is_leaving = root.is_leaving() && !canary::active!("leaving_root_holds_nothing");
            let is_held = in_trash || is_leaving;
            if let Some(mark) = root.rename_mark()
                && mark.step == RenameStep::Gone
            {
                self.renamed.insert(mark.volume, mark.other);
            }
            let is_kept = |mark: RenameMark| mark.step == RenameStep::Kept;
            let is_on_way = is_leaving || root.rename_mark().is_some_and(is_kept);
            if is_on_way && before.is_none() {
                self.leaving.push(name.to_owned());
            }
            if !root.deleted {
                self.note_name(name, &root);
            }
            if root.deleted && !is_held {
                return Ok(());
            }
            match self.trace(&root).await {
                Ok(()) => return Ok(()),
                Err(TraceError::Gone(gone)) if before.as_ref() == Some(&version) => {
                    return Err(CollectError::Missing(gone));
                }
                Err(TraceError::Gone(_)) => before = Some(version),
                Err(TraceError::Failed(error)) => return Err(error),
            }
        }
    }

    /// Notes where a volume is, or that a snapshot seems to have stayed behind when its volume got another name: roots of
    /// volumes are read first.
    fn note_name(&mut self, name: &str, root: &Root) {
        let Some((volume, _)) = name.split_once(SNAPSHOT_SIGN) else {
            self.names.insert(root.volume, name.to_owned());
            return;
        };
        let lineage = root.lineage();
        let parent = lineage.first();
        let of_today = parent.and_then(|parent| self.names.get(&parent.volume));
        if of_today.is_some_and(|of_today| of_today != volume) {
            self.strays.push(name.to_owned());
        }
    }

    /// A root that was put aside holds what it names. It does not change, and goes once nobody is to have it.
    async fn trace_aside(&mut self, key: &str) -> Result<(), CollectError> {
        let found = read_decoded(self.port, key, Root::decode).await;
        let found = found.map_err(|error| CollectError::Unreadable(key.to_owned(), error))?;
        let Some((root, _)) = found else {
            return Ok(());
        };
        self.roots += 1;
        // One that came late, when its volume had been restored, counts no more, and part of it may be gone. The roots were
        // read before.
        let is_past = |newest: &Epoch| *newest > root.epoch;
        self.passes_gone = self.epochs.get(&root.volume).is_some_and(is_past)
            && !canary::active!("late_copies_end_every_pass");
        let traced = self.trace(&root).await;
        self.passes_gone = false;
        match traced {
            Ok(()) => Ok(()),
            Err(TraceError::Failed(error)) => Err(error),
            Err(TraceError::Gone(gone)) => {
                let now = read_decoded(self.port, key, Root::decode).await;
                let now = now.map_err(|error| CollectError::Unreadable(key.to_owned(), error))?;
                match now {
                    None => Ok(()),
                    Some(_) => Err(CollectError::MissingInTrash(gone, root.volume)),
                }
            }
        }
    }

    /// A pin keeps what it names, whether or not its child was created.
    async fn trace_pin(&mut self, key: &str) -> Result<(), CollectError> {
        let found = read_decoded(self.port, key, Pin::decode).await;
        let found = found.map_err(|error| CollectError::Unreadable(key.to_owned(), error))?;
        let Some((pin, _)) = found else {
            // Its child was deleted. What that named by then has a pin or a root that a later list brings.
            return Ok(());
        };
        self.pins += 1;
        // What is gone of one that came too late: its child never was, or begins with another pin. If there is a child,
        // its root says what is gone.
        self.passes_gone = true;
        let traced = self.trace(&pin.root).await;
        self.passes_gone = false;
        match traced {
            Ok(()) => self.judge_pin(key, &pin.root).await,
            Err(TraceError::Gone(key)) => Err(CollectError::Missing(key)),
            Err(TraceError::Failed(error)) => Err(error),
        }
    }

    /// A pin is needed until its child's root names what the pin names, or never will: that is so once the root
    /// has the pin's epoch or a later one, because the session that was to write the child's root cannot write it
    /// any more. It is also so where another volume has the name and the child's tombstone is kept: the child had
    /// its root, and whatever update created it expects the version from before. Without a tombstone nothing
    /// follows from the name: its next owner may be deleted before the child is created. A volume that was renamed has its
    /// root under another name, and says the same from there.
    async fn judge_pin(&mut self, key: &str, pinned: &Root) -> Result<(), CollectError> {
        let root = root_key(&pinned.name);
        let found = read_decoded(self.port, &root, Root::decode).await;
        let found = found.map_err(|error| CollectError::Unreadable(root, error))?;
        let is_needless = match found {
            Some((root, _)) if root.volume == pinned.volume => root.epoch >= pinned.epoch,
            Some(_) if canary::active!("pins_of_names_taken_again_stay") => false,
            Some(_) if canary::active!("pins_go_when_their_name_is_taken") => true,
            _ => match self.epochs.get(&pinned.volume) {
                Some(epoch) if !canary::active!("pins_are_judged_by_their_name_alone") => {
                    *epoch >= pinned.epoch
                }
                _ => has_tombstone(self.port, pinned.volume).await,
            },
        };
        if is_needless {
            self.needless.push(key.to_owned());
        }
        Ok(())
    }

    async fn trace(&mut self, root: &Root) -> Result<(), TraceError> {
        let damaged = |error| CollectError::Unreadable(root_key(&root.name), error);
        self.sessions
            .extend(root.sessions.iter())
            .map_err(damaged)?;
        for delta in &root.deltas {
            self.named.add_pack(delta.pack);
        }
        for (_, block) in &root.nodes {
            self.named.add_index(block.object);
        }
        // A fork has blocks of the volumes that it was forked from.
        let lineage = root.lineage();
        let ancestors = lineage.iter().map(|ancestor| ancestor.volume);
        let volumes: Vec<VolumeId> = [root.volume].into_iter().chain(ancestors).collect();
        for nodes in root.nodes.chunks(SIDE_BY_SIDE) {
            let nodes = self.read_blocks(&volumes, nodes, decode_node).await?;
            for (block, node) in nodes {
                let passed = self.passed;
                self.trace_node(&volumes, &node).await?;
                // A root with the same node has to find out what is gone below it.
                if passed == self.passed {
                    self.blocks.insert((block.object, block.offset));
                }
            }
        }
        Ok(())
    }

    async fn trace_node(&mut self, volumes: &[VolumeId], node: &Node) -> Result<(), TraceError> {
        let damaged = |error| CollectError::Unreadable("a node of an index".into(), error);
        self.sessions.extend(node.sessions()).map_err(damaged)?;
        let pages: Vec<(u64, BlockRef)> = node.pages().collect();
        for (_, block) in &pages {
            self.named.add_index(block.object);
        }
        for pages in pages.chunks(SIDE_BY_SIDE) {
            let decode = |volume, number, bytes: &[u8]| {
                let page: Page = decode_page(volume, number, bytes)?;
                Ok(page.packs().collect::<Vec<ObjectId>>())
            };
            for (block, packs) in self.read_blocks(volumes, pages, decode).await? {
                packs.into_iter().for_each(|pack| self.named.add_pack(pack));
                self.blocks.insert((block.object, block.offset));
            }
        }
        Ok(())
    }

    /// Reads those of the blocks that have not been read yet.
    async fn read_blocks<T: Send + 'static>(
        &mut self,
        volumes: &[VolumeId],
        blocks: &[(u64, BlockRef)],
        decode: impl Fn(VolumeId, u64, &[u8]) -> Result<T, FormatError> + Copy + Send + Sync + 'static,
    ) -> Result<Vec<(BlockRef, T)>, TraceError> {
        let (mut runs, mut keys) = (Vec::<BlockRun>::new(), Vec::new());
        for (number, block) in blocks {
            if self.blocks.contains(&(block.object, block.offset)) {
                continue;
            }
            self.index_blocks += 1;
            self.index_bytes += u64::from(block.bytes);
            if runs.last_mut().is_some_and(|run| run.take(*number, *block)) {
                continue;
            }
            let key = self.sessions.index_key(block.object);
            keys.push(
                key.map_err(|error| CollectError::Unreadable(block.object.to_string(), error))?,
            );
            runs.push(BlockRun(vec![(*number, *block)]));
        }
        if runs.is_empty() {
            return Ok(Vec::new());
        }
        let lengths: Vec<u64> = runs.iter().map(|run| run.0.len() as u64).collect();
        let reads = keys.into_iter().zip(runs).map(|(key, run)| {
            let read = read_run(self.port, key, run, volumes.to_vec(), decode);
            Box::pin(read)
        });
        let found = join_all(reads.collect()).await;
        self.port.sleep(self.port.pace_ns()).await;
        let mut whole = Vec::new();
        for (found, length) in found.into_iter().zip(lengths) {
            match found {
                Ok(found) => whole.extend(found),
                Err(TraceError::Gone(_)) if self.passes_gone => self.passed += length,
                Err(error) => return Err(error),
            }
        }
        Ok(whole)
    }
}

/// Blocks that lie one behind the other in one object, none empty: one request reads them.
struct BlockRun(Vec<(u64, BlockRef)>);

impl BlockRun {
    /// Takes a block that lies behind those that it has.
    fn take(&mut self, number: u64, block: BlockRef) -> bool {
        let follows = self.0.last().is_some_and(|(_, last)| {
            last.object == block.object && last.offset.checked_add(last.bytes) == Some(block.offset)
        });
        if follows {
            self.0.push((number, block));
        }
        follows
    }

    fn offset(&self) -> u64 {
        self.0
            .first()
            .map_or(0, |(_, block)| u64::from(block.offset))
    }

    fn bytes(&self) -> u64 {
        self.0.iter().map(|(_, block)| u64::from(block.bytes)).sum()
    }
}

async fn read_run<T: Send + 'static>(
    port: &impl CollectPort,
    key: String,
    run: BlockRun,
    volumes: Vec<VolumeId>,
    decode: impl Fn(VolumeId, u64, &[u8]) -> Result<T, FormatError> + Copy + Send + Sync + 'static,
) -> Result<Vec<(BlockRef, T)>, TraceError> {
    let mut pause = port.pause_ns();
    let mut reads = 0;
    loop {
        let op = StoreOp::GetRange {
            key: key.clone(),
            offset: run.offset(),
            len: run.bytes(),
        };
        let error = match port.store(op).await {
            Ok(StoreReply::Range(data)) => {
                let (volumes, blocks) = (volumes.clone(), run.0.clone());
                let work = move || decode_run(&blocks, &volumes, &data, decode);
                match port.compute(run.bytes(), work).await {
                    Ok(Ok(found)) => return Ok(found),
                    Ok(Err(error)) => error,
                    Err(_) => FormatError::Corrupt("an index block ends the server's computation"),
                }
            }
            Err(StoreError::NotFound) => return Err(TraceError::Gone(key)),
            Err(StoreError::OutOfRange) => FormatError::Corrupt("it ends too early"),
            // A store that is away is waited for.
            _ => {
                port.sleep(pause).await;
                pause = (pause * 2).min(port.pause_ns() * 30);
                continue;
            }
        };
        reads += 1;
        if reads >= READS_MAX {
            return Err(CollectError::Unreadable(key, error).into());
        }
        port.sleep(pause).await;
    }
}

/// Decodes each of the blocks that `data` has one behind the other.
fn decode_run<T>(
    blocks: &[(u64, BlockRef)],
    volumes: &[VolumeId],
    data: &[u8],
    decode: impl Fn(VolumeId, u64, &[u8]) -> Result<T, FormatError>,
) -> Result<Vec<(BlockRef, T)>, FormatError> {
    let mut rest = data;
    let mut found = Vec::with_capacity(blocks.len());
    for (number, block) in blocks {
        let bytes = usize::try_from(block.bytes).unwrap_or(usize::MAX);
        let Some((own, behind)) = rest.split_at_checked(bytes) else {
            return Err(FormatError::Corrupt("it ends too early"));
        };
        rest = behind;
        let decoded = decode_of_any(volumes, |volume| decode(volume, *number, own))?;
        found.push((*block, decoded));
    }
    Ok(found)
}
