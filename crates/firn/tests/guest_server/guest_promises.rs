//! Promises of a disk that others broke without anybody noticing: what FUA, FLUSH and zeroing
//! acknowledged, an exit under load, an empty variable, an inherited affinity. For guests, as
//! `guest_volume.rs` says; `FIRN_BUG_ROUNDS` sets how often what can be repeated is.
//!
//! Loss of power is played as in `serve.rs`: the server is killed and its index rings are taken
//! away, so that it has only what was durable. What the page cache held of the log stays.

use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use crate::common::disk_oracle::{BLOCK, Direct, DiskOracle};
use crate::common::guest::{Guest, Mounted, TINY, content, rounds, run_tool, text};
use crate::common::mapped::NoFlush;
use crate::common::watchdog::Watchdog;
use crate::common::{Server, deadline, eventually, message};

const ROUNDS_DEFAULT: u64 = 8;
const DISK_BLOCKS: u64 = (16 << 20) / BLOCK as u64;

fn bug_rounds() -> u64 {
    rounds("FIRN_BUG_ROUNDS", ROUNDS_DEFAULT).min(32)
}

/// Kills the server, takes the rings away, and starts the next one.
fn lose_power(guest: &Guest, server: Server) -> Server {
    server.kill();
    for ring in fs::read_dir(guest.world.rings()).unwrap() {
        fs::remove_dir_all(ring.unwrap().path()).unwrap();
    }
    let before = told_of_loss(guest);
    let server = guest.serve(&[]);
    assert!(told_of_loss(guest) > before, "the rings were not missed");
    server
}

fn told_of_loss(guest: &Guest) -> usize {
    let said = fs::read_to_string(guest.world.path("cache.stderr")).unwrap_or_default();
    said.matches("index ring is gone").count()
}

#[test]
fn what_attach_prints_is_the_disk_though_a_file_had_its_name() {
    let Some(guest) = Guest::new() else { return };
    let _watchdog = Watchdog::new("a file in place of a node", 2 * deadline());
    let server = guest.serve(&["--volume", "demo=16MiB", "--rpo", "1h"]);
    // Whatever number the disk gets.
    for id in 0..8 {
        let name = format!("/dev/ublkb{id}");
        if fs::symlink_metadata(&name).is_err() {
            fs::write(&name, "written while there was no disk").unwrap();
        }
    }
    let attach = ["attach", "demo", "--transport", "ublk"];
    let path = PathBuf::from(guest.world.expect_success(&server, &attach).trim());
    fs::write(&path, [7; BLOCK]).unwrap();
    run_tool("sync", &[text(&path)]);
    let stored = server.connect("demo").read(0, BLOCK).unwrap();
    assert!(
        stored == [7; BLOCK],
        "what was written to {} is not on the volume",
        path.display()
    );
    let aside = format!("{}.not-a-disk-0", path.display());
    let kept = fs::read_to_string(aside).unwrap();
    assert_eq!(
        kept, "written while there was no disk",
        "nobody's data is removed"
    );
    guest.detach(&server, "demo");
    for id in 0..8 {
        for name in ["", ".not-a-disk-0"] {
            let _ = fs::remove_file(format!("/dev/ublkb{id}{name}"));
        }
    }
}

