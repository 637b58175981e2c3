//! The ublk driver without a kernel, for tests: its rules as a deterministic state machine.
//!
//! What it is for: everything above it (control, devices, queues) is tested and fuzzed without
//! root, in every data mode and against three kernels' rules, with servers that do wrong and
//! servers that die at any step. That it tells the truth is checked by one table of scenarios
//! that runs on it and on real kernels (`crates/ublk/tests/scenarios`).
//!
//! Files: [`Profile`] says which kernel is played; `kernel` holds the state, `device` the parts
//! of a device; `control`, `params` and `lifecycle` are the control commands; `tags` says who may
//! give which command for a tag, `deliver` how requests come and go, `data` how their bytes do;
//! `exit` is a server that leaves. [`Driver`] is the handle, [`FakePort`] its control device;
//! [`Ring`] is a reactor over it that a test turns by hand, and [`Oracle`] judges what clients read;
//! [`Purse`] is a pool of a user's own.
//!
//! It is not the kernel: nothing takes time, START does not scan partitions, nobody but the
//! test's own clients opens a disk, and the process has every privilege. Batches, shared-memory
//! zero copy, zones and integrity data are not played.
//!
//! For tests and fuzz targets alone: `cargo xtask tidy` refuses a room that depends on this one.
//!
//! This room may hold unsafe code: it reads and writes memory that a server's commands name, as
//! the kernel does.
#![allow(unsafe_code)]

mod client;
mod control;
mod data;
mod deliver;
mod device;
mod driver;
mod exit;
pub mod fuzzing;
mod keeper;
mod kernel;
mod lifecycle;
mod params;
mod port;
mod profile;
mod purse;
mod reactor;
mod ring;
pub mod story;
mod tags;

pub use client::Oracle;
pub use control::Outcome;
pub use deliver::ClientRequest;
pub use device::{ClientId, ClientOp};
pub use driver::Driver;
pub use keeper::{Habits, Keeper};
pub use kernel::{Complaints, ControlId, RingId, TaskId};
pub use port::FakePort;
pub use profile::Profile;
pub use purse::Purse;
pub use reactor::start_reactor;
pub use ring::{Chaos, Event, Ring, RingPort, SourceKey};
