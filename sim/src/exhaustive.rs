//! The exhaustive modes: not drawn, but all of them up to a bound.
//!
//! [`crashes`]: every workload of up to three operations on two blocks, on a new volume and on
//! one that was just opened from the store, with a crash after every disk and store event: of
//! the process, and of the host with several subsets of the unsynced sectors. Small workloads
//! find what random ones pass by: most known crash bugs of file systems need three operations.
//!
//! [`schedules`]: two writers and a reader on the same block while the engine freezes, uploads,
//! reuses and evicts around them, in every order in which at most so many events are put off.

mod cases;
mod crashes;
mod schedules;

pub use cases::Report;
pub use crashes::crashes;
pub use schedules::schedules;
