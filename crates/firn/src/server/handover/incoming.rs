//! What a program finds that takes a server's place, and its way back to the program before it.
//!
//! Until it serves, a failure, a panic or the deadline executes the old program again, with the same
//! descriptors: [`roll_back`]. From [`Incoming::commit`] on there is no way back, and a failure is like any other.
//!
//! Connections and NBD's listeners stay with the way back until then, so that a program with thousands of clients
//! needs no more descriptors than the one before it had.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use nbd::codec::ConnectionState;
use nbd::server::{HandedConnection, HandedListener, Listen};
use volume::JournalMark;

use super::{
    ConnectionRecord, LastWords, RECORD_VARIABLE, Record, STOPPED_VARIABLE, SocketRecord, execute,
    timeline,
};
use crate::local_files::CacheFile;
use crate::model::PassedSettings;
use crate::server::process::UnfilledMemory;
use crate::server::service_manager::{KeepAlive, ServiceManager};

/// The way back, as long as there is one.
static WAY_BACK: Mutex<Option<RollbackTarget>> = Mutex::new(None);

/// There was one at the start.
static IS_EXPECTED: AtomicBool = AtomicBool::new(false);

/// This program serves.
static HAS_COMMITTED: AtomicBool = AtomicBool::new(false);

/// How much longer the old program may take, back again: its disk may be as slow as it was for the new one.
const RETURN_TIMEOUT: Duration = Duration::from_secs(120);

/// What came along, by its number.
type Passed = BTreeMap<i32, OwnedFd>;

#[derive(Debug)]
struct RollbackTarget {
    record: Record,
    memory: File,
    passed: Passed,
}

/// A socket of the API that came along.
#[derive(Debug)]
pub(in crate::server) struct InheritedApiSocket {
    pub(in crate::server) wanted: String,
    pub(in crate::server) socket: OwnedFd,
    pub(in crate::server) path_lock: Option<File>,
}

/// All that came along.
#[derive(Debug, Default)]
pub(crate) struct Incoming {
    pub(in crate::server) number: u64,
    pub(in crate::server) program: String,
    /// This is the old program again, and why.
    pub(in crate::server) returned: Option<String>,
    pub(in crate::server) lock: Option<File>,
    pub(in crate::server) api: Vec<InheritedApiSocket>,
    nbd: Vec<SocketRecord>,
    connections: Vec<ConnectionRecord>,
    /// What was changed while the program before ran.
    pub(in crate::server) settings: PassedSettings,
    /// Of the old program, to which there is no way back.
    passed: Passed,
    timeout: Duration,
    /// Memory of the process that it fills once it serves.
    pub(in crate::server) unfilled_memory: Option<UnfilledMemory>,
    /// Where the log's journal ended.
    pub(in crate::server) journal: Option<JournalMark>,
    /// What the read cache holds.
    pub(in crate::server) cache: Option<IncomingCache>,
    /// A child that has the old program's memory, and is to be waited for.
    keeper: Option<i32>,
    alive: Option<KeepAlive>,
}

/// What the file of the read cache holds, by the program that had it.
#[derive(Debug)]
pub(in crate::server) struct IncomingCache {
    list: File,
    /// Device and inode of the cache file.
    file: (u64, u64),
}

impl IncomingCache {
    /// Whether that is the file.
    pub(in crate::server) fn is_of(&self, cache: &CacheFile) -> bool {
        cache.identity().is_ok_and(|found| found == self.file)
    }

    /// Reads the list.
    pub(in crate::server) fn read(mut self) -> io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        self.list.rewind()?;
        self.list.read_to_end(&mut bytes)?;
        Ok(bytes)
    }
}

/// The NBD clients of the program before.
#[derive(Debug, Default)]
pub(in crate::server) struct IncomingClients {
    /// With the address as the settings have it.
    pub(in crate::server) listeners: Vec<(String, HandedListener)>,
    pub(in crate::server) connections: Vec<HandedConnection>,
}

impl Incoming {
    /// What the program before left, if this one takes its place. Must be called once, first.
    pub(crate) fn of_environment() -> Option<Incoming> {
        let number = std::env::var(RECORD_VARIABLE).ok()?.parse().ok()?;
        // The variable stays in the environment of whatever this process starts later; the descriptor does not.
        let memory = reactor::inherited_fd(number).ok()?;
        // It was executed by the number of a descriptor, which is its name in `ps` else.
        let _ = rustix::thread::set_name(c"firn");
        match Self::take(File::from(memory)) {
            Ok(incoming) => Some(incoming),
            Err(error) => {
                roll_back(&format!("it cannot take what was passed to it: {error}"));
                tracing::error!(%error, "what the program before left cannot be used; this is a plain start");
                None
            }
        }
    }

