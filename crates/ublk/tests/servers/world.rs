//! Servers as processes, their devices, and clients: what a row of the table is made of.
//!
//! Whatever a test starts ends with it, also when it panics: processes are killed, mounts undone,
//! devices deleted. Waiting is for a condition, with a deadline.

use std::fs::File;
use std::io::Write;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use super::driver;
use super::figures::Figures;
use ublk::sys;

/// No step takes longer on a healthy guest, however slow the emulator and however busy its host.
pub const DEADLINE: Duration = Duration::from_secs(240);

/// How much of the table runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Table {
    /// The least that shows the lane to work.
    Smoke,
    /// What CI runs.
    Fast,
    /// Everything.
    All,
}

/// The part of the table that was requested.
pub fn requested_table() -> Table {
    match std::env::var("FIRN_UBLK_TABLE").as_deref() {
        Ok("smoke") => Table::Smoke,
        Ok("all") => Table::All,
        _ => Table::Fast,
    }
}

/// Whether rows of this size run here; prints why not.
pub fn is_requested(table: Table) -> bool {
    if !Path::new(sys::CONTROL_PATH).exists() {
        println!("skipped: no {}", sys::CONTROL_PATH);
        return false;
    }
    let requested = requested_table();
    if table > requested {
        println!("skipped: only in the whole table");
    }
    table <= requested
}

/// Whether the kernel has these features; says so where it does not.
pub fn kernel_has(features: u64, what: &str) -> bool {
    let has = driver::features() & features == features;
    if !has {
        println!("skipped: this kernel lacks {what}");
    }
    has
}

/// The data modes that this kernel grants, the dearest last.
pub fn modes() -> Vec<&'static str> {
    let features = driver::features();
    [
        ("zero-copy", sys::F_ZERO_COPY | sys::F_AUTO_BUFFER),
        ("user-copy", sys::F_USER_COPY),
        ("get-data", sys::F_NEED_GET_DATA),
        ("copy", 0),
    ]
    .into_iter()
    .filter(|(_, needed)| features & needed == *needed)
    .map(|(name, _)| name)
    .collect()
}

/// The data modes in which rows of this size run here: none where they do not run.
pub fn requested_modes(table: Table) -> Vec<&'static str> {
    if is_requested(table) {
        modes()
    } else {
        Vec::new()
    }
}

/// Waits for a condition.
pub fn wait_until(what: &str, within: Duration, mut condition: impl FnMut() -> bool) {
    let end = Instant::now() + within;
    while !condition() {
        assert!(
            Instant::now() < end,
            "waited {within:?} in vain until {what}"
        );
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// A directory on the guest's own disk.
pub struct Scratch(tempfile::TempDir);

impl Scratch {
    pub fn new() -> Scratch {
        let disk = std::env::var_os("FIRN_VM_SCRATCH").expect("a scratch disk");
        Scratch(tempfile::tempdir_in(disk).expect("a directory"))
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// A file of this many MiB of zeroes, allocated.
    pub fn file(&self, name: &str, mib: u64) -> PathBuf {
        let path = self.path(name);
        let file = File::create(&path).expect("a file");
        rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, mib << 20)
            .expect("space on the scratch disk");
        path
    }
}

/// What a server is started with.
#[derive(Clone, Debug)]
pub struct ServerOptions<'a> {
    /// Which example.
    pub program: &'a str,
    pub id: u32,
    pub devices: u32,
    pub queues: u16,
    pub depth: u16,
    pub mode: &'a str,
    /// `none`, `plain` (what was under way fails) or `reissue`.
    pub recovery: &'a str,
    pub files: Vec<PathBuf>,
    /// Further arguments.
    pub extra_args: Vec<String>,
    /// Environment.
    pub variables: Vec<(&'a str, &'a str)>,
}

impl Default for ServerOptions<'_> {
    fn default() -> Self {
        ServerOptions {
            program: "null",
            id: 0,
            devices: 1,
            queues: 1,
            depth: 32,
            mode: "auto",
            recovery: "none",
            files: Vec::new(),
            extra_args: Vec::new(),
            variables: Vec::new(),
        }
    }
}

