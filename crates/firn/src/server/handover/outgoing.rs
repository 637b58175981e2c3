//! What a program makes ready before it stops, so that all it has to do then is to execute the next one.
//!
//! Descriptors and memory are had while the engine runs: whoever lacks them refuses the upgrade, and the clients stay.
//! Nothing here may open a file after that.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use nbd::server::Handover;
use reactor::MemoryKeeper;
use volume::JournalMark;

use super::check::CheckedProgram;
use super::{
    CacheRecord, ConnectionRecord, LastWords, PROTOCOL, Record, SocketRecord, execute, timeline,
};
use crate::config::{ApiListen, Settings};
use crate::failure::{Failure, FailureCode, Result};
use crate::frontends::nbd::{NbdFrontend, flag_value};
use crate::local_files::CacheFile;
use crate::memory_plan::MemoryPlan;
use crate::model::PassedSettings;

/// Descriptors that must be free for the next program, which needs some for a moment while it starts.
const SPARE_DESCRIPTORS: usize = 16;

/// A socket of the API, and its path's lock.
#[derive(Debug)]
pub(in crate::server) struct SocketToPass<'a> {
    pub(in crate::server) granted: ApiListen,
    pub(in crate::server) socket: BorrowedFd<'a>,
    pub(in crate::server) path_lock: Option<BorrowedFd<'a>>,
}

/// What stays with its owners until the next program is executed.
#[derive(Clone, Copy, Debug)]
pub(in crate::server) struct RetainedFiles<'a> {
    pub(in crate::server) api: &'a [SocketToPass<'a>],
    /// The cache directory's lock.
    pub(in crate::server) lock: BorrowedFd<'a>,
    /// Knows which address of the settings each of its listeners was bound for.
    pub(in crate::server) nbd: &'a NbdFrontend,
    /// The read cache's.
    pub(in crate::server) cache: &'a CacheFile,
}

/// All that a hand-over needs of the kernel but the connections.
#[derive(Debug)]
pub(in crate::server) struct Passage {
    number: u64,
    timeout_ms: u64,
    program: CheckedProgram,
    previous: File,
    memory: File,
    /// For the list of what the read cache holds.
    cache: File,
    /// The cache file's identity, once the list is there.
    listed: Option<(u64, u64)>,
    spare: Vec<OwnedFd>,
    /// So that clients need not wait until this program's memory is taken apart.
    keeper: Option<MemoryKeeper>,
}

impl Passage {
    /// Takes it, or refuses the upgrade.
    pub(in crate::server) fn prepare(
        number: u64,
        timeout_ms: u64,
        program: CheckedProgram,
    ) -> Result<Passage> {
        let keeper = MemoryPlan::has_room_for_two().then(MemoryKeeper::start);
        let keeper = keeper.and_then(|started| {
            started
                .inspect_err(|error| tracing::debug!(%error, "the memory goes with the program"))
                .ok()
        });
        let prepared = || -> io::Result<Passage> {
            let previous = File::open("/proc/self/exe")?;
            let memory = reactor::memfd(c"firn-handover", 0)?;
            let cache = reactor::memfd(c"firn-cache", 0)?;
            let spare = (0..SPARE_DESCRIPTORS).map(|_| previous.try_clone().map(OwnedFd::from));
            Ok(Passage {
                number,
                timeout_ms,
                program,
                spare: spare.collect::<io::Result<_>>()?,
                previous,
                memory: memory.into(),
                cache: cache.into(),
                listed: None,
                keeper,
            })
        };
        prepared().map_err(|source| refused(&source))
    }

    /// Keeps the list of what the cache file holds. Without it the next program's cache begins empty.
    pub(in crate::server) fn keep_cache_list(&mut self, list: &[u8], file: &CacheFile) {
        let mut memory = &self.cache;
        let kept = file.identity();
        match kept.and_then(|file| memory.write_all(list).map(|()| file)) {
            Ok(file) => self.listed = Some(file),
            Err(error) => tracing::warn!(%error, "what is in the read cache is not passed on"),
        }
    }

