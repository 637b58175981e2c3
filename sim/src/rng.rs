//! Owns the randomness of a simulated world: one 64-bit seed, split into named streams.
//!
//! Nothing else in the simulator may draw entropy. Each component has its own stream, so that a
//! draw added in one place does not shift the draws of another. The generator is written out here,
//! not taken from a library, because a seed printed today must replay after every upgrade.

/// A stream of pseudo-random numbers (xoshiro256++).
#[derive(Clone, Debug)]
pub struct Rng {
    state: [u64; 4],
}

fn splitmix(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

impl Rng {
    /// The stream called `name` of the world `seed`.
    pub fn stream(seed: u64, name: &str) -> Rng {
        let mut mixed = seed;
        for byte in name.bytes() {
            mixed = splitmix(&mut mixed) ^ u64::from(byte);
        }
        let mut state = [0; 4];
        for word in &mut state {
            *word = splitmix(&mut mixed);
        }
        Rng { state }
    }

    /// The next 64 bits.
    pub fn next_u64(&mut self) -> u64 {
        let [a, b, c, d] = self.state;
        let result = a.wrapping_add(d).rotate_left(23).wrapping_add(a);
        let t = b << 17;
        let c2 = c ^ a;
        let d2 = d ^ b;
        self.state = [a ^ d2, b ^ c2, c2 ^ t, d2.rotate_left(45)];
        result
    }

    /// A number below `n`. `n` must not be zero.
    pub fn below(&mut self, n: u64) -> u64 {
        assert!(n > 0, "a draw from an empty range");
        // The bias of the multiplication is below 2^-32 for the small ranges drawn here.
        ((u128::from(self.next_u64()) * u128::from(n)) >> 64) as u64
    }

    /// A number in `low..=high`.
    pub fn within(&mut self, low: u64, high: u64) -> u64 {
        low + self.below(high - low + 1)
    }

    /// True with probability `n` in ten thousand.
    pub fn draw_rate(&mut self, n: u32) -> bool {
        n > 0 && self.below(10_000) < u64::from(n)
    }

    /// True half of the time.
    pub fn coin(&mut self) -> bool {
        self.next_u64() & 1 == 1
    }

    /// One of the items.
    pub fn pick<'a, T>(&mut self, items: &'a [T]) -> &'a T {
        &items[self.below(items.len() as u64) as usize]
    }

    /// An index drawn by weight; `None` if all weights are zero.
    pub fn weighted(&mut self, weights: &[u32]) -> Option<usize> {
        let total: u64 = weights.iter().map(|w| u64::from(*w)).sum();
        if total == 0 {
            return None;
        }
        let mut left = self.below(total);
        for (index, weight) in weights.iter().enumerate() {
            if left < u64::from(*weight) {
                return Some(index);
            }
            left -= u64::from(*weight);
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_of_one_seed_repeat_and_differ_by_name() {
        let draw = |name: &str| {
            let mut rng = Rng::stream(7, name);
            (0..8).map(|_| rng.next_u64()).collect::<Vec<_>>()
        };
        assert_eq!(draw("disk"), draw("disk"));
        assert_ne!(draw("disk"), draw("store"));
    }

    #[test]
    fn a_zero_weight_is_never_drawn() {
        let mut rng = Rng::stream(1, "w");
        for _ in 0..1000 {
            assert_eq!(rng.weighted(&[0, 3, 0]), Some(1));
        }
        assert_eq!(rng.weighted(&[0, 0]), None);
    }
}
