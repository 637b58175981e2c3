//! Folding one node: its pages with deltas laid over them, written into fresh index objects.
//!
//! Pages are loaded in parallel, except those that deltas cover wholly. Nothing names the new objects yet. It
//! must never write a page of which a part cannot be read.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use blkmq::error::ErrorKind;
use bytes::Bytes;

use crate::cache::blocks::{BlockKind, BlockTarget, IndexBlock, block_key};
use crate::driver::ComputeKind;
use crate::engine::Engine;
use crate::error::OpenError;
use crate::jobs::join_all;
use crate::map::delta::Delta;
use crate::map::index::{DeltaMap, NODE_SECTORS, walk_layers};
use crate::object::FormatError;
use crate::object::node::{Node, encode_node};
use crate::object::page::{BlockRef, NODE_PAGES, PAGE_SECTORS, Page, PageBuilder, encode_page};
use crate::object::sessions::SessionNames;
use crate::request::tail::Tail;
use crate::store::fold::index_blocks::{LOADS_AT_ONCE, read, write_to_disk};
use crate::store::host_log::unnamed::UnnamedObject;
use crate::store::immutable::put;
use crate::units::Span;

/// An index object is closed at this size.
const OBJECT_BYTES: usize = 8 << 20;

/// The approximate memory of a delta's extent.
pub(in crate::store) const EXTENT_BYTES: u64 = 80;

/// The input of a fold.
pub(in crate::store) struct FoldInput {
    /// Layers of deltas that no longer change, the oldest first.
    pub(in crate::store) layers: Vec<Arc<DeltaMap>>,
    /// Whole pages in which nothing can be folded.
    pub(in crate::store) lost: Vec<Span>,
}

/// Collects index blocks into objects and writes them.
pub(in crate::store) struct Output<'a> {
    pub(in crate::store) engine: &'a Arc<Engine>,
    pub(in crate::store) tail: &'a Tail,
    object: UnnamedObject,
    bytes: Vec<u8>,
    /// Objects in the store that nothing names yet.
    objects: Vec<UnnamedObject>,
}

impl<'a> Output<'a> {
    pub(in crate::store) fn new(engine: &'a Arc<Engine>, tail: &'a Tail) -> Output<'a> {
        Output {
            engine,
            tail,
            object: engine.next_object(),
            bytes: Vec::new(),
            objects: Vec::new(),
        }
    }

    /// Takes the objects that were written since the last call.
    pub(in crate::store) fn take_objects(&mut self) -> Vec<UnnamedObject> {
        std::mem::take(&mut self.objects)
    }

    /// Adds a block, and copies it to the cache disk, where the block that it replaces will not be looked up any
    /// more.
    pub(in crate::store) async fn add(&mut self, block: Vec<u8>) -> Result<BlockRef, OpenError> {
        if self.bytes.len() + block.len() > OBJECT_BYTES {
            self.flush().await?;
        }
        let len = |n: usize| u32::try_from(n).expect("objects are closed at 8 MiB");
        let at = BlockRef {
            object: self.object.id(),
            offset: len(self.bytes.len()),
            bytes: len(block.len()),
        };
        self.bytes.extend_from_slice(&block);
        write_to_disk(self.engine, at, block).await;
        Ok(at)
    }

    pub(in crate::store) async fn flush(&mut self) -> Result<(), OpenError> {
        let bytes = Bytes::from(std::mem::take(&mut self.bytes));
        if bytes.is_empty() {
            return Ok(());
        }
        let next = self.engine.next_object();
        let object = std::mem::replace(&mut self.object, next);
        // Only this object is repeated, not those written before it.
        let mut delay = self.engine.options.retry_ns;
        loop {
            let key = object.session().index_key(object.id().number);
            match put(self.engine, self.tail, &key, &bytes).await {
                Ok(()) => {
                    self.objects.push(object);
                    return Ok(());
                }
                Err(error) if self.tail.lock().check_serving().is_err() => return Err(error),
                Err(error) => {
                    tracing::warn!(volume = self.tail.name(), %error, "trying again");
                    self.engine.port.sleep(delay).await;
                    delay = (delay * 2).min(self.engine.options.retry_ns * 30);
                }
            }
        }
    }
}

/// The result of folding a node.
#[derive(Default)]
pub(in crate::store) struct FoldedNode {
    /// The place of the new node, inside `None` if it is empty; outside `None` if nothing of it changed.
    pub(in crate::store) block: Option<Option<BlockRef>>,
    /// Blocks that are no longer used.
    pub(in crate::store) replaced: Vec<BlockRef>,
    /// The number of pages written.
    pub(in crate::store) pages: usize,
    /// Pages that could not be folded, besides those below a pack that cannot be read.
    pub(in crate::store) blocked: BTreeSet<u64>,
}

