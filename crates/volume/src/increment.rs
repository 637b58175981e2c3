//! Increments: what a snapshot has that another one has not, as bytes that travel from one store to another.
//!
//! ```text
//! header: which snapshot it leads to, and from which, by identity
//! blocks, in the order of the volume: content, or a range that reads as zeroes; each with a checksum
//! end:    how many blocks there were, and the digest of all bytes before it
//! ```
//!
//! spec: format.md "Increments". A block's checksum binds the snapshot and the block's number, so that no block passes for
//! another; the digest at the end proves the whole. Nothing here reads or writes: [`IncrementWriter`] gives the bytes of
//! one piece after the other, [`IncrementReader`] takes them.

use blkmq::io::SECTOR_BYTES;

use crate::codec::{Reader, TruncatedInput, Writer, crc64};
use crate::object::FormatError;
use crate::units::VolumeId;

/// How an increment begins.
pub const MAGIC: [u8; 8] = *b"FIRNINCR";
/// The version that this code writes and reads.
pub const VERSION: u16 = 1;
/// Bytes of a header before its body.
pub const HEADER_BYTES: usize = 16;
/// Bytes of a block before what it stores.
pub const BLOCK_BYTES: usize = 32;
/// Most bytes of content in a block.
pub const CONTENT_BYTES_MAX: usize = 1 << 20;
/// The longest body of a header: two names, and numbers.
const BODY_BYTES_MAX: usize = 4096;
const HAS_BASE: u16 = 1;
const CRC_BYTES: usize = 8;
const DIGEST_BYTES: usize = 32;

const PLAIN: u8 = 1;
const ZSTD: u8 = 2;
const ZEROES: u8 = 3;
const END: u8 = 4;

/// A snapshot, whichever store it is in: all copies of it are the same point.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Point {
    /// The identity of the snapshot that was taken.
    pub id: VolumeId,
    /// Its name where the increment was made, `VOLUME@SNAPSHOT`.
    pub name: String,
    /// The volume's size then, in bytes.
    pub bytes: u64,
}

/// What an increment leads to, and from where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IncrementHeader {
    /// What it leads to.
    pub point: Point,
    /// The logical block of the volume, in bytes.
    pub block: u32,
    /// When the snapshot was taken, milliseconds since 1970, for display.
    pub taken_unix_ms: u64,
    /// What it is laid over; none: nothing but zeroes.
    pub base: Option<Point>,
}

/// A part of an increment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum IncrementBlock {
    /// These bytes are there now.
    Content {
        /// The first one's place in the volume.
        offset: u64,
        /// What is there.
        data: Vec<u8>,
    },
    /// Zeroes are there now.
    Zeroes {
        /// The first one's place.
        offset: u64,
        /// How many.
        bytes: u64,
    },
    /// That was all of it, and it is whole.
    End,
}

fn encode_point(body: &mut Writer, point: &Point) {
    body.raw(&point.id.0).u64(point.bytes).text(&point.name);
}

fn decode_point(r: &mut Reader<'_>) -> Result<Point, FormatError> {
    let (id, bytes) = (VolumeId(r.array()?), r.u64()?);
    let name = r.text()?;
    if !bytes.is_multiple_of(4096) {
        return Err(FormatError::Corrupt("an impossible size"));
    }
    Ok(Point { id, name, bytes })
}

impl IncrementHeader {
    fn encode(&self) -> Vec<u8> {
        let mut body = Writer::new();
        encode_point(&mut body, &self.point);
        body.u32(self.block).u64(self.taken_unix_ms);
        if let Some(base) = &self.base {
            encode_point(&mut body, base);
        }
        let flags = u16::from(self.base.is_some()) * HAS_BASE;
        let mut w = Writer::new();
        w.raw(&MAGIC).u16(VERSION).u16(flags);
        w.u32(body.len() as u32).raw(body.bytes());
        let crc = crc64(&[w.bytes()]);
        w.u64(crc);
        w.finish()
    }
}

/// What a block's checksum covers, beside what it stores.
fn block_crc(point: VolumeId, number: u64, head: &[u8], stored: &[u8]) -> u64 {
    crc64(&[&point.0, &number.to_le_bytes(), head, stored])
}

/// Makes an increment, piece by piece.
#[derive(Debug)]
pub struct IncrementWriter {
    point: VolumeId,
    digest: blake3::Hasher,
    blocks: u64,
    /// Nothing is written before it any more.
    end: u64,
}

