//! The read cache: fetched chunks, in a memory file where they land and a disk file behind it.
//!
//! Content is named by chunk (pack and offset), which never changes; so a fetch cannot clobber a
//! write, and nothing here is ever out of date. Losing the cache loses nothing.
//!
//! A chunk that was just fetched is *fresh* until a plan has used it: fresh and pinned chunks are
//! not evicted, even if the memory file grows beyond its size for them, so a read that waits for
//! many chunks always makes progress. Eviction is a clock: what was used since the hand last
//! passed gets another round.

mod invariants;

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Mutex;

use blkmq::io::{FileId, Pin, PinCount};

use crate::lock::lock;
use crate::log::layout::BLOCK_BYTES;
use crate::object::ObjectId;

/// Names a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct ChunkKey {
    pub(crate) pack: ObjectId,
    pub(crate) offset: u32,
}

#[derive(Debug)]
struct Slot {
    offset: u64,
    /// Bytes of content; the space taken is rounded up to blocks.
    bytes: u64,
    pins: PinCount,
    used: bool,
    /// It could not be read: look-ups miss it, and its space is free once it is evicted.
    damaged: bool,
    /// Until when it may not be evicted unless a plan has used it before (monotonic ns).
    fresh_until: u64,
}

/// How long a fetched chunk waits for the read that asked for it. A read whose client has
/// disconnected must not keep memory.
const FRESH_NS: u64 = 10_000_000_000;

/// Slots looked at for one eviction, and gaps for one allocation.
const EVICT_LOOKS_MAX: usize = 1024;
const GAP_LOOKS_MAX: usize = 256;

/// Slots in one file.
#[derive(Debug)]
struct Slab {
    file: FileId,
    capacity: u64,
    /// May grow beyond its capacity for fresh chunks.
    elastic: bool,
    slots: BTreeMap<ChunkKey, Slot>,
    clock: VecDeque<ChunkKey>,
    /// Free space: offset -> bytes. What lies beyond the last slot is not listed.
    gaps: BTreeMap<u64, u64>,
    end: u64,
    used: u64,
}

impl Slab {
    fn new(file: FileId, capacity: u64, elastic: bool) -> Slab {
        Slab {
            file,
            capacity,
            elastic,
            slots: BTreeMap::new(),
            clock: VecDeque::new(),
            gaps: BTreeMap::new(),
            end: 0,
            used: 0,
        }
    }

    fn find(&mut self, key: ChunkKey) -> Option<Hit> {
        let slot = self.slots.get_mut(&key).filter(|slot| !slot.damaged)?;
        slot.used = true;
        Some(Hit {
            file: self.file,
            offset: slot.offset,
            pin: slot.pins.pin(),
        })
    }

    /// Gives space, evicting as needed. The caller inserts the slot.
    fn allocate(&mut self, bytes: u64, now: u64) -> Option<u64> {
        let bytes = bytes.next_multiple_of(BLOCK_BYTES);
        loop {
            if let Some((&at, &gap)) = self
                .gaps
                .iter()
                .take(GAP_LOOKS_MAX)
                .find(|(_, gap)| **gap >= bytes)
            {
                self.gaps.remove(&at);
                if gap > bytes {
                    self.gaps.insert(at + bytes, gap - bytes);
                }
                self.used += bytes;
                return Some(at);
            }
            let fits = self.end + bytes <= self.capacity;
            if !fits && self.evict(now) {
                continue;
            }
            if !fits && !self.elastic {
                return None;
            }
            let at = self.end;
            self.end += bytes;
            self.used += bytes;
            return Some(at);
        }
    }

    /// Evicts one chunk; false if all are pinned or fresh.
    fn evict(&mut self, now: u64) -> bool {
        // Twice round: the first round may only take marks away. Bounded all the same, for the
        // lock is one that plans take; where nothing is found the caller does without.
        for _ in 0..(self.clock.len() * 2).min(EVICT_LOOKS_MAX) {
            let Some(key) = self.clock.pop_front() else {
                return false;
            };
            let Some(slot) = self.slots.get_mut(&key) else {
                continue;
            };
            let held = slot.pins.count() > 0 || slot.fresh_until > now;
            if held || std::mem::take(&mut slot.used) {
                self.clock.push_back(key);
                continue;
            }
            if let Some(slot) = self.slots.remove(&key) {
                self.give_back(slot.offset, slot.bytes.next_multiple_of(BLOCK_BYTES));
            }
            return true;
        }
        false
    }

