//! Folding deltas into base pages, so that opens and memory stay bounded: a job beside the uploads.
//!
//! A fold takes all deltas that exist when it begins; deltas that arrive meanwhile lie over them and stay. It
//! goes through the volume node by node. After some nodes it takes its turn at the root and updates it: the root
//! lists the new nodes, and the *windows* of the folded deltas are cut, until a delta has none left and is listed
//! no more. Nothing changes in memory before that root is committed, and a fold that fails or is cut short loses
//! only the nodes since the last update.
//!
//! What cannot be read is not folded: pages below a lost pack, a lost page, what a lost node covers. The
//! deltas of those pages keep their windows there, so the volume is whole again once the object is put back.
//!
//! [`pages`] merges and writes the pages of a node, [`index_blocks`] brings those of before into memory.

pub(crate) mod index_blocks;
pub(in crate::store) mod pages;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::driver::ComputeKind;
use crate::engine::Engine;
use crate::error::OpenError;
use crate::hostlog::record::NamedObject;
use crate::map::delta::Delta;
use crate::map::index::{DeltaMap, NODE_SECTORS, walk_layers};
use crate::object::page::{BlockRef, PAGE_SECTORS};
use crate::object::root::DeltaRef;
use crate::request::tail::{Status, Tail};
use crate::store::fold::pages::{EXTENT_BYTES, FoldInput, FoldedNode, Output, fold_node};
use crate::store::host_log::unnamed::UnnamedObject;
use crate::store::open::endings::{end, is_final};
use crate::store::roots::turn::RootTurnGuard;
use crate::store::roots::{begin_update, finish_update};
use crate::sync::atomic::Ordering;
use crate::units::{Lsn, Span};

/// The least number of pages between two updates of the root; a step ends with a whole node.
const STEP_PAGES: usize = 4096;
/// Of so many volumes one or another is written within a recovery point. Fewer fold so seldom that their records
/// cost nothing.
const MANY_VOLUMES: usize = 16;

/// Runs as long as the tail is live.
pub(crate) async fn run(engine: Arc<Engine>, tail: Arc<Tail>) {
    let mut delay = engine.options.retry_ns;
    loop {
        let changed = &tail.upload.changed;
        let live = changed
            .wait_until(|| {
                let extents_max = engine.options.delta_extents_of(engine.tail_count());
                let mut inner = tail.lock();
                if inner.status != Status::Live {
                    return Some(false);
                }
                let options = &engine.options;
                let is_due = inner.index.unfolded_deltas() > options.deltas_max
                    || inner.index.unfolded_extents() > extents_max
                    || tail.upload.is_fold_asked();
                // Where slices are refused a fold would be, too, after it had written all its objects anew.
                let is_refused =
                    tail.upload.refusal().is_some() && !canary::active!("folds_never_back_off");
                // A poisoned log publishes no record, and a root may name only what a record has named.
                let is_refused = is_refused
                    || engine.poisoned.load(Ordering::Acquire)
                        && !canary::active!("poisoned_log_names_objects");
                // Pages must not get commits that are newer than a point.
                let is_held = !inner.points.is_empty() && !canary::active!("fold_passes_a_point");
                // While a compaction is at it the fold waits, and points need not.
                let is_next = is_due && !is_refused && !tail.upload.index_turn.is_taken();
                inner.points.set_fold_next(is_next);
                (is_due && !is_refused && !is_held).then_some(true)
            })
            .await;
        if !live {
            return;
        }
        let folded = fold(&engine, &tail).await;
        tail.upload.set_fold_asked(false);
        if let Err(error) = folded {
            if is_final(&error) {
                // There may be no write whose publication would notice it.
                end(&engine, &tail, &error);
                return;
            }
            if tail.lock().status != Status::Live {
                return;
            }
            tracing::warn!(volume = tail.name(), %error, "a fold failed; trying again");
            engine.port.sleep(delay).await;
            if !canary::active!("folds_never_back_off") {
                delay = (delay * 2).min(engine.options.retry_ns * 30);
            }
        } else {
            delay = engine.options.retry_ns;
        }
    }
}

