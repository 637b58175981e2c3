//! Memory that the kernel may be told to write to: page-aligned, zeroed when new, and always
//! owned by exactly one value.
//!
//! An operation takes its [`Buf`] by value and gives it back when the kernel is done, so no safe
//! code can look at bytes that are being changed. Parts of one buffer can be in several
//! operations at once because a [`Buf`] can be split into parts that do not overlap.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::fmt;
use std::mem::ManuallyDrop;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::Arc;

use crate::pool::Home;

/// Alignment of every buffer, enough for direct I/O on all known devices.
pub const BUF_ALIGN: usize = 4096;

#[cfg(test)]
thread_local! {
    /// Plays an allocator that has nothing left.
    pub(crate) static NO_MEMORY: std::cell::Cell<bool> = const { std::cell::Cell::new(false) };
}

/// A page-aligned allocation. It goes back to its pool, or to the allocator, when dropped.
pub(crate) struct Region {
    /// What the allocator gave.
    base: NonNull<u8>,
    /// The first aligned byte of it.
    start: NonNull<u8>,
    capacity: usize,
    home: Option<Home>,
    /// Who frees it, where that is neither a pool nor the allocator.
    owner: Option<Box<dyn Send + Sync>>,
}

// SAFETY: a region is plain memory without thread affinity; access goes through the parts.
unsafe impl Send for Region {}
// SAFETY: no method reads or writes the bytes through a shared region; see `Buf`.
unsafe impl Sync for Region {}

impl Region {
    /// Zeroed memory of `capacity` bytes, a multiple of [`BUF_ALIGN`] above zero; `None` where
    /// the allocator has none left.
    pub(crate) fn allocate(capacity: usize) -> Option<Region> {
        assert!(
            capacity > 0 && capacity.is_multiple_of(BUF_ALIGN),
            "capacity {capacity}"
        );
        #[cfg(test)]
        if NO_MEMORY.get() {
            return None;
        }
        // SAFETY: the layout's size is above zero, as asserted.
        let base = NonNull::new(unsafe { alloc_zeroed(Self::layout(capacity)?) })?;
        let skip = base.as_ptr().align_offset(BUF_ALIGN);
        assert!(skip <= BUF_ALIGN, "bytes can always be aligned");
        // SAFETY: the allocation has `BUF_ALIGN` bytes more than `capacity`, and `skip` is at
        // most that.
        let start = unsafe { base.add(skip) };
        Some(Region {
            base,
            start,
            capacity,
            home: None,
            owner: None,
        })
    }

    /// Room for aligning by hand: asked for aligned memory, the allocator would zero it by
    /// writing to every page, and large buffers that are never used would cost memory.
    fn layout(capacity: usize) -> Option<Layout> {
        Layout::array::<u64>(capacity.checked_add(BUF_ALIGN)? / size_of::<u64>()).ok()
    }

    pub(crate) fn capacity(&self) -> usize {
        self.capacity
    }

    pub(crate) fn home(&self) -> Option<&Home> {
        self.home.as_ref()
    }

    /// Where the region returns to, instead of to the allocator, when it is dropped.
    pub(crate) fn home_mut(&mut self) -> &mut Option<Home> {
        &mut self.home
    }
}

impl Drop for Region {
    /// Whoever drops the last part mostly gives the region back before (`Buf::drop`); not so where
    /// two parts go at once on two threads, and neither is the last.
    fn drop(&mut self) {
        if let Some(home) = self.home.take() {
            let same = Region {
                base: self.base,
                start: self.start,
                capacity: self.capacity,
                home: None,
                owner: None,
            };
            home.take_back(Arc::new(same));
            return;
        }
        if self.owner.take().is_some() {
            // It has freed the memory, or has it again.
            return;
        }
        let layout = Self::layout(self.capacity).expect("the same layout was valid at allocation");
        // SAFETY: `base` came from `alloc_zeroed` with this layout, and a region without a
        // home is the only owner of its memory.
        unsafe { dealloc(self.base.as_ptr(), layout) };
    }
}

/// An owned, unaliased range of page-aligned memory.
///
/// Invariant: the ranges `[start, start + room)` of all live `Buf`s of one region are disjoint,
/// and `len <= room`.
pub struct Buf {
    /// There until the value is dropped.
    region: ManuallyDrop<Arc<Region>>,
    start: usize,
    len: usize,
    room: usize,
}

