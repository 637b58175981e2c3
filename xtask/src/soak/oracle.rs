//! What a sector may hold: the range from the last acknowledged generation to the newest issued.
//!
//! A write is named by its generation, in the order of issue. When it is acknowledged, whatever
//! was acknowledged before it was issued is gone for good; what was in flight beside it may have
//! come after it. So the floor of its sectors rises to the oldest generation it was in flight with. A
//! read that returned one generation rules out the older ones that had ended when it began. The
//! oracle only ever errs on the side of the server, and never by more than what was concurrent.

use std::ops::Range;

use super::pattern::{Found, Stamp};

/// What is known of one sector.
#[derive(Clone, Copy, Debug, Default)]
struct Known {
    /// No older generation may be seen.
    floor: u32,
    /// The newest that was issued.
    issued: u32,
    /// The newest that was issued and makes zeroes.
    zeroed: u32,
}

/// A request that changes sectors and has not ended.
#[derive(Debug)]
struct Flying {
    generation: u32,
    floor: u32,
    sectors: Range<u64>,
}

/// A device's oracle.
#[derive(Debug)]
pub(super) struct Oracle {
    device: u32,
    sectors: Vec<Known>,
    flying: Vec<Flying>,
    /// The newest generation of all.
    newest: u32,
}

/// What was true when a read began.
#[derive(Debug)]
pub(super) struct Before {
    sectors: Range<u64>,
    floors: Vec<u32>,
    /// Every generation below this had ended, if it was issued at all.
    ended: u32,
}

impl Oracle {
    pub(super) fn new(device: u32, sectors: u64) -> Oracle {
        Oracle {
            device,
            sectors: vec![Known::default(); sectors as usize],
            flying: Vec::new(),
            newest: 0,
        }
    }

    fn known(&mut self, sectors: &Range<u64>) -> &mut [Known] {
        &mut self.sectors[sectors.start as usize..sectors.end as usize]
    }

    fn oldest_flying(&self, sectors: &Range<u64>) -> Option<u32> {
        let over =
            |one: &&Flying| one.sectors.start < sectors.end && sectors.start < one.sectors.end;
        self.flying
            .iter()
            .filter(over)
            .map(|one| one.generation)
            .min()
    }

    /// A write is about to be issued, or what makes zeroes: its generation.
    pub(super) fn issue(&mut self, sectors: Range<u64>, zeroes: bool) -> u32 {
        self.newest += 1;
        let generation = self.newest;
        let floor = self.oldest_flying(&sectors).unwrap_or(generation);
        for known in self.known(&sectors) {
            known.issued = generation;
            if zeroes {
                known.zeroed = generation;
            }
        }
        self.flying.push(Flying {
            generation,
            floor,
            sectors,
        });
        generation
    }

    /// It was acknowledged.
    pub(super) fn acknowledge(&mut self, generation: u32) {
        let Some(at) = self
            .flying
            .iter()
            .position(|one| one.generation == generation)
        else {
            return;
        };
        let Flying { floor, sectors, .. } = self.flying.swap_remove(at);
        for known in self.known(&sectors) {
            known.floor = known.floor.max(floor);
        }
    }

    /// A read is about to be issued.
    pub(super) fn before(&mut self, sectors: Range<u64>) -> Before {
        let ended = self.oldest_flying(&sectors).unwrap_or(self.newest + 1);
        Before {
            floors: self
                .known(&sectors)
                .iter()
                .map(|known| known.floor)
                .collect(),
            ended,
            sectors,
        }
    }

    /// It has returned: what each sector holds, in order. Answers what is wrong with the first
    /// one that is.
    pub(super) fn judge(
        &mut self,
        before: &Before,
        found: impl Iterator<Item = Found>,
    ) -> Result<(), String> {
        let device = self.device;
        let known = self.known(&before.sectors);
        for (((sector, floor), known), found) in before
            .sectors
            .clone()
            .zip(&before.floors)
            .zip(known)
            .zip(found)
        {
            let allowed = *floor..=known.issued;
            match found {
                Found::Zeroes if known.zeroed >= *floor => {}
                Found::Stamp(stamp)
                    if (stamp.device, stamp.sector) == (device, sector)
                        && stamp.generation > 0
                        && allowed.contains(&stamp.generation) =>
                {
                    let seen = stamp.generation.min(before.ended);
                    known.floor = known.floor.max(seen);
                }
                wrong => {
                    return Err(format!(
                        "device {device} sector {sector}: {}; allowed are generations {allowed:?}, \
                         the newest that made zeroes is {}",
                        told(&wrong),
                        known.zeroed
                    ));
                }
            }
        }
        Ok(())
    }
}

