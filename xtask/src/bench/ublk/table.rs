//! P1: every server, kind, mode, size, depth and number of devices.

use std::fs::File;
use std::path::{Path, PathBuf};

use super::measure::{Job, Length, Sample, fio, median};
use super::servers::{Kind, Mode, Server};
use super::volume::medium;
use super::{Arguments, matches_row};
use crate::Failure;

/// Bytes of a served file; what it holds is written once, so that no hole is read.
const FILE_BYTES: u64 = 32 << 20;

/// fio's pattern, bytes per request, requests in flight, devices.
type Workload = (&'static str, &'static str, u32, usize);

const WORKLOADS: [Workload; 16] = [
    ("randread", "4k", 1, 1),
    ("randwrite", "4k", 1, 1),
    ("randread", "4k", 32, 1),
    ("randwrite", "4k", 32, 1),
    ("randread", "128k", 1, 1),
    ("randwrite", "128k", 1, 1),
    ("randread", "128k", 32, 1),
    ("randwrite", "128k", 32, 1),
    ("randread", "4k", 1, 16),
    ("randwrite", "4k", 1, 16),
    ("randread", "4k", 32, 16),
    ("randwrite", "4k", 32, 16),
    ("randread", "128k", 1, 16),
    ("randwrite", "128k", 1, 16),
    ("randread", "128k", 32, 16),
    ("randwrite", "128k", 32, 16),
];

/// Prints the table as it comes.
pub(super) fn run(arguments: &Arguments, servers: &[Server]) -> Result<(), Failure> {
    let files = files(16, &medium::in_memory()?)?;
    let unit = if arguments.icount {
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
                    rows(arguments, server, (kind, mode, devices), &files)?;
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
    (kind, mode, devices): (Kind, Mode, usize),
    files: &[PathBuf],
) -> Result<(), Failure> {
    let name = |(pattern, block, depth, devices): &Workload| {
        format!(
            "{server} {kind} {} {pattern} {block} QD{depth} x{devices}",
            mode.name()
        )
    };
    let wanted = |workload: &&Workload| {
        workload.3 == devices && matches_row(&name(workload), &arguments.only)
    };
    let workloads: Vec<_> = WORKLOADS.iter().filter(wanted).collect();
    if workloads.is_empty() {
        return Ok(());
    }
    // The kernel tree's server knows direct I/O alone, and so do we here.
    let direct = matches!((server, kind), (Server::Ours(_), Kind::File));
    let more: &[&str] = if direct { &["--direct"] } else { &[] };
    let running = server.start(kind, mode, 0..devices, files, more)?;
    for (pattern, block, depth, _) in workloads {
        let job = Job {
            devices: &running.devices,
            pattern,
            block,
            depth: *depth,
            batch: depth.div_ceil(2),
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
        // The emulated clock has a nanosecond per instruction.
        let each = if arguments.icount { 1e9 } else { 1e6 } / per_second;
        let workload = format!("{pattern} {block} QD{depth} x{devices}");
        let mode = mode.name();
        println!(
            "| {server} | {kind} | {mode} | {workload} | {per_second:.0} | {each:.1} | {mean_us:.1} |"
        );
    }
    Ok(())
}

/// Files on a disk in memory, so that the servers are measured and not a disk. On tmpfs it would be
/// the ring's worker threads.
fn files(count: usize, dir: &Path) -> Result<Vec<PathBuf>, Failure> {
    let block = vec![0x5a_u8; 1 << 20];
    let mut paths = Vec::new();
    for number in 0..count {
        let path = dir.join(format!("served-{number}"));
        let mut file = File::create(&path)?;
        for _ in 0..FILE_BYTES >> 20 {
            std::io::Write::write_all(&mut file, &block)?;
        }
        file.sync_all()?;
        paths.push(path);
    }
    Ok(paths)
}
