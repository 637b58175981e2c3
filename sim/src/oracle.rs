//! Owns the judgement: what a volume may answer, live and after a crash.
//!
//! [`stamp`] makes every written sector describe itself; [`history`] keeps what was committed,
//! acknowledged and flushed, and decides whether a read or a recovered volume agrees with it;
//! [`linear`] judges the same reads by their times alone; [`moments`] judges groups of snapshots. These share no code with the
//! engine and know none of its formats: they see what a client sees. [`garbage`] looks at what lies in the store, and [`pins`] at
//! the order in which it came there, where clients see nothing.

pub mod garbage;
pub mod history;
pub mod linear;
pub mod moments;
pub mod pins;
pub mod stamp;
