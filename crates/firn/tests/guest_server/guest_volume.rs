//! Volumes as ublk disks, through the real binary: run as root in a guest, after
//! `modprobe ublk_drv`, with `FIRN_VM_SCRATCH` naming a directory on a disk of the guest's own.
//!
//! Elsewhere each test says `skipped: no /dev/ublk-control`. Servers, mounts and devices that a
//! test makes end with it, also on panic. `FIRN_KILL_ROUNDS` sets the number of kills.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::common::eventually;
use crate::common::guest::{Guest, Mounted, content, inflight, keep_writing, run_tool, text, tool};

const KILLS_DEFAULT: u64 = 2;

#[test]
fn a_disk_is_what_was_asked_for_and_says_what_was_granted() {
    let Some(guest) = Guest::new() else { return };
    let server = guest.serve(&["--volume", "demo=64MiB"]);
    let world = &guest.world;
    let args = ["--queues", "1", "--depth", "16", "--park-timeout", "7s"];
    let path = guest.attach(&server, "demo", &args);
    let disk = world.show(&server, "demo")["disk"].clone();
    assert_eq!(disk["data_mode_asked"], "auto");
    assert_eq!(disk["data_mode"], guest.modes()[0]);
    assert_eq!(
        (disk["queues"].as_u64(), disk["depth"].as_u64()),
        (Some(1), Some(16))
    );
    assert_eq!(disk["park_timeout_seconds"], 7.0);
    assert_eq!(disk["threads"].as_array().unwrap().len(), 1);
    let lacks_zero_copy = disk["dropped"].to_string().contains("zero-copy");
    assert_eq!(lacks_zero_copy, !guest.has("auto-buffer"), "{disk}");
    let bytes = run_tool("blockdev", &["--getsize64", text(&path)]);
    assert_eq!(bytes.trim(), (64 << 20).to_string());
    // Again: the same disk. Otherwise: refused, and it stays.
    assert_eq!(guest.attach(&server, "demo", &args), path);
    assert_eq!(
        world.expect_success(&server, &["attach", "demo"]).trim(),
        text(&path)
    );
    let said = world.expect_failure(&server, &["attach", "demo", "--depth", "32"]);
    assert!(
        said.contains("another --depth") && said.contains("detach"),
        "{said}"
    );
    let said = world.expect_failure(&server, &["volume", "delete", "demo"]);
    assert!(said.contains("firn detach demo"), "{said}");
    let listed = world.expect_success(&server, &["volume", "list"]);
    assert!(listed.contains(text(&path)), "{listed}");
    if !guest.has("auto-buffer") {
        world.expect_success(&server, &["volume", "create", "other", "--size", "8MiB"]);
        let zero_copy = ["attach", "other", "--data-mode", "zero-copy"];
        let said = world.expect_failure(&server, &zero_copy);
        assert!(
            said.contains("zero-copy") && said.contains("6.16"),
            "{said}"
        );
        assert_eq!(world.show(&server, "other")["state"], "closed");
    }
    guest.detach(&server, "demo");
    assert_eq!(guest.devices(), Vec::<String>::new());
    assert_eq!(world.show(&server, "demo")["state"], "closed");
    assert!(server.stop().success());
}

#[test]
fn fio_reads_what_it_wrote_in_every_order_and_size() {
    let Some(guest) = Guest::new() else { return };
    let server = guest.serve(&["--volume", "demo=96MiB"]);
    for mode in guest.modes() {
        let disk = guest.attach_in(&server, "demo", mode);
        for (order, block, bytes) in [
            ("randwrite", "4k", "2m"),
            ("write", "256k", "8m"),
            ("randrw", "512-64k", "4m"),
        ] {
            run_tool(
                "fio",
                &[
                    "--name=verify",
                    &format!("--filename={}", text(&disk)),
                    &format!("--rw={order}"),
                    &format!(
                        "--bsrange={}",
                        if block.contains('-') {
                            block.to_owned()
                        } else {
                            format!("{block}-{block}")
                        }
                    ),
                    &format!("--io_size={bytes}"),
                    "--size=48m",
                    "--direct=1",
                    "--ioengine=libaio",
                    "--iodepth=16",
                    "--verify=crc32c",
                    "--verify_fatal=1",
                    "--randrepeat=0",
                ],
            );
        }
        guest.detach(&server, "demo");
    }
    assert!(server.stop().success());
}

