//! Files as memory, and what a file asks of direct I/O: the index ring's words, anonymous
//! memory files, and the alignment query.

use std::ffi::CStr;
use std::fmt;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use rustix::fs::{AtFlags, FallocateFlags, MemfdFlags, StatxFlags};
use rustix::mm::{MapFlags, ProtFlags};

/// A file in memory (tmpfs or memfd) mapped shared and shown as atomic words.
///
/// Whatever a process stored is in the file when that process dies, without a system call and
/// without a page fault into a disk file system. The file must not be truncated while it is
/// mapped (its owner holds the cache directory's lock): touching a word beyond its end is fatal.
pub struct SharedWords {
    start: NonNull<u8>,
    bytes: usize,
    /// Whether the pages are locked; without it a host that swaps can make a store wait.
    locked: AtomicBool,
}

// SAFETY: the mapping has no thread affinity, and its words are only reached as atomics.
unsafe impl Send for SharedWords {}
// SAFETY: as above; atomics may be shared.
unsafe impl Sync for SharedWords {}

impl SharedWords {
    /// Maps the first `words` words of `file`, growing it where it is shorter, with every page
    /// present and, where the limits allow, locked.
    pub fn map(file: impl AsFd, words: usize) -> io::Result<SharedWords> {
        allocate(&file, bytes_of(words)?)?;
        let words = SharedWords::map_pages(file, words, MapFlags::POPULATE)?;
        words.lock();
        Ok(words)
    }

    /// Has every page present and, where the limits allow, locked.
    pub fn lock(&self) {
        // SAFETY: the range is mapped as long as `self` lives. Locking changes no content.
        let locked = unsafe { rustix::mm::mlock(self.start.as_ptr().cast(), self.bytes) };
        self.locked.store(locked.is_ok(), Ordering::Relaxed);
    }

    /// The same for a file that [`map`](SharedWords::map) made as long as this, and of which little is read: a page is mapped when it is
    /// touched, and none is locked.
    pub fn map_lazily(file: impl AsFd, words: usize) -> io::Result<SharedWords> {
        let bytes = bytes_of(words)?;
        // Its allocation may have been cut short. To look is quicker than to allocate what is there.
        if rustix::fs::fstat(&file)?.st_blocks.cast_unsigned() * 512 < bytes as u64 {
            allocate(&file, bytes)?;
        }
        SharedWords::map_pages(file, words, MapFlags::empty())
    }

    fn map_pages(file: impl AsFd, words: usize, flags: MapFlags) -> io::Result<SharedWords> {
        let bytes = bytes_of(words)?;
        // SAFETY: a fresh mapping at an address of the kernel's choice touches no memory of
        // ours; the result is owned by this value and unmapped once, in drop.
        let start = unsafe {
            rustix::mm::mmap(
                std::ptr::null_mut(),
                bytes,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED | flags,
                &file,
                0,
            )
        }?;
        let start = NonNull::new(start.cast::<u8>()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(SharedWords {
            start,
            bytes,
            locked: AtomicBool::new(false),
        })
    }

    /// The words.
    pub fn words(&self) -> &[AtomicU64] {
        // SAFETY: the mapping is `bytes` long, page-aligned, readable and writable until drop.
        // The kernel and other processes may change it at any time, which atomics allow.
        unsafe {
            std::slice::from_raw_parts(
                self.start.as_ptr().cast::<AtomicU64>(),
                self.bytes / size_of::<u64>(),
            )
        }
    }
}

fn bytes_of(words: usize) -> io::Result<usize> {
    let bytes = words.checked_mul(size_of::<u64>());
    let bytes = bytes.filter(|bytes| *bytes > 0);
    bytes.ok_or_else(|| io::ErrorKind::InvalidInput.into())
}

/// Allocating now turns a full tmpfs into an error here instead of a SIGBUS later.
fn allocate(file: impl AsFd, bytes: usize) -> io::Result<()> {
    Ok(rustix::fs::fallocate(
        file,
        FallocateFlags::empty(),
        0,
        bytes as u64,
    )?)
}

impl Drop for SharedWords {
    fn drop(&mut self) {
        // SAFETY: mapped once in `map` with this length; no borrow of the words can be left.
        let unmapped = unsafe { rustix::mm::munmap(self.start.as_ptr().cast(), self.bytes) };
        debug_assert!(unmapped.is_ok(), "the range is a mapping of ours");
    }
}

impl fmt::Debug for SharedWords {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedWords")
            .field("bytes", &self.bytes)
            .field("locked", &self.locked)
            .finish()
    }
}

/// An anonymous file in memory of `bytes` bytes, all zero. `name` shows up in /proc only.
pub fn memfd(name: &CStr, bytes: u64) -> io::Result<OwnedFd> {
    let file = rustix::fs::memfd_create(name, MemfdFlags::CLOEXEC)?;
    rustix::fs::ftruncate(&file, bytes)?;
    Ok(file)
}

/// What direct I/O on a file asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DioAlign {
    /// Alignment of memory, a power of two.
    pub memory: u32,
    /// Alignment of offset and length, a power of two.
    pub offset: u32,
}

impl DioAlign {
    /// For files read and written through the page cache.
    pub const NONE: DioAlign = DioAlign {
        memory: 1,
        offset: 1,
    };

    /// Asks the kernel (`STATX_DIOALIGN`, Linux 6.1). `None` where the file does not support
    /// direct I/O, or the kernel or file system does not say.
    pub fn of(file: impl AsFd) -> io::Result<Option<DioAlign>> {
        let stat = rustix::fs::statx(file, c"", AtFlags::EMPTY_PATH, StatxFlags::DIOALIGN)?;
        let reported = stat.stx_mask & StatxFlags::DIOALIGN.bits() != 0;
        let align = DioAlign {
            memory: stat.stx_dio_mem_align,
            offset: stat.stx_dio_offset_align,
        };
        let sane = align.memory.is_power_of_two() && align.offset.is_power_of_two();
        Ok((reported && sane).then_some(align))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::Ordering::Relaxed;

    #[test]
    fn words_stored_in_one_mapping_are_in_the_file_for_the_next() {
        let file = memfd(c"words", 0).unwrap();
        let first = SharedWords::map(&file, 1000).unwrap();
        assert_eq!(first.words().len(), 1000);
        first.words()[999].store(42, Relaxed);
        drop(first);
        let second = SharedWords::map(&file, 1000).unwrap();
        assert_eq!(second.words()[999].load(Relaxed), 42);
        assert_eq!(second.words()[0].load(Relaxed), 0);
    }

    #[test]
    fn no_words_and_too_many_words_are_refused() {
        let file = memfd(c"words", 0).unwrap();
        assert!(SharedWords::map(&file, 0).is_err());
        assert!(SharedWords::map(&file, usize::MAX).is_err());
    }

    #[test]
    fn direct_alignment_of_a_disk_file_is_a_power_of_two_where_it_is_known() {
        let file = tempfile::tempfile().unwrap();
        match DioAlign::of(&file).unwrap() {
            Some(align) => assert!(align.offset >= 512 && align.memory >= 1),
            None => println!("skipped: this file system does not report its direct I/O alignment"),
        }
    }
}