/// Folds everything that was stored so far.
async fn fold(engine: &Arc<Engine>, tail: &Arc<Tail>) -> Result<(), OpenError> {
    let _index = tail.upload.index_turn.take().await;
    // The number of deltas that the root lists for the prefix; they are its first.
    let (prefix, mut deltas, lsn) = {
        let _turn = tail.upload.turn.take().await;
        let lsn = newest_in_index(tail);
        let mut inner = tail.lock();
        if !inner.points.is_empty() && !canary::active!("fold_passes_a_point") {
            // A point was taken while this waited for its turn. The fold is due again when the point has been
            // released.
            return Ok(());
        }
        let prefix = FoldInput {
            layers: inner.index.freeze(),
            lost: inner
                .index
                .unreadable_spans()
                .iter()
                .copied()
                .map(whole_pages)
                .collect(),
        };
        inner.points.set_fold_next(false);
        (prefix, inner.index.listed, lsn)
    };
    // Points may be taken again from here on.
    tail.upload.wake_all();
    let existing: Vec<u64> = tail.lock().index.nodes.keys().copied().collect();
    let layers = prefix.layers.clone();
    let bytes = layers.iter().map(|layer| layer.len() as u64).sum::<u64>() * EXTENT_BYTES;
    let touched = move || touched_nodes(&existing, &layers);
    let mut nodes = engine
        .port
        .compute(ComputeKind::Fold, bytes, touched)
        .await?;
    // Without touched nodes nothing is written, and the windows are cut all the same.
    nodes.extend(nodes.is_empty().then_some(0));
    let mut rest = DeltaMap::default();
    let mut step = Step::new(engine, tail, lsn);
    for (nth, number) in nodes.iter().enumerate() {
        let folded = fold_node(&mut step.out, &prefix, *number).await?;
        step.add(folded, *number);
        if step.pages >= STEP_PAGES || nth + 1 == nodes.len() {
            let is_last = nth + 1 == nodes.len();
            step.may_wait = is_last && step.begin == 0;
            let end = if is_last {
                u64::MAX
            } else {
                (number + 1) * NODE_SECTORS
            };
            let span = Span {
                start: step.begin,
                end,
            };
            let blocked = unfolded_spans(&prefix.lost, &step.blocked, span);
            for span in &blocked {
                copy_deltas(&prefix.layers, *span, &mut rest);
            }
            deltas = step.commit(deltas, span, &blocked).await?;
        }
    }
    let folded = tail
        .lock()
        .index
        .drop_folded(prefix.layers.len(), rest, deltas);
    drop(prefix);
    let release = move || drop(folded);
    let released = engine.port.compute(ComputeKind::Release, bytes, release);
    released.await.map_err(OpenError::from)
}

/// The LSN up to which the index may have slices, during a turn at the root. The publisher takes no turns: it
/// puts a slice into the index, pauses, and reports it as stored later. But it records a record's content before
/// that, and an update without a record is in the root before.
fn newest_in_index(tail: &Tail) -> Lsn {
    if canary::active!("folded_is_what_is_stored") {
        return tail.stored_lsn();
    }
    let head = tail.upload.head().map_or(Lsn::ZERO, |head| head.root.lsn);
    tail.stored_lsn().max(tail.upload.published().0).max(head)
}

/// Nodes that deltas change, ascending. Zeroes count only for nodes that exist, so the discard of a whole volume
/// costs no more than the nodes that its root lists.
fn touched_nodes(existing: &[u64], layers: &[Arc<DeltaMap>]) -> BTreeSet<u64> {
    let mut touched = BTreeSet::new();
    for (span, delta) in layers.iter().flat_map(|layer| layer.iter()) {
        let (first, last) = (span.start / NODE_SECTORS, (span.end - 1) / NODE_SECTORS);
        match delta {
            Delta::Part(_) => touched.extend(first..=last),
            Delta::Zeroes | Delta::Lost => {
                let from = existing.partition_point(|node| *node < first);
                let nodes = existing[from..].iter().copied();
                touched.extend(nodes.take_while(|node| *node <= last));
            }
        }
    }
    touched
}

fn whole_pages(span: Span) -> Span {
    Span {
        start: span.start / PAGE_SECTORS * PAGE_SECTORS,
        end: span.end.next_multiple_of(PAGE_SECTORS),
    }
}

