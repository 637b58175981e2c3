//! Keeping segments ready: freeing dying ones, dropping clean copies, and the cleaner.
//!
//! One procedure per host, woken when segments run short. It takes the cheapest step that helps:
//! prepare free segments; drop segments whose content the store has; and when the log is full of
//! half-dead segments (the store is down, or one volume lags), merge frozen layers so that hidden
//! bytes die, and copy the last live bytes of the sparsest segment elsewhere.

use std::collections::BTreeSet;
use std::sync::Arc;

use blkmq::io::{FileId, Pin, SECTOR_BYTES};
use smallvec::SmallVec;

use crate::driver::{DiskError, DiskOp};
use crate::engine::Engine;
use crate::log::layout::{BLOCK_SECTORS, SegmentHeader};
use crate::log::merge::{MergeFor, merge_layers};
use crate::log::segments::{Lot, Stream, SummaryEntry};
use crate::map::layers::LogAddr;
use crate::request::tail::{Inner, Tail};
use crate::units::{Lsn, Span};

/// A top layer with less than this part of a slice hides too little to be frozen for.
const WORTH_PER_SLICE: u64 = 8;

/// The reclaim job: runs as long as the host.
pub(crate) async fn run(engine: Arc<Engine>) {
    loop {
        // Before the look: a call that comes during it asks for another one.
        let seen = engine.reclaim_requests();
        let progress = step(&engine).await;
        if !progress {
            engine
                .reclaim
                .wait_until(|| (engine.reclaim_requests() != seen).then_some(()))
                .await;
        }
        if engine.is_stopping() {
            return;
        }
    }
}

/// One pass; true if it changed something and another look is worth it at once.
async fn step(engine: &Arc<Engine>) -> bool {
    if engine.committer().is_poisoned() {
        return false;
    }
    let buried = engine
        .segments
        .free_dying(engine.committer().durable_round());
    let counts = engine.segments.counts();
    engine.space.set_pressure(counts.pressure());
    let target = counts.ready_target();
    if counts.ready < target && counts.free > 0 {
        return prepare(engine, target - counts.ready).await;
    }
    if counts.ready + counts.free < target && counts.idle > 0 {
        drop_clean(engine, target);
        return true;
    }
    if counts.ready < target && counts.free + counts.idle == 0 && counts.suspect > 0 {
        // Nothing else is left, and the disk's failure may have been transient.
        engine.segments.retry_suspects();
        return prepare(engine, target - counts.ready).await;
    }
    if counts.dying > 0 && counts.ready < target {
        // The round after which they are free may still have to run.
        engine.committer().request_round(engine);
    }
    // Taken before the scan: a write that is parked after this sets it again.
    let starved = engine.space.take_starved();
    let short = starved || counts.is_short();
    // Where writers have segments left, small top layers stay: freezing each would take more than it frees.
    let worth = match counts.ready + counts.free {
        0 => 1,
        _ => engine.options.slice_bytes() / WORTH_PER_SLICE,
    };
    (short && clean(engine, worth).await) || buried > 0
}

/// Writes new headers, makes them durable, and hands the segments to writers. A segment whose
/// header cannot be written is marked suspect; the others are not affected.
async fn prepare(engine: &Arc<Engine>, most: usize) -> bool {
    let mut written = Vec::new();
    for (segment, generation, fresh) in engine.segments.start_preparing(most.min(4)) {
        match write_header(engine, segment, generation, fresh).await {
            Ok(()) => written.push((segment, generation, fresh)),
            Err(error) => {
                tracing::warn!(
                    segment,
                    error = error.cause,
                    "a log segment could not be prepared"
                );
                engine.segments.mark_suspect(segment, fresh);
            }
        }
    }
    let synced = !written.is_empty() && engine.committer().sync_log(engine).await.is_ok();
    for (segment, generation, fresh) in written {
        if synced {
            engine.segments.mark_ready(segment, generation);
        } else {
            engine.segments.mark_suspect(segment, fresh);
        }
    }
    if !synced {
        engine.port.sleep(engine.options.retry_ns).await;
    }
    engine.space.parked.wake_some();
    true
}

async fn write_header(
    engine: &Engine,
    segment: u32,
    generation: u32,
    fresh: bool,
) -> Result<(), DiskError> {
    let (file, offset) = (FileId::LOG, engine.layout.segment(segment));
    if fresh {
        let len = engine.layout.segment_bytes;
        engine.port.disk(DiskOp::Zero { file, offset, len }).await?;
    }
    let header = SegmentHeader {
        host: engine.host,
        segment,
        generation,
    };
    engine.port.write(file, offset, header.encode()).await
}

