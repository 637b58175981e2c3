//! The hand-over of a running server to the program that takes its place, in the same process.
//!
//! The old server drains its connections, stops its engine without closing volumes, and executes the new
//! program. Exec ends every thread and closes every descriptor but those that are passed, so the old
//! program writes nothing after it, by the kernel's word; requests that are in flight keep the log's lock, and
//! the new program waits for it as after any crash. It recovers log and rings as after kill -9.
//! The process keeps its id. Until the new program serves, any failure of it executes the old one again, with the
//! same descriptors. A kill at any moment is a plain start. See docs/handoff.md.
//!
//! Must never run two programs that may write: there is one process.

mod check;
mod incoming;

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;

use nbd::server::Handover;
use rustix::io::FdFlags;
use serde::{Deserialize, Serialize};

use crate::config::{ApiListen, Settings};
use crate::failure::{Failure, FailureCode, Result};
use crate::frontends::nbd::flag_value;
use crate::local_files::CacheDir;

pub(crate) use check::print_check;
pub(super) use check::{CheckedProgram, check_program, own_program};
pub(crate) use incoming::{Incoming, roll_back};
pub(super) use incoming::{InheritedApiSocket, commit};

/// What the two programs have to agree on: this record, and what its descriptors are.
const PROTOCOL: u32 = 1;

/// Names the descriptor of the record.
const RECORD_VARIABLE: &str = "FIRN_HANDOVER";

/// For tests: `STEP=pause`, `STEP=fail` or `STEP=panic`, where a program is to stop or to fail.
const STEP_VARIABLE: &str = "FIRN_HANDOVER_AT";

/// What passes from one program to the next, in a file in memory. Numbers are descriptors.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Record {
    protocol: u32,
    /// Of this process's upgrades, from one.
    number: u64,
    program: PathBuf,
    /// How long the new program may take until it serves, in milliseconds.
    timeout_ms: u64,
    /// The cache directory's lock.
    lock: i32,
    /// The old program, which goes on if the new one fails.
    previous: i32,
    api: Vec<SocketRecord>,
    nbd: Vec<SocketRecord>,
    connections: Vec<ConnectionRecord>,
    /// Why the new program gave back: this is the old one again.
    #[serde(default)]
    returned: Option<String>,
}

/// A listening socket.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct SocketRecord {
    /// The address as the settings have it.
    wanted: String,
    /// The address as it was granted.
    granted: String,
    socket: i32,
    /// The lock of its path.
    #[serde(default)]
    path_lock: Option<i32>,
}

/// An NBD connection between two requests.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct ConnectionRecord {
    socket: i32,
    /// docs/format.md "Connection that is handed over".
    state: Vec<u8>,
}

/// A socket of the API, and its path's lock.
#[derive(Debug)]
pub(super) struct SocketToPass {
    pub(super) granted: ApiListen,
    pub(super) socket: OwnedFd,
    pub(super) path_lock: Option<File>,
}

/// What is handed over, and to which program.
#[derive(Debug)]
pub(super) struct Outgoing {
    pub(super) number: u64,
    pub(super) timeout_ms: u64,
    pub(super) program: CheckedProgram,
    pub(super) nbd: Handover,
}

impl Outgoing {
    /// Executes the new program; the old one again if that cannot be done. Returns only if neither can.
    pub(super) fn execute(
        self,
        settings: &Settings,
        api: Vec<SocketToPass>,
        files: &CacheDir,
    ) -> Failure {
        match self.try_execute(settings, api, files) {
            Ok(failure) => failure,
            Err(source) => Failure::internal(format!(
                "cannot hand over: {source}; no acknowledged write is lost: start the server again"
            )),
        }
    }

