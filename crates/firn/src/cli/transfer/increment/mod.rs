//! Increments: what one snapshot has over another, out of a volume and onto a copy of it, perhaps in another store.
//!
//! All copies of a snapshot are one point of history. A copy says whose it is by a label of its own, which the import
//! puts there once it has proven every byte; so a chain goes on from copy to copy. [`make`] writes an increment, [`apply`]
//! lays one over a volume, [`mod@file`] reads and proves one, [`points`] finds snapshots and says which point each is.

pub(super) mod apply;
mod file;
pub(super) mod make;
pub(super) mod points;

pub(super) use file::is_increment;
