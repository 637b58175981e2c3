//! Index objects: base pages and directory nodes.
//!
//! A volume's index has two levels. A *page* covers 32,768 sectors (16 MiB) and lists the chunks
//! that hold them; a *node* covers 1,024 pages (16 GiB) and says where they are; the root lists
//! the nodes. An index object is a row of such blocks:
//!
//! | offset | bytes | field |
//! |---|---|---|
//! | 0 | 8 | magic `FIRNINDX` |
//! | 8 | 2 | version, 1 |
//! | 10 | 2 | kind: 1 page, 2 node |
//! | 12 | 4 | bytes of the body before compression |
//! | 16 | 16 | volume id |
//! | 32 | 8 | page or node number |
//! | 40 | 8 | CRC-64/NVME of bytes 0..40 and the stored body |
//! | 48 | | body, one zstd frame |
//!
//! Bodies: docs/format.md "Index pages".

use std::collections::BTreeMap;
use std::sync::Arc;

use blkmq::io::SECTOR_BYTES;

use super::pack::{CHUNK_BYTES_MAX, Chunk, ChunkPart, Codec};
use super::{FormatError, ObjectId};
use crate::codec::{Reader, Writer, crc64};
use crate::map::ExtentMap;
use crate::units::{Lsn, Span, VolumeId};

const MAGIC: [u8; 8] = *b"FIRNINDX";
/// The version that this code writes and reads.
pub const VERSION: u16 = 1;
/// Sectors that a page covers.
pub const PAGE_SECTORS: u64 = 32_768;
/// Pages that a node covers.
pub const NODE_PAGES: u64 = 1_024;
const HEADER_BYTES: usize = 48;
/// The longest body that is accepted.
const BODY_BYTES_MAX: usize = 64 << 20;

/// Where a block of an index object is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockRef {
    /// The object.
    pub object: ObjectId,
    /// Offset in it.
    pub offset: u32,
    /// Length of the block.
    pub bytes: u32,
}

impl BlockRef {
    pub(crate) fn encode(&self, w: &mut Writer) {
        w.u64(self.object.session)
            .u64(self.object.number)
            .u32(self.offset)
            .u32(self.bytes);
    }

    pub(crate) fn decode(r: &mut Reader<'_>) -> Result<BlockRef, FormatError> {
        let object = ObjectId {
            session: r.u64()?,
            number: r.u64()?,
        };
        Ok(BlockRef {
            object,
            offset: r.u32()?,
            bytes: r.u32()?,
        })
    }
}

/// Which block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
enum Kind {
    Page = 1,
    Node = 2,
}

fn seal(kind: Kind, volume: VolumeId, number: u64, body: &[u8]) -> Vec<u8> {
    let stored = zstd::bulk::compress(body, 1).expect("compression into memory cannot fail");
    let mut w = Writer::new();
    let raw = u32::try_from(body.len()).expect("a page has at most 32,768 extents");
    w.raw(&MAGIC)
        .u16(VERSION)
        .u16(kind as u16)
        .u32(raw)
        .raw(&volume.0)
        .u64(number);
    let crc = crc64(&[w.bytes(), &stored]);
    w.u64(crc).raw(&stored);
    w.finish()
}

fn unseal(kind: Kind, volume: VolumeId, number: u64, block: &[u8]) -> Result<Vec<u8>, FormatError> {
    let mut r = Reader::new(block);
    if r.array()? != MAGIC {
        return Err(FormatError::Foreign);
    }
    let version = r.u16()?;
    if version != VERSION {
        return Err(FormatError::Newer(version));
    }
    let same_kind = r.u16()? == kind as u16;
    let raw = r.u32()? as usize;
    let (owner, found) = (VolumeId(r.array()?), r.u64()?);
    let same = owner == volume && found == number;
    if r.u64()? != crc64(&[&block[..40], &block[HEADER_BYTES..]]) {
        return Err(FormatError::Corrupt("an index block fails its checksum"));
    }
    if !same_kind || !same {
        return Err(FormatError::Corrupt("an index block belongs elsewhere"));
    }
    if raw > BODY_BYTES_MAX {
        return Err(FormatError::Corrupt("an index block is too long"));
    }
    let body = zstd::bulk::decompress(&block[HEADER_BYTES..], raw)
        .map_err(|_| FormatError::Corrupt("an index block does not decompress"))?;
    if body.len() == raw {
        Ok(body)
    } else {
        Err(FormatError::Corrupt("an index block is short"))
    }
}

/// Numbers values in the order in which they are first seen.
struct Table<T> {
    numbers: BTreeMap<T, u16>,
    order: Vec<T>,
}

