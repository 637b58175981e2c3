//! What was read from the log for the store: the buffers, and where in them each place stands.
//!
//! Memory only: who reads fills it (`log_reads.rs`), and it never asks for a read itself.

use std::ops::Range;

use bytes::Bytes;

use crate::units::Span;

/// What stands at many places of the log, in the buffers into which it was read: nothing is copied.
#[derive(Debug)]
pub(super) struct LogContent {
    pub(super) buffers: Vec<Bytes>,
    pub(super) places: Vec<PlaceContent>,
}

#[derive(Clone, Debug, Default)]
pub(super) struct PlaceContent {
    pub(super) buffer: usize,
    pub(super) at: usize,
    pub(super) len: usize,
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
