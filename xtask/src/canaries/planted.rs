//! The bugs that are planted in the server: what each is, who must see it, and by which words.
//!
//! A list and nothing else: it must never run anything.

/// Who must see a bug.
#[derive(Clone, Copy, Debug)]
pub(super) enum Detector {
    /// A test program and one test of it, in a guest.
    Test(&'static str, &'static str),
    /// The same on this machine.
    Here(&'static str, &'static str),
}

/// A planted bug, who must see it, and what is said then.
pub(super) struct Canary {
    pub(super) name: &'static str,
    pub(super) what: &'static str,
    pub(super) judge: Detector,
    pub(super) words: &'static [&'static str],
}

pub(super) const CANARIES: [Canary; 43] = [
    Canary {
        name: "bytes_that_came_ahead_are_dropped",
        what: "requests that a connection had received when it was given away are lost between two servers",
        judge: Detector::Here(
            "server",
            "upgrade::requests_that_are_sent_without_waiting_are_answered_once_through_upgrades",
        ),
        words: &["requests were answered:"],
    },
    Canary {
        name: "begun_header_is_forgotten",
        what: "the next server does not know the beginning of a request",
        judge: Detector::Here(
            "server",
            "upgrade::a_request_of_which_half_came_before_an_upgrade_is_answered_after_it",
        ),
        words: &["requests were answered:"],
    },
    Canary {
        name: "nobody_adopts_clients",
        what: "no server serves the clients of the one before",
        judge: Detector::Here(
            "server",
            "upgrade::a_request_of_which_half_came_before_an_upgrade_is_answered_after_it",
        ),
        words: &["BrokenPipe", "requests were answered:"],
    },
    Canary {
        name: "way_back_for_ever",
        what: "a server that serves is replaced by the one before when its time is over",
        judge: Detector::Here(
            "server",
            "upgrade::a_program_that_serves_is_not_given_up_when_its_time_is_over",
        ),
        words: &["the server that was upgraded ended"],
    },
    Canary {
        name: "waiting_clients_are_cut",
        what: "a second upgrade cuts the clients that wait for their volume",
        judge: Detector::Here(
            "server",
            "upgrade::clients_that_wait_for_their_volume_stay_connected_through_a_second_upgrade",
        ),
        words: &["BrokenPipe", "UnexpectedEof"],
    },
    Canary {
        name: "parked_clients_are_never_woken",
        what: "a client that waits for its volume while the server starts is not served when that is open",
        judge: Detector::Here(
            "server",
            "early_clients::a_volume_is_served_as_soon_as_it_is_open_and_clients_of_others_wait_for_theirs",
        ),
        words: &[
            "was not told what came of its volume",
            "the client is served did not happen in time",
        ],
    },
    Canary {
        name: "drop_fua",
        what: "a write that asked to be durable is acknowledged before it is",
        judge: Detector::Test(
            "guest_server",
            "guest_power::what_was_flushed_to_a_disk_survives_a_power_cut_at_any_moment",
        ),
        words: &["was told that its write", "is missing; it ended at"],
    },
    Canary {
        name: "fetch_over_newer_write",
        what: "a cold read brings old bytes over a write that has just landed",
        judge: Detector::Here(
            "server",
            "store_faults::a_write_that_lands_while_its_neighbours_are_fetched_is_what_is_read",
        ),
        words: &["block by block in round"],
    },
    Canary {
        name: "ack_before_ring_entry",
        what: "the last acknowledged write of a disk is not found after kill -9",
        judge: Detector::Here(
            "kill_rounds",
            "every_acknowledged_write_is_found_after_each_kill_9",
        ),
        words: &["; allowed are generations "],
    },
    Canary {
        name: "one_volume_stops_all",
        what: "a volume that cannot be opened keeps the server from starting",
        judge: Detector::Here(
            "server",
            "waiting::a_volume_that_another_host_holds_waits_and_the_others_are_served",
        ),
        words: &["the server did not come up"],
    },
    Canary {
        name: "no_volume_is_left_out",
        what: "a server opens a volume that ends it, at each start again",
        judge: Detector::Here(
            "server",
            "left_out::a_volume_whose_opening_ends_the_server_three_times_is_left_out_and_keeps_all_that_it_holds",
        ),
        words: &["the server did not come up"],
    },
    Canary {
        name: "an_attach_that_fails_counts",
        what: "an attach by hand that ends the server makes the next start open the volume again",
        judge: Detector::Here(
            "server",
            "left_out::a_volume_whose_opening_ends_the_server_three_times_is_left_out_and_keeps_all_that_it_holds",
        ),
        words: &["the server did not come up"],
    },
    Canary {
        name: "every_kill_is_a_crash",
        what: "a server that is killed while it serves is taken for one that its volume has ended",
        judge: Detector::Here(
            "server",
            "left_out::no_volume_is_left_out_by_kills_of_a_server_that_serves_or_by_ends_that_name_no_volume",
        ),
        words: &["b was left out"],
    },
    Canary {
        name: "volume_size_is_exact",
        what: "a volume that was resized is refused to the command line that made it",
        judge: Detector::Here(
            "server",
            "waiting::a_volume_is_served_by_the_same_command_line_after_it_was_resized_and_grown_by_a_larger_one",
        ),
        words: &["assertion `left == right` failed"],
    },
    Canary {
        name: "take_over_every_volume",
        what: "a start takes over what other hosts have",
        judge: Detector::Here(
            "server",
            "waiting::a_take_over_is_of_one_volume_and_says_what_is_given_up",
        ),
        words: &["a was taken over from"],
    },
    Canary {
        name: "no_start_without_the_store",
        what: "a server does not start while its store is away",
        judge: Detector::Here(
            "server",
            "waiting::a_server_starts_while_its_store_is_away_and_serves_as_soon_as_that_is_back",
        ),
        words: &["the server did not come up"],
    },
    Canary {
        name: "nothing_is_served_before_the_store_answers",
        what: "a volume that the log continues waits for a store that is away",
        judge: Detector::Here(
            "server",
            "waiting::a_volume_that_its_log_continues_is_served_before_the_store_answers_and_checked_then",
        ),
        words: &["it is served"],
    },
    Canary {
        name: "silence_is_no_trouble",
        what: "nothing says that the store takes requests and never answers",
        judge: Detector::Here("minio_outages", "a_store_that_is_stopped_costs_no_error"),
        words: &["a line with [\"degraded"],
    },
    Canary {
        name: "an_upgrade_forgets_settings",
        what: "a setting that was changed is as configured after an upgrade",
        judge: Detector::Here(
            "server",
            "upgrade::settings_that_were_changed_stay_so_through_upgrades_and_end_with_the_server",
        ),
        words: &["left: String(\"3600s\")"],
    },
    Canary {
        name: "health_is_always_well",
        what: "nothing says that the index rings are gone",
        judge: Detector::Here(
            "server",
            "health::rings_that_cannot_be_put_back_are_said_and_a_restart_in_good_order_loses_nothing",
        ),
        words: &["the word of it did not happen in time"],
    },
    Canary {
        name: "list_waits_for_the_store",
        what: "a list of the volumes waits for a store that is away",
        judge: Detector::Here(
            "server",
            "health::a_list_is_answered_soon_while_the_store_is_away_and_says_what_it_lacks",
        ),
        words: &["the list took"],
    },
    Canary {
        name: "rings_stay_gone",
        what: "index rings that somebody removed are not put back",
        judge: Detector::Here(
            "server",
            "health::rings_whose_names_are_gone_are_put_back_and_a_killed_server_loses_nothing",
        ),
        words: &[
            "the return of the rings did not happen in time",
            "\"ready, degraded: index rings: ",
        ],
    },
    Canary {
        name: "half_a_request_for_ever",
        what: "a client holds a connection of the API with half a request",
        judge: Detector::Here(
            "server",
            "health::half_a_request_is_given_up_after_a_while_and_the_api_goes_on",
        ),
        words: &["it is held open"],
    },
    Canary {
        name: "blame_the_address",
        what: "a server that still has the directory is reported as an address in use",
        judge: Detector::Here(
            "server",
            "health::a_server_that_still_has_the_directory_is_the_reason_and_not_its_address",
        ),
        words: &["cannot listen for the API"],
    },
    Canary {
        name: "answers_wait_for_ever",
        what: "a client holds a connection of the API by never taking its answer",
        judge: Detector::Here(
            "server",
            "access::a_client_that_takes_no_answer_is_given_up",
        ),
        words: &["its end did not happen in time"],
    },
    Canary {
        name: "every_role_is_admin",
        what: "a token for looking may change everything",
        judge: Detector::Here(
            "server",
            "access::over_tcp_only_a_token_is_let_in_and_each_reaches_what_its_role_may",
        ),
        words: &["right: 403"],
    },
    Canary {
        name: "any_page_may_change",
        what: "a web page of somebody else uses the session of a browser",
        judge: Detector::Here(
            "server",
            "access::a_browser_exchanges_its_token_for_a_cookie_and_no_other_page_may_use_it",
        ),
        words: &["right: 403"],
    },
    Canary {
        name: "no_limit_of_rate",
        what: "tokens may be guessed as fast as the network carries",
        judge: Detector::Here(
            "server",
            "access::who_guesses_tokens_is_slowed_down_and_the_operator_is_not",
        ),
        words: &["it may guess for ever"],
    },
    Canary {
        name: "token_for_everybody",
        what: "a token that others may read is used",
        judge: Detector::Here(
            "server",
            "access::commands_over_tcp_use_the_token_of_this_directory_or_the_one_that_is_named",
        ),
        words: &["the token was used"],
    },
    Canary {
        name: "small_files_take_new_space",
        what: "a change of state needs new blocks of a full cache disk",
        judge: Detector::Here(
            "server",
            "full_disk::a_full_cache_disk_refuses_no_change_of_state_and_a_killed_server_starts_on_it",
        ),
        words: &["full from 0"],
    },
    Canary {
        name: "cache_takes_the_last_byte",
        what: "the read cache leaves no space to whatever else writes to its file system",
        judge: Detector::Here(
            "server",
            "full_disk::a_read_cache_takes_no_more_space_than_there_is_and_what_it_cannot_hold_is_read_from_the_store",
        ),
        words: &["are left"],
    },
    Canary {
        name: "network_locks_are_believed",
        what: "a directory store is used on a file system whose locks do not keep other hosts out",
        judge: Detector::Here(
            "server",
            "network_store::a_store_on_a_file_system_of_another_host_is_refused_with_the_reason_and_the_remedy",
        ),
        words: &["the reason is not its locks"],
    },
    Canary {
        name: "full_memory_is_a_full_disk",
        what: "a full ring directory is reported as a full disk of the log",
        judge: Detector::Here(
            "server",
            "full_disk::a_full_ring_directory_names_the_ring_directory_and_what_helps_and_not_a_smaller_log",
        ),
        words: &["it advises: "],
    },
    Canary {
        name: "missing_root_keeps_local_data",
        what: "a volume whose root was removed is not served from this host after a restart",
        judge: Detector::Here(
            "server",
            "removed_objects::a_root_that_was_removed_is_said_and_what_is_here_is_served_over_restarts",
        ),
        words: &["what is here is not served"],
    },
    Canary {
        name: "every_end_is_a_take_over",
        what: "a store that was set back is reported as a take-over",
        judge: Detector::Here(
            "server",
            "removed_objects::a_store_that_was_set_back_below_a_server_is_said_so_and_is_no_take_over",
        ),
        words: &["what became of it is not said"],
    },
    Canary {
        name: "rescue_gives_nothing_back",
        what: "a log is replaced while its volumes still rest on it",
        judge: Detector::Here(
            "server",
            "rescue_log::what_a_poisoned_log_has_durable_moves_to_another_directory_and_no_volume_is_lost",
        ),
        words: &["the next server: firn serve --cache new"],
    },
    Canary {
        name: "disk_over_lost_writes",
        what: "a disk goes on without writes that it has shown, and a FLUSH succeeds",
        judge: Detector::Here(
            "server",
            "rescue_log::a_disk_whose_unflushed_writes_a_poisoned_log_lost_is_not_served_again",
        ),
        words: &["right: \"hold-ended\""],
    },
    Canary {
        name: "fork_mixes_histories",
        what: "a fork of a lost tail lies over what another host wrote later",
        judge: Detector::Here(
            "server",
            "rescue::a_fork_never_mixes_two_histories_and_offers_the_tail_alone_where_the_store_has_merged_them",
        ),
        words: &["[\"rescue\", \"fork\", \"demo\", \"saved\"]"],
    },
    Canary {
        name: "heap_of_the_moment",
        what: "the server asks for memory while it is what frees memory",
        judge: Detector::Test(
            "guest_server",
            "guest_swap::a_server_has_the_heap_that_uploads_need_before_memory_is_short",
        ),
        words: &["of the heap are in memory"],
    },
    Canary {
        name: "a_schedule_owns_all_snapshots",
        what: "a schedule removes snapshots that it did not take",
        judge: Detector::Here(
            "server",
            "schedules::a_schedule_keeps_the_newest_of_its_snapshots_and_removes_no_other",
        ),
        words: &["lack the user's own"],
    },
    Canary {
        name: "a_schedule_begins_anew",
        what: "a server that starts takes snapshots that are not due",
        judge: Detector::Here(
            "server",
            "schedules::a_schedule_goes_on_after_a_kill_where_it_was",
        ),
        words: &["the hour is not over"],
    },
    Canary {
        name: "lines_are_waited_for",
        what: "a thread of the server waits until its line of the log is written",
        judge: Detector::Here(
            "server",
            "health::a_server_whose_standard_error_takes_nothing_goes_on_and_says_it_all_later",
        ),
        words: &["standard error that takes nothing"],
    },
    Canary {
        name: "trust_the_name_of_a_disk",
        what: "attach prints a path at which something else stands",
        judge: Detector::Test(
            "guest_server",
            "guest_promises::what_attach_prints_is_the_disk_though_a_file_had_its_name",
        ),
        words: &["is not on the volume"],
    },
];
