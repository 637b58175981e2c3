//! What is different about a volume that may be a fork without a root: the lock of its name, what lies below its
//! tail, and the wait for its root.
//!
//! Of any other volume, that is any whose fork no log keeps, it does nothing. It opens nothing itself.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;

use crate::engine::Engine;
use crate::error::OpenError;
use crate::log::ring::TailId;
use crate::map::index::Index;
use crate::request::points::KeptSnapshot;
use crate::request::tail::{Status, Tail};
use crate::store::catalog::name_locks::NameLock;
use crate::store::forks::kept_forks::{FIRST_HOLD, find_fork};
use crate::store::open::endings::end_reason;
use crate::store::open::holds::{continuing_tail, has_low_mark, is_held_here, set_back};
use crate::store::open::keep_for_rescue;
use crate::store::roots::read_any_root;
use crate::units::RootMark;

/// Looks at a name whose fork is being given its root, a retry's time apart, before the caller is told that it is in use.
const LOOKS_MAX: u32 = 60;
/// A parent that is not open is looked for in the store this often, in pauses after a failed request.
const LOOK_RETRIES: u64 = 30;

/// The hold in which this host serves a fork before it has a root.
pub(super) fn hold_of(kept: &KeptSnapshot) -> TailId {
    TailId {
        volume: kept.record.id,
        since: FIRST_HOLD,
    }
}

/// Locks the name of a volume that is to be opened. A fork that the log keeps is locked while its root is written, which
/// is waited for: the root says whether it was open then.
///
/// # Errors
/// If somebody else has locked the name, or the store does not say for long what became of the root.
pub(super) async fn lock_name(engine: &Arc<Engine>, name: &str) -> Result<NameLock, OpenError> {
    for _ in 0..LOOKS_MAX {
        let locked = NameLock::take(engine, name);
        let is_sent = || find_fork(engine, name).is_some_and(|(_, kept)| kept.may_be_stored);
        if locked.is_ok() || !is_sent() {
            return locked;
        }
        engine.port.sleep(engine.options.retry_ns).await;
    }
    Err(OpenError::Store(format!(
        "fork {name} is on its way to the store, which has not said yet whether it has it: try again"
    )))
}

/// A dormant tail whose root was not read is served: if it is a fork's without a root, over what its parent's layers still have
/// of what it began with.
pub(super) fn lay_base(engine: &Engine, tail: &Tail) {
    let found = find_fork(engine, tail.name());
    let found = found.filter(|(_, kept)| hold_of(kept) == tail.id());
    let base = found.map(|(parent, kept)| parent.layers_at(kept.record.lsn, &engine.segments));
    let mut inner = tail.lock();
    inner.index = Index::unknown();
    inner.layers.base = base.map(Arc::new);
}

/// Waits until an unchecked fork has its root. At once for any other tail.
///
/// # Errors
/// If it never will: its parent's service has ended, or another host has the parent, so that the log that keeps the fork
/// is not gone on with.
pub(super) async fn wait_has_root(engine: &Engine, tail: &Tail) -> Result<(), OpenError> {
    let lost = || OpenError::Fenced(tail.name().to_owned());
    loop {
        let found = find_fork(engine, tail.name());
        let Some((parent, kept)) = found.filter(|(_, kept)| hold_of(kept) == tail.id()) else {
            return Ok(());
        };
        let id = kept.record.id;
        let has_ended = || {
            let mut inner = parent.lock();
            if inner.points.find_kept(id).is_none() {
                return Some(Ok(()));
            }
            match inner.status {
                _ if parent.is_rescue() => Some(Err(lost())),
                status @ (Status::Fenced | Status::Closed) => {
                    drop(inner);
                    Some(Err(why_lost(tail, end_reason(&parent, status))))
                }
                _ => None,
            }
        };
        let mut ended = pin!(parent.upload.changed.wait_until(has_ended));
        let mut look = pin!(engine.port.sleep(engine.options.retry_ns * LOOK_RETRIES));
        let found = std::future::poll_fn(|cx| match ended.as_mut().poll(cx) {
            Poll::Ready(result) => Poll::Ready(Some(result)),
            Poll::Pending => look.as_mut().poll(cx).map(|()| None),
        });
        if let Some(result) = found.await {
            return result;
        }
        if is_gone_on_elsewhere(engine, &parent).await {
            return Err(lost());
        }
    }
}

/// Whether the tail is of a fork that never had a root, and no log here keeps what it began with: that went when another
/// host went on with its parent.
fn is_lost_fork(engine: &Engine, tail: &Tail) -> bool {
    let id = tail.id();
    let had_root = id.since != FIRST_HOLD || tail.upload.mark() != RootMark::default();
    let keeps = |other: &Arc<Tail>| {
        !other.is_rescue() && other.lock().points.find_kept(id.volume).is_some()
    };
    let is_kept = || engine.tails().iter().any(keeps);
    !had_root && !is_kept() && !canary::active!("lost_fork_waits_for_its_root")
}

/// The same, when the store has nothing under the tail's name. A store without this host's mark may be another one, and
/// says nothing.
pub(super) async fn is_lost_in_store(engine: &Engine, tail: &Tail) -> Result<bool, OpenError> {
    let is_this_store = || async {
        match canary::active!("fork_is_lost_in_any_store") {
            true => Ok(true),
            false => has_low_mark(engine).await,
        }
    };
    Ok(is_lost_fork(engine, tail) && is_this_store().await?)
}

/// Nothing stands in the store under this name, of which tails wait here. Those of lost forks are kept for rescue from now
/// on. True: there are no others.
pub(super) fn retire_lost(engine: &Arc<Engine>, name: &str) -> bool {
    let tails = engine.tails_named(name);
    let mut waiting = tails.iter().filter(|tail| !tail.is_rescue());
    waiting.all(|tail| {
        let is_lost = !tail.lock().status.serves() && is_lost_fork(engine, tail);
        if is_lost {
            keep_for_rescue(engine, tail);
        }
        is_lost
    })
}

/// The end of a parent's service, as its fork's. A store that was set back, or a host that stopped, loses nothing for good.
fn why_lost(tail: &Tail, why: OpenError) -> OpenError {
    match why {
        OpenError::StoreWentBack { .. } | OpenError::HostStopped(_)
            if !canary::active!("fork_is_lost_with_any_end_of_its_parent") =>
        {
            why
        }
        _ => OpenError::Fenced(tail.name().to_owned()),
    }
}

/// Whether a parent that is not open here has gone on without this log, as far as the store says so.
async fn is_gone_on_elsewhere(engine: &Engine, parent: &Arc<Tail>) -> bool {
    if parent.lock().status != Status::Dormant {
        return false;
    }
    let Ok(head) = read_any_root(engine, parent.name()).await else {
        return false;
    };
    let root = &head.root;
    let tails = [Arc::clone(parent)];
    // One that was renamed is followed when it is opened.
    if root.volume != parent.id().volume || root.deleted || set_back(root, &tails).is_some() {
        return root.deleted && root.rename_mark().is_none() && root.volume == parent.id().volume;
    }
    let ours = is_held_here(engine, root, &tails);
    continuing_tail(engine, root, &tails, ours).is_none() && parent.lock().status == Status::Dormant
}
