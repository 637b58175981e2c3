//! The engine: volumes on a write-back log, over an object store, without I/O of its own.
//!
//! Every byte that a volume serves or accepts lies at a file extent: in the log, in the read cache or in
//! the memory file. The engine answers from memory which extents those are; the transport moves the bytes.
//!
//! ```text
//!    transport: Volume::begin            Volume::written / read
//!        |                                    ^
//!        v plan                        commit |
//!   +- request ---------------------------------------------------+
//!   |  Volume    what each operation means                        |
//!   |  Space     log space, or park          Tail   LSN, ring entry, map: one step
//!   +------+-----------------------+-------------------+----------+
//!          v                       v                   v
//!   +- log -------+   +- map --------------+   +- cache ----------+
//!   | segments    |   | layers: top,       |   | fetched chunks:  |
//!   | ring, frame |   | frozen, clean      |   | memory and disk  |
//!   | committer   |   | index: the store's |   +--------^---------+
//!   | checkpoint  |   +--------^-----------+            |
//!   | reclaim     |            |                        |
//!   +---+-----^---+            |                        |
//!       |     | space     +- store -------------------------------+
//!       |     +-----------| flow, publish, roots; fold; open; fetch|
//!       |                 +----+----------------------------------+
//!       v                      v
//!     driver: Request  --->  log, memory and cache files; object store
//!             Outcome  <---
//! ```
//!
//! Files and the store are the driver's: the engine emits a [`Request`] for each operation and takes its
//! [`Outcome`], in any order. Time is passed in by [`Host::tick`]. So the server and the simulator drive
//! the same code, and one seed decides a run: `clippy.toml` denies clocks, threads, files and randomness.
//!
//! Reading order, along the path of the data: [`units`]; `request` (plan and commit, a volume's tail,
//! where writes wait for space); `map` (which extent is the newest); `log` (segments, ring, frames, group
//! commit, checkpoints, reclaim); `store` (open, the flow of slices, index pages, roots, fetch) and [`object`] (the
//! formats there); [`hostlog`] (how hosts are to share a store: records, and the procedures that write
//! them); [`check`] (whether the store has what it should); [`rebuild`] (a lost root, made anew from packs); [`increment`] (what a snapshot has over another, on its way to another store); `cache`; `recover` (what a host finds in its log). Beside the path: `jobs` runs
//! procedures without a runtime, `scrub` proves what lies on the local disk, `engine` is what all parts use, [`driver`] the requests and outcomes,
//! `failures` what is counted and logged, `host` what a driver holds.
#![forbid(unsafe_code)]
#![deny(clippy::iter_over_hash_type)]

// Rings are in the machine's byte order, and formats are little-endian: what one machine writes another must read.
#[cfg(target_endian = "big")]
compile_error!("firn runs on little-endian machines alone: its formats are of that order");

mod cache;
pub mod check;
mod codec;
pub mod collect;
mod computation;
pub mod driver;
mod engine;
mod error;
mod failures;
#[cfg(fuzzing)]
pub mod fuzzing;
#[cfg(test)]
mod golden;
mod host;
pub mod hostlog;
pub mod increment;
mod invariants;
mod jobs;
mod lock;
mod log;
mod map;
#[cfg(all(test, feature = "shuttle"))]
mod models;
pub mod object;
mod options;
pub mod rebuild;
mod recover;
mod request;
mod scrub;
mod store;
mod sync;
pub mod units;

pub use cache::{CacheShrink, CacheUsage, InventoryError};
pub use collect::pass::{Amount, Findings};
pub use driver::{Notify, Outcome, Request, RequestId};
pub use error::OpenError;
pub use failures::{FailureCounts, FailureKind};
pub use host::{Host, HostUsage, Permission, Setup};
pub use jobs::Answer;
pub use lock::on_panic_under_lock;
pub use log::FORMATS as LOG_FORMATS;
pub use log::ring::{HeapRegion, RetainedRings, RingId, RingRegion, Rings, TailId};
pub use options::{CompactOptions, Options, ScrubOptions};
pub use recover::continuation::{Continuation, JournalMark};
pub use recover::report::{RecoveryReport, StaleRing, TailReport};
pub use request::watermark::{Watermark, Watermarks};
pub use request::{LogSnapshots, ReadPlan, SyncWait, Volume, WritePlan};
pub use scrub::state::{ScrubCounts, ScrubReport};
pub use store::catalog::volume_spec::{
    VolumeInfo, VolumeOwner, VolumeSpec, check_name, check_size,
};
pub use store::collector::state::CollectorReport;
pub use store::compact::state::{CompactionReport, VolumeSpace};
pub use store::diff::{ChangedRange, DiffPart, DiffPlace, DiffSide};
pub use store::fetch::warm_up::{Hint, HintPart, WarmUp};
pub use store::flow::fork_tail::ForkedTail;
pub use store::forks::snapshot_list::{SnapshotInfo, check_snapshot_name};
pub use store::forks::{Durability, Fork};
pub use store::open::OpenMode;
pub use store::open::rescue::UnservedTail;
pub use store::parts::{ListPart, ListPlace};
pub use store::trash::entries::TrashedVolume;
