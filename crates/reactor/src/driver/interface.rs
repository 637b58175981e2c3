//! What a driver of single calls does for the core.
//!
//! A driver knows keys and raw results only. What a result means, which operation is continued, and
//! which source gets the completion is decided above it, once for all drivers.

use std::io;
use std::os::fd::{OwnedFd, RawFd};
use std::time::Duration;

use crate::call::{Call, CallTarget, CommandCall};

/// The kind of a driver.
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
    /// Which kind it is.
    fn kind(&self) -> BackendKind;

    /// Registers a descriptor; true where calls may name it by `slot` from now on.
    fn register(&mut self, slot: u32, fd: RawFd) -> bool;

    /// Unregisters a descriptor. No call on it is in flight.
    fn unregister(&mut self, slot: u32, fd: RawFd, fixed: bool);

    /// Begins a call; its result comes out of `wait` with this key, exactly once.
    ///
    /// # Safety
    ///
    /// The memory that `call` points to stays valid until the result is out, and nothing else
    /// touches it.
    unsafe fn start(&mut self, key: u64, target: CallTarget, call: Call);

    /// Begins a device command: the same as [`Driver::start`], for the hot path.
    ///
    /// # Safety
    ///
    /// As there.
    unsafe fn command(&mut self, key: u64, target: CallTarget, call: CommandCall) {
        // SAFETY: the caller's promise.
        unsafe { self.start(key, target, Call::Command(call)) }
    }

    /// How often the kernel's ring was entered; zero where there is no ring.
    fn enters(&self) -> u64 {
        0
    }

    /// Whether the kernel has taken every call that was started.
    fn all_submitted(&mut self) -> bool;

    /// Makes the table of buffer slots, all empty.
    fn register_buffer_slots(&mut self, count: u16) -> io::Result<()>;

    /// Cancels a call. Its result comes out of `wait` all the same.
    fn cancel(&mut self, key: u64);

    /// Closes a descriptor without waiting for it.
    fn close(&mut self, fd: OwnedFd);

    /// Submits what is queued and appends results; waits for the first one up to `timeout`, without
    /// a limit where it is `None`. Returns early when the wake descriptor was written to.
    fn wait(&mut self, timeout: Option<Duration>, out: &mut Vec<(u64, i32)>) -> io::Result<()>;
}
