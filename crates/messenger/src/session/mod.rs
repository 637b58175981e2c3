//! One session: an ordered stream of messages each way, that outlives its connections.
//!
//! Owns sequence numbers, the acknowledgements due to the peer, and which connection is current. It
//! does no I/O: bytes and time come in, bytes, outputs and events go out, so the worker and the
//! simulator drive the same code. It belongs to one worker; senders share only the out-queue.
//!
//! ```text
//! connecting side:  Backoff -> Dialing -> Handshake -> Identify -> Open -> Standby
//!                      ^----------------------'----------'----------'        |
//!                      '------------------ first send or keepalive ----------'
//! accepting side:   Open <-> Detached
//! both:             anything -> Closed
//! ```
//! Invariants:
//! - I1 `in_seq` is the newest message received whole and in order, and the only thing ever
//!   acknowledged. It says nothing about what the application did with it: that is `done`.
//! - I2 On a lossless session a message leaves the queue's lists only when the peer acknowledged
//!   it, or when the session closes and returns it to the application.
//! - I3 At most one connection is current; bytes of any other are ignored.
//! - I4 Nothing is sent again to a peer that does not prove, by both cookies, that it is in the
//!   same session.

mod config;
mod connect;
mod event;
mod flow;

pub use config::{Config, FEATURE_DONE, Target};
pub(crate) use connect::ClaimedLink;
pub use event::{Event, Output};

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use crate::auth::Credentials;
use crate::env::{Env, Time};
use crate::fault::{CloseReason, Fault};
use crate::frame::TxBuf;
use crate::link::{Link, Step};
use crate::outqueue::{Entry, OutQueue, QueueOwner, State};

/// Names a session inside one messenger.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SessionId(pub(crate) u64);

/// Names a connection inside one messenger.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LinkId(pub(crate) u64);

/// Counters of one messenger over all its sessions.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) links: u64,
    pub(crate) global_seq: u64,
}

/// What the methods of a session work with: time, randomness, outputs, counters.
pub(crate) struct Cx<'a> {
    pub(crate) env: Env<'a>,
    pub(crate) out: &'a mut VecDeque<Output>,
    pub(crate) counters: &'a mut Counters,
}

#[derive(Debug)]
enum Role {
    Initiator {
        target: Target,
        credentials: Credentials,
    },
    Acceptor {
        remote: SocketAddr,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Backoff { until: Time },
    Dialing { deadline: Time },
    Handshake { deadline: Time },
    Identify { deadline: Time, attempts: u32 },
    Open,
    Standby,
    Detached { until: Time },
    Closed,
}

#[derive(Debug)]
struct AttachedLink {
    id: LinkId,
    /// `None` while the connection is being made.
    io: Option<Link>,
}

#[derive(Debug, Default)]
struct Keepalive {
    /// When to send the next keepalive, while open or parked.
    next: Option<Time>,
    /// When the unanswered keepalive was sent.
    asked: Option<Time>,
    /// The peer's stamp to send back. One slot: many keepalives get one answer.
    owed: Option<crate::control::Stamp>,
    /// Send a keepalive as soon as the session is open.
    on_open: bool,
}

/// Which messages the receiving application has finished with.
#[derive(Debug, Default)]
struct DoneState {
    /// Our messages that the peer's application is not done with: sequence and tid.
    waiting: VecDeque<(u64, u64)>,
    /// The newest message of the peer that our application is done with.
    reported: u64,
    /// A Done frame has to be sent, again after each reconnect.
    owed: bool,
}

/// One side of a session. Driven by [`crate::node::Node`].
#[derive(Debug)]
pub struct Session {
    id: SessionId,
    config: Arc<Config>,
    role: Role,
    lossy: bool,
    owner: QueueOwner,
    phase: Phase,
    link: Option<AttachedLink>,
    peer_name: String,
    peer_features: u64,
    /// The newest global sequence of the peer, on the accepting side.
    peer_global_seq: u64,
    client_cookie: u64,
    server_cookie: u64,
    connect_seq: u64,
    out_seq: u64,
    /// Our newest message that the peer acknowledged.
    out_acked: u64,
    /// Our newest message that was staged on the current connection, or acknowledged before.
    out_staged: u64,
    in_seq: u64,
    /// The newest `in_seq` that was acknowledged to the peer.
    in_acked: u64,
    done: DoneState,
    keepalive: Keepalive,
    backoff: Duration,
    /// A list for acknowledged messages, kept so that none is allocated under the lock.
    acked: Vec<Entry>,
}

impl Session {
    fn new(
        id: SessionId,
        config: &Arc<Config>,
        role: Role,
        lossy: bool,
        owner: QueueOwner,
    ) -> Self {
        Self {
            id,
            config: Arc::clone(config),
            role,
            lossy,
            owner,
            phase: Phase::Standby,
            link: None,
            peer_name: String::new(),
            peer_features: 0,
            peer_global_seq: 0,
            client_cookie: 0,
            server_cookie: 0,
            connect_seq: 0,
            out_seq: 0,
            out_acked: 0,
            out_staged: 0,
            in_seq: 0,
            in_acked: 0,
            done: DoneState::default(),
            keepalive: Keepalive::default(),
            backoff: config.backoff_min,
            acked: Vec::new(),
        }
    }