impl<T: Ord + Copy> Table<T> {
    fn new() -> Self {
        Table {
            numbers: BTreeMap::new(),
            order: Vec::new(),
        }
    }

    fn number(&mut self, value: T) -> u16 {
        let next = u16::try_from(self.order.len()).expect("at most one per sector of a page");
        *self.numbers.entry(value).or_insert_with(|| {
            self.order.push(value);
            next
        })
    }
}

/// A page's block. `extents` lie within the page; their addresses are the volume's.
pub fn encode_page<'a>(
    volume: VolumeId,
    page: u64,
    extents: impl Iterator<Item = (Span, &'a ChunkPart)>,
) -> Vec<u8> {
    let mut packs = Table::new();
    let mut origins = Table::new();
    let mut rows = Writer::new();
    let mut count = 0;
    for (span, part) in extents {
        let chunk = &part.chunk;
        let within = |value: u64| u16::try_from(value).expect("a page has 32,768 sectors");
        rows.u16(within(span.start - page * PAGE_SECTORS))
            .u16(within(span.sectors()));
        rows.u16(packs.number(chunk.pack))
            .u16(origins.number(chunk.origin));
        rows.u32(chunk.offset)
            .u32(chunk.stored)
            .u64(chunk.span.start);
        rows.u32(u32::try_from(chunk.span.sectors()).expect("chunks are short"))
            .u32(part.skip);
        rows.u64(chunk.lsn.0)
            .u8(chunk.codec as u8)
            .raw(&[0; 3])
            .u64(chunk.checksum);
        count += 1;
    }
    let mut body = Writer::new();
    body.u32(count)
        .u16(packs.order.len() as u16)
        .u16(origins.order.len() as u16);
    for pack in &packs.order {
        body.u64(pack.session).u64(pack.number);
    }
    for origin in &origins.order {
        // Key id, none, and room.
        body.raw(&origin.0).u32(0).u32(0);
    }
    body.raw(rows.bytes());
    seal(Kind::Page, volume, page, body.bytes())
}

/// Reads a page's block.
///
/// # Errors
/// If it is damaged, of a newer format, or another page's.
pub fn decode_page(
    volume: VolumeId,
    page: u64,
    block: &[u8],
) -> Result<ExtentMap<ChunkPart>, FormatError> {
    let body = unseal(Kind::Page, volume, page, block)?;
    let mut r = Reader::new(&body);
    let (count, packs, origins) = (r.u32()?, r.u16()?, r.u16()?);
    let packs = (0..packs)
        .map(|_| {
            Ok(ObjectId {
                session: r.u64()?,
                number: r.u64()?,
            })
        })
        .collect::<Result<Vec<_>, FormatError>>()?;
    let origins = (0..origins)
        .map(|_| decode_origin(&mut r))
        .collect::<Result<Vec<_>, FormatError>>()?;
    let mut map = ExtentMap::default();
    // Damaged chunks have no offset of their own.
    let mut chunks: BTreeMap<(ObjectId, u32, u64), Arc<Chunk>> = BTreeMap::new();
    for _ in 0..count {
        let bad = FormatError::Corrupt("an index page contradicts itself");
        let (start, sectors) = (u64::from(r.u16()?), u64::from(r.u16()?));
        let pack = *packs.get(usize::from(r.u16()?)).ok_or(bad.clone())?;
        let origin = *origins.get(usize::from(r.u16()?)).ok_or(bad.clone())?;
        let (offset, stored) = (r.u32()?, r.u32()?);
        let (first, chunk_sectors, skip) = (r.u64()?, u64::from(r.u32()?), r.u32()?);
        let lsn = Lsn(r.u64()?);
        let codec = Codec::decode(r.u8()?).ok_or(bad.clone())?;
        r.raw(3)?;
        let checksum = r.u64()?;
        let end = first.checked_add(chunk_sectors).ok_or(bad.clone())?;
        if sectors == 0
            || chunk_sectors > CHUNK_BYTES_MAX / SECTOR_BYTES
            || start + sectors > PAGE_SECTORS
            || u64::from(skip) + sectors > chunk_sectors
        {
            return Err(bad);
        }
        let span = Span { start: first, end };
        let chunk = Chunk {
            pack,
            offset,
            stored,
            origin,
            span,
            lsn,
            codec,
            checksum,
        };
        let chunk = chunks
            .entry((pack, offset, first))
            .or_insert_with(|| Arc::new(chunk));
        let part = ChunkPart {
            chunk: Arc::clone(chunk),
            skip,
        };
        map.insert(
            Span::new(page * PAGE_SECTORS + start, sectors),
            part,
            |_, _| {},
        );
    }
    Ok(map)
}