    fn take(memory: File) -> io::Result<Incoming> {
        let record = Record::read_from(&memory)?;
        note_steps_before(&record);
        let claim = |number| Ok((number, reactor::inherited_fd(number)?));
        let passed = record.descriptors().map(claim);
        let passed = passed.collect::<io::Result<Passed>>()?;
        if record.returned.is_some() {
            return Self::of(&record, passed);
        }
        let mut way_back = WAY_BACK.lock().unwrap_or_else(PoisonError::into_inner);
        let way_back = way_back.insert(RollbackTarget {
            record: record.clone(),
            memory,
            passed,
        });
        IS_EXPECTED.store(true, Ordering::SeqCst);
        roll_back_on_panic_or_timeout(Duration::from_millis(record.timeout_ms))?;
        // What this program needs before it serves is its own. The rest is claimed when it commits.
        let mut early = Passed::new();
        let sockets = record.api.iter();
        let sockets = sockets.flat_map(|one| [Some(one.socket), one.path_lock]);
        let cache = record.cache.map(|cache| cache.list);
        for number in sockets.flatten().chain([record.lock]).chain(cache) {
            let own = way_back
                .passed
                .get(&number)
                .ok_or(io::ErrorKind::NotFound)?;
            early.insert(number, own.try_clone()?);
        }
        Self::of(&record, early)
    }

    fn of(record: &Record, mut passed: Passed) -> io::Result<Incoming> {
        let mut take = |number: i32| passed.remove(&number).ok_or(io::ErrorKind::NotFound);
        let lock = Some(File::from(take(record.lock)?));
        let api = record.api.iter().map(|socket| {
            Ok(InheritedApiSocket {
                wanted: socket.wanted.clone(),
                socket: take(socket.socket)?,
                path_lock: socket.path_lock.map(&mut take).transpose()?.map(File::from),
            })
        });
        let api = api.collect::<io::Result<_>>()?;
        let cache = record.cache.map(|cache| {
            io::Result::Ok(IncomingCache {
                list: File::from(take(cache.list)?),
                file: (cache.device, cache.inode),
            })
        });
        Ok(Incoming {
            number: record.number,
            program: record.program.display().to_string(),
            returned: record.returned.clone(),
            lock,
            api,
            cache: cache.transpose()?,
            nbd: record.nbd.clone(),
            connections: record.connections.clone(),
            settings: record.settings.clone(),
            passed,
            timeout: Duration::from_millis(record.timeout_ms),
            unfilled_memory: None,
            journal: last_words().and_then(|words| words.journal),
            keeper: last_words().and_then(|words| words.keeper),
            alive: None,
        })
    }

    /// Whether this program takes the place of another one, whose clients wait.
    pub(in crate::server) fn takes_over(&self) -> bool {
        self.number > 0
    }

    /// Waits for the memory of the program before. Takes some time.
    pub(in crate::server) fn take_keeper(&mut self) -> impl FnOnce() + Send + 'static {
        let keeper = self.keeper.take();
        move || keeper.into_iter().for_each(reactor::wait_for_keeper)
    }

    /// Feeds the service manager's watchdog for as long as it is kept.
    pub(in crate::server) fn take_keep_alive(&mut self) -> Option<KeepAlive> {
        self.alive.take()
    }

    /// Feeds the service manager's watchdog until this program serves.
    pub(in crate::server) fn keep_alive(&mut self, manager: &Arc<ServiceManager>) {
        if self.number > 0 {
            // The old program, back again, has nobody else who watches over it.
            let more = self
                .returned
                .as_ref()
                .map_or(Duration::ZERO, |_| RETURN_TIMEOUT);
            self.alive = manager.keep_alive(self.timeout + more);
        }
    }

    /// The volumes whose clients wait for this program; none if it takes nobody's place.
    pub(in crate::server) fn volumes_in_use(&self) -> Option<BTreeSet<String>> {
        let states = self.connections.iter();
        let states = states.filter_map(|one| ConnectionState::decode(&one.state).ok());
        let names = || states.map(|state| state.export).collect();
        self.takes_over().then(names)
    }

    /// Whether a listener of NBD came along for this address of the settings.
    pub(in crate::server) fn listens_at(&self, wanted: &str) -> bool {
        self.nbd.iter().any(|one| one.wanted == wanted)
    }

    /// From here on this program serves, and there is no way back: the clients are its own.
    pub(in crate::server) fn commit(&mut self) -> IncomingClients {
        let mut way_back = WAY_BACK
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        // It must serve nobody, where there was a way back and another thread has taken it.
        if way_back.is_none() {
            end_with_way_back();
        }
        HAS_COMMITTED.store(true, Ordering::SeqCst);
        if let Some(way_back) = &mut way_back {
            self.passed = std::mem::take(&mut way_back.passed);
        }
        let mut clients = IncomingClients::default();
        for one in std::mem::take(&mut self.nbd) {
            let place: Option<Listen> = one.granted.parse().ok();
            match (place, self.passed.remove(&one.socket)) {
                (Some(place), Some(socket)) => {
                    let socket = Arc::new(socket);
                    let listener = HandedListener { place, socket };
                    clients.listeners.push((one.wanted, listener));
                }
                _ => tracing::error!(place = %one.granted, "an NBD listener ends with the upgrade"),
            }
        }
        for one in std::mem::take(&mut self.connections) {
            let state = ConnectionState::decode(&one.state);
            match (state, self.passed.remove(&one.socket)) {
                (Ok(state), Some(socket)) => {
                    let socket = Arc::new(socket);
                    clients.connections.push(HandedConnection { socket, state });
                }
                (state, _) => {
                    tracing::error!(?state, "an NBD connection ends with the upgrade");
                }
            }
        }
        if let (true, Some(way_back)) = (canary::active!("way_back_for_ever"), way_back) {
            let passed = std::mem::take(&mut self.passed);
            let way_back = RollbackTarget { passed, ..way_back };
            *WAY_BACK.lock().unwrap_or_else(PoisonError::into_inner) = Some(way_back);
        }
        self.passed.clear();
        clients
    }
}

