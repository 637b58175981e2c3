//! Between the log and the object store: how volumes open, how bytes go up, and how they come back.
//!
//! In the order of the data: [`catalog`] creates, lists and deletes volumes; [`open`] takes a volume's epoch,
//! begins to serve it, and ends that; [`flow`] brings the log's bytes to the store in slices and publishes them,
//! in order; beside it [`fold`] merges deltas into index pages; [`roots`] reads and replaces a volume's root, one
//! at a time, and [`host_log`] writes the records of the host; [`fetch`] brings chunks into memory, for reads and
//! ahead of them. [`forks`] makes snapshots of volumes and volumes of them, [`diff`] says what differs between
//! them, [`trash`] keeps deleted volumes for a while, [`rename`] gives volumes other names; [`collector`] and [`compact`] give back what is not needed.
//! [`parts`] lists roots a part at a time, [`objects`] and [`immutable`] make the single requests of them all.

pub(crate) mod catalog;
pub(crate) mod collector;
pub(crate) mod compact;
pub(crate) mod diff;
pub(crate) mod fetch;
pub(crate) mod flow;
pub(crate) mod fold;
pub(crate) mod forks;
pub(crate) mod host_log;
mod immutable;
pub(crate) mod objects;
pub(crate) mod open;
pub(crate) mod parts;
pub(crate) mod rename;
pub(crate) mod roots;
pub(crate) mod trash;