/// Drops the oldest segments whose content the store has, or that is superseded.
fn drop_clean(engine: &Arc<Engine>, most: usize) {
    for (segment, summaries) in engine.segments.idle_segments(most) {
        for summary in &summaries {
            if let Some(tail) = engine.tail(summary.tail) {
                tail.forget_clean(&engine.segments, summary.span, summary.addr);
            }
        }
        // Counted after the purge: whatever made it idle was committed before this.
        engine
            .segments
            .mark_dying(segment, engine.committer().next_round());
    }
    engine.committer().request_round(engine);
}

/// Is `addr` what this write put there for `part`?
fn points_into(summary: &SummaryEntry, part: Span, addr: LogAddr) -> bool {
    addr == summary.addr.skip(part.start - summary.span.start)
}

/// Makes hidden bytes die and moves the last live ones of the sparsest segment.
async fn clean(engine: &Arc<Engine>, worth: u64) -> bool {
    if merge_all(engine, worth).await {
        return true;
    }
    let Some((segment, summaries)) = find_segment_to_clean(engine) else {
        return false;
    };
    let mut moved = false;
    tracing::debug!(segment, "moving the last live bytes of a segment");
    for summary in summaries {
        if let Some(tail) = engine.tail(summary.tail) {
            match copy_live_extents(engine, &tail, &summary).await {
                Some(sectors) => moved |= sectors > 0,
                None => break,
            }
        }
    }
    // However little was moved, its old place keeps a whole segment.
    if moved {
        merge_all(engine, 1).await;
    }
    moved
}

async fn merge_all(engine: &Arc<Engine>, worth: u64) -> bool {
    let mut died = false;
    for tail in engine.tails() {
        died |= merge_loose(engine, &tail, worth).await;
    }
    died
}

/// Segments that the cleaner looks at in one pass.
const CANDIDATES: usize = 8;

/// A segment whose live data takes at most half of its blocks once it is moved: every part
/// begins on a block of its own, so few sectors may still take a whole segment, and moving them
/// would gain nothing for ever. One that a slice on its way has bytes in stays whole until the slice is stored,
/// whatever is moved out of it. Segments that cannot be moved take no other's place among the candidates.
fn find_segment_to_clean(engine: &Engine) -> Option<(u32, Vec<SummaryEntry>)> {
    let blocks_in_segment = engine.layout.segment_sectors() / BLOCK_SECTORS;
    let mut seen = BTreeSet::new();
    let mut too_full = 0;
    loop {
        let candidates = engine.segments.sparse_segments(CANDIDATES, &seen);
        if candidates.is_empty() {
            return None;
        }
        for (segment, summaries) in candidates {
            seen.insert(segment);
            match live_blocks(engine, &summaries) {
                // What keeps it is hidden, and will die once its layers are merged.
                Some(0) => {}
                Some(blocks) if blocks * 2 <= blocks_in_segment => {
                    return Some((segment, summaries));
                }
                Some(_) => too_full += 1,
                None => {}
            }
        }
        if too_full >= CANDIDATES {
            return None;
        }
    }
}

/// Blocks that what still lives would take elsewhere. None: some of it is of a tail that does not
/// serve, and only one that does can commit its bytes to another place; or a slice on its way has some.
fn live_blocks(engine: &Engine, summaries: &[SummaryEntry]) -> Option<u64> {
    let mut blocks = 0;
    for summary in summaries {
        let Some(tail) = engine.tail(summary.tail) else {
            continue;
        };
        if is_on_its_way(&tail, summary) {
            return None;
        }
        let parts = live_parts(engine, &tail, summary);
        if !parts.is_empty() && tail.lock().check_serving().is_err() {
            return None;
        }
        let of_part = |(span, ..): &(Span, LogAddr, Pin)| span.sectors().div_ceil(BLOCK_SECTORS);
        blocks += parts.iter().map(of_part).sum::<u64>();
    }
    Some(blocks)
}

/// Merges all layers of a tail that no slice has, so that bytes hidden by newer ones die; the top layer with
/// them if it has at least `worth` bytes or none was for a while. False if none died.
async fn merge_loose(engine: &Arc<Engine>, tail: &Arc<Tail>, worth: u64) -> bool {
    let Some(layers) = tail.freeze_loose(worth, engine.jobs.mono_ns()) else {
        return false;
    };
    merge_layers(engine, tail, layers, MergeFor::Space).await
}

