//! Page-aligned memory from the allocator or from elsewhere.
//!
//! This file only allocates and frees. [`crate::Buf`] decides what may touch the bytes, and the pool
//! where memory goes after its last use.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ptr::NonNull;

/// Alignment of every buffer, enough for direct I/O on all known devices.
pub const BUF_ALIGN: usize = 4096;

#[cfg(test)]
thread_local! {
    /// Makes this thread's allocations fail.
    pub(crate) static NO_MEMORY: std::cell::Cell<bool> = const { std::cell::Cell::new(false) };
}

/// Memory aligned to [`BUF_ALIGN`], freed when dropped.
pub(crate) struct AlignedMemory {
    /// What the allocator gave.
    base: NonNull<u8>,
    /// The first aligned byte of it.
    start: NonNull<u8>,
    capacity: usize,
    /// What frees it, where that is not the allocator.
    owner: Option<Box<dyn Send + Sync>>,
}

// SAFETY: it is plain memory without thread affinity; access goes through `Buf`.
unsafe impl Send for AlignedMemory {}
// SAFETY: no method reads or writes the bytes; see `Buf`.
unsafe impl Sync for AlignedMemory {}

impl AlignedMemory {
    /// Zeroed memory of `capacity` bytes, a multiple of [`BUF_ALIGN`] above zero; `None` where
    /// the allocator has none left.
    pub(crate) fn allocate(capacity: usize) -> Option<AlignedMemory> {
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
        Some(AlignedMemory {
            base,
            start,
            capacity,
            owner: None,
        })
    }

    /// Memory from elsewhere, which `owner` frees when it is dropped.
    pub(crate) fn from_foreign(
        start: NonNull<u8>,
        len: usize,
        owner: Box<dyn Send + Sync>,
    ) -> AlignedMemory {
        assert_eq!(
            start.addr().get() % BUF_ALIGN,
            0,
            "memory for direct I/O is aligned"
        );
        AlignedMemory {
            base: start,
            start,
            capacity: len,
            owner: Some(owner),
        }
    }

    /// The layout leaves space for aligning here: asked for aligned memory, the allocator would zero
    /// it by writing to every page, and large buffers that are never used would cost memory.
    fn layout(capacity: usize) -> Option<Layout> {
        Layout::array::<u64>(capacity.checked_add(BUF_ALIGN)? / size_of::<u64>()).ok()
    }

    #[inline]
    pub(crate) fn start(&self) -> NonNull<u8> {
        self.start
    }

    #[inline]
    pub(crate) fn capacity(&self) -> usize {
        self.capacity
    }

    /// Whether it is from elsewhere.
    pub(crate) fn is_foreign(&self) -> bool {
        self.owner.is_some()
    }
}

impl Drop for AlignedMemory {
    fn drop(&mut self) {
        if self.owner.take().is_some() {
            // The owner has freed the memory, or uses it again.
            return;
        }
        let layout = Self::layout(self.capacity).expect("the same layout was valid at allocation");
        // SAFETY: `base` came from `alloc_zeroed` with this layout, and this value is the only
        // owner of its memory.
        unsafe { dealloc(self.base.as_ptr(), layout) };
    }
}