/// Folds the input's deltas of one node.
pub(in crate::store) async fn fold_node(
    out: &mut Output<'_>,
    prefix: &FoldInput,
    number: u64,
) -> Result<FoldedNode, OpenError> {
    let (engine, tail) = (out.engine, out.tail);
    let block = tail.lock().index.nodes.get(&number).copied();
    let span = Span::new(number * NODE_SECTORS, NODE_SECTORS);
    let mut folded = FoldedNode::default();
    if is_zeroes(&prefix.layers, span) {
        // The whole node is discarded: nothing is loaded or written.
        folded.block = block.map(|_| None);
        folded.replaced.extend(block);
        return Ok(folded);
    }
    let mut listed: BTreeMap<u64, BlockRef> = match block {
        None => BTreeMap::new(),
        Some(block) => {
            let target = BlockTarget {
                kind: BlockKind::Node,
                number,
                block,
            };
            match read(engine, tail, target).await {
                Ok((IndexBlock::Node(node), _)) => node.pages().collect(),
                Ok((IndexBlock::Page(_), _)) | Err(ErrorKind::Corrupt) => {
                    folded.blocked = touched_pages(&prefix.layers, span, None);
                    return Ok(folded);
                }
                Err(error) => return Err(unreadable(tail, "node", target, error)),
            }
        }
    };
    let (layers, existing) = (prefix.layers.clone(), listed.clone());
    let plan = move || plan_pages(&layers, span, &existing);
    let bytes = listed.len() as u64 * EXTENT_BYTES;
    let planned = engine.port.compute(ComputeKind::Fold, bytes, plan).await?;
    let is_whole = |page: &PagePlan| {
        let span = page_span(page.number);
        let mut lost = prefix.lost.iter();
        lost.all(|lost| lost.intersect(span).is_empty())
    };
    let planned: Vec<PagePlan> = planned.into_iter().filter(is_whole).collect();
    for pages in planned.chunks(LOADS_AT_ONCE) {
        fold_pages(out, prefix, pages, &mut listed, &mut folded).await?;
    }
    if folded.pages > 0 {
        folded.replaced.extend(block);
        folded.block = Some(None);
        if !listed.is_empty() {
            let names = engine.names.known();
            let node = Node::new(number, &names, listed.into_iter()).map_err(unnamed(tail))?;
            let at = out.add(encode_node(tail.id().volume, &node)).await?;
            engine.blocks.insert(at, IndexBlock::Node(Arc::new(node)));
            folded.block = Some(Some(at));
        }
    }
    Ok(folded)
}

fn page_span(page: u64) -> Span {
    Span::new(page * PAGE_SECTORS, PAGE_SECTORS)
}

fn unreadable(tail: &Tail, what: &str, target: BlockTarget, error: ErrorKind) -> OpenError {
    OpenError::Store(format!(
        "read of index object {}: {what} {} of {}: {error}",
        target.block.object,
        target.number,
        tail.name()
    ))
}

/// The error for an object of a session that is not known.
fn unnamed(tail: &Tail) -> impl Fn(FormatError) -> OpenError {
    |error| OpenError::Corrupt(format!("the index of {}: {error}", tail.name()))
}

fn is_zeroes(layers: &[Arc<DeltaMap>], span: Span) -> bool {
    let mut is_so = true;
    walk_layers(layers, span, &mut |_, delta| {
        is_so &= matches!(delta, Some(Delta::Zeroes))
    });
    is_so
}

/// Pages of a node that deltas change; of those that zeroes cover, only the ones that exist.
fn touched_pages(
    layers: &[Arc<DeltaMap>],
    node: Span,
    listed: Option<&BTreeMap<u64, BlockRef>>,
) -> BTreeSet<u64> {
    let mut touched = BTreeSet::new();
    walk_layers(layers, node, &mut |part, delta| {
        let pages = part.start / PAGE_SECTORS..=(part.end - 1) / PAGE_SECTORS;
        match (delta, listed) {
            (None, _) => {}
            (Some(Delta::Zeroes), Some(listed)) => {
                touched.extend(listed.range(pages).map(|(page, _)| *page));
            }
            (Some(_), _) => touched.extend(pages),
        }
    });
    debug_assert!(
        touched
            .iter()
            .all(|page| page / NODE_PAGES == node.start / NODE_SECTORS)
    );
    touched
}

/// Whether a part of the base page is visible below the deltas.
fn needs_base(layers: &[Arc<DeltaMap>], page: u64) -> bool {
    let mut needed = false;
    walk_layers(layers, page_span(page), &mut |_, delta| {
        needed |= delta.is_none()
    });
    needed
}

/// A page that is to be folded.
struct PagePlan {
    number: u64,
    /// The base page, if a part of it is visible below the deltas.
    base: Option<BlockRef>,
}

