//! Checkpoints: the whole dirty state of all tails, written to the journal half not in use.
//!
//! Taken when the current half is full, and by recovery before anything is served. The old half
//! stays the truth until the last frame of the checkpoint is durable, so a crash in between
//! loses nothing. The tails' layers are frozen (a pointer swap) and then read without a lock.
//!
//! FLUSHes wait for a checkpoint, so it does no more than it must: layers are written as they are, the oldest
//! first, each with its own newest LSN, so that recovery finds the same layers. They are encoded away from the
//! job thread, the next frame while the one before is on its way to disk, and merged in memory afterwards.

use std::collections::VecDeque;
use std::sync::Arc;

use blkmq::io::FileId;

use crate::driver::{ComputeError, ComputeKind, DiskError};
use crate::engine::Engine;
use crate::error::OpenError;
use crate::hostlog::notes::LogState;
use crate::jobs::{Jobs, PendingComputation, Port};
use crate::log::committer::{CommitEnvironment, Journal};
use crate::log::entry::{ENTRY_BYTES, Entry};
use crate::log::frame::{FrameWriter, Part, Record, TailRecord};
use crate::log::layout::{Layout, Superblock};
use crate::log::merge::{MergeFor, merge_layers};
use crate::log::ring::TailId;
use crate::log::session::Sessions;
use crate::log::snapshot_record::SnapshotRecord;
use crate::map::ExtentMap;
use crate::map::layers::{DirtyExtent, FrozenLayer};
use crate::request::tail::Tail;
use crate::sync::atomic::Ordering;
use crate::units::{HostId, Lsn, Span};

/// A frame is closed at this size, so that reading it back needs no large buffer, and one is encoded in a
/// few milliseconds.
const FRAME_BYTES: usize = 1 << 20;
/// Layers that slow no read down.
const LAYERS_FEW: usize = 4;
/// Layers that a tail has at most after a checkpoint, beside those of slices on their way.
const LAYERS_MAX: usize = 96;

impl CommitEnvironment for Engine {
    fn jobs(&self) -> &Jobs {
        &self.jobs
    }

    fn host(&self) -> HostId {
        self.host
    }

    fn layout(&self) -> &Layout {
        &self.layout
    }

    fn tails(&self) -> Vec<Arc<Tail>> {
        Engine::tails(self)
    }

    fn set_poisoned(&self) {
        self.poisoned.store(true, Ordering::Release);
        self.poison_rings();
        // Who waits for the store hears that it waits in vain.
        for tail in Engine::tails(self) {
            tail.upload.wake_all();
        }
    }

    fn refuse_writes(&self) {
        self.poisoned.store(true, Ordering::Release);
    }

    fn on_round_ended(&self) {
        if self.space.parked.is_empty() {
            return;
        }
        self.request_reclaim();
        // Nobody gets room any more, so nobody would wake the next.
        if self.poisoned.load(Ordering::Acquire) && !canary::active!("poison_wakes_a_few") {
            self.space.parked.wake_all();
        } else {
            self.space.parked.wake_some();
        }
    }

    fn start_checkpoint(self: &Arc<Self>) {
        let engine = Arc::clone(self);
        self.jobs.spawn(async move { run(&engine).await });
    }

    fn start_poison_mark(self: &Arc<Self>) {
        let engine = Arc::clone(self);
        self.jobs
            .spawn(async move { mark_poisoned(&engine.port, engine.superblock()).await });
    }
}

/// A checkpoint in place of a round that did not fit.
async fn run(engine: &Arc<Engine>) {
    let Some(frozen) = freeze(engine) else {
        return engine.committer().halt(engine);
    };
    match write(engine, engine.committer().journal(), frozen).await {
        Ok((journal, cuts)) => engine
            .committer()
            .on_checkpoint_written(engine, journal, cuts),
        Err(CheckpointError::Disk(error)) => {
            engine.committer().on_checkpoint_failed(engine, &error);
        }
        // Reported where it happened. The half in use is whole, and so are the rings.
        Err(CheckpointError::Computation(_)) => engine.committer().halt(engine),
    }
}

/// What all tails hold at one moment each. None if one of them is broken: what it holds can only
/// be said by the frames and its ring.
pub(crate) fn freeze(engine: &Engine) -> Option<FrozenTails> {
    let tails = engine.tails().into_iter();
    tails
        .filter(|tail| !tail.is_for_maintenance())
        .map(|tail| {
            let (cut, layers) = tail.freeze()?;
            Some((tail, cut, layers))
        })
        .collect()
}

/// Why a checkpoint was not written.
#[derive(Debug)]
pub(crate) enum CheckpointError {
    Disk(DiskError),
    /// A bug ended the encoding of a frame. The disk is good.
    Computation(ComputeError),
}

impl From<DiskError> for CheckpointError {
    fn from(error: DiskError) -> CheckpointError {
        CheckpointError::Disk(error)
    }
}

impl From<ComputeError> for CheckpointError {
    fn from(error: ComputeError) -> CheckpointError {
        CheckpointError::Computation(error)
    }
}