impl IncrementWriter {
    /// Begins one; its first bytes.
    pub fn new(header: &IncrementHeader) -> (IncrementWriter, Vec<u8>) {
        let bytes = header.encode();
        let mut digest = blake3::Hasher::new();
        digest.update(&bytes);
        let writer = IncrementWriter {
            point: header.point.id,
            digest,
            blocks: 0,
            end: 0,
        };
        (writer, bytes)
    }

    /// These bytes are there now: whole sectors behind what was added before, and no more than fit.
    ///
    /// # Panics
    /// If they are not.
    pub fn content(&mut self, offset: u64, data: &[u8]) -> Vec<u8> {
        assert!(data.len() <= CONTENT_BYTES_MAX, "a block has a limit");
        let packed = zstd::bulk::compress(data, 1).expect("compression into memory cannot fail");
        match packed.len() < data.len() {
            true => self.add(ZSTD, offset, data.len() as u64, &packed),
            false => self.add(PLAIN, offset, data.len() as u64, data),
        }
    }

    /// Zeroes are there now: whole sectors behind what was added before.
    ///
    /// # Panics
    /// If they are not.
    pub fn zeroes(&mut self, offset: u64, bytes: u64) -> Vec<u8> {
        self.add(ZEROES, offset, bytes, &[])
    }

    /// Ends it; its last bytes.
    pub fn finish(mut self) -> Vec<u8> {
        let digest = self.digest.finalize();
        self.block(END, self.blocks, 0, digest.as_bytes())
    }

    fn add(&mut self, kind: u8, offset: u64, bytes: u64, stored: &[u8]) -> Vec<u8> {
        let is_whole = |bytes: u64| bytes.is_multiple_of(SECTOR_BYTES);
        assert!(is_whole(offset) && is_whole(bytes) && bytes > 0 && offset >= self.end);
        self.end = offset + bytes;
        self.block(kind, offset, bytes, stored)
    }

    fn block(&mut self, kind: u8, offset: u64, bytes: u64, stored: &[u8]) -> Vec<u8> {
        let mut w = Writer::new();
        w.u8(kind).raw(&[0; 3]).u32(stored.len() as u32);
        w.u64(offset).u64(bytes);
        let crc = block_crc(self.point, self.blocks, w.bytes(), stored);
        w.u64(crc).raw(stored);
        let bytes = w.finish();
        self.digest.update(&bytes);
        self.blocks += 1;
        bytes
    }
}

/// Takes an increment apart, piece by piece, and proves each before it gives it.
#[derive(Debug)]
pub struct IncrementReader {
    header: IncrementHeader,
    digest: blake3::Hasher,
    blocks: u64,
    end: u64,
}

impl IncrementReader {
    /// How many bytes of the header follow its first ones.
    ///
    /// # Errors
    /// If it is no increment, or of a newer format.
    pub fn header_bytes(head: &[u8; HEADER_BYTES]) -> Result<usize, FormatError> {
        let mut r = Reader::new(head);
        if r.array()? != MAGIC {
            return Err(FormatError::Foreign);
        }
        let (version, flags) = (r.u16()?, r.u16()?);
        if version != VERSION || flags & !HAS_BASE != 0 {
            return Err(FormatError::Newer(version));
        }
        match r.u32()? as usize {
            body if body <= BODY_BYTES_MAX => Ok(body + CRC_BYTES),
            _ => Err(FormatError::Corrupt("its header is too long")),
        }
    }

    /// Begins with the whole header.
    ///
    /// # Errors
    /// If it is damaged.
    pub fn new(header: &[u8]) -> Result<IncrementReader, FormatError> {
        let head = header.first_chunk().ok_or(TruncatedInput)?;
        let rest = IncrementReader::header_bytes(head)?;
        let flags = u16::from_le_bytes([head[10], head[11]]);
        if header.len() != HEADER_BYTES + rest {
            return Err(TruncatedInput.into());
        }
        let (body, crc) = header.split_at(header.len() - CRC_BYTES);
        if crc != crc64(&[body]).to_le_bytes() {
            return Err(FormatError::Corrupt("its header fails its checksum"));
        }
        let mut r = Reader::new(&body[HEADER_BYTES..]);
        let point = decode_point(&mut r)?;
        let (block, taken_unix_ms) = (r.u32()?, r.u64()?);
        let base = match flags & HAS_BASE {
            0 => None,
            _ => Some(decode_point(&mut r)?),
        };
        if r.remaining() > 0 || !matches!(block, 512 | 4096) {
            return Err(FormatError::Corrupt("its header contradicts itself"));
        }
        let mut digest = blake3::Hasher::new();
        digest.update(header);
        Ok(IncrementReader {
            header: IncrementHeader {
                point,
                block,
                taken_unix_ms,
                base,
            },
            digest,
            blocks: 0,
            end: 0,
        })
    }

