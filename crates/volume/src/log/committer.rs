//! Group commit: one round at a time makes everything committed so far durable (S2).
//!
//! A round takes each tail's newest LSN as its cut, syncs the log (so the bytes of those commits
//! are durable), writes one frame with every entry up to the cuts, syncs again, and wakes the
//! waiters. A commit after the cut waits for the next round. A full journal half turns the
//! round into a checkpoint (see [`super::checkpoint`]). Every sync of the log file, whatever it is
//! for, goes through here: one at a time. A failed one poisons the log for good, when its outcome is
//! given and before anybody who waits is woken; it is never retried (R10).
//!
//! The machine is driven by outcomes, inline, on whatever thread they arrive, because a FLUSH
//! waits for it; it does bounded memory work only.

mod environment;
mod invariants;
mod journal;
mod syncs;

use std::collections::VecDeque;
use std::sync::Arc;
use std::task::Waker;

use blkmq::io::FileId;

pub(crate) use environment::CommitEnvironment;
pub(crate) use journal::Journal;
use syncs::Syncs;

use super::frame::{FrameWriter, Part, Record};
use crate::driver::{DiskError, DiskOp, DiskPlace, Outcome, Request, RequestId, RequestOp};
use crate::failures::FailureKind;
use crate::hostlog::notes::LogState;
use crate::jobs::Signal;
use crate::lock::lock;
use crate::request::tail::Tail;
use crate::sync::Mutex;
use crate::units::Lsn;

/// The first round of a process.
pub(crate) const FIRST_ROUND: u64 = 1;

/// Where a round is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Idle,
    /// The log is being synced: the bytes of all commits up to the cuts.
    SyncData,
    WriteFrame,
    /// The log is being synced again: the frame.
    SyncFrame,
    /// The round goes on as a checkpoint, which is a job.
    Checkpoint,
    /// A sync or a frame write failed; there will be no more rounds.
    Poisoned,
}

/// The tails of a round and how far it brings each.
type Cuts = Vec<(Arc<Tail>, Lsn)>;

#[derive(Debug)]
struct State {
    phase: Phase,
    /// Rounds started, and rounds whose frame is durable.
    started: u64,
    durable: u64,
    /// Another round was requested after this one.
    wanted: bool,
    cuts: Cuts,
    /// The next round writes a frame even if there is nothing to put into it.
    witness: bool,
    /// The journal's last frame is such a one: nothing is lost with it.
    witnessed: bool,
    /// Rounds started when it was last looked whether the journal is quiet.
    seen: u64,
    /// Records that the next frame takes along.
    records: Vec<Record>,
    /// Records that the frame in flight takes along.
    written: Vec<Record>,
    journal: Journal,
    /// The next round is a checkpoint, whatever room there is.
    rewrites: bool,
    /// Of the journal's half, what its checkpoint takes, as far as this process wrote it.
    checkpoint_bytes: u64,
    /// No round begins any more: another process is about to go on where the journal ends.
    held: bool,
    /// The disk failed, and the next start is told so. Without it there may be no rounds all the same.
    marked: bool,
    syncs: Syncs,
    /// The sync that the round waits for.
    awaited_sync: u64,
    /// The frame's write in flight, and what it does.
    awaited_write: Option<(RequestId, DiskPlace, FailureKind)>,
    out: VecDeque<Request>,
}

/// The one committer of a host.
#[derive(Debug)]
pub(crate) struct Committer {
    state: Mutex<State>,
    /// Raised whenever a round becomes durable, and when the log is poisoned.
    changed: Signal,
}

impl Committer {
    /// Goes on in the half where the journal ended. The first round has this record.
    pub(crate) fn continuing(journal: Journal, first: Record) -> Committer {
        let committer = Committer::new(journal, false);
        lock(&committer.state).records.push(first);
        committer
    }

