//! The blocking client: against the own server, against one that others wrote, and against answers that no server
//! should give.

use std::io::{self, Cursor, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command};

use nbd::client::{Allocation, Client, ClientError};
use nbd::codec::wire;

use crate::support::{DEADLINE, Setup, World, backends, eventually};

fn connect(path: &Path, name: &str) -> Result<Client<UnixStream>, ClientError> {
    let stream = UnixStream::connect(path).unwrap();
    stream.set_read_timeout(Some(DEADLINE)).unwrap();
    Client::connect(stream, name)
}

fn zero(bytes: u64) -> Allocation {
    Allocation { bytes, zero: true }
}

fn data(bytes: u64) -> Allocation {
    Allocation { bytes, zero: false }
}

#[test]
fn what_it_writes_it_reads_and_holes_are_known_as_zeroes() {
    for kind in backends() {
        let world = World::new(Setup::new(kind));
        let mut client = connect(&world.unix, "disk").unwrap();
        let facts = client.facts();
        assert_eq!((facts.bytes, facts.block_bytes), (16 << 20, 512));
        assert_eq!(facts.payload_bytes_max, 32 << 20);
        assert!(!client.is_read_only());
        client.write(65536, &[7; 8192]).unwrap();
        client.write(1 << 20, &vec![9; 1 << 20]).unwrap();
        client.write_zeroes((1 << 20) + 4096, 4096).unwrap();
        client.flush().unwrap();
        let told = client.allocation(0, 2 << 20).unwrap();
        let second = (1 << 20) - 65536 - 8192;
        assert_eq!(
            told,
            [
                zero(65536),
                data(8192),
                zero(second),
                data(4096),
                zero(4096),
                data((1 << 20) - 8192)
            ]
        );
        // What was in the buffer before is never an answer.
        let mut read = vec![1; 2 << 20];
        client.read(0, &mut read).unwrap();
        let mut expected = vec![0; 1 << 20];
        expected[65536..65536 + 8192].fill(7);
        expected.resize(2 << 20, 9);
        expected[(1 << 20) + 4096..(1 << 20) + 8192].fill(0);
        assert!(read == expected);
        client.disconnect().unwrap();
        world.assert_nothing_left();
    }
}

#[test]
fn a_request_that_fails_is_named_with_the_servers_reason_and_the_connection_goes_on() {
    for kind in backends() {
        let world = World::new(Setup::new(kind));
        let mut client = connect(&world.unix, "disk").unwrap();
        let error = client
            .write(16 << 20, &[1; 512])
            .expect_err("behind the end");
        let ClientError::Failed {
            error: number,
            offset,
            length,
            ..
        } = &error
        else {
            panic!("{error}")
        };
        assert_eq!((*number, *offset, *length), (wire::ENOSPC, 16 << 20, 512));
        assert!(
            error
                .to_string()
                .starts_with("a write of 512 bytes at 16777216 failed: ")
        );
        client
            .read(16 << 20, &mut [1; 512])
            .expect_err("there, too");
        client.allocation(16 << 20, 512).expect_err("there, too");
        client.write(0, &[1; 512]).unwrap();
        let refused = connect(&world.unix, "disc").expect_err("none of this name");
        let ClientError::Refused { error, .. } = &refused else {
            panic!("{refused}")
        };
        assert_eq!(*error, wire::REP_ERR_UNKNOWN);
        assert!(refused.to_string().contains("\"disc\""), "{refused}");
    }
}

/// A server that ends with the test.
struct KillOnDrop(Child);

