//! What goes to the driver and comes from it, in terms that all data modes share: how a command is
//! built, what a commit carries, and where a request's bytes are. It holds no state.

use reactor::{Buf, FileIndex, op::Command};

use crate::queue::request::Data;
use crate::sys::IoCommand;

/// Builds a queue's commands for the driver.
#[derive(Clone, Copy, Debug)]
pub(in crate::queue) struct CommandBuilder {
    pub(in crate::queue) file: FileIndex,
    pub(in crate::queue) queue: u16,
}

impl CommandBuilder {
    /// A command. `addr` is zero, the number of a buffer slot, or the address of a buffer, which
    /// its mode keeps until the command has completed, or until the driver has taken the command
    /// where the driver does not read the buffer later.
    #[inline]
    pub(in crate::queue) fn build(self, opcode: u32, tag: u16, result: i32, addr: u64) -> Command {
        let command = IoCommand {
            queue: self.queue,
            tag,
            result,
            addr,
        };
        let payload: [u8; Command::PAYLOAD_BYTES] = zerocopy::transmute!(command);
        // SAFETY: `addr` is no address, or that of a buffer which is as large as the driver believes.
        // Its mode does not access the buffer and keeps it until the command has completed
        // (`GetData::copying`, `TagBuffer::buf`) or was taken (`Port::hold_until_submitted`), and hands it over in
        // `Mode::take_driver_buffers`.
        unsafe { Command::new(self.file, opcode, payload) }
    }
}

/// A result for COMMIT_AND_FETCH.
#[derive(Debug)]
pub(in crate::queue) struct Commit {
    pub(in crate::queue) tag: u16,
    pub(in crate::queue) result: i32,
    pub(in crate::queue) op: u8,
    pub(in crate::queue) buf: Option<Buf>,
}

/// How the server gets at the bytes of a request that the driver handed over.
pub(in crate::queue) enum DataAccess {
    /// At once.
    Ready(Data),
    /// Its pages must be registered in a buffer slot first.
    NeedsSlot,
    /// There is no way to its bytes.
    Unreachable,
}
