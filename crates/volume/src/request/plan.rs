//! Plans: which extents hold or take the bytes of a request, pinned while the transport moves them.

use std::sync::Arc;

use blkmq::io::{Piece, Pin, Place, Plan, SECTOR_BYTES};
use smallvec::SmallVec;

use crate::cache::ChunkKey;
use crate::engine::Engine;
use crate::log::segments::Lots;
use crate::request::tail::Tail;
use crate::units::{Lsn, Span};

/// As many as the requests of a hot volume have, and not more: plans pass from hand to hand.
pub(super) type Pieces = SmallVec<[Piece; 2]>;

/// Where the bytes of a read are. What it names stays as it is while the plan lives.
#[derive(Debug)]
pub struct ReadPlan {
    pub(super) pieces: Pieces,
    pub(super) pins: SmallVec<[Pin; 2]>,
    /// What it reads from the cache.
    pub(super) chunks: SmallVec<[ChunkKey; 1]>,
    /// What is read.
    pub(super) span: Span,
    /// Other volumes, which wrote what is read, and at whose place in the log it is read.
    pub(super) writers: Vec<Arc<Tail>>,
}

impl Plan for ReadPlan {
    fn pieces(&self) -> &[Piece] {
        &self.pieces
    }
}

/// Log space for a write. Dropped without a commit it gives back what it took.
#[derive(Debug)]
pub struct WritePlan {
    pub(super) engine: Arc<Engine>,
    pub(super) tail: Arc<Tail>,
    pub(super) pieces: SmallVec<[Piece; 1]>,
    pub(super) lots: Lots,
    /// Ring slots promised to it, at least one for each lot.
    pub(super) slots: u64,
    pub(super) span: Span,
    pub(super) fua: bool,
    pub(super) tries: u8,
    pub(super) planted: bool,
}

impl Plan for WritePlan {
    fn pieces(&self) -> &[Piece] {
        &self.pieces
    }
}

impl Drop for WritePlan {
    fn drop(&mut self) {
        if self.lots.is_empty() || self.planted {
            return;
        }
        let (engine, tail) = (&self.engine, &self.tail);
        if tail.is_broken() {
            // The commit may have got as far as the ring, which then names these bytes.
            return;
        }
        tail.give_back_slots(self.slots);
        for lot in &self.lots {
            tail.release_dirty(&engine.segments, lot.addr, lot.span.sectors());
        }
        engine.space.parked.wake_some();
    }
}

/// A wait until everything up to some commit is durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SyncWait(pub(super) Lsn);

impl ReadPlan {
    /// Adds `part` of the read `whole`; what continues the last piece extends it.
    pub(super) fn add(&mut self, whole: Span, part: Span, place: Place) {
        let at = ((part.start - whole.start) * SECTOR_BYTES) as u32;
        let len = part.bytes() as u32;
        if let Some(last) = self.pieces.last_mut() {
            let follows = match (last.place, place) {
                (Place::Hole, Place::Hole) => true,
                (Place::At { file: a, offset: x }, Place::At { file: b, offset: y }) => {
                    a == b && x + u64::from(last.len) == y
                }
                _ => false,
            };
            if follows {
                last.len += len;
                return;
            }
        }
        self.pieces.push(Piece { at, len, place });
    }
}
