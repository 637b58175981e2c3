//! Two disks on one reactor, one of which does its worst: the other goes on. For guests, as
//! `guest_volume.rs` says.
//!
//! What is judged is progress, not time: the neighbour's work ends, and is right, while the other
//! disk is in the state that the test is about. What hangs is ended by a watchdog that aborts.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use crate::common::disk_oracle::{BLOCK, Direct, DiskOracle};
use crate::common::guest::{Guest, inflight, rounds, text};
use crate::common::watchdog::Watchdog;
use crate::common::{Server, deadline, eventually};

const ROUNDS_DEFAULT: u64 = 64;
const CALM_BLOCKS: u64 = 512;

/// Ends its process when dropped.
struct Load(Child);

impl Load {
    fn fio(disk: &Path, args: &[&str]) -> Load {
        let child = Command::new("fio")
            .args(["--name=load", "--direct=1", "--ioengine=libaio"])
            .arg(format!("--filename={}", text(disk)))
            .args(args)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        Load(child.unwrap())
    }

    fn runs(&mut self) -> bool {
        self.0.try_wait().unwrap().is_none()
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        // The workers are children of the first process: told to end, it ends them.
        if let Some(pid) = rustix::process::Pid::from_raw(self.0.id().cast_signed()) {
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        }
        let _ = self.0.wait();
    }
}

/// A server with one reactor, so that all disks share it.
fn serve_on_one_reactor(guest: &Guest, cache: &str, args: &[&str]) -> Server {
    guest.world.serve_as(cache, args, |command| {
        let mut by = Command::new("taskset");
        by.args(["-c", "0"]).arg(command.get_program());
        by.args(command.get_args());
        by.current_dir(command.get_current_dir().unwrap());
        *command = by;
    })
}

fn log_bytes_taken(guest: &Guest, server: &Server, volume: &str) -> u64 {
    let shown = guest.world.show(server, volume);
    shown["disk"]["requests"]["taken"].as_u64().unwrap()
}

fn is_busy(disk: &Path) -> bool {
    let counts = fs::read_to_string(inflight(disk)).unwrap();
    counts.split_whitespace().any(|count| count != "0")
}

/// Both disks in this mode, on the same thread.
fn attach_both(guest: &Guest, server: &Server, mode: &str) -> (PathBuf, PathBuf) {
    let noisy = guest.attach_in(server, "noisy", mode);
    let calm = guest.attach_in(server, "calm", mode);
    let thread = |volume| guest.world.show(server, volume)["disk"]["threads"].clone();
    assert_eq!(thread("noisy"), thread("calm"));
    assert_eq!(thread("calm").as_array().unwrap().len(), 1);
    (noisy, calm)
}

/// The calm disk's work: each round a write, a FLUSH and a read.
fn work(disk: &Direct, oracle: &DiskOracle, rounds: u64) {
    for round in 0..rounds {
        let first = round * 7 % (CALM_BLOCKS - 8);
        oracle.write(disk, first..first + 8);
        disk.flush().unwrap();
        oracle.read(disk, first..first + 8);
    }
}

fn finish(guest: &Guest, server: Server, mode: &str) {
    guest.served_in(&server, "calm", mode);
    for volume in ["noisy", "calm"] {
        guest.detach(&server, volume);
        guest
            .world
            .expect_success(&server, &["volume", "delete", volume]);
    }
    assert!(server.stop().success());
}

const BOTH: [&str; 4] = ["--volume", "noisy=96MiB", "--volume", "calm=8MiB"];

#[test]
fn a_disk_at_full_tilt_leaves_its_reactor_to_its_neighbour_too() {
    let Some(guest) = Guest::new() else { return };
    for mode in guest.modes() {
        let _watchdog = Watchdog::new("the neighbour of a disk at full tilt", 2 * deadline());
        let server = serve_on_one_reactor(&guest, "cache", &BOTH);
        let (noisy, calm) = attach_both(&guest, &server, mode);
        let args = ["--rw=randrw", "--bs=4k", "--iodepth=128", "--size=32m"];
        let endless = ["--time_based", "--runtime=1h", "--numjobs=2"];
        let mut load = Load::fio(&noisy, &[&args[..], &endless].concat());
        eventually("the load", || {
            log_bytes_taken(&guest, &server, "noisy") > 500
        });
        let before = log_bytes_taken(&guest, &server, "noisy");
        let disk = Direct::open(&calm);
        work(
            &disk,
            &DiskOracle::new(CALM_BLOCKS),
            rounds("FIRN_BUG_ROUNDS", ROUNDS_DEFAULT),
        );
        // It was at full tilt all the while, and was not stopped for it either.
        assert!(load.runs() && log_bytes_taken(&guest, &server, "noisy") > before);
        drop((load, disk));
        finish(&guest, server, mode);
    }
}

