//! What a driver of single calls does for the core.
//!
//! A driver knows keys and raw results only. What a result means, which operation is continued, and
//! which source gets the completion is decided above it, once for all drivers.

use std::io;
use std::os::fd::{OwnedFd, RawFd};
use std::time::Duration;

use crate::call::{Call, CallTarget, CommandCall};

/// What carries out calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum BackendKind {
    /// One io_uring per reactor.
    IoUring,
    /// epoll for sockets and a small thread pool for files.
    Epoll,
}

/// A driver of single calls.
pub(crate) trait Driver {
    fn kind(&self) -> BackendKind;

    /// Makes a descriptor known; whether it may be named by `slot` from now on.
    fn register(&mut self, slot: u32, fd: RawFd) -> bool;

    /// Forgets it. No call on it is in flight.
    fn unregister(&mut self, slot: u32, fd: RawFd, fixed: bool);

    /// Begins a call; its result comes out of `wait` with this key, exactly once.
    ///
    /// # Safety
    ///
    /// The memory that `call` points to stays valid, and is touched by nobody else, until the
    /// result is out.
    unsafe fn start(&mut self, key: u64, target: CallTarget, call: Call);

    /// Begins a driver command: [`Driver::start`] by a shorter way.
    ///
    /// # Safety
    ///
    /// As there.
    unsafe fn command(&mut self, key: u64, target: CallTarget, call: CommandCall) {
        // SAFETY: the caller's promise.
        unsafe { self.start(key, target, Call::Command(call)) }
    }

    /// How often the kernel's ring was entered; none where there is no ring.
    fn enters(&self) -> u64 {
        0
    }

    /// Whether the kernel has taken every call that was begun.
    fn all_submitted(&mut self) -> bool;

    /// Makes the table of buffer slots, all empty.
    fn register_buffer_slots(&mut self, count: u16) -> io::Result<()>;

    /// Asks for the early end of a call. Its result comes out as ever.
    fn cancel(&mut self, key: u64);

    /// Closes a descriptor without waiting for it.
    fn close(&mut self, fd: OwnedFd);

    /// Begins what is queued and appends results; waits for the first one up to `timeout`, for
    /// ever where it is `None`. Returns early when the wake descriptor was written to.
    fn wait(&mut self, timeout: Option<Duration>, out: &mut Vec<(u64, i32)>) -> io::Result<()>;
}
