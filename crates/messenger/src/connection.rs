//! The application's handle of one session, its handler, and the commands that both sides of the
//! application's interface send to the worker.
#![expect(
    clippy::disallowed_types,
    reason = "a listening socket on its way to the worker"
)]

use std::fmt;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::time::Instant;

use crate::inbox::Inbox;
use crate::io_thread;
use crate::message::Message;
use crate::outqueue::{Kick, Load, OutQueue, QueueOwner, Refusal, SendError, State, Ticket};
use crate::session::{Event, SessionId, Target};

/// Receives the events of one session, or of all sessions that one listener accepts.
///
/// It is called on the I/O thread, for one event at a time and in order, with no lock held. It must
/// not block: everything else on that thread waits. A panic in it ends the session.
pub trait Handler: Send + Sync + 'static {
    /// Something happened.
    fn event(&self, connection: &Connection, event: Event);
}

impl<F: Fn(&Connection, Event) + Send + Sync + 'static> Handler for F {
    fn event(&self, connection: &Connection, event: Event) {
        self(connection, event);
    }
}

/// The peer that opened an accepted session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Peer {
    /// The name it authenticated as.
    pub name: String,
    /// Its address.
    pub remote: SocketAddr,
    /// Its lane.
    pub lane: u32,
    /// Whether the session ends with its connection.
    pub lossy: bool,
}

/// What other threads tell the worker to do.
pub(crate) enum Command {
    Kick(SessionId),
    Open {
        owner: QueueOwner,
        target: Box<Target>,
        connection: Connection,
        handler: Arc<dyn Handler>,
    },
    Listen {
        listener: TcpListener,
        handler: Arc<dyn Handler>,
    },
    Shutdown,
}

impl fmt::Debug for Command {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Kick(_) => "Kick",
            Self::Open { .. } => "Open",
            Self::Listen { .. } => "Listen",
            Self::Shutdown => "Shutdown",
        })
    }
}

/// The mutex of the benchmark's one-lock variant.
#[cfg(feature = "meter")]
pub(crate) type OneLock = crate::lock::MeteredLock;

struct Inner {
    session: SessionId,
    queue: Arc<OutQueue>,
    inbox: Arc<Inbox<Command>>,
    peer: Option<Peer>,
    #[cfg(feature = "meter")]
    one_lock: Option<Arc<OneLock>>,
}

/// A session, as its senders see it. Clones share it. Dropping the last one does not end it:
/// [`Connection::close`] does.
#[derive(Clone)]
pub struct Connection(Arc<Inner>);

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection")
            .field("session", &self.0.session)
            .field("peer", &self.0.peer)
            .finish_non_exhaustive()
    }
}

impl Connection {
    pub(crate) fn for_opened(
        session: SessionId,
        queue: Arc<OutQueue>,
        inbox: Arc<Inbox<Command>>,
        #[cfg(feature = "meter")] one_lock: Option<Arc<OneLock>>,
    ) -> Self {
        Self(Arc::new(Inner {
            session,
            queue,
            inbox,
            peer: None,
            #[cfg(feature = "meter")]
            one_lock,
        }))
    }

    pub(crate) fn for_accepted(
        session: SessionId,
        queue: Arc<OutQueue>,
        inbox: Arc<Inbox<Command>>,
        peer: Peer,
    ) -> Self {
        Self(Arc::new(Inner {
            session,
            queue,
            inbox,
            peer: Some(peer),
            #[cfg(feature = "meter")]
            one_lock: None,
        }))
    }

    /// Names the session inside its messenger.
    pub fn session(&self) -> SessionId {
        self.0.session
    }

    /// The peer, if it opened the session.
    pub fn peer(&self) -> Option<&Peer> {
        self.0.peer.as_ref()
    }

    /// Queues a message, or returns it with the reason. Never waits.
    pub fn try_send(&self, message: Message) -> Result<Ticket, SendError> {
        #[cfg(feature = "meter")]
        let _one = self
            .0
            .one_lock
            .as_ref()
            .map(|l| l.lock(crate::outqueue::Site::Send));
        let (ticket, kick) = self.0.queue.try_send(message)?;
        self.kick_worker(kick);
        Ok(ticket)
    }

    /// Queues a message; waits while the bound is reached, never for the socket.
    pub fn send(&self, message: Message) -> Result<Ticket, SendError> {
        self.send_until(message, None)
    }

    /// The same with a deadline, at which the message is returned.
    pub fn send_by(&self, message: Message, deadline: Instant) -> Result<Ticket, SendError> {
        self.send_until(message, Some(deadline))
    }

    fn send_until(&self, message: Message, deadline: Option<Instant>) -> Result<Ticket, SendError> {
        if io_thread::is_current() {
            return Err(SendError {
                message,
                reason: Refusal::OnIoThread,
            });
        }
        let (ticket, kick) = self.0.queue.send(message, deadline)?;
        self.kick_worker(kick);
        Ok(ticket)
    }

    /// Sends a keepalive; [`Event::Alive`] reports the answer. Wakes a parked session.
    pub fn keepalive(&self) -> Result<(), Refusal> {
        #[cfg(feature = "meter")]
        let _one = self
            .0
            .one_lock
            .as_ref()
            .map(|l| l.lock(crate::outqueue::Site::Keepalive));
        let kick = self.0.queue.keepalive()?;
        self.kick_worker(kick);
        Ok(())
    }

    /// The application's own acknowledgement: it is done with everything up to and including the
    /// message received as `seq`. That a message was received is acknowledged without it.
    pub fn acknowledge(&self, seq: u64) -> Result<(), Refusal> {
        let kick = self.0.queue.acknowledge(seq)?;
        self.kick_worker(kick);
        Ok(())
    }

    /// Removes a message that is still in the queue. `None`: too late, it is or was sent whole.
    pub fn revoke(&self, ticket: Ticket) -> Option<Arc<Message>> {
        self.0.queue.revoke(ticket)
    }

    /// Ends the session. From the return of this call nothing can be queued; what was comes back
    /// in [`Event::Closed`].
    pub fn close(&self) {
        let kick = self.0.queue.close();
        self.kick_worker(kick);
    }

    /// The session's state, as of now.
    pub fn state(&self) -> State {
        self.0.queue.state()
    }

    /// What is queued and unacknowledged, as of now.
    pub fn load(&self) -> Load {
        self.0.queue.load()
    }

    fn kick_worker(&self, kick: Kick) {
        if kick == Kick::Worker {
            // Refused only when the worker is gone, and then the session is closed.
            let _ = self.0.inbox.post(Command::Kick(self.0.session));
        }
    }

    /// What the session's locks cost: the out-queue's, and the one lock of the other variant.
    #[cfg(feature = "meter")]
    pub fn lock_stats(
        &self,
    ) -> (
        crate::outqueue::LockStats,
        Option<crate::outqueue::LockStats>,
    ) {
        (
            self.0.queue.lock_stats(),
            self.0.one_lock.as_ref().map(|l| l.stats()),
        )
    }

    #[cfg(feature = "meter")]
    pub(crate) fn one_lock(&self) -> Option<Arc<OneLock>> {
        self.0.one_lock.clone()
    }
}
