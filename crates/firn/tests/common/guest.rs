//! A guest with ublk: disks of volumes, file systems on them, and tools with a limit.
//!
//! Only for test programs that run as root in a guest, with `FIRN_VM_SCRATCH` naming a directory
//! on a disk of the guest's own; elsewhere [`Guest::new`] says why not. What a test makes here
//! ends with it, also on panic.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::{FileExt, FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::fs::{FallocateFlags, OFlags, fallocate};
use serde_json::Value;

use super::{Server, World, eventually, message};

/// What makes a log of tiny segments, so that seals and reclaims never pause, and a cache in which
/// nothing stays for long.
pub const TINY: [&str; 8] = [
    "--log-size",
    "4MiB",
    "--segment-size",
    "32KiB",
    "--cache-size",
    "512KiB",
    "--rpo",
    "100ms",
];

/// One test at a time: the kernel's devices are everybody's.
static ALONE: Mutex<()> = Mutex::new(());

/// A guest with a world in it.
pub struct Guest {
    pub world: World,
    /// What the kernel's driver offers.
    pub features: Vec<String>,
    _alone: MutexGuard<'static, ()>,
}

impl Guest {
    /// `None` where this is no guest with ublk.
    pub fn new() -> Option<Guest> {
        if !Path::new("/dev/ublk-control").exists() {
            println!("skipped: no /dev/ublk-control");
            return None;
        }
        let Some(scratch) = std::env::var_os("FIRN_VM_SCRATCH") else {
            println!("skipped: no FIRN_VM_SCRATCH; disks of this machine are left alone");
            return None;
        };
        let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        run_tool("ip", &["link", "set", "lo", "up"]);
        let world = World::in_dir(Path::new(&scratch));
        let found = world.firn(&["--json", "doctor"]);
        let found: Value = serde_json::from_slice(&found.stdout).unwrap();
        let findings = found["findings"].as_array().unwrap().iter();
        let ublk = findings.clone().find(|one| one["what"] == "ublk").unwrap();
        let text = ublk["found"].as_str().unwrap();
        let features = text
            .split("features: ")
            .nth(1)
            .unwrap_or_else(|| panic!("{text}"));
        Some(Guest {
            features: features.split(", ").map(str::to_owned).collect(),
            world,
            _alone: alone,
        })
    }

    pub fn has(&self, feature: &str) -> bool {
        self.features.iter().any(|one| one == feature)
    }

