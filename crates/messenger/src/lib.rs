//! Sessions between hosts, where a sender never waits for the socket.
//!
//! Thousands of threads send on one session; one I/O thread does the socket work of many. Between
//! them is an out-queue with a small lock of its own, held for a push and three compares, never
//! while a socket is read or written, a checksum computed or a message freed. The wire is msgr2.1,
//! Ceph's second messenger protocol: the same code talks to a real Ceph monitor and OSD (without
//! authentication), and between our own hosts with a shared secret and AES-128-GCM.
//!
//! ```
//! use std::sync::mpsc;
//! use messenger::auth::{ClusterSecret, Credentials};
//! use messenger::{Config, Connection, Event, Message, Messenger, Target};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let credentials = |name: &str| -> Result<_, Box<dyn std::error::Error>> {
//!     let secret = ClusterSecret::new(b"from a file that only its owner reads")?;
//!     Ok(Credentials::Secret { name: name.to_owned(), secret })
//! };
//! let (messages, received) = mpsc::channel();
//! let b = Messenger::start(Config::default(), credentials("host-b")?)?;
//! let on_b = move |connection: &Connection, event: Event| {
//!     if let Event::Message(message) = event {
//!         let from = connection.peer().map(|peer| peer.name.clone());
//!         let _ = messages.send((from, message.payload.data));
//!     }
//! };
//! let addr = b.listen("127.0.0.1:0".parse()?, std::sync::Arc::new(on_b))?;
//!
//! let a = Messenger::start(Config::default(), credentials("host-a")?)?;
//! let nothing = |_: &Connection, _: Event| {};
//! let session = a.open(Target::lossless(addr), std::sync::Arc::new(nothing))?;
//! session.send(Message::data(1, 42, &b"hello"[..]))?;
//!
//! let (from, data) = received.recv()?;
//! assert_eq!((from.as_deref(), &data[..]), (Some("host-a"), &b"hello"[..]));
//! # Ok(())
//! # }
//! ```
//!
//! ```text
//! senders (any thread)        I/O thread (one per messenger)                       peer
//!   Connection::send
//!        | small lock
//!        v                     epoll
//!    OutQueue ---------------> Session: number, keep until acked --> frame --> socket
//!        ^                        |  ^
//!        | space                  |  '-- acks, reconnect and replay <-- frame <-- socket
//!        '-- acknowledged --------'
//!                                 '--> Handler::event (messages in order, once)
//! ```
//!
//! # What a session promises
//!
//! A lossless session outlives its connections:
//!
//! - Messages arrive once, in the order in which they were queued. What was not acknowledged is sent
//!   again, in order, after a reconnect. The receiver drops what it has seen; a gap is an error.
//! - The acknowledgement the messenger gives says *received in order*, not *done*. The second one
//!   only the application gives ([`Connection::acknowledge`], with [`Config::done_acks`]).
//! - A peer that lost the session (it restarted) is reported: the session ends with
//!   [`CloseReason::PeerLostSession`] and returns what was not acknowledged. Nothing is sent again to
//!   a peer that does not know the session, because it may have acted on it already.
//! - What is queued and what is sent but unacknowledged is bounded together ([`Bounds`]): `try_send`
//!   says so, `send` waits. Keepalives and acknowledgements pass the bound.
//! - After [`Connection::close`] returns nothing can be queued; a message is returned with the
//!   reason.
//! - A connection that fails while there is nothing to send parks the session; the first send or
//!   keepalive makes one new connection, however many callers there are.
//! - A message can be revoked until it is taken from the queue, and leaves no hole. One that was
//!   taken is sent whole.
//!
//! A lossy session ends with its connection. It is what Ceph grants its clients.
//!
//! The side that opened a session reconnects it; the accepting side keeps it for
//! [`Config::reattach_timeout`]. Each promise has a test of that name in `tests/peers/sessions.rs`.
//!
//! # How it is built
//!
//! Reading order, from the wire to the application; nothing points up:
//!
//! | module | owns |
//! |---|---|
//! | [`wire`], [`addr`], [`control`], [`message`] | layouts |
//! | [`frame`] | bytes to frames and back, crc and secure mode, resumable at every byte |
//! | [`auth`] | no authentication, and the shared secret |
//! | `link` | one connection: handshake, then frames |
//! | [`outqueue`] | the queue between senders and the worker, and its lock rules |
//! | [`session`] | sequence numbers, reconnect, acknowledgements, keepalives |
//! | [`node`] | all sessions and connections of one worker, the four refusals |
//! | `inbox`, `worker` | the I/O thread: its commands, epoll, sockets |
//! | [`Messenger`], [`Connection`] | the application's handles |
//!
//! Everything up to `node` does no I/O and reads no clock: the worker and the simulator (`sim`,
//! in test builds) drive the same code. `clippy.toml` of this crate denies clocks, sockets and randomness elsewhere.
#![forbid(unsafe_code)]
#![deny(clippy::iter_over_hash_type)]

pub mod addr;
pub mod auth;
mod connection;
pub mod control;
pub mod env;
pub mod fault;
pub mod frame;
mod inbox;
mod io_thread;
mod link;
mod lock;
mod lockcheck;
pub mod message;
mod messenger;
pub mod node;
pub mod outqueue;
pub mod session;
pub mod wire;
mod worker;

// In test builds only: unit tests, because only those are built with canaries.
#[cfg(all(test, not(feature = "loom")))]
#[path = "../tests/sim/mod.rs"]
mod sim;

pub use connection::{Connection, Handler, Peer};
pub use fault::{CloseReason, Fault};
pub use message::{Message, Payload, ReceivedMessage};
pub use messenger::{Messenger, StartError};
pub use outqueue::{Bounds, Load, Refusal, SendError, State, Ticket};
pub use session::{Config, Event, SessionId, Target};
