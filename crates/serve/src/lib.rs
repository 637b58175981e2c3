//! The request engine: it takes a transport's requests through *admit*, *plan*, *move* and
//! *commit*, for any transport and any [`blkmq::io::Backend`].
//!
//! ```text
//!   transport ── Request ──▶ RequestEngine::admit ──▶ Backend::begin ──▶ a plan
//!                                                                        │ its bytes move
//!   transport ◀── Transport::answer ◀── Backend::read / written ◀────────┘ over a reactor::Port
//! ```
//!
//! What differs per transport is said by two small traits: [`Request`] (where a request's bytes
//! are) and [`Transport`] (the port, and how an answer leaves). What an operation means is decided
//! by the backend alone (R8). The crate knows no protocol, no driver and no backend, it opens no
//! file, and it starts no thread.
//!
//! Reading order: [`transport`], `job`, `engine`, `steps`, `moves`. [`latency`] counts how long requests take.

mod engine;
mod files;
mod job;
pub mod latency;
mod moves;
mod steps;
#[cfg(feature = "testing")]
pub mod testing;
mod token;
pub mod transport;

pub use crate::engine::{EngineOptions, RequestEngine};
pub use crate::files::BackendFile;
pub use crate::token::is_engine_token;
pub use crate::transport::{Location, Request, Transport, Window};
