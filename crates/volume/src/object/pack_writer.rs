//! Writing packs: chunks are compressed and added in order, and the footer is written behind them.
//!
//! The format is [`super::pack`]'s. It must never write a slice of which an older one's content would show through:
//! sectors that could not be read are added as damaged.

use super::ObjectId;
use super::pack::{
    CHUNK_BYTES_MAX, Chunk, Codec, END_MAGIC, Item, MAGIC, Section, Slice, VERSION,
    checksum_fields, encode_slice,
};
use super::sessions::encode_session;
use crate::codec::{Writer, crc64};
use crate::hostlog::names::SessionName;
use crate::units::{Lsn, Span};

/// How much is done to make chunks smaller.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CompressionEffort {
    /// What is written is read again soon, and the processor is the guest's.
    #[default]
    Usual,
    /// Writers wait for it.
    Least,
}

impl CompressionEffort {
    /// zstd's level.
    fn level(self) -> i32 {
        match self {
            CompressionEffort::Usual => 1,
            CompressionEffort::Least => -4,
        }
    }
}

/// A chunk that becomes smaller by less than this part of it is stored as it is: reading it costs less.
const GAIN_MIN: usize = 32;
/// After so many chunks in a row that did not become smaller,
const MISSES_FEW: u32 = 8;
/// only each so many of those that follow is tried, until one does.
const TRY_EACH: u32 = 8;

/// Builds a pack.
pub struct PackWriter {
    session: SessionName,
    id: ObjectId,
    w: Writer,
    sections: Vec<Section>,
    /// Made once a pack: making one costs more than compressing a small chunk. Without it chunks
    /// are stored as they are.
    compressor: Option<zstd::bulk::Compressor<'static>>,
    /// What a chunk is compressed into.
    packed: Vec<u8>,
    /// Chunks in a row that were stored as they are.
    misses: u32,
}

impl std::fmt::Debug for PackWriter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PackWriter")
            .field("id", &self.id)
            .field("sections", &self.sections.len())
            .finish_non_exhaustive()
    }
}

/// Where a footer stands in its pack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FooterPlace {
    /// Where it begins.
    pub offset: u64,
    /// Its length in bytes, without the trailer.
    pub bytes: u32,
}

/// A finished pack and what it holds.
#[derive(Debug)]
pub struct Pack {
    /// Who wrote it.
    pub session: SessionName,
    /// Which of the session's objects it is.
    pub id: ObjectId,
    /// The object.
    pub bytes: Vec<u8>,
    /// Where the footer begins.
    pub footer_offset: u64,
    /// Its length in bytes, without the trailer.
    pub footer_bytes: u32,
    /// What is in it, in order.
    pub sections: Vec<Section>,
    /// For each of them the footer that whoever opens its volume reads.
    pub parts: Vec<FooterPlace>,
}

impl Pack {
    /// Its key in the store.
    pub fn key(&self) -> String {
        self.session.pack_key(self.id.number)
    }
}

impl PackWriter {
    /// An empty pack of this session, with this number there.
    pub fn new(session: SessionName, number: u64) -> PackWriter {
        PackWriter::with_effort(session, number, CompressionEffort::Usual)
    }

    /// The same, to be filled with this effort.
    pub fn with_effort(session: SessionName, number: u64, effort: CompressionEffort) -> PackWriter {
        let mut w = Writer::new();
        w.raw(&MAGIC).u16(VERSION).u16(0).u32(0);
        PackWriter {
            session,
            id: ObjectId::new(session, number),
            w,
            sections: Vec::new(),
            compressor: zstd::bulk::Compressor::new(effort.level()).ok(),
            packed: Vec::new(),
            misses: 0,
        }
    }

    /// Nothing was put into it.
    pub fn is_empty(&self) -> bool {
        self.sections.is_empty()
    }

    fn push(&mut self, slice: &Slice, item: Item) {
        // Nearly always the last one: only a pack of copies goes back and forth.
        let mut sections = self.sections.iter_mut().rev();
        match sections.find(|section| section.slice == *slice) {
            Some(section) => section.items.push(item),
            None => self.sections.push(Section {
                slice: slice.clone(),
                items: vec![item],
            }),
        }
    }

    /// Bytes stored so far.
    pub fn len(&self) -> usize {
        self.w.len()
    }

