//! Which writes each sector of a disk may hold, while requests are in flight and after a crash.
//!
//! A write is named by its generation, in the order of issue. When it is acknowledged, whatever
//! was acknowledged before it was issued is overwritten for good; a write that was in flight beside
//! it may have taken effect after it. So the floor of its sectors rises to the oldest generation it
//! was in flight with. A read that returned one generation rules out the older ones that had ended
//! when it began; where nothing at all was in flight it rules out every other one, because
//! the sector cannot change any more. The oracle only ever errs on the side of the server, and
//! never by more than what was concurrent.

use std::ops::Range;

use crate::stamp::{self, Content, SECTOR_BYTES};

/// What is known of one sector.
#[derive(Clone, Copy, Debug, Default)]
struct SectorState {
    /// No older generation may be seen.
    floor: u32,
    /// The newest that may be seen.
    issued: u32,
    /// The newest zeroing that was issued.
    zeroed: u32,
    /// A read that began at this time or later found the sector at rest: `issued` and `zeroed` then
    /// leave out what it ruled out. A read that began before may have seen what was there earlier.
    settled_at: u64,
    /// As `issued` and `zeroed`, with nothing left out.
    issued_ever: u32,
    zeroed_ever: u32,
}

/// A request that changes sectors and has not ended.
#[derive(Debug)]
struct InFlight {
    generation: u32,
    floor: u32,
    sectors: Range<u64>,
}

/// The oracle of one disk, or of the part of one that a test has. A new disk holds zeroes.
#[derive(Debug)]
pub struct SectorOracle {
    disk: u32,
    /// Sectors of a block, all of which are written at once and must show that.
    block_sectors: u64,
    sectors: Vec<SectorState>,
    in_flight: Vec<InFlight>,
    /// The newest generation of all.
    newest: u32,
    /// Reads that have begun: the time of [`SectorState::settled_at`].
    reads: u64,
}

/// What was known when a read began.
#[derive(Debug)]
pub struct ReadStart {
    sectors: Range<u64>,
    floors: Vec<u32>,
    /// Every generation below this had ended, if it was issued at all.
    ended: u32,
    /// When it began, as a number of reads.
    began: u64,
}

impl SectorOracle {
    /// A disk of so many sectors. Its number is in the stamps of its writes.
    pub fn new(disk: u32, sectors: u64) -> SectorOracle {
        SectorOracle::in_blocks(disk, sectors, 1)
    }

    /// The same of a disk that is written in whole blocks of so many sectors, so that no read may
    /// return a block of which a part is older than the rest.
    pub fn in_blocks(disk: u32, sectors: u64, block_sectors: u64) -> SectorOracle {
        SectorOracle {
            disk,
            block_sectors,
            sectors: vec![SectorState::default(); sectors as usize],
            in_flight: Vec::new(),
            newest: 0,
            reads: 0,
        }
    }

    fn states_mut(&mut self, sectors: &Range<u64>) -> &mut [SectorState] {
        &mut self.sectors[sectors.start as usize..sectors.end as usize]
    }

    fn oldest_in_flight(&self, sectors: &Range<u64>) -> Option<u32> {
        let overlaps =
            |one: &&InFlight| one.sectors.start < sectors.end && sectors.start < one.sectors.end;
        let overlapping = self.in_flight.iter().filter(overlaps);
        overlapping.map(|one| one.generation).min()
    }

    /// A write is about to be issued: its generation, with which its sectors are to be filled.
    pub fn begin_write(&mut self, sectors: Range<u64>) -> u32 {
        self.begin(sectors, false)
    }

    /// The same for what makes zeroes of its sectors.
    pub fn begin_zeroing(&mut self, sectors: Range<u64>) -> u32 {
        self.begin(sectors, true)
    }

