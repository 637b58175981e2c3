//! A queue on a port that only records: what it sends, and what it makes of each answer.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::sync::{Arc, Mutex};
use std::task::Waker;

use reactor::op::Command;
use reactor::{Buf, BufferPurpose, FileIndex, Op, OpId};
use zerocopy::{FromBytes, IntoBytes};

mod pools;

use super::token::{
    self, CommandKind, KEY_DRAIN, KEY_RELEASE, KEY_RESUME, KEY_RETURN_QUEUE, OpKind,
    command_number, queue_token,
};
use std::panic::{AssertUnwindSafe, catch_unwind};

use reactor::{Completion, Port, Token};

use super::*;
use crate::sys::{self, IoCommand, IoDescriptor};

mod draining;

/// A port whose operations end when the test says.
#[derive(Default)]
pub(crate) struct RecordingPort {
    pub(crate) ops: Vec<(Token, Op)>,
    /// Armed commands, by number.
    pub(crate) armed: Vec<(u32, Command)>,
    /// What the driver reads while it takes a command: it takes none before the end.
    held: Vec<Buf>,
    /// Buffers are waited for.
    pub(crate) dry: bool,
    pub(crate) wanted: Vec<(Token, usize)>,
    files: u32,
    detached: bool,
}

impl Port for RecordingPort {
    fn submit(&mut self, token: Token, op: Op) -> OpId {
        self.ops.push((token, op));
        OpId::for_test(self.ops.len() as u64)
    }
    fn arm(&mut self, number: u32, command: Command) {
        self.armed.push((number, command));
    }
    fn hold_until_submitted(&mut self, buf: Buf) {
        self.held.push(buf);
    }
    fn cancel(&mut self, _: OpId) {}
    fn request_buffer(&mut self, token: Token, len: usize, _: BufferPurpose) -> Option<Buf> {
        if self.dry {
            self.wanted.push((token, len));
            return None;
        }
        Buf::allocate(len)
    }
    fn reserve_len(&self) -> usize {
        1 << 20
    }
    fn register(&mut self, _: Arc<OwnedFd>) -> FileIndex {
        self.files += 1;
        FileIndex::for_test(self.files)
    }
    fn close(&mut self, _: FileIndex) {}
    fn enable_buffer_slots(&mut self) -> io::Result<()> {
        Ok(())
    }
    fn take_buffer_slots(&mut self, count: usize) -> Option<Vec<u16>> {
        Some((0..count as u16).collect())
    }
    fn release_buffer_slots(&mut self, _: &[u16]) {}
    fn request_turn(&mut self) {}
    fn waker(&self, _: u64) -> Waker {
        Waker::noop().clone()
    }
    fn detach(&mut self) {
        self.detached = true;
    }
}

#[derive(Default)]
struct RecordingObserver(Mutex<Vec<String>>);

impl QueueObserver for RecordingObserver {
    fn on_fetch_failed(&self, queue: u16, _: u16, errno: i32) {
        self.0
            .lock()
            .unwrap()
            .push(format!("fetch {queue} {errno}"));
    }
    fn on_aborted(&self, queue: u16) {
        self.0.lock().unwrap().push(format!("aborted {queue}"));
    }
    fn on_drained(&self, queue: u16) {
        self.0.lock().unwrap().push(format!("drained {queue}"));
    }
    fn on_detached(&self, queue: u16, _: QueueStats) {
        self.0.lock().unwrap().push(format!("detached {queue}"));
    }
}

/// A queue, its driver's memory and its port.
pub(crate) struct Rig<H: Handler> {
    source: Option<QueueSource<H>>,
    pub(crate) port: RecordingPort,
    memory: File,
    observer: Arc<RecordingObserver>,
    counters: Arc<Counters>,
}

impl<H: Handler> Rig<H> {
    pub(crate) fn new(flags: u64, depth: u16, handler: H) -> Rig<H> {
        Rig::with_share(flags, (depth, Share::WHOLE), handler)
    }

    fn with_share(flags: u64, tags: (u16, Share), handler: H) -> Rig<H> {
        Rig::with_pool(flags, tags, None, handler)
    }

