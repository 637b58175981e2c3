//! Commands, parameters and flags, on `/dev/ublk-control`.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::{READ, READ_WRITE, number};

/// The device that takes control commands.
pub const CONTROL_PATH: &str = "/dev/ublk-control";

/// The 32 bytes of a control command, at the start of the 80 that an SQE128 has.
///
/// | bytes | field |
/// |---|---|
/// | 4 | device |
/// | 2 | queue, or 0xffff |
/// | 2 | bytes at `addr` |
/// | 8 | address of the argument |
/// | 8 | inline argument |
/// | 2 | bytes of the device's path before the argument |
/// | 2, 4 | zero |
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct ControlCommand {
    /// Device.
    pub device: u32,
    /// Queue, or [`NO_QUEUE`].
    pub queue: u16,
    /// Bytes at `addr`.
    pub len: u16,
    /// Address of the argument.
    pub addr: u64,
    /// Inline argument.
    pub data: u64,
    /// Bytes of the device's path before the argument.
    pub path_len: u16,
    /// Zero.
    pub pad: u16,
    /// Zero.
    pub reserved: u32,
}

/// Of commands that are for no queue.
pub const NO_QUEUE: u16 = 0xffff;

const fn read(nr: u8) -> u32 {
    number(READ, nr, size_of::<ControlCommand>())
}

const fn write(nr: u8) -> u32 {
    number(READ_WRITE, nr, size_of::<ControlCommand>())
}

/// A device's [`DeviceInfo`].
pub const GET_DEVICE_INFO: u32 = read(0x02);
/// Adds a device.
pub const ADD_DEVICE: u32 = write(0x04);
/// Deletes a device and waits until its number is free.
pub const DELETE_DEVICE: u32 = write(0x05);
/// Starts the disk, once every tag is fetched.
pub const START_DEVICE: u32 = write(0x06);
/// Stops the disk and aborts its tags.
pub const STOP_DEVICE: u32 = write(0x07);
/// Sets [`Params`], before the first start.
pub const SET_PARAMS: u32 = write(0x08);
/// Gets [`Params`].
pub const GET_PARAMS: u32 = read(0x09);
/// START_USER_RECOVERY: a new server announces itself.
pub const START_RECOVERY: u32 = write(0x10);
/// END_USER_RECOVERY: a new server has fetched every tag.
pub const END_RECOVERY: u32 = write(0x11);
/// The kernel's mask of flags (6.5).
pub const GET_FEATURES: u32 = read(0x13);
/// Deletes a device without waiting (6.9).
pub const DELETE_DEVICE_ASYNC: u32 = read(0x14);
/// Changes the size of a live disk (6.16).
pub const UPDATE_SIZE: u32 = write(0x15);
/// Takes the server away from a live disk (6.16).
pub const QUIESCE_DEVICE: u32 = write(0x16);
/// [`STOP_DEVICE`], unless a process has the disk open (7.0).
pub const TRY_STOP_DEVICE: u32 = write(0x17);

/// A device as the driver sees it, 64 bytes.
///
/// | bytes | field |
/// |---|---|
/// | 2, 2, 2 | queues, depth, state |
/// | 2 | distance of descriptors (7.3), else zero |
/// | 4 | largest request in bytes |
/// | 4 | device |
/// | 4 | process id of the server, or -1 |
/// | 4 | zero |
/// | 8 | flags |
/// | 8 | the server's own |
/// | 4, 4 | owner's user and group |
/// | 8, 8 | zero |
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct DeviceInfo {
    /// Hardware queues.
    pub queues: u16,
    /// Tags per queue.
    pub depth: u16,
    /// One of the `STATE_` numbers.
    pub state: u16,
    /// Distance of descriptors in bytes, zero for 24.
    pub descriptor_bytes: u16,
    /// Largest request in bytes.
    pub io_bytes_max: u32,
    /// Device number.
    pub device: u32,
    /// Process id of the server, or -1.
    pub server_pid: i32,
    /// Zero.
    pub pad: u32,
    /// The `F_` flags.
    pub flags: u64,
    /// The server's own.
    pub server_flags: u64,
    /// Owner.
    pub owner_uid: u32,
    /// Owner's group.
    pub owner_gid: u32,
    /// Zero.
    pub reserved: [u64; 2],
}

