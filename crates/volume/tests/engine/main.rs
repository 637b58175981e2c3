//! Tests of the engine through its API: one program, a file for each thing that it promises. A test that counts
//! what its whole process allocates is a program of its own, beside this folder.

#[path = "../support/mod.rs"]
mod support;

mod check;
mod collector;
mod collector_pins;
mod collector_sessions;
mod computing;
mod continuation;
mod copies;
mod costs;
mod damage;
mod diff;
mod flow;
mod fold;
mod forks;
mod host_log;
mod index_bytes;
mod journal;
mod kept_tails;
mod low_marks;
mod many_volumes;
mod names;
mod open_snapshots;
mod outage;
mod points;
mod reads;
mod rebuild;
mod rebuild_histories;
mod recovery_point;
mod restores;
mod roots;
mod sessions;
mod short_lives;
mod snapshots;
mod status;
mod store_requests;
mod threads;
mod trash;
mod unchecked;
mod unserved;
mod volume;
mod windows;
