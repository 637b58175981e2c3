//! What a root says about who holds a volume, and whether this log's part of the volume continues it.
//!
//! Judgements only: nothing here changes a tail, a root or the log.

use std::sync::Arc;

use crate::driver::{StoreError, StoreOp};
use crate::engine::Engine;
use crate::error::OpenError;
use crate::hostlog::names::low_key;
use crate::log::ring::TailId;
use crate::object::root::Root;
use crate::request::tail::{Status, Tail};
use crate::store::objects::{store_error, store_with_retry};
use crate::units::VolumeId;

/// The local tails of a volume.
pub(crate) fn local_tails(engine: &Engine, volume: VolumeId) -> Vec<Arc<Tail>> {
    engine
        .tails()
        .into_iter()
        .filter(|tail| tail.id().volume == volume)
        .collect()
}

/// Whether the store has this host's low mark: it is there from a host's first record on.
pub(in crate::store) async fn has_low_mark(engine: &Engine) -> Result<bool, OpenError> {
    let key = low_key(engine.host);
    match store_with_retry(engine, StoreOp::Get { key: key.clone() }).await {
        Ok(_) => Ok(true),
        Err(StoreError::NotFound) => Ok(false),
        Err(error) => Err(store_error("read", &key, &error)),
    }
}

/// The error if the store and its logs have less than what this host has reported as stored.
pub(in crate::store) fn records_lost(stored: &Root, tails: &[Arc<Tail>]) -> Option<OpenError> {
    if canary::active!("older_store_is_believed") {
        return None;
    }
    let known = tails.iter().filter(|tail| !tail.is_rescue());
    let ahead = known.max_by_key(|tail| tail.stored_lsn())?;
    (ahead.stored_lsn() > stored.lsn).then(|| OpenError::StoreWentBack {
        volume: stored.name.clone(),
        stored_lsn: stored.lsn.0,
        known_lsn: ahead.stored_lsn().0,
    })
}

/// Whether this host holds the volume: the root's last commit is of a session of this log. A copy of the cache
/// directory has the same host id, but its tail parts from this one at the moment of the copy.
pub(crate) fn is_held_here(engine: &Engine, root: &Root, tails: &[Arc<Tail>]) -> bool {
    // After a claim that was cut short the predecessor still owns the volume; a closed volume had no owner.
    let owner = root.owner.as_ref().map(|owner| owner.host);
    let claimant = root.claimant.as_ref().map(|claimant| claimant.host);
    let predecessor = root.predecessor.map(|before| before.host);
    // This log began a take-over that was cut short.
    let is_own_claim = owner.is_none()
        && claimant == Some(engine.host)
        && engine.sessions.is_own(root.writer.session);
    if is_own_claim && !canary::active!("own_claim_is_a_copys") {
        return true;
    }
    let holder = owner.or(predecessor).or(claimant);
    if holder != Some(engine.host) || claimant.is_some_and(|claimant| claimant != engine.host) {
        return false;
    }
    let is_own = was_written_here(engine, root, tails);
    if !is_own {
        tracing::error!(
            volume = root.name,
            session = %root.writer.session,
            "a copy of this cache directory has served this volume: what the log here holds of it \
             continues nothing"
        );
    }
    is_own
}

/// Whether this log made the root's last commit.
fn was_written_here(engine: &Engine, root: &Root, tails: &[Arc<Tail>]) -> bool {
    canary::active!("copy_continues_the_tail")
        || engine.sessions.is_own(root.writer.session)
        || was_begun_without_a_log(root)
        // The log remembers a bounded number of sessions, and each tail the last root it saw.
        || tails.iter().any(|tail| tail.upload.mark() == root.mark())
}

/// Whether the root's hold began on a log that was already poisoned. Such a hold took no write and left nothing
/// in any log, so it has one history only, and every log of the host may continue it. This log need not be
/// poisoned any more: a loss of power erases a poison mark whose own sync failed.
fn was_begun_without_a_log(root: &Root) -> bool {
    root.writer.session.number == 0 && !canary::active!("lost_mark_makes_a_copy")
}

/// Whether a volume that is opened with this root continues as the hold left it. It does if the local tail
/// continues the hold, or if the hold was given back completely and nobody has opened the volume since. A log
/// without a tail of the hold is newer than it; a log with one must have written the root itself. What is kept for
/// rescue of another hold says nothing of this one.
pub(in crate::store) fn is_continued(
    engine: &Engine,
    root: &Root,
    tails: &[Arc<Tail>],
    hold: TailId,
    continuing: &Option<Arc<Tail>>,
) -> bool {
    if canary::active!("disk_over_another_history") {
        return true;
    }
    let given_back = || {
        let is_new = match canary::active!("kept_tail_ends_a_later_hold") {
            true => tails.is_empty(),
            false => tails.iter().all(|tail| is_kept_of_another(tail, root)),
        };
        let by_this = is_new || was_written_here(engine, root, tails);
        // A maintenance leaves the volume as it was closed, while it goes on, too.
        (is_closed(root) || root.is_maintained()) && by_this
    };
    root.since == hold.since && (continuing.is_some() || given_back())
}

