//! One cache file, or a part of one: which chunks it holds, where, and which go when another needs the room.
//!
//! Owns the choice between evicting one chunk of the same size and a whole region of another size. Each
//! step is bounded: an insertion evicts at most one region or [`EVICTIONS_MAX`] chunks, because
//! the lock around it is one that plans of hot requests take.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, VecDeque};

use blkmq::io::FileId;

use super::inventory::ListedChunk;
use super::queues::{GhostEntries, NewChunk, Queues};
use super::regions::{Class, Occupant, Place, Regions};
use super::{CacheAllocation, ChunkKey, Hit};
use crate::log::layout::BLOCK_BYTES;

/// Chunks that one insertion evicts to keep the file's bytes within its capacity.
const EVICTIONS_MAX: usize = 64;
/// How long a file for which there was no space takes no more, and how long a bad place is left alone.
const REFUSED_FOR_NS: u64 = 300_000_000_000;
/// Of how many regions of a disk file one is for index blocks: a page of random 4 KiB extents is a fiftieth of what it
/// leads to, and of 64 KiB chunks a three-thousandth, but few of a page's chunks may be cached.
pub(super) const INDEX_SHARE: u64 = 8;
/// Which of them: not the first, so that the smallest file has chunks.
const INDEX_REGION: u64 = 1;

/// Which regions of a file are a tier's. The parts are interleaved, so that both grow and shrink with the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part {
    /// All of them.
    Whole,
    Chunks,
    Index,
}

impl Part {
    /// How many there are in a file that has so many regions.
    pub(super) fn regions_of(self, in_file: u64) -> u32 {
        let index = (in_file + INDEX_SHARE - 1 - INDEX_REGION) / INDEX_SHARE;
        let regions = match self {
            Part::Whole => in_file,
            Part::Chunks => in_file - index,
            Part::Index => index,
        };
        u32::try_from(regions).unwrap_or(u32::MAX)
    }

    /// Which region of the file a tier's region is.
    fn in_file(self, region: u32) -> u64 {
        let region = u64::from(region);
        match self {
            Part::Whole => region,
            Part::Index => region * INDEX_SHARE + INDEX_REGION,
            Part::Chunks => {
                let (row, at) = (region / (INDEX_SHARE - 1), region % (INDEX_SHARE - 1));
                row * INDEX_SHARE + at + u64::from(at >= INDEX_REGION)
            }
        }
    }
}

/// How far a tier is on its way to fewer regions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Shrink {
    /// Nothing is there any more.
    Done,
    /// More is to go.
    Continue,
    /// What is to go is being read or written.
    Held,
}

/// Regions looked at, of how many classes, before one is taken from its chunks.
const REGION_LOOKS_MAX: usize = 4;
const CLASS_LOOKS_MAX: usize = 3;

#[derive(Debug)]
pub(super) struct Tier {
    pub(super) file: FileId,
    /// Which of the cache's tiers this is.
    number: usize,
    /// Its part of the file.
    part: Part,
    pub(super) capacity: u64,
    /// May grow beyond its capacity where all that is in it is held.
    pub(super) elastic: bool,
    pub(super) regions: Regions,
    pub(super) queues: Queues,
    /// A tree: a hash table that grows moves all of its entries under the lock.
    pub(super) numbers: BTreeMap<ChunkKey, u32>,
    /// Bytes of slots that are promised or occupied, in whole blocks of content.
    pub(super) used: u64,
    /// Chunks evicted so far.
    pub(super) evicted: u64,
    /// Slots for which a full disk had no space. Until then they are left alone: they stay promised, and the
    /// file takes no more space, so what comes in takes the place of something else.
    refused: Vec<(Place, u64)>,
    capped_until_ns: u64,
    /// Slots that could not be written for another reason, and until when each stays promised.
    bad: VecDeque<(u64, Place, u64)>,
    /// Regions of the whole file.
    in_file: u64,
    /// Nothing new gets in. None: not so.
    frozen: Option<Frozen>,
}