    /// Begins after a checkpoint that recovery wrote.
    pub(crate) fn new(journal: Journal, poisoned: bool) -> Committer {
        let phase = if poisoned {
            Phase::Poisoned
        } else {
            Phase::Idle
        };
        Committer {
            state: Mutex::new(State {
                phase,
                started: 0,
                durable: 0,
                wanted: false,
                cuts: Cuts::new(),
                witness: false,
                witnessed: false,
                seen: 0,
                records: Vec::new(),
                written: Vec::new(),
                journal,
                rewrites: false,
                held: false,
                checkpoint_bytes: journal.used,
                marked: poisoned,
                syncs: Syncs::default(),
                awaited_sync: 0,
                awaited_write: None,
                out: VecDeque::new(),
            }),
            changed: Signal::default(),
        }
    }

    /// Asks for a round that begins after this call.
    pub(crate) fn request_round(&self, engine: &Arc<impl CommitEnvironment>) {
        let notified_early = canary::active!("driver_is_told_before_the_request");
        if notified_early {
            engine.jobs().notifier().commit_ready();
        }
        let mut state = lock(&self.state);
        state.wanted = true;
        let emitted = self.start(&mut state, engine);
        drop(state);
        if emitted && !notified_early {
            engine.jobs().notifier().commit_ready();
        }
    }

    /// Asks for whatever is still needed to make `lsn` of a tail durable: nothing if the round
    /// that is going on covers it.
    pub(crate) fn request_round_up_to(
        &self,
        engine: &Arc<impl CommitEnvironment>,
        tail: &Arc<Tail>,
        lsn: Lsn,
    ) {
        let covered = lock(&self.state)
            .cuts
            .iter()
            .any(|(other, cut)| Arc::ptr_eq(other, tail) && *cut >= lsn);
        if !covered {
            self.request_round(engine);
        }
    }

    /// Puts a record into the next round's frame, and asks for that round.
    pub(crate) fn record(&self, engine: &Arc<impl CommitEnvironment>, record: Record) {
        lock(&self.state).records.push(record);
        self.request_round(engine);
    }

    /// Puts where the host's log stands into a round that begins after this call, and asks for it. Answers
    /// which round that is.
    pub(crate) fn note_log_state(
        &self,
        engine: &Arc<impl CommitEnvironment>,
        log_state: LogState,
    ) -> u64 {
        self.note(engine, |state| keep_log_state(state, log_state))
    }

    /// The same for records, which go into one frame.
    pub(crate) fn note_records(
        &self,
        engine: &Arc<impl CommitEnvironment>,
        records: Vec<Record>,
    ) -> u64 {
        self.note(engine, |state| state.records.extend(records))
    }

    fn note(&self, engine: &Arc<impl CommitEnvironment>, add: impl FnOnce(&mut State)) -> u64 {
        let mut state = lock(&self.state);
        add(&mut state);
        let round = state.started + 1;
        state.wanted = true;
        let emitted = self.start(&mut state, engine);
        drop(state);
        if emitted {
            engine.jobs().notifier().commit_ready();
        }
        round
    }

    /// Leaves it to whichever round comes next.
    pub(crate) fn jot_log_state(&self, log_state: LogState) {
        keep_log_state(&mut lock(&self.state), log_state);
    }

    /// Called now and then. Where nothing came after the journal's last frame since the last call, an
    /// empty one is put behind it: it proves that the one before was durable, so that damage to it is
    /// found, and not taken for a frame that a loss of power cut short.
    pub(crate) fn append_proof_frame(&self, engine: &Arc<impl CommitEnvironment>) {
        let mut state = lock(&self.state);
        let idle = state.phase == Phase::Idle && !state.wanted;
        let quiet = idle && state.seen == state.started;
        state.seen = state.started;
        if !quiet || state.witnessed || canary::active!("no_witness") {
            return;
        }
        state.witness = true;
        drop(state);
        self.request_round(engine);
    }