/// It ends its server when its volume is opened, and then when it is restored itself.
#[test]
fn a_disk_whose_volume_is_left_out_waits_and_goes_on_when_that_is_attached_by_hand() {
    let Some(guest) = Guest::new() else { return };
    let _watchdog = Watchdog::new("a volume that is left out", 4 * deadline());
    let world = &guest.world;
    let mut server = guest.serve(&[
        "--volume",
        "demo=16MiB",
        "--volume",
        "other=16MiB",
        "--rpo",
        "1h",
    ]);
    let paths = ["demo", "other"].map(|volume| guest.attach(&server, volume, &[]));
    let [demo, other] = paths.each_ref().map(|path| Direct::open(path));
    for (round, step) in [(1, "demo"), (2, "disk:demo")] {
        demo.write(0, &[round; BLOCK]).unwrap();
        server.kill();
        let begun = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap()
            .as_secs();
        let crash = |nth: u64| {
            // Under emulation three starts may take longer than a minute; the clock is the guest's own.
            run_tool("date", &["-s", &format!("@{}", begun + 15 * nth)]);
            let mut command = world.serve_command("cache", &[]);
            command.env("FIRN_OPENING", format!("abort={step}"));
            let output = command.output().unwrap();
            assert_eq!(output.status.signal(), Some(6), "{}", message(&output));
        };
        (0..3).for_each(crash);
        server = guest.serve(&[]);
        let (status, said) = server.get("/readyz");
        let log = world.server_log();
        assert_eq!(status, 503, "{step}: {said}: {log}");
        assert!(
            said.contains("volume demo is left out")
                && said.contains("by hand: firn attach demo\""),
            "{said}"
        );
        // The other disk is served, and this one is nobody else's.
        other.write(0, &[round; BLOCK]).unwrap();
        assert_eq!(other.read(0, BLOCK).unwrap(), [round; BLOCK]);
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| demo.read(0, BLOCK).unwrap());
            assert!(!waits.is_finished());
            let path = world.expect_success(&server, &["attach", "demo"]);
            assert_eq!(path.trim(), text(&paths[0]));
            assert_eq!(waits.join().unwrap(), [round; BLOCK]);
        });
        assert_eq!(server.get("/readyz").0, 200);
    }
    drop((demo, other));
    for volume in ["demo", "other"] {
        guest.detach(&server, volume);
    }
    assert!(server.stop().success());
}

#[test]
fn a_mounted_file_system_waits_while_its_log_is_replaced_and_goes_on() {
    let Some(guest) = Guest::new() else { return };
    let _watchdog = Watchdog::new("a log that is replaced", 4 * deadline());
    let server = guest.serve(&["--volume", "demo=64MiB", "--rpo", "1h"]);
    let path = guest.attach(&server, "demo", &[]);
    run_tool("mkfs.ext4", &["-q", "-E", "nodiscard", text(&path)]);
    let mounted = Mounted::new(&guest.world, &path, "ext4");
    for name in 0..8 {
        fs::write(mounted.0.join(name.to_string()), content(name)).unwrap();
    }
    run_tool("sync", &["-f", text(&mounted.0)]);
    server.kill();
    let dir = mounted.0.clone();
    // It waits for a server, over the replacement.
    let waiting = std::thread::spawn(move || {
        fs::write(dir.join("8"), content(8))?;
        fs::File::open(dir.join("8"))?.sync_all()
    });
    let rings = text(guest.world.rings());
    let rescue = [
        "rescue",
        "log",
        "--store",
        "store",
        "--cache",
        "cache",
        "--ring-dir",
        rings,
    ];
    let output = guest
        .world
        .firn(&[&rescue[..], &["--log-size", "72MiB"]].concat());
    assert!(output.status.success(), "{}", message(&output));
    assert_eq!(
        fs::metadata(guest.world.path("cache/log")).unwrap().len(),
        72 << 20
    );
    let server = guest.serve(&[]);
    waiting.join().unwrap().unwrap();
    drop(mounted);
    run_tool("e2fsck", &["-fn", text(&path)]);
    let mounted = Mounted::new(&guest.world, &path, "ext4");
    for name in 0..9 {
        assert!(
            fs::read(mounted.0.join(name.to_string())).unwrap() == content(name),
            "{name}"
        );
    }
    drop(mounted);
    guest.detach(&server, "demo");
    assert!(server.stop().success());
}

#[test]
fn what_a_fua_write_acknowledged_survives_the_loss_of_the_rings() {
    let Some(guest) = Guest::new() else { return };
    for mode in guest.modes() {
        let _watchdog = Watchdog::new("FUA", 4 * deadline());
        let mut server = guest.serve(&["--volume", "demo=16MiB", "--rpo", "1h"]);
        let path = guest.attach_in(&server, "demo", mode);
        let oracle = DiskOracle::new(DISK_BLOCKS);
        let Some(mapped) = NoFlush::map(&path) else {
            guest.detach(&server, "demo");
            return;
        };
        let mut random = fastrand::Rng::with_seed(3);
        for _ in 0..bug_rounds().min(8) {
            let disk = Direct::durable(&mapped.path);
            for _ in 0..4 {
                let first = random.u64(..DISK_BLOCKS - 64);
                oracle.write(&disk, first..first + 1 + random.u64(..63));
            }
            // At once: before the timer seals what FUA should have.
            server = lose_power(&guest, server);
            oracle.read_all(&disk);
            guest.served_in(&server, "demo", mode);
        }
        drop(mapped);
        guest.end(server, "demo");
    }
}

