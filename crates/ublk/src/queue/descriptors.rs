//! The memory in which the driver describes the requests of one queue: mapped read-only.
//!
//! The driver writes a tag's descriptor before it completes the tag's FETCH, and does not change it
//! while the server has the tag. Even so a descriptor is copied out by one volatile read and never
//! borrowed: a read for a tag that the server does not have gives meaningless bytes, not undefined
//! behaviour.

use std::fmt;
use std::io;
use std::os::fd::AsFd;
use std::ptr::NonNull;

use blkmq::io::SECTOR_BYTES;
use rustix::mm::{MapFlags, ProtFlags};

use crate::sys::{self, IoDescriptor};

/// The descriptors of one queue. Unmapped when dropped: a mapping that stays would keep the driver
/// from deleting the device.
pub struct Descriptors {
    start: NonNull<u8>,
    bytes: usize,
    depth: u16,
    stride: usize,
}

// SAFETY: the mapping has no thread affinity; it is only read.
unsafe impl Send for Descriptors {}

impl Descriptors {
    /// Maps the descriptors of `queue` from the character device. `stride` is the distance between
    /// descriptors in bytes, as the driver gives it; zero stands for the 24 of older kernels.
    pub fn map(
        char_device: impl AsFd,
        queue: u16,
        depth: u16,
        stride: u16,
    ) -> io::Result<Descriptors> {
        let stride = match usize::from(stride) {
            0 => size_of::<IoDescriptor>(),
            stride => stride,
        };
        let fits = stride >= size_of::<IoDescriptor>() && stride.is_multiple_of(8);
        if !fits || depth == 0 || depth > sys::DEPTH_MAX {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let page = rustix::param::page_size();
        let (offset, bytes) = layout(queue, depth, stride, page);
        // SAFETY: a fresh read-only mapping at an address of the kernel's choice touches no
        // memory of ours; the result is owned by this value and unmapped once, in drop.
        let start = unsafe {
            rustix::mm::mmap(
                std::ptr::null_mut(),
                bytes,
                ProtFlags::READ,
                MapFlags::SHARED | MapFlags::POPULATE,
                &char_device,
                offset,
            )
        }?;
        let start = NonNull::new(start.cast::<u8>()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Descriptors {
            start,
            bytes,
            depth,
            stride,
        })
    }

    /// What the driver says about the request that has this tag.
    #[inline(always)]
    pub fn get(&self, tag: u16) -> IoDescriptor {
        assert!(tag < self.depth, "tag {tag} of a queue of {}", self.depth);
        let at = self
            .start
            .as_ptr()
            .wrapping_add(usize::from(tag) * self.stride)
            .cast::<IoDescriptor>();
        // SAFETY: `tag` is below the depth, so the descriptor lies inside the mapping; it is
        // aligned, because pages are and the stride is a multiple of eight; any bytes make one.
        unsafe { at.read_volatile() }
    }
}

/// Where the descriptors of a queue lie on the character device, and how many bytes to map. The
/// driver takes exactly this length.
fn layout(queue: u16, depth: u16, stride: usize, page: usize) -> (u64, usize) {
    let queue_bytes = (usize::from(sys::DEPTH_MAX) * stride).next_multiple_of(page);
    let bytes = (usize::from(depth) * stride).next_multiple_of(page);
    let offset = sys::DESCRIPTORS_OFFSET + u64::from(queue) * queue_bytes as u64;
    (offset, bytes)
}

impl Drop for Descriptors {
    fn drop(&mut self) {
        // SAFETY: mapped once in `map` with this length; descriptors are only ever copied out.
        let unmapped = unsafe { rustix::mm::munmap(self.start.as_ptr().cast(), self.bytes) };
        debug_assert!(unmapped.is_ok(), "the range is a mapping of ours");
    }
}

/// The bytes that a request carries, or an errno if it makes no sense or cannot be served.
/// `io_bytes_max` is the device's largest request.
pub(super) fn bytes_of(descriptor: &IoDescriptor, io_bytes_max: u32) -> Result<u32, i32> {
    if descriptor.has(sys::IO_SHARED) {
        // This server does not access shared memory. Without this check a write would store what
        // the last request left in the buffer, and a read would complete without its bytes.
        return Err(libc::EIO);
    }
    match descriptor.op() {
        sys::OP_READ | sys::OP_WRITE => {
            let bytes = u64::from(descriptor.sectors) * SECTOR_BYTES;
            if bytes == 0 || bytes > u64::from(io_bytes_max) {
                return Err(libc::EIO);
            }
            Ok(bytes as u32)
        }
        sys::OP_FLUSH | sys::OP_DISCARD | sys::OP_WRITE_ZEROES => Ok(0),
        _ => Err(libc::EOPNOTSUPP),
    }
}

impl fmt::Debug for Descriptors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Descriptors({} of {} bytes)", self.depth, self.stride)
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;

    use zerocopy::IntoBytes;

    use super::*;

    #[test]
    fn the_place_is_the_one_that_the_driver_takes() {
        assert_eq!(layout(0, 1, 24, 4096), (0, 4096));
        assert_eq!(layout(1, 128, 24, 4096), (98_304, 4096));
        assert_eq!(layout(3, 4096, 24, 4096), (3 * 98_304, 98_304));
        assert_eq!(layout(1, 128, 64, 4096), (262_144, 8192));
        assert_eq!(layout(1, 128, 24, 65_536), (131_072, 65_536));
    }

    #[test]
    fn a_descriptor_is_found_at_its_queue_tag_and_stride() {
        for stride in [0, 64] {
            let file = std::fs::File::from(reactor::memfd(c"descriptors", 4 << 20).unwrap());
            let descriptor = IoDescriptor {
                op_flags: 1 | sys::IO_FUA,
                sectors: 8,
                sector: 77,
                addr: 0,
            };
            let distance = if stride == 0 { 24 } else { u64::from(stride) };
            let (queue, _) = layout(2, 300, distance as usize, rustix::param::page_size());
            file.write_all_at(descriptor.as_bytes(), queue + 299 * distance)
                .unwrap();
            let descriptors = Descriptors::map(&file, 2, 300, stride).unwrap();
            assert_eq!(descriptors.get(299), descriptor);
            assert_eq!(descriptors.get(298), IoDescriptor::default());
        }
    }

    #[test]
    fn a_distance_that_no_descriptor_fits_in_is_refused() {
        let file = reactor::memfd(c"descriptors", 4 << 20).unwrap();
        for stride in [8, 23, 31] {
            assert!(Descriptors::map(&file, 0, 1, stride).is_err());
        }
        assert!(Descriptors::map(&file, 0, 0, 24).is_err());
    }
}
