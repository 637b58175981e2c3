//! 000: what a server's exit costs the kernel, and how long it takes.

use serde_json::{Value, json};

use super::super::plan::{Limit, Row, Run};
use super::super::section::{Measured, Section, cell, number, ratio};
use crate::chart::Chart;

pub(in super::super) const ROW: Row = Row {
    id: "000",
    title: "The exit of a ublk server: once per device",
    claim: "A server of 128 devices with 24 queues each, depth 4096: its exit quiesces queues 6,469 times and takes 11.14 s; with the \
            cancelling made a state of the device, 256 times and 2.44 s.",
    source: "Linux 6.17, commit 2fa9c93035e1 \"ublk: speed up ublk server exit handling\" (Uday Shankar)",
    runs: &[
        Run {
            name: "uml",
            whole: &[
                "bench",
                "ublk",
                "exit",
                "--only",
                "rings 8x24,queue 8x24,kublk 8x24,rings 32x24,kublk 32x24,rings 128x24,kublk 128x24",
            ],
            quick: Some(&[
                "bench",
                "ublk",
                "exit",
                "--only",
                "rings 8x24,kublk 8x24,rings 16x24,kublk 16x24",
            ]),
            minutes: [40, 10],
            rounds: [1, 1],
        },
        Run {
            name: "recent",
            whole: &[
                "bench",
                "ublk",
                "exit",
                "--kernel",
                "recent",
                "--only",
                "rings 8x24,kublk 8x24,rings 32x2,kublk 32x2",
            ],
            quick: Some(&[
                "bench",
                "ublk",
                "exit",
                "--kernel",
                "recent",
                "--only",
                "rings 8x24,kublk 8x24",
            ]),
            minutes: [30, 12],
            rounds: [1, 1],
        },
        Run {
            name: "stable",
            whole: &[
                "bench",
                "ublk",
                "exit",
                "--kernel",
                "stable",
                "--only",
                "rings 8x24,kublk 8x24",
            ],
            quick: Some(&[
                "bench",
                "ublk",
                "exit",
                "--kernel",
                "stable",
                "--only",
                "rings 8x24 TERM,kublk 8x24 TERM",
            ]),
            minutes: [30, 12],
            rounds: [1, 1],
        },
    ],
    limits: &[
        Limit::always(
            "Depth is 128 here and 4096 there: a packaged kernel in an emulator has no memory for 128 devices of that depth.",
        ),
        Limit::always(
            "Two of 24 processors are started. Seconds are of User-Mode Linux, whose grace periods are not a machine's; it has no tracer, so that quiesces \
         are counted in emulated kernels, whose seconds say little. Set ours beside kublk's of the same row, not beside the published seconds.",
        ),
        Limit::always(
            "How often a queue is quiesced is the kernel's doing: before the published change, as in Linux 6.12, it goes by queues, and with it by \
         devices. Ours can only be set beside another server's on the same kernel.",
        ),
    ],
    write,
};

/// The kernels, and what they are called.
const KERNELS: [(&str, &str); 3] = [
    ("uml", "recent, User-Mode Linux"),
    ("recent", "recent, emulated"),
    ("stable", "6.12, emulated"),
];

const OURS: &str = "firn 2 rings";
const PEER: &str = "kublk";

fn write(measured: &Measured, section: &mut Section) {
    let words = |cells: [&str; 7]| cells.map(str::to_owned).to_vec();
    let mut rows = vec![
        words([
            "published",
            "before 2fa9c93035e1",
            "128 x 24",
            "",
            "6,469",
            "50.5",
            "11.14",
        ]),
        words(["published", "with it", "128 x 24", "", "256", "2.0", "2.44"]),
    ];
    for (run, kernel) in KERNELS {
        for exit in measured.rows(run, "exit") {
            rows.push(cells(exit, run, kernel));
        }
    }
    let header = [
        "server",
        "kernel",
        "devices x queues",
        "ended by",
        "quiesces",
        "a device",
        "exit, s",
    ];
    section.table(4, &header, &rows);
    section.paragraph(
        "*kublk* is the server of the kernel tree's own tests, a process for each device; ours is one process with two rings. An exit ends when no \
         device has a server any more. TERM is asked for, KILL is a crash; devices are recoverable and stay.",
    );
    for signal in ["TERM", "KILL"] {
        verdicts(measured, section, signal);
    }
    section.chart("000-exit", &["uml"], chart(measured));
}

