//! The engine: volumes on a write-back log, over an object store, without I/O of its own.
//!
//! Everything a volume serves or accepts lives at a file extent. A write is planned (log space,
//! from memory), moved by the transport, and committed: number, ring entry and map change in one
//! step. A read is planned from the map; what only the store has is fetched into memory first,
//! and the read plans again. Disk and store operations come out as [`Request`]s and go back in as
//! [`Outcome`]s; time is passed in. So the server and the simulator drive the same code.
//!
//! Reading order, along the path of the data: [`units`], `request` (plan and commit, a volume's tail, where
//! writes wait), `map` (which extent is the newest), `log` (segments, ring, frames, group commit, reclaim),
//! `store` (open, upload, index pages, roots, fetch), `object` (the formats there), `cache` (fetched
//! chunks), `recover` (how a host comes up). `jobs` runs procedures without a runtime, `shared` is what
//! all parts use, [`driver`] the requests and outcomes that pass between the engine and its driver,
//! `host` what a driver holds.
#![forbid(unsafe_code)]

mod cache;
mod codec;
pub mod driver;
mod engine;
mod error;
mod failures;
#[cfg(fuzzing)]
pub mod fuzzing;
#[cfg(test)]
mod golden;
mod host;
mod invariants;
mod jobs;
mod lock;
mod log;
mod map;
pub mod object;
mod options;
mod recover;
mod request;
mod store;
pub mod units;

pub use cache::CacheUsage;
pub use driver::{Notify, Outcome, Request, RequestId};
pub use error::OpenError;
pub use failures::{FailureCounts, FailureKind};
pub use host::{Host, HostUsage, Setup};
pub use jobs::Answer;
pub use log::ring::{HeapRegion, RingRegion, Rings, TailId};
pub use options::Options;
pub use recover::report::RecoveryReport;
pub use request::watermark::{Rung, Watermarks};
pub use request::{ReadPlan, SyncWait, Volume, WritePlan};
pub use store::open::OpenMode;
pub use store::volume_spec::{VolumeInfo, VolumeSpec, check_name};
