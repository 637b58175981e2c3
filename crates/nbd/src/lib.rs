//! The NBD protocol: a codec without I/O, and a server on reactor threads.
//!
//! [`codec`] turns bytes into events and answers into bytes; it owns no socket, no clock and no
//! memory beyond small bounded buffers, so it is fuzzed whole ([`fuzz`]). The server (built on
//! `reactor`) moves the bytes. Nothing here knows what an export stands on: it serves any
//! `blkmq::io::Backend`.
#![forbid(unsafe_code)]

pub mod codec;
pub mod fuzz;
pub mod server;
