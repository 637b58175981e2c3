//! Plants each known bug in turn and counts how many seeds it takes to see it.
//!
//! A simulator that finds nothing may be blind. Each canary is a bug that a storage engine could
//! really have; all of them must be caught, and how soon is the honest measure of strength.

use std::time::{Duration, Instant};

use sim::batch::{self, Batch};
use sim::exhaustive;

/// Canaries that what clients see, or what lies in the store, must give away: they are hunted without the invariants.
const SEEN_BY_ORACLES: [&str; 32] = [
    "ack_before_ring_entry",
    "lsn_at_plan",
    "per_ring_frames",
    "skip_segment_sync",
    "two_syncs_at_once",
    "root_before_packs",
    "replay_past_hole",
    "drop_fua",
    "ignore_short_write",
    "reuse_before_frame",
    "reuse_pinned",
    "trust_ring_after_reboot",
    "believe_stale_rings",
    "fetch_over_newer_write",
    "unreadable_block_stops_uploads",
    "unreadable_block_is_zeroes",
    "checkpoint_behind_packs",
    "flush_waits_for_the_store",
    "older_store_is_believed",
    "request_that_comes_again_is_believed",
    "candidates_are_forgotten",
    "failed_removals_are_forgotten",
    "floors_are_forgotten",
    "snapshot_is_acknowledged_before_its_frame",
    "checkpoint_forgets_snapshots",
    "recovery_forgets_points",
    "slice_spans_a_point",
    "child_has_what_came_later",
    "group_is_cut_one_by_one",
    "child_without_a_pin",
    "pin_follows_the_look",
    "fold_passes_a_point",
];

/// Canaries that an invariant must see, for no client may notice them for long.
const SEEN_BY_INVARIANTS: [&str; 4] = [
    "dirty_sectors_kept",
    "overlapping_extent",
    "ring_slot_promised_twice",
    "cache_region_lost",
];

