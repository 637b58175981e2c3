//! What the cache's disk file holds and where, told by a program that stops to the one that takes its place (`firn upgrade`).
//!
//! It goes through memory and is never on a disk. A slot that it names wrongly would be read as another chunk's content, without a
//! look at a checksum: so the file is frozen from before it is listed until the program ends, and a list is refused as a whole where
//! anything in it or in the file has another shape. Losing it costs fetches and nothing else.
//!
//! | offset | bytes | field |
//! |---|---|---|
//! | 0 | 8 | magic `FIRNCIN\0` |
//! | 8 | 2 | version, 2 |
//! | 10 | 2 | zero |
//! | 12 | 4 | blocks of a region |
//! | 16 | 8 | regions of the file |
//! | 24 | 8 | number of chunks |
//! | 32 | | chunks, 56 bytes each |
//!
//! A chunk, those of one part in the order in which they came into their queues:
//!
//! | offset | bytes | field |
//! |---|---|---|
//! | 0 | 1 | part: 1 content, 2 index blocks |
//! | 1 | 1 | queue: 0 probation, 1 main |
//! | 2 | 1 | uses |
//! | 3 | 1 | zero |
//! | 4 | 4 | offset in its pack |
//! | 8 | 8 | its pack: bits of the session |
//! | 16 | 8 | number within the session |
//! | 24 | 8 | bytes of content |
//! | 32 | 4 | region, counted within the part |
//! | 36 | 4 | slot |
//! | 40 | 8 | offset in the file |
//! | 48 | 4 | CRC-32C of its blocks, 0: not known |
//! | 52 | 4 | zero |

use std::fmt;

use super::ChunkKey;
use super::queues::QueueKind;
use super::regions::Place;
use crate::codec::{Checksum, Reader, TruncatedInput, Writer};
use crate::object::ObjectId;

const MAGIC: [u8; 8] = *b"FIRNCIN\0";
const VERSION: u16 = 2;
const CHUNK_BYTES: usize = 56;

/// Chunks that are listed at most: 56 MiB. Of more, those that were used most.
pub(super) const CHUNKS_MAX: usize = 1 << 20;

/// Why a list is not used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InventoryError {
    /// There is none, or another program wrote it.
    Foreign,
    /// The file has another size or was made otherwise.
    AnotherFile,
    /// It names a slot twice, or one that there is not.
    Inconsistent,
    /// The cache began to hold something meanwhile.
    InUse,
}

impl fmt::Display for InventoryError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            InventoryError::Foreign => "the list of what it holds has another version, or is none",
            InventoryError::AnotherFile => "the cache file is not as it was",
            InventoryError::Inconsistent => "the list of what it holds contradicts itself",
            InventoryError::InUse => "it holds something else already",
        })
    }
}

impl std::error::Error for InventoryError {}

impl From<TruncatedInput> for InventoryError {
    fn from(_: TruncatedInput) -> InventoryError {
        InventoryError::Foreign
    }
}

/// A chunk in the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ListedChunk {
    /// Which of the cache's tiers has it.
    pub(super) tier: usize,
    pub(super) queue: QueueKind,
    pub(super) uses: u8,
    pub(super) key: ChunkKey,
    pub(super) bytes: u64,
    pub(super) place: Place,
    pub(super) checksum: Option<Checksum>,
    pub(super) offset: u64,
    /// When it came into its queue, by the tier's own count. Not written: the order says it.
    pub(super) queued_at: u64,
}

/// What a file holds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Inventory {
    pub(super) region_blocks: u32,
    pub(super) regions: u64,
    pub(super) chunks: Vec<ListedChunk>,
}

impl Inventory {
    /// Leaves those out that are worth least where there are too many, and puts the others in order.
    pub(super) fn arrange(&mut self, most: usize) {
        if self.chunks.len() > most {
            let worth = |chunk: &ListedChunk| {
                let is_main = chunk.queue == QueueKind::Main;
                (is_main, chunk.uses, chunk.queued_at)
            };
            self.chunks
                .sort_unstable_by_key(|chunk| std::cmp::Reverse(worth(chunk)));
            self.chunks.truncate(most);
        }
        self.chunks
            .sort_unstable_by_key(|chunk| (chunk.tier, chunk.queued_at));
    }

