//! Copy: the driver copies between a request's pages and a buffer of its tag.
//!
//! FETCH and COMMIT_AND_FETCH name the buffer. While the driver has the tag the buffer stays here and
//! is not accessed, because the driver may write to it at any time. It travels with the request and
//! comes back with the answer. Each buffer is as large as the largest request, but memory that was
//! never touched costs nothing (R5 as far as this mode can keep it). Buffers are cut from a few large
//! mappings: a mapping for each would cost a page and a system call apiece, also when it is unmapped.

use reactor::Buf;

use crate::queue::request::Data;

/// Bytes of a mapping that buffers are cut from. A larger buffer has a mapping of its own.
const MAPPING_BYTES: usize = 64 << 20;

/// A tag's buffer.
#[derive(Default)]
struct TagBuffer {
    /// `None` while its request has it.
    buf: Option<Buf>,
    /// Its address, which identifies it when it comes back; zero before there is one.
    address: u64,
}

pub(in crate::queue) struct CopyBuffers {
    bytes: usize,
    by_tag: Vec<TagBuffer>,
    /// The rest of a mapping that buffers are cut from.
    unused: Option<Buf>,
    /// Tags that had no buffer so far.
    tags_without: usize,
}

impl CopyBuffers {
    /// Buffers for the `tags` that are served here, of a queue that has `depth`.
    pub(super) fn new(depth: u16, tags: usize, io_bytes_max: u32) -> CopyBuffers {
        CopyBuffers {
            bytes: io_bytes_max.max(1) as usize,
            by_tag: (0..depth).map(|_| TagBuffer::default()).collect(),
            unused: None,
            tags_without: tags,
        }
    }

    /// The address of the tag's buffer, which holds the first `read` bytes of `buf`. `None` where
    /// memory is short.
    #[inline(always)]
    pub(super) fn address(&mut self, tag: u16, buf: Option<Buf>, read: usize) -> Option<u64> {
        let own = &mut self.by_tag[usize::from(tag)];
        match buf {
            None if own.buf.is_some() => Some(own.address),
            Some(buf) if buf.address() == own.address && buf.capacity() >= self.bytes => {
                own.buf = Some(buf);
                Some(own.address)
            }
            // A handler that answers with another buffer costs a copy.
            other => self.replace(tag, other, read),
        }
    }

    #[cold]
    fn replace(&mut self, tag: u16, other: Option<Buf>, read: usize) -> Option<u64> {
        let mut buf = match self.by_tag[usize::from(tag)].buf.take() {
            Some(buf) => buf,
            None => self.cut_buffer()?,
        };
        if let Some(other) = other {
            buf.set_len(read);
            buf.copy_from_slice(&other[..read]);
        }
        let own = &mut self.by_tag[usize::from(tag)];
        own.address = buf.address();
        own.buf = Some(buf);
        Some(own.address)
    }

    /// Cuts a new buffer from a mapping.
    fn cut_buffer(&mut self) -> Option<Buf> {
        if self.unused.is_none() {
            let count = (MAPPING_BYTES / self.bytes).min(self.tags_without).max(1);
            self.unused = Some(Buf::allocate_untouched(count * self.bytes)?);
        }
        self.tags_without = self.tags_without.saturating_sub(1);
        let rest = self.unused.as_mut()?;
        if rest.len() <= self.bytes {
            return self.unused.take();
        }
        Some(rest.split_to(self.bytes))
    }

    /// Takes back the buffer of a request that is not committed.
    pub(super) fn put_back(&mut self, tag: u16, buf: Buf) {
        let own = &mut self.by_tag[usize::from(tag)];
        if buf.address() == own.address && buf.capacity() >= self.bytes {
            own.buf = Some(buf);
        }
    }

    /// The tag's buffer for a request of so many bytes.
    #[inline(always)]
    pub(in crate::queue) fn take(&mut self, tag: u16, bytes: u32) -> Data {
        if bytes == 0 {
            return Data::None;
        }
        let Some(mut buf) = self.by_tag[usize::from(tag)].buf.take() else {
            return Data::None;
        };
        buf.set_len(bytes as usize);
        Data::Buffer(buf)
    }

    /// Takes every buffer that the driver may know.
    pub(super) fn take_driver_buffers(&mut self) -> Vec<Buf> {
        let own = self.by_tag.iter_mut();
        own.filter_map(|own| own.buf.take()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BYTES: u32 = 1 << 20;

    #[test]
    fn buffers_are_disjoint_and_each_tag_keeps_its_own() {
        let mut buffers = CopyBuffers::new(130, 130, BYTES);
        let first: Vec<u64> = (0..130)
            .map(|tag| buffers.address(tag, None, 0).expect("memory"))
            .collect();
        let mut sorted = first.clone();
        sorted.sort_unstable();
        let apart = |pair: &[u64]| pair[1] - pair[0] >= u64::from(BYTES);
        assert!(sorted.windows(2).all(apart));
        for tag in 0..130 {
            let Data::Buffer(buf) = buffers.take(tag, 512) else {
                panic!("tag {tag} has no buffer")
            };
            assert_eq!((buf.len(), buf.capacity()), (512, BYTES as usize));
            let again = buffers.address(tag, Some(buf), 0);
            assert_eq!(again, Some(first[usize::from(tag)]));
        }
        assert_eq!(buffers.take_driver_buffers().len(), 130);
    }

    #[test]
    fn a_buffer_of_somebody_elses_is_copied_from_and_given_back() {
        let mut buffers = CopyBuffers::new(1, 1, BYTES);
        let own = buffers.address(0, None, 0).expect("memory");
        let pool = reactor::BufferPool::new(4 << 20, 4096).expect("memory");
        let mut large = pool
            .take(2 << 20, reactor::BufferPurpose::Fresh)
            .expect("lent");
        large.fill(7);
        // Not dropped, because a new mapping could get its address.
        let Data::Buffer(_lost) = buffers.take(0, 4096) else {
            panic!("no buffer")
        };
        let replaced = buffers.address(0, Some(large), 4096).expect("memory");
        assert_ne!(replaced, own, "its own was lost");
        assert_eq!(pool.stats().lent, 0, "an idle tag keeps what is the pool's");
        let Data::Buffer(buf) = buffers.take(0, 4096) else {
            panic!("no buffer")
        };
        assert!(buf.iter().all(|&byte| byte == 7));
        assert_eq!(buf.capacity(), BYTES as usize);
    }

    #[test]
    fn what_is_mapped_and_not_touched_costs_no_memory() {
        let resident = || {
            let text = std::fs::read_to_string("/proc/self/statm").expect("procfs");
            let pages = text.split(' ').nth(1).expect("a second number");
            pages.parse::<usize>().expect("a number") * 4096
        };
        let before = resident();
        let mut buffers = CopyBuffers::new(4096, 4096, BYTES);
        for tag in 0..4096 {
            assert!(buffers.address(tag, None, 0).is_some());
        }
        let grown = resident().saturating_sub(before);
        assert!(grown < 64 << 20, "{grown} bytes for 4 GiB of room");
    }
}