    fn with_pool(
        flags: u64,
        (depth, share): (u16, Share),
        pool: Option<Box<dyn Pool>>,
        handler: H,
    ) -> Rig<H> {
        let memory = File::from(reactor::memfd(c"driver", 1 << 20).unwrap());
        let (observer, counters) = (
            Arc::<RecordingObserver>::default(),
            Arc::<Counters>::default(),
        );
        let parts = QueueParts {
            device: 0,
            queue: 0,
            depth,
            share,
            char_device: Arc::new(memory.try_clone().unwrap().into()),
            descriptors: Descriptors::map(&memory, 0, depth, 0).unwrap(),
            flags,
            io_bytes_max: 1 << 20,
            slots_max: depth,
            pool,
            counters: Arc::clone(&counters),
            observer: Arc::clone(&observer) as Arc<dyn QueueObserver>,
        };
        let mut rig = Rig {
            source: Some(QueueSource::new(parts, handler)),
            port: RecordingPort::default(),
            memory,
            observer,
            counters,
        };
        rig.with(|source, port| source.on_attached(port));
        rig
    }

    pub(crate) fn with(&mut self, call: impl FnOnce(&mut QueueSource<H>, &mut RecordingPort)) {
        call(self.source.as_mut().unwrap(), &mut self.port);
    }

    /// Writes what the driver says about a tag's request.
    pub(crate) fn describe(&self, tag: u16, op_flags: u32, sectors: u32) {
        let descriptor = IoDescriptor {
            op_flags,
            sectors,
            sector: 8,
            addr: 0,
        };
        let at = u64::from(tag) * size_of::<IoDescriptor>() as u64;
        self.memory.write_all_at(descriptor.as_bytes(), at).unwrap();
    }

    fn take(&mut self, token: Token) -> Op {
        let at = self.port.ops.iter().position(|(own, _)| *own == token);
        let at = at.unwrap_or_else(|| panic!("nothing was sent as {token:?}"));
        self.port.ops.remove(at).1
    }

    /// The command that a tag has with the driver.
    fn issued(&self, kind: CommandKind, tag: u16) -> (u32, i32) {
        let number = command_number(kind, tag);
        let sent = self.port.armed.iter().find(|(own, _)| *own == number);
        let (_, command) = sent.unwrap_or_else(|| panic!("no {kind:?} of {tag}"));
        (command.opcode(), result_of(command))
    }

    /// The driver answers a tag's command.
    fn answer(&mut self, kind: CommandKind, tag: u16, raw: i32) {
        let number = command_number(kind, tag);
        let at = self.port.armed.iter().position(|(own, _)| *own == number);
        let at = at.unwrap_or_else(|| panic!("no {kind:?} of {tag}"));
        self.port.armed.remove(at);
        let mut one = Some((number, raw));
        self.with(|source, port| source.on_armed_completions(port, |_| one.take()));
    }

    fn end(&mut self, kind: OpKind, number: u16, raw: i32) {
        let token = queue_token(kind, number);
        let completion = match self.take(token) {
            Op::Command(_) => Completion::Command(raw),
            Op::Timeout { .. } => Completion::Timeout(Ok(())),
            other => panic!("{other:?}"),
        };
        self.with(|source, port| source.on_completion(port, token, completion));
    }

    /// A request comes for this tag.
    pub(crate) fn come(&mut self, tag: u16, op_flags: u32, sectors: u32) {
        self.describe(tag, op_flags, sectors);
        self.answer(CommandKind::Fetch, tag, sys::RESULT_OK);
    }

    /// The result that was committed for this tag.
    pub(crate) fn committed(&self, tag: u16) -> i32 {
        let (opcode, result) = self.issued(CommandKind::Fetch, tag);
        assert_eq!(opcode, sys::IO_COMMIT_AND_FETCH);
        result
    }

    /// Ends the handler's operation of this token.
    pub(crate) fn end_own(&mut self, token: Token, end: impl FnOnce(Op) -> Completion) {
        let completion = end(self.take(token));
        self.with(|source, port| source.on_completion(port, token, completion));
    }