/// Canaries that tests of the engine see, each with a test of its own: `crates/volume/tests/engine`, with
/// the feature `planted`.
#[cfg(test)]
const SEEN_BY_ENGINE_TESTS: &[&str] = &[
    "any_deltas_are_shared",
    "rebuilt_maintenance_has_a_successor",
    "listed_cache_goes_on_changing",
    "failed_clean_read_fails_the_request",
    "log_copy_of_what_is_newer",
    "log_copy_is_not_pinned",
    "log_copy_of_another_chunk",
    "client_serves_under_a_maintenance_claim",
    "maintenance_does_not_yield",
    "maintained_volume_is_in_the_log",
    "maintenance_has_a_successor",
    "fork_is_lost_in_any_store",
    "deleted_fork_comes_back",
    "kept_tail_ends_a_later_hold",
    "failed_fold_settles_a_closed_volume",
    "start_begins_without_permission",
    "scrub_keeps_what_it_found",
    "scrub_pins_nothing",
    "scrub_takes_an_outage_for_damage",
    "checksums_outlive_their_segment",
    "store_hears_of_a_session_too_early",
    "renamed_volume_is_made_again",
    "lost_answer_ends_no_pass",
    "continued_log_reuses_at_once",
    "prepared_index_is_any_roots",
    "end_without_an_answer_is_the_end",
    "group_is_cut_one_by_one",
    "snapshot_is_acknowledged_before_its_frame",
    "fork_base_pins_nothing",
    "kept_fork_has_no_name",
    "unheld_root_is_forgotten",
    "held_segments_count_as_spare",
    "fork_without_a_root_has_no_ancestors",
    "namesake_is_opened_as_the_fork",
    "volume_is_deleted_before_its_forks_are_stored",
    "fork_is_lost_with_any_end_of_its_parent",
    "lost_fork_waits_for_its_root",
    "served_fork_has_no_holder",
    "kept_snapshot_has_no_identity",
    "checkpoint_forgets_snapshots",
    "recovery_forgets_points",
    "foreign_root_of_equal_epoch",
    "floor_passes_unnamed_objects",
    "a_fork_copies_what_it_shares",
    "compaction_names_no_pack",
    "compaction_swaps_without_looking",
    "copies_are_of_the_newest_lsn",
    "copies_have_what_deltas_hide",
    "moved_root_names_what_was_named_before",
    "marks_keep_the_low_mark_back",
    "low_mark_counts_no_bytes",
    "waiting_folds_are_not_hurried",
    "candidates_go_in_the_same_pass",
    "objects_go_without_their_root",
    "pins_of_names_taken_again_stay",
    "pins_go_when_their_name_is_taken",
    "passes_that_remove_nothing_end_well",
    "recovered_candidates_go",
    "collector_reads_no_pins",
    "collector_trusts_no_session",
    "the_check_believes_the_index",
    "the_check_believes_the_first_root",
    "the_check_believes_the_list_of_roots",
    "the_rebuild_orders_by_lsn_alone",
    "the_rebuild_reads_no_logs",
    "the_rebuild_takes_what_has_a_gap_before_it",
    "the_rebuild_takes_the_next_epoch",
    "a_whole_root_is_rebuilt",
    "a_newer_root_is_lost",
    "owners_of_what_stays_are_not_asked_for",
    "rescue_packs_are_of_a_session",
    "poisoned_packs_are_of_a_session",
    "copy_continues_the_tail",
    "missing_root_is_a_fence",
    "missing_root_needs_nothing",
    "lost_pack_keeps_volume_closed",
    "slices_of_one_epoch",
    "lost_mark_makes_a_copy",
    "first_reason_is_forgotten",
    "late_update_takes_the_reason",
    "refused_slot_is_given_again",
    "shrinking_cache_evicts_pinned_chunks",
    "shrinking_cache_is_cut_at_once",
    "bad_place_is_a_full_disk",
    "fork_gives_up_at_once",
    "deleted_volume_waits",
    "disk_over_another_history",
    "older_root_is_another_hosts",
    "parked_host_stays_unfenced",
    "believe_short_journal",
    "no_witness",
    "upload_begins_at_the_recovery_point",
    "exposure_is_of_the_newest",
    "log_is_read_one_place_at_a_time",
    "panic_passed_over",
    "insertion_evicts_a_class",
    "read_ahead_first",
    "index_block_in_memory_only",
    "slices_are_published_out_of_order",
    "one_volume_takes_all_memory",
    "writers_run_into_a_full_log",
    "cleaner_freezes_every_top",
    "cleaner_moves_slices",
    "status_guesses_holes",
    "poisoned_logs_share_names",
    "short_objects_are_asked_for_again",
    "sessions_of_pages_are_not_learned",
    "damaged_blocks_are_read_once",
    "footers_are_read_once_a_window",
    "each_hint_is_a_job",
    "copy_is_not_looked_for",
    "close_ends_nothing",
    "fold_names_its_objects_nowhere",
    "folded_is_what_is_stored",
    "one_damaged_read_is_believed",
    "stopped_host_opens_volumes",
    "close_is_sent_for_ever",
    "one_root_stops_the_host",
    "looks_have_no_limit",
    "packs_are_not_read_back",
    "own_claim_is_a_copys",
    "cut_short_claim_keeps_the_hold",
    "damage_is_a_copys",
    "any_answer_is_every_keys",
    "poisoned_log_names_objects",
    "writes_begin_with_their_last_lot",
    "hole_is_the_end",
    "one_volumes_record_refuses_all",
    "packs_of_a_dead_server_are_believed",
    "volumes_are_due_one_by_one",
    "stuck_volumes_make_others_due",
    "each_slice_has_a_pack_of_its_own",
    "records_wait_for_no_slice",
    "who_waits_waits_for_other_volumes",
    "all_parked_writes_are_woken",
    "admitted_writes_wake_nobody",
    "checkpoint_forgets_cuts",
    "recovered_tail_is_one_layer",
    "cleaner_counts_its_reserve",
    "layers_outlive_their_bytes",
    "cuts_wait_for_a_hot_set",
    "hot_sets_are_stored_once_a_slice",
    "slice_spans_a_point",
    "merge_spans_a_point",
    "child_without_a_pin",
    "no_look_after_the_pin",
    "child_has_what_came_later",
    "restore_leaves_no_trace",
    "point_forgets_the_fence",
    "snapshot_is_taken_when_stored",
    "attached_snapshot_is_deleted",
    "snapshot_flush_asks_the_log",
    "tombstone_is_a_base",
    "fork_never_looks_at_its_base_again",
    "restore_keeps_what_was_there_too_early",
    "restore_keeps_the_epoch",
    "restore_never_looks_again",
    "diff_reads_what_is_shared",
    "collector_reads_no_trash",
    "trash_holds_nothing",
    "name_is_taken_before_it_is_put_aside",
    "trash_leaves_snapshots",
    "trash_takes_what_was_inherited",
    "trash_leaves_what_was_inherited",
    "what_is_in_the_trash_has_no_snapshots",
    "trash_is_not_looked_at_again",
    "one_entry_keeps_all_others",
    "trash_goes_in_use",
    "going_volume_keeps_its_epoch",
    "late_copies_end_every_pass",
    "late_hands_put_aside",
    "closed_volume_leaves_snapshots_in_the_log",
    "refused_child_leaves_its_pin",
    "leaving_root_holds_nothing",
    "name_of_a_leaving_volume_is_free",
    "snapshots_stay_behind",
    "pins_are_judged_by_their_name_alone",
    "old_name_has_the_volumes_identity",
    "renamed_without_a_pin",
    "leaving_root_is_asked",
    "late_hands_move_snapshots",
    "leaving_volume_is_a_deleted_one",
    "kept_name_is_told_by_its_volume",
    "one_look_at_the_names_is_believed",
    "two_looks_need_not_agree",
    "forgotten_volume_arrives",
    "rescue_follows_names_alone",
    "the_check_looks_once",
    "a_rebuild_looks_once",
    "pinned_volume_is_lost",
    "names_alone_tell_what_is_in_the_trash",
    "only_the_next_name_is_told",
    "what_a_pass_missed_is_lost",
    "late_snapshots_stay",
    "a_list_goes_on_behind_what_did_not_fit",
    "diff_forgets_deltas",
    "points_wait_for_ever",
    "points_without_number",
    "points_starve_folds",
    "deletion_passes_a_snapshot",
    "a_pass_never_gives_up",
    "each_window_reads_the_candidates",
    "damaged_candidates_end_passes",
    "slept_collector_removes",
    "packs_of_before_stay_in_their_session",
    "failures_are_never_forgotten",
    "asked_passes_fold_nothing",
    "restores_share_a_pin",
    "poison_wakes_a_few",
    "folds_never_back_off",
    "one_key_is_everybodys",
    "stopped_host_publishes",
    "next_start_forgets_the_fence",
    "next_start_serves_what_ended",
    "untouched_tail_waits",
    "ended_is_called_stored",
    "lost_low_mark_says_nothing",
    "each_attempt_claims",
    "what_a_client_heard_is_forgotten",
    "silent_session_is_trusted",
    "lost_tails_lose_their_rings",
    "outrun_claim_is_judged",
    "unknown_is_a_hole",
    "unchecked_is_called_stored",
    "foreign_root_passes_the_check",
    "unchecked_segments_are_reused",
    "broken_tail_is_served_unchecked",
    "namesake_of_before_is_believed",
    "size_is_not_noted",
];

