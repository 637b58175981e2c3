//! What users would pick instead, on the same machine in the same run.

use std::collections::BTreeSet;

use serde_json::Value;

use super::super::plan::{Limit, Row, Run};
use super::super::section::{Measured, Section, cell, factor, number, ratio};
use crate::chart::Chart;

pub(in super::super) const ROW: Row = Row {
    id: "peers",
    title: "What users would pick instead",
    claim: "No claim of these projects is set beside ours: each was run here, as its own documentation advises, under the same load in the same run.",
    source: "nbdkit, qemu-nbd and s3backer of Debian, JuiceFS of its package for Python, ZeroFS of its crate; how they are run is in \
             [benchmarks/peers.md](benchmarks/peers.md) and [benchmarks/nbd.md](benchmarks/nbd.md)",
    runs: &[
        Run {
            name: "nbd",
            whole: &["bench", "nbd", "--seconds", "2", "--rounds", "3"],
            quick: Some(&[
                "bench",
                "nbd",
                "--seconds",
                "1",
                "--rounds",
                "1",
                "--only",
                "buffered",
            ]),
            minutes: [20, 10],
            rounds: [3, 1],
        },
        Run {
            name: "store",
            whole: &["bench", "store", "--only", "peers", "--latency", "0,30"],
            quick: None,
            minutes: [60, 60],
            rounds: [1, 1],
        },
    ],
    limits: &[
        Limit::always(
            "LVM thin and dm-cache are not measured: the guests' kernels that have them are emulated, and this machine's has none.",
        ),
        Limit::always("Clients and servers share two processors."),
    ],
    write,
};

fn write(measured: &Measured, section: &mut Section) {
    nbd(measured, section);
    store(measured, section);
}

/// A system's rate by that of the best other one under the same load.
fn to_best(figure: &Value, figures: &[&Value]) -> Option<f64> {
    let best = figures
        .iter()
        .filter(|other| other["system"] != figure["system"])
        .filter(|other| {
            ["load", "latency_ms"]
                .iter()
                .all(|name| other[*name] == figure[*name])
        })
        .filter_map(|other| number(Some(other), "mib_per_second"))
        .reduce(f64::max);
    ratio(number(Some(figure), "mib_per_second"), best)
}

/// Ours among the servers of NBD.
fn is_ours(server: &str) -> bool {
    server.starts_with("firn")
}

fn nbd(measured: &Measured, section: &mut Section) {
    section.paragraph(
        "NBD over a Unix socket, one connection; *ratio* is to the best peer of the workload:",
    );
    let figures = measured.rows("nbd", "nbd");
    let key = |row: &Value| {
        let text = |name: &str| row[name].as_str().unwrap_or_default().to_owned();
        (text("mode"), text("workload"))
    };
    let mut rows = Vec::new();
    let mut told = BTreeSet::new();
    let mut chart = Chart {
        title: "NBD: requests/s, relative to the best peer".to_owned(),
        ..Chart::default()
    };
    for figure in &figures {
        let of = |name| number(Some(figure), name);
        let server = figure["server"].as_str().unwrap_or_default();
        let (mode, workload) = key(figure);
        let peers = figures.iter().filter(|other| {
            key(other) == key(figure) && !is_ours(other["server"].as_str().unwrap_or_default())
        });
        let best = peers
            .filter_map(|peer| number(Some(peer), "per_second"))
            .reduce(f64::max);
        let times = ratio(of("per_second"), best);
        let group = format!("{workload}, {mode}");
        if let Some(times) = times {
            chart.put(&group, server, times);
        }
        if is_ours(server) && server.contains("volume") && told.insert(group.clone()) {
            section.verdict(
                "nbd",
                &format!("peers: NBD, {group}, volume to the best peer"),
                "1.00x",
                factor(times),
                times,
            );
        }
        rows.push(vec![
            mode,
            workload,
            server.to_owned(),
            cell(of("per_second"), 0),
            factor(times),
            cell(of("cpu_us"), 1),
        ]);
    }
    let header = [
        "mode",
        "workload",
        "server",
        "requests/s",
        "ratio",
        "CPU us/request",
    ];
    section.table(3, &header, &rows);
    section.chart("peers-nbd", &["nbd"], chart);
}

fn store(measured: &Measured, section: &mut Section) {
    if !measured.has("store") {
        section.paragraph("A disk in an object store behind a line: not measured.");
        return;
    }
    section.paragraph(
        "A disk of 256 MiB in the same MinIO over a line of 64 MiB/s; a write load ends when all is in the store. *Ratio* is to the best other system \
         of the load:",
    );
    let mut rows = Vec::new();
    let figures = measured.rows("store", "peers");
    for figure in &figures {
        let of = |name| number(Some(figure), name);
        let text = |name: &str| figure[name].as_str().unwrap_or_default().to_owned();
        let optional = |name| of(name).map_or(String::new(), |value| cell(Some(value), 2));
        let system = text("system");
        if is_ours(&system) {
            let times = to_best(figure, &figures);
            let (load, ms) = (text("load"), cell(of("latency_ms"), 0));
            let what = format!("peers: store at {ms} ms, {load}, MiB/s to the best other");
            section.verdict("store", &what, "1.00x", factor(times), times);
        }
        rows.push(match figure["skipped"].as_str() {
            Some(why) => {
                let mut row = vec![text("system"), format!("skipped: {why}")];
                row.resize(9, String::new());
                row
            }
            None => vec![
                text("system"),
                text("load"),
                cell(of("latency_ms"), 0),
                cell(of("mib_per_second"), 2),
                factor(to_best(figure, &figures)),
                cell(of("put"), 0),
                cell(of("get"), 0),
                optional("sent"),
                optional("fetched"),
            ],
        });
    }
    let header = [
        "system",
        "load",
        "ms",
        "MiB/s",
        "ratio",
        "PUT",
        "GET",
        "sent per byte written",
        "fetched per byte read",
    ];
    section.table(2, &header, &rows);
}
