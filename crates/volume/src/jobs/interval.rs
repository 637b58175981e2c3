//! How often a job of the host works, and its wait for the next turn.
//!
//! Owns the interval, which may change while the host runs; a change wakes the job, which begins its wait anew. Must
//! never cut a turn short: what a job has begun ends as if nothing had changed.

use std::future::Future;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use super::Port;
use crate::lock::lock;
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicU64, Ordering};

/// Time between two turns of a job; zero: it makes none.
#[derive(Debug)]
pub(crate) struct Interval {
    ns: AtomicU64,
    /// Of the one job that waits. It is left behind when a wait ends by its time, and replaced by the next.
    waiter: Mutex<Option<Waker>>,
}

impl Interval {
    pub(crate) fn new(ns: u64) -> Interval {
        Interval {
            ns: AtomicU64::new(ns),
            waiter: Mutex::new(None),
        }
    }

    pub(crate) fn ns(&self) -> u64 {
        self.ns.load(Ordering::Relaxed)
    }

    pub(crate) fn set_ns(&self, ns: u64) {
        self.ns.store(ns, Ordering::Relaxed);
        let waiter = lock(&self.waiter).take();
        if let Some(waiter) = waiter {
            waiter.wake();
        }
    }

    /// Waits for what `pause_ns` makes of the interval, as long as it is not zero. After a change that wait begins anew,
    /// and not before: whoever asks for a shorter interval need not see the longer one out. One job waits at a time.
    pub(crate) async fn wait(&self, port: &Port, pause_ns: impl Fn(u64) -> u64) {
        loop {
            let ns = std::future::poll_fn(|cx| self.poll_for(cx, |ns| ns > 0)).await;
            let mut pause = pin!(port.sleep(pause_ns(ns)));
            let is_over = std::future::poll_fn(|cx| {
                if pause.as_mut().poll(cx).is_ready() {
                    return Poll::Ready(true);
                }
                self.poll_for(cx, |now| now != ns).map(|_| false)
            });
            if is_over.await {
                return;
            }
        }
    }

    /// The interval, once it is as wanted.
    fn poll_for(&self, cx: &Context<'_>, is_wanted: impl Fn(u64) -> bool) -> Poll<u64> {
        // Looked at after the waker is there, so a change in between is not missed.
        *lock(&self.waiter) = Some(cx.waker().clone());
        let ns = self.ns();
        match is_wanted(ns) {
            true => Poll::Ready(ns),
            false => Poll::Pending,
        }
    }
}
