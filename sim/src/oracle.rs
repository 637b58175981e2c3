//! Owns the judgement: what a volume may answer, live and after a crash.
//!
//! [`stamp`] makes every written sector describe itself; [`history`] keeps what was committed,
//! acknowledged and flushed, and decides whether a read or a recovered volume agrees with it;
//! [`linear`] judges the same reads by their times alone. The oracles share no code with the
//! engine and know none of its formats: they see what a client sees.

pub mod history;
pub mod linear;
pub mod stamp;
