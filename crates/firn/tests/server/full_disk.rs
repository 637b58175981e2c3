//! A full cache disk: attaching, detaching, a kill and a start at every point of it.
//!
//! The cache directory is on a small tmpfs in a mount namespace of its own, whose last byte is taken
//! at the moment that a case names. The store is elsewhere, and not full.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use crate::common::{Server, World, eventually, message};

/// Enough for the log, the cache and the small files, and little more.
const MOUNT: &str = "mount -t tmpfs -o size=84m none cache && echo mounted && exec sleep 600";

/// A file system of the same size that takes direct I/O, without which the cache has all its space from
/// the start.
const MOUNT_DIRECT: &str = "truncate -s 96m image && mkfs.ext4 -q -m 0 image \
    && mount -o loop image cache && echo mounted && exec sleep 600";

/// A ring directory with room for the session's own region, and for no ring of a volume.
const MOUNT_RINGS: &str =
    "mkdir rings && mount -t tmpfs -o size=64k none rings && echo mounted && exec sleep 600";

/// A namespace in which the cache directory, or another one, is a small file system.
struct Small {
    world: World,
    holder: Child,
}

impl Small {
    fn new() -> Option<Small> {
        Small::mount(MOUNT)
    }

    fn mount(script: &str) -> Option<Small> {
        let world = World::new();
        fs::create_dir(world.path("cache")).unwrap();
        let holder = Command::new("unshare")
            .args(["--mount", "sh", "-c", script])
            .current_dir(world.dir.path())
            .stdout(Stdio::piped())
            .spawn();
        let Ok(mut holder) = holder else {
            println!("skipped: unshare(1) is not here");
            return None;
        };
        let mut line = String::new();
        let _ = BufReader::new(holder.stdout.take().unwrap()).read_line(&mut line);
        if line.trim() != "mounted" {
            println!("skipped: no private mount here");
            return None;
        }
        Some(Small { world, holder })
    }

    /// Bytes of its file system that are free, and all of them.
    fn free_and_total(&self) -> (u64, u64) {
        let inside = self.world.path("cache");
        let path = format!("/proc/{}/root{}", self.holder.id(), inside.display());
        let found = rustix::fs::statvfs(path).unwrap();
        (
            found.f_bavail * found.f_frsize,
            found.f_blocks * found.f_frsize,
        )
    }

    /// A server in the namespace.
    fn serve(&self, args: &[&str]) -> Server {
        self.serve_cached("4MiB", args)
    }

    /// The same with a read cache of this size.
    fn serve_cached(&self, cache: &str, args: &[&str]) -> Server {
        let sizes = ["--log-size", "64MiB", "--cache-size", cache];
        self.serve_files(&[&sizes, args].concat())
    }

    /// The same with the sizes that its files have.
    fn serve_files(&self, args: &[&str]) -> Server {
        self.world.serve_as("cache", args, |command| {
            let mut inside = Command::new("nsenter");
            inside.args(["--mount", "--target", &self.holder.id().to_string()]);
            inside.arg(format!("--wdns={}", self.world.dir.path().display()));
            inside.arg(command.get_program()).args(command.get_args());
            inside.env_remove("FIRN_API");
            *command = inside;
        })
    }

    /// A file of the cache directory, seen from outside.
    fn path(&self, name: &str) -> PathBuf {
        let root = PathBuf::from(format!("/proc/{}/root", self.holder.id()));
        let inside = self.world.path("cache").join(name);
        root.join(inside.strip_prefix("/").unwrap())
    }

    /// Takes every byte that is left.
    fn fill(&self) {
        let mut file = fs::File::options()
            .create(true)
            .append(true)
            .open(self.path("filler"))
            .unwrap();
        for bytes in [1 << 20, 4096, 1] {
            while file.write_all(&vec![1; bytes]).is_ok() {}
        }
        assert!(
            fs::write(self.path("more"), [1; 8192]).is_err(),
            "the disk is full"
        );
        let _ = fs::remove_file(self.path("more"));
        while file.write_all(&[1; 4096]).is_ok() {}
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        let _ = self.holder.kill();
        let _ = self.holder.wait();
    }
}

/// Bytes that do not compress, and differ from block to block.
fn noise(mib: u64) -> Vec<u8> {
    let mut state = mib * 2 + 1;
    let words = (0..(1 << 20) / 8).flat_map(|_| {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        state.rotate_left(17).to_le_bytes()
    });
    words.collect()
}

#[test]
fn a_read_cache_takes_no_more_space_than_there_is_and_what_it_cannot_hold_is_read_from_the_store() {
    const MIB: u64 = 1 << 20;
    let Some(small) = Small::mount(MOUNT_DIRECT) else {
        return;
    };
    // On a disk of 96 MiB.
    let server = small.serve_cached("4GiB", &["--volume", "a=160MiB"]);
    let mut client = server.connect("a");
    for mib in 0..160 {
        client.write(mib * MIB, &noise(mib)).unwrap();
    }
    client.flush().unwrap();
    drop(client);
    small.world.expect_success(&server, &["sync", "a"]);
    let mut client = server.connect("a");
    for round in 0..2 {
        for mib in 0..160 {
            assert!(
                client.read(mib * MIB, MIB as usize).unwrap() == noise(mib),
                "MiB {mib} in round {round}"
            );
        }
    }
    client.write(0, &[3; 4096]).unwrap();
    client.flush().unwrap();
    // Others need space there, too: the cache leaves a twentieth, but for the writes that were on their way, 64 KiB
    // each, when it was there.
    let (free, total) = small.free_and_total();
    assert!(free * 50 > total, "{free} bytes of {total} are left");
}

