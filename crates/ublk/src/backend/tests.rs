//! The handler on a port that only takes notes: which way the engine chooses for a request's bytes.

use std::sync::Mutex;
use std::task::Waker;

use blkmq::DeviceOptions;
use blkmq::io::{
    Direction, FileId, Geometry, MoveError, MoveResult, Op as Ask, Park, Piece, Place, Plan, Step,
    StepOf,
};
use reactor::{DioAlign, Op};

use super::*;
use crate::queue::tests::Rig;
use crate::sys;

/// The engine's names for its operations on the request with a tag of the core's.
mod token {
    use reactor::Token;

    pub(super) fn piece(tag: u16, piece: u32) -> Token {
        Token(1 << 48 | u64::from(tag) << 32 | u64::from(piece))
    }

    pub(super) fn copy(tag: u16) -> Token {
        Token(3 << 48 | u64::from(tag) << 32)
    }
}

const READ: u32 = sys::OP_READ as u32;
const WRITE: u32 = sys::OP_WRITE as u32;
const FLUSH: u32 = sys::OP_FLUSH as u32;
const ZERO_COPY: u64 = sys::F_ZERO_COPY | sys::F_AUTO_BUFFER | sys::F_USER_COPY;

/// A disk whose plans the test writes.
#[derive(Default)]
struct ScriptedBackend {
    pieces: Vec<Piece>,
    parks: Mutex<u32>,
    /// Writes that could not be moved.
    failed: Mutex<u32>,
    parked: Mutex<Vec<Waker>>,
    /// Requests that failed in the transport.
    reported: Mutex<Vec<MoveError>>,
    /// A read gets the plan of a write.
    turned: AtomicBool,
    /// How often it panics yet.
    panics: Mutex<u32>,
}

#[derive(Debug)]
struct ScriptedPlan(Vec<Piece>);

impl Plan for ScriptedPlan {
    fn pieces(&self) -> &[Piece] {
        &self.0
    }
}

impl Backend for ScriptedBackend {
    type Read = ScriptedPlan;
    type Write = ScriptedPlan;
    type Sync = u32;

    fn geometry(&self) -> Geometry {
        Geometry {
            bytes: 1 << 30,
            logical_block: 512,
            physical_block: 4096,
            read_only: false,
        }
    }

    fn begin(&self, op: &Ask, waker: &Waker) -> StepOf<Self> {
        let mut parks = self.parks.lock().unwrap();
        if *parks > 0 {
            *parks -= 1;
            self.parked.lock().unwrap().push(waker.clone());
            return Step::Park(Park::Space);
        }
        drop(parks);
        let panics = std::mem::replace(&mut *self.panics.lock().unwrap(), 0);
        if panics > 0 {
            *self.panics.lock().unwrap() = panics - 1;
            panic!("planted");
        }
        match op {
            Ask::Read { .. } if self.turned.load(Ordering::Relaxed) => {
                Step::Write(ScriptedPlan(self.pieces.clone()))
            }
            Ask::Read { .. } => Step::Read(ScriptedPlan(self.pieces.clone())),
            Ask::Write { .. } => Step::Write(ScriptedPlan(self.pieces.clone())),
            _ => {
                waker.wake_by_ref();
                Step::Sync(1)
            }
        }
    }

    fn read(&self, _: ScriptedPlan, moved: MoveResult, _: &Waker) -> StepOf<Self> {
        Step::Done(moved.map_err(ErrorKind::from))
    }

    fn written(&self, plan: ScriptedPlan, moved: MoveResult, _: &Waker) -> StepOf<Self> {
        if moved.is_err() && std::mem::take(&mut *self.failed.lock().unwrap()) > 0 {
            return Step::Write(plan);
        }
        Step::Done(moved.map_err(ErrorKind::from))
    }

    fn poll_sync(&self, left: u32, waker: &Waker) -> StepOf<Self> {
        if left > 0 {
            waker.wake_by_ref();
            return Step::Sync(left - 1);
        }
        Step::Done(Ok(()))
    }

    fn on_request_failed(&self, error: &MoveError) {
        self.reported.lock().unwrap().push(*error);
    }
}