    /// What it leads to, and from where.
    pub fn header(&self) -> &IncrementHeader {
        &self.header
    }

    /// How many bytes the block stores whose first ones these are.
    ///
    /// # Errors
    /// If it cannot be a block.
    pub fn stored_bytes(head: &[u8; BLOCK_BYTES]) -> Result<usize, FormatError> {
        let stored = u32::from_le_bytes([head[4], head[5], head[6], head[7]]) as usize;
        match head[0] {
            PLAIN | ZSTD if stored <= CONTENT_BYTES_MAX => Ok(stored),
            ZEROES if stored == 0 => Ok(stored),
            END if stored == DIGEST_BYTES => Ok(stored),
            _ => Err(FormatError::Corrupt("a block contradicts itself")),
        }
    }

    /// The next block, of its first bytes and what it stores.
    ///
    /// # Errors
    /// If it is damaged, not the one that follows, or, at the end, if anything before was not what was written.
    pub fn block(
        &mut self,
        head: &[u8; BLOCK_BYTES],
        stored: &[u8],
    ) -> Result<IncrementBlock, FormatError> {
        let (fields, crc) = head.split_at(BLOCK_BYTES - CRC_BYTES);
        let right = block_crc(self.header.point.id, self.blocks, fields, stored);
        if IncrementReader::stored_bytes(head)? != stored.len() || crc != right.to_le_bytes() {
            return Err(FormatError::Corrupt("a block fails its checksum"));
        }
        let mut r = Reader::new(&fields[8..]);
        let (offset, bytes) = (r.u64()?, r.u64()?);
        if head[0] == END {
            let is_whole =
                offset == self.blocks && bytes == 0 && stored == self.digest.finalize().as_bytes();
            return match is_whole {
                true => Ok(IncrementBlock::End),
                false => Err(FormatError::Corrupt("it fails the digest of the whole")),
            };
        }
        self.check_place(offset, bytes)?;
        let block = match head[0] {
            ZEROES => IncrementBlock::Zeroes { offset, bytes },
            kind => IncrementBlock::Content {
                offset,
                data: unpack(kind, stored, bytes)?,
            },
        };
        self.digest.update(head).update(stored);
        self.blocks += 1;
        self.end = offset + bytes;
        Ok(block)
    }

    /// Blocks are whole sectors of the volume, in order.
    fn check_place(&self, offset: u64, bytes: u64) -> Result<(), FormatError> {
        let is_sector = |value: u64| value.is_multiple_of(SECTOR_BYTES);
        let end = offset.checked_add(bytes);
        let is_in_place = end.is_some_and(|end| end <= self.header.point.bytes)
            && bytes > 0
            && offset >= self.end
            && is_sector(offset)
            && is_sector(bytes);
        match is_in_place {
            true => Ok(()),
            false => Err(FormatError::Corrupt("a block lies where none can be")),
        }
    }
}

fn unpack(kind: u8, stored: &[u8], bytes: u64) -> Result<Vec<u8>, FormatError> {
    let bad = FormatError::Corrupt("a block does not hold what it says");
    let bytes = usize::try_from(bytes).ok();
    let Some(bytes) = bytes.filter(|bytes| *bytes <= CONTENT_BYTES_MAX) else {
        return Err(bad);
    };
    let data = match kind {
        ZSTD => zstd::bulk::decompress(stored, bytes).map_err(|_| bad.clone())?,
        _ => stored.to_vec(),
    };
    match data.len() == bytes {
        true => Ok(data),
        false => Err(bad),
    }
}

/// All of an increment, and nothing behind it: for tests and fuzzing.
#[cfg(any(test, fuzzing))]
pub(crate) fn read_all(
    mut bytes: &[u8],
) -> Result<(IncrementHeader, Vec<IncrementBlock>), FormatError> {
    let mut take = |count: usize| -> Result<&[u8], FormatError> {
        let (head, rest) = bytes.split_at_checked(count).ok_or(TruncatedInput)?;
        bytes = rest;
        Ok(head)
    };
    let head = *take(HEADER_BYTES)?.first_chunk().ok_or(TruncatedInput)?;
    let rest = take(IncrementReader::header_bytes(&head)?)?;
    let mut reader = IncrementReader::new(&[&head, rest].concat())?;
    let mut blocks = Vec::new();
    loop {
        let head = *take(BLOCK_BYTES)?.first_chunk().ok_or(TruncatedInput)?;
        let stored = take(IncrementReader::stored_bytes(&head)?)?;
        match reader.block(&head, stored)? {
            IncrementBlock::End => break,
            block => blocks.push(block),
        }
    }
    match bytes.is_empty() {
        true => Ok((reader.header().clone(), blocks)),
        false => Err(FormatError::Corrupt("it goes on behind its end")),
    }
}

