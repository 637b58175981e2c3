//! The process's heap, kept where it is: what a thread would have to ask the kernel for while memory is
//! short, it may have to wait for, and every thread that needs a page or a mapping waits behind it.
//!
//! Of use to a process that has to go on while memory is short, because it is what frees memory: a server
//! whose disks have swap or busy file systems on them. This file only gives the allocator its policy.

/// What one allocation of the reserve is: far below what the allocator maps by itself.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
const BLOCK_BYTES: usize = 64 << 10;

/// Has the allocator keep what is freed instead of giving it back to the kernel, and take `bytes` now. It
/// keeps one arena for all threads: with many, each grows by itself, and what one frees is of no use to
/// another. A page of the reserve is written once, so it is present, and locked where this process locks its
/// memory. False where the allocator takes no such advice.
///
/// Must be called before the process has other threads: an arena that a thread has stays its own.
pub fn reserve_heap(bytes: usize) -> bool {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    {
        const POLICY: [(i32, i32); 4] = [
            (libc::M_ARENA_MAX, 1),
            // The largest that is accepted: what is larger is mapped by itself, and unmapped when freed.
            (libc::M_MMAP_THRESHOLD, 32 << 20),
            (libc::M_TRIM_THRESHOLD, i32::MAX),
            (libc::M_TOP_PAD, 1 << 20),
        ];
        for (parameter, value) in POLICY {
            // SAFETY: mallopt changes a parameter of the allocator and touches no memory of ours.
            if unsafe { libc::mallopt(parameter, value) } != 1 {
                return false;
            }
        }
        let blocks = (0..bytes.div_ceil(BLOCK_BYTES)).map(|_| vec![1_u8; BLOCK_BYTES]);
        drop(std::hint::black_box(blocks.collect::<Vec<_>>()));
        true
    }
    #[cfg(not(all(target_os = "linux", target_env = "gnu")))]
    {
        let _ = bytes;
        false
    }
}
