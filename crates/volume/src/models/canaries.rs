//! Every planted bug makes its model fail.

use std::panic::catch_unwind;

use super::{host, segments, waiters};

/// The bugs and the models that must see them.
const PLANTED: [(&str, fn()); 7] = [
    (
        "lots_are_counted_late",
        segments::a_segment_is_given_out_again_only_when_nobody_names_its_bytes,
    ),
    (
        "reuse_pinned",
        segments::a_segment_is_given_out_again_only_when_nobody_names_its_bytes,
    ),
    (
        "signal_is_looked_at_once",
        waiters::whoever_waits_for_a_signal_sees_every_change,
    ),
    (
        "signal_forgets_after_it_woke",
        waiters::whoever_waits_for_a_signal_sees_every_change,
    ),
    (
        "parked_writes_are_forgotten_after_they_woke",
        waiters::every_parked_write_gets_the_room_that_is_made_for_it,
    ),
    (
        "run_ends_without_a_last_look",
        waiters::a_job_goes_on_however_its_wake_meets_the_end_of_a_run,
    ),
    (
        "driver_is_told_before_the_request",
        host::what_was_flushed_is_durable_and_every_flush_ends,
    ),
];

#[test]
fn every_planted_bug_fails_its_model() {
    let missed: Vec<&str> = PLANTED
        .iter()
        .filter(|(bug, model)| catch_unwind(|| canary::with(bug, *model)).is_ok())
        .map(|(bug, _)| *bug)
        .collect();
    assert_eq!(
        missed, [""; 0],
        "planted bugs that their models passed over"
    );
}
