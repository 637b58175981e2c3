//! Keeping segments ready: burying the dead, dropping clean copies, and the cleaner.
//!
//! One procedure per host, woken when segments run short. It takes the cheapest step that helps:
//! prepare free segments; drop segments whose content the store has; and when the log is full of
//! half-dead segments (the store is down, or one volume lags), merge frozen layers so that hidden
//! bytes die, and copy the last live bytes of the sparsest segment elsewhere.

use std::collections::BTreeSet;
use std::sync::Arc;

use blkmq::io::{FileId, Pin};
use smallvec::SmallVec;

use crate::driver::{DiskError, DiskOp};
use crate::log::layout::{BLOCK_SECTORS, SegmentHeader};
use crate::log::segments::{Lane, Lot, Summary};
use crate::map::layers::{Found, LogAddr, merge};
use crate::request::tail::Tail;
use crate::shared::Shared;
use crate::units::Span;

/// Runs as long as the host.
pub(crate) async fn run(shared: Arc<Shared>) {
    loop {
        // Before the look: a call that comes during it asks for another one.
        let seen = shared.reclaim_calls();
        let progress = step(&shared).await;
        if !progress {
            shared
                .reclaim
                .until(|| (shared.reclaim_calls() != seen).then_some(()))
                .await;
        }
        if shared.is_stopping() {
            return;
        }
    }
}

/// One pass; true if it changed something and another look is worth it at once.
async fn step(shared: &Arc<Shared>) -> bool {
    if shared.committer().is_poisoned() {
        return false;
    }
    let buried = shared.segments.bury(shared.committer().durable_round());
    let room = shared.segments.room();
    shared.space.set_pressure(room.pressure());
    let target = room.ready_target();
    if room.ready < target && room.free > 0 {
        return prepare(shared, target - room.ready).await;
    }
    if room.ready + room.free < target && room.idle > 0 {
        drop_clean(shared, target);
        return true;
    }
    if room.ready < target && room.free + room.idle == 0 && room.aside > 0 {
        // Nothing else is left: the disk may have been bad for a while only.
        shared.segments.retry_aside();
        return prepare(shared, target - room.ready).await;
    }
    if room.dying > 0 && room.ready < target {
        // Their round may still have to run.
        shared.committer().want(shared);
    }
    let spare = room.ready + room.free + room.dying + room.idle;
    // Before the look at what can be collected: who comes later sets it anew.
    let held_back = shared.space.take_held_back();
    let short = held_back || spare < room.wanted.max(3);
    (short && clean(shared).await) || buried > 0
}

/// Writes new headers, makes them durable, and hands the segments to writers. A segment whose
/// header cannot be written is put aside; the others do not suffer from it.
async fn prepare(shared: &Arc<Shared>, most: usize) -> bool {
    let mut written = Vec::new();
    for (segment, generation, fresh) in shared.segments.start_preparing(most.min(4)) {
        match write_header(shared, segment, generation, fresh).await {
            Ok(()) => written.push((segment, generation, fresh)),
            Err(error) => {
                tracing::warn!(
                    segment,
                    error = error.0,
                    "a log segment could not be prepared"
                );
                shared.segments.not_prepared(segment, fresh);
            }
        }
    }
    let synced = !written.is_empty() && sync_headers(shared).await;
    for (segment, generation, fresh) in written {
        if synced {
            shared.segments.prepared(segment, generation);
        } else {
            shared.segments.not_prepared(segment, fresh);
        }
    }
    if !synced {
        shared.port.sleep(shared.options.retry_ns).await;
    }
    shared.space.raise();
    true
}

async fn write_header(
    shared: &Shared,
    segment: u32,
    generation: u32,
    fresh: bool,
) -> Result<(), DiskError> {
    let (file, offset) = (FileId::LOG, shared.layout.segment(segment));
    if fresh {
        let len = shared.layout.segment_bytes;
        shared.port.disk(DiskOp::Zero { file, offset, len }).await?;
    }
    let header = SegmentHeader {
        host: shared.host,
        segment,
        generation,
    };
    shared.port.write(file, offset, header.encode()).await
}

