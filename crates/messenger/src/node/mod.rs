//! All sessions and connections of one worker, without I/O.
//!
//! Owns the tables: which connection belongs to which session, which connections are not named
//! yet, which peer's lane is which session, and when each wants to be called. The worker feeds it
//! bytes, time and kicks, and carries out its [`Output`]s; the simulator does the same.
//! Everything a stranger can make it hold is bounded before authentication, by
//! [`Config::handshakes_max`] and the handshake's limits.

mod accept;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use crate::auth::Credentials;
use crate::env::{Env, Time};
use crate::fault::{CloseReason, Fault};
use crate::frame::TxBuf;
use crate::outqueue::{OutQueue, QueueOwner};
use crate::session::{Config, Counters, Cx, LinkId, Output, Session, SessionId, Target};
use accept::Pending;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Timer {
    Session(SessionId),
    Pending(LinkId),
}

/// What one node counted.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct NodeStats {
    /// Connections closed at once, because too many were not authenticated.
    pub handshakes_refused: u64,
    /// Accepted connections that ended before they named a session.
    pub handshakes_failed: u64,
    /// Reconnects refused: the session is not known.
    pub refused_reset: u64,
    /// Reconnects refused: an old connect sequence.
    pub refused_retry: u64,
    /// Refused: an old global sequence.
    pub refused_retry_global: u64,
    /// Refused: too many sessions.
    pub refused_wait: u64,
}

/// The sans-I/O core of a messenger.
#[derive(Debug)]
pub struct Node {
    config: Arc<Config>,
    credentials: Credentials,
    sessions: BTreeMap<SessionId, Session>,
    /// Accepted connections that have not named a session.
    pending: BTreeMap<LinkId, Pending>,
    by_link: BTreeMap<LinkId, SessionId>,
    /// The current lossless session of a peer's lane, on the accepting side.
    by_peer: BTreeMap<(String, u32), SessionId>,
    timers: BTreeSet<(Time, Timer)>,
    armed: BTreeMap<Timer, Time>,
    counters: Counters,
    next_session: u64,
    outputs: VecDeque<Output>,
    stats: NodeStats,
}

/// Borrows what a session's methods need, beside the tables.
macro_rules! cx {
    ($node:ident, $env:expr) => {
        Cx {
            env: Env {
                now: $env.now,
                entropy: &mut *$env.entropy,
            },
            out: &mut $node.outputs,
            counters: &mut $node.counters,
        }
    };
}
use cx;

impl Node {
    /// A node without sessions.
    pub fn new(config: Config, credentials: Credentials) -> Self {
        Self {
            config: Arc::new(config),
            credentials,
            sessions: BTreeMap::new(),
            pending: BTreeMap::new(),
            by_link: BTreeMap::new(),
            by_peer: BTreeMap::new(),
            timers: BTreeSet::new(),
            armed: BTreeMap::new(),
            counters: Counters::default(),
            next_session: 0,
            outputs: VecDeque::new(),
            stats: NodeStats::default(),
        }
    }

    /// The next order or event.
    pub fn poll_output(&mut self) -> Option<Output> {
        self.outputs.pop_front()
    }

    /// What was counted.
    pub fn stats(&self) -> NodeStats {
        self.stats
    }

    /// How many sessions and unnamed connections there are.
    pub fn load(&self) -> (usize, usize) {
        (self.sessions.len(), self.pending.len())
    }

    /// The queue of a session, while it lives.
    pub fn queue(&self, session: SessionId) -> Option<&Arc<OutQueue>> {
        self.sessions.get(&session).map(Session::queue)
    }

    /// When [`Node::on_timer`] wants to be called.
    pub fn next_timer(&self) -> Option<Time> {
        self.timers.first().map(|(at, _)| *at)
    }

    /// Opens a session; the queue takes messages from here on.
    pub fn open(&mut self, env: Env<'_>, target: Target) -> (SessionId, Arc<OutQueue>) {
        let id = self.new_session_id();
        let (queue, owner) = OutQueue::new(self.config.bounds);
        self.open_with(env, id, owner, target);
        (id, queue)
    }

    /// Opens a session under a name and with a queue that were made elsewhere, so that the caller
    /// has both without waiting for this thread.
    pub(crate) fn open_with(
        &mut self,
        env: Env<'_>,
        id: SessionId,
        owner: QueueOwner,
        target: Target,
    ) {
        let mut cx = cx!(self, env);
        let session = Session::open(id, &self.config, &self.credentials, target, owner, &mut cx);
        self.sessions.insert(id, session);
        self.update_tables(id);
    }

    /// Names given here have the top bit set; those given by `Messenger` do not.
    fn new_session_id(&mut self) -> SessionId {
        self.next_session += 1;
        SessionId(self.next_session | 1 << 63)
    }

    /// The session a connection belongs to, once it has named one.
    #[cfg(feature = "meter")]
    pub(crate) fn session_of(&self, link: LinkId) -> Option<SessionId> {
        self.by_link.get(&link).copied()
    }

