//! Owns the content that clients write: sectors that say where they belong and who wrote them.
//!
//! A sector is eight copies of a 64-byte record, each with its own place in the sector and a check
//! value, so that a sector torn anywhere, an old one, one of another address and one of another
//! volume are all told apart. All multi-byte fields are little-endian.

use crate::disk::{POISON, SECTOR};

const RECORD: usize = 64;
const MAGIC: u64 = 0x6669_726e_2073_7461;

/// What a sector says about itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Stamp {
    /// Which volume.
    pub volume: u64,
    /// Which sector of it.
    pub sector: u64,
    /// Which client wrote it.
    pub client: u64,
    /// Which write: unique in the world.
    pub write: u64,
    /// How often the server had been started when it was written.
    pub generation: u64,
}

/// What was found in a sector.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SectorContent {
    /// All zeroes.
    Zero,
    /// A whole stamp.
    Stamp(Stamp),
    /// Bytes that no client wrote in this order: torn, or not a stamp at all.
    Garbage,
    /// The disk's filling for never-written sectors.
    Poison,
}

fn check(words: &[u64; 7]) -> u64 {
    words
        .iter()
        .fold(0x51_7c_c1_b7_27_22_0a_95, |hash: u64, word| {
            let x = (hash ^ word).wrapping_mul(0xd6e8_feb8_6659_fd93);
            x ^ (x >> 32)
        })
}

impl Stamp {
    /// The sector's bytes, appended to `out`.
    pub fn write_to(&self, out: &mut Vec<u8>) {
        for place in 0..(SECTOR / RECORD) as u64 {
            let words = [
                MAGIC,
                self.volume,
                self.sector,
                self.client,
                self.write,
                self.generation,
                place,
            ];
            for word in words {
                out.extend_from_slice(&word.to_le_bytes());
            }
            out.extend_from_slice(&check(&words).to_le_bytes());
        }
    }

    /// What `bytes`, one sector, say.
    pub fn read_from(bytes: &[u8]) -> SectorContent {
        assert_eq!(bytes.len(), SECTOR, "a sector");
        if bytes.iter().all(|byte| *byte == 0) {
            return SectorContent::Zero;
        }
        if bytes.iter().all(|byte| *byte == POISON) {
            return SectorContent::Poison;
        }
        let word =
            |n: usize| u64::from_le_bytes(bytes[n * 8..n * 8 + 8].try_into().expect("eight bytes"));
        let stamp = Stamp {
            volume: word(1),
            sector: word(2),
            client: word(3),
            write: word(4),
            generation: word(5),
        };
        let mut expected = Vec::with_capacity(SECTOR);
        stamp.write_to(&mut expected);
        if expected == bytes {
            SectorContent::Stamp(stamp)
        } else {
            SectorContent::Garbage
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sector(write: u64) -> Vec<u8> {
        let mut bytes = Vec::new();
        Stamp {
            volume: 1,
            sector: 2,
            client: 3,
            write,
            generation: 5,
        }
        .write_to(&mut bytes);
        bytes
    }

    #[test]
    fn a_stamp_reads_back() {
        let SectorContent::Stamp(stamp) = Stamp::read_from(&sector(9)) else {
            panic!("unreadable")
        };
        assert_eq!((stamp.sector, stamp.write), (2, 9));
    }

    #[test]
    fn every_flipped_bit_is_seen() {
        let good = sector(9);
        for bit in 0..SECTOR * 8 {
            let mut bad = good.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(Stamp::read_from(&bad), SectorContent::Garbage, "bit {bit}");
        }
    }

    #[test]
    fn a_sector_of_two_writes_is_garbage_wherever_it_is_cut() {
        let (old, new) = (sector(1), sector(2));
        for cut in 1..SECTOR / 8 {
            let mixed = [&new[..cut * 8], &old[cut * 8..]].concat();
            assert_ne!(mixed, new);
            if mixed == old {
                continue; // Cut before the first byte that differs.
            }
            assert_eq!(
                Stamp::read_from(&mixed),
                SectorContent::Garbage,
                "cut at {}",
                cut * 8
            );
        }
    }
}
