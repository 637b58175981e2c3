//! Device commands (`IORING_OP_URING_CMD`): requests to the kernel driver behind a file beyond reading
//! and writing, with its raw result.
//!
//! Nothing is interpreted here and nothing is repeated: the source knows what an errno of its device
//! means. A command owns no memory: what it names is its source's, which promises that when it makes
//! one.

use crate::call::{COMMAND_PAYLOAD_BYTES, CommandCall};
use crate::ids::FileIndex;

/// A device command on a registered file.
#[derive(Debug)]
pub struct Command {
    file: FileIndex,
    opcode: u32,
    payload: [u8; Command::PAYLOAD_BYTES],
    sqe_addr: Option<u64>,
}

impl Command {
    /// Bytes of a command's payload: the space of an ordinary submission entry.
    pub const PAYLOAD_BYTES: usize = COMMAND_PAYLOAD_BYTES;

    /// A command for the device behind `file`, with the device's own opcode and payload.
    ///
    /// # Safety
    ///
    /// Where the device's driver takes something in the payload or in [`Command::sqe_addr`] for an
    /// address or for another resource of this process, what it does there must be sound until the
    /// command has ended: the memory stays valid, nothing else touches it, and it is as large as the
    /// driver believes.
    ///
    /// For an armed command ([`crate::Port::arm`]) that means memory which its source hands over when
    /// the ring is closed under it ([`crate::Source::release_armed_memory`]), and a driver which
    /// touches it only in the thread that submitted the command: the kernel goes on cancelling for a
    /// moment after that thread has ended. Memory that the driver reads only while it takes the
    /// command may be freed after that ([`crate::Port::hold_until_submitted`]).
    pub unsafe fn new(
        file: FileIndex,
        opcode: u32,
        payload: [u8; Command::PAYLOAD_BYTES],
    ) -> Command {
        Command {
            file,
            opcode,
            payload,
            sqe_addr: None,
        }
    }

    /// The address field of the submission entry, which some devices give a meaning of their own.
    #[must_use]
    pub fn sqe_addr(mut self, value: u64) -> Command {
        self.sqe_addr = Some(value);
        self
    }

    /// The file it goes to.
    pub fn file(&self) -> FileIndex {
        self.file
    }

    /// The device's opcode.
    pub fn opcode(&self) -> u32 {
        self.opcode
    }

    /// The payload.
    pub fn payload(&self) -> &[u8; Command::PAYLOAD_BYTES] {
        &self.payload
    }

    /// The address field of the submission entry, where one was set.
    pub fn addr(&self) -> Option<u64> {
        self.sqe_addr
    }

    /// A copy for a rare path: the original is then never needed in memory, and stays in registers.
    #[inline(always)]
    pub(crate) fn duplicate(&self) -> Command {
        Command { ..*self }
    }

    #[inline]
    pub(crate) fn call(&self) -> CommandCall {
        CommandCall {
            opcode: self.opcode,
            payload: self.payload,
            sqe_addr: self.sqe_addr,
        }
    }
}
