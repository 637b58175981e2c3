//! What the sans-I/O core gets from outside at each step: the time and randomness.
//!
//! The core reads no clock and no entropy source of its own, so a simulator that supplies both
//! replays a run from one seed.

use std::time::Duration;

/// Time since some start that does not change while the messenger runs. It never goes backwards.
pub type Time = Duration;

/// A source of random bytes.
pub trait Entropy {
    /// Fills `out`.
    fn fill(&mut self, out: &mut [u8]);

    /// A random number.
    fn word(&mut self) -> u64 {
        let mut raw = [0; 8];
        self.fill(&mut raw);
        u64::from_le_bytes(raw)
    }
}

/// The kernel's random bytes.
#[derive(Debug, Default, Clone, Copy)]
pub struct OsEntropy;

impl Entropy for OsEntropy {
    #[expect(
        clippy::disallowed_methods,
        reason = "the edge: where Env's randomness comes from"
    )]
    fn fill(&mut self, out: &mut [u8]) {
        let mut at = 0;
        while at < out.len() {
            let flags = rustix::rand::GetRandomFlags::empty();
            match rustix::rand::getrandom(&mut out[at..], flags) {
                Ok(n) => at += n,
                Err(rustix::io::Errno::INTR) => {}
                Err(e) => panic!("getrandom: {e}: no session can be keyed without random bytes"),
            }
        }
    }
}

/// Repeatable bytes from a seed (splitmix64), for simulators. Never for keys.
#[derive(Debug, Clone)]
pub struct SeededEntropy(u64);

impl SeededEntropy {
    /// The sequence of `seed`.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }
}

impl Entropy for SeededEntropy {
    fn fill(&mut self, out: &mut [u8]) {
        for chunk in out.chunks_mut(8) {
            chunk.copy_from_slice(&self.word().to_le_bytes()[..chunk.len()]);
        }
    }

    fn word(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}

/// One step's time and randomness.
pub struct Env<'a> {
    /// Now.
    pub now: Time,
    /// Randomness for cookies, challenges and jitter.
    pub entropy: &'a mut dyn Entropy,
}

impl std::fmt::Debug for Env<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Env")
            .field("now", &self.now)
            .finish_non_exhaustive()
    }
}
