//! Memory that the kernel may be asked to write to: page-aligned, zeroed when new, and always
//! owned by exactly one value.
//!
//! An operation takes its [`Buf`] by value and gives it back when the kernel is done, so no safe
//! code can look at bytes that are being changed. Parts of one buffer can be in several
//! operations at once because a [`Buf`] can be split into parts that do not overlap.

use std::fmt;
use std::mem::ManuallyDrop;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::Arc;

use crate::aligned::{AlignedMemory, BUF_ALIGN};
use crate::pool::ledger::Region;

/// An owned, unaliased range of page-aligned memory.
///
/// Invariant: the ranges `[start, start + capacity)` of all live `Buf`s of one region are disjoint,
/// and `len <= capacity`.
pub struct Buf {
    /// There until the value is dropped.
    region: ManuallyDrop<Arc<Region>>,
    start: usize,
    len: usize,
    capacity: usize,
}

impl Buf {
    /// A zeroed buffer of its own, not counted by any pool; `None` where memory is short.
    pub fn allocate(len: usize) -> Option<Buf> {
        let capacity = len.max(1).checked_next_multiple_of(BUF_ALIGN)?;
        let region = Region::new(AlignedMemory::allocate(capacity)?);
        Some(Buf::from_region(Arc::new(region), len))
    }

    /// The same for memory of which most may never be touched: it costs what is touched, a page at
    /// a time, also where the kernel would rather give huge ones.
    pub fn allocate_untouched(len: usize) -> Option<Buf> {
        let mut buf = Buf::allocate(len)?;
        let (start, bytes) = (buf.raw(), buf.capacity());
        // SAFETY: the range is this buffer's, in whole pages; the advice changes no content.
        let advised = unsafe {
            rustix::mm::madvise(start.cast(), bytes, rustix::mm::Advice::LinuxNoHugepage)
        };
        if let Err(error) = advised {
            // A kernel without huge pages refuses, and needs no advice.
            tracing::trace!(%error, "no advice on huge pages");
        }
        Some(buf)
    }

    /// Memory from elsewhere: registered with a network card, shared with another process. `owner`
    /// is dropped when the last part of it is.
    ///
    /// # Safety
    ///
    /// The `len` bytes from `start` on are initialised, aligned to [`BUF_ALIGN`] and valid for
    /// reads and writes, and nothing else reads or writes them until `owner` is dropped.
    pub unsafe fn from_foreign(start: NonNull<u8>, len: usize, owner: Box<dyn Send + Sync>) -> Buf {
        let region = Region::new(AlignedMemory::from_foreign(start, len, owner));
        Buf::from_region(Arc::new(region), len)
    }

    /// The whole of a region, of which there is no other part, showing its first `len` bytes.
    #[inline]
    pub(crate) fn from_region(region: Arc<Region>, len: usize) -> Buf {
        let capacity = region.capacity();
        assert!(len <= capacity, "{len} bytes do not fit in {capacity}");
        Buf {
            region: ManuallyDrop::new(region),
            start: 0,
            len,
            capacity,
        }
    }

    /// The region it is a part of.
    pub(crate) fn region(&self) -> &Region {
        &self.region
    }

    /// Cuts the first `at` bytes off and returns them; `self` keeps the rest.
    pub fn split_to(&mut self, at: usize) -> Buf {
        assert!(at <= self.len, "split at {at} of {} bytes", self.len);
        let region = ManuallyDrop::new(Arc::clone(&self.region));
        let front = Buf {
            region,
            start: self.start,
            len: at,
            capacity: at,
        };
        self.start += at;
        self.len -= at;
        self.capacity -= at;
        front
    }

    /// Puts `next` behind `self` again, from which it was split; gives both back where they are
    /// not neighbours of one region.
    pub fn join(mut self, next: Buf) -> Result<Buf, (Buf, Buf)> {
        let neighbours = Arc::ptr_eq(&self.region, &next.region)
            && self.len == self.capacity
            && self.start + self.capacity == next.start;
        if !neighbours {
            return Err((self, next));
        }
        self.len += next.len;
        self.capacity += next.capacity;
        Ok(self)
    }

    /// Shows only the first `len` bytes.
    #[inline]
    pub fn truncate(&mut self, len: usize) {
        self.len = self.len.min(len);
    }

    /// Shows the first `len` bytes of its capacity, with whatever is in them. `len` is at most
    /// [`Buf::capacity`].
    #[inline]
    pub fn set_len(&mut self, len: usize) {
        assert!(
            len <= self.capacity,
            "showing {len} of {} bytes",
            self.capacity
        );
        self.len = len;
    }

    /// How long [`Buf::pad_to`] could make it.
    #[inline]
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// Grows to `len` bytes, the new ones zero. `len` is at most [`Buf::capacity`].
    pub fn pad_to(&mut self, len: usize) {
        assert!(
            len <= self.capacity,
            "padding to {len} of {} bytes",
            self.capacity
        );
        let old = self.len;
        self.len = self.len.max(len);
        self[old..].fill(0);
    }