/// Canaries in the engine that end-to-end tests see: `xtask/src/canaries/planted.rs`.
#[cfg(test)]
const SEEN_BY_THE_SERVERS_TESTS: &[&str] = &["fork_mixes_histories"];

/// Canaries that only several threads inside one host show: `crates/volume/src/models/canaries.rs`.
#[cfg(test)]
const SEEN_BY_MODELS: &[&str] = &[
    "lots_are_counted_late",
    "signal_is_looked_at_once",
    "signal_forgets_after_it_woke",
    "parked_writes_are_forgotten_after_they_woke",
    "run_ends_without_a_last_look",
    "driver_is_told_before_the_request",
];

/// Canaries of the procedures of the host's log, which the worlds of `hostlog::tests` see.
#[cfg(test)]
const SEEN_BY_HOST_LOG_TESTS: &[&str] = &[
    "collector_reads_roots_before_logs",
    "floor_is_above_what_is_on_its_way",
    "create_before_frame",
    "strangers_record_is_ours",
    "fence_is_passed_over",
    "low_mark_is_not_read",
    "record_before_is_not_read",
    "roots_are_not_read",
    "packs_are_not_looked_for",
    "root_ahead_is_a_moved_version",
    "claim_forgets_the_predecessor",
    "low_mark_after_fence_is_not_read",
    "low_mark_passes_marks",
    "low_mark_passes_the_newest",
    "unresolved_digests_are_forgotten",
    "ended_tail_goes_on",
    "fence_blocks_every_epoch",
    "fold_believes_its_log",
    "mark_is_not_noted",
    "sessions_of_fences_are_learned",
];

