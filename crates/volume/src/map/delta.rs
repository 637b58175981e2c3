//! What a delta says of some sectors, small: there are up to a million of them in memory.
//!
//! A chunk of 80 bytes would stand there behind a pointer for every 4 KiB that were written at random. What all
//! chunks of a slice have in common is shared instead, and the rest is in the extent itself. A chunk's first sector
//! is where the extent begins, without what was skipped of the chunk: a volume's own chunks lie at their own
//! addresses.

use std::sync::Arc;

use crate::map::SectorRun;
use crate::object::ObjectId;
use crate::object::pack::{Chunk, Codec, Item};
use crate::units::{Lsn, Span, VolumeId};

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

/// What chunks have in common.
#[derive(Debug, PartialEq, Eq)]
struct ChunkSource {
    pack: ObjectId,
    origin: VolumeId,
    /// Their commits are counted from here.
    lsn: Lsn,
}

/// Part of a chunk, from `skip` sectors on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ChunkPart {
    source: Arc<ChunkSource>,
    checksum: u64,
    offset: u32,
    stored: u32,
    sectors: u32,
    /// Sectors of the chunk before this part.
    pub(crate) skip: u32,
    /// Commits behind the source's, or before.
    lsn: i32,
    codec: Codec,
}

impl ChunkPart {
    /// The chunk of a part that begins at `start`.
    pub(crate) fn chunk(&self, start: u64) -> Chunk {
        let ChunkSource { pack, origin, lsn } = *self.source;
        Chunk {
            pack,
            offset: self.offset,
            stored: self.stored,
            origin,
            span: Span::new(
                start.wrapping_sub(u64::from(self.skip)),
                u64::from(self.sectors),
            ),
            lsn: Lsn(lsn.0.wrapping_add_signed(i64::from(self.lsn))),
            codec: self.codec,
            checksum: self.checksum,
        }
    }
}

impl SectorRun for ChunkPart {
    fn skip(&self, sectors: u64) -> ChunkPart {
        let skip = u64::from(self.skip) + sectors;
        let skip = u32::try_from(skip).expect("a part lies within its chunk of u32 bytes");
        ChunkPart {
            skip,
            ..self.clone()
        }
    }
}

/// Makes deltas of the items of packs, one after the other.
#[derive(Debug, Default)]
pub(crate) struct DeltaSource(Option<Arc<ChunkSource>>);

impl DeltaSource {
    /// The extent of the volume's own address space that a pack's item stands for.
    pub(crate) fn delta_of(&mut self, item: &Item) -> (Span, Delta) {
        match item {
            Item::Chunk(chunk) => (chunk.span, Delta::Part(self.part_of(chunk))),
            Item::Zeroes { span, .. } => (*span, Delta::Zeroes),
        }
    }

    fn part_of(&mut self, chunk: &Chunk) -> ChunkPart {
        let (source, lsn) = self.source_of(chunk);
        let sectors = u32::try_from(chunk.span.sectors());
        ChunkPart {
            source,
            checksum: chunk.checksum,
            offset: chunk.offset,
            stored: chunk.stored,
            sectors: sectors.expect("a chunk has less than u32 bytes"),
            skip: 0,
            lsn,
            codec: chunk.codec,
        }
    }

    fn source_of(&mut self, chunk: &Chunk) -> (Arc<ChunkSource>, i32) {
        let known = self
            .0
            .as_ref()
            .filter(|source| source.pack == chunk.pack && source.origin == chunk.origin);
        let difference = known.and_then(|source| {
            let difference = i128::from(chunk.lsn.0) - i128::from(source.lsn.0);
            Some((Arc::clone(source), i32::try_from(difference).ok()?))
        });
        difference.unwrap_or_else(|| {
            let source = Arc::new(ChunkSource {
                pack: chunk.pack,
                origin: chunk.origin,
                lsn: chunk.lsn,
            });
            self.0 = Some(Arc::clone(&source));
            (source, 0)
        })
    }
}

/// The sectors that a pack's item stands for.
pub(crate) fn span_of(item: &Item) -> Span {
    match item {
        Item::Chunk(chunk) => chunk.span,
        Item::Zeroes { span, .. } => *span,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chunk(pack: u64, start: u64, lsn: u64) -> Chunk {
        Chunk {
            pack: ObjectId {
                session: 1,
                number: pack,
            },
            offset: 4096,
            stored: 100,
            origin: VolumeId([3; 16]),
            span: Span::new(start, 8),
            lsn: Lsn(lsn),
            codec: Codec::Zstd,
            checksum: 77,
        }
    }

    #[test]
    fn a_delta_gives_back_the_chunk_of_its_item_whatever_came_before() {
        let mut source = DeltaSource::default();
        let far = u64::MAX - 1;
        for (pack, start, lsn) in [(1, 0, 9), (1, 80, 3), (1, 8, far), (2, 8, 5), (1, 16, 5)] {
            let chunk = chunk(pack, start, lsn);
            let (span, delta) = source.delta_of(&Item::Chunk(chunk.clone()));
            let Delta::Part(part) = delta.skip(3) else {
                panic!("{delta:?}")
            };
            assert_eq!(part.skip, 3);
            assert_eq!(part.chunk(span.start + 3), chunk);
        }
    }

    #[test]
    fn a_delta_takes_forty_bytes() {
        assert_eq!(size_of::<Delta>(), 40);
    }
}
