//! Tails that are not served: what this host's log holds of volumes that it does not have open.
//!
//! A tail is kept for rescue when another host has taken its volume over: its writes exist nowhere else and
//! continue no root, so they are never replayed and never uploaded. They keep their space in the log until an
//! operator drops them.

use std::sync::Arc;

use crate::engine::Engine;
use crate::error::OpenError;
use crate::log::ring::TailId;
use crate::request::tail::{Status, Tail};
use crate::store::catalog::name_locks::NameLock;
use crate::store::open::discard_tail;
use crate::store::open::tail_claim::TailClaim;
use blkmq::io::SECTOR_BYTES;

use crate::units::Lsn;

/// A tail that is not served.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnservedTail {
    /// The volume and the hold.
    pub id: TailId,
    /// The volume's name.
    pub volume: String,
    /// Another host took the volume over: nothing will ever serve or upload this tail.
    pub rescue: bool,
    /// The volume's size in bytes, as this host knew it last.
    pub bytes: u64,
    /// The newest commit.
    pub newest: Lsn,
    /// The newest commit that is in the store.
    pub stored: Lsn,
    /// Extents that the store lacks, and the bytes of log that they hold.
    pub extents: usize,
    /// See `extents`.
    pub log_bytes: u64,
}

fn describe(tail: &Tail) -> Option<UnservedTail> {
    let (status, newest, extents) = {
        let inner = tail.lock();
        (inner.status, inner.newest, inner.layers.dirty_extents())
    };
    matches!(status, Status::Dormant | Status::Fenced).then(|| UnservedTail {
        id: tail.id(),
        volume: tail.name().to_owned(),
        rescue: tail.is_rescue() || status == Status::Fenced,
        bytes: tail.size().bytes,
        newest,
        stored: tail.stored_lsn(),
        extents,
        log_bytes: tail.dirty_sectors() * SECTOR_BYTES,
    })
}

/// Whether the tail is not served and never will be.
pub(crate) fn is_lost(tail: &Tail) -> bool {
    describe(tail).is_some_and(|tail| tail.rescue)
}

/// Lists all unserved tails.
pub(crate) fn list(engine: &Engine) -> Vec<UnservedTail> {
    let tails = engine.tails();
    tails.iter().filter_map(|tail| describe(tail)).collect()
}

/// Drops a tail: the writes that the store lacks are gone once this has ended. A tail that its volume still waits
/// for is dropped only if `waiting_too`.
pub(crate) async fn drop_tail(
    engine: &Arc<Engine>,
    id: TailId,
    waiting_too: bool,
) -> Result<(), OpenError> {
    let missing = || OpenError::Invalid(format!("no tail of volume {} is here", id.volume));
    let tail = engine.tail(id).ok_or_else(missing)?;
    let _busy = NameLock::take(engine, tail.name())?;
    let _claim = TailClaim::take(engine, &tail)?;
    let found = describe(&tail).ok_or_else(|| OpenError::InUse(tail.name().to_owned()))?;
    if !found.rescue && !waiting_too {
        return Err(OpenError::InUse(found.volume));
    }
    if engine.committer().is_poisoned() {
        return Err(OpenError::Poisoned);
    }
    tail.lock().status = Status::Closed;
    discard_tail(engine, &tail);
    // Requested after the record was made, because a round that had started before may lack the record.
    let round = engine.committer().next_round();
    match engine.committer().durable(engine, round).await {
        true => Ok(()),
        false => Err(OpenError::Poisoned),
    }
}
