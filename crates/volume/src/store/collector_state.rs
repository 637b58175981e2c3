//! What the collector of a host did, and whether a pass is going on.
//!
//! Written by passes, read by whoever asks; never does I/O itself.

use std::collections::BTreeSet;

use crate::collect::pass::{Amount, Findings};
use crate::error::OpenError;
use crate::jobs::Signal;
use crate::lock::lock;
use crate::log::ring::TailId;
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::units::VolumeId;

/// What the collector of this host did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CollectorReport {
    /// It runs by itself.
    pub is_on: bool,
    /// Since when, milliseconds since 1970.
    pub on_since_unix_ms: Option<u64>,
    /// Passes that ended well, by this process.
    pub passes: u64,
    /// Passes that failed since one ended well.
    pub failures_in_a_row: u64,
    /// Since when one is going on, milliseconds since 1970; none is.
    pub busy_since_unix_ms: Option<u64>,
    /// When one last ended well, milliseconds since 1970; none by this process.
    pub last_success_unix_ms: Option<u64>,
    /// Why the last one failed, if it did.
    pub last_error: Option<String>,
    /// The last one stopped at this volume: somebody removed its root.
    pub missing_root: Option<VolumeId>,
    /// What the last one found that came to its end.
    pub findings: Findings,
    /// What this process removed.
    pub removed: Amount,
    /// Removals that the store refused, or did not answer.
    pub failed_removals: u64,
    /// Objects that were garbage to an earlier pass, and reached in a later one.
    pub recovered: u64,
}

/// Of this process.
#[derive(Debug, Default)]
pub(crate) struct CollectorState {
    is_busy: AtomicBool,
    free: Signal,
    report: Mutex<CollectorReport>,
    /// Volumes that are being given new roots, so that their marks keep no record.
    advancing_marks: Mutex<BTreeSet<TailId>>,
}

/// Ends the pass that is going on.
pub(super) struct PassGuard<'a>(&'a CollectorState);

impl Drop for PassGuard<'_> {
    fn drop(&mut self) {
        lock(&self.0.report).busy_since_unix_ms = None;
        self.0.is_busy.store(false, Ordering::Release);
        self.0.free.wake_all();
    }
}

impl PassGuard<'_> {
    pub(super) fn set_begun(&self, unix_ms: u64) {
        lock(&self.0.report).busy_since_unix_ms = Some(unix_ms);
    }
}

impl CollectorState {
    /// Ends when no other pass is going on.
    pub(super) async fn take(&self) -> PassGuard<'_> {
        let take = || (!self.is_busy.swap(true, Ordering::AcqRel)).then_some(());
        self.free.wait_until(take).await;
        PassGuard(self)
    }

    /// False: that volume's mark is being passed already.
    pub(super) fn begin_advancing_mark(&self, tail: TailId) -> bool {
        lock(&self.advancing_marks).insert(tail)
    }

    pub(super) fn end_advancing_mark(&self, tail: TailId) {
        lock(&self.advancing_marks).remove(&tail);
    }

    pub(super) fn set_on(&self, unix_ms: u64) {
        let mut report = lock(&self.report);
        report.is_on = true;
        report.on_since_unix_ms = Some(unix_ms);
    }

    pub(crate) fn report(&self) -> CollectorReport {
        lock(&self.report).clone()
    }

    /// A pass came to its end. One that was allowed to remove nothing did not end well.
    pub(super) fn on_end(&self, found: &Findings, unix_ms: u64) {
        let mut report = lock(&self.report);
        report.removed.objects += found.removed.objects;
        report.removed.bytes += found.removed.bytes;
        report.failed_removals += found.failed.objects + found.failed_pins;
        report.recovered += found.recovered.objects;
        report.missing_root = None;
        report.findings = found.clone();
        if let Some(why) = found.reason_nothing_was_removed() {
            report.failures_in_a_row += 1;
            report.last_error = Some(format!(
                "no removal of garbage succeeded: {why}; see that this host may delete what is below packs/, \
                 indexes/ and pins/"
            ));
            return;
        }
        report.passes += 1;
        report.failures_in_a_row = 0;
        report.last_success_unix_ms = Some(unix_ms);
        report.last_error = None;
    }

    pub(super) fn on_missing_root(&self, volume: VolumeId) {
        lock(&self.report).missing_root = Some(volume);
    }

    pub(super) fn on_failure(&self, error: &OpenError) {
        let mut report = lock(&self.report);
        report.failures_in_a_row += 1;
        report.last_error = Some(error.to_string());
    }
}
