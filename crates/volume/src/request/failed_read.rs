//! The end of a read, above all of one that failed on this host: what the store has, too, is read from there (S8).
//!
//! A place that failed is forgotten before the read is planned again, so that no plan comes back to it: of the cache the
//! chunk, of the log the clean extents there, whoever's they are. What the log alone has is never forgotten: it is an I/O error.

use std::sync::Arc;
use std::task::Waker;

use blkmq::error::ErrorKind;
use blkmq::io::{FileId, MoveError, MoveResult, Park, SECTOR_BYTES, Step, StepOf};

use super::Volume;
use crate::map::layers::Location;
use crate::request::plan::ReadPlan;
use crate::request::tail::Tail;
use crate::units::Span;

impl Volume {
    /// The bytes were moved, or not.
    pub(super) fn finish_read(
        &self,
        plan: ReadPlan,
        moved: MoveResult,
        waker: &Waker,
    ) -> StepOf<Self> {
        let again = match &moved {
            Ok(()) => false,
            Err(error) => self.is_in_store(&plan, error),
        };
        drop(plan);
        if let Err(error) = &moved {
            let next = match again {
                true => "fetched from the store",
                false => "the request fails",
            };
            self.report_failed_move(error, next);
        }
        if let Err(error) = self.tail.lock().check_serving() {
            return Step::Done(Err(error));
        }
        if again {
            // The place that failed is in no map any more, so the next plan is another one.
            waker.wake_by_ref();
            return Step::Park(Park::Fetch);
        }
        Step::Done(moved.map_err(ErrorKind::from))
    }

    /// Whether the store has what could not be read. Then nobody is sent to that place any more.
    #[cold]
    fn is_in_store(&self, plan: &ReadPlan, error: &MoveError) -> bool {
        match error.file {
            Some(FileId::CACHE) => self.engine.cache.mark_damaged_on_disk(&plan.chunks),
            Some(FileId::LOG) if !canary::active!("failed_clean_read_fails_the_request") => {
                let end = error.offset + u64::from(error.len);
                let failed = Span {
                    start: error.offset / SECTOR_BYTES,
                    end: end.div_ceil(SECTOR_BYTES),
                };
                let writers = plan.writers.iter();
                for tail in writers.chain([&self.tail]) {
                    self.forget_failed(tail, plan.span, failed);
                }
                // Somebody else may have forgotten it before.
                !self.has_alone(plan.span, failed)
            }
            _ => false,
        }
    }

    /// Takes what a volume has in `span` out of its clean extents where that is among these sectors of the log.
    fn forget_failed(&self, tail: &Arc<Tail>, span: Span, failed: Span) {
        let mut found = Vec::new();
        tail.lock().layers.clean.walk(span, |part, clean| {
            let Some(addr) = clean.map(|clean| clean.0) else {
                return;
            };
            let place = Span::new(addr.sector(), part.sectors()).intersect(failed);
            if !place.is_empty() {
                let skipped = place.start - addr.sector();
                let part = Span::new(part.start + skipped, place.sectors());
                found.push((part, addr.skip(skipped)));
            }
        });
        for (part, addr) in found {
            tail.forget_clean(&self.engine.segments, part, addr);
        }
    }

    /// Whether the log alone may have what is read at these sectors of it.
    fn has_alone(&self, span: Span, failed: Span) -> bool {
        let mut is_alone = false;
        let inner = self.tail.lock();
        inner.layers.lookup(span, &mut |part, found| {
            if let Location::Log(addr) = found {
                let place = Span::new(addr.sector(), part.sectors());
                is_alone |= !place.intersect(failed).is_empty();
            }
        });
        is_alone
    }
}
