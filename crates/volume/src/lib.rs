//! The engine: volumes on a write-back log, over an object store, without I/O of its own.
//!
//! Everything a volume serves or accepts lives at a file extent. A write is planned (log space,
//! from memory), moved by the transport, and committed: number, ring entry and map change in one
//! step. A read is planned from the map; what only the store has is fetched into memory first,
//! and the read plans again. Disk and store operations come out as [`Request`]s and go back in as
//! [`Outcome`]s; time is passed in. So the server and the simulator drive the same code.
//!
//! Reading order: [`units`], `map` (where the newest bytes are), `log` (segments, ring, frames,
//! group commit), `tail` (a volume's local state and its commit), `volume` (the request path),
//! `uploader` and `roots` (how bytes reach the store), `object` (what they look like there),
//! `catalog`, `opener` and `recover` (how volumes and a host come up), `reclaim` and `space` (how
//! the log never fills), `jobs` (how procedures run without a runtime), `shared` (what they all
//! hold), `host` (what a driver holds).
#![forbid(unsafe_code)]

mod cache;
pub mod canary;
mod catalog;
mod checkpoint;
mod codec;
mod error;
mod fetch;
mod fold;
#[cfg(fuzzing)]
pub mod fuzzing;
#[cfg(test)]
mod golden;
mod host;
mod index;
mod jobs;
mod log;
mod maintenance;
mod map;
pub mod object;
mod opener;
mod options;
mod reclaim;
mod recover;
pub mod request;
mod roots;
mod shared;
mod space;
mod tail;
pub mod units;
mod uploader;
mod volume;
mod watermark;

pub use cache::CacheUse;
pub use catalog::{VolumeInfo, VolumeSpec, check_name};
pub use error::OpenError;
pub use host::{Host, HostUse, RecoveryReport, Setup};
pub use jobs::{Answer, Notify};
pub use log::ring::{HeapRegion, RingRegion, Rings, TailId};
pub use opener::OpenMode;
pub use options::Options;
pub use request::{Outcome, Request, RequestId};
pub use volume::{ReadPlan, SyncWait, Volume, WritePlan};
pub use watermark::{Rung, Watermarks};