fn told(found: &Found) -> String {
    match found {
        Found::Zeroes => "zeroes".to_owned(),
        Found::Stamp(Stamp {
            device,
            generation,
            sector,
        }) => format!("generation {generation} of device {device} sector {sector}"),
        Found::Damaged(at) => format!("not what any write wrote, from byte {at} on"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stamp(generation: u32) -> Found {
        Found::Stamp(Stamp {
            device: 1,
            generation,
            sector: 5,
        })
    }

    /// What one read of sector 5 comes to.
    fn reads(oracle: &mut Oracle, found: Found) -> Result<(), String> {
        let before = oracle.before(5..6);
        oracle.judge(&before, [found].into_iter())
    }

    #[test]
    fn an_older_generation_than_the_last_acknowledged_is_wrong() {
        let mut oracle = Oracle::new(1, 10);
        reads(&mut oracle, Found::Zeroes).unwrap();
        let first = oracle.issue(0..10, false);
        reads(&mut oracle, Found::Zeroes).unwrap();
        oracle.acknowledge(first);
        assert!(reads(&mut oracle, Found::Zeroes).is_err());
        let second = oracle.issue(5..6, false);
        reads(&mut oracle, stamp(first)).unwrap();
        oracle.acknowledge(second);
        assert!(reads(&mut oracle, stamp(first)).is_err());
        reads(&mut oracle, stamp(second)).unwrap();
        assert!(reads(&mut oracle, stamp(second + 1)).is_err());
        assert!(reads(&mut oracle, Found::Damaged(0)).is_err());
    }

    #[test]
    fn of_two_that_were_in_flight_together_either_may_have_been_the_last() {
        let mut oracle = Oracle::new(1, 10);
        let (a, b) = (oracle.issue(0..10, false), oracle.issue(5..6, false));
        oracle.acknowledge(a);
        oracle.acknowledge(b);
        for generation in [a, b] {
            let before = oracle.before(5..6);
            let mut copy = Oracle::new(1, 10);
            copy.sectors = oracle.sectors.clone();
            copy.judge(&before, [stamp(generation)].into_iter())
                .unwrap();
        }
        // Once the second was seen and both had ended, the first is gone.
        reads(&mut oracle, stamp(b)).unwrap();
        assert!(reads(&mut oracle, stamp(a)).is_err());
    }

    #[test]
    fn what_is_read_while_writes_fly_rules_nothing_out_that_may_still_land() {
        let mut oracle = Oracle::new(1, 10);
        let (a, b) = (oracle.issue(5..6, false), oracle.issue(5..6, false));
        reads(&mut oracle, stamp(b)).unwrap();
        reads(&mut oracle, stamp(a)).unwrap();
        oracle.acknowledge(a);
        oracle.acknowledge(b);
    }

    #[test]
    fn zeroes_are_right_only_where_something_made_them() {
        let mut oracle = Oracle::new(1, 10);
        let write = oracle.issue(5..6, false);
        oracle.acknowledge(write);
        let zero = oracle.issue(0..10, true);
        reads(&mut oracle, stamp(write)).unwrap();
        oracle.acknowledge(zero);
        reads(&mut oracle, Found::Zeroes).unwrap();
        assert!(reads(&mut oracle, stamp(write)).is_err());
        let write = oracle.issue(5..6, false);
        oracle.acknowledge(write);
        assert!(reads(&mut oracle, Found::Zeroes).is_err());
    }

    #[test]
    fn bytes_of_another_place_are_wrong() {
        let mut oracle = Oracle::new(1, 10);
        let write = oracle.issue(0..10, false);
        oracle.acknowledge(write);
        for (device, sector) in [(2, 5), (1, 6)] {
            let stamp = Stamp {
                device,
                generation: write,
                sector,
            };
            assert!(reads(&mut oracle, Found::Stamp(stamp)).is_err());
        }
    }
}