    /// Has the next round be a checkpoint if the frames behind the last one take more than `bytes`.
    pub(crate) fn shorten_journal(&self, bytes: u64) {
        let mut state = lock(&self.state);
        state.rewrites |= state.journal.used - state.checkpoint_bytes > bytes;
    }

    /// The round that will cover everything committed before this call: the next to start.
    pub(crate) fn next_round(&self) -> u64 {
        lock(&self.state).started + 1
    }

    /// The round that is going on, if one is.
    pub(crate) fn current_round(&self) -> Option<u64> {
        let state = lock(&self.state);
        let is_idle = matches!(state.phase, Phase::Idle | Phase::Poisoned);
        (!is_idle).then_some(state.started)
    }

    /// All frames are durable.
    pub(crate) fn is_settled(&self) -> bool {
        lock(&self.state).phase == Phase::Idle
    }

    /// Has no round begin any more, and ends when the one that is going on has. For a process that is about to end.
    pub(crate) async fn hold(&self) {
        lock(&self.state).held = true;
        let at_rest = || {
            let phase = lock(&self.state).phase;
            matches!(phase, Phase::Idle | Phase::Poisoned).then_some(())
        };
        self.changed.wait_until(at_rest).await;
    }

    /// The newest durable round.
    pub(crate) fn durable_round(&self) -> u64 {
        lock(&self.state).durable
    }

    pub(crate) fn is_poisoned(&self) -> bool {
        lock(&self.state).phase == Phase::Poisoned
    }

    /// Wakes all waiters, to check their condition again.
    pub(crate) fn wake(&self) {
        self.changed.wake_all();
    }

    /// Wakes `waker` when the next round becomes durable or the log is poisoned.
    pub(crate) fn wait(&self, waker: &Waker) {
        self.changed.wait(waker);
    }

    /// Ends when `round` is durable; false if the log is poisoned.
    pub(crate) async fn durable(&self, engine: &Arc<impl CommitEnvironment>, round: u64) -> bool {
        self.changed
            .wait_until(|| {
                let state = lock(&self.state);
                if state.durable >= round {
                    return Some(true);
                }
                if state.phase == Phase::Poisoned {
                    return Some(false);
                }
                // Once it has started it ends by itself: another one would be a sync for nothing.
                let start = !state.wanted && state.started < round;
                drop(state);
                if start {
                    self.request_round(engine);
                }
                None
            })
            .await
    }

    pub(crate) fn take_requests(&self) -> Vec<Request> {
        lock(&self.state).out.drain(..).collect()
    }

    /// Ends when everything that was written to the log before this call is durable.
    ///
    /// # Errors
    /// If the log is poisoned: by this sync, or whichever else.
    pub(crate) async fn sync_log(
        &self,
        engine: &Arc<impl CommitEnvironment>,
    ) -> Result<(), DiskError> {
        let sync = {
            let mut state = lock(&self.state);
            if state.phase == Phase::Poisoned {
                return Err(DiskError::new("the log is poisoned"));
            }
            request_sync(&mut state, engine)
        };
        engine.jobs().notifier().commit_ready();
        let ended = self.changed.wait_until(|| {
            let state = lock(&self.state);
            let poisoned = state.phase == Phase::Poisoned;
            (state.syncs.is_done(sync) || poisoned).then_some(!poisoned)
        });
        let failed = || DiskError::new("a sync of the log failed: it is poisoned");
        ended.await.then_some(()).ok_or_else(failed)
    }

