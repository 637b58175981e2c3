//! A point in a volume's history that is held until its child is pinned. Taking a point freezes the top layer;
//! writers go on.
//!
//! Data at a held point keeps its place in the log even if it is overwritten, so a point is never held without
//! end: a volume has few points at once, and they are released when the store does not take what they wait for.

use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::Poll;

use crate::engine::Engine;
use crate::error::OpenError;
use crate::request::points::{KeptSnapshot, POINTS_MAX, Points};
use crate::request::tail::{Status, Tail};
use crate::store::flow;
use crate::units::Lsn;

/// Checks without progress, while the store fails, that end the wait: about as long as a single request is
/// repeated for a waiting client.
const LOOKS_MAX: u32 = 15;
/// The same while writers wait for space in the log.
const LOOKS_MAX_PRESSED: u32 = 2;

/// A point that is held until this is dropped.
#[derive(Debug)]
pub(super) struct HeldPoint {
    tail: Arc<Tail>,
    /// The LSN of the point.
    pub(super) lsn: Lsn,
    /// The volume's size at the point.
    pub(super) bytes: u64,
}

impl HeldPoint {
    /// Takes a point now, or right after a due fold has begun.
    ///
    /// # Errors
    /// If it is not served, or has too many points already.
    pub(super) async fn take(tail: &Arc<Tail>) -> Result<HeldPoint, OpenError> {
        HeldPoint::take_unless(tail, Points::is_fold_next).await
    }

    /// The same; where there are too many, waits for its turn.
    pub(super) async fn take_in_turn(tail: &Arc<Tail>) -> Result<HeldPoint, OpenError> {
        HeldPoint::take_unless(tail, |points| points.is_fold_next() || points.is_full()).await
    }

    async fn take_unless(
        tail: &Arc<Tail>,
        must_wait: impl Fn(&Points) -> bool,
    ) -> Result<HeldPoint, OpenError> {
        let take = || {
            let inner = tail.lock();
            let waits = inner.status == Status::Live && must_wait(&inner.points);
            drop(inner);
            // While the store fails no fold begins, and no point is given up.
            let waits = waits && tail.upload.store_failure().is_none();
            (!waits).then(|| HeldPoint::take_now(tail))
        };
        tail.upload.changed.wait_until(take).await
    }

    /// The point of a snapshot that the log is to keep no more: held until the log says so.
    pub(super) fn of_forgotten(tail: &Arc<Tail>, forgotten: &KeptSnapshot) -> HeldPoint {
        HeldPoint {
            tail: Arc::clone(tail),
            lsn: forgotten.record.lsn,
            bytes: forgotten.record.bytes,
        }
    }

    fn take_now(tail: &Arc<Tail>) -> Result<HeldPoint, OpenError> {
        let mut inner = tail.lock();
        if inner.status != Status::Live {
            return Err(OpenError::Busy(tail.name().to_owned()));
        }
        if inner.points.is_full() {
            return Err(OpenError::TooManyPoints(tail.name().to_owned(), POINTS_MAX));
        }
        let (lsn, bytes) = (inner.newest, inner.geometry.bytes);
        inner.layers.freeze(lsn);
        inner.points.add(lsn);
        drop(inner);
        Ok(HeldPoint {
            tail: Arc::clone(tail),
            lsn,
            bytes,
        })
    }

    /// Waits until the store has everything up to the point. Fails if it never will, or does not take it now.
    pub(super) async fn wait_stored(&self, engine: &Engine) -> Result<(), OpenError> {
        let mut look = engine.port.sleep(engine.options.retry_ns);
        let mut stored = pin!(flow::wait_stored(engine, &self.tail, self.lsn));
        let mut patience = Patience::new(&self.tail);
        std::future::poll_fn(|cx| {
            if let Poll::Ready(result) = stored.as_mut().poll(cx) {
                return Poll::Ready(result);
            }
            while Pin::new(&mut look).poll(cx).is_ready() {
                if let Some(error) = patience.check_progress(engine, &self.tail) {
                    return Poll::Ready(Err(error));
                }
                look = engine.port.sleep(engine.options.retry_ns);
            }
            Poll::Pending
        })
        .await
    }
}

impl Drop for HeldPoint {
    fn drop(&mut self) {
        self.tail.lock().points.remove(self.lsn);
        // Folds may continue, and slices of later commits.
        self.tail.upload.wake_all();
    }
}

/// Bounds the wait for a store that fails.
#[derive(Debug)]
struct Patience {
    /// What the store had at the last check.
    stored: Lsn,
    /// Checks in a row without progress, at which the last request had failed.
    failed: u32,
}

impl Patience {
    fn new(tail: &Tail) -> Patience {
        Patience {
            stored: tail.stored_lsn(),
            failed: 0,
        }
    }

    /// Checks for progress; returns an error if waiting longer is of no use.
    fn check_progress(&mut self, engine: &Engine, tail: &Tail) -> Option<OpenError> {
        let stored = tail.stored_lsn();
        let failure = tail.upload.store_failure();
        self.failed = match failure.is_some() && stored == self.stored {
            true => self.failed + 1,
            false => 0,
        };
        self.stored = stored;
        let most = match engine.space.is_pressed() {
            true => LOOKS_MAX_PRESSED,
            false => LOOKS_MAX,
        };
        if self.failed < most || canary::active!("points_wait_for_ever") {
            return None;
        }
        Some(OpenError::Store(format!(
            "{}: the store does not take what the volume is now ({}); nothing was made: try again when it can \
             be reached",
            tail.name(),
            failure.unwrap_or_default()
        )))
    }
}
