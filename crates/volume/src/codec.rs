//! Little-endian byte writer and reader for on-disk and in-store structures.
//!
//! The reader never panics and never allocates on a length that it has not checked against the
//! bytes at hand; what does not fit is [`Truncated`].

use std::num::NonZeroU32;

/// The bytes ended before the structure did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TruncatedInput;

/// Appends integers and byte strings.
#[derive(Debug, Default)]
pub(crate) struct Writer {
    bytes: Vec<u8>,
}

impl Writer {
    pub(crate) fn new() -> Writer {
        Writer::default()
    }

    pub(crate) fn len(&self) -> usize {
        self.bytes.len()
    }

    pub(crate) fn u8(&mut self, value: u8) -> &mut Self {
        self.bytes.push(value);
        self
    }

    pub(crate) fn u16(&mut self, value: u16) -> &mut Self {
        self.raw(&value.to_le_bytes())
    }

    pub(crate) fn u32(&mut self, value: u32) -> &mut Self {
        self.raw(&value.to_le_bytes())
    }

    pub(crate) fn u64(&mut self, value: u64) -> &mut Self {
        self.raw(&value.to_le_bytes())
    }

    pub(crate) fn raw(&mut self, value: &[u8]) -> &mut Self {
        self.bytes.extend_from_slice(value);
        self
    }

    /// A string of at most 65,535 bytes, its length before it.
    pub(crate) fn text(&mut self, value: &str) -> &mut Self {
        let len = u16::try_from(value.len()).expect("names and keys are checked to be short");
        self.u16(len).raw(value.as_bytes())
    }

    pub(crate) fn put_u32_at(&mut self, at: usize, value: u32) {
        self.bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
    }

    pub(crate) fn put_u64_at(&mut self, at: usize, value: u64) {
        self.bytes[at..at + 8].copy_from_slice(&value.to_le_bytes());
    }

    pub(crate) fn pad_to_multiple(&mut self, unit: usize) -> &mut Self {
        let len = self.bytes.len().next_multiple_of(unit);
        self.bytes.resize(len, 0);
        self
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    pub(crate) fn finish(self) -> Vec<u8> {
        self.bytes
    }
}

/// Takes integers and byte strings from the front.
#[derive(Debug, Clone)]
pub(crate) struct Reader<'a> {
    bytes: &'a [u8],
}

impl<'a> Reader<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Reader<'a> {
        Reader { bytes }
    }

    pub(crate) fn remaining(&self) -> usize {
        self.bytes.len()
    }

    pub(crate) fn raw(&mut self, len: usize) -> Result<&'a [u8], TruncatedInput> {
        let (head, tail) = self.bytes.split_at_checked(len).ok_or(TruncatedInput)?;
        self.bytes = tail;
        Ok(head)
    }

    pub(crate) fn array<const N: usize>(&mut self) -> Result<[u8; N], TruncatedInput> {
        let (head, tail) = self.bytes.split_first_chunk::<N>().ok_or(TruncatedInput)?;
        self.bytes = tail;
        Ok(*head)
    }

    pub(crate) fn u8(&mut self) -> Result<u8, TruncatedInput> {
        Ok(self.array::<1>()?[0])
    }

    pub(crate) fn u16(&mut self) -> Result<u16, TruncatedInput> {
        Ok(u16::from_le_bytes(self.array()?))
    }

    pub(crate) fn u32(&mut self) -> Result<u32, TruncatedInput> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    pub(crate) fn u64(&mut self) -> Result<u64, TruncatedInput> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    pub(crate) fn text(&mut self) -> Result<String, TruncatedInput> {
        let len = usize::from(self.u16()?);
        Ok(String::from_utf8_lossy(self.raw(len)?).into_owned())
    }
}

/// The CRC-32C of content in whole blocks, where 0 is written as 1: so it fits into what other fields leave unused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Checksum(NonZeroU32);

impl Checksum {
    pub(crate) fn of(content: &[u8]) -> Checksum {
        Checksum(NonZeroU32::new(crc32c::crc32c(content)).unwrap_or(NonZeroU32::MIN))
    }

    /// As a number, 0: none.
    pub(crate) fn encode(checksum: Option<Checksum>) -> u32 {
        checksum.map_or(0, |checksum| checksum.0.get())
    }

    pub(crate) fn decode(number: u32) -> Option<Checksum> {
        NonZeroU32::new(number).map(Checksum)
    }
}

/// The checksum of all structures and chunks: CRC-64/NVME.
pub(crate) fn crc64(parts: &[&[u8]]) -> u64 {
    if let [one] = parts {
        // A digest carries a table of constants with it, which is more than a ring entry's words.
        return crc_fast::crc64_nvme(one);
    }
    let mut digest = crc_fast::Digest::new(crc_fast::CrcAlgorithm::Crc64Nvme);
    for part in parts {
        digest.update(part);
    }
    digest.finalize()
}