#[test]
fn file_systems_are_made_filled_trimmed_and_found_clean() {
    let Some(guest) = Guest::new() else { return };
    let server = guest.serve(&["--volume", "demo=384MiB"]);
    for (mode, kind) in guest
        .modes()
        .into_iter()
        .zip(["ext4", "xfs"])
        .chain([("user-copy", "xfs")])
    {
        let disk = guest.attach_in(&server, "demo", mode);
        let make: &[&str] = if kind == "ext4" {
            &["mkfs.ext4", "-q", "-F"]
        } else {
            &["mkfs.xfs", "-q", "-f"]
        };
        run_tool(make[0], &[&make[1..], &[text(&disk)]].concat());
        let mounted = Mounted::new(&guest.world, &disk, kind);
        for name in 0..60 {
            fs::write(mounted.0.join(name.to_string()), content(name)).unwrap();
        }
        run_tool("sync", &["-f", text(&mounted.0)]);
        for name in (0..60).step_by(2) {
            fs::remove_file(mounted.0.join(name.to_string())).unwrap();
        }
        run_tool("fstrim", &[text(&mounted.0)]);
        drop(mounted);
        let mounted = Mounted::new(&guest.world, &disk, kind);
        for name in (1..60).step_by(2) {
            let found = fs::read(mounted.0.join(name.to_string())).unwrap();
            assert!(found == content(name), "{kind} {mode} {name}");
        }
        drop(mounted);
        match kind {
            "ext4" => run_tool("e2fsck", &["-f", "-n", text(&disk)]),
            _ => run_tool("xfs_repair", &["-n", text(&disk)]),
        };
        guest.detach(&server, "demo");
    }
    assert!(server.stop().success());
}

#[test]
fn discarded_and_zeroed_ranges_read_as_zeroes() {
    let Some(guest) = Guest::new() else { return };
    let server = guest.serve(&["--volume", "demo=64MiB"]);
    for mode in guest.modes() {
        let path = guest.attach_in(&server, "demo", mode);
        let disk = File::options().read(true).write(true).open(&path).unwrap();
        disk.write_all_at(&vec![7; 1 << 20], 0).unwrap();
        disk.sync_all().unwrap();
        run_tool("blkdiscard", &["-o", "65536", "-l", "65536", text(&path)]);
        run_tool(
            "blkdiscard",
            &["-z", "-o", "262144", "-l", "65536", text(&path)],
        );
        run_tool("blockdev", &["--flushbufs", text(&path)]);
        let mut found = vec![0; 1 << 20];
        disk.read_exact_at(&mut found, 0).unwrap();
        for (at, byte) in found.iter().enumerate() {
            let zero = [1, 4].contains(&(at / 65_536));
            assert_eq!(*byte, if zero { 0 } else { 7 }, "{mode} at {at}");
        }
        drop(disk);
        guest.detach(&server, "demo");
    }
    assert!(server.stop().success());
}

