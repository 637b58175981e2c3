//! What get-data costs a small write, what it saves a large one, and what memory it leaves alone.
//!
//! (1) the latency of one small write at a time, mode off and on, answered inline and deferred; (2)
//! one write at a time by size, against copy and a second copy into a buffer of the server's own,
//! which is what get-data saves; (3) both at depth, with submissions and completions in batches,
//! and how often the ring was entered; (4) resident memory of idle devices. All with this crate's
//! null server.

use std::fs;

use super::measure::{Job, Length, Sample, fio, median};
use super::servers::{Kind, Mode, RunningServer, Server};
use super::{Arguments, matches_row};
use crate::{Failure, workspace};

/// What is compared: a name, the mode, options of the server.
type Way = (&'static str, Mode, &'static [&'static str]);

const PLAIN: [Way; 4] = [
    ("copy", Mode::Copy, &[]),
    ("get-data", Mode::GetData, &[]),
    ("copy deferred", Mode::Copy, &["--deferred"]),
    ("get-data deferred", Mode::GetData, &["--deferred"]),
];

const BUFFERS: [Way; 2] = [
    ("copy memcpy", Mode::Copy, &["--memcpy"]),
    ("get-data", Mode::GetData, &[]),
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
    for way in PLAIN {
        row(arguments, &server, ("(1)", way), ("4k", 1))?;
    }
    for block in ["4k", "64k", "128k", "256k", "512k", "1m"] {
        for way in BUFFERS {
            row(arguments, &server, ("(2)", way), (block, 1))?;
        }
    }
    for depth in [64, 128] {
        for way in BUFFERS {
            for block in ["4k", "128k"] {
                row(arguments, &server, ("(3)", way), (block, depth))?;
            }
        }
    }
    memory(arguments, &server)
}

/// One measurement, with a server of its own so that its counters are of this row alone.
fn row(
    arguments: &Arguments,
    server: &Server,
    (table, (way, mode, more)): (&str, Way),
    (block, depth): (&str, u32),
) -> Result<(), Failure> {
    if !matches_row(&format!("{table} {way} {block} QD{depth}"), &arguments.only) {
        return Ok(());
    }
    let running = server.start(Kind::Null, mode, 0..1, &[], more)?;
    let job = Job {
        devices: &running.devices,
        pattern: "randwrite",
        block,
        depth,
        batch: depth.min(16),
        length: Length::Seconds(arguments.seconds),
    };
    let samples = (0..arguments.rounds)
        .map(|_| fio(&job))
        .collect::<Result<Vec<_>, _>>()?;
    let Sample {
        per_second,
        mean_us,
        ..
    } = median(samples);
    let said = running.end();
    let enters = sum(&said, "enters") / sum(&said, "requests").max(1.0);
    println!(
        "| {table} | {way} | {block} | {depth} | {mean_us:.2} | {per_second:.0} | {enters:.2} |"
    );
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
        if !matches_row(&format!("(4) {}", mode.name()), &arguments.only) {
            continue;
        }
        let running = server.start(Kind::Null, mode, 0..IDLE, &[], &[])?;
        let idle = resident_kib(&running)?;
        let job = Job {
            devices: &running.devices,
            pattern: "randwrite",
            block: "512k",
            depth: 4,
            batch: 4,
            length: Length::Seconds(arguments.seconds),
        };
        fio(&job)?;
        println!(
            "| {} | {IDLE} | {idle} | {} |",
            mode.name(),
            resident_kib(&running)?
        );
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
