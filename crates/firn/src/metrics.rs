//! Counters of the engine's I/O, and the Prometheus text format.
//!
//! Counters are plain atomics: counting never waits. Values that the engine's state contains
//! (watermarks, space) are not counted here but read when a client asks.

use std::fmt::Write;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use store::Kind;
use volume::driver::ComputeKind;

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

    /// Adds the counters to `text`.
    pub(crate) fn write_to(&self, text: &mut MetricsText) {
        text.family(
            "firn_store_requests_total",
            "counter",
            "Requests to the object store.",
        );
        for (op, counts) in STORE_OPS.iter().zip(&self.store_requests) {
            for (outcome, count) in OUTCOMES.iter().zip(counts) {
                let labels = [("op", *op), ("outcome", *outcome)];
                text.sample(&labels, count.load(Ordering::Relaxed) as f64);
            }
        }
        let simple = [
            (
                "firn_store_read_bytes_total",
                "Bytes read from the store.",
                &self.store_read_bytes,
            ),
            (
                "firn_store_written_bytes_total",
                "Bytes sent to the store.",
                &self.store_written_bytes,
            ),
            (
                "firn_disk_errors_total",
                "Failed requests to the local files.",
                &self.disk_errors,
            ),
        ];
        for (name, help, count) in simple {
            text.family(name, "counter", help);
            text.sample(&[], count.load(Ordering::Relaxed) as f64);
        }
        self.write_computing_to(text);
    }

    fn write_computing_to(&self, text: &mut MetricsText) {
        let of_kind = || ComputeKind::ALL.iter().zip(&self.computations);
        text.family(
            "firn_computations_total",
            "counter",
            "Computations that left the job thread.",
        );
        for (kind, counters) in of_kind() {
            let count = counters.count.load(Ordering::Relaxed);
            text.sample(&[("kind", kind.name())], count as f64);
        }
        text.family(
            "firn_compute_seconds_total",
            "counter",
            "How long they ran.",
        );
        for (kind, counters) in of_kind() {
            text.sample(&[("kind", kind.name())], seconds(&counters.busy_ns));
        }
        text.family(
            "firn_job_thread_longest_stretch_seconds",
            "gauge",
            "The longest that the job thread ran without looking at anything new, since the start.",
        );
        text.sample(&[], seconds(&self.job_stretch_max_ns));
        text.family(
            "firn_commit_round_longest_seconds",
            "gauge",
            "The longest round of the group commit since the start; a FLUSH waits for two at most.",
        );
        text.sample(&[], seconds(&self.commit_round_max_ns));
    }
}

/// Metrics in Prometheus' text format.
#[derive(Debug, Default)]
pub(crate) struct MetricsText {
    text: String,
    family: &'static str,
}

impl MetricsText {
    /// Starts a metric family; the samples that follow belong to it.
    pub(crate) fn family(&mut self, name: &'static str, kind: &str, help: &str) {
        self.family = name;
        // Writing to a string cannot fail.
        let _ = write!(self.text, "# HELP {name} {help}\n# TYPE {name} {kind}\n");
    }

    pub(crate) fn sample(&mut self, labels: &[(&str, &str)], value: f64) {
        let labels: Vec<String> = labels
            .iter()
            .map(|(name, value)| format!("{name}=\"{}\"", escape_label(value)))
            .collect();
        let braces = if labels.is_empty() {
            String::new()
        } else {
            format!("{{{}}}", labels.join(","))
        };
        let _ = writeln!(self.text, "{}{braces} {value}", self.family);
    }

    pub(crate) fn into_string(self) -> String {
        self.text
    }
}

fn escape_label(value: &str) -> String {
    value
        .replace('\\', "\\\\")
        .replace('"', "\\\"")
        .replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_appear_with_their_labels() {
        let counters = IoCounters::default();
        counters.count_store_request(2, None);
        counters.count_store_request(2, None);
        counters.count_store_request(4, Some(Kind::PreconditionFailed));
        counters.add_store_written(100);
        counters.count_computation(ComputeKind::Pack, Duration::from_millis(500));
        counters.observe_job_stretch(Duration::from_millis(250));
        counters.observe_commit_round(Duration::from_secs(2));
        counters.observe_commit_round(Duration::from_secs(1));
        let mut text = MetricsText::default();
        counters.write_to(&mut text);
        let text = text.into_string();
        for line in [
            "firn_store_requests_total{op=\"put\",outcome=\"done\"} 2\n",
            "firn_store_requests_total{op=\"update\",outcome=\"lost\"} 1\n",
            "firn_compute_seconds_total{kind=\"pack\"} 0.5\n",
            "firn_job_thread_longest_stretch_seconds 0.25\n",
            "firn_commit_round_longest_seconds 2\n",
            "# TYPE firn_store_written_bytes_total counter\nfirn_store_written_bytes_total 100\n",
        ] {
            assert!(text.contains(line), "{line} in {text}");
        }
    }

    #[test]
    fn a_label_cannot_break_out_of_its_quotes() {
        let mut text = MetricsText::default();
        text.family("x", "gauge", "y");
        text.sample(&[("volume", "a\"b\\c\nd")], 1.5);
        assert!(
            text.into_string()
                .ends_with("x{volume=\"a\\\"b\\\\c\\nd\"} 1.5\n")
        );
    }
}