fn at(at: u32, len: u32, offset: u64) -> Piece {
    Piece {
        at,
        len,
        place: Place::At {
            file: FileId::LOG,
            offset,
        },
    }
}

fn hole(at: u32, len: u32) -> Piece {
    Piece {
        at,
        len,
        place: Place::Hole,
    }
}

/// A queue over `disk`, whose file wants blocks of 4096 bytes.
fn rig_with(
    flags: u64,
    disk: ScriptedBackend,
) -> (Rig<BackendHandler<ScriptedBackend>>, Arc<ScriptedBackend>) {
    let (disk, device) = (
        Arc::new(disk),
        Device::new("disk", DeviceOptions::default()),
    );
    let file = BackendFile {
        id: FileId::LOG,
        fd: Arc::new(reactor::memfd(c"log", 1 << 20).unwrap()),
        align: DioAlign {
            memory: 512,
            offset: 4096,
        },
    };
    let serve = BackendHandler::new(Arc::clone(&disk), &device, vec![file], 4);
    (Rig::new(flags | sys::F_PER_IO_TASK, 4, serve), disk)
}

fn with_pieces(pieces: &[Piece]) -> ScriptedBackend {
    ScriptedBackend {
        pieces: pieces.to_vec(),
        ..ScriptedBackend::default()
    }
}

/// The engine's operations, in words.
fn describe_ops(rig: &Rig<BackendHandler<ScriptedBackend>>) -> Vec<String> {
    let words = |op: &Op| match op {
        Op::ReadFixed { slot, at, len, .. } => Some(format!("slot {slot} +{at}: read {len}")),
        Op::WriteFixed { slot, at, len, .. } => Some(format!("slot {slot} +{at}: write {len}")),
        Op::Read { offset, buf, .. } => Some(format!("read {} at {offset:#x}", buf.len())),
        Op::Write { offset, buf, .. } => Some(format!("write {} at {offset:#x}", buf.len())),
        _ => None,
    };
    rig.port
        .ops
        .iter()
        .filter_map(|(_, op)| words(op))
        .collect()
}

fn succeed(op: Op) -> Completion {
    match op {
        Op::Read { buf, .. } => Completion::Read(buf, Ok(())),
        Op::Write { buf, .. } => Completion::Write(buf, Ok(())),
        _ => Completion::Fixed(Ok(())),
    }
}

fn errno(errno: i32) -> std::io::Error {
    std::io::Error::from_raw_os_error(errno)
}

fn fail_with(error: std::io::Error) -> impl FnOnce(Op) -> Completion {
    move |op| match op {
        Op::Read { buf, .. } => Completion::Read(buf, Err(error)),
        Op::Write { buf, .. } => Completion::Write(buf, Err(error)),
        _ => Completion::Fixed(Err(error)),
    }
}

#[test]
fn what_fits_moves_between_slot_and_file_and_holes_are_read_as_zeroes() {
    let pieces = [at(0, 4096, 8192), hole(4096, 512), hole(4608, 3584)];
    let (mut rig, _) = rig_with(ZERO_COPY, with_pieces(&pieces));
    rig.come(2, READ, 16);
    assert_eq!(
        describe_ops(&rig),
        [
            "slot 2 +0: read 4096",
            "slot 2 +4096: read 512",
            "slot 2 +4608: read 3584"
        ]
    );
    for piece in [1, 0, 2] {
        rig.end_own(token::piece(0, piece), succeed);
    }
    assert_eq!(rig.committed(2), 8192);
}

#[test]
fn the_first_error_of_several_pieces_fails_the_request_once_all_have_ended() {
    let pieces = [at(0, 4096, 0), at(4096, 4096, 0)];
    let (mut rig, _) = rig_with(ZERO_COPY, with_pieces(&pieces));
    rig.come(0, WRITE, 16);
    rig.end_own(token::piece(0, 0), fail_with(errno(libc::ENOSPC)));
    assert_eq!(
        describe_ops(&rig).len(),
        1,
        "nothing is answered under a write in flight"
    );
    rig.end_own(token::piece(0, 1), succeed);
    assert_eq!(rig.committed(0), -libc::EIO);
}

