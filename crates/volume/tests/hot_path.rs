//! What a hot request costs in memory: nothing. Counted, not believed.
//!
//! Every allocation of the whole process is counted around the calls that a transport makes for a
//! request: begin, and read or written. What grows with the history and not with a request (the
//! tables of a segment, the nodes of the map) may be allocated now and then; how often, is bounded.

mod support;

use std::alloc::System;

use blkmq::io::{Backend, Op, Step};
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};
use support::{World, options, waker};
use volume::{Options, Volume};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

/// Blocks of the working set, all of them written before anything is counted: less than a slice, or each
/// slice would begin with an empty map, which grows.
const BLOCKS: u64 = 1024;
/// Requests that are counted.
const REQUESTS: u64 = 20_000;
/// Of a thousand writes so many may find a table full and have it grow.
const GROWING_MAX: u64 = 15;

fn world() -> (World, Volume) {
    let options = Options {
        log_bytes: 256 << 20,
        segment_bytes: 4 << 20,
        ring_entries: 8192,
        pack_bytes: 256 << 20,
        rpo_ns: u64::MAX / 4,
        ..options()
    };
    let mut world =
        World::try_start(Default::default(), options).unwrap_or_else(|e| panic!("{}", e.0));
    world.create("demo", 1 << 30);
    let volume = world.open("demo");
    for block in 0..BLOCKS {
        while write(&volume, block).is_none() {
            world.pass(10);
        }
    }
    (world, volume)
}

/// Allocations since the region began; growing a piece of memory is one.
fn allocations(region: &Region<'_, System>) -> u64 {
    let change = region.change();
    (change.allocations + change.reallocations) as u64
}

/// Writes a block without moving its bytes, and says how often that allocated. None: it parks.
fn write(volume: &Volume, block: u64) -> Option<u64> {
    let op = Op::Write {
        sector: block * 8,
        sectors: 8,
        fua: false,
    };
    let waker = waker();
    let region = Region::new(ALLOCATOR);
    let plan = match volume.begin(&op, &waker) {
        Step::Write(plan) => plan,
        Step::Park(_) => return None,
        other => panic!("{other:?}"),
    };
    let done = volume.written(plan, Ok(()), &waker);
    let count = allocations(&region);
    assert!(matches!(done, Step::Done(Ok(()))), "{done:?}");
    Some(count)
}

/// Block numbers in a scattered order that visits them all.
fn scattered(number: u64) -> u64 {
    number.wrapping_mul(0x9e37_79b9) % BLOCKS
}

#[test]
fn a_hot_request_allocates_no_memory() {
    let (mut world, volume) = world();
    let mut growing = 0;
    for number in 0..REQUESTS {
        let count = loop {
            match write(&volume, scattered(number)) {
                Some(count) => break count,
                None => world.pass(10),
            }
        };
        growing += u64::from(count > 0);
    }
    println!("{growing} of {REQUESTS} writes met a table that grew");
    assert!(growing * 1000 <= GROWING_MAX * REQUESTS);

    let waker = waker();
    for number in 0..REQUESTS {
        let op = Op::Read {
            sector: scattered(number) * 8,
            sectors: 8,
        };
        let region = Region::new(ALLOCATOR);
        let Step::Read(plan) = volume.begin(&op, &waker) else {
            panic!("what was written is in the log");
        };
        let done = volume.read(plan, Ok(()), &waker);
        assert_eq!(allocations(&region), 0, "read {number}");
        assert!(matches!(done, Step::Done(Ok(()))), "{done:?}");
    }
}