/// Added, or stopped.
pub const STATE_DEAD: u16 = 0;
/// Serving.
pub const STATE_LIVE: u16 = 1;
/// Without a server; requests wait.
pub const STATE_QUIESCED: u16 = 2;
/// Without a server; requests fail.
pub const STATE_FAIL_IO: u16 = 3;

/// Zero copy by registered buffers (6.15).
pub const F_ZERO_COPY: u64 = 1;
/// Historic; always set.
pub const F_COMPLETE_IN_TASK: u64 = 1 << 1;
/// The server names a write's buffer when the write arrives.
pub const F_NEED_GET_DATA: u64 = 1 << 2;
/// The disk outlives its server (6.1).
pub const F_RECOVERY: u64 = 1 << 3;
/// The driver issues requests of a dead server again (6.1).
pub const F_RECOVERY_REISSUE: u64 = 1 << 4;
/// For users without privileges (6.3).
pub const F_UNPRIVILEGED: u64 = 1 << 5;
/// Numbers are encoded as here (6.4).
pub const F_IOCTL_ENCODE: u64 = 1 << 6;
/// Data are read and written on the character device (6.5).
pub const F_USER_COPY: u64 = 1 << 7;
/// Zoned disks (6.6).
pub const F_ZONED: u64 = 1 << 8;
/// Without a server requests fail (6.13).
pub const F_RECOVERY_FAIL_IO: u64 = 1 << 9;
/// [`UPDATE_SIZE`] is there (6.16).
pub const F_UPDATE_SIZE: u64 = 1 << 10;
/// The driver registers buffers by itself (6.16).
pub const F_AUTO_BUFFER: u64 = 1 << 11;
/// [`QUIESCE_DEVICE`] is there (6.16).
pub const F_QUIESCE: u64 = 1 << 12;
/// Each tag has its own task (6.16).
pub const F_PER_IO_TASK: u64 = 1 << 13;
/// Buffers may be registered from any task (6.17).
pub const F_REGISTER_ANYWHERE: u64 = 1 << 14;
/// Commands in batches (7.0).
pub const F_BATCH_IO: u64 = 1 << 15;
/// Integrity data (7.0).
pub const F_INTEGRITY: u64 = 1 << 16;
/// [`TRY_STOP_DEVICE`] is there (7.0).
pub const F_SAFE_STOP: u64 = 1 << 17;
/// No partition scan at the start (7.0).
pub const F_NO_PART_SCAN: u64 = 1 << 18;
/// Zero copy by shared memory (7.1).
pub const F_SHARED_ZERO_COPY: u64 = 1 << 19;
/// The distance of descriptors is the device's (7.3).
pub const F_DESCRIPTOR_BYTES: u64 = 1 << 20;

/// The parameters of a disk, 136 bytes; `types` says which parts count.
///
/// | bytes | field |
/// |---|---|
/// | 4, 4 | length of all this, types |
/// | 32 | [`BasicParams`] |
/// | 20 | [`DiscardParams`] |
/// | 16 | numbers of the device nodes, from the driver |
/// | 32 | zones; not used here |
/// | 4, 4 | mask of the memory alignment that direct I/O needs, zero |
/// | 4 | zero, for alignment |
/// | 8, 4, 2, 2 | segments: mask of their border, largest size, how many, zero |
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct Params {
    /// Length of all this in bytes.
    pub len: u32,
    /// The `PARAM_` bits.
    pub types: u32,
    /// Size and blocks.
    pub basic: BasicParams,
    /// Discard and zeroing.
    pub discard: DiscardParams,
    /// Major and minor of the character device and of the disk, from the driver.
    pub nodes: [u32; 4],
    /// Zones; not used here.
    pub zoned: [u32; 8],
    /// Memory of requests is aligned to this plus one.
    pub dma_alignment: u32,
    /// Zero.
    pub dma_pad: u32,
    /// Zero, for alignment.
    pub pad: u32,
    /// No segment of a request crosses a multiple of this plus one.
    pub segment_boundary: u64,
    /// Largest segment in bytes.
    pub segment_bytes_max: u32,
    /// Segments of a request.
    pub segments_max: u16,
    /// Zero.
    pub segment_pad: u16,
}