impl Drop for KillOnDrop {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_server_that_others_wrote_is_understood() {
    let dir = tempfile::tempdir().unwrap();
    let (image, socket) = (dir.path().join("image"), dir.path().join("socket"));
    std::fs::File::create(&image)
        .unwrap()
        .set_len(8 << 20)
        .unwrap();
    let started = Command::new("qemu-nbd")
        .args([
            "--format",
            "raw",
            "--export-name",
            "disk",
            "--persistent",
            "--discard",
            "unmap",
            "--socket",
        ])
        .args([&socket, &image])
        .spawn();
    let _server = match started {
        Ok(child) => KillOnDrop(child),
        Err(error) => {
            println!("skipped: qemu-nbd: {error}");
            return;
        }
    };
    eventually("it listens", || UnixStream::connect(&socket).is_ok());
    let mut client = connect(&socket, "disk").unwrap();
    assert_eq!(client.facts().bytes, 8 << 20);
    client.write(1 << 20, &vec![5; 65536]).unwrap();
    client.flush().unwrap();
    let told = client.allocation(0, 8 << 20).unwrap();
    assert_eq!(told, [zero(1 << 20), data(65536), zero((7 << 20) - 65536)]);
    let mut read = vec![1; 2 << 20];
    client.read(0, &mut read).unwrap();
    assert_eq!(read.iter().filter(|byte| **byte == 5).count(), 65536);
    assert_eq!(
        read.iter().filter(|byte| **byte == 0).count(),
        (2 << 20) - 65536
    );
    client.write_zeroes(1 << 20, 65536).unwrap();
    client.read(0, &mut read).unwrap();
    assert!(read.iter().all(|byte| *byte == 0));
    // It has one client at a time.
    client.disconnect().unwrap();
    let refused = connect(&socket, "disc").expect_err("none of this name");
    assert!(matches!(refused, ClientError::Refused { .. }), "{refused}");
}

/// A server whose answers were written before it was asked.
struct Script(Cursor<Vec<u8>>);

impl Read for Script {
    fn read(&mut self, data: &mut [u8]) -> io::Result<usize> {
        self.0.read(data)
    }
}

impl Write for Script {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        Ok(data.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn option_reply(option: u32, kind: u32, body: &[u8]) -> Vec<u8> {
    let mut bytes = wire::OPTION_REPLY_MAGIC.to_be_bytes().to_vec();
    bytes.extend(option.to_be_bytes());
    bytes.extend(kind.to_be_bytes());
    bytes.extend((body.len() as u32).to_be_bytes());
    bytes.extend(body);
    bytes
}

fn chunk(kind: u16, flags: u16, cookie: u64, body: &[u8]) -> Vec<u8> {
    let mut bytes = wire::STRUCTURED_REPLY_MAGIC.to_be_bytes().to_vec();
    bytes.extend(flags.to_be_bytes());
    bytes.extend(kind.to_be_bytes());
    bytes.extend(cookie.to_be_bytes());
    bytes.extend((body.len() as u32).to_be_bytes());
    bytes.extend(body);
    bytes
}

/// A whole conversation: the handshake, a read of 8 bytes at 16 in two chunks, block status, a flush.
fn conversation(structured: bool) -> Vec<u8> {
    let mut bytes = b"NBDMAGICIHAVEOPT\0\x03".to_vec();
    if structured {
        bytes.extend(option_reply(wire::OPT_STRUCTURED_REPLY, wire::REP_ACK, &[]));
        let context = [&9_u32.to_be_bytes()[..], b"base:allocation"].concat();
        let option = wire::OPT_SET_META_CONTEXT;
        bytes.extend(option_reply(option, wire::REP_META_CONTEXT, &context));
        bytes.extend(option_reply(option, wire::REP_ACK, &[]));
    } else {
        let option = wire::OPT_STRUCTURED_REPLY;
        bytes.extend(option_reply(option, wire::REP_ERR_UNSUP, b"no"));
    }
    let mut size = [0; 12];
    size[2..10].copy_from_slice(&64_u64.to_be_bytes());
    size[11] = 5;
    bytes.extend(option_reply(wire::OPT_GO, wire::REP_INFO, &size));
    bytes.extend(option_reply(wire::OPT_GO, wire::REP_ACK, &[]));
    if structured {
        let first = [&16_u64.to_be_bytes()[..], b"abcd"].concat();
        bytes.extend(chunk(wire::REPLY_OFFSET_DATA, 0, 1, &first));
        let hole = [&20_u64.to_be_bytes()[..], &4_u32.to_be_bytes()].concat();
        bytes.extend(chunk(wire::REPLY_OFFSET_HOLE, 1, 1, &hole));
        let words = [9_u32, 16, 0, 48, 3];
        let status: Vec<u8> = words.iter().flat_map(|word| word.to_be_bytes()).collect();
        bytes.extend(chunk(wire::REPLY_BLOCK_STATUS, 1, 2, &status));
        bytes.extend(chunk(wire::REPLY_NONE, 1, 3, &[]));
    } else {
        bytes.extend(b"\x67\x44\x66\x98\0\0\0\0\0\0\0\0\0\0\0\x01abcd\0\0\0\0");
        bytes.extend(b"\x67\x44\x66\x98\0\0\0\0\0\0\0\0\0\0\0\x02");
    }
    bytes
}

/// What a client makes of a conversation: the bytes that it read, and what it was told of 64.
fn listen(script: Vec<u8>) -> Result<([u8; 8], Vec<Allocation>), ClientError> {
    let mut client = Client::connect(Script(Cursor::new(script)), "disk")?;
    let mut read = [0xff; 8];
    client.read(16, &mut read)?;
    let told = client.allocation(0, 64)?;
    client.flush()?;
    Ok((read, told))
}

#[test]
fn answers_that_are_cut_or_changed_anywhere_are_errors_or_what_they_say_and_never_a_panic() {
    for (structured, told) in [(true, vec![data(16), zero(48)]), (false, vec![data(64)])] {
        let whole = conversation(structured);
        assert_eq!(listen(whole.clone()).unwrap(), (*b"abcd\0\0\0\0", told));
        for end in 0..whole.len() {
            listen(whole[..end].to_vec()).expect_err("cut short");
        }
        for at in 0..whole.len() {
            for change in [1, 0x40, 0x80, 0xf0] {
                let mut changed = whole.clone();
                changed[at] ^= change;
                if let Ok((read, told)) = listen(changed) {
                    // Data itself, and numbers that say something else, may differ; lengths may not.
                    assert!(!read.contains(&0xff), "{at}: {read:?}");
                    let bytes: u64 = told.iter().map(|range| range.bytes).sum();
                    assert!(bytes <= 64 && !told.is_empty(), "{at}: {told:?}");
                }
            }
        }
    }
}

#[test]
fn a_read_whose_chunks_do_not_make_it_up_is_an_error() {
    let whole = conversation(true);
    let hole = wire::REPLY_OFFSET_HOLE.to_be_bytes();
    let at = whole.windows(2).rposition(|pair| pair == hole).unwrap();
    // The hole's chunk says that it brings nothing.
    let mut lacking = whole[..at].to_vec();
    lacking.extend(&chunk(wire::REPLY_NONE, 1, 1, &[])[6..]);
    let error = listen(lacking).expect_err("four bytes are missing");
    assert!(matches!(error, ClientError::Protocol(_)), "{error}");
}
