//! Extents in the order of their first sectors, made for one question: which is the last that begins
//! before some sector? Every request asks it of every layer.
//!
//! Three levels, each a binary search: nodes of leaves of extents. The first sectors that a search
//! compares lie side by side in memory, apart from what they lead to. An insertion goes where the search
//! before it ended, without a second one, and moves a leaf's extents at most, or the pointers of one node.
//! It knows nothing of sectors that overlap: that is the map's business.

/// Extents of a leaf: 2 KiB of them.
const LEAF_MAX: usize = 64;
/// A leaf with fewer is put together with a neighbour, where that leaves room.
const LEAF_MIN: usize = LEAF_MAX / 4;
/// Leaves of a node: with as many nodes there are four million extents.
const NODE_MAX: usize = 256;

/// An extent: its sectors, and what they stand for.
#[derive(Clone, Debug)]
pub(super) struct Extent<V> {
    pub(super) start: u64,
    /// One past the last sector.
    pub(super) end: u64,
    pub(super) value: V,
}

#[derive(Clone, Debug)]
struct Node<V> {
    /// The first sector of each leaf.
    firsts: Vec<u64>,
    leaves: Vec<Vec<Extent<V>>>,
}

/// Where an extent stands, until the next change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Position {
    node: usize,
    leaf: usize,
    at: usize,
}

const FRONT: Position = Position {
    node: 0,
    leaf: 0,
    at: 0,
};

#[derive(Clone, Debug)]
pub(super) struct SortedExtents<V> {
    /// The first sector of each node.
    firsts: Vec<u64>,
    nodes: Vec<Node<V>>,
    len: usize,
}

impl<V> Default for SortedExtents<V> {
    fn default() -> Self {
        SortedExtents {
            firsts: Vec::new(),
            nodes: Vec::new(),
            len: 0,
        }
    }
}

impl<V> SortedExtents<V> {
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// The last extent that begins before `sector`.
    #[inline]
    pub(super) fn last_before(&self, sector: u64) -> Option<Position> {
        let is_before = |first: &u64| *first < sector;
        let node = self.firsts.partition_point(is_before).checked_sub(1)?;
        let within = &self.nodes[node];
        let leaf = within.firsts.partition_point(is_before).checked_sub(1)?;
        let extents = &within.leaves[leaf];
        let at = extents.partition_point(|extent| extent.start < sector);
        let at = at.checked_sub(1)?;
        Some(Position { node, leaf, at })
    }

    /// The first extent that begins at `sector` or later.
    pub(super) fn first_from(&self, sector: u64) -> Option<Position> {
        match self.last_before(sector) {
            Some(before) => self.next(before),
            None => (self.len > 0).then_some(FRONT),
        }
    }

    /// The extent after one.
    pub(super) fn next(&self, position: Position) -> Option<Position> {
        let Position { node, leaf, at } = position;
        let leaves = &self.nodes[node].leaves;
        if at + 1 < leaves[leaf].len() {
            return Some(Position {
                at: at + 1,
                ..position
            });
        }
        let leaf = leaf + 1;
        if leaf < leaves.len() {
            return Some(Position { node, leaf, at: 0 });
        }
        let node = node + 1;
        (node < self.nodes.len()).then_some(Position {
            node,
            leaf: 0,
            at: 0,
        })
    }

    #[inline]
    pub(super) fn get(&self, position: Position) -> &Extent<V> {
        &self.nodes[position.node].leaves[position.leaf][position.at]
    }

    /// The caller may change end and value, never where it begins.
    #[inline]
    pub(super) fn get_mut(&mut self, position: Position) -> &mut Extent<V> {
        &mut self.nodes[position.node].leaves[position.leaf][position.at]
    }

