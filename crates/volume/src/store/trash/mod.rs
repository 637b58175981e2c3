//! The trash: deleted volumes that can be had back for a while, with their snapshots.
//!
//! A volume in the trash is a deleted root that still names what the volume held, and says until when it is kept. It
//! stands where the volume's root stood; whoever takes the name puts it aside first, under a key that is used once. So
//! the name is free at once, and no step leaves a volume that is neither there nor in the trash. Its snapshots stay
//! where they are, hidden from lists. The collector takes all of it for reachable; time alone makes nothing garbage: it lets
//! [`empty`] take the names away, and what nothing names then is the collector's to judge.
//!
//! [`entries`] says what there is, and [`rooted`] what has come back; [`restore`] gives a volume back, [`empty`] lets one go, without what
//! other volumes of its name have, of which [`namesakes`] tells.

pub(crate) mod empty;
pub(crate) mod entries;
mod namesakes;
pub(crate) mod restore;
mod rooted;
