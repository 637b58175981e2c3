//! The dispatch tests: what each operation does, whatever the transport.
//!
//! Each case drives a transport from the client's side, over a [`MemoryDisk`] with faults of the
//! case's own, and compares with plain memory. No case knows how bytes move.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use blkmq::Device;
use blkmq::io::{Op, SECTOR_BYTES};
use reactor::DioAlign;

use super::faults::Faults;
use super::memory_disk::MemoryDisk;

/// How a case wants its transport.
#[derive(Clone, Copy, Debug)]
pub struct RigSetup {
    /// Faults of the disk from the start.
    pub faults: Faults,
    /// What the disk's file is said to ask of direct I/O.
    pub align: DioAlign,
    /// Bytes of the reactor's pool.
    pub pool_bytes: usize,
}

impl RigSetup {
    /// Size of the disk, in bytes.
    pub const DISK_BYTES: u64 = 4 << 20;

    /// Size of the pool's reserve. No request of a case is longer.
    pub const RESERVE_BYTES: usize = 64 << 10;

    const DEFAULT: RigSetup = RigSetup {
        faults: Faults::NONE,
        align: DioAlign::NONE,
        pool_bytes: 8 << 20,
    };
}

/// The answer to a request: its number, and the bytes of a read or an error.
pub type Answer = (u64, Result<Vec<u8>, i32>);

/// A transport that serves a [`MemoryDisk`] of [`RigSetup::DISK_BYTES`], and a client of it.
pub trait Rig {
    /// The disk that it serves.
    fn disk(&self) -> &Arc<MemoryDisk>;

    /// The device through which requests are admitted.
    fn device(&self) -> &Arc<Device>;

    /// Sends a request.
    fn send(&mut self, id: u64, op: Op, payload: &[u8]);

    /// Lets the transport go on for a moment; what was answered.
    fn turn(&mut self) -> Vec<Answer>;

    /// Whether a DISCARD and a WRITE_ZEROES can ask for durability.
    fn has_fua_on_zeroing(&self) -> bool {
        true
    }

    /// Takes the transport away under its client. Requests may stay unanswered from here on.
    fn retire(&mut self);
}

/// How long anything may take before a case fails.
const DEADLINE: Duration = Duration::from_secs(30);

/// A client that remembers what should be on the disk.
struct Client<R: Rig> {
    rig: R,
    next: u64,
    answers: BTreeMap<u64, Result<Vec<u8>, i32>>,
    model: Vec<u8>,
}

impl<R: Rig> Client<R> {
    fn new(rig: R) -> Client<R> {
        Client {
            rig,
            next: 0,
            answers: BTreeMap::new(),
            model: vec![0; RigSetup::DISK_BYTES as usize],
        }
    }

    fn turn(&mut self) {
        let answers = self.rig.turn();
        for (id, answer) in answers {
            let before = self.answers.insert(id, answer);
            assert!(before.is_none(), "request {id} was answered twice");
        }
    }

    /// Goes on until this holds, and fails the case where that takes too long.
    fn run_until(&mut self, what: &str, mut holds: impl FnMut(&mut Self) -> bool) {
        let deadline = Instant::now() + DEADLINE;
        while !holds(self) {
            assert!(Instant::now() < deadline, "not in time: {what}");
            self.turn();
        }
    }

    fn send(&mut self, op: Op, payload: &[u8]) -> u64 {
        self.next += 1;
        self.rig.send(self.next, op, payload);
        self.next
    }

    fn answer(&mut self, id: u64) -> Result<Vec<u8>, i32> {
        self.run_until("an answer", |client| client.answers.contains_key(&id));
        self.answers.remove(&id).expect("it was waited for")
    }

    fn run(&mut self, op: Op, payload: &[u8]) -> Result<Vec<u8>, i32> {
        let id = self.send(op, payload);
        self.answer(id)
    }

    fn write(&mut self, sector: u64, payload: &[u8], fua: bool) {
        let sectors = (payload.len() as u64 / SECTOR_BYTES) as u32;
        let op = Op::Write {
            sector,
            sectors,
            fua,
        };
        assert_eq!(self.run(op, payload), Ok(Vec::new()), "{op:?}");
        self.model[bytes_of(&op)].copy_from_slice(payload);
    }