    /// Writes down what the next program gets. What was given away comes back if that fails.
    pub(in crate::server) fn complete(
        self,
        (settings, passed): (&Settings, PassedSettings),
        held: RetainedFiles<'_>,
        nbd: Handover,
    ) -> std::result::Result<Outgoing, (Failure, Handover)> {
        let wanted = settings.api.listen.iter();
        let api = wanted.zip(held.api).map(|(wanted, one)| SocketRecord {
            wanted: wanted.to_string(),
            granted: one.granted.to_string(),
            socket: one.socket.as_raw_fd(),
            path_lock: one.path_lock.map(|lock| lock.as_raw_fd()),
        });
        let listeners = nbd.listeners.iter().map(|one| SocketRecord {
            wanted: held.nbd.wanted_address(&one.place).unwrap_or_default(),
            granted: flag_value(&one.place),
            socket: one.socket.as_raw_fd(),
            path_lock: None,
        });
        let connections = nbd
            .connections
            .iter()
            .map(|one| ConnectionRecord::new(one.socket.as_raw_fd(), one.state.encode()));
        let record = Record {
            protocol: PROTOCOL,
            number: self.number,
            program: self.program.path.clone(),
            timeout_ms: self.timeout_ms,
            lock: held.lock.as_raw_fd(),
            previous: self.previous.as_raw_fd(),
            api: api.collect(),
            nbd: listeners.collect(),
            connections: connections.collect(),
            settings: passed,
            cache: self.listed.map(|(device, inode)| CacheRecord {
                list: self.cache.as_raw_fd(),
                device,
                inode,
            }),
            timeline: timeline::current(),
            returned: None,
        };
        let written = super::step("given").and_then(|()| {
            let written = record.write_to(&self.memory);
            written.map_err(|source| refused(&source))
        });
        match written {
            Ok(()) => Ok(Outgoing {
                record,
                nbd,
                passage: self,
            }),
            Err(failure) => Err((failure, nbd)),
        }
    }
}

fn refused(source: &io::Error) -> Failure {
    Failure::new(
        FailureCode::UpgradeRefused,
        format!(
            "this server cannot get what it needs to hand over: {source}; it goes on; look at its limits of \
             open files (LimitNOFILE=, ulimit -n) and memory"
        ),
    )
}

/// What is handed over, and to which program: all that is left to do is to execute it.
#[derive(Debug)]
pub(in crate::server) struct Outgoing {
    record: Record,
    nbd: Handover,
    passage: Passage,
}

impl Outgoing {
    /// How long the new program may take.
    pub(in crate::server) fn timeout(&self) -> Duration {
        Duration::from_millis(self.record.timeout_ms)
    }

    /// What was listed of the cache is not so any more.
    pub(in crate::server) fn forget_cache_list(&self) {
        if let Err(error) = self.passage.cache.set_len(0) {
            // It is a file in memory that nobody else has.
            tracing::error!(%error, "the list of what the read cache holds stays");
        }
    }

    /// Executes the new program; the old one again if that cannot be done. Returns only if neither can.
    pub(in crate::server) fn execute(
        mut self,
        held: RetainedFiles<'_>,
        journal: Option<JournalMark>,
    ) -> Failure {
        self.passage.spare.clear();
        let Passage {
            program,
            previous,
            memory,
            cache,
            keeper,
            ..
        } = &self.passage;
        let cache = self.record.cache.map(|_| cache.as_fd());
        let passed = || {
            let api = held.api.iter();
            let api = api
                .flat_map(|one| [Some(one.socket), one.path_lock])
                .flatten();
            let listeners = self.nbd.listeners.iter().map(|one| one.socket.as_fd());
            let connections = self.nbd.connections.iter().map(|one| one.socket.as_fd());
            let own = [held.lock, previous.as_fd()].into_iter();
            own.chain(cache)
                .chain(api)
                .chain(listeners)
                .chain(connections)
        };
        let last_words = LastWords {
            stopped_ns: timeline::now_ns(),
            journal,
            keeper: keeper.as_ref().map(MemoryKeeper::process),
        };
        let failed = execute(&program.file, memory, passed(), Some(last_words));
        self.record.returned = Some(format!(
            "executing {} failed: {failed}",
            program.path.display()
        ));
        let failed = match self.record.write_to(memory) {
            Ok(()) => execute(previous, memory, passed(), Some(last_words)),
            Err(error) => error,
        };
        Failure::internal(format!(
            "neither the new program nor this one can be executed: {failed}; no acknowledged write is lost: \
             start the server again"
        ))
    }
}
