//! What both exhaustive modes share: the world of a planned run, and running many cases on a few
//! threads. It knows neither workloads nor scenes.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use blkmq::io::Op;

use crate::disk::{Corruptible, DiskFaults, PowerCut};
use crate::profile::{Fleet, Limits, PointRates, Profile, RingFaults};
use crate::store::StoreFaults;
use crate::trace::Violation;
use crate::workload::Action;
use crate::world::{Plan, Watch, World};

/// What an exhaustive run amounted to.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// Workloads, or scenes.
    pub cases: u64,
    /// Worlds run.
    pub worlds: u64,
    /// Cases that the time did not suffice for.
    pub left: u64,
    /// The first failure: what ran, and what happened.
    pub failure: Option<(String, Violation)>,
}

const MS: u64 = 1_000_000;

/// The world of all planned runs: one small volume, no faults but the planned one, limits so
/// small that a few operations fill them.
fn profile() -> Profile {
    Profile {
        hosts: 1,
        reissue: false,
        partial_failures: false,
        compute_ns: 0,
        set_back: false,
        fleet: Fleet::default(),
        points: PointRates::default(),
        volumes: 1,
        sectors: 32,
        block: 1,
        clients: 1,
        depth: 16,
        actions: 0,
        crash_every: 0,
        crash_weights: [1, 0, 0],
        cut: PowerCut::LoseAll,
        disk: DiskFaults::default(),
        corruptible: Corruptible::default(),
        store: StoreFaults::default(),
        rings: RingFaults {
            stale: 10_000,
            ..RingFaults::default()
        },
        outage: 0,
        unchecked: 0,
        outage_at_crash: 0,
        disk_ns: 100_000,
        slow_reads: 0,
        store_ns: MS,
        think_ns: 1000,
        wake_ns: 1000,
        limits: Limits {
            log_bytes: 768 << 10,
            segment_bytes: 8 << 10,
            ring_entries: 16,
            cache_bytes: 16 << 10,
            memory_bytes: 16 << 10,
            chunk_bytes: 4 << 10,
            pack_bytes: 8 << 10,
            deltas_max: 1,
            delta_extents_max: 8,
            index_bytes: 0,
            compact_ns: 0,
            compact_percent: 50,
            compact_runs: 2,
            compact_closed: 0,
            scrub_ns: 0,
            rpo_ns: 15 * MS,
            frame_interval_ns: 5 * MS,
            retry_ns: MS,
        },
    }
}

pub(super) fn world(plan: Plan) -> World {
    let mut world = World::with(1, profile(), Watch::default());
    world.follow(plan);
    world
}

pub(super) fn write(sector: u64, sectors: u32, fua: bool) -> Action {
    Action::Op(Op::Write {
        sector,
        sectors,
        fua,
    })
}

/// Runs the cases on some threads, each to its end, while there is time.
pub(super) fn run_all<C: Sync>(
    cases: &[C],
    time: Duration,
    threads: usize,
    prepare: impl Fn() + Sync,
    run: impl Fn(&C, Instant) -> (u64, Option<(String, Violation)>) + Sync,
) -> Report {
    let begun = Instant::now();
    let next = AtomicUsize::new(0);
    let report = Mutex::new(Report::default());
    std::thread::scope(|scope| {
        for _ in 0..threads.max(1) {
            scope.spawn(|| {
                prepare();
                loop {
                    let index = next.fetch_add(1, Ordering::Relaxed);
                    let Some(case) = cases.get(index) else { break };
                    let mut held = report.lock().expect("no panic while adding up");
                    if begun.elapsed() >= time || held.failure.is_some() {
                        held.left += 1;
                        continue;
                    }
                    drop(held);
                    let (worlds, failure) = run(case, begun + time);
                    let mut held = report.lock().expect("no panic while adding up");
                    held.cases += 1;
                    held.worlds += worlds;
                    if held.failure.is_none() {
                        held.failure = failure;
                    }
                }
            });
        }
    });
    report.into_inner().expect("no panic while adding up")
}