/// A block of any fields, whose checksum is right.
#[cfg(fuzzing)]
pub(crate) fn block_of(point: VolumeId, number: u64, head: &[u8], stored: &[u8]) -> Vec<u8> {
    let crc = block_crc(point, number, head, stored);
    [head, &crc.to_le_bytes(), stored].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header() -> IncrementHeader {
        let point = |id: u8, name: &str| Point {
            id: VolumeId([id; 16]),
            name: name.into(),
            bytes: 8 << 20,
        };
        IncrementHeader {
            point: point(1, "demo@b"),
            block: 512,
            taken_unix_ms: 99,
            base: Some(point(2, "demo@a")),
        }
    }

    /// Where each piece begins, and the end.
    fn pieces() -> (Vec<u8>, Vec<usize>) {
        let (mut writer, mut all) = IncrementWriter::new(&header());
        let mut at = vec![0];
        let noise: Vec<u8> = (0..4096_u32).map(|n| (n * n % 251) as u8).collect();
        for piece in [
            writer.content(0, &[7; 8192]),
            writer.zeroes(16384, 512),
            writer.content(1 << 20, &noise),
            writer.finish(),
        ] {
            at.push(all.len());
            all.extend(piece);
        }
        at.push(all.len());
        (all, at)
    }

    fn read(bytes: &[u8]) -> Result<Vec<IncrementBlock>, FormatError> {
        let (found, blocks) = read_all(bytes)?;
        assert_eq!(found, header());
        Ok(blocks)
    }

    #[test]
    fn an_increment_is_read_back_as_it_was_written() {
        let (bytes, _) = pieces();
        let blocks = read(&bytes).expect("whole");
        assert_eq!(blocks.len(), 3);
        let first = IncrementBlock::Content {
            offset: 0,
            data: vec![7; 8192],
        };
        assert_eq!(blocks[0], first);
        let second = IncrementBlock::Zeroes {
            offset: 16384,
            bytes: 512,
        };
        assert_eq!(blocks[1], second);
    }

    #[test]
    fn an_increment_that_is_cut_anywhere_or_has_another_bit_anywhere_is_never_whole() {
        let (bytes, _) = pieces();
        for len in 0..bytes.len() {
            assert!(read(&bytes[..len]).is_err(), "cut at {len}");
        }
        for at in 0..bytes.len() {
            let mut changed = bytes.clone();
            changed[at] ^= 1 << (at % 8);
            assert!(read(&changed).is_err(), "byte {at}");
        }
    }

    #[test]
    fn blocks_that_are_left_out_repeated_or_of_another_increment_are_refused() {
        let (bytes, at) = pieces();
        let piece = |nth: usize| &bytes[at[nth]..at[nth + 1]];
        let without = [piece(0), piece(2), piece(3), piece(4)].concat();
        assert!(read(&without).is_err());
        let twice = [piece(0), piece(1), piece(1), piece(2), piece(3), piece(4)].concat();
        assert!(read(&twice).is_err());
        let short = [piece(0), piece(1), piece(4)].concat();
        assert!(read(&short).is_err());
        let other = IncrementHeader {
            point: Point {
                id: VolumeId([3; 16]),
                ..header().point
            },
            ..header()
        };
        let (mut writer, _) = IncrementWriter::new(&other);
        let foreign = writer.content(0, &[7; 8192]);
        let mixed = [piece(0), &foreign, piece(2), piece(3), piece(4)].concat();
        assert!(read(&mixed).is_err());
    }

    #[test]
    fn a_block_behind_the_volumes_end_or_before_another_is_refused_whatever_its_checksum() {
        for (offset, bytes) in [(8 << 20, 512), (u64::MAX - 511, 512), (100, 512), (0, 100)] {
            let (mut writer, start) = IncrementWriter::new(&header());
            let wrong = writer.block(ZEROES, offset, bytes, &[]);
            assert!(read(&[start, wrong].concat()).is_err(), "{offset} {bytes}");
        }
        let (mut writer, start) = IncrementWriter::new(&header());
        let second = writer.zeroes(4096, 512);
        let first = writer.block(ZEROES, 0, 512, &[]);
        assert!(read(&[start, second, first].concat()).is_err());
    }
}
