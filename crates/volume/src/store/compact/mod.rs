//! Compaction: what is alive in packs with much garbage, and ranges that random writes scattered, is written anew in
//! the order of the volume, by the host that has the volume open ([ADR 0056](../../../../docs/adr/0056-compaction.md)).
//!
//! ```text
//! survey: pages, one after the other -> what is alive of each pack, which pages are scattered
//!      -> choose (pure): packs by garbage per live byte, cold scattered pages
//!      -> for each step, of about one pack:
//!           copy: read live chunks, verify them, PUT a pack         nothing names it
//!           swap: pages that point to it, a record that names all, one update of the root
//! ```
//!
//! Nothing of a step is visible before its root is committed, and that root means what the one before meant. So a
//! step that fails, or is cut short, loses nothing but its own work. Deltas are never looked into: they lie over the pages.
//! It must never move what a page does not point to any more, nor give a copy another origin, address or LSN.
//!
//! One job of the host goes from volume to volume, so memory is bounded per host: one survey, one step. Another does the
//! same for volumes that nobody has open ([`closed`]), each of which it opens for that ([`hold`]).

pub(crate) mod choose;
pub(crate) mod closed;
mod copy;
pub(crate) mod hold;
mod pinned;
mod shared;
pub(crate) mod state;
mod survey;
mod swap;
mod walk;

use std::sync::Arc;

use crate::engine::Engine;
use crate::error::OpenError;
use crate::request::tail::{Status, Tail};
use crate::store::open::endings::{end, is_final};
use crate::sync::atomic::Ordering;
use choose::{Selection, SurveyResult};
use state::VolumeFacts;

/// Bytes after which a job that reads or writes gives others their time.
const QUANTUM_BYTES: u64 = 1 << 20;

/// Goes from volume to volume, as long as the host runs.
pub(crate) async fn run(engine: Arc<Engine>) {
    let interval = &engine.compact_interval;
    // Random, so that hosts started together do not all begin at once.
    let random_ns = |ns: u64| ns / 2 + engine.next_nonce() % ns.div_ceil(2);
    interval.wait(&engine.port, random_ns).await;
    loop {
        let mut served = Vec::new();
        for tail in engine.tails() {
            served.push(tail.id().volume);
            if !engine.compaction.maintained.has(tail.name()) {
                visit(&engine, &tail).await;
            }
        }
        engine.compaction.keep_only(&served);
        interval.wait(&engine.port, |ns| ns).await;
    }
}

/// One look at a volume, and the steps that it asks for.
async fn visit(engine: &Arc<Engine>, tail: &Arc<Tail>) {
    let compacted = compact(engine, tail).await;
    let Err(error) = compacted else {
        return;
    };
    if is_final(&error) {
        // There may be no write whose publication would notice it.
        end(engine, tail, &error);
    } else if tail.lock().status == Status::Live {
        engine.compaction.on_failure();
        tracing::warn!(volume = tail.name(), %error, "a compaction failed; trying again");
    }
}

/// Whether roots of this volume may be written now; if not, a step is not begun, or left where it is.
fn is_allowed(engine: &Engine, tail: &Tail) -> bool {
    let (is_live, has_forks) = {
        let inner = tail.lock();
        let mut kept = inner.points.kept().iter();
        (
            inner.status == Status::Live,
            kept.any(|kept| kept.base.is_some()),
        )
    };
    // A fork without a root reads by the index that was the volume's when it was taken.
    is_live
        && !has_forks
        && tail.upload.refusal().is_none()
        && engine.host_log.check_not_stopped().is_ok()
        // It was switched off.
        && engine.compact_interval.ns() > 0
        // It was opened for this alone, and somebody wants to use it.
        && !engine.compaction.maintained.is_asked(tail.name())
        // A poisoned log publishes no record, and a root may name only what a record has named.
        && !engine.poisoned.load(Ordering::Acquire)
}