/// Whether a frozen tier holds what it held when it was frozen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Frozen {
    Unchanged,
    /// Something is found no more, or the file has another size.
    Changed,
}

impl Tier {
    /// A tier in a part of a file that has so many regions of this length. The memory file may grow.
    pub(super) fn new(file: FileId, number: usize, part: Part, length: u32, in_file: u64) -> Tier {
        let elastic = file == FileId::MEMORY;
        let regions = Regions::new(length, part.regions_of(in_file), elastic);
        let capacity = regions.capacity();
        Tier {
            file,
            number,
            part,
            capacity,
            elastic,
            regions,
            queues: Queues::new(capacity),
            numbers: BTreeMap::new(),
            used: 0,
            evicted: 0,
            refused: Vec::new(),
            capped_until_ns: 0,
            bad: VecDeque::new(),
            in_file,
            frozen: None,
        }
    }

    /// An empty one that is otherwise the same.
    pub(super) fn emptied(&self) -> Tier {
        let length = self.regions.region_blocks();
        Tier::new(self.file, self.number, self.part, length, self.in_file)
    }

    pub(super) fn freeze(&mut self) {
        self.frozen = Some(Frozen::Unchanged);
    }

    pub(super) fn thaw(&mut self) {
        self.frozen = None;
    }

    pub(super) fn frozen(&self) -> Option<Frozen> {
        self.frozen
    }

    pub(super) fn regions_in_file(&self) -> u64 {
        self.in_file
    }

    /// What was listed is not there any more.
    fn note_change(&mut self) {
        if self.frozen.is_some() {
            self.frozen = Some(Frozen::Changed);
        }
    }

    /// Adds the chunks of one piece to a list; false behind the last piece.
    pub(super) fn list(&self, piece: usize, listed: &mut Vec<ListedChunk>) -> bool {
        let Some(chunks) = self.queues.piece(piece) else {
            return false;
        };
        let chunks = chunks.filter(|chunk| !chunk.damaged);
        listed.extend(chunks.map(|chunk| ListedChunk {
            tier: self.number,
            queue: chunk.queue,
            uses: chunk.uses,
            key: chunk.key,
            bytes: chunk.bytes,
            place: chunk.place,
            checksum: chunk.checksum,
            offset: self.offset(chunk.place),
            queued_at: chunk.queued_at,
        }));
        true
    }

    /// Takes in a chunk that is in the file already; false if it cannot be there.
    pub(super) fn adopt(&mut self, listed: &ListedChunk) -> bool {
        let blocks = u32::try_from(listed.bytes.div_ceil(BLOCK_BYTES)).unwrap_or(u32::MAX);
        let class = self.regions.class_of(blocks).filter(|_| blocks > 0);
        let Some(class) = class.filter(|class| self.regions.take_slot_at(listed.place, *class))
        else {
            return false;
        };
        let Entry::Vacant(vacant) = self.numbers.entry(listed.key) else {
            return false;
        };
        let new = NewChunk {
            key: listed.key,
            place: listed.place,
            class,
            bytes: listed.bytes,
            checksum: listed.checksum,
            fresh_until: 0,
        };
        let number = self.queues.insert_into(listed.queue, new, listed.uses);
        vacant.insert(number);
        self.regions.occupy(listed.place, number);
        self.used += listed.bytes.next_multiple_of(BLOCK_BYTES);
        self.offset(listed.place) == listed.offset
    }

    /// From now on the file has so many regions. Returns what is to be dropped without the lock.
    pub(super) fn set_regions(&mut self, in_file: u64) -> Option<GhostEntries> {
        if in_file != self.in_file {
            self.in_file = in_file;
            self.note_change();
        }
        let is_larger = self.part.regions_of(in_file) > self.regions.regions_max();
        self.regions.set_max(self.part.regions_of(in_file));
        self.capacity = self.regions.capacity();
        is_larger.then(|| self.queues.forget_left(self.capacity))
    }

