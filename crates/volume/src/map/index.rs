//! What the store holds of a volume, as far as it is in memory.
//!
//! Deltas (the extents of recent packs) lie over base pages. All deltas are in memory once a volume is
//! open; of the pages and of the nodes that say where they are, only the root's list of nodes is: the
//! blocks themselves are the host's (`cache::blocks`) and loaded when first needed. So any 4 KiB block
//! costs at most one index request and one data request once its node is there.
//!
//! Deltas are stacked: older layers no longer change, so a fold works on them without the volume's lock
//! while what is stored meanwhile goes to the top.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Weak};

use crate::cache::blocks::{BlockCache, BlockKind, BlockTarget};
use crate::map::ExtentMap;
use crate::map::delta::Delta;
use crate::object::node::Node;
use crate::object::pack::{Chunk, Codec};
use crate::object::page::{BlockRef, NODE_PAGES, PAGE_SECTORS};
use crate::units::Span;

/// Sectors that a node covers.
pub(crate) const NODE_SECTORS: u64 = NODE_PAGES * PAGE_SECTORS;
/// Extents that one delta takes out of the top layer under the volume's lock, at most.
const HIDDEN_MAX: usize = 4096;

/// What the index knows about some sectors.
#[derive(Debug)]
pub(crate) enum IndexEntry<'a> {
    /// They are a part of this chunk, from `skip` sectors on.
    Part { chunk: &'a Chunk, skip: u32 },
    /// Never written, or zeroed.
    Hole,
    /// No root was read yet.
    Unknown,
    /// This block must be loaded first.
    Unloaded(BlockTarget),
    /// There was content, and there is none to be had.
    Damaged,
}

impl IndexEntry<'_> {
    fn of(chunk: &Chunk, skip: u32) -> IndexEntry<'_> {
        match chunk.codec {
            Codec::Damaged => IndexEntry::Damaged,
            Codec::Plain | Codec::Zstd => IndexEntry::Part { chunk, skip },
        }
    }
}

/// Layers from which on no volume begins with this one's index.
const LAYERS_MAX: usize = 64;

/// Deltas that lie over each other no more, in one map.
pub(crate) type DeltaMap = ExtentMap<Delta>;

#[derive(Clone, Debug, Default)]
pub(crate) struct Index {
    /// What the store has is not known.
    is_unknown: bool,
    /// Nodes as the root lists them.
    pub(crate) nodes: BTreeMap<u64, BlockRef>,
    /// Nodes that the root lists and that cannot be read.
    lost_nodes: BTreeSet<u64>,
    /// Where packs that cannot be read had something.
    lost: Vec<Span>,
    /// Oldest first, none empty; they change no more.
    older: Vec<Arc<DeltaMap>>,
    top: DeltaMap,
    /// How many deltas the root lists.
    pub(crate) listed: usize,
    /// How many of those a fold has left there, because it cannot fold them.
    kept: usize,
}

impl Index {
    /// Whether everything that was read of it could be.
    pub(crate) fn is_whole(&self) -> bool {
        !self.is_unknown && self.lost.is_empty() && self.lost_nodes.is_empty()
    }
}

/// The deltas of an index, as long as a volume has them.
#[derive(Debug)]
pub(crate) struct SharedDeltas(Vec<Weak<DeltaMap>>);

impl SharedDeltas {
    /// An index of these deltas, and nothing else.
    pub(crate) fn index(&self) -> Option<Index> {
        let older = self.0.iter().map(Weak::upgrade).collect::<Option<_>>()?;
        Some(Index {
            older,
            ..Index::default()
        })
    }

    pub(crate) fn is_alive(&self) -> bool {
        self.0.iter().all(|layer| layer.strong_count() > 0)
    }
}

/// Walks `span` through layers, the newest of which is the last, gaps included.
pub(crate) fn walk_layers(
    layers: &[Arc<DeltaMap>],
    span: Span,
    visit: &mut dyn FnMut(Span, Option<&Delta>),
) {
    match layers.split_last() {
        None => visit(span, None),
        Some((newest, older)) => newest.walk(span, |part, delta| match delta {
            Some(delta) => visit(part, Some(delta)),
            None => walk_layers(older, part, visit),
        }),
    }
}

impl Index {
    /// Of a volume whose root was not read yet: nothing may be said about what its log does not hold.
    pub(crate) fn unknown() -> Index {
        Index {
            is_unknown: true,
            ..Index::default()
        }
    }

