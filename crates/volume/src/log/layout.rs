//! Where everything lies in the log file, and the codecs of its superblock and segment headers.
//!
//! ```text
//! 0            superblock, first copy (4096 bytes)
//! 4096         superblock, second copy
//! 8192         journal half 0   (frames)
//! 8192 + H     journal half 1   (frames)
//! 8192 + 2H    segment 0, segment 1, ...
//! ```
//!
//! `H` is computed from the sizes in the superblock ([`Layout::new`]); it never changes for a
//! formatted log. Format: docs/format.md "Log file".

use blkmq::io::SECTOR_BYTES;

use crate::codec::{Reader, TruncatedInput, Writer, crc64};
use crate::error::OpenError;
use crate::units::HostId;

/// The unit of space and alignment in the log, in bytes.
pub(crate) const BLOCK_BYTES: u64 = 4096;
/// The same in sectors.
pub(crate) const BLOCK_SECTORS: u64 = BLOCK_BYTES / SECTOR_BYTES;

const SUPER_MAGIC: [u8; 8] = *b"FIRNLOG\0";
pub(super) const SUPER_VERSION: u16 = 1;
const SEGMENT_MAGIC: [u8; 8] = *b"FIRNSEG\0";
pub(super) const SEGMENT_VERSION: u16 = 1;
/// Bytes that one dirty extent takes in a checkpoint frame.
const EXTENT_BYTES: u64 = 48;

/// Sizes and places. Everything follows from the two sizes in the superblock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Layout {
    pub(crate) log_bytes: u64,
    pub(crate) segment_bytes: u64,
    pub(crate) half_bytes: u64,
    pub(crate) segments: u32,
}

impl Layout {
    /// The layout of a log of this size, or why there is none.
    pub(crate) fn new(log_bytes: u64, segment_bytes: u64) -> Result<Layout, OpenError> {
        let bad = |why: &str| OpenError::Options(format!("log of {log_bytes} bytes: {why}"));
        if segment_bytes < 2 * BLOCK_BYTES || !segment_bytes.is_multiple_of(BLOCK_BYTES) {
            return Err(bad(
                "the segment size must be a multiple of 4096 and at least 8192",
            ));
        }
        // A checkpoint holds every dirty extent; each takes at least a block of log, and a write
        // into the middle of another splits it in two. Half as much again is for deltas.
        let extents = log_bytes / BLOCK_BYTES * 2;
        let half_bytes =
            (extents * EXTENT_BYTES * 3 / 2 + 64 * BLOCK_BYTES).next_multiple_of(BLOCK_BYTES);
        let rest = log_bytes.saturating_sub(2 * BLOCK_BYTES + 2 * half_bytes);
        let segments = u32::try_from(rest / segment_bytes)
            .map_err(|_| bad("too many segments: choose larger ones"))?;
        if segments < 6 {
            return Err(bad("room for fewer than 6 segments: choose a larger log"));
        }
        Ok(Layout {
            log_bytes,
            segment_bytes,
            half_bytes,
            segments,
        })
    }

    /// Byte offset of a journal half.
    pub(crate) fn half(&self, half: usize) -> u64 {
        2 * BLOCK_BYTES + half as u64 * self.half_bytes
    }

    /// Byte offset of a segment's header.
    pub(crate) fn segment(&self, segment: u32) -> u64 {
        self.half(2) + u64::from(segment) * self.segment_bytes
    }

    /// Sectors of a segment that hold data.
    pub(crate) fn segment_sectors(&self) -> u64 {
        (self.segment_bytes - BLOCK_BYTES) / SECTOR_BYTES
    }

    /// The segment in which a sector of the log lies.
    pub(crate) fn segment_of(&self, log_sector: u64) -> Option<u32> {
        let from = (log_sector * SECTOR_BYTES).checked_sub(self.half(2))?;
        let segment = u32::try_from(from / self.segment_bytes).ok()?;
        (segment < self.segments && from % self.segment_bytes >= BLOCK_BYTES).then_some(segment)
    }

    /// The most dirty extents that a checkpoint can hold with room to spare.
    pub(crate) fn extents_max(&self) -> u64 {
        self.log_bytes / BLOCK_BYTES
    }
}

/// The first block of the log, kept twice.
///
/// | offset | bytes | field |
/// |---|---|---|
/// | 0 | 8 | magic `FIRNLOG\0` |
/// | 8 | 2 | version, 1 |
/// | 10 | 2 | flags: bit 0 poisoned |
/// | 12 | 4 | zero |
/// | 16 | 16 | host id |
/// | 32 | 8 | log size in bytes |
/// | 40 | 8 | segment size in bytes |
/// | 48 | 8 | CRC-64/NVME of bytes 0..48 |
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Superblock {
    pub(crate) host: HostId,
    pub(crate) log_bytes: u64,
    pub(crate) segment_bytes: u64,
    /// A sync failed once: what the log holds beyond its durable frames is not to be trusted.
    pub(crate) poisoned: bool,
}

