//! The segment table: which part of the log is free, being filled, full or dying.
//!
//! ```text
//! Fresh -+-> Preparing -> Ready -> Open -> Sealed -> Dying -> Free
//! Free  -+
//! ```
//!
//! A segment leaves `Sealed` only when no map names it any more (no dirty sectors, clean ones
//! purged); it leaves `Dying` only when (a) a group commit that began after that is durable, so
//! that whatever superseded its bytes, or the record of the root that names them, survives; (b)
//! no plan pins it; and it is written again only when (c) its new generation is durable in its
//! header. All three are needed: see docs/failure-model.md "Segment reuse".

pub(crate) mod invariants;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use blkmq::io::{Pin, PinCount, SECTOR_BYTES};
use smallvec::SmallVec;

use super::checksums::LogChecksums;
use super::layout::{BLOCK_BYTES, BLOCK_SECTORS, Layout};
use super::ring::TailId;
use crate::lock::lock;
use crate::map::layers::LogAddr;
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use crate::units::Span;

/// Ready and free segments that only the cleaner may use: without them a log full of half-dead
/// segments could never be compacted.
const CLEANER_RESERVE: usize = 2;

/// Which of the two write streams allocates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stream {
    Writer = 0,
    Cleaner = 1,
}

/// Where a segment is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// Never used, not even zero-filled.
    Fresh,
    /// Empty; its header still names the last generation.
    Free,
    /// Its next header is being written.
    Preparing,
    /// Its header could not be written: the disk may be bad there. Tried again when nothing else
    /// can be had.
    Suspect { fresh: bool },
    /// Its header is durable; nothing is in it.
    Ready,
    /// Being filled.
    Open,
    /// Full, or left behind by a crash.
    Sealed,
    /// No map names it; reusable once this round is durable and no plan pins it.
    Dying { round: u64 },
}

/// What was put into a segment: enough to find the extents that may still point there.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SummaryEntry {
    pub(crate) tail: TailId,
    pub(crate) span: Span,
    pub(crate) addr: LogAddr,
}

/// Log space given to a write, pinned. Sectors of `span` go to `addr` on.
#[derive(Debug)]
pub(crate) struct Lot {
    pub(crate) span: Span,
    pub(crate) addr: LogAddr,
    pub(crate) generation: u32,
    _pin: Pin,
}

/// The lots of one write: one, or two where it crosses into the next segment, rarely more.
pub(crate) type Lots = SmallVec<[Lot; 1]>;

#[derive(Debug, Default)]
struct Cell {
    /// Sectors that a dirty extent or a reservation names.
    dirty: AtomicU64,
    /// Sectors that a clean extent names.
    clean: AtomicU64,
    generation: AtomicU32,
    pins: PinCount,
}

#[derive(Debug)]
struct OpenSegment {
    segment: u32,
    /// Sectors of data used so far, whole blocks.
    used: u64,
}

#[derive(Debug)]
struct Alloc {
    states: Vec<State>,
    open: [Option<OpenSegment>; 2],
    ready: VecDeque<u32>,
    /// Oldest first.
    sealed: VecDeque<u32>,
    summaries: Vec<Vec<SummaryEntry>>,
    /// Sectors of the largest write that found no room since the last one that did.
    wanted: u64,
}

/// The table. Counters are outside the lock, so that a commit never takes it.
#[derive(Debug)]
pub(crate) struct Segments {
    layout: Layout,
    cells: Vec<Cell>,
    alloc: Mutex<Alloc>,
    pub(crate) checksums: LogChecksums,
}

impl Segments {
    /// A table in which every segment is fresh.
    pub(crate) fn new(layout: Layout) -> Segments {
        let count = layout.segments as usize;
        Segments {
            checksums: LogChecksums::new(layout),
            layout,
            cells: (0..count).map(|_| Cell::default()).collect(),
            alloc: Mutex::new(Alloc {
                states: vec![State::Fresh; count],
                open: [None, None],
                ready: VecDeque::new(),
                sealed: VecDeque::new(),
                summaries: vec![Vec::new(); count],
                wanted: 0,
            }),
        }
    }

