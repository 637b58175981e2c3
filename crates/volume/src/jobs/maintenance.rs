//! Periodic bookkeeping: the frame timer, the recovery point, pressure.

use std::sync::Arc;

use crate::engine::Engine;
use crate::lock::lock;
use crate::log::layout::BLOCK_SECTORS;
use crate::request::space::TickInput;
use crate::request::tail::{Status, Tail};
use crate::store::flow::recovery_point::Change;
use crate::store::roots::watch as root_watch;
use crate::sync::Mutex;
use crate::sync::atomic::Ordering;
use crate::units::{Lsn, Now};

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
        let parked = !engine.space.parked.is_empty();
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
    let rpo_ns = engine.rpo_ns();
    let (volume, rpo_ms) = (tail.name(), rpo_ns / 1_000_000);
    match tail.upload.recovery_point.observe(age_ns, rpo_ns) {
        Change::None => {}
        Change::Missed => {
            let error = tail.upload.last_error();
            tracing::warn!(
                volume,
                rpo_ms,
                error = error.as_deref(),
                "the recovery point is missed: the store does not keep up, or cannot be reached"
            );
        }
        Change::Holds { missed_ns } => {
            let missed_ms = missed_ns / 1_000_000;
            tracing::info!(volume, rpo_ms, missed_ms, "the recovery point holds again");
        }
    }
}

/// What the bookkeeping sees of a tail, at one moment.
struct TailView {
    status: Status,
    newest: Lsn,
    oldest_unstored: Option<u64>,
    oldest_uncut: Option<u64>,
    /// The newest layer that waits to become a slice.
    loose: Option<Lsn>,
    cut: Lsn,
    extents: usize,
}

impl TailView {
    fn at(tail: &Tail) -> TailView {
        let inner = tail.lock();
        TailView {
            status: inner.status,
            newest: inner.newest,
            oldest_unstored: inner.ages.oldest_after(tail.stored_lsn(), inner.newest),
            oldest_uncut: inner.ages.oldest_after(inner.cut, inner.newest),
            loose: inner.loose_layers().last().map(|layer| layer.last),
            cut: inner.cut,
            extents: inner.layers.dirty_extents(),
        }
    }

    /// What is brought to the store only to make room: whole slices. Less than one only if nothing
    /// else of the volume is left to bring there, for what is written over meanwhile need not go.
    fn upload_target_for_space(&self, stored: Lsn) -> Lsn {
        let rest = (self.cut <= stored).then_some(self.newest);
        self.loose.or(rest).unwrap_or_default()
    }
}

/// Asks for slices that are due: before the recovery point is, and where space runs short. Whether a record is
/// due: what the recovery point asks for can be cut.
fn request_slices(engine: &Engine, tail: &Tail, look: &TailView, now: Now, crowded: bool) -> bool {
    let age_ns = |at: Option<u64>| at.map_or(0, |at| now.mono_ns.saturating_sub(at));
    observe_recovery_point(engine, tail, age_ns(look.oldest_unstored));
    let begin_at_ns = tail.upload.recovery_point.begin_at_ns(engine.rpo_ns());
    let is_due = look.oldest_uncut.is_some() && age_ns(look.oldest_uncut) >= begin_at_ns;
    if is_due {
        tail.upload.request(look.newest);
    }
    // Writers wait: no record waits for others.
    if crowded && look.newest > tail.stored_lsn() {
        let wanted = look.upload_target_for_space(tail.stored_lsn());
        if tail.upload.request_now(wanted) {
            engine.host_log.wake();
        }
    }
    // A volume whose slices are stuck is due at every tick, and is no reason for others to be cut as often.
    let can_cut = tail.upload.has_room(engine.options.cut_bytes())
        || canary::active!("stuck_volumes_make_others_due");
    is_due && can_cut
}

/// One volume's recovery point is due: whatever others have goes with it, for one record is for all of them.
fn request_with_due(others: &[(&Arc<Tail>, Lsn)]) {
    if !canary::active!("volumes_are_due_one_by_one") {
        let request = |(tail, newest): &(&Arc<Tail>, Lsn)| tail.upload.request(*newest);
        others.iter().for_each(request);
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
    let mut moving = counts.ready < counts.ready_target() || counts.dying + counts.held > 0;
    let (mut live, mut is_due, mut uncut) = (0, false, Vec::new());
    for tail in &tails {
        let look = TailView::at(tail);
        let newest = look.newest;
        extents += look.extents as u64;
        unframed |= newest > tail.framed_lsn();
        moving |= newest > tail.stored_lsn();
        if look.status != Status::Live {
            continue;
        }
        // Writers do not share the log with one that nobody writes to.
        live += u64::from(!tail.is_for_maintenance());
        let crowded = pressure >= UPLOAD_AT_PERMILLE || extents > engine.layout.extents_max() / 2;
        is_due |= request_slices(engine, tail, &look, now, crowded);
        if look.oldest_uncut.is_some() {
            uncut.push((tail, newest));
        }
    }
    if is_due {
        request_with_due(&uncut);
    }
    engine.extents.store(extents, Ordering::Relaxed);
    let share = u64::from(engine.layout.segments) * engine.layout.segment_sectors() / live.max(1);
    // Even alone on its host, a volume is slowed before the log is full.
    let share = (share / 2).max(BLOCK_SECTORS);
    if !engine.space.parked.is_empty() {
        root_watch::on_parked(engine, now.mono_ns);
    }
    let fill = TickInput {
        now_ns: now.mono_ns,
        pressure,
        log_bytes: u64::from(engine.layout.segments) * engine.layout.segment_bytes,
        share,
        others: live > 1,
    };
    engine
        .space
        .tick(&fill, tails.iter().map(|tail| &tail.pace));
    if unframed && seal {
        engine.committer().request_round(engine);
    } else if seal {
        engine.committer().append_proof_frame(engine);
    }
    if counts.ready < counts.ready_target() || counts.dying + counts.held > 0 {
        engine.request_reclaim();
    }
    if !moving {
        lock(state).next_ns = now.mono_ns + IDLE_INTERVAL_NS;
    }
}
