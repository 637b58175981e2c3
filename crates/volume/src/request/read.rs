//! The plan of a read: where its bytes are, and what is to be fetched if not all of them are on this host.

use std::sync::Arc;
use std::task::Waker;

use blkmq::error::ErrorKind;
use blkmq::io::{FileId, Park, Place, SECTOR_BYTES, Step, StepOf};
use smallvec::SmallVec;

use super::Volume;
use super::log_copies::LogCopies;
use crate::engine::Engine;
use crate::map::index::IndexEntry;
use crate::map::layers::Location;
use crate::object::pack::Chunk;
use crate::request::plan::{Pieces, ReadPlan};
use crate::request::tail::Inner;
use crate::store::fetch;
use crate::store::fetch::read_ahead;
use crate::store::fetch::table::{FetchTarget, chunk_key};
use crate::units::Span;

/// What a read needs that is not on this host.
#[derive(Default)]
struct MissingData {
    targets: Vec<FetchTarget>,
    /// Some of it is nowhere any more.
    damaged: bool,
    /// What the store has is not known.
    unknown: bool,
}

/// What one look at the volume has found.
struct Look {
    plan: ReadPlan,
    needs: MissingData,
}

impl Volume {
    pub(super) fn begin_read(&self, sector: u64, sectors: u32, waker: &Waker) -> StepOf<Self> {
        let mut copies = LogCopies::default();
        loop {
            let Look { plan, needs } = match self.look(sector, sectors, &copies) {
                Ok(Some(look)) => look,
                Ok(None) => return Step::Done(Ok(())),
                Err(error) => return Step::Done(Err(error)),
            };
            if needs.unknown {
                drop(plan);
                if self.waits_for_root(waker) {
                    return Step::Park(Park::Fetch);
                }
                continue;
            }
            if needs.damaged {
                return Step::Done(Err(ErrorKind::Io));
            }
            if !needs.targets.is_empty() && copies.is_empty() {
                copies = LogCopies::find(&self.engine, &self.tail, plan.span, &needs.targets);
                if !copies.is_empty() {
                    continue;
                }
            }
            return self.carry_out(Look { plan, needs }, waker);
        }
    }

    /// Hands out the plan, or has what is missing fetched.
    fn carry_out(&self, Look { plan, needs }: Look, waker: &Waker) -> StepOf<Self> {
        let has_waited = !needs.targets.is_empty();
        if has_waited || !plan.chunks.is_empty() {
            self.observe_read(plan.span, has_waited);
        } else if !plan.writers.is_empty() {
            // Another server, or this one when it starts again, has to fetch it.
            let Volume { engine, tail } = self;
            tail.boot_set.observe(plan.span, engine.jobs.mono_ns());
        }
        if needs.targets.is_empty() {
            // The cache's lock is everybody's: a read of the log alone has no business there.
            if !plan.chunks.is_empty() {
                self.engine.cache.mark_planned(&plan.chunks);
            }
            return Step::Read(plan);
        }
        drop(plan);
        match fetch::request(&self.engine, &self.tail, needs.targets, waker) {
            Ok(()) => Step::Park(Park::Fetch),
            Err(error) => Step::Done(Err(error)),
        }
    }

    /// Looks for all of a read. None: it is empty.
    ///
    /// # Errors
    /// What the read ends with.
    fn look(
        &self,
        sector: u64,
        sectors: u32,
        copies: &LogCopies,
    ) -> Result<Option<Look>, ErrorKind> {
        let inner = self.tail.lock();
        let span = self.check(&inner, sector, u64::from(sectors))?;
        if span.is_empty() {
            return Ok(None);
        }
        let mut plan = ReadPlan {
            pieces: Pieces::new(),
            pins: SmallVec::new(),
            chunks: SmallVec::new(),
            span,
            writers: Vec::new(),
        };
        let mut needs = MissingData::default();
        inner.layers.lookup(span, &mut |part, found| match found {
            Location::Log(addr) | Location::Clean(addr) => {
                plan.pins.push(self.engine.segments.pin(addr));
                let (file, offset) = (FileId::LOG, addr.byte_offset());
                plan.add(span, part, Place::At { file, offset });
            }
            Location::Zero => plan.add(span, part, Place::Hole),
            Location::Below => {
                self.lookup_index(&inner, (span, part), copies, &mut plan, &mut needs)
            }
        });
        drop(inner);
        Ok(Some(Look { plan, needs }))
    }

    /// Has the waker woken when the root has been read. False: it has been, or the service has ended, and the request
    /// is to be looked at again.
    pub(super) fn waits_for_root(&self, waker: &Waker) -> bool {
        self.tail.checked.wait(waker);
        let inner = self.tail.lock();
        inner.index.is_unknown() && inner.check_serving().is_ok()
    }

    /// A client read what the store has, and perhaps had to wait for it.
    fn observe_read(&self, span: Span, has_waited: bool) {
        let Volume { engine, tail } = self;
        tail.boot_set.observe(span, engine.jobs.mono_ns());
        if let Some(ahead) = engine.streams.observe(tail.id(), span, has_waited) {
            read_ahead::start(engine, tail, vec![ahead]);
        }
    }

    /// Looks for a part of a read in what the store has.
    fn lookup_index(
        &self,
        inner: &Inner,
        (whole, part): (Span, Span),
        copies: &LogCopies,
        plan: &mut ReadPlan,
        needs: &mut MissingData,
    ) {
        let Engine { cache, blocks, .. } = &*self.engine;
        let place = &mut |part: Span, stored: IndexEntry<'_>| match stored {
            IndexEntry::Hole => plan.add(whole, part, Place::Hole),
            IndexEntry::Unloaded(target) => needs.targets.push(FetchTarget::Block(target)),
            IndexEntry::Part { chunk, skip } => match cache.find(chunk_key(chunk)) {
                Some(hit) => {
                    plan.pins.push(hit.pin);
                    plan.chunks.push(chunk_key(chunk));
                    let offset = hit.offset + u64::from(skip) * SECTOR_BYTES;
                    let file = hit.file;
                    plan.add(whole, part, Place::At { file, offset });
                }
                None if self.add_copies(chunk, (whole, part), copies, plan) => {}
                None => {
                    let chunk = Arc::new(chunk.clone());
                    needs.targets.push(FetchTarget::Chunk(chunk));
                }
            },
            IndexEntry::Damaged => needs.damaged = true,
            IndexEntry::Unknown => needs.unknown = true,
        };
        inner.index.lookup(part, blocks, place);
    }

    /// Has a part of a chunk read where the log has it for another volume. False: it has not.
    fn add_copies(
        &self,
        chunk: &Chunk,
        (whole, part): (Span, Span),
        copies: &LogCopies,
        plan: &mut ReadPlan,
    ) -> bool {
        if copies.is_empty() {
            return false;
        }
        let writer = copies.visit(chunk, part, |part, addr| {
            // `copies` pins the segment meanwhile, so that it has not been used again.
            if !canary::active!("log_copy_is_not_pinned") {
                plan.pins.push(self.engine.segments.pin(addr));
            }
            let (file, offset) = (FileId::LOG, addr.byte_offset());
            plan.add(whole, part, Place::At { file, offset });
        });
        let Some(writer) = writer else {
            return false;
        };
        if !plan.writers.iter().any(|known| Arc::ptr_eq(known, writer)) {
            plan.writers.push(Arc::clone(writer));
        }
        true
    }
}
