//! What tests of a transport share: a disk in memory that misbehaves on request, and the dispatch
//! tests, which every transport passes.
//!
//! A transport's test program implements [`Rig`] and names it in
//! [`dispatch_tests!`](crate::dispatch_tests). Nothing here is compiled into a server.

mod dispatch;
mod memory_disk;

pub use dispatch::{Answer, Rig, RigSetup, cases};
pub use memory_disk::{Faults, MemoryDisk, ReadPlan, SyncWait, WritePlan};