impl Buf {
    /// A zeroed buffer of its own, not counted by any pool; `None` where memory is short.
    pub fn allocate(len: usize) -> Option<Buf> {
        let capacity = len.max(1).checked_next_multiple_of(BUF_ALIGN)?;
        Some(Buf::whole(Arc::new(Region::allocate(capacity)?), len))
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
    /// reads and writes, and nobody else reads or writes them until `owner` is dropped.
    pub unsafe fn from_foreign(start: NonNull<u8>, len: usize, owner: Box<dyn Send + Sync>) -> Buf {
        assert_eq!(
            start.addr().get() % BUF_ALIGN,
            0,
            "memory for direct I/O is aligned"
        );
        let region = Region {
            base: start,
            start,
            capacity: len,
            home: None,
            owner: Some(owner),
        };
        Buf::whole(Arc::new(region), len)
    }

    /// The whole of a region, of which there is no other part, showing its first `len` bytes.
    #[inline]
    pub(crate) fn whole(region: Arc<Region>, len: usize) -> Buf {
        let room = region.capacity();
        assert!(len <= room, "{len} bytes do not fit in {room}");
        Buf {
            region: ManuallyDrop::new(region),
            start: 0,
            len,
            room,
        }
    }

    pub(crate) fn has_owner(&self) -> bool {
        self.region.owner.is_some()
    }

    pub(crate) fn home(&self) -> Option<&Home> {
        self.region.home.as_ref()
    }

    /// Cuts the first `at` bytes off and returns them; `self` keeps the rest.
    pub fn split_to(&mut self, at: usize) -> Buf {
        assert!(at <= self.len, "split at {at} of {} bytes", self.len);
        let region = ManuallyDrop::new(Arc::clone(&self.region));
        let front = Buf {
            region,
            start: self.start,
            len: at,
            room: at,
        };
        self.start += at;
        self.len -= at;
        self.room -= at;
        front
    }

    /// Puts `next` behind `self` again, from which it was split; gives both back where they are
    /// not neighbours of one region.
    pub fn join(mut self, next: Buf) -> Result<Buf, (Buf, Buf)> {
        let neighbours = Arc::ptr_eq(&self.region, &next.region)
            && self.len == self.room
            && self.start + self.room == next.start;
        if !neighbours {
            return Err((self, next));
        }
        self.len += next.len;
        self.room += next.room;
        Ok(self)
    }

    /// Shows only the first `len` bytes.
    #[inline]
    pub fn truncate(&mut self, len: usize) {
        self.len = self.len.min(len);
    }

    /// Shows the first `len` bytes of its room, with whatever is in them. `len` is at most
    /// [`Buf::capacity`].
    #[inline]
    pub fn set_len(&mut self, len: usize) {
        assert!(len <= self.room, "showing {len} of {} bytes", self.room);
        self.len = len;
    }

    /// How long [`Buf::pad_to`] could make it.
    #[inline]
    pub fn capacity(&self) -> usize {
        self.room
    }

    /// Grows to `len` bytes, the new ones zero. `len` is at most [`Buf::capacity`].
    pub fn pad_to(&mut self, len: usize) {
        assert!(len <= self.room, "padding to {len} of {} bytes", self.room);
        let old = self.len;
        self.len = self.len.max(len);
        self[old..].fill(0);
    }

    #[inline]
    fn as_ptr(&self) -> *mut u8 {
        // SAFETY: `start + len <= capacity`, so the offset stays inside the allocation.
        unsafe { self.region.start.as_ptr().add(self.start) }
    }

    /// Where a driver may read or write [`Buf::capacity`] bytes as long as `self` lives unused.
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
    /// The last part gives its region back as it is: what counts the parts is used again, too.
    #[inline]
    fn drop(&mut self) {
        // SAFETY: the value is being dropped, and its region is not looked at through it after this.
        let mut region = unsafe { ManuallyDrop::take(&mut self.region) };
        if Arc::get_mut(&mut region).is_some_and(|whole| whole.home.is_some()) {
            Home::take_back_settled(region);
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
        // SAFETY: the memory is that of `own`, which nobody uses while its owner lives.
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