/// The parts of `within` that were not folded: `lost` and `blocked`, ascending and disjoint.
fn unfolded_spans(lost: &[Span], blocked: &[Span], within: Span) -> Vec<Span> {
    let mut spans: Vec<Span> = lost.iter().map(|span| span.intersect(within)).collect();
    spans.extend(blocked);
    spans.sort_by_key(|span| span.start);
    let mut apart: Vec<Span> = Vec::new();
    for span in spans.into_iter().filter(|span| !span.is_empty()) {
        match apart.last_mut() {
            Some(last) if last.end >= span.start => last.end = last.end.max(span.end),
            _ => apart.push(span),
        }
    }
    apart
}

/// Copies what the layers have within `span` into one map.
fn copy_deltas(layers: &[Arc<DeltaMap>], span: Span, to: &mut DeltaMap) {
    walk_layers(layers, span, &mut |part, delta| {
        if let Some(delta) = delta {
            to.insert(part, delta.clone(), |_, _| {});
        }
    });
}

/// The nodes between two updates of the root.
struct Step<'a> {
    engine: &'a Arc<Engine>,
    tail: &'a Arc<Tail>,
    out: Output<'a>,
    /// The newest LSN that is folded.
    folded: Lsn,
    /// The sector at which the step begins; everything before it is folded.
    begin: u64,
    nodes: Vec<(u64, Option<BlockRef>)>,
    /// Blocks that the new ones replace.
    replaced: Vec<BlockRef>,
    pages: usize,
    /// Whole pages that were not folded, ascending.
    blocked: Vec<Span>,
    /// It is all of the fold: others of a long fold do not wait one after the other.
    may_wait: bool,
}

impl<'a> Step<'a> {
    fn new(engine: &'a Arc<Engine>, tail: &'a Arc<Tail>, folded: Lsn) -> Step<'a> {
        Step {
            engine,
            tail,
            out: Output::new(engine, tail),
            folded,
            begin: 0,
            nodes: Vec::new(),
            replaced: Vec::new(),
            pages: 0,
            blocked: Vec::new(),
            may_wait: false,
        }
    }

    fn add(&mut self, folded: FoldedNode, number: u64) {
        self.pages += folded.pages;
        self.replaced.extend(folded.replaced);
        if let Some(block) = folded.block {
            self.nodes.push((number, block));
        }
        let blocked = folded.blocked.into_iter();
        self.blocked
            .extend(blocked.map(|page| Span::new(page * PAGE_SECTORS, PAGE_SECTORS)));
    }

    /// Updates the root: adds the nodes, and cuts `folded`, except for what is `blocked`, out of the windows of
    /// the first `deltas` deltas. Returns how many of these are left. A record names the objects before, so that
    /// the collector keeps them even if a copy of this host made that record. If the root moved meanwhile the
    /// whole step begins again, with new objects.
    async fn commit(
        &mut self,
        deltas: usize,
        folded: Span,
        blocked: &[Span],
    ) -> Result<usize, OpenError> {
        let (engine, tail) = (self.engine, self.tail);
        self.out.flush().await?;
        // Held until the root names them, or until the update has failed.
        let objects = self.out.take_objects();
        let named = |object: &UnnamedObject| NamedObject {
            volume: 0,
            is_index: true,
            is_kept: false,
            number: object.id().number,
        };
        let names: Vec<NamedObject> = objects.iter().map(named).collect();
        let _turn = name_and_take_turn(engine, tail, &names, self.may_wait).await?;
        if tail.lock().status != Status::Live {
            return Err(OpenError::Fenced(tail.name().to_owned()));
        }
        let mut update = begin_update(engine, tail).await?;
        let root = &mut update.root;
        let later = root.deltas.split_off(deltas);
        let left: Vec<DeltaRef> = root
            .deltas
            .iter()
            .flat_map(|delta| cut_window(*delta, folded, blocked))
            .collect();
        let mut listed: BTreeMap<u64, BlockRef> = root.nodes.iter().copied().collect();
        for (node, block) in &self.nodes {
            match block {
                Some(block) => listed.insert(*node, *block),
                None => listed.remove(node),
            };
        }
        root.nodes = listed.into_iter().collect();
        root.set_folded(self.folded);
        let named = root.sessions.extend(engine.own_sessions());
        named.map_err(|error| OpenError::Corrupt(format!("{}: {error}", tail.name())))?;
        let count = left.len();
        root.deltas = left;
        root.deltas.extend(later);
        finish_update(engine, tail, &update).await?;
        {
            let mut inner = tail.lock();
            inner.index.replace_nodes(&self.nodes);
            inner.index.listed = inner.index.listed + count - deltas;
        }
        engine.record_tail(tail);
        engine.blocks.remove(&self.replaced);
        self.begin = folded.end;
        self.pages = 0;
        self.nodes.clear();
        self.replaced.clear();
        self.blocked.clear();
        Ok(count)
    }
}

