//! Machines with little room and few rights: a small disk, a container, a seccomp profile without io_uring,
//! little memory for many connections.
//!
//! Servers run in namespaces of their own that their test makes; the clients are outside.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::process::{Resource, getrlimit, setrlimit};

use crate::common::{Server, World};

/// Runs "$@" where one file system of 256 MiB has both the cache directory and the store.
const SMALL_DISK: &str = r#"set -e
mount -t tmpfs -o size=256m none small
mkdir small/cache small/store
mount --bind small/cache cache
mount --bind small/store store
exec "$@""#;

/// Runs "$@" as a container engine would: uid 1000, no capabilities, a root directory that is read-only but
/// for a volume, and 64 MiB of shared memory.
const CONTAINER: &str = r#"set -e
here=$(pwd -P)
mount --bind "$here" "$here"
mount -t tmpfs -o size=64m,mode=1777 none /dev/shm
mount -o remount,bind,ro /
cd "$here"
exec setpriv --reuid=1000 --regid=1000 --clear-groups --no-new-privs --inh-caps=-all --bounding-set=-all "$@""#;

/// Runs a program under a filter that refuses io_uring's system calls, as container engines do.
const WITHOUT_IO_URING: &str = r#"
import ctypes, os, struct, sys
libc = ctypes.CDLL(None, use_errno=True)
load_number = (0x20, 0, 0, 0)
calls = (425, 426, 427)
tests = [(0x15, len(calls) - at, 0, number) for at, number in enumerate(calls)]
allow, refuse = (0x06, 0, 0, 0x7fff0000), (0x06, 0, 0, 0x00050001)
code = b"".join(struct.pack("HBBI", *one) for one in [load_number, *tests, allow, refuse])
code = ctypes.create_string_buffer(code, len(code))
program = ctypes.create_string_buffer(struct.pack("HxxxxxxP", len(code) // 8, ctypes.addressof(code)))
if libc.prctl(38, 1, 0, 0, 0) or libc.prctl(22, 2, ctypes.byref(program), 0, 0):
    sys.exit("no seccomp filter: errno %d" % ctypes.get_errno())
os.execv(sys.argv[1], sys.argv[1:])
"#;

/// Whether this test can have a mount namespace of its own; says why not.
fn may_mount() -> bool {
    let tried = Command::new("unshare")
        .args(["--mount", "sh", "-c", "mount -t tmpfs none /mnt"])
        .output();
    let may = tried.is_ok_and(|output| output.status.success());
    if !may {
        println!("skipped: no private mount here");
    }
    may
}

/// The command of a server, run by a script in a mount namespace of its own.
fn inside(script: &str, command: &Command) -> Command {
    let mut inside = Command::new("unshare");
    inside.args(["--mount", "sh", "-c", script, "sh"]);
    inside.arg(command.get_program()).args(command.get_args());
    inside.current_dir(command.get_current_dir().unwrap());
    inside.env_remove("FIRN_API");
    inside
}

/// A path as the server sees it.
fn seen_by(server: &Server, path: &Path) -> PathBuf {
    let root = PathBuf::from(format!("/proc/{}/root", server.pid()));
    root.join(path.strip_prefix("/").unwrap())
}

/// Writes, flushes, and finds all of it after kill -9.
fn completes_writes_and_survives_a_kill(server: Server, start: impl Fn() -> Server) {
    let mut client = server.connect("a");
    client.write(4096, &[7; 8192]).unwrap();
    client.flush().unwrap();
    client.write(0, &[8; 4096]).unwrap();
    drop(client);
    server.kill();
    let server = start();
    let mut client = server.connect("a");
    assert_eq!(client.read(0, 4096).unwrap(), [8; 4096]);
    assert_eq!(client.read(4096, 8192).unwrap(), [7; 8192]);
    drop(client);
    assert!(server.stop().success());
}

#[test]
fn a_first_start_needs_200_mib_for_everything() {
    if !may_mount() {
        return;
    }
    let world = World::new();
    for name in ["small", "cache", "store"] {
        fs::create_dir(world.path(name)).unwrap();
    }
    let server = world.serve_as("cache", &["--volume", "a=1GiB"], |command| {
        // As somebody who names no sizes.
        let mut args: Vec<_> = command.get_args().map(ToOwned::to_owned).collect();
        for flag in ["--log-size", "--cache-size"] {
            let at = args.iter().position(|arg| arg == flag).unwrap();
            args.drain(at..at + 2);
        }
        let mut plain = Command::new(command.get_program());
        plain
            .args(args)
            .current_dir(command.get_current_dir().unwrap());
        *command = inside(SMALL_DISK, &plain);
    });
    let mut client = server.connect("a");
    // More than the log holds: what is stored makes room.
    for mib in 0..48_u64 {
        client
            .write(mib << 20, &vec![mib as u8 + 1; 1 << 20])
            .unwrap();
    }
    client.flush().unwrap();
    drop(client);
    world.expect_success(&server, &["sync", "a"]);
    let mut client = server.connect("a");
    for mib in 0..48_u64 {
        assert_eq!(client.read(mib << 20, 4096).unwrap(), [mib as u8 + 1; 4096]);
    }
    let disk = rustix::fs::statvfs(seen_by(&server, &world.path("small"))).unwrap();
    let used_mib = ((disk.f_blocks - disk.f_bfree) * disk.f_frsize) >> 20;
    assert!(used_mib <= 200, "{used_mib} MiB are taken");
}

#[test]
fn a_container_without_rights_serves_nbd_and_finds_what_was_synced_after_a_stop() {
    if !may_mount() {
        return;
    }
    let world = World::new();
    // The tree of the sources may be closed to uid 1000.
    let program = world.path("firn");
    fs::copy(env!("CARGO_BIN_EXE_firn"), &program).unwrap();
    let mut chown = Command::new("chown");
    chown.args(["-R", "1000:1000"]).arg(world.dir.path());
    assert!(chown.status().unwrap().success());
    let start = || {
        world.serve_as(
            "cache",
            &["--volume", "a=64MiB", "--ring-dir", "/dev/shm"],
            |command| {
                let mut own = Command::new(&program);
                own.args(command.get_args()).current_dir(world.dir.path());
                *command = inside(CONTAINER, &own);
            },
        )
    };
    let server = start();
    let status = fs::read_to_string(format!("/proc/{}/status", server.pid())).unwrap();
    assert!(status.contains("Uid:\t1000\t"), "{status}");
    assert!(status.contains("CapBnd:\t0000000000000000"), "{status}");
    let mut client = server.connect("a");
    client.write(0, &[9; 4096]).unwrap();
    client.flush().unwrap();
    drop(client);
    world.expect_success(&server, &["sync", "a"]);
    assert!(server.stop().success());
    // Its shared memory went with it, as a container's does: what was stored is there.
    let server = start();
    assert_eq!(server.connect("a").read(0, 4096).unwrap(), [9; 4096]);
}

#[test]
fn where_a_seccomp_filter_refuses_io_uring_epoll_serves() {
    let world = World::new();
    let start = || {
        world.serve_as("cache", &["--volume", "a=64MiB"], |command| {
            let mut filtered = Command::new("/usr/bin/python3");
            filtered.args(["-c", WITHOUT_IO_URING]);
            filtered.arg(command.get_program()).args(command.get_args());
            filtered
                .current_dir(world.dir.path())
                .env_remove("FIRN_API");
            *command = filtered;
        })
    };
    if !Path::new("/usr/bin/python3").exists() {
        println!("skipped: python3 is not installed");
        return;
    }
    let server = start();
    assert!(
        server.announcement.contains("epoll"),
        "{}",
        server.announcement
    );
    completes_writes_and_survives_a_kill(server, start);
}

/// Connections that a client may leave open, and what they may cost together.
const IDLE_CONNECTIONS: usize = 1000;
const IDLE_BYTES_MAX: u64 = 20 << 20;

#[test]
fn a_thousand_idle_connections_cost_less_than_20_mib() {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    setrlimit(Resource::Nofile, limit).unwrap();
    let world = World::new();
    let server = world.serve("cache", &["--volume", "a=64MiB"]);
    let resident = || {
        let status = fs::read_to_string(format!("/proc/{}/status", server.pid())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let kib = line.unwrap().split_whitespace().next().unwrap();
        kib.parse::<u64>().unwrap() << 10
    };
    // What the first one costs, others share: buffers, the engine's maps, the allocator's own.
    let mut first = server.connect("a");
    for block in 0..64 {
        first.write(block * 4096, &[1; 4096]).unwrap();
    }
    first.flush().unwrap();
    let before = resident();
    let connect = || -> Vec<_> {
        let connect = |_| {
            let mut client = server.connect("a");
            // Each was in use before it idles. Bursts of writes would leave more of its buffer in memory.
            assert_eq!(client.read(0, 4096).unwrap(), [1; 4096]);
            client
        };
        (0..IDLE_CONNECTIONS).map(connect).collect()
    };
    // Memory that others had is zeroed when it is given again, and counts from then on, used or not.
    drop(connect());
    let connections = connect();
    let grown = resident().saturating_sub(before);
    println!(
        "{} KiB for {IDLE_CONNECTIONS} idle connections",
        grown >> 10
    );
    assert!(
        grown < IDLE_BYTES_MAX,
        "{} KiB for each of {} connections",
        (grown >> 10) / IDLE_CONNECTIONS as u64,
        connections.len()
    );
}
