//! Periodic bookkeeping: the frame timer, the recovery point, pressure.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

use blkmq::io::SECTOR_BYTES;

use crate::engine::Engine;
use crate::lock::lock;
use crate::log::layout::BLOCK_SECTORS;
use crate::request::tail::{Status, Tail};
use crate::store::recovery_point::Change;
use crate::units::Now;

/// Interval of the bookkeeping below while something moves: short against what a client notices.
const INTERVAL_NS: u64 = 10_000_000;
/// The same while nothing does: an idle server costs next to nothing.
const IDLE_INTERVAL_NS: u64 = 200_000_000;
/// Thousandths of the log at which uploads begin without waiting for the recovery point.
const UPLOAD_AT_PERMILLE: u64 = 350;

/// When each periodic task ran last.
#[derive(Debug, Default)]
pub(crate) struct Maintenance {
    last_ns: u64,
    next_ns: u64,
    framed_ns: u64,
}

impl Maintenance {
    fn due_ns(&self, engine: &Engine) -> u64 {
        // Writes parked for space wait for the bookkeeping, also if the host was idle before.
        let parked = engine.space.has_waiters();
        if parked {
            self.next_ns.min(self.last_ns + INTERVAL_NS)
        } else {
            self.next_ns
        }
    }
}

/// When the next bookkeeping is due.
pub(crate) fn next_ns(engine: &Engine, state: &Mutex<Maintenance>) -> u64 {
    lock(state).due_ns(engine)
}

/// Says once that a volume's recovery point is missed, and by how much it was when it holds again.
fn observe_recovery_point(engine: &Engine, tail: &Tail, age_ns: u64) {
    let rpo_ns = engine.options.rpo_ns;
    let (volume, rpo_ms) = (tail.name(), rpo_ns / 1_000_000);
    match tail.upload.recovery_point.observe(age_ns, rpo_ns) {
        Change::None => {}
        Change::Missed => {
            let error = tail.upload.last_error().unwrap_or_default();
            tracing::warn!(
                volume,
                rpo_ms,
                error,
                "the recovery point is missed: the store does not keep up, or cannot be reached"
            );
        }
        Change::Holds { missed_ns } => {
            let missed_ms = missed_ns / 1_000_000;
            tracing::info!(volume, rpo_ms, missed_ms, "the recovery point holds again");
        }
    }
}

/// Does what is due at `now`.
pub(crate) fn tick(engine: &Arc<Engine>, state: &Mutex<Maintenance>, now: Now) {
    let seal = {
        let mut state = lock(state);
        if now.mono_ns < state.due_ns(engine) {
            return;
        }
        state.last_ns = now.mono_ns;
        state.next_ns = now.mono_ns + INTERVAL_NS;
        let seal = now.mono_ns >= state.framed_ns + engine.options.frame_interval_ns;
        if seal {
            state.framed_ns = now.mono_ns;
        }
        seal
    };
    let counts = engine.segments.counts();
    let pressure = counts.pressure();
    let tails = engine.tails();
    let mut extents = 0;
    let mut unframed = false;
    let mut moving = counts.ready < counts.ready_target() || counts.dying > 0;
    let mut live = 0;
    for tail in &tails {
        let (newest, oldest, dirty, status) = {
            let inner = tail.lock();
            let oldest = inner.ages.oldest_after(tail.stored(), inner.newest);
            (
                inner.newest,
                oldest,
                inner.layers.dirty_extents(),
                inner.status,
            )
        };
        extents += dirty as u64;
        unframed |= newest > tail.framed();
        moving |= newest > tail.stored();
        if status != Status::Live {
            continue;
        }
        live += 1;
        let age_ns = oldest.map_or(0, |at| now.mono_ns.saturating_sub(at));
        observe_recovery_point(engine, tail, age_ns);
        let begin_at_ns = tail
            .upload
            .recovery_point
            .begin_at_ns(engine.options.rpo_ns);
        let due = oldest.is_some() && age_ns >= begin_at_ns;
        let large = tail.dirty_sectors() * SECTOR_BYTES > 4 * engine.options.pack_bytes;
        let crowded = pressure >= UPLOAD_AT_PERMILLE || extents > engine.layout.extents_max() / 2;
        if newest > tail.stored() && (due || large || crowded) {
            tail.upload.request(newest);
        }
    }
    engine.extents.store(extents, Ordering::Relaxed);
    let share = u64::from(engine.layout.segments) * engine.layout.segment_sectors() / live.max(1);
    // Even alone on its host, a volume is slowed before the log is full.
    let share = (share / 2).max(BLOCK_SECTORS);
    engine.space.tick(now.mono_ns, pressure, share, live > 1);
    if unframed && seal {
        engine.committer().request_round(engine);
    } else if seal {
        engine.committer().prove_last_frame(engine);
    }
    if counts.ready < counts.ready_target() || counts.dying > 0 {
        engine.request_reclaim();
    }
    if !moving {
        lock(state).next_ns = now.mono_ns + IDLE_INTERVAL_NS;
    }
}
