//! Walking a volume's pages for compaction: what is to be moved, a step of it.
//!
//! It must never gather what a delta hides, nor what is newer than the step's LSN: a copy is the state at that LSN,
//! wherever it is looked at later.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use blkmq::error::ErrorKind;
use blkmq::io::SECTOR_BYTES;

use super::choose::Selection;
use crate::cache::blocks::{BlockKind, BlockTarget, IndexBlock};
use crate::driver::ComputeKind;
use crate::engine::Engine;
use crate::error::OpenError;
use crate::jobs::join_all;
use crate::map::index::NODE_SECTORS;
use crate::object::ObjectId;
use crate::object::node::Node;
use crate::object::pack::{Chunk, Codec};
use crate::object::page::{BlockRef, NODE_PAGES, PAGE_SECTORS, Page};
use crate::request::tail::Tail;
use crate::store::fetch::GAP_BYTES;
use crate::store::fold::index_blocks::{LOADS_AT_ONCE, read};
use crate::units::{Lsn, Span, VolumeId};

/// What a sequential reader asks for at once, for which there are to be few requests.
const WINDOW_SECTORS: u64 = (128 << 10) / SECTOR_BYTES;
/// Memory of the pages of a step.
const STEP_PAGE_BYTES: u64 = 16 << 20;
/// Parts that are looked for in deltas under one lock.
const PARTS_PER_LOCK: usize = 256;

/// A part of a chunk, as a page has it.
#[derive(Clone, Debug)]
pub(super) struct Part {
    pub(super) span: Span,
    pub(super) chunk: Arc<Chunk>,
    pub(super) skip: u32,
}

impl Part {
    /// It is the whole chunk, in its own place.
    pub(super) fn is_whole(&self) -> bool {
        self.skip == 0 && self.span == self.chunk.span
    }

    fn cut(&self, span: Span) -> Part {
        let before = u32::try_from(span.start - self.span.start).expect("within a page");
        Part {
            span,
            chunk: Arc::clone(&self.chunk),
            skip: self.skip + before,
        }
    }
}

/// What one step moves.
#[derive(Debug, Default)]
pub(super) struct StepPlan {
    /// Ascending; of whole pages, as far as they are to be moved.
    pub(super) parts: Vec<Part>,
    /// The pages as they were.
    pub(super) pages: BTreeMap<u64, (BlockRef, Arc<Page>)>,
    /// Everything up to here was taken into account.
    pub(super) lsn: Lsn,
    /// Uncompressed bytes of the chunks.
    pub(super) chunk_bytes: u64,
    pub(super) index_bytes: u64,
    /// The page from which the next step goes on.
    pub(super) next: Option<u64>,
}

/// A node; none: it cannot be read, and what it covers is left alone.
pub(super) async fn read_node(
    engine: &Engine,
    tail: &Tail,
    (number, block): (u64, BlockRef),
) -> Result<Option<Arc<Node>>, OpenError> {
    let kind = BlockKind::Node;
    let target = BlockTarget {
        kind,
        number,
        block,
    };
    match read(engine, tail, target).await {
        Ok((IndexBlock::Node(node), _)) => Ok(Some(node)),
        Ok((IndexBlock::Page(_), _)) | Err(ErrorKind::Corrupt) => Ok(None),
        Err(error) => Err(unreadable(tail, target, error)),
    }
}

/// The pages that can be read, side by side; no more than are loaded at once.
pub(super) async fn read_pages(
    engine: &Engine,
    tail: &Tail,
    pages: &[(u64, BlockRef)],
) -> Result<Vec<(u64, BlockRef, Arc<Page>)>, OpenError> {
    let target = |(number, block): &(u64, BlockRef)| BlockTarget {
        kind: BlockKind::Page,
        number: *number,
        block: *block,
    };
    let targets: Vec<BlockTarget> = pages.iter().map(target).collect();
    let reads = targets
        .iter()
        .map(|target| Box::pin(read(engine, tail, *target)));
    let mut found = Vec::new();
    for (target, read) in targets.iter().zip(join_all(reads.collect()).await) {
        match read {
            Ok((IndexBlock::Page(page), _)) => found.push((target.number, target.block, page)),
            Ok((IndexBlock::Node(_), _)) | Err(ErrorKind::Corrupt) => {}
            Err(error) => return Err(unreadable(tail, *target, error)),
        }
    }
    Ok(found)
}