#[test]
fn what_a_flush_acknowledged_survives_the_loss_of_the_rings() {
    let Some(guest) = Guest::new() else { return };
    for mode in guest.modes() {
        let _watchdog = Watchdog::new("FLUSH", 4 * deadline());
        let serve = [&TINY[..], &["--volume", "demo=16MiB"]].concat();
        let mut server = guest.serve(&serve);
        let path = guest.attach_in(&server, "demo", mode);
        let disk = Direct::open(&path);
        let oracle = DiskOracle::new(DISK_BLOCKS);
        let mut random = fastrand::Rng::with_seed(5);
        for _ in 0..bug_rounds().min(8) {
            for _ in 0..8 {
                let first = random.u64(..DISK_BLOCKS - 64);
                let blocks = first..first + 1 + random.u64(..63);
                match random.u64(..4) {
                    0 => oracle.zero(&disk, blocks),
                    _ => oracle.write(&disk, blocks),
                }
            }
            disk.flush().unwrap();
            server = lose_power(&guest, server);
            oracle.read_all(&disk);
            guest.served_in(&server, "demo", mode);
        }
        drop(disk);
        guest.end(server, "demo");
    }
}

/// Others acknowledged WRITE_ZEROES and did nothing.
#[test]
fn what_was_zeroed_is_zeroes_at_once_after_kill_9_and_from_the_store_alone() {
    const MIB: usize = 1 << 20;
    let Some(guest) = Guest::new() else { return };
    for mode in guest.modes() {
        let server = guest.serve(&["--volume", "demo=16MiB"]);
        let path = guest.attach_in(&server, "demo", mode);
        let disk = Direct::open(&path);
        let mut wanted = vec![0xA5_u8; MIB];
        disk.write(0, &wanted).unwrap();
        // Whole blocks, parts of them, across their borders.
        for (at, len) in [
            (0, 4096),
            (65_536, 131_072),
            (300_032, 512),
            (400_896, 9_216),
        ] {
            disk.zero(at, len).unwrap();
            wanted[at as usize..(at + len) as usize].fill(0);
        }
        let blkdiscard = ["-z", "-o", "524288", "-l", "70144", text(&path)];
        run_tool("blkdiscard", &blkdiscard);
        wanted[524_288..524_288 + 70_144].fill(0);
        // A write of zeroes is no zeroing, and one over a zeroed range stands.
        disk.write(66_048, &[0x5A; 512]).unwrap();
        wanted[66_048..66_560].fill(0x5A);
        assert!(disk.read(0, MIB).unwrap() == wanted, "{mode}: at once");
        guest.served_in(&server, "demo", mode);
        server.kill();
        let server = guest.serve(&[]);
        assert!(disk.read(0, MIB).unwrap() == wanted, "{mode}: killed");
        drop(disk);
        guest.detach(&server, "demo");
        assert!(server.stop().success());
        let server = guest.world.serve(&format!("cold-{mode}"), &[]);
        let disk = Direct::open(&guest.attach_in(&server, "demo", mode));
        assert!(disk.read(0, MIB).unwrap() == wanted, "{mode}: the store");
        drop(disk);
        guest.end(server, "demo");
    }
}

/// Others returned before what was in flight had landed, or with a ring that a second thread kept
/// open, so that the driver went on counting on the server.
#[test]
fn a_server_that_ends_under_full_load_leaves_nothing_behind_and_the_next_goes_on() {
    const THREADS: u64 = 8;
    let Some(guest) = Guest::new() else { return };
    for mode in guest.modes() {
        let _watchdog = Watchdog::new("the exit under load", 4 * deadline());
        let serve = [&TINY[..], &["--volume", "demo=16MiB"]].concat();
        let mut server = guest.serve(&serve);
        let disk = Direct::open(&guest.attach_in(&server, "demo", mode));
        let oracle = DiskOracle::new(DISK_BLOCKS);
        let (over, done) = (AtomicBool::new(false), AtomicU64::new(0));
        let ended = std::thread::scope(|scope| {
            for thread in 0..THREADS {
                let (disk, oracle, over, done) = (&disk, &oracle, &over, &done);
                scope.spawn(move || {
                    let (own, mut random) =
                        (DISK_BLOCKS / THREADS, fastrand::Rng::with_seed(thread + 1));
                    while !over.load(Ordering::Relaxed) {
                        let first = thread * own + random.u64(..own - 32);
                        let blocks = first..first + 1 + random.u64(..31);
                        oracle.write(disk, blocks.clone());
                        oracle.read(disk, blocks);
                        done.fetch_add(1, Ordering::Relaxed);
                    }
                });
            }
            for round in 0..bug_rounds().min(6) {
                let before = done.load(Ordering::Relaxed);
                eventually("the load", || done.load(Ordering::Relaxed) > before + 40);
                if round % 2 == 0 {
                    assert!(server.stop().success(), "{mode} {round}");
                } else {
                    server.kill();
                }
                server = guest.serve(&[]);
                guest.served_again(&server, "demo", mode);
            }
            over.store(true, Ordering::Relaxed);
            server
        });
        oracle.read_all(&disk);
        guest.served_in(&ended, "demo", mode);
        drop(disk);
        guest.end(ended, "demo");
    }
}

