//! A real file system on a volume, and kill -9 below it: the journal replays, what was synced is
//! there, and e2fsck finds nothing.
//!
//! ext4 is mounted through `nbdfuse` and a loop device, in a mount namespace of its own so that
//! nothing outlives the test. Needs root, fuse and loop devices; says "skipped" without them.
//! `FIRN_KILL_ROUNDS` sets the number of rounds.

#![allow(clippy::unwrap_used)]

mod common;

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Write;
use std::path::Path;
use std::process::{Child, Command, Output};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use common::guest::content;
use common::{Server, World, eventually, message};

const INSIDE: &str = "FIRN_TEST_IN_MOUNT_NAMESPACE";
/// The test's own name, by which it starts itself again.
const TEST: &str = "ext4_replays_its_journal_after_each_kill_9_and_keeps_what_was_synced";
const ROUNDS_DEFAULT: u64 = 2;
/// Synced files per round after which the server is killed, at least.
const FILES: u64 = 30;

/// Runs a tool with a limit, so that a stuck mount fails the test instead of hanging it.
fn tool(program: &str, args: &[&str]) -> Output {
    Command::new("timeout")
        .args(["-k", "5", "60", program])
        .args(args)
        .output()
        .unwrap()
}

fn run_tool(program: &str, args: &[&str]) {
    let output = tool(program, args);
    let said = format!(
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        message(&output)
    );
    assert!(
        output.status.success(),
        "{program} {args:?}: {:?} {said}",
        output.status
    );
}

/// What is missing here for this test.
fn missing() -> Option<&'static str> {
    if !rustix::process::geteuid().is_root() {
        return Some("not root");
    }
    for (device, why) in [
        ("/dev/fuse", "no fuse"),
        ("/dev/loop-control", "no loop devices"),
    ] {
        if !Path::new(device).exists() {
            return Some(why);
        }
    }
    for (program, why) in [
        ("nbdfuse", "no nbdfuse"),
        ("mkfs.ext4", "no mkfs.ext4"),
        ("e2fsck", "no e2fsck"),
        ("losetup", "no losetup"),
        ("unshare", "no unshare"),
    ] {
        if Command::new(program).arg("--version").output().is_err() {
            return Some(why);
        }
    }
    // e2fsprogs are often only in root's path; loop devices may exist and be forbidden.
    let free = tool("losetup", &["-f"]);
    (!free.status.success()).then_some("loop devices are not allowed")
}

/// The volume as a file, by `nbdfuse`.
struct Fuse {
    child: Child,
    dir: String,
}

impl Fuse {
    fn mount(world: &World, uri: &str) -> Fuse {
        let dir = world.path("fuse");
        fs::create_dir_all(&dir).unwrap();
        let disk = dir.join("disk");
        let log = File::create(world.path("nbdfuse.log")).unwrap();
        let child = Command::new("nbdfuse")
            .arg(&disk)
            .arg(uri)
            .stderr(log)
            .spawn()
            .unwrap();
        let fuse = Fuse {
            child,
            dir: dir.to_str().unwrap().to_owned(),
        };
        eventually("nbdfuse", || disk.exists());
        fuse
    }

    fn disk(&self) -> String {
        format!("{}/disk", self.dir)
    }
}

impl Drop for Fuse {
    fn drop(&mut self) {
        tool("umount", &["-l", &self.dir]);
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The file system, mounted; unmounted when dropped, by force if need be.
struct Mounted(String);

impl Mounted {
    fn new(world: &World, disk: &str) -> Mounted {
        let at = world.path("fs");
        fs::create_dir_all(&at).unwrap();
        let at = at.to_str().unwrap().to_owned();
        run_tool("mount", &["-t", "ext4", "-o", "loop", disk, &at]);
        Mounted(at)
    }

    fn path(&self) -> &Path {
        Path::new(&self.0)
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        if !tool("umount", &[&self.0]).status.success() {
            tool("umount", &["-l", &self.0]);
        }
    }
}

/// Makes files until the file system fails; remembers those whose sync succeeded.
fn write_until_cut(dir: &Path, next: &AtomicU64, promised: &Mutex<BTreeMap<u64, usize>>) {
    loop {
        let name = next.fetch_add(1, Ordering::SeqCst);
        let bytes = content(name);
        let made = File::create(dir.join(name.to_string())).and_then(|mut file| {
            file.write_all(&bytes)?;
            // Every third is left to the journal's own pace.
            if name % 3 == 2 {
                Ok(false)
            } else {
                file.sync_all().map(|()| true)
            }
        });
        match made {
            Ok(true) => {
                promised.lock().unwrap().insert(name, bytes.len());
            }
            Ok(false) => {}
            Err(_) => return,
        }
    }
}

fn check(dir: &Path, promised: &BTreeMap<u64, usize>) {
    for &name in promised.keys() {
        let found = fs::read(dir.join(name.to_string()));
        assert!(
            found.is_ok_and(|bytes| bytes == content(name)),
            "file {name} was synced"
        );
    }
}

#[test]
fn ext4_replays_its_journal_after_each_kill_9_and_keeps_what_was_synced() {
    if let Some(why) = missing() {
        println!("skipped: {why}");
        return;
    }
    if std::env::var(INSIDE).is_ok() {
        return rounds();
    }
    let output = Command::new("unshare")
        .args(["--mount", "--propagation", "private"])
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", TEST, "--nocapture"])
        .env(INSIDE, "1")
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}{}", message(&output));
    assert!(said.contains("1 passed"), "{said}");
}

fn serve(world: &World) -> (Server, String) {
    let server = world.serve("cache", &["--volume", "demo=96MiB", "--rpo", "500ms"]);
    let uri = world
        .expect_success(&server, &["attach", "demo", "--transport", "nbd"])
        .trim()
        .to_owned();
    (server, uri)
}

fn rounds() {
    let rounds = std::env::var("FIRN_KILL_ROUNDS").map_or(ROUNDS_DEFAULT, |n| n.parse().unwrap());
    let world = World::new();
    let promised = Mutex::new(BTreeMap::<u64, usize>::new());
    let next = AtomicU64::new(0);
    for round in 0..rounds {
        let (server, uri) = serve(&world);
        let fuse = Fuse::mount(&world, &uri);
        if round == 0 {
            run_tool("mkfs.ext4", &["-q", "-F", &fuse.disk()]);
        }
        let mounted = Mounted::new(&world, &fuse.disk());
        if round % 8 == 7 {
            // The disk is small: begin anew now and then.
            let removed = std::mem::take(&mut *promised.lock().unwrap());
            for name in removed.keys() {
                fs::remove_file(mounted.path().join(name.to_string())).unwrap();
            }
        }
        let before = promised.lock().unwrap().len() as u64;
        std::thread::scope(|scope| {
            scope.spawn(|| write_until_cut(mounted.path(), &next, &promised));
            let enough = before + FILES + round * 17 % 40;
            eventually("synced files", || {
                promised.lock().unwrap().len() as u64 >= enough
            });
            server.kill();
        });
        drop(mounted);
        drop(fuse);

        let (server, uri) = serve(&world);
        let fuse = Fuse::mount(&world, &uri);
        // Mounting replays the journal.
        let mounted = Mounted::new(&world, &fuse.disk());
        check(mounted.path(), &promised.lock().unwrap());
        drop(mounted);
        run_tool("e2fsck", &["-f", "-n", &fuse.disk()]);
        drop(fuse);
        assert!(server.stop().success());
    }
}