impl From<CheckpointError> for OpenError {
    fn from(error: CheckpointError) -> OpenError {
        match error {
            CheckpointError::Disk(error) => error.into(),
            CheckpointError::Computation(error) => error.into(),
        }
    }
}

type FrozenTails = Vec<(Arc<Tail>, Lsn, Vec<FrozenLayer>)>;

/// Writes a checkpoint to the half that `before` does not use; durable when it returns. What is
/// frozen was moved before, so the first sync covers its bytes.
pub(crate) async fn write(
    engine: &Arc<Engine>,
    before: Journal,
    frozen: FrozenTails,
) -> Result<(Journal, Vec<(Arc<Tail>, Lsn)>), CheckpointError> {
    sync(engine).await?;
    let mut journal = Journal {
        half: 1 - before.half,
        used: 0,
        lap: next_lap(before.lap, engine.next_nonce()),
        number: 0,
    };
    let mut encoding = Some(encode(engine, Encoder::new(engine, journal.lap, &frozen)));
    while let Some(encoded) = encoding {
        let (encoder, data) = encoded.await?;
        encoding = (!encoder.is_done()).then(|| encode(engine, encoder));
        let offset = engine.layout.half(journal.half) + journal.used;
        journal.used += data.len() as u64;
        journal.number += 1;
        if journal.used > engine.layout.half_bytes {
            // Unreachable while writers are parked at `Layout::extents_max`; never overwrite.
            return Err(DiskError::new("a checkpoint outgrew its journal half").into());
        }
        engine.port.write(FileId::LOG, offset, data).await?;
    }
    sync(engine).await?;
    let mut cuts = Vec::new();
    for (tail, cut, layers) in frozen {
        cuts.push((Arc::clone(&tail), cut));
        merge_small_layers(engine, tail, &layers);
    }
    Ok((journal, cuts))
}

fn encode(engine: &Arc<Engine>, mut encoder: Encoder) -> PendingComputation<(Encoder, Vec<u8>)> {
    let bytes = encoder.next_bytes();
    let owner = Arc::clone(engine);
    let kind = if canary::active!("checkpoint_behind_packs") {
        ComputeKind::Release
    } else {
        ComputeKind::Checkpoint
    };
    engine.port.compute(kind, bytes, move || {
        let data = encoder.next_frame(|sector| owner.segments.generation_of(sector));
        (encoder, data)
    })
}

/// Many layers would make reads slow. Small ones may be merged at any time: together they are no more
/// than one slice.
fn merge_small_layers(engine: &Arc<Engine>, tail: Arc<Tail>, layers: &[FrozenLayer]) {
    let cut = tail.lock().settled();
    let loose = &layers[layers.partition_point(|layer| layer.last <= cut)..];
    let bytes: u64 = loose.iter().map(|layer| layer.bytes).sum();
    let small = loose.len() > LAYERS_FEW && bytes <= engine.options.slice_bytes();
    if !small && loose.len() <= LAYERS_MAX {
        return;
    }
    let (owner, loose) = (Arc::clone(engine), loose.to_vec());
    engine.jobs.spawn(async move {
        if merge_layers(&owner, &tail, loose, MergeFor::Reads).await {
            owner.request_reclaim();
        }
    });
}

/// Before the first round, nothing else syncs the log, and a start that fails marks it by itself.
async fn sync(engine: &Arc<Engine>) -> Result<(), DiskError> {
    if let Some(committer) = engine.committer_after_recovery() {
        return committer.sync_log(engine).await;
    }
    let synced = engine.port.sync(FileId::LOG).await;
    if synced.is_err() {
        engine.poisoned.store(true, Ordering::Release);
    }
    synced
}

/// The lap of the checkpoint after lap `before`: a count in the upper half, `drawn` bits below.
///
/// An attempt that was cut short may have left frames of its lap on disk, out of order. The next
/// attempt has the same count; without bits of its own, a leftover frame that happens to stand
/// where the new checkpoint ends would be replayed as if it followed.
fn next_lap(before: u64, drawn: u64) -> u64 {
    ((before >> 32) + 1) << 32 | drawn >> 32
}

/// Encodes the frames of one checkpoint in their order.
struct Encoder {
    host: HostId,
    lap: u64,
    number: u64,
    sessions: Option<Sessions>,
    /// Where the host's log in the store stands: what was jotted is durable with the checkpoint.
    log_state: Option<LogState>,
    tails: VecDeque<EncodedTail>,
}

/// What is still to be encoded of one tail.
struct EncodedTail {
    tail: TailId,
    record: Option<TailRecord>,
    /// Those that the log keeps for the store.
    snapshots: Vec<SnapshotRecord>,
    /// The oldest first, each with the newest commit that it stands for. The last one ends at the tail's newest.
    layers: VecDeque<(Lsn, Arc<ExtentMap<DirtyExtent>>)>,
    /// Where the first layer goes on.
    from: u64,
}

