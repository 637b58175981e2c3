//! The host's log in the store: records, fences, low marks and pins, and the procedures that write
//! them. The protocol is docs/store-protocol.md.
//!
//! [`names`] has the keys, [`record`] and [`marks`] the objects, [`notes`] what the local log keeps
//! about them. The procedures ask a [`port::LogPort`] for everything: [`publisher`] makes slices of all
//! volumes stored, with the look around after each record; [`root_updates`] is how any root is
//! replaced; [`recent_records`] is what a process remembers of its records; [`taker`] takes volumes from other hosts; [`low_mark`] lets records go; [`continuing`]
//! judges a tail that a start found; `name_look` finds a volume under whatever name it stands.

pub mod continuing;
pub(crate) mod look_around;
pub mod low_mark;
pub mod marks;
pub(crate) mod name_look;
pub mod names;
pub mod notes;
pub mod port;
pub mod publisher;
pub mod recent_records;
pub mod record;
pub mod root_updates;
pub mod scan;
pub mod stop;
pub mod taker;

#[cfg(test)]
mod tests;
