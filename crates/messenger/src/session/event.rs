//! Events for the application, and outputs for the driver: the worker or the simulator.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use super::{LinkId, SessionId};
use crate::fault::{CloseReason, Fault};
use crate::message::{Message, ReceivedMessage};
use crate::outqueue::OutQueue;

/// What happens to a session, in order, for the application.
#[derive(Debug)]
#[non_exhaustive]
pub enum Event {
    /// The session is open: for the first time, or again after a fault.
    Opened {
        /// The name the peer authenticated as.
        peer: String,
        /// The number a Ceph monitor gave us; 0 between hosts.
        global_id: u64,
    },
    /// A message, in order and once.
    Message(ReceivedMessage),
    /// The peer's application is done with the message that has this tid. Only with
    /// [`crate::Config::done_acks`].
    Done {
        /// As the sender set it.
        tid: u64,
        /// Its place in the session.
        seq: u64,
    },
    /// The connection failed. A lossless session continues: it reconnects, or is parked.
    Interrupted {
        /// Why.
        fault: Fault,
        /// Nothing was to be sent: the first send or keepalive reconnects.
        parked: bool,
    },
    /// The peer answered a keepalive.
    Alive {
        /// The round-trip time.
        round_trip: Duration,
    },
    /// The session is over. The last event.
    Closed {
        /// Why.
        reason: CloseReason,
        /// What was queued, or sent and not acknowledged, in order. Whether the peer acted on the
        /// ones that were sent is unknown.
        unacknowledged: Vec<Arc<Message>>,
    },
}

/// What the core wants its driver to do.
#[derive(Debug)]
pub enum Output {
    /// Make a connection; then `on_connected` or `on_lost`.
    Dial {
        /// Its name from here on.
        link: LinkId,
        /// Where to.
        addr: SocketAddr,
    },
    /// Drop a connection. The core expects no more of it.
    HangUp {
        /// Which.
        link: LinkId,
    },
    /// A connection may have bytes to send.
    Flush {
        /// Which.
        link: LinkId,
    },
    /// A peer opened a session; its first event follows.
    Accepted {
        /// Its name.
        session: SessionId,
        /// What senders share.
        queue: Arc<OutQueue>,
        /// The name the peer authenticated as.
        peer: String,
        /// Where the peer is.
        remote: SocketAddr,
        /// The peer's lane.
        lane: u32,
        /// Whether the session ends with its connection.
        lossy: bool,
    },
    /// Pass an event to the application.
    Event {
        /// Of which session.
        session: SessionId,
        /// What.
        event: Event,
    },
}
