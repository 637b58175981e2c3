//! The process's heap and its program, kept where they are: what a thread would have to ask the kernel for while memory is
//! short, it may have to wait for, and every thread that needs a page or a mapping waits behind it.
//!
//! Of use to a process that has to go on while memory is short, because it is what frees memory: a server
//! whose disks have swap or busy file systems on them. This file only gives the allocator its policy, and has pages
//! be present.

use std::io;
use std::ops::Range;

use rustix::mm::Advice;

/// What one allocation of the reserve is: below what the allocator maps by itself.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
const BLOCK_BYTES: usize = 8 << 20;

/// How much of it is made present at once: others that need a page meanwhile wait for less.
const STEP_BYTES: usize = 1 << 20;

/// A reserve of the heap that is not present yet.
#[derive(Debug, Default)]
#[must_use = "its pages are not present until it is filled"]
pub struct HeapReserve(Vec<Range<usize>>);

impl HeapReserve {
    /// Has every page of the reserve be present, and locked where this process locks what it touches. Other threads may use
    /// the heap meanwhile, the reserve as well.
    ///
    /// # Errors
    /// The kernel's; before Linux 5.14 it knows no such advice. The rest is present when it is used.
    pub fn fill(self) -> io::Result<()> {
        let steps = self.0.iter().flat_map(|range| {
            let starts = range.clone().step_by(STEP_BYTES);
            starts.map(|start| start..range.end.min(start + STEP_BYTES))
        });
        steps.for_each_advised(Advice::LinuxPopulateWrite)
    }
}

/// Whether the kernel makes pages present on advice.
#[must_use]
pub fn can_populate() -> bool {
    let byte = 0_u8;
    let at = (&raw const byte).addr();
    std::iter::once(whole_pages(at..at + 1))
        .for_each_advised(Advice::LinuxPopulateWrite)
        .is_ok()
}

trait AdvisedRanges: Iterator<Item = Range<usize>> + Sized {
    /// Gives the kernel one of the two advices that make pages present and change nothing in them.
    fn for_each_advised(mut self, advice: Advice) -> io::Result<()> {
        self.try_for_each(|range| {
            let start = std::ptr::with_exposed_provenance_mut(range.start);
            // SAFETY: the advice makes pages present that may be used so, and changes nothing in them; where nothing is mapped
            // any more, the kernel refuses.
            Ok(unsafe { rustix::mm::madvise(start, range.len(), advice) }?)
        })
    }
}

impl<I: Iterator<Item = Range<usize>>> AdvisedRanges for I {}

fn whole_pages(range: Range<usize>) -> Range<usize> {
    let page = rustix::param::page_size();
    range.start / page * page..range.end.next_multiple_of(page)
}

/// Has the allocator keep what is freed instead of giving it back to the kernel, and take `bytes` now. It
/// keeps one arena for all threads: with many, each grows by itself, and what one frees is of no use to
/// another. None where the allocator takes no such advice.
///
/// Must be called before the process has other threads: an arena that a thread has stays its own. The pages of the reserve
/// are to be made present by [`HeapReserve::fill`], at any time: a page costs several times as much if it is not there
/// when it is touched.
pub fn reserve_heap(bytes: usize) -> Option<HeapReserve> {
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
                return None;
            }
        }
        let blocks =
            (0..bytes.div_ceil(BLOCK_BYTES)).map(|_| Vec::<u8>::with_capacity(BLOCK_BYTES));
        // All are there together, so each is another one, and all are part of the heap when they are free.
        let blocks = std::hint::black_box(blocks.collect::<Vec<_>>());
        let range = |block: &Vec<u8>| {
            let start = block.as_ptr().expose_provenance();
            whole_pages(start..start + block.capacity())
        };
        Some(HeapReserve(blocks.iter().map(range).collect()))
    }
    #[cfg(not(all(target_os = "linux", target_env = "gnu")))]
    {
        let _ = bytes;
        None
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
        .for_each_advised(Advice::LinuxPopulateRead)
}

/// The addresses of a mapping that a program or library has; see proc_pid_maps(5).
fn program_range(line: &str) -> Option<Range<usize>> {
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
    fn a_reserve_is_filled_while_the_heap_is_in_use() {
        let Some(reserve) = reserve_heap(16 << 20) else {
            return println!("skipped: the allocator takes no advice");
        };
        if !can_populate() {
            return println!("skipped: the kernel makes no page present on advice");
        }
        std::thread::scope(|scope| {
            let filled = scope.spawn(|| reserve.fill());
            let blocks: Vec<Vec<usize>> = (0..4096).map(|n| vec![n; 256]).collect();
            filled.join().expect("no panic").expect("it is mapped");
            let is_kept = |(n, block): (usize, &Vec<usize>)| block.iter().all(|word| *word == n);
            assert!(blocks.iter().enumerate().all(is_kept));
        });
    }

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
