//! A handler's view of its queue and of the reactor.

use std::fmt;
use std::io;
use std::os::fd::OwnedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::task::Waker;

use reactor::{Buf, BufferPurpose, Command, FileIndex, Op, OpId, Port, Token};

use super::hw::HwQueue;
use super::request::{Answer, Request};
use super::token::{self, KEY_RELEASE};

/// What a handler works with during a call: its queue, and through it the reactor.
///
/// It is a [`Port`] like the reactor's own, so that code for a port runs on it. Tokens with the highest
/// bit and the highest waker keys are the queue's; using one panics.
pub struct QueueCx<'a, P: Port> {
    pub(super) hw: &'a mut HwQueue,
    pub(super) port: &'a mut P,
}

impl<P: Port> fmt::Debug for QueueCx<'_, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "QueueCx({})", self.hw.queue())
    }
}

impl<P: Port> QueueCx<'_, P> {
    /// The hardware queue's number.
    pub fn queue(&self) -> u16 {
        self.hw.queue()
    }

    /// Its tags.
    pub fn depth(&self) -> u16 {
        self.hw.depth()
    }

    /// The character device, on which requests with a window are read and written.
    pub fn char_device(&self) -> FileIndex {
        self.hw.file()
    }

    /// Answers a request on its queue's thread. Its commit goes to the driver with all others of
    /// this turn.
    #[inline]
    pub fn answer(&mut self, request: Request, answer: Answer) {
        if let Some(returned) = request.answer_on(&self.hw.return_queue, answer) {
            self.hw.on_answered(self.port, returned);
        }
    }

    /// Makes a call that may panic. A panic drops the request of the call, which fails it, and no
    /// other. For handlers that continue several requests in one call.
    pub(crate) fn catch_panic(&mut self, call: impl FnOnce(&mut Self)) {
        if catch_unwind(AssertUnwindSafe(|| call(self))).is_err() {
            self.hw.on_handler_panic();
        }
    }

    /// Counts a plan whose bytes were moved, without a copy or with one.
    pub(crate) fn count_move(&mut self, uncopied: bool) {
        let counters = &self.hw.counters;
        match uncopied {
            true => counters.uncopied.increment(),
            false => counters.copied.increment(),
        }
    }

    /// All of it was done.
    #[inline]
    pub fn complete(&mut self, request: Request) {
        self.answer(request, Answer::Done);
    }

    /// It failed with this errno (positive).
    pub fn fail(&mut self, request: Request, errno: i32) {
        self.answer(request, Answer::Failed(errno));
    }
}

impl<P: Port> Port for QueueCx<'_, P> {
    fn submit(&mut self, token: Token, op: Op) -> OpId {
        self.port.submit(token::check_handler(token), op)
    }

    /// Panics: only the queue issues FETCH and COMMIT_AND_FETCH.
    fn arm(&mut self, number: u32, _: Command) {
        panic!("command {number:#x} is not a handler's to arm");
    }

    fn hold_until_submitted(&mut self, buf: Buf) {
        self.port.hold_until_submitted(buf);
    }

    fn cancel(&mut self, op: OpId) {
        self.port.cancel(op);
    }

    fn request_buffer(&mut self, token: Token, len: usize, need: BufferPurpose) -> Option<Buf> {
        self.port
            .request_buffer(token::check_handler(token), len, need)
    }

    fn reserve_len(&self) -> usize {
        self.port.reserve_len()
    }

    fn register(&mut self, fd: Arc<OwnedFd>) -> FileIndex {
        self.port.register(fd)
    }

    fn close(&mut self, file: FileIndex) {
        self.port.close(file);
    }

    fn enable_buffer_slots(&mut self) -> io::Result<()> {
        self.port.enable_buffer_slots()
    }

    fn take_buffer_slots(&mut self, count: usize) -> Option<Vec<u16>> {
        self.port.take_buffer_slots(count)
    }

    fn release_buffer_slots(&mut self, slots: &[u16]) {
        self.port.release_buffer_slots(slots);
    }

    fn request_turn(&mut self) {
        self.port.request_turn();
    }

    #[inline]
    fn turn_time_ns(&mut self) -> u64 {
        self.port.turn_time_ns()
    }

    fn waker(&self, key: u64) -> Waker {
        assert!(key < KEY_RELEASE, "this key is the queue's own");
        self.port.waker(key)
    }

    /// Does nothing: a handler cannot detach its queue, whose tags would be lost. The queue detaches
    /// with its device or with the reactor.
    fn detach(&mut self) {}
}