    /// All extents from a position on, in order.
    pub(super) fn iter_at(&self, from: Option<Position>) -> impl Iterator<Item = &Extent<V>> {
        let mut next = from;
        std::iter::from_fn(move || {
            let position = next?;
            next = self.next(position);
            Some(self.get(position))
        })
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Extent<V>> {
        let leaves = self.nodes.iter().flat_map(|node| &node.leaves);
        leaves.flatten()
    }

    /// The same extents, standing for something else.
    pub(super) fn convert<W>(self, to: &impl Fn(V) -> W) -> SortedExtents<W> {
        let convert_leaf = |leaf: Vec<Extent<V>>| {
            let extents = leaf.into_iter().map(|Extent { start, end, value }| Extent {
                start,
                end,
                value: to(value),
            });
            extents.collect::<Vec<_>>()
        };
        let convert_node = |node: Node<V>| Node {
            firsts: node.firsts,
            leaves: node.leaves.into_iter().map(convert_leaf).collect(),
        };
        SortedExtents {
            firsts: self.firsts,
            nodes: self.nodes.into_iter().map(convert_node).collect(),
            len: self.len,
        }
    }

    /// Puts an extent behind the last one that begins before it: `before`, none if it is to be the first.
    pub(super) fn insert_behind(&mut self, before: Option<Position>, extent: Extent<V>) {
        self.len += 1;
        let Some(mut before) = before else {
            return self.insert_first(extent);
        };
        let is_last_node = before.node + 1 == self.nodes.len();
        let node = &mut self.nodes[before.node];
        if node.leaves[before.leaf].len() == LEAF_MAX {
            let is_last = is_last_node && before.leaf + 1 == node.leaves.len();
            if is_last && before.at + 1 == LEAF_MAX {
                // In ascending order leaves are filled up instead of being split.
                node.firsts.push(extent.start);
                let mut leaf = Vec::with_capacity(LEAF_MAX);
                leaf.push(extent);
                node.leaves.push(leaf);
                return self.split_node(before.node);
            }
            node.split_leaf(before.leaf);
            if before.at >= LEAF_MAX / 2 {
                before.leaf += 1;
                before.at -= LEAF_MAX / 2;
            }
        }
        node.leaves[before.leaf].insert(before.at + 1, extent);
        self.split_node(before.node);
    }

    fn insert_first(&mut self, extent: Extent<V>) {
        let start = extent.start;
        let Some(node) = self.nodes.first_mut() else {
            self.firsts.push(start);
            self.nodes.push(Node {
                firsts: vec![start],
                leaves: vec![vec![extent]],
            });
            return;
        };
        if node.leaves[0].len() == LEAF_MAX {
            node.split_leaf(0);
        }
        node.leaves[0].insert(0, extent);
        node.firsts[0] = start;
        self.firsts[0] = start;
        self.split_node(0);
    }

    /// Halves a node that has too many leaves.
    fn split_node(&mut self, at: usize) {
        let node = &mut self.nodes[at];
        if node.leaves.len() <= NODE_MAX {
            return;
        }
        let half = Node {
            firsts: node.firsts.split_off(NODE_MAX / 2),
            leaves: node.leaves.split_off(NODE_MAX / 2),
        };
        self.firsts.insert(at + 1, half.firsts[0]);
        self.nodes.insert(at + 1, half);
    }

    /// Takes an extent out. Positions are void after that.
    pub(super) fn remove(&mut self, position: Position) -> Extent<V> {
        self.len -= 1;
        let node = &mut self.nodes[position.node];
        let leaf = &mut node.leaves[position.leaf];
        let extent = leaf.remove(position.at);
        if leaf.is_empty() {
            node.leaves.remove(position.leaf);
            node.firsts.remove(position.leaf);
        } else {
            node.firsts[position.leaf] = leaf[0].start;
            if leaf.len() < LEAF_MIN {
                node.merge_leaf(position.leaf);
            }
        }
        match self.nodes[position.node].firsts.first() {
            Some(first) => self.firsts[position.node] = *first,
            None => {
                self.nodes.remove(position.node);
                self.firsts.remove(position.node);
            }
        }
        extent
    }

    /// Nodes and leaves are not empty, none is too large, first sectors and the count are right, and extents
    /// are in order within a leaf and from each to the next.
    pub(super) fn invariants(&self) -> Result<(), String> {
        let mut len = 0;
        let mut end = 0;
        let is_paired = self.firsts.len() == self.nodes.len();
        for (first, node) in self.firsts.iter().zip(&self.nodes) {
            if node.firsts.first() != Some(first) || node.leaves.len() > NODE_MAX {
                return Err(format!("sector {first} is not the first of its node"));
            }
            for (first, leaf) in node.firsts.iter().zip(&node.leaves) {
                len += leaf.len();
                if leaf.first().map(|extent| extent.start) != Some(*first) || leaf.len() > LEAF_MAX
                {
                    return Err(format!("sector {first} is not the first of its leaf"));
                }
                for extent in leaf {
                    if extent.start < end || extent.end <= extent.start {
                        return Err(format!("sector {} is out of order", extent.start));
                    }
                    end = extent.end;
                }
            }
        }
        if !is_paired || len != self.len {
            return Err(format!(
                "{} extents are counted and {len} are there",
                self.len
            ));
        }
        Ok(())
    }
}

impl<V> Node<V> {
    fn split_leaf(&mut self, at: usize) {
        let mut half = Vec::with_capacity(LEAF_MAX);
        half.extend(self.leaves[at].drain(LEAF_MAX / 2..));
        self.firsts.insert(at + 1, half[0].start);
        self.leaves.insert(at + 1, half);
    }