#[test]
fn what_the_file_forbids_is_copied_through_the_window() {
    let (mut rig, _) = rig_with(ZERO_COPY, with_pieces(&[at(0, 512, 4096)]));
    rig.come(1, WRITE, 1);
    let window = sys::data_offset(0, 1, 0);
    assert_eq!(describe_ops(&rig), [format!("read 512 at {window:#x}")]);
    rig.end_own(token::copy(0), succeed);
    // Padded up to what the file's direct I/O asks for.
    assert_eq!(describe_ops(&rig), ["write 4096 at 0x1000"]);
    rig.end_own(token::piece(0, 0), succeed);
    assert_eq!(rig.committed(1), 512);
}

#[test]
fn a_slot_that_a_file_refuses_all_the_same_is_copied() {
    let (mut rig, _) = rig_with(ZERO_COPY, with_pieces(&[at(0, 4096, 0)]));
    rig.come(0, READ, 8);
    rig.end_own(token::piece(0, 0), fail_with(errno(libc::EINVAL)));
    assert_eq!(describe_ops(&rig), ["read 4096 at 0x0"]);
    rig.end_own(token::piece(0, 0), succeed);
    let window = sys::data_offset(0, 0, 0);
    assert_eq!(describe_ops(&rig), [format!("write 4096 at {window:#x}")]);
    rig.end_own(token::copy(0), succeed);
    assert_eq!(rig.committed(0), 4096);
}

#[test]
fn a_taken_slot_and_a_device_of_user_copy_go_through_the_window() {
    let taken = READ | sys::IO_NEED_REGISTER_BUFFER;
    for (flags, op) in [(ZERO_COPY, taken), (sys::F_USER_COPY, READ)] {
        let (mut rig, _) = rig_with(flags, with_pieces(&[at(0, 4096, 0)]));
        rig.come(0, op, 8);
        rig.end_own(token::piece(0, 0), succeed);
        rig.end_own(token::copy(0), succeed);
        assert_eq!(rig.committed(0), 4096);
    }
}

#[test]
fn a_failed_copy_from_or_to_the_window_is_reported_with_its_place_and_errno() {
    let window = sys::data_offset(0, 1, 0);
    let short = || std::io::Error::from(std::io::ErrorKind::UnexpectedEof);
    for (op, direction, errno) in [
        (WRITE, Direction::Read, Some(libc::EFAULT)),
        (READ, Direction::Write, Some(libc::EACCES)),
        (WRITE, Direction::Read, None),
    ] {
        let (mut rig, disk) = rig_with(sys::F_USER_COPY, with_pieces(&[at(0, 4096, 0)]));
        rig.come(1, op, 8);
        if op == READ {
            rig.end_own(token::piece(0, 0), succeed);
        }
        let error = errno.map_or_else(short, self::errno);
        rig.end_own(token::copy(0), fail_with(error));
        assert_eq!(rig.committed(1), -libc::EIO);
        let errno = errno.unwrap_or(libc::EIO);
        let failed = MoveError::of_window(direction, window, 4096, errno);
        assert_eq!(*disk.reported.lock().unwrap(), [failed]);
        assert!(rig.port.ops.is_empty(), "another plan would not help");
    }
}

#[test]
fn a_plan_that_the_request_did_not_ask_for_is_reported() {
    let (mut rig, disk) = rig_with(sys::F_USER_COPY, ScriptedBackend::default());
    disk.turned.store(true, Ordering::Relaxed);
    rig.come(0, READ, 8);
    assert_eq!(rig.committed(0), -libc::EIO);
    let failed = MoveError::of_plan(Direction::Read);
    assert_eq!(*disk.reported.lock().unwrap(), [failed]);
}

#[test]
fn a_write_that_could_not_be_moved_is_moved_to_its_new_place() {
    let (mut rig, disk) = rig_with(sys::F_USER_COPY, with_pieces(&[at(0, 4096, 0)]));
    *disk.failed.lock().unwrap() = 1;
    rig.come(0, WRITE, 8);
    rig.end_own(token::copy(0), succeed);
    rig.end_own(token::piece(0, 0), fail_with(errno(libc::EIO)));
    assert_eq!(
        describe_ops(&rig),
        ["write 4096 at 0x0"],
        "without another copy"
    );
    rig.end_own(token::piece(0, 0), succeed);
    assert_eq!(rig.committed(0), 4096);
}

