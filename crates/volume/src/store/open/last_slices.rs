//! The last slices of a volume that is given back: the record that ends the epoch names them, too.
//!
//! Their packs are uploaded while the tail is live, and kept out of all other records. Then nothing is written any more, and one
//! record makes them stored and ends the epoch, where there would be two, one after the other. Nothing here may end the
//! tail's service before its root was seen to be this host's: afterwards there is no way back to serving.

use std::sync::Arc;

use crate::engine::Engine;
use crate::error::OpenError;
use crate::jobs::join;
use crate::request::tail::{Status, Tail};
use crate::store::open::endings::{self, end_reason};
use crate::store::roots::read_any_root;
use crate::sync::atomic::Ordering;
use crate::units::{Epoch, Lsn};

/// Keeps a tail's slices for the record that ends its epoch, until it is dropped.
pub(super) struct KeptSlices<'a> {
    engine: &'a Engine,
    tail: &'a Tail,
}

impl Drop for KeptSlices<'_> {
    fn drop(&mut self) {
        self.tail.upload.keep_for_end(false);
        self.tail.upload.wake_all();
        self.engine.host_log.wake();
    }
}

/// Brings all that was committed to the store, but for the record that makes it stored. `None`: it is to be stored as usual.
pub(super) async fn upload<'a>(
    engine: &'a Engine,
    tail: &'a Tail,
) -> Result<Option<KeptSlices<'a>>, OpenError> {
    let newest = tail.newest();
    let is_usual = {
        let inner = tail.lock();
        let has_snapshots = !inner.points.kept().is_empty() || !inner.points.is_empty();
        has_snapshots || inner.status != Status::Live || tail.stored_lsn() >= newest
    };
    if is_usual || canary::active!("close_ends_nothing") {
        return Ok(None);
    }
    if tail.upload.request_now(newest) {
        engine.host_log.wake();
    }
    // Until all is cut nothing is kept: slices that wait would leave no room for the next.
    if !wait(engine, tail, || tail.lock().cut >= newest).await? || tail.stored_lsn() >= newest {
        return Ok(None);
    }
    tail.upload.keep_for_end(true);
    let kept = KeptSlices { engine, tail };
    let ready = wait(engine, tail, || ready_lsn(tail) >= newest);
    // A root that is gone or another's is found while the volume can still be served.
    let (ready, is_own) = join(ready, has_own_root(engine, tail)).await;
    // A snapshot that was taken meanwhile waits for a record before the last one.
    let has_points = {
        let inner = tail.lock();
        !inner.points.is_empty() || !inner.points.kept().is_empty()
    };
    let may_end = ready? && is_own? && !has_points;
    Ok(may_end.then_some(kept))
}

/// Waits as long as the tail can be brought to the store by a record. False: it cannot, for its log is poisoned.
async fn wait(
    engine: &Engine,
    tail: &Tail,
    mut is_done: impl FnMut() -> bool,
) -> Result<bool, OpenError> {
    let changed = &tail.upload.changed;
    changed
        .wait_until(|| {
            let status = tail.lock().status;
            if status != Status::Live {
                return Some(Err(end_reason(tail, status)));
            }
            if engine.poisoned.load(Ordering::Acquire) {
                return Some(Ok(false));
            }
            if let Some(refusal) = tail.upload.refusal() {
                return Some(Err(refusal));
            }
            is_done().then_some(Ok(true))
        })
        .await
}

/// The LSN up to which everything is stored as soon as a record says so.
pub(super) fn ready_lsn(tail: &Tail) -> Lsn {
    let ready = tail.upload.publishable();
    let ready = ready.last().map(|slice| slice.last).unwrap_or_default();
    ready.max(tail.stored_lsn())
}

async fn has_own_root(engine: &Engine, tail: &Tail) -> Result<bool, OpenError> {
    match read_any_root(engine, tail.name()).await {
        Err(OpenError::NoSuchVolume(name)) => Err(OpenError::RootMissing(name)),
        found => {
            let known = tail.upload.head().map(|head| head.version);
            // Whatever else there is, the usual way says.
            Ok(found.is_ok_and(|found| Some(found.version) == known))
        }
    }
}

/// Has a record make the last slices stored and end the epoch. Where it is not known whether it did, another one says the
/// same; like any slice they are waited for as long as the store is away.
pub(super) async fn end_with_them(
    engine: &Arc<Engine>,
    tail: &Arc<Tail>,
    epoch: Epoch,
) -> Result<(), OpenError> {
    let mut delay = engine.options.retry_ns;
    loop {
        match engine.host_log.end_epoch(tail, epoch).await {
            Ok(()) => return Ok(()),
            Err(error) if endings::is_final(&error) => return Err(error),
            Err(error) => tail.upload.set_error(Some(&error)),
        }
        engine.port.sleep(delay).await;
        delay = (delay * 2).min(engine.options.retry_ns * 30);
    }
}
