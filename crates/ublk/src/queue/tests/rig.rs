//! A queue on a port that only records, with its driver's memory, and a handler that keeps requests.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::sync::{Arc, Mutex};
use std::task::Waker;

use reactor::op::Command;
use reactor::{Buf, BufferPurpose, Completion, FileIndex, Op, OpId, Port, Token};
use zerocopy::{FromBytes, IntoBytes};

use super::super::token::{CommandKind, KEY_RETURN_QUEUE, OpKind, command_number, queue_token};
use super::super::*;
use crate::sys::{self, IoCommand, IoDescriptor};

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
    pub(super) detached: bool,
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
pub(super) struct RecordingObserver(pub(super) Mutex<Vec<String>>);

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
    pub(super) source: Option<QueueSource<H>>,
    pub(crate) port: RecordingPort,
    pub(super) memory: File,
    pub(super) observer: Arc<RecordingObserver>,
    pub(super) counters: Arc<Counters>,
}

impl<H: Handler> Rig<H> {
    pub(crate) fn new(flags: u64, depth: u16, handler: H) -> Rig<H> {
        Rig::with_share(flags, (depth, Share::WHOLE), handler)
    }

    pub(super) fn with_share(flags: u64, tags: (u16, Share), handler: H) -> Rig<H> {
        Rig::with_pool(flags, tags, None, handler)
    }

    pub(super) fn with_pool(
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

    pub(super) fn take(&mut self, token: Token) -> Op {
        let at = self.port.ops.iter().position(|(own, _)| *own == token);
        let at = at.unwrap_or_else(|| panic!("nothing was sent as {token:?}"));
        self.port.ops.remove(at).1
    }

    /// The command that a tag has with the driver.
    pub(super) fn issued(&self, kind: CommandKind, tag: u16) -> (u32, i32) {
        let number = command_number(kind, tag);
        let sent = self.port.armed.iter().find(|(own, _)| *own == number);
        let (_, command) = sent.unwrap_or_else(|| panic!("no {kind:?} of {tag}"));
        (command.opcode(), result_of(command))
    }

    /// The driver answers a tag's command.
    pub(super) fn answer(&mut self, kind: CommandKind, tag: u16, raw: i32) {
        let number = command_number(kind, tag);
        let at = self.port.armed.iter().position(|(own, _)| *own == number);
        let at = at.unwrap_or_else(|| panic!("no {kind:?} of {tag}"));
        self.port.armed.remove(at);
        let mut one = Some((number, raw));
        self.with(|source, port| source.on_armed_completions(port, |_| one.take()));
    }

    pub(super) fn end(&mut self, kind: OpKind, number: u16, raw: i32) {
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

    pub(crate) fn is_detached(&self) -> bool {
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
pub(super) struct KeepingHandler {
    at_once: Option<Answer>,
    pub(super) kept: Arc<Mutex<Vec<Request>>>,
}

impl KeepingHandler {
    pub(super) fn answering(answer: Answer) -> KeepingHandler {
        KeepingHandler {
            at_once: Some(answer),
            ..KeepingHandler::default()
        }
    }

    pub(super) fn next(&self) -> Request {
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