    fn check_read(&mut self, sector: u64, sectors: u32) {
        let op = Op::Read { sector, sectors };
        let read = self
            .run(op, &[])
            .unwrap_or_else(|errno| panic!("{op:?}: {errno}"));
        assert!(read == self.model[bytes_of(&op)], "{op:?}");
    }

    /// Nothing is left of any request: no tag, no plan.
    fn check_nothing_left(&mut self) {
        let device = Arc::clone(self.rig.device());
        self.run_until("no request in flight or parked", |_| {
            let load = device.load();
            load.iter()
                .all(|load| load.in_flight == 0 && load.parked == 0)
        });
        self.run_until("no plan lives", |client| client.rig.disk().pins() == 0);
        assert_eq!(device.counts().dropped, 0, "a request was dropped");
        let (taken, used) = self.rig.disk().blocks();
        assert_eq!(taken, used, "log space was lost");
    }
}

/// The bytes of the disk that an operation is about.
fn bytes_of(op: &Op) -> std::ops::Range<usize> {
    let (sector, sectors) = match *op {
        Op::Read { sector, sectors }
        | Op::Write {
            sector, sectors, ..
        } => (sector, sectors.into()),
        Op::Discard {
            sector, sectors, ..
        }
        | Op::WriteZeroes {
            sector, sectors, ..
        }
        | Op::Status { sector, sectors }
        | Op::Prefetch { sector, sectors } => (sector, sectors),
        Op::Flush => (0, 0),
    };
    (sector * SECTOR_BYTES) as usize..((sector + sectors) * SECTOR_BYTES) as usize
}

fn pattern(seed: u64, sectors: u64) -> Vec<u8> {
    let byte = |at: u64| (seed * 31 + at / SECTOR_BYTES * 7 + at) as u8 | 1;
    (0..sectors * SECTOR_BYTES).map(byte).collect()
}

fn zeroing(discard: bool, sector: u64, sectors: u64, fua: bool) -> Op {
    if discard {
        Op::Discard {
            sector,
            sectors,
            fua,
        }
    } else {
        Op::WriteZeroes {
            sector,
            sectors,
            fua,
        }
    }
}

/// Writes, reads and zeroes ranges of many lengths and places, and reads everything in the end.
fn mixed_operations<R: Rig>(client: &mut Client<R>, rounds: u64) {
    let end = RigSetup::DISK_BYTES / SECTOR_BYTES;
    for round in 0..rounds {
        let sectors = 1 + round * 13 % 64;
        let sector = round * 2311 % (end - sectors);
        match round % 5 {
            0 | 1 => client.write(sector, &pattern(round, sectors), round % 4 == 0),
            2 => {
                let op = zeroing(round % 2 == 0, sector, sectors, false);
                assert_eq!(client.run(op, &[]), Ok(Vec::new()), "{op:?}");
                client.model[bytes_of(&op)].fill(0);
            }
            3 => client.check_read(sector, sectors as u32),
            _ => assert_eq!(client.run(Op::Flush, &[]), Ok(Vec::new())),
        }
    }
    for sector in (0..end).step_by(128) {
        client.check_read(sector, 128);
    }
    client.check_nothing_left();
}

fn client<R: Rig>(make: impl FnOnce(RigSetup) -> R, setup: RigSetup) -> Client<R> {
    Client::new(make(setup))
}

fn client_with<R: Rig>(make: impl FnOnce(RigSetup) -> R, faults: Faults) -> Client<R> {
    client(
        make,
        RigSetup {
            faults,
            ..RigSetup::DEFAULT
        },
    )
}

/// The cases. Each makes a transport of its own and panics where the transport is wrong.
pub mod cases {
    use super::*;

    /// READ, WRITE, FLUSH, DISCARD and WRITE_ZEROES.
    pub fn every_operation_does_what_it_says<R: Rig>(make: impl FnOnce(RigSetup) -> R) {
        mixed_operations(&mut client(make, RigSetup::DEFAULT), 150);
    }

