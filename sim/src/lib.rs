//! The simulator: a deterministic world that tests the engine.
//!
//! One 64-bit seed decides everything: what clients ask ([`workload`]), what the disk ([`disk`])
//! and the store ([`store`]) do with each request, and when. The engine is the production engine
//! ([`node`] is the joint to it); around it everything is simulated, in virtual time and on one
//! thread ([`world`]), so that any run can be repeated from its seed. The [`oracle`] judges what
//! clients saw; it shares no code with the engine.
//!
//! [`protocol`] is apart from all that: a model of what several hosts do to one object store, which
//! knows nothing of the engine.
#![forbid(unsafe_code)]

pub mod batch;
pub mod disk;
pub mod exhaustive;
pub mod faults;
pub mod node;
pub mod oracle;
pub mod panics;
pub mod profile;
pub mod protocol;
pub mod rings;
pub mod rng;
pub mod store;
pub mod trace;
pub mod transport;
pub mod workload;
pub mod world;
