//! The servers that are compared, and how each is started and ended.
//!
//! All serve with one queue of depth 128 per device. Ours serves all devices with one process and
//! one ring; the others have a process and a ring for each device, which is how they are made.

use std::fmt;
use std::ops::Range;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::{Failure, workspace};

/// Requests a queue has.
pub(super) const DEPTH: u32 = 128;

/// How long devices may take to come and to go, beside three seconds for each.
const START_TIMEOUT: Duration = Duration::from_secs(120);

/// How data gets between client and server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::bench) enum Mode {
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
    pub(super) fn of_kublk(self) -> &'static [&'static str] {
        match self {
            // What ours does, too: the driver registers the buffer.
            Self::ZeroCopy => &["--auto_zc"],
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
    /// The examples of libublk, in this directory.
    Libublk(PathBuf),
}

impl fmt::Display for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Ours(_) => "firn",
            Self::Kublk(_) => "kublk",
            Self::Libublk(_) => "libublk",
        })
    }
}

/// All servers.
pub(super) fn all(kublk: &Path, libublk: &Path) -> Vec<Server> {
    let examples = workspace::packaged("examples");
    vec![
        Server::Ours(examples),
        Server::Kublk(kublk.to_owned()),
        Server::Libublk(libublk.to_owned()),
    ]
}

/// Devices that are served; they go with this value.
#[derive(Debug)]
pub(super) struct RunningServer {
    /// The block devices.
    pub(super) devices: Vec<PathBuf>,
    /// Ours, which is one process, and where it says what it has counted.
    pub(super) child: Option<Child>,
    said: PathBuf,
    /// What deletes devices of the others, which run by themselves.
    removal: Vec<Command>,
}

impl RunningServer {
    /// Ends it and answers what it has said, which is nothing for others than ours.
    pub(super) fn end(mut self) -> String {
        self.terminate();
        std::fs::read_to_string(&self.said).unwrap_or_default()
    }

    /// Waits for its devices. Where they do not come, that is said with the server's own words.
    fn wait_until_there(&mut self) -> Result<(), Failure> {
        let Err(error) = wait(&self.devices, true) else {
            return Ok(());
        };
        let ended = match &mut self.child {
            Some(child) => child.try_wait()?,
            None => None,
        };
        let state = ended.map_or("its server runs".to_owned(), |status| {
            format!("its server ended with {status}")
        });
        let said = std::fs::read_to_string(&self.said).unwrap_or_default();
        Err(format!("{error}; {state} and said:\n{said}").into())
    }

    fn terminate(&mut self) {
        if let Some(mut child) = self.child.take() {
            let pid = rustix::process::Pid::from_child(&child);
            // Where it is gone already there is nothing to end.
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
            let _ = child.wait();
        }
    }
}

impl Drop for RunningServer {
    fn drop(&mut self) {
        self.terminate();
        for command in &mut self.removal {
            // Whether it worked is looked at below.
            let _ = command.stdout(Stdio::null()).status();
        }
        if let Err(error) = wait(&self.devices, false) {
            println!("{error}");
        }
    }
}

impl Server {
    /// Starts it with devices of these numbers, of one queue each; `files` are what a file server
    /// serves.
    pub(super) fn start(
        &self,
        kind: Kind,
        mode: Mode,
        ids: Range<usize>,
        files: &[PathBuf],
        more: &[&str],
    ) -> Result<RunningServer, Failure> {
        let devices = ids.len();
        let paths: Vec<_> = ids
            .clone()
            .map(|id| PathBuf::from(format!("/dev/ublkb{id}")))
            .collect();
        wait(&paths, false)?;
        let mut running = RunningServer {
            devices: paths,
            child: None,
            said: std::env::temp_dir().join("server-said"),
            removal: Vec::new(),
        };
        match self {
            Self::Ours(examples) => {
                let mut command = Command::new(examples.join(kind.to_string()));
                let (id, depth) = (ids.start.to_string(), DEPTH.to_string());
                command.args(["--id", &id, "--queues", "1", "--depth", &depth]);
                command.args(["--mode", mode.name()]);
                match kind {
                    Kind::Null => command.args(["--devices", &devices.to_string()]),
                    Kind::File => command.args(&files[..devices]),
                };
                command.args(more);
                // It serves until its input ends.
                command.stdin(Stdio::piped()).stdout(Stdio::null());
                command.stderr(std::fs::File::create(&running.said)?);
                running.child = Some(command.spawn()?);
            }
            Self::Kublk(program) => {
                for (at, id) in ids.enumerate() {
                    let mut removal = Command::new(program);
                    removal.args(["del", "-n", &id.to_string()]);
                    running.removal.push(removal);
                    let mut command = Command::new(program);
                    let name = if kind == Kind::Null { "null" } else { "loop" };
                    command.args(["add", "-t", name, "-q", "1", "-d", &DEPTH.to_string()]);
                    command.args(["-n", &id.to_string()]).args(mode.of_kublk());
                    if kind == Kind::File {
                        command.args(files.get(at));
                    }
                    let status = command.stdout(Stdio::null()).status()?;
                    if !status.success() {
                        return Err(format!("kublk add ended with {status}").into());
                    }
                }
            }
            Self::Libublk(examples) => {
                let name = if kind == Kind::Null { "null" } else { "loop" };
                let program = examples.join(name);
                for (at, id) in ids.enumerate() {
                    let mut removal = Command::new(&program);
                    removal.args(["del", "-n", &id.to_string()]);
                    running.removal.push(removal);
                    start_libublk(&program, (kind, mode), id, files.get(at))?;
                }
            }
        }
        running.wait_until_there()?;
        Ok(running)
    }

    /// Whether it has this mode.
    pub(super) fn has(&self, kind: Kind, mode: Mode) -> bool {
        match (self, kind) {
            (Self::Ours(_) | Self::Kublk(_), _) => true,
            (Self::Libublk(_), Kind::Null) => mode != Mode::GetData,
            (Self::Libublk(_), Kind::File) => mode == Mode::Copy,
        }
    }
}

/// Starts an example of libublk: it returns when its device is there.
fn start_libublk(
    program: &Path,
    (kind, mode): (Kind, Mode),
    id: usize,
    file: Option<&PathBuf>,
) -> Result<(), Failure> {
    let mut command = Command::new(program);
    command.args(["add", "-n", &id.to_string(), "-q", "1"]);
    command.args(["-d", &DEPTH.to_string(), "--buf_size", "1048576"]);
    match mode {
        Mode::UserCopy => command.arg("--user_copy"),
        Mode::ZeroCopy => command.arg("--zero-copy"),
        _ => &mut command,
    };
    if kind == Kind::File {
        command.arg("-f").args(file);
    }
    command.stdout(Stdio::null());
    let status = command.status()?;
    if status.success() {
        return Ok(());
    }
    Err(format!("{} ended with {status}", program.display()).into())
}

/// Waits until block devices are all there, or all gone.
pub(super) fn wait(devices: &[PathBuf], there: bool) -> Result<(), Failure> {
    let is_there = |path: &PathBuf| {
        std::fs::metadata(path).is_ok_and(|meta| meta.file_type().is_block_device())
    };
    // One by one, where the kernel does one after the other.
    let until = Instant::now() + START_TIMEOUT + 3 * devices.len() as u32 * Duration::from_secs(1);
    while let Some(other) = devices.iter().find(|path| is_there(path) != there) {
        if Instant::now() > until {
            let what = if there { "did not come" } else { "did not go" };
            return Err(format!("{} {what}", other.display()).into());
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    Ok(())
}