#[test]
fn a_mounted_file_system_sees_a_pause_and_no_error_when_its_server_is_killed_or_stopped() {
    let Some(guest) = Guest::new() else { return };
    let kills = std::env::var("FIRN_KILL_ROUNDS").map_or(KILLS_DEFAULT, |n| n.parse().unwrap());
    for mode in guest.modes() {
        let server = guest.serve(&["--volume", "demo=192MiB"]);
        let disk = guest.attach_in(&server, "demo", mode);
        let mut servers = vec![server];
        run_tool("mkfs.ext4", &["-q", "-F", text(&disk)]);
        let mounted = Mounted::new(&guest.world, &disk, "ext4");
        let (promised, next) = (Mutex::new(BTreeMap::new()), AtomicU64::new(0));
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let writer = scope.spawn(|| keep_writing(&mounted.0, &next, &promised, &stop));
            for round in 0..=kills {
                let before = promised.lock().unwrap().len();
                eventually("synced files", || {
                    promised.lock().unwrap().len() >= before + 5 || writer.is_finished()
                });
                // The last round asks it to stop: an upgrade is no more than a pause either.
                let server = servers.pop().unwrap();
                if round < kills {
                    server.kill();
                } else {
                    assert!(server.stop().success());
                }
                let server = guest.serve(&[]);
                // It was ready, so its disk was back: under the same name, in the same mode.
                let shown = &guest.world.show(&server, "demo")["disk"];
                assert_eq!(shown["device"], text(&disk), "{mode} {round}");
                assert_eq!(shown["data_mode"], mode, "{round}");
                servers.push(server);
            }
            stop.store(true, Ordering::Relaxed);
            writer.join().unwrap();
        });
        let server = servers.pop().unwrap();
        drop(mounted);
        run_tool("e2fsck", &["-f", "-n", text(&disk)]);
        let mounted = Mounted::new(&guest.world, &disk, "ext4");
        mounted.has_all_of(&promised);
        drop(mounted);
        guest.end(server, "demo");
    }
}

/// S1: not flushed, not synced, and there after kill -9.
#[test]
fn completed_writes_to_a_disk_survive_kill_9_unflushed() {
    let Some(guest) = Guest::new() else { return };
    for mode in guest.modes() {
        let server = guest.serve(&["--volume", "demo=64MiB"]);
        let path = guest.attach_in(&server, "demo", mode);
        for round in 0..8_u8 {
            // Past the page cache: completed means completed by the server.
            let (input, seek) = (guest.world.path("block"), format!("seek={round}"));
            fs::write(&input, vec![round + 1; 65_536]).unwrap();
            let (from, to) = (
                format!("if={}", text(&input)),
                format!("of={}", text(&path)),
            );
            run_tool(
                "dd",
                &[&from, &to, "bs=64k", &seek, "oflag=direct", "conv=notrunc"],
            );
        }
        server.kill();
        let server = guest.serve(&[]);
        let disk = File::open(&path).unwrap();
        run_tool("blockdev", &["--flushbufs", text(&path)]);
        for round in 0..8_u8 {
            let mut found = vec![0; 65_536];
            disk.read_exact_at(&mut found, u64::from(round) * 65_536)
                .unwrap();
            assert!(found == vec![round + 1; 65_536], "{mode} {round}");
        }
        drop(disk);
        guest.end(server, "demo");
    }
}

#[test]
fn what_is_mounted_is_not_detached_unless_by_force() {
    let Some(guest) = Guest::new() else { return };
    let server = guest.serve(&["--volume", "demo=64MiB"]);
    let disk = guest.attach(&server, "demo", &[]);
    run_tool("mkfs.ext4", &["-q", "-F", text(&disk)]);
    let mounted = Mounted::new(&guest.world, &disk, "ext4");
    let said = guest.world.expect_failure(&server, &["detach", "demo"]);
    assert!(
        said.contains("mounted or open") && said.contains("--force"),
        "{said}"
    );
    fs::write(mounted.0.join("still"), "here").unwrap();
    run_tool("sync", &["-f", text(&mounted.0)]);
    drop(mounted);
    guest.detach(&server, "demo");
    assert!(!disk.exists());

    let disk = guest.attach(&server, "demo", &[]);
    let open = File::open(&disk).unwrap();
    guest
        .world
        .expect_success(&server, &["detach", "demo", "--force"]);
    let mut byte = [0; 512];
    assert!(open.read_exact_at(&mut byte, 32 << 20).is_err());
    drop(open);
    assert!(server.stop().success());
}