const NBD: [&str; 2] = ["--transport", "nbd"];

#[test]
fn a_full_ring_directory_names_the_ring_directory_and_what_helps_and_not_a_smaller_log() {
    let Some(small) = Small::mount(MOUNT_RINGS) else {
        return;
    };
    let world = &small.world;
    let rings = world.path("rings");
    let server = small.serve(&["--ring-dir", rings.to_str().unwrap()]);
    world.expect_success(&server, &["volume", "create", "a", "--size", "8MiB"]);
    let attach = [&["attach", "a"][..], &NBD].concat();
    let refused = world.expect_failure(&server, &attach);
    let names_it = refused.contains(rings.to_str().unwrap()) && refused.contains("--ring-dir");
    assert!(
        names_it && !refused.contains("--log-size"),
        "it advises: {refused}"
    );
    // What it says helps.
    let larger = Command::new("nsenter")
        .args(["--mount", "--target", &small.holder.id().to_string()])
        .args(["mount", "-o", "remount,size=16m"])
        .arg(&rings)
        .status();
    assert!(larger.unwrap().success());
    world.expect_success(&server, &attach);
    server.connect("a").write(0, &[1; 4096]).unwrap();
}

/// What the server does while its disk is full, one step after the other; the disk fills before the
/// step of this number, and the server is killed after the last.
#[test]
fn a_full_cache_disk_refuses_no_change_of_state_and_a_killed_server_starts_on_it() {
    const STEPS: usize = 5;
    for full_from in 0..STEPS {
        let Some(small) = Small::new() else { return };
        let world = &small.world;
        let server = small.serve(&["--volume", "a=8MiB", "--rpo", "1h"]);
        server.connect("a").write(0, &[1; 4096]).unwrap();
        let mut server = Some(server);
        for step in 0..STEPS {
            if step == full_from {
                small.fill();
            }
            let one = server.take().unwrap();
            let done = |args: &[&str]| {
                let output = world.run(&one, args);
                let said = message(&output);
                assert!(
                    output.status.success(),
                    "full from {full_from}, {args:?}: {said}"
                );
            };
            match step {
                0 => {
                    done(&["volume", "create", "b", "--size", "8MiB"]);
                    done(&[&["attach", "b"][..], &NBD].concat());
                    one.connect("b").write(4096, &[2; 4096]).unwrap();
                }
                1 => {
                    done(&["volume", "create", "c", "--size", "8MiB"]);
                    done(&[&["attach", "c"][..], &NBD].concat());
                    done(&["detach", "c"]);
                }
                2 => {
                    one.kill();
                    server = Some(small.serve(&["--rpo", "1h"]));
                    continue;
                }
                3 => done(&["volume", "resize", "b", "12MiB"]),
                _ => {
                    one.kill();
                    server = Some(small.serve(&["--rpo", "1h"]));
                    continue;
                }
            }
            server = Some(one);
        }
        let server = server.unwrap();
        assert_eq!(
            server.connect("a").read(0, 4096).unwrap(),
            [1; 4096],
            "{full_from}"
        );
        assert_eq!(
            server.connect("b").read(4096, 4096).unwrap(),
            [2; 4096],
            "{full_from}"
        );
        assert_eq!(world.show(&server, "c")["state"], "closed", "{full_from}");
        // Writes, flushes and uploads are as ever.
        let mut client = server.connect("b");
        client.write(0, &[3; 4096]).unwrap();
        client.flush().unwrap();
        drop(client);
        world.expect_success(&server, &["sync", "b"]);
    }
}

#[test]
fn an_upgrade_on_a_full_disk_keeps_the_size_of_the_read_cache_where_a_larger_one_is_configured() {
    let Some(small) = Small::new() else { return };
    let world = &small.world;
    let config = world.path("firn.toml");
    let configure = |size: &str| fs::write(&config, format!("cache-size = \"{size}\"\n")).unwrap();
    configure("12MiB");
    // Without direct I/O the cache has its space from the start.
    let args = ["--log-io", "buffered", "--config", config.to_str().unwrap()];
    let args = [&args[..], &["--volume", "a=8MiB"]].concat();
    drop(small.serve_cached("12MiB", &args));
    // Below the small file system: the sizes are those of its files, where the tests' own flags would name some.
    fs::write(world.path("cache/log"), "").unwrap();
    let server = small.serve_files(&args);
    world.expect_success(&server, &["config", "set", "cache-size=1MiB", "rpo=7s"]);
    let mut client = server.connect("a");
    client.write(0, &[1; 4096]).unwrap();
    small.fill();
    let bytes = || fs::metadata(small.path("cache")).unwrap().len();
    let rpo = || world.expect_success(&server, &["config", "get"]);
    for _ in 0..2 {
        world.expect_success(&server, &["upgrade"]);
        assert_eq!(client.read(0, 4096).unwrap(), [1; 4096]);
        assert_eq!(bytes(), 1 << 20);
    }
    // One that there is no room for is said, and nothing else depends on it.
    configure("14MiB");
    world.expect_success(&server, &["upgrade"]);
    eventually("a word of it", || {
        let said = world.server_log();
        said.contains("the read cache keeps the size that it has")
    });
    assert_eq!(bytes(), 1 << 20);
    assert!(rpo().contains("rpo = \"7s\""), "{}", rpo());
    client.write(0, &[2; 4096]).unwrap();
    client.flush().unwrap();
}
