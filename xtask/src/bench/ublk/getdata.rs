//! What get-data costs a small write, what it saves a large one, and what memory it leaves alone.
//!
//! (1) the latency of one write at a time, by size, against plain copy; (2) the same at depth with
//! batches; (3) resident memory of idle devices. All against this crate's null server.

use std::fs;

use super::Arguments;
use super::measure::{Job, Sample, fio, median};
use super::servers::{Kind, Mode, Running, Server};
use crate::{Failure, workspace};

/// The modes that are compared.
const MODES: [Mode; 2] = [Mode::Copy, Mode::GetData];

/// Idle devices whose memory is looked at.
const IDLE: usize = 64;

/// Runs all three.
pub(super) fn run(arguments: &Arguments) -> Result<(), Failure> {
    let server = Server::Ours(workspace::target().join("release/examples"));
    println!(
        "\n| mode | write | depth | mean latency, us | requests/s |\n|---|---|---:|---:|---:|"
    );
    for more in [&[][..], &["--deferred"][..]] {
        for mode in MODES {
            let running = server.start(Kind::Null, mode, 1, &[], more)?;
            let name = format!(
                "{}{}",
                mode.name(),
                if more.is_empty() { "" } else { ", deferred" }
            );
            for block in ["4k", "64k", "128k", "256k", "512k", "1m"] {
                row(arguments, &running, &name, (block, 1))?;
            }
            for depth in [64, 128] {
                row(arguments, &running, &name, ("4k", depth))?;
            }
        }
    }
    println!(
        "\n| mode | idle devices | resident memory, KiB | after 512 KiB writes to each |\n|---|---:|---:|---:|"
    );
    for mode in MODES {
        let running = server.start(Kind::Null, mode, IDLE, &[], &[])?;
        let idle = resident_kib(&running)?;
        let job = Job {
            devices: &running.devices,
            pattern: "randwrite",
            block: "512k",
            depth: 4,
            batch: 4,
            seconds: arguments.seconds,
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

fn row(
    arguments: &Arguments,
    running: &Running,
    name: &str,
    (block, depth): (&str, u32),
) -> Result<(), Failure> {
    let job = Job {
        devices: &running.devices,
        pattern: "randwrite",
        block,
        depth,
        batch: depth.min(16),
        seconds: arguments.seconds,
    };
    let samples = (0..arguments.rounds)
        .map(|_| fio(&job))
        .collect::<Result<Vec<_>, _>>()?;
    let Sample {
        per_second,
        mean_us,
    } = median(samples);
    println!(
        "| {} | {block} | {depth} | {mean_us:.2} | {per_second:.0} |",
        name
    );
    Ok(())
}

/// Memory that the server's process holds.
fn resident_kib(running: &Running) -> Result<u64, Failure> {
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