    pub(crate) fn stats(&self) -> QueueStats {
        self.counters.stats()
    }

    pub(crate) fn detached(&self) -> bool {
        self.port.detached
    }

    /// Requests that were answered elsewhere come back.
    pub(crate) fn deliver_returned(&mut self) {
        self.with(|source, port| source.on_wake(port, KEY_RETURN_QUEUE));
    }
}

fn result_of(command: &Command) -> i32 {
    IoCommand::read_from_bytes(command.payload())
        .unwrap()
        .result
}

/// Keeps requests for the test, or answers them at once.
#[derive(Clone, Default)]
struct KeepingHandler {
    at_once: Option<Answer>,
    kept: Arc<Mutex<Vec<Request>>>,
}

impl KeepingHandler {
    fn answering(answer: Answer) -> KeepingHandler {
        KeepingHandler {
            at_once: Some(answer),
            ..KeepingHandler::default()
        }
    }

    fn next(&self) -> Request {
        self.kept.lock().unwrap().remove(0)
    }
}

impl Handler for KeepingHandler {
    fn on_request<P: Port>(&mut self, queue: &mut QueueCx<'_, P>, request: Request) {
        match self.at_once {
            Some(Answer::Failed(0)) => panic!("planted"),
            Some(answer) => queue.answer(request, answer),
            None => self.kept.lock().unwrap().push(request),
        }
    }
}

const READ: u32 = sys::OP_READ as u32;
const WRITE: u32 = sys::OP_WRITE as u32;
const COPY_BY_USER: u64 = sys::F_USER_COPY | sys::F_PER_IO_TASK;

#[test]
fn results_are_what_the_driver_understands() {
    let done = |flags, answer, op| {
        let mut rig = Rig::new(flags, 1, KeepingHandler::answering(answer));
        rig.come(0, op, 8);
        rig.committed(0)
    };
    let user_copy = |answer, op| done(COPY_BY_USER, answer, op);
    assert_eq!(user_copy(Answer::Done, READ), 4096);
    assert_eq!(user_copy(Answer::Done, u32::from(sys::OP_FLUSH)), 0);
    assert_eq!(user_copy(Answer::Done, u32::from(sys::OP_DISCARD)), 0);
    let copy = |answer, op| done(sys::F_PER_IO_TASK, answer, op);
    assert_eq!(copy(Answer::Part(512), READ), 512);
    // The kernel would take these for the whole request.
    assert_eq!(copy(Answer::Part(512), WRITE), -libc::EIO);
    assert_eq!(user_copy(Answer::Part(512), READ), -libc::EIO);
    assert_eq!(user_copy(Answer::Part(4096), WRITE), 4096);
    assert_eq!(user_copy(Answer::Failed(28), WRITE), -28);
    for senseless in [
        Answer::Part(0),
        Answer::Part(512),
        Answer::Part(100),
        Answer::Part(8192),
        Answer::Failed(-5),
        Answer::Failed(i32::MAX),
    ] {
        assert_eq!(user_copy(senseless, WRITE), -libc::EIO, "{senseless:?}");
    }
    assert_eq!(user_copy(Answer::Done, 0x44), -libc::EOPNOTSUPP);
    // A read that brings nothing, where a buffer must come.
    let get_data = done(sys::F_NEED_GET_DATA, Answer::Done, READ);
    assert_eq!(get_data, -libc::EIO);
}

#[test]
fn a_request_of_no_bytes_or_too_many_is_not_handed_out() {
    for sectors in [0, 4096, u32::MAX] {
        let mut rig = Rig::new(COPY_BY_USER, 1, KeepingHandler::answering(Answer::Done));
        rig.come(0, READ, sectors);
        assert_eq!(rig.committed(0), -libc::EIO);
        assert_eq!(rig.counters.stats().requests, 0);
    }
}

#[test]
fn results_go_to_the_driver_in_the_order_of_the_answers() {
    let mut rig = Rig::new(COPY_BY_USER, 4, KeepingHandler::answering(Answer::Done));
    for tag in [2, 0, 3, 1] {
        rig.come(tag, WRITE, 8);
    }
    let sent = rig.port.armed.iter();
    let order: Vec<u16> = sent.map(|&(number, _)| number as u16).collect();
    assert_eq!(order, [2, 0, 3, 1]);
}

