//! The scrub of what was packed and is still read from the log: clean extents, by the checksums of when they were packed.
//!
//! A place is pinned under the lock of the map that names it, so its segment keeps its bytes and their checksums. What is found
//! damaged is taken out of the map only where that still names this place. Dirty extents are never looked at: nothing has a
//! checksum of them, and nothing else has their bytes.

use std::sync::Arc;

use blkmq::io::{FileId, Pin, SECTOR_BYTES};

use super::state::ScrubPart;
use super::{STEP_BYTES, read_twice};
use crate::codec::Checksum;
use crate::engine::Engine;
use crate::log::checksums::blocks_of;
use crate::log::layout::{BLOCK_BYTES, BLOCK_SECTORS};
use crate::log::ring::TailId;
use crate::map::layers::LogAddr;
use crate::request::tail::{Status, Tail};
use crate::units::Span;

/// Sectors of a volume that are looked at under one hold of its tail's lock.
const WINDOW_SECTORS: u64 = 256;

/// Up to where the clean extents of all tails were looked at.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct LogCursor {
    /// The next tail is this one, or the first behind it; none: the first.
    tail: Option<TailId>,
    sector: u64,
}

/// A clean extent, or a part of one, pinned.
#[derive(Debug)]
struct CleanPart {
    span: Span,
    addr: LogAddr,
    _pin: Pin,
}

/// Proves what comes next, up to a step's bytes. Returns how many were read, and whether that was the end.
pub(super) async fn step(engine: &Engine, cursor: &mut LogCursor) -> (u64, bool) {
    let mut read = 0;
    let mut tails = engine.tails();
    tails.retain(|tail| Some(tail.id()) >= cursor.tail);
    for tail in &tails {
        if cursor.tail != Some(tail.id()) {
            (cursor.tail, cursor.sector) = (Some(tail.id()), 0);
        }
        while let Some((parts, next)) = next_parts(engine, tail, cursor.sector) {
            cursor.sector = next;
            for part in &parts {
                read += prove(engine, tail, part).await;
            }
            drop(parts);
            if read >= STEP_BYTES {
                return (read, false);
            }
            engine.port.pause().await;
        }
    }
    *cursor = LogCursor::default();
    (read, true)
}

/// The clean parts at a sector or behind it, as far as one look goes, and where the next one begins. None: there are none.
fn next_parts(engine: &Engine, tail: &Tail, from: u64) -> Option<(Vec<CleanPart>, u64)> {
    let inner = tail.lock();
    if inner.status != Status::Live {
        return None;
    }
    let clean = &inner.layers.clean;
    let mut parts = Vec::new();
    let mut from = from;
    loop {
        let window = Span::new(from, WINDOW_SECTORS);
        clean.walk(window, |span, found| {
            if let Some(found) = found {
                let _pin = engine.segments.pin(found.0);
                let addr = found.0;
                parts.push(CleanPart { span, addr, _pin });
            }
        });
        if !parts.is_empty() {
            return Some((parts, window.end));
        }
        from = clean.iter_from(window.end).next()?.0.start;
    }
}

/// Proves the blocks of a part whose checksums are known; returns how many bytes were read.
async fn prove(engine: &Engine, tail: &Arc<Tail>, part: &CleanPart) -> u64 {
    let Some((first, blocks)) = blocks_of(part.addr, part.span.sectors()) else {
        return 0;
    };
    let checksums = engine.segments.checksums.find(first, blocks);
    if checksums.iter().all(Option::is_none) {
        return 0;
    }
    let bytes = blocks as u64 * BLOCK_BYTES;
    engine.scrub.on_read(ScrubPart::Log, bytes);
    let is_wrong = |block: &[u8], checksum: &Option<Checksum>| {
        checksum.is_some_and(|checksum| Checksum::of(block) != checksum)
    };
    let mut wrong = Vec::new();
    let damage = read_twice(
        engine,
        FileId::LOG,
        (first.byte_offset(), bytes),
        |content| {
            let found = content.chunks(BLOCK_BYTES as usize).zip(&checksums);
            wrong = found
                .map(|(block, checksum)| is_wrong(block, checksum))
                .collect();
            !wrong.contains(&true)
        },
    );
    if let Some(damage) = damage.await {
        if wrong.is_empty() {
            // It could not be read at all.
            wrong = vec![true; blocks];
        }
        let wrong = wrong.iter().zip(0..).filter(|(is_wrong, _)| **is_wrong);
        for (_, block) in wrong {
            give_up(
                engine,
                tail,
                part,
                first.skip(block * BLOCK_SECTORS),
                &damage,
            );
        }
    }
    bytes
}

/// Has what a block of the log holds of this part read from the store.
fn give_up(engine: &Engine, tail: &Tail, part: &CleanPart, block: LogAddr, damage: &str) {
    // Where the block's first sector would be in the volume; it may lie before the part.
    let ahead = part.addr.sector() - block.sector().min(part.addr.sector());
    let skipped = block.sector().saturating_sub(part.addr.sector());
    let begins = part.span.start + skipped;
    let span = Span::new(begins, BLOCK_SECTORS - ahead).intersect(part.span);
    let addr = part.addr.skip(skipped);
    if canary::active!("scrub_keeps_what_it_found") || !forget(engine, tail, span, addr) {
        return;
    }
    engine.scrub.on_damaged(ScrubPart::Log);
    let (volume, first_sector, sectors) = (tail.name(), span.start, span.sectors());
    let offset = addr.sector() * SECTOR_BYTES;
    tracing::warn!(
        volume,
        first_sector,
        sectors,
        offset,
        damage,
        "the scrub found damage in the log, of bytes that the store has, too: they are read from there; if this comes again, \
         replace the disk of the cache directory"
    );
}

/// Takes these sectors out of the clean ones where they still stand at this place; whether any did.
fn forget(engine: &Engine, tail: &Tail, span: Span, addr: LogAddr) -> bool {
    let mut inner = tail.lock();
    let mut stale = Vec::new();
    inner.layers.clean.walk(span, |part, clean| {
        let here = addr.skip(part.start - span.start);
        if clean.is_some_and(|clean| clean.0 == here) {
            stale.push((part, here));
        }
    });
    for (part, here) in &stale {
        inner.layers.clean.remove(*part, |_, _| {});
        engine.segments.release_clean(*here, part.sectors());
    }
    !stale.is_empty()
}
