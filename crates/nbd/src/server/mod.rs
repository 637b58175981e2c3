//! The NBD server: listeners and connections as sources on reactors.
//!
//! No task per request and no thread per connection: a connection lives on one reactor thread,
//! and its requests pass `blkmq`'s gate on that same thread. The server owns one control thread
//! for what may sleep (adding a hardware queue). `handover` has what passes to the server after this one.
//! Reading order: `conn`, `intake`, `transport`, `outbox`; between the two last lies the request engine (`serve`).

mod conn;
mod control;
mod export;
mod handed;
mod handover;
mod intake;
mod listen;
mod outbox;
mod parked;
mod registry;
mod tls;
#[cfg(any(test, fuzzing))]
pub(crate) mod tls_fuzz;
mod token;
mod transport;

use std::convert::Infallible;
use std::fmt;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::task::Waker;
use std::time::Duration;

use blkmq::io::Backend;
use reactor::Handle;

pub use export::{Export, Exports};
pub use handed::HandedConnection;
pub use handover::{AdoptError, Handover, HandoverRefused};
pub use listen::{HandedListener, Listen, ListenError, bind, check_place};
pub use serve::{BackendFile, latency};
pub use tls::{
    ClientIdentity, TlsConfig, TlsError, TlsOptions, TlsProvider, TlsSession, TlsStreamError,
    bytes_for_one_send, encrypt_front,
};

pub use crate::codec::ExportState;
use crate::codec::Tls;
use control::Control;
use registry::{Registry, Scope};

/// Bounds of a server.
#[derive(Clone, Debug)]
pub struct Options {
    /// Connections at a time.
    pub connections_max: usize,
    /// Requests that one connection may have outstanding (1 to 4096).
    pub requests_max: u16,
    /// Payload bytes that one connection may have outstanding before nothing more is received
    /// from it. One request more is always taken.
    pub bytes_max: usize,
    /// Of them, those that have chosen no export yet: the oldest gives way to one more.
    pub handshakes_max: usize,
    /// How long a client may take for its handshake.
    pub handshake_within: Duration,
    /// Of the connections, those that may wait for exports which are being opened. They are no handshakes in the
    /// two bounds above.
    pub parked_max: usize,
    /// How long a connection may wait so, in all.
    pub parked_within: Duration,
    /// How long a client may stall in the middle of a payload or of its replies while others
    /// wait for the buffers it keeps. With buffers to spare it may stall for ever.
    pub stalled_within: Duration,
    /// How often outstanding requests are looked at for time-outs.
    pub tick: Duration,
    /// TLS, where it is offered.
    pub tls: Option<TlsOptions>,
}

impl Options {
    fn tls_state(&self) -> Tls {
        match &self.tls {
            None => Tls::Absent,
            Some(tls) if tls.required => Tls::Required,
            Some(_) => Tls::Offered,
        }
    }
}

impl Default for Options {
    fn default() -> Self {
        Options {
            connections_max: 4096,
            requests_max: 256,
            bytes_max: 32 << 20,
            handshakes_max: 256,
            handshake_within: Duration::from_secs(10),
            parked_max: 2048,
            parked_within: Duration::from_secs(60),
            stalled_within: Duration::from_secs(30),
            tick: Duration::from_secs(1),
            tls: None,
        }
    }
}

/// What all connections of a server share.
struct Shared<B: Backend> {
    exports: Arc<dyn Exports<B>>,
    reactors: Vec<Handle>,
    next: AtomicUsize,
    options: Options,
    registry: Arc<Registry>,
    control: Control,
}

impl<B: Backend> Shared<B> {
    /// Connections are spread over the reactors in turn.
    fn next_reactor(&self) -> &Handle {
        let at = self.next.fetch_add(1, Ordering::Relaxed) % self.reactors.len();
        &self.reactors[at]
    }
}

/// How the connections of a server or an export ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DrainReport {
    /// Connections that had not finished by the deadline and were cut.
    pub cut: usize,
    /// Connections that are still there because the bytes of a request are still moving.
    pub remaining: usize,
}

/// How long after a cut the server waits for bytes in flight.
const CUT_WITHIN: Duration = Duration::from_secs(5);

struct BoundSocket {
    place: Listen,
    stop: Waker,
    /// The socket itself, for the server after this one.
    socket: Arc<OwnedFd>,
    /// Nothing ever comes, and there is no sender any more once the listener has left.
    ended: mpsc::Receiver<Infallible>,
}

