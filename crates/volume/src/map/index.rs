//! What the store holds of a volume, as far as it is in memory.
//!
//! Deltas (the extents of recent packs) lie over base pages. All deltas and the directory are in
//! memory once a volume is open; pages are loaded when first needed and a bounded number is
//! kept. So any 4 KiB block costs at most one index request and one data request.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use crate::map::{ExtentMap, SectorRun};
use crate::object::pack::Codec;
use crate::object::pack::{ChunkPart, Item};
use crate::object::page::{BlockRef, NODE_PAGES, PAGE_SECTORS};
use crate::units::Span;

/// What a delta says about some sectors: zeroes hide the base pages too.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Delta {
    Part(ChunkPart),
    Zeroes,
    /// Of a pack whose footer cannot be read: what it has of these sectors is not known.
    Lost,
}

impl SectorRun for Delta {
    fn skip(&self, sectors: u64) -> Delta {
        match self {
            Delta::Part(part) => Delta::Part(part.skip(sectors)),
            Delta::Zeroes => Delta::Zeroes,
            Delta::Lost => Delta::Lost,
        }
    }
}

/// What the index knows about some sectors.
#[derive(Debug)]
pub(crate) enum IndexEntry<'a> {
    Part(&'a ChunkPart),
    /// Never written, or zeroed.
    Hole,
    /// This page must be loaded first.
    Unloaded(u64),
    /// There was content, and there is none to be had.
    Damaged,
}

impl IndexEntry<'_> {
    fn of(part: &ChunkPart) -> IndexEntry<'_> {
        match part.chunk.codec {
            Codec::Damaged => IndexEntry::Damaged,
            Codec::Plain | Codec::Zstd => IndexEntry::Part(part),
        }
    }
}

type Page = Arc<ExtentMap<ChunkPart>>;

#[derive(Debug, Default)]
pub(crate) struct Index {
    /// Nodes as the root lists them.
    pub(crate) nodes: BTreeMap<u64, BlockRef>,
    /// Pages as the nodes list them.
    pub(crate) directory: BTreeMap<u64, BlockRef>,
    /// Nodes that the root lists and that cannot be read.
    lost_nodes: BTreeSet<u64>,
    /// An object of the index cannot be read: what is folded now would be without it for good.
    lost: bool,
    deltas: ExtentMap<Delta>,
    pages: BTreeMap<u64, Page>,
    /// Loaded pages, the least recently loaded first.
    order: VecDeque<u64>,
}

/// The extent of the volume's own address space that a pack's item stands for.
pub(crate) fn delta_of(item: &Item) -> (Span, Delta) {
    match item {
        Item::Chunk(chunk) => {
            let part = ChunkPart {
                chunk: Arc::new(chunk.clone()),
                skip: 0,
            };
            (chunk.span, Delta::Part(part))
        }
        Item::Zeroes { span, .. } => (*span, Delta::Zeroes),
    }
}

impl Index {
    /// Lays an extent over everything that is known.
    pub(crate) fn apply_delta(&mut self, span: Span, delta: Delta) {
        self.deltas.insert(span, delta, |_, _| {});
    }

    /// The pack of a delta cannot be read; all its extents lie within `span`.
    pub(crate) fn lose_delta(&mut self, span: Span) {
        self.lost = true;
        if !span.is_empty() {
            self.apply_delta(span, Delta::Lost);
        }
    }

    /// A node cannot be read.
    pub(crate) fn lose_node(&mut self, node: u64) {
        self.lost = true;
        self.lost_nodes.insert(node);
    }

    /// A page cannot be read; its reads say so by themselves.
    pub(crate) fn lose_page(&mut self) {
        self.lost = true;
    }

    /// Whether an object of the index cannot be read. While that is so nothing is folded, so that the
    /// volume is whole again once the object is put back.
    pub(crate) fn has_lost(&self) -> bool {
        self.lost
    }

    pub(crate) fn delta_extents(&self) -> usize {
        self.deltas.len()
    }