    #[inline]
    fn as_ptr(&self) -> *mut u8 {
        // SAFETY: `start + len <= capacity`, so the offset stays inside the allocation.
        unsafe { self.region.start().as_ptr().add(self.start) }
    }

    /// Where a device may read or write [`Buf::capacity`] bytes as long as `self` lives unused.
    #[inline]
    pub fn address(&self) -> u64 {
        self.as_ptr() as u64
    }

    /// Where the kernel may read or write `self.len()` bytes as long as `self` lives unused.
    pub(crate) fn raw(&mut self) -> *mut u8 {
        self.as_ptr()
    }
}

impl Drop for Buf {
    /// The last part gives its region back together with its `Arc`, which is reused too.
    #[inline]
    fn drop(&mut self) {
        // SAFETY: the value is being dropped, and its region is not looked at through it after this.
        let mut region = unsafe { ManuallyDrop::take(&mut self.region) };
        if Arc::get_mut(&mut region).is_some_and(|whole| whole.is_lent()) {
            Region::give_back(region);
        }
    }
}

impl Deref for Buf {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the range is inside the allocation and initialised (allocated zeroed), and by
        // the type's invariant only `self` reaches it; `&self` keeps writers away.
        unsafe { std::slice::from_raw_parts(self.as_ptr(), self.len) }
    }
}

impl DerefMut for Buf {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`, and `&mut self` makes this the only access.
        unsafe { std::slice::from_raw_parts_mut(self.as_ptr(), self.len) }
    }
}

impl fmt::Debug for Buf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Buf({} bytes)", self.len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_a_buffer_are_disjoint_and_keep_it_alive() {
        let mut whole = Buf::allocate(10_000).unwrap();
        whole.fill(7);
        let mut front = whole.split_to(512);
        front.fill(1);
        assert_eq!(
            (front.len(), front.capacity(), whole.len()),
            (512, 512, 9488)
        );
        assert!(whole.iter().all(|&byte| byte == 7));
        drop(whole);
        assert!(front.iter().all(|&byte| byte == 1));
    }

    #[test]
    fn neighbours_join_and_strangers_do_not() {
        let mut rest = Buf::allocate(4096).unwrap();
        rest.fill(3);
        let first = rest.split_to(512);
        let second = rest.split_to(1024);
        let (first, rest) = first.join(rest).unwrap_err();
        let whole = first.join(second).unwrap().join(rest).unwrap();
        assert_eq!((whole.len(), whole.capacity()), (4096, 4096));
        assert!(whole.iter().all(|&byte| byte == 3));
        assert!(whole.join(Buf::allocate(1).unwrap()).is_err());
    }

    #[test]
    fn a_large_buffer_that_is_not_touched_costs_no_memory() {
        let resident = || {
            let text = std::fs::read_to_string("/proc/self/statm").unwrap();
            text.split(' ').nth(1).unwrap().parse::<usize>().unwrap() * 4096
        };
        let before = resident();
        let buf = Buf::allocate(256 << 20).unwrap();
        let grown = resident().saturating_sub(before);
        assert!(grown < 64 << 20, "{grown} bytes");
        drop(buf);
    }

    #[test]
    fn a_new_buffer_is_aligned_and_zero() {
        let buf = Buf::allocate(1).unwrap();
        assert_eq!(buf.as_ptr() as usize % BUF_ALIGN, 0);
        assert_eq!(*buf, [0]);
    }

    #[test]
    fn padding_shows_zeroes_whatever_was_there() {
        let mut buf = Buf::allocate(4096).unwrap();
        buf.fill(9);
        buf.truncate(512);
        buf.pad_to(4096);
        assert!(buf[..512].iter().all(|&byte| byte == 9));
        assert!(buf[512..].iter().all(|&byte| byte == 0));
    }

    #[test]
    fn memory_from_elsewhere_goes_back_with_its_last_part() {
        let own = Arc::new(Buf::allocate(8192).unwrap());
        let start = NonNull::new(own.as_ptr()).unwrap();
        // SAFETY: the memory is that of `own`, which nothing uses while its owner lives.
        let mut buf = unsafe { Buf::from_foreign(start, 8192, Box::new(Arc::clone(&own))) };
        buf.fill(5);
        let front = buf.split_to(4096);
        drop(buf);
        assert_eq!(Arc::strong_count(&own), 2);
        assert!(front.iter().all(|&byte| byte == 5));
        drop(front);
        assert_eq!(Arc::strong_count(&own), 1);
    }

    #[test]
    fn what_was_hidden_can_be_shown_again_as_it_was() {
        let mut buf = Buf::allocate(4096).unwrap();
        buf.fill(9);
        buf.truncate(512);
        buf.set_len(4096);
        assert!(buf.iter().all(|&byte| byte == 9));
    }

    #[test]
    #[should_panic(expected = "padding to 513")]
    fn padding_never_reaches_into_another_part() {
        let mut whole = Buf::allocate(4096).unwrap();
        whole.split_to(512).pad_to(513);
    }
}
