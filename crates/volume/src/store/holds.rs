//! What a root says about who holds a volume, and whether what this log has of it goes on from there.
//!
//! Judgements only: nothing here changes a tail, a root or the log.

use std::sync::Arc;

use crate::engine::Engine;
use crate::error::OpenError;
use crate::log::ring::TailId;
use crate::object::root::Root;
use crate::request::tail::{Status, Tail};
use crate::units::VolumeId;

/// What an open found out about local tails of a volume.
pub(crate) fn local_tails(engine: &Engine, volume: VolumeId) -> Vec<Arc<Tail>> {
    engine
        .tails()
        .into_iter()
        .filter(|tail| tail.id().volume == volume)
        .collect()
}

/// Whether the store with its logs has less than what was called stored here.
pub(super) fn records_lost(stored: &Root, tails: &[Arc<Tail>]) -> Option<OpenError> {
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

/// Whether the volume is held by this host: its last commit was of a session of this log. A copy of
/// the cache directory has the same host id, and a tail that parts from this one where it was copied.
pub(crate) fn is_held_here(engine: &Engine, root: &Root, tails: &[Arc<Tail>]) -> bool {
    // After a claim that was cut short it is still the predecessor's; of a closed volume it was nobody's.
    let owner = root.owner.as_ref().map(|owner| owner.host);
    let claimant = root.claimant.as_ref().map(|claimant| claimant.host);
    let predecessor = root.predecessor.map(|before| before.host);
    // It was to be taken over from whoever had it, by this log, and that was cut short.
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

/// Whether the root's last commit was made from this log.
fn was_written_here(engine: &Engine, root: &Root, tails: &[Arc<Tail>]) -> bool {
    canary::active!("copy_continues_the_tail")
        || engine.sessions.is_own(root.writer.session)
        || was_begun_without_a_log(root)
        // The log remembers a bounded number of sessions, and each tail the last root it saw.
        || tails.iter().any(|tail| tail.upload.mark() == root.mark())
}

/// Whether the root's hold began on a log that was poisoned by then. It took no write and left nothing in
/// any log, so there are no two histories of it: every log of the host may go on from it. This one need not be
/// poisoned any more: loss of power takes a mark whose own sync failed.
fn was_begun_without_a_log(root: &Root) -> bool {
    root.writer.session.number == 0 && !canary::active!("lost_mark_makes_a_copy")
}

/// Whether a volume that is opened with this root goes on as the hold left it. It does if the local tail
/// continues the hold, or if the hold was given back with everything and nobody opened the volume since. A log
/// that has no tail of it came after that log; one that has must have written the root itself.
pub(super) fn is_continued(
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
        let by_this = tails.is_empty() || was_written_here(engine, root, tails);
        is_closed(root) && by_this
    };
    root.since == hold.since && (continuing.is_some() || given_back())
}

/// Refuses a volume that another host holds, or a copy of this one.
pub(crate) fn check_not_held(engine: &Engine, root: &Root) -> Result<(), OpenError> {
    let Some(owner) = root.owner.as_ref().or(root.claimant.as_ref()) else {
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

/// Whether the root is older than what this host saw there, or is of another history: epoch and sequence of
/// a volume's root only rise, whoever holds it.
pub(super) fn set_back(root: &Root, tails: &[Arc<Tail>]) -> Option<OpenError> {
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
pub(super) fn set_back_to_namesake(root: &Root, tail: &Tail) -> Option<OpenError> {
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
pub(super) fn set_back_to_any_namesake(engine: &Engine, root: &Root) -> Option<OpenError> {
    if canary::active!("namesake_of_before_is_believed") {
        return None;
    }
    let tails = engine.tails().into_iter();
    let mut waiting = tails.filter(|tail| !tail.is_rescue());
    waiting.find_map(|tail| set_back_to_namesake(root, &tail))
}

/// The local tail that continues the root. A fenced one has a history of its own, whatever the root says now.
pub(super) fn continuing_tail(
    engine: &Engine,
    root: &Root,
    tails: &[Arc<Tail>],
    ours: bool,
) -> Option<Arc<Tail>> {
    let continues = |tail: &&Arc<Tail>| {
        let status = tail.lock().status;
        let whole = !tail.is_rescue() && matches!(status, Status::Dormant | Status::Unchecked);
        let of_hold = ours && tail.id().since == root.since;
        whole && (of_hold || was_given_back(engine, tail, root))
    };
    tails.iter().find(continues).cloned()
}

/// Whether this log gave the volume back with all that the tail holds, nobody opened it since, and the log
/// does not say so: a crash came before, or it is poisoned. The hold goes on then, however often that happens.
fn was_given_back(engine: &Engine, tail: &Arc<Tail>, root: &Root) -> bool {
    is_closed(root) && covers_tail(engine, tail, root)
}

/// Nobody holds it, and no log has anything of it beyond the root.
fn is_closed(root: &Root) -> bool {
    root.owner.is_none() && root.predecessor.is_none()
}

/// Whether the root is of the tail's hold, was written from this log, and has all that the tail holds.
pub(super) fn covers_tail(engine: &Engine, tail: &Arc<Tail>, root: &Root) -> bool {
    tail.id().since == root.since
        && tail.newest() <= root.lsn
        && was_written_here(engine, root, std::slice::from_ref(tail))
}
