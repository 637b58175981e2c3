//! One thread, one ring, many devices and sockets.
//!
//! A [`Reactor`] owns a thread that sleeps only in its ring (or, where io_uring is refused, in
//! epoll). What lives on it are [`Source`]s: they begin operations through [`Cx`] and get one
//! completion for each. Other threads reach it by its [`Handle`]. It knows neither an engine nor
//! a transport, so NBD connections, ublk queues and committers share one thread, placed there by
//! whoever attaches them.
//!
//! This is the room for unsafe code of the data path. Memory that the kernel may write to is
//! owned by the operation ([`Buf`]) and held until the kernel is done, so the crate's interface
//! is safe; only a driver's command, whose meaning the crate does not know, is unsafe to make. Reading order: [`op`], [`Source`], [`Core`], `run`, `driver`.
#![allow(unsafe_code)]

mod buf;
mod core;
mod driver;
mod files;
mod flights;
mod handle;
mod memory;
pub mod op;
mod pool;
mod port;
mod run;
mod slots;
mod source;

pub use crate::buf::{BUF_ALIGN, Buf};
pub use crate::core::{Core, CoreStats};
pub use crate::driver::BackendKind;
#[cfg(feature = "fake")]
pub use crate::driver::CommandDriver;
pub use crate::files::FileIndex;
pub use crate::handle::{Handle, StoppedError};
pub use crate::memory::{DioAlign, SharedWords, memfd};
pub use crate::op::{Command, Completion, Op, OpId, SendPart, Token};
pub use crate::pool::{BufferPool, Need, PoolStats};
pub use crate::port::Port;
pub use crate::run::{BackendChoice, Config, Reactor, StopReport};
pub use crate::source::{Cx, Source, SourceId};
