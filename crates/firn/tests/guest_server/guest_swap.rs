//! Memory that lies on a disk of the very server: swap, and a file system whose dirty pages are to be
//! freed by writing them. A server that waits for memory then waits for itself. For guests, as
//! `guest_volume.rs` says; meant for a small one: `cargo xtask vm --memory 512M`.
//!
//! The kernel's thread for a journal of a file system takes memory, too, and then waits for a page to be swapped out. Where
//! that lies below the server's log and its directory store, a page that waits for the store waits for that thread. So
//! the log has room for all that is swapped there; with `--no-journal` it has not, and the store must take much of it meanwhile.

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::common::guest::{Guest, Mounted, run_tool, text};
use crate::common::watchdog::Watchdog;
use crate::common::{Server, deadline};

const PAGE_BYTES: usize = 4096;
const MIB: usize = 1 << 20;

/// What is asked for in a guest of 512 MiB.
const WANTED_BYTES_MIN: usize = 700 * MIB;
/// How much more than there is is asked for in larger ones.
const BEYOND_BYTES: usize = 256 * MIB;

/// Of so many pages one is read again: each takes a read of the disk, and the kernel reads its neighbours along.
const LOOKS_STEP: usize = 64;

/// The variable that says to the process that takes memory how much.
const WANTED: &str = "FIRN_TEST_MEMORY";

/// Runs the test whatever the kernel is.
const ANYWAY: &str = "FIRN_TEST_SWAP_ANYWAY";

/// Version and part of it of the running kernel.
fn kernel() -> (u32, u32) {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let mut numbers = release.split(|c: char| !c.is_ascii_digit());
    let mut next = || numbers.next().unwrap().parse().unwrap();
    (next(), next())
}

/// A value of /proc/meminfo or of a process's status, in bytes.
fn field(path: &str, name: &str) -> usize {
    let text = fs::read_to_string(path).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix(name));
    let number = line.unwrap_or_else(|| panic!("no {name} in {path}"));
    let kib: usize = number.split_whitespace().next().unwrap().parse().unwrap();
    kib << 10
}

fn available() -> usize {
    field("/proc/meminfo", "MemAvailable:")
}

/// Whether the kernel has a thread for a journal of some file system.
fn has_journal() -> bool {
    let processes = fs::read_dir("/proc").unwrap().flatten();
    let names = processes.filter_map(|one| fs::read_to_string(one.path().join("comm")).ok());
    names.into_iter().any(|name| name.starts_with("jbd2/"))
}

fn swapped() -> usize {
    field("/proc/meminfo", "SwapTotal:") - field("/proc/meminfo", "SwapFree:")
}

/// Not a test by itself: takes more memory than there is, and looks whether it is still what it was.
#[test]
#[ignore = "a role in another test"]
fn takes_memory() {
    let Ok(wanted) = std::env::var(WANTED) else {
        return;
    };
    let pages = wanted.parse::<usize>().unwrap() / PAGE_BYTES;
    let mut memory = vec![0u8; pages * PAGE_BYTES];
    for (at, page) in memory.chunks_exact_mut(PAGE_BYTES).enumerate() {
        page[..8].copy_from_slice(&(at as u64).to_le_bytes());
        // What does not compress and is never equal.
        page[8..16].copy_from_slice(&fastrand::u64(..).to_le_bytes());
    }
    for (at, page) in memory
        .chunks_exact(PAGE_BYTES)
        .enumerate()
        .step_by(LOOKS_STEP)
    {
        let found = u64::from_le_bytes(page[..8].try_into().unwrap());
        assert_eq!(found, at as u64, "page {at}");
    }
}

fn take_memory(bytes: usize) -> Child {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "guest_swap::takes_memory", "--ignored"]);
    command.env(WANTED, bytes.to_string()).stdout(Stdio::null());
    command.spawn().unwrap()
}

/// Writes a file over and over and reads what it wrote.
fn start_fio(dir: &Path) -> Child {
    let filename = format!("--filename={}", text(&dir.join("fio")));
    Command::new("fio")
        .args(["--name=beside", "--rw=randwrite", "--bs=4k", "--size=32m"])
        .args(["--verify=crc32c", "--verify_fatal=1", "--do_verify=1"])
        .args(["--loops=2", "--end_fsync=1", "--fallocate=none", &filename])
        .stdout(Stdio::null())
        .spawn()
        .unwrap()
}

