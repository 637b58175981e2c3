//! The families of `/metrics` that say how long requests take.
//!
//! A request's histogram has two buckets for each doubling, a step's one for each two doublings: what
//! is counted is finer, but each bucket is a sample of each listed volume.

use std::fmt;

use nbd::server::latency::{
    HistogramCounts, LatencyCounts, OpCounts, OpKind, Step, bucket_bound_us,
};

use crate::metrics::exposition::{HistogramSample, Labels, MetricsText};

/// Counted buckets in one bucket of a request's histogram.
const REQUEST_WIDTH: usize = 2;
/// Counted buckets in one bucket of a step's histogram.
const STEP_WIDTH: usize = 8;

/// One row of the families: a volume and an operation.
struct Row<'a> {
    volume: &'a str,
    kind: OpKind,
    counts: &'a OpCounts,
}

impl<'a> Row<'a> {
    fn labels(&self) -> Labels<'a> {
        vec![("volume", self.volume), ("op", self.kind.name())]
    }
}

pub(super) fn write(
    text: &mut MetricsText<'_>,
    volumes: &[(String, LatencyCounts)],
) -> fmt::Result {
    let rows: Vec<Row<'_>> = volumes
        .iter()
        .flat_map(|(volume, counts)| {
            OpKind::ALL.into_iter().map(move |kind| Row {
                volume,
                kind,
                counts: counts.op(kind),
            })
        })
        .filter(|row| row.counts.requests.count() + row.counts.errors > 0)
        .collect();
    text.histograms(
        "firn_request_duration_seconds",
        "How long requests of clients took, from admission to answer. The busiest volumes by name.",
        rows.iter()
            .map(|row| (row.labels(), sample(&row.counts.requests, REQUEST_WIDTH))),
    )?;
    text.histograms(
        "firn_request_step_duration_seconds",
        "How long the steps of requests took. Plan, move and commit are timed for one request in 16.",
        rows.iter().flat_map(|row| {
            let taken = Step::ALL.into_iter().filter(|step| row.counts.step(*step).count() > 0);
            taken.map(|step| {
                let mut labels = row.labels();
                labels.push(("step", step.name()));
                (labels, sample(row.counts.step(step), STEP_WIDTH))
            })
        }),
    )?;
    text.counters(
        "firn_request_bytes",
        "Bytes that requests of clients carried.",
        rows.iter().map(|row| (row.labels(), row.counts.bytes)),
    )?;
    text.counters(
        "firn_request_errors",
        "Requests of clients that failed.",
        rows.iter().map(|row| (row.labels(), row.counts.errors)),
    )
}

/// A histogram with `width` counted buckets in one. What ends at a bound is longer than all that is
/// counted below it, as Prometheus has it to within a microsecond.
fn sample(counts: &HistogramCounts, width: usize) -> HistogramSample {
    let mut buckets = Vec::new();
    let mut count = 0;
    for (bucket, counted) in counts.buckets().iter().enumerate() {
        count += counted;
        match bucket_bound_us(bucket) {
            Some(us) if (bucket + 1) % width == 0 => {
                buckets.push((us as f64 / 1e6, std::mem::take(&mut count)));
            }
            Some(_) => {}
            None => buckets.push((f64::INFINITY, std::mem::take(&mut count))),
        }
    }
    if buckets.is_empty() {
        buckets.push((f64::INFINITY, 0));
    }
    HistogramSample {
        sum_seconds: counts.sum_ns() as f64 / 1e9,
        buckets,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use blkmq::io::Op;
    use nbd::server::latency::Latencies;

    use super::*;
    use crate::metrics::exposition;
    use crate::metrics::latencies::LatencyRegistry;

    #[test]
    fn a_volume_that_was_never_read_has_no_samples() {
        let registry = LatencyRegistry::new(Duration::from_secs(1));
        let _open = registry.open("idle");
        let text = exposition::page(move |text| write(text, &registry.rows()));
        assert!(!text.contains("idle"), "{text}");
    }

    #[test]
    fn every_count_is_in_one_bucket_and_the_last_has_no_end() {
        let none = HistogramCounts::default();
        assert_eq!(sample(&none, REQUEST_WIDTH).buckets, [(f64::INFINITY, 0)]);
        let latencies = Latencies::unobserved();
        for us in (0..28).map(|bit| 1_u64 << bit) {
            latencies.count(&Op::Flush, 0, Duration::from_micros(us));
        }
        let counts = latencies.counts();
        let counts = &counts.op(OpKind::Flush).requests;
        for width in [REQUEST_WIDTH, STEP_WIDTH] {
            let buckets = sample(counts, width).buckets;
            let total: u64 = buckets.iter().map(|(_, count)| count).sum();
            assert_eq!(total, counts.count());
            assert_eq!(buckets.last().map(|(end, _)| *end), Some(f64::INFINITY));
            assert!(buckets.windows(2).all(|two| two[0].0 < two[1].0));
            assert!(buckets.len() <= 104 / width + 1, "{}", buckets.len());
            assert!(total == 28 && buckets[0].1 >= 1);
        }
    }
}
