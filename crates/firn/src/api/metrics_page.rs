//! What the server says about itself at `/metrics`, and volumes' watermarks in the API's words.
//!
//! Reads counters and the engine's state when asked; keeps nothing of its own and costs no
//! request to the store.

use std::sync::Arc;

use volume::HostUsage;

use crate::control_plane::Control;
use crate::frontends::open_volumes::Open;
use crate::metrics::Text;
use crate::model::Mark;

/// Everything, in Prometheus' text format.
pub(crate) fn metrics(control: &Control) -> String {
    let mut text = Text::default();
    control.counters.write(&mut text);
    if let Some(planned) = &control.planned {
        planned.write(&mut text);
    }
    write_usage(&mut text, &control.host.usage());
    write_volumes(&mut text, &control.volumes.all());
    text.finish()
}

fn write_usage(text: &mut Text, usage: &HostUsage) {
    let gauges = [
        (
            "firn_log_segments",
            "Segments of the log.",
            usage.segments as f64,
        ),
        (
            "firn_log_segments_spare",
            "Of them not in use.",
            usage.segments_spare as f64,
        ),
        (
            "firn_log_pressure_ratio",
            "Part of the log that holds what the store does not have.",
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
        "Bytes of the store kept here, by tier.",
    );
    for (tier, bytes) in [
        ("memory", usage.cache.memory_bytes),
        ("disk", usage.cache.disk_bytes),
    ] {
        text.sample(&[("tier", tier)], bytes as f64);
    }
}

fn write_volumes(text: &mut Text, open: &[Arc<Open>]) {
    let rungs: Vec<(&str, &str, Mark)> = open
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
        "How far a volume has got, by rung.",
    );
    for (name, rung, mark) in &rungs {
        text.sample(&[("volume", name), ("rung", rung)], mark.lsn as f64);
    }
    text.family(
        "firn_volume_age_seconds",
        "gauge",
        "How long newer writes wait, by rung.",
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
}