/// Refuses a volume that another host holds, or a copy of this one. A host that only maintains it gives way.
pub(crate) fn check_not_held(engine: &Engine, root: &Root) -> Result<(), OpenError> {
    let holder = root.owner.as_ref().or(root.claimant.as_ref());
    let Some(owner) = holder.filter(|_| !root.is_maintained()) else {
        return Ok(());
    };
    let copy = match owner.host == engine.host {
        true => ", started from a copy of this host's cache directory",
        false => "",
    };
    Err(OpenError::Held {
        volume: root.name.clone(),
        owner: format!("{} ({}{copy})", owner.label, owner.host),
        stored_lsn: root.lsn.0,
        seen_ms_ago: engine.jobs.now().unix_ms.saturating_sub(root.unix_ms),
    })
}

/// The error if the root is older than one that this host has seen, or belongs to another history: epoch and
/// sequence of a volume's root only rise, whoever holds it.
pub(in crate::store) fn set_back(root: &Root, tails: &[Arc<Tail>]) -> Option<OpenError> {
    if canary::active!("older_store_is_believed") {
        return None;
    }
    let known = tails.iter().filter(|tail| !tail.is_rescue());
    let mut ahead =
        known.filter(|tail| tail.id().since > root.epoch || !root.follows(tail.upload.mark()));
    ahead.next().map(|tail| OpenError::StoreWentBack {
        volume: root.name.clone(),
        stored_lsn: root.lsn.0,
        known_lsn: tail.stored_lsn().0,
    })
}

/// The epochs of a name never go back. So a root of another volume than a tail's of this name, and of no higher epoch
/// than that tail's hold began in, is from before the tail's volume was made.
pub(in crate::store) fn set_back_to_namesake(root: &Root, tail: &Tail) -> Option<OpenError> {
    let is_before = tail.name() == root.name
        && tail.id().volume != root.volume
        && root.epoch <= tail.id().since;
    is_before.then(|| OpenError::StoreWentBack {
        volume: root.name.clone(),
        stored_lsn: root.lsn.0,
        known_lsn: tail.stored_lsn().0,
    })
}

/// The same of all tails that wait for a volume of this name.
pub(in crate::store) fn set_back_to_any_namesake(
    engine: &Engine,
    root: &Root,
) -> Option<OpenError> {
    if canary::active!("namesake_of_before_is_believed") {
        return None;
    }
    let tails = engine.tails().into_iter();
    let mut waiting = tails.filter(|tail| !tail.is_rescue());
    waiting.find_map(|tail| set_back_to_namesake(root, &tail))
}

/// The local tail that continues the root. A fenced tail has a history of its own, whatever the root says now.
pub(in crate::store) fn continuing_tail(
    engine: &Engine,
    root: &Root,
    tails: &[Arc<Tail>],
    ours: bool,
) -> Option<Arc<Tail>> {
    let continues = |tail: &&Arc<Tail>| {
        let status = tail.lock().status;
        let whole = !tail.is_rescue() && matches!(status, Status::Dormant | Status::Unchecked);
        // A maintenance keeps `since`, and no tail belongs to it: one that has it is of before the volume was closed.
        let of_hold = ours && tail.id().since == root.since && !root.is_maintained();
        whole && (of_hold || was_given_back(engine, tail, root))
    };
    tails.iter().find(continues).cloned()
}

/// Whether this log gave the volume back with all that the tail holds, and nobody has opened it since, although
/// the log has no record of that: a crash came before the record, or the log is poisoned. Then the hold
/// continues, however often that happens.
fn was_given_back(engine: &Engine, tail: &Arc<Tail>, root: &Root) -> bool {
    (is_closed(root) || root.is_maintained()) && covers_tail(engine, tail, root)
}

/// Whether nobody holds the volume, and no log has more of it than the root.
pub(in crate::store) fn is_closed(root: &Root) -> bool {
    root.owner.is_none() && root.predecessor.is_none()
}

/// Whether nobody uses the volume, so that a host may take it to maintain it: it is closed, or a maintenance was cut short.
pub(crate) fn may_be_maintained(root: &Root) -> bool {
    root.is_maintained() || (is_closed(root) && root.claimant.is_none())
}

/// The same, and this host has nothing of it that a client was told of.
pub(in crate::store) fn is_nowhere(root: &Root, tails: &[Arc<Tail>]) -> bool {
    may_be_maintained(root) && tails.iter().all(|tail| is_kept_of_another(tail, root))
}

/// Whether the tail is kept for rescue alone, and is of another hold than the root's.
fn is_kept_of_another(tail: &Arc<Tail>, root: &Root) -> bool {
    tail.is_rescue() && tail.id().since != root.since
}

/// Whether the root belongs to the tail's hold, was written from this log, and covers all that the tail holds.
pub(in crate::store) fn covers_tail(engine: &Engine, tail: &Arc<Tail>, root: &Root) -> bool {
    tail.id().since == root.since
        && tail.newest() <= root.lsn
        && was_written_here(engine, root, std::slice::from_ref(tail))
}