    /// What recovery found: a header, and what still lives in the segment.
    pub(crate) fn restore(&self, segment: u32, generation: u32, live: Vec<SummaryEntry>) {
        let cell = &self.cells[segment as usize];
        cell.generation.store(generation, Ordering::Relaxed);
        let mut alloc = lock(&self.alloc);
        if live.is_empty() {
            alloc.states[segment as usize] = State::Free;
            return;
        }
        let sectors = live.iter().map(|summary| summary.span.sectors()).sum();
        cell.dirty.store(sectors, Ordering::Release);
        alloc.states[segment as usize] = State::Sealed;
        alloc.sealed.push_back(segment);
        alloc.summaries[segment as usize] = live;
    }

    /// What recovery found free may be used again only when `round` is durable: what superseded its bytes is in no
    /// frame yet.
    pub(crate) fn free_after(&self, round: u64) {
        for state in &mut lock(&self.alloc).states {
            if *state == State::Free && !canary::active!("continued_log_reuses_at_once") {
                *state = State::Dying { round };
            }
        }
    }

    fn cell(&self, addr: LogAddr) -> &Cell {
        let segment = self
            .layout
            .segment_of(addr.sector())
            .expect("addresses in maps were given out here or checked by recovery");
        &self.cells[segment as usize]
    }

    /// Gives log space for `span`, all of it or nothing. Every lot begins on a 4096-byte block
    /// and shares no block with another.
    pub(crate) fn allocate(&self, stream: Stream, tail: TailId, span: Span) -> Option<Lots> {
        let need = span.sectors().next_multiple_of(BLOCK_SECTORS);
        let per_segment = self.layout.segment_sectors();
        let mut alloc = lock(&self.alloc);
        let left = alloc.open[stream as usize]
            .as_ref()
            .map_or(0, |open| per_segment - open.used);
        // Most writes fit into the open segment: they need not know how many others there are.
        if left < need && left + alloc.usable(stream) * per_segment < need {
            if stream == Stream::Writer {
                alloc.wanted = alloc.wanted.max(need);
            }
            return None;
        }
        if stream == Stream::Writer {
            // A larger write that still waits states its need again when it is woken.
            alloc.wanted = 0;
        }
        let mut lots = Lots::new();
        let mut at = span.start;
        while at < span.end {
            if alloc.open[stream as usize]
                .as_ref()
                .is_none_or(|open| open.used == per_segment)
            {
                alloc.open_next(stream);
            }
            let open = alloc.open[stream as usize]
                .as_mut()
                .expect("counted above: one was ready");
            let sectors = (span.end - at).min(per_segment - open.used);
            let segment = open.segment;
            let first = (self.layout.segment(segment) + BLOCK_BYTES) / SECTOR_BYTES + open.used;
            open.used += sectors.next_multiple_of(BLOCK_SECTORS);
            let addr = LogAddr::new(first).expect("segments lie behind the superblock");
            let part = Span::new(at, sectors);
            let cell = &self.cells[segment as usize];
            if !canary::active!("lots_are_counted_late") {
                cell.dirty.fetch_add(sectors, Ordering::Relaxed);
            }
            alloc.summaries[segment as usize].push(SummaryEntry {
                tail,
                span: part,
                addr,
            });
            lots.push(Lot {
                span: part,
                addr,
                generation: cell.generation.load(Ordering::Relaxed),
                _pin: cell.pins.pin(),
            });
            at += sectors;
        }
        drop(alloc);
        if canary::active!("lots_are_counted_late") {
            for lot in &lots {
                let dirty = &self.cell(lot.addr).dirty;
                dirty.fetch_add(lot.span.sectors(), Ordering::Relaxed);
            }
        }
        Some(lots)
    }

    /// Pins the segment of an address that a map names; call under the lock of that map.
    pub(crate) fn pin(&self, addr: LogAddr) -> Pin {
        self.cell(addr).pins.pin()
    }

    /// Pins all segments that dirty extents name; call under the lock of the maps that are to be kept.
    pub(crate) fn pin_dirty(&self) -> BTreeMap<u32, Pin> {
        let cells = (0..).zip(&self.cells);
        let dirty = cells.filter(|(_, cell)| cell.dirty.load(Ordering::Acquire) > 0);
        dirty
            .map(|(segment, cell)| (segment, cell.pins.pin()))
            .collect()
    }

    /// The segment of an address.
    pub(crate) fn segment_of(&self, addr: LogAddr) -> Option<u32> {
        self.layout.segment_of(addr.sector())
    }

