//! What time brings: the seal timer, the recovery point, pressure.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::jobs::lock;
use crate::log::layout::BLOCK_SECTORS;
use crate::request::tail::Status;
use crate::shared::Shared;
use crate::units::Now;

/// Interval of the bookkeeping below while something moves: short against what a client notices.
const INTERVAL_NS: u64 = 10_000_000;
/// The same while nothing does: an idle server costs next to nothing.
const IDLE_INTERVAL_NS: u64 = 200_000_000;
/// Thousandths of the log at which uploads begin without waiting for the recovery point.
const UPLOAD_AT: u64 = 350;

/// When what was done last.
#[derive(Debug, Default)]
pub(crate) struct Maintenance {
    last_ns: u64,
    next_ns: u64,
    sealed_ns: u64,
}

impl Maintenance {
    fn due_ns(&self, shared: &Shared) -> u64 {
        // Who is parked for space waits for the bookkeeping, also if all was idle before.
        let parked = shared.space.has_waiters();
        if parked {
            self.next_ns.min(self.last_ns + INTERVAL_NS)
        } else {
            self.next_ns
        }
    }
}

/// When the next bookkeeping is due.
pub(crate) fn next_ns(shared: &Shared) -> u64 {
    lock(&shared.maintenance).due_ns(shared)
}

/// Time has come to `now`.
pub(crate) fn tick(shared: &Arc<Shared>, now: Now) {
    let seal = {
        let mut state = lock(&shared.maintenance);
        if now.mono_ns < state.due_ns(shared) {
            return;
        }
        state.last_ns = now.mono_ns;
        state.next_ns = now.mono_ns + INTERVAL_NS;
        let seal = now.mono_ns >= state.sealed_ns + shared.options.seal_ns;
        if seal {
            state.sealed_ns = now.mono_ns;
        }
        seal
    };
    let room = shared.segments.room();
    let pressure = room.pressure();
    let tails = shared.tails();
    let mut extents = 0;
    let mut unframed = false;
    let mut moving = room.ready < room.ready_target() || room.dying > 0;
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
        let due = oldest.is_some_and(|at| now.mono_ns >= at + shared.options.rpo_ns);
        let large = tail.dirty_sectors() * 512 > 4 * shared.options.pack_bytes;
        let crowded = pressure >= UPLOAD_AT || extents > shared.layout.extents_max() / 2;
        if newest > tail.stored() && (due || large || crowded) {
            tail.upload.want(newest);
        }
    }
    shared.extents.store(extents, Ordering::Relaxed);
    let share = u64::from(shared.layout.segments) * shared.layout.segment_sectors() / live.max(1);
    // Even alone on its host, a volume is slowed before the log is full.
    let share = (share / 2).max(BLOCK_SECTORS);
    shared.space.tick(now.mono_ns, pressure, share, live > 1);
    if unframed && seal {
        shared.committer().want(shared);
    }
    if room.ready < room.ready_target() || room.dying > 0 {
        shared.call_reclaim();
    }
    if !moving {
        lock(&shared.maintenance).next_ns = now.mono_ns + IDLE_INTERVAL_NS;
    }
}