    /// A dialled connection is made.
    pub fn on_connected(&mut self, mut env: Env<'_>, link: LinkId) {
        self.with_link(&mut env, link, Session::on_connected);
    }

    /// Processes bytes of a connection.
    pub fn on_bytes(&mut self, mut env: Env<'_>, link: LinkId, input: &[u8]) {
        if self.pending.contains_key(&link) {
            self.on_pending_bytes(&mut env, link, input);
        } else {
            self.with_link(&mut env, link, |session, cx| session.on_bytes(cx, input));
        }
    }

    /// A connection ended or could not be made.
    pub fn on_lost(&mut self, mut env: Env<'_>, link: LinkId, fault: Fault) {
        if let Some(pending) = self.pending.remove(&link) {
            self.arm(Timer::Pending(link), None);
            self.fail_pending(&pending, &fault);
            self.outputs.push_back(Output::HangUp { link });
            return;
        }
        self.with_link(&mut env, link, |session, cx| session.fault(cx, fault));
    }

    /// Somebody queued something while the worker was idle.
    pub fn on_kick(&mut self, mut env: Env<'_>, session: SessionId) {
        self.with_session(&mut env, session, Session::on_kick);
    }

    /// Time has passed.
    pub fn on_timer(&mut self, mut env: Env<'_>) {
        while let Some(&(at, timer)) = self.timers.first()
            && at <= env.now
        {
            self.arm(timer, None);
            match timer {
                Timer::Session(id) => self.with_session(&mut env, id, Session::on_timer),
                Timer::Pending(link) => {
                    let env = Env {
                        now: env.now,
                        entropy: &mut *env.entropy,
                    };
                    self.on_lost(env, link, Fault::HandshakeTimeout);
                }
            }
        }
    }

    /// Bytes for the socket of `link`, staged now. The caller takes them off with
    /// [`TxBuf::advance`] and then calls [`Node::on_transmitted`].
    pub fn poll_transmit(&mut self, mut env: Env<'_>, link: LinkId) -> Option<&mut TxBuf> {
        if let Some(&id) = self.by_link.get(&link) {
            self.with_session(&mut env, id, Session::fill);
            return self.sessions.get_mut(&id)?.tx();
        }
        self.pending.get_mut(&link).map(Pending::tx)
    }

    /// The socket took bytes: a refused connection whose last words are out is dropped.
    pub fn on_transmitted(&mut self, link: LinkId) {
        let spent = self.pending.get_mut(&link).is_some_and(|p| p.is_drained());
        if spent {
            self.pending.remove(&link);
            self.arm(Timer::Pending(link), None);
            self.outputs.push_back(Output::HangUp { link });
        }
    }

    /// Ends all sessions; each returns what it held.
    pub fn shutdown(&mut self, mut env: Env<'_>) {
        let ids: Vec<_> = self.sessions.keys().copied().collect();
        for id in ids {
            self.with_session(&mut env, id, |s, cx| s.close(cx, CloseReason::Shutdown));
        }
        for (link, _) in std::mem::take(&mut self.pending) {
            self.arm(Timer::Pending(link), None);
            self.outputs.push_back(Output::HangUp { link });
        }
    }

    fn with_link(
        &mut self,
        env: &mut Env<'_>,
        link: LinkId,
        f: impl FnOnce(&mut Session, &mut Cx<'_>),
    ) {
        if let Some(&id) = self.by_link.get(&link) {
            self.with_session(env, id, f);
        }
    }

    fn with_session(
        &mut self,
        env: &mut Env<'_>,
        id: SessionId,
        f: impl FnOnce(&mut Session, &mut Cx<'_>),
    ) {
        let Some(session) = self.sessions.get_mut(&id) else {
            return;
        };
        let before = session.link_id();
        f(session, &mut cx!(self, env));
        let after = session.link_id();
        if let Some(before) = before.filter(|b| Some(*b) != after) {
            self.by_link.remove(&before);
        }
        self.update_tables(id);
    }

    /// Brings the tables in line with a session that changed.
    fn update_tables(&mut self, id: SessionId) {
        let Some(session) = self.sessions.get(&id) else {
            return;
        };
        if let Some(link) = session.link_id() {
            self.by_link.insert(link, id);
        }
        let (next, closed) = (session.next_timer(), session.is_closed());
        self.arm(Timer::Session(id), next);
        if closed {
            self.sessions.remove(&id);
            self.by_peer.retain(|_, s| *s != id);
        }
    }

    fn arm(&mut self, timer: Timer, at: Option<Time>) {
        if self.armed.get(&timer).copied() == at {
            return;
        }
        if let Some(old) = self.armed.remove(&timer) {
            self.timers.remove(&(old, timer));
        }
        if let Some(at) = at {
            self.armed.insert(timer, at);
            self.timers.insert((at, timer));
        }
    }
}

#[cfg(all(test, not(feature = "loom")))]
mod tests;
