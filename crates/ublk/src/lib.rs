//! Linux's ublk interface: block devices whose requests are served by this process.
//!
//! Usable on its own. What a device does with its requests is a `blkmq::io::Backend` or a handler
//! of the caller's; the rings belong to `reactor`, except the small one for control commands.
//!
//! This room may hold unsafe code: the kernel reads and writes memory that commands name.
#![allow(unsafe_code)]

pub mod sys;