    /// Empties the last of the regions that leave. What is held there is found no more, so that it is not held for ever.
    pub(super) fn shrink(&mut self) -> Shrink {
        let leaves = |place: &Place| self.regions.leaves(place.region);
        let is_refused = |(place, _): &(Place, u64)| leaves(place);
        let left_alone: Vec<_> = self.refused.extract_if(.., |it| is_refused(it)).collect();
        let (bad, rest) = std::mem::take(&mut self.bad)
            .into_iter()
            .partition::<VecDeque<_>, _>(|(_, place, _)| leaves(place));
        self.bad = rest;
        let bad = bad.into_iter().map(|(_, place, bytes)| (place, bytes));
        for (place, bytes) in left_alone.into_iter().chain(bad) {
            self.free(place, bytes);
        }
        for _ in 0..EVICTIONS_MAX {
            let Some(last) = self.regions.last_leaving() else {
                return Shrink::Done;
            };
            if self.regions.remove_last() {
                continue;
            }
            return match self.empty_region(last) {
                true => Shrink::Continue,
                false => Shrink::Held,
            };
        }
        Shrink::Continue
    }

    /// Evicts all chunks of a region that may go; whether those were all.
    fn empty_region(&mut self, region: u32) -> bool {
        self.note_change();
        let mut is_empty = true;
        for occupant in self.regions.occupants(region).to_vec() {
            match occupant {
                Occupant::Free => {}
                Occupant::Promised => is_empty = false,
                Occupant::Chunk(number) if self.is_kept_for_a_reader(number) => {
                    is_empty = false;
                    if let Some(chunk) = self.queues.get_mut(number) {
                        chunk.damaged = true;
                    }
                }
                Occupant::Chunk(number) => drop(self.remove(number)),
            }
        }
        is_empty
    }

    fn is_kept_for_a_reader(&self, number: u32) -> bool {
        // Nothing of a disk file is fresh, so the time does not matter.
        self.queues.is_held(number, 0) && !canary::active!("shrinking_cache_evicts_pinned_chunks")
    }

    /// Finds a chunk, counts the use and pins it.
    pub(super) fn find(&mut self, key: ChunkKey) -> Option<Hit> {
        let number = *self.numbers.get(&key)?;
        let chunk = self.queues.get(number).filter(|chunk| !chunk.damaged)?;
        let hit = Hit {
            file: self.file,
            offset: self.offset(chunk.place),
            pin: chunk.pins.pin(),
        };
        self.queues.count_use(number);
        Some(hit)
    }

    pub(super) fn contains(&self, key: ChunkKey) -> bool {
        let chunk = self
            .numbers
            .get(&key)
            .and_then(|number| self.queues.get(*number));
        chunk.is_some_and(|chunk| !chunk.damaged)
    }

    /// Whether a chunk that is here was used again; none if it is not here.
    pub(super) fn find_use(&self, key: ChunkKey) -> Option<bool> {
        let number = *self.numbers.get(&key)?;
        let chunk = self.queues.get(number).filter(|chunk| !chunk.damaged);
        chunk.map(|_| self.queues.is_used_again(number))
    }

    /// Is a chunk of this name in a slot, damaged or not?
    pub(super) fn has_slot(&self, key: ChunkKey) -> bool {
        self.numbers.contains_key(&key)
    }

    /// A plan names the chunk: it may be evicted once that unpins it.
    pub(super) fn mark_planned(&mut self, key: ChunkKey) {
        if let Some(number) = self.numbers.get(&key)
            && let Some(chunk) = self.queues.get_mut(*number)
        {
            chunk.fresh_until = 0;
        }
    }

    /// The chunk is found no more; true if it was.
    pub(super) fn mark_damaged(&mut self, key: ChunkKey) -> bool {
        let number = self.numbers.get(&key);
        let chunk = number.and_then(|number| self.queues.get_mut(*number));
        let is_news = chunk.is_some_and(|chunk| !std::mem::replace(&mut chunk.damaged, true));
        if is_news {
            self.note_change();
        }
        is_news
    }

