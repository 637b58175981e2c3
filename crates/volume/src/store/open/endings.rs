//! How the service of a volume ends: another host has taken it, or the store can take no more of what this host
//! holds. What is left here is kept for rescue.
//!
//! Nothing may be lost: the tail stays in the log, and the log tells the next start that the tail is for rescue.
//! No client may hear of the end before the ring tells the next start to ask the store first: otherwise that
//! start would serve a volume whose end clients have seen.

use std::sync::Arc;

use crate::engine::Engine;
use crate::error::OpenError;
use crate::log::frame::Record;
use crate::request::tail::{Status, Tail};
use crate::units::Lsn;

/// The error for waiters of a tail that is not live any more.
pub(in crate::store) fn end_reason(tail: &Tail, status: Status) -> OpenError {
    if status == Status::Broken {
        return broken_error(tail);
    }
    let refusal = tail.upload.refusal();
    refusal.unwrap_or_else(|| OpenError::Fenced(tail.name().to_owned()))
}

/// Whether the store has another host's history, or one that this host's does not continue: then nothing is
/// completed here any more.
pub(crate) fn is_final(error: &OpenError) -> bool {
    error.is_end_of_service()
}

/// Whether the error means that nothing can be stored, so that waiters must be told.
pub(in crate::store) fn is_refusal(error: &OpenError) -> bool {
    is_final(error) || matches!(error, OpenError::RootMissing(_))
}

fn broken_error(tail: &Tail) -> OpenError {
    OpenError::Corrupt(format!(
        "{}: the server failed inside a commit and serves it no more; restart the server: nothing \
         that was acknowledged is lost",
        tail.name()
    ))
}

/// Ends the service of a volume that another host has taken or deleted, when that was found out without a commit.
pub(crate) fn end(engine: &Arc<Engine>, tail: &Tail, error: &OpenError) {
    // The first finder has logged the reason; later ones know only that the volume is not served any more.
    let is_live = {
        let inner = tail.lock();
        let is_live = inner.status.serves();
        if is_live {
            // Before any client can hear of it: if the process dies then, the next start must still know.
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

/// Keeps this start and the next from serving the volume's dormant tails before the store was asked: a client is about
/// to hear what the store says of the volume, or to change it there. Must be called before.
pub(in crate::store) fn ask_store_first(engine: &Engine, name: &str) {
    if canary::active!("what_a_client_heard_is_forgotten") {
        return;
    }
    let waits = |tail: &Arc<Tail>| {
        let is_dormant = tail.lock().status == Status::Dormant;
        is_dormant && !tail.is_rescue()
    };
    let waiting: Vec<_> = engine.tails_named(name).into_iter().filter(waits).collect();
    for tail in &waiting {
        tail.set_unbroken(false);
        tail.require_check();
    }
    if !waiting.is_empty() {
        engine.require_check_of_untouched();
    }
}

/// Fences the tail: nothing more of the volume is completed here. Its layers are kept for rescue and may be
/// merged again.
fn fence(engine: &Arc<Engine>, tail: &Tail, error: &OpenError) {
    let mut inner = tail.lock();
    (inner.cut, inner.merged) = (Lsn::ZERO, Lsn::ZERO);
    if !inner.status.serves() {
        return;
    }
    inner.require_check();
    inner.status = Status::Fenced;
    drop(inner);
    match engine.compaction.maintained.has(tail.name()) {
        true => tracing::debug!(volume = tail.name(), %error, "taken while it was maintained"),
        false => tracing::error!(
            volume = tail.name(),
            %error,
            "fenced: nothing more of it is completed here"
        ),
    }
    note_end(engine, tail, error);
    tail.checked.wake_all();
    engine.wake_parked();
}

/// Records in the log that another host has the volume, or that it was deleted. Otherwise the next start would
/// wait for the volume, and count the log space of its tail as space that will become free.
///
/// Not of a store that was set back, nor of a host that stopped: a tail that is for rescue is not asked any more
/// what the store had; its ring alone says that it has ended. A poisoned log takes no record: a ring is all that
/// the next start has, if it may believe one.
pub(in crate::store) fn note_end(engine: &Arc<Engine>, tail: &Tail, error: &OpenError) {
    if tail.is_for_maintenance() {
        return;
    }
    tail.require_check();
    let is_anothers = matches!(error, OpenError::Fenced(_) | OpenError::Deleted(_));
    let is_mute = engine.committer().is_poisoned();
    if !is_anothers || is_mute || canary::active!("next_start_forgets_the_fence") {
        return;
    }
    tail.report_lost_snapshots();
    tail.mark_rescue();
    let record = Record::Tail(tail.record());
    engine.committer().record(engine, record);
}
