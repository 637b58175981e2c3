//! Linux's ublk interface: block devices whose requests are served by this process.
//!
//! Usable on its own. What a device does with its requests is a `blkmq::io::Backend` or a handler
//! of the caller's; the rings belong to `reactor`, except the small one for control commands.
//!
//! This room may hold unsafe code: the kernel reads and writes memory that commands name.
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
