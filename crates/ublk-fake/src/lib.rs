//! The ublk driver without a kernel, for tests: its rules as a deterministic state machine.
//!
//! What it is for: everything above it (control, devices, queues) is tested and fuzzed without
//! root, in every data mode and against three kernels' rules, with servers that misbehave and
//! servers that die at any step. That it behaves as the kernel does is checked by one table of
//! scenarios that runs on it and on real kernels (`crates/ublk/tests/scenarios`).
//!
//! Files: [`Profile`] says which kernel is simulated; `kernel` holds the state, `device` the parts
//! of a device, `command` a request command; `control`, `params` and `lifecycle` are the control commands; `tags` says who may
//! submit which command for a tag, `deliver` how requests come and go, `data` how their bytes do;
//! `exit` is the exit of a server. [`Driver`] is the handle, [`FakePort`] its control device;
//! [`Ring`] is a reactor over it that a test drives by hand, and [`ClientOracle`] checks what clients read;
//! [`BoundedPool`] is a pool that a server brings along; `stress` runs a
//! device with all of them, `fuzzing` has the fuzz targets.
//!
//! It is not the kernel: nothing takes time, START does not scan partitions, nobody but the
//! test's own clients opens a disk, and the process has every privilege. Batches, shared-memory
//! zero copy, zones and integrity data are not simulated.
//!
//! For tests and fuzz targets alone: `cargo xtask tidy` refuses a room that depends on this one.
//!
//! This room may hold unsafe code: it reads and writes memory that a server's commands name, as
//! the kernel does.
#![allow(unsafe_code)]

mod bounded_pool;
mod client_oracle;
mod command;
mod control;
mod data;
mod deliver;
mod device;
mod driver;
mod exit;
mod faulty_handler;
pub mod fuzzing;
mod kernel;
mod lifecycle;
mod params;
mod port;
mod profile;
mod reactor;
mod ring;
pub mod stress;
mod tags;

pub use bounded_pool::BoundedPool;
pub use client_oracle::ClientOracle;
pub use control::Outcome;
pub use deliver::ClientRequest;
pub use device::{ClientId, ClientOp};
pub use device::{RingId, TaskId};
pub use driver::Driver;
pub use faulty_handler::{FileHandler, HandlerFaults};
pub use kernel::{ControlId, DriverStats};
pub use port::FakePort;
pub use profile::Profile;
pub use reactor::start_reactor;
pub use ring::{Event, Ring, RingFaults, RingPort, SourceKey};
