//! The collector: finds packs and index objects that nothing can reach, and removes them in a later pass.
//!
//! A pass lists the store, then reads in the direction in which names flow: logs, roots, pins, and roots that
//! appeared meanwhile. An object is garbage if the pass listed it, found it named nowhere, and knows that its
//! session has ended or that it is below its session's floor. That is final: keys are used once, and no host is
//! left that could name it. The pass records it as a *candidate*. A later pass that finds the same by itself
//! removes it; if that pass finds it named, it counts as *recovered*, which is reported. Clocks and ages
//! decide nothing. A pass that cannot read something it must read removes nothing.
//!
//! Any number of collectors may run, on any hosts. Memory: about 24 bytes for each object of the store and 30 for
//! each index block, and the keys of one LIST while it is processed.
//!
//! [`pass`] has the order of the steps; `listing` the objects in the store, `logs` and `trace` the names,
//! [`candidates`] the state between passes, `owners` the volumes of the objects that a pass would remove, `limit`
//! when a pass gives up. They use a [`CollectPort`] and know nothing of the engine, so that tests run the same
//! code.

pub mod candidates;
mod error;
pub(crate) mod limit;
mod listing;
mod logs;
mod named;
mod owners;
pub mod pass;
mod trace;

use std::future::Future;

use crate::driver::ComputeError;
use crate::hostlog::port::LogPort;

/// The environment of the collector.
pub trait CollectPort: LogPort {
    /// Runs `work`, which reads about so many bytes, where it holds up no other job.
    fn compute<T: Send + 'static>(
        &self,
        bytes: u64,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> impl Future<Output = Result<T, ComputeError>> + Send;

    /// The pause after each window of requests, which leaves the store to others.
    fn pace_ns(&self) -> u64;
}

/// Requests of a pass that run in parallel.
const SIDE_BY_SIDE: usize = 16;
