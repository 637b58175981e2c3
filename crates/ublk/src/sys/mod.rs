//! The kernel's interface: numbers and byte layouts of `linux/ublk_cmd.h`, and nothing else.
//!
//! Taken from Linux 7.2, with what 7.3 adds. The tests pin every size and offset; nothing here
//! does I/O or decides anything.

mod control;
mod io;

pub use control::*;
pub use io::*;

/// The direction of the argument in an `ioctl(2)` number.
const READ: u32 = 2;
const READ_WRITE: u32 = 3;

/// An `ioctl(2)` number of ublk's type, `u`.
const fn number(direction: u32, nr: u8, bytes: usize) -> u32 {
    direction << 30 | (bytes as u32) << 16 | (b'u' as u32) << 8 | nr as u32
}
