//! The interface between this library and a driver: the kernel's, or a fake one in tests.
//!
//! A port submits commands and reports the completion of each once. It must not interpret commands,
//! retry them, or interpret errnos: everything above it is the same for both drivers.

use std::fmt;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Instant;

use crate::sys::ControlCommand;

/// A command and its argument.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Command {
    /// One of the command numbers of [`crate::sys`].
    pub opcode: u32,
    /// Its 32 bytes. The port sets `addr` and `len` from `argument`.
    pub header: ControlCommand,
    /// The memory that the driver reads and writes.
    pub argument: Argument,
}

/// The memory that a command's address names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Argument {
    /// Nothing.
    None,
    /// Bytes that the driver reads, writes, or both; the reply returns them.
    Bytes(Vec<u8>),
}

impl Argument {
    /// The bytes; none where there is no argument.
    pub fn bytes(&self) -> &[u8] {
        match self {
            Argument::None => &[],
            Argument::Bytes(bytes) => bytes,
        }
    }
}

/// The completion of a command that succeeded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reply {
    /// The result, not negative.
    pub result: i32,
    /// The argument, with what the driver wrote there.
    pub argument: Argument,
}

/// The completion of a command that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// The driver's errno, positive. A command that was cancelled through [`ControlPort::cancel`]
    /// has `ECANCELED`, or `EINTR` if it was being executed.
    Errno(i32),
    /// It was cancelled at its deadline, and has completed.
    TimedOut,
    /// It was cancelled at its deadline, and has not completed. Its memory is left to the driver.
    Stuck,
    /// The port has ended.
    Closed,
}

/// Called once, when a command has completed. On the port's thread: it must not block.
pub type OnCompletion = Box<dyn FnOnce(Result<Reply, Failure>) + Send>;

/// Identifies a submitted command.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Ticket(pub u64);

/// A driver's control device.
pub trait ControlPort: Send + Sync + fmt::Debug {
    /// Submits a command and returns without waiting. `on_completion` is called once, from any thread
    /// and perhaps before this returns. Commands do not wait for each other.
    fn submit(&self, command: Command, deadline: Instant, on_completion: OnCompletion) -> Ticket;

    /// Cancels a command, whose callback reports the outcome. No effect on a command that has
    /// completed.
    fn cancel(&self, ticket: Ticket);

    /// Opens a device's character device. The last holder closes it.
    fn open_char(&self, device: u32) -> io::Result<Arc<OwnedFd>>;

    /// The numbers of all devices that exist, in order.
    fn devices(&self) -> io::Result<Vec<u32>>;
}
