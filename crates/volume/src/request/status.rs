//! What a volume knows of a range without reading it: allocated or a hole, dirty or stored.
//!
//! Owns the walk over layers and index for [`blkmq::io::Op::Status`]. It must never hold the tail's
//! short lock for more than a bounded look (R1): a range of any length may be asked for, and the
//! answer covers as much of it as was looked at. It must not guess: where an index block is not in
//! memory, the answer ends before it, or the request waits until it is loaded.

use std::task::Waker;

use blkmq::error::ErrorKind;
use blkmq::io::{Extent, Extents, Park, Step, StepOf};

use super::Volume;
use crate::map::index::IndexEntry;
use crate::map::layers::Location;
use crate::request::tail::Inner;
use crate::store::fetch;
use crate::store::fetch::table::FetchTarget;
use crate::units::Span;

/// Extents that one request visits under the tail's short lock, before its last window.
const VISITS_MAX: usize = 1024;
/// Windows that one request looks at: each may be a page of its own, or one hole.
const WINDOWS_MAX: usize = 64;
/// A window is made no smaller: so many extents fit in it at most.
const WINDOW_SECTORS_MIN: u64 = 2048;

/// What was seen so far.
#[derive(Default)]
struct StatusWalk {
    extents: Extents,
    visits: usize,
    /// Index blocks that must be loaded before the walk can go on.
    unloaded: Vec<FetchTarget>,
    /// What the store has is not known.
    unknown: bool,
}

impl StatusWalk {
    /// Says what stands at the next sectors. After something that is not loaded nothing counts.
    fn see(&mut self, part: Span, allocated: bool, dirty: bool) {
        self.visits += 1;
        if self.unloaded.is_empty() && !self.unknown {
            self.extents.push(Extent {
                sectors: part.sectors(),
                allocated,
                dirty,
            });
        }
    }

    fn goes_on(&self, windows: usize) -> bool {
        self.unloaded.is_empty()
            && !self.unknown
            && self.visits < VISITS_MAX
            && windows < WINDOWS_MAX
    }
}

impl Volume {
    pub(super) fn begin_status(&self, sector: u64, sectors: u64, waker: &Waker) -> StepOf<Self> {
        let mut look = StatusWalk::default();
        {
            let inner = self.tail.lock();
            let span = match self.check(&inner, sector, sectors) {
                Ok(span) if span.is_empty() => return Step::Done(Err(ErrorKind::Invalid)),
                Ok(span) => span,
                Err(error) => return Step::Done(Err(error)),
            };
            let (mut at, mut windows) = (span.start, 0);
            while at < span.end && look.goes_on(windows) {
                let window = self.window(&inner, Span { start: at, ..span });
                self.look_at(&inner, window, &mut look);
                at = window.end;
                windows += 1;
            }
        }
        if !look.extents.is_empty() {
            return Step::Status(look.extents);
        }
        if look.unknown {
            return match self.waits_for_root(waker) {
                true => Step::Park(Park::Fetch),
                false => self.begin_status(sector, sectors, waker),
            };
        }
        match fetch::request(&self.engine, &self.tail, look.unloaded, waker) {
            Ok(()) => Step::Park(Park::Fetch),
            Err(error) => Step::Done(Err(error)),
        }
    }

    /// The beginning of `span` that can be walked with few visits, as far as can be told.
    fn window(&self, inner: &Inner, span: Span) -> Span {
        let whole_base = inner.index.base_window(span.start, &self.engine.blocks);
        let mut window = Span {
            end: span.end.min(whole_base),
            ..span
        };
        let has_many = |window: Span| {
            let dirty = inner.layers.count_up_to_in(window, VISITS_MAX);
            let left = VISITS_MAX - dirty;
            inner.index.count_deltas_up_to(window, left) == left
        };
        while window.sectors() > WINDOW_SECTORS_MIN && has_many(window) {
            let half = (window.sectors() / 2).max(WINDOW_SECTORS_MIN);
            // On a block of 4 KiB, so that no answer ends within a block of the volume.
            window.end = window.start + half.next_multiple_of(8).min(window.sectors());
        }
        window
    }

    fn look_at(&self, inner: &Inner, window: Span, look: &mut StatusWalk) {
        let blocks = &self.engine.blocks;
        inner.layers.lookup(window, &mut |part, found| match found {
            Location::Log(_) => look.see(part, true, true),
            Location::Clean(_) => look.see(part, true, false),
            Location::Zero => look.see(part, false, true),
            Location::Below => inner
                .index
                .lookup(part, blocks, &mut |part, entry| match entry {
                    // Damaged sectors had content: a client that takes them for zeroes would lose it.
                    IndexEntry::Part { .. } | IndexEntry::Damaged => look.see(part, true, false),
                    IndexEntry::Hole => look.see(part, false, false),
                    IndexEntry::Unloaded(_) if canary::active!("status_guesses_holes") => {
                        look.see(part, false, false);
                    }
                    IndexEntry::Unknown => look.unknown = true,
                    IndexEntry::Unloaded(target) => {
                        look.unloaded.push(FetchTarget::Block(target));
                    }
                }),
        });
    }
}
