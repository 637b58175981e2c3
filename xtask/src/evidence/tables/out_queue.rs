//! 002: what senders wait for the lock of an out-queue.

use serde_json::json;

use super::super::plan::{Limit, Row, Run};
use super::super::section::{Measured, Section, cell, factor, number, ratio};
use crate::chart::Chart;

pub(in super::super) const ROW: Row = Row {
    id: "002",
    title: "The out-queue of Ceph's client: a lock of its own",
    claim: "In `/proc/lock_stat` of a web server, five minutes each, waits for the connection's mutex were 7,853,358 us; with a small \
            lock for the out-queue beside it the waits for both are 210,874 + 13,680 us, 35 times less.",
    source: "Linux, ceph-devel, 3 July 2026: \"fs/ceph/messenger: add separate lock for `out_queue`\" (Max Kellermann)",
    runs: &[Run {
        name: "messenger",
        whole: &["bench", "messenger"],
        quick: Some(&["bench", "messenger", "--quick"]),
        minutes: [20, 10],
        rounds: [7, 3],
    }],
    limits: &[
        Limit::always(
            "The published figures are of a kernel under five minutes of a web server's traffic, before and after and not side by side; ours \
         are of the messenger's two variants in one program, interleaved, under a made load on loopback.",
        ),
        Limit::always(
            "Two processors are shared by the senders and both I/O threads: a part of any wait is the wait for a processor.",
        ),
        Limit::always(
            "Of median round trip and throughput nothing is claimed. Where they differ between the variants, see how far own lock and own lock, again, \
         differ: they are the same program.",
        ),
    ],
    write,
};

const LOADS: [&str; 3] = [
    "A: 64 senders x 4 KiB, 20,000/s",
    "B: 16 senders x 64 KiB, 12,000/s",
    "C: overload, 4 senders x 4 KiB",
];

/// The variants, and what they are called beside the published ones.
const VARIANTS: [(&str, &str); 2] = [
    ("one", "ours, one lock"),
    ("split", "ours, out-queue's own lock"),
];

fn write(measured: &Measured, section: &mut Section) {
    section.paragraph(
        "As `/proc/lock_stat` has it, times in microseconds. Ours: what callers wait (`send`, `keepalive` and the inbox of the I/O thread), \
         summed over all rounds.",
    );
    let words = |cells: &[&str]| cells.iter().map(|cell| (*cell).to_owned()).collect();
    let mut rows: Vec<Vec<String>> = vec![
        words(&[
            "published, one mutex",
            "web server",
            "15,962",
            "37,877",
            "7,853,358",
            "492.00",
            "33,994,666",
            "231,017",
        ]),
        words(&[
            "published, own lock",
            "web server",
            "",
            "",
            "210,874 + 13,680",
            "3.27",
            "37.0 million",
            "6,069",
        ]),
    ];
    for load in &LOADS[..2] {
        for (variant, name) in VARIANTS {
            rows.push(Locks::of(measured, load, variant).cells(name, load));
        }
    }
    let header = [
        "lock",
        "load",
        "contentions",
        "waittime-max",
        "waittime-total",
        "waittime-avg",
        "acquisitions",
        "wait per million",
    ];
    section.table(2, &header, &rows);
    section.paragraph(
        "*Per million* is of acquisitions in the published rows and of sends in ours. With one lock a sender takes the out-queue's own lock inside the \
         other, and never waits for it: that is why its acquisitions are more. Medians over the rounds decide less by single rounds \
         in which the I/O thread was switched out. *One / mean of own* is by the mean of own lock and own lock, again; *control* is that variant \
         against itself, and where it is off by more than a quarter nothing is concluded:",
    );
    ratios(measured, section);
    felt(measured, section);
}

/// The locks that callers take, added up.
#[derive(Default)]
struct Locks {
    contended: Option<f64>,
    longest_us: Option<f64>,
    total_us: Option<f64>,
    takes: Option<f64>,
    sends: Option<f64>,
}