#[test]
fn a_refused_result_is_sent_again_and_in_the_end_fails() {
    let mut rig = Rig::new(COPY_BY_USER, 1, KeepingHandler::answering(Answer::Done));
    rig.come(0, WRITE, 8);
    for _ in 0..3 {
        assert_eq!(rig.committed(0), 4096);
        rig.answer(CommandKind::Fetch, 0, -libc::EINVAL);
        rig.end(OpKind::RetryTimer, 0, 0);
    }
    assert_eq!(rig.committed(0), 4096);
    rig.answer(CommandKind::Fetch, 0, -libc::EINVAL);
    rig.end(OpKind::RetryTimer, 0, 0);
    assert_eq!(rig.committed(0), -libc::EIO);
    rig.come(0, WRITE, 16);
    assert_eq!(rig.committed(0), 8192, "the tag serves again");
    let stats = rig.counters.stats();
    assert_eq!((stats.retries, stats.commits_lost, stats.aborts), (4, 1, 0));
}

#[test]
fn a_refused_fetch_is_told_once_and_sent_again() {
    let mut rig = Rig::new(COPY_BY_USER, 2, KeepingHandler::answering(Answer::Done));
    for _ in 0..2 {
        rig.answer(CommandKind::Fetch, 1, -libc::EBUSY);
        rig.end(OpKind::RetryTimer, 1, 0);
    }
    assert_eq!(rig.issued(CommandKind::Fetch, 1).0, sys::IO_FETCH);
    assert_eq!(*rig.observer.0.lock().unwrap(), ["fetch 0 16"]);
}

#[test]
fn a_queue_leaves_when_all_its_tags_are_retired_and_answered() {
    let keep = KeepingHandler::default();
    let mut rig = Rig::new(COPY_BY_USER, 3, keep.clone());
    rig.come(1, WRITE, 8);
    rig.answer(CommandKind::Fetch, 0, sys::RESULT_ABORT);
    rig.answer(CommandKind::Fetch, 2, sys::RESULT_ABORT);
    let stats = rig.counters.stats();
    assert_eq!((stats.aborts, stats.owned_at_abort), (2, 1));
    assert!(!rig.port.detached, "a request is at hand");
    keep.next().complete();
    rig.deliver_returned();
    assert_eq!(rig.committed(1), 4096);
    rig.answer(CommandKind::Fetch, 1, sys::RESULT_ABORT);
    assert!(rig.port.detached);
    rig.source = None;
    assert_eq!(*rig.observer.0.lock().unwrap(), ["aborted 0", "detached 0"]);
}

#[test]
fn a_tag_that_a_quiesced_driver_keeps_does_not_hold_the_queue_for_ever() {
    let mut rig = Rig::new(COPY_BY_USER, 2, KeepingHandler::default());
    rig.answer(CommandKind::Fetch, 0, sys::RESULT_ABORT);
    assert!(!rig.port.detached);
    rig.end(OpKind::GraceTimer, 0, 0);
    assert!(rig.port.detached);
}

#[test]
fn a_server_that_stops_finishes_what_it_has_and_leaves_the_rest() {
    let keep = KeepingHandler::default();
    let mut rig = Rig::new(COPY_BY_USER, 3, keep.clone());
    rig.come(0, WRITE, 8);
    rig.with(|source, port| source.on_stop(port));
    rig.come(1, WRITE, 8);
    assert!(!rig.port.detached);
    assert_eq!(rig.counters.stats().abandoned, 1);
    keep.next().complete();
    rig.deliver_returned();
    assert_eq!(rig.committed(0), 4096);
    assert!(rig.port.detached);
}

