//! Requests that took longer than they should, until somebody reports them.
//!
//! A ring thread must not log (R1): it puts a request into this list, which is short, and counts those
//! for which there was no room. Whoever logs empties it at its own pace, and so sets the rate.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use blkmq::SmallLock;
use blkmq::error::ErrorKind;
use blkmq::io::Op;

use super::Timeline;

/// Requests kept between two reports.
const KEPT_MAX: usize = 8;

/// A request that took long.
#[derive(Clone, Debug)]
pub struct SlowRequest {
    /// The volume's name.
    pub volume: Arc<str>,
    /// What was asked.
    pub op: Op,
    /// How long it took.
    pub took: Duration,
    /// The step that took the most of it.
    pub step: &'static str,
    /// How long that step took.
    pub step_took: Duration,
    /// Why it failed, if it did.
    pub error: Option<ErrorKind>,
}

/// The slow requests of a server.
#[derive(Debug)]
pub struct SlowRequests {
    threshold_ns: AtomicU64,
    kept: SmallLock<Vec<SlowRequest>>,
    omitted: AtomicU64,
}

fn as_ns(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

impl Default for SlowRequests {
    /// Keeps nothing.
    fn default() -> SlowRequests {
        SlowRequests::new(Duration::MAX)
    }
}

impl SlowRequests {
    /// Keeps requests that take at least `threshold`.
    pub fn new(threshold: Duration) -> SlowRequests {
        SlowRequests {
            threshold_ns: AtomicU64::new(as_ns(threshold)),
            kept: SmallLock::new("slow requests", Vec::new()),
            omitted: AtomicU64::new(0),
        }
    }

    /// Keeps requests that take at least `threshold` from now on.
    pub fn set_threshold(&self, threshold: Duration) {
        self.threshold_ns.store(as_ns(threshold), Ordering::Relaxed);
    }

    pub(super) fn threshold_ns(&self) -> u64 {
        self.threshold_ns.load(Ordering::Relaxed)
    }

    #[cold]
    pub(super) fn push(
        &self,
        volume: &Arc<str>,
        op: &Op,
        timeline: &Timeline,
        error: Option<ErrorKind>,
    ) {
        let mut kept = self.kept.lock();
        if kept.len() >= KEPT_MAX {
            self.omitted.fetch_add(1, Ordering::Relaxed);
            return;
        }
        let (step, step_took) = timeline.longest();
        kept.push(SlowRequest {
            volume: Arc::clone(volume),
            op: *op,
            took: Duration::from_nanos(timeline.total_ns()),
            step,
            step_took,
            error,
        });
    }

    /// Takes those that are kept, and how many more there were since the last call.
    pub fn take(&self) -> (Vec<SlowRequest>, u64) {
        let kept = std::mem::take(&mut *self.kept.lock());
        (kept, self.omitted.swap(0, Ordering::Relaxed))
    }
}