impl Locks {
    fn of(measured: &Measured, load: &str, variant: &str) -> Locks {
        let rows = measured.rows("messenger", "messenger-locks");
        let is_of = |row: &&serde_json::Value| {
            row["load"] == load && row["variant"] == variant && row["caller"] == true
        };
        let mut locks = Locks::default();
        for row in rows.into_iter().filter(is_of) {
            let of = |name| number(Some(row), name);
            let add = |sum: Option<f64>, more: Option<f64>| Some(sum.unwrap_or(0.0) + more?);
            let us = |ns: Option<f64>| ns.map(|ns| ns / 1e3);
            locks.contended = add(locks.contended, of("contended"));
            locks.takes = add(locks.takes, of("takes"));
            locks.total_us = add(locks.total_us, us(of("wait_ns")));
            locks.longest_us = Some(
                locks
                    .longest_us
                    .unwrap_or(0.0)
                    .max(us(of("wait_max_ns")).unwrap_or(0.0)),
            );
            locks.sends = of("sends");
        }
        locks
    }

    fn cells(&self, name: &str, load: &str) -> Vec<String> {
        vec![
            name.to_owned(),
            load.to_owned(),
            cell(self.contended, 0),
            cell(self.longest_us, 0),
            cell(self.total_us, 0),
            cell(ratio(self.total_us, self.contended), 2),
            cell(self.takes, 0),
            cell(ratio(self.total_us, self.sends).map(|each| each * 1e6), 0),
        ]
    }
}

/// The middle, least or largest of a figure's rounds.
fn of_rounds(measured: &Measured, load: &str, what: &str, variant: &str, at: usize) -> Option<f64> {
    let named = [("load", json!(load)), ("what", json!(what))];
    let row = measured.find("messenger", "messenger", &named)?;
    row[variant][at].as_f64()
}

/// By how much two measurements of the same program differ at most where others are compared with them.
const CONTROL_WITHIN: f64 = 1.25;

/// Why nothing can be concluded beside this control.
fn unsteady(control: Option<f64>) -> Option<String> {
    let Some(control) = control else {
        return Some("there is no control".to_owned());
    };
    let is_off = control.max(1.0 / control) > CONTROL_WITHIN;
    is_off.then(|| format!("own lock against itself is {}", factor(Some(control))))
}

const WAIT: &str = "callers' wait, ms per million sends";

fn ratios(measured: &Measured, section: &mut Section) {
    let mut rows = Vec::new();
    let mut chart = Chart {
        title: "002: what callers wait, ms per million sends".to_owned(),
        ..Chart::default()
    };
    for load in LOADS {
        let median = |variant| of_rounds(measured, load, WAIT, variant, 0);
        let (one, split, again) = (median("one"), median("split"), median("split, again"));
        // A round without any wait at all would make the ratio endless.
        let both = split.zip(again).map(|(a, b)| f64::midpoint(a, b));
        let times = ratio(one, both.map(|both| both.max(0.001)));
        let control = ratio(split, again);
        for (name, value) in [("one lock", one), ("own lock", split)] {
            if let Some(value) = value {
                chart.put(load.split(':').next().unwrap_or(load), name, value);
            }
        }
        rows.push(vec![
            load.to_owned(),
            cell(one, 1),
            cell(split, 3),
            cell(again, 3),
            factor(times),
            factor(control),
        ]);
        let letter = load.split(':').next().unwrap_or(load);
        if letter != "C" {
            let what = format!(
                "002: less wait of senders, load {letter}, medians, one by mean of own and own, again"
            );
            let against = times.map(|times| times / 35.0);
            section
                .verdict("messenger", &what, "35x", factor(times), against)
                .withhold(unsteady(control));
        }
    }
    let header = [
        "load, ms per million sends",
        "one lock",
        "own lock",
        "own lock, again",
        "one / mean of own",
        "control",
    ];
    section.table(1, &header, &rows);
    section.chart("002-waits", &["messenger"], chart);
}

/// What a sender feels, which nothing is published of.
fn felt(measured: &Measured, section: &mut Section) {
    section.paragraph(
        "What a sender feels, microseconds, medians of the rounds (nothing is published of it):",
    );
    let mut rows = Vec::new();
    for load in &LOADS[..2] {
        for what in ["send() p99", "send() p99.9", "send() max", "round trip p50"] {
            let median = |variant| cell(of_rounds(measured, load, what, variant, 0), 1);
            let mut row = vec![(*load).to_owned(), what.to_owned()];
            row.extend(["one", "split", "split, again"].map(median));
            rows.push(row);
        }
    }
    let header = ["load", "what", "one lock", "own lock", "own lock, again"];
    section.table(2, &header, &rows);
}
