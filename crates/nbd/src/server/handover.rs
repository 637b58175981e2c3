//! What passes from a server to the one that comes after it: listening sockets, and connections
//! between two requests, so that clients do not connect anew.
//!
//! A connection has one server at a time: [`Server::hand_over`] returns when this one reads and writes
//! none of the sockets any more, and only then may another begin. A server that is called off adopts
//! what it gave away itself. Nothing here knows how the parts reach another process.

use std::sync::{Arc, PoisonError, mpsc};
use std::time::{Duration, Instant};

use blkmq::io::Backend;

use super::conn::Connection;
use super::handed::HandedConnection;
use super::intake::Intake;
use super::listen::HandedListener;
use super::registry::Scope;
use super::tls::ClientIdentity;
use super::{DrainReport, Server};
use crate::codec::{ExportMismatch, ExportState};

/// How long connections that cannot go on elsewhere may take to end, while all others wait.
const CLOSE_WITHIN: Duration = Duration::from_secs(1);

/// What a server gave away.
#[derive(Debug, Default)]
pub struct Handover {
    /// Where it listened.
    pub listeners: Vec<HandedListener>,
    /// The connections that go on.
    pub connections: Vec<HandedConnection>,
    /// Those that ended instead: in the handshake, with TLS, not quiet by the deadline, or because the
    /// client left.
    pub closed: usize,
    /// How those ended that were not quiet by the deadline. While any remains, the bytes of a request
    /// move still, and may reach the files of its export.
    pub report: DrainReport,
}

/// Why a connection or a listener was not adopted. It is closed.
#[derive(Debug, thiserror::Error)]
pub enum AdoptError {
    /// There is no open export of that name, or not for clients who showed no certificate.
    #[error("adopting a connection to export \"{0}\": there is none of that name for it")]
    NoExport(String),
    /// The export is not what the client knows.
    #[error("adopting a connection to export \"{0}\": {1}")]
    Unfit(String, ExportMismatch),
    /// The bytes that came ahead have no place.
    #[error("adopting a connection to export \"{0}\": no memory")]
    NoMemory(String),
    /// Its reactor stops.
    #[error("adopting {0}: the reactor has stopped")]
    Stopped(String),
}

/// A hand-over that was called off: all clients are served as before.
#[derive(Debug, thiserror::Error)]
#[error("requests of {} NBD connections are not answered yet (of {})", .exports.len(), names(.exports))]
pub struct HandoverRefused {
    /// The export of each connection that was not quiet.
    pub exports: Vec<String>,
    /// Listeners and connections that ended because they could not be taken back.
    pub lost: usize,
}

fn names(exports: &[String]) -> String {
    let names: std::collections::BTreeSet<&str> = exports.iter().map(String::as_str).collect();
    names.into_iter().collect::<Vec<_>>().join(", ")
}

impl<B: Backend> Server<B> {
    /// Like [`Server::hand_over`], if every connection that can go on elsewhere is quiet within this time;
    /// else nothing has changed, and nobody is cut. Only when that is decided are connections closed that
    /// cannot go on: those in the handshake, and those with TLS. May sleep.
    pub fn try_hand_over(&self, within: Duration) -> Result<Handover, HandoverRefused> {
        let until = Instant::now() + within;
        let listeners = self.take_listeners(until);
        self.wait_for_arrivals(until);
        let registry = &self.shared.registry;
        let before = registry.begin_handover(Scope::Movable);
        let left = until - Instant::now().min(until);
        if registry.wait_until_gone(Scope::Movable, left) > 0 {
            return Err(self.call_off(listeners));
        }
        registry.drain(Scope::All);
        let left = until - Instant::now().min(until);
        let cut = registry.wait_until_gone(Scope::All, left.min(CLOSE_WITHIN));
        registry.cut(Scope::All);
        let remaining = registry.wait_until_gone(Scope::All, super::CUT_WITHIN);
        let connections = registry.take_handed_over();
        Ok(Handover {
            listeners,
            closed: before.saturating_sub(connections.len()),
            connections,
            report: DrainReport { cut, remaining },
        })
    }

    fn call_off(&self, listeners: Vec<HandedListener>) -> HandoverRefused {
        let (exports, connections) = self.shared.registry.cancel_handover();
        let lost = self.take_back(Handover {
            listeners,
            connections,
            ..Handover::default()
        });
        HandoverRefused { exports, lost }
    }

