//! Procedures that take many steps, and how they wait: without a runtime, a clock or I/O.
//!
//! [`executor`] polls them, [`Port`] is how they ask for I/O, computing and time, [`Signal`] and [`Answer`] how they
//! wait for each other and report their result, [`Interval`] how a job waits for its next turn. [`maintenance`] does what falls due as time passes.

mod answer;
mod executor;
mod interval;
pub(crate) mod maintenance;
mod port;
mod reply;

pub use answer::Answer;
pub(crate) use answer::{AnswerSender, Signal, join, join_all};
pub(crate) use executor::Jobs;
pub(crate) use interval::Interval;
pub(crate) use port::{PendingComputation, Port};
