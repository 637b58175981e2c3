//! Packs: immutable objects of compressed, checksummed chunks, and the index of what is in them.
//!
//! ```text
//! 0   header, 32 bytes: magic `FIRNPACK`, version u16, zero u16, zero u32, object id 16
//! 32  stored bytes of the chunks, in order
//!     footer: one 80-byte entry per chunk and per zeroed range
//!     trailer, 32 bytes: footer offset u64, entries u32, zero u32, CRC-64 of footer and the
//!     fields before it u64, magic `FIRNPEND`
//! ```
//!
//! Footer entry:
//!
//! | offset | bytes | field |
//! |---|---|---|
//! | 0 | 16 | origin volume id |
//! | 16 | 8 | first sector in the origin volume |
//! | 24 | 8 | sectors |
//! | 32 | 8 | LSN of the commit the content is from (the newest one, if several) |
//! | 40 | 4 | offset of the stored bytes in the pack; 0 for zeroes |
//! | 44 | 4 | stored bytes; 0 for zeroes |
//! | 48 | 4 | key id, 0: not encrypted |
//! | 52 | 1 | codec: 0 zeroes, 1 as is, 2 zstd |
//! | 53 | 3 | zero |
//! | 56 | 8 | checksum |
//! | 64 | 16 | authentication tag, zero while key id is 0 |
//!
//! The checksum is the CRC-64/NVME of bytes 0..40 of the entry and the stored bytes: it binds
//! origin, address and LSN, so that misplaced content fails as surely as damaged content. The
//! index of all volumes can be rebuilt from footers alone.

use std::sync::Arc;

use blkmq::io::SECTOR_BYTES;

use super::{FormatError, ObjectId};
use crate::codec::{Reader, Writer, crc64};
use crate::map::SectorRun;
use crate::units::{Lsn, Span, VolumeId};

const MAGIC: [u8; 8] = *b"FIRNPACK";
const END_MAGIC: [u8; 8] = *b"FIRNPEND";
/// The version that this code writes and reads.
pub const VERSION: u16 = 1;
/// Bytes before the first chunk.
pub const HEADER_BYTES: usize = 32;
/// Bytes of the trailer.
pub const TRAILER_BYTES: usize = 32;
/// Bytes of a footer entry.
pub const ENTRY_BYTES: usize = 80;

/// How a chunk's bytes are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Codec {
    /// As they are.
    Plain = 1,
    /// One zstd frame.
    Zstd = 2,
}

/// A chunk: where its stored bytes are, and what proves them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chunk {
    /// The pack.
    pub pack: ObjectId,
    /// Offset of the stored bytes in it.
    pub offset: u32,
    /// How many.
    pub stored: u32,
    /// The volume in which the content was written (forks share it).
    pub origin: VolumeId,
    /// Its sectors there.
    pub span: Span,
    /// The newest commit in it.
    pub lsn: Lsn,
    /// How it is stored.
    pub codec: Codec,
    /// See the module's description.
    pub checksum: u64,
}

impl Chunk {
    /// Content from stored bytes, if they are this chunk's.
    ///
    /// # Errors
    /// `Corrupt` if the bytes fail the checksum or do not decompress to the chunk's length.
    pub fn open(&self, stored: &[u8]) -> Result<Vec<u8>, FormatError> {
        let binding = binding(self.origin, self.span, self.lsn);
        if crc64(&[&binding, stored]) != self.checksum {
            return Err(FormatError::Corrupt("a chunk fails its checksum"));
        }
        let bytes = usize::try_from(self.span.bytes())
            .map_err(|_| FormatError::Corrupt("a chunk is too long"))?;
        let content = match self.codec {
            Codec::Plain => stored.to_vec(),
            Codec::Zstd => zstd::bulk::decompress(stored, bytes)
                .map_err(|_| FormatError::Corrupt("a chunk does not decompress"))?,
        };
        if content.len() == bytes {
            Ok(content)
        } else {
            Err(FormatError::Corrupt("a chunk has the wrong length"))
        }
    }
}

/// Part of a chunk, from `skip` sectors on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChunkPart {
    /// The chunk, shared by all its parts.
    pub chunk: Arc<Chunk>,
    /// Sectors of the chunk before this part.
    pub skip: u32,
}

impl SectorRun for ChunkPart {
    fn skip(&self, sectors: u64) -> ChunkPart {
        let skip = u64::from(self.skip) + sectors;
        let skip = u32::try_from(skip).expect("a part lies within its chunk of u32 bytes");
        ChunkPart {
            chunk: Arc::clone(&self.chunk),
            skip,
        }
    }
}

/// What a footer entry says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Item {
    /// These sectors are this chunk.
    Chunk(Chunk),
    /// These sectors were zeroed.
    Zeroes {
        /// The volume.
        origin: VolumeId,
        /// The sectors.
        span: Span,
        /// The newest commit that zeroed some of them.
        lsn: Lsn,
    },
}

