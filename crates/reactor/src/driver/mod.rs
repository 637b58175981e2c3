//! The drivers: what carries out single calls. A ring, or epoll with a few threads.
//!
//! `interface` says what a driver does, and this file dispatches to the one that a reactor has.

mod epoll;
#[cfg(feature = "fake")]
mod fake;
mod interface;
mod uring;
mod workers;

use std::io;
use std::os::fd::{OwnedFd, RawFd};
use std::sync::Arc;
use std::time::Duration;

use crate::call::{Call, CallTarget, CommandCall};

pub(crate) use epoll::Epoll;
#[cfg(feature = "fake")]
pub use fake::CommandDriver;
#[cfg(feature = "fake")]
pub(crate) use fake::FakeDriver;
pub use interface::BackendKind;
pub(crate) use interface::Driver;
pub(crate) use uring::Uring;

/// The driver of a reactor. An enum instead of a trait object, because the calls that every request
/// of a disk makes are inlined through it.
#[repr(u8)]
pub(crate) enum AnyDriver {
    Uring(Uring),
    Epoll(Epoll),
    #[cfg(any(test, feature = "fake"))]
    Fake(Box<dyn Driver>),
}

/// Calls a method of the driver that is there.
macro_rules! of {
    ($driver:expr, |$own:ident| $call:expr) => {
        match $driver {
            AnyDriver::Uring($own) => $call,
            AnyDriver::Epoll($own) => $call,
            #[cfg(any(test, feature = "fake"))]
            AnyDriver::Fake($own) => $call,
        }
    };
}

impl Driver for AnyDriver {
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
    unsafe fn start(&mut self, key: u64, target: CallTarget, call: Call) {
        // SAFETY: the caller's promise.
        of!(self, |own| unsafe { own.start(key, target, call) });
    }

    #[inline(always)]
    unsafe fn command(&mut self, key: u64, target: CallTarget, call: CommandCall) {
        match self {
            // SAFETY: the caller's promise.
            AnyDriver::Uring(own) => unsafe { own.command(key, target, call) },
            // Out of line, so that the inlined path builds its entry in the ring's memory only.
            // SAFETY: the caller's promise.
            other => unsafe { other.command_without_ring(key, target, call) },
        }
    }

    fn enters(&self) -> u64 {
        of!(self, |own| own.enters())
    }

    fn all_submitted(&mut self) -> bool {
        of!(self, |own| own.all_submitted())
    }

    fn register_buffer_slots(&mut self, count: u16) -> io::Result<()> {
        of!(self, |own| own.register_buffer_slots(count))
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

impl AnyDriver {
    /// Begins a command where there is no ring.
    ///
    /// # Safety
    ///
    /// That of [`Driver::start`].
    #[cold]
    #[inline(never)]
    unsafe fn command_without_ring(&mut self, key: u64, target: CallTarget, call: CommandCall) {
        // SAFETY: the caller's promise.
        of!(self, |own| unsafe { own.command(key, target, call) });
    }
}

/// A new descriptor by which other threads end a driver's wait.
pub(crate) fn wake_fd() -> io::Result<Arc<OwnedFd>> {
    let flags = rustix::event::EventfdFlags::CLOEXEC;
    Ok(Arc::new(rustix::event::eventfd(0, flags)?))
}