/// A running server. Dropping it ends all connections at once.
pub struct Server<B: Backend> {
    shared: Arc<Shared<B>>,
    bound: Mutex<Vec<BoundSocket>>,
}

impl<B: Backend> Server<B> {
    /// A server of `exports` on these reactors, at least one. It listens nowhere yet.
    pub fn new(
        reactors: Vec<Handle>,
        exports: Arc<dyn Exports<B>>,
        options: Options,
    ) -> io::Result<Server<B>> {
        if reactors.is_empty() {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "no reactor to serve on",
            ));
        }
        let shared = Arc::new(Shared {
            exports,
            reactors,
            next: AtomicUsize::new(0),
            options,
            registry: Arc::default(),
            control: Control::start()?,
        });
        Ok(Server {
            shared,
            bound: Mutex::default(),
        })
    }

    /// Begins to listen; the place as it was granted. May wait for the reactor.
    pub fn listen(&self, listen: &Listen) -> io::Result<Listen> {
        let HandedListener { place, socket } = bind(listen)?;
        self.accept_at(socket, place.clone())?;
        Ok(place)
    }

    /// Begins to accept at a socket. Needs no further descriptor.
    fn accept_at(&self, socket: Arc<OwnedFd>, place: Listen) -> io::Result<()> {
        let accepting = Arc::clone(&socket);
        let (ended_to, ended) = mpsc::channel();
        let (stop_to, stop_from) = mpsc::sync_channel(1);
        let (shared, for_source) = (Arc::clone(&self.shared), place.clone());
        let attached = self.shared.next_reactor().attach(move |cx| {
            // The server waits for it, or has given up: either way this does not block.
            let _ = stop_to.try_send(cx.waker(0));
            let socket = cx.register(accepting);
            listen::Listener {
                shared,
                socket,
                place: for_source,
                _ended: ended_to,
            }
        });
        let stop = attached
            .ok()
            .and_then(|()| stop_from.recv().ok())
            .ok_or_else(|| io::Error::other("the reactor has stopped"))?;
        let bound = BoundSocket {
            place,
            stop,
            socket,
            ended,
        };
        self.bound
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(bound);
        Ok(())
    }

    /// Connections now.
    pub fn connections(&self) -> usize {
        self.shared.registry.count(Scope::All)
    }

    /// Connections to an export now.
    pub fn connections_to(&self, export: &str) -> usize {
        self.shared.registry.count(Scope::Export(export))
    }

    /// It was decided what comes of an export that was being opened: those that wait for it look it up again.
    pub fn wake_parked(&self, export: &str) {
        self.shared.registry.wake_parked(export);
    }

    /// Connections that wait for an export now.
    pub fn parked(&self) -> usize {
        self.shared.registry.parked()
    }

    /// Ends the connections to an export, which its owner has taken out of the directory: what
    /// is outstanding is answered until the deadline, then they are cut. May sleep.
    pub fn detach(&self, export: &Export<B>, within: Duration) -> DrainReport {
        self.end(Scope::Export(&export.name), within, || {
            export.device.remove()
        })
    }

    /// Stops listening and ends all connections in the same way. May sleep.
    pub fn stop(&self, within: Duration) -> DrainReport {
        let bound = std::mem::take(&mut *self.bound.lock().unwrap_or_else(PoisonError::into_inner));
        for one in bound {
            one.stop.wake();
            if let Listen::Unix(path) = one.place {
                // It may have been removed already, which is what is wanted.
                let _ = std::fs::remove_file(path);
            }
        }
        self.end(Scope::All, within, || ())
    }

    fn end(&self, scope: Scope<'_>, within: Duration, before_cut: impl FnOnce()) -> DrainReport {
        let registry = &self.shared.registry;
        registry.drain(scope);
        let cut = registry.wait_until_gone(scope, within);
        before_cut();
        registry.cut(scope);
        let remaining = registry.wait_until_gone(scope, CUT_WITHIN);
        DrainReport { cut, remaining }
    }
}

impl<B: Backend> Drop for Server<B> {
    fn drop(&mut self) {
        self.stop(Duration::ZERO);
        self.shared.control.stop();
    }
}

impl<B: Backend> fmt::Debug for Server<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Server")
            .field("connections", &self.connections())
            .finish_non_exhaustive()
    }
}
