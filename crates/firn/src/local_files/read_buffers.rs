//! Memory for what the engine reads from its files: aligned for direct I/O, and used again.
//!
//! A buffer goes to the engine as it is and comes back when the last of its readers lets go of it. New memory for
//! each read of a megabyte has to be found, cleared and given back, which takes longer than the read itself when the disk is fast. A
//! reader sees only what the read has filled: whoever takes a buffer fills all of it or drops it.

use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;

/// Alignment of memory for direct I/O, in bytes: enough for every file that `create` accepts.
pub(super) const ALIGN: usize = 4096;
/// Shorter reads get new memory: the allocator has it at hand.
const KEPT_MIN: usize = 64 << 10;
/// Bytes of all buffers that are kept while nobody uses them.
const KEPT_BYTES: usize = 16 << 20;
/// A buffer is used for a read that fills at least one in so many parts of it.
const WASTE_MAX: usize = 4;

/// The buffers that nobody uses now.
#[derive(Debug, Default)]
pub(crate) struct ReadBuffers {
    free: Mutex<Vec<Vec<u8>>>,
}

/// A buffer that somebody uses.
pub(super) struct ReadBuffer {
    memory: Vec<u8>,
    start: usize,
    len: usize,
    home: Arc<ReadBuffers>,
}

impl ReadBuffers {
    /// A buffer with this length. What stands in it is void.
    pub(super) fn take(self: &Arc<Self>, len: usize) -> ReadBuffer {
        let memory = self.find(len + ALIGN);
        let memory = memory.unwrap_or_else(|| vec![0; len + ALIGN]);
        ReadBuffer {
            start: memory.as_ptr().align_offset(ALIGN),
            memory,
            len,
            home: Arc::clone(self),
        }
    }

    fn find(&self, len: usize) -> Option<Vec<u8>> {
        let mut free = self.lock();
        let fits = |memory: &Vec<u8>| (len..=len.saturating_mul(WASTE_MAX)).contains(&memory.len());
        let nth = free.iter().rposition(fits)?;
        Some(free.swap_remove(nth))
    }

    fn give_back(&self, memory: Vec<u8>) {
        let mut free = self.lock();
        let kept: usize = free.iter().map(Vec::len).sum();
        if memory.len() >= KEPT_MIN && kept + memory.len() <= KEPT_BYTES {
            free.push(memory);
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<Vec<u8>>> {
        // Whole buffers are put in and taken out.
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ReadBuffer {
    pub(super) fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.memory[self.start..self.start + self.len]
    }

    /// All of it was filled.
    pub(super) fn into_bytes(self) -> Bytes {
        Bytes::from_owner(self)
    }
}

impl AsRef<[u8]> for ReadBuffer {
    fn as_ref(&self) -> &[u8] {
        &self.memory[self.start..self.start + self.len]
    }
}

impl Drop for ReadBuffer {
    fn drop(&mut self) {
        self.home.give_back(std::mem::take(&mut self.memory));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kept(buffers: &ReadBuffers) -> usize {
        buffers.lock().iter().map(Vec::len).sum()
    }

    #[test]
    fn a_buffer_is_aligned_and_comes_back_with_its_last_reader() {
        let buffers = Arc::new(ReadBuffers::default());
        let mut buffer = buffers.take(1 << 20);
        assert!(buffer.bytes_mut().as_ptr().addr().is_multiple_of(ALIGN));
        buffer.bytes_mut().fill(7);
        let first = buffer.bytes_mut().as_ptr();
        let bytes = buffer.into_bytes();
        let part = bytes.slice(4096..8192);
        drop(bytes);
        assert_eq!((part[0], part.len(), kept(&buffers)), (7, 4096, 0));
        drop(part);
        // A shorter read gets the same one, with its own length.
        let mut again = buffers.take(512 << 10);
        assert_eq!(
            (again.bytes_mut().as_ptr(), again.as_ref().len()),
            (first, 512 << 10)
        );
    }

    #[test]
    fn no_more_is_kept_than_the_bound_and_no_small_buffer() {
        let buffers = Arc::new(ReadBuffers::default());
        let many: Vec<_> = (0..40).map(|_| buffers.take(1 << 20)).collect();
        drop(many);
        assert!((KEPT_BYTES / 2..=KEPT_BYTES).contains(&kept(&buffers)));
        let before = kept(&buffers);
        drop(buffers.take(4096));
        assert_eq!(kept(&buffers), before);
        // A large buffer is not held by a small read.
        assert_eq!(buffers.take(128 << 10).memory.len(), (128 << 10) + ALIGN);
    }
}
