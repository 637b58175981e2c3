//! Counters of the engine's I/O, the latencies of volumes, and the format in which both are shown.
//!
//! Counters are plain atomics: counting never waits. Values that the engine's state contains
//! (watermarks, space) are not counted here but read when a client asks.

pub(crate) mod exposition;
pub(crate) mod latencies;

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use store::Kind;
use volume::driver::ComputeKind;

use exposition::MetricsText;

/// The store operations that are counted.
pub(crate) const STORE_OPS: [&str; 7] = [
    "get",
    "get_range",
    "put",
    "create",
    "update",
    "delete",
    "list",
];

/// The outcomes of a store request.
const OUTCOMES: [&str; 6] = [
    "done",
    "not_found",
    "lost",
    "unknown",
    "unavailable",
    "refused",
];

#[derive(Debug, Default)]
pub(crate) struct IoCounters {
    store_requests: [[AtomicU64; OUTCOMES.len()]; STORE_OPS.len()],
    store_read_bytes: AtomicU64,
    store_written_bytes: AtomicU64,
    disk_errors: AtomicU64,
    computations: [Computations; ComputeKind::ALL.len()],
    job_stretch_max_ns: AtomicU64,
    commit_round_max_ns: AtomicU64,
}

/// The computations of one kind.
#[derive(Debug, Default)]
struct Computations {
    count: AtomicU64,
    busy_ns: AtomicU64,
}

fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

fn seconds(ns: &AtomicU64) -> f64 {
    ns.load(Ordering::Relaxed) as f64 / 1e9
}

impl IoCounters {
    /// A store request of kind `op` (an index of [`STORE_OPS`]) completed.
    pub(crate) fn count_store_request(&self, op: usize, failure: Option<Kind>) {
        let outcome = match failure {
            None => 0,
            Some(Kind::NotFound) => 1,
            Some(Kind::PreconditionFailed) => 2,
            Some(Kind::Unknown) => 3,
            Some(Kind::Unavailable) => 4,
            Some(_) => 5,
        };
        self.store_requests[op][outcome].fetch_add(1, Ordering::Relaxed);
    }

    /// Requests to the store, of all kinds and outcomes.
    pub(crate) fn store_requests(&self) -> u64 {
        let counts = self.store_requests.iter().flatten();
        counts.map(|count| count.load(Ordering::Relaxed)).sum()
    }

    pub(crate) fn add_store_read(&self, bytes: usize) {
        self.store_read_bytes
            .fetch_add(bytes as u64, Ordering::Relaxed);
    }

    pub(crate) fn add_store_written(&self, bytes: usize) {
        self.store_written_bytes
            .fetch_add(bytes as u64, Ordering::Relaxed);
    }

    pub(crate) fn count_disk_error(&self) {
        self.disk_errors.fetch_add(1, Ordering::Relaxed);
    }

    /// A computation ended, after so long on its thread.
    pub(crate) fn count_computation(&self, kind: ComputeKind, took: Duration) {
        let of_kind = ComputeKind::ALL.iter().zip(&self.computations);
        for (_, counters) in of_kind.filter(|(of, _)| **of == kind) {
            counters.count.fetch_add(1, Ordering::Relaxed);
            counters
                .busy_ns
                .fetch_add(nanoseconds(took), Ordering::Relaxed);
        }
    }

    /// The job thread ran procedures for so long, in which nothing else of its work was begun.
    pub(crate) fn observe_job_stretch(&self, took: Duration) {
        self.job_stretch_max_ns
            .fetch_max(nanoseconds(took), Ordering::Relaxed);
    }

    /// A round of the group commit took so long.
    pub(crate) fn observe_commit_round(&self, took: Duration) {
        self.commit_round_max_ns
            .fetch_max(nanoseconds(took), Ordering::Relaxed);
    }

    /// Writes the counters.
    pub(crate) fn write_to(&self, text: &mut MetricsText<'_>) -> fmt::Result {
        let requests = STORE_OPS.iter().zip(&self.store_requests);
        text.counters(
            "firn_store_requests",
            "Requests to the object store.",
            requests.flat_map(|(op, counts)| {
                OUTCOMES.iter().zip(counts).map(|(outcome, count)| {
                    let labels = vec![("op", *op), ("outcome", *outcome)];
                    (labels, count.load(Ordering::Relaxed))
                })
            }),
        )?;
        let simple = [
            (
                "firn_store_read_bytes",
                "Bytes read from the store.",
                &self.store_read_bytes,
            ),
            (
                "firn_store_written_bytes",
                "Bytes sent to the store.",
                &self.store_written_bytes,
            ),
            (
                "firn_disk_errors",
                "Failed requests to the local files.",
                &self.disk_errors,
            ),
        ];
        for (name, help, count) in simple {
            text.counters(name, help, [(vec![], count.load(Ordering::Relaxed))])?;
        }
        self.write_computing_to(text)
    }

    fn write_computing_to(&self, text: &mut MetricsText<'_>) -> fmt::Result {
        let of_kind = || {
            let of_kind = ComputeKind::ALL.iter().zip(&self.computations);
            of_kind.map(|(kind, counters)| (vec![("kind", kind.name())], counters))
        };
        text.counters(
            "firn_computations",
            "Computations that left the job thread.",
            of_kind().map(|(labels, counters)| (labels, counters.count.load(Ordering::Relaxed))),
        )?;
        text.counters(
            "firn_compute_seconds",
            "How long they ran.",
            of_kind().map(|(labels, counters)| (labels, seconds(&counters.busy_ns))),
        )?;
        text.gauges(
            "firn_job_thread_longest_stretch_seconds",
            "The longest that the job thread ran without looking at anything new, since the start.",
            [(vec![], seconds(&self.job_stretch_max_ns))],
        )?;
        text.gauges(
            "firn_commit_round_longest_seconds",
            "The longest round of the group commit since the start; a FLUSH waits for two at most.",
            [(vec![], seconds(&self.commit_round_max_ns))],
        )
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[test]
    fn counters_appear_with_their_labels() {
        let counters = Arc::new(IoCounters::default());
        counters.count_store_request(2, None);
        counters.count_store_request(2, None);
        counters.count_store_request(4, Some(Kind::PreconditionFailed));
        counters.add_store_written(100);
        counters.count_computation(ComputeKind::Pack, Duration::from_millis(500));
        counters.observe_job_stretch(Duration::from_millis(250));
        counters.observe_commit_round(Duration::from_secs(2));
        counters.observe_commit_round(Duration::from_secs(1));
        let text = exposition::page(move |text| counters.write_to(text));
        for line in [
            "firn_store_requests_total{op=\"put\",outcome=\"done\"} 2\n",
            "firn_store_requests_total{op=\"update\",outcome=\"lost\"} 1\n",
            "firn_compute_seconds_total{kind=\"pack\"} 0.5\n",
            "firn_job_thread_longest_stretch_seconds 0.25\n",
            "firn_commit_round_longest_seconds 2.0\n",
            "# TYPE firn_store_written_bytes counter\nfirn_store_written_bytes_total 100\n",
        ] {
            assert!(text.contains(line), "{line} in {text}");
        }
    }
}
