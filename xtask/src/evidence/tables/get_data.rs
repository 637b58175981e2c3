//! 003: what `UBLK_F_NEED_GET_DATA` costs small writes, and what it saves large ones.

use serde_json::{Value, json};

use super::super::plan::{Limit, Row, Run};
use super::super::section::{Measured, PUBLISHED, Section, cell, factor, number, ratio};
use crate::chart::Chart;

pub(in super::super) const ROW: Row = Row {
    id: "003",
    title: "UBLK_F_NEED_GET_DATA: a buffer when the write is there",
    claim: "One write at a time. The mode costs a 4 KiB write a second round trip (28.77 to 57.20 us answered inline; 43.31 to 75.50 us from \
            another thread, where the server of before the flag took 46.45 us); where the server would copy into a buffer of its own it saves that copy: \
            1.04 times the latency at 4 KiB, 0.51 at 512 KiB, 0.66 at 1 MiB, which the driver splits in two.",
    source: "Linux 6.0, commit c86019ff75c1 \"ublk_drv: add support for UBLK_IO_NEED_GET_DATA\" (ZiyangZhang), and the letter of its series' fourth version, \
             linux-block, 28 July 2022",
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

/// Size, and published latencies of copy with a second copy and of get-data.
const SIZES: [(&str, [f64; 2]); 6] = [
    ("4k", [9.65, 10.06]),
    ("64k", [15.19, 13.38]),
    ("128k", [19.47, 17.77]),
    ("256k", [32.63, 25.33]),
    ("512k", [90.57, 46.08]),
    ("1m", [177.06, 117.26]),
];

/// The ways of that table.
const WAYS: [&str; 2] = ["copy memcpy", "get-data"];

/// By how much a write may seem to take longer than a larger one before that is noise.
const NOISE_WITHIN: f64 = 1.25;

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
        ("inline", "", [28.77, 57.20]),
        ("deferred", " deferred", [43.31, 75.50]),
    ] {
        let of = |way: &str| latency(measured, "uml", ("(1)", &format!("{way}{suffix}")), "4k");
        let (copy, get_data) = (of("copy"), of("get-data"));
        let theirs = published[1] / published[0];
        let times = ratio(get_data, copy);
        rows.push(vec![
            name.to_owned(),
            cell(Some(published[0]), 2),
            cell(Some(published[1]), 2),
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

/// Get-data's latency by that of copy with a second copy, and why it says nothing if it does not.
struct BySize {
    latency: [Option<f64>; 2],
    noise: Option<String>,
}

impl BySize {
    fn of(measured: &Measured, run: &str, at: usize) -> BySize {
        let latency = |at: usize, way| latency(measured, run, ("(2)", way), SIZES[at].0);
        // What disturbs a round only adds to it: of two sizes in the wrong order the smaller is wrong.
        let is_noise = |way: &&'static str| {
            let larger = (at + 1..SIZES.len()).filter_map(|at| latency(at, way));
            let least = larger.reduce(f64::min);
            latency(at, way)
                .zip(least)
                .is_some_and(|(this, least)| this > NOISE_WITHIN * least)
        };
        let noisy = WAYS.iter().find(|way| is_noise(way));
        BySize {
            latency: WAYS.map(|way| latency(at, way)),
            noise: noisy.map(|way| format!("noise: in {way} a larger write took less")),
        }
    }

    fn ratio(&self) -> Option<f64> {
        ratio(self.latency[1], self.latency[0])
    }

    /// The ratio, where it says something.
    fn sound_ratio(&self) -> Option<f64> {
        self.ratio().filter(|_| self.noise.is_none())
    }
}

/// From which size on the mode takes less than a second copy; nothing of a run without figures.
fn pays_from(ratios: &[Option<f64>]) -> Option<String> {
    let sound: Vec<(f64, &str)> = ratios
        .iter()
        .zip(SIZES)
        .filter_map(|(ratio, (block, _))| Some(((*ratio)?, block)))
        .collect();
    let paying = sound.iter().rev().take_while(|(ratio, _)| *ratio < 1.0);
    match paying.last() {
        _ if sound.is_empty() => None,
        Some((_, block)) => Some(format!("pays from {block} on")),
        None => Some("does not pay".to_owned()),
    }
}

fn second_copy(measured: &Measured, section: &mut Section) {
    section.paragraph("(2) One write at a time by size, microseconds; *copy* is followed by a copy into the server's own buffer:");
    let mut chart = Chart {
        title: "003: latency of get-data by copy and a second copy".to_owned(),
        ..Chart::default()
    };
    let mut rows = Vec::new();
    let (mut in_time, mut in_instructions) = (Vec::new(), Vec::new());
    for (at, (block, published)) in SIZES.into_iter().enumerate() {
        let theirs = published[1] / published[0];
        let time = BySize::of(measured, "uml", at);
        let instructions = BySize::of(measured, "instructions", at).sound_ratio();
        let noise = if time.noise.is_some() { ", noise" } else { "" };
        rows.push(vec![
            block.to_owned(),
            cell(Some(published[0]), 2),
            cell(Some(published[1]), 2),
            factor(Some(theirs)),
            cell(time.latency[0], 1),
            cell(time.latency[1], 1),
            format!("{}{noise}", factor(time.ratio())),
            factor(instructions),
        ]);
        chart.put(block, PUBLISHED, theirs);
        let drawn = [
            ("User-Mode Linux", time.sound_ratio()),
            ("instructions", instructions),
        ];
        for (series, value) in drawn {
            if let Some(value) = value {
                chart.put(block, series, value);
            }
        }
        in_time.push(time.sound_ratio());
        in_instructions.push(instructions);
        section
            .verdict(
                "uml",
                &format!("003: get-data for a second copy, {block}"),
                &factor(Some(theirs)),
                factor(time.ratio()),
                time.ratio().map(|times| theirs / times),
            )
            .withhold(time.noise);
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
    for (lane, ratios) in [("time", in_time), ("instructions", in_instructions)] {
        if let Some(pays) = pays_from(&ratios) {
            section.paragraph(&format!("By these figures the mode {pays}, in {lane}."));
        }
    }
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