fn plan_pages(
    layers: &[Arc<DeltaMap>],
    node: Span,
    listed: &BTreeMap<u64, BlockRef>,
) -> Vec<PagePlan> {
    let touched = touched_pages(layers, node, Some(listed)).into_iter();
    let plan = |number| {
        let base = listed.get(&number).copied();
        let base = base.filter(|_| needs_base(layers, number));
        PagePlan { number, base }
    };
    touched.map(plan).collect()
}

/// Folds a few pages, whose bases are loaded in parallel.
async fn fold_pages(
    out: &mut Output<'_>,
    prefix: &FoldInput,
    pages: &[PagePlan],
    listed: &mut BTreeMap<u64, BlockRef>,
    folded: &mut FoldedNode,
) -> Result<(), OpenError> {
    let (engine, tail) = (out.engine, out.tail);
    let target = |page: &PagePlan| {
        let (kind, number) = (BlockKind::Page, page.number);
        page.base.map(|block| BlockTarget {
            kind,
            number,
            block,
        })
    };
    let targets: Vec<BlockTarget> = pages.iter().filter_map(target).collect();
    let loads = targets
        .iter()
        .map(|target| Box::pin(read(engine, tail, *target)));
    let loaded = join_all(loads.collect()).await;
    let mut bases = BTreeMap::new();
    for (target, loaded) in targets.iter().zip(loaded) {
        match loaded {
            Ok((IndexBlock::Page(page), _)) => {
                bases.insert(target.number, page);
            }
            Ok((IndexBlock::Node(_), _)) | Err(ErrorKind::Corrupt) => {
                folded.blocked.insert(target.number);
            }
            Err(error) => return Err(unreadable(tail, "page", *target, error)),
        }
    }
    let whole = pages.iter().map(|page| page.number);
    let whole: Vec<u64> = whole
        .filter(|page| !folded.blocked.contains(page))
        .collect();
    let (layers, volume) = (prefix.layers.clone(), tail.id().volume);
    let bytes = bases.values().map(|page| page.memory_bytes()).sum::<u64>()
        + whole.len() as u64 * 64 * EXTENT_BYTES;
    let names = engine.names.known();
    let merge = move || -> Result<Vec<(u64, Page, Vec<u8>)>, FormatError> {
        let merge = |number: u64| {
            let base = bases.get(&number).map(|page| &**page);
            let page = merge_page(&layers, &names, number, base)?;
            let block = encode_page(volume, &page);
            Ok((number, page, block))
        };
        whole.into_iter().map(merge).collect()
    };
    let merged = engine.port.compute(ComputeKind::Fold, bytes, merge).await?;
    let merged = merged.map_err(unnamed(tail))?;
    for (number, page, block) in merged {
        let old = listed.remove(&number);
        let was_hot = old.is_some_and(|old| engine.blocks.contains(block_key(old)));
        folded.replaced.extend(old);
        folded.pages += 1;
        if !page.is_empty() {
            let at = out.add(block).await?;
            listed.insert(number, at);
            if was_hot {
                engine.blocks.insert(at, IndexBlock::Page(Arc::new(page)));
            }
        }
    }
    Ok(())
}

