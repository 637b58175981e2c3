//! The read cache: fetched chunks, in a memory file where they land and a disk file behind it.
//!
//! Content is named by chunk (pack and offset), which never changes; so a fetch cannot clobber a
//! write, and nothing here is ever out of date. Losing the cache loses nothing.
//!
//! A chunk that was just fetched is *fresh* until a plan has used it: fresh and pinned chunks are
//! not evicted, even if the memory file grows beyond its size for them, so a read that waits for
//! many chunks always makes progress.
//!
//! `regions` is the space of a file, `queues` the order in which chunks leave, `tier` one file, or part of
//! one, with both. Index blocks (`blocks`) are decoded in memory, and in the disk file have a part to
//! themselves (every eighth region): without its page a cached chunk cannot be found, so no chunk may drive a page out.

pub(crate) mod blocks;
mod invariants;
mod inventory;
mod queues;
mod regions;
pub(crate) mod scrub;
mod tier;

use blkmq::io::{FileId, Pin};

pub use self::inventory::InventoryError;
use self::inventory::{CHUNKS_MAX, Inventory};
use self::regions::{Place, REGION_BLOCKS_MIN, region_blocks};
use self::tier::{Frozen, INDEX_SHARE, Part, Shrink, Tier};
use crate::codec::Checksum;
use crate::lock::lock;
use crate::log::layout::BLOCK_BYTES;
use crate::object::ObjectId;
use crate::sync::Mutex;

/// Names a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct ChunkKey {
    pub(crate) pack: ObjectId,
    pub(crate) offset: u32,
}

/// How long a fetched chunk waits for the read that asked for it. A read whose client has
/// disconnected must not keep memory.
const FRESH_NS: u64 = 10_000_000_000;

/// A chunk's content, pinned.
#[derive(Debug)]
pub(crate) struct Hit {
    pub(crate) file: FileId,
    /// Of the chunk's first byte.
    pub(crate) offset: u64,
    pub(crate) pin: Pin,
}

/// Space promised to a chunk that is being written there.
#[derive(Debug)]
pub(crate) struct CacheAllocation {
    key: ChunkKey,
    pub(crate) offset: u64,
    bytes: u64,
    place: Place,
    tier: usize,
    /// Of what is written there; none of what is never scrubbed.
    checksum: Option<Checksum>,
}

impl CacheAllocation {
    /// This is what is written there, in whole blocks.
    pub(crate) fn set_checksum(&mut self, content: &[u8]) {
        self.checksum = Some(Checksum::of(content));
    }
}

/// Counters for `/metrics`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheUsage {
    /// Bytes in the memory file.
    pub memory_bytes: u64,
    /// Bytes in the disk file.
    pub disk_bytes: u64,
}

/// How far the disk file is on its way to a smaller size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CacheShrink {
    /// Nothing is behind that size any more, and nothing gets there: the file may be cut.
    Done,
    /// More is to leave.
    Continue,
    /// What is to leave is being read or written.
    Held,
}

/// How many whole regions a file of this size has.
fn regions_of(bytes: u64, region_blocks: u32) -> u64 {
    bytes / BLOCK_BYTES / u64::from(region_blocks)
}

/// All tiers. One lock; held for bounded memory work.
#[derive(Debug)]
pub(crate) struct Cache {
    /// Blocks of a region of the disk file.
    region_blocks: u32,
    tiers: Mutex<[Tier; 3]>,
}

const MEMORY: usize = 0;
const DISK: usize = 1;
/// The part of the disk file that index blocks have.
const INDEX: usize = 2;

impl Cache {
    /// A cache whose disk file is shared out between chunks and index blocks.
    pub(crate) fn new(memory_bytes: u64, disk_bytes: u64) -> Cache {
        let blocks = disk_bytes / BLOCK_BYTES;
        let length = region_blocks(blocks, blocks / INDEX_SHARE);
        Cache::with_parts(
            memory_bytes,
            disk_bytes,
            length,
            [Part::Chunks, Part::Index],
        )
    }

    /// `length` is that of the disk file's regions.
    fn with_parts(memory_bytes: u64, disk_bytes: u64, length: u32, parts: [Part; 2]) -> Cache {
        let in_memory = memory_bytes / BLOCK_BYTES;
        let memory_length = region_blocks(in_memory, in_memory);
        let in_memory = in_memory / u64::from(memory_length);
        let in_file = regions_of(disk_bytes, length);
        Cache {
            region_blocks: length,
            tiers: Mutex::new([
                Tier::new(
                    FileId::MEMORY,
                    MEMORY,
                    Part::Whole,
                    memory_length,
                    in_memory,
                ),
                Tier::new(FileId::CACHE, DISK, parts[0], length, in_file),
                Tier::new(FileId::CACHE, INDEX, parts[1], length, in_file),
            ]),
        }
    }

