//! Tests of the shipped binary with disks, for guests, whose kernel has ublk: one program, a file for each thing that
//! it promises. A guest runs one file at a time, each in a process of its own.

#![allow(clippy::unwrap_used)]

#[path = "../common/mod.rs"]
mod common;

mod guest_blktests;
mod guest_faulty;
mod guest_fs;
mod guest_modes;
mod guest_nbd;
mod guest_neighbours;
mod guest_nfs;
mod guest_power;
mod guest_promises;
mod guest_races;
mod guest_sandbox;
mod guest_swap;
mod guest_upgrade;
mod guest_upgrade_faults;
mod guest_volume;
