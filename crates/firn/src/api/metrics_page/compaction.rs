//! What compaction has done, and what it knows of the volumes that are open.

use std::fmt;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use volume::{CompactionReport, VolumeSpace};

use super::volume_label;
use crate::frontends::open_volumes::OpenVolume;
use crate::metrics::exposition::MetricsText;

pub(super) fn write(
    text: &mut MetricsText<'_>,
    report: &CompactionReport,
    open: &[Arc<OpenVolume>],
) -> fmt::Result {
    let counts = [
        (
            "firn_compaction_steps",
            "Packs that compaction has written, each with one update of a root.",
            report.steps,
        ),
        (
            "firn_compaction_read_bytes",
            "Bytes that compaction has read to write them anew, index included.",
            report.read_bytes,
        ),
        (
            "firn_compaction_written_bytes",
            "Bytes that compaction has written: packs and index objects.",
            report.written_bytes,
        ),
        (
            "firn_compaction_freed_bytes",
            "Bytes of packs that no page of their volume names any more, because compaction moved what was alive.",
            report.freed_bytes,
        ),
        (
            "firn_compaction_unreadable_chunks",
            "Chunks that could not be read, and stay where they are.",
            report.unreadable_chunks,
        ),
        (
            "firn_compaction_failures",
            "Looks of compaction at a volume that failed, and are made again.",
            report.failures,
        ),
        (
            "firn_compaction_maintained_volumes",
            "Volumes that nobody had open, and that were opened to be compacted.",
            report.maintained,
        ),
    ];
    for (name, help, value) in counts {
        text.counters(name, help, [(vec![], value)])?;
    }
    let known: Vec<(&OpenVolume, VolumeSpace)> = open
        .iter()
        .filter_map(|open| Some((&**open, open.volume.space()?)))
        .collect();
    text.gauges(
        "firn_volume_live_bytes",
        "Stored bytes that the volume's pages reach, as of its last survey.",
        known
            .iter()
            .map(|(open, space)| (volume_label(open), space.live_bytes)),
    )?;
    text.gauges(
        "firn_volume_garbage_bytes",
        "Bytes of the volume's packs that its pages do not reach, as of its last survey.",
        known
            .iter()
            .map(|(open, space)| (volume_label(open), space.garbage_bytes)),
    )?;
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let now_ms = now.map_or(0, |now| now.as_millis() as u64);
    text.gauges(
        "firn_volume_oldest_candidate_seconds",
        "For how long the volume has had packs that are to be written anew; zero: it has none.",
        known.iter().map(|(open, space)| {
            let since = space.candidates_since_unix_ms.unwrap_or(now_ms);
            let age_ms = now_ms.saturating_sub(since);
            (volume_label(open), age_ms as f64 / 1000.0)
        }),
    )
}
