//! What a hot request costs this crate in memory: nothing. Counted, not believed.
//!
//! A queue and the request engine run on a port that keeps operations in memory of its own, in the place of
//! reactor and driver; every allocation of the whole process is counted while thousands of
//! requests come, move and are answered. `UBLK_HOT_REQUESTS` makes it a load for a profiler.

#![allow(clippy::unwrap_used)]

mod rig;

use std::alloc::System;
use std::sync::Arc;

use rig::{DEPTH, PlainDisk, READ, Rig, WRITE};
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

/// Serves at least `count` requests and says how often anything was allocated.
fn allocations_of(rig: &mut Rig<PlainDisk>, count: u64) -> usize {
    let region = Region::new(ALLOCATOR);
    for _ in 0..count.div_ceil(DEPTH.into()) {
        rig.serve();
    }
    let change = region.change();
    change.allocations + change.reallocations
}

#[test]
fn a_zero_copy_request_allocates_no_memory() {
    let asked = std::env::var("UBLK_HOT_REQUESTS").ok();
    let count = asked.map_or(10_000, |text| text.parse().unwrap());
    let mut rig = Rig::new(Arc::new(PlainDisk::OnePiece));
    for op in [READ, WRITE] {
        rig.describe(op, 8, |tag| u64::from(tag) * 8);
        // What grows once, for the deepest queue there was, grows here.
        allocations_of(&mut rig, 4 * u64::from(DEPTH));
        assert_eq!(allocations_of(&mut rig, count), 0, "operation {op}");
    }
    assert!(rig.stats().uncopied >= 2 * count, "all went without a copy");
}
