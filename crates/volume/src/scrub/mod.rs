//! The scrub: what lies on the local disk and in the store, too, is read in the background and proven by the checksum of when it was
//! written ([ADR 0061](../../../../docs/adr/0061-scrub.md)).
//!
//! ```text
//! next place, pinned -> read -> its checksum? -- yes --> on
//!                                    | no
//!                                    v
//!                        read again, and then given up: the store has it ([`doubt`])
//! ```
//!
//! One job of the host goes round, at a pace that brings it to the end in the time that was asked for. It asks the store for
//! nothing: what it gives up is fetched by whoever needs it. It must never give up what is right, nor what nothing else has.

mod doubt;
mod log;
pub(crate) mod state;

use std::sync::Arc;

use blkmq::io::FileId;

use crate::cache::scrub::{CacheCursor, NextProvable, ProvableChunk};
use crate::engine::Engine;
use crate::units::SECOND_NS;
use doubt::{Doubt, settle};
use log::LogCursor;
use state::ScrubPart;

/// Bytes that are read between two pauses.
const STEP_BYTES: u64 = 256 << 10;
/// The longest pause: what is new meanwhile is not to wait for the whole of the time that was asked for.
const PAUSE_NS_MAX: u64 = 60 * SECOND_NS;

/// How far a pass has come.
#[derive(Debug)]
struct Pass {
    place: Place,
    /// It began with the first place.
    is_whole: bool,
    /// It left something out, because a file could not be read just then.
    has_left: bool,
    /// Where the cache file could be read last.
    readable: Option<u64>,
}

/// What a step, or a part of one, did.
#[derive(Clone, Copy, Debug, Default)]
struct Progress {
    /// That were read, or as many as its looks count for.
    bytes: u64,
    /// There is nothing behind it.
    is_end: bool,
    /// Something could not be read, nor what lies elsewhere in its file: nothing is known of it.
    has_left: bool,
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
    let cursor = engine.cache.cursor_at(engine.next_nonce());
    let mut pass = Pass {
        place: Place::Cache(cursor),
        is_whole: cursor == CacheCursor::START,
        has_left: false,
        readable: None,
    };
    while !engine.is_stopping() {
        let read = step(&engine, &mut pass).await;
        let all = engine.cache.usage().disk_bytes + engine.segments.clean_bytes();
        let pause = |ns| pause_ns(read, all, ns, rate);
        interval.wait(&engine.port, pause).await;
        while engine.space.is_pressed() && !engine.is_stopping() {
            let retry_ns = engine.options.retry_ns;
            interval.wait(&engine.port, |_| retry_ns).await;
        }
    }
}

/// Whether it may go on just now: a step ends where it may not.
fn is_wanted(engine: &Engine) -> bool {
    !engine.is_stopping() && engine.scrub_interval.ns() > 0 && !engine.space.is_pressed()
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

/// Proves what comes next, and says for how many bytes to pause.
async fn step(engine: &Engine, pass: &mut Pass) -> u64 {
    let done = match &mut pass.place {
        Place::Cache(cursor) => step_in_cache(engine, cursor, &mut pass.readable).await,
        Place::Log(cursor) => log::step(engine, cursor).await,
    };
    if done.has_left && !std::mem::replace(&mut pass.has_left, true) {
        tracing::warn!(
            "the scrub cannot read the local disk just now; what it leaves out it reads the next time round; look whether the disk \
             of the cache directory is in order"
        );
    }
    if !done.is_end {
        return done.bytes;
    }
    match pass.place {
        Place::Cache(_) => {
            pass.place = Place::Log(LogCursor::default());
            // Only a whole pass that finds nothing to read is followed by a long pause.
            done.bytes.max(1)
        }
        Place::Log(_) => {
            if pass.is_whole && !pass.has_left {
                engine.scrub.on_pass(engine.jobs.now().unix_ms);
            }
            *pass = Pass {
                place: Place::Cache(CacheCursor::START),
                is_whole: true,
                has_left: false,
                ..*pass
            };
            done.bytes
        }
    }
}

/// Proves chunks and index blocks up to a step's bytes.
async fn step_in_cache(
    engine: &Engine,
    cursor: &mut CacheCursor,
    readable: &mut Option<u64>,
) -> Progress {
    let mut done = Progress::default();
    while done.bytes < STEP_BYTES && !done.has_left {
        match engine.cache.next_provable(cursor) {
            NextProvable::Chunk(chunk) => {
                done.bytes += chunk.bytes;
                done.has_left = !prove_chunk(engine, chunk, readable).await;
            }
            NextProvable::Continue => engine.port.pause().await,
            NextProvable::End => {
                done.is_end = true;
                break;
            }
        }
        if !is_wanted(engine) {
            break;
        }
    }
    done
}

/// Proves a chunk, or gives it up. False if that could not be told.
async fn prove_chunk(engine: &Engine, chunk: ProvableChunk, readable: &mut Option<u64>) -> bool {
    let part = match chunk.is_index() {
        true => ScrubPart::Index,
        false => ScrubPart::Chunks,
    };
    engine.scrub.on_read(part, chunk.bytes);
    let mut doubt = Doubt::new(chunk.offset, chunk.bytes, Some(chunk.checksum));
    let Some(failure) = doubt.read(engine, FileId::CACHE).await else {
        *readable = Some(chunk.offset);
        return true;
    };
    let cache = (FileId::CACHE, *readable);
    let Ok(mut damaged) = settle(engine, cache, vec![doubt], failure).await else {
        return false;
    };
    if let Some(doubt) = damaged.pop() {
        give_up(engine, part, chunk, &doubt.cause);
    }
    true
}

fn give_up(engine: &Engine, part: ScrubPart, chunk: ProvableChunk, damage: &str) {
    let (key, offset, bytes) = (chunk.key, chunk.offset, chunk.bytes);
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
