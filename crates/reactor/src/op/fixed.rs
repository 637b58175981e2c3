//! Reads and writes between a file and a *buffer slot*: memory that the kernel knows by number,
//! and that this process may have no address for.

use std::io;

use crate::call::{Call, FixedDirection};

/// A transfer in progress.
#[derive(Debug)]
pub(crate) struct FixedTransfer {
    direction: FixedDirection,
    offset: u64,
    slot: u16,
    /// First byte within the slot's memory.
    at: u32,
    len: u32,
    done: u32,
}

impl FixedTransfer {
    pub(crate) fn new(
        direction: FixedDirection,
        offset: u64,
        slot: u16,
        at: u32,
        len: u32,
    ) -> FixedTransfer {
        FixedTransfer {
            direction,
            offset,
            slot,
            at,
            len,
            done: 0,
        }
    }

    pub(crate) fn is_finished(&self) -> bool {
        self.done >= self.len
    }

    pub(crate) fn call(&self) -> Call {
        Call::Fixed {
            direction: self.direction,
            offset: self.offset + u64::from(self.done),
            slot: self.slot,
            at: u64::from(self.at) + u64::from(self.done),
            len: self.len - self.done,
        }
    }

    /// Takes in how many bytes a call moved; the outcome, where there is one.
    pub(crate) fn advance(&mut self, count: usize) -> Option<io::Result<()>> {
        self.done = self.done.saturating_add(count as u32);
        if self.is_finished() {
            return Some(Ok(()));
        }
        let none = match self.direction {
            FixedDirection::Read => io::ErrorKind::UnexpectedEof,
            FixedDirection::Write => io::ErrorKind::WriteZero,
        };
        (count == 0).then(|| Err(none.into()))
    }
}
