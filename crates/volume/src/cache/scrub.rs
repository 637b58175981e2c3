//! What a scrub of the disk file needs of the cache: the next chunk with its checksum, and the end of one that fails.
//!
//! Owns the order in which chunks are looked at, by their numbers. A chunk that is looked at is pinned, so that its slot keeps what
//! the checksum was made of: a slot that is given to another chunk, or filled, is never judged by the checksum of the one before.

use blkmq::io::Pin;

use super::tier::Tier;
use super::{Cache, ChunkKey, DISK, INDEX};
use crate::codec::Checksum;
use crate::lock::lock;
use crate::log::layout::BLOCK_BYTES;

/// Numbers looked at under one hold of the lock.
const LOOKS_MAX: u32 = 256;

/// Up to which chunk the disk file was looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CacheCursor {
    tier: usize,
    number: u32,
}

impl CacheCursor {
    /// Before the first chunk.
    pub(crate) const START: CacheCursor = CacheCursor {
        tier: DISK,
        number: 0,
    };
}

/// A chunk in the disk file, pinned there.
#[derive(Debug)]
pub(crate) struct ProvableChunk {
    tier: usize,
    number: u32,
    pub(crate) key: ChunkKey,
    pub(crate) offset: u64,
    /// In whole blocks.
    pub(crate) bytes: u64,
    pub(crate) checksum: Checksum,
    pin: Option<Pin>,
}

impl ProvableChunk {
    /// An index block, and no content.
    pub(crate) fn is_index(&self) -> bool {
        self.tier == INDEX
    }
}

/// What follows a cursor.
#[derive(Debug)]
pub(crate) enum NextProvable {
    Chunk(ProvableChunk),
    /// Nothing that is near; ask again.
    Continue,
    /// Nothing: the next one is the first.
    End,
}

impl Cache {
    /// Somewhere among the chunks that there are.
    pub(crate) fn cursor_at(&self, random: u64) -> CacheCursor {
        let numbers = lock(&self.tiers)[DISK].queues.numbers();
        CacheCursor {
            number: (random % u64::from(numbers.max(1))) as u32,
            ..CacheCursor::START
        }
    }

    /// The next chunk whose checksum is known, pinned. It is no use of the chunk.
    pub(crate) fn next_provable(&self, cursor: &mut CacheCursor) -> NextProvable {
        let tiers = lock(&self.tiers);
        let tier = &tiers[cursor.tier];
        let end = tier.queues.numbers();
        for _ in 0..LOOKS_MAX {
            if cursor.number >= end {
                if cursor.tier == INDEX {
                    *cursor = CacheCursor::START;
                    return NextProvable::End;
                }
                (cursor.tier, cursor.number) = (INDEX, 0);
                return NextProvable::Continue;
            }
            let number = cursor.number;
            cursor.number += 1;
            if let Some(chunk) = tier.provable(cursor.tier, number) {
                return NextProvable::Chunk(chunk);
            }
        }
        NextProvable::Continue
    }

    /// The disk file does not hold what it should: the chunk is found no more, and its slot is free as soon as no plan reads
    /// there. False if that was known.
    pub(crate) fn give_up_chunk(&self, chunk: ProvableChunk) -> bool {
        lock(&self.tiers)[chunk.tier].give_up_chunk(chunk)
    }
}

impl Tier {
    fn provable(&self, tier: usize, number: u32) -> Option<ProvableChunk> {
        let chunk = self.queues.get(number).filter(|chunk| !chunk.damaged)?;
        Some(ProvableChunk {
            tier,
            number,
            key: chunk.key,
            offset: self.offset(chunk.place),
            bytes: chunk.bytes.next_multiple_of(BLOCK_BYTES),
            checksum: chunk.checksum?,
            pin: (!canary::active!("scrub_pins_nothing")).then(|| chunk.pins.pin()),
        })
    }

    fn give_up_chunk(&mut self, chunk: ProvableChunk) -> bool {
        let ProvableChunk {
            number, key, pin, ..
        } = chunk;
        if canary::active!("scrub_keeps_what_it_found") {
            return true;
        }
        let is_news = self.mark_damaged(key);
        drop(pin);
        // Nothing of a disk file is fresh, so the time does not matter.
        if is_news && !self.queues.is_held(number, 0) {
            self.remove(number);
        }
        is_news
    }
}
