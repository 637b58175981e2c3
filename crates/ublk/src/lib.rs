//! Linux's ublk interface: block devices (`/dev/ublkbN`) whose requests a process serves.
//!
//! The crate can be used by itself. What serves the requests is a [`queue::Handler`], or a
//! `blkmq::io::Backend` behind a [`BackendHandler`]. The rings belong to `reactor`, except the small one
//! for control commands. It needs Linux 6.5 or newer with the module `ublk_drv`.
//!
//! ```text
//!  /dev/ublk-control                    /dev/ublkcN: FETCH, COMMIT_AND_FETCH
//!        |                                         |
//!  control::ControlDevice               queue::QueueSource, one per queue, on a reactor
//!        | ADD_DEV, START_DEV, ...          |  hw: tags, commands, results
//!        v                                  |  mode: zero-copy, user-copy, get-data, copy
//!  negotiate: spec + kernel -> Grant        v
//!        |                              queue::Handler::on_request(Request)
//!        v                                  |
//!  device: add -> attach -> start           |  answered now, or later from any thread
//!          quiesce, stop, delete            v
//!          open_or_recover              Request::answer -> result -> COMMIT_AND_FETCH
//!        |
//!        v
//!  exit::shut_down: all devices and reactors of a server
//! ```
//!
//! Reading order: [`spec`] (what a device is to be), [`negotiate`] (what it gets), [`device`] (its life),
//! [`queue`] (its requests), [`exit`]. [`control`] and [`sys`] are the kernel's interface: typed
//! commands, and the numbers and layouts of `linux/ublk_cmd.h`. [`error`] has the remedy for every
//! errno. `docs/ublk.md` is the manual.
//!
//! The crate may hold unsafe code, because the kernel reads and writes memory that commands name.
#![allow(unsafe_code)]

mod backend;
mod backoff;
pub mod control;
pub mod device;
pub mod error;
pub mod exit;
mod features;
pub mod negotiate;
pub mod queue;
pub mod spec;
pub mod sys;

pub use crate::backend::BackendHandler;
pub use crate::error::Error;
pub use crate::features::Features;
pub use crate::negotiate::{Grant, MissingFeature};
pub use crate::queue::{Answer, Data, Request};
pub use crate::spec::{Capability, DataMode, DeviceSpec, Disk, ModeChoice, Modes, Want, Wants};
pub use serve::BackendFile;
