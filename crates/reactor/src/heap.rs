//! The process's heap and its program, kept where they are: what a thread would have to ask the kernel for while memory is
//! short, it may have to wait for, and every thread that needs a page or a mapping waits behind it.
//!
//! Of use to a process that has to go on while memory is short, because it is what frees memory: a server
//! whose disks have swap or busy file systems on them. This file only gives the allocator its policy, and has pages
//! be present.

use std::io;

use rustix::mm::Advice;

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

/// Has every page of the program and its libraries be present, and locked where this process locks what it touches.
/// What is only reserved takes no memory.
///
/// # Errors
/// The kernel's, of the first mapping that it refuses; before Linux 5.14 it knows no such advice.
pub fn populate_program() -> io::Result<()> {
    let maps = std::fs::read_to_string("/proc/self/maps")?;
    maps.lines()
        .filter_map(program_range)
        .try_for_each(|range| {
            let start = std::ptr::with_exposed_provenance_mut(range.start);
            // SAFETY: the advice makes pages present that may be read, and changes nothing in them. Programs and libraries
            // stay mapped.
            Ok(unsafe { rustix::mm::madvise(start, range.len(), Advice::LinuxPopulateRead) }?)
        })
}

/// The addresses of a mapping that a program or library has; see proc_pid_maps(5).
fn program_range(line: &str) -> Option<std::ops::Range<usize>> {
    let mut fields = line.split_whitespace();
    let (start, end) = fields.next()?.split_once('-')?;
    let is_private = fields.next()?.starts_with('r') && line.split(' ').nth(1)?.ends_with('p');
    let is_file = fields.nth(3)?.starts_with('/');
    let address = |text| usize::from_str_radix(text, 16).ok();
    (is_private && is_file).then_some(address(start)?..address(end)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mappings_of_programs_are_told_from_memory_and_from_shared_files() {
        let program = "5581a000-5581c000 r-xp 00002000 08:01 42   /usr/bin/firn";
        assert_eq!(program_range(program), Some(0x5581_a000..0x5581_c000));
        for other in [
            "5581a000-5581c000 rw-p 00000000 00:00 0 ",
            "5581a000-5581c000 rw-p 00000000 00:00 0    [heap]",
            "5581a000-5581c000 rw-s 00000000 00:1a 42   /dev/shm/ring",
            "5581a000-5581c000 ---p 00002000 08:01 42   /usr/lib/libc.so.6",
            "",
        ] {
            assert_eq!(program_range(other), None, "{other}");
        }
        if let Err(error) = populate_program() {
            println!("skipped: MADV_POPULATE_READ: {error}");
        }
    }
}