    fn try_execute(
        self,
        settings: &Settings,
        api: Vec<SocketToPass>,
        files: &CacheDir,
    ) -> io::Result<Failure> {
        let mut kept = Vec::new();
        let mut keep = |socket: OwnedFd| {
            let number = socket.as_raw_fd();
            kept.push(socket);
            number
        };
        let lock = keep(files.duplicate_lock()?.into());
        let previous = keep(File::open("/proc/self/exe")?.into());
        let wanted = settings.api.listen.iter();
        let mut api_records = Vec::new();
        for (wanted, socket) in wanted.zip(api) {
            api_records.push(SocketRecord {
                wanted: wanted.to_string(),
                granted: socket.granted.to_string(),
                socket: keep(socket.socket),
                path_lock: socket.path_lock.map(|lock| keep(lock.into())),
            });
        }
        // The server listens in the order of the settings.
        let wanted = settings.nbd.iter();
        let nbd = wanted
            .zip(self.nbd.listeners)
            .map(|(wanted, listener)| SocketRecord {
                wanted: flag_value(wanted),
                granted: flag_value(&listener.place),
                socket: keep(listener.socket),
                path_lock: None,
            });
        let nbd = nbd.collect();
        let connections = self
            .nbd
            .connections
            .into_iter()
            .map(|one| ConnectionRecord {
                state: one.state.encode(),
                socket: keep(one.socket),
            });
        let mut record = Record {
            protocol: PROTOCOL,
            number: self.number,
            program: self.program.path,
            timeout_ms: self.timeout_ms,
            lock,
            previous,
            api: api_records,
            nbd,
            connections: connections.collect(),
            returned: None,
        };
        let failed = execute(&self.program.file, &record, &kept);
        record.returned = Some(format!(
            "executing {} failed: {failed}",
            record.program.display()
        ));
        let own = File::open("/proc/self/exe")?;
        let failed = execute(&own, &record, &kept);
        Ok(Failure::internal(format!(
            "neither the new program nor this one can be executed: {failed}; no acknowledged write \
             is lost: start the server again"
        )))
    }
}

/// Executes a program in this process, with the record and its descriptors. Returns only why it cannot.
fn execute(program: &File, record: &Record, kept: &[OwnedFd]) -> io::Error {
    let passed = || -> io::Result<OwnedFd> {
        let bytes = serde_json::to_vec(record).map_err(io::Error::other)?;
        let memory = reactor::memfd(c"firn-handover", 0)?;
        let mut file = File::from(memory);
        file.write_all(&bytes)?;
        let memory = OwnedFd::from(file);
        for one in kept.iter().chain([&memory]) {
            rustix::io::fcntl_setfd(one, FdFlags::empty())?;
        }
        Ok(memory)
    };
    let memory = match passed() {
        Ok(memory) => memory,
        Err(error) => return error,
    };
    let mut arguments = std::env::args_os();
    // The file that was checked, whatever is at its path by now.
    let mut command = Command::new(format!("/proc/self/fd/{}", program.as_raw_fd()));
    if let Some(name) = arguments.next() {
        command.arg0(name);
    }
    command
        .args(arguments)
        .env(RECORD_VARIABLE, memory.as_raw_fd().to_string())
        .exec()
}

/// Steps of the old program; all others are the new one's.
const BEFORE_EXEC: [&str; 2] = ["checked", "stopped"];

/// A step of a hand-over, where a test may stop or fail it.
pub(super) fn step(name: &str) -> Result<()> {
    tracing::debug!(step = name, "hand-over");
    if !BEFORE_EXEC.contains(&name) && !incoming::is_new_program() {
        return Ok(());
    }
    let Ok(planned) = std::env::var(STEP_VARIABLE) else {
        return Ok(());
    };
    match planned.split_once('=') {
        Some((step, action)) if step == name => match action {
            "fail" => Err(Failure::new(
                FailureCode::Internal,
                format!("step {name} was made to fail"),
            )),
            "panic" => panic!("step {name} was made to panic"),
            _ => {
                eprintln!("firn: hand-over stopped at step {name}");
                loop {
                    std::thread::park();
                }
            }
        },
        _ => Ok(()),
    }
}