fn decode_origin(r: &mut Reader<'_>) -> Result<VolumeId, FormatError> {
    let origin = VolumeId(r.array()?);
    if r.u32()? != 0 {
        return Err(FormatError::Corrupt(
            "it is encrypted, which this firn does not support",
        ));
    }
    r.u32()?;
    Ok(origin)
}

/// A node's block: where its pages are.
pub fn encode_node(
    volume: VolumeId,
    node: u64,
    pages: impl Iterator<Item = (u64, BlockRef)>,
) -> Vec<u8> {
    let mut body = Writer::new();
    body.u32(0);
    let mut count = 0;
    for (page, block) in pages {
        body.u16((page - node * NODE_PAGES) as u16);
        block.encode(&mut body);
        count += 1;
    }
    body.put_u32_at(0, count);
    seal(Kind::Node, volume, node, body.bytes())
}

/// Reads a node's block.
///
/// # Errors
/// If it is damaged, of a newer format, or another node's.
pub fn decode_node(
    volume: VolumeId,
    node: u64,
    block: &[u8],
) -> Result<Vec<(u64, BlockRef)>, FormatError> {
    let body = unseal(Kind::Node, volume, node, block)?;
    let mut r = Reader::new(&body);
    let count = r.u32()?;
    (0..count)
        .map(|_| {
            let within = u64::from(r.u16()?);
            if within >= NODE_PAGES {
                return Err(FormatError::Corrupt("an index node contradicts itself"));
            }
            Ok((node * NODE_PAGES + within, BlockRef::decode(&mut r)?))
        })
        .collect()
}

/// A block's body, decompressed and not checked.
#[cfg(test)]
pub(crate) fn body_of(block: &[u8]) -> Vec<u8> {
    zstd::bulk::decompress(&block[HEADER_BYTES..], BODY_BYTES_MAX).expect("a zstd frame")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::object::pack::{Item, PackWriter, Slice};
    use crate::units::Epoch;

    const VOLUME: VolumeId = VolumeId([9; 16]);

    fn parts() -> Vec<(Span, ChunkPart)> {
        let mut writer = PackWriter::new(ObjectId {
            session: 1,
            number: 2,
        });
        let slice = Slice {
            origin: VolumeId([4; 16]),
            epoch: Epoch(1),
            first: Lsn(1),
            last: Lsn(3),
        };
        writer.add(&slice, Span::new(8, 16), Lsn(3), &[7; 8192]);
        let sections = writer.finish().sections;
        let Item::Chunk(chunk) = &sections[0].items[0] else {
            panic!("a chunk")
        };
        let chunk = Arc::new(chunk.clone());
        let base = 2 * PAGE_SECTORS;
        vec![
            (
                Span::new(base, 4),
                ChunkPart {
                    chunk: Arc::clone(&chunk),
                    skip: 0,
                },
            ),
            (Span::new(base + 40, 8), ChunkPart { chunk, skip: 8 }),
        ]
    }

    #[test]
    fn a_page_is_read_back_as_it_was_written() {
        let parts = parts();
        let block = encode_page(VOLUME, 2, parts.iter().map(|(span, part)| (*span, part)));
        let map = decode_page(VOLUME, 2, &block).expect("a page");
        let found: Vec<_> = map
            .iter()
            .map(|(span, part)| (span, part.clone()))
            .collect();
        assert_eq!(found, parts);
        assert!(decode_page(VOLUME, 3, &block).is_err(), "another page");
        assert!(
            decode_page(VolumeId([1; 16]), 2, &block).is_err(),
            "another volume"
        );
        for bit in 0..block.len() * 8 {
            let mut damaged = block.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert!(decode_page(VOLUME, 2, &damaged).is_err(), "{bit}");
        }
    }

    #[test]
    fn a_page_cut_short_or_of_another_volume_is_refused() {
        let parts = parts();
        let block = encode_page(VOLUME, 2, parts.iter().map(|(s, p)| (*s, p)));
        for len in 0..block.len() {
            for volume in [VOLUME, VolumeId([1; 16])] {
                assert!(decode_page(volume, 2, &block[..len]).is_err(), "{len}");
            }
        }
        assert_eq!(
            decode_page(VolumeId([1; 16]), 2, &block).err(),
            Some(FormatError::Corrupt("an index block belongs elsewhere"))
        );
    }

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
        let block = encode_node(VOLUME, 1, pages.iter().copied());
        assert_eq!(decode_node(VOLUME, 1, &block), Ok(pages));
        assert!(decode_node(VOLUME, 0, &block).is_err());
    }
}