    /// Whether the disk file's size may change: not that of one which is shorter than a region should be.
    pub(crate) fn may_resize(&self) -> bool {
        self.region_blocks >= REGION_BLOCKS_MIN
    }

    /// From now on the disk file has this size. If that is less than before, [`Cache::shrink`] empties what lies behind
    /// it; nothing new gets there.
    pub(crate) fn set_disk_bytes(&self, bytes: u64) {
        let in_file = regions_of(bytes, self.region_blocks);
        let mut tiers = lock(&self.tiers);
        let forgotten = [DISK, INDEX].map(|tier| tiers[tier].set_regions(in_file));
        drop(tiers);
        // Tables of some megabytes: no plan waits until they are given back.
        drop(forgotten);
    }

    /// Takes one step to the size that was set: at most one region's chunks leave.
    pub(crate) fn shrink(&self) -> CacheShrink {
        let mut tiers = lock(&self.tiers);
        let steps = [DISK, INDEX].map(|tier| tiers[tier].shrink());
        let all = |step| steps.iter().all(|one| *one == step);
        if all(Shrink::Done) || canary::active!("shrinking_cache_is_cut_at_once") {
            CacheShrink::Done
        } else if steps.contains(&Shrink::Continue) {
            CacheShrink::Continue
        } else {
            CacheShrink::Held
        }
    }

    /// Finds a chunk and pins it.
    pub(crate) fn find(&self, key: ChunkKey) -> Option<Hit> {
        let mut tiers = lock(&self.tiers);
        let [memory, disk, _] = &mut *tiers;
        memory.find(key).or_else(|| disk.find(key))
    }

    /// Finds an index block in the disk file and pins it.
    pub(crate) fn find_block(&self, key: ChunkKey) -> Option<Hit> {
        lock(&self.tiers)[INDEX].find(key)
    }

    /// A plan names these chunks: from now on they may be evicted once it unpins them. A read that
    /// found only some of what it needs must not call this, or they might be evicted before the rest arrives.
    pub(crate) fn mark_planned(&self, keys: &[ChunkKey]) {
        for tier in lock(&self.tiers)[..INDEX].iter_mut() {
            keys.iter().for_each(|key| tier.mark_planned(*key));
        }
    }

    /// Is a chunk here? Does not count as use.
    pub(crate) fn contains(&self, key: ChunkKey) -> bool {
        lock(&self.tiers)[..INDEX]
            .iter()
            .any(|tier| tier.contains(key))
    }

    /// Whether a chunk that is here was used more than once lately; none if it is not here. Does not count as use.
    pub(crate) fn find_use(&self, key: ChunkKey) -> Option<bool> {
        let tiers = lock(&self.tiers);
        let uses = tiers[..INDEX].iter().filter_map(|tier| tier.find_use(key));
        uses.reduce(|one, other| one | other)
    }

    /// The disk file gave an error where these chunks are; true if any of them is there. They
    /// are found no more, so the next read of them asks the store.
    pub(crate) fn mark_damaged_on_disk(&self, keys: &[ChunkKey]) -> bool {
        let disk = &mut lock(&self.tiers)[DISK];
        let marked = keys.iter().filter(|key| disk.mark_damaged(**key)).count();
        marked > 0
    }

    /// The disk file does not hold the index block that it should: it is found there no more.
    pub(crate) fn mark_block_damaged(&self, key: ChunkKey) {
        lock(&self.tiers)[INDEX].mark_damaged(key);
    }

    /// Space in the memory file; always granted.
    pub(crate) fn allocate_in_memory(
        &self,
        key: ChunkKey,
        bytes: u64,
        now: u64,
    ) -> Option<CacheAllocation> {
        lock(&self.tiers)[MEMORY].allocate(key, bytes, now)
    }

    /// Space in the disk file, if something there can go.
    pub(crate) fn allocate_on_disk(
        &self,
        key: ChunkKey,
        bytes: u64,
        now: u64,
    ) -> Option<CacheAllocation> {
        let disk = &mut lock(&self.tiers)[DISK];
        if disk.has_slot(key) {
            return None;
        }
        disk.allocate(key, bytes, now)
    }

