//! Takes a fork of a volume that is live here into its log (S6), and out of it again: as durable as a FLUSH when this ends, and usable on this
//! host from then on, also while the store is away.
//!
//! The parent's top layer is frozen and a frame of its log records the fork. The store is asked one thing, whether the name is
//! free, and nothing while it fails. What the fork reads of its parent until it has a root is taken with the point
//! ([`crate::request::fork_base`]). It must never be given up because the store fails; it is lost with the log, or
//! when another host goes on with the parent.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;

use crate::driver::ComputeKind;
use crate::engine::Engine;
use crate::error::OpenError;
use crate::log::snapshot_record::SnapshotRecord;
use crate::object::extensions::Labels;
use crate::request::points::KeptSnapshot;
use crate::request::tail::Tail;
use crate::store::forks::Fork;
use crate::store::forks::child::check_free;
use crate::store::forks::held_point::HeldPoint;
use crate::store::forks::keep::{has_room_for, keep_durably, record_removal};
use crate::store::forks::kept_forks::{find_fork, info_of};
use crate::sync::atomic::Ordering;

/// How long the store is asked whether the name is free, in pauses after a failed request.
const NAME_PATIENCE: u64 = 10;

/// Takes a fork of the volume as it is now. `None`: the log has no place for it, or cannot say what the fork would
/// read, so the caller must wait for the store. The caller holds the lock of the name.
pub(super) async fn take(
    engine: &Arc<Engine>,
    tail: &Arc<Tail>,
    name: &str,
) -> Result<Option<Fork>, OpenError> {
    let labels = Labels::new();
    let is_poisoned = engine.poisoned.load(Ordering::Acquire);
    // What the log has of an earlier volume of the name is told from this one by its root.
    let has_namesake = !engine.tails_named(name).is_empty();
    if is_poisoned || has_namesake || !has_room_for(engine, name, &labels) {
        return Ok(None);
    }
    check_name_is_free(engine, tail, name).await?;
    let point = HeldPoint::take(engine, tail).await?;
    let Some(base) = tail.base_at(point.lsn, &engine.segments) else {
        return Ok(None);
    };
    let (shared, bytes) = (Arc::clone(engine), base.bytes());
    let sort = move || base.sort(&shared.segments);
    let base = engine.port.compute(ComputeKind::Merge, bytes, sort).await?;
    // Others were taken meanwhile. From here to the record nobody else comes between.
    if !has_room_for(engine, name, &labels) {
        return Ok(None);
    }
    let block = base.block;
    let kept = KeptSnapshot {
        record: SnapshotRecord {
            id: engine.next_volume_id(),
            is_fork: true,
            name: name.to_owned(),
            lsn: point.lsn,
            bytes: point.bytes,
            unix_ms: engine.jobs.now().unix_ms,
            labels,
        },
        is_durable: false,
        may_be_stored: false,
        failure: None,
        sent_unheld: false,
        base: Some(Arc::new(base)),
    };
    let volume = info_of(&kept, block);
    keep_durably(engine, vec![(Arc::clone(tail), kept)]).await?;
    Ok(Some(Fork {
        volume,
        parent_holder: None,
        is_stored: false,
    }))
}

/// Refuses a name that is taken, as far as the store can say so now. If another host takes the name before the fork
/// has its root, the fork waits until that volume has another one.
async fn check_name_is_free(engine: &Engine, tail: &Tail, name: &str) -> Result<(), OpenError> {
    if tail.upload.store_failure().is_some() {
        return Ok(());
    }
    let mut check = pin!(check_free(engine, name));
    let patience = engine.options.retry_ns.saturating_mul(NAME_PATIENCE);
    let mut end = pin!(engine.port.sleep(patience));
    let found = std::future::poll_fn(|cx| match check.as_mut().poll(cx) {
        Poll::Ready(found) => Poll::Ready(Some(found)),
        Poll::Pending => end.as_mut().poll(cx).map(|()| None),
    });
    match found.await {
        None | Some(Err(OpenError::Store(_))) => {
            tracing::warn!(
                fork = name,
                "the store does not say whether the name is free: if it is not, the fork waits for it"
            );
            Ok(())
        }
        Some(found) => found,
    }
}

/// Deletes the fork of this name if only the log has it and nobody has opened it; false if there is none such. The caller
/// holds the lock of the name.
pub(super) async fn delete(engine: &Arc<Engine>, name: &str) -> Result<bool, OpenError> {
    let Some((tail, kept)) = find_fork(engine, name) else {
        return Ok(false);
    };
    let id = kept.record.id;
    let is_open = |tail: &Arc<Tail>| tail.id().volume == id && tail.lock().status.serves();
    if engine.tails().iter().any(is_open) {
        return Err(OpenError::InUse(name.to_owned()));
    }
    let forgotten = {
        let mut inner = tail.lock();
        match inner.points.find_kept(id) {
            // On its way to the store since the caller has looked.
            Some(kept) if kept.may_be_stored => return Err(OpenError::Busy(name.to_owned())),
            Some(_) => inner.points.forget(id),
            None => None,
        }
    };
    match forgotten {
        None => Ok(false),
        Some(kept) if record_removal(engine, &tail, &kept).await => Ok(true),
        Some(_) => Err(OpenError::Poisoned),
    }
}
