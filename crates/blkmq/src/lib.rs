//! The multi-queue core, and the vocabulary that every crate of firn shares.
//!
//! [`io`] holds the vocabulary (operations, extents, plans, the backend that a transport serves)
//! and [`error`] the kinds of failure with their one mapping to errno, NBD and HTTP codes.
//! The rest is the core through which every transport admits its requests. It does no I/O, owns
//! no thread and no clock, and never waits on the path of a request:
//!
//! ```text
//! transport thread (owner)                                  control thread
//!   Queue::admit --> AdmittedRequest --> complete             Device::quiesce / cancel / rearm
//!        |                |   ^                                    |
//!        v parked         v   | waker (engine, any thread)         v  flags, one grace period
//!   dispatch list <---- park  |                               admission gate of every queue
//!        |                    |
//!        '--> Queue::run <----'  after a kick
//! ```
//!
//! - a [`Device`] owns the state that changes rarely (quiesced, cancelled), once for all queues;
//! - a [`Queue`] is the owner's end of one hardware queue, used by one thread: it *admits* new
//!   requests and *runs* parked ones; other threads hold a [`QueueHandle`], submit and kick;
//! - an [`AdmittedRequest`] is a request in flight. It completes exactly once, or parks;
//! - [`may_block`], [`SmallLock`] and [`SleepLock`] keep ring threads from waiting.
//!
//! What a transport does, with `T` its own request type:
//!
//! ```
//! use std::sync::{Arc, mpsc};
//! use blkmq::{Admission, AdmittedRequest, ParkReason, Completer, Device, DeviceOptions, Kick, Queue};
//! use blkmq::error::ErrorKind;
//!
//! /// The transport's part of a request: here a number and how often it was tried.
//! struct Request { id: u64, tries: u32 }
//!
//! /// Receives the completions that the owner does not answer in place.
//! struct Replies(mpsc::Sender<(u64, Result<(), ErrorKind>)>);
//! impl Completer<Request> for Replies {
//!     fn complete(&self, request: Request, result: Result<(), ErrorKind>) {
//!         let _ = self.0.send((request.id, result));
//!     }
//! }
//!
//! /// Wakes the owner: an eventfd in a real transport.
//! struct Doorbell(mpsc::Sender<()>);
//! impl Kick for Doorbell {
//!     fn kick(&self) { let _ = self.0.send(()); }
//! }
//!
//! /// The next step of a request: ask the engine, move bytes, complete or park.
//! fn go(mut request: AdmittedRequest<Request>) {
//!     request.payload_mut().tries += 1;
//!     // engine.begin(&op, request.waker()) answers a Step; here the first try finds no data.
//!     if request.payload().tries == 1 {
//!         let waker = request.waker().clone();    // the engine keeps it,
//!         request.park(ParkReason::Fetch);             // Step::Park(reason) => park(reason)
//!         waker.wake();                           // and wakes it from any thread
//!     } else {
//!         request.complete(Ok(()));               // Step::Done(result) => complete(result)
//!     }
//! }
//!
//! let (replies, answered) = mpsc::channel();
//! let (bell, rang) = mpsc::channel();
//! let device = Device::new("vol0", DeviceOptions::default());
//! let mut queue: Queue<Request> =
//!     device.add_queue(128, Arc::new(Replies(replies)), Arc::new(Doorbell(bell)));
//!
//! // The owner's loop: admit what the socket or the ring brought, run after every kick.
//! match queue.admit(Request { id: 7, tries: 0 }) {
//!     Admission::Run(request) => go(request),
//!     Admission::Parked | Admission::Refused => {}
//! }
//! while rang.try_recv().is_ok() {
//!     queue.run(go);
//! }
//! assert_eq!(answered.try_recv().unwrap(), (7, Ok(())));
//!
//! // The control side: nothing is admitted while the guard lives.
//! let quiesced = device.quiesce();
//! quiesced.wait(std::time::Duration::from_secs(1)).expect("nothing is in flight");
//! assert!(matches!(queue.admit(Request { id: 8, tries: 1 }), Admission::Parked));
//! drop(quiesced);
//! while rang.try_recv().is_ok() {
//!     queue.run(go);
//! }
//! assert_eq!(answered.try_recv().unwrap(), (8, Ok(())));
//! ```
//!
//! Rules for transports:
//! 1. A kick means: call [`Queue::run`], soon. Calling it at other times is allowed and cheap.
//! 2. `depth` bounds the requests that hold a tag, parked ones included: choose it as large as
//!    what the client may have outstanding. A transport stops reading from a client whose
//!    requests come back [`Admission::Parked`] in numbers; the dispatch list has no bound of its own.
//! 3. `Step::Sync` parks with [`ParkReason::Sync`]: the request stays in flight, and when it is handed
//!    out again the transport calls `poll_sync`.
//! 4. A wake too many is possible: be ready to `begin` (or `poll_sync`) again and park again.
//!
//! The fast path checks rare states without a lock: the pairs of barriers that allow it are listed
//! in `gate.rs` (P1 to P3), argued beside both sides, and chosen in `barrier.rs`
//! (`docs/adr/0001-asymmetric-barriers.md` says why). What proves them:
//!
//! | what | proves |
//! |---|---|
//! | `src/models/` (loom) | every interleaving, with weak memory, of small programs |
//! | `src/models/canaries.rs` | each of 19 canaries makes its named models fail |
//! | `tests/shuttle_mix.rs` | larger mixes with live owners, under two schedulers |
//! | `tests/reference_model.rs` | ten million random steps agree with a sequential model |
//! | `src/barrier.rs`, `tests/barriers.rs` | both forms of the barriers, alone and in place, under real threads |
//! | `tests/contract.rs` | the sentences above, one by one |
//!
//! `cargo xtask models` runs them all, `cargo xtask bench blkmq` measures
//! (`docs/benchmarks/blkmq.md`).
#![deny(clippy::iter_over_hash_type)]

mod admitted;
mod barrier;
mod device;
mod dispatch;
mod drain;
pub mod error;
mod gate;
mod hw_queue;
pub mod io;
mod may_block;
#[cfg(all(test, feature = "loom"))]
mod models;
mod queue;
mod quiesce;
mod state;
mod sync;
mod tags;

pub use admitted::AdmittedRequest;
pub use barrier::Barrier;
pub use device::{CancelWork, ControlThread, Device, DeviceOptions};
pub use dispatch::ParkReason;
pub use hw_queue::{Completer, Kick};
pub use may_block::{
    RingThread, SleepGuard, SleepLock, SmallGuard, SmallLock, enter_ring_thread, may_block,
};
pub use queue::{Admission, Queue, QueueHandle};
pub use quiesce::{Drain, QuiesceGuard};
pub use state::{DeviceCounts, QueueLoad};
pub use tags::{DEPTH_MAX, Tag};