    fn give_back(&mut self, mut at: u64, mut bytes: u64) {
        self.used -= bytes;
        if let Some((&before, &gap)) = self.gaps.range(..at).next_back()
            && before + gap == at
        {
            self.gaps.remove(&before);
            at = before;
            bytes += gap;
        }
        if let Some(gap) = self.gaps.remove(&(at + bytes)) {
            bytes += gap;
        }
        if at + bytes == self.end {
            self.end = at;
        } else if !canary::active!("cache_gap_lost") {
            self.gaps.insert(at, bytes);
        }
    }

    fn insert(&mut self, key: ChunkKey, offset: u64, bytes: u64, fresh_until: u64) {
        let slot = Slot {
            offset,
            bytes,
            pins: PinCount::default(),
            used: false,
            damaged: false,
            fresh_until,
        };
        // It may have been fetched and written here twice. A plan may pin the first copy, and the
        // content is the same: the second one goes.
        if let Entry::Vacant(vacant) = self.slots.entry(key) {
            vacant.insert(slot);
            self.clock.push_back(key);
        } else {
            self.give_back(offset, bytes.next_multiple_of(BLOCK_BYTES));
        }
    }
}

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
    tiers: Mutex<[Slab; 2]>,
}

const MEMORY: usize = 0;
const DISK: usize = 1;