    /// Goes on with what this server gave away, which nobody else may have got. Needs no descriptor. Returns how many
    /// listeners and connections ended because they could not be taken back.
    pub fn take_back(&self, handed: Handover) -> usize {
        let connections = handed.connections.into_iter().map(|one| self.adopt(one));
        let mut lost = 0;
        for adopted in connections.chain(
            handed
                .listeners
                .into_iter()
                .map(|one| self.adopt_listener(one)),
        ) {
            if let Err(error) = adopted {
                tracing::error!(%error, "a client is lost to a hand-over that was called off");
                lost += 1;
            }
        }
        lost
    }

    /// Stops accepting and reading, answers what was taken, and gives listeners and connections away.
    /// What is not quiet within this time is cut. The server goes on without clients, and serves
    /// again those that it adopts. May sleep.
    pub fn hand_over(&self, within: Duration) -> Handover {
        let until = Instant::now() + within;
        let listeners = self.take_listeners(until);
        self.wait_for_arrivals(until);
        let registry = &self.shared.registry;
        let before = registry.begin_handover(Scope::All);
        let cut = registry.wait_until_gone(Scope::All, until - Instant::now().min(until));
        registry.cut(Scope::All);
        let remaining = registry.wait_until_gone(Scope::All, super::CUT_WITHIN);
        let connections = registry.take_handed_over();
        Handover {
            listeners,
            closed: before.saturating_sub(connections.len()),
            connections,
            report: DrainReport { cut, remaining },
        }
    }

    /// Waits until the connections that were accepted or adopted before are in the registry: each is on
    /// its way to a reactor, which takes what is posted to it in order.
    fn wait_for_arrivals(&self, until: Instant) {
        blkmq::may_block("waiting for connections to arrive");
        let (arrived_to, arrived) = mpsc::channel();
        for reactor in &self.shared.reactors {
            let arrived_to = arrived_to.clone();
            // One that has stopped takes no connections, and drops the sender. Nobody may wait any more
            // for what is sent late.
            let _ = reactor.post(move |_| {
                let _ = arrived_to.send(());
            });
        }
        drop(arrived_to);
        while arrived
            .recv_timeout(until - Instant::now().min(until))
            .is_ok()
        {}
    }

    fn take_listeners(&self, until: Instant) -> Vec<HandedListener> {
        let mut bound = self.bound.lock().unwrap_or_else(PoisonError::into_inner);
        let bound = std::mem::take(&mut *bound);
        bound.iter().for_each(|one| one.stop.wake_by_ref());
        let handed = bound.into_iter().map(|one| {
            // The sender's drop reports the end, so there is nothing to receive: either the listener has
            // left, or the time is over and the one who accepts next shares the queue with it.
            let _ = one.ended.recv_timeout(until - Instant::now().min(until));
            HandedListener {
                place: one.place,
                socket: one.socket,
            }
        });
        handed.collect()
    }

    /// Goes on with a connection that another server, or this one, gave away.
    pub fn adopt(&self, connection: HandedConnection) -> Result<(), AdoptError> {
        let state = &connection.state;
        let name = state.export.clone();
        // Only connections without TLS are given away, so the client has shown no certificate.
        let found = self.shared.exports.find(&name, &ClientIdentity::default());
        let export = match found {
            ExportState::Open(export) if !name.is_empty() && export.name == name => export,
            _ => return Err(AdoptError::NoExport(name)),
        };
        if let Err(unfit) = state.check_fits(&export.info()) {
            return Err(AdoptError::Unfit(name, unfit));
        }
        let Some(intake) = Intake::with_unread(&connection.state.unread) else {
            return Err(AdoptError::NoMemory(name));
        };
        self.shared.registry.end_handover();
        let shared = Arc::clone(&self.shared);
        let attached = self
            .shared
            .next_reactor()
            .attach(move |cx| Connection::resume(cx, shared, connection, (export, intake)));
        attached.map_err(|_| AdoptError::Stopped(format!("a connection to export \"{name}\"")))
    }

    /// Accepts at a socket that another server, or this one, gave away. May wait for the reactor.
    pub fn adopt_listener(&self, listener: HandedListener) -> Result<(), AdoptError> {
        self.shared.registry.end_handover();
        let place = listener.place.to_string();
        self.accept_at(listener.socket, listener.place)
            .map_err(|_| AdoptError::Stopped(format!("the socket at {place}")))
    }
}