#[test]
fn before_linux_6_16_a_stopping_server_keeps_one_tag_idle() {
    let keep = KeepingHandler::default();
    let mut rig = Rig::new(sys::F_USER_COPY, 2, keep.clone());
    rig.come(0, WRITE, 8);
    rig.with(|source, port| source.on_stop(port));
    // The last idle tag: its request is served, else the driver would miss the exit.
    rig.come(1, WRITE, 8);
    assert_eq!(rig.counters.stats().abandoned, 0);
    keep.next().complete();
    keep.next().complete();
    rig.deliver_returned();
    assert!(rig.port.detached);
}

#[test]
fn a_share_of_a_queue_has_its_tags_and_leaves_with_them() {
    let share = Share { first: 1, step: 3 };
    let mut rig = Rig::with_share(0, (8, share), KeepingHandler::answering(Answer::Done));
    let sent = |tag: &u16| {
        let number = command_number(CommandKind::Fetch, *tag);
        rig.port.armed.iter().any(|(own, _)| *own == number)
    };
    let fetched: Vec<u16> = (0..8).filter(sent).collect();
    assert_eq!(fetched, [1, 4, 7]);
    for tag in fetched {
        assert!(!rig.detached(), "before its last tag");
        rig.answer(CommandKind::Fetch, tag, sys::RESULT_ABORT);
    }
    assert!(rig.detached());
    assert_eq!(rig.stats().aborts, 3);
}

#[test]
fn a_panic_costs_its_request() {
    let mut rig = Rig::new(
        COPY_BY_USER,
        1,
        KeepingHandler::answering(Answer::Failed(0)),
    );
    rig.come(0, WRITE, 8);
    rig.deliver_returned();
    assert_eq!(rig.committed(0), -libc::EIO);
    let stats = rig.counters.stats();
    assert_eq!((stats.panics, stats.dropped), (1, 1));
}

/// Panics over writes of nine sectors; all else is done.
struct NineSectorPanicHandler;

impl Handler for NineSectorPanicHandler {
    fn on_request<P: Port>(&mut self, queue: &mut QueueCx<'_, P>, request: Request) {
        assert!(request.bytes() != 9 * 512, "planted");
        queue.complete(request);
    }
}

#[test]
fn requests_that_come_together_with_one_that_is_panicked_over_are_served() {
    let mut rig = Rig::new(COPY_BY_USER, 4, NineSectorPanicHandler);
    for (tag, sectors) in [8, 9, 16, 9].into_iter().enumerate() {
        rig.describe(tag as u16, WRITE, sectors);
    }
    rig.port.armed.clear();
    let mut ends = (0..4).map(|tag| (command_number(CommandKind::Fetch, tag), sys::RESULT_OK));
    rig.with(|source, port| source.on_armed_completions(port, |_| ends.next()));
    assert_eq!((rig.committed(0), rig.committed(2)), (4096, 8192));
    assert_eq!(rig.port.armed.len(), 2);
    rig.deliver_returned();
    for tag in [1, 3] {
        assert_eq!(rig.committed(tag), -libc::EIO);
    }
    assert_eq!((rig.stats().panics, rig.stats().dropped), (2, 2));
}

#[test]
fn a_panic_of_the_queue_itself_is_not_taken_for_its_handlers() {
    let mut rig = Rig::new(COPY_BY_USER, 1, NineSectorPanicHandler);
    rig.port.armed.clear();
    let mut ends = [(command_number(CommandKind::Fetch, 7), sys::RESULT_OK)].into_iter();
    let told = catch_unwind(AssertUnwindSafe(|| {
        rig.with(|source, port| source.on_armed_completions(port, |_| ends.next()));
    }));
    assert!(told.is_err(), "there is no tag 7");
    assert_eq!(rig.stats().panics, 0);
}

#[test]
fn a_write_is_fetched_before_it_is_handed_out_and_may_have_become_shorter() {
    let mut rig = Rig::new(
        sys::F_NEED_GET_DATA,
        1,
        KeepingHandler::answering(Answer::Done),
    );
    rig.describe(0, WRITE, 16);
    rig.answer(CommandKind::Fetch, 0, sys::RESULT_NEED_GET_DATA);
    assert_eq!(rig.issued(CommandKind::GetData, 0).0, sys::IO_NEED_GET_DATA);
    assert_eq!(rig.port.armed.len(), 1, "nothing else is legal now");
    rig.describe(0, WRITE, 8);
    rig.answer(CommandKind::GetData, 0, sys::RESULT_OK);
    assert_eq!(rig.committed(0), 4096);
    // Longer than was announced: what came is not all, and is not believed.
    rig.describe(0, WRITE, 8);
    rig.answer(CommandKind::Fetch, 0, sys::RESULT_NEED_GET_DATA);
    rig.describe(0, WRITE, 64);
    rig.answer(CommandKind::GetData, 0, sys::RESULT_OK);
    assert_eq!(rig.committed(0), -libc::EIO);
}