    /// Adds content: compressed where that makes it smaller.
    pub fn add(&mut self, slice: &Slice, span: Span, lsn: Lsn, content: &[u8]) {
        let origin = slice.origin;
        debug_assert_eq!(span.bytes(), content.len() as u64);
        let most = content.len() - content.len().div_ceil(GAIN_MIN);
        self.packed.clear();
        // Room for no more than pays: what does not become that small does not fit.
        self.packed.reserve_exact(most);
        let tried = self.misses < MISSES_FEW || self.misses.is_multiple_of(TRY_EACH);
        let compressor = self.compressor.as_mut().filter(|_| tried);
        let packed = compressor.and_then(|compressor| {
            let bytes = compressor.compress_to_buffer(content, &mut self.packed);
            bytes.ok().filter(|bytes| *bytes <= most)
        });
        self.misses = match packed {
            Some(_) => 0,
            None => self.misses.saturating_add(1),
        };
        let (codec, stored) = match packed {
            Some(bytes) => (Codec::Zstd, &self.packed[..bytes]),
            None => (Codec::Plain, content),
        };
        let checksum = crc64(&[&checksum_fields(origin, span, lsn), stored]);
        let fits = "packs are closed long before 4 GiB";
        let chunk = Chunk {
            pack: self.id,
            offset: u32::try_from(self.w.len()).expect(fits),
            stored: u32::try_from(stored.len()).expect(fits),
            origin,
            span,
            lsn,
            codec,
            checksum,
        };
        self.w.raw(stored);
        self.push(slice, Item::Chunk(chunk));
    }

    /// Begins a slice of which there may be nothing.
    pub fn add_slice(&mut self, slice: &Slice) {
        self.sections.push(Section {
            slice: slice.clone(),
            items: Vec::new(),
        });
    }

    /// Adds a chunk of another pack as it is stored there. Its origin must be the slice's.
    pub fn add_stored(&mut self, slice: &Slice, chunk: &Chunk, stored: &[u8]) {
        debug_assert_eq!(slice.origin, chunk.origin);
        debug_assert_eq!(chunk.stored as usize, stored.len());
        let copy = Chunk {
            pack: self.id,
            offset: u32::try_from(self.w.len()).expect("packs are closed long before 4 GiB"),
            ..chunk.clone()
        };
        self.w.raw(stored);
        self.push(slice, Item::Chunk(copy));
    }

    /// Adds a zeroed range.
    pub fn add_zeroes(&mut self, slice: &Slice, span: Span, lsn: Lsn) {
        let origin = slice.origin;
        self.push(slice, Item::Zeroes { origin, span, lsn });
    }

    /// Adds sectors whose content is lost, not longer than a chunk.
    pub fn add_damaged(&mut self, slice: &Slice, span: Span, lsn: Lsn) {
        debug_assert!(span.bytes() <= CHUNK_BYTES_MAX);
        let chunk = Chunk {
            pack: self.id,
            offset: 0,
            stored: 0,
            origin: slice.origin,
            span,
            lsn,
            codec: Codec::Damaged,
            checksum: 0,
        };
        self.push(slice, Item::Chunk(chunk));
    }

    /// The object.
    pub fn finish(self) -> Pack {
        self.finish_with(Vec::new())
    }

    /// The object, in which each slice has a footer of its own as well.
    pub fn finish_parts(mut self) -> Pack {
        if self.sections.len() <= 1 {
            return self.finish();
        }
        let sections = std::mem::take(&mut self.sections);
        let parts = sections.chunks(1).map(|part| self.write_footer(part));
        let parts = parts.collect();
        self.sections = sections;
        self.finish_with(parts)
    }

    /// All of it stands in the last footer, from which an index can be rebuilt.
    fn finish_with(mut self, mut parts: Vec<FooterPlace>) -> Pack {
        let sections = std::mem::take(&mut self.sections);
        let whole = self.write_footer(&sections);
        if parts.is_empty() {
            parts = vec![whole; sections.len()];
        }
        Pack {
            session: self.session,
            id: self.id,
            bytes: self.w.finish(),
            footer_offset: whole.offset,
            footer_bytes: whole.bytes,
            parts,
            sections,
        }
    }