impl Cache {
    pub(crate) fn new(memory_bytes: u64, disk_bytes: u64) -> Cache {
        Cache {
            tiers: Mutex::new([
                Slab::new(FileId::MEMORY, memory_bytes, true),
                Slab::new(FileId::CACHE, disk_bytes, false),
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
        for slab in lock(&self.tiers).iter_mut() {
            for key in keys {
                if let Some(slot) = slab.slots.get_mut(key) {
                    slot.fresh_until = 0;
                }
            }
        }
    }

    /// Is a chunk here? Does not count as use.
    pub(crate) fn contains(&self, key: ChunkKey) -> bool {
        lock(&self.tiers)
            .iter()
            .any(|slab| slab.slots.get(&key).is_some_and(|slot| !slot.damaged))
    }

    /// The disk file gave an error where these chunks are; true if any of them is there. They
    /// are found no more, so the next read of them asks the store.
    pub(crate) fn mark_damaged_on_disk(&self, keys: &[ChunkKey]) -> bool {
        let slots = &mut lock(&self.tiers)[DISK].slots;
        let mut any = false;
        for key in keys {
            if let Some(slot) = slots.get_mut(key).filter(|slot| !slot.damaged) {
                slot.damaged = true;
                slot.used = false;
                any = true;
            }
        }
        any
    }

    /// Space in the memory file; always granted.
    pub(crate) fn allocate_in_memory(
        &self,
        key: ChunkKey,
        bytes: u64,
        now: u64,
    ) -> Option<CacheAllocation> {
        self.allocate(MEMORY, key, bytes, now)
    }

    /// Space in the disk file, if something there can go.
    pub(crate) fn allocate_on_disk(
        &self,
        key: ChunkKey,
        bytes: u64,
        now: u64,
    ) -> Option<CacheAllocation> {
        self.allocate(DISK, key, bytes, now)
    }

    fn allocate(
        &self,
        tier: usize,
        key: ChunkKey,
        bytes: u64,
        now: u64,
    ) -> Option<CacheAllocation> {
        let slab = &mut lock(&self.tiers)[tier];
        if tier == DISK && slab.slots.contains_key(&key) {
            return None;
        }
        let offset = slab.allocate(bytes, now)?;
        Some(CacheAllocation {
            key,
            file: slab.file,
            offset,
            bytes,
        })
    }

    /// The content is in place.
    pub(crate) fn fill(&self, allocation: CacheAllocation, now: u64) {
        let tier = usize::from(allocation.file != FileId::MEMORY);
        let fresh_until = if tier == MEMORY { now + FRESH_NS } else { 0 };
        let slab = &mut lock(&self.tiers)[tier];
        slab.insert(
            allocation.key,
            allocation.offset,
            allocation.bytes,
            fresh_until,
        );
    }

    /// The content could not be written.
    pub(crate) fn cancel(&self, allocation: CacheAllocation) {
        let tier = usize::from(allocation.file != FileId::MEMORY);
        let bytes = allocation.bytes.next_multiple_of(BLOCK_BYTES);
        lock(&self.tiers)[tier].give_back(allocation.offset, bytes);
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
mod tests {
    use super::*;

    fn key(n: u32) -> ChunkKey {
        ChunkKey {
            pack: ObjectId::default(),
            offset: n,
        }
    }

    fn put(cache: &Cache, n: u32, bytes: u64, now: u64) {
        let allocation = cache
            .allocate_in_memory(key(n), bytes, now)
            .expect("memory is elastic");
        cache.fill(allocation, now);
    }

    #[test]
    fn the_cache_keeps_to_its_size_once_chunks_were_used() {
        let cache = Cache::new(4 * BLOCK_BYTES, 0);
        for n in 0..100 {
            put(&cache, n, BLOCK_BYTES, 0);
            assert!(cache.find(key(n)).is_some());
            cache.mark_planned(&[key(n)]);
        }
        assert!(cache.usage().memory_bytes <= 4 * BLOCK_BYTES);
    }

    #[test]
    fn what_a_waiting_read_needs_is_kept_until_it_was_used_or_is_old() {
        let cache = Cache::new(2 * BLOCK_BYTES, 0);
        (0..8).for_each(|n| put(&cache, n, BLOCK_BYTES, 0));
        assert!(
            (0..8).all(|n| cache.find(key(n)).is_some()),
            "all were fresh"
        );
        (0..8).for_each(|n| cache.mark_planned(&[key(n)]));
        (8..16).for_each(|n| put(&cache, n, BLOCK_BYTES, 1));
        let old = FRESH_NS + 2;
        (16..32).for_each(|n| put(&cache, n, BLOCK_BYTES, old));
        assert!(
            (8..16).all(|n| cache.find(key(n)).is_none()),
            "nobody came for them"
        );
    }

    #[test]
    fn a_pinned_chunk_is_not_evicted() {
        let cache = Cache::new(BLOCK_BYTES, 0);
        put(&cache, 0, BLOCK_BYTES, 0);
        let hit = cache.find(key(0)).expect("there");
        for n in 1..20 {
            put(&cache, n, BLOCK_BYTES, 0);
            cache.mark_planned(&[key(n)]);
        }
        assert_eq!(
            cache.find(key(0)).map(|again| again.offset),
            Some(hit.offset)
        );
    }

    #[test]
    fn a_second_copy_of_a_chunk_does_not_take_the_place_of_a_pinned_one() {
        let cache = Cache::new(0, 3 * BLOCK_BYTES);
        let first = cache
            .allocate_on_disk(key(0), BLOCK_BYTES, 0)
            .expect("room");
        let second = cache
            .allocate_on_disk(key(0), BLOCK_BYTES, 0)
            .expect("room");
        cache.fill(first, 0);
        let hit = cache.find(key(0)).expect("there");
        cache.fill(second, 0);
        let other = cache
            .allocate_on_disk(key(1), BLOCK_BYTES, 0)
            .expect("room");
        assert_ne!(other.offset, hit.offset, "the pinned bytes stay");
        assert_eq!(cache.usage().disk_bytes, 2 * BLOCK_BYTES);
    }

    #[test]
    fn the_disk_tier_never_exceeds_its_size() {
        let cache = Cache::new(0, 3 * BLOCK_BYTES);
        for n in 0..50 {
            if let Some(allocation) = cache.allocate_on_disk(key(n), BLOCK_BYTES + 1, 0) {
                assert!(allocation.offset + 2 * BLOCK_BYTES <= 3 * BLOCK_BYTES);
                cache.fill(allocation, 0);
            }
        }
        assert_eq!(cache.usage().disk_bytes, 2 * BLOCK_BYTES);
        assert!(
            cache
                .allocate_on_disk(key(99), 4 * BLOCK_BYTES, 0)
                .is_none()
        );
    }
}