/// Others took a variable that is set to nothing for set: a whole matrix tested the wrong mode.
#[test]
fn a_data_mode_in_the_environment_that_is_empty_is_unset_and_one_that_is_named_is_served() {
    let Some(guest) = Guest::new() else { return };
    let named = guest.all_modes().into_iter().map(|mode| (mode, mode));
    for (value, served) in [("", guest.modes()[0])].into_iter().chain(named) {
        let server = guest
            .world
            .serve_as("cache", &["--volume", "demo=16MiB"], |command| {
                command.env("FIRN_UBLK_DATA_MODE", value);
            });
        let disk = Direct::open(&guest.attach(&server, "demo", &[]));
        let oracle = DiskOracle::new(64);
        oracle.write(&disk, 0..64);
        oracle.read(&disk, 0..64);
        guest.served_in(&server, "demo", served);
        let asked = &guest.world.show(&server, "demo")["disk"]["data_mode_asked"];
        assert_eq!(asked, "auto", "{value:?}");
        drop(disk);
        guest.detach(&server, "demo");
        assert!(server.stop().success());
    }
}

/// The processors on which each thread of a process may run, by name; not the kernel's helpers.
fn affinities(pid: u32) -> Vec<(String, String)> {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    let of = |path: PathBuf| {
        let name = fs::read_to_string(path.join("comm")).ok()?;
        let status = fs::read_to_string(path.join("status")).ok()?;
        let mut lines = status.lines();
        let allowed = lines.find_map(|line| line.strip_prefix("Cpus_allowed_list:"))?;
        Some((name.trim().to_owned(), allowed.trim().to_owned()))
    };
    let all = threads.filter_map(|thread| of(thread.unwrap().path()));
    all.filter(|(name, _)| !name.starts_with("iou-")).collect()
}

fn allowed_here() -> String {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let mut lines = status.lines();
    let allowed = lines.find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
    allowed.unwrap().trim().to_owned()
}

/// Others pinned a thread, and all that it started later ran on that one processor, too. Where a
/// server may run is for who starts it to say; within that, every thread of it may run anywhere.
#[test]
fn every_thread_may_run_wherever_its_server_may_and_there_is_a_reactor_for_each_place() {
    let Some(guest) = Guest::new() else { return };
    let all = std::thread::available_parallelism().unwrap().get();
    let rows = [(None, allowed_here(), all), (Some("0"), "0".to_owned(), 1)];
    for (pinned, allowed, reactors) in rows {
        let server = guest
            .world
            .serve_as("cache", &["--volume", "demo=16MiB"], |command| {
                let Some(processors) = pinned else { return };
                let mut by = Command::new("taskset");
                by.args(["-c", processors]).arg(command.get_program());
                by.args(command.get_args());
                by.current_dir(command.get_current_dir().unwrap());
                *command = by;
            });
        // Threads that begin late begin with a disk and its requests.
        let disk = Direct::open(&guest.attach(&server, "demo", &[]));
        let oracle = DiskOracle::new(256);
        oracle.write(&disk, 0..256);
        disk.flush().unwrap();
        guest.world.expect_success(&server, &["sync", "demo"]);
        let threads = affinities(server.pid());
        for (name, found) in &threads {
            assert_eq!(found, &allowed, "{name} of {threads:?}");
        }
        let count = |name: &str| threads.iter().filter(|one| one.0.starts_with(name)).count();
        assert_eq!(count("firn-reactor"), reactors, "{threads:?}");
        assert_eq!(count("ublk-control"), 1, "{threads:?}");
        drop(disk);
        guest.detach(&server, "demo");
        assert!(server.stop().success());
    }
}
