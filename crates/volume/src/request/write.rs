//! The plan of a write: ring slots, log space, and the right to write now.
//!
//! All of it or nothing, from memory. What was promised to a plan comes back with its commit or its drop.

use std::sync::Arc;
use std::task::Waker;

use blkmq::error::ErrorKind;
use blkmq::io::{FileId, Park, Piece, Place, SECTOR_BYTES, Step, StepOf};

use super::Volume;
use crate::log::segments::{Lots, Stream};
use crate::request::plan::WritePlan;
use crate::request::tail::Inner;
use crate::sync::atomic::Ordering;
use crate::units::Span;

/// What a write was given before its plan is made.
struct Reservation {
    span: Span,
    /// Ring slots, at least one for each lot.
    slots: u64,
    lots: Lots,
}

impl Volume {
    pub(super) fn check_write(
        &self,
        inner: &Inner,
        sector: u64,
        sectors: u32,
    ) -> Result<Span, ErrorKind> {
        inner.writable()?;
        let span = self.check(inner, sector, u64::from(sectors))?;
        let engine = &self.engine;
        if engine.poisoned.load(Ordering::Acquire) {
            return Err(ErrorKind::Io);
        }
        let ring_entries = engine.options.ring_entries;
        if span.sectors() > engine.segments.largest_write_sectors(ring_entries) {
            // It could never be admitted: the log is smaller than this one write.
            return Err(ErrorKind::NoSpace);
        }
        Ok(span)
    }

    pub(super) fn begin_write(
        &self,
        (sector, sectors): (u64, u32),
        fua: bool,
        tries: u8,
        waker: &Waker,
    ) -> StepOf<Self> {
        let Volume { engine, tail } = self;
        let mut reserved = self.reserve_space(sector, sectors);
        if let Ok(None) = reserved {
            // Whatever makes room after this look wakes us.
            engine.space.parked.wait(tail.id(), waker);
            reserved = self.reserve_space(sector, sectors);
        }
        let Reservation { span, slots, lots } = match reserved {
            Ok(Some(reservation)) => reservation,
            Ok(None) => return Step::Park(Park::Space),
            Err(error) => return Step::Done(Err(error)),
        };
        let pieces = lots
            .iter()
            .map(|lot| Piece {
                at: ((lot.span.start - span.start) * SECTOR_BYTES) as u32,
                len: lot.span.bytes() as u32,
                place: Place::At {
                    file: FileId::LOG,
                    offset: lot.addr.byte_offset(),
                },
            })
            .collect();
        let mut plan = WritePlan {
            engine: Arc::clone(engine),
            tail: Arc::clone(tail),
            pieces,
            lots,
            slots,
            span,
            fua,
            tries,
            planted: false,
        };
        if canary::active!("lsn_at_plan") {
            plan.planted = tail
                .commit_lots(
                    &engine.segments,
                    &plan.lots,
                    plan.slots,
                    engine.jobs.mono_ns(),
                )
                .is_ok();
        }
        Step::Write(plan)
    }

    /// Ring slots, then log space, then the right to write now: all of it or nothing. The check and the promise of
    /// slots are one look at the tail.
    ///
    /// # Errors
    /// What the write ends with: it could not be carried out at any time.
    fn reserve_space(&self, sector: u64, sectors: u32) -> Result<Option<Reservation>, ErrorKind> {
        let Volume { engine, tail } = self;
        let mut inner = tail.lock();
        let span = self.check_write(&inner, sector, sectors)?;
        // A lot ends with its segment, so a write has at most this many.
        let slots = span.sectors() / engine.layout.segment_sectors() + 2;
        let has_slots = tail.reserve(&mut inner, slots);
        drop(inner);
        if !has_slots {
            engine.committer().request_round(engine);
            return Ok(None);
        }
        let held = tail.dirty_sectors();
        let lots = if engine.has_extent_room() && engine.space.admit(&tail.pace, span.bytes(), held)
        {
            engine.segments.allocate(Stream::Writer, tail.id(), span)
        } else {
            None
        };
        let Some(lots) = lots else {
            tail.give_back_slots(slots);
            engine.request_reclaim();
            return Ok(None);
        };
        // At once: whoever lacks slots waits for a round, and would be overtaken by whoever comes later.
        let used = lots.len() as u64;
        tail.give_back_slots(slots - used);
        let extents = 2 * used;
        engine.extents.fetch_add(extents, Ordering::Relaxed);
        tail.add_dirty(span.sectors());
        engine.space.parked.wake_next(tail.id());
        Ok(Some(Reservation {
            span,
            slots: used,
            lots,
        }))
    }
}
