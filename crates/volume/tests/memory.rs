//! What the extent map costs in memory: bytes per live extent, measured.
//!
//! Many small writes in random order, never uploaded, are the worst case: each is an extent of
//! its own. Counts what is allocated after a volume was warmed up, so that the log and the test's
//! own world stay out of it.

mod support;

use std::alloc::System;

use blkmq::io::{Backend, FileId, Op, Step};
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};
use support::{World, options, waker};
use volume::{Options, Volume};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

/// Live extents: enough that nodes of the map dominate.
const EXTENTS: u64 = 30_000;
/// Bytes per extent that must not be exceeded. In the map an extent is 32 bytes (first sector,
/// end, log address, LSN), in nodes about two thirds full; the segment's summary of what was put
/// into it is 48 more, in vectors between half and wholly full.
const BYTES_MAX: f64 = 128.0;
/// So large that nothing is uploaded for want of room.
const LOG_BYTES: u64 = 1 << 30;

/// Writes one block without moving its bytes: only the map is looked at here.
fn write(volume: &Volume, sector: u64) -> bool {
    let op = Op::Write {
        sector,
        sectors: 1,
        fua: false,
    };
    match volume.begin(&op, &waker()) {
        Step::Write(plan) => {
            let done = volume.written(plan, Ok(()), &waker());
            assert!(matches!(done, Step::Done(Ok(()))), "{done:?}");
            true
        }
        Step::Park(_) => false,
        other => panic!("{other:?}"),
    }
}

fn allocated(region: &Region<'_, System>) -> f64 {
    let change = region.change();
    (change.bytes_allocated as f64) - (change.bytes_deallocated as f64)
}

#[test]
fn a_live_extent_costs_no_more_memory_than_documented() {
    let options = Options {
        log_bytes: LOG_BYTES,
        segment_bytes: 4 << 20,
        ring_entries: 8192,
        pack_bytes: LOG_BYTES,
        rpo_ns: u64::MAX / 4,
        ..options()
    };
    let mut world =
        World::try_start(Default::default(), options).unwrap_or_else(|e| panic!("{}", e.0));
    world.create("demo", 1 << 40);
    let volume = world.open("demo");
    // The test's own log file has its full size before anything is counted.
    let mut log = vec![0; LOG_BYTES as usize];
    let used = &world.env.files[&FileId::LOG];
    log[..used.len()].copy_from_slice(used);
    world.env.files.insert(FileId::LOG, log);
    let region = Region::new(ALLOCATOR);
    // Odd multipliers visit all block numbers below a power of two once, in a scattered order.
    for n in 0..EXTENTS {
        let block = n.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (64 - 27);
        while !write(&volume, block * 8) {
            world.pass(10);
        }
    }
    world.flush(&volume);
    let per_extent = allocated(&region) / EXTENTS as f64;
    println!("{per_extent:.1} bytes per live extent");
    assert!(per_extent <= BYTES_MAX, "{per_extent:.1} bytes per extent");
    assert!(
        per_extent >= 32.0,
        "{per_extent:.1}: the measurement is off"
    );
    assert_eq!(volume.uploaded_bytes(), 0, "all of it is still dirty");
}
