//! How the service of a volume ends: another host has it, or nothing that this host holds can be stored any
//! more. What is left of it is kept for rescue.
//!
//! Must never lose anything: the tail stays in the log, and the log says to the next start that it is for
//! rescue. Nor may anybody hear of an end before the ring says to the next start that the store must be asked: it would
//! serve again what clients know to have ended.

use std::sync::Arc;

use crate::engine::Engine;
use crate::error::OpenError;
use crate::log::frame::Record;
use crate::request::tail::{Status, Tail};
use crate::units::Lsn;

/// Why a tail that is not live stores nothing more.
pub(super) fn end_reason(tail: &Tail, status: Status) -> OpenError {
    if status == Status::Broken {
        return broken_error(tail);
    }
    let refusal = tail.upload.refusal();
    refusal.unwrap_or_else(|| OpenError::Fenced(tail.name().to_owned()))
}

/// Another host's history stands in the store, or none that this host's continues: nothing is
/// completed here any more.
pub(crate) fn is_final(error: &OpenError) -> bool {
    error.is_end_of_service()
}

/// Nothing can be stored, and who waits for that must hear of it.
pub(super) fn is_refusal(error: &OpenError) -> bool {
    is_final(error) || matches!(error, OpenError::RootMissing(_))
}

fn broken_error(tail: &Tail) -> OpenError {
    OpenError::Corrupt(format!(
        "{}: the server failed inside a commit and serves it no more; restart the server: nothing \
         that was acknowledged is lost",
        tail.name()
    ))
}

/// The volume is another host's, or none, which was found out without a commit.
pub(crate) fn end(engine: &Arc<Engine>, tail: &Tail, error: &OpenError) {
    // Whoever found out first has said why; those behind know only that it is served no more.
    let is_live = {
        let inner = tail.lock();
        let is_live = inner.status.serves();
        if is_live {
            // Before anybody can hear of it: a process that dies then takes what it learned with it.
            inner.require_check();
        }
        is_live
    };
    if !is_live && !canary::active!("first_reason_is_forgotten") {
        return;
    }
    tail.upload.set_error(Some(error));
    tail.upload.set_refusal(Some(error.clone()));
    fence(engine, tail, error);
    tail.upload.wake_all();
}

/// Nothing more of the volume is completed here; its layers, kept for rescue, may be merged again.
fn fence(engine: &Arc<Engine>, tail: &Tail, error: &OpenError) {
    let mut inner = tail.lock();
    (inner.cut, inner.merged) = (Lsn::ZERO, Lsn::ZERO);
    if !inner.status.serves() {
        return;
    }
    inner.require_check();
    inner.status = Status::Fenced;
    drop(inner);
    tracing::error!(
        volume = tail.name(),
        %error,
        "fenced: nothing more of it is completed here"
    );
    note_end(engine, tail, error);
    tail.checked.wake_all();
    engine.wake_parked();
}

/// Tells the next start that the volume is another host's, or nobody's: else it would wait for the volume, and
/// the log space that its tail holds would look as if it could still become free.
///
/// Not of a store that was set back, nor of a host that stopped: a tail that is for rescue is not asked any more
/// what the store had; its ring alone says that it has ended. A poisoned log takes no record: a ring is all that
/// the next start has, if it may believe one.
pub(super) fn note_end(engine: &Arc<Engine>, tail: &Tail, error: &OpenError) {
    tail.require_check();
    let is_anothers = matches!(error, OpenError::Fenced(_) | OpenError::Deleted(_));
    let is_mute = engine.committer().is_poisoned();
    if !is_anothers || is_mute || canary::active!("next_start_forgets_the_fence") {
        return;
    }
    tail.mark_rescue();
    let record = Record::Tail(tail.record());
    engine.committer().record(engine, record);
}
