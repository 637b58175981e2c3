//! Scenarios of blktests, the kernel developers' tests of block devices, on firn's own disks:
//! its six of ublk, and those of its `block/` group that make sense for a disk without hardware.
//!
//! The scenarios are written anew here; each test names the one it follows. Run as root in a
//! guest.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};

use crate::common::guest::{
    Direct, Guest, Mounted, Stops, content, inflight, run_tool, text, tool,
};
use crate::common::{Server, eventually, message};

const MIB: u64 = 1 << 20;

/// A file of a disk's queue below /sys.
fn attribute(disk: &Path, name: &str) -> PathBuf {
    let sys = Path::new("/sys/block").join(disk.file_name().unwrap());
    sys.join("queue").join(name)
}

fn number(path: &Path) -> u64 {
    fs::read_to_string(path).unwrap().trim().parse().unwrap()
}

/// fio on a disk in the background; killed when dropped.
struct Load(Option<Child>);

impl Load {
    /// Random reads and writes in a part of the disk, each write verified, until `bytes` went.
    fn start(disk: &Path, bytes: &str) -> Load {
        let child = Command::new("timeout")
            .args([
                "-k",
                "5",
                "200",
                "fio",
                "--name=load",
                "--rw=randrw",
                "--bs=4k",
            ])
            .args([
                "--direct=1",
                "--ioengine=libaio",
                "--iodepth=16",
                "--size=16m",
            ])
            .args(["--verify=crc32c", "--verify_fatal=1", "--verify_backlog=64"])
            .arg(format!("--filename={}", text(disk)))
            .arg(format!("--io_size={bytes}"))
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        Load(Some(child))
    }

    fn is_over(&mut self) -> bool {
        self.0.as_mut().unwrap().try_wait().unwrap().is_some()
    }

