//! What tests of a transport share: a disk in memory that misbehaves on request, and the dispatch
//! tests, which every transport passes.
//!
//! A transport's test program implements [`Rig`] and names it in
//! [`dispatch_tests!`](crate::dispatch_tests). Nothing here is compiled into a server.

mod dispatch;
mod faults;
mod memory_disk;

pub use dispatch::{Answer, Rig, RigSetup, cases};
pub use faults::Faults;
pub use memory_disk::{MemoryDisk, ReadPlan, SyncWait, WritePlan};
