//! A histogram of times with four buckets for each doubling, from a microsecond to a minute.
//!
//! One thread writes, any thread reads. A reader may see a request in the buckets that is not yet in
//! the sum, or the other way round: never a torn number.

use std::sync::atomic::{AtomicU64, Ordering};

/// Doublings that have buckets of their own; what takes longer than 2^27 microseconds is in the last bucket.
const DOUBLINGS: usize = 27;
/// Buckets of one doubling: a time is known to within a quarter of it.
const PER_DOUBLING: usize = 4;
const BUCKETS: usize = (DOUBLINGS - 1) * PER_DOUBLING;

/// The bucket of a time in whole microseconds: below four, each has its own.
fn bucket_of(us: u64) -> usize {
    if us < PER_DOUBLING as u64 {
        return us as usize;
    }
    let doubling = us.ilog2() as usize;
    let quarter = (us >> (doubling - 2)) as usize & (PER_DOUBLING - 1);
    ((doubling - 1) * PER_DOUBLING + quarter).min(BUCKETS - 1)
}

/// Where a bucket ends, in microseconds: everything in it is shorter. The last one has no end.
pub fn bucket_bound_us(bucket: usize) -> Option<u64> {
    if bucket + 1 >= BUCKETS {
        return None;
    }
    let next = bucket + 1;
    if next < PER_DOUBLING {
        return Some(next as u64);
    }
    let (doubling, quarter) = (next / PER_DOUBLING + 1, next % PER_DOUBLING);
    Some(((PER_DOUBLING + quarter) as u64) << (doubling - 2))
}

/// Adds to a counter that this thread alone writes: no read-modify-write is needed.
#[inline]
pub(super) fn raise(counter: &AtomicU64, by: u64) {
    counter.store(
        counter.load(Ordering::Relaxed).wrapping_add(by),
        Ordering::Relaxed,
    );
}

/// The counts as one thread writes them.
pub(super) struct Histogram {
    counts: [AtomicU64; BUCKETS],
    sum_ns: AtomicU64,
}

impl Default for Histogram {
    fn default() -> Histogram {
        Histogram {
            counts: [const { AtomicU64::new(0) }; BUCKETS],
            sum_ns: AtomicU64::new(0),
        }
    }
}

impl Histogram {
    #[inline]
    pub(super) fn observe(&self, ns: u64) {
        raise(&self.counts[bucket_of(ns / 1000)], 1);
        raise(&self.sum_ns, ns);
    }

    pub(super) fn counts(&self) -> HistogramCounts {
        let counts = self.counts.iter();
        HistogramCounts {
            counts: counts.map(|count| count.load(Ordering::Relaxed)).collect(),
            sum_ns: self.sum_ns.load(Ordering::Relaxed),
        }
    }
}

/// The counts of a histogram at one time, or the sum of several.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HistogramCounts {
    /// By bucket; empty while there are none.
    counts: Vec<u64>,
    sum_ns: u64,
}

impl HistogramCounts {
    /// How many were counted.
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// Their times together, in nanoseconds.
    pub fn sum_ns(&self) -> u64 {
        self.sum_ns
    }

    /// Counts by bucket; see [`bucket_bound_us`].
    pub fn buckets(&self) -> &[u64] {
        &self.counts
    }

    pub(super) fn add(&mut self, other: &HistogramCounts) {
        if self.counts.len() < other.counts.len() {
            self.counts.resize(other.counts.len(), 0);
        }
        for (count, other) in self.counts.iter_mut().zip(&other.counts) {
            *count += other;
        }
        self.sum_ns += other.sum_ns;
    }

    pub(super) fn subtract(&mut self, earlier: &HistogramCounts) {
        for (count, earlier) in self.counts.iter_mut().zip(&earlier.counts) {
            *count = count.saturating_sub(*earlier);
        }
        self.sum_ns = self.sum_ns.saturating_sub(earlier.sum_ns);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_time_is_in_the_bucket_whose_bounds_hold_it() {
        for us in (0..5000).chain((13..30).flat_map(|bit| {
            let power = 1_u64 << bit;
            [power - 1, power, power + 1, power + power / 3]
        })) {
            let bucket = bucket_of(us);
            let begin = match bucket {
                0 => 0,
                _ => bucket_bound_us(bucket - 1).unwrap(),
            };
            assert!(begin <= us, "{us} in {bucket} from {begin}");
            if let Some(end) = bucket_bound_us(bucket) {
                assert!(us < end, "{us} in {bucket} up to {end}");
                assert!(
                    end - begin <= 1.max(begin / 4),
                    "{begin}..{end} is too wide"
                );
            }
        }
    }

    #[test]
    fn counts_add_up_and_a_difference_is_what_came_between() {
        let histogram = Histogram::default();
        histogram.observe(7_000);
        let before = histogram.counts();
        histogram.observe(7_000);
        histogram.observe(3_600_000_000_000);
        let mut since = histogram.counts();
        since.subtract(&before);
        assert_eq!(since.count(), 2);
        assert_eq!(since.sum_ns(), 3_600_000_007_000);
        assert_eq!(since.buckets()[bucket_of(7)], 1);
        assert_eq!(since.buckets()[BUCKETS - 1], 1);
        since.add(&before);
        assert_eq!(since, histogram.counts());
    }
}
