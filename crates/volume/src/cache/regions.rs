//! The space of one cache file: regions of one length, each cut into slots of one size.
//!
//! Owns which slot is free and who occupies the others; it must never look at what a chunk is worth
//! (`tier` decides what is evicted). Why regions: with gaps of any length, one large chunk in a file full
//! of small ones evicts until enough neighbours happen to be free, which took nearly the whole file. Here
//! every step costs at most one region, whatever the file holds.
//!
//! The number of regions may change: of a file that is to be shorter, the last ones *leave*. Nothing new gets into them,
//! and they go from the end as they become free.

use std::collections::BTreeSet;

use crate::log::layout::BLOCK_BYTES;

/// Regions of a large file: 128 slots of 4 KiB, so what one step evicts stays small.
const REGION_BLOCKS_MAX: u32 = 128;
/// Regions of a small file, unless the file itself is smaller: the chunks that firn writes fit.
pub(super) const REGION_BLOCKS_MIN: u32 = 16;
/// A file has at least so many regions where their least length allows it.
const REGIONS_MIN: u64 = 64;

/// Regions in one piece of memory. A vector that doubles would copy all of them under the lock.
const PIECE_REGIONS: usize = 1024;

/// The length of regions for a file, or the part of one that has so many of its blocks.
pub(super) fn region_blocks(whole_blocks: u64, part_blocks: u64) -> u32 {
    let wanted = u32::try_from(part_blocks / REGIONS_MIN).unwrap_or(REGION_BLOCKS_MAX);
    let clamped = wanted.clamp(REGION_BLOCKS_MIN, REGION_BLOCKS_MAX);
    let whole = u32::try_from(whole_blocks).unwrap_or(u32::MAX);
    let mut blocks = if whole == 0 {
        clamped
    } else {
        clamped.min(whole)
    };
    // A length of slots, so that each chunk that is not longer fits one.
    while Class::of(blocks).blocks() != blocks {
        blocks -= 1;
    }
    blocks
}

/// A size of slots: index into the table that [`class_blocks`] computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Class(pub(super) u8);

impl Class {
    /// Slots of 1 to 8 blocks are exact; above that a slot is at most a quarter longer than its chunk.
    pub(super) fn of(blocks: u32) -> Class {
        let blocks = blocks.max(1);
        if blocks <= 8 {
            return Class(blocks as u8 - 1);
        }
        // 2^power < blocks <= 2^(power + 1), in four steps.
        let power = (blocks - 1).ilog2();
        let step = 1 << (power - 2);
        let steps = (blocks - (1 << power)).div_ceil(step);
        Class((8 + (power - 3) * 4 + steps - 1) as u8)
    }

    /// Blocks of a slot of this class.
    pub(super) fn blocks(self) -> u32 {
        let class = u32::from(self.0);
        if class < 8 {
            return class + 1;
        }
        let (power, steps) = ((class - 8) / 4 + 3, (class - 8) % 4 + 1);
        (1 << power) + steps * (1 << (power - 2))
    }
}

/// Names a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) region: u32,
    pub(super) slot: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Occupant {
    Free,
    /// Promised to a chunk that is being written there.
    Promised,
    /// The number of the chunk.
    Chunk(u32),
}

#[derive(Debug)]
enum Region {
    Free,
    Slots {
        class: Class,
        taken: u32,
        occupants: Vec<Occupant>,
    },
    /// One of neighbouring regions that hold one chunk longer than a region; slot 0 of the first is its place.
    Run {
        first: u32,
        regions: u32,
    },
}

#[derive(Debug)]
pub(super) struct Regions {
    region_blocks: u32,
    /// More than `regions_max` are used like any others: none of them leaves.
    is_elastic: bool,
    /// How many the file's capacity allows. Only [`Regions::grow`] goes beyond.
    regions_max: u32,
    /// In pieces of [`PIECE_REGIONS`], all but the last of them full.
    pieces: Vec<Vec<Region>>,
    len: u32,
    free: BTreeSet<u32>,
    /// By class: regions with a free slot, lowest first, so that the last ones empty.
    with_space: Vec<BTreeSet<u32>>,
}

impl Regions {
    /// No more than `regions_max` regions of this length, unless it is elastic.
    pub(super) fn new(region_blocks: u32, regions_max: u32, is_elastic: bool) -> Regions {
        Regions {
            region_blocks,
            is_elastic,
            regions_max,
            pieces: Vec::new(),
            len: 0,
            free: BTreeSet::new(),
            with_space: vec![BTreeSet::new(); usize::from(Class::of(region_blocks).0) + 1],
        }
    }

    fn get(&self, region: u32) -> &Region {
        &self.pieces[region as usize / PIECE_REGIONS][region as usize % PIECE_REGIONS]
    }

