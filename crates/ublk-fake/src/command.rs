//! A request command on its way: what a server submitted, and how it was answered.
//!
//! The two types stand below the files that judge commands (`tags`) and move bytes (`data`). Nothing
//! here decides.

use crate::device::RingId;
use ublk::sys::IoCommand;

/// A command that a server submitted for one tag.
#[derive(Clone, Copy, Debug)]
pub(super) struct SubmittedCommand {
    pub(super) ring: RingId,
    pub(super) device: u32,
    pub(super) opcode: u32,
    /// The submission entry's address: the slot, with `AUTO_BUF_REG`.
    pub(super) sqe_addr: u64,
    pub(super) command: IoCommand,
    /// The server's key of it.
    pub(super) key: u64,
}

/// How a command was answered: held until there is a request, or completed with a result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CommandOutcome {
    Pending,
    Done(i32),
}
