//! Tests of the shipped binary: one program, a file for each thing that it promises. Beside this folder are programs
//! of their own: what guests run (`guest_server`), what asks real stores, what has rounds, and what changes the limits
//! of its own process.

#![allow(clippy::unwrap_used)]

#[path = "../common/mod.rs"]
mod common;

mod access;
mod api;
mod api_fuzz;
mod bad_input;
mod bench;
mod branches;
mod clone_owners;
mod clones;
mod command_line;
mod deleted_volumes;
mod early_clients;
mod foreign_clients;
mod full_disk;
mod gc;
mod health;
mod images;
mod increments;
mod latency;
mod left_out;
mod lists;
mod moves;
mod network_store;
mod page;
mod pre_shared_keys;
mod removed_objects;
mod renamed_volumes;
mod rescue;
mod rescue_log;
mod resumed_imports;
mod sandbox;
mod schedules;
mod scrub;
mod serve;
mod settings;
mod small_machines;
mod snapshot_groups;
mod spans;
mod store_check;
mod store_faults;
mod store_rebuild;
mod terminal;
mod upgrade;
mod upgrade_cache;
mod upgrade_rings;
mod waiting;
mod warm_up;
