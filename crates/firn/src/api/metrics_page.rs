//! The page `/metrics`: the server's counters and the engine's state.
//!
//! Reads both when asked. Keeps nothing of its own, and must never send a request to the store.

use std::sync::Arc;

use volume::{FailureKind, HostUsage};

use crate::control_plane::ControlPlane;
use crate::frontends::open_volumes::OpenVolume;
use crate::metrics::MetricsText;
use crate::model::Watermark;

/// All metrics, in Prometheus' text format.
pub(super) fn render(control: &ControlPlane) -> String {
    let mut text = MetricsText::default();
    control.counters.write_to(&mut text);
    if let Some(faults) = control.store.as_ref().and_then(|store| store.faults()) {
        faults.write_to(&mut text);
    }
    write_usage(&mut text, &control.host.usage());
    text.family(
        "firn_health",
        "gauge",
        "What is not well: 1 degraded, 2 stuck. Nothing is listed while all is well.",
    );
    for (what, health) in control.conditions() {
        let level = f64::from(health.status as u8);
        text.sample(&[("what", &what)], level);
    }
    text.family(
        "firn_log_unserved_bytes",
        "gauge",
        "Bytes of log that tails hold which are not served; see `firn rescue list`.",
    );
    text.sample(&[], control.rescue_tails().log_bytes as f64);
    write_volumes(&mut text, &control.volumes.all());
    text.into_string()
}

fn write_usage(text: &mut MetricsText, usage: &HostUsage) {
    let gauges = [
        (
            "firn_log_segments",
            "Segments of the log.",
            usage.segments as f64,
        ),
        (
            "firn_log_segments_spare",
            "Segments of the log that are not in use.",
            usage.segments_spare as f64,
        ),
        (
            "firn_log_pressure_ratio",
            "Fraction of the log that holds data which the store lacks.",
            usage.pressure_permille as f64 / 1000.0,
        ),
        (
            "firn_log_poisoned",
            "1 after a failed sync of the log.",
            f64::from(u8::from(usage.poisoned)),
        ),
    ];
    for (name, help, value) in gauges {
        text.family(name, "gauge", help);
        text.sample(&[], value);
    }
    text.family(
        "firn_cache_bytes",
        "gauge",
        "Bytes of the store that are cached, by tier.",
    );
    for (tier, bytes) in [
        ("memory", usage.cache.memory_bytes),
        ("disk", usage.cache.disk_bytes),
    ] {
        text.sample(&[("tier", tier)], bytes as f64);
    }
    text.family(
        "firn_io_failures_total",
        "counter",
        "Failed I/O of the engine, by what failed.",
    );
    for kind in FailureKind::ALL {
        text.sample(&[("kind", kind.name())], usage.failures.of(kind) as f64);
    }
}

fn write_volumes(text: &mut MetricsText, open: &[Arc<OpenVolume>]) {
    let rungs: Vec<(&str, &str, Watermark)> = open
        .iter()
        .flat_map(|open| {
            let name = open.info.name.as_str();
            let marks = open.watermarks();
            [
                (name, "acknowledged", marks.acknowledged),
                (name, "flushed", marks.flushed),
                (name, "stored", marks.stored),
            ]
        })
        .collect();
    text.family(
        "firn_volume_lsn",
        "counter",
        "Newest write of a volume at each watermark.",
    );
    for (name, rung, mark) in &rungs {
        text.sample(&[("volume", name), ("rung", rung)], mark.lsn as f64);
    }
    text.family(
        "firn_volume_age_seconds",
        "gauge",
        "How long the oldest newer write has waited for each watermark.",
    );
    for (name, rung, mark) in &rungs {
        text.sample(&[("volume", name), ("rung", rung)], mark.age_seconds);
    }
    text.family(
        "firn_volume_uploaded_bytes_total",
        "counter",
        "Bytes sent to the store: packs, index and roots.",
    );
    for open in open {
        let name = open.info.name.as_str();
        text.sample(&[("volume", name)], open.volume.uploaded_bytes() as f64);
    }
    text.family(
        "firn_volume_recovery_point_overdue_seconds",
        "gauge",
        "By how much the recovery point is missed; zero while it holds.",
    );
    for open in open {
        let overdue_ms = open.volume.watermarks().overdue_ms;
        let name = open.info.name.as_str();
        text.sample(&[("volume", name)], overdue_ms as f64 / 1000.0);
    }
    text.family(
        "firn_volume_damaged_bytes_total",
        "counter",
        "Bytes given up because the log could not be read, since the volume was opened.",
    );
    for open in open {
        let name = open.info.name.as_str();
        text.sample(&[("volume", name)], open.volume.damaged_bytes() as f64);
    }
}
