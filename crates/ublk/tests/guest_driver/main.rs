//! Tests of ublk for guests, whose kernel has the driver: one program. A guest runs one file at a time, each in a
//! process of its own.

#![allow(clippy::unwrap_used, unsafe_code, reason = "these are tests")]

#[path = "../lifecycle/mod.rs"]
mod lifecycle;
#[path = "../scenarios/mod.rs"]
#[allow(dead_code, unreachable_pub)]
mod scenarios;
#[path = "../servers/mod.rs"]
mod servers;

mod guest_bad_handlers;
mod guest_control;
mod guest_faults;
mod guest_flush;
mod guest_handover;
mod guest_lifecycle;
mod guest_own_slots;
mod guest_recovery;
mod guest_scenarios;
mod guest_selftests;
mod guest_servers;
mod guest_shared_queue;
mod guest_smoke;
