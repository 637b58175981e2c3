//! The page `/metrics`: the server's counters and the engine's state.
//!
//! Reads both when asked. Keeps nothing of its own, and must never send a request to the store.

mod compaction;
mod latency;
mod scrub;

use std::fmt;
use std::sync::Arc;

use volume::{CollectorReport, FailureKind, HostUsage};

use crate::control_plane::ControlPlane;
use crate::failure::FailureCode;
use crate::frontends::open_volumes::OpenVolume;
use crate::metrics::exposition::{self, Labels, MetricsText};
use crate::model::Watermark;

/// All metrics.
pub(super) fn render(control: &Arc<ControlPlane>) -> String {
    let control = Arc::clone(control);
    exposition::page(move |text| write(&control, text))
}

fn write(control: &ControlPlane, text: &mut MetricsText<'_>) -> fmt::Result {
    let version = vec![("version", env!("CARGO_PKG_VERSION"))];
    text.gauges(
        "firn_build_info",
        "The server's version.",
        [(version, 1_u64)],
    )?;
    control.counters.write_to(text)?;
    if let Some(faults) = control.store.as_ref().and_then(|store| store.faults()) {
        faults.write_to(text)?;
    }
    write_usage(text, &control.host.usage())?;
    let conditions = control.conditions();
    text.gauges(
        "firn_health",
        "What is not well: 1 degraded, 2 stuck. Nothing is listed while all is well.",
        conditions
            .iter()
            .map(|(what, health)| (vec![("what", what.as_str())], health.status as u64)),
    )?;
    let waiting = control.waiting.all();
    let left_out = waiting
        .iter()
        .filter(|(_, one)| one.failure.code == FailureCode::LeftOut);
    text.gauges(
        "firn_volume_left_out",
        "1 for each volume that is not opened because three starts ended while it was being opened.",
        left_out.map(|(name, _)| (vec![("volume", name.as_str())], 1_u64)),
    )?;
    let unserved = control.rescue_tails().log_bytes;
    text.gauges(
        "firn_log_unserved_bytes",
        "Bytes of log that tails hold which are not served; see `firn rescue list`.",
        [(vec![], unserved)],
    )?;
    write_collector(text, &control.host.collector())?;
    let schedules = control.schedules.counts();
    text.counters(
        "firn_scheduled_snapshots",
        "Snapshots by schedule that were taken, that could not be taken, and that were removed.",
        [
            (vec![("outcome", "taken")], schedules.taken),
            (vec![("outcome", "failed")], schedules.failed),
            (vec![("outcome", "removed")], schedules.removed),
        ],
    )?;
    let volumes = control.volumes.all();
    write_volumes(text, &volumes)?;
    compaction::write(text, &control.host.compaction(), &volumes)?;
    scrub::write(text, &control.host.scrub())?;
    latency::write(text, &control.latencies.rows())
}

fn write_usage(text: &mut MetricsText<'_>, usage: &HostUsage) -> fmt::Result {
    let counts = [
        (
            "firn_log_segments",
            "Segments of the log.",
            usage.segments as u64,
        ),
        (
            "firn_log_segments_spare",
            "Segments of the log that are not in use.",
            usage.segments_spare as u64,
        ),
        (
            "firn_log_poisoned",
            "1 after a failed sync of the log.",
            u64::from(usage.poisoned),
        ),
    ];
    for (name, help, value) in counts {
        text.gauges(name, help, [(vec![], value)])?;
    }
    text.gauges(
        "firn_log_pressure_ratio",
        "Fraction of the log that holds data which the store lacks.",
        [(vec![], usage.pressure_permille as f64 / 1000.0)],
    )?;
    text.gauges(
        "firn_cache_bytes",
        "Bytes of the store that are cached, by tier.",
        [
            (vec![("tier", "memory")], usage.cache.memory_bytes),
            (vec![("tier", "disk")], usage.cache.disk_bytes),
        ],
    )?;
    text.counters(
        "firn_io_failures",
        "Failed I/O of the engine, by what failed.",
        FailureKind::ALL.into_iter().map(|kind| {
            let labels = vec![("kind", kind.name())];
            (labels, usage.failures.of(kind))
        }),
    )
}

