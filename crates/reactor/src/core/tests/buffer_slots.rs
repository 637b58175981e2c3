//! Buffer slots: who has them, and on this host's ring the bytes that go through them.

use std::os::fd::AsRawFd;

use super::*;
use crate::driver::Uring;

#[test]
fn a_source_that_is_gone_leaves_its_buffer_slots() {
    let (mut core, _kernel, source, _file) = world();
    assert!(
        core.take_buffer_slots(1).is_none(),
        "the table was not enabled"
    );
    core.enable_buffer_slots().unwrap();
    core.enable_buffer_slots().unwrap();
    let all = core.stats().free_buffer_slots;
    core.take_buffer_slots_for(source, 100).unwrap();
    let unowned = core.take_buffer_slots(10).unwrap();
    assert_eq!(core.stats().free_buffer_slots, all - 110);
    core.detach(source);
    assert!(core.release_source(source));
    assert_eq!(core.stats().free_buffer_slots, all - 10);
    core.release_buffer_slots(&unowned);
    assert_eq!(core.stats().free_buffer_slots, all);
}

/// A mapping at an address that fits into 32 bits: for memory of this process, unlike for a
/// driver's, the position in a slot is the address.
struct LowMemory {
    start: *mut libc::c_void,
}

const LOW_BYTES: usize = 1 << 20;

impl LowMemory {
    fn map() -> LowMemory {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        for place in 0x1000..0x2000_usize {
            let wanted = std::ptr::without_provenance_mut(place << 16);
            // SAFETY: a mapping that replaces none touches no memory of ours.
            let start = unsafe { libc::mmap(wanted, LOW_BYTES, protection, flags, -1, 0) };
            if start == wanted {
                return LowMemory { start };
            }
        }
        panic!("no room below 4 GiB");
    }

    fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: mapped above with that length; only one borrow at a time, by `&mut self`.
        unsafe { std::slice::from_raw_parts_mut(self.start.cast(), LOW_BYTES) }
    }
}

impl Drop for LowMemory {
    fn drop(&mut self) {
        // SAFETY: mapped in `map`; no borrow is left.
        unsafe { libc::munmap(self.start, LOW_BYTES) };
    }
}

fn wait_for(core: &mut Core) -> Completion {
    let until = Instant::now() + Duration::from_secs(20);
    loop {
        if let Some((_, completion)) = next(core) {
            return completion;
        }
        assert!(Instant::now() < until, "no completion came");
        core.submit_and_wait(Some(Duration::from_secs(1))).unwrap();
    }
}

#[test]
fn bytes_go_between_a_file_and_a_buffer_slot_and_refusals_are_errors() {
    let mut memory = LowMemory::map();
    let mut ring = match Uring::new(8, 64, wake_fd().unwrap()) {
        Ok(ring) => ring,
        Err(error) => return println!("skipped: io_uring: {error}"),
    };
    if let Err(error) = ring.register_buffer_slots(BufferSlots::COUNT) {
        return println!("skipped: a table of buffer slots: {error}");
    }
    let iovec = libc::iovec {
        iov_base: memory.start,
        iov_len: LOW_BYTES,
    };
    // SAFETY: the mapping outlives the ring, and is looked at only between operations.
    unsafe { ring.fill_slot(5, iovec) }.unwrap();
    let at = memory.start as u32;
    let mut core = core_with_driver(AnyDriver::Uring(ring));
    let source = core.attach(|_| Idle);
    let file = memfd(c"disk", 300_000).unwrap();
    assert!(file.as_raw_fd() >= 0);
    let file = core.register(file);
    memory.bytes()[..100_000].fill(3);
    let write = |at, len, slot| Op::WriteFixed {
        file,
        offset: 200_000,
        slot,
        at,
        len,
    };
    let read = |offset, slot| Op::ReadFixed {
        file,
        offset,
        slot,
        at: at + 500_000,
        len: 100_000,
    };
    core.submit(source, Token(0), write(at, 100_000, 5));
    assert!(matches!(wait_for(&mut core), Completion::Fixed(Ok(()))));
    core.submit(source, Token(0), read(200_000, 5));
    assert!(matches!(wait_for(&mut core), Completion::Fixed(Ok(()))));
    let seen = &memory.bytes()[500_000..];
    assert!(seen[..100_000].iter().all(|&byte| byte == 3) && seen[100_000] == 0);
    core.submit(source, Token(0), write(at, 0, 5));
    assert!(matches!(wait_for(&mut core), Completion::Fixed(Ok(()))));

    // Beyond the file's end, beyond the slot's memory, a slot with nothing in it, no such slot.
    let refused = [
        (read(250_000, 5), None),
        (
            write(at + LOW_BYTES as u32 - 10, 100, 5),
            Some(libc::EFAULT),
        ),
        (write(at, 100, 6), Some(libc::EFAULT)),
        (write(at, 100, u16::MAX), Some(libc::EFAULT)),
    ];
    for (op, errno) in refused {
        core.submit(source, Token(0), op);
        let Completion::Fixed(Err(error)) = wait_for(&mut core) else {
            panic!("taken for success")
        };
        assert_eq!(error.raw_os_error(), errno);
    }
    core.close(file);
    drop(core);
}
