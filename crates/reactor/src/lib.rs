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

mod aligned;
mod buf;
mod buffer_slots;
mod call;
mod config;
mod core;
mod driver;
mod error;
mod event_loop;
mod exit;
mod files;
mod handle;
mod ids;
mod inbox;
mod memory;
pub mod op;
mod op_table;
mod pool;
mod port;
mod reactor;
mod stop;

pub use crate::aligned::BUF_ALIGN;
pub use crate::buf::Buf;
pub use crate::config::{BackendChoice, Config};
pub use crate::core::{Core, CoreStats, Cx, Source};
pub use crate::driver::BackendKind;
#[cfg(feature = "fake")]
pub use crate::driver::CommandDriver;
pub use crate::error::{StartError, StoppedError};
pub use crate::handle::Handle;
pub use crate::ids::{FileIndex, OpId, SourceId, Token};
pub use crate::memory::{DioAlign, SharedWords, memfd};
pub use crate::op::{Command, Completion, Op, SendPart};
pub use crate::pool::{BufferPool, Need, PoolStats};
pub use crate::port::Port;
pub use crate::reactor::Reactor;
pub use crate::stop::StopReport;
