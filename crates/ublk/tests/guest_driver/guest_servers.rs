//! The example servers on a real kernel, in every data mode that it grants: data, file systems,
//! many devices on one ring, and ways in which a device goes.
//!
//! Scenarios are those of the kernel's own tests of ublk, with what those leave out: data is
//! verified, and the status of the client counts.

use std::os::unix::fs::{FileExt, MetadataExt};
use std::time::Instant;

use ublk::sys;

use crate::servers::client::{Load, Mounted, run, text, wait_for_requests};
use crate::servers::driver;
use crate::servers::world::{
    DEADLINE, Scratch, ServerOptions, Table, delete, inflight, is_requested, kernel_has, modes,
    requested_modes, requested_table, state, wait_for_state, wait_until,
};

/// A file server in a mode, over a new file.
fn file_server<'a>(scratch: &Scratch, mode: &'a str, mib: u64) -> ServerOptions<'a> {
    ServerOptions {
        program: "file",
        mode,
        files: vec![scratch.file("disk", mib)],
        ..ServerOptions::default()
    }
}

#[test]
fn every_granted_mode_when_forced_is_the_one_that_serves_and_data_verifies() {
    if !is_requested(Table::Smoke) {
        return;
    }
    let mut chosen = modes();
    if requested_table() == Table::Smoke {
        chosen.truncate(1);
    }
    for mode in chosen {
        let scratch = Scratch::new();
        let server = file_server(&scratch, mode, 32).start();
        assert_eq!(server.mode(0), mode, "{}", server.log());
        Load::verified(server.blocks()).run();
        server.exits_cleanly();
    }
}

#[test]
fn every_server_says_what_it_takes_and_gives_an_example() {
    if !is_requested(Table::Smoke) {
        return;
    }
    for program in ["null", "file", "faulty"] {
        let serve = ServerOptions {
            program,
            extra_args: vec!["--help".into()],
            ..ServerOptions::default()
        };
        let mut server = serve.spawn().leaving_devices();
        assert!(server.wait_for_exit().success(), "{program}");
        let log = server.log();
        assert!(log.contains(&format!("{program} --")), "{log}");
        assert!(log.contains("--mode MODE"), "{log}");
        assert_eq!(driver::devices(), Vec::<u32>::new());
    }
}

#[test]
fn auto_takes_the_dearest_mode_that_the_kernel_grants() {
    if !is_requested(Table::Smoke) {
        return;
    }
    let server = ServerOptions::default().start();
    assert_eq!(server.mode(0), modes()[0]);
}

#[test]
fn a_mode_that_the_kernel_lacks_is_refused_with_words_and_leaves_nothing_behind() {
    if !is_requested(Table::Smoke) {
        return;
    }
    // A kernel that has the mode plays 6.12, which has not.
    let mut server = ServerOptions {
        mode: "zero-copy",
        variables: vec![("FIRN_UBLK_FEATURE_MASK", "0x1fe")],
        ..ServerOptions::default()
    }
    .spawn();
    assert!(!server.wait_for_exit().success());
    let log = server.log();
    assert!(log.contains("zero-copy"), "{log}");
    let played = ServerOptions {
        variables: vec![("FIRN_UBLK_FEATURE_MASK", "0x1fe")],
        ..ServerOptions::default()
    }
    .start();
    assert_eq!(played.mode(0), "user-copy");
    drop(played);
    assert_eq!(driver::devices(), Vec::<u32>::new());
}

#[test]
fn a_kernel_that_plays_an_older_one_serves_as_that_one_does() {
    if !is_requested(Table::All) {
        return;
    }
    let modes = modes();
    for (kernel, mask, mode) in [
        ("6.17", 0x7fff_u64, "zero-copy"),
        ("6.8", 0x1fe, "user-copy"),
        ("6.4", 0x7e, "get-data"),
    ] {
        // Where it is older itself, it plays nobody.
        let mode = if modes.contains(&mode) {
            mode
        } else {
            modes[0]
        };
        let scratch = Scratch::new();
        let visible = format!("{mask:#x}");
        let server = ServerOptions {
            queues: 2,
            variables: vec![("FIRN_UBLK_FEATURE_MASK", &visible)],
            ..file_server(&scratch, "auto", 32)
        }
        .start();
        assert_eq!(server.mode(0), mode, "{kernel}: {}", server.log());
        // What the driver sets unasked is there all the same.
        let unasked = sys::F_COMPLETE_IN_TASK
            | sys::F_IOCTL_ENCODE
            | sys::F_PER_IO_TASK
            | sys::F_REGISTER_ANYWHERE
            | sys::F_SAFE_STOP;
        let flags = driver::info(0).unwrap().flags & !unasked;
        assert_eq!(flags & !mask, 0, "{kernel}: {flags:#x}");
        Load::verified(server.blocks()).run();
        server.exits_cleanly();
    }
}