    fn get_mut(&mut self, region: u32) -> &mut Region {
        &mut self.pieces[region as usize / PIECE_REGIONS][region as usize % PIECE_REGIONS]
    }

    fn push(&mut self, region: Region) -> u32 {
        let number = self.len;
        if (number as usize).is_multiple_of(PIECE_REGIONS) {
            self.pieces.push(Vec::with_capacity(PIECE_REGIONS));
        }
        if let Some(piece) = self.pieces.last_mut() {
            piece.push(region);
        }
        self.len += 1;
        number
    }

    /// Bytes of the regions that there may be.
    pub(super) fn capacity(&self) -> u64 {
        u64::from(self.regions_max) * u64::from(self.region_blocks) * BLOCK_BYTES
    }

    pub(super) fn region_blocks(&self) -> u32 {
        self.region_blocks
    }

    /// How many there may be.
    pub(super) fn regions_max(&self) -> u32 {
        self.regions_max
    }

    /// From now on there may be so many. If there are more, those behind leave.
    pub(super) fn set_max(&mut self, regions_max: u32) {
        self.regions_max = regions_max;
    }

    /// Whether a region is one of those that leave.
    pub(super) fn leaves(&self, region: u32) -> bool {
        !self.is_elastic && region >= self.regions_max
    }

    /// The last of the regions that leave.
    pub(super) fn last_leaving(&self) -> Option<u32> {
        let last = self.len.checked_sub(1)?;
        self.leaves(last).then_some(last)
    }

    /// Takes the last region away, if it is free.
    pub(super) fn remove_last(&mut self) -> bool {
        let Some(last) = self.len.checked_sub(1) else {
            return false;
        };
        if !self.free.remove(&last) {
            return false;
        }
        if let Some(piece) = self.pieces.last_mut() {
            piece.pop();
            if piece.is_empty() {
                self.pieces.pop();
            }
        }
        self.len -= 1;
        true
    }

    /// The class for a chunk of so many blocks; none if it is longer than a region.
    pub(super) fn class_of(&self, blocks: u32) -> Option<Class> {
        (blocks <= self.region_blocks).then(|| Class::of(blocks))
    }

    /// Where a slot begins, in bytes, if its region is the file's region of number `at`.
    pub(super) fn offset(&self, place: Place, at: u64) -> u64 {
        let blocks = match self.get(place.region) {
            Region::Slots { class, .. } => u64::from(place.slot) * u64::from(class.blocks()),
            Region::Free | Region::Run { .. } => 0,
        };
        (at * u64::from(self.region_blocks) + blocks) * BLOCK_BYTES
    }

    /// Promises a free slot of a region that this class has already.
    pub(super) fn take_slot(&mut self, class: Class) -> Option<Place> {
        let region = *self.with_space[usize::from(class.0)].first()?;
        if self.leaves(region) {
            return None;
        }
        let Region::Slots {
            taken, occupants, ..
        } = self.get_mut(region)
        else {
            return None;
        };
        let slot = occupants.iter().position(|at| *at == Occupant::Free)?;
        occupants[slot] = Occupant::Promised;
        *taken += 1;
        if *taken as usize == occupants.len() {
            self.with_space[usize::from(class.0)].remove(&region);
        }
        Some(Place {
            region,
            slot: slot as u32,
        })
    }

    /// Promises this very slot of a class; false if there is none, or it is not free.
    pub(super) fn take_slot_at(&mut self, place: Place, class: Class) -> bool {
        let is_class = usize::from(class.0) < self.with_space.len();
        if place.region >= self.regions_max || !is_class {
            return false;
        }
        while self.len <= place.region {
            let region = self.push(Region::Free);
            self.free.insert(region);
        }
        if self.free.remove(&place.region) {
            self.cut(place.region, class);
        }
        let Region::Slots {
            class: found,
            taken,
            occupants,
        } = self.get_mut(place.region)
        else {
            return false;
        };
        let slot = occupants.get_mut(place.slot as usize);
        let Some(slot) = slot.filter(|slot| *found == class && **slot == Occupant::Free) else {
            return false;
        };
        *slot = Occupant::Promised;
        *taken += 1;
        if *taken as usize == occupants.len() {
            self.with_space[usize::from(class.0)].remove(&place.region);
        }
        true
    }

    /// Cuts a free region into slots of a class; false if there is none within the capacity.
    pub(super) fn open_region(&mut self, class: Class) -> bool {
        let free = self.free.first().copied();
        let region = match free.filter(|region| !self.leaves(*region)) {
            Some(region) => {
                self.free.remove(&region);
                region
            }
            None if self.len < self.regions_max => self.push(Region::Free),
            None => return false,
        };
        self.cut(region, class);
        true
    }

    /// Adds a region beyond the capacity and cuts it.
    pub(super) fn grow(&mut self, class: Class) {
        let region = self.push(Region::Free);
        self.cut(region, class);
    }

