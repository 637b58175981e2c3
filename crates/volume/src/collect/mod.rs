//! The collector: finds packs and index objects that nothing can reach, and removes them in a later pass.
//!
//! A pass lists what is there, then reads in the direction in which names flow: logs, roots, pins, roots that came
//! meanwhile. What it listed, found named nowhere, and knows to be of a session that has ended or below a floor is
//! garbage for good: names are used once, and nobody is left who could name it. It becomes a *candidate*, durably, and is
//! removed by a later pass that finds the same with its own eyes; one that is found named then is *recovered*, and
//! said loudly. Clocks and ages decide nothing. A pass that cannot read something it must read removes nothing.
//!
//! Any number of collectors may run, in any hosts. Memory: about 24 bytes for each object of the store and 30 for each
//! index block; keys of one LIST while it is taken in.
//!
//! [`pass`] is the order of it all; `listing` what is there, `logs` and `trace` what is named, [`candidates`] what
//! is kept between passes, `owners` whose it is that a pass would remove, `limit` when one gives up. They ask a [`CollectPort`] and know nothing of the engine, so that tests drive the same code.

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

/// What the collector asks for.
pub trait CollectPort: LogPort {
    /// Has `work`, which reads about so many bytes, done where it holds up nobody.
    fn compute<T: Send + 'static>(
        &self,
        bytes: u64,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> impl Future<Output = Result<T, ComputeError>> + Send;

    /// Pause after each window of requests, so that a pass leaves the store to others.
    fn pace_ns(&self) -> u64;
}

/// Requests of a pass that are on their way side by side.
const SIDE_BY_SIDE: usize = 16;
