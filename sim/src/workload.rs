//! Owns what clients ask: two generators, written apart from each other.
//!
//! A bug that one generator's habits never reach is what the other is for. [`mix`] draws every
//! operation anew from weights; [`script`] plays short scenes with a purpose. Which of them a
//! client runs, and with which weights, is drawn by the world's seed.

use blkmq::io::Op;

use crate::rng::Rng;

pub mod mix;
pub mod script;

/// The volume as a client knows it.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// Size in sectors.
    pub sectors: u64,
    /// Sectors of a logical block: requests are aligned to it.
    pub block: u64,
}

impl Shape {
    /// Rounds a range to logical blocks inside the volume; at least one block.
    pub fn fit(self, sector: u64, sectors: u64) -> (u64, u64) {
        let last = self.sectors - self.block;
        let start = (sector.min(last)) / self.block * self.block;
        let len = sectors.max(1).div_ceil(self.block) * self.block;
        (start, len.min(self.sectors - start))
    }
}

/// What a client does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Issue this.
    Op(Op),
    /// Ask for a sync to the store.
    Sync,
    /// Wait until everything it issued is answered.
    Drain,
    /// Do nothing for so many nanoseconds.
    Pause(u64),
    /// Nothing, ever again.
    Stop,
}

/// Generates a client's actions.
pub trait Generator: std::fmt::Debug {
    /// The next action.
    fn next(&mut self, rng: &mut Rng) -> Action;
}

/// The generator this client runs, drawn from its stream.
pub fn draw(rng: &mut Rng, shape: Shape) -> Box<dyn Generator> {
    if rng.below(3) < 2 {
        Box::new(mix::Mix::draw(rng, shape))
    } else {
        Box::new(script::Script::new(shape))
    }
}

/// A write, discard or zeroing names its range like this.
pub fn op_range(op: &Op) -> std::ops::Range<u64> {
    match *op {
        Op::Read { sector, sectors }
        | Op::Write {
            sector, sectors, ..
        } => sector..sector + u64::from(sectors),
        Op::Discard {
            sector, sectors, ..
        }
        | Op::WriteZeroes {
            sector, sectors, ..
        }
        | Op::Status { sector, sectors }
        | Op::Prefetch { sector, sectors } => sector..sector + sectors,
        Op::Flush => 0..0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(mut generator: Box<dyn Generator>, shape: Shape, rng: &mut Rng) -> [usize; 5] {
        let mut kinds = [0; 5];
        for _ in 0..2000 {
            let Action::Op(op) = generator.next(rng) else {
                continue;
            };
            let range = op_range(&op);
            assert!(range.end <= shape.sectors, "{op:?}");
            assert!(range.start.is_multiple_of(shape.block), "{op:?}");
            assert!(range.end.is_multiple_of(shape.block), "{op:?}");
            let kind = match op {
                Op::Read { .. } => 0,
                Op::Write { .. } => 1,
                Op::Flush => 2,
                Op::Discard { .. } => 3,
                Op::WriteZeroes { .. } => 4,
                Op::Status { .. } | Op::Prefetch { .. } => panic!("not of these workloads"),
            };
            assert!(kind == 2 || !range.is_empty(), "{op:?}");
            kinds[kind] += 1;
        }
        kinds
    }

    #[test]
    fn both_generators_stay_inside_the_volume_and_issue_every_kind() {
        for block in [1, 8] {
            let shape = Shape {
                sectors: 512,
                block,
            };
            let mut sums = [[0; 5]; 2];
            for seed in 0..20 {
                let mut rng = Rng::stream(seed, "workload");
                let mix = mix::Mix::draw(&mut rng, shape);
                let kinds = [
                    check(Box::new(mix), shape, &mut rng),
                    check(Box::new(script::Script::new(shape)), shape, &mut rng),
                ];
                for (sum, kinds) in sums.iter_mut().zip(kinds) {
                    sum.iter_mut().zip(kinds).for_each(|(sum, n)| *sum += n);
                }
            }
            assert!(sums.iter().flatten().all(|n| *n > 100), "{sums:?}");
        }
    }
}
