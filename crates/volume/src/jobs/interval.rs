//! How often a job of the host works, and its wait for the next turn.
//!
//! Owns the interval, which may change while the host runs; a change wakes the job, which begins its wait anew. Must
//! never cut a turn short: what a job has begun ends as if nothing had changed.

use std::future::Future;
use std::pin::pin;
use std::task::Poll;

use super::{Port, Signal};
use crate::sync::atomic::{AtomicU64, Ordering};

/// Time between two turns of a job; zero: it makes none.
#[derive(Debug)]
pub(crate) struct Interval {
    ns: AtomicU64,
    changed: Signal,
}

impl Interval {
    pub(crate) fn new(ns: u64) -> Interval {
        Interval {
            ns: AtomicU64::new(ns),
            changed: Signal::default(),
        }
    }

    pub(crate) fn ns(&self) -> u64 {
        self.ns.load(Ordering::Relaxed)
    }

    pub(crate) fn set_ns(&self, ns: u64) {
        self.ns.store(ns, Ordering::Relaxed);
        self.changed.wake_all();
    }

    /// Waits for what `pause_ns` makes of the interval, as long as it is not zero. After a change that wait begins anew,
    /// and not before: whoever asks for a shorter interval need not see the longer one out.
    pub(crate) async fn wait(&self, port: &Port, pause_ns: impl Fn(u64) -> u64) {
        loop {
            let on = || Some(self.ns()).filter(|&ns| ns > 0);
            let ns = self.changed.wait_until(on).await;
            let mut pause = pin!(port.sleep(pause_ns(ns)));
            let mut changed = pin!(self.changed.wait_until(|| (self.ns() != ns).then_some(())));
            let is_over = std::future::poll_fn(|cx| {
                if pause.as_mut().poll(cx).is_ready() {
                    return Poll::Ready(true);
                }
                changed.as_mut().poll(cx).map(|()| false)
            });
            if is_over.await {
                return;
            }
        }
    }
}