/// A running server; killed when dropped, and its devices deleted.
pub struct Server {
    child: Child,
    log: tempfile::NamedTempFile,
    ids: Vec<u32>,
    /// Each device's data mode by the driver's word, once all of them are live.
    served: Vec<(u32, &'static str)>,
    expected: Expected,
    /// Requests for its figures so far.
    requested: u64,
    /// Dropping leaves the devices to a successor.
    leaves_devices: bool,
}

/// What a server's figures are compared with.
#[derive(Clone, Debug)]
struct Expected {
    /// The data mode that was asked for, or `auto`.
    mode: String,
    /// Whether it moves bytes at all.
    moves: bool,
    /// Whether it has fewer slots than tags.
    shared: bool,
}

impl ServerOptions<'_> {
    /// Starts the server without waiting for anything.
    pub fn spawn(&self) -> Server {
        let here = std::env::current_exe().expect("this program has a path");
        let programs = here
            .parent()
            .and_then(Path::parent)
            .expect("target/PROFILE/deps");
        let log = tempfile::NamedTempFile::new().expect("a file for what the server says");
        let mut command = Command::new(programs.join("examples").join(self.program));
        command.args(["--id", &self.id.to_string(), "--mode", self.mode]);
        command.args(["--queues", &self.queues.to_string()]);
        command.args(["--depth", &self.depth.to_string()]);
        command.args(["--recovery", self.recovery]);
        if self.program == "null" {
            command.args(["--devices", &self.devices.to_string()]);
        }
        command.args(&self.extra_args).args(&self.files);
        command.envs(self.variables.iter().copied());
        // It serves until its input ends, which it does with this process at the latest.
        command.stdin(Stdio::piped());
        // One open file for both, or they would write over each other.
        let output = log.reopen().expect("the file is there");
        command.stdout(output.try_clone().expect("a descriptor"));
        command.stderr(output);
        let child = command
            .spawn()
            .unwrap_or_else(|error| panic!("{}: {error}", self.program));
        let ids = (self.id..self.id + self.devices).collect();
        Server {
            child,
            log,
            ids,
            served: Vec::new(),
            expected: Expected {
                mode: self.mode.to_owned(),
                moves: self.program != "null",
                shared: self.extra_args.iter().any(|word| word == "--slots"),
            },
            requested: 0,
            leaves_devices: false,
        }
    }

    /// Starts the server and waits until all its devices are live.
    pub fn start(&self) -> Server {
        let mut server = self.spawn();
        server.wait_until_live();
        server
    }
}