async fn compact(engine: &Arc<Engine>, tail: &Arc<Tail>) -> Result<(), OpenError> {
    let volume = tail.id().volume;
    let Some(head) = tail.upload.head().filter(|_| is_allowed(engine, tail)) else {
        return Ok(());
    };
    let facts = engine.compaction.facts(volume);
    let stored = tail.stored_lsn();
    if facts.visited == Some(stored) && tail.lock().index.unfolded_deltas() > 0 {
        // It is not written to: what its deltas hide is garbage only once they are folded.
        tail.upload.set_fold_asked(true);
    }
    engine.compaction.set_visited(volume, stored);
    let (interval_ns, now_ns) = (engine.compact_interval.ns(), engine.jobs.mono_ns());
    if facts.rest.goes_on(interval_ns, now_ns) || facts.is_settled(&head.root.nodes) {
        return Ok(());
    }
    let Some((surveyed, chosen)) = look(engine, tail, &facts).await? else {
        return Ok(());
    };
    let unix_ms = engine.jobs.now().unix_ms;
    engine
        .compaction
        .on_surveyed(volume, &surveyed, &chosen, unix_ms);
    // What is moved is looked at once more: only a survey that finds nothing to do settles it.
    let is_settled = chosen.is_empty() && !surveyed.is_warm;
    let nodes = is_settled.then_some(head.root.nodes);
    engine.compaction.set_settled(volume, nodes);
    relocate(engine, tail, &chosen).await
}

/// Surveys a volume, and chooses; none: it was left in the middle.
async fn look(
    engine: &Arc<Engine>,
    tail: &Arc<Tail>,
    facts: &VolumeFacts,
) -> Result<Option<(SurveyResult, Selection)>, OpenError> {
    let Some(mut surveyed) = survey::survey(engine, tail, facts).await? else {
        return Ok(None);
    };
    shared::judge(engine, tail, &mut surveyed, facts).await?;
    let (options, unreadable) = (&engine.options.compact, &facts.unreadable);
    // Before any is chosen: a pass of packs that are to stay would leave no room for others.
    let candidates = choose::candidates(options, &surveyed, unreadable);
    let candidates = pinned::leave_out(engine, tail, candidates).await?;
    let chosen = choose::choose(options, &surveyed, &candidates, unreadable);
    tracing::debug!(
        volume = tail.name(),
        live = surveyed.live_bytes(),
        garbage = surveyed.garbage_bytes(),
        packs = chosen.packs.len(),
        pages = chosen.pages.len(),
        "surveyed"
    );
    Ok(Some((surveyed, chosen)))
}

/// Moves what was chosen, step by step.
async fn relocate(
    engine: &Arc<Engine>,
    tail: &Arc<Tail>,
    chosen: &Selection,
) -> Result<(), OpenError> {
    let mut pace = Pace::new(engine, tail);
    let mut next = (!chosen.is_empty()).then_some(0);
    while let Some(from) = next {
        if !pace.wait().await {
            return Ok(());
        }
        let gathered = walk::gather(engine, tail, chosen, from).await?;
        next = gathered.next;
        if gathered.parts.is_empty() {
            pace.add(gathered.index_bytes);
            continue;
        }
        let read = gathered.chunk_bytes + gathered.index_bytes;
        let Some(copied) = copy::copy(engine, tail, gathered).await? else {
            pace.add(read);
            continue;
        };
        if engine.compaction.maintained.is_asked(tail.name()) {
            // Nothing names the copy, so it is garbage.
            return Ok(());
        }
        let swapped = swap::swap(engine, tail, copied).await?;
        engine.compaction.on_step(read, swapped.written);
        pace.add(read + swapped.written);
    }
    Ok(())
}

/// Keeps a procedure below the foreground: so many bytes a second, and none while writers wait for the store.
struct Pace<'a> {
    engine: &'a Engine,
    tail: &'a Tail,
    spent: u64,
}

impl<'a> Pace<'a> {
    fn new(engine: &'a Engine, tail: &'a Tail) -> Pace<'a> {
        let spent = 0;
        Pace {
            engine,
            tail,
            spent,
        }
    }

    fn add(&mut self, bytes: u64) {
        self.spent += bytes;
    }

    /// Waits for its turn; false if the volume is to be left alone.
    async fn wait(&mut self) -> bool {
        let engine = self.engine;
        if self.spent >= QUANTUM_BYTES {
            let rate = engine.options.compact.bytes_per_s.max(1);
            let ns = u128::from(self.spent) * 1_000_000_000 / u128::from(rate);
            self.spent = 0;
            let pause = engine.port.sleep(u64::try_from(ns).unwrap_or(u64::MAX));
            let name = self.tail.name();
            engine.compaction.maintained.unless_asked(name, pause).await;
        }
        while engine.space.is_pressed() && is_allowed(engine, self.tail) {
            engine.port.sleep(engine.options.retry_ns).await;
        }
        engine.port.pause().await;
        is_allowed(engine, self.tail)
    }
}

impl VolumeFacts {
    /// Nothing has changed since a survey found nothing to do.
    fn is_settled(&self, nodes: &[(u64, crate::object::page::BlockRef)]) -> bool {
        self.settled.as_deref() == Some(nodes)
    }
}