impl Superblock {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut w = Writer::new();
        w.raw(&SUPER_MAGIC)
            .u16(SUPER_VERSION)
            .u16(u16::from(self.poisoned))
            .u32(0);
        w.raw(&self.host.0)
            .u64(self.log_bytes)
            .u64(self.segment_bytes);
        let crc = crc64(&[w.bytes()]);
        w.u64(crc).pad_to_multiple(BLOCK_BYTES as usize);
        w.finish()
    }

    /// `None` for a block that was never written.
    pub(crate) fn decode(block: &[u8]) -> Result<Option<Superblock>, OpenError> {
        if block.iter().all(|byte| *byte == 0) {
            return Ok(None);
        }
        Self::decode_written(block)
            .unwrap_or_else(|TruncatedInput| {
                Err(OpenError::Foreign("the log file is too short".into()))
            })
            .map(Some)
    }

    fn decode_written(block: &[u8]) -> Result<Result<Superblock, OpenError>, TruncatedInput> {
        let mut r = Reader::new(block);
        if r.array()? != SUPER_MAGIC {
            return Ok(Err(OpenError::Foreign(
                "the log file does not begin with a firn log".into(),
            )));
        }
        let version = r.u16()?;
        if version != SUPER_VERSION {
            return Ok(Err(OpenError::Newer {
                what: "log file",
                found: version,
                known: SUPER_VERSION,
            }));
        }
        let flags = r.u16()?;
        r.u32()?;
        let found = Superblock {
            host: HostId(r.array()?),
            log_bytes: r.u64()?,
            segment_bytes: r.u64()?,
            poisoned: flags & 1 != 0,
        };
        if r.u64()? != crc64(&[&block[..48]]) {
            return Ok(Err(OpenError::Corrupt(
                "superblock of the log fails its checksum".into(),
            )));
        }
        Ok(Ok(found))
    }
}

/// The first block of a segment.
///
/// | offset | bytes | field |
/// |---|---|---|
/// | 0 | 8 | magic `FIRNSEG\0` |
/// | 8 | 2 | version, 1 |
/// | 10 | 2 | zero |
/// | 12 | 4 | generation, 1 for the first use |
/// | 16 | 16 | host id |
/// | 32 | 4 | segment number |
/// | 36 | 4 | zero |
/// | 40 | 8 | CRC-64/NVME of bytes 0..40 |
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SegmentHeader {
    pub(crate) host: HostId,
    pub(crate) segment: u32,
    pub(crate) generation: u32,
}

impl SegmentHeader {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut w = Writer::new();
        w.raw(&SEGMENT_MAGIC)
            .u16(SEGMENT_VERSION)
            .u16(0)
            .u32(self.generation);
        w.raw(&self.host.0).u32(self.segment).u32(0);
        let crc = crc64(&[w.bytes()]);
        w.u64(crc).pad_to_multiple(BLOCK_BYTES as usize);
        w.finish()
    }

    /// The generation of `segment`: none if it was never used (or its first header never became
    /// durable, which is the same: no durable frame can name it then).
    pub(crate) fn generation(block: &[u8], host: HostId, segment: u32) -> Option<u32> {
        let mut r = Reader::new(block);
        let ok = r.array().ok()? == SEGMENT_MAGIC && r.u16().ok()? == SEGMENT_VERSION;
        r.u16().ok()?;
        let generation = r.u32().ok()?;
        let ours = r.array().ok()? == host.0 && r.u32().ok()? == segment;
        r.u32().ok()?;
        (ok && ours && r.u64().ok()? == crc64(&[&block[..40]])).then_some(generation)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOST: HostId = HostId([7; 16]);

    #[test]
    fn the_layout_leaves_room_for_a_checkpoint_of_a_full_log() {
        for (log, segment) in [(1 << 30, 16 << 20), (4 << 20, 64 << 10), (2 << 20, 8 << 10)] {
            let layout = Layout::new(log, segment).expect("a valid size");
            assert!(layout.half_bytes > 2 * layout.extents_max() * EXTENT_BYTES);
            assert!(layout.segment(layout.segments) <= log);
        }
    }

    #[test]
    fn a_log_too_small_for_six_segments_is_refused() {
        assert!(matches!(
            Layout::new(1 << 20, 1 << 20),
            Err(OpenError::Options(_))
        ));
    }

    #[test]
    fn addresses_in_headers_belong_to_no_segment() {
        let layout = Layout::new(4 << 20, 64 << 10).expect("valid");
        let first = layout.segment(0) / SECTOR_BYTES;
        assert_eq!(layout.segment_of(first), None);
        assert_eq!(layout.segment_of(first + BLOCK_SECTORS), Some(0));
        assert_eq!(
            layout.segment_of(layout.segment(layout.segments) / SECTOR_BYTES + 8),
            None
        );
        assert_eq!(layout.segment_of(1), None);
    }

    #[test]
    fn a_superblock_that_is_newer_foreign_or_damaged_is_refused_by_name() {
        let good = Superblock {
            host: HOST,
            log_bytes: 1,
            segment_bytes: 2,
            poisoned: true,
        };
        let block = good.encode();
        assert_eq!(Superblock::decode(&block), Ok(Some(good)));
        assert_eq!(Superblock::decode(&vec![0; 4096]), Ok(None));
        let mut newer = block.clone();
        newer[8] = 9;
        assert!(matches!(
            Superblock::decode(&newer),
            Err(OpenError::Newer { found: 9, .. })
        ));
        let mut foreign = block.clone();
        foreign[0] = b'X';
        assert!(matches!(
            Superblock::decode(&foreign),
            Err(OpenError::Foreign(_))
        ));
        for bit in 12 * 8..56 * 8 {
            let mut damaged = block.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert!(
                matches!(Superblock::decode(&damaged), Err(OpenError::Corrupt(_))),
                "{bit}"
            );
        }
    }

    #[test]
    fn a_segment_header_with_any_flipped_bit_is_void() {
        let header = SegmentHeader {
            host: HOST,
            segment: 3,
            generation: 9,
        };
        let block = header.encode();
        assert_eq!(SegmentHeader::generation(&block, HOST, 3), Some(9));
        assert_eq!(SegmentHeader::generation(&block, HOST, 4), None);
        for bit in 0..48 * 8 {
            let mut damaged = block.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(SegmentHeader::generation(&damaged, HOST, 3), None, "{bit}");
        }
    }
}
