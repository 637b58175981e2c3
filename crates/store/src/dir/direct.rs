//! Writing an object's bytes past the page cache.
//!
//! A directory store may be on the host whose memory the server frees by writing: swap, or a busy file system,
//! on a disk of a volume. A write through the page cache asks for as much memory as the object has, and then
//! waits for pages that only its own completion could free. So large objects go from a few buffers of the
//! store's own, which it has from the start. Where all are in use, the next write waits for one.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::{Condvar, Mutex, PoisonError};

use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};

/// Alignment of memory, offset and length: enough for every file system that has direct I/O.
const ALIGN: usize = 4096;

/// Bytes of one write.
const WRITE_BYTES: usize = 1 << 20;

/// Objects that are written past the page cache at once.
const BUFFERS: usize = 4;

/// Smaller objects are not worth it: they take a few pages at most.
const WORTH_BYTES: usize = 64 << 10;

/// Buffers for direct I/O.
#[derive(Debug)]
pub(super) struct DirectBuffers {
    free: Mutex<Vec<Vec<u8>>>,
    returned: Condvar,
}

/// One of them, given back when dropped.
struct Buffer<'a> {
    of: &'a DirectBuffers,
    memory: Vec<u8>,
}

impl Drop for Buffer<'_> {
    fn drop(&mut self) {
        let mut free = self.of.free.lock().unwrap_or_else(PoisonError::into_inner);
        free.push(std::mem::take(&mut self.memory));
        self.of.returned.notify_one();
    }
}

impl DirectBuffers {
    pub(super) fn new() -> DirectBuffers {
        // Written, so that the memory is there.
        let buffers = (0..BUFFERS).map(|_| vec![1; WRITE_BYTES + ALIGN]);
        DirectBuffers {
            free: Mutex::new(buffers.collect()),
            returned: Condvar::new(),
        }
    }

    fn take(&self) -> Buffer<'_> {
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            if let Some(memory) = free.pop() {
                return Buffer { of: self, memory };
            }
            free = self
                .returned
                .wait(free)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Writes the content of a new, empty file, past the page cache where that is possible.
    pub(super) fn write(&self, file: &File, bytes: &[u8]) -> io::Result<()> {
        if bytes.len() < WORTH_BYTES {
            return file.write_all_at(bytes, 0);
        }
        let flags = fcntl_getfl(file)?;
        if fcntl_setfl(file, flags | OFlags::DIRECT).is_err() {
            return file.write_all_at(bytes, 0);
        }
        let written = self.write_direct(file, bytes);
        fcntl_setfl(file, flags)?;
        match written {
            // It wants another alignment.
            Err(error) if error.kind() == io::ErrorKind::InvalidInput => {
                file.set_len(0)?;
                file.write_all_at(bytes, 0)
            }
            written => written,
        }
    }

    fn write_direct(&self, file: &File, bytes: &[u8]) -> io::Result<()> {
        let mut buffer = self.take();
        let start = buffer.memory.as_ptr().align_offset(ALIGN);
        let memory = &mut buffer.memory[start..start + WRITE_BYTES];
        for (nth, part) in bytes.chunks(WRITE_BYTES).enumerate() {
            let len = part.len().next_multiple_of(ALIGN);
            memory[..part.len()].copy_from_slice(part);
            memory[part.len()..len].fill(0);
            file.write_all_at(&memory[..len], (nth * WRITE_BYTES) as u64)?;
        }
        match bytes.len().is_multiple_of(ALIGN) {
            true => Ok(()),
            false => file.set_len(bytes.len() as u64),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_object_of_any_length_is_what_was_given_and_more_of_them_than_buffers_go_through() {
        let dir = tempfile::tempdir().unwrap();
        let buffers = DirectBuffers::new();
        let lengths = [
            0,
            1,
            WORTH_BYTES - 1,
            WORTH_BYTES,
            WRITE_BYTES,
            WRITE_BYTES + 1,
            3 * WRITE_BYTES - 4097,
        ];
        std::thread::scope(|scope| {
            for (nth, len) in lengths.into_iter().enumerate() {
                let (path, buffers) = (dir.path().join(nth.to_string()), &buffers);
                scope.spawn(move || {
                    let bytes: Vec<u8> = (0..len).map(|at| (at * 7 + at / 4096) as u8).collect();
                    let file = File::create(&path).unwrap();
                    buffers.write(&file, &bytes).unwrap();
                    assert!(std::fs::read(&path).unwrap() == bytes, "{len}");
                });
            }
        });
    }
}
