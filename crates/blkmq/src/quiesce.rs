//! The guard of a quiesce, and waiting for the drain of a quiesced device, in sync and async code.
//!
//! The gate was shut, and the grace period passed, before the guard exists; so requests in flight
//! can only become fewer. Never used on a ring thread, which may complete requests but not wait.

use std::fmt;
use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

use crate::may_block::may_block;
use crate::state::{AnyQueue, DeviceState, QueueLoad};

/// While it lives, the device admits no request.
#[must_use = "dropping the guard opens the gate again"]
pub struct QuiesceGuard {
    device: Arc<DeviceState>,
    queues: Vec<Arc<dyn AnyQueue>>,
}

impl QuiesceGuard {
    pub(crate) fn new(device: Arc<DeviceState>) -> QuiesceGuard {
        let queues = device.quiesce();
        QuiesceGuard { device, queues }
    }

    /// Whether nothing is in flight. Once true, it stays so while the guard lives.
    pub fn is_drained(&self) -> bool {
        self.queues
            .iter()
            .all(|queue| queue.gate().in_flight() == 0)
    }

    /// What is still in flight, by queue; empty when drained.
    pub fn still_in_flight(&self) -> Vec<QueueLoad> {
        self.queues
            .iter()
            .map(|queue| queue.load())
            .filter(|load| load.in_flight > 0)
            .collect()
    }

    /// Waits until nothing is in flight, at most for `limit`. On a time-out returns what still is;
    /// the gate stays shut until the guard is dropped. Never on a ring thread.
    #[expect(
        clippy::disallowed_methods,
        reason = "the control side may wait; may_block keeps ring threads out"
    )]
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
            guard: self,
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
    guard: &'a QuiesceGuard,
    /// The key of this waiter's waker, once it is registered.
    key: Option<u64>,
}

impl Future for Drain<'_> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let guard = self.guard;
        if guard.is_drained() {
            return Poll::Ready(());
        }
        // Register the waker first, then check again. If the check misses a completion, its
        // read-modify-write of the count came before the completer's (P3): so the completer sees
        // the flag, and finds the waker.
        let waiters = guard.device.drain_waiters();
        waiters.register(&mut self.key, context.waker());
        if guard.is_drained() {
            Poll::Ready(())
        } else {
            Poll::Pending
        }
    }
}

impl Drop for Drain<'_> {
    fn drop(&mut self) {
        if let Some(key) = self.key {
            self.guard.device.drain_waiters().remove(key);
        }
    }
}

struct Unpark(std::thread::Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}