/// A page with the deltas laid over it.
fn merge_page(
    layers: &[Arc<DeltaMap>],
    names: &SessionNames,
    number: u64,
    base: Option<&Page>,
) -> Result<Page, FormatError> {
    let mut page = PageBuilder::new(number);
    walk_layers(layers, page_span(number), &mut |part, delta| match delta {
        Some(Delta::Part(found)) => page.push(part, &found.chunk(part.start), found.skip),
        Some(Delta::Zeroes) => {}
        Some(Delta::Lost) => debug_assert!(false, "nothing is folded over what is lost"),
        None => {
            let base = base.into_iter();
            base.for_each(|base| {
                base.walk(part, |part, found| {
                    if let Some((chunk, skip)) = found {
                        page.push(part, chunk, skip);
                    }
                });
            });
        }
    });
    page.finish(names)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::cache::blocks::BlockCache;
    use crate::hostlog::names::SessionName;
    use crate::map::delta::DeltaSource;
    use crate::map::index::{Index, IndexEntry};
    use crate::object::ObjectId;
    use crate::object::pack::{Chunk, Codec, Item};
    use crate::units::{Lsn, VolumeId};

    /// Sectors around the borders of the first three pages, and of the second node.
    const AREAS: [u64; 4] = [0, PAGE_SECTORS - 8, 2 * PAGE_SECTORS - 8, NODE_SECTORS - 8];

    fn part(offset: u32, span: Span) -> Delta {
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
        DeltaSource::default().delta_of(&Item::Chunk(chunk)).1
    }

    /// The session of all objects here.
    fn names() -> SessionNames {
        let mut names = SessionNames::default();
        names.insert(SessionName::default()).expect("the first");
        names
    }

    #[derive(Clone, Debug)]
    enum Change {
        Put(Span),
        Zero(Span),
        /// All but the pages of this mask, while this is put.
        Fold(u64, Span),
    }

    fn change() -> impl Strategy<Value = Change> {
        let span = (0..4_usize, 0_u64..16, 1_u64..12)
            .prop_map(|(area, start, len)| Span::new(AREAS[area] + start, len));
        prop_oneof![
            4 => span.clone().prop_map(Change::Put),
            2 => span.clone().prop_map(Change::Zero),
            1 => Just(Change::Zero(Span::new(0, 2 * NODE_SECTORS))),
            2 => (prop_oneof![Just(0), 0_u64..16], span).prop_map(|(m, s)| Change::Fold(m, s)),
        ]
    }

    /// A world of one index, its blocks, and what each sector must be.
    struct Model {
        index: Index,
        blocks: BlockCache,
        sectors: BTreeMap<u64, u64>,
        drawn: u32,
    }

    impl Model {
        fn block(&mut self, block: IndexBlock) -> BlockRef {
            self.drawn += 1;
            let at = BlockRef {
                object: ObjectId::default(),
                offset: self.drawn,
                bytes: 1,
            };
            self.blocks.insert(at, block);
            at
        }

        fn put(&mut self, span: Span) {
            self.drawn += 1;
            self.index.apply_delta(span, part(self.drawn, span));
            for sector in span.start..span.end {
                let value = u64::from(self.drawn) * 1000 + sector - span.start;
                self.sectors.insert(sector, value);
            }
        }

        /// Folds as `fold` does, but for I/O.
        fn fold(&mut self, skipped: u64, meanwhile: Span) {
            let layers = self.index.freeze();
            self.put(meanwhile);
            let mut rest = DeltaMap::default();
            for number in 0..2 {
                let span = Span::new(number * NODE_SECTORS, NODE_SECTORS);
                let node = self.index.nodes.get(&number).copied();
                let node = node.map(|at| self.blocks.node(at).expect("all is kept"));
                let mut listed: BTreeMap<u64, BlockRef> =
                    node.iter().flat_map(|node| node.pages()).collect();
                for page in touched_pages(&layers, span, Some(&listed)) {
                    if skipped >> (page % 60) & 1 == 1 {
                        walk_layers(&layers, page_span(page), &mut |part, delta| {
                            if let Some(delta) = delta {
                                rest.insert(part, delta.clone(), |_, _| {});
                            }
                        });
                        continue;
                    }
                    let base = needs_base(&layers, page)
                        .then(|| listed.get(&page))
                        .flatten();
                    let base = base.map(|at| self.blocks.page(*at).expect("all is kept"));
                    let merged = merge_page(&layers, &names(), page, base.as_deref());
                    let merged = merged.expect("a known session");
                    listed.remove(&page);
                    if !merged.is_empty() {
                        let block = IndexBlock::Page(Arc::new(merged));
                        listed.insert(page, self.block(block));
                    }
                }
                let node = (!listed.is_empty()).then(|| {
                    let node = Node::new(number, &names(), listed.into_iter());
                    let node = node.expect("a known session");
                    self.block(IndexBlock::Node(Arc::new(node)))
                });
                self.index.replace_nodes(&[(number, node)]);
            }
            let kept = rest.len();
            drop(self.index.drop_folded(layers.len(), rest, kept));
        }

        fn sector(&self, sector: u64) -> Option<u64> {
            let mut found = None;
            let span = Span::new(sector, 1);
            self.index
                .lookup(span, &self.blocks, &mut |_, entry| match entry {
                    IndexEntry::Part { chunk, skip } => {
                        found = Some(u64::from(chunk.offset) * 1000 + u64::from(skip));
                    }
                    IndexEntry::Hole => {}
                    other => panic!("{other:?}"),
                });
            found
        }
    }

    proptest! {
        #[test]
        fn folding_changes_nothing_that_a_reader_sees(
            changes in prop::collection::vec(change(), 1..24),
        ) {
            let mut model = Model {
                index: Index::default(),
                blocks: BlockCache::new(u64::MAX),
                sectors: BTreeMap::new(),
                drawn: 0,
            };
            for change in changes {
                match change {
                    Change::Put(span) => model.put(span),
                    Change::Zero(span) => {
                        model.index.apply_delta(span, Delta::Zeroes);
                        model
                            .sectors
                            .retain(|sector, _| !(span.start..span.end).contains(sector));
                    }
                    Change::Fold(skipped, meanwhile) => model.fold(skipped, meanwhile),
                }
                for area in AREAS {
                    for sector in area..area + 28 {
                        let found = model.sector(sector);
                        let expected = model.sectors.get(&sector).copied();
                        prop_assert_eq!(found, expected, "sector {}", sector);
                    }
                }
            }
        }
    }
}
