//! Index blocks in memory: pages and nodes of all volumes, under one budget of the host.
//!
//! A block is named by where it stands in the store, which never changes, so nothing here is ever out of
//! date. It must never hold what only memory has: whatever leaves is on the cache disk or in the
//! store. Blocks leave by a clock; a node survives more of its rounds than a page, since it leads
//! to a thousand of them.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use super::ChunkKey;
use crate::lock::lock;
use crate::object::node::Node;
use crate::object::page::{BlockRef, Page};
use crate::sync::Mutex;

/// Blocks that stay whatever the budget: a read waits for a few at a time, and all of them must be
/// here at once for it to go on.
const BLOCKS_MIN: usize = 32;
/// Rounds of the clock that a block survives without another use.
const PAGE_USES_MAX: u8 = 1;
const NODE_USES_MAX: u8 = 3;
/// Blocks looked at for one insertion.
const LOOKS_MAX: usize = 64;

/// What an index block is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BlockKind {
    Page,
    Node,
}

/// An index block that is to be loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BlockTarget {
    pub(crate) kind: BlockKind,
    /// Of the page or node.
    pub(crate) number: u64,
    pub(crate) block: BlockRef,
}

/// A page or a node, decoded.
#[derive(Clone, Debug)]
pub(crate) enum IndexBlock {
    Page(Arc<Page>),
    Node(Arc<Node>),
}

impl IndexBlock {
    fn memory_bytes(&self) -> u64 {
        match self {
            IndexBlock::Page(page) => page.memory_bytes(),
            IndexBlock::Node(node) => node.memory_bytes(),
        }
    }

    fn uses_max(&self) -> u8 {
        match self {
            IndexBlock::Page(_) => PAGE_USES_MAX,
            IndexBlock::Node(_) => NODE_USES_MAX,
        }
    }
}

/// The name of an index block in the caches.
pub(crate) fn block_key(block: BlockRef) -> ChunkKey {
    ChunkKey {
        pack: block.object,
        offset: block.offset,
    }
}

#[derive(Debug)]
struct CachedBlock {
    block: IndexBlock,
    uses: u8,
}

#[derive(Debug, Default)]
struct State {
    blocks: BTreeMap<ChunkKey, CachedBlock>,
    /// In the order of the clock; names of blocks that were removed are passed over.
    order: VecDeque<ChunkKey>,
    bytes: u64,
}

/// All index blocks in memory.
#[derive(Debug)]
pub(crate) struct BlockCache {
    budget: u64,
    state: Mutex<State>,
}

impl BlockCache {
    pub(crate) fn new(budget: u64) -> BlockCache {
        BlockCache {
            budget,
            state: Mutex::default(),
        }
    }

    fn find(&self, block: BlockRef) -> Option<IndexBlock> {
        let mut state = lock(&self.state);
        let found = state.blocks.get_mut(&block_key(block))?;
        found.uses = found.block.uses_max();
        Some(found.block.clone())
    }

    pub(crate) fn page(&self, block: BlockRef) -> Option<Arc<Page>> {
        match self.find(block)? {
            IndexBlock::Page(page) => Some(page),
            IndexBlock::Node(_) => None,
        }
    }

    pub(crate) fn node(&self, block: BlockRef) -> Option<Arc<Node>> {
        match self.find(block)? {
            IndexBlock::Node(node) => Some(node),
            IndexBlock::Page(_) => None,
        }
    }

    /// Is it here? Does not count as use.
    pub(crate) fn contains(&self, key: ChunkKey) -> bool {
        lock(&self.state).blocks.contains_key(&key)
    }

