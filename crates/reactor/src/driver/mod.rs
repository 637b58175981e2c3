//! The two ways to have single calls carried out: a ring, or epoll with a few threads.
//!
//! A driver knows keys and raw results only. What a result means, which operation is continued,
//! and who is told, is decided above it, once for both.

#[cfg(feature = "fake")]
mod double;
mod epoll;
mod uring;
mod workers;

use std::io;
use std::os::fd::{OwnedFd, RawFd};
use std::sync::Arc;
use std::time::Duration;

use crate::files::Target;
use crate::op::{Command, Way};

#[cfg(feature = "fake")]
pub use double::CommandDriver;
#[cfg(feature = "fake")]
pub(crate) use double::Double;
pub(crate) use epoll::Epoll;
pub(crate) use uring::Uring;

/// One call to the kernel, with raw memory.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Call {
    Accept,
    Recv {
        to: *mut u8,
        len: usize,
        all: bool,
    },
    Send {
        msg: *const libc::msghdr,
    },
    Read {
        to: *mut u8,
        len: usize,
        offset: u64,
    },
    Write {
        from: *const u8,
        len: usize,
        offset: u64,
    },
    /// Between a file and the memory of a buffer slot.
    Fixed {
        way: Way,
        offset: u64,
        slot: u16,
        at: u64,
        len: u32,
    },
    /// A command of the file's driver.
    Command(CommandCall),
    Sync {
        data_only: bool,
    },
    Poll {
        events: u32,
    },
}

/// A command of a file's driver.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CommandCall {
    pub(crate) opcode: u32,
    pub(crate) payload: [u8; Command::PAYLOAD_BYTES],
    pub(crate) sqe_addr: Option<u64>,
}

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
pub(crate) trait Drive {
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
    unsafe fn start(&mut self, key: u64, target: Target, call: Call);

    /// Begins a driver command: [`Drive::start`] by a shorter way.
    ///
    /// # Safety
    ///
    /// As there.
    unsafe fn command(&mut self, key: u64, target: Target, call: CommandCall) {
        // SAFETY: the caller's promise.
        unsafe { self.start(key, target, Call::Command(call)) }
    }

    /// How often the kernel's ring was entered; none where there is no ring.
    fn enters(&self) -> u64 {
        0
    }

    /// Whether the kernel has taken every call that was begun.
    fn all_taken(&mut self) -> bool;

    /// Makes the table of buffer slots, all empty.
    fn register_slots(&mut self, count: u16) -> io::Result<()>;

    /// Asks for the early end of a call. Its result comes out as ever.
    fn cancel(&mut self, key: u64);

    /// Closes a descriptor without waiting for it.
    fn close(&mut self, fd: OwnedFd);

    /// Begins what is queued and appends results; waits for the first one up to `timeout`, for
    /// ever where it is `None`. Returns early when the wake descriptor was written to.
    fn wait(&mut self, timeout: Option<Duration>, out: &mut Vec<(u64, i32)>) -> io::Result<()>;
}

/// The driver of a reactor. No trait object: what every request of a disk begins with is worth code
/// that knows where it goes, and a tag that is read as it is.
#[repr(u8)]
pub(crate) enum Driver {
    Uring(Uring),
    Epoll(Epoll),
    #[cfg(any(test, feature = "fake"))]
    Double(Box<dyn Drive>),
}

/// Calls the driver that it is.
macro_rules! of {
    ($driver:expr, |$own:ident| $call:expr) => {
        match $driver {
            Driver::Uring($own) => $call,
            Driver::Epoll($own) => $call,
            #[cfg(any(test, feature = "fake"))]
            Driver::Double($own) => $call,
        }
    };
}

impl Drive for Driver {
    fn kind(&self) -> BackendKind {
        of!(self, |own| own.kind())
    }

    fn register(&mut self, slot: u32, fd: RawFd) -> bool {
        of!(self, |own| own.register(slot, fd))
    }

    fn unregister(&mut self, slot: u32, fd: RawFd, fixed: bool) {
        of!(self, |own| own.unregister(slot, fd, fixed));
    }

    #[inline]
    unsafe fn start(&mut self, key: u64, target: Target, call: Call) {
        // SAFETY: the caller's promise.
        of!(self, |own| unsafe { own.start(key, target, call) });
    }

    #[inline(always)]
    unsafe fn command(&mut self, key: u64, target: Target, call: CommandCall) {
        match self {
            // SAFETY: the caller's promise.
            Driver::Uring(own) => unsafe { own.command(key, target, call) },
            // A copy of its own, so that what a ring is given is put together in the ring alone.
            // SAFETY: the caller's promise.
            other => unsafe { other.command_elsewhere(key, target, call) },
        }
    }

    fn enters(&self) -> u64 {
        of!(self, |own| own.enters())
    }

    fn all_taken(&mut self) -> bool {
        of!(self, |own| own.all_taken())
    }

    fn register_slots(&mut self, count: u16) -> io::Result<()> {
        of!(self, |own| own.register_slots(count))
    }

    fn cancel(&mut self, key: u64) {
        of!(self, |own| own.cancel(key));
    }

    fn close(&mut self, fd: OwnedFd) {
        of!(self, |own| own.close(fd));
    }

    fn wait(&mut self, timeout: Option<Duration>, out: &mut Vec<(u64, i32)>) -> io::Result<()> {
        of!(self, |own| own.wait(timeout, out))
    }
}

impl Driver {
    /// A command where there is no ring.
    ///
    /// # Safety
    ///
    /// That of [`Drive::start`].
    #[cold]
    #[inline(never)]
    unsafe fn command_elsewhere(&mut self, key: u64, target: Target, call: CommandCall) {
        // SAFETY: the caller's promise.
        of!(self, |own| unsafe { own.command(key, target, call) });
    }
}

/// The descriptor by which other threads end a wait.
pub(crate) fn wake_fd() -> io::Result<Arc<OwnedFd>> {
    let flags = rustix::event::EventfdFlags::CLOEXEC;
    Ok(Arc::new(rustix::event::eventfd(0, flags)?))
}
