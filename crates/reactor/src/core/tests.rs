//! Operations and driver commands from begin to delivery, on a double that decides when the kernel takes
//! what was begun and when it answers.

use std::cell::RefCell;
use std::os::fd::RawFd;
use std::rc::Rc;
use std::time::Duration;

mod buffer_slots;
mod buffers;

use super::*;
use crate::call::{Call, CallTarget, CommandCall};
use crate::driver::wake_fd;
use crate::memory::memfd;

/// What the fake driver was asked, and what it is to answer.
#[derive(Default)]
pub(crate) struct Kernel {
    pub(crate) started: Vec<(u64, Call)>,
    cancelled: Vec<u64>,
    /// Calls that the kernel has not taken.
    queued: usize,
    /// Whether an enter takes what is queued.
    takes: bool,
    pub(crate) results: Vec<(u64, i32)>,
}

struct FakeDriver(Rc<RefCell<Kernel>>);

impl Driver for FakeDriver {
    fn kind(&self) -> BackendKind {
        BackendKind::IoUring
    }
    fn register(&mut self, _slot: u32, _fd: RawFd) -> bool {
        true
    }
    fn unregister(&mut self, _slot: u32, _fd: RawFd, _fixed: bool) {}
    unsafe fn start(&mut self, key: u64, _target: CallTarget, call: Call) {
        let mut kernel = self.0.borrow_mut();
        kernel.started.push((key, call));
        kernel.queued += 1;
    }
    fn all_submitted(&mut self) -> bool {
        self.0.borrow().queued == 0
    }
    fn register_buffer_slots(&mut self, _count: u16) -> io::Result<()> {
        Ok(())
    }
    fn cancel(&mut self, key: u64) {
        self.0.borrow_mut().cancelled.push(key);
    }
    fn close(&mut self, fd: OwnedFd) {
        drop(fd);
    }
    fn wait(&mut self, _: Option<Duration>, out: &mut Vec<(u64, i32)>) -> io::Result<()> {
        let mut kernel = self.0.borrow_mut();
        if kernel.takes {
            kernel.queued = 0;
        }
        out.append(&mut kernel.results);
        Ok(())
    }
}

struct Idle;