#[test]
fn a_file_system_comes_back_clean_in_every_mode() {
    if !is_requested(Table::All) {
        return;
    }
    // loop_02 and stripe_02, and their like.
    let kinds = modes().into_iter().flat_map(|mode| [(mode, 1), (mode, 2)]);
    for (mode, legs) in kinds {
        let scratch = Scratch::new();
        let mut serve = file_server(&scratch, mode, 64);
        if legs > 1 {
            serve.files.push(scratch.file("leg", 64));
            serve.extra_args = vec!["--stripe".into(), "65536".into()];
        }
        let server = serve.start();
        let device = server.block(0);
        run("mkfs.ext4", &["-q", "-F", text(&device)]);
        let mounted = Mounted::new(&device, scratch.path("mnt"));
        std::fs::write(mounted.path("x"), vec![7; 3 << 20]).unwrap();
        mounted.unmount();
        run("e2fsck", &["-f", "-n", text(&device)]);
        let again = Mounted::new(&device, scratch.path("mnt"));
        assert_eq!(std::fs::read(again.path("x")).unwrap(), vec![7; 3 << 20]);
        // Discard reaches the file, too.
        run("fstrim", &[text(&again.path(""))]);
        again.unmount();
        run("e2fsck", &["-f", "-n", text(&device)]);
    }
}

#[test]
fn xfs_comes_back_clean_in_every_mode() {
    for mode in requested_modes(Table::All) {
        let scratch = Scratch::new();
        let server = file_server(&scratch, mode, 320).start();
        let device = server.block(0);
        run("mkfs.xfs", &["-q", "-f", text(&device)]);
        let mounted = Mounted::new(&device, scratch.path("mnt"));
        std::fs::write(mounted.path("x"), vec![7; 3 << 20]).unwrap();
        mounted.unmount();
        run("xfs_repair", &["-n", text(&device)]);
    }
}

#[test]
fn get_data_writes_through_a_pool_of_the_servers_own_wait_their_turn_and_verify() {
    if !is_requested(Table::Fast) || !kernel_has(sys::F_NEED_GET_DATA, "get-data") {
        return;
    }
    // Room for four of the largest requests, for both devices together.
    let scratch = Scratch::new();
    let server = ServerOptions {
        program: "file",
        mode: "get-data",
        devices: 2,
        files: vec![scratch.file("a", 16), scratch.file("b", 16)],
        extra_args: ["--io-bytes", "64K", "--pool", "256K"]
            .map(String::from)
            .into(),
        ..ServerOptions::default()
    }
    .start();
    assert!((0..2).all(|id| server.mode(id) == "get-data"));
    Load::verified(server.blocks()).run();
    let log = server.exits_cleanly();
    let figures = log.lines().find_map(|line| line.strip_prefix("pool: "));
    let figures = figures.unwrap_or_else(|| panic!("no figures of a pool:\n{log}"));
    let numbers: Vec<u64> = figures
        .split_whitespace()
        .filter_map(|word| word.parse().ok())
        .collect();
    let [lent, dry, left] = numbers[..] else {
        panic!("other figures: {figures}")
    };
    assert!(lent >= 100 && dry > 0, "{figures}");
    assert_eq!(left, 256 << 10, "{figures}");
}

#[test]
fn sixty_four_devices_on_one_ring_each_keep_their_own_data() {
    for mode in requested_modes(Table::All) {
        let scratch = Scratch::new();
        let server = ServerOptions {
            program: "file",
            mode,
            devices: 64,
            depth: 16,
            files: (0..64)
                .map(|n| scratch.file(&format!("disk{n}"), 2))
                .collect(),
            ..ServerOptions::default()
        }
        .start();
        assert!((0..64).all(|id| server.mode(id) == mode));
        Load {
            mib: 1,
            depth: 4,
            ..Load::verified(server.blocks())
        }
        .run();
        server.exits_cleanly();
    }
}

#[test]
fn a_device_deleted_under_load_goes_and_its_client_is_told() {
    if !is_requested(Table::All) {
        return;
    }
    // Each its own number: one that nobody waited for is taken for a moment longer.
    for (id, mode) in (0..).zip(modes()) {
        let server = ServerOptions {
            id,
            mode,
            queues: 2,
            ..ServerOptions::default()
        }
        .start();
        let load = Load::endless(server.blocks()).start();
        wait_for_requests(&server.block(0), 100);
        driver::delete_async(id);
        load.expect_failure();
        // The number is free once the server has let go of it.
        let (_, log) = server.terminate();
        assert!(!log.contains("panicked"), "{log}");
        wait_until("the device is gone", DEADLINE, || state(id).is_none());
    }
}

