//! Index objects and base pages.
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

use blkmq::io::SECTOR_BYTES;

use super::pack::{CHUNK_BYTES_MAX, Chunk, Codec};
use super::sessions::{SESSION_BYTES, SessionNames, decode_sessions};
use super::{FormatError, ObjectId};
use crate::codec::{Reader, Writer, crc64};
use crate::hostlog::names::SessionName;
use crate::units::{HostId, LogSession, Lsn, Span, VolumeId};

const MAGIC: [u8; 8] = *b"FIRNINDX";
/// The version that this code writes and reads.
pub const VERSION: u16 = 1;
/// Sectors that a page covers.
pub const PAGE_SECTORS: u64 = 32_768;
/// Pages that a node covers.
pub const NODE_PAGES: u64 = 1_024;
/// Bytes of a block before its body.
pub const HEADER_BYTES: usize = 48;
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

/// Which block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub(super) enum Kind {
    Page = 1,
    Node = 2,
}

pub(super) fn seal(kind: Kind, volume: VolumeId, number: u64, body: &[u8]) -> Vec<u8> {
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

/// Decodes a block that is of one of these volumes: a fork has blocks of those that it was forked from.
pub(crate) fn decode_of_any<T>(
    volumes: &[VolumeId],
    decode: impl Fn(VolumeId) -> Result<T, FormatError>,
) -> Result<T, FormatError> {
    let mut found = Err(FormatError::Corrupt("an index block of no volume"));
    for volume in volumes {
        found = decode(*volume);
        if found.is_ok() {
            break;
        }
    }
    found
}

/// Whose index block this says it is; none if it is no index block. Its checksum, which binds that, is looked at when it
/// is decoded.
pub fn block_volume(block: &[u8]) -> Option<VolumeId> {
    if !block.starts_with(&MAGIC) {
        return None;
    }
    let bytes = block.get(16..)?.first_chunk()?;
    Some(VolumeId(*bytes))
}

pub(super) fn unseal(
    kind: Kind,
    volume: VolumeId,
    number: u64,
    block: &[u8],
) -> Result<Vec<u8>, FormatError> {
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
#[derive(Debug)]
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

/// A page in memory: the body of its block, checked once; a row is decoded when it is looked at.
///
/// So an extent costs what it costs in the store before compression, [`ROW_BYTES`], and its share of
/// the table of packs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Page {
    number: u64,
    sessions: u16,
    packs: u16,
    origins: u16,
    body: Box<[u8]>,
}

/// Bytes of a page's body before its tables.
const TABLES_AT: usize = 12;
/// Bytes of a pack in the table: which session, and its number there.
const PACK_BYTES: usize = 10;
/// Bytes of an origin in the table.
const ORIGIN_BYTES: usize = 24;
/// Bytes of an extent.
pub const ROW_BYTES: usize = 52;

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

impl Page {
    /// A page of these extents: in order, within the page, parts of chunks from so many sectors on.
    ///
    /// # Errors
    /// As [`PageBuilder::finish`].
    pub fn new<'a>(
        number: u64,
        names: &SessionNames,
        extents: impl Iterator<Item = (Span, &'a Chunk, u32)>,
    ) -> Result<Page, FormatError> {
        let mut builder = PageBuilder::new(number);
        extents.for_each(|(span, chunk, skip)| builder.push(span, chunk, skip));
        builder.finish(names)
    }

    /// Number of extents.
    pub fn len(&self) -> usize {
        self.rows().len() / ROW_BYTES
    }

    /// Nothing was written here.
    pub fn is_empty(&self) -> bool {
        self.rows().is_empty()
    }

    /// What it takes in memory.
    pub fn memory_bytes(&self) -> u64 {
        (size_of::<Page>() + self.body.len()) as u64
    }

    /// The sessions of its packs.
    pub fn sessions(&self) -> impl Iterator<Item = SessionName> {
        (0..self.sessions).map(|nth| self.session(nth))
    }

    fn session(&self, nth: u16) -> SessionName {
        let at = TABLES_AT + usize::from(nth) * SESSION_BYTES;
        let listed = self.body[at..].split_at(16);
        SessionName {
            host: HostId(listed.0.try_into().expect("sixteen bytes")),
            session: LogSession {
                number: u64_at(listed.1, 0),
                random: u64_at(listed.1, 8),
            },
        }
    }

    /// The packs that its extents are in.
    pub fn packs(&self) -> impl Iterator<Item = ObjectId> {
        (0..self.packs).map(|nth| {
            let at = self.packs_at() + usize::from(nth) * PACK_BYTES;
            let session = self.session(u16_at(&self.body, at));
            ObjectId::new(session, u64_at(&self.body, at + 2))
        })
    }

    fn packs_at(&self) -> usize {
        TABLES_AT + usize::from(self.sessions) * SESSION_BYTES
    }

    fn origins_at(&self) -> usize {
        self.packs_at() + usize::from(self.packs) * PACK_BYTES
    }

    fn rows(&self) -> &[u8] {
        &self.body[self.origins_at() + usize::from(self.origins) * ORIGIN_BYTES..]
    }

    fn row(&self, nth: usize) -> &[u8] {
        &self.rows()[nth * ROW_BYTES..(nth + 1) * ROW_BYTES]
    }

    fn span(&self, nth: usize) -> Span {
        let row = self.row(nth);
        let start = self.number * PAGE_SECTORS + u64::from(u16_at(row, 0));
        Span::new(start, u64::from(u16_at(row, 2)))
    }

    /// An extent's chunk, and how many of its sectors are before the extent.
    fn chunk(&self, nth: usize) -> (Chunk, u32) {
        let row = self.row(nth);
        let pack = self.packs_at() + usize::from(u16_at(row, 4)) * PACK_BYTES;
        let origin = self.origins_at() + usize::from(u16_at(row, 6)) * ORIGIN_BYTES;
        let session = TABLES_AT + usize::from(u16_at(&self.body, pack)) * SESSION_BYTES;
        let chunk = Chunk {
            pack: ObjectId {
                session: u64_at(&self.body, session + SESSION_BYTES - 8),
                number: u64_at(&self.body, pack + 2),
            },
            offset: u32_at(row, 8),
            stored: u32_at(row, 12),
            origin: VolumeId(
                self.body[origin..origin + 16]
                    .try_into()
                    .expect("sixteen bytes"),
            ),
            span: Span::new(u64_at(row, 16), u64::from(u32_at(row, 24))),
            lsn: Lsn(u64_at(row, 32)),
            codec: Codec::decode(row[40]).expect("checked when the page was decoded"),
            checksum: u64_at(row, 44),
        };
        (chunk, u32_at(row, 28))
    }

    /// All extents, with their chunks and the sectors of those that are before the extent.
    pub fn extents(&self) -> impl Iterator<Item = (Span, Chunk, u32)> {
        (0..self.len()).map(|nth| {
            let (chunk, skip) = self.chunk(nth);
            (self.span(nth), chunk, skip)
        })
    }

    /// Walks `span`, which lies within the page, in order, gaps included.
    pub fn walk(&self, span: Span, mut visit: impl FnMut(Span, Option<(&Chunk, u32)>)) {
        let (mut low, mut high) = (0, self.len());
        // The first extent that ends behind the span's first sector.
        while low < high {
            let middle = low.midpoint(high);
            if self.span(middle).end <= span.start {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        let mut at = span.start;
        for nth in low..self.len() {
            let extent = self.span(nth);
            let part = extent.intersect(span);
            if part.is_empty() {
                break;
            }
            if at < part.start {
                let end = part.start;
                visit(Span { start: at, end }, None);
            }
            let (chunk, skip) = self.chunk(nth);
            let before = u32::try_from(part.start - extent.start).expect("within a page");
            visit(part, Some((&chunk, skip + before)));
            at = part.end;
        }
        if at < span.end {
            let end = span.end;
            visit(Span { start: at, end }, None);
        }
    }

    /// Every row names what its tables have, lies within the page and behind the one before.
    fn check(&self) -> Result<(), FormatError> {
        let bad = FormatError::Corrupt("an index page contradicts itself");
        let packs = &self.body[self.packs_at()..self.origins_at()];
        if (packs.chunks_exact(PACK_BYTES)).any(|pack| u16_at(pack, 0) >= self.sessions) {
            return Err(bad);
        }
        let mut end = 0;
        for row in self.rows().chunks_exact(ROW_BYTES) {
            let (start, sectors) = (u64::from(u16_at(row, 0)), u64::from(u16_at(row, 2)));
            let (first, chunk_sectors) = (u64_at(row, 16), u64::from(u32_at(row, 24)));
            let is_whole = u16_at(row, 4) < self.packs
                && u16_at(row, 6) < self.origins
                && start >= end
                && sectors > 0
                && start + sectors <= PAGE_SECTORS
                && chunk_sectors <= CHUNK_BYTES_MAX / SECTOR_BYTES
                && first.checked_add(chunk_sectors).is_some()
                && u64::from(u32_at(row, 28)) + sectors <= chunk_sectors
                && Codec::decode(row[40]).is_some();
            if !is_whole {
                return Err(bad);
            }
            end = start + sectors;
        }
        Ok(())
    }
}

/// Makes a page, extent by extent.
#[derive(Debug)]
pub struct PageBuilder {
    number: u64,
    packs: Table<ObjectId>,
    origins: Table<VolumeId>,
    rows: Writer,
    count: u32,
    end: u64,
}

impl PageBuilder {
    /// An empty page.
    pub fn new(number: u64) -> PageBuilder {
        PageBuilder {
            number,
            packs: Table::new(),
            origins: Table::new(),
            rows: Writer::new(),
            count: 0,
            end: 0,
        }
    }

    /// Adds part of a chunk, from `skip` sectors on, behind what was added before.
    pub fn push(&mut self, span: Span, chunk: &Chunk, skip: u32) {
        debug_assert!(span.start >= self.end, "extents ascend");
        let within = |value: u64| u16::try_from(value).expect("a page has 32,768 sectors");
        self.rows
            .u16(within(span.start - self.number * PAGE_SECTORS))
            .u16(within(span.sectors()))
            .u16(self.packs.number(chunk.pack))
            .u16(self.origins.number(chunk.origin))
            .u32(chunk.offset)
            .u32(chunk.stored)
            .u64(chunk.span.start)
            .u32(u32::try_from(chunk.span.sectors()).expect("chunks are short"))
            .u32(skip)
            .u64(chunk.lsn.0)
            .u8(chunk.codec as u8)
            .raw(&[0; 3])
            .u64(chunk.checksum);
        self.count += 1;
        self.end = span.end;
    }

    /// The page.
    ///
    /// # Errors
    /// If a pack is of a session that is not among `names`.
    pub fn finish(self, names: &SessionNames) -> Result<Page, FormatError> {
        let (packs, origins) = (self.packs.order, self.origins.order);
        let sessions = names.list(packs.iter().copied())?;
        let count = sessions.names().len() as u16;
        let mut body = Writer::new();
        body.u32(self.count)
            .u16(count)
            .u16(packs.len() as u16)
            .u16(origins.len() as u16)
            .u16(0);
        sessions.encode(&mut body);
        for pack in &packs {
            body.u16(sessions.number(*pack) as u16).u64(pack.number);
        }
        for origin in &origins {
            // Key id, none, and room.
            body.raw(&origin.0).u32(0).u32(0);
        }
        body.raw(self.rows.bytes());
        Ok(Page {
            number: self.number,
            sessions: count,
            packs: packs.len() as u16,
            origins: origins.len() as u16,
            body: body.finish().into(),
        })
    }
}

/// A page's block.
pub fn encode_page(volume: VolumeId, page: &Page) -> Vec<u8> {
    seal(Kind::Page, volume, page.number, &page.body)
}

/// Reads a page's block.
///
/// # Errors
/// If it is damaged, of a newer format, or another page's.
pub fn decode_page(volume: VolumeId, number: u64, block: &[u8]) -> Result<Page, FormatError> {
    let body = unseal(Kind::Page, volume, number, block)?;
    let mut r = Reader::new(&body);
    let count = r.u32()? as usize;
    let (sessions, packs, origins) = (r.u16()?, r.u16()?, r.u16()?);
    if r.u16()? != 0 {
        return Err(FormatError::Corrupt("an index page contradicts itself"));
    }
    decode_sessions(&mut r, usize::from(sessions))?;
    r.raw(usize::from(packs) * PACK_BYTES)?;
    for _ in 0..origins {
        r.raw(16)?;
        if r.u32()? != 0 {
            return Err(FormatError::Corrupt(
                "it is encrypted, which this firn does not support",
            ));
        }
        r.u32()?;
    }
    let rows = count.saturating_mul(ROW_BYTES);
    let end = body.len() - r.remaining() + r.raw(rows)?.len();
    let page = Page {
        number,
        sessions,
        packs,
        origins,
        body: body[..end].into(),
    };
    page.check()?;
    Ok(page)
}

/// A block's body, decompressed and not checked.
#[cfg(test)]
pub(crate) fn body_of(block: &[u8]) -> Vec<u8> {
    zstd::bulk::decompress(&block[HEADER_BYTES..], BODY_BYTES_MAX).expect("a zstd frame")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::object::pack::{Item, Lineage, Slice, VolumeLabel};
    use crate::object::pack_writer::PackWriter;
    use crate::units::{Epoch, VolumeSize};

    const VOLUME: VolumeId = VolumeId([9; 16]);
    const SESSION: SessionName = SessionName {
        host: HostId([3; 16]),
        session: LogSession {
            number: 4,
            random: 1,
        },
    };

    fn extents() -> Vec<(Span, Chunk, u32)> {
        let mut writer = PackWriter::new(SESSION, 2);
        let slice = Slice {
            origin: VolumeId([4; 16]),
            epoch: Epoch(1),
            first: Lsn(1),
            since: Epoch(1),
            begin: Lsn(1),
            last: Lsn(3),
            packs: 1,
            volume: VolumeLabel {
                name: "demo".into(),
                size: VolumeSize {
                    bytes: 1 << 30,
                    block: 512,
                },
            },
            lineage: Lineage::default(),
        };
        writer.add(&slice, Span::new(8, 16), Lsn(3), &[7; 8192]);
        let sections = writer.finish().sections;
        let Item::Chunk(chunk) = &sections[0].items[0] else {
            panic!("a chunk")
        };
        let base = 2 * PAGE_SECTORS;
        vec![
            (Span::new(base, 4), chunk.clone(), 0),
            (Span::new(base + 40, 8), chunk.clone(), 8),
        ]
    }

    fn page() -> Page {
        let mut names = SessionNames::default();
        names.insert(SESSION).expect("the first");
        let extents = extents();
        let rows = extents.iter();
        let rows = rows.map(|(span, chunk, skip)| (*span, chunk, *skip));
        Page::new(2, &names, rows).expect("a known session")
    }

    #[test]
    fn a_page_is_read_back_as_it_was_written() {
        let block = encode_page(VOLUME, &page());
        let found = decode_page(VOLUME, 2, &block).expect("a page");
        assert_eq!(found, page());
        assert_eq!(found.extents().collect::<Vec<_>>(), extents());
        assert!(found.sessions().eq([SESSION]), "each once");
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
        let block = encode_page(VOLUME, &page());
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
    fn a_page_whose_extents_do_not_ascend_is_refused() {
        let page = page();
        let rows = page.body.len() - 2 * ROW_BYTES;
        let mut body = page.body.to_vec();
        body[rows..].rotate_left(ROW_BYTES);
        let block = seal(Kind::Page, VOLUME, 2, &body);
        assert_eq!(
            decode_page(VOLUME, 2, &block),
            Err(FormatError::Corrupt("an index page contradicts itself"))
        );
    }

    #[test]
    fn a_walk_visits_each_sector_once_with_its_place_in_the_chunk() {
        let page = page();
        let base = 2 * PAGE_SECTORS;
        for (start, sectors) in [
            (0, 64),
            (1, 2),
            (2, 40),
            (4, 36),
            (42, 1),
            (44, 100),
            (48, 8),
        ] {
            let span = Span::new(base + start, sectors);
            let mut at = span.start;
            page.walk(span, |part, found| {
                assert_eq!(part.start, at);
                at = part.end;
                for sector in part.start..part.end {
                    let expected = extents().into_iter().find_map(|(extent, _, skip)| {
                        let inside = (extent.start..extent.end).contains(&sector);
                        inside.then(|| u64::from(skip) + sector - extent.start)
                    });
                    let found = found.map(|(_, skip)| u64::from(skip) + sector - part.start);
                    assert_eq!(found, expected, "sector {sector}");
                }
            });
            assert_eq!(at, span.end);
        }
    }
}