    /// Promises neighbouring regions at the end of the file to one chunk that is longer than a region.
    pub(super) fn grow_run(&mut self, blocks: u32) -> Place {
        let regions = blocks.div_ceil(self.region_blocks);
        let first = self.len;
        for _ in 0..regions {
            self.push(Region::Run { first, regions });
        }
        Place {
            region: first,
            slot: 0,
        }
    }

    fn cut(&mut self, region: u32, class: Class) {
        let slots = (self.region_blocks / class.blocks()) as usize;
        *self.get_mut(region) = Region::Slots {
            class,
            taken: 0,
            occupants: vec![Occupant::Free; slots],
        };
        self.with_space[usize::from(class.0)].insert(region);
    }

    /// The promised slot has its chunk now.
    pub(super) fn occupy(&mut self, place: Place, chunk: u32) {
        if let Region::Slots { occupants, .. } = self.get_mut(place.region) {
            occupants[place.slot as usize] = Occupant::Chunk(chunk);
        }
    }

    /// A slot is free again, and its region too once all of it is.
    pub(super) fn free_slot(&mut self, place: Place) {
        match self.get_mut(place.region) {
            Region::Slots {
                class,
                taken,
                occupants,
            } => {
                occupants[place.slot as usize] = Occupant::Free;
                *taken -= 1;
                let (class, taken) = (usize::from(class.0), *taken);
                if taken > 0 {
                    self.with_space[class].insert(place.region);
                    return;
                }
                self.with_space[class].remove(&place.region);
                if !canary::active!("cache_region_lost") {
                    self.free_region(place.region);
                }
            }
            Region::Run { first, regions } => {
                let run = *first..*first + *regions;
                run.for_each(|region| self.free_region(region));
            }
            Region::Free => {}
        }
    }

    fn free_region(&mut self, region: u32) {
        *self.get_mut(region) = Region::Free;
        self.free.insert(region);
    }

    /// Who is in a region that is cut into slots.
    pub(super) fn occupants(&self, region: u32) -> &[Occupant] {
        match self.get(region) {
            Region::Slots { occupants, .. } => occupants,
            Region::Free | Region::Run { .. } => &[],
        }
    }

    /// Every region is free, or in its class's set where a slot of it is.
    pub(super) fn invariants(&self) -> Result<(), &'static str> {
        for (number, region) in self.pieces.iter().flatten().enumerate() {
            let number = number as u32;
            match region {
                Region::Free if !self.free.contains(&number) => {
                    return Err("a free region is in no list");
                }
                Region::Slots {
                    class,
                    taken,
                    occupants,
                } => {
                    let free = occupants.iter().filter(|at| **at == Occupant::Free).count();
                    if occupants.len() - free != *taken as usize || *taken == 0 {
                        return Err("a region does not count its slots, or is empty and not free");
                    }
                    if self.with_space[usize::from(class.0)].contains(&number) != (free > 0) {
                        return Err("a region with a free slot is not listed, or one without is");
                    }
                }
                Region::Free | Region::Run { .. } => {}
            }
        }
        let listed = self.with_space.iter().map(BTreeSet::len).sum::<usize>() + self.free.len();
        let listed_last = self.free.last().into_iter();
        let listed_last = listed_last.chain(self.with_space.iter().filter_map(BTreeSet::last));
        match listed <= self.len as usize && listed_last.max().is_none_or(|last| *last < self.len) {
            true => Ok(()),
            false => Err("a region is listed that is not there"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_is_never_shorter_than_its_chunk_and_at_most_a_quarter_longer() {
        let mut before = 0;
        for blocks in 1..=1024 {
            let class = Class::of(blocks);
            assert!(
                class.blocks() >= blocks,
                "{blocks} blocks in {}",
                class.blocks()
            );
            assert!(
                class.blocks() * 4 <= blocks * 5,
                "{blocks} in {}",
                class.blocks()
            );
            assert_eq!(Class::of(class.blocks()), class);
            assert!(class.0 == before || class.0 == before + 1, "{blocks}");
            before = class.0;
        }
    }

    #[test]
    fn a_region_that_is_empty_serves_any_class_again() {
        let mut regions = Regions::new(REGION_BLOCKS_MIN, 1, false);
        let (small, large) = (Class::of(1), Class::of(16));
        assert!(regions.open_region(small));
        let places: Vec<_> = (0..16).map(|_| regions.take_slot(small).unwrap()).collect();
        assert!(regions.take_slot(small).is_none() && !regions.open_region(large));
        places
            .into_iter()
            .for_each(|place| regions.free_slot(place));
        regions.invariants().unwrap();
        assert!(regions.open_region(large));
        let place = regions.take_slot(large).unwrap();
        assert_eq!(regions.offset(place, 0), 0);
    }
}
