//! Between the log and the object store: how volumes open, how bytes go up, and how they come back.
//!
//! [`catalog`] creates, lists and deletes volumes; [`rescue`] shows and drops what is kept of lost ones; [`open`] takes a volume's epoch and gives it back;
//! [`upload`] packs the log's bytes and publishes them, [`fold`] merges deltas into index pages on the
//! way; [`roots`] reads and replaces a volume's root; [`fetch`] brings chunks and pages into memory, for
//! the waiters in [`fetch_table`]; [`objects`] makes the single requests of them all.

pub(crate) mod catalog;
pub(crate) mod fetch;
pub(crate) mod fetch_table;
pub(crate) mod fold;
pub(crate) mod objects;
pub(crate) mod open;
pub(crate) mod rescue;
pub(crate) mod roots;
pub(crate) mod upload;
pub(crate) mod upload_state;
pub(crate) mod volume_spec;
