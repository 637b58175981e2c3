//! The space of one cache file: regions of one length, each cut into slots of one size.
//!
//! Owns which slot is free and who occupies the others; it must never look at what a chunk is worth
//! (`tier` decides what is evicted). Why regions: with gaps of any length, one large chunk in a file full
//! of small ones evicts until enough neighbours happen to be free, which took nearly the whole file. Here
//! every step costs at most one region, whatever the file holds.

use std::collections::BTreeSet;

use crate::log::layout::BLOCK_BYTES;

/// Regions of a large file: 128 slots of 4 KiB, so what one step evicts stays small.
const REGION_BLOCKS_MAX: u32 = 128;
/// Regions of a small file, unless the file itself is smaller: the chunks that firn writes fit.
const REGION_BLOCKS_MIN: u32 = 16;
/// A file has at least so many regions where their least length allows it.
const REGIONS_MIN: u64 = 64;

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
    /// How many the file's capacity allows. Only [`Regions::grow`] goes beyond.
    regions_max: u32,
    regions: Vec<Region>,
    free: BTreeSet<u32>,
    /// By class: regions with a free slot, lowest first, so that the last ones empty.
    with_space: Vec<BTreeSet<u32>>,
}

impl Regions {
    pub(super) fn new(capacity: u64) -> Regions {
        let blocks = capacity / BLOCK_BYTES;
        let wanted = u32::try_from(blocks / REGIONS_MIN).unwrap_or(REGION_BLOCKS_MAX);
        let clamped = wanted.clamp(REGION_BLOCKS_MIN, REGION_BLOCKS_MAX);
        let whole = u32::try_from(blocks).unwrap_or(u32::MAX);
        let mut region_blocks = if whole == 0 {
            clamped
        } else {
            clamped.min(whole)
        };
        // A length of slots, so that each chunk that is not longer fits one.
        while Class::of(region_blocks).blocks() != region_blocks {
            region_blocks -= 1;
        }
        let regions_max = blocks / u64::from(region_blocks);
        Regions {
            region_blocks,
            regions_max: u32::try_from(regions_max).unwrap_or(u32::MAX),
            // All at once: a vector that doubles would copy them under the lock.
            regions: Vec::with_capacity(usize::try_from(regions_max).unwrap_or(0)),
            free: BTreeSet::new(),
            with_space: vec![BTreeSet::new(); usize::from(Class::of(region_blocks).0) + 1],
        }
    }

    /// The class for a chunk of so many blocks; none if it is longer than a region.
    pub(super) fn class_of(&self, blocks: u32) -> Option<Class> {
        (blocks <= self.region_blocks).then(|| Class::of(blocks))
    }

    /// Where a slot begins in the file, in bytes.
    pub(super) fn offset(&self, place: Place) -> u64 {
        let blocks = match &self.regions[place.region as usize] {
            Region::Slots { class, .. } => u64::from(place.slot) * u64::from(class.blocks()),
            Region::Free | Region::Run { .. } => 0,
        };
        (u64::from(place.region) * u64::from(self.region_blocks) + blocks) * BLOCK_BYTES
    }

    /// Promises a free slot of a region that this class has already.
    pub(super) fn take_slot(&mut self, class: Class) -> Option<Place> {
        let region = *self.with_space[usize::from(class.0)].first()?;
        let Region::Slots {
            taken, occupants, ..
        } = &mut self.regions[region as usize]
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

    /// Cuts a free region into slots of a class; false if there is none within the capacity.
    pub(super) fn open_region(&mut self, class: Class) -> bool {
        let region = match self.free.pop_first() {
            Some(region) => region,
            None if self.regions.len() < self.regions_max as usize => self.append(),
            None => return false,
        };
        self.cut(region, class);
        true
    }

    /// Adds a region beyond the capacity and cuts it.
    pub(super) fn grow(&mut self, class: Class) {
        let region = self.append();
        self.cut(region, class);
    }

    /// Promises neighbouring regions at the end of the file to one chunk that is longer than a region.
    pub(super) fn grow_run(&mut self, blocks: u32) -> Place {
        let regions = blocks.div_ceil(self.region_blocks);
        let first = self.regions.len() as u32;
        for _ in 0..regions {
            self.regions.push(Region::Run { first, regions });
        }
        Place {
            region: first,
            slot: 0,
        }
    }

    fn append(&mut self) -> u32 {
        self.regions.push(Region::Free);
        self.regions.len() as u32 - 1
    }

    fn cut(&mut self, region: u32, class: Class) {
        let slots = (self.region_blocks / class.blocks()) as usize;
        self.regions[region as usize] = Region::Slots {
            class,
            taken: 0,
            occupants: vec![Occupant::Free; slots],
        };
        self.with_space[usize::from(class.0)].insert(region);
    }

    /// The promised slot has its chunk now.
    pub(super) fn occupy(&mut self, place: Place, chunk: u32) {
        if let Region::Slots { occupants, .. } = &mut self.regions[place.region as usize] {
            occupants[place.slot as usize] = Occupant::Chunk(chunk);
        }
    }

    /// A slot is free again, and its region too once all of it is.
    pub(super) fn free_slot(&mut self, place: Place) {
        match &mut self.regions[place.region as usize] {
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
        self.regions[region as usize] = Region::Free;
        self.free.insert(region);
    }

    /// Who is in a region that is cut into slots.
    pub(super) fn occupants(&self, region: u32) -> &[Occupant] {
        match &self.regions[region as usize] {
            Region::Slots { occupants, .. } => occupants,
            Region::Free | Region::Run { .. } => &[],
        }
    }

    /// Every region is free, or in its class's set where a slot of it is.
    pub(super) fn invariants(&self) -> Result<(), &'static str> {
        for (number, region) in self.regions.iter().enumerate() {
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
        match listed <= self.regions.len() {
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
        let mut regions = Regions::new(u64::from(REGION_BLOCKS_MIN) * BLOCK_BYTES);
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
        assert_eq!(regions.offset(place), 0);
    }
}