    /// Takes the outcome of a request if it is this machine's.
    pub(crate) fn complete(
        &self,
        engine: &Arc<impl CommitEnvironment>,
        id: RequestId,
        outcome: Outcome,
    ) -> Result<(), Outcome> {
        let mut state = lock(&self.state);
        let write = state.awaited_write.take_if(|(awaited, ..)| *awaited == id);
        let (place, kind) = match write {
            Some((_, place, kind)) => (place, kind),
            None if state.syncs.take(id) => (SYNC.place(), FailureKind::of_disk(&SYNC)),
            None => return Err(outcome),
        };
        let result = match outcome {
            Outcome::Disk(result) => result.map(drop),
            other => Err(DiskError::new(format!(
                "a {} outcome for a disk request",
                other.kind()
            ))),
        };
        let result = result.map_err(|error| {
            // It poisons the log, which is logged once.
            engine.jobs().failures.count(kind);
            error.at(place)
        });
        let mut finished = Cuts::new();
        match result {
            Err(error) => self.poison(&mut state, engine, &error),
            Ok(()) if write.is_some() => {
                if state.phase == Phase::WriteFrame {
                    state.phase = Phase::SyncFrame;
                    state.awaited_sync = request_sync(&mut state, engine);
                }
            }
            Ok(()) => finished = self.on_synced(&mut state, engine),
        }
        self.start(&mut state, engine);
        drop(state);
        engine.jobs().notifier().commit_ready();
        self.publish(engine, finished);
        Ok(())
    }

    /// A sync succeeded: the round goes on, if it was its own.
    fn on_synced(&self, state: &mut State, engine: &Arc<impl CommitEnvironment>) -> Cuts {
        let mut finished = Cuts::new();
        if state.phase != Phase::Poisoned {
            let State { syncs, out, .. } = state;
            syncs.on_done(|| issue(out, engine, SYNC));
        }
        if state.syncs.is_done(state.awaited_sync) {
            match state.phase {
                Phase::SyncData => self.write_frame(state, engine, &mut finished),
                Phase::SyncFrame => finished = finish(state),
                Phase::Idle | Phase::WriteFrame | Phase::Checkpoint | Phase::Poisoned => {}
            }
        }
        finished
    }

    /// Publishes the new cuts to the tails and wakes the waiters, with no lock held.
    fn publish(&self, engine: &Arc<impl CommitEnvironment>, finished: Cuts) {
        for (tail, cut) in finished {
            tail.on_framed(cut);
        }
        self.changed.wake_all();
        engine.on_round_ended();
    }

    /// Starts a round if one is wanted and none is going on.
    fn start(&self, state: &mut State, engine: &Arc<impl CommitEnvironment>) -> bool {
        if state.phase != Phase::Idle || !state.wanted || state.held {
            return false;
        }
        state.wanted = false;
        state.started += 1;
        state.cuts = engine
            .tails()
            .into_iter()
            .map(|tail| {
                let cut = tail.newest();
                (tail, cut)
            })
            .filter(|(tail, cut)| *cut > tail.framed_lsn())
            .collect();
        state.written = std::mem::take(&mut state.records);
        state.phase = Phase::SyncData;
        if canary::active!("skip_segment_sync") {
            let mut finished = Cuts::new();
            self.write_frame(state, engine, &mut finished);
            finished
                .into_iter()
                .for_each(|(tail, cut)| tail.set_framed(cut));
        } else {
            state.awaited_sync = request_sync(state, engine);
        }
        true
    }

    /// The bytes up to the cuts are durable: write the frame that says so.
    fn write_frame(
        &self,
        state: &mut State,
        engine: &Arc<impl CommitEnvironment>,
        finished: &mut Cuts,
    ) {
        let mut frame = FrameWriter::new(engine.host());
        for record in &state.written {
            frame.record(record);
        }
        for (tail, cut) in &state.cuts {
            if let Err(error) = tail.write_entries(&mut frame, *cut) {
                return self.poison(state, engine, &error);
            }
            if canary::active!("per_ring_frames") {
                break;
            }
        }
        let bare = frame.is_empty();
        if bare && !state.witness && !state.rewrites {
            // Nothing new, but the waiters' earlier bytes are durable now.
            *finished = finish(state);
            return;
        }
        let journal = state.journal;
        let room = engine.layout().half_bytes - journal.used;
        if frame.len() as u64 + 4096 > room || state.rewrites {
            state.phase = Phase::Checkpoint;
            engine.start_checkpoint();
            return;
        }
        (state.witness, state.witnessed) = (false, bare);
        let data = frame.finish(Part::Round, journal.lap, journal.number);
        let offset = engine.layout().half(journal.half) + journal.used;
        state.journal.used += data.len() as u64;
        state.journal.number += 1;
        state.phase = Phase::WriteFrame;
        let op = DiskOp::Write {
            file: FileId::LOG,
            offset,
            data,
        };
        let (place, kind) = (op.place(), FailureKind::of_disk(&op));
        let id = issue(&mut state.out, engine, op);
        state.awaited_write = Some((id, place, kind));
    }

