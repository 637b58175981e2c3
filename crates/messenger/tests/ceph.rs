//! The messenger against a real Ceph: one monitor and one OSD on loopback, from Debian's packages,
//! started and stopped by `xtask/ceph-mini.sh`.
//!
//! It needs root, and installs the packages when they are not there. Without root it says so and
//! is skipped; in CI, which has root, a skip is a failure.
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "tests use sockets, threads and clocks"
)]
#![allow(clippy::unwrap_used, reason = "a failed step fails the test")]

#[path = "../examples/ceph_client/map.rs"]
mod map;
#[path = "../examples/ceph_client/rados.rs"]
mod rados;
mod support;

use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Duration;

use messenger::{CloseReason, Fault, Target};
use rados::Rados;
use support::Recorder;

const PATIENCE: Duration = Duration::from_secs(60);

fn script() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../xtask/ceph-mini.sh")
}

/// Runs a command to its end; its output, if it went well.
#[track_caller]
fn run(command: &mut Command) -> Output {
    let out = command.output().unwrap();
    let text = String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success(), "{command:?}: {}\n{text}", out.status);
    out
}

/// A cluster that ends with the test, also when it panics.
struct Cluster {
    dir: PathBuf,
    mon: SocketAddr,
}

impl Cluster {
    fn start() -> Self {
        let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join("ceph-mini");
        if dir.exists() {
            // A run that was killed: its daemons are ended by their recorded numbers.
            run(Command::new(script()).arg("stop").arg(&dir));
            std::fs::remove_dir_all(&dir).unwrap();
        }
        let port = free_port();
        let cluster = Self {
            dir,
            mon: SocketAddr::from(([127, 0, 0, 1], port)),
        };
        run(Command::new(script())
            .arg("start")
            .arg(&cluster.dir)
            .arg(port.to_string()));
        cluster
    }

    #[track_caller]
    fn daemon(&self, action: &str, name: &str) {
        run(Command::new(script()).arg(action).arg(&self.dir).arg(name));
    }

    fn conf(&self) -> PathBuf {
        self.dir.join("ceph.conf")
    }

    fn rados(&self) -> Command {
        let mut command = Command::new("timeout");
        command
            .args(["60", "rados", "-p", "data", "-c"])
            .arg(self.conf());
        command
    }

    /// What Ceph's own client reads.
    fn get(&self, object: &str) -> Vec<u8> {
        let file = self.dir.join("got");
        run(self.rados().arg("get").arg(object).arg(&file));
        std::fs::read(file).unwrap()
    }

    fn put(&self, object: &str, bytes: &[u8]) {
        let file = self.dir.join("put");
        std::fs::write(&file, bytes).unwrap();
        run(self.rados().arg("put").arg(object).arg(&file));
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        let stopped = Command::new(script()).arg("stop").arg(&self.dir).status();
        if stopped.is_ok_and(|s| s.success()) {
            let _ = std::fs::remove_dir_all(&self.dir);
        }
    }
}

/// A monitor port whose neighbours, which the OSD takes from, are likely free, too.
fn free_port() -> u16 {
    let first = 13_000 + u16::try_from(std::process::id() % 40).unwrap() * 300;
    (first..first + 100)
        .find(|port| TcpListener::bind(("127.0.0.1", *port)).is_ok())
        .expect("one of a hundred ports is free")
}

/// Whether the test can run; in CI it must.
fn can_run() -> bool {
    let lacking = find_missing_tool();
    if let Some(why) = &lacking {
        let ci = std::env::var_os("CI").is_some_and(|v| v == "true");
        assert!(!ci, "CI provides all of this: {why}");
        println!("skipped: {why}");
    }
    lacking.is_none()
}

fn find_missing_tool() -> Option<String> {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let uid = status.lines().find(|l| l.starts_with("Uid:")).unwrap();
    if uid.split_whitespace().nth(2) != Some("0") {
        return Some("a Ceph cluster needs root".to_owned());
    }
    let installed = || {
        ["ceph-mon", "ceph-osd", "rados", "monmaptool"]
            .iter()
            .all(|tool| Path::new("/usr/bin").join(tool).exists())
    };
    if installed() {
        return None;
    }
    let _ = Command::new("apt-get").arg("update").output();
    match Command::new(script()).arg("install").output() {
        Ok(_) if installed() => None,
        Ok(out) => Some(format!(
            "installing Ceph's packages failed: {}",
            String::from_utf8_lossy(&out.stderr)
                .lines()
                .last()
                .unwrap_or("apt-get said nothing")
        )),
        Err(e) => Some(format!("installing Ceph's packages: {e}")),
    }
}

fn ramp(n: usize, seed: u32) -> Vec<u8> {
    (0..n)
        .map(|i| {
            let i = u32::try_from(i).unwrap();
            (i.wrapping_mul(2_654_435_761) ^ seed).to_be_bytes()[0]
        })
        .collect()
}

