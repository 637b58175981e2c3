//! File systems on volumes that are disks: trees that come back the same, and servers that are
//! killed below them twenty times. Run as root in a guest; `FIRN_KILL_ROUNDS` sets the number of
//! kills.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::common::eventually;
use crate::common::guest::{Guest, Mounted, Stops, content, keep_writing, run_tool, text};

const KILLS_DEFAULT: u64 = 20;

/// Every regular file below a directory with its hash, every link with what it names.
fn hashed(dir: &Path) -> String {
    let script = "cd \"$0\" && find . -type f -print0 | sort -z | xargs -0 sha256sum && \
                  find . ! -type f -printf '%p %y %m %l\\n' | grep -v lost+found | sort";
    run_tool("sh", &["-c", script, text(dir)])
}

/// Makes a tree: sources copied with all they are, files of many sizes, one with holes, links.
fn make_tree(dir: &Path) {
    let sources = concat!(env!("CARGO_MANIFEST_DIR"), "/src");
    run_tool("cp", &["-a", sources, text(&dir.join("sources"))]);
    fs::create_dir(dir.join("files")).unwrap();
    for name in 0..80 {
        fs::write(dir.join("files").join(name.to_string()), content(name)).unwrap();
    }
    let holes = File::create(dir.join("holes")).unwrap();
    for at in 0..20 {
        std::os::unix::fs::FileExt::write_all_at(&holes, &content(at), at * 1_000_003).unwrap();
    }
    std::os::unix::fs::symlink("files/7", dir.join("link")).unwrap();
    fs::hard_link(dir.join("files/8"), dir.join("second-name")).unwrap();
    // Read through the file system and written again.
    run_tool(
        "cp",
        &["-a", text(&dir.join("files")), text(&dir.join("copy"))],
    );
}

#[test]
fn a_tree_of_files_is_the_same_after_remount_restart_and_loss_of_the_cache() {
    let Some(guest) = Guest::new() else { return };
    for mode in guest.modes() {
        for kind in ["ext4", "xfs"] {
            let server = guest.serve(&["--volume", "demo=320MiB"]);
            let disk = guest.attach_in(&server, "demo", mode);
            let force = if kind == "xfs" { "-f" } else { "-F" };
            run_tool(&format!("mkfs.{kind}"), &["-q", force, text(&disk)]);
            let mounted = Mounted::new(&guest.world, &disk, kind);
            make_tree(&mounted.0);
            let planted = hashed(&mounted.0);
            assert!(planted.lines().count() > 200, "{planted}");
            drop(mounted);

            let mounted = Mounted::new(&guest.world, &disk, kind);
            assert_eq!(hashed(&mounted.0), planted, "{mode} {kind}: mounted again");
            fs::remove_dir_all(mounted.0.join("copy")).unwrap();
            run_tool("fstrim", &[text(&mounted.0)]);
            let trimmed = hashed(&mounted.0);
            drop(mounted);
            guest.detach(&server, "demo");
            assert!(server.stop().success());

            // Another cache directory: every block comes from the store.
            let server = guest.world.serve("other", &[]);
            assert_eq!(guest.attach_in(&server, "demo", mode), disk);
            let mounted = Mounted::new(&guest.world, &disk, kind);
            assert_eq!(hashed(&mounted.0), trimmed, "{mode} {kind}: from the store");
            drop(mounted);
            match kind {
                "ext4" => run_tool("e2fsck", &["-f", "-n", text(&disk)]),
                _ => run_tool("xfs_repair", &["-n", text(&disk)]),
            };
            guest.end(server, "demo");
        }
    }
}

/// Writes a line into the kernel's log, from which [`complaints`] counts.
fn mark_log(mark: &str) {
    fs::write("/dev/kmsg", mark).unwrap();
}

/// What the kernel said since a mark about errors of disks and file systems. Where so much was
/// said since that the mark is gone, all that is left counts.
fn complaints(mark: &str) -> Vec<String> {
    let words = [
        "I/O error",
        "EXT4-fs error",
        "EXT4-fs warning",
        "Buffer I/O",
        "critical",
    ];
    let said = run_tool("dmesg", &[]);
    let since = said.split(mark).last().unwrap();
    let bad = since
        .lines()
        .filter(|line| words.iter().any(|word| line.contains(word)));
    bad.map(str::to_owned).collect()
}

/// fio on a file of its own, over and over, each time reading what it wrote.
fn keep_verifying(dir: &Path, stop: &AtomicBool) -> u64 {
    let mut runs = 0;
    while !stop.load(Ordering::Relaxed) {
        let filename = format!("--filename={}", text(&dir.join("fio")));
        run_tool(
            "fio",
            &[
                "--name=verify",
                &filename,
                "--rw=randwrite",
                "--bs=4k",
                "--size=8m",
                "--io_size=2m",
                "--direct=1",
                "--ioengine=libaio",
                "--iodepth=8",
                "--fsync=32",
                "--verify=crc32c",
                "--verify_fatal=1",
                "--randrepeat=0",
                "--error_dump=1",
            ],
        );
        runs += 1;
    }
    runs
}

/// S1, as a file system and its users see it.
#[test]
fn twenty_kills_below_a_mounted_file_system_are_pauses_and_never_errors() {
    let Some(guest) = Guest::new() else { return };
    let kills = std::env::var("FIRN_KILL_ROUNDS").map_or(KILLS_DEFAULT, |n| n.parse().unwrap());
    for mode in guest.modes() {
        let mark = format!("firn: kills below a file system, {mode}");
        mark_log(&mark);
        let mut server = guest.serve(&["--volume", "demo=192MiB"]);
        let disk = guest.attach_in(&server, "demo", mode);
        run_tool("mkfs.ext4", &["-q", "-F", text(&disk)]);
        let mounted = Mounted::new(&guest.world, &disk, "ext4");
        let (promised, next) = (Mutex::new(BTreeMap::new()), AtomicU64::new(0));
        let stop = AtomicBool::new(false);
        let (server, runs) = std::thread::scope(|scope| {
            let stops = Stops(&stop);
            let write = || keep_writing(&mounted.0, &next, &promised, &stop);
            let writers = [scope.spawn(write), scope.spawn(write)];
            let fio = scope.spawn(|| keep_verifying(&mounted.0, &stop));
            for round in 0..kills {
                let synced = promised.lock().unwrap().len();
                eventually("synced files", || {
                    let failed = writers.iter().any(|one| one.is_finished()) || fio.is_finished();
                    promised.lock().unwrap().len() >= synced + 4 || failed
                });
                server.kill();
                server = guest.serve(&[]);
                let shown = &guest.world.show(&server, "demo")["disk"];
                assert_eq!(shown["device"], text(&disk), "{mode} {round}");
                assert_eq!(shown["data_mode"], mode, "{round}");
            }
            drop(stops);
            for writer in writers {
                writer.join().unwrap();
            }
            (server, fio.join().unwrap())
        });
        drop(mounted);
        run_tool("e2fsck", &["-f", "-n", text(&disk)]);
        let mounted = Mounted::new(&guest.world, &disk, "ext4");
        let promised = promised.lock().unwrap();
        for &name in promised.keys() {
            let found = fs::read(mounted.0.join(name.to_string())).unwrap();
            assert!(found == content(name), "{mode}: file {name} was synced");
        }
        drop(mounted);
        println!(
            "{mode}: {kills} kills, {} files, {runs} runs of fio",
            promised.len()
        );
        assert_eq!(complaints(&mark), Vec::<String>::new(), "{mode}");
        guest.end(server, "demo");
    }
}
