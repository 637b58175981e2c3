//! Both transports, compiled for volumes: the code that a request runs through from socket or
//! driver to engine and back.
//!
//! `nbd`, `ublk` and `serve` are generic over the backend, and the compiler makes a generic
//! function's machine code where its backend is named, with that crate's level of optimization.
//! This is the only crate that names it: it is small and always optimized, so that the binary need
//! not be (Cargo.toml, `profile.release`). What the binary calls here is not generic.
//!
//! Never decides which volume is open, what a disk is asked to be or what an operator is told: that
//! is the binary's. Reading order: [`nbd_server`] serves exports, [`disk`] makes ublk devices, whose
//! backend is in `volume_view`.

pub mod disk;
pub mod nbd_server;
mod volume_view;

#[cfg(test)]
#[path = "../../volume/tests/support/mod.rs"]
mod support;

pub use disk::DiskBackend;
pub use nbd_server::NbdServer;