    pub(super) fn offset(&self, place: Place) -> u64 {
        self.regions.offset(place, self.part.in_file(place.region))
    }

    /// Promises a slot for a chunk, evicting as needed.
    pub(super) fn allocate(
        &mut self,
        key: ChunkKey,
        bytes: u64,
        now: u64,
    ) -> Option<CacheAllocation> {
        if self.frozen.is_some() && !canary::active!("listed_cache_goes_on_changing") {
            return None;
        }
        if self.elastic {
            self.shrink_to_fit(bytes, now);
        }
        self.free_refused(now);
        let blocks = u32::try_from(bytes.div_ceil(BLOCK_BYTES)).ok()?;
        let place = match self.regions.class_of(blocks) {
            Some(class) => self.take_slot(class, now)?,
            None if self.elastic => self.regions.grow_run(blocks),
            None => return None,
        };
        self.used += bytes.next_multiple_of(BLOCK_BYTES);
        Some(CacheAllocation {
            key,
            offset: self.offset(place),
            bytes,
            place,
            tier: self.number,
            checksum: None,
        })
    }

    /// Slots that were left alone for long enough may be tried again. A bounded number: the lock is one that
    /// plans of hot requests take.
    fn free_refused(&mut self, now: u64) {
        if now >= self.capped_until_ns {
            let kept = self.refused.len().saturating_sub(EVICTIONS_MAX);
            for (place, bytes) in self.refused.split_off(kept) {
                self.free(place, bytes);
            }
        }
        for _ in 0..EVICTIONS_MAX {
            let Some((_, place, bytes)) = self.bad.pop_front_if(|(until, ..)| *until <= now) else {
                return;
            };
            self.free(place, bytes);
        }
    }

    fn take_slot(&mut self, class: Class, now: u64) -> Option<Place> {
        if let Some(place) = self.take_free_slot(class, now) {
            return Some(place);
        }
        if now < self.capped_until_ns {
            // A slot of its own size has been written before; a region that is emptied could not be shared out.
            self.evict_one(class, now);
        } else {
            self.evict_for(class, now);
        }
        let place = self.take_free_slot(class, now);
        if place.is_none() && self.elastic {
            self.regions.grow(class);
            return self.regions.take_slot(class);
        }
        place
    }

    fn take_free_slot(&mut self, class: Class, now: u64) -> Option<Place> {
        if let Some(place) = self.regions.take_slot(class) {
            return Some(place);
        }
        if now < self.capped_until_ns {
            return None;
        }
        self.regions.open_region(class).then_some(())?;
        self.regions.take_slot(class)
    }

    /// Makes room for a slot of a class: one of its own chunks goes, or a region of a class whose chunks
    /// have waited more than twice as long. Nothing goes if all that was looked at is held.
    fn evict_for(&mut self, class: Class, now: u64) {
        let ages = self.queues.classes_by_age();
        let own = ages.iter().find(|(_, of)| *of == class);
        let own = own.map_or(0, |(age, _)| *age);
        let is_older = ages.first().is_some_and(|(age, _)| age / 2 > own);
        if !is_older && self.evict_one(class, now) {
            return;
        }
        let others = ages.iter().map(|(_, of)| *of).filter(|of| *of != class);
        let others: Vec<_> = others.take(CLASS_LOOKS_MAX).collect();
        if !others
            .into_iter()
            .any(|other| self.evict_region(other, now))
        {
            self.evict_one(class, now);
        }
    }

    fn evict_one(&mut self, class: Class, now: u64) -> bool {
        let number = self.queues.next_to_leave(class, now);
        number.is_some_and(|number| self.remove(number))
    }

