//! Servers that are killed, and those that take over from them, under load and under mounted file
//! systems: no client sees an error that it need not see, and no data is lost.

use std::time::Duration;

use rustix::process::Signal;
use ublk::sys;

use crate::servers::client::{Load, Mounted, RunningLoad, completed, run, text, wait_for_requests};
use crate::servers::driver;
use crate::servers::world::{
    DEADLINE, Scratch, Server, ServerOptions, Table, delete, is_requested, kernel_has,
    requested_modes, state, wait_for_state, wait_until,
};

/// A recoverable file server over a file, and the one that takes over from it.
fn recoverable<'a>(
    scratch: &Scratch,
    mode: &'a str,
    mib: u64,
) -> (ServerOptions<'a>, ServerOptions<'a>) {
    let first = ServerOptions {
        program: "file",
        mode,
        recovery: "reissue",
        files: vec![scratch.file("disk", mib)],
        ..ServerOptions::default()
    };
    let mut next = first.clone();
    next.extra_args.push("--recover".into());
    (first, next)
}

/// Waits until a device has completed this many requests more, of a load that a slow guest may see end
/// meanwhile: then it ended well, and the next one is begun.
fn until_more_of(server: &Server, requests: u64, (load, running): (&Load<'_>, &mut RunningLoad)) {
    let before = completed(&server.block(0));
    wait_until("the load goes on", DEADLINE, || {
        if !running.is_running() {
            println!("the load has ended and is begun again");
            std::mem::replace(running, load.start()).expect_success();
        }
        completed(&server.block(0)) >= before + requests
    });
}

#[test]
fn a_killed_server_without_recovery_leaves_a_dead_device_that_can_be_deleted() {
    for mode in requested_modes(Table::All) {
        let server = ServerOptions {
            mode,
            queues: 2,
            ..ServerOptions::default()
        }
        .start();
        let load = Load::endless(server.blocks()).start();
        wait_for_requests(&server.block(0), 100);
        server.kill();
        load.expect_failure();
        wait_for_state(0, sys::STATE_DEAD);
        delete([0]);
        assert_eq!(state(0), None);
    }
}

#[test]
fn a_killed_server_with_recovery_leaves_a_device_that_can_be_deleted_under_load() {
    for mode in requested_modes(Table::All) {
        let server = ServerOptions {
            mode,
            recovery: "reissue",
            ..ServerOptions::default()
        }
        .start();
        let load = Load::endless(server.blocks()).start();
        wait_for_requests(&server.block(0), 100);
        server.kill();
        wait_for_state(0, sys::STATE_QUIESCED);
        delete([0]);
        load.expect_failure();
        assert_eq!(state(0), None);
    }
}

#[test]
fn a_successor_takes_over_under_load_and_no_client_sees_an_error() {
    for mode in requested_modes(Table::All) {
        let scratch = Scratch::new();
        let (first, next) = recoverable(&scratch, mode, 32);
        let server = first.start();
        let load = Load::paced(server.blocks()).start();
        wait_for_requests(&server.block(0), 50);
        server.kill();
        let server = next.start();
        assert_eq!(server.mode(0), mode);
        load.expect_success();
        assert_eq!(driver::devices(), [0]);
    }
}

#[test]
fn a_mounted_file_system_survives_its_server() {
    if !is_requested(Table::All) {
        return;
    }
    let scratch = Scratch::new();
    let (first, next) = recoverable(&scratch, "auto", 64);
    let server = first.start();
    let device = server.block(0);
    run("mkfs.ext4", &["-q", "-F", text(&device)]);
    let mounted = Mounted::new(&device, scratch.path("mnt"));
    std::fs::write(mounted.path("before"), vec![1; 1 << 20]).unwrap();
    server.kill();
    let server = next.start();
    std::fs::write(mounted.path("after"), vec![2; 1 << 20]).unwrap();
    run("sync", &["-f", text(&mounted.path("after"))]);
    assert_eq!(
        std::fs::read(mounted.path("before")).unwrap(),
        vec![1; 1 << 20]
    );
    mounted.unmount();
    run("e2fsck", &["-f", "-n", text(&device)]);
    drop(server);
}

#[test]
fn a_device_outlives_twenty_servers_that_are_killed_and_restarted_at_once() {
    if !is_requested(Table::All) {
        return;
    }
    let scratch = Scratch::new();
    let (first, next) = recoverable(&scratch, "auto", 32);
    let mut server = first.start();
    let load = Load {
        mib: 16,
        extra_args: vec![
            "--verify=crc32c",
            "--verify_fatal=1",
            "--do_verify=1",
            "--loops=1000",
        ],
        ..Load::verified(server.blocks())
    };
    let mut load = load.start();
    for round in 0..20 {
        wait_for_requests(&server.block(0), 5);
        assert!(load.is_running(), "the load ended in round {round}");
        server.kill();
        server = next.start();
        assert_eq!(driver::devices(), [0], "round {round}");
    }
    wait_for_requests(&server.block(0), 5);
    assert!(load.is_running(), "the load did not survive");
}

/// Whether a process has a device's character device open, which it has from the middle of taking
/// over on.
fn has_open(pid: u32, id: u32) -> bool {
    let files = std::fs::read_dir(format!("/proc/{pid}/fd"))
        .into_iter()
        .flatten();
    let wanted = std::path::PathBuf::from(format!("/dev/ublkc{id}"));
    files
        .flatten()
        .any(|file| std::fs::read_link(file.path()).is_ok_and(|path| path == wanted))
}

#[test]
fn a_server_killed_while_it_takes_over_leaves_a_device_for_the_next() {
    if !is_requested(Table::All) {
        return;
    }
    let scratch = Scratch::new();
    let (first, next) = recoverable(&scratch, "auto", 32);
    let recovers = driver::features() & sys::F_PER_IO_TASK != 0;
    for pause in [0, 1, 3, 10] {
        first.start().kill();
        wait_for_state(0, sys::STATE_QUIESCED);
        let halfway = next.spawn();
        wait_until("it is taking over", DEADLINE, || has_open(halfway.pid(), 0));
        std::thread::sleep(Duration::from_millis(pause));
        halfway.kill();
        wait_for_state(0, sys::STATE_QUIESCED);
        if recovers {
            let server = next.start();
            Load {
                mib: 2,
                ..Load::verified(server.blocks())
            }
            .run();
            drop(server);
        }
        // Linux 6.12 may start no second recovery there; the device can be deleted.
        delete([0]);
        assert_eq!(state(0), None);
    }
}

#[test]
fn a_planned_handover_quiesces_and_no_client_sees_an_error() {
    if !is_requested(Table::All) || !kernel_has(sys::F_QUIESCE, "the quiesce command") {
        return;
    }
    let scratch = Scratch::new();
    let (mut first, next) = recoverable(&scratch, "auto", 32);
    first.extra_args.push("--leave".into());
    let server = first.start();
    let load = Load::paced(server.blocks()).start();
    wait_for_requests(&server.block(0), 50);
    let (status, log) = server.terminate();
    assert!(status.success(), "{log}");
    assert_eq!(state(0), Some(sys::STATE_QUIESCED), "{log}");
    let server = next.start();
    load.expect_success();
    drop(server);
}

#[test]
fn servers_that_leave_one_after_the_other_under_load_fail_no_request() {
    if !is_requested(Table::All) {
        return;
    }
    // Quiesced ahead, all devices side by side, where the kernel can; and as the rings close.
    for extra_args in ["--leave", "--leave --quiesce-by-ring"] {
        let scratch = Scratch::new();
        let (mut first, mut next) = recoverable(&scratch, "auto", 32);
        for server in [&mut first, &mut next] {
            let others = (1..4).map(|at| scratch.file(&format!("disk{at}"), 32));
            server.files.extend(others);
            (server.devices, server.queues) = (4, 2);
            server
                .extra_args
                .extend(["--reactors", "2"].map(str::to_owned));
            server
                .extra_args
                .extend(extra_args.split(' ').map(str::to_owned));
        }
        let mut server = first.start();
        let mut load = Load::verified(server.blocks());
        load.mib = 16;
        load.extra_args.push("--rate_iops=400");
        let mut running = load.start();
        for round in 0..4 {
            until_more_of(&server, 200, (&load, &mut running));
            if round == 1 {
                // Impatience changes nothing.
                server.signal(Signal::TERM);
            }
            if round == 2 {
                // Wherever it has got to by then.
                server.signal(Signal::TERM);
                std::thread::sleep(Duration::from_millis(20));
                server.kill();
            } else {
                let (status, log) = server.terminate();
                assert!(status.success(), "{extra_args}: {log}");
                for id in 0..4 {
                    assert_eq!(state(id), Some(sys::STATE_QUIESCED), "{extra_args}: {log}");
                }
            }
            server = next.start();
        }
        running.expect_success();
        assert_eq!(driver::devices(), [0, 1, 2, 3]);
    }
}

#[test]
fn a_successor_that_cannot_take_over_all_disks_leaves_them_as_they_were() {
    if !is_requested(Table::Fast)
        || !kernel_has(sys::F_RECOVERY_FAIL_IO, "failing without a server")
    {
        return;
    }
    let scratch = Scratch::new();
    let (first, mut next) = recoverable(&scratch, "auto", 16);
    let mut other = first.clone();
    (other.id, other.recovery) = (1, "fail-io");
    other.files = vec![scratch.file("other", 16)];
    let (server, other) = (first.start(), other.start());
    server.kill();
    other.kill();
    wait_for_state(0, sys::STATE_QUIESCED);
    wait_for_state(1, sys::STATE_FAIL_IO);
    // It wants requests to be reissued, which the other disk does not do.
    next.files.push(scratch.path("other"));
    next.devices = 2;
    let mut both = next.spawn().leaving_devices();
    let status = both.try_wait_until_live().unwrap_err();
    assert!(!status.success(), "{}", both.log());
    assert!(both.log().contains("device 0: Recovered"), "{}", both.log());
    assert_eq!(state(0), Some(sys::STATE_QUIESCED), "{}", both.log());
    assert_eq!(state(1), Some(sys::STATE_FAIL_IO), "{}", both.log());
    next.files.pop();
    next.devices = 1;
    let server = next.start();
    Load {
        mib: 2,
        ..Load::verified(server.blocks())
    }
    .run();
    server.exits_cleanly();
    delete([1]);
}