#[test]
fn disks_come_and_go_while_another_is_written() {
    let Some(guest) = Guest::new() else { return };
    let volumes = [
        "--volume", "a=64MiB", "--volume", "b=16MiB", "--volume", "c=16MiB",
    ];
    let server = guest.serve(&volumes);
    let disk = guest.attach(&server, "a", &[]);
    let filename = format!("--filename={}", text(&disk));
    std::thread::scope(|scope| {
        let load = scope.spawn(|| {
            run_tool(
                "fio",
                &[
                    "--name=load",
                    &filename,
                    "--rw=randwrite",
                    "--bs=4k",
                    "--io_size=6m",
                    "--size=32m",
                    "--direct=1",
                    "--ioengine=libaio",
                    "--iodepth=8",
                    "--verify=crc32c",
                    "--verify_fatal=1",
                ],
            )
        });
        let mut rounds = 0;
        while !load.is_finished() && rounds < 4 {
            for name in ["b", "c"] {
                let path = guest.attach(&server, name, &[]);
                let mut byte = [0; 4096];
                File::open(&path)
                    .unwrap()
                    .read_exact_at(&mut byte, 0)
                    .unwrap();
            }
            for name in ["b", "c"] {
                guest.detach(&server, name);
            }
            rounds += 1;
        }
        load.join().unwrap();
        assert!(rounds > 0);
    });
    assert_eq!(
        guest.devices(),
        [disk.file_name().unwrap().to_str().unwrap()]
    );
    guest.detach(&server, "a");
    assert!(server.stop().success());
}

#[test]
fn a_read_only_disk_takes_no_writes() {
    let Some(guest) = Guest::new() else { return };
    let server = guest.serve(&["--volume", "demo=64MiB"]);
    server.connect("demo").write(0, &[9; 4096]).unwrap();
    let disk = guest.attach(&server, "demo", &["--read-only"]);
    assert_eq!(run_tool("blockdev", &["--getro", text(&disk)]).trim(), "1");
    let mut found = [0; 4096];
    File::open(&disk)
        .unwrap()
        .read_exact_at(&mut found, 0)
        .unwrap();
    assert_eq!(found, [9; 4096]);
    let written = File::options().write(true).open(&disk).and_then(|disk| {
        disk.write_all_at(&[1; 4096], 0)?;
        disk.sync_all()
    });
    assert!(written.is_err());
    assert_eq!(guest.world.show(&server, "demo")["disk"]["read_only"], true);
    guest.detach(&server, "demo");
    assert!(server.stop().success());
}

#[test]
fn partitions_of_the_image_are_found_unless_they_are_not_to_be() {
    let Some(guest) = Guest::new() else { return };
    let server = guest.serve(&["--volume", "demo=64MiB"]);
    let disk = guest.attach(&server, "demo", &[]);
    let script = guest.world.path("table");
    fs::write(&script, "label: dos\nstart=2048, size=32768\n").unwrap();
    let table = format!("sfdisk -q --no-reread {} < {}", text(&disk), text(&script));
    run_tool("sh", &["-c", &table]);
    run_tool("sync", &[]);
    guest.detach(&server, "demo");

    let disk = guest.attach(&server, "demo", &[]);
    let part = PathBuf::from(format!("{}p1", text(&disk)));
    eventually("the partition", || part.exists());
    guest.detach(&server, "demo");

    let none = ["attach", "demo", "--transport", "ublk", "--no-part-scan"];
    if guest.has("no-part-scan") {
        let disk = guest.attach(&server, "demo", &["--no-part-scan"]);
        assert!(!part.exists());
        run_tool("blockdev", &["--rereadpt", text(&disk)]);
        eventually("the partition", || part.exists());
        guest.detach(&server, "demo");
    } else {
        let said = guest.world.expect_failure(&server, &none);
        assert!(
            said.contains("no-part-scan") && said.contains("7.0"),
            "{said}"
        );
    }
    assert!(server.stop().success());
}