    /// Where the journal stands, for a checkpoint.
    pub(crate) fn journal(&self) -> Journal {
        lock(&self.state).journal
    }

    /// The checkpoint is durable: it stands for the round that it took over, and for all records
    /// that were waiting.
    pub(crate) fn on_checkpoint_written(
        &self,
        engine: &Arc<impl CommitEnvironment>,
        journal: Journal,
        cuts: Vec<(Arc<Tail>, Lsn)>,
    ) {
        let mut state = lock(&self.state);
        state.journal = journal;
        state.checkpoint_bytes = journal.used;
        (state.witness, state.witnessed, state.rewrites) = (false, false, false);
        state.cuts = cuts;
        let finished = finish(&mut state);
        self.start(&mut state, engine);
        drop(state);
        engine.jobs().notifier().commit_ready();
        self.publish(engine, finished);
    }

    /// The checkpoint could not be written.
    pub(crate) fn on_checkpoint_failed(
        &self,
        engine: &Arc<impl CommitEnvironment>,
        error: &DiskError,
    ) {
        self.poison(&mut lock(&self.state), engine, error);
        self.publish(engine, Cuts::new());
    }

    /// The journal is full, and a broken tail makes a checkpoint impossible: no more rounds until
    /// a restart. The disk is good, so nothing is marked, and the rings will be believed.
    pub(crate) fn halt(&self, engine: &Arc<impl CommitEnvironment>) {
        tracing::error!(
            "the log cannot be rewritten after an internal error: no more writes until the \
             server is restarted; nothing that was acknowledged is lost"
        );
        let mut state = lock(&self.state);
        state.phase = Phase::Poisoned;
        state.cuts.clear();
        engine.refuse_writes();
        drop(state);
        self.publish(engine, Cuts::new());
    }

    fn poison(&self, state: &mut State, engine: &Arc<impl CommitEnvironment>, error: &DiskError) {
        if std::mem::replace(&mut state.marked, true) {
            return;
        }
        tracing::error!(
            error = error.cause,
            "the log could not be made durable: it is poisoned"
        );
        state.phase = Phase::Poisoned;
        state.cuts.clear();
        // In memory before any request fails because of it: the mark on disk takes a while.
        engine.set_poisoned();
        engine.start_poison_mark();
    }
}

const SYNC: DiskOp = DiskOp::Sync { file: FileId::LOG };

/// Asks for a sync that begins after this call; answers which one that is.
fn request_sync(state: &mut State, engine: &Arc<impl CommitEnvironment>) -> u64 {
    let State { syncs, out, .. } = state;
    syncs.request(|| issue(out, engine, SYNC))
}

fn issue(
    out: &mut VecDeque<Request>,
    engine: &Arc<impl CommitEnvironment>,
    op: DiskOp,
) -> RequestId {
    let id = engine.jobs().next_request_id();
    out.push_back(Request {
        id,
        op: RequestOp::Disk(op),
    });
    id
}

/// The newest one is enough.
fn keep_log_state(state: &mut State, log_state: LogState) {
    let records = &mut state.records;
    records.retain(|record| !matches!(record, Record::LogState(_)));
    records.push(Record::LogState(log_state));
}

/// The round is durable.
fn finish(state: &mut State) -> Cuts {
    state.durable = state.started;
    state.phase = Phase::Idle;
    state.written.clear();
    std::mem::take(&mut state.cuts)
}