    /// Walks `span` in order and visits each sector once.
    pub(crate) fn lookup(&self, span: Span, visit: &mut dyn FnMut(Span, IndexEntry<'_>)) {
        self.deltas.walk(span, |part, delta| match delta {
            Some(Delta::Part(chunk)) => visit(part, IndexEntry::of(chunk)),
            Some(Delta::Zeroes) => visit(part, IndexEntry::Hole),
            Some(Delta::Lost) => visit(part, IndexEntry::Damaged),
            None => self.lookup_base(part, visit),
        });
    }

    fn lookup_base(&self, span: Span, visit: &mut dyn FnMut(Span, IndexEntry<'_>)) {
        let mut at = span.start;
        while at < span.end {
            let number = at / PAGE_SECTORS;
            if self.lost_nodes.contains(&(number / NODE_PAGES)) {
                let node_end = (number / NODE_PAGES + 1) * NODE_PAGES * PAGE_SECTORS;
                let end = span.end.min(node_end);
                visit(Span { start: at, end }, IndexEntry::Damaged);
                at = end;
                continue;
            }
            if !self.directory.contains_key(&number) {
                // A hole up to the next page that exists: holes cost nothing, however large.
                let page = self.directory.range(number..).next().map(|(page, _)| *page);
                let lost = self.lost_nodes.range(number / NODE_PAGES..).next();
                let next = [page, lost.map(|node| node * NODE_PAGES)];
                let next = next.into_iter().flatten().min();
                let end = next.map_or(span.end, |page| span.end.min(page * PAGE_SECTORS));
                visit(Span { start: at, end }, IndexEntry::Hole);
                at = end;
                continue;
            }
            let part = Span {
                start: at,
                end: span.end.min((number + 1) * PAGE_SECTORS),
            };
            match self.pages.get(&number) {
                Some(page) => page.walk(part, |part, chunk| {
                    visit(part, chunk.map_or(IndexEntry::Hole, IndexEntry::of));
                }),
                None => visit(part, IndexEntry::Unloaded(number)),
            }
            at = part.end;
        }
    }

    pub(crate) fn page(&self, number: u64) -> Option<Page> {
        self.pages.get(&number).cloned()
    }

    /// Keeps a loaded page if the directory still names the block that it was read from.
    pub(crate) fn insert_page(&mut self, number: u64, from: BlockRef, page: Page, most: usize) {
        if self.directory.get(&number) != Some(&from) {
            return;
        }
        if self.pages.insert(number, page).is_none() {
            self.order.push_back(number);
        }
        while self.order.len() > most.max(16) {
            if let Some(oldest) = self.order.pop_front() {
                self.pages.remove(&oldest);
            }
        }
    }

    /// Pages that deltas touch, ascending, from the delta at or after sector `from` on; looks at
    /// no more than `most` extents. Second, where to go on; none at the end.
    pub(crate) fn touched_pages(&self, from: u64, most: usize) -> (Vec<u64>, Option<u64>) {
        let mut touched = Vec::new();
        let mut extents = self.deltas.iter_from(from);
        for (span, delta) in extents.by_ref().take(most) {
            let first = span.start / PAGE_SECTORS;
            let last = (span.end - 1) / PAGE_SECTORS;
            match delta {
                Delta::Part(_) | Delta::Lost => touched.extend(first..=last),
                // Zeroes change only pages that exist; a discard of a terabyte touches few.
                Delta::Zeroes => {
                    touched.extend(self.directory.range(first..=last).map(|(page, _)| *page));
                }
            }
        }
        touched.dedup();
        (touched, extents.next().map(|(span, _)| span.start))
    }

    /// A page with the deltas laid over it; `base` is its present content.
    pub(crate) fn folded_page(
        &self,
        number: u64,
        base: Option<&ExtentMap<ChunkPart>>,
    ) -> ExtentMap<ChunkPart> {
        let mut page = base.cloned().unwrap_or_default();
        let span = Span::new(number * PAGE_SECTORS, PAGE_SECTORS);
        self.deltas.walk(span, |part, delta| match delta {
            Some(Delta::Part(chunk)) => page.insert(part, chunk.clone(), |_, _| {}),
            Some(Delta::Zeroes) => page.remove(part, |_, _| {}),
            Some(Delta::Lost) => debug_assert!(false, "nothing is folded over what is lost"),
            None => {}
        });
        page
    }

    /// The deltas were folded: new blocks for pages and nodes (none: it is empty now). Gives the
    /// deltas back, so that the caller drops them without the volume's lock.
    #[must_use]
    pub(crate) fn apply_fold(
        &mut self,
        pages: Vec<(u64, Option<BlockRef>)>,
        nodes: Vec<(u64, Option<BlockRef>)>,
    ) -> ExtentMap<Delta> {
        for (number, block) in pages {
            match block {
                Some(block) => self.directory.insert(number, block),
                None => self.directory.remove(&number),
            };
            self.pages.remove(&number);
            self.order.retain(|other| *other != number);
        }
        for (number, block) in nodes {
            match block {
                Some(block) => self.nodes.insert(number, block),
                None => self.nodes.remove(&number),
            };
        }
        std::mem::take(&mut self.deltas)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;
    use crate::object::ObjectId;
    use crate::object::pack::{Chunk, Codec};
    use crate::units::{Lsn, VolumeId};

    /// Sectors around the borders of the first three pages.
    const AREAS: [u64; 3] = [0, PAGE_SECTORS - 8, 2 * PAGE_SECTORS - 8];

    fn part(offset: u32, span: Span) -> ChunkPart {
        let chunk = Chunk {
            pack: ObjectId::default(),
            offset,
            stored: 1,
            origin: VolumeId::default(),
            span,
            lsn: Lsn(1),
            codec: Codec::Plain,
            checksum: 0,
        };
        ChunkPart {
            chunk: Arc::new(chunk),
            skip: 0,
        }
    }

    #[derive(Clone, Debug)]
    enum Change {
        Put(Span),
        Zero(Span),
        Fold,
    }

    fn change() -> impl Strategy<Value = Change> {
        let span = (0..3_usize, 0_u64..16, 1_u64..12)
            .prop_map(|(area, start, len)| Span::new(AREAS[area] + start, len));
        prop_oneof![
            4 => span.clone().prop_map(Change::Put),
            2 => span.prop_map(Change::Zero),
            1 => Just(Change::Fold),
        ]
    }

    /// Folds as `fold` does, with blocks named by a counter and pages kept here.
    fn fold(index: &mut Index, blocks: &mut BTreeMap<u32, Page>) {
        let mut pages = Vec::new();
        let mut from = Some(0);
        while let Some(at) = from {
            let (touched, next) = index.touched_pages(at, 1);
            for number in touched {
                if pages.iter().any(|(other, _)| *other == number) {
                    continue;
                }
                let base = index
                    .directory
                    .get(&number)
                    .map(|block| &*blocks[&block.offset]);
                let page = index.folded_page(number, base);
                let offset = blocks.len() as u32;
                let block = BlockRef {
                    object: ObjectId::default(),
                    offset,
                    bytes: 1,
                };
                let block = (!page.is_empty()).then_some(block);
                blocks.insert(offset, Arc::new(page));
                pages.push((number, block));
            }
            from = next;
        }
        drop(index.apply_fold(pages, Vec::new()));
        assert_eq!(index.delta_extents(), 0);
    }

    fn lookup(index: &mut Index, blocks: &BTreeMap<u32, Page>, sector: u64) -> Option<u64> {
        loop {
            let mut found = None;
            let mut missing = None;
            index.lookup(Span::new(sector, 1), &mut |_, stored| match stored {
                IndexEntry::Part(part) => {
                    found = Some(u64::from(part.chunk.offset) * 1000 + u64::from(part.skip));
                }
                IndexEntry::Damaged => panic!("nothing is lost here"),
                IndexEntry::Hole => {}
                IndexEntry::Unloaded(page) => missing = Some(page),
            });
            let Some(number) = missing else { return found };
            let block = index.directory[&number];
            index.insert_page(number, block, Arc::clone(&blocks[&block.offset]), 16);
        }
    }

    proptest! {
        #[test]
        fn folding_changes_nothing_that_a_reader_sees(
            changes in prop::collection::vec(change(), 1..24),
        ) {
            let mut index = Index::default();
            let mut blocks = BTreeMap::new();
            let mut model: BTreeMap<u64, u64> = BTreeMap::new();
            for (n, change) in changes.into_iter().enumerate() {
                match change {
                    Change::Put(span) => {
                        index.apply_delta(span, Delta::Part(part(n as u32 + 1, span)));
                        for sector in span.start..span.end {
                            model.insert(sector, (n as u64 + 1) * 1000 + sector - span.start);
                        }
                    }
                    Change::Zero(span) => {
                        index.apply_delta(span, Delta::Zeroes);
                        model.retain(|sector, _| !(span.start..span.end).contains(sector));
                    }
                    Change::Fold => fold(&mut index, &mut blocks),
                }
                for area in AREAS {
                    for sector in area..area + 28 {
                        let found = lookup(&mut index, &blocks, sector);
                        prop_assert_eq!(found, model.get(&sector).copied(), "sector {}", sector);
                    }
                }
            }
        }
    }
}