async fn sync_headers(shared: &Arc<Shared>) -> bool {
    let synced = shared.port.sync(FileId::LOG).await;
    if let Err(error) = &synced {
        // The sync covered other writers' bytes too, and what it failed for will not be tried
        // again by the kernel (R10).
        shared.committer().failed(shared, error);
    }
    synced.is_ok()
}

/// Drops the oldest segments whose content the store has, or that is superseded.
fn drop_clean(shared: &Arc<Shared>, most: usize) {
    for (segment, summaries) in shared.segments.idle(most) {
        for summary in &summaries {
            if let Some(tail) = shared.tail(summary.tail) {
                purge(shared, &tail, summary);
            }
        }
        // Counted after the purge: whatever made it idle was committed before this.
        shared
            .segments
            .dying(segment, shared.committer().next_round());
    }
    shared.committer().want(shared);
}

/// Takes the clean extents that still point into this part of a segment out of the map.
fn purge(shared: &Shared, tail: &Tail, summary: &Summary) {
    let mut inner = tail.lock();
    let mut stale: SmallVec<[(Span, LogAddr); 4]> = SmallVec::new();
    inner.layers.clean.walk(summary.span, |part, clean| {
        if let Some(clean) = clean
            && points_into(summary, part, clean.0)
        {
            stale.push((part, clean.0));
        }
    });
    for (part, addr) in stale {
        inner.layers.clean.remove(part, |_, _| {});
        shared.segments.clean_dead(addr, part.sectors());
    }
}

/// Is `addr` what this write put there for `part`?
fn points_into(summary: &Summary, part: Span, addr: LogAddr) -> bool {
    addr == summary.addr.skip(part.start - summary.span.start)
}

/// Makes hidden bytes die and moves the last live ones of the sparsest segment.
async fn clean(shared: &Arc<Shared>) -> bool {
    if merge_all(shared) {
        return true;
    }
    let Some((segment, summaries)) = worth_moving(shared) else {
        return false;
    };
    let mut moved = false;
    tracing::debug!(segment, "moving the last live bytes of a segment");
    for summary in summaries {
        if let Some(tail) = shared.tail(summary.tail) {
            match move_live(shared, &tail, &summary).await {
                Some(sectors) => moved |= sectors > 0,
                None => break,
            }
        }
    }
    merge_all(shared) || moved
}

fn merge_all(shared: &Shared) -> bool {
    let mut died = false;
    for tail in shared.tails() {
        died |= merge_frozen(shared, &tail);
    }
    died
}

/// Segments that the cleaner looks at in one pass.
const CANDIDATES: usize = 8;