    /// Some dirty sectors at `addr` are no longer named by a dirty map or reservation.
    pub(crate) fn release_dirty(&self, addr: LogAddr, sectors: u64) {
        if canary::active!("dirty_sectors_kept") && sectors < BLOCK_SECTORS {
            return;
        }
        let before = self.cell(addr).dirty.fetch_sub(sectors, Ordering::Release);
        debug_assert!(before >= sectors, "a sector died twice");
    }

    /// Some sectors at `addr` are now named by a clean map.
    pub(crate) fn add_clean(&self, addr: LogAddr, sectors: u64) {
        self.cell(addr).clean.fetch_add(sectors, Ordering::Relaxed);
    }

    /// Some sectors at `addr` are no longer named by a clean map.
    pub(crate) fn release_clean(&self, addr: LogAddr, sectors: u64) {
        let before = self.cell(addr).clean.fetch_sub(sectors, Ordering::Release);
        debug_assert!(before >= sectors, "a clean sector died twice");
    }

    /// Bytes that clean maps name.
    pub(crate) fn clean_bytes(&self) -> u64 {
        let sectors = self
            .cells
            .iter()
            .map(|cell| cell.clean.load(Ordering::Relaxed));
        sectors.sum::<u64>() * SECTOR_BYTES
    }

    /// Whether `addr` still carries the generation under which it was recorded.
    pub(crate) fn generation_of(&self, log_sector: u64) -> Option<u32> {
        let segment = self.layout.segment_of(log_sector)?;
        Some(
            self.cells[segment as usize]
                .generation
                .load(Ordering::Relaxed),
        )
    }

    /// The largest write in sectors that can ever find room, if each lot takes a slot of a ring
    /// with this many.
    pub(crate) fn largest_write_sectors(&self, ring_entries: u32) -> u64 {
        let segments = (self.cells.len() - CLEANER_RESERVE) as u64;
        segments.min(u64::from(ring_entries) - 2) * self.layout.segment_sectors()
    }

    /// Segments that are or will soon be writable, and all segments.
    pub(crate) fn counts(&self) -> SegmentCounts {
        let alloc = lock(&self.alloc);
        let mut counts = SegmentCounts {
            total: alloc.states.len(),
            wanted: alloc.wanted.div_ceil(self.layout.segment_sectors()) as usize,
            ..SegmentCounts::default()
        };
        for (state, cell) in alloc.states.iter().zip(&self.cells) {
            match state {
                State::Ready => counts.ready += 1,
                State::Preparing => counts.preparing += 1,
                State::Fresh | State::Free => counts.free += 1,
                State::Dying { .. } if is_held(cell) => counts.held += 1,
                State::Dying { .. } => counts.dying += 1,
                State::Suspect { .. } => counts.suspect += 1,
                State::Sealed if cell.dirty.load(Ordering::Acquire) == 0 => counts.idle += 1,
                State::Open | State::Sealed => {}
            }
        }
        counts
    }

    /// Takes up to `most` free segments to be prepared: (segment, new generation, fresh).
    pub(crate) fn start_preparing(&self, most: usize) -> Vec<(u32, u32, bool)> {
        let mut alloc = lock(&self.alloc);
        let mut taken = Vec::new();
        for (segment, state) in alloc.states.iter_mut().enumerate() {
            if taken.len() == most {
                break;
            }
            if matches!(state, State::Fresh | State::Free) {
                let fresh = *state == State::Fresh;
                *state = State::Preparing;
                let generation = self.cells[segment].generation.load(Ordering::Relaxed) + 1;
                taken.push((segment as u32, generation, fresh));
            }
        }
        taken
    }

    /// The new header is durable (c).
    pub(crate) fn mark_ready(&self, segment: u32, generation: u32) {
        self.cells[segment as usize]
            .generation
            .store(generation, Ordering::Relaxed);
        let mut alloc = lock(&self.alloc);
        debug_assert_eq!(alloc.states[segment as usize], State::Preparing);
        alloc.states[segment as usize] = State::Ready;
        alloc.ready.push_back(segment);
    }

    /// The header could not be written; the segment is as empty as before, and others are taken
    /// first: one bad place must not keep the rest of the log from writers.
    pub(crate) fn mark_suspect(&self, segment: u32, fresh: bool) {
        lock(&self.alloc).states[segment as usize] = State::Suspect { fresh };
    }

    /// What was put aside may be tried again.
    pub(crate) fn retry_suspects(&self) {
        for state in &mut lock(&self.alloc).states {
            match *state {
                State::Suspect { fresh: true } => *state = State::Fresh,
                State::Suspect { fresh: false } => *state = State::Free,
                _ => {}
            }
        }
    }

