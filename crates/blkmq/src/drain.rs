//! Waiting until nothing is in flight: the guard of a quiesce, for sync and async code.
//!
//! The gate was shut, and the grace period passed, before the guard was made; so what is in
//! flight can only become less. Whoever completes a request while a flag is set wakes all
//! waiters, and each looks again. Never used on a ring thread, which may complete but not wait.

use std::collections::BTreeMap;
use std::fmt;
use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

use crate::device::{Device, Member, QueueLoad};
use crate::may_block::{SmallLock, may_block};

/// Who waits for requests of one device to leave flight.
pub(crate) struct Waiters(SmallLock<Line>);

#[derive(Default)]
struct Line {
    next_key: u64,
    wakers: BTreeMap<u64, Waker>,
}

impl Waiters {
    pub(crate) fn new() -> Waiters {
        Waiters(SmallLock::new("drain waiters", Line::default()))
    }

    /// Leaves a waker under the caller's key; gives it one the first time.
    fn leave(&self, key: &mut Option<u64>, waker: &Waker) {
        let mut line = self.0.lock();
        let key = *key.get_or_insert(line.next_key);
        line.next_key = line.next_key.max(key + 1);
        line.wakers.insert(key, waker.clone());
    }

    fn remove(&self, key: u64) {
        self.0.lock().wakers.remove(&key);
    }

    pub(crate) fn wake_all(&self) {
        let wakers = std::mem::take(&mut self.0.lock().wakers);
        if canary::active!("sleep_under_a_small_lock") {
            let _line = self.0.lock();
            may_block("a planted bug");
        }
        // Woken outside the lock: a waker is somebody else's code.
        wakers.into_values().for_each(Waker::wake);
    }
}

/// A device that admits nothing, as long as this lives.
#[must_use = "dropping the guard opens the gate again"]
pub struct QuiesceGuard {
    device: Arc<Device>,
    members: Vec<Arc<dyn Member>>,
}

impl QuiesceGuard {
    pub(crate) fn new(device: Arc<Device>, members: Vec<Arc<dyn Member>>) -> QuiesceGuard {
        QuiesceGuard { device, members }
    }

    /// Whether nothing is in flight. Once true, it stays so while the guard lives.
    pub fn is_drained(&self) -> bool {
        self.members
            .iter()
            .all(|member| member.gate().in_flight() == 0)
    }

    /// What is still in flight, by queue; empty when drained.
    pub fn still_in_flight(&self) -> Vec<QueueLoad> {
        self.members
            .iter()
            .map(|m| m.load())
            .filter(|load| load.in_flight > 0)
            .collect()
    }

    /// Waits until nothing is in flight, at most for `limit`. On a time-out answers what still
    /// is; the gate stays shut until the guard goes. Never on a ring thread.
    pub fn wait(&self, limit: Duration) -> Result<(), Vec<QueueLoad>> {
        may_block("waiting for a quiesced device to drain");
        let deadline = Instant::now() + limit;
        let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
        let mut drained = pin!(self.drain());
        while drained
            .as_mut()
            .poll(&mut Context::from_waker(&waker))
            .is_pending()
        {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                let still = self.still_in_flight();
                return if still.is_empty() { Ok(()) } else { Err(still) };
            }
            std::thread::park_timeout(left);
        }
        Ok(())
    }

    /// The same for async code, which brings its own deadline.
    pub fn drain(&self) -> Drain<'_> {
        Drain {
            quiesced: self,
            key: None,
        }
    }
}

impl Drop for QuiesceGuard {
    fn drop(&mut self) {
        self.device.unquiesce();
    }
}

impl fmt::Debug for QuiesceGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "QuiesceGuard({})", self.device.name())
    }
}

/// Ready when nothing is in flight on a quiesced device.
#[derive(Debug)]
pub struct Drain<'a> {
    quiesced: &'a QuiesceGuard,
    /// This waiter's place in the line, once it has one.
    key: Option<u64>,
}

impl Future for Drain<'_> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let quiesced = self.quiesced;
        if quiesced.is_drained() {
            return Poll::Ready(());
        }
        // The waker first, then the look that decides. If that look misses a completion, its step
        // on the count came before the completion's (P3), so the completer sees the flag, and
        // finds the waker in the line.
        quiesced
            .device
            .drain_waiters()
            .leave(&mut self.key, context.waker());
        if quiesced.is_drained() {
            Poll::Ready(())
        } else {
            Poll::Pending
        }
    }
}

impl Drop for Drain<'_> {
    fn drop(&mut self) {
        if let Some(key) = self.key {
            self.quiesced.device.drain_waiters().remove(key);
        }
    }
}

struct Unpark(std::thread::Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}
