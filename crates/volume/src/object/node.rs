//! Directory nodes: where the pages of 16 GiB of a volume are.
//!
//! The block around a node's body is that of every index block: see [`super::page`]. The body: `u32` number
//! of pages, `u32` number of sessions, the sessions, and a row of 20 bytes for each page.

use super::page::{BlockRef, Kind, NODE_PAGES, seal, unseal};
use super::sessions::{SESSION_BYTES, SessionNames, decode_sessions, encode_session, object_of};
use super::{FormatError, ObjectId};
use crate::codec::{Reader, Writer};
use crate::hostlog::names::SessionName;
use crate::units::VolumeId;

/// Bytes of a page in a node: its number within the node, which session, and where in which of its objects.
const ROW_BYTES: usize = 20;

/// A node in memory: the body of its block, checked once; a row is decoded when it is looked at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    number: u64,
    sessions: Box<[SessionName]>,
    /// Without the counts and sessions before them.
    rows: Box<[u8]>,
}

impl Node {
    /// A node of these pages, ascending.
    ///
    /// # Errors
    /// If a page is in an object of a session that is not among `names`.
    pub fn new(
        number: u64,
        names: &SessionNames,
        pages: impl Iterator<Item = (u64, BlockRef)>,
    ) -> Result<Node, FormatError> {
        let pages: Vec<(u64, BlockRef)> = pages.collect();
        let list = names.list(pages.iter().map(|(_, block)| block.object))?;
        let mut rows = Writer::new();
        for (page, block) in pages {
            rows.u16((page - number * NODE_PAGES) as u16);
            rows.u16(list.number(block.object) as u16);
            rows.u64(block.object.number);
            rows.u32(block.offset).u32(block.bytes);
        }
        Ok(Node {
            number,
            sessions: list.names().into(),
            rows: rows.finish().into(),
        })
    }

    /// The sessions of the objects in which its pages are.
    pub fn sessions(&self) -> impl Iterator<Item = SessionName> {
        self.sessions.iter().copied()
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
        (size_of::<Node>() + self.sessions.len() * SESSION_BYTES + self.rows.len()) as u64
    }

    fn page(&self, nth: usize) -> (u64, BlockRef) {
        let row = &self.rows[nth * ROW_BYTES..(nth + 1) * ROW_BYTES];
        let word = |at| u64::from_le_bytes(row[at..at + 8].try_into().expect("eight bytes"));
        let half = |at| u32::from_le_bytes(row[at..at + 4].try_into().expect("four bytes"));
        let within = u64::from(u16::from_le_bytes([row[0], row[1]]));
        let session = usize::from(u16::from_le_bytes([row[2], row[3]]));
        let block = BlockRef {
            object: ObjectId::new(self.sessions[session], word(4)),
            offset: half(12),
            bytes: half(16),
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
    body.u32(node.len() as u32).u32(node.sessions.len() as u32);
    node.sessions()
        .for_each(|name| encode_session(&mut body, name));
    body.raw(&node.rows);
    seal(Kind::Node, volume, node.number, body.bytes())
}

/// Reads a node's block.
///
/// # Errors
/// If it is damaged, of a newer format, or another node's.
pub fn decode_node(volume: VolumeId, number: u64, block: &[u8]) -> Result<Node, FormatError> {
    let body = unseal(Kind::Node, volume, number, block)?;
    let mut r = Reader::new(&body);
    let (count, sessions) = (r.u32()? as usize, r.u32()? as usize);
    let sessions = decode_sessions(&mut r, sessions)?.into_boxed_slice();
    let rows: Box<[u8]> = r.raw(count.saturating_mul(ROW_BYTES))?.into();
    for row in rows.chunks_exact(ROW_BYTES) {
        object_of(
            &sessions,
            usize::from(u16::from_le_bytes([row[2], row[3]])),
            0,
        )?;
    }
    let node = Node {
        number,
        sessions,
        rows,
    };
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
    use crate::units::{HostId, LogSession};

    const VOLUME: VolumeId = VolumeId([9; 16]);

    fn pages() -> (SessionNames, Vec<(u64, BlockRef)>) {
        let session = |number| SessionName {
            host: HostId([1; 16]),
            session: LogSession {
                number,
                random: number + 4,
            },
        };
        let mut names = SessionNames::default();
        names.extend([session(1), session(2)]).expect("new ones");
        let block = |number| BlockRef {
            object: ObjectId::new(session(number), 6),
            offset: 7,
            bytes: 8,
        };
        (names, vec![(1024, block(2)), (2047, block(1))])
    }

    #[test]
    fn a_node_is_read_back_as_it_was_written() {
        let (names, pages) = pages();
        let node = Node::new(1, &names, pages.iter().copied()).expect("known sessions");
        let block = encode_node(VOLUME, &node);
        assert_eq!(decode_node(VOLUME, 1, &block), Ok(node.clone()));
        assert_eq!(node.pages().collect::<Vec<_>>(), pages);
        assert_eq!(node.page_from(1024), Some(pages[0]));
        assert_eq!(node.page_from(1025), Some(pages[1]));
        assert_eq!(node.page_from(2048), None);
        assert!(decode_node(VOLUME, 0, &block).is_err());
        let found = node.sessions().map(|name| name.session.random);
        assert!(found.eq([6, 5]), "each session once");
        let none = SessionNames::default();
        assert!(Node::new(1, &none, pages.iter().copied()).is_err());
        let backwards = pages.iter().rev().copied();
        let backwards = Node::new(1, &names, backwards).expect("known sessions");
        assert!(decode_node(VOLUME, 1, &encode_node(VOLUME, &backwards)).is_err());
    }
}