    pub(crate) fn is_unknown(&self) -> bool {
        self.is_unknown
    }

    /// Lays an extent over everything that is known.
    pub(crate) fn apply_delta(&mut self, span: Span, delta: Delta) {
        // What it hides would be taken out one by one, under the lock: where that is much, the layer
        // is hidden as a whole.
        if self.top.count_up_to(span, HIDDEN_MAX) == HIDDEN_MAX {
            self.freeze();
        }
        self.top.insert(span, delta, |_, _| {});
    }

    /// The pack of a delta cannot be read; all its extents lie within `span`.
    pub(crate) fn mark_delta_unreadable(&mut self, span: Span) {
        if !span.is_empty() {
            self.lost.push(span);
            self.apply_delta(span, Delta::Lost);
        }
    }

    /// A node cannot be read.
    pub(crate) fn mark_node_unreadable(&mut self, node: u64) {
        self.lost_nodes.insert(node);
    }

    /// Where packs that cannot be read had something: nothing is folded there, so that the volume is
    /// whole again once they are put back.
    pub(crate) fn unreadable_spans(&self) -> &[Span] {
        &self.lost
    }

    /// Deltas that the root lists and a fold could take from there.
    pub(crate) fn unfolded_deltas(&self) -> usize {
        self.listed.saturating_sub(self.kept)
    }

    pub(crate) fn delta_extents(&self) -> usize {
        self.top.len() + self.older.iter().map(|layer| layer.len()).sum::<usize>()
    }

    /// Extents of deltas that a fold has not looked at.
    pub(crate) fn unfolded_extents(&self) -> usize {
        match self.kept {
            0 => self.delta_extents(),
            _ => {
                self.top.len()
                    + self
                        .older
                        .iter()
                        .skip(1)
                        .map(|layer| layer.len())
                        .sum::<usize>()
            }
        }
    }

    /// All deltas so far as layers that change no more: later ones go over them.
    pub(crate) fn freeze(&mut self) -> Vec<Arc<DeltaMap>> {
        if !self.top.is_empty() {
            self.older.push(Arc::new(std::mem::take(&mut self.top)));
        }
        self.older.clone()
    }

    /// The index as it is now, for a volume that begins as this one is. None if something of it could not be read, or if
    /// it has many layers already, of which each such volume adds one: reads walk them.
    pub(crate) fn snapshot(&mut self) -> Option<Index> {
        let is_flat = self.older.len() < LAYERS_MAX;
        (self.is_whole() && is_flat).then(|| Index {
            nodes: self.nodes.clone(),
            older: self.freeze(),
            listed: self.listed,
            kept: self.kept,
            ..Index::default()
        })
    }

    /// Its deltas as they are now, for other volumes that begin with them. None if something of it could not be read.
    pub(crate) fn share_deltas(&mut self) -> Option<SharedDeltas> {
        let is_whole = self.is_whole();
        is_whole.then(|| SharedDeltas(self.freeze().iter().map(Arc::downgrade).collect()))
    }

    /// Nodes are elsewhere now, or empty (none).
    pub(crate) fn replace_nodes(&mut self, nodes: &[(u64, Option<BlockRef>)]) {
        for (number, block) in nodes {
            self.lost_nodes.remove(number);
            match block {
                Some(block) => self.nodes.insert(*number, *block),
                None => self.nodes.remove(number),
            };
        }
    }

    /// The oldest `count` layers were folded, but for what is in `rest`. Gives them back, so that the
    /// caller drops them without the volume's lock.
    #[must_use]
    pub(crate) fn drop_folded(
        &mut self,
        count: usize,
        rest: DeltaMap,
        kept: usize,
    ) -> Vec<Arc<DeltaMap>> {
        self.kept = kept;
        let rest = (!rest.is_empty()).then(|| Arc::new(rest));
        self.older.splice(..count, rest).collect()
    }

