//! Packs: immutable objects of compressed, checksummed chunks, and the index of what is in them.
//!
//! ```text
//! 0   header, 16 bytes: magic `FIRNPACK`, version u16, zero u16, zero u32
//! 16  stored bytes of the chunks, in order
//!     footer: the pack's name, 40 bytes: its session, and its number there; then for each slice its
//!     header, 84 bytes and the volume's name, its lineage, 24 bytes for each ancestor, and an entry of 64
//!     bytes for each chunk, zeroed range and damaged range of it
//!     trailer, 32 bytes: footer offset u64, entries u32, slices u32, CRC-64 of footer and the
//!     fields before it u64, magic `FIRNPEND`
//! ```
//!
//! A slice is a part of the history of one volume; a pack holds all or some of it. A pack of slices of several
//! volumes has, before this footer of all of them, one of the same form for each slice: a root or record names
//! that of its own volume. A slice's header, and an entry:
//!
//! | offset | bytes | field of a slice |
//! |---|---|---|
//! | 0 | 16 | origin volume id |
//! | 16 | 8 | epoch in which it was written |
//! | 24 | 8 | first LSN of that epoch |
//! | 32 | 8 | LSN up to which the slice goes |
//! | 40 | 4 | key id, 0: not encrypted |
//! | 44 | 4 | entries that follow |
//! | 48 | 4 | ancestors of the volume that follow before them: volume id 16, LSN 8; the nearest first |
//! | 52 | 4 | packs that hold the slice, this one among them; 0: it is a copy, see docs/format.md |
//! | 56 | 8 | first LSN of the slice |
//! | 64 | 8 | size of the volume in bytes |
//! | 72 | 4 | logical block size of the volume in bytes |
//! | 76 | 8 | epoch in which the owner's unbroken hold began |
//! | 84 | text | name of the volume |
//!
//! | offset | bytes | field of an entry |
//! |---|---|---|
//! | 0 | 8 | first sector in the origin volume |
//! | 8 | 8 | sectors |
//! | 16 | 8 | LSN of the commit the content is from (the newest one, if several) |
//! | 24 | 4 | offset of the stored bytes in the pack; 0 without any |
//! | 28 | 4 | stored bytes; 0 for zeroes and damaged sectors |
//! | 32 | 1 | codec: 0 zeroes, 1 as is, 2 zstd, 3 damaged |
//! | 33 | 7 | zero |
//! | 40 | 8 | checksum; 0 without stored bytes |
//! | 48 | 16 | authentication tag, zero while key id is 0 |
//!
//! The checksum is the CRC-64/NVME of origin, first sector, sectors, LSN and the stored bytes: it
//! binds origin, address and LSN, so that misplaced content fails as surely as damaged content. The
//! index of all volumes can be rebuilt from footers alone (`rebuild/`): of one volume, what an older epoch
//! wrote in a slice that reaches the first LSN of a newer one was never committed. For that alone a slice says what its
//! volume is called, how large it is, and whether more packs belong to it.

use std::sync::Arc;

use blkmq::io::SECTOR_BYTES;

use super::sessions::decode_session;
use super::{FormatError, ObjectId};
use crate::codec::{Reader, TruncatedInput, Writer, crc64};
use crate::hostlog::names::SessionName;
use crate::units::{Epoch, Lsn, Span, VolumeId, VolumeSize};

pub(super) const MAGIC: [u8; 8] = *b"FIRNPACK";
pub(super) const END_MAGIC: [u8; 8] = *b"FIRNPEND";
/// The version that this code writes and reads.
pub const VERSION: u16 = 1;
/// Bytes before the first chunk.
pub const HEADER_BYTES: usize = 16;
/// Bytes of the pack's name in the footer.
pub const NAME_BYTES: usize = 40;
/// Bytes of the trailer.
pub const TRAILER_BYTES: usize = 32;
/// Bytes of a slice's header in the footer, before the volume's name.
pub const SLICE_BYTES: usize = 84;
/// Bytes of the length of a name.
const NAME_LENGTH_BYTES: usize = 2;
/// Bytes of an ancestor in a slice's lineage.
const ANCESTOR_BYTES: usize = 24;
/// Bytes of a footer entry.
pub const ENTRY_BYTES: usize = 64;
/// The codec of a zeroed range, which is no chunk.
pub(super) const ZEROES: u8 = 0;

/// How a chunk's bytes are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Codec {
    /// As they are.
    Plain = 1,
    /// One zstd frame.
    Zstd = 2,
    /// No bytes: they could not be read when they were to be stored. Nothing else is ever served in
    /// their place.
    Damaged = 3,
}

impl Codec {
    pub(super) fn decode(code: u8) -> Option<Codec> {
        match code {
            1 => Some(Codec::Plain),
            2 => Some(Codec::Zstd),
            3 => Some(Codec::Damaged),
            _ => None,
        }
    }
}

/// A volume whose history another one begins with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ancestor {
    /// The volume.
    pub volume: VolumeId,
    /// Up to here its history is the other's.
    pub last: Lsn,
}

/// The volumes from which one was forked, the nearest first: an index that is rebuilt from packs has their
/// content too.
pub type Lineage = Arc<[Ancestor]>;