    /// A connecting session; it dials at once.
    pub(crate) fn open(
        id: SessionId,
        config: &Arc<Config>,
        credentials: &Credentials,
        target: Target,
        owner: QueueOwner,
        cx: &mut Cx<'_>,
    ) -> Self {
        let credentials = target
            .credentials
            .clone()
            .unwrap_or_else(|| credentials.clone());
        let lossy = target.lossy;
        let role = Role::Initiator {
            target,
            credentials,
        };
        let mut session = Self::new(id, config, role, lossy, owner);
        if !lossy {
            session.client_cookie = nonzero(cx);
        }
        session.dial(cx);
        session
    }

    /// The part that senders share.
    pub fn queue(&self) -> &Arc<OutQueue> {
        self.owner.queue()
    }

    /// The state, from the worker's side.
    pub fn state(&self) -> State {
        self.owner.state()
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.phase == Phase::Closed
    }

    pub(crate) fn link_id(&self) -> Option<LinkId> {
        self.link.as_ref().map(|l| l.id)
    }

    /// Bytes for the socket of the current connection.
    pub(crate) fn tx(&mut self) -> Option<&mut TxBuf> {
        Some(&mut self.link.as_mut()?.io.as_mut()?.tx)
    }

    /// The peer, for logs.
    fn remote(&self) -> SocketAddr {
        match &self.role {
            Role::Acceptor { remote } => *remote,
            Role::Initiator { target, .. } => target
                .addr
                .socket
                .unwrap_or_else(|| SocketAddr::from(([0, 0, 0, 0], 0))),
        }
    }

    /// Processes bytes of the current connection.
    pub(crate) fn on_bytes(&mut self, cx: &mut Cx<'_>, mut input: &[u8]) {
        loop {
            let Some(io) = self.link.as_mut().and_then(|l| l.io.as_mut()) else {
                return;
            };
            let went_well = match io.step(&mut cx.env, &mut input) {
                Ok(None) => break,
                Ok(Some(Step::Ready)) => self.identify(cx),
                Ok(Some(Step::Frame(frame))) => self.on_frame(cx, &frame),
                Err(fault) => Err(fault),
            };
            if let Err(fault) = went_well {
                self.fault(cx, fault);
                return;
            }
        }
        self.flush(cx);
    }

    /// A sender has queued something and kicked.
    pub(crate) fn on_kick(&mut self, cx: &mut Cx<'_>) {
        match self.phase {
            Phase::Open => self.flush(cx),
            Phase::Standby => {
                self.owner.lock().set_state(State::Connecting);
                self.dial(cx);
            }
            _ => {}
        }
        if self.owner.lock().is_close_requested() {
            self.close(cx, CloseReason::ByOwner);
        }
    }

    /// When [`Session::on_timer`] wants to be called.
    pub(crate) fn next_timer(&self) -> Option<Time> {
        match self.phase {
            Phase::Backoff { until } | Phase::Detached { until } => Some(until),
            Phase::Dialing { deadline }
            | Phase::Handshake { deadline }
            | Phase::Identify { deadline, .. } => Some(deadline),
            Phase::Open => self.keepalive_timer(),
            Phase::Standby => self.keepalive.next,
            Phase::Closed => None,
        }
    }

    /// Time has passed.
    pub(crate) fn on_timer(&mut self, cx: &mut Cx<'_>) {
        let now = cx.env.now;
        match self.phase {
            Phase::Backoff { until } if until <= now => self.dial(cx),
            Phase::Detached { until } if until <= now => self.close(cx, CloseReason::PeerGone),
            Phase::Dialing { deadline }
            | Phase::Handshake { deadline }
            | Phase::Identify { deadline, .. }
                if deadline <= now =>
            {
                self.fault(cx, Fault::HandshakeTimeout);
            }
            Phase::Open => self.keepalive_due(cx),
            Phase::Standby if self.keepalive.next.is_some_and(|at| at <= now) => {
                self.keepalive.on_open = true;
                self.owner.lock().set_state(State::Connecting);
                self.dial(cx);
            }
            _ => {}
        }
    }

    /// Ends the session and returns what was not acknowledged.
    pub(crate) fn close(&mut self, cx: &mut Cx<'_>, reason: CloseReason) {
        if self.phase == Phase::Closed {
            return;
        }
        self.hang_up(cx);
        self.phase = Phase::Closed;
        let unacknowledged: Vec<_> = self.owner.close().into_iter().map(|e| e.message).collect();
        let (peer, name, n) = (self.remote(), &self.peer_name, unacknowledged.len());
        match &reason {
            CloseReason::ByOwner | CloseReason::Shutdown => {
                tracing::debug!(%peer, name, unacknowledged = n, "session closed: {reason}");
            }
            _ => tracing::warn!(%peer, name, unacknowledged = n, "session ended: {reason}"),
        }
        self.event(
            cx,
            Event::Closed {
                reason,
                unacknowledged,
            },
        );
    }

    fn event(&self, cx: &mut Cx<'_>, event: Event) {
        cx.out.push_back(Output::Event {
            session: self.id,
            event,
        });
    }

    fn flush(&self, cx: &mut Cx<'_>) {
        if let Some(link) = self.link_id() {
            cx.out.push_back(Output::Flush { link });
        }
    }

    fn hang_up(&mut self, cx: &mut Cx<'_>) {
        if let Some(link) = self.link.take() {
            cx.out.push_back(Output::HangUp { link: link.id });
        }
    }
}

/// A random number that is not 0: 0 means "no session" on the wire.
pub(crate) fn nonzero(cx: &mut Cx<'_>) -> u64 {
    loop {
        let word = cx.env.entropy.word();
        if word != 0 {
            return word;
        }
    }
}