/// Names objects in a record of the host's log, and takes the turn at the root. Another update may have moved the
/// root's mark past that record, after which nothing would keep the objects: then another record names them.
pub(in crate::store) async fn name_and_take_turn<'a>(
    engine: &Engine,
    tail: &'a Arc<Tail>,
    objects: &[NamedObject],
    mut may_wait: bool,
) -> Result<RootTurnGuard<'a>, OpenError> {
    loop {
        let head = || {
            let head = tail.upload.head();
            head.ok_or_else(|| OpenError::InUse(tail.name().to_owned()))
        };
        let before = head()?.root;
        if !objects.is_empty() && !canary::active!("fold_names_its_objects_nowhere") {
            let log = &engine.host_log;
            let due_ns = match may_wait && !is_pressing(engine, tail) {
                true => next_record_ns(engine),
                false => 0,
            };
            log.name_objects(tail, before.epoch, objects, due_ns)
                .await?;
            may_wait = false;
        }
        let turn = tail.upload.turn.take().await;
        let is_moved = head()?.root.mark() != before.mark();
        if !is_moved
            || objects.is_empty()
            || canary::active!("moved_root_names_what_was_named_before")
        {
            return Ok(turn);
        }
    }
}

/// Whether somebody waits for the fold, or memory does.
fn is_pressing(engine: &Engine, tail: &Tail) -> bool {
    let extents_max = engine.options.delta_extents_of(engine.tail_count());
    tail.upload.is_fold_asked() || tail.lock().index.unfolded_extents() > extents_max
}

/// When a record that is sent anyway will have been sent at the latest; zero where none is likely to come.
fn next_record_ns(engine: &Engine) -> u64 {
    let has_more = |tail: &Arc<Tail>| {
        let inner = tail.lock();
        inner.status == Status::Live && inner.newest > tail.stored_lsn()
    };
    let tails = engine.tails();
    match tails.len() >= MANY_VOLUMES || tails.iter().any(has_more) {
        true => engine.jobs.mono_ns().saturating_add(engine.rpo_ns()),
        false => 0,
    }
}

/// The rest of a delta's window: what is outside of `folded`, and what is `blocked`.
fn cut_window(delta: DeltaRef, folded: Span, blocked: &[Span]) -> Vec<DeltaRef> {
    let before = Span {
        start: 0,
        end: folded.start,
    };
    let behind = Span {
        start: folded.end,
        end: u64::MAX,
    };
    let mut windows: Vec<Span> = Vec::new();
    for kept in [before].iter().chain(blocked).chain([&behind]) {
        let part = delta.span.intersect(*kept);
        match windows.last_mut() {
            _ if part.is_empty() => {}
            Some(last) if last.end == part.start => last.end = part.end,
            _ => windows.push(part),
        }
    }
    let with = |span| DeltaRef { span, ..delta };
    windows.into_iter().map(with).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::object::ObjectId;

    #[test]
    fn a_window_keeps_what_is_not_folded() {
        let span = |start, end| Span { start, end };
        let delta = DeltaRef {
            pack: ObjectId::default(),
            footer_offset: 0,
            footer_bytes: 0,
            last: Lsn(1),
            span: span(10, 90),
        };
        let cut = |folded, blocked: &[Span]| -> Vec<Span> {
            let left = cut_window(delta, folded, blocked);
            left.into_iter().map(|delta| delta.span).collect()
        };
        assert_eq!(cut(span(0, 100), &[]), []);
        assert_eq!(cut(span(0, 40), &[]), [span(40, 90)]);
        assert_eq!(cut(span(40, u64::MAX), &[]), [span(10, 40)]);
        assert_eq!(cut(span(0, 10), &[]), [span(10, 90)]);
        let blocked = [span(20, 30), span(50, 60)];
        assert_eq!(cut(span(0, 100), &blocked), blocked);
        assert_eq!(cut(span(0, 60), &blocked), [span(20, 30), span(50, 90)]);
    }
}
