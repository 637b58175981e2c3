//! The servers that are compared, and how each is started and ended.
//!
//! All serve with one queue of depth 128 per device. Ours serves all devices with one process and
//! one ring; the kernel tree's has a process and a ring for each device, which is how it is made.

use std::fmt;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::{Failure, workspace};

/// Requests a queue has.
pub(super) const DEPTH: u32 = 128;

/// How long devices may take to come and to go.
const PATIENCE: Duration = Duration::from_secs(120);

/// How data gets between client and server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mode {
    ZeroCopy,
    UserCopy,
    GetData,
    Copy,
}

impl Mode {
    /// All of them, the dearest first.
    pub(super) const ALL: [Mode; 4] = [Mode::Copy, Mode::GetData, Mode::UserCopy, Mode::ZeroCopy];

    /// As our servers read it.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::ZeroCopy => "zero-copy",
            Self::UserCopy => "user-copy",
            Self::GetData => "get-data",
            Self::Copy => "copy",
        }
    }

    /// As the kernel tree's server reads it.
    fn of_kublk(self) -> &'static [&'static str] {
        match self {
            // What ours does, too: the driver registers the buffer, and may fall back.
            Self::ZeroCopy => &["--auto_zc", "-z"],
            Self::UserCopy => &["-u"],
            Self::GetData => &["-g"],
            Self::Copy => &[],
        }
    }
}

/// What a server does with its requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Nothing.
    Null,
    /// Reads and writes a file.
    File,
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Null => "null",
            Self::File => "file",
        })
    }
}

/// A server that can be started.
#[derive(Clone, Debug)]
pub(super) enum Server {
    /// This crate's examples, in this directory.
    Ours(PathBuf),
    /// The kernel tree's.
    Kublk(PathBuf),
}

impl fmt::Display for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Ours(_) => "firn",
            Self::Kublk(_) => "kublk",
        })
    }
}

/// All servers.
pub(super) fn all(kublk: &Path) -> Vec<Server> {
    let examples = workspace::target().join("release/examples");
    vec![Server::Ours(examples), Server::Kublk(kublk.to_owned())]
}

/// Devices that are served; they go with this value.
#[derive(Debug)]
pub(super) struct Running {
    /// The block devices.
    pub(super) devices: Vec<PathBuf>,
    /// Ours, which is one process.
    pub(super) child: Option<Child>,
    /// The program that deletes the kernel tree's devices.
    kublk: Option<PathBuf>,
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            let pid = rustix::process::Pid::from_child(child);
            // Where it is gone already there is nothing to end.
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
            let _ = child.wait();
        }
        if let Some(kublk) = &self.kublk {
            let _ = Command::new(kublk)
                .args(["del", "-a"])
                .stdout(Stdio::null())
                .status();
        }
        if let Err(error) = wait(&self.devices, false) {
            println!("{error}");
        }
    }
}

impl Server {
    /// Starts it with this many devices of one queue each; `files` are what a file server serves.
    pub(super) fn start(
        &self,
        kind: Kind,
        mode: Mode,
        devices: usize,
        files: &[PathBuf],
        more: &[&str],
    ) -> Result<Running, Failure> {
        let paths: Vec<_> = (0..devices)
            .map(|id| PathBuf::from(format!("/dev/ublkb{id}")))
            .collect();
        wait(&paths, false)?;
        let mut running = Running {
            devices: paths,
            child: None,
            kublk: None,
        };
        match self {
            Self::Ours(examples) => {
                let mut command = Command::new(examples.join(kind.to_string()));
                command.args(["--id", "0", "--queues", "1", "--depth", &DEPTH.to_string()]);
                command.args(["--mode", mode.name()]);
                match kind {
                    Kind::Null => command.args(["--devices", &devices.to_string()]),
                    Kind::File => command.args(&files[..devices]),
                };
                command.args(more);
                // It serves until its input ends; what it says is for those who try it by hand.
                command.stdin(Stdio::piped());
                command.stdout(Stdio::null()).stderr(Stdio::null());
                running.child = Some(command.spawn()?);
            }
            Self::Kublk(program) => {
                running.kublk = Some(program.clone());
                for id in 0..devices {
                    let mut command = Command::new(program);
                    let name = if kind == Kind::Null { "null" } else { "loop" };
                    command.args(["add", "-t", name, "-q", "1", "-d", &DEPTH.to_string()]);
                    command.args(["-n", &id.to_string()]).args(mode.of_kublk());
                    if kind == Kind::File {
                        command.args(files.get(id));
                    }
                    let status = command.stdout(Stdio::null()).status()?;
                    if !status.success() {
                        return Err(format!("kublk add ended with {status}").into());
                    }
                }
            }
        }
        wait(&running.devices, true)?;
        Ok(running)
    }
}

/// Waits until block devices are all there, or all gone.
pub(super) fn wait(devices: &[PathBuf], there: bool) -> Result<(), Failure> {
    let is_there = |path: &PathBuf| {
        std::fs::metadata(path).is_ok_and(|meta| meta.file_type().is_block_device())
    };
    let until = Instant::now() + PATIENCE;
    while let Some(other) = devices.iter().find(|path| is_there(path) != there) {
        if Instant::now() > until {
            let what = if there { "did not come" } else { "did not go" };
            return Err(format!("{} {what}", other.display()).into());
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    Ok(())
}