/// The store is away, and one volume has written all that the log takes of it.
#[test]
fn a_volume_that_filled_its_part_of_the_log_waits_alone_and_goes_on_when_the_store_is_back() {
    let Some(guest) = Guest::new() else { return };
    let world = &guest.world;
    for mode in guest.modes() {
        let _watchdog = Watchdog::new("the neighbour of a full log", 4 * deadline());
        let args = [
            &BOTH[..],
            &[
                "--rpo",
                "200ms",
                "--segment-size",
                "256KiB",
                "--log-size",
                "16MiB",
            ],
        ];
        let cache = format!("full-{mode}");
        let server = serve_on_one_reactor(&guest, &cache, &args.concat());
        let (noisy, calm) = attach_both(&guest, &server, mode);
        fs::rename(world.path("store"), world.path("away")).unwrap();
        let args = ["--rw=write", "--bs=64k", "--iodepth=16", "--size=32m"];
        let mut load = Load::fio(&noisy, &args);
        // Parked: requests in flight, and none ends.
        let mut seen = (0, std::time::Instant::now());
        eventually("the full log", || {
            let now = completed(&noisy);
            if now != seen.0 {
                seen = (now, std::time::Instant::now());
            }
            is_busy(&noisy) && seen.1.elapsed().as_secs() >= 3
        });
        let disk = Direct::open(&calm);
        let oracle = DiskOracle::new(CALM_BLOCKS);
        work(&disk, &oracle, 16);
        assert!(load.runs() && is_busy(&noisy), "it waits still");
        fs::rename(world.path("away"), world.path("store")).unwrap();
        let status = load.0.wait().unwrap();
        assert!(status.success(), "what waited went on: {status}");
        oracle.read(&disk, 0..64);
        drop((load, disk));
        finish(&guest, server, mode);
    }
}

/// How many writes of a disk have ended, by the kernel's count.
fn completed(disk: &Path) -> u64 {
    let stat = Path::new("/sys/block")
        .join(disk.file_name().unwrap())
        .join("stat");
    let text = fs::read_to_string(stat).unwrap();
    text.split_whitespace().nth(4).unwrap().parse().unwrap()
}

fn packs(guest: &Guest) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut left = vec![guest.world.path("store/packs")];
    while let Some(dir) = left.pop() {
        for entry in fs::read_dir(dir).into_iter().flatten() {
            let path = entry.unwrap().path();
            match path.is_dir() {
                true => left.push(path),
                false => found.push(path),
            }
        }
    }
    found
}

/// Fills a volume from outside and brings it to the store; the packs that came with it.
fn store_a_volume(
    guest: &Guest,
    server: &Server,
    volume: &str,
    oracle: &DiskOracle,
) -> Vec<PathBuf> {
    let before = packs(guest);
    let mut client = server.connect(volume);
    for first in (0..CALM_BLOCKS).step_by(64) {
        let blocks = first..(first + 64).min(CALM_BLOCKS);
        oracle.write_by(blocks, |at, bytes| client.write(at, bytes).unwrap());
    }
    guest.world.expect_success(server, &["sync", volume]);
    let mut new = packs(guest);
    new.retain(|pack| !before.contains(pack));
    assert!(!new.is_empty());
    new
}

/// Its packs are damaged: what is fetched from them fails.
#[test]
fn a_disk_whose_fetches_fail_leaves_its_neighbour_cold_reads_and_writes() {
    let Some(guest) = Guest::new() else { return };
    for mode in guest.modes() {
        let _watchdog = Watchdog::new("the neighbour of failing fetches", 4 * deadline());
        // A host that served a volume does not make it anew once another has deleted it.
        let first = format!("first-{mode}");
        let volumes = ["--volume", "noisy=8MiB", "--volume", "calm=8MiB"];
        let server = guest
            .world
            .serve(&first, &[&volumes[..], &["--rpo", "1h"]].concat());
        let (theirs, oracle) = (DiskOracle::new(CALM_BLOCKS), DiskOracle::new(CALM_BLOCKS));
        let spoilt = store_a_volume(&guest, &server, "noisy", &theirs);
        store_a_volume(&guest, &server, "calm", &oracle);
        assert!(server.stop().success());
        let whole: Vec<Vec<u8>> = spoilt.iter().map(|pack| fs::read(pack).unwrap()).collect();
        for (pack, bytes) in spoilt.iter().zip(&whole) {
            // Data alone, so that the volume opens; of the same length, so that the checksum tells.
            let mut bad = bytes.clone();
            bad[4096..bytes.len() / 2].fill(0xFF);
            fs::write(pack, bad).unwrap();
        }
        let cache = format!("cold-{mode}");
        let server = serve_on_one_reactor(
            &guest,
            &cache,
            &["--volume", "noisy=8MiB", "--volume", "calm=8MiB"],
        );
        let (noisy, calm) = attach_both(&guest, &server, mode);
        let (bad, disk) = (Direct::open(&noisy), Direct::open(&calm));
        std::thread::scope(|scope| {
            let failing: Vec<_> = (0..4_u64)
                .map(|thread| {
                    let bad = &bad;
                    scope.spawn(move || {
                        let blocks = (thread..CALM_BLOCKS).step_by(64);
                        let reads = blocks.map(|block| bad.read(block * BLOCK as u64, BLOCK));
                        reads.filter(Result::is_err).count()
                    })
                })
                .collect();
            // Cold reads of its own, then its work.
            for first in (0..CALM_BLOCKS).step_by(32) {
                oracle.read(&disk, first..first + 32);
            }
            work(&disk, &oracle, 16);
            // Each ends: with an error, or with what is not spoilt.
            let failed: usize = failing.into_iter().map(|one| one.join().unwrap()).sum();
            assert!((8..32).contains(&failed), "{failed} of 32 reads failed");
        });
        // A write needs no fetch, and what is mended is read.
        theirs.write(&bad, 3..4);
        theirs.read(&bad, 3..4);
        for (pack, bytes) in spoilt.iter().zip(&whole) {
            fs::write(pack, bytes).unwrap();
        }
        // Each fetch that failed is remembered for a second.
        eventually("the mended packs", || {
            let mut blocks = (0..CALM_BLOCKS).step_by(16);
            blocks.all(|block| bad.read(block * BLOCK as u64, 16 * BLOCK).is_ok())
        });
        theirs.read_all(&bad);
        drop((bad, disk));
        finish(&guest, server, mode);
    }
}
