//! The kernel's own tests of ublk, and those of blktests, as far as they ask something of a server
//! and no other file has them: each test names its model.
//!
//! Here data is verified and the client's status counts, which theirs do not do.

use std::time::Instant;

use ublk::sys;

use crate::servers::client::{Load, RunningLoad, wait_for_requests};
use crate::servers::driver;
use crate::servers::figures::Figures;
use crate::servers::world::{
    DEADLINE, Scratch, Server, ServerOptions, Table, block, delete, inflight, is_block,
    is_requested, kernel_has, modes, requested_modes, state, wait_for_state, wait_until,
};

/// part_02.
#[test]
fn a_device_starts_while_its_scan_is_blocked_and_its_server_can_be_killed() {
    if !is_requested(Table::All)
        || !kernel_has(sys::F_NO_PART_SCAN, "a scan that START waits not for")
    {
        return;
    }
    for (recovery, end) in [
        ("none", sys::STATE_DEAD),
        ("plain", sys::STATE_QUIESCED),
        ("reissue", sys::STATE_QUIESCED),
    ] {
        let begun = Instant::now();
        let server = ServerOptions {
            program: "faulty",
            recovery,
            extra_args: vec!["--delay-us".into(), "600000000".into()],
            ..ServerOptions::default()
        }
        .start();
        assert!(begun.elapsed() < DEADLINE, "{:?}", begun.elapsed());
        wait_until("the scan's read is with the server", DEADLINE, || {
            inflight(0) > 0
        });
        server.kill();
        wait_for_state(0, end);
        delete([0]);
        assert_eq!(state(0), None, "{recovery}");
    }
}

/// Each mode, and with it: far fewer slots than tags, so that requests find theirs taken; and
/// queues whose tags several threads share.
fn variants() -> Vec<(&'static str, &'static str)> {
    let spread = driver::features() & sys::F_PER_IO_TASK != 0;
    let of = |mode| {
        let few = (mode == "zero-copy").then_some((mode, "--slots 2"));
        let spread = spread.then_some((mode, "--reactors 3 --spread"));
        [Some((mode, "")), few, spread].into_iter().flatten()
    };
    modes().into_iter().flat_map(of).collect()
}

/// The loads of a stress test: a null, a file and a striped device in one mode.
struct Stress {
    ids: std::ops::Range<u32>,
    servers: Vec<Server>,
    loads: Vec<RunningLoad>,
    _scratch: Scratch,
}

impl Stress {
    /// With three numbers that no other round has: one that was deleted without waiting is taken
    /// for a moment longer.
    fn start(
        round: usize,
        (mode, how): (&'static str, &'static str),
        recovery: &'static str,
    ) -> Stress {
        let first = round as u32 * 3;
        let scratch = Scratch::new();
        let legs = |count: usize, of: &str| {
            let names = (0..count).map(|leg| scratch.file(&format!("{of}{leg}"), 16));
            names.collect::<Vec<_>>()
        };
        let serve = |id, program, files: Vec<_>| ServerOptions {
            program,
            id,
            mode,
            queues: 4,
            recovery,
            extra_args: format!("{how}{}", ["", "", " --stripe 65536"][files.len()])
                .split_whitespace()
                .map(String::from)
                .collect(),
            files,
            ..ServerOptions::default()
        };
        let servers: Vec<_> = [
            serve(first, "null", Vec::new()),
            serve(first + 1, "file", legs(1, "file")),
            serve(first + 2, "file", legs(2, "leg")),
        ]
        .iter()
        .map(ServerOptions::start)
        .collect();
        let loads: Vec<_> = servers
            .iter()
            .map(|server| {
                Load {
                    depth: 128,
                    ..Load::endless(server.blocks())
                }
                .start()
            })
            .collect();
        servers
            .iter()
            .for_each(|server| wait_for_requests(&server.block(0), 50));
        Stress {
            ids: first..first + 3,
            servers,
            loads,
            _scratch: scratch,
        }
    }

    /// Waits until all clients were told.
    fn expect_failure(self) -> Vec<Server> {
        self.loads.into_iter().for_each(RunningLoad::expect_failure);
        self.servers
    }
}

/// stress_01, 03 and 06.
#[test]
fn devices_of_every_kind_are_deleted_under_load_in_every_mode() {
    if !is_requested(Table::All) {
        return;
    }
    for (round, variant) in variants().into_iter().enumerate() {
        let stress = Stress::start(round, variant, "none");
        let ids = stress.ids.clone();
        ids.clone().for_each(driver::delete_async);
        for server in stress.expect_failure() {
            let (_, log) = server.terminate();
            assert!(!log.contains("panicked"), "{log}");
        }
        assert_deleted(ids);
    }
}

