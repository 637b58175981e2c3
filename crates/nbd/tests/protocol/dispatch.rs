//! NBD passes the dispatch tests that every transport passes, on both drivers of the reactor.

use std::collections::HashMap;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use blkmq::Device;
use blkmq::io::{Op, SECTOR_BYTES};
use reactor::BackendKind;
use serve::testing::{Answer, MemoryDisk, Rig, RigSetup};

use crate::support::client::{Client, FLUSH, FUA, READ, TRIM, WRITE, ZEROES};
use crate::support::{Setup, World, backends};

/// Bytes that follow a reply of success, by cookie.
type Lengths = Arc<Mutex<HashMap<u64, usize>>>;

struct NbdRig {
    world: World,
    socket: UnixStream,
    lengths: Lengths,
    replies: Receiver<Answer>,
}

impl NbdRig {
    fn new(kind: BackendKind, setup: RigSetup) -> NbdRig {
        let world = World::new(Setup {
            bytes: RigSetup::DISK_BYTES,
            align: setup.align,
            faults: setup.faults,
            pool_bytes: setup.pool_bytes,
            reserve_bytes: RigSetup::RESERVE_BYTES,
            ..Setup::new(kind)
        });
        let socket = Client::unix_socket(&world.unix, "disk");
        let (lengths, (to, replies)) = (Lengths::default(), channel());
        let (from, known) = (socket.try_clone().unwrap(), Arc::clone(&lengths));
        std::thread::spawn(move || {
            while let Some(reply) = next_reply(&from, &known) {
                if to.send(reply).is_err() {
                    return;
                }
            }
        });
        NbdRig {
            world,
            socket,
            lengths,
            replies,
        }
    }
}

/// The next reply, or none at the end of the connection.
fn next_reply(mut from: &UnixStream, lengths: &Lengths) -> Option<Answer> {
    let mut head = [0; 16];
    from.read_exact(&mut head).ok()?;
    let error = i32::from_be_bytes(head[4..8].try_into().unwrap());
    let cookie = u64::from_be_bytes(head[8..].try_into().unwrap());
    let length = lengths.lock().unwrap().remove(&cookie).unwrap();
    if error != 0 {
        return Some((cookie, Err(error)));
    }
    let mut bytes = vec![0; length];
    from.read_exact(&mut bytes).ok()?;
    Some((cookie, Ok(bytes)))
}

impl Rig for NbdRig {
    fn disk(&self) -> &Arc<MemoryDisk> {
        &self.world.disk
    }

    fn device(&self) -> &Arc<Device> {
        &self.world.export.device
    }

    fn send(&mut self, id: u64, op: Op, payload: &[u8]) {
        let (command, sector, sectors, fua) = match op {
            Op::Read { sector, sectors } => (READ, sector, sectors.into(), false),
            Op::Write {
                sector,
                sectors,
                fua,
            } => (WRITE, sector, sectors.into(), fua),
            Op::Flush => (FLUSH, 0, 0, false),
            Op::Status { .. } | Op::Prefetch { .. } => unreachable!("not of these tests"),
            Op::Discard {
                sector,
                sectors,
                fua,
            } => (TRIM, sector, sectors, fua),
            Op::WriteZeroes {
                sector,
                sectors,
                fua,
            } => (ZEROES, sector, sectors, fua),
        };
        let length = (sectors * SECTOR_BYTES) as u32;
        let follows = if command == READ { length as usize } else { 0 };
        self.lengths.lock().unwrap().insert(id, follows);
        let flags = if fua { FUA } else { 0 };
        let mut bytes = Client::header(command, flags, id, sector * SECTOR_BYTES, length);
        bytes.extend(payload);
        self.socket.write_all(&bytes).unwrap();
    }

    fn turn(&mut self) -> Vec<Answer> {
        let next = self.replies.recv_timeout(Duration::from_millis(1));
        next.into_iter().collect()
    }

    fn retire(&mut self) {
        self.socket.shutdown(std::net::Shutdown::Both).unwrap();
    }
}

mod on_io_uring {
    use super::*;

    /// Where the kernel refuses io_uring, the other driver is tested twice.
    fn make(setup: RigSetup) -> NbdRig {
        NbdRig::new(backends()[0], setup)
    }

    serve::dispatch_tests!(make);
}

mod on_epoll {
    use super::*;

    fn make(setup: RigSetup) -> NbdRig {
        NbdRig::new(BackendKind::Epoll, setup)
    }

    serve::dispatch_tests!(make);
}