/// A segment whose live data takes at most half of its blocks once it is moved: every part
/// begins on a block of its own, so few sectors may still take a whole segment, and moving them
/// would gain nothing for ever. Segments that cannot be moved take no other's place among the
/// candidates.
fn worth_moving(shared: &Shared) -> Option<(u32, Vec<Summary>)> {
    let blocks_in_segment = shared.layout.segment_sectors() / BLOCK_SECTORS;
    let mut seen = BTreeSet::new();
    let mut too_full = 0;
    loop {
        let candidates = shared.segments.sparse(CANDIDATES, &seen);
        if candidates.is_empty() {
            return None;
        }
        for (segment, summaries) in candidates {
            seen.insert(segment);
            match live_blocks(shared, &summaries) {
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
/// serve, and only one that does can commit its bytes to another place.
fn live_blocks(shared: &Shared, summaries: &[Summary]) -> Option<u64> {
    let mut blocks = 0;
    for summary in summaries {
        let Some(tail) = shared.tail(summary.tail) else {
            continue;
        };
        let parts = live_parts(shared, &tail, summary);
        if !parts.is_empty() && tail.lock().serving().is_err() {
            return None;
        }
        let of_part = |(span, ..): &(Span, LogAddr, Pin)| span.sectors().div_ceil(BLOCK_SECTORS);
        blocks += parts.iter().map(of_part).sum::<u64>();
    }
    Some(blocks)
}

/// Freezes and merges all layers of a tail, so that bytes hidden by newer ones die. False if
/// there was nothing to merge or an upload works on them.
fn merge_frozen(shared: &Shared, tail: &Tail) -> bool {
    {
        let inner = tail.lock();
        if inner.uploading || inner.layers.frozen.is_empty() {
            return false;
        }
    }
    let Some((_, frozen)) = tail.freeze() else {
        return false;
    };
    if frozen.len() < 2 {
        return false;
    }
    let mut dead = Vec::new();
    let merged = merge(frozen.iter().map(|layer| &*layer.map), |addr, sectors| {
        dead.push((addr, sectors))
    });
    tail.replace_frozen(shared, &frozen, merged, &dead);
    !dead.is_empty()
}

/// Copies what still lives of one write to another segment; tells how many sectors found a new
/// place. None: that is not possible now.
async fn move_live(shared: &Arc<Shared>, tail: &Arc<Tail>, summary: &Summary) -> Option<u64> {
    let mut sectors_moved = 0;
    // Pinned until the move is done: were the segment reused meanwhile, and the same sectors
    // written to the same place, the old bytes would pass for the new ones.
    for (span, addr, _pin) in live_parts(shared, tail, summary) {
        // Reads are whole blocks; the part may begin within one.
        let lead = addr.sector() % BLOCK_SECTORS;
        let sectors = (lead + span.sectors()).next_multiple_of(BLOCK_SECTORS);
        let from = (addr.sector() - lead) * 512;
        let read = shared
            .port
            .read(FileId::LOG, from, (sectors * 512) as usize)
            .await;
        let mut data = read.ok()?;
        data.drain(..(lead * 512) as usize);
        data.resize(
            (span.sectors().next_multiple_of(BLOCK_SECTORS) * 512) as usize,
            0,
        );
        let lots = shared.segments.allocate(Lane::Cleaner, tail.id(), span)?;
        tail.dirty_born(span.sectors());
        let mut written = true;
        for lot in &lots {
            let at = ((lot.span.start - span.start) * 512) as usize;
            let len = (lot.span.sectors().next_multiple_of(BLOCK_SECTORS) * 512) as usize;
            let part = data[at..at + len].to_vec();
            let to = lot.addr.sector() * 512;
            written &= shared.port.write(FileId::LOG, to, part).await.is_ok();
        }
        for lot in &lots {
            let old = addr.skip(lot.span.start - span.start);
            let kept = if written {
                relocate(shared, tail, lot, old)
            } else {
                0
            };
            // The rest of the copy is not named by any map.
            tail.dirty_dead(shared, lot.addr, lot.span.sectors() - kept);
            sectors_moved += kept;
        }
        if !written {
            return None;
        }
    }
    Some(sectors_moved)
}

/// The parts of a write that readers would still find, pinned.
fn live_parts(shared: &Shared, tail: &Tail, summary: &Summary) -> Vec<(Span, LogAddr, Pin)> {
    let inner = tail.lock();
    let mut live = Vec::new();
    inner.layers.lookup(summary.span, &mut |part, found| {
        if let Found::Log(addr) = found
            && points_into(summary, part, addr)
        {
            live.push((part, addr, shared.segments.pin(addr)));
        }
    });
    live
}

/// Commits the new place of a lot where the old one is still what readers find: a commit like
/// any other, of the same content. Tells how many sectors that were.
fn relocate(shared: &Shared, tail: &Tail, lot: &Lot, old: LogAddr) -> u64 {
    let mut inner = tail.lock();
    let mut parts: SmallVec<[Span; 4]> = SmallVec::new();
    inner.layers.lookup(lot.span, &mut |part, found| {
        if found == Found::Log(old.skip(part.start - lot.span.start)) {
            parts.push(part);
        }
    });
    let slots = parts.len() as u64;
    if parts.is_empty() || inner.serving().is_err() || !tail.reserve(&mut inner, slots) {
        return 0;
    }
    let mut kept = 0;
    for part in parts {
        let addr = lot.addr.skip(part.start - lot.span.start);
        tail.commit(shared, &mut inner, part, Some(addr), lot.generation);
        kept += part.sectors();
    }
    kept
}
