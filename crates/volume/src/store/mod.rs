//! Between the log and the object store: how volumes open, how bytes go up, and how they come back.
//!
//! [`catalog`] creates, lists and deletes volumes; [`rescue`] shows and drops what is kept of lost
//! ones; [`open`] takes a volume's epoch and gives it back, after what [`holds`] makes of its root and what
//! [`take_together`] reads in logs; [`load_index`] reads its index; [`flow`]
//! brings the log's bytes to the store in slices, [`publish`] makes them stored, in order;
//! beside it [`fold`] merges deltas into index pages ([`fold_pages`]); [`roots`] reads and replaces a
//! volume's root, one at a time by [`turn`]; [`fetch`] brings chunks and [`index_blocks`] pages and nodes
//! into memory, for the waiters in [`fetch_table`]; [`read_ahead`] fetches what sequential readers, which
//! [`streams`] knows, will ask for next, and what was read first after the opening before ([`boot_set`]);
//! [`forks`] makes snapshots of volumes and volumes of them, and [`diff`] says what differs between them; [`trash`] keeps deleted volumes for a while; [`forget`] takes a person's word that one is gone;
//! [`objects`] makes the single requests of them all, and [`session_table`] knows who wrote the objects.

pub(crate) mod boot_set;
mod cadence;
pub(crate) mod catalog;
pub(crate) mod collector;
pub(crate) mod collector_state;
pub(crate) mod compact;
pub(crate) mod diff;
pub(crate) mod endings;
pub(crate) mod fetch;
pub(crate) mod fetch_table;
pub(crate) mod flow;
pub(crate) mod fold;
mod fold_pages;
pub(crate) mod forget;
pub(crate) mod forks;
pub(crate) mod go_live;
mod holds;
pub(crate) mod host_log;
mod immutable;
pub(crate) mod index_blocks;
pub(crate) mod load_index;
pub(crate) mod log_procedures;
pub(crate) mod log_reads;
pub(crate) mod low_marks;
pub(crate) mod name_locks;
pub(crate) mod objects;
pub(crate) mod open;
pub(crate) mod publish;
pub(crate) mod read_ahead;
pub(crate) mod recovery_point;
pub(crate) mod rescue;
mod root_checks;
pub(crate) mod root_watch;
pub(crate) mod root_watch_state;
pub(crate) mod roots;
pub(crate) mod session_table;
pub(crate) mod streams;
mod tail_claim;
pub(crate) mod take_together;
pub(crate) mod trash;
pub(crate) mod turn;
pub(crate) mod unchecked;
pub(crate) mod unnamed;
pub(crate) mod upload_state;
pub(crate) mod volume_spec;