/// The fields that a checksum binds: bytes 0..40 of the entry.
fn binding(origin: VolumeId, span: Span, lsn: Lsn) -> [u8; 40] {
    let mut bytes = [0; 40];
    bytes[..16].copy_from_slice(&origin.0);
    bytes[16..24].copy_from_slice(&span.start.to_le_bytes());
    bytes[24..32].copy_from_slice(&span.sectors().to_le_bytes());
    bytes[32..].copy_from_slice(&lsn.0.to_le_bytes());
    bytes
}

fn encode_item(w: &mut Writer, item: &Item) {
    let (origin, span, lsn) = match item {
        Item::Chunk(chunk) => (chunk.origin, chunk.span, chunk.lsn),
        Item::Zeroes { origin, span, lsn } => (*origin, *span, *lsn),
    };
    w.raw(&binding(origin, span, lsn));
    match item {
        Item::Chunk(chunk) => {
            w.u32(chunk.offset)
                .u32(chunk.stored)
                .u32(0)
                .u8(chunk.codec as u8);
            w.raw(&[0; 3]).u64(chunk.checksum).raw(&[0; 16]);
        }
        Item::Zeroes { .. } => {
            w.raw(&[0; 40]);
        }
    }
}

fn decode_item(r: &mut Reader<'_>, pack: ObjectId) -> Result<Item, FormatError> {
    let origin = VolumeId(r.array()?);
    let (start, sectors, lsn) = (r.u64()?, r.u64()?, Lsn(r.u64()?));
    let (offset, stored, key) = (r.u32()?, r.u32()?, r.u32()?);
    let codec = r.u8()?;
    r.raw(3)?;
    let checksum = r.u64()?;
    r.raw(16)?;
    let end = start.checked_add(sectors).filter(|end| *end > start);
    let span = Span {
        start,
        end: end.ok_or(FormatError::Corrupt("an empty or endless extent"))?,
    };
    if key != 0 {
        return Err(FormatError::Corrupt(
            "it is encrypted, which this firn does not support",
        ));
    }
    let codec = match codec {
        0 => return Ok(Item::Zeroes { origin, span, lsn }),
        1 => Codec::Plain,
        2 => Codec::Zstd,
        _ => return Err(FormatError::Corrupt("an unknown codec")),
    };
    if span.sectors() > CHUNK_BYTES_MAX / SECTOR_BYTES {
        return Err(FormatError::Corrupt("a chunk is too long"));
    }
    Ok(Item::Chunk(Chunk {
        pack,
        offset,
        stored,
        origin,
        span,
        lsn,
        codec,
        checksum,
    }))
}

/// The longest chunk that is accepted; what is written is far shorter.
pub const CHUNK_BYTES_MAX: u64 = 4 << 20;

/// zstd's level for chunks: what is written is read again soon, and the processor is the guest's.
const LEVEL: i32 = 1;

/// Builds a pack.
pub struct PackWriter {
    id: ObjectId,
    w: Writer,
    items: Vec<Item>,
    /// Made once a pack: making one costs more than compressing a small chunk. Without it chunks
    /// are stored as they are.
    compressor: Option<zstd::bulk::Compressor<'static>>,
    /// What a chunk is compressed into.
    packed: Vec<u8>,
}

impl std::fmt::Debug for PackWriter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PackWriter")
            .field("id", &self.id)
            .field("items", &self.items.len())
            .finish_non_exhaustive()
    }
}

/// A finished pack and what it holds.
#[derive(Debug)]
pub struct Pack {
    /// Its name.
    pub id: ObjectId,
    /// The object.
    pub bytes: Vec<u8>,
    /// Where the footer begins.
    pub footer_offset: u64,
    /// Its length in bytes, without the trailer.
    pub footer_bytes: u32,
    /// What is in it, in order.
    pub items: Vec<Item>,
}

impl PackWriter {
    /// An empty pack.
    pub fn new(id: ObjectId) -> PackWriter {
        let mut w = Writer::new();
        w.raw(&MAGIC).u16(VERSION).u16(0).u32(0).raw(&id.bytes());
        PackWriter {
            id,
            w,
            items: Vec::new(),
            compressor: zstd::bulk::Compressor::new(LEVEL).ok(),
            packed: Vec::new(),
        }
    }

    /// Nothing was put into it.
    pub fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    /// Bytes stored so far.
    pub fn len(&self) -> usize {
        self.w.len()
    }

    /// Adds content: compressed where that makes it smaller.
    pub fn add(&mut self, origin: VolumeId, span: Span, lsn: Lsn, content: &[u8]) {
        debug_assert_eq!(span.bytes(), content.len() as u64);
        self.packed.clear();
        // Room for less than the chunk: what does not become smaller does not fit.
        self.packed.reserve_exact(content.len().saturating_sub(1));
        let packed = self.compressor.as_mut().and_then(|compressor| {
            let bytes = compressor.compress_to_buffer(content, &mut self.packed);
            bytes.ok().filter(|bytes| *bytes < content.len())
        });
        let (codec, stored) = match packed {
            Some(bytes) => (Codec::Zstd, &self.packed[..bytes]),
            None => (Codec::Plain, content),
        };
        let checksum = crc64(&[&binding(origin, span, lsn), stored]);
        let fits = "packs are closed long before 4 GiB";
        self.items.push(Item::Chunk(Chunk {
            pack: self.id,
            offset: u32::try_from(self.w.len()).expect(fits),
            stored: u32::try_from(stored.len()).expect(fits),
            origin,
            span,
            lsn,
            codec,
            checksum,
        }));
        self.w.raw(stored);
    }

