//! What is counted, seen from outside.

use std::sync::Arc;
use std::time::Duration;

use blkmq::error::ErrorKind;
use blkmq::io::Op;
use reactor::monotonic_ns;

use super::{Latencies, LatencyCounts, OpKind, SlowRequests, Step, Timeline};

const READ: Op = Op::Read {
    sector: 8,
    sectors: 8,
};

fn answered_timeline(is_sampled: bool) -> Timeline {
    let mut timeline = Timeline::new(is_sampled, monotonic_ns());
    timeline.on_step(Step::Plan);
    timeline.on_wait(Step::Plan, Step::Fetch, monotonic_ns());
    std::thread::sleep(Duration::from_millis(2));
    timeline.on_resumed(monotonic_ns());
    timeline.on_step(Step::Move);
    timeline.on_answered(Step::Commit, monotonic_ns());
    timeline
}

#[test]
fn threads_count_for_themselves_and_are_summed_up() {
    let latencies = Latencies::unobserved();
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                let table = latencies.table_of_this_thread();
                for _ in 0..1000 {
                    latencies.on_answered(&table, (&READ, 4096), &Timeline::new(false, 0), Ok(()));
                }
            });
        }
    });
    let counts = latencies.counts();
    assert_eq!(counts.op(OpKind::Read).requests.count(), 3000);
    assert_eq!(counts.op(OpKind::Read).bytes, 3000 * 4096);
    assert_eq!(counts.requests(), 3000);
    assert_eq!(counts.op(OpKind::Write).requests.count(), 0);
}

#[test]
fn waits_are_timed_always_and_the_other_steps_of_sampled_requests() {
    let latencies = Latencies::unobserved();
    let table = latencies.table_of_this_thread();
    latencies.on_answered(&table, (&READ, 4096), &answered_timeline(false), Ok(()));
    let counts = latencies.counts();
    let read = counts.op(OpKind::Read);
    assert_eq!(read.step(Step::Fetch).count(), 1);
    assert!(read.step(Step::Fetch).sum_ns() >= 2_000_000);
    assert!(read.requests.sum_ns() >= read.step(Step::Fetch).sum_ns());
    assert_eq!(read.step(Step::Move).count(), 0);
    latencies.on_answered(&table, (&READ, 4096), &answered_timeline(true), Ok(()));
    let since = latencies.counts().since(&counts);
    let read = since.op(OpKind::Read);
    let steps = Step::ALL.map(|step| read.step(step).sum_ns());
    assert_eq!(
        steps.iter().sum::<u64>(),
        read.requests.sum_ns(),
        "{steps:?}"
    );
    assert_eq!(read.step(Step::Queue).count(), 0, "it never waited there");
}

#[test]
fn a_slow_request_is_kept_with_the_step_that_took_the_time() {
    let slow = Arc::new(SlowRequests::new(Duration::from_millis(1)));
    let latencies = Latencies::new("demo", Arc::clone(&slow));
    let table = latencies.table_of_this_thread();
    latencies.on_answered(&table, (&READ, 4096), &Timeline::new(false, 0), Ok(()));
    for _ in 0..10 {
        latencies.on_answered(&table, (&READ, 4096), &answered_timeline(false), Ok(()));
    }
    let (kept, omitted) = slow.take();
    assert_eq!((kept.len(), omitted), (8, 2), "the list is bounded");
    let one = &kept[0];
    assert_eq!((&*one.volume, one.step, one.error), ("demo", "fetch", None));
    assert!(one.took >= one.step_took && one.step_took >= Duration::from_millis(2));
    let (kept, omitted) = slow.take();
    assert!(kept.is_empty() && omitted == 0, "reported once");
}

#[test]
fn failures_are_counted_apart_and_a_closed_client_is_none() {
    let latencies = Latencies::unobserved();
    let table = latencies.table_of_this_thread();
    let failed = Err(ErrorKind::Io);
    latencies.on_answered(&table, (&READ, 4096), &Timeline::new(false, 0), failed);
    latencies.on_ended_in_core(
        &Op::Flush,
        &mut Timeline::new(false, 0),
        Err(ErrorKind::TimedOut),
    );
    latencies.on_ended_in_core(
        &Op::Flush,
        &mut Timeline::new(false, 0),
        Err(ErrorKind::Closed),
    );
    let counts = latencies.counts();
    assert_eq!(counts.op(OpKind::Read).errors, 1);
    assert_eq!(counts.op(OpKind::Read).requests.count(), 0);
    assert_eq!(counts.op(OpKind::Flush).errors, 1);
    let mut sum = LatencyCounts::default();
    sum.add(&counts);
    sum.add(&counts);
    assert_eq!(sum.requests(), 4);
    assert_eq!(sum.since(&counts), counts);
}