    /// Takes a block in, and lets others go as the budget says.
    pub(crate) fn insert(&self, at: BlockRef, block: IndexBlock) {
        let key = block_key(at);
        // Dropped without the lock.
        let mut gone = Vec::new();
        let mut state = lock(&self.state);
        let State {
            blocks,
            order,
            bytes,
        } = &mut *state;
        *bytes += block.memory_bytes();
        let uses = match &block {
            IndexBlock::Page(_) => 0,
            IndexBlock::Node(_) => NODE_USES_MAX,
        };
        match blocks.insert(key, CachedBlock { block, uses }) {
            Some(same) => {
                *bytes -= same.block.memory_bytes();
                gone.push(same);
            }
            None => order.push_back(key),
        }
        for looks in 1.. {
            if *bytes <= self.budget || blocks.len() <= BLOCKS_MIN {
                break;
            }
            let Some(key) = order.pop_front() else { break };
            let Some(first) = blocks.get_mut(&key) else {
                continue;
            };
            if first.uses > 0 && looks <= LOOKS_MAX {
                first.uses -= 1;
                order.push_back(key);
            } else if let Some(first) = blocks.remove(&key) {
                *bytes -= first.block.memory_bytes();
                gone.push(first);
            }
        }
        drop(state);
        drop(gone);
    }

    /// Nothing names these blocks any more.
    pub(crate) fn remove(&self, blocks: &[BlockRef]) {
        let mut gone = Vec::new();
        let mut state = lock(&self.state);
        for block in blocks {
            if let Some(found) = state.blocks.remove(&block_key(*block)) {
                state.bytes -= found.block.memory_bytes();
                gone.push(found);
            }
        }
        // What is left in the order is passed over; it must not outgrow the blocks for ever.
        if state.order.len() > 2 * state.blocks.len() + BLOCKS_MIN {
            let State { blocks, order, .. } = &mut *state;
            order.retain(|key| blocks.contains_key(key));
        }
        drop(state);
        drop(gone);
    }

    /// Bytes of the blocks that are here.
    pub(crate) fn bytes(&self) -> u64 {
        lock(&self.state).bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hostlog::names::SessionName;
    use crate::object::ObjectId;
    use crate::object::sessions::SessionNames;

    fn at(number: u64) -> BlockRef {
        let object = ObjectId::new(SessionName::default(), number);
        BlockRef {
            object,
            offset: 0,
            bytes: 1,
        }
    }

    fn node(number: u64, pages: u64) -> IndexBlock {
        let pages = (0..pages).map(|page| (number * 1024 + page, at(page)));
        let mut names = SessionNames::default();
        names.insert(SessionName::default()).expect("the first");
        let node = Node::new(number, &names, pages).expect("a known session");
        IndexBlock::Node(Arc::new(node))
    }

    fn page(number: u64) -> IndexBlock {
        let page = Page::new(number, &SessionNames::default(), std::iter::empty());
        IndexBlock::Page(Arc::new(page.expect("it names nothing")))
    }

    #[test]
    fn blocks_keep_to_the_budget_and_a_few_stay_whatever_it_is() {
        let cache = BlockCache::new(128 << 10);
        for number in 0..1000 {
            cache.insert(at(number), node(number, 100));
            assert!(cache.bytes() <= 128 << 10);
        }
        let none = BlockCache::new(0);
        (0..1000).for_each(|number| none.insert(at(number), page(number)));
        let kept = (0..1000).filter(|number| none.page(at(*number)).is_some());
        assert_eq!(kept.count(), BLOCKS_MIN);
        assert!(none.page(at(999)).is_some(), "the newest is among them");
    }

    #[test]
    fn what_is_used_stays_and_nodes_stay_longer_than_pages() {
        let cache = BlockCache::new(0);
        cache.insert(at(0), node(0, 0));
        cache.insert(at(1), page(1));
        cache.insert(at(2), page(2));
        for number in 3..100 {
            cache.insert(at(number), page(number));
            assert!(cache.page(at(1)).is_some(), "it was used all the time");
        }
        assert!(cache.page(at(2)).is_none());
        let later = BlockCache::new(0);
        later.insert(at(0), node(0, 0));
        (1..90).for_each(|number| later.insert(at(number), page(number)));
        assert!(later.node(at(0)).is_some());
    }

    #[test]
    fn blocks_that_were_removed_and_come_back_are_counted_once() {
        let cache = BlockCache::new(1 << 20);
        for round in 0..1000 {
            cache.insert(at(7), node(7, 10));
            assert_eq!(cache.bytes(), node(7, 10).memory_bytes(), "round {round}");
            cache.remove(&[at(7)]);
            assert_eq!(cache.bytes(), 0);
        }
        assert!(lock(&cache.state).order.len() <= BLOCKS_MIN + 2);
    }
}