/// A part of the history of one volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Slice {
    /// The volume.
    pub origin: VolumeId,
    /// The epoch of its owner.
    pub epoch: Epoch,
    /// The first LSN of that epoch: what an older epoch wrote at or above it is void.
    pub first: Lsn,
    /// The epoch in which the owner's unbroken hold began: what a hold before it wrote at or above this slice is void.
    pub since: Epoch,
    /// It begins here.
    pub begin: Lsn,
    /// It goes up to here.
    pub last: Lsn,
    /// The packs that hold it, this one among them. 0: it is no slice, but a *copy* of what the volume was at `last`, as
    /// far as the pack has it.
    pub packs: u32,
    /// The volume as it was called, and how large it was, when the pack was made.
    pub volume: VolumeLabel,
    /// What the volume was forked from; empty if it was not.
    pub lineage: Lineage,
}

/// What only a root says of a volume otherwise: a rebuild has it from here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolumeLabel {
    /// Its name.
    pub name: Arc<str>,
    /// Its size and logical block size.
    pub size: VolumeSize,
}

impl Slice {
    /// It is the state at its last LSN, as far as its pack has it, and no part of the history.
    pub fn is_copy(&self) -> bool {
        self.packs == 0
    }

    /// It is a copy that a fork made of what it shares with this volume: it says nothing of the volume itself.
    pub fn is_copy_of_a_fork(&self) -> bool {
        self.is_copy() && self.volume.name.is_empty()
    }

    /// Bytes of this slice with so many entries in a footer.
    pub fn footer_bytes(&self, entries: usize) -> u64 {
        let name = NAME_LENGTH_BYTES + self.volume.name.len();
        let lineage = self.lineage.len() * ANCESTOR_BYTES;
        (SLICE_BYTES + name + lineage + entries * ENTRY_BYTES) as u64
    }
}

