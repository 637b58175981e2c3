//! Reads and writes between a file and a *buffer slot*: memory that the kernel knows by number,
//! and that this process may have no address for.

use std::io;

use crate::driver::Call;

/// Which way the bytes go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// From the file into the slot.
    In,
    /// From the slot to the file.
    Out,
}

/// A transfer under way.
#[derive(Debug)]
pub(crate) struct Fixed {
    way: Way,
    offset: u64,
    slot: u16,
    /// First byte within the slot's memory.
    at: u32,
    len: u32,
    done: u32,
}

impl Fixed {
    pub(crate) fn new(way: Way, offset: u64, slot: u16, at: u32, len: u32) -> Fixed {
        Fixed {
            way,
            offset,
            slot,
            at,
            len,
            done: 0,
        }
    }

    pub(crate) fn empty(&self) -> bool {
        self.done >= self.len
    }

    pub(crate) fn call(&self) -> Call {
        Call::Fixed {
            way: self.way,
            offset: self.offset + u64::from(self.done),
            slot: self.slot,
            at: u64::from(self.at) + u64::from(self.done),
            len: self.len - self.done,
        }
    }

    /// Takes a count in; the end, where it is reached.
    pub(crate) fn moved(&mut self, count: usize) -> Option<io::Result<()>> {
        self.done = self.done.saturating_add(count as u32);
        if self.empty() {
            return Some(Ok(()));
        }
        let none = match self.way {
            Way::In => io::ErrorKind::UnexpectedEof,
            Way::Out => io::ErrorKind::WriteZero,
        };
        (count == 0).then(|| Err(none.into()))
    }
}
