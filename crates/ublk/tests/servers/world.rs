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

/// No step takes longer on a healthy guest, however slow the emulator.
pub const DEADLINE: Duration = Duration::from_secs(90);

/// How much of the table is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Table {
    /// The least that shows the lane to work.
    Smoke,
    /// What CI runs.
    Fast,
    /// Everything.
    All,
}

/// How much of the table was asked for.
pub fn asked() -> Table {
    match std::env::var("FIRN_UBLK_TABLE").as_deref() {
        Ok("smoke") => Table::Smoke,
        Ok("all") => Table::All,
        _ => Table::Fast,
    }
}

/// Whether rows of this size are wanted here; says why not.
pub fn wanted(table: Table) -> bool {
    if !Path::new(sys::CONTROL_PATH).exists() {
        println!("skipped: no {}", sys::CONTROL_PATH);
        return false;
    }
    let asked = asked();
    if table > asked {
        println!("skipped: only in the whole table");
    }
    table <= asked
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

/// Waits for a condition.
pub fn until(what: &str, within: Duration, mut condition: impl FnMut() -> bool) {
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
pub struct Serve<'a> {
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
    /// Anything else.
    pub more: Vec<String>,
    /// Environment.
    pub variables: Vec<(&'a str, &'a str)>,
}

impl Default for Serve<'_> {
    fn default() -> Self {
        Serve {
            program: "null",
            id: 0,
            devices: 1,
            queues: 1,
            depth: 32,
            mode: "auto",
            recovery: "none",
            files: Vec::new(),
            more: Vec::new(),
            variables: Vec::new(),
        }
    }
}

/// A running server; killed when dropped, and its devices deleted.
pub struct Server {
    child: Child,
    said: tempfile::NamedTempFile,
    ids: Vec<u32>,
    /// Each device's data mode by the driver's word, once all of them are live.
    served: Vec<(u32, &'static str)>,
    expected: Expected,
    /// How often it was asked for its figures.
    asked: u64,
    /// Dropping leaves the devices to a successor.
    keeps: bool,
}

/// What a server's figures are check_mode by.
#[derive(Clone, Debug)]
struct Expected {
    /// The data mode that was asked for, or `auto`.
    mode: String,
    /// Whether it moves bytes at all.
    moves: bool,
    /// Whether it has fewer slots than tags.
    shared: bool,
}

impl Serve<'_> {
    /// Starts the server without waiting for anything.
    pub fn spawn(&self) -> Server {
        let here = std::env::current_exe().expect("this program has a path");
        let programs = here
            .parent()
            .and_then(Path::parent)
            .expect("target/PROFILE/deps");
        let said = tempfile::NamedTempFile::new().expect("a file for what the server says");
        let mut command = Command::new(programs.join("examples").join(self.program));
        command.args(["--id", &self.id.to_string(), "--mode", self.mode]);
        command.args(["--queues", &self.queues.to_string()]);
        command.args(["--depth", &self.depth.to_string()]);
        command.args(["--recovery", self.recovery]);
        if self.program == "null" {
            command.args(["--devices", &self.devices.to_string()]);
        }
        command.args(&self.more).args(&self.files);
        command.envs(self.variables.iter().copied());
        // It serves until its input ends, which it does with this process at the latest.
        command.stdin(Stdio::piped());
        // One open file for both, or they would write over each other.
        let output = said.reopen().expect("the file is there");
        command.stdout(output.try_clone().expect("a descriptor"));
        command.stderr(output);
        let child = command
            .spawn()
            .unwrap_or_else(|error| panic!("{}: {error}", self.program));
        let ids = (self.id..self.id + self.devices).collect();
        Server {
            child,
            said,
            ids,
            served: Vec::new(),
            expected: Expected {
                mode: self.mode.to_owned(),
                moves: self.program != "null",
                shared: self.more.iter().any(|word| word == "--slots"),
            },
            asked: 0,
            keeps: false,
        }
    }

    /// Starts the server and waits until all its devices are live.
    pub fn start(&self) -> Server {
        let mut server = self.spawn();
        server.until_live();
        server
    }
}

impl Server {
    /// What it has said so far.
    pub fn said(&self) -> String {
        std::fs::read_to_string(self.said.path()).unwrap_or_default()
    }

    /// Waits until all devices are live under this very process and can be opened.
    pub fn until_live(&mut self) {
        if let Err(status) = self.try_until_live() {
            panic!("the server ended with {status}:\n{}", self.said());
        }
    }