impl Server {
    /// What it has written so far.
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.log.path()).unwrap_or_default()
    }

    /// Waits until all devices are live under this very process and can be opened.
    pub fn wait_until_live(&mut self) {
        if let Err(status) = self.try_wait_until_live() {
            panic!("the server ended with {status}:\n{}", self.log());
        }
    }

    /// The same, or how the server ended instead.
    pub fn try_wait_until_live(&mut self) -> Result<(), ExitStatus> {
        for id in self.ids.clone() {
            let end = Instant::now() + DEADLINE;
            while !(state(id) == Some(sys::STATE_LIVE) && self.serves(id) && is_block(&block(id))) {
                if let Some(status) = self.child.try_wait().expect("a child") {
                    return Err(status);
                }
                assert!(
                    Instant::now() < end,
                    "device {id} is not served:\n{}",
                    self.log()
                );
                std::thread::sleep(Duration::from_millis(20));
            }
        }
        let modes = self.ids.iter().map(|id| (*id, driver::mode(*id)));
        self.served = modes.collect();
        for (id, mode) in &self.served {
            let requested = &self.expected.mode;
            let forced = requested != "auto";
            assert!(
                !forced || requested == mode,
                "device {id} is in mode {mode}"
            );
            assert_eq!(self.mode(*id), *mode, "what the server says of device {id}");
        }
        Ok(())
    }

    /// What its queues did so far; it is asked, where it still can be.
    pub fn figures(&mut self) -> Figures {
        self.requested += 1;
        let requested = self.child.stdin.as_mut().expect("a pipe").write_all(b"\n");
        let (mark, end) = (
            format!("figures said {}", self.requested),
            Instant::now() + DEADLINE,
        );
        while requested.is_ok() && !self.log().lines().any(|line| line == mark) {
            if self.child.try_wait().expect("a child").is_some() || Instant::now() > end {
                break;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        Figures::read(&self.log())
    }

    /// Whether every device was served in the mode that it has; to be asked before the end.
    fn judge(&mut self, figures: &Figures) -> Result<(), String> {
        let Expected { moves, shared, .. } = self.expected;
        // Once is enough.
        for (id, mode) in std::mem::take(&mut self.served) {
            figures
                .check_mode(id, mode, (moves, shared))
                .map_err(|wrong| format!("{wrong}\n{}", self.log()))?;
        }
        Ok(())
    }

    /// Judges it by its present figures.
    fn check_mode(&mut self) -> Result<(), String> {
        if self.served.is_empty() {
            return Ok(());
        }
        let figures = self.figures();
        self.judge(&figures)
    }

    /// Whether it has announced a disk: a predecessor's device is live for a while, too.
    fn serves(&self, id: u32) -> bool {
        let path = block(id);
        self.log().lines().any(|line| Path::new(line) == path)
    }

    /// The data mode that it says was granted for a device.
    pub fn mode(&self, id: u32) -> String {
        let log = self.log();
        let start = format!("device {id}: ");
        let modes = ["zero-copy", "user-copy", "get-data", "copy"];
        let mode = log.lines().find_map(|line| {
            let word = line.strip_prefix(&start)?.split(',').next()?;
            modes.into_iter().find(|mode| *mode == word)
        });
        mode.unwrap_or_else(|| panic!("no mode was announced:\n{log}"))
            .to_owned()
    }

    /// Its process's number.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The block device with this number in the row of devices.
    pub fn block(&self, index: usize) -> PathBuf {
        block(self.ids[index])
    }

    /// All block devices.
    pub fn blocks(&self) -> Vec<PathBuf> {
        self.ids.iter().map(|id| block(*id)).collect()
    }

    /// Sends a signal and does not wait.
    pub fn signal(&self, signal: rustix::process::Signal) {
        let pid = rustix::process::Pid::from_child(&self.child);
        // It may have ended by itself, which its status shows.
        let _ = rustix::process::kill_process(pid, signal);
    }

    /// kill -9; the devices are left as they are.
    pub fn kill(mut self) {
        self.leaves_devices = true;
        let checked = self.check_mode();
        self.signal(rustix::process::Signal::KILL);
        self.child.wait().expect("a child");
        checked.unwrap_or_else(|wrong| panic!("{wrong}"));
    }

    /// Leaves its devices to a successor: they are not deleted with it.
    pub fn leaving_devices(mut self) -> Server {
        self.leaves_devices = true;
        self
    }

    /// Sends SIGTERM and waits for the exit.
    pub fn terminate(mut self) -> (ExitStatus, String) {
        self.leaves_devices = true;
        self.signal(rustix::process::Signal::TERM);
        let (status, log) = (self.wait_for_exit(), self.log());
        if status.success() {
            let checked = self.judge(&Figures::read(&log));
            checked.unwrap_or_else(|wrong| panic!("{wrong}"));
        }
        (status, log)
    }

    /// The same; it must succeed, and its devices are deleted. Returns its log.
    pub fn exits_cleanly(self) -> String {
        let ids = self.ids.clone();
        let (status, log) = self.terminate();
        assert!(status.success(), "{log}");
        delete(ids);
        log
    }

    /// Waits until it exits by itself.
    pub fn wait_for_exit(&mut self) -> ExitStatus {
        let end = Instant::now() + DEADLINE;
        loop {
            if let Some(status) = self.child.try_wait().expect("a child") {
                return status;
            }
            assert!(
                Instant::now() < end,
                "the server does not end:\n{}",
                self.log()
            );
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Said only when everything is taken away, and not over what went wrong before.
        let checked = match std::thread::panicking() {
            true => Ok(()),
            false => self.check_mode(),
        };
        self.signal(rustix::process::Signal::KILL);
        // Nothing is left to do where that fails.
        let _ = self.child.wait();
        if std::thread::panicking() {
            eprintln!("the server said:\n{}", self.log());
        }
        if !self.leaves_devices || std::thread::panicking() {
            self.ids.iter().for_each(|id| driver::delete(*id));
        }
        checked.unwrap_or_else(|wrong| panic!("{wrong}"));
    }
}

/// A device's block device.
pub fn block(id: u32) -> PathBuf {
    PathBuf::from(format!("/dev/ublkb{id}"))
}

/// Whether a path is a block device: fio would quietly make a file where none is.
pub fn is_block(path: &Path) -> bool {
    std::fs::metadata(path).is_ok_and(|meta| meta.file_type().is_block_device())
}

/// A device's state, if it is there.
pub fn state(id: u32) -> Option<u16> {
    driver::info(id).map(|info| info.state)
}

/// Waits until a device has this state.
pub fn wait_for_state(id: u32, expected: u16) {
    wait_until(
        &format!("device {id} has state {expected}"),
        DEADLINE,
        || state(id) == Some(expected),
    );
}

/// Requests that a block device's kernel side waits for.
pub fn inflight(id: u32) -> u64 {
    let text = std::fs::read_to_string(format!("/sys/block/ublkb{id}/inflight")).unwrap();
    text.split_whitespace()
        .map(|number| number.parse::<u64>().unwrap())
        .sum()
}

/// Deletes the devices whose server is gone.
pub fn delete(ids: impl IntoIterator<Item = u32>) {
    ids.into_iter().for_each(driver::delete);
}
