//! What get-data costs a small write, what it saves a large one, and what memory it leaves alone.
//!
//! (1) the latency of one small write at a time, mode off and on, answered inline and deferred; (2)
//! one write at a time by size, against copy and a second copy into a buffer of the server's own,
//! which is what get-data saves; (3) both at depth, with submissions and completions in batches,
//! and how often the ring was entered; (4) resident memory of idle devices. All with this crate's
//! null server.

use std::fs;

use serde_json::json;

use super::Arguments;
use super::servers::{Kind, Mode, RunningServer, Server};
use crate::bench::measure::{Length, Sample, Workload, fio, median_of};
use crate::{Failure, figures, workspace};

/// A server that is compared with others.
#[derive(Clone, Copy)]
struct Variant {
    name: &'static str,
    mode: Mode,
    options: &'static [&'static str],
}

impl Variant {
    const fn new(name: &'static str, mode: Mode, options: &'static [&'static str]) -> Variant {
        Variant {
            name,
            mode,
            options,
        }
    }
}

const PLAIN: [Variant; 4] = [
    Variant::new("copy", Mode::Copy, &[]),
    Variant::new("get-data", Mode::GetData, &[]),
    Variant::new("copy deferred", Mode::Copy, &["--deferred"]),
    Variant::new("get-data deferred", Mode::GetData, &["--deferred"]),
];

const BUFFERS: [Variant; 2] = [
    Variant::new("copy memcpy", Mode::Copy, &["--memcpy"]),
    Variant::new("get-data", Mode::GetData, &[]),
];

/// Idle devices whose memory is looked at.
const IDLE: usize = 64;

/// Runs all four.
pub(super) fn run(arguments: &Arguments) -> Result<(), Failure> {
    let server = Server::Ours(workspace::packaged("examples"));
    println!(
        "| table | way | write | depth | mean latency, us | requests/s | enters/request |\n\
         |---|---|---|---:|---:|---:|---:|"
    );
    for variant in PLAIN {
        row(arguments, &server, "(1)", variant, writes("4k", 1))?;
    }
    for block in ["4k", "64k", "128k", "256k", "512k", "1m"] {
        for variant in BUFFERS {
            row(arguments, &server, "(2)", variant, writes(block, 1))?;
        }
    }
    for depth in [64, 128] {
        for variant in BUFFERS {
            for block in ["4k", "128k"] {
                row(arguments, &server, "(3)", variant, writes(block, depth))?;
            }
        }
    }
    memory(arguments, &server)
}

fn writes(block: &'static str, depth: u32) -> Workload {
    Workload {
        batch: depth.min(16),
        ..Workload::new("randwrite", block, depth)
    }
}

/// One measurement, with a server of its own so that its counters are of this row alone.
fn row(
    arguments: &Arguments,
    server: &Server,
    table: &str,
    variant: Variant,
    writes: Workload,
) -> Result<(), Failure> {
    let Variant {
        name,
        mode,
        options,
    } = variant;
    let Workload { block, depth, .. } = writes;
    if !arguments
        .options
        .includes_row(&format!("{table} {name} {block} QD{depth}"))
    {
        return Ok(());
    }
    let running = server.start(Kind::Null, mode, 0..1, &[], options)?;
    let length = Length::Seconds(arguments.options.seconds);
    let Sample {
        per_second,
        mean_us,
        ..
    } = median_of(arguments.options.rounds, writes, &running.devices, length)?;
    let said = running.end();
    let enters = sum(&said, "enters") / sum(&said, "requests").max(1.0);
    println!(
        "| {table} | {name} | {block} | {depth} | {mean_us:.2} | {per_second:.0} | {enters:.2} |"
    );
    let row = json!({
        "part": table, "way": name, "block": block, "depth": depth, "mean_us": mean_us,
        "per_second": per_second, "enters": enters,
    });
    figures::put("get-data", &row);
    Ok(())
}

/// The sum of a counter over all that the server has told.
fn sum(said: &str, counter: &str) -> f64 {
    let label = format!("{counter}: ");
    let numbers = said.split(&label).skip(1).filter_map(|rest| {
        let digits = rest.split(|c: char| !c.is_ascii_digit()).next()?;
        digits.parse::<f64>().ok()
    });
    numbers.sum()
}

fn memory(arguments: &Arguments, server: &Server) -> Result<(), Failure> {
    println!(
        "\n| (4) mode | idle devices | resident memory, KiB | after 512 KiB writes to each |\n\
         |---|---:|---:|---:|"
    );
    for mode in [Mode::Copy, Mode::GetData] {
        if !arguments
            .options
            .includes_row(&format!("(4) {}", mode.name()))
        {
            continue;
        }
        let running = server.start(Kind::Null, mode, 0..IDLE, &[], &[])?;
        let idle = resident_kib(&running)?;
        let length = Length::Seconds(arguments.options.seconds);
        fio(
            writes("512k", 4).with_devices(IDLE),
            &running.devices,
            length,
        )?;
        let used = resident_kib(&running)?;
        println!("| {} | {IDLE} | {idle} | {used} |", mode.name());
        let row = json!({
            "way": mode.name(), "devices": IDLE, "idle_kib": idle, "used_kib": used,
        });
        figures::put("get-data-memory", &row);
    }
    Ok(())
}

/// Memory that the server's process holds.
fn resident_kib(running: &RunningServer) -> Result<u64, Failure> {
    let pid = running
        .child
        .as_ref()
        .ok_or("the server is no process of ours")?
        .id();
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let number = line.and_then(|line| line.split_whitespace().next()?.parse().ok());
    number.ok_or_else(|| "the kernel does not say how much memory the server holds".into())
}

#[cfg(test)]
mod tests {
    use super::sum;

    #[test]
    fn counters_are_summed_over_queues_and_reactors() {
        let said = "device 0 queue 0 share 0: QueueStats { requests: 12, commits: 3 }\n\
                    device 0 queue 1 share 0: QueueStats { requests: 30, commits: 3 }\n\
                    reactor 0: CoreStats { ops: 1, enters: 21 }\n";
        assert!((sum(said, "requests") - 42.0).abs() < 1e-9);
        assert!((sum(said, "enters") - 21.0).abs() < 1e-9);
    }
}
