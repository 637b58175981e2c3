//! The staging generator: short scenes, each built around something that storage engines get
//! wrong, played in random order at random places.

use std::collections::VecDeque;

use blkmq::io::Op;

use super::{Action, Generator, Shape};
use crate::rng::Rng;

/// The staging generator.
#[derive(Clone, Debug)]
pub struct Script {
    shape: Shape,
    queue: VecDeque<Action>,
}

impl Script {
    /// A client that plays scenes on a volume of this shape.
    pub fn new(shape: Shape) -> Script {
        Script {
            shape,
            queue: VecDeque::new(),
        }
    }

    fn write(&mut self, sector: u64, sectors: u64, fua: bool) {
        let (sector, sectors) = self.shape.fit(sector, sectors);
        let sectors = u32::try_from(sectors).expect("requests are small");
        self.queue.push_back(Action::Op(Op::Write {
            sector,
            sectors,
            fua,
        }));
    }

    fn read(&mut self, sector: u64, sectors: u64) {
        let (sector, sectors) = self.shape.fit(sector, sectors);
        let sectors = u32::try_from(sectors).expect("requests are small");
        self.queue
            .push_back(Action::Op(Op::Read { sector, sectors }));
    }

    fn discard(&mut self, sector: u64, sectors: u64, keep_allocated: bool) {
        let (sector, sectors) = self.shape.fit(sector, sectors);
        self.queue.push_back(Action::Op(if keep_allocated {
            Op::WriteZeroes {
                sector,
                sectors,
                fua: false,
            }
        } else {
            Op::Discard {
                sector,
                sectors,
                fua: false,
            }
        }));
    }

    fn push(&mut self, action: Action) {
        self.queue.push_back(action);
    }

    /// A database commit: payload, flush, pointer with FUA; the pointer must never be first.
    fn scene_commit(&mut self, at: u64) {
        for block in 1..4 {
            self.write(at + block * 8, 8, false);
        }
        self.push(Action::Drain);
        self.push(Action::Op(Op::Flush));
        self.push(Action::Drain);
        self.write(at, 1, true);
        self.push(Action::Drain);
        self.read(at, 32);
    }

    /// One block again and again, in flight together: who wins live must win in replay.
    fn scene_hammer(&mut self, at: u64, times: u64) {
        for round in 0..times {
            self.write(at + round % 3, 8 - round % 3, false);
        }
        self.read(at, 8);
        self.push(Action::Op(Op::Flush));
        self.write(at, 8, false);
        self.read(at, 8);
    }

    /// Ever smaller writes into one large one: extents split from both ends.
    fn scene_split(&mut self, at: u64) {
        self.write(at, 48, false);
        self.push(Action::Drain);
        for sector in [47, 0, 24, 23, 25, 8, 40] {
            self.write(at + sector, 1, false);
        }
        self.discard(at + 12, 9, false);
        self.push(Action::Drain);
        self.read(at, 48);
    }

    /// Discard under writes in flight, then write again: no resurrection.
    fn scene_discard(&mut self, at: u64, zeroes: bool) {
        self.write(at, 16, false);
        self.discard(at + 4, 8, zeroes);
        self.write(at + 6, 2, false);
        self.push(Action::Op(Op::Flush));
        self.push(Action::Drain);
        self.read(at, 16);
        self.discard(at, 16, !zeroes);
        self.push(Action::Sync);
        self.read(at, 16);
    }

    /// Fill a stretch in order, upload it, touch a little, read around the seams.
    fn scene_settle(&mut self, at: u64, blocks: u64) {
        for block in 0..blocks {
            self.write(at + block * 8, 8, false);
        }
        self.push(Action::Drain);
        self.push(Action::Sync);
        self.push(Action::Drain);
        self.write(at + 3, 10, false);
        self.read(at, blocks * 8);
        self.push(Action::Pause(40_000_000));
        for block in (0..blocks).rev() {
            self.read(at + block * 8, 8);
        }
    }

    /// Cold reads race with writes to the same blocks: the write wins.
    fn scene_fetch_race(&mut self, at: u64) {
        for block in 0..4 {
            self.read(at + block * 8, 8);
            self.write(at + block * 8 + 2, 4, false);
            self.read(at + block * 8, 8);
        }
        self.push(Action::Drain);
        self.read(at, 32);
    }
}

impl Generator for Script {
    fn next(&mut self, rng: &mut Rng) -> Action {
        if let Some(action) = self.queue.pop_front() {
            return action;
        }
        let mut at = rng.below(self.shape.sectors);
        if rng.coin() {
            at = at / 8 * 8;
        }
        match rng.below(8) {
            0 => self.scene_commit(at),
            1 => self.scene_hammer(at, rng.within(2, 12)),
            2 => self.scene_split(at),
            3 => self.scene_discard(at, rng.coin()),
            4 => self.scene_settle(at, rng.within(2, 12)),
            5 | 6 => self.scene_fetch_race(at),
            _ => self.read(at, rng.within(1, 64)),
        }
        self.queue.pop_front().unwrap_or(Action::Drain)
    }
}