fn last_words() -> Option<LastWords> {
    LastWords::from_text(&std::env::var(STOPPED_VARIABLE).ok()?)
}

/// What the old program took, and the kernel to execute this one.
fn note_steps_before(record: &Record) {
    timeline::replace(record.timeline.clone());
    if let Some(words) = last_words() {
        timeline::note("stopped", words.stopped_ns);
    }
    timeline::note("executed", timeline::now_ns());
}

/// A panic on any thread, and the deadline, lead back.
fn roll_back_on_panic_or_timeout(timeout: Duration) -> io::Result<()> {
    let before = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        before(panic);
        roll_back(&format!("it panicked: {panic}"));
    }));
    let watch = std::thread::Builder::new().name("firn-handover".to_owned());
    watch.spawn(move || {
        std::thread::sleep(timeout);
        roll_back(&format!(
            "it did not serve within {} s",
            timeout.as_secs_f64()
        ));
    })?;
    Ok(())
}

/// Executes the old program again, if this one took its place and does not serve yet. Else returns.
pub(crate) fn roll_back(why: &str) {
    let way_back = WAY_BACK
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .take();
    let Some(way_back) = way_back else {
        return end_with_way_back();
    };
    say(&format!(
        "the new program does not come up ({why}); the old one goes on"
    ));
    let keeper = last_words().and_then(|words| words.keeper);
    keeper.into_iter().for_each(reactor::wait_for_keeper);
    let RollbackTarget {
        mut record,
        memory,
        mut passed,
    } = way_back;
    record.returned = Some(why.to_owned());
    // This program may have written to the cache file.
    if let Some(cache) = record.cache.take() {
        passed.remove(&cache.list);
    }
    let error = match (record.write_to(&memory), passed.remove(&record.previous)) {
        (Ok(()), Some(previous)) => {
            let previous = File::from(previous);
            let all = passed.values().map(AsFd::as_fd).chain([previous.as_fd()]);
            execute(&previous, &memory, all, None)
        }
        (Err(error), _) => error,
        (_, None) => io::ErrorKind::NotFound.into(),
    };
    say(&format!(
        "the old program cannot be executed: {error}; no acknowledged write is lost: start the server again"
    ));
    std::process::exit(1);
}

/// A line on standard error. Nobody may read it, which must not keep the old program from going on.
fn say(line: &str) {
    let _ = writeln!(io::stderr(), "firn: {line}");
}

/// Where another thread is about to execute the old program, this one waits for the end that it brings: a failure that comes to its own
/// end meanwhile would end the process, and all clients with it. Returns at once where there is no such thread.
fn end_with_way_back() {
    while IS_EXPECTED.load(Ordering::SeqCst) && !HAS_COMMITTED.load(Ordering::SeqCst) {
        std::thread::park();
    }
}

/// Whether this program took the place of another one, and not its own place back.
pub(super) fn is_new_program() -> bool {
    IS_EXPECTED.load(Ordering::SeqCst)
}