fn unreadable(tail: &Tail, target: BlockTarget, error: ErrorKind) -> OpenError {
    OpenError::Store(format!(
        "read of index object {}: block {} of {}: {error}",
        target.block.object,
        target.number,
        tail.name()
    ))
}

/// Which chunks a volume may write anew for their place alone.
pub(super) struct Movable<'a> {
    /// The volume. What a fork has from its parent stays where it lies: each fork would have a copy of its own.
    pub(super) own: VolumeId,
    /// Packs that are left alone.
    pub(super) unreadable: &'a BTreeSet<ObjectId>,
}

impl Movable<'_> {
    fn has(&self, chunk: &Chunk) -> bool {
        let is_own = chunk.origin == self.own || canary::active!("a_fork_copies_what_it_shares");
        is_own && !self.unreadable.contains(&chunk.pack)
    }
}

/// The windows of a page for which a reader would need more than `runs_max` requests for what can be moved, neighbours
/// joined.
pub(super) fn scattered(
    number: u64,
    page: &Page,
    movable: &Movable<'_>,
    runs_max: usize,
) -> Vec<Span> {
    let begin = number * PAGE_SECTORS;
    let mut windows: Vec<Span> = Vec::new();
    let mut places: Vec<(ObjectId, u64, u64)> = Vec::new();
    for nth in 0..PAGE_SECTORS / WINDOW_SECTORS {
        let window = Span::new(begin + nth * WINDOW_SECTORS, WINDOW_SECTORS);
        places.clear();
        page.walk(window, |_, found| {
            let counts = |chunk: &Chunk| chunk.stored > 0 && movable.has(chunk);
            if let Some((chunk, _)) = found.filter(|(chunk, _)| counts(chunk)) {
                let offset = u64::from(chunk.offset);
                places.push((chunk.pack, offset, offset + u64::from(chunk.stored)));
            }
        });
        if places.len() <= runs_max || runs_of(&mut places) <= runs_max {
            continue;
        }
        match windows.last_mut() {
            Some(last) if last.end == window.start => last.end = window.end,
            _ => windows.push(window),
        }
    }
    windows
}

/// How many requests bring these places, each a pack, a beginning and an end.
fn runs_of(places: &mut [(ObjectId, u64, u64)]) -> usize {
    places.sort_unstable();
    let joins = |one: &(ObjectId, u64, u64), next: &(ObjectId, u64, u64)| {
        one.0 == next.0 && next.1 <= one.2 + GAP_BYTES
    };
    places.chunk_by(joins).count()
}

/// What of a page of the volume is to be moved, whether or not a delta hides it.
fn wanted(
    number: u64,
    page: &Page,
    own: VolumeId,
    chosen: &Selection,
    runs_max: usize,
) -> Vec<Part> {
    let movable = Movable {
        own,
        unreadable: &chosen.unreadable,
    };
    let is_named = page.packs().any(|pack| chosen.packs.contains(&pack));
    let windows = match chosen.pages.contains(&number) {
        true => scattered(number, page, &movable, runs_max),
        false => Vec::new(),
    };
    if !is_named && windows.is_empty() {
        return Vec::new();
    }
    let mut known: BTreeMap<(ObjectId, u32, u64), Arc<Chunk>> = BTreeMap::new();
    let mut parts = Vec::new();
    for (span, chunk, skip) in page.extents() {
        let is_chosen = chosen.packs.contains(&chunk.pack);
        let key = (chunk.pack, chunk.offset, chunk.span.start);
        let chunk = Arc::clone(known.entry(key).or_insert_with(|| Arc::new(chunk)));
        let part = Part { span, chunk, skip };
        if is_chosen {
            parts.push(part);
            continue;
        }
        if !movable.has(&part.chunk) {
            continue;
        }
        let within = windows.iter().map(|window| span.intersect(*window));
        let within = within.filter(|within| !within.is_empty());
        parts.extend(within.map(|within| part.cut(within)));
    }
    parts
}

/// Gathers a step from this page on.
pub(super) async fn gather(
    engine: &Arc<Engine>,
    tail: &Arc<Tail>,
    chosen: &Selection,
    from: u64,
) -> Result<StepPlan, OpenError> {
    let mut step = StepPlan {
        // Before any delta is looked for: all of these are in the index.
        lsn: tail.stored_lsn(),
        ..StepPlan::default()
    };
    let nodes: Vec<(u64, BlockRef)> = {
        let inner = tail.lock();
        let nodes = inner.index.nodes.range(from / NODE_PAGES..);
        nodes.map(|(number, block)| (*number, *block)).collect()
    };
    for of in nodes {
        let Some(node) = read_node(engine, tail, of).await? else {
            continue;
        };
        step.index_bytes += u64::from(of.1.bytes);
        let pages: Vec<(u64, BlockRef)> = node.pages().filter(|(page, _)| *page >= from).collect();
        for pages in pages.chunks(LOADS_AT_ONCE) {
            let last = gather_pages(engine, tail, chosen, (of, pages), &mut step).await?;
            let is_full = step.is_full(engine.options.pack_bytes);
            if is_full || step.index_bytes >= STEP_PAGE_BYTES {
                step.next = Some(last + 1);
                return Ok(step);
            }
        }
    }
    Ok(step)
}

