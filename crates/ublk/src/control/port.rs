//! The seam between this library and a driver: the kernel's, or the one in the test support.
//!
//! A port begins commands and tells once how each ended; it knows no meaning of any command, no
//! retry and no errno's remedy. Everything above it is the same for both drivers.

use std::fmt;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Instant;

use crate::sys::ControlCommand;

/// A command and the memory that it names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Command {
    /// One of the command numbers of [`crate::sys`].
    pub opcode: u32,
    /// Its 32 bytes; `addr` and `len` are the port's to fill, from `argument`.
    pub header: ControlCommand,
    /// What the driver reads and writes. Empty: the command has none.
    pub argument: Argument,
}

/// What a command's address names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Argument {
    /// Nothing.
    None,
    /// Bytes that the driver reads, writes, or both; they come back with the answer.
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

/// How a command ended well.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// Its result, not negative.
    pub result: i32,
    /// Its argument, with what the driver wrote there.
    pub argument: Argument,
}

/// How a command ended otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// The driver's errno, positive. A command that was cancelled through [`ControlPort::cancel`]
    /// ends with `ECANCELED`, or with `EINTR` where it was being executed.
    Errno(i32),
    /// Its deadline came; it was cancelled and has ended.
    Late,
    /// Its deadline came, and cancelling did not end it. Its memory is left to the driver.
    Stuck,
    /// The port has ended.
    Closed,
}

/// Called once, when a command has ended. On the port's thread: it must not wait.
pub type Done = Box<dyn FnOnce(Result<Answer, Failure>) + Send>;

/// Names a command that was begun.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Ticket(pub u64);

/// A driver's control device.
pub trait ControlPort: Send + Sync + fmt::Debug {
    /// Begins a command and returns without waiting. `done` is called once, from any thread and
    /// perhaps before this returns. Commands do not wait for each other.
    fn submit(&self, command: Command, deadline: Instant, done: Done) -> Ticket;

    /// Asks that a command end now. Its `done` tells what became of it. Nothing for a command
    /// that has ended.
    fn cancel(&self, ticket: Ticket);

    /// Opens a device's character device. The last holder closes it.
    fn open_char(&self, device: u32) -> io::Result<Arc<OwnedFd>>;

    /// The numbers of all devices there are, in order.
    fn devices(&self) -> io::Result<Vec<u32>>;
}
