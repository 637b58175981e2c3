//! Failed I/O, counted by kind, and which of it is worth a line in the log.
//!
//! A bad disk fails every request that meets it: each failure is counted, but at most one a second of
//! each kind is logged, with the number of those passed over. Knows no clock: callers give the time.

use blkmq::io::{Direction, FileId, MoveError};

use crate::driver::DiskOp;
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::units::SECOND_NS;

/// What failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FailureKind {
    /// A read of the log.
    LogRead,
    /// A write of the log, or its zero-filling.
    LogWrite,
    /// A sync of the log.
    LogSync,
    /// A read of the cache or memory file.
    CacheRead,
    /// A write of the cache or memory file.
    CacheWrite,
    /// A copy from a request's own memory.
    WindowRead,
    /// A copy to a request's own memory.
    WindowWrite,
    /// A request to the object store; answers that the engine expects do not count.
    Store,
}

impl FailureKind {
    /// Every kind, in the order of [`FailureCounts`].
    pub const ALL: [FailureKind; 8] = [
        FailureKind::LogRead,
        FailureKind::LogWrite,
        FailureKind::LogSync,
        FailureKind::CacheRead,
        FailureKind::CacheWrite,
        FailureKind::WindowRead,
        FailureKind::WindowWrite,
        FailureKind::Store,
    ];

    /// A stable word for metrics.
    pub fn name(self) -> &'static str {
        match self {
            FailureKind::LogRead => "log-read",
            FailureKind::LogWrite => "log-write",
            FailureKind::LogSync => "log-sync",
            FailureKind::CacheRead => "cache-read",
            FailureKind::CacheWrite => "cache-write",
            FailureKind::WindowRead => "window-read",
            FailureKind::WindowWrite => "window-write",
            FailureKind::Store => "store",
        }
    }

    /// The kind of a failed move; none if the plan did not fit its request, for no I/O failed then.
    pub(crate) fn of_move(error: &MoveError) -> Option<FailureKind> {
        Some(match (error.file?, error.direction) {
            (FileId::LOG, Direction::Read) => FailureKind::LogRead,
            (FileId::LOG, Direction::Write) => FailureKind::LogWrite,
            (FileId::WINDOW, Direction::Read) => FailureKind::WindowRead,
            (FileId::WINDOW, Direction::Write) => FailureKind::WindowWrite,
            (_, Direction::Read) => FailureKind::CacheRead,
            (_, Direction::Write) => FailureKind::CacheWrite,
        })
    }

    /// The kind of a failed disk request.
    pub(crate) fn of_disk(op: &DiskOp) -> FailureKind {
        match *op {
            DiskOp::Read { file, .. } if file == FileId::LOG => FailureKind::LogRead,
            DiskOp::Write { file, .. } | DiskOp::Zero { file, .. } if file == FileId::LOG => {
                FailureKind::LogWrite
            }
            DiskOp::Sync { file } if file == FileId::LOG => FailureKind::LogSync,
            DiskOp::Read { .. } => FailureKind::CacheRead,
            DiskOp::Write { .. } | DiskOp::Zero { .. } | DiskOp::Sync { .. } => {
                FailureKind::CacheWrite
            }
        }
    }
}

/// Failures so far, by kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FailureCounts([u64; FailureKind::ALL.len()]);

impl FailureCounts {
    /// How many of this kind there were.
    pub fn of(&self, kind: FailureKind) -> u64 {
        self.0[kind as usize]
    }
}

/// Time between two log lines about failures of one kind.
const LOG_INTERVAL_NS: u64 = SECOND_NS;

#[derive(Debug, Default)]
struct Counter {
    total: AtomicU64,
    /// Failures since the last log line.
    unlogged: AtomicU64,
    /// When the next log line is due; zero before the first.
    next_log_ns: AtomicU64,
}

/// The failures of a host.
#[derive(Debug, Default)]
pub(crate) struct Failures([Counter; FailureKind::ALL.len()]);

impl Failures {
    /// Counts a failure that is said elsewhere, or not at all.
    #[cold]
    pub(crate) fn count(&self, kind: FailureKind) {
        self.0[kind as usize].total.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a failure. If it is to be logged: how many of its kind were not, since the last line.
    #[cold]
    pub(crate) fn record(&self, kind: FailureKind, now_ns: u64) -> Option<u64> {
        let counter = &self.0[kind as usize];
        counter.total.fetch_add(1, Ordering::Relaxed);
        let due_ns = counter.next_log_ns.load(Ordering::Relaxed);
        let is_logged = now_ns >= due_ns
            && counter
                .next_log_ns
                .compare_exchange(
                    due_ns,
                    now_ns + LOG_INTERVAL_NS,
                    Ordering::Relaxed,
                    Ordering::Relaxed,
                )
                .is_ok();
        if is_logged {
            return Some(counter.unlogged.swap(0, Ordering::Relaxed));
        }
        counter.unlogged.fetch_add(1, Ordering::Relaxed);
        None
    }

    pub(crate) fn counts(&self) -> FailureCounts {
        FailureCounts(FailureKind::ALL.map(|kind| {
            let counter = &self.0[kind as usize];
            counter.total.load(Ordering::Relaxed)
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_failure_is_counted_and_one_a_second_of_each_kind_is_logged() {
        let failures = Failures::default();
        assert_eq!(failures.record(FailureKind::LogWrite, 1), Some(0));
        for _ in 0..5 {
            assert_eq!(failures.record(FailureKind::LogWrite, 2), None);
        }
        assert_eq!(failures.record(FailureKind::LogRead, 2), Some(0));
        let later = 1 + LOG_INTERVAL_NS;
        assert_eq!(failures.record(FailureKind::LogWrite, later), Some(5));
        assert_eq!(failures.counts().of(FailureKind::LogWrite), 7);
        assert_eq!(failures.counts().of(FailureKind::LogRead), 1);
        assert_eq!(failures.counts().of(FailureKind::Store), 0);
    }
}