/// Rounds per canary, each with seeds of its own; the median of their counts is reported.
const ROUNDS: u64 = 3;
/// Seeds of one round at most.
const SEEDS_MAX: u64 = 20_000;
/// Seeds of one round after which a bug that nobody saw counts as not caught: about twice what the rarest
/// takes in the median.
const SEEDS_ENOUGH: u64 = 3_000;
/// Seeds of a round between two looks at whether another has seen the bug.
const SEEDS_AT_ONCE: u64 = 250;

/// How a canary fared.
struct Hunt {
    canary: &'static str,
    clients_only: bool,
    rounds: [Round; ROUNDS as usize],
    promise: String,
    took: Duration,
}

/// One round: seeds run so far, and whether the last of them saw the bug.
#[derive(Clone, Copy, Default)]
struct Round {
    seeds: u64,
    caught: bool,
}

/// Runs all canaries. True if each was caught. Time is shared with whatever else the machine does, so it
/// decides only how well the counts are known: a bug that no round has seen by then is hunted on, by
/// number of seeds.
pub(crate) fn run(time: Duration, threads: usize) -> bool {
    let begun = Instant::now();
    let left = || time.saturating_sub(begun.elapsed());
    let hunt = |canary: &'static str, clients_only: bool| Hunt {
        canary,
        clients_only,
        rounds: Default::default(),
        promise: String::new(),
        took: Duration::ZERO,
    };
    let by_oracles = SEEN_BY_ORACLES.map(|canary| hunt(canary, true));
    let by_invariants = SEEN_BY_INVARIANTS.map(|canary| hunt(canary, false));
    let mut hunts: Vec<Hunt> = by_oracles.into_iter().chain(by_invariants).collect();
    // Half of the time is shared evenly; what then is still at large gets the rest.
    let share = time / 2 / hunts.len() as u32;
    for hunt in &mut hunts {
        hunt.run_on(share, threads);
    }
    let mut at_large: Vec<&mut Hunt> = hunts.iter_mut().filter(|hunt| !hunt.is_caught()).collect();
    let mut waiting = at_large.len() as u32;
    for hunt in &mut at_large {
        hunt.run_on(left() / waiting, threads);
        waiting -= 1;
    }
    for hunt in hunts.iter_mut().filter(|hunt| !hunt.is_seen()) {
        hunt.run_until_seen(threads);
    }
    println!(
        "{:<24} {:>24}  {:>7}  caught as",
        "canary", "seeds to catch (median)", "seconds"
    );
    hunts.iter().for_each(Hunt::print);
    hunts.iter().all(Hunt::is_seen)
}

impl Hunt {
    fn is_caught(&self) -> bool {
        self.rounds.iter().all(|round| round.caught)
    }

    fn is_seen(&self) -> bool {
        self.rounds.iter().any(|round| round.caught)
    }

    /// Runs each round on from where it stands, until the bug is seen or the time is up.
    fn run_on(&mut self, time: Duration, threads: usize) {
        let begun = Instant::now();
        for nth in 0..self.rounds.len() {
            if self.rounds[nth].caught {
                continue;
            }
            let left = time.saturating_sub(begun.elapsed());
            let time = left / (self.rounds.len() - nth) as u32;
            let most = SEEDS_MAX - self.rounds[nth].seeds;
            self.run_round(nth, most, time, threads);
        }
    }

    /// Runs all rounds on in turn, until one sees the bug or each had its seeds.
    fn run_until_seen(&mut self, threads: usize) {
        while !self.is_seen() {
            let behind = (0..self.rounds.len()).min_by_key(|nth| self.rounds[*nth].seeds);
            let Some(nth) = behind.filter(|nth| self.rounds[*nth].seeds < SEEDS_ENOUGH) else {
                return;
            };
            self.run_round(nth, SEEDS_AT_ONCE, Duration::MAX, threads);
        }
    }