#[test]
fn a_live_disk_grows_below_a_mounted_file_system() {
    let Some(guest) = Guest::new() else { return };
    let server = guest.serve(&["--volume", "demo=64MiB"]);
    let disk = guest.attach(&server, "demo", &[]);
    let size = || {
        run_tool("blockdev", &["--getsize64", text(&disk)])
            .trim()
            .to_owned()
    };
    let resize = ["volume", "resize", "demo", "128MiB"];
    if !guest.has("update-size") {
        let said = guest.world.expect_failure(&server, &resize);
        assert!(said.contains("6.16") && said.contains("detach"), "{said}");
        assert_eq!(size(), (64 << 20).to_string());
        guest.detach(&server, "demo");
        guest.world.expect_success(&server, &resize);
        assert_eq!(guest.attach(&server, "demo", &[]), disk);
        assert_eq!(size(), (128 << 20).to_string());
    } else {
        run_tool("mkfs.ext4", &["-q", "-F", text(&disk)]);
        let mounted = Mounted::new(&guest.world, &disk, "ext4");
        fs::write(mounted.0.join("before"), content(3)).unwrap();
        guest.world.expect_success(&server, &resize);
        assert_eq!(size(), (128 << 20).to_string());
        run_tool("resize2fs", &[text(&disk)]);
        fs::write(mounted.0.join("after"), vec![5; 40 << 20]).unwrap();
        run_tool("sync", &["-f", text(&mounted.0)]);
        drop(mounted);
        run_tool("e2fsck", &["-f", "-n", text(&disk)]);
        let mounted = Mounted::new(&guest.world, &disk, "ext4");
        assert!(fs::read(mounted.0.join("before")).unwrap() == content(3));
        assert!(fs::read(mounted.0.join("after")).unwrap() == vec![5; 40 << 20]);
    }
    guest.detach(&server, "demo");
    assert!(server.stop().success());
}

/// Where it is read cold: beyond what the kernel looks at when it searches for partitions.
const COLD: u64 = 8 << 20;

/// Reads the block at [`COLD`] past the page cache; how `dd` ended, and after how many seconds.
fn cold_read(disk: &Path) -> (bool, u64) {
    let began = std::time::Instant::now();
    let input = format!("if={}", text(disk));
    let read = tool(
        "dd",
        &[
            &input,
            "of=/dev/null",
            "bs=4k",
            "skip=2048",
            "count=1",
            "iflag=direct",
        ],
    );
    (read.status.success(), began.elapsed().as_secs())
}

#[test]
fn what_waits_for_the_store_fails_at_its_time_out_or_with_a_forced_detach_and_else_goes_on() {
    let Some(guest) = Guest::new() else { return };
    let world = &guest.world;
    let server = guest.serve(&["--volume", "demo=16MiB"]);
    server.connect("demo").write(COLD, &[6; 4096]).unwrap();
    eventually("the detach", || {
        world.run(&server, &["detach", "demo"]).status.success()
    });
    assert!(server.stop().success());
    // Another cache: every block is in the store alone.
    let server = world.serve("other", &[]);
    let (store, away) = (world.path("store"), world.path("away"));
    let disk = guest.attach(&server, "demo", &["--park-timeout", "2s"]);
    fs::rename(&store, &away).unwrap();
    let (read, seconds) = cold_read(&disk);
    assert!(!read && seconds >= 1, "{read} after {seconds} s");
    fs::rename(&away, &store).unwrap();
    eventually("the store's return", || cold_read(&disk).0);
    guest.detach(&server, "demo");

    assert!(server.stop().success());

    let server = world.serve("third", &[]);
    let disk = guest.attach(&server, "demo", &["--park-timeout", "wait"]);
    fs::rename(&store, &away).unwrap();
    std::thread::scope(|scope| {
        let reading = scope.spawn(|| cold_read(&disk));
        eventually("the read", || {
            let counts = fs::read_to_string(inflight(&disk)).unwrap();
            counts.split_whitespace().any(|count| count != "0")
        });
        // The volume cannot be brought to the store now, so this asks for the disk's end alone.
        let forced = scope.spawn(|| world.run(&server, &["detach", "demo", "--force"]));
        let (read, _) = reading.join().unwrap();
        assert!(!read, "the read was parked, and its disk was taken away");
        eventually("the disk's end", || !disk.exists());
        fs::rename(&away, &store).unwrap();
        assert!(forced.join().unwrap().status.success());
    });
    assert!(server.stop().success());
}
