//! A directory store on a file system whose locks do not keep other hosts out: refused by the server itself.
//!
//! The file system is `fuse2fs`'s, in namespaces of its own, so that nothing outlives the test; a store on NFS is
//! `guest_nfs.rs`'s.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Output, Stdio};

use crate::common::{World, message};

const MOUNT: &str = "mkdir mounted && truncate -s 64m image && mkfs.ext4 -q image \
    && fuse2fs image mounted -o rw,fakeroot >fuse2fs.log 2>&1 && cp -r store mounted/store \
    && echo mounted && exec sleep 600";

/// A mount that has a copy of the world's store at `mounted/store`, and ends with this.
struct Mount {
    holder: Child,
}

impl Mount {
    /// None, and says so, where it cannot be made.
    fn new(world: &World) -> Option<Mount> {
        let holder = Command::new("unshare")
            .args(["--mount", "--pid", "--fork", "--kill-child"])
            .args(["sh", "-c", MOUNT])
            .current_dir(world.dir.path())
            .stdout(Stdio::piped())
            .spawn();
        let Ok(holder) = holder else {
            println!("skipped: unshare(1) is not here");
            return None;
        };
        let mut mount = Mount { holder };
        let mut line = String::new();
        let _ = BufReader::new(mount.holder.stdout.take().unwrap()).read_line(&mut line);
        if line.trim() != "mounted" {
            println!("skipped: no fuse2fs, or no private mount here");
            return None;
        }
        Some(mount)
    }

    /// Runs firn where the mount is seen.
    fn firn(&self, world: &World, args: &[&str]) -> Output {
        let firn = world.command(args);
        Command::new("nsenter")
            .args(["--mount", "--target", &self.holder.id().to_string()])
            .arg(format!("--wdns={}", world.dir.path().display()))
            .args(["timeout", "20"])
            .arg(firn.get_program())
            .args(firn.get_args())
            .output()
            .unwrap()
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        let _ = self.holder.kill();
        let _ = self.holder.wait();
    }
}

/// A world with a store that has a volume `demo`, and no server.
fn world_with_store() -> World {
    let world = World::new();
    world.serve("one", &["--volume", "demo=8MiB"]).kill();
    world
}

fn assert_refused(refused: &Output) {
    let said = message(refused);
    assert!(
        said.contains("is mounted as fuse") && said.contains("--single-writer"),
        "the reason is not its locks: {said}"
    );
    assert!(!refused.status.success(), "{said}");
}

#[test]
fn a_store_on_a_file_system_of_another_host_is_refused_with_the_reason_and_the_remedy() {
    let world = world_with_store();
    let Some(mount) = Mount::new(&world) else {
        return;
    };
    let rings = world.rings();
    let serve = ["serve", "--store", "mounted/store", "--cache", "cache"];
    let listeners = ["--api", "127.0.0.1:0", "--nbd", "unix:nbd.sock"];
    let sizes = ["--log-size", "64MiB", "--cache-size", "16MiB"];
    let rings = ["--ring-dir", rings.to_str().unwrap()];
    let refused = mount.firn(&world, &[&serve[..], &listeners, &sizes, &rings].concat());
    assert_refused(&refused);
    assert!(!world.path("cache").join("log").exists());
}

#[test]
fn a_rebuild_writes_to_no_store_that_may_let_two_writers_win() {
    let world = world_with_store();
    let Some(mount) = Mount::new(&world) else {
        return;
    };
    let rebuild = ["check", "--store", "mounted/store", "--rebuild", "demo"];
    assert_refused(&mount.firn(&world, &rebuild));
    // Whoever promises to be alone is told what there is to rebuild: nothing.
    let promised = mount.firn(&world, &[&rebuild[..], &["--single-writer"]].concat());
    let said = message(&promised);
    assert!(!said.contains("fuse") && said.contains("demo"), "{said}");
}
