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
            better). Later: writes of 4 KiB 7 % and 16 % slower, reads 0 and 10 % slower. In user-copy recovery after kill -9 takes 56 to 117 ms a device, and \
            4,092 devices take 0.63 to 0.75 MB of memory each.",
    source: "GlideFS: pull request 60 (zero-copy transport), of Linux 6.17 in QEMU, as are its soak and the later rates at home; the other later ones are of \
             Linux 6.17 at a cloud provider, and both stand in a comment of the code of the transport; memory and recovery are from its performance \
             documents, Linux 6.12 on a host of 16 processors",
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
            "The published rates are of virtual machines, and their caches are files in the page cache. Requests of 128 KiB are 64 at a time \
         there and 8 here.",
        ),
        Limit::of(
            "modes",
            "User-Mode Linux shows ratios under dear system calls, and very dear copies through the user-copy window. Writes wait there for the \
         uploader on the same two processors once the log is full of what is not uploaded: rows of writes do not compare the ways of the bytes, and \
         nothing is concluded of them.",
        ),
        Limit::of(
            "instructions",
            "The emulator counts instructions, not time.",
        ),
        Limit::of(
            "cold",
            "Cold reads come from a directory on this machine, not from S3: their p99 is of our path, without a network's time.",
        ),
        Limit::of(
            "soak",
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
    tail(measured, section);
    section.chart("001-zero-copy", &["modes", "instructions"], chart);
    later(section);
    cold(measured, section);
    devices(measured, section);
    soak(measured, section);
    bugs(section);
}

fn find<'a>(measured: &Measured<'a>, run: &str, workload: &str, server: &str) -> Option<&'a Value> {
    let named = [("workload", json!(workload)), ("server", json!(server))];
    measured.find(run, "volume", &named)
}

/// Published p99 of reads of 16 devices in zero-copy by that in user-copy: 205 % worse.
const TAIL: f64 = 3.05;

/// Where a ratio should stand of figures that are not like each other.
const NOT_COMPARED: &str = "not compared";

/// Requests to the store that a measurement of hot volumes may have made, for what is not theirs.
const FETCHED_MAX: f64 = 10.0;

/// The ways of the bytes.
const MODES: [&str; 2] = ["user-copy", "zero-copy"];

/// Why the times of a workload's volumes are not compared: the store was read from meanwhile, or nothing says that it was not.
fn why_cold(measured: &Measured, workload: &str) -> Option<String> {
    let fetched = MODES.map(|mode| {
        let named = [("workload", json!(workload)), ("server", json!(mode))];
        number(measured.find("modes", "modes-store", &named), "store_reads")
    });
    let is_hot = |requests: &Option<f64>| requests.is_some_and(|count| count <= FETCHED_MAX);
    let [user, zero] = fetched.map(|requests| match requests {
        Some(requests) => format!("{requests:.0}"),
        None => "unknown".to_owned(),
    });
    (!fetched.iter().all(is_hot))
        .then(|| format!("requests to the store: {user} in user-copy, {zero} in zero-copy"))
}

