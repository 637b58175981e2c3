//! A point in a volume's history that is held until its child is pinned. Taking a point freezes the top layer;
//! writers go on.
//!
//! Data at a held point keeps its place in the log even if it is overwritten, so a point is never held without
//! end: a volume has few points at once, and they are released when the store does not take what they wait for. Who comes
//! when there are as many as there may be waits for his turn.

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
/// Looks at points of which none ends, though the store does not fail, that end the wait for a turn. Who waits holds nothing.
const TURN_LOOKS_MAX: u32 = 60;

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
    /// Takes a point now, right after a due fold has begun, or when its turn comes.
    ///
    /// # Errors
    /// If it is not served, or has too many points already and none of them ends.
    pub(super) async fn take(engine: &Engine, tail: &Arc<Tail>) -> Result<HeldPoint, OpenError> {
        let taken = HeldPoint::take_at_once(engine, std::slice::from_ref(tail)).await?;
        // One for each tail.
        let one = taken.into_iter().next();
        one.ok_or_else(|| OpenError::Busy(tail.name().to_owned()))
    }

    /// The same of several volumes at one moment: what a client wrote to one of them after the answer to a write to another
    /// is in the one point only if that is in the other.
    pub(super) async fn take_together(
        engine: &Engine,
        tails: &[Arc<Tail>],
    ) -> Result<Vec<HeldPoint>, OpenError> {
        if !canary::active!("group_is_cut_one_by_one") {
            return HeldPoint::take_at_once(engine, tails).await;
        }
        let mut points = Vec::new();
        for tail in tails {
            points.push(HeldPoint::take(engine, tail).await?);
        }
        Ok(points)
    }

    async fn take_at_once(
        engine: &Engine,
        tails: &[Arc<Tail>],
    ) -> Result<Vec<HeldPoint>, OpenError> {
        loop {
            for tail in tails {
                wait_turn(engine, tail).await?;
            }
            // One may have to wait again by now, which is seen before any is taken.
            if let Some(taken) = HeldPoint::take_now(tails) {
                return taken;
            }
        }
    }

    /// The point of a snapshot that the log is to keep no more: held until the log says so.
    pub(super) fn of_forgotten(tail: &Arc<Tail>, forgotten: &KeptSnapshot) -> HeldPoint {
        HeldPoint {
            tail: Arc::clone(tail),
            lsn: forgotten.record.lsn,
            bytes: forgotten.record.bytes,
        }
    }

    /// Takes the points under the locks of all tails; none, if one of them has to wait.
    fn take_now(tails: &[Arc<Tail>]) -> Option<Result<Vec<HeldPoint>, OpenError>> {
        let failing = tails.iter().map(|tail| is_failing(tail));
        let failing: Vec<bool> = failing.collect();
        // Everybody who holds several takes them in this order, so nobody waits for one in a circle.
        let mut order: Vec<usize> = (0..tails.len()).collect();
        order.sort_by_key(|nth| tails[*nth].id());
        let mut locked: Vec<_> = order.iter().map(|nth| tails[*nth].lock()).collect();
        let mut points = Vec::new();
        for (inner, nth) in locked.iter().zip(&order) {
            let name = || tails[*nth].name().to_owned();
            if inner.status != Status::Live {
                return Some(Err(OpenError::Busy(name())));
            }
            if must_wait(&inner.points, failing[*nth]) {
                return None;
            }
        }
        for (inner, nth) in locked.iter_mut().zip(&order) {
            let (lsn, bytes) = (inner.newest, inner.geometry.bytes);
            inner.layers.freeze(lsn);
            inner.points.add(lsn);
            let point = HeldPoint {
                tail: Arc::clone(&tails[*nth]),
                lsn,
                bytes,
            };
            points.push((*nth, point));
        }
        drop(locked);
        points.sort_by_key(|(nth, _)| *nth);
        Some(Ok(points.into_iter().map(|(_, point)| point).collect()))
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

fn is_failing(tail: &Tail) -> bool {
    tail.upload.store_failure().is_some()
}

/// Whether the next point comes later: there are as many as there may be, or a fold goes before it. While the store fails
/// no fold begins.
fn must_wait(points: &Points, is_failing: bool) -> bool {
    points.is_full() || (points.is_fold_next() && !is_failing)
}

/// Ends when a point may be taken, or the volume is not served any more.
///
/// # Errors
/// If there are too many, and none has ended for long.
async fn wait_turn(engine: &Engine, tail: &Tail) -> Result<(), OpenError> {
    let is_turn = || {
        let is_failing = is_failing(tail);
        let inner = tail.lock();
        inner.status != Status::Live || !must_wait(&inner.points, is_failing)
    };
    let seen = || {
        // The tail's lock ends here: whether uploads fail is asked below a lock of its own.
        let ended = tail.lock().points.ended();
        (ended, tail.stored_lsn(), is_failing(tail))
    };
    let (mut looks, mut before) = (0, seen());
    while !is_turn() {
        let mut turn = pin!(tail.upload.changed.wait_until(|| is_turn().then_some(())));
        let mut look = pin!(engine.port.sleep(engine.options.retry_ns));
        std::future::poll_fn(|cx| match turn.as_mut().poll(cx) {
            Poll::Ready(()) => Poll::Ready(()),
            Poll::Pending => look.as_mut().poll(cx).map(drop),
        })
        .await;
        // What the store takes is progress, too: the points wait for it. Whether it fails decides for how long.
        let now = seen();
        looks = match tail.lock().points.is_full() && now == before {
            true => looks + 1,
            false => 0,
        };
        before = now;
        let most = match (is_failing(tail), engine.space.is_pressed()) {
            (false, _) => TURN_LOOKS_MAX,
            (true, false) => LOOKS_MAX,
            (true, true) => LOOKS_MAX_PRESSED,
        };
        if looks >= most {
            return Err(OpenError::TooManyPoints(tail.name().to_owned(), POINTS_MAX));
        }
    }
    Ok(())
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
