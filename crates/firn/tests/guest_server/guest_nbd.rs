//! The kernel's own NBD client: a file system on a disk of it, and servers that are killed below. Run as root in
//! a guest whose kernel has the driver; `FIRN_KILL_ROUNDS` sets the number of kills.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64};

use crate::common::guest::{Guest, Mounted, Stops, keep_writing, run_tool};
use crate::common::kernel_nbd::KernelNbd;
use crate::common::{Server, eventually};

const KILLS_DEFAULT: u64 = 5;
const VOLUME: [&str; 2] = ["--volume", "demo=96MiB"];
const DEVICE: u32 = 0;
const DISK: &str = "/dev/nbd0";

/// A disk that is not ended by its test would outlive the server for minutes.
struct Disk<'a>(&'a KernelNbd);

impl<'a> Disk<'a> {
    fn connect(driver: &'a KernelNbd, server: &Server) -> Disk<'a> {
        let client = server.connect("demo");
        let (bytes, flags) = (client.size, client.flags);
        driver.connect(DEVICE, &client.stream(), bytes, flags);
        Disk(driver)
    }
}

impl Drop for Disk<'_> {
    fn drop(&mut self) {
        // Also at the end of a test that failed: nothing may panic here.
        if !self.0.disconnect(DEVICE) {
            eprintln!("the kernel's device is still connected");
        }
    }
}

#[test]
fn kills_below_a_file_system_on_the_kernels_client_are_pauses_and_lose_nothing_synced() {
    let Some(guest) = Guest::new() else { return };
    let Some(driver) = KernelNbd::new().filter(|_| Path::new(DISK).exists()) else {
        println!("skipped: this kernel lacks NBD");
        return;
    };
    let kills = std::env::var("FIRN_KILL_ROUNDS").map_or(KILLS_DEFAULT, |n| n.parse().unwrap());
    let mut server = guest.serve(&VOLUME);
    let disk = Disk::connect(&driver, &server);
    run_tool("mkfs.ext4", &["-q", "-F", DISK]);
    let mounted = Mounted::new(&guest.world, Path::new(DISK), "ext4");
    let (promised, next) = (Mutex::new(BTreeMap::new()), AtomicU64::new(0));
    let stop = AtomicBool::new(false);
    let server = std::thread::scope(|scope| {
        let stops = Stops(&stop);
        let writer = scope.spawn(|| keep_writing(&mounted.0, &next, &promised, &stop));
        let writes_on = || {
            let synced = promised.lock().unwrap().len();
            eventually("synced files", || {
                promised.lock().unwrap().len() >= synced + 4 || writer.is_finished()
            });
        };
        for _ in 0..kills {
            writes_on();
            server.kill();
            server = guest.serve(&VOLUME);
            let stream = server.connect("demo").stream();
            eventually("the kernel takes another connection", || {
                driver.reconnect(DEVICE, &stream)
            });
        }
        writes_on();
        drop(stops);
        writer.join().unwrap();
        server
    });
    assert!(promised.lock().unwrap().len() >= 4 * kills as usize);
    drop(mounted);
    // What is mounted again is read from the disk.
    let mounted = Mounted::new(&guest.world, Path::new(DISK), "ext4");
    mounted.has_all_of(&promised);
    drop(mounted);
    run_tool("e2fsck", &["-f", "-n", DISK]);
    drop(disk);
    assert!(server.stop().success());
    // And once more from the store alone, over a new connection.
    let server = guest.world.serve("other", &VOLUME);
    let disk = Disk::connect(&driver, &server);
    let mounted = Mounted::new(&guest.world, Path::new(DISK), "ext4");
    mounted.has_all_of(&promised);
    drop(mounted);
    drop(disk);
    assert!(server.stop().success());
}