fn cells(exit: &Value, run: &str, kernel: &str) -> Vec<String> {
    let of = |name| number(Some(exit), name);
    let text = |name: &str| exit[name].as_str().unwrap_or_default().to_owned();
    let server = text("server");
    let server = if server == PEER {
        server
    } else {
        format!("ours ({})", server.trim_start_matches("firn "))
    };
    let counted = |value: Option<f64>, digits| match run {
        "uml" => "no tracer".to_owned(),
        _ => cell(value, digits),
    };
    vec![
        server,
        kernel.to_owned(),
        format!("{} x {}", cell(of("devices"), 0), cell(of("queues"), 0)),
        text("signal"),
        counted(of("quiesces"), 0),
        counted(ratio(of("quiesces"), of("devices")), 1),
        cell(of("from_signal_ms").map(|ms| ms / 1e3), 2),
    ]
}

fn find<'a>(
    measured: &Measured<'a>,
    run: &str,
    server: &str,
    devices: u64,
    signal: &str,
) -> Option<&'a Value> {
    let named = [
        ("server", json!(server)),
        ("devices", json!(devices)),
        ("queues", json!(24)),
        ("signal", json!(signal)),
    ];
    measured.find(run, "exit", &named)
}

/// Most devices of 24 queues that both servers were measured with in this run.
fn most_devices(measured: &Measured, run: &str, signal: &str) -> Option<u64> {
    let both = |devices: &u64| {
        let is_there = |server| find(measured, run, server, *devices, signal).is_some();
        is_there(OURS) && is_there(PEER)
    };
    [128, 64, 32, 16, 8].into_iter().find(both)
}

/// Sets ours beside another server's of the same run, on each kernel: it does what it does for both.
fn verdicts(measured: &Measured, section: &mut Section, signal: &str) {
    for (run, kernel) in KERNELS {
        let devices = most_devices(measured, run, signal);
        let of = |server, name| number(find(measured, run, server, devices?, signal), name);
        // User-Mode Linux has no tracer.
        if run != "uml" {
            let published = if run == "stable" { "50.5" } else { "2.0" };
            let each = |server| ratio(of(server, "quiesces"), devices.map(|all| all as f64));
            section.verdict(
                run,
                &format!("000: quiesces a device, {signal}, {kernel}, beside kublk"),
                &format!("{published}; kublk: {}", cell(each(PEER), 1)),
                cell(each(OURS), 1),
                ratio(each(PEER), each(OURS)),
            );
        }
        let seconds = |server| of(server, "from_signal_ms").map(|ms| ms / 1e3);
        let shape = devices.map_or(String::new(), |devices| format!(" of {devices} x 24"));
        section.verdict(
            run,
            &format!("000: exit{shape}, {signal}, s, {kernel}, beside kublk"),
            &format!("kublk, s: {}", cell(seconds(PEER), 2)),
            cell(seconds(OURS), 2),
            ratio(seconds(PEER), seconds(OURS)),
        );
    }
}

fn chart(measured: &Measured) -> Chart {
    let mut chart = Chart {
        title: "000: seconds until no device has a server".to_owned(),
        ..Chart::default()
    };
    for exit in measured.rows("uml", "exit") {
        let of = |name| number(Some(exit), name);
        let (Some(devices), Some(ms)) = (of("devices"), of("from_signal_ms")) else {
            continue;
        };
        let signal = exit["signal"].as_str().unwrap_or_default();
        let server = exit["server"].as_str().unwrap_or_default();
        chart.put(&format!("{devices} x 24, {signal}"), server, ms / 1e3);
    }
    chart
}
