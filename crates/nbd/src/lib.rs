//! The NBD protocol: a codec without I/O, a server on reactor threads, and a blocking client for tools.
//!
//! ```text
//!   client ── bytes ──▶ server::conn ──▶ codec: events ──▶ serve::RequestEngine ──▶ Backend
//!                                                                 │ the payload moves
//!   client ◀── bytes ── server::outbox ◀── codec: replies ◀───────┘ over a reactor::Port
//! ```
//!
//! [`codec`] turns bytes into events and answers into bytes. It owns no socket, no clock and no
//! memory beyond small bounded buffers, so the fuzzer covers it whole ([`fuzz`]). [`server`] owns
//! listeners and connections; `serve` takes their requests through admit, plan, move and commit.
//! Nothing here knows what an export stands on: the server serves any `blkmq::io::Backend`.
//!
//! [`client`] is for what copies volumes from outside, and shares the protocol's numbers alone with the server.
//!
//! Reading order: [`codec`], then [`server`], whose first lines name its files.
#![forbid(unsafe_code)]

pub mod client;
pub mod codec;
pub mod fuzz;
pub mod server;