    /// The data modes that a volume is tested in here.
    pub fn modes(&self) -> Vec<&'static str> {
        if self.has("auto-buffer") {
            vec!["zero-copy", "user-copy"]
        } else {
            vec!["user-copy"]
        }
    }

    /// Every data mode that this kernel has.
    pub fn all_modes(&self) -> Vec<&'static str> {
        let modes = [
            ("zero-copy", self.has("auto-buffer")),
            ("user-copy", self.has("user-copy")),
            ("get-data", self.has("get-data")),
            ("copy", true),
        ];
        let offered = modes.into_iter().filter(|(_, offered)| *offered);
        offered.map(|(mode, _)| mode).collect()
    }

    /// Asserts that a disk's requests were truly served in this data mode, all by this server
    /// (R9): the kernel's word for what was granted, and the count of what was done.
    pub fn served_in(&self, server: &Server, volume: &str, mode: &str) {
        let disk = &self.world.show(server, volume)["disk"];
        assert_eq!(disk["data_mode"], mode, "{disk}");
        let count = |what: &str| disk["requests"][what].as_u64().unwrap();
        assert_eq!(count("faults"), 0, "{disk}");
        assert!(count("taken") > 0, "{disk}");
        match mode {
            "zero-copy" => assert!(count("uncopied") > 0, "{disk}"),
            _ => assert!(count("uncopied") == 0 && count("copied") > 0, "{disk}"),
        }
    }

    /// A disk that was served in this mode came back in it.
    pub fn served_again(&self, server: &Server, volume: &str, mode: &str) {
        let disk = &self.world.show(server, volume)["disk"];
        assert_eq!(disk["data_mode"], mode, "{disk}");
    }

    pub fn serve(&self, args: &[&str]) -> Server {
        self.world.serve("cache", args)
    }

    /// Attaches a volume as a disk; its path, which is that of a block device.
    pub fn attach(&self, server: &Server, volume: &str, args: &[&str]) -> PathBuf {
        let attach = ["attach", volume, "--transport", "ublk"];
        let path = self
            .world
            .expect_success(server, &[&attach[..], args].concat());
        let path = PathBuf::from(path.trim());
        let kind = fs::metadata(&path).unwrap().file_type();
        assert!(kind.is_block_device(), "{}", path.display());
        path
    }

    /// The same in a data mode, which is then the one that serves (R9).
    pub fn attach_in(&self, server: &Server, volume: &str, mode: &str) -> PathBuf {
        let path = self.attach(server, volume, &["--data-mode", mode]);
        let disk = &self.world.show(server, volume)["disk"];
        assert_eq!(disk["data_mode"], mode, "{disk}");
        assert_eq!(disk["device"], path.to_str().unwrap());
        path
    }

    pub fn detach(&self, server: &Server, volume: &str) {
        eventually("the detach", || {
            // udev or a probe of the kernel's may have it open for a moment.
            let output = self.world.run(server, &["detach", volume]);
            let said = message(&output);
            assert!(
                output.status.success() || said.contains("in use") || said.contains("open"),
                "{said}"
            );
            output.status.success()
        });
    }

    /// The end in good order of a disk, of its volume and of its server.
    pub fn end(&self, server: Server, volume: &str) {
        self.detach(&server, volume);
        self.world
            .expect_success(&server, &["volume", "delete", volume]);
        assert!(server.stop().success());
    }

    pub fn devices(&self) -> Vec<String> {
        let entries = fs::read_dir("/dev").unwrap().flatten();
        let names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
        let mut names: Vec<String> = names.filter(|name| name.starts_with("ublkb")).collect();
        names.sort();
        names
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        // What a failed test left attached goes with the last of its servers.
        if std::thread::panicking() && self.world.path("cache").exists() {
            for device in self.devices() {
                println!("left behind: {device}");
            }
        }
    }
}

/// Runs a tool with a limit, so that a stuck disk fails the test instead of hanging it.
pub fn tool(program: &str, args: &[&str]) -> Output {
    Command::new("timeout")
        .args(["-k", "5", "120", program])
        .args(args)
        .output()
        .unwrap()
}

pub fn run_tool(program: &str, args: &[&str]) -> String {
    let output = tool(program, args);
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(
        output.status.success(),
        "{program} {args:?}: {:?} {said}{}",
        output.status,
        message(&output)
    );
    said
}

pub fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// A mounted file system; unmounted when dropped, by force if need be.
pub struct Mounted(pub PathBuf);

impl Mounted {
    pub fn new(world: &World, disk: &Path, kind: &str) -> Mounted {
        Mounted::at(&world.path("mnt"), disk, kind, "defaults")
    }

    /// The same at a place of its own, with options.
    pub fn at(at: &Path, disk: &Path, kind: &str, options: &str) -> Mounted {
        fs::create_dir_all(at).unwrap();
        run_tool("mount", &["-t", kind, "-o", options, text(disk), text(at)]);
        Mounted(at.to_owned())
    }

    /// The files are there that [`keep_writing`] has synced.
    pub fn has_all_of(&self, promised: &Mutex<BTreeMap<u64, usize>>) {
        for &name in promised.lock().unwrap().keys() {
            let found = fs::read(self.0.join(name.to_string())).unwrap();
            assert!(found == content(name), "file {name} was synced");
        }
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        if !tool("umount", &[text(&self.0)]).status.success() {
            tool("umount", &["-l", text(&self.0)]);
        }
    }
}

pub fn content(name: u64) -> Vec<u8> {
    let len = 1 + (name * 7919 % 60_000) as usize;
    (0..len)
        .map(|at| (at as u64 ^ name.wrapping_mul(2_654_435_761)) as u8)
        .collect()
}