impl Encoder {
    fn new(engine: &Engine, lap: u64, frozen: &FrozenTails) -> Encoder {
        let tails = frozen.iter().map(|(tail, cut, layers)| EncodedTail {
            tail: tail.id(),
            record: Some(tail.record()),
            snapshots: tail.kept_snapshots(),
            layers: layers_up_to(*cut, layers),
            from: 0,
        });
        Encoder {
            host: engine.host,
            lap,
            number: 0,
            sessions: Some(engine.sessions.clone()),
            log_state: Some(engine.host_log.state()),
            tails: tails.collect(),
        }
    }

    fn is_done(&self) -> bool {
        self.number > 0 && self.tails.is_empty()
    }

    /// About how long the next frame will be.
    fn next_bytes(&self) -> u64 {
        let layers = self.tails.iter().flat_map(|tail| &tail.layers);
        let extents: usize = layers.map(|(_, map)| map.len()).sum();
        (extents * ENTRY_BYTES).min(FRAME_BYTES) as u64
    }

    fn next_frame(&mut self, generation_of: impl Fn(u64) -> Option<u32>) -> Vec<u8> {
        let mut frame = FrameWriter::new(self.host);
        if let Some(sessions) = self.sessions.take() {
            frame.record(&Record::Sessions(sessions));
        }
        if let Some(state) = self.log_state.take() {
            frame.record(&Record::LogState(state));
        }
        while let Some(tail) = self.tails.front_mut().filter(|_| frame.len() < FRAME_BYTES) {
            tail.put_into(&mut frame, &generation_of);
            if tail.layers.is_empty() {
                self.tails.pop_front();
            }
        }
        let part = Part::Checkpoint {
            first: self.number == 0,
            last: self.tails.is_empty(),
        };
        self.number += 1;
        frame.finish(part, self.lap, self.number - 1)
    }
}

impl EncodedTail {
    /// Puts the tail's record and the next of its extents into a frame that is not full: those of one layer,
    /// and as many as the frame takes.
    fn put_into(&mut self, frame: &mut FrameWriter, generation_of: &impl Fn(u64) -> Option<u32>) {
        if let Some(record) = self.record.take() {
            frame.record(&Record::Tail(record));
        }
        for snapshot in std::mem::take(&mut self.snapshots) {
            let tail = self.tail;
            frame.record(&Record::Snapshot { tail, snapshot });
        }
        let entry = |(span, dirty): (Span, &DirtyExtent)| Entry {
            lsn: dirty.lsn,
            span,
            addr: dirty.addr,
            generation: dirty
                .addr
                .and_then(|addr| generation_of(addr.sector()))
                .unwrap_or(0),
        };
        let room = (FRAME_BYTES.saturating_sub(frame.len()) / ENTRY_BYTES).max(1);
        let Some((cut, layer)) = self.layers.front() else {
            return;
        };
        let rest = layer.iter_from(self.from);
        let entries: Vec<Entry> = rest.take(room).map(entry).collect();
        frame.entries(self.tail, *cut, entries.iter().copied());
        match entries.last().filter(|_| entries.len() == room) {
            Some(last) => self.from = last.span.end,
            None => {
                self.layers.pop_front();
                self.from = 0;
            }
        }
    }
}

/// What is written of `layers`. Commits after the newest of them left nothing but their numbers, which an empty
/// one stands for.
fn layers_up_to(cut: Lsn, layers: &[FrozenLayer]) -> VecDeque<(Lsn, Arc<ExtentMap<DirtyExtent>>)> {
    let ends_at_cut = layers.last().is_some_and(|layer| layer.last == cut);
    let numbers = (!ends_at_cut).then(|| (cut, Arc::default()));
    let written = layers.iter().map(|layer| {
        let last = match canary::active!("checkpoint_forgets_cuts") {
            true => cut,
            false => layer.last,
        };
        (last, Arc::clone(&layer.map))
    });
    written.chain(numbers).collect()
}

/// Writes the mark that survives restarts. Best effort: the disk has just failed.
pub(crate) async fn mark_poisoned(port: &Port, superblock: Superblock) {
    let block = Superblock {
        poisoned: true,
        ..superblock
    }
    .encode();
    for copy in 0..2 {
        let written = port.write(FileId::LOG, copy * 4096, block.clone()).await;
        if let Err(error) = written {
            tracing::error!(error = error.cause, "the poison mark could not be written");
        }
    }
    if let Err(error) = port.sync(FileId::LOG).await {
        tracing::error!(error = error.cause, "the poison mark may not be durable");
    }
}

#[cfg(test)]
mod tests {
    use super::next_lap;

    #[test]
    fn two_attempts_at_one_lap_differ_and_every_lap_is_newer_than_the_one_before() {
        let (first, second) = (next_lap(7 << 32, 5 << 32), next_lap(7 << 32, 6 << 32));
        assert_ne!(first, second);
        assert!(first > (7 << 32 | u64::from(u32::MAX)));
        assert!(next_lap(first, 0) > first.max(second));
        assert!(next_lap(0, 0) > 0, "a new log has lap 0 and no checkpoint");
    }
}
