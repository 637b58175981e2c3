//! A single call to the kernel, with raw memory: what an operation asks of a driver.
//!
//! Operations turn themselves into calls and drivers carry them out; both are built on this file,
//! and neither knows the other.

use std::os::fd::RawFd;

/// Bytes of a device command's payload: the space of an ordinary submission entry.
pub(crate) const COMMAND_PAYLOAD_BYTES: usize = 16;

/// Between a file and a buffer slot: which way the bytes go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FixedDirection {
    /// From the file into the slot.
    Read,
    /// From the slot to the file.
    Write,
}

/// One call to the kernel.
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
        direction: FixedDirection,
        offset: u64,
        slot: u16,
        at: u64,
        len: u32,
    },
    /// A command for the device behind the file.
    Command(CommandCall),
    Sync {
        data_only: bool,
    },
    Poll {
        events: u32,
    },
}

/// A command for the device behind a file.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CommandCall {
    pub(crate) opcode: u32,
    pub(crate) payload: [u8; COMMAND_PAYLOAD_BYTES],
    pub(crate) sqe_addr: Option<u64>,
}

/// The descriptor a call goes to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CallTarget {
    pub(crate) fd: RawFd,
    /// Its slot in the ring's table of files, where it has one.
    pub(crate) fixed: Option<u32>,
}