    pub(super) fn encode(&self) -> Vec<u8> {
        let mut w = Writer::new();
        w.raw(&MAGIC).u16(VERSION).u16(0).u32(self.region_blocks);
        w.u64(self.regions).u64(self.chunks.len() as u64);
        for chunk in &self.chunks {
            let queue = u8::from(chunk.queue == QueueKind::Main);
            w.u8(chunk.tier as u8).u8(queue).u8(chunk.uses).u8(0);
            w.u32(chunk.key.offset);
            w.u64(chunk.key.pack.session).u64(chunk.key.pack.number);
            w.u64(chunk.bytes);
            w.u32(chunk.place.region).u32(chunk.place.slot);
            w.u64(chunk.offset)
                .u32(Checksum::encode(chunk.checksum))
                .u32(0);
        }
        w.finish()
    }

    pub(super) fn decode(bytes: &[u8]) -> Result<Inventory, InventoryError> {
        let mut r = Reader::new(bytes);
        let foreign = InventoryError::Foreign;
        let head = (r.array()? == MAGIC, r.u16()?, r.u16()?);
        if head != (true, VERSION, 0) {
            return Err(foreign);
        }
        let (region_blocks, regions, count) = (r.u32()?, r.u64()?, r.u64()?);
        let left = r.remaining();
        if usize::try_from(count)
            .ok()
            .and_then(|n| n.checked_mul(CHUNK_BYTES))
            != Some(left)
        {
            return Err(foreign);
        }
        let chunks = (0..count).map(|at| decode_chunk(&mut r, at));
        Ok(Inventory {
            region_blocks,
            regions,
            chunks: chunks.collect::<Result<_, _>>()?,
        })
    }
}

fn decode_chunk(r: &mut Reader<'_>, at: u64) -> Result<ListedChunk, InventoryError> {
    let (tier, queue, uses, zero) = (r.u8()?, r.u8()?, r.u8()?, r.u8()?);
    let queue = match queue {
        0 => QueueKind::Probation,
        1 => QueueKind::Main,
        _ => return Err(InventoryError::Foreign),
    };
    let offset = r.u32()?;
    let (session, number) = (r.u64()?, r.u64()?);
    let pack = ObjectId { session, number };
    let bytes = r.u64()?;
    let (region, slot) = (r.u32()?, r.u32()?);
    let chunk = ListedChunk {
        tier: usize::from(tier),
        queue,
        uses,
        key: ChunkKey { pack, offset },
        bytes,
        place: Place { region, slot },
        offset: r.u64()?,
        checksum: Checksum::decode(r.u32()?),
        queued_at: at,
    };
    let is_known = matches!(tier, 1 | 2) && zero == 0 && r.u32()? == 0;
    is_known.then_some(chunk).ok_or(InventoryError::Foreign)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::golden::fixture;

    fn chunk(tier: usize, number: u64, queued_at: u64) -> ListedChunk {
        let pack = ObjectId {
            session: u64::from_le_bytes([0xa0, 0xa1, 0xa2, 0xa3, 0xa4, 0xa5, 0xa6, 0xa7]),
            number,
        };
        ListedChunk {
            tier,
            queue: QueueKind::Probation,
            uses: 0,
            key: ChunkKey { pack, offset: 4096 },
            bytes: 5000,
            place: Place { region: 0, slot: 1 },
            checksum: None,
            offset: 72 << 10,
            queued_at,
        }
    }

    #[test]
    fn what_a_cache_file_holds_is_told_as_documented() {
        let bytes = fixture(include_str!("../../tests/fixtures/cache_inventory.hex"));
        let content = ListedChunk {
            queue: QueueKind::Main,
            uses: 3,
            bytes: 65_536,
            checksum: Checksum::decode(0x8765_4321),
            place: Place { region: 2, slot: 0 },
            offset: 192 << 10,
            key: ChunkKey {
                offset: 123_456,
                ..chunk(1, 41, 0).key
            },
            ..chunk(1, 41, 0)
        };
        let expected = Inventory {
            region_blocks: 16,
            regions: 7,
            chunks: vec![content, chunk(2, 42, 1)],
        };
        assert_eq!(Inventory::decode(&bytes), Ok(expected.clone()));
        assert_eq!(expected.encode(), bytes);
    }

    #[test]
    fn of_too_many_chunks_those_that_were_used_most_and_are_newest_are_listed_in_their_order() {
        let main = |number, uses, queued_at| ListedChunk {
            queue: QueueKind::Main,
            uses,
            ..chunk(1, number, queued_at)
        };
        let mut inventory = Inventory {
            chunks: vec![
                chunk(2, 1, 1),
                chunk(1, 2, 2),
                main(3, 0, 3),
                main(4, 2, 1),
                chunk(1, 5, 9),
            ],
            ..Inventory::default()
        };
        inventory.arrange(3);
        let numbers = inventory.chunks.iter().map(|chunk| chunk.key.pack.number);
        assert_eq!(numbers.collect::<Vec<_>>(), [4, 3, 5]);
    }
}
