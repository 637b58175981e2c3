//! What the data modes differ in: what a FETCH or COMMIT_AND_FETCH carries, and where the bytes of
//! a request are when the driver hands it over. Each mode's state is in its own file.

pub(super) mod copy;
pub(super) mod driver;
pub(super) mod get_data;
pub(super) mod zero_copy;

use reactor::{Buf, Port, op::Command};

use crate::queue::tags::Share;
use crate::spec::DataMode;
use crate::sys;

use copy::CopyBuffers;
use driver::{CommandBuilder, Commit};
use get_data::{GetData, Pool};
use zero_copy::ZeroCopy;

/// What a mode's state is made from.
pub(super) struct ModeParts {
    pub(super) flags: u64,
    pub(super) depth: u16,
    pub(super) share: Share,
    pub(super) io_bytes_max: u32,
    pub(super) slots_max: u16,
    pub(super) pool: Option<Box<dyn Pool>>,
}

/// A data mode with its state. `repr(u8)` gives it a discriminant of its own: one that is hidden in
/// a field costs more to read, several times a request.
#[repr(u8)]
pub(super) enum Mode {
    ZeroCopy(ZeroCopy),
    UserCopy,
    GetData(GetData),
    Copy(CopyBuffers),
}

impl Mode {
    pub(super) fn new(parts: ModeParts) -> Mode {
        let ModeParts { depth, share, .. } = parts;
        match DataMode::of_flags(parts.flags) {
            DataMode::ZeroCopy => {
                Mode::ZeroCopy(ZeroCopy::new(parts.flags, parts.slots_max, depth, share))
            }
            DataMode::UserCopy => Mode::UserCopy,
            DataMode::GetData => Mode::GetData(GetData::new(depth, parts.pool)),
            DataMode::Copy => {
                let tags = share.tags(depth).count();
                Mode::Copy(CopyBuffers::new(depth, tags, parts.io_bytes_max))
            }
        }
    }

    /// Whether a read's answer carries a buffer.
    pub(super) fn is_read_answered_with_buffer(&self) -> bool {
        matches!(self, Mode::GetData(_) | Mode::Copy(_))
    }

    /// A tag's FETCH, its first command; `None` where memory is short.
    pub(super) fn fetch(&mut self, commands: CommandBuilder, tag: u16) -> Option<Command> {
        let address = match self {
            Mode::Copy(buffers) => buffers.address(tag, None, 0)?,
            _ => 0,
        };
        let fetch = commands.build(sys::IO_FETCH, tag, 0, address);
        Some(self.with_auto_buffer(fetch, tag))
    }

    /// The COMMIT_AND_FETCH of a result; `None` where memory is short.
    #[inline(always)]
    pub(super) fn commit<P: Port>(
        &mut self,
        port: &mut P,
        commands: CommandBuilder,
        commit: Commit,
    ) -> Option<Command> {
        let Commit {
            tag,
            result,
            op,
            buf,
        } = commit;
        let read = if op == sys::OP_READ {
            result.max(0) as usize
        } else {
            0
        };
        let address = match self {
            Mode::ZeroCopy(_) | Mode::UserCopy => 0,
            Mode::GetData(_) if op == sys::OP_READ => get_data::hold_read_buffer(port, buf, read)?,
            Mode::GetData(_) => 0,
            Mode::Copy(buffers) => buffers.address(tag, buf, read)?,
        };
        let commit = commands.build(sys::IO_COMMIT_AND_FETCH, tag, result, address);
        Some(self.with_auto_buffer(commit, tag))
    }

    /// Adds the buffer slot that zero copy names beside the payload.
    #[inline]
    fn with_auto_buffer(&self, command: Command, tag: u16) -> Command {
        match self {
            Mode::ZeroCopy(zero_copy) => zero_copy.with_auto_buffer(command, tag),
            _ => command,
        }
    }

    /// Puts back the buffer of a request that is not committed.
    pub(super) fn put_back(&mut self, tag: u16, buf: Option<Buf>) {
        if let (Mode::Copy(buffers), Some(buf)) = (self, buf) {
            buffers.put_back(tag, buf);
        }
    }

    /// Takes the memory that the driver's commands name.
    pub(super) fn take_driver_buffers(&mut self) -> Vec<Buf> {
        match self {
            Mode::ZeroCopy(_) | Mode::UserCopy => Vec::new(),
            Mode::GetData(get_data) => get_data.take_driver_buffers(),
            Mode::Copy(buffers) => buffers.take_driver_buffers(),
        }
    }
}