    /// Adds a zeroed range.
    pub fn add_zeroes(&mut self, origin: VolumeId, span: Span, lsn: Lsn) {
        self.items.push(Item::Zeroes { origin, span, lsn });
    }

    /// The object.
    pub fn finish(mut self) -> Pack {
        let footer_offset = self.w.len();
        for item in &self.items {
            encode_item(&mut self.w, item);
        }
        let footer_bytes = self.w.len() - footer_offset;
        let count = u32::try_from(self.items.len()).expect("bounded by the pack's size");
        self.w.u64(footer_offset as u64).u32(count).u32(0);
        let crc = crc64(&[&self.w.bytes()[footer_offset..]]);
        self.w.u64(crc).raw(&END_MAGIC);
        Pack {
            id: self.id,
            bytes: self.w.finish(),
            footer_offset: footer_offset as u64,
            footer_bytes: u32::try_from(footer_bytes).expect("bounded by the pack's size"),
            items: self.items,
        }
    }
}

/// Reads a footer and the trailer behind it.
///
/// # Errors
/// If they are not a pack's, damaged, or of a newer format.
pub fn decode_footer(pack: ObjectId, bytes: &[u8]) -> Result<Vec<Item>, FormatError> {
    let split = bytes
        .len()
        .checked_sub(TRAILER_BYTES)
        .ok_or(FormatError::Foreign)?;
    let (footer, trailer) = bytes.split_at(split);
    let mut r = Reader::new(trailer);
    let (_offset, count) = (r.u64()?, r.u32()? as usize);
    r.u32()?;
    let crc = r.u64()?;
    if r.array()? != END_MAGIC {
        return Err(FormatError::Foreign);
    }
    if crc != crc64(&[footer, &trailer[..16]]) {
        return Err(FormatError::Corrupt(
            "the footer of a pack fails its checksum",
        ));
    }
    if count.checked_mul(ENTRY_BYTES) != Some(footer.len()) {
        return Err(FormatError::Corrupt(
            "the footer of a pack has the wrong length",
        ));
    }
    let mut r = Reader::new(footer);
    (0..count).map(|_| decode_item(&mut r, pack)).collect()
}

/// Reads a whole pack: for checks and for rebuilding indexes.
///
/// # Errors
/// As [`decode_footer`].
pub fn decode(bytes: &[u8]) -> Result<(ObjectId, Vec<Item>), FormatError> {
    let mut r = Reader::new(bytes);
    if r.array()? != MAGIC {
        return Err(FormatError::Foreign);
    }
    let version = r.u16()?;
    if version != VERSION {
        return Err(FormatError::Newer(version));
    }
    r.raw(6)?;
    let id = ObjectId {
        session: r.u64()?,
        number: r.u64()?,
    };
    let trailer = bytes
        .len()
        .checked_sub(TRAILER_BYTES)
        .ok_or(FormatError::Foreign)?;
    let footer = Reader::new(&bytes[trailer..]).u64()?;
    let footer = usize::try_from(footer)
        .ok()
        .filter(|at| *at >= HEADER_BYTES);
    let footer = footer
        .and_then(|at| bytes.get(at..))
        .ok_or(FormatError::Corrupt("no footer"))?;
    Ok((id, decode_footer(id, footer)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    const VOLUME: VolumeId = VolumeId([9; 16]);

    fn pack() -> Pack {
        let mut writer = PackWriter::new(ObjectId {
            session: 1,
            number: 2,
        });
        writer.add(VOLUME, Span::new(8, 16), Lsn(3), &[7; 8192]);
        let noise: Vec<u8> = (0..512_u32)
            .map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8)
            .collect();
        writer.add(VOLUME, Span::new(64, 1), Lsn(4), &noise);
        writer.add_zeroes(VOLUME, Span::new(100, 1 << 40), Lsn(5));
        writer.finish()
    }

    #[test]
    fn a_pack_is_read_back_as_it_was_written() {
        let pack = pack();
        assert_eq!(decode(&pack.bytes), Ok((pack.id, pack.items.clone())));
        let footer = &pack.bytes[pack.footer_offset as usize..];
        assert_eq!(decode_footer(pack.id, footer), Ok(pack.items.clone()));
        let Item::Chunk(chunk) = &pack.items[0] else {
            panic!("a chunk")
        };
        assert_eq!(chunk.codec, Codec::Zstd);
        let stored = &pack.bytes[chunk.offset as usize..][..chunk.stored as usize];
        assert_eq!(chunk.open(stored), Ok(vec![7; 8192]));
        let Item::Chunk(noise) = &pack.items[1] else {
            panic!("a chunk")
        };
        assert_eq!(noise.codec, Codec::Plain);
    }

    #[test]
    fn a_chunk_read_from_another_place_or_time_is_refused() {
        let pack = pack();
        let Item::Chunk(chunk) = &pack.items[0] else {
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
