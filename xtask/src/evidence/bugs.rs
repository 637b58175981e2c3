//! Bugs that the reference system had, as its public documents and sources tell, each with the tests of ours that would fail
//! on a server that had it.
//!
//! A test that is named here must exist; a unit test below and `cargo xtask tidy` see to it.

/// A bug, and what would see it.
pub(super) struct KnownBug {
    /// Where it is told: the pull request, or a later version.
    pub(super) from: &'static str,
    pub(super) bug: &'static str,
    pub(super) tests: &'static [&'static str],
}

const fn bug(from: &'static str, bug: &'static str, tests: &'static [&'static str]) -> KnownBug {
    KnownBug { from, bug, tests }
}

/// The pull request that brought the zero-copy transport.
const PR: &str = "#60";
/// Found after it was merged.
const AFTER: &str = "after #60";
/// Of its documents or sources at large.
const DOCS: &str = "documents";

pub(super) const BUGS: [KnownBug; 24] = [
    bug(
        PR,
        "a write whose blocks are promoted after it rolls new data back",
        &["nothing_older_than_the_last_completed_write_of_a_block_is_ever_read"],
    ),
    bug(
        PR,
        "a read is planned, the file is rotated away, and zeroes are read",
        &["a_planned_read_is_served_though_its_segments_are_sealed_and_reclaimed_meanwhile"],
    ),
    bug(
        PR,
        "a cold read puts fetched bytes over a write that came meanwhile",
        &["a_write_that_races_with_a_cold_read_of_its_block_always_wins"],
    ),
    bug(
        PR,
        "a FLUSH on the ring's thread, a fair lock and a rotation wait for each other for good",
        &[
            "flushes_seals_and_writers_of_eight_threads_never_wait_for_each_other",
            "nothing_that_may_block_is_called_on_a_ring_thread",
        ],
    ),
    bug(
        PR,
        "an empty environment variable counts as set, and the tests of zero-copy run in user-copy",
        &["a_data_mode_in_the_environment_that_is_empty_is_unset_and_one_that_is_named_is_served"],
    ),
    bug(
        PR,
        "a write is answered with 0 bytes, and the kernel sends it again for ever",
        &[
            "results_are_what_the_driver_understands",
            "requests_of_every_kind_and_shape_do_what_they_say",
        ],
    ),
    bug(
        PR,
        "a server that leaves keeps a ring open, and its successor finds the device alive",
        &[
            "a_server_that_ends_under_full_load_leaves_nothing_behind_and_the_next_goes_on",
            "a_quiesced_disk_waits_for_its_next_server",
        ],
    ),
    bug(
        PR,
        "aborted commands are not counted, or others are: a queue never ends, or ends before it lives",
        &[
            "tags_that_the_server_owns_get_no_abort_and_are_counted_apart",
            "a_device_is_left_when_its_last_queue_is_gone",
        ],
    ),
    bug(
        PR,
        "a command of the control device hangs and is never given up",
        &[
            "a_command_that_is_late_or_stuck_says_so",
            "a_ring_on_which_a_command_got_stuck_is_replaced_for_those_that_follow",
        ],
    ),
    bug(
        AFTER,
        "random reads after a cold start are wrong under zero-copy",
        &["what_fio_wrote_verifies_at_once_after_restarts_and_without_the_cache"],
    ),
    bug(
        AFTER,
        "two cold reads claim one block, and one gets the other's bytes",
        &["cold_blocks_that_are_read_at_once_do_not_get_each_others_bytes"],
    ),
    bug(
        AFTER,
        "WRITE_ZEROES is acknowledged and zeroes nothing",
        &[
            "what_was_zeroed_is_zeroes_at_once_after_kill_9_and_from_the_store_alone",
            "discarded_and_zeroed_ranges_read_as_zeroes",
        ],
    ),
    bug(
        AFTER,
        "FUA is ignored",
        &["what_a_fua_write_acknowledged_survives_the_loss_of_the_rings"],
    ),
    bug(
        AFTER,
        "a short transfer counts as a whole one",
        &[
            "a_request_that_is_done_in_part_is_never_taken_for_done",
            "a_short_read_is_continued_where_it_stopped",
            "a_short_write_is_continued_where_it_stopped_and_one_that_stops_is_an_error",
        ],
    ),
    bug(
        DOCS,
        "a FLUSH does not cover what is being uploaded",
        &[
            "what_a_flush_acknowledged_survives_the_loss_of_the_rings",
            "what_was_flushed_to_a_disk_survives_a_power_cut_at_any_moment",
        ],
    ),
    bug(
        DOCS,
        "threads inherit one processor from the thread that starts them",
        &["every_thread_may_run_wherever_its_server_may_and_there_is_a_reactor_for_each_place"],
    ),
    bug(
        DOCS,
        "trouble in the store is an I/O error for the guest",
        &[
            "while_the_store_is_away_the_volume_serves_and_accepts",
            "in_an_outage_writers_are_parked_when_the_log_is_full_and_go_on_when_it_ends",
        ],
    ),
    bug(
        DOCS,
        "a nearly full disk is ENOSPC for every guest",
        &[
            "a_volume_that_filled_its_part_of_the_log_waits_alone_and_goes_on_when_the_store_is_back",
        ],
    ),
    bug(
        DOCS,
        "nothing is uploaded while little is dirty, for ever",
        &["the_recovery_point_timer_brings_writes_to_the_store_by_itself"],
    ),
    bug(
        DOCS,
        "discards free nothing, and are not offered",
        &["file_systems_are_made_filled_trimmed_and_found_clean"],
    ),
    bug(
        DOCS,
        "bytes are wrong after a handoff under load",
        &[
            "requests_of_a_disk_wait_for_an_upgrade_and_none_fails_or_is_lost",
            "a_server_that_is_killed_at_any_step_of_an_upgrade_loses_nothing",
        ],
    ),
    bug(
        DOCS,
        "volumes are not restored if the store is away at the start",
        &["a_server_starts_while_its_store_is_away_and_serves_as_soon_as_that_is_back"],
    ),
    bug(
        DOCS,
        "a handler that panics never answers its request",
        &["a_panic_over_a_request_fails_it_and_hangs_nobody"],
    ),
    bug(
        DOCS,
        "a check of what was read cannot tell an older write from the last",
        &["an_older_write_a_mixture_and_another_block_are_told_apart"],
    ),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_bug_is_seen_by_tests_that_exist() {
        let named: Vec<&str> = BUGS.iter().flat_map(|bug| bug.tests).copied().collect();
        assert!(BUGS.iter().all(|bug| !bug.tests.is_empty()));
        assert_eq!(crate::tidy::missing_functions(&named), [""; 0]);
        let missing = crate::tidy::missing_functions(&["a_test_that_nobody_wrote_yet"]);
        assert_eq!(missing, ["a_test_that_nobody_wrote_yet"]);
    }
}
