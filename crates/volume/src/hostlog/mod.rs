//! The host's log in the store: records, fences, low marks and pins. The protocol is
//! docs/store-protocol.md.
//!
//! [`names`] has the keys, [`record`] and [`marks`] the objects.

pub mod marks;
pub mod names;
pub mod record;