    /// Pieces of single sectors over a file that takes whole blocks only.
    pub fn odd_pieces_of_512_bytes_are_moved_whatever_direct_io_asks<R: Rig>(
        make: impl FnOnce(RigSetup) -> R,
    ) {
        let setup = RigSetup {
            faults: Faults {
                piece_sectors: 3,
                ..Faults::NONE
            },
            align: DioAlign {
                memory: 512,
                offset: 4096,
            },
            ..RigSetup::DEFAULT
        };
        mixed_operations(&mut client(make, setup), 60);
    }

    /// FLUSH, and FUA on everything that has it.
    pub fn fua_and_flush_wait_until_it_is_durable<R: Rig>(make: impl FnOnce(RigSetup) -> R) {
        let mut client = client_with(make, Faults::SLOW_SYNC);
        let write = Op::Write {
            sector: 8,
            sectors: 8,
            fua: true,
        };
        let mut ops = vec![Op::Flush, write];
        if client.rig.has_fua_on_zeroing() {
            ops.extend([zeroing(true, 8, 8, true), zeroing(false, 0, 8, true)]);
        }
        for op in ops {
            let payload = if op == write {
                pattern(1, 8)
            } else {
                Vec::new()
            };
            let id = client.send(op, &payload);
            // What asks for no durability overtakes it.
            client.write(64, &pattern(2, 1), false);
            assert!(!client.answers.contains_key(&id), "{op:?} came too soon");
            client.run_until("durability is asked for", |client| {
                client.rig.disk().make_durable() == 1
            });
            assert_eq!(client.answer(id), Ok(Vec::new()), "{op:?}");
        }
        client.check_nothing_left();
    }

    /// For space and for a fetch.
    pub fn a_parked_request_is_overtaken_and_goes_on_when_woken<R: Rig>(
        make: impl FnOnce(RigSetup) -> R,
    ) {
        let mut client = client(make, RigSetup::DEFAULT);
        client.write(0, &pattern(1, 8), false);
        for faults in [Faults::NO_SPACE, Faults::EVERY_FETCH_PARKS] {
            client.rig.disk().set_faults(faults);
            let begun = client.rig.disk().begin_count();
            let parked = client.send(
                Op::Read {
                    sector: 0,
                    sectors: 8,
                },
                &[],
            );
            client.run_until("it parks", |client| client.rig.disk().begin_count() > begun);
            client.rig.disk().set_faults(Faults::NONE);
            client.check_read(8, 8);
            assert!(!client.answers.contains_key(&parked));
            client.run_until("it is woken", |client| client.rig.disk().wake_all() == 1);
            assert_eq!(client.answer(parked).as_deref(), Ok(&client.model[..4096]));
        }
        client.check_nothing_left();
    }

    /// The backend plans another place.
    pub fn a_write_that_could_not_be_moved_is_moved_elsewhere<R: Rig>(
        make: impl FnOnce(RigSetup) -> R,
    ) {
        let faults = Faults {
            fail_move: 2,
            ..Faults::NONE
        };
        let mut client = client_with(make, faults);
        for sector in 0..8 {
            client.write(sector * 8, &pattern(sector, 5), false);
        }
        client.check_read(0, 64);
        client.check_nothing_left();
    }

    /// Writes, then reads under `faults`, which must be an error.
    fn client_with_failed_read<R: Rig>(
        make: impl FnOnce(RigSetup) -> R,
        faults: Faults,
    ) -> Client<R> {
        let mut client = client(make, RigSetup::DEFAULT);
        client.write(0, &pattern(1, 16), false);
        client.rig.disk().set_faults(faults);
        let read = Op::Read {
            sector: 0,
            sectors: 16,
        };
        assert_eq!(client.run(read, &[]), Err(5));
        client.rig.disk().set_faults(Faults::NONE);
        client
    }

