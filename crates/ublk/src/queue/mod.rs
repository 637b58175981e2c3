//! The data path of one hardware queue: a source on the reactor that serves all its tags, or, with
//! kernels from 6.16 on and where the caller wants it, one source per reactor that serves a [`Share`]
//! of them.
//!
//! ```text
//!          FETCH completes                              on_request
//! driver ------------------> hw (+ mode, descriptors) ------------> Handler
//!        <------------------                          <------------
//!         COMMIT_AND_FETCH                     QueueCx::answer, or Request::answer
//!                                              from any thread (request::ReturnQueue)
//! ```
//!
//! `hw` talks to the driver, `mode` holds what the data modes differ in, [`Handler`] is what a user
//! implements, and [`QueueSource`] connects them. Everything runs on the reactor's thread; requests
//! may be answered from any thread. One reactor carries any number of queues of any number of devices,
//! and no queue's end disturbs another.
//!
//! Order: results are committed in the order in which requests are answered, and requests reach the
//! handler in the order in which the driver hands them over (get-data writes when their bytes were
//! copied).
//!
//! # Slots and completions: the budget of a ring
//!
//! A zero-copy queue reserves `min(depth, slots_max)` buffer slots of its ring's 16,384, or half as
//! many, and so on, where they are not free any more. A tag has one command with the driver, or the
//! server has its request, with at most `pieces` file operations in flight. So the completion queue
//! of a ring has room for everything if it holds `sum over queues of depth * max(1, pieces)`, one
//! more for each request that is registered in a slot of its own, and one for the ring's wakeup. The
//! kernel keeps completions beyond that aside, which costs time and loses nothing.

mod cx;
mod descriptors;
mod handler;
mod hw;
mod mode;
mod parts;
mod request;
mod source;
mod stats;
mod tags;
#[cfg(test)]
pub(crate) mod tests;
mod token;

pub use cx::QueueCx;
pub use descriptors::Descriptors;
pub use handler::Handler;
pub use mode::get_data::Pool;
pub use parts::{QueueObserver, QueueParts};
pub use request::{Answer, Data, Request};
pub use source::QueueSource;
pub use stats::{Counters, QueueStats};
pub use tags::Share;
pub(crate) use token::{KEY_DRAIN, KEY_RELEASE, KEY_RESUME};
