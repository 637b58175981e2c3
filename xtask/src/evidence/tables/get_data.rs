//! 003: what `UBLK_F_NEED_GET_DATA` costs small writes, and what it saves large ones.

use serde_json::{Value, json};

use super::super::plan::{Limit, Row, Run};
use super::super::section::{Measured, PUBLISHED, Section, cell, factor, number, ratio};
use crate::chart::Chart;

pub(in super::super) const ROW: Row = Row {
    id: "003",
    title: "UBLK_F_NEED_GET_DATA: a buffer when the write is there",
    claim: "One write at a time. The mode costs a 4 KiB write a second round trip (28.7 to 57.2 us answered inline, 43 to 75.5 us from \
            another thread); where the server would copy into a buffer of its own it saves that copy: 1.04 times the latency at 4 KiB, 0.51 at \
            512 KiB, 0.66 at 1 MiB.",
    source: "Linux 6.0, commit c86019ff75c1 \"ublk_drv: add support for UBLK_IO_NEED_GET_DATA\" (ZiyangZhang), and the letters of its series",
    runs: &[
        Run {
            name: "uml",
            whole: &[
                "bench",
                "ublk",
                "get-data",
                "--seconds",
                "1",
                "--rounds",
                "3",
            ],
            quick: Some(&[
                "bench",
                "ublk",
                "get-data",
                "--seconds",
                "0.3",
                "--rounds",
                "1",
            ]),
            minutes: [20, 10],
            rounds: [3, 1],
        },
        Run {
            name: "instructions",
            whole: &[
                "bench",
                "ublk",
                "get-data",
                "--kernel",
                "recent",
                "--icount",
                "--seconds",
                "0.1",
                "--rounds",
                "1",
                "--only",
                "(1),(2)",
            ],
            quick: None,
            minutes: [30, 30],
            rounds: [1, 1],
        },
    ],
    limits: &[
        Limit::of(
            "uml",
            "Microseconds are of User-Mode Linux, where a system call is dear, and the mode has one more for each write.",
        ),
        Limit::of(
            "instructions",
            "The other lane counts instructions, and a copy by the byte, which is not what a processor takes for it.",
        ),
        Limit::always(
            "The published case answered a write from another thread through an event; ours defers it in its own way.",
        ),
    ],
    write,
};

/// Size, published latencies of copy with a second copy and of get-data, and their ratio.
const SIZES: [(&str, Option<[f64; 2]>, f64); 6] = [
    ("4k", Some([9.65, 10.06]), 1.04),
    ("64k", Some([15.19, 13.38]), 0.88),
    ("128k", Some([19.5, 17.8]), 0.91),
    ("256k", None, 0.78),
    ("512k", Some([90.6, 46.1]), 0.51),
    ("1m", Some([177.0, 117.0]), 0.66),
];

fn write(measured: &Measured, section: &mut Section) {
    round_trip(measured, section);
    second_copy(measured, section);
    batching(measured, section);
    memory(measured, section);
}

fn find<'a>(
    measured: &Measured<'a>,
    run: &str,
    (part, way): (&str, &str),
    block: &str,
    depth: u64,
) -> Option<&'a Value> {
    let named = [
        ("part", json!(part)),
        ("way", json!(way)),
        ("block", json!(block)),
        ("depth", json!(depth)),
    ];
    measured.find(run, "get-data", &named)
}

fn latency(measured: &Measured, run: &str, what: (&str, &str), block: &str) -> Option<f64> {
    number(find(measured, run, what, block, 1), "mean_us")
}

