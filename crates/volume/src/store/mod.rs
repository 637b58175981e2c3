//! Between the log and the object store: how volumes open, how bytes go up, and how they come back.
//!
//! [`catalog`] creates, lists and deletes volumes; [`open`] takes a volume's epoch and gives it back;
//! [`upload`] packs the log's bytes and publishes them; [`fold`] merges deltas into index pages;
//! [`roots`] reads and replaces a volume's root; [`fetch`] brings chunks and pages into memory.

pub(crate) mod catalog;
pub(crate) mod fetch;
pub(crate) mod fold;
pub(crate) mod open;
pub(crate) mod roots;
pub(crate) mod upload;
