//! Tests of ublk that need no kernel's driver, most of them on the fake one: one program. Beside this folder are
//! the programs that run in guests, and one that counts what its whole process allocates.

#![allow(clippy::unwrap_used, reason = "these are tests")]

#[path = "../servers/figures.rs"]
#[allow(dead_code, unreachable_pub)]
mod figures;
#[path = "../lifecycle/mod.rs"]
mod lifecycle;
#[path = "../scenarios/mod.rs"]
#[allow(dead_code, unreachable_pub, unsafe_code)]
mod scenarios;

mod device_errors;
mod devices;
mod dispatch;
mod fuzz_targets;
mod server_figures;
mod stress;
mod table;