fn round_trip(measured: &Measured, section: &mut Section) {
    section.paragraph("(1) A 4 KiB write, mean latency in microseconds:");
    let mut rows = Vec::new();
    for (name, suffix, published) in [
        ("inline", "", [28.7, 57.2]),
        ("deferred", " deferred", [43.0, 75.5]),
    ] {
        let of = |way: &str| latency(measured, "uml", ("(1)", &format!("{way}{suffix}")), "4k");
        let (copy, get_data) = (of("copy"), of("get-data"));
        let theirs = published[1] / published[0];
        let times = ratio(get_data, copy);
        rows.push(vec![
            name.to_owned(),
            cell(Some(published[0]), 1),
            cell(Some(published[1]), 1),
            factor(Some(theirs)),
            cell(copy, 1),
            cell(get_data, 1),
            factor(times),
        ]);
        section.verdict(
            "uml",
            &format!("003: latency with the mode, 4 KiB, {name}"),
            &factor(Some(theirs)),
            factor(times),
            times.map(|times| theirs / times),
        );
    }
    let header = [
        "handler",
        "published: off",
        "on",
        "on / off",
        "ours: off",
        "on",
        "on / off",
    ];
    section.table(1, &header, &rows);
}

fn second_copy(measured: &Measured, section: &mut Section) {
    section.paragraph("(2) One write at a time by size, microseconds; *copy* is followed by a copy into the server's own buffer:");
    let mut chart = Chart {
        title: "003: latency of get-data by copy and a second copy".to_owned(),
        ..Chart::default()
    };
    let mut rows = Vec::new();
    for (block, published, theirs) in SIZES {
        let times_in = |run| {
            let of = |way| latency(measured, run, ("(2)", way), block);
            (of("copy memcpy"), of("get-data"))
        };
        let (copy, get_data) = times_in("uml");
        let (few, many) = times_in("instructions");
        let (times, instructions) = (ratio(get_data, copy), ratio(many, few));
        let absolute = |at: usize| published.map_or(String::new(), |of| cell(Some(of[at]), 2));
        rows.push(vec![
            block.to_owned(),
            absolute(0),
            absolute(1),
            factor(Some(theirs)),
            cell(copy, 1),
            cell(get_data, 1),
            factor(times),
            factor(instructions),
        ]);
        chart.put(block, PUBLISHED, theirs);
        for (series, value) in [("User-Mode Linux", times), ("instructions", instructions)] {
            if let Some(value) = value {
                chart.put(block, series, value);
            }
        }
        section.verdict(
            "uml",
            &format!("003: get-data for a second copy, {block}"),
            &factor(Some(theirs)),
            factor(times),
            times.map(|times| theirs / times),
        );
    }
    let header = [
        "write",
        "published: copy",
        "get-data",
        "ratio",
        "ours: copy",
        "get-data",
        "ratio",
        "in instructions",
    ];
    section.table(1, &header, &rows);
    section.chart("003-get-data", &["uml", "instructions"], chart);
}

fn batching(measured: &Measured, section: &mut Section) {
    section.paragraph(
        "(3) At depth, 16 submitted and taken at once, so that announcements and fetches of many writes share a system call (nothing is published of \
         it):",
    );
    let mut rows = Vec::new();
    for block in ["4k", "128k"] {
        for depth in [64, 128] {
            let of = |way| find(measured, "uml", ("(3)", way), block, depth);
            let (copy, get_data) = (of("copy memcpy"), of("get-data"));
            let rate = |row| number(row, "per_second");
            rows.push(vec![
                format!("{block}, depth {depth}"),
                cell(rate(copy), 0),
                cell(number(copy, "enters"), 2),
                cell(rate(get_data), 0),
                cell(number(get_data, "enters"), 2),
                factor(ratio(rate(get_data), rate(copy))),
            ]);
        }
    }
    let header = [
        "writes",
        "copy and memcpy, requests/s",
        "enters a request",
        "get-data, requests/s",
        "enters a request",
        "ratio",
    ];
    section.table(1, &header, &rows);
}

fn memory(measured: &Measured, section: &mut Section) {
    section.paragraph(
        "(4) Resident memory of a server with 64 devices, MiB (nothing is published of it):",
    );
    let mut rows = Vec::new();
    for way in ["copy", "get-data"] {
        let row = measured.find("uml", "get-data-memory", &[("way", json!(way))]);
        let mib = |name| cell(number(row, name).map(|kib| kib / 1024.0), 0);
        rows.push(vec![way.to_owned(), mib("idle_kib"), mib("used_kib")]);
    }
    section.table(1, &["mode", "idle", "after 512 KiB writes to each"], &rows);
}
