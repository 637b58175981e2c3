//! `firn upgrade` below disks: their clients see a pause, no error, and every byte. For guests, as
//! `guest_volume.rs` says.
//!
//! In each data mode: requests that go round the page cache, each sector judged by the oracle, and a mounted
//! file system, while the server becomes another program twice.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::common::disk_oracle::{BLOCK, Direct, DiskOracle};
use crate::common::guest::{Guest, Mounted, Stops, keep_writing, run_tool, text};
use crate::common::watchdog::Watchdog;
use crate::common::{Server, deadline, eventually};

pub(crate) const BLOCKS: u64 = (8 << 20) / BLOCK as u64;
const UPGRADES: u64 = 2;

/// Writes, reads and flushes the blocks of client `number` of `clients` until it is told to stop, and counts rounds.
pub(crate) fn keep_using(
    open: &Direct,
    oracle: &DiskOracle,
    (number, clients): (u64, u64),
    stop: &AtomicBool,
    done: &AtomicU64,
) {
    let share = BLOCKS / clients;
    for round in 0_u64.. {
        if stop.load(Ordering::Relaxed) {
            return;
        }
        let at = number * share + round * 7 % share;
        oracle.write(open, at..at + 1);
        let before = number * share + round * 13 % share;
        oracle.read(open, before..before + 1);
        if round % 32 == 31 {
            open.flush().unwrap();
        }
        done.fetch_add(1, Ordering::SeqCst);
    }
}

/// Upgrades the server below its disks, each time after its clients have gone on.
fn upgrade_below(guest: &Guest, server: &Server, disk: &Path, done: &AtomicU64) {
    let device = fs::metadata(disk).unwrap().rdev();
    let pid = server.pid();
    for _ in 0..UPGRADES {
        let before = done.load(Ordering::SeqCst);
        eventually("the clients go on", || {
            done.load(Ordering::SeqCst) > before + 8
        });
        let said = guest
            .world
            .expect_success(server, &["upgrade", "--timeout", "120s"]);
        assert!(said.contains("upgraded"), "{said}");
        assert_eq!(fs::metadata(disk).unwrap().rdev(), device, "the same disk");
        assert_eq!(server.pid(), pid);
    }
    let before = done.load(Ordering::SeqCst);
    eventually("the clients go on", || {
        done.load(Ordering::SeqCst) > before + 8
    });
}

#[test]
fn requests_of_a_disk_wait_for_an_upgrade_and_none_fails_or_is_lost() {
    let Some(guest) = Guest::new() else { return };
    let _watchdog = Watchdog::new("an upgrade below a disk", 4 * deadline());
    for mode in guest.modes() {
        let server = guest.serve(&["--volume", "demo=8MiB"]);
        let disk = guest.attach_in(&server, "demo", mode);
        let oracle = DiskOracle::new(BLOCKS);
        let (stop, done) = (AtomicBool::new(false), AtomicU64::new(0));
        std::thread::scope(|scope| {
            let _stops = Stops(&stop);
            // Each has blocks of its own. It was opened before the first upgrade, and never again.
            for number in 0..4 {
                let (oracle, stop, done) = (&oracle, &stop, &done);
                let open = Direct::open(&disk);
                scope.spawn(move || keep_using(&open, oracle, (number, 4), stop, done));
            }
            upgrade_below(&guest, &server, &disk, &done);
        });
        oracle.read_all(&Direct::open(&disk));
        guest.served_in(&server, "demo", mode);
        // What the last server left is what the next one has.
        server.kill();
        let server = guest.serve(&[]);
        oracle.read_all(&Direct::open(&disk));
        guest.detach(&server, "demo");
        assert_eq!(guest.devices(), Vec::<String>::new());
        guest
            .world
            .expect_success(&server, &["volume", "delete", "demo"]);
        assert!(server.stop().success());
    }
}

#[test]
fn a_mounted_file_system_goes_on_through_upgrades_and_is_found_clean() {
    let Some(guest) = Guest::new() else { return };
    let _watchdog = Watchdog::new("an upgrade below a file system", 8 * deadline());
    for mode in guest.modes() {
        let server = guest.serve(&["--volume", "demo=256MiB"]);
        let disk = guest.attach_in(&server, "demo", mode);
        run_tool("mkfs.ext4", &["-q", "-F", text(&disk)]);
        let mounted = Mounted::new(&guest.world, &disk, "ext4");
        let (next, stop) = (AtomicU64::new(0), AtomicBool::new(false));
        let promised = Mutex::new(BTreeMap::new());
        std::thread::scope(|scope| {
            let _stops = Stops(&stop);
            scope.spawn(|| keep_writing(&mounted.0, &next, &promised, &stop));
            upgrade_below(&guest, &server, &disk, &next);
        });
        drop(mounted);
        run_tool("e2fsck", &["-f", "-n", text(&disk)]);
        let mounted = Mounted::new(&guest.world, &disk, "ext4");
        mounted.has_all_of(&promised);
        drop(mounted);
        guest.end(server, "demo");
    }
}
