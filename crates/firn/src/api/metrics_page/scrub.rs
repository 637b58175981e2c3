//! What the scrub of the local disk has read and found.

use std::fmt;

use volume::{ScrubCounts, ScrubReport};

use crate::metrics::exposition::MetricsText;

pub(super) fn write(text: &mut MetricsText<'_>, report: &ScrubReport) -> fmt::Result {
    text.counters(
        "firn_scrub_read_bytes",
        "Bytes of the local disk that the scrub has read, by part.",
        by_part(&report.read_bytes),
    )?;
    text.counters(
        "firn_scrub_damaged",
        "Places of the local disk that the scrub found damaged, by part; they are read from the store since.",
        by_part(&report.damaged),
    )?;
    text.counters(
        "firn_scrub_passes",
        "How often the scrub has read all that it has checksums of, and left nothing out.",
        [(vec![], report.passes)],
    )?;
    let last = report.last_pass_unix_ms.iter();
    text.gauges(
        "firn_scrub_last_pass_timestamp_seconds",
        "When the scrub had last read all that it has checksums of; nothing if it has not since the server started.",
        last.map(|unix_ms| (vec![], *unix_ms as f64 / 1000.0)),
    )
}

fn by_part(counts: &ScrubCounts) -> [(Vec<(&'static str, &'static str)>, u64); 3] {
    [
        (vec![("part", "cache")], counts.chunks),
        (vec![("part", "index")], counts.index),
        (vec![("part", "log")], counts.log),
    ]
}
