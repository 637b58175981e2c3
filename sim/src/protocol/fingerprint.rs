//! Fingerprints: 64 bits for a state, 32 bits for the digest of an object.
//!
//! They must not depend on the process, the machine or the order of a map, or a schedule could not
//! be repeated. They protect against nobody: the model has no adversary, only chance.

use std::hash::{Hash, Hasher};

const MULTIPLIER: u64 = 0x9e37_79b9_7f4a_7c15;

/// A hasher that mixes eight bytes at a time.
#[derive(Default)]
pub(crate) struct Fingerprint(u64);

impl Fingerprint {
    fn mix(&mut self, word: u64) {
        let mixed = (self.0.rotate_left(23) ^ word).wrapping_mul(MULTIPLIER);
        self.0 = mixed ^ (mixed >> 32);
    }
}

impl Hasher for Fingerprint {
    fn finish(&self) -> u64 {
        let mixed = (self.0 ^ (self.0 >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed ^ (mixed >> 32)
    }

    fn write(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.mix(u64::from_le_bytes(word));
        }
    }

    fn write_u8(&mut self, value: u8) {
        self.mix(u64::from(value));
    }

    fn write_u16(&mut self, value: u16) {
        self.mix(u64::from(value));
    }

    fn write_u32(&mut self, value: u32) {
        self.mix(u64::from(value));
    }

    fn write_u64(&mut self, value: u64) {
        self.mix(value);
    }

    fn write_usize(&mut self, value: usize) {
        self.mix(value as u64);
    }
}

/// The fingerprint of a state.
pub(crate) fn of<T: Hash>(value: &T) -> u64 {
    let mut hasher = Fingerprint::default();
    value.hash(&mut hasher);
    hasher.finish()
}

/// The digest of an object's bytes; never 0, which stands for "no object".
pub(crate) fn digest<T: Hash>(value: &T) -> u32 {
    (of(value) >> 32) as u32 | 1
}
