//! Tests of the engine through its API: one program, a file for each thing that it promises. A test that counts
//! what its whole process allocates is a program of its own, beside this folder.

#[path = "../support/mod.rs"]
mod support;

mod awaited_closes;
mod check;
mod collector;
mod collector_pins;
mod collector_sessions;
mod compaction;
mod compaction_day;
mod compaction_rebuild;
mod computing;
mod continuation;
mod copied_tails;
mod copies;
mod costs;
mod damage;
mod diff;
mod disk_errors;
mod flow;
mod fold;
mod fold_costs;
mod forks;

mod host_log;
mod host_stop;
mod index_bytes;
mod journal;
mod kept_histories;
mod kept_snapshots;
mod kept_tails;
mod lifecycle;
mod lists;
mod low_marks;
mod many_volumes;
mod names;
mod open_snapshots;
mod outage;
mod passed_cache;
mod points;
mod poisoned_logs;
mod reads;
mod rebuild;
mod rebuild_forks;
mod rebuild_histories;
mod rebuild_order;
mod recovery_point;
mod rename;
mod rename_races;
mod restart;
mod restores;
mod roots;
mod sessions;
mod short_lives;
mod snapshot_groups;
mod snapshots;
mod status;
mod store_requests;
mod threads;
mod trash;
mod unchecked;
mod unchecked_ends;
mod unserved;
mod volume;
mod windows;