/// Copies what still lives of one write to another segment; tells how many sectors found a new
/// place. None: that is not possible now.
async fn copy_live_extents(
    engine: &Arc<Engine>,
    tail: &Arc<Tail>,
    summary: &SummaryEntry,
) -> Option<u64> {
    let mut sectors_moved = 0;
    // Pinned until the move is done: were the segment reused meanwhile, and the same sectors
    // written to the same place, the old bytes would pass for the new ones.
    for (span, addr, _pin) in live_parts(engine, tail, summary) {
        // Reads are whole blocks; the part may begin within one.
        let lead = addr.sector() % BLOCK_SECTORS;
        let sectors = (lead + span.sectors()).next_multiple_of(BLOCK_SECTORS);
        let from = (addr.sector() - lead) * SECTOR_BYTES;
        let read = engine
            .port
            .read(FileId::LOG, from, (sectors * SECTOR_BYTES) as usize)
            .await;
        let read = match read {
            Ok(data) => data,
            Err(error) => {
                tracing::warn!(error = error.cause, "live bytes could not be moved");
                return None;
            }
        };
        let mut data = read[(lead * SECTOR_BYTES) as usize..].to_vec();
        data.resize(
            (span.sectors().next_multiple_of(BLOCK_SECTORS) * SECTOR_BYTES) as usize,
            0,
        );
        let lots = engine.segments.allocate(Stream::Cleaner, tail.id(), span)?;
        tail.add_dirty(span.sectors());
        let mut written = true;
        for lot in &lots {
            let at = ((lot.span.start - span.start) * SECTOR_BYTES) as usize;
            let len = (lot.span.sectors().next_multiple_of(BLOCK_SECTORS) * SECTOR_BYTES) as usize;
            let part = data[at..at + len].to_vec();
            let to = lot.addr.byte_offset();
            if let Err(error) = engine.port.write(FileId::LOG, to, part).await {
                tracing::warn!(error = error.cause, "live bytes could not be moved");
                written = false;
            }
        }
        for lot in &lots {
            let old = addr.skip(lot.span.start - span.start);
            let kept = if written {
                relocate(engine, tail, lot, old)
            } else {
                0
            };
            // The rest of the copy is not named by any map.
            tail.release_dirty(&engine.segments, lot.addr, lot.span.sectors() - kept);
            sectors_moved += kept;
        }
        if !written {
            return None;
        }
    }
    Some(sectors_moved)
}

/// Whether a slice on its way names some of a write: no copy of its bytes, and no write over them, makes them
/// die before it is stored.
fn is_on_its_way(tail: &Tail, summary: &SummaryEntry) -> bool {
    let inner = tail.lock();
    let cut = &inner.layers.frozen[..inner.layers.count_up_to(inner.settled())];
    let mut found = false;
    for layer in cut {
        layer.map.walk(summary.span, |part, dirty| {
            let addr = dirty.and_then(|dirty| dirty.addr);
            found |= addr.is_some_and(|addr| points_into(summary, part, addr));
        });
    }
    found && !canary::active!("cleaner_moves_slices")
}

/// The parts of a write that readers would still find and no slice on its way has, pinned.
fn live_parts(engine: &Engine, tail: &Tail, summary: &SummaryEntry) -> Vec<(Span, LogAddr, Pin)> {
    let inner = tail.lock();
    let mut live = Vec::new();
    inner.layers.lookup_after(
        movable_after_lsn(&inner),
        summary.span,
        &mut |part, addr| {
            if points_into(summary, part, addr) {
                live.push((part, addr, engine.segments.pin(addr)));
            }
        },
    );
    live
}

/// The cleaner moves what is in newer layers than this.
fn movable_after_lsn(inner: &Inner) -> Lsn {
    if canary::active!("cleaner_moves_slices") {
        return Lsn::ZERO;
    }
    inner.settled()
}

/// Commits the new place of a lot where the old one is still what readers find: a commit like
/// any other, of the same content. Tells how many sectors that were.
fn relocate(engine: &Engine, tail: &Tail, lot: &Lot, old: LogAddr) -> u64 {
    let mut inner = tail.lock();
    let mut parts: SmallVec<[Span; 4]> = SmallVec::new();
    // A slice may have been cut meanwhile.
    inner
        .layers
        .lookup_after(movable_after_lsn(&inner), lot.span, &mut |part, found| {
            if found == old.skip(part.start - lot.span.start) {
                parts.push(part);
            }
        });
    let slots = parts.len() as u64;
    if parts.is_empty() || inner.check_serving().is_err() || !tail.reserve(&mut inner, slots) {
        return 0;
    }
    let mut kept = 0;
    for part in parts {
        let addr = lot.addr.skip(part.start - lot.span.start);
        tail.commit(
            &engine.segments,
            &mut inner,
            part,
            Some(addr),
            lot.generation,
        );
        kept += part.sectors();
    }
    kept
}