    fn run_round(&mut self, nth: usize, most: u64, time: Duration, threads: usize) {
        let begun = Instant::now();
        let canary = self.canary;
        let round = &mut self.rounds[nth];
        let batch = Batch {
            first: 1 + nth as u64 * SEEDS_MAX + round.seeds,
            time,
            most,
            threads,
            clients_only: self.clients_only,
        };
        let report = batch::run(batch, || canary::plant(Some(canary)));
        round.seeds += report.seeds;
        let failure = report.failures.first();
        if let Some(violation) = failure.and_then(|outcome| outcome.violation.as_ref()) {
            round.caught = true;
            self.promise = violation.promise.to_owned();
        }
        self.took += begun.elapsed();
    }

    fn print(&self) {
        let show = |round: &Round| {
            if round.caught {
                round.seeds.to_string()
            } else {
                format!(">{}", round.seeds)
            }
        };
        let rounds: Vec<String> = self.rounds.iter().map(show).collect();
        let mut counts = self.rounds.map(|round| round.seeds);
        counts.sort_unstable();
        println!(
            "{:<24} {:>24}  {:>7.1}  {}",
            self.canary,
            format!("{} ({})", rounds.join(", "), counts[counts.len() / 2]),
            self.took.as_secs_f64(),
            if self.is_seen() {
                self.promise.as_str()
            } else {
                "NOT CAUGHT"
            },
        );
    }
}

/// The exhaustive modes under one canary: which of them sees it, for reports.
pub(crate) fn exhaustively(time: Duration, threads: usize) {
    for canary in SEEN_BY_ORACLES {
        let crashes = exhaustive::crashes(3, time, threads, || canary::plant(Some(canary)));
        let schedules = exhaustive::schedules(2, time, threads, || canary::plant(Some(canary)));
        let seen = |report: &exhaustive::Report| match &report.failure {
            Some((_, violation)) => {
                format!("after {} worlds: {}", report.worlds, violation.promise)
            }
            None => format!("not seen in {} worlds", report.worlds),
        };
        println!(
            "{:<24} crashes: {}; schedules: {}",
            canary,
            seen(&crashes),
            seen(&schedules)
        );
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn every_canary_of_the_engine_is_hunted() {
        let engine = concat!(env!("CARGO_MANIFEST_DIR"), "/../crates/volume/src");
        let hunted = [
            &super::SEEN_BY_ORACLES[..],
            &super::SEEN_BY_INVARIANTS,
            super::SEEN_BY_ENGINE_TESTS,
            super::SEEN_BY_HOST_LOG_TESTS,
            super::SEEN_BY_THE_SERVERS_TESTS,
            super::SEEN_BY_MODELS,
        ]
        .concat();
        assert_eq!(canary::unlisted(engine, &hunted), [""; 0]);
    }

    #[test]
    fn every_canary_of_the_engines_tests_is_planted_by_one_of_them() {
        let engine = concat!(env!("CARGO_MANIFEST_DIR"), "/../crates/volume");
        let files = std::fs::read_dir(format!("{engine}/tests/engine")).expect("a folder of tests");
        let files = files.map(|file| file.expect("readable").path());
        let tests = files.filter(|path| path.is_file());
        // Tests in a source file plant by themselves what that file asks for.
        let inner = [
            "lock.rs",
            "recover/rings.rs",
            "cache/tests.rs",
            "request/parked.rs",
            "store/compact/swap.rs",
            "store/host_log/mod.rs",
            "store/flow/upload_state.rs",
        ];
        let sources = tests.chain(inner.map(|name| format!("{engine}/src/{name}").into()));
        let all: String = sources
            .map(|path| std::fs::read_to_string(path).expect("text"))
            .map(|text| text.replace("canary::active!(\"", ""))
            .collect();
        for name in super::SEEN_BY_ENGINE_TESTS {
            assert!(all.contains(&format!("\"{name}\"")), "{name}");
        }
    }
}
