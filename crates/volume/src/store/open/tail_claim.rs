//! Claims on lost tails: while a rescue forks or drops a tail, nothing discards or opens it.
//!
//! The claim ends when it is dropped. It locks only the set of claimed tails, and does no I/O.

use std::sync::Arc;

use crate::engine::Engine;
use crate::error::OpenError;
use crate::lock::lock;
use crate::log::ring::TailId;
use crate::request::tail::Tail;

/// Holds a lost tail while it is forked or dropped. Its volume's name is free meanwhile: a fork lasts as long as
/// its upload, and the volume of that name may be served here.
pub(crate) struct TailClaim {
    engine: Arc<Engine>,
    id: TailId,
}

impl TailClaim {
    /// Claims the tail. The caller holds the lock of its name, so that no open is about to discard it.
    pub(crate) fn take(engine: &Arc<Engine>, tail: &Tail) -> Result<TailClaim, OpenError> {
        TailClaim::check_free(engine, tail)?;
        let id = tail.id();
        lock(&engine.forked_tails).insert(id);
        Ok(TailClaim {
            engine: Arc::clone(engine),
            id,
        })
    }

    /// Refuses an operation that would take the tail away from a fork.
    pub(crate) fn check_free(engine: &Engine, tail: &Tail) -> Result<(), OpenError> {
        match TailClaim::is_taken(engine, tail) {
            false => Ok(()),
            true => Err(OpenError::Invalid(format!(
                "the tail of volume {} is being read by `firn rescue fork`: try again when that has ended",
                tail.name()
            ))),
        }
    }

    /// Whether a fork reads the tail.
    pub(crate) fn is_taken(engine: &Engine, tail: &Tail) -> bool {
        lock(&engine.forked_tails).contains(&tail.id())
    }
}

impl Drop for TailClaim {
    fn drop(&mut self) {
        lock(&self.engine.forked_tails).remove(&self.id);
    }
}