impl Source for Idle {
    fn on_completion(&mut self, _: &mut Cx<'_>, _: Token, _: Completion) {}
}

fn core_with_driver(driver: AnyDriver) -> Core {
    let mailbox = Arc::new(Inbox::new(wake_fd().unwrap()));
    let pool = BufferPool::new(1 << 20, 4096).unwrap();
    Core::new(driver, mailbox, pool)
}

/// A core on a double, a source and a file of it.
pub(crate) fn world() -> (Core, Rc<RefCell<Kernel>>, SourceId, FileIndex) {
    let kernel = Rc::new(RefCell::new(Kernel {
        takes: true,
        ..Kernel::default()
    }));
    let mut core = core_with_driver(AnyDriver::Fake(Box::new(FakeDriver(Rc::clone(&kernel)))));
    let source = core.attach(|_| Idle);
    let file = core.register(memfd(c"device", 4096).unwrap());
    (core, kernel, source, file)
}

pub(crate) fn command(file: FileIndex) -> Command {
    // SAFETY: the double's driver takes nothing for an address.
    unsafe { Command::new(file, 7, [9; 16]) }
}

fn lend(core: &Core) -> Buf {
    core.pool().take(4096, BufferPurpose::Fresh).unwrap()
}

fn enter(core: &mut Core) {
    core.submit_and_wait(Some(Duration::ZERO)).unwrap();
}

fn answer(core: &mut Core, kernel: &RefCell<Kernel>, op: OpId, raw: i32) -> Completion {
    kernel.borrow_mut().results.push((op.0, raw));
    enter(core);
    next(core).expect("a completion").1
}

/// The first completion, of whatever source.
fn next(core: &mut Core) -> Option<(Token, Completion)> {
    let source = core.next_recipient()?;
    core.take_delivery(source)
}

/// The key of the last call that was begun.
fn last_begun(kernel: &RefCell<Kernel>) -> OpId {
    OpId(kernel.borrow().started.last().expect("nothing was begun").0)
}

#[test]
fn a_command_reaches_its_driver_as_it_was_made() {
    let (mut core, kernel, source, file) = world();
    core.arm(source, 5, command(file).sqe_addr(77));
    core.submit(source, Token(5), Op::Command(command(file).sqe_addr(77)));
    for (_, call) in &kernel.borrow().started {
        let Call::Command(CommandCall {
            opcode: 7,
            payload,
            sqe_addr: Some(77),
        }) = call
        else {
            panic!("another call: {call:?}")
        };
        assert_eq!(*payload, [9; 16]);
    }
}

#[test]
fn armed_commands_of_several_sources_are_told_apart_and_each_ends_once() {
    let (mut core, kernel, first, file) = world();
    let second = core.attach(|_| Idle);
    let other = core.register(memfd(c"other device", 4096).unwrap());
    let mut keys = Vec::new();
    for number in [0, 1, u32::MAX] {
        core.arm(first, number, command(file));
        keys.push(last_begun(&kernel).0);
        core.arm(second, number, command(other));
        keys.push(last_begun(&kernel).0);
    }
    assert_eq!(core.stats().armed_commands, 6);
    let results = keys.iter().zip(10..).map(|(&key, raw)| (key, raw));
    kernel.borrow_mut().results.extend(results);
    enter(&mut core);
    let mut delivered = Vec::new();
    core.deliveries_left = 100;
    while let Some(source) = core.next_recipient() {
        assert!(core.is_armed_next(source));
        let (number, raw) = core.next_armed(source).expect("an armed command");
        assert_eq!(core.next_armed(source), None, "the next one is another's");
        delivered.push((source, number, raw));
    }
    assert_eq!(core.deliveries_left, 94);
    let expected = [
        (first, 0, 10),
        (second, 0, 11),
        (first, 1, 12),
        (second, 1, 13),
        (first, u32::MAX, 14),
        (second, u32::MAX, 15),
    ];
    assert_eq!(delivered, expected);
    let stats = core.stats();
    assert_eq!((stats.ops_in_flight, stats.armed_commands), (0, 0));
    // Their files are not in use any more.
    core.close(file);
    core.close(other);
    assert_eq!(core.stats().files, 0);
}

#[test]
fn a_drivers_answer_is_given_as_it_is() {
    let (mut core, kernel, source, file) = world();
    for raw in [0, 1, 4096, -libc::EINTR, -libc::EAGAIN, -libc::ENODEV] {
        let op = core.submit(source, Token(1), Op::Command(command(file)));
        let end = answer(&mut core, &kernel, op, raw);
        assert!(matches!(end, Completion::Command(seen) if seen == raw));
    }
    assert_eq!(kernel.borrow().started.len(), 6, "one was repeated");
    core.close(file);
    core.submit(source, Token(2), Op::Command(command(file)));
    let end = next(&mut core).unwrap().1;
    assert!(matches!(end, Completion::Command(raw) if raw == -libc::EBADF));
    core.arm(source, 3, command(file));
    let end = next(&mut core).unwrap().1;
    assert!(matches!(end, Completion::ArmedCommand(3, raw) if raw == -libc::EBADF));
    assert_eq!(core.stats().armed_commands, 0);
}

#[test]
fn a_socket_that_nobody_will_be_told_of_is_closed() {
    let (mut core, kernel, source, file) = world();
    let accept = core.submit(source, Token(1), Op::Accept { file });
    let flags = rustix::pipe::PipeFlags::NONBLOCK;
    let (reading, socket) = rustix::pipe::pipe_with(flags).unwrap();
    let raw = std::os::fd::IntoRawFd::into_raw_fd(socket);
    kernel.borrow_mut().results.push((accept.0, raw));
    enter(&mut core);
    core.discard_results();
    assert_eq!(core.stats().ops_in_flight, 0);
    drop(core.close_ring());
    let read = rustix::io::read(&reading, &mut [0; 1]).unwrap();
    assert_eq!(read, 0, "the other end is still open");
}

#[test]
fn a_result_is_judged_when_its_source_is_told_and_a_short_transfer_goes_on_untold() {
    let (mut core, kernel, source, file) = world();
    let read = Op::ReadFixed {
        file,
        offset: 0,
        slot: 3,
        at: 0,
        len: 4096,
    };
    let op = core.submit(source, Token(1), read);
    kernel.borrow_mut().results.push((op.0, 1024));
    enter(&mut core);
    assert_eq!(core.next_recipient(), Some(source));
    assert!(core.take_delivery(source).is_none(), "it is not over");
    assert!(core.next_recipient().is_none());
    let (key, call) = *kernel.borrow().started.last().unwrap();
    let rest = matches!(
        call,
        Call::Fixed {
            offset: 1024,
            at: 1024,
            len: 3072,
            ..
        }
    );
    assert!(key == op.0 && rest, "{call:?}");
    let end = answer(&mut core, &kernel, op, 3072);
    assert!(matches!(end, Completion::Fixed(Ok(()))));
}

#[test]
fn armed_commands_are_not_cancelled_one_by_one_and_keep_their_source_and_file() {
    let (mut core, kernel, source, file) = world();
    core.arm(source, 1, command(file));
    let armed = last_begun(&kernel);
    let other = core.submit(source, Token(2), Op::Command(command(file)));
    core.close(file);
    core.detach(source);
    core.cancel_all();
    assert_eq!(kernel.borrow().cancelled, [other.0]);
    core.arm(source, 2, command(file));
    assert_eq!(
        core.stats().armed_commands,
        1,
        "begun on a file that is closing"
    );
    let refused = core.take_delivery(source).expect("an end").1;
    assert!(matches!(refused, Completion::ArmedCommand(2, raw) if raw == -libc::EBADF));
    assert!(!core.finish_delivery(source));
    kernel
        .borrow_mut()
        .results
        .push((other.0, -libc::ECANCELED));
    enter(&mut core);
    let end = core.take_delivery(source);
    assert!(matches!(end, Some((Token(2), _))), "{end:?}");
    assert!(
        !core.finish_delivery(source),
        "delivered although it is detached"
    );
    assert!(
        !core.release_source(source),
        "released with an armed command"
    );
    assert_eq!((core.stats().armed_commands, core.stats().files), (1, 1));
    kernel.borrow_mut().results.push((armed.0, -libc::ENODEV));
    enter(&mut core);
    assert!(core.take_delivery(source).is_some());
    assert!(!core.finish_delivery(source));
    assert!(core.release_source(source));
    let stats = core.stats();
    assert_eq!(
        (stats.ops_in_flight, stats.armed_commands, stats.files),
        (0, 0, 0)
    );
}

#[test]
fn what_the_sources_that_leave_in_a_turn_have_in_flight_is_looked_for_once() {
    let (mut core, kernel, stays, file) = world();
    let kept = core.submit(stays, Token(1), Op::Command(command(file)));
    let mut expected = Vec::new();
    for _ in 0..100 {
        let leaves = core.attach(|_| Idle);
        core.arm(leaves, 1, command(file));
        let op = core.submit(leaves, Token(2), Op::Command(command(file)));
        expected.push(op.0);
        core.detach(leaves);
    }
    assert_eq!(core.take_detached().len(), 100);
    assert_eq!(core.take_detached(), []);
    assert_eq!(kernel.borrow().cancelled, expected);
    assert_eq!(core.ops.scans.get(), 1);
    core.cancel(kept);
    assert_eq!(kernel.borrow().cancelled.len(), expected.len() + 1);
}

#[test]
fn what_a_source_begins_after_it_was_detached_is_cancelled_too() {
    let (mut core, kernel, source, file) = world();
    core.detach(source);
    let op = core.submit(source, Token(1), Op::Command(command(file)));
    assert_eq!(core.take_detached(), [source]);
    assert_eq!(kernel.borrow().cancelled, [op.0]);
}

#[test]
fn for_a_source_and_a_file_without_operations_nothing_is_looked_for() {
    let (mut core, _kernel, source, _file) = world();
    let idle = core.attach(|_| Idle);
    let fd = Arc::new(memfd(c"idle", 0).unwrap());
    let own = core.register_for(Some(idle), fd);
    core.detach(idle);
    assert_eq!(core.take_detached(), [idle]);
    assert!(core.release_source(idle));
    assert!(core.files.target(own).is_none(), "its file is closed");
    assert_eq!(core.ops.scans.get(), 0);
    assert!(core.find_source(source).is_some());
}

#[test]
fn the_clock_is_read_once_for_all_that_ask_in_a_turn() {
    let (mut core, _, _, _) = world();
    let first = core.turn_time_ns();
    let until = Instant::now() + Duration::from_millis(2);
    while Instant::now() < until {}
    assert_eq!(core.turn_time_ns(), first);
    core.submit_and_wait(Some(Duration::ZERO)).unwrap();
    assert!(core.turn_time_ns() >= first + 2_000_000, "the next turn's");
}
