//! What a written sector looks like: a function of device, address and generation, nothing else.
//!
//! So a sector that is read says who wrote it, and any byte of it that is not as that write made
//! it is seen. Three of four generations compress well, one does not at all, as real data is mixed.

/// Bytes of a sector, the unit in which everything is judged.
pub(super) const SECTOR: usize = 512;

const MAGIC: u64 = u64::from_le_bytes(*b"firnsoak");
/// Magic, device and generation, address, checksum of these.
const HEADER: usize = 32;

/// Who wrote a sector.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stamp {
    pub(super) device: u32,
    pub(super) generation: u32,
    pub(super) sector: u64,
}

/// What a sector holds.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Found {
    /// Zeroes: never written, discarded or zeroed.
    Zeroes,
    /// Exactly what this write wrote.
    Stamp(Stamp),
    /// Neither, from this byte on.
    Damaged(usize),
}

/// A well-known mixer of 64 bits (splitmix).
pub(super) fn mixed(mut x: u64) -> u64 {
    x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

impl Stamp {
    fn fill(self, sector: &mut [u8]) {
        let who = u64::from(self.device) << 32 | u64::from(self.generation);
        let mut word = mixed(mixed(who) ^ self.sector);
        for (at, eight) in [MAGIC, who, self.sector, word].into_iter().enumerate() {
            sector[8 * at..8 * at + 8].copy_from_slice(&eight.to_le_bytes());
        }
        let compresses = !self.generation.is_multiple_of(4);
        for eight in sector[HEADER..].chunks_exact_mut(8) {
            if !compresses {
                word = mixed(word);
            }
            eight.copy_from_slice(&word.to_le_bytes());
        }
    }
}

/// Fills a buffer with what a write of `generation` at `sector` carries.
pub(super) fn fill(buffer: &mut [u8], device: u32, generation: u32, sector: u64) {
    for (at, bytes) in buffer.chunks_exact_mut(SECTOR).enumerate() {
        let sector = sector + at as u64;
        Stamp {
            device,
            generation,
            sector,
        }
        .fill(bytes);
    }
}

/// What is in the bytes of a sector.
pub(super) fn read(bytes: &[u8]) -> Found {
    // Whole sectors are compared at once: byte by byte this was most of a short soak's time.
    if bytes == [0; SECTOR] {
        return Found::Zeroes;
    }
    let word = |at: usize| {
        let mut eight = [0; 8];
        eight.copy_from_slice(&bytes[8 * at..8 * at + 8]);
        u64::from_le_bytes(eight)
    };
    let stamp = Stamp {
        device: (word(1) >> 32) as u32,
        generation: word(1) as u32,
        sector: word(2),
    };
    let mut whole = [0; SECTOR];
    stamp.fill(&mut whole);
    if whole == bytes {
        return Found::Stamp(stamp);
    }
    let wrong = whole.iter().zip(bytes).position(|(a, b)| a != b);
    Found::Damaged(wrong.unwrap_or(SECTOR))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sector_says_who_wrote_it_and_every_byte_of_it_counts() {
        for generation in [4, 5] {
            let mut bytes = vec![0; 2 * SECTOR];
            fill(&mut bytes, 3, generation, 77);
            let stamp = Stamp {
                device: 3,
                generation,
                sector: 78,
            };
            assert_eq!(read(&bytes[SECTOR..]), Found::Stamp(stamp));
            for at in 0..SECTOR {
                let mut changed = bytes[..SECTOR].to_vec();
                changed[at] ^= 1;
                assert!(matches!(read(&changed), Found::Damaged(_)), "{at}");
            }
        }
        assert_eq!(read(&[0; SECTOR]), Found::Zeroes);
    }
}
