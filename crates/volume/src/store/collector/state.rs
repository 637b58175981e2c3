//! What a host's collector has done, and whether a pass is running.
//!
//! Passes write it and the API reads it. It does no I/O.

use std::collections::BTreeSet;

use crate::collect::pass::{Amount, Findings};
use crate::error::OpenError;
use crate::jobs::Signal;
use crate::lock::lock;
use crate::log::ring::TailId;
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::units::VolumeId;

/// What the collector of this host has done.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CollectorReport {
    /// The collector makes passes at an interval.
    pub is_on: bool,
    /// When that was turned on, in milliseconds since 1970.
    pub on_since_unix_ms: Option<u64>,
    /// Passes of this process that succeeded.
    pub passes: u64,
    /// Passes that failed since the last one that succeeded.
    pub failures_in_a_row: u64,
    /// When the running pass began, in milliseconds since 1970; `None` if no pass is running.
    pub busy_since_unix_ms: Option<u64>,
    /// When a pass last succeeded, in milliseconds since 1970; `None` if none of this process has.
    pub last_success_unix_ms: Option<u64>,
    /// Why the last pass failed, if it did.
    pub last_error: Option<String>,
    /// The volume without a root at which the last pass stopped.
    pub missing_root: Option<VolumeId>,
    /// The findings of the last pass that ended.
    pub findings: Findings,
    /// What this process has removed.
    pub removed: Amount,
    /// Removals that the store refused, or did not answer.
    pub failed_removals: u64,
    /// Objects that were garbage to an earlier pass, and reached in a later one.
    pub recovered: u64,
}

/// The state of this process's collector.
#[derive(Debug, Default)]
pub(crate) struct CollectorState {
    is_busy: AtomicBool,
    free: Signal,
    report: Mutex<CollectorReport>,
    /// Volumes that are getting new roots whose marks are past the oldest records.
    advancing_marks: Mutex<BTreeSet<TailId>>,
}

/// Marks the collector as busy until it is dropped.
pub(in crate::store) struct PassGuard<'a>(&'a CollectorState);

impl Drop for PassGuard<'_> {
    fn drop(&mut self) {
        lock(&self.0.report).busy_since_unix_ms = None;
        self.0.is_busy.store(false, Ordering::Release);
        self.0.free.wake_all();
    }
}

impl PassGuard<'_> {
    pub(in crate::store) fn set_begun(&self, unix_ms: u64) {
        lock(&self.0.report).busy_since_unix_ms = Some(unix_ms);
    }
}

impl CollectorState {
    /// Waits until no other pass is running.
    pub(in crate::store) async fn take(&self) -> PassGuard<'_> {
        let take = || (!self.is_busy.swap(true, Ordering::AcqRel)).then_some(());
        self.free.wait_until(take).await;
        PassGuard(self)
    }

    /// Returns false if another job is advancing that volume's mark already.
    pub(in crate::store) fn begin_advancing_mark(&self, tail: TailId) -> bool {
        lock(&self.advancing_marks).insert(tail)
    }

    pub(in crate::store) fn end_advancing_mark(&self, tail: TailId) {
        lock(&self.advancing_marks).remove(&tail);
    }

    /// Passes are made by themselves from now on, or none are. Whoever is told so again goes on.
    pub(crate) fn set_on(&self, is_on: bool, unix_ms: u64) {
        let mut report = lock(&self.report);
        if report.is_on != is_on {
            report.is_on = is_on;
            report.on_since_unix_ms = is_on.then_some(unix_ms);
        }
    }

    pub(crate) fn report(&self) -> CollectorReport {
        lock(&self.report).clone()
    }

    /// Records a pass that ended. One whose every removal was refused counts as failed.
    pub(in crate::store) fn on_end(&self, found: &Findings, unix_ms: u64) {
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

    pub(in crate::store) fn on_missing_root(&self, volume: VolumeId) {
        lock(&self.report).missing_root = Some(volume);
    }

    pub(in crate::store) fn on_failure(&self, error: &OpenError) {
        let mut report = lock(&self.report);
        report.failures_in_a_row += 1;
        report.last_error = Some(error.to_string());
    }
}