/// stress_02, 04 and 07.
#[test]
fn servers_of_every_kind_are_killed_under_load_in_every_mode() {
    if !is_requested(Table::All) {
        return;
    }
    for (round, variant) in variants().into_iter().enumerate() {
        let mut stress = Stress::start(round, variant, "none");
        let ids = stress.ids.clone();
        stress.servers.drain(..).for_each(Server::kill);
        stress.expect_failure();
        for id in ids.clone() {
            wait_for_state(id, sys::STATE_DEAD);
        }
        delete(ids.clone());
        assert_deleted(ids);
    }
}

/// stress_05.
#[test]
fn devices_that_wait_for_a_server_are_deleted_under_load_in_every_mode() {
    if !is_requested(Table::All) {
        return;
    }
    for (round, variant) in variants().into_iter().enumerate() {
        for recovery in ["plain", "reissue"] {
            let mut stress = Stress::start(round, variant, recovery);
            let ids = stress.ids.clone();
            stress.servers.drain(..).for_each(Server::kill);
            for id in ids.clone() {
                wait_for_state(id, sys::STATE_QUIESCED);
            }
            delete(ids.clone());
            stress.expect_failure();
            assert_deleted(ids);
        }
    }
}

/// Takes a device over twice under one client that reads all the while: after a kill and after a
/// handover, or another kill where the kernel has no quiesce command.
fn check_recovery(mut serve: ServerOptions, fails: bool) {
    // What the first server is given, and every later one must have.
    let old = |server: &Server, pattern| {
        let extra_args = vec!["--offset=8m", "--verify=crc32c", "--verify_fatal=1"];
        let load = Load {
            pattern,
            block: "64k",
            mib: 2,
            extra_args,
            ..Load::verified(server.blocks())
        };
        load.run();
    };
    let keeps_data = !serve.files.is_empty();
    let mut server = serve.start();
    if keeps_data {
        old(&server, "write");
    }
    let mut load = Load {
        pattern: "randread",
        ..Load::endless(server.blocks())
    };
    if fails {
        load.extra_args.push("--continue_on_error=io");
    }
    let mut load = load.start();
    serve.extra_args.push("--recover".into());
    let hands_over = driver::features() & sys::F_QUIESCE != 0;
    for round in 0..2 {
        wait_for_requests(&server.block(0), 50);
        if round == 1 && hands_over {
            let (status, log) = server.terminate();
            assert!(status.success(), "{log}");
            assert_eq!(state(0), Some(sys::STATE_QUIESCED), "{log}");
        } else {
            server.kill();
        }
        server = serve.start();
        assert_eq!(server.mode(0), serve.mode);
        assert_eq!(driver::devices(), [0], "round {round}");
        // The same client goes on; what it had under way failed, or not even that.
        wait_for_requests(&server.block(0), 50);
        assert!(load.is_running(), "round {round} of {serve:?}");
        if keeps_data {
            old(&server, "read");
        }
    }
    drop(load);
    if keeps_data {
        Load::verified(server.blocks()).run();
    }
}

/// recover_01 to 04, and ublk/006.
#[test]
fn devices_of_every_kind_are_recovered_twice_with_and_without_reissue() {
    for mode in requested_modes(Table::All) {
        let kinds = [0, 1, 2].map(|legs| [("plain", legs), ("reissue", legs)]);
        for (recovery, legs) in kinds.into_iter().flatten() {
            let scratch = Scratch::new();
            let mut serve = ServerOptions {
                program: if legs == 0 { "null" } else { "file" },
                mode,
                queues: 2,
                recovery,
                files: (0..legs)
                    .map(|leg| scratch.file(&format!("leg{leg}"), 16))
                    .collect(),
                extra_args: vec!["--leave".into()],
                ..ServerOptions::default()
            };
            if legs > 1 {
                serve.extra_args.extend(["--stripe".into(), "65536".into()]);
            }
            check_recovery(serve, recovery == "plain");
        }
    }
}

/// The numbers are free, which they are a moment after a deletion that nobody waited for.
fn assert_deleted(ids: impl Iterator<Item = u32>) {
    for id in ids {
        wait_until("the number is free", DEADLINE, || state(id).is_none());
    }
}

/// ublk/004.
#[test]
fn a_device_is_deleted_at_once_after_its_server_was_killed() {
    for mode in requested_modes(Table::All) {
        for recovery in ["none", "plain", "reissue"] {
            let server = ServerOptions {
                queues: 2,
                mode,
                recovery,
                ..ServerOptions::default()
            }
            .start();
            let load = Load::endless(server.blocks()).start();
            wait_for_requests(&server.block(0), 50);
            server.kill();
            delete([0]);
            load.expect_failure();
            assert_deleted(0..1);
        }
    }
}

/// null_01 to 03.
#[test]
fn a_null_device_serves_reads_and_writes_in_every_mode() {
    for mode in requested_modes(Table::All) {
        let server = ServerOptions {
            mode,
            queues: 2,
            ..ServerOptions::default()
        }
        .start();
        assert_eq!(server.mode(0), mode);
        Load {
            extra_args: vec!["--norandommap", "--io_size=16m", "--bsrange=4k-256k"],
            ..Load::endless(server.blocks())
        }
        .run();
        server.exits_cleanly();
    }
}