/// A slice and what a pack has of it, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Section {
    /// Whose it is.
    pub slice: Slice,
    /// What it holds; later items hide earlier ones.
    pub items: Vec<Item>,
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
        let binding = checksum_fields(self.origin, self.span, self.lsn);
        if crc64(&[&binding, stored]) != self.checksum {
            return Err(FormatError::Corrupt("a chunk fails its checksum"));
        }
        let bytes = usize::try_from(self.span.bytes())
            .map_err(|_| FormatError::Corrupt("a chunk is too long"))?;
        let content = match self.codec {
            Codec::Plain => stored.to_vec(),
            Codec::Zstd => zstd::bulk::decompress(stored, bytes)
                .map_err(|_| FormatError::Corrupt("a chunk does not decompress"))?,
            Codec::Damaged => return Err(FormatError::Corrupt("a chunk was damaged before")),
        };
        if content.len() == bytes {
            Ok(content)
        } else {
            Err(FormatError::Corrupt("a chunk has the wrong length"))
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

/// The fields that a checksum binds.
pub(super) fn checksum_fields(origin: VolumeId, span: Span, lsn: Lsn) -> [u8; 40] {
    let mut bytes = [0; 40];
    bytes[..16].copy_from_slice(&origin.0);
    bytes[16..24].copy_from_slice(&span.start.to_le_bytes());
    bytes[24..32].copy_from_slice(&span.sectors().to_le_bytes());
    bytes[32..].copy_from_slice(&lsn.0.to_le_bytes());
    bytes
}

pub(super) fn encode_slice(w: &mut Writer, section: &Section) {
    let Slice {
        origin,
        epoch,
        first,
        since,
        begin,
        last,
        packs,
        volume: VolumeLabel { name, size },
        lineage,
    } = &section.slice;
    let entries = u32::try_from(section.items.len()).expect("bounded by the pack's size");
    w.raw(&origin.0).u64(epoch.0).u64(first.0).u64(last.0);
    w.u32(0).u32(entries).u32(lineage.len() as u32).u32(*packs);
    w.u64(begin.0).u64(size.bytes).u32(size.block);
    w.u64(since.0).text(name);
    for ancestor in lineage.iter() {
        w.raw(&ancestor.volume.0).u64(ancestor.last.0);
    }
    section.items.iter().for_each(|item| encode_item(w, item));
}

pub(super) fn encode_item(w: &mut Writer, item: &Item) {
    let (span, lsn) = match item {
        Item::Chunk(chunk) => (chunk.span, chunk.lsn),
        Item::Zeroes { span, lsn, .. } => (*span, *lsn),
    };
    w.u64(span.start).u64(span.sectors()).u64(lsn.0);
    match item {
        Item::Chunk(chunk) => {
            w.u32(chunk.offset).u32(chunk.stored).u8(chunk.codec as u8);
            w.raw(&[0; 7]).u64(chunk.checksum).raw(&[0; 16]);
        }
        Item::Zeroes { .. } => {
            w.raw(&[0; 40]);
        }
    }
}

fn decode_slice(r: &mut Reader<'_>, pack: ObjectId) -> Result<Section, FormatError> {
    let (origin, epoch) = (VolumeId(r.array()?), Epoch(r.u64()?));
    let (first, last) = (Lsn(r.u64()?), Lsn(r.u64()?));
    let (key, entries, ancestors) = (r.u32()?, r.u32()? as usize, r.u32()? as usize);
    if key != 0 {
        return Err(FormatError::Corrupt(
            "it is encrypted, which this firn does not support",
        ));
    }
    let (packs, begin) = (r.u32()?, Lsn(r.u64()?));
    let size = VolumeSize {
        bytes: r.u64()?,
        block: r.u32()?,
    };
    let since = Epoch(r.u64()?);
    let name = r.text()?.into();
    // Checked before anything is allocated for them.
    let mut listed = Reader::new(r.raw(ancestors.saturating_mul(ANCESTOR_BYTES))?);
    let lineage = (0..ancestors).map(|_| {
        Ok(Ancestor {
            volume: VolumeId(listed.array()?),
            last: Lsn(listed.u64()?),
        })
    });
    let slice = Slice {
        origin,
        epoch,
        first,
        since,
        begin,
        last,
        packs,
        volume: VolumeLabel { name, size },
        lineage: lineage.collect::<Result<_, TruncatedInput>>()?,
    };
    let mut r = Reader::new(r.raw(entries.saturating_mul(ENTRY_BYTES))?);
    let items = (0..entries)
        .map(|_| decode_item(&mut r, pack, slice.origin))
        .collect::<Result<_, _>>()?;
    Ok(Section { slice, items })
}

fn decode_item(r: &mut Reader<'_>, pack: ObjectId, origin: VolumeId) -> Result<Item, FormatError> {
    let (start, sectors, lsn) = (r.u64()?, r.u64()?, Lsn(r.u64()?));
    let (offset, stored) = (r.u32()?, r.u32()?);
    let codec = r.u8()?;
    r.raw(7)?;
    let checksum = r.u64()?;
    r.raw(16)?;
    let end = start.checked_add(sectors).filter(|end| *end > start);
    let span = Span {
        start,
        end: end.ok_or(FormatError::Corrupt("an empty or endless extent"))?,
    };
    if codec == ZEROES {
        return Ok(Item::Zeroes { origin, span, lsn });
    }
    let codec = Codec::decode(codec).ok_or(FormatError::Corrupt("an unknown codec"))?;
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

/// What the footer of a pack says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Footer {
    /// Who wrote the pack.
    pub session: SessionName,
    /// Which of the session's objects it is.
    pub id: ObjectId,
    /// What is in it, in order.
    pub sections: Vec<Section>,
}

/// Where the footer begins, by the end of a pack. Its checksum is looked at when the footer is decoded.
pub fn footer_offset(end: &[u8]) -> Option<u64> {
    let trailer = end.len().checked_sub(TRAILER_BYTES)?;
    let trailer = &end[trailer..];
    if !trailer.ends_with(&END_MAGIC) {
        return None;
    }
    Reader::new(trailer).u64().ok()
}

/// Reads the footer of this pack and the trailer behind it.
///
/// # Errors
/// As [`decode`], and if they are another pack's.
pub fn decode_footer(pack: ObjectId, bytes: &[u8]) -> Result<Footer, FormatError> {
    let footer = decode_any_footer(bytes)?;
    if footer.id == pack {
        Ok(footer)
    } else {
        Err(FormatError::Corrupt("the footer is another pack's"))
    }
}

fn decode_any_footer(bytes: &[u8]) -> Result<Footer, FormatError> {
    let split = bytes
        .len()
        .checked_sub(TRAILER_BYTES)
        .ok_or(FormatError::Foreign)?;
    let (footer, trailer) = bytes.split_at(split);
    let mut r = Reader::new(trailer);
    let (_offset, entries, slices) = (r.u64()?, r.u32()? as usize, r.u32()? as usize);
    let crc = r.u64()?;
    if r.array()? != END_MAGIC {
        return Err(FormatError::Foreign);
    }
    if crc != crc64(&[footer, &trailer[..16]]) {
        return Err(FormatError::Corrupt(
            "the footer of a pack fails its checksum",
        ));
    }
    let mut r = Reader::new(footer);
    let session = decode_session(&mut r)?;
    let id = ObjectId::new(session, r.u64()?);
    let sections = (0..slices)
        .map(|_| decode_slice(&mut r, id))
        .collect::<Result<Vec<_>, _>>()?;
    if r.remaining() > 0 || sections.iter().map(|part| part.items.len()).sum::<usize>() != entries {
        return Err(FormatError::Corrupt(
            "the footer of a pack has the wrong length",
        ));
    }
    Ok(Footer {
        session,
        id,
        sections,
    })
}

/// Reads a whole pack: for checks and for rebuilding indexes.
///
/// # Errors
/// If it is no pack, damaged, or of a newer format.
pub fn decode(bytes: &[u8]) -> Result<Footer, FormatError> {
    let mut r = Reader::new(bytes);
    if r.array()? != MAGIC {
        return Err(FormatError::Foreign);
    }
    let version = r.u16()?;
    if version != VERSION {
        return Err(FormatError::Newer(version));
    }
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
    decode_any_footer(footer)
}
