//! Commands and descriptors of requests, on `/dev/ublkcN`.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::{READ_WRITE, number};

/// The 16 bytes of a request command.
///
/// | bytes | field |
/// |---|---|
/// | 2 | queue |
/// | 2 | tag |
/// | 4 | result of the request that is committed: bytes, or a negated errno |
/// | 8 | address of the buffer for the next request (copy modes), or index of a buffer slot |
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct IoCommand {
    /// Queue.
    pub queue: u16,
    /// Tag.
    pub tag: u16,
    /// Result of the request that is committed.
    pub result: i32,
    /// Address of a buffer, or index of a slot.
    pub addr: u64,
}

const fn io(nr: u8) -> u32 {
    number(READ_WRITE, nr, size_of::<IoCommand>())
}

/// FETCH: gives a tag to the driver for its first request.
pub const IO_FETCH: u32 = io(0x20);
/// COMMIT_AND_FETCH: commits a request's result and gives its tag back for the next one.
pub const IO_COMMIT_AND_FETCH: u32 = io(0x21);
/// NEED_GET_DATA: names the buffer that the driver copies a write's bytes to.
pub const IO_NEED_GET_DATA: u32 = io(0x22);
/// REGISTER_IO_BUF: puts a request's pages into a buffer slot of the ring that carries this command.
pub const IO_REGISTER_BUFFER: u32 = io(0x23);
/// UNREGISTER_IO_BUF: takes them out again.
pub const IO_UNREGISTER_BUFFER: u32 = io(0x24);

/// FETCH or COMMIT_AND_FETCH completed: a request arrived.
pub const RESULT_OK: i32 = 0;
/// A write arrived and waits for its buffer (`NEED_GET_DATA`).
pub const RESULT_NEED_GET_DATA: i32 = 1;
/// UBLK_IO_RES_ABORT: the driver does not use the tag any more.
pub const RESULT_ABORT: i32 = -libc::ENODEV;

/// A request, as the driver describes it in the memory it shares.
///
/// | bytes | field |
/// |---|---|
/// | 4 | operation in bits 0-7, flags above |
/// | 4 | sectors of 512 bytes |
/// | 8 | first sector |
/// | 8 | address of its buffer, as the server gave it |
///
/// Linux 7.3 may put descriptors further apart than these 24 bytes: the distance is the device's.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct IoDescriptor {
    /// Operation and flags.
    pub op_flags: u32,
    /// Sectors of 512 bytes.
    pub sectors: u32,
    /// First sector.
    pub sector: u64,
    /// Address of its buffer.
    pub addr: u64,
}

impl IoDescriptor {
    /// The operation, one of the `OP_` numbers.
    pub fn op(&self) -> u8 {
        self.op_flags as u8
    }

    /// Whether all these flags are set.
    pub fn has(&self, flags: u32) -> bool {
        self.op_flags & flags == flags
    }
}

/// Read.
pub const OP_READ: u8 = 0;
/// Write.
pub const OP_WRITE: u8 = 1;
/// Flush.
pub const OP_FLUSH: u8 = 2;
/// Discard.
pub const OP_DISCARD: u8 = 3;
/// Write zeroes.
pub const OP_WRITE_ZEROES: u8 = 5;

/// Complete only once durable.
pub const IO_FUA: u32 = 1 << 13;
/// The request's pages are in no buffer slot: its own was taken.
pub const IO_NEED_REGISTER_BUFFER: u32 = 1 << 17;
/// Its bytes are in memory that was registered for [`super::F_SHARED_ZERO_COPY`]: the driver copies
/// nothing, and takes any result for the whole of it.
pub const IO_SHARED: u32 = 1 << 19;

/// Where the memory that holds the descriptors of queue 0 begins on the character device.
pub const DESCRIPTORS_OFFSET: u64 = 0;
/// Descriptors of one queue begin this many bytes (rounded up to pages) after those of the one
/// before, counted in descriptors.
pub const DEPTH_MAX: u16 = 4096;
/// Queues of a device.
pub const QUEUES_MAX: u16 = 4096;
/// Device numbers end below this.
pub const DEVICE_ID_MAX: u32 = 1 << 20;
/// A request carries at most this many bytes.
pub const IO_BYTES_MAX: u32 = 32 << 20;

/// Offset on the character device at which byte `at` of a request's data is read and written.
pub fn data_offset(queue: u16, tag: u16, at: u32) -> u64 {
    debug_assert!(at < IO_BYTES_MAX);
    0x8000_0000 + (u64::from(queue) << 41 | u64::from(tag) << 25 | u64::from(at))
}

/// Auto-registration: hand the request over with [`IO_NEED_REGISTER_BUFFER`] where the slot is
/// taken, instead of failing it unseen.
pub const AUTO_BUFFER_FALLBACK: u8 = 1;

/// What a fetch or commit carries in the submission entry's address with `AUTO_BUF_REG`.
pub fn auto_buffer(slot: u16, flags: u8) -> u64 {
    u64::from(slot) | u64::from(flags) << 16
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_numbers_are_those_of_the_kernel() {
        assert_eq!(IO_FETCH, 0xc010_7520);
        assert_eq!(IO_UNREGISTER_BUFFER, 0xc010_7524);
        assert_eq!(size_of::<IoDescriptor>(), 24);
        assert_eq!(
            data_offset(1, 2, 3),
            0x8000_0000 + (1 << 41) + (2 << 25) + 3
        );
        assert_eq!(auto_buffer(7, AUTO_BUFFER_FALLBACK), 0x1_0007);
    }

    #[test]
    fn a_command_has_its_fields_where_the_kernel_looks() {
        let command = IoCommand {
            queue: 0x0102,
            tag: 0x0304,
            result: -5,
            addr: 0x1122_3344_5566_7788,
        };
        let bytes = [
            2, 1, 4, 3, 0xfb, 0xff, 0xff, 0xff, 0x88, 0x77, 0x66, 0x55, 0x44, 0x33, 0x22, 0x11,
        ];
        assert_eq!(command.as_bytes(), bytes);
    }
}