fn write_collector(text: &mut MetricsText<'_>, report: &CollectorReport) -> fmt::Result {
    let found = &report.findings;
    let amounts = [
        ("live_packs", found.live_packs),
        ("live_indexes", found.live_indexes),
        ("held", found.held),
        ("garbage", found.garbage),
    ];
    text.gauges(
        "firn_gc_bytes",
        "Bytes of the store, as the last pass of this server's garbage collector found them.",
        amounts.map(|(kind, amount)| (vec![("kind", kind)], amount.bytes)),
    )?;
    text.gauges(
        "firn_gc_objects",
        "Objects of the store, as the last pass of this server's garbage collector found them.",
        amounts.map(|(kind, amount)| (vec![("kind", kind)], amount.objects)),
    )?;
    text.counters(
        "firn_gc_removed_bytes",
        "Bytes that this server's garbage collector removed.",
        [(vec![], report.removed.bytes)],
    )?;
    text.counters(
        "firn_gc_failed_removals",
        "Objects that this server's garbage collector tried to remove, and could not.",
        [(vec![], report.failed_removals)],
    )?;
    text.counters(
        "firn_gc_recovered_objects",
        "Objects that one pass took for garbage and a later one found reached. It must never happen.",
        [(vec![], report.recovered)],
    )?;
    text.counters(
        "firn_gc_passes",
        "Passes of this server's garbage collector that ended well.",
        [(vec![], report.passes)],
    )?;
    text.gauges(
        "firn_gc_failures_in_a_row",
        "Passes of this server's garbage collector that failed since one ended well.",
        [(vec![], report.failures_in_a_row)],
    )
}

fn volume_label(open: &OpenVolume) -> Labels<'_> {
    vec![("volume", open.info.name.as_str())]
}

fn write_volumes(text: &mut MetricsText<'_>, open: &[Arc<OpenVolume>]) -> fmt::Result {
    let rungs: Vec<(Labels<'_>, Watermark)> = open
        .iter()
        .flat_map(|open| {
            let marks = open.watermarks();
            let rungs = [
                ("acknowledged", marks.acknowledged),
                ("flushed", marks.flushed),
                ("stored", marks.stored),
            ];
            rungs.map(|(rung, mark)| {
                let name = open.info.name.as_str();
                (vec![("volume", name), ("rung", rung)], mark)
            })
        })
        .collect();
    text.gauges(
        "firn_volume_lsn",
        "Newest write of a volume at each watermark.",
        rungs
            .iter()
            .map(|(labels, mark)| (labels.clone(), mark.lsn)),
    )?;
    text.gauges(
        "firn_volume_age_seconds",
        "How long the oldest newer write has waited for each watermark.",
        rungs
            .iter()
            .map(|(labels, mark)| (labels.clone(), mark.age_seconds)),
    )?;
    text.counters(
        "firn_volume_uploaded_bytes",
        "Bytes sent to the store: packs, index and roots.",
        open.iter()
            .map(|open| (volume_label(open), open.volume.uploaded_bytes())),
    )?;
    text.gauges(
        "firn_volume_recovery_point_overdue_seconds",
        "By how much the recovery point is missed; zero while it holds.",
        open.iter().map(|open| {
            let overdue_ms = open.volume.watermarks().overdue_ms;
            (volume_label(open), overdue_ms as f64 / 1000.0)
        }),
    )?;
    text.counters(
        "firn_volume_damaged_bytes",
        "Bytes given up because the log could not be read, since the volume was opened.",
        open.iter()
            .map(|open| (volume_label(open), open.volume.damaged_bytes())),
    )
}