    /// Puts a small leaf together with a neighbour, if both have room to grow after that. If neither has, it
    /// gives back what it will not need soon.
    fn merge_leaf(&mut self, at: usize) {
        for left in [Some(at), at.checked_sub(1)].into_iter().flatten() {
            let Some(right) = self.leaves.get(left + 1) else {
                continue;
            };
            if self.leaves[left].len() + right.len() <= LEAF_MAX / 2 {
                let mut right = self.leaves.remove(left + 1);
                self.firsts.remove(left + 1);
                self.leaves[left].append(&mut right);
                return;
            }
        }
        if self.leaves[at].capacity() > 2 * LEAF_MIN {
            self.leaves[at].shrink_to(2 * LEAF_MIN);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    /// Many single extents in and out, in an order that fills, splits, merges and empties leaves and nodes.
    #[test]
    fn it_equals_an_ordered_map_while_nodes_and_leaves_split_and_merge() {
        let mut sorted = SortedExtents::default();
        let mut model = BTreeMap::new();
        const STARTS: u64 = 1 << 17;
        let mut starts: Vec<u64> = (0..STARTS).collect();
        for (number, start) in (0..STARTS).enumerate() {
            starts[number] = start.wrapping_mul(0x9e37_79b1) % STARTS;
        }
        let ascending: Vec<u64> = (STARTS..STARTS + 40_000).collect();
        let check = |sorted: &SortedExtents<u64>, model: &BTreeMap<u64, u64>, probe: u64| {
            let found = sorted.last_before(probe).map(|at| sorted.get(at).start);
            assert_eq!(
                found,
                model.range(..probe).next_back().map(|(start, _)| *start)
            );
            let next = sorted.first_from(probe).map(|at| sorted.get(at).start);
            assert_eq!(next, model.range(probe..).next().map(|(start, _)| *start));
        };
        for start in starts.iter().chain(&ascending) {
            let (start, end, value) = (*start, start + 1, *start);
            let before = sorted.last_before(start);
            sorted.insert_behind(before, Extent { start, end, value });
            model.insert(start, value);
            check(&sorted, &model, start ^ 0x55);
        }
        sorted.invariants().unwrap();
        assert!(sorted.nodes.len() > 4, "{} nodes", sorted.nodes.len());
        assert!(
            sorted
                .iter()
                .map(|extent| extent.start)
                .eq(model.keys().copied())
        );
        let converted = sorted.clone().convert(&|value| (value, "converted"));
        converted.invariants().unwrap();
        let pairs = |extent: &Extent<(u64, &str)>| (extent.start, extent.value.0);
        assert!(
            converted
                .iter()
                .map(pairs)
                .eq(model.iter().map(|(start, value)| (*start, *value)))
        );
        let from = sorted.first_from(STARTS / 2);
        assert!(
            sorted
                .iter_at(from)
                .map(|extent| extent.start)
                .eq(model.range(STARTS / 2..).map(|(s, _)| *s))
        );
        for (number, start) in starts.iter().chain(&ascending).enumerate() {
            let at = sorted.first_from(*start).unwrap();
            assert_eq!(sorted.remove(at).start, *start);
            model.remove(start);
            check(&sorted, &model, start ^ 0x55);
            if number % 10_000 == 0 {
                sorted.invariants().unwrap();
            }
        }
        assert_eq!((sorted.len(), sorted.nodes.len()), (0, 0));
    }

    #[test]
    fn what_is_left_of_many_extents_keeps_little_more_memory_than_it_needs() {
        for kept_one_in in [2, 7, 60, 1000] {
            let mut sorted = SortedExtents::default();
            for start in 0..40_000 {
                let before = sorted.last_before(start);
                let (end, value) = (start + 1, start);
                sorted.insert_behind(before, Extent { start, end, value });
            }
            for start in (0..40_000).filter(|start| start % kept_one_in != 0) {
                let at = sorted.first_from(start).unwrap();
                assert_eq!(sorted.remove(at).start, start);
            }
            sorted.invariants().unwrap();
            let leaves = sorted.nodes.iter().flat_map(|node| &node.leaves);
            let room: usize = leaves.map(Vec::capacity).sum();
            let len = sorted.len();
            assert!(
                room <= 4 * len + LEAF_MAX,
                "{room} places for {len} extents"
            );
        }
    }
}
