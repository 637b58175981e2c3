//! Every canary makes its named model fail.
//!
//! A canary is on for a whole process, so each is tried in a child: this same test program, told
//! to run one model. A canary whose model passes is a hole in the proof, and fails this test.

use std::process::Command;

/// Canaries that tests of the engine see, with its log behind a queue (`crates/volume/tests`).
const SEEN_BY_THE_ENGINE: [&str; 1] = ["space_goes_to_the_newest"];

const CANARIES: [(&str, &str); 20] = [
    (
        "must_run_without_barrier",
        "gate::a_request_that_parks_while_the_gate_opens_is_run",
    ),
    (
        "unquiesce_without_barrier",
        "gate::a_request_that_parks_while_the_gate_opens_is_run",
    ),
    (
        "unquiesce_checks_before_it_clears",
        "gate::a_request_that_parks_while_the_gate_opens_is_run",
    ),
    (
        "admit_without_barrier",
        "gate::nothing_runs_while_a_drained_device_is_changed",
    ),
    (
        "grace_period_without_barrier",
        "gate::nothing_runs_while_a_drained_device_is_changed",
    ),
    (
        "flags_without_acquire",
        "gate::what_was_changed_while_quiesced_is_seen_by_what_runs_after",
    ),
    (
        "leave_without_order",
        "gate::a_drain_ends_with_the_last_completion",
    ),
    (
        "leave_without_order",
        "gate::a_request_without_a_tag_runs_when_one_comes_back",
    ),
    (
        "wait_for_tag_without_recheck",
        "gate::a_request_without_a_tag_runs_when_one_comes_back",
    ),
    (
        "run_without_recheck_for_a_tag",
        "gate::a_run_that_finds_no_tag_is_followed_by_a_kick",
    ),
    (
        "kick_cleared_after_the_check",
        "gate::a_saved_kick_is_not_lost",
    ),
    (
        "early_wake_forgotten",
        "gate::a_wake_before_the_park_is_not_lost",
    ),
    (
        "cancel_decided_unlocked",
        "cancel::a_cancel_is_decided_once_however_many_call_for_it",
    ),
    (
        "copies_not_rearmed",
        "cancel::a_rearm_opens_the_device_and_every_queue",
    ),
    (
        "dropped_request_is_lost",
        "cancel::a_dropped_request_completes_once_and_is_counted",
    ),
    (
        "sleep_under_a_small_lock",
        "cancel::no_request_path_sleeps_or_holds_a_small_lock_across_a_sleep",
    ),
    (
        "sleep_on_the_completion_path",
        "cancel::no_request_path_sleeps_or_holds_a_small_lock_across_a_sleep",
    ),
    (
        "tag_top_bit_forgotten",
        "tags::a_tag_that_comes_back_can_be_taken_once",
    ),
    (
        "tag_top_set_first",
        "tags::a_tag_that_comes_back_can_be_taken_once",
    ),
    (
        "tag_word_cleared_without_recheck",
        "tags::a_tag_that_comes_back_can_be_taken_once",
    ),
];

#[test]
fn every_planted_bug_fails_its_model() {
    let program = std::env::current_exe().expect("this program's own path");
    let mut missed = Vec::new();
    for (canary, model) in CANARIES {
        let name = format!("models::{model}");
        let output = Command::new(&program)
            .args(["--exact", &name, "--test-threads", "1"])
            .env(canary::VARIABLE, canary)
            .output()
            .expect("this program can be started again");
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(
            text.contains("running 1 test"),
            "no model named {name}: {text}"
        );
        println!(
            "{canary}: {} {}",
            model,
            if output.status.success() {
                "PASSED"
            } else {
                "failed"
            }
        );
        if output.status.success() {
            missed.push(format!("{canary} ({model})"));
        }
    }
    assert!(
        missed.is_empty(),
        "canaries that no model noticed: {missed:#?}"
    );
}

#[test]
fn every_canary_in_the_code_is_on_the_list() {
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/src");
    let listed = CANARIES.map(|(canary, _)| canary);
    let listed = [&listed[..], &SEEN_BY_THE_ENGINE].concat();
    assert_eq!(canary::unlisted(source, &listed), [""; 0]);
}