    /// Of the regions of the chunks that would leave next, empties the one with the fewest that were used again.
    fn evict_region(&mut self, class: Class, now: u64) -> bool {
        let mut best: Option<(usize, u32)> = None;
        for head in self.queues.first_chunks(class, REGION_LOOKS_MAX) {
            let Some(region) = self.queues.get(head).map(|chunk| chunk.place.region) else {
                continue;
            };
            let mut used_again = 0;
            if self.regions.occupants(region).is_empty() {
                // A chunk longer than a region is no slot's.
                continue;
            }
            let free = self
                .regions
                .occupants(region)
                .iter()
                .all(|occupant| match occupant {
                    Occupant::Free => true,
                    Occupant::Promised => false,
                    Occupant::Chunk(number) => {
                        used_again += usize::from(self.queues.is_used_again(*number));
                        !self.queues.is_held(*number, now)
                    }
                });
            if free && best.is_none_or(|(fewest, _)| used_again < fewest) {
                best = Some((used_again, region));
            }
        }
        let Some((_, region)) = best else {
            return false;
        };
        for occupant in self.regions.occupants(region).to_vec() {
            if let Occupant::Chunk(number) = occupant {
                self.remove(number);
            }
        }
        if canary::active!("insertion_evicts_a_class") {
            while self.evict_one(class, now) {}
        }
        true
    }

    /// Evicts what has waited longest until `bytes` more fit the capacity, if that is few enough.
    fn shrink_to_fit(&mut self, bytes: u64, now: u64) {
        for _ in 0..EVICTIONS_MAX {
            if self.used + bytes.next_multiple_of(BLOCK_BYTES) <= self.capacity {
                return;
            }
            let ages = self.queues.classes_by_age();
            if !ages
                .into_iter()
                .any(|(_, class)| self.evict_one(class, now))
            {
                return;
            }
        }
    }

    pub(super) fn remove(&mut self, number: u32) -> bool {
        let Some(chunk) = self.queues.remove(number) else {
            return false;
        };
        self.numbers.remove(&chunk.key);
        self.free(chunk.place, chunk.bytes);
        self.evicted += 1;
        true
    }

    fn free(&mut self, place: Place, bytes: u64) {
        self.regions.free_slot(place);
        self.used -= bytes.next_multiple_of(BLOCK_BYTES);
    }

    /// The content is in the promised slot.
    pub(super) fn fill(&mut self, allocation: CacheAllocation, fresh_until: u64) {
        let CacheAllocation {
            key,
            bytes,
            place,
            checksum,
            ..
        } = allocation;
        // It may have been fetched and written here twice. A plan may pin the first copy, and the content is
        // the same: the second one goes.
        let Entry::Vacant(vacant) = self.numbers.entry(key) else {
            return self.free(place, bytes);
        };
        let blocks = bytes.div_ceil(BLOCK_BYTES) as u32;
        let number = self.queues.insert(NewChunk {
            key,
            place,
            class: Class::of(blocks),
            bytes,
            checksum,
            fresh_until,
        });
        vacant.insert(number);
        self.regions.occupy(place, number);
    }

    /// The disk did not take the content. If it is full, the slot is one that was never written, and others
    /// have been: the file takes no more space for a while. Otherwise this place alone is left out for as long.
    pub(super) fn on_write_failed(
        &mut self,
        allocation: &CacheAllocation,
        is_full: bool,
        now: u64,
    ) {
        if canary::active!("refused_slot_is_given_again") {
            return self.cancel(allocation);
        }
        let until_ns = now + REFUSED_FOR_NS;
        if is_full || canary::active!("bad_place_is_a_full_disk") {
            self.refused.push((allocation.place, allocation.bytes));
            self.capped_until_ns = until_ns;
        } else {
            self.bad
                .push_back((until_ns, allocation.place, allocation.bytes));
        }
    }

    /// The content could not be written.
    pub(super) fn cancel(&mut self, allocation: &CacheAllocation) {
        self.free(allocation.place, allocation.bytes);
    }
}
