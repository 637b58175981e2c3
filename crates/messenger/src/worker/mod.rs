//! The I/O thread: one for many connections.
//!
//! Owns every socket and the [`Node`] exclusively: parser, keys and sequence numbers need no lock.
//! It waits in `epoll_wait` and nowhere else. Handlers run on it and must not block; a blocking
//! `send` from one is refused, because it would wait for itself.
#![expect(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "the edge: the I/O thread owns sockets and the clock"
)]

mod listen;
mod socket;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{Timespec, epoll};

use crate::connection::{Command, Connection, Handler, Peer};
use crate::env::{Env, OsEntropy, Time};
use crate::fault::{CloseReason, Fault};
use crate::inbox::Inbox;
use crate::io_thread;
use crate::node::Node;
use crate::session::{Config, Event, LinkId, Output, SessionId};
use listen::Listener;
use socket::Socket;

/// One read takes at most this much, and one connection does at most [`READS_MAX`] of them before
/// the others are served.
const READ_BYTES: usize = 256 << 10;
const READS_MAX: usize = 4;
/// The same for writes.
const WRITES_MAX: usize = 16;
const EVENTS_MAX: usize = 256;
const TOKEN_WAKE: u64 = u64::MAX;
const TOKEN_LISTENER: u64 = 1 << 62;

struct Client {
    connection: Connection,
    handler: Arc<dyn Handler>,
}

/// The thread's state.
pub(crate) struct Worker {
    node: Node,
    config: Config,
    epoll: OwnedFd,
    inbox: Arc<Inbox<Command>>,
    start: Instant,
    entropy: OsEntropy,
    sockets: BTreeMap<LinkId, Socket>,
    listeners: Vec<Listener>,
    /// The listener that accepted a connection, until the connection names a session.
    listener_of: BTreeMap<LinkId, usize>,
    clients: BTreeMap<SessionId, Client>,
    /// Connections that may have bytes to send.
    to_flush: BTreeSet<LinkId>,
    /// The connection whose bytes are being processed.
    current: Option<LinkId>,
    resume_accept: Option<Time>,
    buf: Vec<u8>,
    running: bool,
}

