//! Clients of the real disk.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;

use ublk_fake::{ClientOp, ClientRequest};

/// Opens the disk past the page cache.
pub(super) fn open(device: u32) -> Result<File, i32> {
    let mut options = std::fs::OpenOptions::new();
    options.read(true).write(true).custom_flags(libc::O_DIRECT);
    let opened = options.open(format!("/dev/ublkb{device}"));
    opened.map_err(|error| -error.raw_os_error().unwrap_or(libc::EIO))
}

/// Runs a request to its end, on the disk as somebody has opened it, or opens it first.
pub(super) fn run(
    device: u32,
    opened: Option<File>,
    request: ClientRequest,
) -> Result<Vec<u8>, i32> {
    let disk = opened.map_or_else(|| open(device), Ok)?;
    let offset = request.sector * 512;
    let failed = |errno: rustix::io::Errno| -errno.raw_os_error();
    match request.op {
        ClientOp::Read(len) => {
            let mut buffer = Aligned::new(len as usize);
            let read = rustix::io::pread(&disk, buffer.bytes(), offset).map_err(failed)?;
            if read < len as usize {
                return Err(-libc::ENODATA);
            }
            Ok(buffer.bytes().to_vec())
        }
        ClientOp::Write(bytes) => {
            let mut buffer = Aligned::new(bytes.len());
            buffer.bytes().copy_from_slice(&bytes);
            let slices = [std::io::IoSlice::new(buffer.bytes())];
            let flags = if request.fua {
                rustix::io::ReadWriteFlags::DSYNC
            } else {
                rustix::io::ReadWriteFlags::empty()
            };
            let wrote = rustix::io::pwritev2(&disk, &slices, offset, flags).map_err(failed)?;
            if wrote < bytes.len() {
                return Err(-libc::ENODATA);
            }
            Ok(Vec::new())
        }
        ClientOp::Flush => rustix::fs::fsync(&disk)
            .map(|()| Vec::new())
            .map_err(failed),
        ClientOp::Discard(len) => range(&disk, BLKDISCARD, offset, len),
        ClientOp::WriteZeroes(len) => range(&disk, BLKZEROOUT, offset, len),
    }
}

const BLKDISCARD: u64 = 0x1277;
const BLKZEROOUT: u64 = 0x127f;

fn range(disk: &File, request: u64, offset: u64, len: u32) -> Result<Vec<u8>, i32> {
    let range = [offset, u64::from(len)];
    // SAFETY: both requests read two numbers from the address.
    let result = unsafe { libc::ioctl(disk.as_raw_fd(), request as _, range.as_ptr()) };
    if result < 0 {
        let error = std::io::Error::last_os_error();
        return Err(-error.raw_os_error().unwrap_or(libc::EIO));
    }
    Ok(Vec::new())
}

/// Memory that direct I/O takes.
struct Aligned {
    memory: Vec<u8>,
    at: usize,
    len: usize,
}

impl Aligned {
    fn new(len: usize) -> Aligned {
        let memory = vec![0; len + 4096];
        let at = memory.as_ptr().align_offset(4096);
        Aligned { memory, at, len }
    }

    fn bytes(&mut self) -> &mut [u8] {
        &mut self.memory[self.at..][..self.len]
    }
}
