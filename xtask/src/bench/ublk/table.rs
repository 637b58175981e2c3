//! P1: every server, kind, mode, size, depth and number of devices.

use std::path::{Path, PathBuf};

use super::Arguments;
use super::servers::{Kind, Mode, Server};
use super::volume::medium;
use crate::Failure;
use crate::bench::measure::{Length, Sample, Workload, median_of, write_file};

/// Size of a served file.
const FILE_MIB: u64 = 32;

const WORKLOADS: [Workload; 8] = [
    Workload::new("randread", "4k", 1),
    Workload::new("randwrite", "4k", 1),
    Workload::new("randread", "4k", 32),
    Workload::new("randwrite", "4k", 32),
    Workload::new("randread", "128k", 1),
    Workload::new("randwrite", "128k", 1),
    Workload::new("randread", "128k", 32),
    Workload::new("randwrite", "128k", 32),
];

/// What a server serves.
#[derive(Clone, Copy)]
struct Setup {
    kind: Kind,
    mode: Mode,
    devices: usize,
}

/// Prints the table as it comes.
pub(super) fn run(arguments: &Arguments, servers: &[Server]) -> Result<(), Failure> {
    let files = files(16, &medium::in_memory()?)?;
    let unit = if arguments.options.icount {
        "instructions/request"
    } else {
        "us/request"
    };
    println!("| server | kind | mode | workload | requests/s | {unit} | mean latency, us |");
    println!("|---|---|---|---|---:|---:|---:|");
    for kind in [Kind::Null, Kind::File] {
        for mode in Mode::ALL {
            for devices in [1, 16] {
                for server in servers.iter().filter(|server| server.has(kind, mode)) {
                    let setup = Setup {
                        kind,
                        mode,
                        devices,
                    };
                    rows(arguments, server, setup, &files)?;
                }
            }
        }
    }
    Ok(())
}

/// One server with one set of devices, through all workloads for that many.
fn rows(
    arguments: &Arguments,
    server: &Server,
    setup: Setup,
    files: &[PathBuf],
) -> Result<(), Failure> {
    let Setup {
        kind,
        mode,
        devices,
    } = setup;
    let wanted = |workload: &&Workload| {
        let mode = mode.name();
        let name = format!("{server} {kind} {mode} {workload} x{devices}");
        arguments.options.includes_row(&name)
    };
    let workloads: Vec<_> = WORKLOADS.iter().filter(wanted).collect();
    if workloads.is_empty() {
        return Ok(());
    }
    // The kernel tree's server knows direct I/O alone, and so do we here.
    let direct = matches!((server, kind), (Server::Ours(_), Kind::File));
    let more: &[&str] = if direct { &["--direct"] } else { &[] };
    let running = server.start(kind, mode, 0..devices, files, more)?;
    for workload in workloads {
        let length = Length::Seconds(arguments.options.seconds);
        let load = workload.with_devices(devices);
        let Sample {
            per_second,
            mean_us,
            ..
        } = median_of(arguments.options.rounds, load, &running.devices, length)?;
        // The emulated clock has a nanosecond per instruction.
        let each = if arguments.options.icount { 1e9 } else { 1e6 } / per_second;
        let mode = mode.name();
        println!(
            "| {server} | {kind} | {mode} | {workload} x{devices} | {per_second:.0} | {each:.1} | \
             {mean_us:.1} |"
        );
    }
    Ok(())
}

/// Files on a disk in memory, so that the servers are measured and not a disk. On tmpfs it would be
/// the ring's worker threads.
fn files(count: usize, dir: &Path) -> Result<Vec<PathBuf>, Failure> {
    let paths: Vec<_> = (0..count)
        .map(|number| dir.join(format!("served-{number}")))
        .collect();
    for path in &paths {
        write_file(path, FILE_MIB)?;
    }
    Ok(paths)
}
