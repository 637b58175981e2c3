//! The snapshots that the log keeps (S6), for whoever looks for one by its name.
//!
//! A kept snapshot is as durable as a FLUSH, and goes to the store behind the call that took it ([`super::keep`],
//! [`super::store_kept`]). Memory only, but for the time that a waiter waits. It must never tell of one that no frame
//! has yet as if it were there for good.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;

use crate::engine::Engine;
use crate::error::OpenError;
use crate::object::SNAPSHOT_SIGN;
use crate::request::points::KeptSnapshot;
use crate::request::tail::{Status, Tail};
use crate::store::forks::kept_forks::find_fork;
use crate::units::VolumeId;

/// Looks at a snapshot whose way to the store fails, a retry's time apart, before a waiter is told.
const LOOKS_MAX: u32 = 15;

/// The one of this id.
pub(super) fn find(tail: &Tail, id: VolumeId) -> Option<KeptSnapshot> {
    tail.lock().points.find_kept(id).cloned()
}

/// Whether the log keeps the one of this id.
pub(super) fn is_kept(tail: &Tail, id: VolumeId) -> bool {
    tail.lock().points.find_kept(id).is_some()
}

/// The snapshot of this name, if the log keeps it for a volume that goes on here.
pub(super) fn find_named(engine: &Engine, name: &str) -> Option<(Arc<Tail>, KeptSnapshot)> {
    let (volume, _) = name.split_once(SNAPSHOT_SIGN)?;
    kept_of(engine, volume)
        .into_iter()
        .find(|(_, kept)| kept.record.name == name)
}

/// Those of a volume that goes on here.
pub(super) fn kept_of(engine: &Engine, volume: &str) -> Vec<(Arc<Tail>, KeptSnapshot)> {
    let goes_on = |tail: &Arc<Tail>| {
        let status = tail.lock().status;
        let is_used = status.serves() || status == Status::Dormant;
        tail.name() == volume && is_used && !tail.is_rescue()
    };
    let is_snapshot = |kept: &KeptSnapshot| !kept.record.is_fork;
    let tails = engine.tails().into_iter().filter(goes_on);
    tails
        .flat_map(|tail| {
            let kept = tail.lock().points.kept().to_vec();
            let with_tail = move |kept| (Arc::clone(&tail), kept);
            kept.into_iter().filter(is_snapshot).map(with_tail)
        })
        .collect()
}

/// Refuses a name that a snapshot has which the log keeps.
pub(super) fn check_not_kept(engine: &Engine, name: &str) -> Result<(), OpenError> {
    match find_named(engine, name) {
        Some(_) => Err(OpenError::Exists(name.to_owned())),
        None => Ok(()),
    }
}

/// Ends when the log does not keep the snapshot of this name any more: the store has it, or it was deleted.
///
/// # Errors
/// If it cannot be brought to the store now.
pub(in crate::store) async fn wait_in_store(engine: &Engine, name: &str) -> Result<(), OpenError> {
    wait_gone(engine, name, || find_named(engine, name)).await
}

/// Waits until the fork of this name has its root, if the log keeps one.
///
/// # Errors
/// If it cannot be brought to the store now.
pub(in crate::store) async fn wait_fork_in_store(
    engine: &Engine,
    name: &str,
) -> Result<(), OpenError> {
    wait_gone(engine, name, || find_fork(engine, name)).await
}

/// Ends when what `find` finds is in the log no more.
pub(super) async fn wait_gone(
    engine: &Engine,
    name: &str,
    mut find: impl FnMut() -> Option<(Arc<Tail>, KeptSnapshot)>,
) -> Result<(), OpenError> {
    let mut looks = 0;
    while let Some((tail, kept)) = find() {
        looks += 1;
        let is_dormant = tail.lock().status == Status::Dormant;
        let dormant = is_dormant.then(|| format!("volume {} is not open here", tail.name()));
        let failure = kept.failure.or_else(|| tail.upload.store_failure());
        let failure = dormant.or(failure);
        if let Some(failure) = failure.filter(|_| looks > LOOKS_MAX) {
            return Err(OpenError::Store(format!(
                "{name} is in the log of this host and not in the store yet ({failure}): try again when the volume is \
                 open and the store can be reached"
            )));
        }
        let id = kept.record.id;
        let mut look = pin!(engine.port.sleep(engine.options.retry_ns));
        let is_gone = || (!is_kept(&tail, id)).then_some(());
        let mut gone = pin!(tail.upload.changed.wait_until(is_gone));
        std::future::poll_fn(|cx| match gone.as_mut().poll(cx) {
            Poll::Ready(()) => Poll::Ready(()),
            Poll::Pending => look.as_mut().poll(cx).map(drop),
        })
        .await;
    }
    Ok(())
}

/// The same, if its root was sent to the store, which therefore may have it at any moment.
pub(super) async fn wait_if_sent(engine: &Engine, name: &str) -> Result<(), OpenError> {
    match find_named(engine, name) {
        Some((_, kept)) if kept.may_be_stored => wait_in_store(engine, name).await,
        _ => Ok(()),
    }
}

/// The same of a fork that nobody has open.
pub(super) async fn wait_if_fork_is_sent(engine: &Engine, name: &str) -> Result<(), OpenError> {
    let Some((_, kept)) = find_fork(engine, name) else {
        return Ok(());
    };
    let id = kept.record.id;
    let is_open = |tail: &Arc<Tail>| tail.id().volume == id && tail.lock().status.serves();
    match kept.may_be_stored && !engine.tails().iter().any(is_open) {
        true => wait_fork_in_store(engine, name).await,
        false => Ok(()),
    }
}