fn modes(
    measured: &Measured,
    section: &mut Section,
    chart: &mut Chart,
    workloads: &[(&str, f64, &str)],
) {
    let mut rows = Vec::new();
    let mut not_compared = Vec::new();
    for (workload, theirs, published) in workloads {
        let of = |run, server| find(measured, run, workload, server);
        let [user, zero] = MODES.map(|mode| of("modes", mode));
        let rate = |row| number(row, "per_second");
        let measured_times = ratio(rate(zero), rate(user));
        let why_cold = why_cold(measured, workload).filter(|_| measured_times.is_some());
        let times = measured_times.filter(|_| why_cold.is_none());
        let in_time = match &why_cold {
            Some(why) => {
                not_compared.push(format!("{workload} ({why})"));
                NOT_COMPARED.to_owned()
            }
            None => factor(times),
        };
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
            in_time.clone(),
            factor(instructions),
        ]);
        chart.put(workload, PUBLISHED, *theirs);
        for (series, value) in [("User-Mode Linux", times), ("instructions", instructions)] {
            if let Some(value) = value {
                chart.put(workload, series, value);
            }
        }
        let what = |lane| format!("001: zero-copy by user-copy, {workload}, {lane}");
        let against = |value: Option<f64>| value.map(|value| value / theirs);
        let theirs = factor(Some(*theirs));
        // What a write waits for in time is the uploader.
        if workload.contains("read ") {
            section
                .verdict(
                    "modes",
                    &what("time"),
                    &theirs,
                    in_time,
                    against(measured_times),
                )
                .withhold(why_cold);
        }
        let (what, ours) = (what("instructions"), factor(instructions));
        section.verdict("instructions", &what, &theirs, ours, against(instructions));
    }
    if !not_compared.is_empty() {
        section.paragraph(&format!(
            "Not compared in time, for the store was read from meanwhile, or nothing says that it was not: {}.",
            not_compared.join("; ")
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

/// Sets p99 of the reads of 16 devices beside the published one, which is of hot caches, too.
fn tail(measured: &Measured, section: &mut Section) {
    let workload = "randread 4k QD32 x16";
    let [user, zero] = MODES.map(|mode| number(find(measured, "modes", workload, mode), "p99"));
    let times = ratio(zero, user);
    let why_cold = why_cold(measured, workload);
    let ours = match (times, &why_cold) {
        (Some(_), Some(_)) => NOT_COMPARED.to_owned(),
        _ => factor(times),
    };
    section
        .verdict(
            "modes",
            &format!("001: p99, zero-copy by user-copy, {workload}"),
            &factor(Some(TAIL)),
            ours,
            times.map(|times| TAIL / times),
        )
        .withhold(why_cold);
}

/// What was published of zero-copy later, of slower processors.
fn later(section: &mut Section) {
    section.paragraph(
        "**Published later**, zero-copy by user-copy of one device, QD64 (-7 % is said to be within the noise; it stays with zero-copy for large requests' sake):",
    );
    let words = |cells: [&str; 3]| cells.map(str::to_owned).to_vec();
    let rows = [
        words(["randwrite 4k", "0.93x", "0.84x"]),
        words(["randread 4k", "1.00x", "0.90x"]),
        words(["mixed 4k", "1.10x", "not published"]),
        words([
            "128k in sequence, the two directions",
            "not published",
            "1.97x and 1.59x",
        ]),
    ];
    let header = [
        "workload",
        "QEMU at home, 4 processors",
        "cloud, 4 virtual processors",
    ];
    section.table(1, &header, &rows);
}

fn cold(measured: &Measured, section: &mut Section) {
    section.paragraph(
        "**Cold reads.** Of them nothing is published; the published p99 of reads is of hot caches. By its code every block that is not dirty takes two hops and \
         three copies in zero-copy. Ours, opened from the store alone, 4 KiB, microseconds, nothing concluded:",
    );
    let mut rows = Vec::new();
    for depth in ["QD1", "QD32"] {
        let workload = format!("cold randread 4k {depth}");
        let of = |server| find(measured, "cold", &workload, server);
        let mut row = vec![workload.clone()];
        for server in MODES {
            row.extend(["p50", "p99", "p999"].map(|name| cell(number(of(server), name), 0)));
        }
        let times = ratio(
            number(of("zero-copy"), "p99"),
            number(of("user-copy"), "p99"),
        );
        row.push(factor(times));
        rows.push(row);
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
    section.paragraph(
        "**Memory, devices, recovery.** Idle devices; memory and ms are of each device. Nothing is concluded: the published figures are of another machine, of \
         user-copy and of many more devices, and in MB.",
    );
    let words = |cells: [&str; 6]| cells.map(str::to_owned).to_vec();
    let mut rows = vec![
        words(["published, user-copy, 272", "", "", "", "15.4", "56"]),
        words([
            "published, user-copy, 1,025",
            "1.4 MB",
            "",
            "",
            "120",
            "117",
        ]),
        words([
            "published, user-copy, 4,092",
            "0.63 to 0.75 MB",
            "",
            "50",
            "",
            "",
        ]),
    ];
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
