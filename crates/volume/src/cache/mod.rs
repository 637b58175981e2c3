//! The read cache: fetched chunks, in a memory file where they land and a disk file behind it.
//!
//! Content is named by chunk (pack and offset), which never changes; so a fetch cannot clobber a
//! write, and nothing here is ever out of date. Losing the cache loses nothing.
//!
//! A chunk that was just fetched is *fresh* until a plan has used it: fresh and pinned chunks are
//! not evicted, even if the memory file grows beyond its size for them, so a read that waits for
//! many chunks always makes progress.
//!
//! `regions` is the space of a file, `queues` the order in which chunks leave, `tier` one file with both.

mod invariants;
mod queues;
mod regions;
mod tier;

use std::sync::Mutex;

use blkmq::io::{FileId, Pin};

use self::regions::Place;
use self::tier::Tier;
use crate::lock::lock;
use crate::object::ObjectId;

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
    pub(crate) file: FileId,
    pub(crate) offset: u64,
    bytes: u64,
    place: Place,
}

/// Counters for `/metrics`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheUsage {
    /// Bytes in the memory file.
    pub memory_bytes: u64,
    /// Bytes in the disk file.
    pub disk_bytes: u64,
}

/// Both tiers. One lock; held for bounded memory work.
#[derive(Debug)]
pub(crate) struct Cache {
    tiers: Mutex<[Tier; 2]>,
}

const MEMORY: usize = 0;
const DISK: usize = 1;

impl Cache {
    pub(crate) fn new(memory_bytes: u64, disk_bytes: u64) -> Cache {
        Cache {
            tiers: Mutex::new([
                Tier::new(FileId::MEMORY, memory_bytes, true),
                Tier::new(FileId::CACHE, disk_bytes, false),
            ]),
        }
    }

    /// Finds a chunk and pins it.
    pub(crate) fn find(&self, key: ChunkKey) -> Option<Hit> {
        let mut tiers = lock(&self.tiers);
        let [memory, disk] = &mut *tiers;
        memory.find(key).or_else(|| disk.find(key))
    }

    /// A plan names these chunks: from now on they may be evicted once it unpins them. A read that
    /// found only some of what it needs must not call this, or they might be evicted before the rest arrives.
    pub(crate) fn mark_planned(&self, keys: &[ChunkKey]) {
        for tier in lock(&self.tiers).iter_mut() {
            keys.iter().for_each(|key| tier.mark_planned(*key));
        }
    }

    /// Is a chunk here? Does not count as use.
    pub(crate) fn contains(&self, key: ChunkKey) -> bool {
        lock(&self.tiers).iter().any(|tier| tier.contains(key))
    }

    /// The disk file gave an error where these chunks are; true if any of them is there. They
    /// are found no more, so the next read of them asks the store.
    pub(crate) fn mark_damaged_on_disk(&self, keys: &[ChunkKey]) -> bool {
        let disk = &mut lock(&self.tiers)[DISK];
        let marked = keys.iter().filter(|key| disk.mark_damaged(**key)).count();
        marked > 0
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

    /// The content is in place.
    pub(crate) fn fill(&self, allocation: CacheAllocation, now: u64) {
        let tier = usize::from(allocation.file != FileId::MEMORY);
        let fresh_until = if tier == MEMORY { now + FRESH_NS } else { 0 };
        lock(&self.tiers)[tier].fill(allocation, fresh_until);
    }

    /// The content could not be written.
    pub(crate) fn cancel(&self, allocation: CacheAllocation) {
        let tier = usize::from(allocation.file != FileId::MEMORY);
        lock(&self.tiers)[tier].cancel(&allocation);
    }

    pub(crate) fn usage(&self) -> CacheUsage {
        let tiers = lock(&self.tiers);
        CacheUsage {
            memory_bytes: tiers[MEMORY].used,
            disk_bytes: tiers[DISK].used,
        }
    }
}

#[cfg(test)]
mod tests;