#[test]
fn a_refused_fetch_of_data_is_tried_again_with_nothing_else() {
    let mut rig = Rig::new(
        sys::F_NEED_GET_DATA,
        1,
        KeepingHandler::answering(Answer::Done),
    );
    rig.describe(0, WRITE, 8);
    rig.answer(CommandKind::Fetch, 0, sys::RESULT_NEED_GET_DATA);
    rig.answer(CommandKind::GetData, 0, -libc::EFAULT);
    rig.end(OpKind::RetryTimer, 0, 0);
    assert_eq!(rig.issued(CommandKind::GetData, 0).0, sys::IO_NEED_GET_DATA);
    rig.answer(CommandKind::GetData, 0, sys::RESULT_OK);
    assert_eq!(rig.committed(0), 4096);
}

#[test]
fn a_dry_pool_parks_a_write_until_its_buffer_comes() {
    let mut rig = Rig::new(
        sys::F_NEED_GET_DATA,
        2,
        KeepingHandler::answering(Answer::Done),
    );
    rig.port.dry = true;
    rig.describe(0, WRITE, 8);
    rig.answer(CommandKind::Fetch, 0, sys::RESULT_NEED_GET_DATA);
    let (token, len) = rig.port.wanted.remove(0);
    assert_eq!(len, 4096, "exactly what was announced");
    let buf = Completion::Buffer(Buf::allocate(len).unwrap());
    rig.with(|source, port| source.on_completion(port, token, buf));
    rig.answer(CommandKind::GetData, 0, sys::RESULT_OK);
    assert_eq!((rig.committed(0), rig.counters.stats().waits), (4096, 1));
}

#[test]
fn a_refused_read_whose_buffer_is_gone_fails() {
    let keep = KeepingHandler::default();
    let mut rig = Rig::new(sys::F_NEED_GET_DATA, 1, keep.clone());
    rig.come(0, READ, 8);
    let mut request = keep.next();
    request.set_buffer(Buf::allocate(4096).unwrap());
    request.complete();
    rig.deliver_returned();
    assert_eq!(rig.committed(0), 4096);
    rig.answer(CommandKind::Fetch, 0, -libc::EINVAL);
    rig.end(OpKind::RetryTimer, 0, 0);
    rig.end(OpKind::RetryTimer, 0, 0);
    assert_eq!(rig.committed(0), -libc::EIO);
}

#[test]
fn a_copy_buffer_travels_with_its_request_and_keeps_its_room() {
    let keep = KeepingHandler::default();
    let mut rig = Rig::new(0, 1, keep.clone());
    for (sectors, bytes) in [(1, 512), (2048, 1 << 20), (8, 4096)] {
        rig.come(0, READ, sectors);
        let mut request = keep.next();
        assert_eq!(request.buffer_mut().map(|buf| buf.len()), Some(bytes));
        request.complete();
        rig.deliver_returned();
        assert_eq!(rig.committed(0), bytes as i32);
    }
    // One that is lost is replaced, and a buffer of another size is copied from.
    rig.come(0, READ, 8);
    let mut request = keep.next();
    drop(request.take_buffer());
    let mut other = Buf::allocate(4096).unwrap();
    other.fill(7);
    request.set_buffer(other);
    request.complete();
    rig.deliver_returned();
    rig.come(0, READ, 8);
    let mut request = keep.next();
    let buf = request.buffer_mut().unwrap();
    assert!(buf.iter().all(|&byte| byte == 7));
    assert!(buf.capacity() >= 1 << 20);
}
