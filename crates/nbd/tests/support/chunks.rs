//! A blocking client of structured replies and extended headers, which checks each reply's form:
//! its chunks cover what was read once, and the last one says so.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;

use super::DEADLINE;
use super::client::{READ, WRITE};

pub const CACHE: u16 = 5;
pub const STATUS: u16 = 7;
pub const DF: u16 = 4;
pub const REQ_ONE: u16 = 8;
const PAYLOAD_LEN: u16 = 32;

/// A chunk: its type and its payload.
pub struct Chunk {
    pub kind: u16,
    pub body: Vec<u8>,
}

/// The lengths of a read's chunks, and whether each was a hole.
pub type Seen = Vec<(usize, bool)>;

pub struct ChunkClient {
    stream: UnixStream,
    is_extended: bool,
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_be_bytes(bytes[at..at + 8].try_into().unwrap())
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes(bytes[at..at + 4].try_into().unwrap())
}

impl ChunkClient {
    /// A client in the transmission phase, with all contexts that the server lists.
    pub fn new(path: &Path, export: &str, is_extended: bool) -> ChunkClient {
        let stream = UnixStream::connect(path).unwrap();
        stream.set_read_timeout(Some(DEADLINE)).unwrap();
        stream.set_write_timeout(Some(DEADLINE)).unwrap();
        let mut client = ChunkClient {
            stream,
            is_extended,
        };
        client.bytes(18);
        client.stream.write_all(&3_u32.to_be_bytes()).unwrap();
        assert_eq!(client.option(if is_extended { 11 } else { 8 }, b""), [1]);
        let mut contexts = (export.len() as u32).to_be_bytes().to_vec();
        contexts.extend(export.as_bytes());
        let name = contexts.clone();
        contexts.extend(2_u32.to_be_bytes());
        for context in ["base:allocation", "firn:dirty"] {
            contexts.extend((context.len() as u32).to_be_bytes());
            contexts.extend(context.as_bytes());
        }
        assert_eq!(client.option(10, &contexts), [4, 4, 1]);
        assert_eq!(client.option(7, &[&name[..], &[0, 0]].concat()), [3, 3, 1]);
        client
    }

    fn bytes(&mut self, count: usize) -> Vec<u8> {
        let mut out = vec![0; count];
        self.stream.read_exact(&mut out).unwrap();
        out
    }

    /// The kinds of an option's replies, up to the last one.
    fn option(&mut self, option: u32, data: &[u8]) -> Vec<u32> {
        let mut out = b"IHAVEOPT".to_vec();
        out.extend(option.to_be_bytes());
        out.extend((data.len() as u32).to_be_bytes());
        out.extend(data);
        self.stream.write_all(&out).unwrap();
        let mut kinds = Vec::new();
        loop {
            let head = self.bytes(20);
            let kind = u32_at(&head, 12);
            self.bytes(u32_at(&head, 16) as usize);
            kinds.push(kind);
            if kind == 1 || kind >= 1 << 31 {
                return kinds;
            }
        }
    }

    fn send(&mut self, command: u16, flags: u16, offset: u64, length: u64, payload: &[u8]) {
        let magic = match self.is_extended {
            true => 0x21e4_1c71_u32,
            false => 0x2560_9513,
        };
        let has_length = self.is_extended && command == WRITE;
        let flags = flags | if has_length { PAYLOAD_LEN } else { 0 };
        let mut out = magic.to_be_bytes().to_vec();
        out.extend(flags.to_be_bytes());
        out.extend(command.to_be_bytes());
        out.extend(7_u64.to_be_bytes());
        out.extend(offset.to_be_bytes());
        match self.is_extended {
            true => out.extend(length.to_be_bytes()),
            false => out.extend((length as u32).to_be_bytes()),
        }
        out.extend(payload);
        self.stream.write_all(&out).unwrap();
    }