    /// The oldest sealed segments without dirty sectors, with what was put into them, at most
    /// `most`. Their clean extents are to be purged before [`Segments::mark_dying`].
    pub(crate) fn idle_segments(&self, most: usize) -> Vec<(u32, Vec<SummaryEntry>)> {
        let alloc = lock(&self.alloc);
        let idle = alloc
            .sealed
            .iter()
            .filter(|segment| self.cells[**segment as usize].dirty.load(Ordering::Acquire) == 0);
        idle.take(most)
            .map(|segment| (*segment, alloc.summaries[*segment as usize].clone()))
            .collect()
    }

    /// No map names the segment any more; it may be reused after `round`.
    pub(crate) fn mark_dying(&self, segment: u32, round: u64) {
        let cell = &self.cells[segment as usize];
        let live = cell.dirty.load(Ordering::Acquire) + cell.clean.load(Ordering::Acquire);
        assert_eq!(live, 0, "a segment that a map names must not die");
        self.checksums.forget(segment);
        let mut alloc = lock(&self.alloc);
        alloc.sealed.retain(|other| *other != segment);
        alloc.summaries[segment as usize] = Vec::new();
        alloc.states[segment as usize] = State::Dying { round };
    }

    /// Frees what has died and may be reused now. `durable` is the newest durable round.
    pub(crate) fn free_dying(&self, durable: u64) -> usize {
        let mut alloc = lock(&self.alloc);
        let mut freed = 0;
        for (state, cell) in alloc.states.iter_mut().zip(&self.cells) {
            let State::Dying { round } = *state else {
                continue;
            };
            let framed = durable >= round || canary::active!("reuse_before_frame");
            let free_of_pins = cell.pins.count() == 0 || canary::active!("reuse_pinned");
            if framed && free_of_pins {
                *state = State::Free;
                freed += 1;
            }
        }
        freed
    }

    /// Up to `most` sealed segments with the least dirty data, if that is at most half of them,
    /// with what was put into each: what a cleaner may move. Leaves out those in `seen`.
    pub(crate) fn sparse_segments(
        &self,
        most: usize,
        seen: &BTreeSet<u32>,
    ) -> Vec<(u32, Vec<SummaryEntry>)> {
        let alloc = lock(&self.alloc);
        let mut sparse: Vec<(u64, u32)> = alloc
            .sealed
            .iter()
            .filter(|segment| !seen.contains(segment))
            .map(|segment| {
                (
                    self.cells[*segment as usize].dirty.load(Ordering::Acquire),
                    *segment,
                )
            })
            .filter(|(dirty, _)| dirty * 2 <= self.layout.segment_sectors())
            .collect();
        sparse.sort_unstable();
        sparse
            .into_iter()
            .take(most)
            .map(|(_, segment)| (segment, alloc.summaries[segment as usize].clone()))
            .collect()
    }
}

impl Alloc {
    /// Ready segments that this stream may open.
    fn usable(&self, stream: Stream) -> u64 {
        let reserve = match stream {
            Stream::Writer => self.reserve_left(),
            Stream::Cleaner => 0,
        };
        self.ready.len().saturating_sub(reserve) as u64
    }

    /// How many of the reserved segments are not covered by segments about to become ready.
    fn reserve_left(&self) -> usize {
        let coming = self
            .states
            .iter()
            .filter(|s| matches!(s, State::Fresh | State::Free | State::Preparing))
            .take(CLEANER_RESERVE)
            .count();
        CLEANER_RESERVE - coming
    }

    fn open_next(&mut self, stream: Stream) {
        if let Some(full) = self.open[stream as usize].take() {
            self.states[full.segment as usize] = State::Sealed;
            self.sealed.push_back(full.segment);
        }
        if let Some(segment) = self.ready.pop_front() {
            self.states[segment as usize] = State::Open;
            self.open[stream as usize] = Some(OpenSegment { segment, used: 0 });
        }
    }
}

/// How full the log is, in segments.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct SegmentCounts {
    pub(crate) total: usize,
    pub(crate) ready: usize,
    pub(crate) preparing: usize,
    pub(crate) free: usize,
    pub(crate) dying: usize,
    /// The same, and pinned: by reads for a moment, or by what a fork without a root reads of its parent for long. No round
    /// frees them.
    pub(crate) held: usize,
    /// Empty, and their headers could not be written.
    pub(crate) suspect: usize,
    /// Sealed, and everything in it is in the store or superseded.
    pub(crate) idle: usize,
    /// Ready segments that the largest waiting write needs, none if none waits.
    pub(crate) wanted: usize,
}