#[test]
fn one_device_leaves_a_shared_ring_and_the_other_notices_nothing() {
    for mode in requested_modes(Table::All) {
        let scratch = Scratch::new();
        let server = ServerOptions {
            program: "file",
            mode,
            devices: 2,
            files: vec![scratch.file("a", 16), scratch.file("b", 16)],
            ..ServerOptions::default()
        }
        .start();
        let stays = Load::paced(vec![server.block(1)]).start();
        let goes = Load::endless(vec![server.block(0)]).start();
        wait_for_requests(&server.block(0), 100);
        driver::stop(0);
        goes.expect_failure();
        stays.expect_success();
        assert_eq!(state(0), Some(sys::STATE_DEAD));
        assert_eq!(state(1), Some(sys::STATE_LIVE));
        Load::verified(vec![server.block(1)]).run();
    }
}

#[test]
fn a_stripe_over_files_fans_out_and_its_data_verifies() {
    for mode in requested_modes(Table::All) {
        let scratch = Scratch::new();
        let server = ServerOptions {
            program: "file",
            mode,
            queues: 2,
            files: (0..3)
                .map(|n| scratch.file(&format!("leg{n}"), 16))
                .collect(),
            extra_args: vec!["--stripe".into(), "65536".into()],
            ..ServerOptions::default()
        }
        .start();
        // Every request crosses from file to file.
        let load = Load {
            extra_args: vec!["--verify=crc32c", "--verify_fatal=1", "--do_verify=1"],
            ..Load::verified(server.blocks())
        };
        Load {
            block: "256k",
            ..load
        }
        .run();
        Load::verified(server.blocks()).run();
    }
}

/// generic_06: every tag of a queue is with the server when that is killed.
#[test]
fn a_killed_server_that_holds_every_tag_does_not_hold_its_clients() {
    if !is_requested(Table::All)
        || !kernel_has(sys::F_PER_IO_TASK, "an exit that needs no idle tag")
    {
        return;
    }
    for mode in modes() {
        let server = ServerOptions {
            program: "faulty",
            mode,
            queues: 2,
            depth: 1,
            // Without the scan's read, the first request is the client's.
            extra_args: ["--delay-us", "2000000", "--no-part-scan"]
                .map(String::from)
                .into(),
            ..ServerOptions::default()
        }
        .start();
        let load = Load {
            pattern: "read",
            depth: 1,
            ..Load::endless(server.blocks())
        }
        .start();
        wait_until("a request is with the server", DEADLINE, || inflight(0) > 0);
        let begun = Instant::now();
        server.kill();
        load.expect_failure();
        let took = begun.elapsed();
        assert!(took < DEADLINE, "{mode}: {took:?}");
        wait_for_state(0, sys::STATE_DEAD);
        delete([0]);
    }
}

/// generic_10: the kernel takes any size, and so does the library. What is cut off comes back with
/// its size: the server's file keeps it.
#[test]
fn a_disk_is_halved_and_grows_again_while_it_is_used() {
    if !is_requested(Table::All) || !kernel_has(sys::F_UPDATE_SIZE, "changes of a size") {
        return;
    }
    for mode in modes() {
        let scratch = Scratch::new();
        let server = file_server(&scratch, mode, 32).start();
        let device = server.block(0);
        let sectors = || {
            let size = run("blockdev", &["--getsz", text(&device)]);
            size.trim().parse::<u64>().unwrap()
        };
        assert_eq!(sectors(), 32 << 11, "{mode}");
        let upper = |pattern| {
            let mut load = Load::verified(server.blocks());
            (load.pattern, load.block) = (pattern, "64k");
            load.extra_args = vec!["--offset=16m", "--verify=crc32c", "--verify_fatal=1"];
            load.run();
        };
        upper("write");
        let mut used = Load::paced(server.blocks());
        used.mib = 2;
        let used = used.start();
        driver::update_size(0, 16 << 11);
        wait_until("the disk is halved", DEADLINE, || sectors() == 16 << 11);
        let read_beyond = |disk: std::fs::File| disk.read_at(&mut [0; 4096], 16 << 20);
        let beyond = read_beyond(std::fs::File::open(&device).unwrap()).unwrap();
        assert_eq!(beyond, 0, "{mode}: there is something beyond the end");
        driver::update_size(0, 32 << 11);
        wait_until("the disk has grown", DEADLINE, || sectors() == 32 << 11);
        used.expect_success();
        upper("read");
        server.exits_cleanly();
    }
}