    fn begin(&mut self, sectors: Range<u64>, zeroes: bool) -> u32 {
        self.newest += 1;
        let generation = self.newest;
        let floor = self.oldest_in_flight(&sectors).unwrap_or(generation);
        for known in self.states_mut(&sectors) {
            (known.issued, known.issued_ever) = (generation, generation);
            if zeroes {
                (known.zeroed, known.zeroed_ever) = (generation, generation);
            }
        }
        self.in_flight.push(InFlight {
            generation,
            floor,
            sectors,
        });
        generation
    }

    /// The bytes of a write that is about to be issued, and its generation.
    pub fn begin_filled(&mut self, sectors: Range<u64>) -> (u32, Vec<u8>) {
        let generation = self.begin_write(sectors.clone());
        (generation, stamp::bytes(self.disk, generation, sectors))
    }

    /// A request was acknowledged.
    pub fn acknowledge(&mut self, generation: u32) {
        if let Some(InFlight { floor, sectors, .. }) = self.end(generation) {
            for known in self.states_mut(&sectors) {
                known.floor = known.floor.max(floor);
            }
        }
    }

    /// A request failed. It took effect or not, sector by sector, and cannot do so later.
    pub fn fail(&mut self, generation: u32) {
        self.end(generation);
    }

    /// Whoever served the disk has crashed: every request in flight failed.
    pub fn crash(&mut self) {
        self.in_flight.clear();
    }

    fn end(&mut self, generation: u32) -> Option<InFlight> {
        let mut in_flight = self.in_flight.iter();
        let at = in_flight.position(|one| one.generation == generation)?;
        Some(self.in_flight.swap_remove(at))
    }

    /// A read is about to be issued.
    pub fn begin_read(&mut self, sectors: Range<u64>) -> ReadStart {
        let ended = self.oldest_in_flight(&sectors).unwrap_or(self.newest + 1);
        self.reads += 1;
        ReadStart {
            floors: self
                .states_mut(&sectors)
                .iter()
                .map(|one| one.floor)
                .collect(),
            ended,
            began: self.reads,
            sectors,
        }
    }

    /// Checks what a read returned. The error names the first sector that is wrong.
    pub fn check_bytes(&mut self, read: &ReadStart, bytes: &[u8]) -> Result<(), String> {
        let (wanted, found) = (read.floors.len(), bytes.len());
        if found != wanted * SECTOR_BYTES {
            return Err(format!("a read of {wanted} sectors returned {found} bytes"));
        }
        self.check(read, stamp::read_all(bytes))
    }

    /// The same, of what each sector was found to hold, in order: a caller that shares the oracle
    /// finds that out before it takes the lock.
    pub fn check(
        &mut self,
        read: &ReadStart,
        found: impl IntoIterator<Item = Content>,
    ) -> Result<(), String> {
        let (disk, block_sectors) = (self.disk, self.block_sectors);
        let next_read = self.reads + 1;
        let known = self.states_mut(&read.sectors);
        let mut previous: Option<Content> = None;
        let floors = read.sectors.clone().zip(&read.floors);
        for (((sector, floor), known), found) in floors.zip(known).zip(found) {
            let (issued, zeroed) = if read.began >= known.settled_at {
                (known.issued, known.zeroed)
            } else {
                (known.issued_ever, known.zeroed_ever)
            };
            let allowed = *floor..=issued;
            let before = previous.filter(|_| sector % block_sectors != 0);
            if let Some(before) = before
                && generation_of(before) != generation_of(found)
            {
                return Err(format!(
                    "disk {disk} sector {sector} holds {found} in a block with {before}: torn"
                ));
            }
            previous = Some(found);
            // Every write had ended when the read began, and none was issued since.
            let is_settled = read.ended > known.issued_ever;
            match found {
                Content::Zeroes if zeroed >= *floor => {
                    if is_settled {
                        (known.floor, known.issued) = (zeroed, zeroed);
                        known.settled_at = next_read;
                    }
                }
                Content::Stamp(stamp)
                    if (stamp.disk, stamp.sector) == (disk, sector)
                        && stamp.generation > 0
                        && allowed.contains(&stamp.generation) =>
                {
                    known.floor = known.floor.max(stamp.generation.min(read.ended));
                    if is_settled {
                        (known.issued, known.zeroed) = (stamp.generation, 0);
                        known.settled_at = next_read;
                    }
                }
                wrong => {
                    return Err(format!(
                        "disk {disk} sector {sector} holds {wrong}; allowed are generations \
                         {allowed:?}, the newest zeroing is {zeroed}"
                    ));
                }
            }
        }
        Ok(())
    }
}