impl StepPlan {
    fn is_full(&self, pack_bytes: u64) -> bool {
        let pages = self.pages.values().map(|(_, page)| page.memory_bytes());
        self.chunk_bytes >= pack_bytes || pages.sum::<u64>() >= STEP_PAGE_BYTES
    }
}

/// Takes pages of a node until the step is full; the last that was looked at.
async fn gather_pages(
    engine: &Arc<Engine>,
    tail: &Arc<Tail>,
    chosen: &Selection,
    ((node, block), pages): ((u64, BlockRef), &[(u64, BlockRef)]),
    step: &mut StepPlan,
) -> Result<u64, OpenError> {
    let end = pages.last().map_or(0, |(page, _)| *page);
    let loaded = read_pages(engine, tail, pages).await?;
    step.index_bytes += pages.iter().map(|(_, at)| u64::from(at.bytes)).sum::<u64>();
    let bytes = loaded.iter().map(|(.., page)| page.memory_bytes()).sum();
    let (picked, runs_max) = (chosen.clone(), engine.options.compact.runs_max);
    let own = tail.id().volume;
    let find = move || -> Vec<_> {
        let wanted = loaded.into_iter().map(|(number, at, page)| {
            let parts = wanted(number, &page, own, &picked, runs_max);
            (number, at, page, parts)
        });
        wanted.collect()
    };
    let found = engine.port.compute(ComputeKind::Fold, bytes, find).await?;
    for (number, at, page, parts) in found {
        let visible = visible(tail, (node, block), parts, step.lsn);
        if !visible.is_empty() {
            step.add(visible);
            step.pages.insert(number, (at, page));
        }
        if step.is_full(engine.options.pack_bytes) {
            return Ok(number);
        }
    }
    Ok(end)
}

impl StepPlan {
    fn add(&mut self, parts: Vec<Part>) {
        let chunks: BTreeSet<(ObjectId, u32)> = parts
            .iter()
            .map(|part| (part.chunk.pack, part.chunk.offset))
            .collect();
        let mut counted = BTreeSet::new();
        for part in &parts {
            let key = (part.chunk.pack, part.chunk.offset);
            if part.chunk.codec != Codec::Damaged && chunks.contains(&key) && counted.insert(key) {
                self.chunk_bytes += part.chunk.span.bytes();
            }
        }
        self.parts.extend(parts);
    }
}

/// The parts that no delta hides, of commits up to an LSN; none if the node is not the volume's any more: then
/// deltas that hid something may be in its successor.
fn visible(tail: &Tail, (node, block): (u64, BlockRef), parts: Vec<Part>, lsn: Lsn) -> Vec<Part> {
    debug_assert!(
        parts
            .iter()
            .all(|part| part.span.start / NODE_SECTORS == node)
    );
    let mut found = Vec::new();
    for some in parts.chunks(PARTS_PER_LOCK) {
        let inner = tail.lock();
        if inner.index.nodes.get(&node) != Some(&block) {
            return Vec::new();
        }
        for part in some.iter().filter(|part| part.chunk.lsn <= lsn) {
            if canary::active!("copies_have_what_deltas_hide") {
                found.push(part.clone());
                continue;
            }
            inner
                .index
                .walk_uncovered(part.span, &mut |span| found.push(part.cut(span)));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_that_one_request_brings_are_one_run() {
        let pack = |number| ObjectId { session: 1, number };
        let mut places = vec![
            (pack(2), 0, 10),
            (pack(1), 10, 20),
            (pack(1), 0, 10),
            (pack(1), 20 + GAP_BYTES, 30 + GAP_BYTES),
            (pack(1), 31 + 2 * GAP_BYTES, 40 + 2 * GAP_BYTES),
        ];
        assert_eq!(runs_of(&mut places), 3);
        assert_eq!(runs_of(&mut places[..0]), 0);
    }
}
