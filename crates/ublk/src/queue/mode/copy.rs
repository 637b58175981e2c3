//! Copy: the driver copies between a request's pages and a buffer of its tag.
//!
//! The buffer is with the driver while the tag is armed: it is named by the fetch or commit and
//! held by that command, because the driver may write to it at any time. It travels with the
//! request and comes back with its answer. Each is as large as the largest request, but memory
//! that was never touched costs nothing (R5 as far as this mode can keep it).

use reactor::Buf;
use reactor::op::{Command, Hold};

use crate::request::Data;
use crate::sys;

pub(in crate::queue) struct CopyBuffers {
    bytes: usize,
    /// By tag: buffers of commands that were refused, or whose request has no data.
    idle: Vec<Option<Buf>>,
}

impl CopyBuffers {
    pub(super) fn new(depth: u16, io_bytes_max: u32) -> CopyBuffers {
        CopyBuffers {
            bytes: io_bytes_max as usize,
            idle: (0..depth).map(|_| None).collect(),
        }
    }

    /// Gives a command the tag's buffer, with the first `read` bytes of what a read brought.
    pub(super) fn dress(
        &mut self,
        plain: Command,
        tag: u16,
        buf: Option<Buf>,
        read: usize,
    ) -> Option<Command> {
        let own = self.idle[usize::from(tag)].take();
        let buf = match buf {
            Some(buf) if buf.room() >= self.bytes => buf,
            // A handler that brought another buffer, or none, costs a copy.
            other => {
                let mut own = match own {
                    Some(own) => own,
                    None => Buf::allocate(self.bytes)?,
                };
                if let Some(other) = other {
                    own.show(read);
                    own.copy_from_slice(&other[..read]);
                }
                own
            }
        };
        // The driver copies up to the largest request: the buffer has that room (checked above).
        Some(plain.buffer(buf, sys::IO_COMMAND_ADDR, Hold::UntilDone))
    }

    pub(super) fn keep(&mut self, tag: u16, buf: Buf) {
        self.idle[usize::from(tag)] = Some(buf);
    }

    pub(super) fn arrived(&mut self, tag: u16, bytes: u32, buf: Option<Buf>) -> Data {
        let own = self.idle[usize::from(tag)].take();
        let Some(mut buf) = buf.or(own) else {
            return Data::None;
        };
        if bytes == 0 {
            self.keep(tag, buf);
            return Data::None;
        }
        buf.show(bytes as usize);
        Data::Buffer(buf)
    }
}