/// generic_16.
#[test]
fn a_safe_stop_is_refused_while_the_device_is_open_and_it_then_still_works() {
    if !is_requested(Table::All) || !kernel_has(sys::F_SAFE_STOP, "the safe stop") {
        return;
    }
    for mode in modes() {
        let scratch = Scratch::new();
        let server = file_server(&scratch, mode, 16).start();
        let open = std::fs::File::open(server.block(0)).unwrap();
        let refused = driver::try_stop(0).unwrap_err();
        assert_eq!(refused.raw_os_error(), Some(libc::EBUSY), "{mode}");
        Load::verified(server.blocks()).run();
        drop(open);
        wait_until("the last client has closed it", DEADLINE, || {
            driver::try_stop(0).is_ok()
        });
        assert_eq!(state(0), Some(sys::STATE_DEAD), "{mode}");
    }
}

/// part_01.
#[test]
fn partitions_appear_by_themselves_unless_the_scan_is_declined() {
    if !is_requested(Table::All) {
        return;
    }
    modes().into_iter().for_each(partitions_appear);
}

/// Writes a table of one partition, by hand: not every machine has a program for it.
fn partition_table(disk: &std::path::Path) {
    let (begin, sectors) = (2048_u32, 16384_u32);
    // Not bootable, no cylinders, a Linux file system.
    let mut entry = [0, 0, 0, 0, 0x83, 0, 0, 0].to_vec();
    entry.extend(begin.to_le_bytes());
    entry.extend(sectors.to_le_bytes());
    let disk = std::fs::File::options().write(true).open(disk).unwrap();
    disk.write_all_at(&entry, 446).unwrap();
    disk.write_all_at(&[0x55, 0xaa], 510).unwrap();
}

fn partitions_appear(mode: &str) {
    let scratch = Scratch::new();
    let serve = file_server(&scratch, mode, 32);
    partition_table(&scratch.path("disk"));
    let partition = std::path::Path::new("/dev/ublkb0p1");
    let server = serve.start();
    wait_until("the partitions are there", DEADLINE, || partition.exists());
    server.exits_cleanly();
    if !kernel_has(sys::F_NO_PART_SCAN, "a way to decline the scan") {
        return;
    }
    let serve = ServerOptions {
        extra_args: vec!["--no-part-scan".into()],
        ..serve
    };
    let server = serve.start();
    Load {
        mib: 1,
        pattern: "read",
        extra_args: vec![],
        ..Load::verified(server.blocks())
    }
    .run();
    assert!(!partition.exists(), "{mode}");
    run("blockdev", &["--rereadpt", text(&server.block(0))]);
    wait_until("the partitions are there", DEADLINE, || partition.exists());
}

/// generic_02.
#[test]
fn an_inline_server_completes_in_the_order_of_submission() {
    if !is_requested(Table::All) {
        return;
    }
    let tracing = std::path::Path::new("/sys/kernel/tracing");
    if !tracing.join("events/block/block_rq_issue").exists() {
        println!("skipped: this kernel lacks events of requests");
        return;
    }
    modes().into_iter().for_each(|mode| in_order(tracing, mode));
}

fn in_order(tracing: &std::path::Path, mode: &str) {
    let server = ServerOptions {
        queues: 2,
        mode,
        ..ServerOptions::default()
    }
    .start();
    let set = |name: &str, value: &str| std::fs::write(tracing.join(name), value).unwrap();
    set("events/block/block_rq_issue/enable", "1");
    set("events/block/block_rq_complete/enable", "1");
    set("trace", "");
    let extra_args = vec!["--cpus_allowed=0", "--io_size=2m"];
    Load {
        pattern: "write",
        extra_args,
        ..Load::verified(server.blocks())
    }
    .run();
    set("events/block/block_rq_issue/enable", "0");
    set("events/block/block_rq_complete/enable", "0");
    let trace = std::fs::read_to_string(tracing.join("trace")).unwrap();
    // Other disks are traced, too.
    let number = std::fs::metadata(server.block(0)).unwrap().rdev();
    let ours = format!("{},{} ", libc::major(number), libc::minor(number));
    let sectors = |event: &str| -> Vec<u64> {
        let lines = trace.lines().filter_map(|line| line.split_once(event));
        // `259,0 WS 4096 () 1024 + 8 …`: what stands before the plus is the sector.
        let numbers = lines
            .filter(|(_, rest)| rest.starts_with(&ours))
            .filter_map(|(_, rest)| rest.split_once(" + ")?.0.rsplit(' ').next()?.parse().ok());
        numbers.collect()
    };
    let (issued, completed) = (sectors("block_rq_issue: "), sectors("block_rq_complete: "));
    assert!(
        completed.len() >= 256,
        "{mode}: {} requests traced",
        completed.len()
    );
    assert_eq!(issued, completed, "{mode}");
}
