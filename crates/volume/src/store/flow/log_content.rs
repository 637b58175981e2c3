//! What was read from the log for the store: the buffers, and where in them each place stands.
//!
//! Memory only: who reads fills it (`log_reads.rs`), and it never asks for a read itself.

use std::ops::Range;

use blkmq::io::SECTOR_BYTES;
use bytes::Bytes;

use crate::codec::Checksum;
use crate::log::checksums::{BlockChecksum, blocks_of};
use crate::log::layout::{BLOCK_BYTES, BLOCK_SECTORS};
use crate::map::layers::LogAddr;
use crate::units::Span;

/// What stands at many places of the log, in the buffers into which it was read: nothing is copied.
#[derive(Clone, Debug)]
pub(super) struct LogContent {
    pub(super) buffers: Vec<Bytes>,
    pub(super) places: Vec<PlaceContent>,
}

#[derive(Clone, Debug, Default)]
pub(super) struct PlaceContent {
    pub(super) buffer: usize,
    pub(super) at: usize,
    pub(super) len: usize,
    /// It was not read in one: the rest of its first and last block is not there.
    pub(super) is_patched: bool,
    /// Sectors of the volume whose bytes could not be read, ascending. In the buffer they are zeroes.
    pub(super) damaged: Vec<Span>,
}

impl LogContent {
    /// The bytes of consecutive places, one after the other: where they stand, if they are neighbours
    /// there, else put together in `joined`.
    pub(super) fn bytes_of<'a>(
        &'a self,
        places: Range<usize>,
        joined: &'a mut Vec<u8>,
    ) -> &'a [u8] {
        let places = &self.places[places];
        let Some((first, others)) = places.split_first() else {
            return &[];
        };
        let mut end = first.at + first.len;
        let neighbours = others.iter().all(|place| {
            let joins = place.buffer == first.buffer && place.at == end;
            end += place.len;
            joins
        });
        if neighbours {
            return &self.buffers[first.buffer][first.at..end];
        }
        joined.clear();
        for place in places {
            joined.extend_from_slice(self.bytes_at(place));
        }
        joined
    }

    /// The checksums of all blocks of the log that these places reach into and that were read whole.
    pub(super) fn checksums(&self, places: &[(Span, LogAddr)]) -> Vec<BlockChecksum> {
        let mut checksums: Vec<BlockChecksum> = Vec::new();
        for (found, (span, addr)) in self.places.iter().zip(places) {
            let blocks = blocks_of(*addr, span.sectors()).filter(|_| !found.is_patched);
            let Some((first, count)) = blocks else {
                continue;
            };
            let skipped = ((addr.sector() - first.sector()) * SECTOR_BYTES) as usize;
            let from = found.at - skipped;
            let whole = &self.buffers[found.buffer][from..from + count * BLOCK_BYTES as usize];
            let blocks = whole.chunks(BLOCK_BYTES as usize).zip(0..);
            checksums
                .extend(blocks.map(|(bytes, block)| {
                    (first.skip(block * BLOCK_SECTORS), Checksum::of(bytes))
                }));
        }
        checksums
    }

    fn bytes_at(&self, place: &PlaceContent) -> &[u8] {
        &self.buffers[place.buffer][place.at..place.at + place.len]
    }

    /// What could not be read of these places, ascending as they are.
    pub(super) fn damaged_in(&self, places: Range<usize>) -> Vec<Span> {
        let places = self.places[places].iter();
        places.flat_map(|place| place.damaged.clone()).collect()
    }

    /// All that could not be read.
    pub(super) fn damaged(&self) -> Vec<Span> {
        self.damaged_in(0..self.places.len())
    }
}
