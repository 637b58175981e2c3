//! Directory nodes: where the pages of 16 GiB of a volume are.
//!
//! The block around a node's body is that of every index block: see [`super::page`].

use super::page::{BlockRef, Kind, NODE_PAGES, seal, unseal};
use super::{FormatError, ObjectId};
use crate::codec::{Reader, Writer};
use crate::units::VolumeId;

/// Bytes of a page in a node.
const ROW_BYTES: usize = 26;

/// A node in memory: the body of its block, checked once; a row is decoded when it is looked at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    number: u64,
    /// Without the count before them.
    rows: Box<[u8]>,
}

impl Node {
    /// A node of these pages, ascending.
    pub fn new(number: u64, pages: impl Iterator<Item = (u64, BlockRef)>) -> Node {
        let mut rows = Writer::new();
        for (page, block) in pages {
            rows.u16((page - number * NODE_PAGES) as u16);
            block.encode(&mut rows);
        }
        let rows = rows.finish().into();
        Node { number, rows }
    }

    /// Number of pages.
    pub fn len(&self) -> usize {
        self.rows.len() / ROW_BYTES
    }

    /// It has no page.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// What it takes in memory.
    pub fn memory_bytes(&self) -> u64 {
        (size_of::<Node>() + self.rows.len()) as u64
    }

    fn page(&self, nth: usize) -> (u64, BlockRef) {
        let row = &self.rows[nth * ROW_BYTES..(nth + 1) * ROW_BYTES];
        let word = |at| u64::from_le_bytes(row[at..at + 8].try_into().expect("eight bytes"));
        let half = |at| u32::from_le_bytes(row[at..at + 4].try_into().expect("four bytes"));
        let within = u64::from(u16::from_le_bytes([row[0], row[1]]));
        let block = BlockRef {
            object: ObjectId {
                session: word(2),
                number: word(10),
            },
            offset: half(18),
            bytes: half(22),
        };
        (self.number * NODE_PAGES + within, block)
    }

    /// The first page at or after `page`, and where it is.
    pub fn page_from(&self, page: u64) -> Option<(u64, BlockRef)> {
        let (mut low, mut high) = (0, self.len());
        while low < high {
            let middle = low.midpoint(high);
            if self.page(middle).0 < page {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        (low < self.len()).then(|| self.page(low))
    }

    /// All pages, ascending.
    pub fn pages(&self) -> impl Iterator<Item = (u64, BlockRef)> {
        (0..self.len()).map(|nth| self.page(nth))
    }
}

/// A node's block.
pub fn encode_node(volume: VolumeId, node: &Node) -> Vec<u8> {
    let mut body = Writer::new();
    body.u32(node.len() as u32).raw(&node.rows);
    seal(Kind::Node, volume, node.number, body.bytes())
}

/// Reads a node's block.
///
/// # Errors
/// If it is damaged, of a newer format, or another node's.
pub fn decode_node(volume: VolumeId, number: u64, block: &[u8]) -> Result<Node, FormatError> {
    let body = unseal(Kind::Node, volume, number, block)?;
    let mut r = Reader::new(&body);
    let count = r.u32()? as usize;
    let rows = r.raw(count.saturating_mul(ROW_BYTES))?.into();
    let node = Node { number, rows };
    let mut free = number * NODE_PAGES;
    for (page, _) in node.pages() {
        if page < free || page >= (number + 1) * NODE_PAGES {
            return Err(FormatError::Corrupt("an index node contradicts itself"));
        }
        free = page + 1;
    }
    Ok(node)
}

#[cfg(test)]
mod tests {
    use super::*;

    const VOLUME: VolumeId = VolumeId([9; 16]);

    #[test]
    fn a_node_is_read_back_as_it_was_written() {
        let block_ref = BlockRef {
            object: ObjectId {
                session: 5,
                number: 6,
            },
            offset: 7,
            bytes: 8,
        };
        let pages = vec![(1024, block_ref), (2047, block_ref)];
        let node = Node::new(1, pages.iter().copied());
        let block = encode_node(VOLUME, &node);
        assert_eq!(decode_node(VOLUME, 1, &block), Ok(node.clone()));
        assert_eq!(node.pages().collect::<Vec<_>>(), pages);
        assert_eq!(node.page_from(1024), Some(pages[0]));
        assert_eq!(node.page_from(1025), Some(pages[1]));
        assert_eq!(node.page_from(2048), None);
        assert!(decode_node(VOLUME, 0, &block).is_err());
        let backwards = Node::new(1, pages.iter().rev().copied());
        assert!(decode_node(VOLUME, 1, &encode_node(VOLUME, &backwards)).is_err());
    }
}