/// A disk of a server as swap, until the end.
struct Swap<'a>(&'a Path);

impl Swap<'_> {
    fn enable(disk: &Path) -> Swap<'_> {
        run_tool("mkswap", &[text(disk)]);
        run_tool("swapon", &[text(disk)]);
        Swap(disk)
    }
}

impl Drop for Swap<'_> {
    fn drop(&mut self) {
        let _ = Command::new("swapoff").arg(self.0).status();
    }
}

/// Memory of the server cannot be taken away from it.
fn check_locked(server: &Server) {
    let status = format!("/proc/{}/status", server.pid());
    let swapped = field(&status, "VmSwap:");
    assert_eq!(swapped, 0, "the server's own memory is swapped");
    let (locked, resident) = (field(&status, "VmLck:"), field(&status, "VmRSS:"));
    assert!(
        locked > 0 && resident > 0,
        "{locked} of {resident} are locked"
    );
}

/// Less than what a server reserves in a guest of 512 MiB, and more than it has touched when it is up.
const RESERVE_BYTES_MIN: usize = 32 * MIB;

#[test]
fn a_server_has_the_heap_that_uploads_need_before_memory_is_short() {
    let Some(guest) = Guest::new() else { return };
    let server = guest.serve(&["--volume", "demo=16MiB"]);
    check_locked(&server);
    let heap = || field(&format!("/proc/{}/status", server.pid()), "RssAnon:");
    // A thread of its own fills it, and no client waits for that.
    let until = Instant::now() + deadline();
    while heap() < RESERVE_BYTES_MIN {
        let found = heap();
        assert!(
            Instant::now() < until,
            "only {found} bytes of the heap are in memory"
        );
        std::thread::yield_now();
    }
}

#[test]
fn swap_and_a_file_system_on_disks_of_this_host_do_not_hang_when_memory_is_short() {
    let Some(guest) = Guest::new() else { return };
    // Its own loop driver stands still there; docs/failure-model.md, "Swap on Linux 6.12".
    if kernel() < (7, 3) && std::env::var_os(ANYWAY).is_none() {
        println!(
            "skipped: this kernel lacks requests for a disk below swap (7.3 has been seen to have them)"
        );
        return;
    }
    let _watchdog = Watchdog::new("memory on a disk of this host", 8 * deadline());
    let volumes = ["--volume", "swap=2GiB", "--volume", "fs=256MiB"];
    let log = if has_journal() { "1GiB" } else { "256MiB" };
    println!("a log of {log}");
    let server = guest.serve(&[&volumes[..], &["--log-size", log]].concat());
    let [swap_disk, fs_disk] = ["swap", "fs"].map(|name| guest.attach(&server, name, &[]));
    run_tool("mkfs.ext4", &["-q", "-E", "nodiscard", text(&fs_disk)]);
    let mounted = Mounted::new(&guest.world, &fs_disk, "ext4");
    let swap = Swap::enable(&swap_disk);
    let wanted = WANTED_BYTES_MIN.max(available() + BEYOND_BYTES);
    let mut hog = take_memory(wanted);
    let mut fio = start_fio(&mounted.0);
    let (mut most, mut looks) = (0, 0);
    let status = loop {
        if let Some(status) = hog.try_wait().unwrap() {
            break status;
        }
        let now = swapped();
        most = most.max(now);
        looks += 1;
        if looks % 25 == 0 {
            println!("{} MiB are swapped", now / MIB);
        }
        std::thread::sleep(Duration::from_millis(200));
    };
    assert!(status.success(), "{status:?}: memory is not what it was");
    assert!(most > BEYOND_BYTES / 2, "only {most} bytes were swapped");
    let status = fio.wait().unwrap();
    assert!(status.success(), "{status:?}: a file is not what it was");
    println!("{} MiB were swapped", most / MIB);
    check_locked(&server);
    drop(swap);
    drop(mounted);
    run_tool("e2fsck", &["-fn", text(&fs_disk)]);
    for name in ["swap", "fs"] {
        guest.detach(&server, name);
    }
    assert!(server.stop().success());
}