    /// A footer of these sections, with its trailer.
    fn write_footer(&mut self, sections: &[Section]) -> FooterPlace {
        let offset = self.w.len();
        encode_session(&mut self.w, self.session);
        self.w.u64(self.id.number);
        for section in sections {
            encode_slice(&mut self.w, section);
        }
        let bytes = self.w.len() - offset;
        let entries: usize = sections.iter().map(|part| part.items.len()).sum();
        let count = |n: usize| u32::try_from(n).expect("bounded by the pack's size");
        self.w.u64(offset as u64);
        self.w.u32(count(entries)).u32(count(sections.len()));
        let crc = crc64(&[&self.w.bytes()[offset..]]);
        self.w.u64(crc).raw(&END_MAGIC);
        FooterPlace {
            offset: offset as u64,
            bytes: count(bytes),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::pack::{Ancestor, Footer, Lineage, VolumeLabel, decode, decode_footer};
    use super::*;
    use crate::units::{Epoch, HostId, LogSession, VolumeId, VolumeSize};

    fn slice() -> Slice {
        Slice {
            origin: VolumeId([9; 16]),
            epoch: Epoch(4),
            first: Lsn(3),
            since: Epoch(2),
            begin: Lsn(3),
            last: Lsn(6),
            packs: 1,
            volume: VolumeLabel {
                name: "demo".into(),
                size: VolumeSize {
                    bytes: 1 << 30,
                    block: 512,
                },
            },
            lineage: Lineage::default(),
        }
    }

    fn pack() -> Pack {
        let session = SessionName {
            host: HostId([5; 16]),
            session: LogSession {
                number: 3,
                random: 1,
            },
        };
        let mut writer = PackWriter::new(session, 2);
        let slice = slice();
        writer.add(&slice, Span::new(8, 16), Lsn(3), &[7; 8192]);
        let noise: Vec<u8> = (0..512_u32)
            .map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8)
            .collect();
        writer.add(&slice, Span::new(64, 1), Lsn(4), &noise);
        writer.add_zeroes(&slice, Span::new(100, 1 << 40), Lsn(5));
        let parent = Ancestor {
            volume: slice.origin,
            last: Lsn(2),
        };
        let fork = Slice {
            origin: VolumeId([8; 16]),
            lineage: [parent].into(),
            ..slice
        };
        writer.add_damaged(&fork, Span::new(40, 8), Lsn(6));
        writer.finish()
    }

    #[test]
    fn a_pack_is_read_back_as_it_was_written() {
        let pack = pack();
        let found = Footer {
            session: pack.session,
            id: pack.id,
            sections: pack.sections.clone(),
        };
        assert_eq!(decode(&pack.bytes), Ok(found.clone()));
        let footer = &pack.bytes[pack.footer_offset as usize..];
        assert_eq!(decode_footer(pack.id, footer), Ok(found));
        let other = ObjectId {
            number: 3,
            ..pack.id
        };
        assert!(decode_footer(other, footer).is_err(), "another pack's");
        let Item::Chunk(chunk) = &pack.sections[0].items[0] else {
            panic!("a chunk")
        };
        assert_eq!(chunk.codec, Codec::Zstd);
        let stored = &pack.bytes[chunk.offset as usize..][..chunk.stored as usize];
        assert_eq!(chunk.open(stored), Ok(vec![7; 8192]));
        let Item::Chunk(noise) = &pack.sections[0].items[1] else {
            panic!("a chunk")
        };
        assert_eq!(noise.codec, Codec::Plain);
        let Item::Chunk(damaged) = &pack.sections[1].items[0] else {
            panic!("a chunk")
        };
        assert_eq!((damaged.codec, damaged.stored), (Codec::Damaged, 0));
        assert!(damaged.open(&[]).is_err(), "nothing stands in its place");
    }

    #[test]
    fn a_chunk_read_from_another_place_or_time_is_refused() {
        let pack = pack();
        let Item::Chunk(chunk) = &pack.sections[0].items[0] else {
            panic!("a chunk")
        };
        let stored = &pack.bytes[chunk.offset as usize..][..chunk.stored as usize];
        for wrong in [
            Chunk {
                origin: VolumeId([8; 16]),
                ..chunk.clone()
            },
            Chunk {
                span: Span::new(16, 16),
                ..chunk.clone()
            },
            Chunk {
                lsn: Lsn(2),
                ..chunk.clone()
            },
        ] {
            assert!(wrong.open(stored).is_err());
        }
        for bit in 0..stored.len() * 8 {
            let mut damaged = stored.to_vec();
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert!(chunk.open(&damaged).is_err(), "{bit}");
        }
    }

    #[test]
    fn a_damaged_footer_is_refused() {
        let pack = pack();
        let footer = &pack.bytes[pack.footer_offset as usize..];
        for bit in 0..footer.len() * 8 {
            let mut damaged = footer.to_vec();
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert!(decode_footer(pack.id, &damaged).is_err(), "{bit}");
        }
    }
}
