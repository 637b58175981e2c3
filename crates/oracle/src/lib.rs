//! What a disk may hold: stamped sectors, and the checks of what a test reads back.
//!
//! For soaks, guest tests, end-to-end tests and the fake driver; the simulator has an oracle of its
//! own, so that one mistake does not blind both. Nothing here does I/O, knows a clock or draws a
//! random number, and nothing knows the engine: all that counts is what clients did and saw.
//!
//! [`stamp`] fills sectors with who wrote them and reads that back. [`SectorOracle`] says which
//! writes a sector may hold while requests are in flight and after a crash of the server.
//! [`WriteHistory`] says whether a disk is a prefix of its history, for the loss of power.
//!
//! For tests alone: `cargo xtask tidy` refuses a room of the product that depends on this one.

mod history;
mod sectors;
pub mod stamp;

pub use history::{Promise, WriteHistory};
pub use sectors::{ReadStart, SectorOracle};