/// Whether a plan or a fork's base pins it.
fn is_held(cell: &Cell) -> bool {
    cell.pins.count() > 0 && !canary::active!("held_segments_count_as_spare")
}

impl SegmentCounts {
    /// How many segments should be ready: enough that a burst does not wait for a header sync,
    /// and that the largest write that waits finds what it needs beside the cleaner's reserve.
    pub(crate) fn ready_target(&self) -> usize {
        let burst = (self.total / 16).clamp(4, 16).min(self.total / 2);
        burst.max(self.wanted_beside_reserve()).min(self.total)
    }

    /// Segments that hold nothing the log needs, now or soon.
    pub(crate) fn spare(&self) -> usize {
        self.ready + self.free + self.dying + self.idle
    }

    /// Dead bytes are worth collecting: the largest write that waits would not find what it needs.
    pub(crate) fn is_short(&self) -> bool {
        let needed = match canary::active!("cleaner_counts_its_reserve") {
            true => self.wanted,
            false => self.wanted_beside_reserve(),
        };
        self.spare() < needed.max(3)
    }

    fn wanted_beside_reserve(&self) -> usize {
        match self.wanted {
            0 => 0,
            wanted => wanted + CLEANER_RESERVE,
        }
    }

    /// Thousandths of the log that hold what the store does not have yet.
    pub(crate) fn pressure(&self) -> u64 {
        let spare = self.ready + self.preparing + self.free + self.dying + self.idle;
        ((self.total - spare) * 1000 / self.total) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::units::{Epoch, VolumeId};

    const TAIL: TailId = TailId {
        volume: VolumeId([1; 16]),
        since: Epoch(1),
    };

    fn table() -> Segments {
        let layout = Layout::new(2 << 20, 16 << 10).expect("valid");
        let segments = Segments::new(layout);
        for (segment, generation, fresh) in segments.start_preparing(4) {
            assert!(fresh);
            segments.mark_ready(segment, generation);
        }
        segments
    }

    #[test]
    fn a_write_takes_whole_blocks_and_may_cross_into_the_next_segment() {
        let segments = table();
        let one = segments
            .allocate(Stream::Writer, TAIL, Span::new(0, 1))
            .expect("room");
        let two = segments
            .allocate(Stream::Writer, TAIL, Span::new(1, 30))
            .expect("room");
        assert_eq!(one.len(), 1);
        assert_eq!(
            two.iter().map(|lot| lot.span.sectors()).collect::<Vec<_>>(),
            [16, 14]
        );
        assert!(
            two.iter()
                .all(|lot| lot.addr.sector().is_multiple_of(BLOCK_SECTORS))
        );
        assert_eq!(two[0].addr.sector(), one[0].addr.sector() + 8);
    }

    #[test]
    fn space_is_given_all_or_nothing() {
        let segments = table();
        let per_segment = segments.layout.segment_sectors();
        let all = Span::new(0, per_segment * 5);
        assert!(segments.allocate(Stream::Writer, TAIL, all).is_none());
        let most = Span::new(0, per_segment * 4);
        assert!(segments.allocate(Stream::Writer, TAIL, most).is_some());
    }

    #[test]
    fn a_segment_is_reused_only_after_its_round_and_without_pins() {
        let segments = table();
        let per_segment = segments.layout.segment_sectors();
        let lots = segments
            .allocate(Stream::Writer, TAIL, Span::new(0, per_segment))
            .expect("room");
        let addr = lots[0].addr;
        let next = segments
            .allocate(Stream::Writer, TAIL, Span::new(0, 1))
            .expect("room");
        assert!(
            segments.idle_segments(9).is_empty(),
            "reserved sectors keep it alive"
        );
        segments.release_dirty(addr, per_segment);
        let idle = segments.idle_segments(9);
        assert_eq!(idle.len(), 1);
        segments.mark_dying(idle[0].0, 5);
        assert_eq!(segments.free_dying(4), 0, "the round is not durable");
        assert_eq!(segments.free_dying(5), 0, "a plan pins it");
        drop(lots);
        assert_eq!(segments.free_dying(5), 1);
        drop(next);
    }
}
