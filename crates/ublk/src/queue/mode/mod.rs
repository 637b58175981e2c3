//! What the data modes differ in: what a fetch or commit carries, and where the bytes of a
//! request are when it comes. Each mode's state is in its own file.

pub(super) mod copy;
pub(super) mod get_data;
pub(super) mod zero_copy;

use reactor::{Buf, FileIndex, op::Command};
use zerocopy::IntoBytes;

use crate::queue::{Pool, Share};
use crate::request::Data;
use crate::spec::DataMode;
use crate::sys::{self, IoCommand};

use copy::CopyBuffers;
use get_data::GetData;
use zero_copy::ZeroCopy;

/// The driver's end of a queue.
#[derive(Clone, Copy, Debug)]
pub(super) struct Driver {
    pub(super) file: FileIndex,
    pub(super) queue: u16,
}

impl Driver {
    /// A command that names no memory.
    pub(super) fn plain(self, opcode: u32, tag: u16, result: i32, addr: u64) -> Command {
        let command = IoCommand {
            queue: self.queue,
            tag,
            result,
            addr,
        };
        let mut payload = [0; Command::PAYLOAD_BYTES];
        payload.copy_from_slice(command.as_bytes());
        // SAFETY: `addr` is zero or the number of a buffer slot, no address. Where the driver
        // wants an address, the caller adds a buffer that is as large as the driver believes.
        unsafe { Command::new(self.file, opcode, payload) }
    }
}

/// A result on its way to the driver.
#[derive(Debug)]
pub(super) struct Commit {
    pub(super) tag: u16,
    pub(super) result: i32,
    pub(super) op: u8,
    pub(super) buf: Option<Buf>,
}

/// What becomes of a request that came.
pub(super) enum Arrival {
    /// Its bytes are here, or can be reached.
    Ready(Data),
    /// Its pages must be put into a buffer slot first.
    Register,
    /// There is no way to its bytes.
    Unreachable,
}

pub(super) enum Mode {
    ZeroCopy(ZeroCopy),
    UserCopy,
    GetData(GetData),
    Copy(CopyBuffers),
}

impl Mode {
    pub(super) fn new(
        flags: u64,
        (depth, share): (u16, Share),
        io_bytes_max: u32,
        slots_max: u16,
        pool: Option<Box<dyn Pool>>,
    ) -> Mode {
        match DataMode::of_flags(flags) {
            DataMode::ZeroCopy => Mode::ZeroCopy(ZeroCopy::new(flags, slots_max, (depth, share))),
            DataMode::UserCopy => Mode::UserCopy,
            DataMode::GetData => Mode::GetData(GetData::new(pool)),
            DataMode::Copy => Mode::Copy(CopyBuffers::new(depth, io_bytes_max)),
        }
    }

    /// Whether a read's answer carries a buffer.
    pub(super) fn reads_carry_buffers(&self) -> bool {
        matches!(self, Mode::GetData(_) | Mode::Copy(_))
    }

    /// The first command of a tag, or one that takes its place; `None` where memory is short.
    pub(super) fn fetch(&mut self, driver: Driver, tag: u16) -> Option<Command> {
        let plain = driver.plain(sys::IO_FETCH, tag, 0, 0).armed();
        match self {
            Mode::ZeroCopy(zero_copy) => Some(zero_copy.dress(plain, tag)),
            Mode::UserCopy | Mode::GetData(_) => Some(plain),
            Mode::Copy(buffers) => buffers.dress(plain, tag, None, 0),
        }
    }

    /// The command that commits a result; `None` where memory is short.
    pub(super) fn commit(&mut self, driver: Driver, commit: Commit) -> Option<Command> {
        let Commit {
            tag,
            result,
            op,
            buf,
        } = commit;
        let plain = driver
            .plain(sys::IO_COMMIT_AND_FETCH, tag, result, 0)
            .armed();
        let read = if op == sys::OP_READ {
            result.max(0) as usize
        } else {
            0
        };
        match self {
            Mode::ZeroCopy(zero_copy) => Some(zero_copy.dress(plain, tag)),
            Mode::UserCopy => Some(plain),
            Mode::GetData(_) if op == sys::OP_READ => get_data::dress_read(plain, buf, read),
            Mode::GetData(_) => Some(plain),
            Mode::Copy(buffers) => buffers.dress(plain, tag, buf, read),
        }
    }

    /// A command of this tag was refused, and gave its buffer back.
    pub(super) fn keep(&mut self, tag: u16, buf: Option<Buf>) {
        if let (Mode::Copy(buffers), Some(buf)) = (self, buf) {
            buffers.keep(tag, buf);
        }
    }

    /// A request with `bytes` of data came; `buf` is what its command gave back.
    pub(super) fn arrived(
        &mut self,
        tag: u16,
        op_flags: u32,
        bytes: u32,
        buf: Option<Buf>,
    ) -> Arrival {
        match self {
            Mode::ZeroCopy(zero_copy) => zero_copy.arrived(tag, op_flags, bytes),
            Mode::UserCopy if bytes > 0 => Arrival::Ready(Data::Window),
            Mode::UserCopy | Mode::GetData(_) => Arrival::Ready(Data::None),
            Mode::Copy(buffers) => Arrival::Ready(buffers.arrived(tag, bytes, buf)),
        }
    }
}