    /// Walks `span` in order and visits each sector once.
    pub(crate) fn lookup(
        &self,
        span: Span,
        blocks: &BlockCache,
        visit: &mut dyn FnMut(Span, IndexEntry<'_>),
    ) {
        if self.is_unknown && !canary::active!("unknown_is_a_hole") {
            return visit(span, IndexEntry::Unknown);
        }
        let mut found = |part: Span, delta: Option<&Delta>| match delta {
            Some(Delta::Part(found)) => {
                let chunk = found.chunk(part.start);
                visit(part, IndexEntry::of(&chunk, found.skip))
            }
            Some(Delta::Zeroes) => visit(part, IndexEntry::Hole),
            Some(Delta::Lost) => visit(part, IndexEntry::Damaged),
            None => self.lookup_base(part, blocks, visit),
        };
        self.top.walk(span, |part, delta| match delta {
            Some(delta) => found(part, Some(delta)),
            None => walk_layers(&self.older, part, &mut found),
        });
    }

    /// Visits the parts of a span that no delta covers, in order.
    pub(crate) fn walk_uncovered(&self, span: Span, visit: &mut dyn FnMut(Span)) {
        self.top.walk(span, |part, delta| {
            if delta.is_none() {
                walk_layers(&self.older, part, &mut |part, delta| {
                    if delta.is_none() {
                        visit(part);
                    }
                });
            }
        });
    }

    /// How many deltas' extents begin in `span`, counted up to `most` of them.
    pub(crate) fn count_deltas_up_to(&self, span: Span, most: usize) -> usize {
        let older = self.older.iter().map(|layer| &**layer);
        older
            .chain([&self.top])
            .fold(0, |count, map| count + map.count_up_to(span, most - count))
    }

    /// The end of a range from `at` on whose base is one hole, or one page, or one node that is not
    /// loaded.
    pub(crate) fn base_window(&self, at: u64, blocks: &BlockCache) -> u64 {
        let number = at / NODE_SECTORS;
        let Some((next, block)) = self.nodes.range(number..).next() else {
            return u64::MAX;
        };
        if *next != number {
            return next * NODE_SECTORS;
        }
        let node_end = (number + 1) * NODE_SECTORS;
        let Some(node) = blocks.node(*block) else {
            return node_end;
        };
        let page = at / PAGE_SECTORS;
        match node.page_from(page) {
            None => node_end,
            Some((next, _)) if next != page => next * PAGE_SECTORS,
            Some(_) => (page + 1) * PAGE_SECTORS,
        }
    }

    fn lookup_base(
        &self,
        span: Span,
        blocks: &BlockCache,
        visit: &mut dyn FnMut(Span, IndexEntry<'_>),
    ) {
        let mut at = span.start;
        while at < span.end {
            let number = at / NODE_SECTORS;
            let Some((next, block)) = self.nodes.range(number..).next() else {
                return visit(Span { start: at, ..span }, IndexEntry::Hole);
            };
            let (begin, end) = (*next * NODE_SECTORS, (*next + 1) * NODE_SECTORS);
            let part = Span {
                start: at,
                end: span.end.min(if *next == number { end } else { begin }),
            };
            at = part.end;
            if *next != number {
                // A hole up to the next node that exists: holes cost nothing, however large.
                visit(part, IndexEntry::Hole);
            } else if self.lost_nodes.contains(next) {
                visit(part, IndexEntry::Damaged);
            } else if let Some(node) = blocks.node(*block) {
                lookup_node(&node, part, blocks, visit);
            } else {
                let target = BlockTarget {
                    kind: BlockKind::Node,
                    number,
                    block: *block,
                };
                visit(part, IndexEntry::Unloaded(target));
            }
        }
    }
}

/// Walks `span`, which the node covers.
fn lookup_node(
    node: &Node,
    span: Span,
    blocks: &BlockCache,
    visit: &mut dyn FnMut(Span, IndexEntry<'_>),
) {
    let mut at = span.start;
    while at < span.end {
        let number = at / PAGE_SECTORS;
        let Some((next, block)) = node.page_from(number) else {
            return visit(Span { start: at, ..span }, IndexEntry::Hole);
        };
        let (begin, end) = (next * PAGE_SECTORS, (next + 1) * PAGE_SECTORS);
        let part = Span {
            start: at,
            end: span.end.min(if next == number { end } else { begin }),
        };
        at = part.end;
        if next != number {
            visit(part, IndexEntry::Hole);
        } else if let Some(page) = blocks.page(block) {
            page.walk(part, |part, found| match found {
                Some((chunk, skip)) => visit(part, IndexEntry::of(chunk, skip)),
                None => visit(part, IndexEntry::Hole),
            });
        } else {
            let target = BlockTarget {
                kind: BlockKind::Page,
                number,
                block,
            };
            visit(part, IndexEntry::Unloaded(target));
        }
    }
}