/// generic_03, and more: the limits hold for requests that are larger than them.
#[test]
fn limits_on_the_memory_of_requests_are_the_kernels_limits_in_every_mode() {
    if !is_requested(Table::All) {
        return;
    }
    // Both came with zero copy; older drivers ignore what they do not know.
    if !kernel_has(sys::F_ZERO_COPY, "limits of segments") {
        return;
    }
    let options = "--segments 32 --segment-bytes 32K --dma-alignment 4096";
    for mode in modes() {
        let server = ServerOptions {
            mode,
            extra_args: options.split(' ').map(String::from).collect(),
            ..ServerOptions::default()
        }
        .start();
        let limit = |name: &str| {
            let path = format!("/sys/block/ublkb0/queue/{name}");
            let text = std::fs::read_to_string(path).unwrap();
            text.trim().parse::<u64>().unwrap()
        };
        assert_eq!(limit("max_segments"), 32, "{mode}");
        assert_eq!(limit("max_segment_size"), 32 << 10, "{mode}");
        assert_eq!(limit("dma_alignment"), 4095, "{mode}");
        Load {
            extra_args: vec!["--norandommap", "--io_size=8m", "--bsrange=512k-1m"],
            ..Load::endless(server.blocks())
        }
        .run();
        server.exits_cleanly();
    }
}

/// generic_09, and more: what a ring's tables hold is far less than what its devices have.
#[test]
fn more_tags_than_slots_and_completions_of_a_ring_lose_nothing() {
    for mode in requested_modes(Table::All) {
        let scratch = Scratch::new();
        let server = ServerOptions {
            program: "file",
            mode,
            devices: 4,
            depth: 256,
            files: (0..4)
                .map(|n| scratch.file(&format!("disk{n}"), 16))
                .collect(),
            extra_args: ["--slots", "2", "--completions", "256"]
                .map(String::from)
                .into(),
            ..ServerOptions::default()
        }
        .start();
        Load {
            depth: 256,
            mib: 16,
            ..Load::verified(server.blocks())
        }
        .run();
        let log = server.exits_cleanly();
        let fallbacks = Figures::read(&log).sum("fallbacks");
        assert_eq!(fallbacks > 0, mode == "zero-copy", "{log}");
    }
}

/// What a server that cannot be says, and that it leaves nothing behind and disturbs nobody.
#[test]
fn what_cannot_be_served_is_refused_with_words_and_leaves_nothing_behind() {
    if !is_requested(Table::All) {
        return;
    }
    let holder = ServerOptions {
        id: 7,
        ..ServerOptions::default()
    }
    .start();
    let serve = |id, queues, depth| ServerOptions {
        id,
        queues,
        depth,
        ..ServerOptions::default()
    };
    for (serve, words) in [
        (serve(0, 1, 0), "tags per queue"),
        (serve(0, 1, 5000), "4096"),
        (serve(0, 0, 16), "queues"),
        (serve(0, 5000, 16), "4096"),
        (serve(1 << 20, 1, 16), "out of range"),
        (serve(7, 1, 16), "the number is taken"),
    ] {
        let mut refused = serve.spawn().leaving_devices();
        assert!(!refused.wait_for_exit().success(), "{serve:?}");
        let log = refused.log();
        assert!(log.contains(words), "{words:?} is not in: {log}");
        assert_eq!(driver::devices(), [7], "left behind: {serve:?}");
    }
    assert!(is_block(&block(7)));
    Load {
        pattern: "randread",
        extra_args: vec!["--norandommap"],
        ..Load::endless(holder.blocks())
    }
    .run();
}

/// The module's limit of devices, set back when dropped.
struct Limit(String);

impl Limit {
    const PATH: &str = "/sys/module/ublk_drv/parameters/ublks_max";

    fn set(to: &str) -> Limit {
        let before = std::fs::read_to_string(Limit::PATH).unwrap();
        std::fs::write(Limit::PATH, to).unwrap();
        Limit(before.trim().to_owned())
    }
}

impl Drop for Limit {
    fn drop(&mut self) {
        std::fs::write(Limit::PATH, &self.0).unwrap();
    }
}

/// The limit counts root's devices before 6.15 only, and 6.12 was given the change, too: on no kernel
/// of the lane can it be reached by a device that this library adds. What is said where it is
/// reached is tested beside the errors.
#[test]
fn a_modules_limit_on_devices_of_others_does_not_hold_for_those_of_root() {
    if !is_requested(Table::All) {
        return;
    }
    let first = ServerOptions::default().start();
    let limit = Limit::set("1");
    let second = ServerOptions {
        id: 1,
        ..ServerOptions::default()
    }
    .start();
    assert_eq!(driver::devices(), [0, 1]);
    second.exits_cleanly();
    drop(limit);
    first.exits_cleanly();
}