    /// All chunks of the next reply; none where a simple reply says success.
    fn reply(&mut self, offset: u64) -> Vec<Chunk> {
        let mut chunks = Vec::new();
        loop {
            let head = self.bytes(16);
            let magic = u32_at(&head, 0);
            if magic == 0x6744_6698 {
                assert!(!self.is_extended && chunks.is_empty());
                assert_eq!(u32_at(&head, 4), 0, "errors have a message");
                assert_eq!(u64_at(&head, 8), 7);
                return chunks;
            }
            assert_eq!(u64_at(&head, 8), 7, "cookie");
            let length = if self.is_extended {
                assert_eq!(magic, 0x6e8a_278c);
                let rest = self.bytes(16);
                assert_eq!(u64_at(&rest, 0), offset, "the request's offset");
                u64_at(&rest, 8)
            } else {
                assert_eq!(magic, 0x668e_33ef);
                u64::from(u32_at(&self.bytes(4), 0))
            };
            let [flags, kind] = [4, 6].map(|at| u16::from_be_bytes([head[at], head[at + 1]]));
            let body = self.bytes(length as usize);
            chunks.push(Chunk { kind, body });
            if flags == 1 {
                return chunks;
            }
            assert_eq!(flags, 0);
        }
    }

    /// A request that brings nothing but its success.
    pub fn simple(&mut self, command: u16, flags: u16, at: u64, length: u64) -> Result<(), u32> {
        self.send(command, flags, at, length, &[]);
        let chunks = self.reply(at);
        chunks
            .first()
            .map_or(Ok(()), |chunk| finish(chunk, chunks.len()))
    }

    pub fn write(&mut self, flags: u16, offset: u64, data: &[u8]) -> Result<(), u32> {
        self.send(WRITE, flags, offset, data.len() as u64, data);
        let chunks = self.reply(offset);
        chunks
            .first()
            .map_or(Ok(()), |chunk| finish(chunk, chunks.len()))
    }

    /// What a read brings, and the lengths of its chunks: of data, or of a hole (true).
    pub fn read(&mut self, flags: u16, offset: u64, length: usize) -> Result<(Vec<u8>, Seen), u32> {
        self.send(READ, flags, offset, length as u64, &[]);
        let (mut data, mut seen) = (vec![0xee; length], Vec::new());
        let mut covered = vec![false; length];
        for chunk in self.reply(offset) {
            if chunk.kind >= 1 << 15 {
                return Err(u32_at(&chunk.body, 0));
            }
            let at = (u64_at(&chunk.body, 0) - offset) as usize;
            let (len, is_hole) = match chunk.kind {
                1 => (chunk.body.len() - 8, false),
                2 => (u32_at(&chunk.body, 8) as usize, true),
                kind => panic!("chunk of type {kind}"),
            };
            assert!(
                covered[at..at + len].iter().all(|known| !known),
                "told twice"
            );
            covered[at..at + len].fill(true);
            match is_hole {
                true => data[at..at + len].fill(0),
                false => data[at..at + len].copy_from_slice(&chunk.body[8..]),
            }
            seen.push((len, is_hole));
        }
        assert!(covered.iter().all(|known| *known), "not told");
        Ok((data, seen))
    }

    /// Length and state of each extent, per context in the order of their numbers.
    pub fn status(
        &mut self,
        flags: u16,
        at: u64,
        length: u64,
    ) -> Result<Vec<Vec<(u64, u32)>>, u32> {
        self.send(STATUS, flags, at, length, &[]);
        let mut contexts = Vec::new();
        for chunk in self.reply(at) {
            let body = &chunk.body;
            let extents = match chunk.kind {
                5 => body[4..]
                    .chunks(8)
                    .map(|d| (u64::from(u32_at(d, 0)), u32_at(d, 4)))
                    .collect(),
                6 => {
                    assert_eq!(u32_at(body, 4) as usize * 16, body.len() - 8);
                    let descriptors = body[8..].chunks(16);
                    descriptors
                        .map(|d| (u64_at(d, 0), u64_at(d, 8) as u32))
                        .collect()
                }
                _ => return Err(u32_at(body, 0)),
            };
            assert_eq!(u32_at(body, 0) as usize, contexts.len() + 1, "context");
            contexts.push(extents);
        }
        Ok(contexts)
    }
}

/// The end of a reply without content.
fn finish(chunk: &Chunk, chunks: usize) -> Result<(), u32> {
    assert_eq!(chunks, 1);
    if chunk.kind == 0 {
        return Ok(());
    }
    assert!(chunk.kind == (1 << 15) + 1, "an error chunk");
    let message = u16::from_be_bytes([chunk.body[4], chunk.body[5]]);
    assert!(message > 0 && usize::from(message) == chunk.body.len() - 6);
    Err(u32_at(&chunk.body, 0))
}