    /// A read that meets the end of its file.
    pub fn a_read_that_stays_short_is_an_error_and_the_next_one_is_served<R: Rig>(
        make: impl FnOnce(RigSetup) -> R,
    ) {
        let faults = Faults {
            short_read: true,
            ..Faults::NONE
        };
        let mut client = client_with_failed_read(make, faults);
        client.check_read(0, 16);
        client.check_nothing_left();
    }

    /// Nothing is moved, and no bytes of another request are shown.
    pub fn a_plan_that_does_not_cover_its_request_is_an_error<R: Rig>(
        make: impl FnOnce(RigSetup) -> R,
    ) {
        let faults = Faults {
            plan_gap: true,
            ..Faults::NONE
        };
        client_with_failed_read(make, faults).check_nothing_left();
    }

    /// The backend refuses, and the client gets its error.
    pub fn an_error_of_the_backend_reaches_the_client<R: Rig>(make: impl FnOnce(RigSetup) -> R) {
        let mut client = client(make, RigSetup::DEFAULT);
        client.rig.disk().read_only.store(true, Ordering::SeqCst);
        let write = Op::Write {
            sector: 0,
            sectors: 1,
            fua: false,
        };
        assert!(client.run(write, &pattern(1, 1)).is_err());
        client.check_read(0, 1);
        client.check_nothing_left();
    }

    /// Far more bytes at once than the pool has.
    pub fn a_dry_pool_makes_requests_wait_and_all_are_served<R: Rig>(
        make: impl FnOnce(RigSetup) -> R,
    ) {
        let setup = RigSetup {
            pool_bytes: 192 << 10,
            ..RigSetup::DEFAULT
        };
        let mut client = client(make, setup);
        (0..12).for_each(|at: u64| client.write(at * 128, &pattern(at, 128), false));
        let read = |at: u64| Op::Read {
            sector: at * 128,
            sectors: 128,
        };
        let sent: Vec<u64> = (0..12).map(|at| client.send(read(at), &[])).collect();
        for (at, id) in sent.into_iter().enumerate() {
            let read = client.answer(id).expect("it is served");
            assert!(read == client.model[at << 16..(at + 1) << 16], "read {at}");
        }
        client.check_nothing_left();
    }

    /// With requests in every stage.
    pub fn a_transport_that_retires_leaves_no_tag_and_no_plan<R: Rig>(
        make: impl FnOnce(RigSetup) -> R,
    ) {
        let faults = Faults {
            park_space: 3,
            slow_sync: true,
            ..Faults::NONE
        };
        let mut client = client_with(make, faults);
        for at in 0..6 {
            let (sector, sectors) = (at * 8, 8);
            let fua = at % 2 == 0;
            let write = Op::Write {
                sector,
                sectors,
                fua,
            };
            client.send(write, &pattern(at, 8));
            client.send(Op::Read { sector, sectors }, &[]);
        }
        client.run_until("some are begun", |client| {
            client.rig.disk().begin_count() >= 6
        });
        client.rig.retire();
        client.rig.disk().set_faults(Faults::NONE);
        client.rig.disk().wake_all();
        client.rig.disk().make_durable();
        client.check_nothing_left();
    }
}

/// Makes a test of each dispatch case. The argument is a function from a
/// [`RigSetup`](crate::testing::RigSetup) to a [`Rig`](crate::testing::Rig).
#[macro_export]
macro_rules! dispatch_tests {
    ($make:expr) => {
        $crate::dispatch_tests! { @each $make;
            every_operation_does_what_it_says
            odd_pieces_of_512_bytes_are_moved_whatever_direct_io_asks
            fua_and_flush_wait_until_it_is_durable
            a_parked_request_is_overtaken_and_goes_on_when_woken
            a_write_that_could_not_be_moved_is_moved_elsewhere
            a_read_that_stays_short_is_an_error_and_the_next_one_is_served
            a_plan_that_does_not_cover_its_request_is_an_error
            an_error_of_the_backend_reaches_the_client
            a_dry_pool_makes_requests_wait_and_all_are_served
            a_transport_that_retires_leaves_no_tag_and_no_plan
        }
    };
    (@each $make:expr; $($case:ident)*) => {
        $(#[test] fn $case() { $crate::testing::cases::$case($make) })*
    };
}
