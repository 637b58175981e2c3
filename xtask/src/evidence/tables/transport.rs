//! 001: zero-copy against user-copy, and what the reference system had to find out on the way.

use serde_json::{Value, json};

use super::super::bugs::BUGS;
use super::super::plan::{Limit, Row, Run};
use super::super::section::{Measured, PUBLISHED, Section, cell, factor, number, ratio};
use crate::chart::Chart;

pub(in super::super) const ROW: Row = Row {
    id: "001",
    title: "A block server over object storage: zero-copy against user-copy",
    claim: "One device, QD64, 4 KiB: +4.3 % writes, +19.3 % reads, 128 KiB in sequence +64.3 % and +53.0 %. 16 devices, QD32: 575,310 writes/s \
            against 413,460 (p99 35 % better), 991,913 reads/s against 696,322 (p99 of reads 205 % worse), mixed 730,478 against 557,473 (p99 40 % \
            better). Recovery after kill -9 takes 56 to 117 ms a device; 4,092 devices take 0.63 to 0.75 MB of memory each, in user-copy.",
    source: "GlideFS, pull request 60 (zero-copy transport) and its performance documents; on hardware, Linux 6.12 and 6.17",
    runs: &[
        Run {
            name: "modes",
            whole: &[
                "bench",
                "volume",
                "modes",
                "--seconds",
                "1",
                "--rounds",
                "3",
            ],
            quick: Some(&[
                "bench",
                "volume",
                "modes",
                "--seconds",
                "0.5",
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
                "volume",
                "modes",
                "--kernel",
                "recent",
                "--icount",
                "--seconds",
                "0.2",
                "--rounds",
                "1",
            ],
            quick: None,
            minutes: [40, 40],
            rounds: [1, 1],
        },
        Run {
            name: "cold",
            whole: &[
                "bench",
                "volume",
                "cold",
                "--only",
                "cold-reads",
                "--rounds",
                "3",
            ],
            quick: Some(&[
                "bench",
                "volume",
                "cold",
                "--only",
                "cold-reads",
                "--rounds",
                "1",
            ]),
            minutes: [15, 8],
            rounds: [3, 1],
        },
        Run {
            name: "devices",
            whole: &["soak", "--scale", "16,64,256", "--json"],
            quick: Some(&["soak", "--scale", "16,64", "--json"]),
            minutes: [20, 10],
            rounds: [1, 1],
        },
        Run {
            name: "soak",
            whole: &[
                "soak",
                "--devices",
                "4",
                "--minutes",
                "5",
                "--rate",
                "4",
                "--data-mode",
                "zero-copy",
                "--json",
            ],
            quick: Some(&[
                "soak",
                "--devices",
                "4",
                "--seconds",
                "20",
                "--data-mode",
                "zero-copy",
                "--json",
            ]),
            minutes: [25, 8],
            rounds: [1, 1],
        },
    ],
    limits: &[
        Limit::always(
            "The published rates are of hardware with 4 to 16 processors and of an emulator with KVM, and their caches are files in the page cache. Here \
         there is no KVM: User-Mode Linux shows ratios under dear system calls, and very dear copies through the user-copy window; the emulator shows \
         instructions. The percentages are claimed on hardware alone.",
        ),
        Limit::always(
            "Writes in User-Mode Linux wait for the uploader on the same two processors once the log is full of what is not uploaded: rows of writes do not \
         compare the ways of the bytes there.",
        ),
        Limit::always(
            "Cold reads come from a directory on this machine, not from S3: their p99 is of our path, without a network's time.",
        ),
        Limit::always(
            "A soak here is paced, judges every sector, and kills the server; the published one writes as fast as it can.",
        ),
    ],
    write,
};

/// Workload, zero-copy by user-copy as published, and how much better or worse p99 is.
const SINGLE: [(&str, f64, &str); 4] = [
    ("randwrite 4k QD64 x1", 1.043, ""),
    ("randread 4k QD64 x1", 1.193, ""),
    ("write 128k QD8 x1", 1.643, ""),
    ("read 128k QD8 x1", 1.530, ""),
];

const MANY: [(&str, f64, &str); 3] = [
    (
        "randwrite 4k QD32 x16",
        1.391,
        "575,310 / 413,460; p99 35 % better",
    ),
    (
        "randread 4k QD32 x16",
        1.425,
        "991,913 / 696,322; p99 205 % worse",
    ),
    (
        "randrw 4k QD32 x16",
        1.310,
        "730,478 / 557,473; p99 40 % better",
    ),
];

fn write(measured: &Measured, section: &mut Section) {
    let mut chart = Chart {
        title: "001: rate of zero-copy by user-copy".to_owned(),
        ..Chart::default()
    };
    section.paragraph("**One device.** Requests/s and p99 in microseconds are of User-Mode Linux.");
    modes(measured, section, &mut chart, &SINGLE);
    section.paragraph("**16 devices, QD32.**");
    modes(measured, section, &mut chart, &MANY);
    section.chart("001-zero-copy", &["modes", "instructions"], chart);
    cold(measured, section);
    devices(measured, section);
    soak(measured, section);
    bugs(section);
}

fn find<'a>(measured: &Measured<'a>, run: &str, workload: &str, server: &str) -> Option<&'a Value> {
    let named = [("workload", json!(workload)), ("server", json!(server))];
    measured.find(run, "volume", &named)
}

