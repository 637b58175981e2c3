//! A directory store on a file system whose locks do not keep other hosts out: refused by the server itself.
//!
//! The file system is `fuse2fs`'s, in namespaces of its own, so that nothing outlives the test; a store on NFS is
//! `guest_nfs.rs`'s.

#![allow(clippy::unwrap_used)]

mod common;

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use common::{World, message};

const MOUNT: &str = "mkdir mounted && truncate -s 64m image && mkfs.ext4 -q image \
    && fuse2fs image mounted -o rw,fakeroot >fuse2fs.log 2>&1 && echo mounted && exec sleep 600";

#[test]
fn a_store_on_a_file_system_of_another_host_is_refused_with_the_reason_and_the_remedy() {
    let world = World::new();
    let holder = Command::new("unshare")
        .args(["--mount", "--pid", "--fork", "--kill-child"])
        .args(["sh", "-c", MOUNT])
        .current_dir(world.dir.path())
        .stdout(Stdio::piped())
        .spawn();
    let Ok(mut holder) = holder else {
        return println!("skipped: unshare(1) is not here");
    };
    let mut line = String::new();
    let _ = BufReader::new(holder.stdout.take().unwrap()).read_line(&mut line);
    let refused = (line.trim() == "mounted").then(|| {
        let serve = world.command(&["serve", "--store", "mounted/store", "--cache", "cache"]);
        Command::new("nsenter")
            .args(["--mount", "--target", &holder.id().to_string()])
            .arg(format!("--wdns={}", world.dir.path().display()))
            .args(["timeout", "20"])
            .arg(serve.get_program())
            .args(serve.get_args())
            .args(["--api", "127.0.0.1:0", "--nbd", "unix:nbd.sock"])
            .args(["--log-size", "64MiB", "--cache-size", "16MiB", "--ring-dir"])
            .arg(world.rings())
            .output()
            .unwrap()
    });
    holder.kill().unwrap();
    holder.wait().unwrap();
    let Some(refused) = refused else {
        return println!("skipped: no fuse2fs, or no private mount here");
    };
    let said = message(&refused);
    assert!(
        said.contains("is mounted as fuse") && said.contains("--single-writer"),
        "the reason is not its locks: {said}"
    );
    assert!(!refused.status.success(), "{said}");
    assert!(!world.path("cache").join("log").exists(), "{said}");
}
