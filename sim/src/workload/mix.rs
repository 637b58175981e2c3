//! The drawing generator: every operation anew, from weights, sizes and hot spots that are drawn
//! once per client. A weight may be zero: a world without flushes, or of nothing but discards, is
//! as likely as a balanced one.

use blkmq::io::Op;

use super::{Action, Generator, Shape};
use crate::rng::Rng;

/// The drawing generator.
#[derive(Clone, Debug)]
pub struct Mix {
    shape: Shape,
    /// Read, write, flush, discard, zero, sync, drain, pause.
    weights: [u32; 8],
    /// Of ten thousand writes, how many with FUA.
    fua: u32,
    /// Largest request in sectors.
    largest: u64,
    /// Requests start at multiples of this.
    grain: u64,
    /// Of ten thousand requests, how many go to the hot range.
    hot: u32,
    hot_start: u64,
    hot_sectors: u64,
}

impl Mix {
    /// Draws a client.
    pub fn draw(rng: &mut Rng, shape: Shape) -> Mix {
        let mut weights = [0; 8];
        let menus: [&[u32]; 8] = [
            &[0, 10, 40, 80],
            &[10, 40, 80],
            &[0, 1, 5, 20],
            &[0, 0, 2, 10],
            &[0, 0, 2, 10],
            &[0, 0, 1, 2],
            &[0, 2],
            &[0, 5],
        ];
        for (weight, menu) in weights.iter_mut().zip(menus) {
            *weight = *rng.pick(menu);
        }
        let hot_sectors = *rng.pick(&[8, 16, 64]);
        Mix {
            shape,
            weights,
            fua: *rng.pick(&[0, 0, 500, 5000]),
            largest: *rng.pick(&[1, 8, 8, 16, 64]),
            grain: *rng.pick(&[1, 1, 8]),
            hot: *rng.pick(&[0, 3000, 9000]),
            hot_start: rng.below(shape.sectors.saturating_sub(hot_sectors).max(1)),
            hot_sectors: hot_sectors.min(shape.sectors),
        }
    }

    fn range(&self, rng: &mut Rng) -> (u64, u64) {
        let (base, span) = if rng.draw_rate(self.hot) {
            (self.hot_start, self.hot_sectors)
        } else {
            (0, self.shape.sectors)
        };
        let start = (base + rng.below(span)) / self.grain * self.grain;
        let sectors = match rng.below(3) {
            0 => self.largest,
            1 => self.grain.min(self.largest),
            _ => rng.within(1, self.largest),
        };
        self.shape.fit(start, sectors)
    }
}

impl Generator for Mix {
    fn next(&mut self, rng: &mut Rng) -> Action {
        let kind = rng.weighted(&self.weights).unwrap_or(1);
        let (sector, sectors) = self.range(rng);
        let fua = rng.draw_rate(self.fua);
        let short = u32::try_from(sectors).expect("requests are small");
        match kind {
            0 => Action::Op(Op::Read {
                sector,
                sectors: short,
            }),
            1 => Action::Op(Op::Write {
                sector,
                sectors: short,
                fua,
            }),
            2 => Action::Op(Op::Flush),
            3 => {
                // Now and then a discard of everything behind a point: one huge tombstone.
                let sectors = if rng.below(8) == 0 {
                    self.shape.sectors - sector
                } else {
                    sectors
                };
                Action::Op(Op::Discard {
                    sector,
                    sectors,
                    fua,
                })
            }
            4 => Action::Op(Op::WriteZeroes {
                sector,
                sectors,
                fua,
            }),
            5 => Action::Sync,
            6 => Action::Drain,
            _ => Action::Pause(rng.below(20_000_000)),
        }
    }
}
