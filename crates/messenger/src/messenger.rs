//! A messenger: one I/O thread, the sessions on it, and the listeners.
#![expect(
    clippy::disallowed_types,
    reason = "the edge: binds listening sockets for the worker"
)]

use std::fmt;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;

use thiserror::Error;

use crate::auth::{AuthError, Credentials, check_name};
use crate::connection::{Command, Connection, Handler};
use crate::inbox::Inbox;
use crate::io_thread;
use crate::node::Node;
use crate::outqueue::OutQueue;
use crate::session::{Config, SessionId, Target};
use crate::worker::Worker;

/// Why a messenger cannot start or listen.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum StartError {
    /// The configured name of this host cannot be used.
    #[error("host name {name:?}: {source}")]
    Name {
        /// As configured.
        name: String,
        /// What is wrong with it.
        source: AuthError,
    },
    /// The thread or its descriptors cannot be made.
    #[error("starting the messenger's I/O thread: {0}")]
    Start(#[source] io::Error),
    /// The address cannot be listened on.
    #[error("listening for hosts on {addr}: {source}")]
    Listen {
        /// Which.
        addr: SocketAddr,
        /// Why.
        source: io::Error,
    },
    /// The messenger is shut down.
    #[error("the messenger is shut down")]
    Ended,
}

/// One I/O thread and everything on it. Dropping it ends all its sessions.
pub struct Messenger {
    inbox: Arc<Inbox<Command>>,
    config: Config,
    next_session: AtomicU64,
    thread: Option<JoinHandle<()>>,
    #[cfg(feature = "meter")]
    one_lock: bool,
}

impl fmt::Debug for Messenger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Messenger").finish_non_exhaustive()
    }
}

impl Messenger {
    /// Starts the I/O thread.
    pub fn start(config: Config, credentials: Credentials) -> Result<Self, StartError> {
        check_name(credentials.name()).map_err(|source| StartError::Name {
            name: credentials.name().to_owned(),
            source,
        })?;
        let inbox = Inbox::new().map_err(|e| StartError::Start(e.into()))?;
        let inbox = Arc::new(inbox);
        let node = Node::new(config.clone(), credentials);
        let worker = Worker::new(node, config.clone(), Arc::clone(&inbox));
        let worker = worker.map_err(StartError::Start)?;
        let builder = std::thread::Builder::new().name("messenger-io".to_owned());
        let thread = builder
            .spawn(move || worker.run())
            .map_err(StartError::Start)?;
        Ok(Self {
            inbox,
            config,
            next_session: AtomicU64::new(1),
            thread: Some(thread),
            #[cfg(feature = "meter")]
            one_lock: false,
        })
    }

    /// From here on sessions that are opened use one mutex for queue and socket work, as if the
    /// out-queue had none of its own: the benchmark's one-lock variant.
    #[cfg(feature = "meter")]
    pub fn use_one_lock(&mut self, yes: bool) {
        self.one_lock = yes;
    }

    /// What the lock of the worker's inbox has cost so far.
    #[cfg(feature = "meter")]
    pub fn inbox_stats(&self) -> crate::outqueue::LockStats {
        self.inbox.lock_stats()
    }

    /// Accepts sessions on `addr`; the address it is bound to.
    pub fn listen(
        &self,
        addr: SocketAddr,
        handler: Arc<dyn Handler>,
    ) -> Result<SocketAddr, StartError> {
        let failed = |source| StartError::Listen { addr, source };
        let listener = TcpListener::bind(addr).map_err(failed)?;
        listener.set_nonblocking(true).map_err(failed)?;
        let bound = listener.local_addr().map_err(failed)?;
        self.inbox
            .post(Command::Listen { listener, handler })
            .map_err(|_| StartError::Ended)?;
        Ok(bound)
    }

    /// Opens a session. It connects in the background; messages can be sent at once.
    pub fn open(
        &self,
        target: Target,
        handler: Arc<dyn Handler>,
    ) -> Result<Connection, StartError> {
        let session = SessionId(self.next_session.fetch_add(1, Ordering::Relaxed));
        let (queue, owner) = OutQueue::new(self.config.bounds);
        let inbox = Arc::clone(&self.inbox);
        #[cfg(feature = "meter")]
        let one_lock = self.one_lock.then(Arc::default);
        let connection = Connection::for_opened(
            session,
            queue,
            inbox,
            #[cfg(feature = "meter")]
            one_lock,
        );
        let (target, given) = (Box::new(target), connection.clone());
        let command = Command::Open {
            owner,
            target,
            connection: given,
            handler,
        };
        self.inbox.post(command).map_err(|_| StartError::Ended)?;
        Ok(connection)
    }

    /// Ends all sessions and waits for the thread. Every session has had its last event then.
    pub fn shutdown(mut self) {
        self.end();
    }

    fn end(&mut self) {
        let _ = self.inbox.post(Command::Shutdown);
        let Some(thread) = self.thread.take() else {
            return;
        };
        // A handler may hold the last reference: the thread cannot wait for itself.
        if !io_thread::is_current() && thread.join().is_err() {
            tracing::error!("the messenger's I/O thread panicked");
        }
    }
}

impl Drop for Messenger {
    fn drop(&mut self) {
        self.end();
    }
}
