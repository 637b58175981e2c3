//! What a source asks of its reactor, as a trait: so that a source can run without one, on a
//! double that decides when and in which order completions come.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::task::Waker;

use crate::buf::Buf;
use crate::clock::monotonic_ns;
use crate::core::Cx;
use crate::ids::{FileIndex, OpId, Token};
use crate::op::{Command, Op};
use crate::pool::BufferPurpose;

/// A reactor as one of its sources sees it; [`Cx`] is the real one, and its methods say what each
/// of these means.
pub trait Port {
    /// Begins an operation. It ends with exactly one completion, also where it is refused.
    fn submit(&mut self, token: Token, op: Op) -> OpId;

    /// Begins a command that ends only when its device ends it, or with the ring. `number` is the
    /// source's own name for it.
    fn arm(&mut self, number: u32, command: Command);

    /// Keeps a buffer until the kernel has taken all that was submitted up to now: for devices that
    /// read a command's memory while they take it.
    fn hold_until_submitted(&mut self, buf: Buf);

    /// Cancels an operation; its completion comes all the same.
    fn cancel(&mut self, op: OpId);

    /// A buffer of `len` bytes now, or later as [`crate::Completion::Buffer`].
    fn request_buffer(&mut self, token: Token, len: usize, need: BufferPurpose) -> Option<Buf>;

    /// The largest buffer that [`BufferPurpose::Progress`] is certain to get, in bytes.
    fn reserve_len(&self) -> usize;

    /// Makes a descriptor usable here until the source closes it or is gone.
    fn register(&mut self, fd: Arc<OwnedFd>) -> FileIndex;

    /// Cancels what is in flight on a descriptor and closes it after that.
    fn close(&mut self, file: FileIndex);

    /// Makes the table of buffer slots, once; an error where there can be none.
    fn enable_buffer_slots(&mut self) -> io::Result<()>;

    /// `count` buffer slots or none. They come back when the source is gone at the latest.
    fn take_buffer_slots(&mut self, count: usize) -> Option<Vec<u16>>;

    /// Gives buffer slots back. Nothing of the kernel's may be in them.
    fn release_buffer_slots(&mut self, slots: &[u16]);

    /// Asks for a call of the source's `on_turn` at the end of this turn.
    fn request_turn(&mut self);

    /// The time of this turn, as [`monotonic_ns`](crate::monotonic_ns) counts it. A reactor reads the
    /// clock for it once a turn, when it is first asked.
    fn turn_time_ns(&mut self) -> u64 {
        monotonic_ns()
    }

    /// A waker that calls the source's `on_wake` with `key`, from any thread.
    fn waker(&self, key: u64) -> Waker;

    /// Leaves the reactor at the end of this turn.
    fn detach(&mut self);
}

impl Port for Cx<'_> {
    fn submit(&mut self, token: Token, op: Op) -> OpId {
        Cx::submit(self, token, op)
    }

    #[inline(always)]
    fn arm(&mut self, number: u32, command: Command) {
        Cx::arm(self, number, command);
    }

    fn hold_until_submitted(&mut self, buf: Buf) {
        self.core.hold_until_submitted(buf);
    }

    fn cancel(&mut self, op: OpId) {
        self.core.cancel(op);
    }

    fn request_buffer(&mut self, token: Token, len: usize, need: BufferPurpose) -> Option<Buf> {
        Cx::request_buffer(self, token, len, need)
    }

    fn reserve_len(&self) -> usize {
        self.core.pool().reserve_len()
    }

    fn register(&mut self, fd: Arc<OwnedFd>) -> FileIndex {
        Cx::register(self, fd)
    }

    fn close(&mut self, file: FileIndex) {
        self.core.close(file);
    }

    fn enable_buffer_slots(&mut self) -> io::Result<()> {
        self.core.enable_buffer_slots()
    }

    fn take_buffer_slots(&mut self, count: usize) -> Option<Vec<u16>> {
        Cx::take_buffer_slots(self, count)
    }

    fn release_buffer_slots(&mut self, slots: &[u16]) {
        self.core.release_buffer_slots(slots);
    }

    fn request_turn(&mut self) {
        Cx::request_turn(self);
    }

    #[inline]
    fn turn_time_ns(&mut self) -> u64 {
        self.core.turn_time_ns()
    }

    fn waker(&self, key: u64) -> Waker {
        Cx::waker(self, key)
    }

    fn detach(&mut self) {
        Cx::detach(self);
    }
}