/// Requests to the store that a measurement of hot volumes may have made, for what is not theirs.
const FETCHED_MAX: f64 = 10.0;

/// Store requests of a workload's volumes in this mode.
fn fetched(measured: &Measured, workload: &str, mode: &str) -> f64 {
    let named = [("workload", json!(workload)), ("server", json!(mode))];
    let row = measured.find("modes", "modes-store", &named);
    number(row, "store_reads").unwrap_or(0.0)
}

fn modes(
    measured: &Measured,
    section: &mut Section,
    chart: &mut Chart,
    workloads: &[(&str, f64, &str)],
) {
    let mut rows = Vec::new();
    let mut cold = Vec::new();
    for (workload, theirs, published) in workloads {
        let of = |run, server| find(measured, run, workload, server);
        let (user, zero) = (of("modes", "user-copy"), of("modes", "zero-copy"));
        let rate = |row| number(row, "per_second");
        let fetched = ["user-copy", "zero-copy"].map(|mode| fetched(measured, workload, mode));
        let is_hot = fetched.iter().all(|requests| *requests <= FETCHED_MAX);
        let times = ratio(rate(zero), rate(user)).filter(|_| is_hot);
        if !is_hot {
            let [user, zero] = fetched;
            cold.push(format!("{workload} ({user:.0} and {zero:.0})"));
        }
        let each = |server| number(of("instructions", server), "each");
        let instructions = ratio(each("user-copy"), each("zero-copy"));
        rows.push(vec![
            (*workload).to_owned(),
            (*published).to_owned(),
            factor(Some(*theirs)),
            cell(rate(user), 0),
            cell(number(user, "p99"), 0),
            cell(rate(zero), 0),
            cell(number(zero, "p99"), 0),
            factor(times),
            factor(instructions),
        ]);
        chart.put(workload, PUBLISHED, *theirs);
        for (series, value) in [("User-Mode Linux", times), ("instructions", instructions)] {
            if let Some(value) = value {
                chart.put(workload, series, value);
            }
        }
        for (lane, value) in [("time", times), ("instructions", instructions)] {
            // What a write waits for in that lane is the uploader.
            if lane == "time" && !workload.contains("read ") {
                continue;
            }
            let run = if lane == "time" {
                "modes"
            } else {
                "instructions"
            };
            section.verdict(
                run,
                &format!("001: zero-copy by user-copy, {workload}, {lane}"),
                &factor(Some(*theirs)),
                factor(value),
                value.map(|value| value / theirs),
            );
        }
    }
    if !cold.is_empty() {
        section.paragraph(&format!(
            "Not compared in time, for the store was read from meanwhile (requests in user-copy and in zero-copy): {}.",
            cold.join(", ")
        ));
    }
    let header = [
        "workload",
        "published, zero-copy / user-copy",
        "ratio",
        "ours: user-copy",
        "p99",
        "zero-copy",
        "p99",
        "ratio",
        "ratio in instructions",
    ];
    section.table(2, &header, &rows);
}

fn cold(measured: &Measured, section: &mut Section) {
    section.paragraph(
        "**p99 of cold reads.** Published: p99 of random reads of 16 devices is 205 % worse in zero-copy than in user-copy (3.05 times), because every block that is not \
         dirty takes two hops and three copies. Ours, opened from the store alone, 4 KiB, microseconds:",
    );
    let mut rows = Vec::new();
    for depth in ["QD1", "QD32"] {
        let workload = format!("cold randread 4k {depth}");
        let of = |server| find(measured, "cold", &workload, server);
        let mut row = vec![workload.clone()];
        for server in ["user-copy", "zero-copy"] {
            row.extend(["p50", "p99", "p999"].map(|name| cell(number(of(server), name), 0)));
        }
        let times = ratio(
            number(of("zero-copy"), "p99"),
            number(of("user-copy"), "p99"),
        );
        row.push(factor(times));
        rows.push(row);
        section.verdict(
            "cold",
            &format!("001: p99 of cold reads, {depth}, zero-copy by user-copy"),
            "3.05x",
            factor(times),
            times.map(|times| 3.05 / times),
        );
    }
    let header = [
        "workload",
        "user-copy p50",
        "p99",
        "p99.9",
        "zero-copy p50",
        "p99",
        "p99.9",
        "p99 by p99",
    ];
    section.table(1, &header, &rows);
}