    /// Space for an index block in its part of the disk file, if something there can go.
    pub(crate) fn allocate_block(
        &self,
        key: ChunkKey,
        bytes: u64,
        now: u64,
    ) -> Option<CacheAllocation> {
        let index = &mut lock(&self.tiers)[INDEX];
        if index.has_slot(key) {
            return None;
        }
        index.allocate(key, bytes, now)
    }

    /// The content is in place.
    pub(crate) fn fill(&self, allocation: CacheAllocation, now: u64) {
        let tier = allocation.tier;
        let fresh_until = if tier == MEMORY { now + FRESH_NS } else { 0 };
        lock(&self.tiers)[tier].fill(allocation, fresh_until);
    }

    /// The disk did not take the content. If it is full, the file takes no more space for some minutes;
    /// otherwise the place is left out for as long.
    pub(crate) fn on_write_failed(&self, allocation: CacheAllocation, is_full: bool, now: u64) {
        lock(&self.tiers)[allocation.tier].on_write_failed(&allocation, is_full, now);
    }

    /// The content could not be written.
    pub(crate) fn cancel(&self, allocation: CacheAllocation) {
        lock(&self.tiers)[allocation.tier].cancel(&allocation);
    }

    /// From now on nothing new gets into the disk file, and nothing leaves it for something new. What is there is found as before.
    pub(crate) fn freeze_disk(&self) {
        lock(&self.tiers)[DISK..].iter_mut().for_each(Tier::freeze);
    }

    /// The disk file is used as before.
    pub(crate) fn thaw_disk(&self) {
        lock(&self.tiers)[DISK..].iter_mut().for_each(Tier::thaw);
    }

    /// Whether the disk file has been frozen and unchanged since.
    pub(crate) fn is_disk_unchanged(&self) -> bool {
        let tiers = lock(&self.tiers);
        let mut disk = tiers[DISK..].iter().map(Tier::frozen);
        disk.all(|frozen| frozen == Some(Frozen::Unchanged))
    }

    /// What the disk file holds, which is to be frozen. Takes time, and the lock a piece at a time.
    pub(crate) fn inventory(&self) -> Vec<u8> {
        let mut inventory = Inventory {
            region_blocks: self.region_blocks,
            regions: lock(&self.tiers)[DISK].regions_in_file(),
            chunks: Vec::new(),
        };
        for tier in [DISK, INDEX] {
            let mut piece = 0;
            while lock(&self.tiers)[tier].list(piece, &mut inventory.chunks) {
                piece += 1;
            }
        }
        inventory.arrange(CHUNKS_MAX);
        inventory.encode()
    }

    /// Goes on with what another program has left in the disk file, which has been frozen since this one began, and uses it.
    /// Returns how many chunks that are. After an error the file is empty, and used all the same.
    pub(crate) fn restore(&self, inventory: &[u8]) -> Result<usize, InventoryError> {
        let restored = self.restored(inventory);
        let mut tiers = lock(&self.tiers);
        let is_new = |tier: &Tier| tier.frozen() == Some(Frozen::Unchanged) && tier.used == 0;
        let restored = match tiers[DISK..].iter().all(is_new) {
            true => restored,
            false => Err(InventoryError::InUse),
        };
        let replaced = restored.map(|(mut restored, count)| {
            tiers[DISK..].swap_with_slice(&mut restored);
            (restored, count)
        });
        tiers[DISK..].iter_mut().for_each(Tier::thaw);
        // What was replaced goes without the lock.
        drop(tiers);
        replaced.map(|(_, count)| count)
    }

    fn restored(&self, inventory: &[u8]) -> Result<([Tier; 2], usize), InventoryError> {
        let inventory = Inventory::decode(inventory)?;
        let (regions, mut restored) = {
            let tiers = lock(&self.tiers);
            let emptied = [DISK, INDEX].map(|tier| tiers[tier].emptied());
            (tiers[DISK].regions_in_file(), emptied)
        };
        if (inventory.region_blocks, inventory.regions) != (self.region_blocks, regions) {
            return Err(InventoryError::AnotherFile);
        }
        for chunk in &inventory.chunks {
            let tier = chunk
                .tier
                .checked_sub(DISK)
                .and_then(|at| restored.get_mut(at));
            if !tier.is_some_and(|tier| tier.adopt(chunk)) {
                return Err(InventoryError::Inconsistent);
            }
        }
        Ok((restored, inventory.chunks.len()))
    }

    pub(crate) fn usage(&self) -> CacheUsage {
        let tiers = lock(&self.tiers);
        CacheUsage {
            memory_bytes: tiers[MEMORY].used,
            disk_bytes: tiers[DISK].used + tiers[INDEX].used,
        }
    }
}

#[cfg(test)]
mod tests;
