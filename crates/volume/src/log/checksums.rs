//! Checksums of blocks of the log, as of when their bytes were packed: by them a scrub proves what is still read from there.
//!
//! Owns which block has which checksum. A segment's go before its space may be used again; so whoever holds a pin of a segment
//! that a map names finds those of what stands there, or none. It does no I/O.

use super::layout::{BLOCK_BYTES, BLOCK_SECTORS, Layout};
use crate::codec::Checksum;
use crate::lock::lock;
use crate::map::layers::LogAddr;
use crate::sync::Mutex;

/// Blocks for which there is room, 16 MiB: what is packed beyond 16 GiB of a log is not proven.
const BLOCKS_MAX: usize = 4 << 20;

/// A block of the log, by an address in it, and its checksum.
pub(crate) type BlockChecksum = (LogAddr, Checksum);

#[derive(Debug, Default)]
struct State {
    /// By segment: one number for each block, 0: none.
    segments: Vec<Option<Box<[u32]>>>,
    blocks: usize,
}

/// The checksums of a log.
#[derive(Debug)]
pub(crate) struct LogChecksums {
    layout: Layout,
    state: Mutex<State>,
}

impl LogChecksums {
    pub(crate) fn new(layout: Layout) -> LogChecksums {
        let state = State {
            segments: vec![None; layout.segments as usize],
            blocks: 0,
        };
        LogChecksums {
            layout,
            state: Mutex::new(state),
        }
    }

    /// Segment, and the block's number in it.
    fn place(&self, addr: LogAddr) -> Option<(usize, usize)> {
        let segment = self.layout.segment_of(addr.sector())?;
        let from = addr.byte_offset() - self.layout.segment(segment);
        Some((segment as usize, (from / BLOCK_BYTES) as usize))
    }

    /// Remembers checksums. To be called only while something keeps the segments of these blocks from being used again.
    pub(crate) fn add(&self, checksums: &[BlockChecksum]) {
        let per_segment = (self.layout.segment_bytes / BLOCK_BYTES) as usize;
        let mut state = lock(&self.state);
        let State { segments, blocks } = &mut *state;
        for (addr, checksum) in checksums {
            let Some((segment, block)) = self.place(*addr) else {
                continue;
            };
            let of_segment = &mut segments[segment];
            if of_segment.is_none() && *blocks + per_segment <= BLOCKS_MAX {
                *of_segment = Some(vec![0; per_segment].into());
                *blocks += per_segment;
            }
            if let Some(of_segment) = of_segment {
                of_segment[block] = Checksum::encode(Some(*checksum));
            }
        }
    }

    /// The checksums of this many blocks that follow each other in one segment.
    pub(crate) fn find(&self, addr: LogAddr, blocks: usize) -> Vec<Option<Checksum>> {
        let state = lock(&self.state);
        let found = |(segment, first): (usize, usize)| {
            let of_segment = state.segments[segment].as_ref()?;
            Some(of_segment.get(first..first + blocks)?.to_vec())
        };
        let numbers = self.place(addr).and_then(found);
        let numbers = numbers.unwrap_or_else(|| vec![0; blocks]);
        numbers.into_iter().map(Checksum::decode).collect()
    }

    /// No map names the segment any more.
    pub(super) fn forget(&self, segment: u32) {
        if canary::active!("checksums_outlive_their_segment") {
            return;
        }
        let mut state = lock(&self.state);
        let gone = state.segments[segment as usize].take();
        state.blocks -= gone.as_ref().map_or(0, |blocks| blocks.len());
        drop(state);
        drop(gone);
    }
}

/// The first block that has an address, as an address, and how many blocks so many sectors there reach into.
pub(crate) fn blocks_of(addr: LogAddr, sectors: u64) -> Option<(LogAddr, usize)> {
    let first = addr.sector() / BLOCK_SECTORS * BLOCK_SECTORS;
    let end = (addr.sector() + sectors).next_multiple_of(BLOCK_SECTORS);
    let first = LogAddr::new(first)?;
    Some((first, ((end - first.sector()) / BLOCK_SECTORS) as usize))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_keep_their_checksums_until_their_segment_is_forgotten() {
        let layout = Layout::new(2 << 20, 16 << 10).expect("valid");
        let checksums = LogChecksums::new(layout);
        let at = |segment, block: u64| {
            let sector = (layout.segment(segment) + block * BLOCK_BYTES) / 512;
            LogAddr::new(sector).expect("behind the superblock")
        };
        let checksum = |n: u8| Checksum::of(&[n; 4096]);
        checksums.add(&[(at(3, 1), checksum(1)), (at(3, 3), checksum(3))]);
        checksums.add(&[(at(4, 2), checksum(9))]);
        let found = checksums.find(at(3, 1), 3);
        assert_eq!(found, [Some(checksum(1)), None, Some(checksum(3))]);
        checksums.forget(3);
        assert_eq!(checksums.find(at(3, 1), 3), [None; 3]);
        assert_eq!(checksums.find(at(4, 2), 1), [Some(checksum(9))]);
        checksums.forget(4);
        checksums.forget(5);
        assert_eq!(lock(&checksums.state).blocks, 0);
    }

    #[test]
    fn sectors_reach_into_whole_blocks() {
        let at = |sector| LogAddr::new(sector).expect("not zero");
        assert_eq!(blocks_of(at(16), 8), Some((at(16), 1)));
        assert_eq!(blocks_of(at(17), 8), Some((at(16), 2)));
        assert_eq!(blocks_of(at(23), 1), Some((at(16), 1)));
    }
}
