//! What a program finds that takes a server's place, and its way back to the program before it.
//!
//! Until it serves, a failure, a panic or the deadline executes the old program again, with the same
//! descriptors: [`roll_back`]. From [`commit`] on there is no way back, and a failure is like any other.

use std::fs::File;
use std::io::{self, Read, Seek};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use nbd::codec::ConnectionState;
use nbd::server::{HandedConnection, HandedListener};

use super::{PROTOCOL, RECORD_VARIABLE, Record, SocketRecord, execute};

/// The way back, as long as there is one.
static WAY_BACK: Mutex<Option<RollbackTarget>> = Mutex::new(None);

/// There was one at the start.
static IS_EXPECTED: AtomicBool = AtomicBool::new(false);

#[derive(Debug)]
struct RollbackTarget {
    record: Record,
    previous: File,
    kept: Vec<OwnedFd>,
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
    /// With the address as the settings have it.
    pub(in crate::server) nbd: Vec<(String, HandedListener)>,
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
                tracing::error!(%error, "what the program before left cannot be used; this is a plain start");
                None
            }
        }
    }

    fn take(mut memory: File) -> io::Result<Incoming> {
        let mut bytes = Vec::new();
        memory.rewind()?;
        memory.read_to_end(&mut bytes)?;
        let record: Record = serde_json::from_slice(&bytes)?;
        if record.protocol != PROTOCOL {
            return Err(io::Error::other(format!("protocol {}", record.protocol)));
        }
        let mut kept = Vec::new();
        let mut take = |number: i32| -> io::Result<OwnedFd> {
            let passed = reactor::inherited_fd(number)?;
            let own = passed.try_clone()?;
            kept.push(passed);
            Ok(own)
        };
        let previous = File::from(take(record.previous)?);
        let mut incoming = Incoming {
            number: record.number,
            program: record.program.display().to_string(),
            returned: record.returned.clone(),
            lock: Some(File::from(take(record.lock)?)),
            ..Incoming::default()
        };
        for socket in &record.api {
            incoming.api.push(InheritedApiSocket {
                wanted: socket.wanted.clone(),
                socket: take(socket.socket)?,
                path_lock: socket.path_lock.map(&mut take).transpose()?.map(File::from),
            });
        }
        for SocketRecord {
            wanted,
            granted,
            socket,
            ..
        } in &record.nbd
        {
            let place = granted.parse().map_err(io::Error::other)?;
            let socket = take(*socket)?;
            incoming
                .nbd
                .push((wanted.clone(), HandedListener { place, socket }));
        }
        for connection in &record.connections {
            let socket = take(connection.socket)?;
            match ConnectionState::decode(&connection.state) {
                Ok(state) => incoming
                    .connections
                    .push(HandedConnection { socket, state }),
                Err(error) => tracing::error!(%error, "an NBD connection ends with the upgrade"),
            }
        }
        if record.returned.is_none() {
            let timeout = Duration::from_millis(record.timeout_ms);
            let way_back = RollbackTarget {
                record,
                previous,
                kept,
            };
            IS_EXPECTED.store(true, Ordering::SeqCst);
            *WAY_BACK.lock().unwrap_or_else(PoisonError::into_inner) = Some(way_back);
            roll_back_on_panic_or_timeout(timeout)?;
        }
        Ok(incoming)
    }
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
    let Some(mut way_back) = way_back else { return };
    eprintln!("firn: the new program does not come up ({why}); the old one goes on");
    way_back.record.returned = Some(why.to_owned());
    let error = execute(&way_back.previous, &way_back.record, &way_back.kept);
    eprintln!(
        "firn: the old program cannot be executed: {error}; no acknowledged write is lost: start the \
         server again"
    );
    std::process::exit(1);
}

/// Whether this program took the place of another one, and not its own place back.
pub(super) fn is_new_program() -> bool {
    IS_EXPECTED.load(Ordering::SeqCst)
}

/// From here on this program serves, and there is no way back.
pub(in crate::server) fn commit() {
    let way_back = WAY_BACK
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .take();
    // Another thread is about to execute the old program, which ends this one: it must serve nobody.
    while way_back.is_none() && IS_EXPECTED.load(Ordering::SeqCst) {
        std::thread::park();
    }
}