fn generation_of(content: Content) -> u32 {
    match content {
        Content::Stamp(stamp) => stamp.generation,
        Content::Zeroes | Content::Damaged(_) => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stamp::Stamp;

    fn stamp(generation: u32) -> Content {
        Content::Stamp(Stamp {
            disk: 1,
            generation,
            sector: 5,
        })
    }

    /// What one read of sector 5 comes to.
    fn reads(oracle: &mut SectorOracle, found: Content) -> Result<(), String> {
        let before = oracle.begin_read(5..6);
        oracle.check(&before, [found])
    }

    #[test]
    fn an_older_generation_than_the_last_acknowledged_is_wrong() {
        let mut oracle = SectorOracle::new(1, 10);
        reads(&mut oracle, Content::Zeroes).unwrap();
        let first = oracle.begin_write(0..10);
        reads(&mut oracle, Content::Zeroes).unwrap();
        oracle.acknowledge(first);
        assert!(reads(&mut oracle, Content::Zeroes).is_err());
        let second = oracle.begin_write(5..6);
        reads(&mut oracle, stamp(first)).unwrap();
        oracle.acknowledge(second);
        assert!(reads(&mut oracle, stamp(first)).is_err());
        reads(&mut oracle, stamp(second)).unwrap();
        assert!(reads(&mut oracle, stamp(second + 1)).is_err());
        assert!(reads(&mut oracle, Content::Damaged(0)).is_err());
    }

    #[test]
    fn of_two_that_were_in_flight_together_either_may_have_been_the_last() {
        let mut oracle = SectorOracle::new(1, 10);
        let (a, b) = (oracle.begin_write(0..10), oracle.begin_write(5..6));
        oracle.acknowledge(a);
        oracle.acknowledge(b);
        for generation in [a, b] {
            let before = oracle.begin_read(5..6);
            let mut copy = SectorOracle::new(1, 10);
            copy.sectors = oracle.sectors.clone();
            copy.check(&before, [stamp(generation)]).unwrap();
        }
        // Once the second was seen and both had ended, the first is gone.
        reads(&mut oracle, stamp(b)).unwrap();
        assert!(reads(&mut oracle, stamp(a)).is_err());
    }

    #[test]
    fn what_is_read_while_writes_fly_rules_nothing_out_that_may_still_land() {
        let mut oracle = SectorOracle::new(1, 10);
        let (a, b) = (oracle.begin_write(5..6), oracle.begin_write(5..6));
        reads(&mut oracle, stamp(b)).unwrap();
        reads(&mut oracle, stamp(a)).unwrap();
        oracle.acknowledge(a);
        oracle.acknowledge(b);
    }

    #[test]
    fn zeroes_are_right_only_where_something_made_them() {
        let mut oracle = SectorOracle::new(1, 10);
        let write = oracle.begin_write(5..6);
        oracle.acknowledge(write);
        let zero = oracle.begin_zeroing(0..10);
        reads(&mut oracle, stamp(write)).unwrap();
        oracle.acknowledge(zero);
        reads(&mut oracle, Content::Zeroes).unwrap();
        assert!(reads(&mut oracle, stamp(write)).is_err());
        let write = oracle.begin_write(5..6);
        oracle.acknowledge(write);
        assert!(reads(&mut oracle, Content::Zeroes).is_err());
    }

    #[test]
    fn a_read_that_began_before_another_found_the_sector_at_rest_may_have_seen_what_was_there() {
        let mut oracle = SectorOracle::new(1, 10);
        let zero = oracle.begin_zeroing(5..6);
        oracle.acknowledge(zero);
        let slow = oracle.begin_read(5..6);
        let write = oracle.begin_write(5..6);
        oracle.acknowledge(write);
        reads(&mut oracle, stamp(write)).unwrap();
        oracle.check(&slow, [Content::Zeroes]).unwrap();
        assert!(reads(&mut oracle, Content::Zeroes).is_err());

        let mut oracle = SectorOracle::new(1, 10);
        let (a, b) = (oracle.begin_write(5..6), oracle.begin_write(5..6));
        let slow = oracle.begin_read(5..6);
        oracle.acknowledge(a);
        oracle.acknowledge(b);
        reads(&mut oracle, stamp(a)).unwrap();
        oracle.check(&slow, [stamp(b)]).unwrap();
        assert!(reads(&mut oracle, stamp(b)).is_err());
    }

    #[test]
    fn bytes_of_another_place_are_wrong() {
        let mut oracle = SectorOracle::new(1, 10);
        let write = oracle.begin_write(0..10);
        oracle.acknowledge(write);
        for (disk, sector) in [(2, 5), (1, 6)] {
            let stamp = Stamp {
                disk,
                generation: write,
                sector,
            };
            assert!(reads(&mut oracle, Content::Stamp(stamp)).is_err());
        }
    }

    #[test]
    fn after_a_crash_a_write_that_was_in_flight_is_there_or_not_and_stays_so() {
        for survives in [false, true] {
            let mut oracle = SectorOracle::new(1, 10);
            let old = oracle.begin_write(5..6);
            oracle.acknowledge(old);
            let new = oracle.begin_write(4..6);
            oracle.crash();
            let (there, gone) = if survives { (new, old) } else { (old, new) };
            reads(&mut oracle, stamp(there)).unwrap();
            assert!(reads(&mut oracle, stamp(gone)).is_err());
            reads(&mut oracle, stamp(there)).unwrap();
        }
    }

    #[test]
    fn a_read_beside_a_write_rules_out_neither() {
        let mut oracle = SectorOracle::new(1, 10);
        let old = oracle.begin_write(5..6);
        oracle.acknowledge(old);
        let read = oracle.begin_read(5..6);
        let new = oracle.begin_write(5..6);
        oracle.acknowledge(new);
        oracle.check(&read, [stamp(old)]).unwrap();
        reads(&mut oracle, stamp(new)).unwrap();
        assert!(reads(&mut oracle, stamp(old)).is_err());
    }

    #[test]
    fn bytes_that_are_read_are_checked_sector_by_sector() {
        let mut oracle = SectorOracle::new(1, 10);
        let (generation, mut bytes) = oracle.begin_filled(2..4);
        oracle.acknowledge(generation);
        let read = oracle.begin_read(2..4);
        oracle.check_bytes(&read, &bytes).unwrap();
        assert!(oracle.check_bytes(&read, &bytes[..SECTOR_BYTES]).is_err());
        bytes[1000] ^= 1;
        assert!(oracle.check_bytes(&read, &bytes).is_err());
    }

    #[test]
    fn a_block_of_which_a_part_is_older_is_torn() {
        let written = |generation| stamp::bytes(1, generation, 0..8);
        let mixed = |at: usize| [&written(1)[..at], &written(2)[at..]].concat();
        for (block_sectors, at, right) in [(1, 1024, true), (4, 1024, false), (4, 2048, true)] {
            let mut oracle = SectorOracle::in_blocks(1, 8, block_sectors);
            let first = oracle.begin_write(0..8);
            oracle.acknowledge(first);
            oracle.begin_write(0..8);
            let read = oracle.begin_read(0..8);
            assert_eq!(oracle.check_bytes(&read, &mixed(at)).is_ok(), right);
        }
    }
}
