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
mod outgoing;
mod timeline;

use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;

use rustix::io::FdFlags;
use serde::{Deserialize, Serialize};
use volume::JournalMark;

use self::timeline::Timeline;
use crate::failure::{Failure, FailureCode, Result};
use crate::model::PassedSettings;

pub(crate) use check::print_check;
pub(super) use check::{check_program, own_program};
pub(crate) use incoming::{Incoming, roll_back};
pub(super) use incoming::{IncomingCache, InheritedApiSocket};
pub(super) use outgoing::{Outgoing, Passage, RetainedFiles, SocketToPass};

/// What the two programs have to agree on: this record, and what its descriptors are.
const PROTOCOL: u32 = 2;

/// Names the descriptor of the record.
const RECORD_VARIABLE: &str = "FIRN_HANDOVER";

/// What the old program knows only when its engine has stopped: [`LastWords`].
const STOPPED_VARIABLE: &str = "FIRN_HANDOVER_STOPPED";

/// For tests: `STEP=pause`, `STEP=sigstop`, `STEP=fail` or `STEP=panic`, where a program is to stop or to fail. Only
/// builds with debug assertions look at it.
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
    /// Those that may change while a server runs, as they are.
    #[serde(default)]
    settings: PassedSettings,
    /// What the read cache holds, if that is told.
    #[serde(default)]
    cache: Option<CacheRecord>,
    /// The pause up to here.
    #[serde(default)]
    timeline: Timeline,
    /// Why the new program gave back: this is the old one again.
    #[serde(default)]
    returned: Option<String>,
}

/// What is in the read cache's file.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct CacheRecord {
    /// A file in memory: docs/format.md "Cache file that is handed over". Empty if the file changed after all.
    list: i32,
    /// Of the cache file: another one under its name holds other bytes.
    device: u64,
    inode: u64,
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
    /// How long its state is.
    state_bytes: usize,
    /// docs/format.md "Connection that is handed over". Behind the JSON: as numbers in it, the 128 KiB that a connection may
    /// have received and not taken cost milliseconds of the clients' pause.
    #[serde(skip)]
    state: Vec<u8>,
}

impl ConnectionRecord {
    fn new(socket: i32, state: Vec<u8>) -> ConnectionRecord {
        ConnectionRecord {
            socket,
            state_bytes: state.len(),
            state,
        }
    }
}

impl Record {
    /// The numbers of all descriptors but the record's own.
    fn descriptors(&self) -> impl Iterator<Item = i32> {
        let sockets = self.api.iter().chain(&self.nbd);
        let sockets = sockets.flat_map(|one| [Some(one.socket), one.path_lock]);
        let connections = self.connections.iter().map(|one| one.socket);
        let cache = self.cache.iter().map(|cache| cache.list);
        let own = [self.lock, self.previous].into_iter().chain(cache);
        own.chain(sockets.flatten()).chain(connections)
    }

    /// Writes it, in the place of what is there.
    fn write_to(&self, mut memory: &File) -> io::Result<()> {
        let mut bytes = serde_json::to_vec(self).map_err(io::Error::other)?;
        bytes.push(b'\n');
        for one in &self.connections {
            bytes.extend_from_slice(&one.state);
        }
        memory.rewind()?;
        memory.set_len(0)?;
        memory.write_all(&bytes)
    }

    fn read_from(mut memory: &File) -> io::Result<Record> {
        let mut bytes = Vec::new();
        memory.rewind()?;
        memory.read_to_end(&mut bytes)?;
        Record::decode(&bytes)
    }

    fn decode(bytes: &[u8]) -> io::Result<Record> {
        let cut = || io::Error::from(io::ErrorKind::UnexpectedEof);
        // JSON in one line has no other, and protocol 1 had JSON alone.
        let end = bytes.iter().position(|byte| *byte == b'\n');
        let text = &bytes[..end.unwrap_or(bytes.len())];
        let protocol: Protocol = serde_json::from_slice(text)?;
        if protocol.protocol != PROTOCOL {
            return Err(io::Error::other(format!("protocol {}", protocol.protocol)));
        }
        let mut states = &bytes[end.ok_or_else(cut)? + 1..];
        let mut record: Record = serde_json::from_slice(text)?;
        for one in &mut record.connections {
            let (state, rest) = states.split_at_checked(one.state_bytes).ok_or_else(cut)?;
            one.state = state.to_vec();
            states = rest;
        }
        match states {
            [] => Ok(record),
            _ => Err(io::Error::other("more states than connections")),
        }
    }
}

/// What every program has first in its record.
#[derive(Deserialize)]
struct Protocol {
    protocol: u32,
}

/// What the old program says at the end. A program that gives back says nothing: the log is not as it found it.
#[derive(Clone, Copy, Debug)]
struct LastWords {
    stopped_ns: u64,
    journal: Option<JournalMark>,
    /// The process that has the old program's memory, a child.
    keeper: Option<i32>,
}

impl LastWords {
    fn to_text(self) -> String {
        let mark = self.journal.map(|mark| {
            let JournalMark {
                half,
                lap,
                frames,
                bytes,
                is_settled,
            } = mark;
            format!(" {half} {lap} {frames} {bytes} {}", u64::from(is_settled))
        });
        let keeper = self.keeper.unwrap_or(0);
        format!("{} {keeper}{}", self.stopped_ns, mark.unwrap_or_default())
    }

