//! What the data modes differ in: what a fetch or commit carries, and where the bytes of a
//! request are when it comes. Each mode's state is in its own file.

pub(super) mod copy;
pub(super) mod get_data;
pub(super) mod zero_copy;

use reactor::{Buf, FileIndex, Port, op::Command};

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
    /// A command that names no memory: `addr` is zero, or the number of a buffer slot.
    #[inline]
    pub(super) fn plain(self, opcode: u32, tag: u16, result: i32, addr: u64) -> Command {
        self.naming(opcode, tag, result, addr)
    }

    /// A command that names a buffer, which its mode keeps until the command has ended, or until the
    /// driver has taken it where that reads no later.
    #[inline]
    fn naming(self, opcode: u32, tag: u16, result: i32, addr: u64) -> Command {
        let command = IoCommand {
            queue: self.queue,
            tag,
            result,
            addr,
        };
        let payload: [u8; Command::PAYLOAD_BYTES] = zerocopy::transmute!(command);
        // SAFETY: `addr` is no address, or that of a buffer which is as large as the driver believes.
        // Its mode looks at it no more and has it until the command has ended (`GetData::fetching`,
        // `Own::here`) or was taken (`Port::hold_until_submitted`), and hands it over in `Mode::leave`.
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

/// With a tag of its own: one that is hidden in a field costs more to read, several times a request.
#[repr(u8)]
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
            DataMode::GetData => Mode::GetData(GetData::new(depth, pool)),
            DataMode::Copy => {
                let tags = share.tags(depth).count();
                Mode::Copy(CopyBuffers::new(depth, tags, io_bytes_max))
            }
        }
    }

    /// Whether a read's answer carries a buffer.
    pub(super) fn reads_carry_buffers(&self) -> bool {
        matches!(self, Mode::GetData(_) | Mode::Copy(_))
    }

    /// The first command of a tag, or one that takes its place; `None` where memory is short.
    pub(super) fn fetch(&mut self, driver: Driver, tag: u16) -> Option<Command> {
        let address = match self {
            Mode::Copy(buffers) => buffers.address(tag, None, 0)?,
            _ => 0,
        };
        let fetch = driver.naming(sys::IO_FETCH, tag, 0, address);
        Some(self.dressed(fetch, tag))
    }

    /// The command that commits a result; `None` where memory is short.
    #[inline(always)]
    pub(super) fn commit<P: Port>(
        &mut self,
        port: &mut P,
        driver: Driver,
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
            Mode::GetData(_) if op == sys::OP_READ => get_data::read_address(port, buf, read)?,
            Mode::GetData(_) => 0,
            Mode::Copy(buffers) => buffers.address(tag, buf, read)?,
        };
        let commit = driver.naming(sys::IO_COMMIT_AND_FETCH, tag, result, address);
        Some(self.dressed(commit, tag))
    }

    /// What a command says beside its payload.
    #[inline]
    fn dressed(&self, command: Command, tag: u16) -> Command {
        match self {
            Mode::ZeroCopy(zero_copy) => zero_copy.dress(command, tag),
            _ => command,
        }
    }

    /// A request of this tag came back unanswered, with its buffer.
    pub(super) fn keep(&mut self, tag: u16, buf: Option<Buf>) {
        if let (Mode::Copy(buffers), Some(buf)) = (self, buf) {
            buffers.keep(tag, buf);
        }
    }

    /// The memory that commands name which the driver has.
    pub(super) fn leave(&mut self) -> Vec<Buf> {
        match self {
            Mode::ZeroCopy(_) | Mode::UserCopy => Vec::new(),
            Mode::GetData(get_data) => get_data.leave(),
            Mode::Copy(buffers) => buffers.leave(),
        }
    }
}