/// Size and blocks of a disk.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct BasicParams {
    /// The `ATTR_` bits.
    pub attributes: u32,
    /// Logical block, as a power of two.
    pub logical_shift: u8,
    /// Physical block, as a power of two.
    pub physical_shift: u8,
    /// Best size of a request, as a power of two.
    pub io_opt_shift: u8,
    /// Smallest good size of a request, as a power of two.
    pub io_min_shift: u8,
    /// Largest request in sectors.
    pub sectors_max: u32,
    /// Requests do not cross a multiple of this many sectors, unless zero.
    pub chunk_sectors: u32,
    /// Size in sectors.
    pub sectors: u64,
    /// No gap inside a request but at this mask.
    pub virt_boundary_mask: u64,
}

/// Discard and zeroing of a disk.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct DiscardParams {
    /// Offset of the first unit, in bytes.
    pub alignment: u32,
    /// The unit, in bytes; not zero.
    pub granularity: u32,
    /// Largest discard in sectors.
    pub discard_sectors_max: u32,
    /// Largest zeroing in sectors.
    pub zeroes_sectors_max: u32,
    /// Ranges of one discard: one.
    pub segments_max: u16,
    /// Zero.
    pub reserved: u16,
}

/// [`Params::basic`] counts.
pub const PARAM_BASIC: u32 = 1;
/// [`Params::discard`] counts.
pub const PARAM_DISCARD: u32 = 1 << 1;
/// [`Params::nodes`] is asked for.
pub const PARAM_NODES: u32 = 1 << 2;
/// [`Params::dma_alignment`] counts.
pub const PARAM_DMA_ALIGN: u32 = 1 << 4;
/// The segment fields count.
pub const PARAM_SEGMENT: u32 = 1 << 5;

/// Writes are refused.
pub const ATTR_READ_ONLY: u32 = 1;
/// The disk is rotational.
pub const ATTR_ROTATIONAL: u32 = 1 << 1;
/// The disk needs FLUSH.
pub const ATTR_VOLATILE_CACHE: u32 = 1 << 2;
/// The disk supports FUA.
pub const ATTR_FUA: u32 = 1 << 3;

#[cfg(test)]
mod tests {
    use std::mem::offset_of;

    use super::*;

    #[test]
    fn the_numbers_are_those_of_the_kernel() {
        assert_eq!(GET_FEATURES, 0x8020_7513);
        assert_eq!(ADD_DEVICE, 0xc020_7504);
        assert_eq!(DELETE_DEVICE_ASYNC, 0x8020_7514);
    }

    #[test]
    fn every_field_is_where_the_kernel_looks() {
        assert_eq!(size_of::<ControlCommand>(), 32);
        assert_eq!(offset_of!(ControlCommand, data), 16);
        assert_eq!(size_of::<DeviceInfo>(), 64);
        assert_eq!(offset_of!(DeviceInfo, flags), 24);
        assert_eq!(offset_of!(DeviceInfo, owner_uid), 40);
        assert_eq!(offset_of!(Params, basic), 8);
        assert_eq!(offset_of!(Params, discard), 40);
        assert_eq!(offset_of!(Params, nodes), 60);
        assert_eq!(offset_of!(Params, dma_alignment), 108);
        assert_eq!(offset_of!(Params, segment_boundary), 120);
        assert_eq!(size_of::<Params>(), 136);
    }
}
