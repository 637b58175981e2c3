//! Checkpoints: the whole dirty state of all tails, written to the journal half not in use.
//!
//! Taken when the current half is full, and by recovery before anything is served. The old half
//! stays the truth until the last frame of the checkpoint is durable, so a crash in between
//! loses nothing. The tails' layers are frozen (a pointer swap) and then read without a lock.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use blkmq::io::FileId;

use crate::driver::DiskError;
use crate::engine::Engine;
use crate::jobs::{Jobs, Port};
use crate::log::committer::{CommitEnvironment, Journal};
use crate::log::entry::Entry;
use crate::log::frame::{FrameWriter, Part, Record};
use crate::log::layout::{Layout, Superblock};
use crate::map::ExtentMap;
use crate::map::layers::{DirtyExtent, FrozenLayer, merge};
use crate::request::tail::Tail;
use crate::units::{HostId, Lsn, Span};

/// Entries per frame: about a megabyte, so that reading them back needs no large buffers.
const ENTRIES_PER_FRAME: usize = 24 * 1024;

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
    }

    fn refuse_writes(&self) {
        self.poisoned.store(true, Ordering::Release);
    }

    fn on_round_ended(&self) {
        if self.space.has_waiters() {
            self.request_reclaim();
            self.space.wake_all();
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
        Err(error) => engine.committer().on_checkpoint_failed(engine, &error),
    }
}

/// What all tails hold at one moment each. None if one of them is broken: what it holds can only
/// be said by the frames and its ring.
pub(crate) fn freeze(engine: &Engine) -> Option<FrozenTails> {
    let tails = engine.tails().into_iter();
    tails
        .map(|tail| {
            let (cut, layers) = tail.freeze()?;
            Some((tail, cut, layers))
        })
        .collect()
}

type FrozenTails = Vec<(Arc<Tail>, Lsn, Vec<FrozenLayer>)>;

/// Writes a checkpoint to the half that `before` does not use; durable when it returns. What is
/// frozen was moved before, so the first sync covers its bytes.
pub(crate) async fn write(
    engine: &Arc<Engine>,
    before: Journal,
    frozen: FrozenTails,
) -> Result<(Journal, Vec<(Arc<Tail>, Lsn)>), DiskError> {
    sync(engine).await?;
    let mut out = Output::new(engine, before);
    out.frame.record(&Record::Sessions(engine.sessions.clone()));
    let mut cuts = Vec::new();
    for (tail, cut, layers) in frozen {
        let mut dead = Vec::new();
        let merged = merge(layers.iter().map(|layer| &*layer.map), |addr, sectors| {
            dead.push((addr, sectors));
        });
        out.frame.record(&Record::Tail(tail.record()));
        out.extents(&tail, cut, &merged).await?;
        // Many small layers would make reads slow; equal content in one is a pointer swap.
        if layers.len() > 4 {
            tail.replace_frozen(&engine.segments, &layers, merged, &dead);
        }
        cuts.push((tail, cut));
    }
    let journal = out.finish().await?;
    sync(engine).await?;
    Ok((journal, cuts))
}

/// Before the first round, nothing else syncs the log, and a start that fails marks it by itself.
async fn sync(engine: &Arc<Engine>) -> Result<(), DiskError> {
    if let Some(committer) = engine.begun_committer() {
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

/// Frames of one checkpoint on their way to disk.
struct Output<'a> {
    engine: &'a Engine,
    frame: FrameWriter,
    journal: Journal,
}

impl<'a> Output<'a> {
    fn new(engine: &'a Engine, before: Journal) -> Output<'a> {
        let journal = Journal {
            half: 1 - before.half,
            used: 0,
            lap: next_lap(before.lap, engine.next_nonce()),
            number: 0,
        };
        Output {
            engine,
            frame: FrameWriter::new(engine.host),
            journal,
        }
    }

    async fn extents(
        &mut self,
        tail: &Tail,
        cut: Lsn,
        merged: &ExtentMap<DirtyExtent>,
    ) -> Result<(), DiskError> {
        let entry = |(span, dirty): (Span, &DirtyExtent)| Entry {
            lsn: dirty.lsn,
            span,
            addr: dirty.addr,
            generation: dirty
                .addr
                .and_then(|addr| self.engine.segments.generation_of(addr.sector()))
                .unwrap_or(0),
        };
        let entries: Vec<Entry> = merged.iter().map(entry).collect();
        let mut rest = entries.as_slice();
        loop {
            let (part, more) = rest.split_at(rest.len().min(ENTRIES_PER_FRAME));
            self.frame.entries(tail.id(), cut, part.iter().copied());
            rest = more;
            if self.frame.len() >= ENTRIES_PER_FRAME * 40 {
                self.write(false).await?;
            }
            if rest.is_empty() {
                return Ok(());
            }
        }
    }

    async fn write(&mut self, last: bool) -> Result<(), DiskError> {
        let frame = std::mem::replace(&mut self.frame, FrameWriter::new(self.engine.host));
        let journal = &mut self.journal;
        let part = Part::Checkpoint {
            first: journal.number == 0,
            last,
        };
        let data = frame.finish(part, journal.lap, journal.number);
        let offset = self.engine.layout.half(journal.half) + journal.used;
        journal.used += data.len() as u64;
        journal.number += 1;
        if journal.used > self.engine.layout.half_bytes {
            // Unreachable while writers are parked at `Layout::extents_max`; never overwrite.
            return Err(DiskError("a checkpoint outgrew its journal half".into()));
        }
        self.engine.port.write(FileId::LOG, offset, data).await
    }

    async fn finish(mut self) -> Result<Journal, DiskError> {
        self.write(true).await?;
        Ok(self.journal)
    }
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
            tracing::error!(error = error.0, "the poison mark could not be written");
        }
    }
    if let Err(error) = port.sync(FileId::LOG).await {
        tracing::error!(error = error.0, "the poison mark may not be durable");
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