#[test]
fn a_real_ceph_agrees_byte_for_byte_and_survives_its_osd_being_killed() {
    if !can_run() {
        return;
    }
    let cluster = Cluster::start();
    let mut rados = Rados::connect(cluster.mon, PATIENCE).unwrap();
    the_monitor_map_is_the_clusters(&cluster, &rados);
    rados.keepalive(PATIENCE).unwrap();
    objects_agree_with_rados(&cluster, &mut rados);
    placement_agrees(&cluster, &rados);
    a_lossless_session_is_not_granted(&cluster);
    the_osd_is_killed_and_comes_back(&cluster, &mut rados);
}

fn the_monitor_map_is_the_clusters(cluster: &Cluster, rados: &Rados) {
    let conf = std::fs::read_to_string(cluster.conf()).unwrap();
    let fsid = conf
        .lines()
        .find_map(|l| l.strip_prefix("fsid = "))
        .unwrap();
    let file = cluster.dir.join("received-monmap");
    std::fs::write(&file, &rados.mon_map).unwrap();
    let out = run(Command::new("monmaptool").arg("--print").arg(&file));
    let text = String::from_utf8(out.stdout).unwrap();
    assert!(
        text.contains(fsid) && text.contains(&cluster.mon.to_string()),
        "{text}"
    );
    assert!(rados.global_id > 0);
}

fn objects_agree_with_rados(cluster: &Cluster, rados: &mut Rados) {
    for (i, size) in [0, 1, 4096, 100_000, 4 << 20].into_iter().enumerate() {
        let ours = ramp(size, 1);
        let name = format!("ours-{i}");
        rados.write_full("data", &name, &ours, PATIENCE).unwrap();
        assert_eq!(
            cluster.get(&name),
            ours,
            "{size} bytes, written here, read by Ceph's client"
        );
        assert_eq!(rados.stat("data", &name, PATIENCE).unwrap(), size as u64);
        let theirs = ramp(size, 2);
        let name = format!("theirs-{i}");
        cluster.put(&name, &theirs);
        let read = rados.read("data", &name, PATIENCE).unwrap();
        assert_eq!(
            read, theirs,
            "{size} bytes, written by Ceph's client, read here"
        );
    }
    let missing = rados.stat("data", "never-written", PATIENCE).unwrap_err();
    assert!(
        matches!(missing, rados::Error::Refused("stat", -2)),
        "{missing}"
    );
}

fn placement_agrees(cluster: &Cluster, rados: &Rados) {
    let pool = &rados.map().pools["data"];
    assert_eq!(pool.size, 1);
    for name in [
        "a",
        "twelve-bytes",
        "thirteen-byte",
        "a-rather-longer-object-name-than-others",
    ] {
        let group = map::placement_group(map::name_hash(name.as_bytes()), pool.pg_num);
        let mut command = Command::new("ceph");
        let out = run(command
            .arg("-c")
            .arg(cluster.conf())
            .args(["osd", "map", "data", name]));
        let text = String::from_utf8(out.stdout).unwrap();
        let ours = format!("({}.{group:x})", pool.id);
        assert!(text.contains(&ours), "{name}: {ours} here, {text}");
    }
}

/// Ceph grants clients lossy sessions only. Asking for more is answered, and is an error here: what
/// was asked for and what was granted are compared.
fn a_lossless_session_is_not_granted(cluster: &Cluster) {
    let config = messenger::Config {
        features: rados::FEATURES,
        ..support::config()
    };
    let messenger = support::start("admin", config);
    let recorder = Recorder::new();
    messenger
        .open(Target::lossless(cluster.mon), recorder.clone())
        .unwrap();
    assert_eq!(
        recorder.wait_closed().0,
        CloseReason::Fault(Fault::LossyGranted)
    );
}

fn the_osd_is_killed_and_comes_back(cluster: &Cluster, rados: &mut Rados) {
    let (before, during) = (ramp(50_000, 3), ramp(60_000, 4));
    rados
        .write_full("data", "before", &before, PATIENCE)
        .unwrap();
    let sessions = rados.osd_sessions;
    cluster.daemon("kill", "osd.0");
    std::thread::scope(|scope| {
        let write = scope.spawn(|| rados.write_full("data", "during", &during, PATIENCE));
        std::thread::sleep(Duration::from_secs(1));
        assert!(!write.is_finished(), "there is no OSD to write to");
        cluster.daemon("revive", "osd.0");
        write.join().unwrap().unwrap();
    });
    assert!(
        rados.osd_sessions > sessions,
        "the OSD's new life needs a session of its own"
    );
    assert_eq!(rados.read("data", "before", PATIENCE).unwrap(), before);
    assert_eq!(
        (cluster.get("before"), cluster.get("during")),
        (before, during)
    );
    rados.keepalive(PATIENCE).unwrap();
}
