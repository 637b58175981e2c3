//! What a volume reads first after it was opened, so that it can be fetched at once the next time.
//!
//! Owns the record of one volume in one opening. The record is a hint: it may be lost, and what it names is
//! fetched as read-ahead, behind all requests of clients. Reads that the log serves are not recorded.

use std::collections::BTreeSet;
use std::ops::Range;

use blkmq::io::SECTOR_BYTES;

use crate::lock::lock;
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::units::{SECOND_NS, Span};

/// How long after the first read reads are recorded.
const RECORDED_NS: u64 = 10 * SECOND_NS;
/// The unit of recording.
const UNIT_SECTORS: u64 = (64 << 10) / SECTOR_BYTES;
/// The largest number of units: 64 MiB, half of the memory in which fetched chunks land.
const UNITS_MAX: usize = 1024;

/// The first reads of a volume.
#[derive(Debug, Default)]
pub(crate) struct BootSet {
    /// Recording has ended. Every read checks this first.
    is_over: AtomicBool,
    state: Mutex<Record>,
}

#[derive(Debug, Default)]
struct Record {
    ends_ns: Option<u64>,
    seen: BTreeSet<u64>,
    /// Units in the order of their first read.
    units: Vec<u64>,
}

impl BootSet {
    /// Records a client's read of data that only the store had.
    pub(crate) fn observe(&self, span: Span, now_ns: u64) {
        if self.is_over.load(Ordering::Relaxed) {
            return;
        }
        let mut record = lock(&self.state);
        let ends_ns = *record.ends_ns.get_or_insert(now_ns + RECORDED_NS);
        if now_ns > ends_ns || record.units.len() >= UNITS_MAX {
            self.is_over.store(true, Ordering::Relaxed);
            return;
        }
        for unit in span.start / UNIT_SECTORS..span.end.div_ceil(UNIT_SECTORS) {
            if record.units.len() < UNITS_MAX && record.seen.insert(unit) {
                record.units.push(unit);
            }
        }
    }

    /// What was recorded so far, as ranges of sectors, in the order of the first reads.
    pub(crate) fn ranges(&self) -> Vec<Range<u64>> {
        let mut ranges: Vec<Range<u64>> = Vec::new();
        for unit in &lock(&self.state).units {
            let (start, end) = (unit * UNIT_SECTORS, (unit + 1) * UNIT_SECTORS);
            match ranges.last_mut().filter(|last| last.end == start) {
                Some(last) => last.end = end,
                None => ranges.push(start..end),
            }
        }
        ranges
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_seconds_of_reads_are_recorded_in_their_order_and_bounded() {
        let set = BootSet::default();
        set.observe(Span::new(1000, 8), 5);
        set.observe(Span::new(0, 300), 6);
        set.observe(Span::new(1000, 8), 7);
        set.observe(Span::new(5000, 8), 6 + RECORDED_NS);
        assert_eq!(set.ranges(), [896..1024, 0..384]);
        let all = BootSet::default();
        all.observe(Span::new(0, 1 << 40), 0);
        let whole = 0..UNITS_MAX as u64 * UNIT_SECTORS;
        assert!(all.ranges().iter().eq([&whole]));
    }
}
