//! What a written sector looks like: a function of disk, address and generation, nothing else.
//!
//! So a sector that is read says who wrote it, and any byte of it that differs from what that write
//! wrote is found. Three of four generations compress well, one does not at all, as real data is
//! mixed.

use std::fmt;

/// Bytes of a sector, the unit in which everything is checked.
pub const SECTOR_BYTES: usize = 512;

const MAGIC: u64 = u64::from_le_bytes(*b"firnsect");
/// Magic, disk and generation, address, checksum of these.
const HEADER_BYTES: usize = 32;

/// Who wrote a sector.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamp {
    /// The disk, or the part of one that a writer has.
    pub disk: u32,
    /// Which of the disk's writes it was.
    pub generation: u32,
    /// The sector's address.
    pub sector: u64,
}

/// What a sector holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Content {
    /// Zeroes: never written, discarded or zeroed.
    Zeroes,
    /// Exactly what this write wrote.
    Stamp(Stamp),
    /// Neither, from this byte on.
    Damaged(usize),
}

impl fmt::Display for Content {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Content::Zeroes => write!(f, "zeroes"),
            Content::Stamp(Stamp {
                disk,
                generation,
                sector,
            }) => write!(f, "generation {generation} of disk {disk} sector {sector}"),
            Content::Damaged(at) => write!(f, "not what any write wrote, from byte {at} on"),
        }
    }
}

/// The splitmix64 finalizer.
fn mix(mut x: u64) -> u64 {
    x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

impl Stamp {
    fn fill(self, sector: &mut [u8]) {
        let who = u64::from(self.disk) << 32 | u64::from(self.generation);
        let mut word = mix(mix(who) ^ self.sector);
        for (at, eight) in [MAGIC, who, self.sector, word].into_iter().enumerate() {
            sector[8 * at..8 * at + 8].copy_from_slice(&eight.to_le_bytes());
        }
        let compresses = !self.generation.is_multiple_of(4);
        if compresses {
            // Doubled, not word by word: without optimization, under emulation, that was most of
            // what a test did.
            sector[HEADER_BYTES..HEADER_BYTES + 8].copy_from_slice(&word.to_le_bytes());
            let mut filled = 8;
            while filled < SECTOR_BYTES - HEADER_BYTES {
                let more = filled.min(SECTOR_BYTES - HEADER_BYTES - filled);
                let repeated = HEADER_BYTES..HEADER_BYTES + more;
                sector.copy_within(repeated, HEADER_BYTES + filled);
                filled += more;
            }
            return;
        }
        for eight in sector[HEADER_BYTES..].chunks_exact_mut(8) {
            word = mix(word);
            eight.copy_from_slice(&word.to_le_bytes());
        }
    }
}

/// Fills a buffer of whole sectors with what a write of `generation` from `sector` on carries.
pub fn fill(buffer: &mut [u8], disk: u32, generation: u32, sector: u64) {
    for (bytes, sector) in buffer.chunks_exact_mut(SECTOR_BYTES).zip(sector..) {
        Stamp {
            disk,
            generation,
            sector,
        }
        .fill(bytes);
    }
}

/// The bytes of a write of so many sectors.
pub fn bytes(disk: u32, generation: u32, sectors: std::ops::Range<u64>) -> Vec<u8> {
    let mut bytes = vec![0; (sectors.end - sectors.start) as usize * SECTOR_BYTES];
    fill(&mut bytes, disk, generation, sectors.start);
    bytes
}

/// What is in the bytes of a sector.
pub fn read(bytes: &[u8]) -> Content {
    // Whole sectors are compared at once: byte by byte this was most of a short soak's time.
    if bytes == [0; SECTOR_BYTES] {
        return Content::Zeroes;
    }
    let word = |at: usize| {
        let mut eight = [0; 8];
        eight.copy_from_slice(&bytes[8 * at..8 * at + 8]);
        u64::from_le_bytes(eight)
    };
    let stamp = Stamp {
        disk: (word(1) >> 32) as u32,
        generation: word(1) as u32,
        sector: word(2),
    };
    let mut whole = [0; SECTOR_BYTES];
    stamp.fill(&mut whole);
    if whole == bytes {
        return Content::Stamp(stamp);
    }
    let wrong = whole.iter().zip(bytes).position(|(a, b)| a != b);
    Content::Damaged(wrong.unwrap_or(SECTOR_BYTES))
}

/// What is in each sector of a buffer.
pub fn read_all(bytes: &[u8]) -> impl Iterator<Item = Content> {
    bytes.chunks_exact(SECTOR_BYTES).map(read)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sector_says_who_wrote_it_and_every_byte_of_it_counts() {
        for generation in [4, 5] {
            let bytes = bytes(3, generation, 77..79);
            let stamp = Stamp {
                disk: 3,
                generation,
                sector: 78,
            };
            assert_eq!(read(&bytes[SECTOR_BYTES..]), Content::Stamp(stamp));
            for at in 0..SECTOR_BYTES {
                let mut changed = bytes[..SECTOR_BYTES].to_vec();
                changed[at] ^= 1;
                assert!(matches!(read(&changed), Content::Damaged(_)), "{at}");
            }
        }
        assert_eq!(read(&[0; SECTOR_BYTES]), Content::Zeroes);
    }
}
