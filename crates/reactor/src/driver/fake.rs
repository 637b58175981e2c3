//! A driver for tests of device servers: commands go to a double of the kernel's device driver,
//! everything else to the fallback driver. It polls for completed commands every millisecond.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd, RawFd};
use std::time::Duration;

use super::epoll::Epoll;
use super::interface::{BackendKind, Driver};
use crate::call::{COMMAND_PAYLOAD_BYTES, Call, CallTarget};

const POLL_INTERVAL: Duration = Duration::from_millis(1);

/// A double of a device driver that takes commands from one ring. Dropped when the ring is closed.
pub trait CommandDriver {
    /// Begins a command on a file.
    ///
    /// # Safety
    ///
    /// Memory that the command names stays valid until the command has ended or this is dropped, and
    /// nothing else touches it.
    unsafe fn submit(
        &mut self,
        key: u64,
        file: BorrowedFd<'_>,
        opcode: u32,
        payload: [u8; COMMAND_PAYLOAD_BYTES],
        sqe_addr: Option<u64>,
    );

    /// Appends the key and the result of each command that has ended.
    fn take_completions(&mut self, out: &mut Vec<(u64, i32)>);
}

pub(crate) struct FakeDriver {
    // Dropped before the files that its commands name.
    commands: Box<dyn CommandDriver>,
    rest: Epoll,
}

impl FakeDriver {
    pub(crate) fn new(commands: Box<dyn CommandDriver>, rest: Epoll) -> FakeDriver {
        FakeDriver { commands, rest }
    }
}

impl Driver for FakeDriver {
    fn kind(&self) -> BackendKind {
        self.rest.kind()
    }

    fn register(&mut self, slot: u32, fd: RawFd) -> bool {
        self.rest.register(slot, fd)
    }

    fn unregister(&mut self, slot: u32, fd: RawFd, fixed: bool) {
        self.rest.unregister(slot, fd, fixed);
    }

    unsafe fn start(&mut self, key: u64, target: CallTarget, call: Call) {
        let Call::Command(command) = call else {
            // SAFETY: the caller's promise is the same.
            return unsafe { self.rest.start(key, target, call) };
        };
        // SAFETY: the core keeps the descriptor open while a call is in flight.
        let file = unsafe { BorrowedFd::borrow_raw(target.fd) };
        // SAFETY: the caller's promise, until the result is out or the ring is closed.
        unsafe {
            self.commands
                .submit(key, file, command.opcode, command.payload, command.sqe_addr)
        };
    }

    fn all_submitted(&mut self) -> bool {
        self.rest.all_submitted()
    }

    fn register_buffer_slots(&mut self, count: u16) -> io::Result<()> {
        self.rest.register_buffer_slots(count)
    }

    fn cancel(&mut self, key: u64) {
        self.rest.cancel(key);
    }

    fn close(&mut self, fd: OwnedFd) {
        self.rest.close(fd);
    }

    fn wait(&mut self, timeout: Option<Duration>, out: &mut Vec<(u64, i32)>) -> io::Result<()> {
        let timeout = timeout.map_or(POLL_INTERVAL, |timeout| timeout.min(POLL_INTERVAL));
        let waited = self.rest.wait(Some(timeout), out);
        self.commands.take_completions(out);
        waited
    }
}