#[test]
fn a_parked_request_holds_no_memory_and_goes_on_when_woken() {
    let (mut rig, disk) = rig_with(sys::F_USER_COPY, with_pieces(&[at(0, 4096, 0)]));
    *disk.parks.lock().unwrap() = 1;
    rig.come(0, WRITE, 8);
    assert!(
        describe_ops(&rig).is_empty(),
        "no buffer before there is a plan"
    );
    wake_parked(&disk);
    rig.with(|source, port| source.on_wake(port, KEY_RUN));
    rig.end_own(token::copy(0), succeed);
    rig.end_own(token::piece(0, 0), succeed);
    assert_eq!(rig.committed(0), 4096);
}

fn wake_parked(disk: &ScriptedBackend) {
    let parked = std::mem::take(&mut *disk.parked.lock().unwrap());
    assert!(!parked.is_empty());
    parked.into_iter().for_each(Waker::wake);
}

#[test]
fn a_panic_over_a_parked_request_costs_that_request_alone() {
    for panics in 1..=2 {
        let (mut rig, disk) = rig_with(ZERO_COPY, with_pieces(&[at(0, 4096, 0)]));
        *disk.parks.lock().unwrap() = 3;
        for tag in 0..3 {
            rig.come(tag, WRITE, 8);
        }
        *disk.panics.lock().unwrap() = panics;
        wake_parked(&disk);
        rig.with(|source, port| source.on_wake(port, KEY_RUN));
        rig.deliver_returned();
        // Those behind it in the same pass went on: nobody wakes them again.
        assert_eq!(describe_ops(&rig).len(), 3 - panics as usize);
        for tag in 0..panics as u16 {
            assert_eq!(rig.committed(tag), -libc::EIO, "{panics} {tag}");
        }
        // And the queue takes requests as before.
        rig.come(3, WRITE, 8);
        assert_eq!(describe_ops(&rig).len(), 4 - panics as usize);
        let stats = rig.stats();
        assert_eq!((stats.panics, stats.abandoned), (panics.into(), 0));
    }
}

#[test]
fn a_dry_pool_is_waited_for() {
    let (mut rig, _) = rig_with(sys::F_USER_COPY, with_pieces(&[at(0, 4096, 0)]));
    rig.port.dry = true;
    rig.come(0, READ, 8);
    let (token, len) = rig.port.wanted.remove(0);
    let buf = Completion::Buffer(Buf::allocate(len).unwrap());
    rig.with(|source, port| source.on_completion(port, token, buf));
    rig.end_own(token::piece(0, 0), succeed);
    rig.end_own(token::copy(0), succeed);
    assert_eq!(rig.committed(0), 4096);
}

#[test]
fn a_flush_waits_until_it_is_durable() {
    let (mut rig, _) = rig_with(ZERO_COPY, ScriptedBackend::default());
    rig.come(0, FLUSH, 0);
    assert!(
        rig.port.armed.iter().all(|&(number, _)| number != 0),
        "too soon"
    );
    for _ in 0..2 {
        rig.with(|source, port| source.on_wake(port, KEY_RUN));
    }
    assert_eq!(rig.committed(0), 0);
}

#[test]
fn a_plan_that_does_not_cover_its_request_is_an_error() {
    for flags in [ZERO_COPY, sys::F_NEED_GET_DATA, 0] {
        let (mut rig, _) = rig_with(flags, with_pieces(&[at(0, 4096, 0)]));
        rig.come(0, READ, 16);
        assert_eq!(rig.committed(0), -libc::EIO);
    }
}

#[test]
fn what_is_parked_when_the_server_leaves_stays_with_the_driver() {
    let (mut rig, disk) = rig_with(ZERO_COPY, with_pieces(&[at(0, 4096, 0)]));
    *disk.parks.lock().unwrap() = 1;
    rig.come(0, WRITE, 8);
    rig.with(|source, port| source.on_stop(port));
    rig.deliver_returned();
    assert_eq!(rig.stats().abandoned, 1);
    assert!(rig.is_detached());
}
