//! Tests of the messenger that need no Ceph: one program, a file for what goes well, for peers that break the
//! protocol over sockets, and for their bytes alone.
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "tests use sockets, threads and clocks"
)]
#![allow(clippy::unwrap_used, reason = "a failed step fails the test")]

#[path = "../support/mod.rs"]
mod support;

mod bad_peers;
#[cfg(not(feature = "loom"))]
mod mutations;
mod sessions;