/// Makes files until told to stop; every error is one too many.
pub fn keep_writing(
    dir: &Path,
    next: &AtomicU64,
    promised: &Mutex<BTreeMap<u64, usize>>,
    stop: &AtomicBool,
) {
    while !stop.load(Ordering::Relaxed) {
        let name = next.fetch_add(1, Ordering::SeqCst);
        let bytes = content(name);
        let made = File::create(dir.join(name.to_string())).and_then(|mut file| {
            file.write_all(&bytes)?;
            file.sync_all()
        });
        made.unwrap_or_else(|error| panic!("file {name}: the client saw an error: {error}"));
        promised.lock().unwrap().insert(name, bytes.len());
    }
}

/// Tells threads of a test to stop when it ends, however it does.
pub struct Stops<'a>(pub &'a AtomicBool);

impl Drop for Stops<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// A disk without the page cache: what is completed here, its server has completed.
pub struct Direct(File);

impl Direct {
    pub fn open(disk: &Path) -> Direct {
        Direct::with(disk, OFlags::empty())
    }

    /// Every write asks to be durable when it completes.
    pub fn durable(disk: &Path) -> Direct {
        Direct::with(disk, OFlags::DSYNC)
    }

    fn with(disk: &Path, more: OFlags) -> Direct {
        let flags = (OFlags::DIRECT | more).bits().cast_signed();
        let mut options = File::options();
        options.read(true).write(true).custom_flags(flags);
        Direct(options.open(disk).unwrap())
    }

    pub fn read(&self, at: u64, bytes: usize) -> io::Result<Vec<u8>> {
        let (mut memory, start) = aligned(bytes);
        self.0
            .read_exact_at(&mut memory[start..start + bytes], at)?;
        memory.drain(..start);
        memory.truncate(bytes);
        Ok(memory)
    }

    pub fn write(&self, at: u64, bytes: &[u8]) -> io::Result<()> {
        let (mut memory, start) = aligned(bytes.len());
        let memory = &mut memory[start..start + bytes.len()];
        memory.copy_from_slice(bytes);
        self.0.write_all_at(memory, at)
    }

    /// Has the disk zero a range (WRITE_ZEROES).
    pub fn zero(&self, at: u64, bytes: u64) -> io::Result<()> {
        Ok(fallocate(&self.0, FallocateFlags::ZERO_RANGE, at, bytes)?)
    }

    pub fn flush(&self) -> io::Result<()> {
        self.0.sync_data()
    }
}

/// Memory with `bytes` from an index on that direct I/O takes.
fn aligned(bytes: usize) -> (Vec<u8>, usize) {
    let memory = vec![0; bytes + 4096];
    let start = memory.as_ptr().align_offset(4096);
    (memory, start)
}

/// How much of a test is run: a number from the environment, or the usual one, and a 32nd of that
/// under emulation, where a round takes that much longer. What a round checks is the same.
pub fn rounds(variable: &str, default: u64) -> u64 {
    match std::env::var(variable) {
        Ok(told) => told.parse().unwrap(),
        Err(_) if is_emulated() => (default / 32).max(2),
        Err(_) => default,
    }
}

/// Whether QEMU plays this machine's processor, instruction by instruction.
fn is_emulated() -> bool {
    let cpus = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    cpus.contains("QEMU TCG")
}

/// The sum of a counter's samples whose labels contain `label`, from `/metrics`.
pub fn metric(server: &Server, name: &str, label: &str) -> f64 {
    let text = server.get("/metrics").1;
    let samples = text.lines().filter(|line| line.starts_with(name));
    let found: Vec<f64> = samples
        .filter(|line| line.contains(label))
        .map(|line| line.rsplit(' ').next().unwrap().parse().unwrap())
        .collect();
    assert!(!found.is_empty(), "no {name} with {label} in {text}");
    found.iter().sum()
}

/// Where the kernel says how many requests a disk has in flight.
pub fn inflight(disk: &Path) -> PathBuf {
    Path::new("/sys/block")
        .join(disk.file_name().unwrap())
        .join("inflight")
}
