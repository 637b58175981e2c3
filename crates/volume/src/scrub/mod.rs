//! The scrub: what lies on the local disk and in the store, too, is read in the background and proven by the checksum of when it was
//! written ([ADR 0061](../../../../docs/adr/0061-scrub.md)).
//!
//! ```text
//! next place, pinned -> read -> its checksum? -- yes --> on
//!                                    | no
//!                                    v
//!                        read again, and then given up: the store has it
//! ```
//!
//! One job of the host goes round, at a pace that brings it to the end in the time that was asked for. It asks the store for
//! nothing: what it gives up is fetched by whoever needs it. It must never give up what is right, nor what nothing else has.

mod log;
pub(crate) mod state;

use std::sync::Arc;

use blkmq::io::FileId;

use crate::cache::scrub::{CacheCursor, NextProvable, ProvableChunk};
use crate::codec::Checksum;
use crate::engine::Engine;
use crate::units::SECOND_NS;
use log::LogCursor;
use state::ScrubPart;

/// Bytes that are read between two pauses.
const STEP_BYTES: u64 = 256 << 10;
/// The longest pause: what is new meanwhile is not to wait for the whole of the time that was asked for.
const PAUSE_NS_MAX: u64 = 60 * SECOND_NS;
/// Reads of what fails: it may have been damaged on its way into memory.
const READS_OF_DAMAGED: u32 = 2;

/// How far a pass has come.
#[derive(Debug)]
struct Pass {
    place: Place,
    /// It began with the first place.
    is_whole: bool,
}

/// The cache is read first, and then the log.
#[derive(Clone, Copy, Debug)]
enum Place {
    Cache(CacheCursor),
    Log(LogCursor),
}

/// Goes round as long as the host runs.
pub(crate) async fn run(engine: Arc<Engine>) {
    let interval = &engine.scrub_interval;
    let rate = engine.options.scrub.bytes_per_s;
    interval
        .wait(&engine.port, |ns| pause_ns(0, 0, ns, rate))
        .await;
    // Not from the start: a server that is often restarted would never come to the end.
    let mut pass = Pass {
        place: Place::Cache(engine.cache.cursor_at(engine.next_nonce())),
        is_whole: false,
    };
    while !engine.is_stopping() {
        let read = step(&engine, &mut pass).await;
        let all = engine.cache.usage().disk_bytes + engine.segments.clean_bytes();
        let pause = |ns| pause_ns(read, all, ns, rate);
        interval.wait(&engine.port, pause).await;
        while engine.space.is_pressed() {
            engine.port.sleep(engine.options.retry_ns).await;
        }
    }
}

/// How long to pause after so many bytes, to have read all there are once in `interval_ns`, and never to read faster than
/// `bytes_per_s`.
fn pause_ns(read: u64, all: u64, interval_ns: u64, bytes_per_s: u64) -> u64 {
    let scaled = |by: u64, of: u64| {
        let ns = u128::from(read) * u128::from(by) / u128::from(of.max(1));
        u64::try_from(ns).unwrap_or(u64::MAX)
    };
    let even = match read {
        0 => interval_ns,
        _ => scaled(interval_ns, all.max(read)),
    };
    even.min(PAUSE_NS_MAX).max(scaled(SECOND_NS, bytes_per_s))
}

/// Proves what comes next, and says how many bytes were read for it.
async fn step(engine: &Engine, pass: &mut Pass) -> u64 {
    match &mut pass.place {
        Place::Cache(cursor) => {
            let (read, is_end) = step_in_cache(engine, cursor).await;
            if is_end {
                pass.place = Place::Log(LogCursor::default());
            }
            // Only a whole pass that finds nothing to read is followed by a long pause.
            read.max(u64::from(is_end))
        }
        Place::Log(cursor) => {
            let (read, is_end) = log::step(engine, cursor).await;
            if is_end {
                pass.place = Place::Cache(CacheCursor::START);
                if std::mem::replace(&mut pass.is_whole, true) {
                    engine.scrub.on_pass(engine.jobs.now().unix_ms);
                }
            }
            read
        }
    }
}

/// Proves chunks and index blocks up to a step's bytes. Returns how many were read, and whether that was the end.
async fn step_in_cache(engine: &Engine, cursor: &mut CacheCursor) -> (u64, bool) {
    let mut read = 0;
    while read < STEP_BYTES {
        match engine.cache.next_provable(cursor) {
            NextProvable::Chunk(chunk) => {
                read += chunk.bytes;
                prove_chunk(engine, chunk).await;
            }
            NextProvable::Continue => engine.port.pause().await,
            NextProvable::End => return (read, true),
        }
    }
    (read, false)
}

/// Reads bytes of a file and once more if they are not right. Says why they are not what was written there; none: they are.
async fn read_twice(
    engine: &Engine,
    file: FileId,
    (offset, bytes): (u64, u64),
    mut is_right: impl FnMut(&[u8]) -> bool,
) -> Option<String> {
    let mut damage = None;
    for _ in 0..READS_OF_DAMAGED {
        match engine.port.read(file, offset, bytes as usize).await {
            Ok(content) if is_right(&content) => return None,
            Ok(_) => damage = Some("its bytes fail their checksum".to_owned()),
            Err(error) => damage = Some(error.cause),
        }
    }
    damage
}

async fn prove_chunk(engine: &Engine, chunk: ProvableChunk) {
    let (offset, bytes, checksum) = (chunk.offset, chunk.bytes, chunk.checksum);
    let part = match chunk.is_index() {
        true => ScrubPart::Index,
        false => ScrubPart::Chunks,
    };
    engine.scrub.on_read(part, bytes);
    let is_right = |content: &[u8]| Checksum::of(content) == checksum;
    let damage = read_twice(engine, FileId::CACHE, (offset, bytes), is_right).await;
    let Some(damage) = damage else {
        return;
    };
    let key = chunk.key;
    let object = match part {
        ScrubPart::Index => engine.names.index_key(key.pack),
        _ => engine.names.pack_key(key.pack),
    };
    if !engine.cache.give_up_chunk(chunk) {
        // A read, or another size of the file, came first.
        return;
    }
    engine.scrub.on_damaged(part);
    let object = object.unwrap_or_else(|_| key.pack.to_string());
    tracing::warn!(
        object,
        at = key.offset,
        offset,
        bytes,
        damage,
        "the scrub found damage in the read cache: it is given up, and read from the store when it is needed; \
         if this comes again, replace the disk of the cache directory"
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY_NS: u64 = 86_400 * SECOND_NS;

    #[test]
    fn all_is_read_once_in_the_time_that_was_asked_for_and_never_faster_than_the_limit() {
        let pass_ns = |all: u64, interval_ns| {
            let steps = all / STEP_BYTES;
            steps * pause_ns(STEP_BYTES, all, interval_ns, 8 << 20)
        };
        let week = 7 * DAY_NS;
        let taken = pass_ns(64 << 30, week);
        assert!(taken > week - DAY_NS && taken <= week, "{taken}");
        // Ten times as much as the limit lets through.
        assert_eq!(pass_ns(10 << 30, SECOND_NS), 1280 * SECOND_NS);
        // What comes in meanwhile is not to wait for a week.
        assert_eq!(pause_ns(4096, 4096, week, 8 << 20), PAUSE_NS_MAX);
        assert_eq!(pause_ns(0, 0, week, 8 << 20), PAUSE_NS_MAX);
        assert_eq!(pause_ns(0, 0, SECOND_NS, 8 << 20), SECOND_NS);
        assert_eq!(pause_ns(u64::MAX, u64::MAX, u64::MAX, 1), u64::MAX);
    }
}
