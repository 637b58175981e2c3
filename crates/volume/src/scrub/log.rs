//! The scrub of what was packed and is still read from the log: clean extents, by the checksums of when they were packed.
//!
//! A place is pinned under the lock of the map that names it, so its segment keeps its bytes and their checksums. What is found
//! damaged is taken out of the map only where that still names this place. Dirty extents are never looked at: nothing has a
//! checksum of them, and nothing else has their bytes.

use std::sync::Arc;

use blkmq::io::{FileId, Pin, SECTOR_BYTES};

use super::doubt::{Doubt, Failure, settle};
use super::state::ScrubPart;
use super::{Progress, STEP_BYTES, is_wanted};
use crate::engine::Engine;
use crate::log::checksums::blocks_of;
use crate::log::layout::{BLOCK_BYTES, BLOCK_SECTORS};
use crate::log::ring::TailId;
use crate::map::layers::LogAddr;
use crate::request::tail::{Status, Tail};
use crate::units::Span;

/// Sectors of a volume that are looked at under one hold of its tail's lock.
const WINDOW_SECTORS: u64 = 256;
/// Parts that are pinned at once.
const PARTS_MAX: usize = 16;
/// What a look counts at least: it takes time though it may find nothing to read.
const LOOK_BYTES: u64 = 4096;
/// A place that a log always has: its superblock.
const SUPERBLOCK_OFFSET: u64 = 0;

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

/// Proves what comes next, up to a step's bytes.
pub(super) async fn step(engine: &Engine, cursor: &mut LogCursor) -> Progress {
    let mut done = Progress::default();
    let mut tails = engine.tails();
    tails.retain(|tail| Some(tail.id()) >= cursor.tail);
    for tail in &tails {
        if cursor.tail != Some(tail.id()) {
            (cursor.tail, cursor.sector) = (Some(tail.id()), 0);
        }
        while let Some(parts) = next_parts(engine, tail, cursor.sector) {
            let counted = done.bytes + LOOK_BYTES;
            // Each lets its segment go before the next one is read.
            for part in parts {
                cursor.sector = part.span.end;
                let proof = prove(engine, tail, part).await;
                done.bytes += proof.bytes;
                done.has_left |= proof.has_left;
                if done.has_left || !is_wanted(engine) {
                    return done;
                }
            }
            done.bytes = done.bytes.max(counted);
            if done.bytes >= STEP_BYTES {
                return done;
            }
            engine.port.pause().await;
        }
    }
    *cursor = LogCursor::default();
    done.is_end = true;
    done
}

/// The first clean parts at a sector or behind it, as far as one look goes. None: there are none.
fn next_parts(engine: &Engine, tail: &Tail, from: u64) -> Option<Vec<CleanPart>> {
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
            if let Some(found) = found.filter(|_| parts.len() < PARTS_MAX) {
                let _pin = engine.segments.pin(found.0);
                let addr = found.0;
                parts.push(CleanPart { span, addr, _pin });
            }
        });
        if !parts.is_empty() {
            return Some(parts);
        }
        from = clean.iter_from(window.end).next()?.0.start;
    }
}

/// Proves the blocks of a part whose checksums are known.
async fn prove(engine: &Engine, tail: &Arc<Tail>, part: CleanPart) -> Progress {
    let mut done = Progress::default();
    let Some((first, blocks)) = blocks_of(part.addr, part.span.sectors()) else {
        return done;
    };
    let checksums = engine.segments.checksums.find(first, blocks);
    if checksums.iter().all(Option::is_none) {
        return done;
    }
    done.bytes = blocks as u64 * BLOCK_BYTES;
    engine.scrub.on_read(ScrubPart::Log, done.bytes);
    let doubt = |(checksum, nth): (_, u64)| {
        let offset = first.byte_offset() + nth * BLOCK_BYTES;
        Doubt::new(offset, BLOCK_BYTES, checksum)
    };
    let mut doubts: Vec<_> = checksums.into_iter().zip(0..).map(doubt).collect();
    let offset = first.byte_offset();
    let read = engine.port.read(FileId::LOG, offset, done.bytes as usize);
    let failure = match read.await {
        Ok(content) => {
            let mut blocks = content.chunks(BLOCK_BYTES as usize);
            doubts.retain_mut(|doubt| blocks.next().is_none_or(|block| doubt.is_wrong(block)));
            Failure::Wrong
        }
        // Any block may be the one that cannot be read.
        Err(_) => Failure::Unread,
    };
    if doubts.is_empty() {
        return done;
    }
    let log = (FileId::LOG, Some(SUPERBLOCK_OFFSET));
    match settle(engine, log, doubts, failure).await {
        Ok(damaged) => give_up(engine, tail, &part, &damaged),
        Err(_) => done.has_left = true,
    }
    done
}

/// Has what these blocks of the log hold of a part read from the store.
fn give_up(engine: &Engine, tail: &Tail, part: &CleanPart, damaged: &[Doubt]) {
    let mut given_up = Vec::new();
    for doubt in damaged {
        let (span, addr) = part_in_block(part, doubt.offset() / SECTOR_BYTES);
        if canary::active!("scrub_keeps_what_it_found")
            || !tail.forget_clean(&engine.segments, span, addr)
        {
            continue;
        }
        engine.scrub.on_damaged(ScrubPart::Log);
        given_up.push((span, addr, &doubt.cause));
    }
    let Some((span, addr, damage)) = given_up.first() else {
        return;
    };
    let (volume, first_sector, blocks) = (tail.name(), span.start, given_up.len());
    let offset = addr.byte_offset();
    tracing::warn!(
        volume,
        first_sector,
        offset,
        blocks,
        damage,
        "the scrub found damage in the log, of bytes that the store has, too: they are read from there; if this comes again, \
         replace the disk of the cache directory"
    );
}

/// What of a part lies in the block that begins at a sector of the log: sectors of the volume, and where the log has them.
fn part_in_block(part: &CleanPart, block: u64) -> (Span, LogAddr) {
    // The block may begin before the part.
    let ahead = part.addr.sector().saturating_sub(block);
    let skipped = block.saturating_sub(part.addr.sector());
    let span = Span::new(part.span.start + skipped, BLOCK_SECTORS - ahead);
    (span.intersect(part.span), part.addr.skip(skipped))
}