    /// The same, or how the server ended instead.
    pub fn try_until_live(&mut self) -> Result<(), ExitStatus> {
        for id in self.ids.clone() {
            let end = Instant::now() + DEADLINE;
            while !(state(id) == Some(sys::STATE_LIVE) && self.serves(id) && is_block(&block(id))) {
                if let Some(status) = self.child.try_wait().expect("a child") {
                    return Err(status);
                }
                assert!(
                    Instant::now() < end,
                    "device {id} is not served:\n{}",
                    self.said()
                );
                std::thread::sleep(Duration::from_millis(20));
            }
        }
        let modes = self.ids.iter().map(|id| (*id, driver::mode(*id)));
        self.served = modes.collect();
        for (id, mode) in &self.served {
            let asked = &self.expected.mode;
            let forced = asked != "auto";
            assert!(!forced || asked == mode, "device {id} is in mode {mode}");
            assert_eq!(self.mode(*id), *mode, "what the server says of device {id}");
        }
        Ok(())
    }

    /// What its queues did so far; it is asked, where it still can be.
    pub fn figures(&mut self) -> Figures {
        self.asked += 1;
        let asked = self.child.stdin.as_mut().expect("a pipe").write_all(b"\n");
        let (mark, end) = (
            format!("figures said {}", self.asked),
            Instant::now() + DEADLINE,
        );
        while asked.is_ok() && !self.said().lines().any(|line| line == mark) {
            if self.child.try_wait().expect("a child").is_some() || Instant::now() > end {
                break;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        Figures::read(&self.said())
    }

    /// Whether every device was served in the mode that it has; to be asked before the end.
    fn verdict(&mut self, figures: &Figures) -> Result<(), String> {
        let Expected { moves, shared, .. } = self.expected;
        // Once is enough.
        for (id, mode) in std::mem::take(&mut self.served) {
            figures
                .check_mode(id, mode, (moves, shared))
                .map_err(|wrong| format!("{wrong}\n{}", self.said()))?;
        }
        Ok(())
    }

    /// Judges it by what it says now.
    fn check_mode(&mut self) -> Result<(), String> {
        if self.served.is_empty() {
            return Ok(());
        }
        let figures = self.figures();
        self.verdict(&figures)
    }

    /// Whether it has announced a disk: a predecessor's device is live for a while, too.
    fn serves(&self, id: u32) -> bool {
        let path = block(id);
        self.said().lines().any(|line| Path::new(line) == path)
    }

    /// The data mode that it says was granted for a device.
    pub fn mode(&self, id: u32) -> String {
        let said = self.said();
        let start = format!("device {id}: ");
        let modes = ["zero-copy", "user-copy", "get-data", "copy"];
        let mode = said.lines().find_map(|line| {
            let word = line.strip_prefix(&start)?.split(',').next()?;
            modes.into_iter().find(|mode| *mode == word)
        });
        mode.unwrap_or_else(|| panic!("no mode was announced:\n{said}"))
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
        self.keeps = true;
        let check_mode = self.check_mode();
        self.signal(rustix::process::Signal::KILL);
        self.child.wait().expect("a child");
        check_mode.unwrap_or_else(|wrong| panic!("{wrong}"));
    }

    /// Its devices may be another's: they are not deleted with it.
    pub fn keeping(mut self) -> Server {
        self.keeps = true;
        self
    }

    /// Asks it to go and waits until it has.
    pub fn terminate(mut self) -> (ExitStatus, String) {
        self.keeps = true;
        self.signal(rustix::process::Signal::TERM);
        let (status, said) = (self.ended(), self.said());
        if status.success() {
            let check_mode = self.verdict(&Figures::read(&said));
            check_mode.unwrap_or_else(|wrong| panic!("{wrong}"));
        }
        (status, said)
    }

    /// The same; it must end well, and its devices go. What it said.
    pub fn exits_cleanly(self) -> String {
        let ids = self.ids.clone();
        let (status, said) = self.terminate();
        assert!(status.success(), "{said}");
        delete(ids);
        said
    }

    /// Waits until it ends by itself.
    pub fn ended(&mut self) -> ExitStatus {
        let end = Instant::now() + DEADLINE;
        loop {
            if let Some(status) = self.child.try_wait().expect("a child") {
                return status;
            }
            assert!(
                Instant::now() < end,
                "the server does not end:\n{}",
                self.said()
            );
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Said only when everything is taken away, and not over what went wrong before.
        let check_mode = match std::thread::panicking() {
            true => Ok(()),
            false => self.check_mode(),
        };
        self.signal(rustix::process::Signal::KILL);
        // Nothing is left to do where that fails.
        let _ = self.child.wait();
        if std::thread::panicking() {
            eprintln!("the server said:\n{}", self.said());
        }
        if !self.keeps || std::thread::panicking() {
            self.ids.iter().for_each(|id| driver::delete(*id));
        }
        check_mode.unwrap_or_else(|wrong| panic!("{wrong}"));
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
pub fn until_state(id: u32, wanted: u16) {
    until(&format!("device {id} has state {wanted}"), DEADLINE, || {
        state(id) == Some(wanted)
    });
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