    fn from_text(text: &str) -> Option<LastWords> {
        let numbers = text.split(' ').map(str::parse);
        let numbers = numbers.collect::<std::result::Result<Vec<u64>, _>>().ok()?;
        let (&[stopped_ns, keeper], journal) = numbers.split_first_chunk()?;
        let journal = match *journal {
            [half, lap, frames, bytes, settled] => Some(JournalMark {
                half: usize::try_from(half).ok()?,
                lap,
                frames,
                bytes,
                is_settled: settled == 1,
            }),
            _ => None,
        };
        Some(LastWords {
            stopped_ns,
            journal,
            keeper: i32::try_from(keeper).ok().filter(|keeper| *keeper > 0),
        })
    }
}

/// Executes a program in this process, with the record and its descriptors. Needs no further descriptor. Returns
/// only why it cannot.
fn execute<'a>(
    program: &File,
    memory: &'a File,
    passed: impl Iterator<Item = BorrowedFd<'a>>,
    last_words: Option<LastWords>,
) -> io::Error {
    for one in passed.chain([memory.as_fd()]) {
        if let Err(error) = rustix::io::fcntl_setfd(one, FdFlags::empty()) {
            return error.into();
        }
    }
    let mut arguments = std::env::args_os();
    // The file that was checked, whatever is at its path by now.
    let mut command = Command::new(format!("/proc/self/fd/{}", program.as_raw_fd()));
    if let Some(name) = arguments.next() {
        command.arg0(name);
    }
    match last_words {
        Some(words) => command.env(STOPPED_VARIABLE, words.to_text()),
        None => command.env_remove(STOPPED_VARIABLE),
    };
    command
        .args(arguments)
        .env(RECORD_VARIABLE, memory.as_raw_fd().to_string());
    // Its thread ends with this program.
    crate::log_lines::stop();
    command.exec()
}

/// The clients' pause begins, and its steps are timed.
pub(super) fn begin_pause() {
    timeline::begin();
}

/// The clients' pause is over.
pub(super) fn end_pause() {
    let timeline = timeline::current();
    tracing::info!(
        pause_ms = format_args!("{:.1}", timeline.pause_ms()),
        steps = timeline.describe(),
        "this program has taken over"
    );
}

/// Steps of the old program; all others are the new one's.
const BEFORE_EXEC: [&str; 3] = ["checked", "given", "stopped"];

/// A step of a hand-over, where a test may stop or fail it.
pub(super) fn step(name: &str) -> Result<()> {
    timeline::note(name, timeline::now_ns());
    // What is shipped has no such switch.
    if !cfg!(debug_assertions) || (!BEFORE_EXEC.contains(&name) && !incoming::is_new_program()) {
        return Ok(());
    }
    let Ok(planned) = std::env::var(STEP_VARIABLE) else {
        return Ok(());
    };
    match planned.split_once('=') {
        Some((step, action)) if step == name => planned_step(name, action),
        _ => Ok(()),
    }
}

fn planned_step(name: &str, action: &str) -> Result<()> {
    match action {
        "fail" => Err(Failure::new(
            FailureCode::Internal,
            format!("step {name} was made to fail"),
        )),
        "panic" => panic!("step {name} was made to panic"),
        "sigstop" => {
            let own = rustix::process::getpid();
            let stopped = rustix::process::kill_process(own, rustix::process::Signal::STOP);
            stopped.map_err(|source| Failure::internal(format!("SIGSTOP: {source}")))
        }
        _ => {
            eprintln!("firn: hand-over stopped at step {name}");
            loop {
                std::thread::park();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn last_words_are_read_as_they_were_said_and_others_are_none() {
        let mark = JournalMark {
            half: 1,
            lap: u64::MAX,
            frames: 3,
            bytes: 8192,
            is_settled: true,
        };
        for (journal, keeper) in [(Some(mark), None), (None, Some(9))] {
            let said = LastWords {
                stopped_ns: 7,
                journal,
                keeper,
            };
            let heard = LastWords::from_text(&said.to_text()).unwrap();
            let words = (heard.stopped_ns, heard.journal, heard.keeper);
            assert_eq!(words, (7, journal, keeper));
        }
        for text in ["", "x", "1", "1 x"] {
            assert!(LastWords::from_text(text).is_none(), "{text}");
        }
        let cut = LastWords::from_text("1 2 3").unwrap();
        assert_eq!(cut.journal, None);
    }

    #[test]
    fn a_record_is_read_as_it_was_written_and_none_that_is_cut_short() {
        let text = r#"{"protocol":2,"number":3,"program":"/usr/bin/firn","timeout_ms":10000,"lock":4,"previous":5,"api":[],"nbd":[],"connections":[{"socket":6,"state_bytes":3},{"socket":7,"state_bytes":1}]}"#;
        let states = [1, b'\n', 255, 9];
        let bytes = [text.as_bytes(), b"\n", &states].concat();
        let record = Record::decode(&bytes).unwrap();
        let connections: Vec<(i32, &[u8])> = record
            .connections
            .iter()
            .map(|one| (one.socket, &one.state[..]))
            .collect();
        assert_eq!(connections, [(6, &states[..3]), (7, &states[3..])]);
        let memory = tempfile::tempfile().unwrap();
        record.write_to(&memory).unwrap();
        record.write_to(&memory).unwrap();
        let read = Record::read_from(&memory).unwrap();
        assert_eq!(format!("{read:?}"), format!("{record:?}"));
        for end in 0..bytes.len() {
            assert!(Record::decode(&bytes[..end]).is_err(), "{end}");
        }
        assert!(Record::decode(&[&bytes[..], b"x"].concat()).is_err());
        let other = Record::decode(b"{\"protocol\":1}").unwrap_err();
        assert_eq!(other.to_string(), "protocol 1");
    }
}
