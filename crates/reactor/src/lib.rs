//! One thread, one io_uring, many devices and sockets.
//!
//! A [`Reactor`] owns a thread that sleeps only in its ring (or in epoll, where io_uring is refused).
//! On it live [`Source`]s: listeners, connections, queues of devices, committers. A source begins
//! operations through [`Cx`] and gets exactly one completion for each. Other threads reach the reactor
//! by its [`Handle`]. The crate knows neither an engine nor a transport, so sources of different kinds
//! share one thread; the owner that attaches a source decides which.
//!
//! ```text
//!   other threads                          the reactor's thread
//!  +---------------+  post, attach   +---------------------------------------------+
//!  |    Handle     |---------------->|  inbox                                      |
//!  |    Waker      |  wake           |    |                                        |
//!  +---------------+                 |    v  on_wake, on_turn, on_stop             |
//!                                    |  Source <-----------------------+           |
//!                                    |    |  Cx::submit(Token, Op)     |           |
//!                                    |    v                            |           |
//!                                    |  core: slot in the table of     |           |
//!                                    |    |   operations, file, buffer |           |
//!                                    |    |                            |           |
//!                                    |    v  single calls     (Token, Completion)  |
//!                                    |  driver: ring or epoll          |           |
//!                                    |    |                            |           |
//!                                    +----|----------------------------|-----------+
//!                                         v  one enter per turn        |  raw results
//!                                    the kernel -----------------------+
//! ```
//!
//! # Memory
//!
//! Memory that the kernel may write to is owned by the operation ([`Buf`]) and returned with its
//! completion, so the crate's interface is safe and this crate is the place for the unsafe code of the
//! data path. Only a device [`Command`], whose meaning the crate does not know, is unsafe to make.
//! Buffers come from a [`BufferPool`] with a bound on the bytes lent; where it is empty, the request for
//! a buffer waits in order and ends with [`Completion::Buffer`].
//!
//! # Errors
//!
//! A completion carries what happened: the kernel's errno as [`std::io::Error`], or success for every
//! byte. Short transfers are continued here. What cannot be started is a [`StartError`].
//!
//! # What there is for devices
//!
//! Servers of block devices in user space (ublk) need two things that other sources do not: *armed
//! commands*, which wait in a device for as long as it has nothing to do, and *buffer slots*, by which
//! the kernel moves bytes between a device's request and a file. They are in `op/command.rs`,
//! `core/armed.rs`, `op/fixed.rs` and `buffer_slots.rs`, and nothing else in the crate is there for
//! devices.
//!
//! # Layers
//!
//! From the bottom up, each using only those before it: `ids`, `call`, `clock`, `error`, `aligned`; `pool/ledger`,
//! `buf`, `pool`; `op` (operations and what a raw result means); `files`, `buffer_slots`, `op_table`,
//! `inbox`, `stop` (the tables and queues of one thread); `driver` (ring, epoll); `core` (what sources
//! talk to); `port` and `handle`; `event_loop` (a turn); `reactor` (the thread). `memory` is apart: files
//! as memory, and what a file's direct I/O requires.
#![allow(unsafe_code)]

mod aligned;
mod buf;
mod buffer_slots;
mod call;
mod clock;
mod config;
mod core;
mod driver;
mod error;
mod event_loop;
mod exit;
mod files;
mod handle;
mod heap;
mod ids;
mod inbox;
mod inherited;
mod memory;
mod memory_keeper;
pub mod op;
mod op_table;
mod pool;
mod port;
mod reactor;
mod stop;

pub use crate::aligned::BUF_ALIGN;
pub use crate::buf::Buf;
pub use crate::clock::monotonic_ns;
pub use crate::config::{BackendChoice, Config};
pub use crate::core::{Core, CoreStats, Cx, Source};
pub use crate::driver::BackendKind;
#[cfg(feature = "fake")]
pub use crate::driver::CommandDriver;
pub use crate::error::{StartError, StoppedError};
pub use crate::handle::Handle;
pub use crate::heap::{HeapReserve, can_populate, populate_program, reserve_heap};
pub use crate::ids::{FileIndex, OpId, SourceId, Token};
pub use crate::inherited::inherited_fd;
pub use crate::memory::{DioAlign, SharedWords, memfd};
pub use crate::memory_keeper::{MemoryKeeper, wait_for_keeper};
pub use crate::op::{Command, Completion, Op, SendPart};
pub use crate::pool::{BufferPool, BufferPurpose, PoolStats};
pub use crate::port::Port;
pub use crate::reactor::Reactor;
pub use crate::stop::StopReport;