    fn must_end_well(mut self) {
        let output = self.0.take().unwrap().wait_with_output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success(), "{said}{}", message(&output));
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        if let Some(child) = &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// A disk, its server, and load on it.
fn loaded(guest: &Guest, mode: &str) -> (Server, PathBuf, Load) {
    let server = guest.serve(&["--volume", "demo=64MiB"]);
    let disk = guest.attach_in(&server, "demo", mode);
    let load = Load::start(&disk, "64m");
    eventually("load", || in_flight(&disk) > 0);
    (server, disk, load)
}

fn in_flight(disk: &Path) -> u64 {
    let counts = fs::read_to_string(inflight(disk)).unwrap();
    counts
        .split_whitespace()
        .map(|n| n.parse::<u64>().unwrap())
        .sum()
}

/// Ends a test: the volume goes, so that the next data mode begins with none.
fn done(guest: &Guest, server: Server) {
    guest.end(server, "demo");
}

/// ublk/001: delete a device under I/O. Here: a forced detach.
#[test]
fn a_disk_that_is_taken_away_under_load_fails_its_requests_and_is_gone() {
    let Some(guest) = Guest::new() else { return };
    for mode in guest.modes() {
        let (server, disk, mut load) = loaded(&guest, mode);
        guest
            .world
            .expect_success(&server, &["detach", "demo", "--force"]);
        eventually("the end of the load", || load.is_over());
        let output = load.0.take().unwrap().wait_with_output().unwrap();
        assert!(!output.status.success(), "its disk was taken away");
        assert!(!disk.exists());
        guest.attach_in(&server, "demo", mode);
        done(&guest, server);
    }
}

/// ublk/002 and ublk/004: kill -9 under I/O, then delete, at once or when the death was noticed.
/// Here the one who deletes is the next server, told to let go by force.
#[test]
fn a_disk_whose_server_was_killed_under_load_can_be_taken_away_by_the_next() {
    let Some(guest) = Guest::new() else { return };
    for mode in guest.modes() {
        for at_once in [true, false] {
            let (server, disk, mut load) = loaded(&guest, mode);
            server.kill();
            if !at_once {
                // The driver keeps what it has, and what comes: nothing is answered, nothing fails.
                std::thread::sleep(std::time::Duration::from_secs(1));
                assert!(!load.is_over());
            }
            let server = guest.serve(&[]);
            guest
                .world
                .expect_success(&server, &["detach", "demo", "--force"]);
            eventually("the end of the load", || load.is_over());
            assert!(!disk.exists(), "{mode} {at_once}");
            guest.attach_in(&server, "demo", mode);
            done(&guest, server);
        }
    }
}

/// ublk/003: make a file system, mount it.
#[test]
fn a_disk_is_mounted_used_and_given_back() {
    let Some(guest) = Guest::new() else { return };
    for mode in guest.modes() {
        let server = guest.serve(&["--volume", "demo=64MiB"]);
        let disk = guest.attach_in(&server, "demo", mode);
        run_tool("mkfs.ext4", &["-q", "-F", text(&disk)]);
        let mounted = Mounted::new(&guest.world, &disk, "ext4");
        fs::write(mounted.0.join("file"), content(5)).unwrap();
        drop(mounted);
        let mounted = Mounted::new(&guest.world, &disk, "ext4");
        assert!(fs::read(mounted.0.join("file")).unwrap() == content(5));
        drop(mounted);
        done(&guest, server);
    }
}

/// ublk/005 and ublk/006: recover a device under I/O, once, and twice.
#[test]
fn a_disk_under_load_is_recovered_once_and_twice_and_its_load_ends_well() {
    let Some(guest) = Guest::new() else { return };
    for mode in guest.modes() {
        for times in [1, 2] {
            let (mut server, disk, load) = loaded(&guest, mode);
            for _ in 0..times {
                server.kill();
                server = guest.serve(&[]);
                let shown = &guest.world.show(&server, "demo")["disk"];
                assert_eq!(shown["device"], text(&disk));
                assert_eq!(shown["data_mode"], mode);
            }
            load.must_end_well();
            done(&guest, server);
        }
    }
}

/// block/001: disks come and go while their partitions are read again and again.
#[test]
fn disks_come_and_go_while_partitions_are_scanned() {
    let Some(guest) = Guest::new() else { return };
    let server = guest.serve(&["--volume", "demo=64MiB", "--volume", "b=16MiB"]);
    // What an earlier test that failed left behind has no server and would answer nothing.
    let others = guest.devices();
    let stop = AtomicBool::new(false);
    let scans = std::thread::scope(|scope| {
        let stops = Stops(&stop);
        let scanner = scope.spawn(|| {
            let mut scans = 0;
            while !stop.load(Ordering::Relaxed) {
                let ours = |name: &String| !others.contains(name);
                for name in guest.devices().into_iter().filter(ours) {
                    // It may be gone by now, or in use; the kernel must bear it.
                    tool("blockdev", &["--rereadpt", &format!("/dev/{name}")]);
                    scans += 1;
                }
            }
            scans
        });
        for _ in 0..5 {
            for name in ["demo", "b"] {
                guest.attach(&server, name, &[]);
            }
            for name in ["demo", "b"] {
                guest.detach(&server, name);
            }
        }
        drop(stops);
        scanner.join().unwrap()
    });
    assert!(scans > 0);
    assert_eq!(guest.devices(), others);
    assert!(server.stop().success());
}

/// block/005 and block/020: another I/O scheduler while there is I/O. block/021 and block/029:
/// other attributes and sizes of the queue.
#[test]
fn scheduler_and_queue_size_are_changed_under_load() {
    let Some(guest) = Guest::new() else { return };
    for mode in guest.modes() {
        let (server, disk, mut load) = loaded(&guest, mode);
        let schedulers = fs::read_to_string(attribute(&disk, "scheduler")).unwrap();
        let schedulers: Vec<&str> = schedulers
            .split_whitespace()
            .map(|name| name.trim_matches(['[', ']']))
            .collect();
        let mut rounds = 0;
        while rounds < 3 || (!load.is_over() && rounds < 12) {
            if load.is_over() {
                std::mem::replace(&mut load, Load::start(&disk, "64m")).must_end_well();
            }
            let scheduler = schedulers[rounds % schedulers.len()];
            fs::write(attribute(&disk, "scheduler"), scheduler).unwrap();
            let requests = [4, 16, 64][rounds % 3].to_string();
            // More than the device has without a scheduler is refused.
            let _ = fs::write(attribute(&disk, "nr_requests"), &requests);
            for (name, value) in [
                ("read_ahead_kb", "64"),
                ("nomerges", "2"),
                ("rq_affinity", "2"),
            ] {
                fs::write(attribute(&disk, name), value).unwrap();
            }
            fs::write(attribute(&disk, "nomerges"), "0").unwrap();
            rounds += 1;
        }
        load.must_end_well();
        done(&guest, server);
    }
}

/// block/006, block/016, block/017: the kernel's count of requests in flight is right, and
/// nothing stays in it: not after load, and not after a server died with requests inside.
#[test]
fn requests_in_flight_are_counted_and_none_stays_behind() {
    let Some(guest) = Guest::new() else { return };
    for mode in guest.modes() {
        let (server, disk, load) = loaded(&guest, mode);
        load.must_end_well();
        eventually("an idle disk", || in_flight(&disk) == 0);
        let load = Load::start(&disk, "16m");
        eventually("load", || in_flight(&disk) > 0);
        server.kill();
        let waiting = in_flight(&disk);
        assert!(waiting <= 17, "{waiting}: more than were ever sent");
        let server = guest.serve(&[]);
        load.must_end_well();
        eventually("an idle disk", || in_flight(&disk) == 0);
        done(&guest, server);
    }
}

/// block/003, block/031 and block/032 in spirit: discards of all sizes, and the limits that the
/// disk gives for them; direct I/O at every address and of every size that it allows, and of some
/// that it does not.
#[test]
fn direct_requests_and_discards_of_odd_sizes_do_what_they_say() {
    let Some(guest) = Guest::new() else { return };
    for mode in guest.modes() {
        let server = guest.serve(&["--volume", "demo=64MiB"]);
        let disk = guest.attach_in(&server, "demo", mode);
        assert_eq!(number(&attribute(&disk, "logical_block_size")), 512);
        assert!(number(&attribute(&disk, "discard_max_bytes")) >= MIB);
        assert_eq!(
            fs::read_to_string(attribute(&disk, "write_cache"))
                .unwrap()
                .trim(),
            "write back"
        );
        assert_eq!(number(&attribute(&disk, "fua")), 1);
        let direct = Direct::open(&disk);
        let mut model = vec![0_u8; 2 * MIB as usize];
        let mut random = fastrand::Rng::with_seed(11);
        let sizes = [
            512, 1024, 3584, 4096, 4608, 65_024, 131_072, 131_584, 524_288, 1_000_448,
        ];
        for round in 0..120_usize {
            let size = sizes[round % sizes.len()];
            let at = random.usize(..(model.len() - size) / 512) * 512;
            if round % 5 == 4 {
                let (from, bytes) = (at.to_string(), size.to_string());
                run_tool("blkdiscard", &["-o", &from, "-l", &bytes, text(&disk)]);
                model[at..at + size].fill(0);
            } else {
                random.fill(&mut model[at..at + size]);
                direct.write(at as u64, &model[at..at + size]).unwrap();
            }
            let size = sizes[random.usize(..sizes.len())];
            let at = random.usize(..(model.len() - size) / 512) * 512;
            let found = direct.read(at as u64, size).unwrap();
            assert!(
                found == model[at..at + size],
                "{mode}: {size} bytes at {at}, round {round}"
            );
        }
        for (at, size) in [(100, 512), (0, 100), (64 * MIB - 512, 1024)] {
            assert!(
                direct.write(at, &vec![1; size]).is_err(),
                "{size} bytes at {at}"
            );
        }
        let found = direct.read(0, model.len()).unwrap();
        assert!(found == model, "{mode}: nothing beside was touched");
        drop(direct);
        done(&guest, server);
    }
}
