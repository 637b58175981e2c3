//! How often a job of the host works, and its wait for the next turn; more jobs than one may keep to one interval.
//!
//! Owns the interval, which may change while the host runs; a change wakes the jobs, which begin their waits anew. Must
//! never cut a turn short: what a job has begun ends as if nothing had changed.

use std::future::Future;
use std::pin::pin;
use std::task::{Context, Poll};

use super::{Port, Signal};
use crate::sync::atomic::{AtomicU64, Ordering};

/// Time between two turns of a job; zero: it makes none.
#[derive(Debug)]
pub(crate) struct Interval {
    ns: AtomicU64,
    /// Jobs that wait. One is left behind when a wait ends by its time, and is the same at the next.
    waiters: Signal,
}

impl Interval {
    pub(crate) fn new(ns: u64) -> Interval {
        Interval {
            ns: AtomicU64::new(ns),
            waiters: Signal::default(),
        }
    }

    pub(crate) fn ns(&self) -> u64 {
        self.ns.load(Ordering::Relaxed)
    }

    pub(crate) fn set_ns(&self, ns: u64) {
        self.ns.store(ns, Ordering::Relaxed);
        self.waiters.wake_all();
    }

    /// Waits for what `pause_ns` makes of the interval, as long as it is not zero. After a change that wait begins anew,
    /// and not before: whoever asks for a shorter interval need not see the longer one out.
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
        self.waiters.wait(cx.waker());
        let ns = self.ns();
        match is_wanted(ns) {
            true => Poll::Ready(ns),
            false => Poll::Pending,
        }
    }
}