fn devices(measured: &Measured, section: &mut Section) {
    section
        .paragraph("**Memory, devices, recovery.** Idle devices; MiB and ms are of each device.");
    let words = |cells: [&str; 6]| cells.map(str::to_owned).to_vec();
    let mut rows = vec![
        words(["published, user-copy, 272", "", "", "", "15.4", "56"]),
        words(["published, user-copy, 1,025", "1.4", "", "", "120", "117"]),
        words([
            "published, user-copy, 4,092",
            "0.63 to 0.75",
            "",
            "50",
            "",
            "",
        ]),
    ];
    let mut last = (None, None);
    for row in measured.rows("devices", "document") {
        let of = |name| number(Some(row), name);
        let devices = of("devices");
        let each = ratio(of("back_after_kill_s").map(|s| s * 1e3), devices);
        let mib = of("rss_kib_each").map(|kib| kib / 1024.0);
        rows.push(vec![
            format!("ours, zero-copy, {}", cell(devices, 0)),
            cell(mib, 2),
            cell(of("kernel_kib_each").map(|kib| kib / 1024.0), 2),
            cell(of("threads"), 0),
            cell(of("back_after_kill_s"), 2),
            cell(each, 0),
        ]);
        last = (mib, each);
    }
    let header = [
        "devices",
        "server's MiB",
        "kernel's MiB",
        "threads",
        "back after kill -9, s",
        "ms each",
    ];
    section.table(1, &header, &rows);
    let (mib, each) = last;
    section.verdict(
        "devices",
        "001: server's memory of an idle device, MiB",
        "0.63",
        cell(mib, 2),
        ratio(Some(0.63), mib),
    );
    section.verdict(
        "devices",
        "001: recovery after kill -9, ms a device",
        "56",
        cell(each, 0),
        ratio(Some(56.0), each),
    );
}

fn soak(measured: &Measured, section: &mut Section) {
    section.paragraph("**Soak**, zero-copy:");
    let mut rows = vec![
        [
            "published",
            "",
            "300",
            "84.8 GB written",
            "",
            "79 to 346",
            "48 to 49",
            "",
        ]
        .map(str::to_owned)
        .to_vec(),
    ];
    for row in measured.rows("soak", "document") {
        let of = |name| number(Some(row), name);
        let lives = row["lives"].as_array().map_or(&[][..], Vec::as_slice);
        let over = |name: &str, pick: fn(f64, f64) -> f64| {
            lives
                .iter()
                .filter_map(|life| life[name].as_f64())
                .reduce(pick)
        };
        let span = |first, largest| {
            format!(
                "{} to {}",
                cell(over(first, f64::min), 0),
                cell(over(largest, f64::max), 0)
            )
        };
        let failures = row["failures"].as_array().map(|all| all.len() as f64);
        rows.push(vec![
            "ours".to_owned(),
            cell(of("devices"), 0),
            cell(of("seconds"), 0),
            format!("{} MiB written, all judged", cell(of("written_mib"), 0)),
            format!("{}, {}", cell(of("kills"), 0), cell(of("stops"), 0)),
            span("rss_mib_first", "rss_mib_largest"),
            span("descriptors_first", "descriptors_largest"),
            cell(failures, 0),
        ]);
    }
    let header = [
        "soak",
        "devices",
        "seconds",
        "load",
        "server killed, stopped",
        "RSS, MiB",
        "descriptors",
        "failures",
    ];
    section.table(1, &header, &rows);
}

fn bugs(section: &mut Section) {
    section.paragraph(
        "**Bugs it is known to have had**, by its own pull request, what came after it, and its documents, and the tests of ours that would fail on \
         a server that had them. Not all of them are in its newest version.",
    );
    let rows: Vec<Vec<String>> = BUGS
        .iter()
        .map(|bug| {
            let tests: Vec<String> = bug.tests.iter().map(|test| format!("`{test}`")).collect();
            vec![bug.from.to_owned(), bug.bug.to_owned(), tests.join(", ")]
        })
        .collect();
    section.table(3, &["from", "bug", "tests"], &rows);
}