impl Worker {
    pub(crate) fn new(node: Node, config: Config, inbox: Arc<Inbox<Command>>) -> io::Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let wake = epoll::EventData::new_u64(TOKEN_WAKE);
        epoll::add(&epoll, inbox.wake_fd(), wake, epoll::EventFlags::IN)?;
        Ok(Self {
            node,
            config,
            epoll,
            inbox,
            start: Instant::now(),
            entropy: OsEntropy,
            sockets: BTreeMap::new(),
            listeners: Vec::new(),
            listener_of: BTreeMap::new(),
            clients: BTreeMap::new(),
            to_flush: BTreeSet::new(),
            current: None,
            resume_accept: None,
            buf: vec![0; READ_BYTES],
            running: true,
        })
    }

    /// Runs until the shutdown command.
    pub(crate) fn run(mut self) {
        io_thread::mark();
        let mut events = Vec::with_capacity(EVENTS_MAX);
        let mut commands = Vec::new();
        while self.running {
            events.clear();
            let timeout = self.timeout();
            match epoll::wait(
                &self.epoll,
                rustix::buffer::spare_capacity(&mut events),
                timeout.as_ref(),
            ) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(e) => {
                    tracing::error!("epoll_wait: {e}: the messenger stops");
                    break;
                }
            }
            for event in &events {
                let (data, flags) = (event.data, event.flags);
                self.on_event(data.u64(), flags, &mut commands);
                self.drive();
            }
            self.on_time();
            self.drive();
        }
        self.finish();
    }

    fn now(&self) -> Time {
        self.start.elapsed()
    }

    fn timeout(&self) -> Option<Timespec> {
        if !self.to_flush.is_empty() {
            return Some(Timespec::default());
        }
        let next = [self.node.next_timer(), self.resume_accept]
            .into_iter()
            .flatten()
            .min()?;
        // Rounded up: a time-out that ends too early would need a second one.
        let left = next.saturating_sub(self.now()) + Duration::from_millis(1);
        Timespec::try_from(left).ok()
    }

    fn on_event(&mut self, token: u64, flags: epoll::EventFlags, commands: &mut Vec<Command>) {
        if token == TOKEN_WAKE {
            self.inbox.take(commands);
            for command in commands.drain(..) {
                self.on_command(command);
            }
        } else if token >= TOKEN_LISTENER {
            let at = usize::try_from(token - TOKEN_LISTENER).unwrap_or(usize::MAX);
            self.accept(at);
        } else {
            self.on_socket(LinkId(token), flags);
        }
    }

    fn on_command(&mut self, command: Command) {
        let now = self.now();
        let env = Env {
            now,
            entropy: &mut self.entropy,
        };
        match command {
            Command::Kick(session) => self.node.on_kick(env, session),
            Command::Open {
                owner,
                target,
                connection,
                handler,
            } => {
                let id = connection.session();
                self.clients.insert(
                    id,
                    Client {
                        connection,
                        handler,
                    },
                );
                self.node.open_with(env, id, owner, *target);
            }
            Command::Listen { listener, handler } => self.listen(listener, handler),
            Command::Shutdown => {
                self.node.shutdown(env);
                self.running = false;
            }
        }
    }

    fn register(&mut self, link: LinkId, socket: Socket, flags: epoll::EventFlags) {
        let data = epoll::EventData::new_u64(link.0);
        let added = epoll::add(&self.epoll, &socket.stream, data, flags);
        self.sockets.insert(link, socket);
        if let Err(e) = added {
            self.on_socket_lost(link, Fault::Io(io::Error::from(e).kind()));
        }
    }

    fn dial(&mut self, link: LinkId, addr: SocketAddr) {
        match Socket::dial(addr, self.config.keepalive_timeout * 2) {
            Ok(socket) => self.register(link, socket, epoll::EventFlags::OUT),
            Err(e) => self.on_socket_lost(link, Fault::Io(e.kind())),
        }
    }

    fn on_socket_lost(&mut self, link: LinkId, fault: Fault) {
        self.drop_socket(link);
        let env = Env {
            now: self.start.elapsed(),
            entropy: &mut self.entropy,
        };
        self.node.on_lost(env, link, fault);
    }

    fn drop_socket(&mut self, link: LinkId) {
        // Closing the descriptor takes it out of the epoll set.
        self.sockets.remove(&link);
        self.listener_of.remove(&link);
        self.to_flush.remove(&link);
    }

    fn on_socket(&mut self, link: LinkId, flags: epoll::EventFlags) {
        let Some(socket) = self.sockets.get_mut(&link) else {
            return;
        };
        if socket.connecting {
            match socket.finish_connect() {
                Ok(()) => {
                    self.watch(link, false);
                    let env = Env {
                        now: self.start.elapsed(),
                        entropy: &mut self.entropy,
                    };
                    self.node.on_connected(env, link);
                }
                Err(e) => self.on_socket_lost(link, Fault::Io(e.kind())),
            }
            return;
        }
        if flags.contains(epoll::EventFlags::OUT) {
            self.to_flush.insert(link);
        }
        let readable = epoll::EventFlags::IN | epoll::EventFlags::HUP | epoll::EventFlags::ERR;
        if flags.intersects(readable) {
            self.receive(link);
        }
    }

    fn watch(&mut self, link: LinkId, blocked: bool) {
        let Some(socket) = self.sockets.get_mut(&link) else {
            return;
        };
        socket.blocked = blocked;
        let mut flags = epoll::EventFlags::IN;
        if blocked {
            flags |= epoll::EventFlags::OUT;
        }
        let data = epoll::EventData::new_u64(link.0);
        if let Err(e) = epoll::modify(&self.epoll, &socket.stream, data, flags) {
            self.on_socket_lost(link, Fault::Io(io::Error::from(e).kind()));
        }
    }

    fn receive(&mut self, link: LinkId) {
        self.current = Some(link);
        for _ in 0..READS_MAX {
            #[cfg(feature = "meter")]
            let one = self.one_lock(link);
            #[cfg(feature = "meter")]
            let _held = one.as_ref().map(|l| l.lock(crate::outqueue::Site::Receive));
            let Some(socket) = self.sockets.get_mut(&link) else {
                break;
            };
            let read = socket.read(&mut self.buf);
            let n = match read {
                Ok(Some(n)) if n > 0 => n,
                Ok(None) => break,
                Ok(Some(_)) => {
                    self.on_socket_lost(link, Fault::Disconnected);
                    break;
                }
                Err(e) => {
                    self.on_socket_lost(link, Fault::Io(e.kind()));
                    break;
                }
            };
            let env = Env {
                now: self.start.elapsed(),
                entropy: &mut self.entropy,
            };
            self.node.on_bytes(env, link, &self.buf[..n]);
            #[cfg(feature = "meter")]
            drop(_held);
            self.handle_outputs();
            if n < READ_BYTES {
                break;
            }
        }
        self.current = None;
    }

    /// Carries out the node's outputs until there are none.
    fn drive(&mut self) {
        self.handle_outputs();
        // A link that is inserted again meanwhile has used up its turn and waits for the next.
        let to_flush = std::mem::take(&mut self.to_flush);
        for link in to_flush {
            self.transmit(link);
            self.handle_outputs();
        }
    }

    fn transmit(&mut self, link: LinkId) {
        for _ in 0..WRITES_MAX {
            #[cfg(feature = "meter")]
            let one = self.one_lock(link);
            #[cfg(feature = "meter")]
            let _held = one
                .as_ref()
                .map(|l| l.lock(crate::outqueue::Site::Transmit));
            let Some(socket) = self.sockets.get_mut(&link).filter(|s| !s.connecting) else {
                return;
            };
            let env = Env {
                now: self.start.elapsed(),
                entropy: &mut self.entropy,
            };
            let blocked = socket.blocked;
            let wrote = match self.node.poll_transmit(env, link) {
                Some(tx) if !tx.is_empty() => {
                    let wrote = socket.write(tx);
                    if let Ok(Some(n)) = wrote {
                        tx.advance(n);
                    }
                    wrote
                }
                _ => {
                    if blocked {
                        self.watch(link, false);
                    }
                    self.node.on_transmitted(link);
                    return;
                }
            };
            match wrote {
                Ok(Some(_)) => self.node.on_transmitted(link),
                Ok(None) => {
                    if !blocked {
                        self.watch(link, true);
                    }
                    return;
                }
                Err(e) => {
                    self.on_socket_lost(link, Fault::Io(e.kind()));
                    return;
                }
            }
        }
        self.to_flush.insert(link);
    }

    fn handle_outputs(&mut self) {
        while let Some(output) = self.node.poll_output() {
            match output {
                Output::Dial { link, addr } => self.dial(link, addr),
                Output::HangUp { link } => self.drop_socket(link),
                Output::Flush { link } => {
                    self.to_flush.insert(link);
                }
                Output::Accepted {
                    session,
                    queue,
                    peer,
                    remote,
                    lane,
                    lossy,
                } => {
                    let by = self.current.and_then(|link| self.listener_of.remove(&link));
                    let Some(listener) = by.and_then(|at| self.listeners.get(at)) else {
                        continue;
                    };
                    let peer = Peer {
                        name: peer,
                        remote,
                        lane,
                        lossy,
                    };
                    let inbox = Arc::clone(&self.inbox);
                    let connection = Connection::for_accepted(session, queue, inbox, peer);
                    let handler = Arc::clone(&listener.handler);
                    self.clients.insert(
                        session,
                        Client {
                            connection,
                            handler,
                        },
                    );
                }
                Output::Event { session, event } => self.deliver_event(session, event),
            }
        }
    }

    fn deliver_event(&mut self, session: SessionId, event: Event) {
        let over = matches!(event, Event::Closed { .. });
        let Some(client) = self.clients.get(&session) else {
            return;
        };
        crate::lockcheck::assert_none_held("a handler was called");
        let call = || client.handler.event(&client.connection, event);
        if catch_unwind(AssertUnwindSafe(call)).is_err() {
            // One application's bug ends its session, not the thread that serves all.
            tracing::error!(?session, "a handler panicked: its session is closed");
            client.connection.close();
        }
        if over {
            self.clients.remove(&session);
        }
    }

    fn on_time(&mut self) {
        let now = self.now();
        if self.resume_accept.is_some_and(|at| at <= now) {
            self.resume_accept = None;
            self.watch_listeners(epoll::EventFlags::IN);
        }
        if self.node.next_timer().is_some_and(|at| at <= now) {
            self.node.on_timer(Env {
                now,
                entropy: &mut self.entropy,
            });
        }
    }

    /// Delivers the last events, also for sessions whose open command came too late.
    fn finish(mut self) {
        let env = Env {
            now: self.start.elapsed(),
            entropy: &mut self.entropy,
        };
        self.node.shutdown(env);
        self.handle_outputs();
        for command in self.inbox.close() {
            if let Command::Open {
                mut owner,
                connection,
                handler,
                ..
            } = command
            {
                let unacknowledged = owner.close().into_iter().map(|e| e.message).collect();
                let reason = CloseReason::Shutdown;
                handler.event(
                    &connection,
                    Event::Closed {
                        reason,
                        unacknowledged,
                    },
                );
            }
        }
    }

    #[cfg(feature = "meter")]
    fn one_lock(&self, link: LinkId) -> Option<Arc<crate::connection::OneLock>> {
        let session = self.node.session_of(link)?;
        self.clients.get(&session)?.connection.one_lock()
    }
}

/// However the thread ends, no command is accepted any more; the queues close with their owners.
impl Drop for Worker {
    fn drop(&mut self) {
        drop(self.inbox.close());
    }
}
