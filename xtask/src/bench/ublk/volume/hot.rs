//! P2: a hot volume over zero-copy against a bare file, served so by the kernel tree's server and
//! by this project's example; and P5's other half, the threads that a hot request meets.
//!
//! The volume is written from end to end and everything it holds is in its log, whose every segment
//! was in use before: a segment is zeroed before its first use, which a file that exists has
//! behind it. All servers are there the whole time and take turns, so that a machine's moods hit
//! all of them.
//!
//! A burst is what fits before the server begins to upload; what was dirty before it is brought to
//! the store first. It shows what a request costs. A sustained load has the uploads beside it, on
//! the same processors, which a bare file knows nothing of.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::BenchContext;
use super::report::{Bars, Report, Row};
use super::server::{Firn, World};
use crate::bench::measure::{Length, Workload, fill, fio, median, write_file};
use crate::bench::ublk::servers::{Kind, Mode, RunningServer, Server};
use crate::{Failure, workspace};

/// Bytes of the file and of the volume. Below what is uploaded without being asked for.
const MIB: u64 = 96;

/// Bytes of the log: room for some bursts, and a lap of it does not take long.
const LOG_MIB: u64 = 480;

/// Numbers of the peers' devices; firn takes the lowest that are free.
const FIRST_OF_PEERS: usize = 40;

/// How long a load lasts.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Load {
    /// As many requests as the volume has blocks of that size.
    Burst,
    /// The seconds of the command line.
    Sustained,
}

/// The sequential ones first: random writes scatter a log, and a file that is written in place knows
/// no such thing. What a scattered log costs a sequential read is a row of its own, the last.
const WORKLOADS: [(Load, Workload); 9] = [
    (Load::Burst, Workload::new("write", "128k", 8)),
    (Load::Burst, Workload::new("read", "128k", 8)),
    (Load::Burst, Workload::new("randread", "4k", 32)),
    (Load::Burst, Workload::new("randwrite", "4k", 32)),
    (Load::Burst, Workload::new("randread", "4k", 1)),
    (Load::Burst, Workload::new("randwrite", "4k", 1)),
    (Load::Burst, Workload::new("read", "128k", 8)),
    (Load::Sustained, Workload::new("write", "128k", 8)),
    (Load::Sustained, Workload::new("randwrite", "4k", 32)),
];

/// A disk that is measured.
struct MeasuredDisk<'a> {
    server: &'a str,
    granted: &'a str,
    disk: &'a PathBuf,
}

/// What the server's threads did during a measurement.
struct ThreadWakes {
    workload: String,
    requests: f64,
    before: Switches,
    after: Switches,
}

pub(super) fn run(context: &BenchContext, report: &mut Report) -> Result<(), Failure> {
    let world = World::new(context.program, context.dir, "hot")?;
    let log = format!("{LOG_MIB}MiB");
    let volume = format!("hot={MIB}MiB");
    let mut firn = world.serve(&["--log-size", &log, "--volume", &volume])?;
    let disk = firn.attach("hot", Mode::ZeroCopy)?;
    let running = peers(context)?;
    let granted = firn.granted("hot")?;
    let peers = running.iter().map(|(server, started)| MeasuredDisk {
        server,
        granted: "ublk zero-copy, 1 x 128",
        disk: &started.devices[0],
    });
    let mut all: Vec<MeasuredDisk<'_>> = peers.collect();
    all.push(MeasuredDisk {
        server: "firn volume",
        granted: &granted,
        disk: &disk,
    });
    for _ in 0..=LOG_MIB / MIB {
        fill(&disk)?;
        firn.ask(&["sync", "hot"])?;
    }
    report.part("hot", "P2: hot volume against a bare file", Bars::Ratio);
    println!("<!-- volume: {} -->", firn.log);
    let pid = firn.pid();
    let mut wakes = Vec::new();
    for (at, &(load, workload)) in WORKLOADS.iter().enumerate() {
        let title = title(at);
        if !context.options.includes_row(&format!("hot {title}")) {
            continue;
        }
        let mut samples = vec![Vec::new(); all.len()];
        for _ in 0..context.options.rounds {
            for (measured, samples) in all.iter().zip(&mut samples) {
                firn.ask(&["sync", "hot"])?;
                let before = switches(pid)?;
                let length = match load {
                    Load::Burst => Length::Once,
                    Load::Sustained => Length::Seconds(context.options.seconds),
                };
                let sample = fio(workload, std::slice::from_ref(measured.disk), length)?;
                if measured.disk == &disk {
                    wakes.push(ThreadWakes {
                        workload: title.clone(),
                        requests: sample.requests,
                        before,
                        after: switches(pid)?,
                    });
                }
                samples.push(sample);
            }
        }
        for (measured, samples) in all.iter().zip(samples) {
            let row = Row {
                workload: &title,
                server: measured.server,
                granted: measured.granted,
            };
            report.row(row, &median(samples));
        }
    }
    print_wakes(&wakes);
    println!(
        "\nways of the volume's requests: {}",
        firn.disk("hot")?["requests"]
    );
    Ok(())
}

/// The servers of bare files, each with a file of its own.
fn peers(context: &BenchContext) -> Result<Vec<(&'static str, RunningServer)>, Failure> {
    let files = files(context.dir)?;
    let mut running = Vec::new();
    let peers = [
        Server::Kublk(context.kublk.to_owned()),
        Server::Ours(workspace::packaged("examples")),
    ];
    for (at, server) in peers.iter().enumerate() {
        let id = FIRST_OF_PEERS + at;
        let file = &files[at..=at];
        // Like the volume's log, and like kublk, which knows no other way.
        let more: &[&str] = match server {
            Server::Ours(_) => &["--direct"],
            _ => &[],
        };
        let started = server.start(Kind::File, Mode::ZeroCopy, id..id + 1, file, more)?;
        running.push((name(server), started));
    }
    Ok(running)
}

/// What a row is called.
fn title(at: usize) -> String {
    let (load, workload) = WORKLOADS[at];
    let plain = workload.to_string();
    match load {
        Load::Sustained => format!("sustained {plain}"),
        Load::Burst if WORKLOADS[..at].contains(&WORKLOADS[at]) => {
            format!("{plain} after random 4k writes")
        }
        Load::Burst => plain,
    }
}

/// A file for each peer.
fn files(dir: &Path) -> Result<Vec<PathBuf>, Failure> {
    let paths = ["kublk", "example"].map(|peer| dir.join(format!("served-by-{peer}")));
    for path in &paths {
        write_file(path, MIB)?;
    }
    Ok(paths.to_vec())
}

fn name(server: &Server) -> &'static str {
    match server {
        Server::Ours(_) => "example, file",
        Server::Kublk(_) => "kublk, loop",
        Server::Libublk(_) => "libublk, loop",
    }
}

/// New volumes of so many MiB each as disks, every byte of them written once.
pub(super) fn create_filled(
    firn: &mut Firn,
    mode: Mode,
    (count, mib): (usize, u64),
) -> Result<Vec<PathBuf>, Failure> {
    let mut disks = Vec::with_capacity(count);
    for number in 0..count {
        let volume = format!("{}-{number}", mode.name());
        firn.ask(&["volume", "create", &volume, "--size", &format!("{mib}MiB")])?;
        let disk = firn.attach(&volume, mode)?;
        fill(&disk)?;
        disks.push(disk);
    }
    Ok(disks)
}

/// Voluntary context switches of a process's threads, summed by name without its number.
type Switches = BTreeMap<String, u64>;

/// How often each kind of thread of a process has gone to sleep and come back.
fn switches(pid: u32) -> Result<Switches, Failure> {
    let mut sums = Switches::new();
    for task in std::fs::read_dir(format!("/proc/{pid}/task"))? {
        // A thread may end while it is looked at.
        let Ok(status) = std::fs::read_to_string(task?.path().join("status")) else {
            continue;
        };
        let value = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name));
            line.map(str::trim)
        };
        let (Some(name), Some(count)) = (value("Name:"), value("voluntary_ctxt_switches:")) else {
            continue;
        };
        let kind = name.trim_end_matches(|c: char| c.is_ascii_digit() || c == '-');
        *sums.entry(kind.to_owned()).or_default() += count.parse::<u64>().unwrap_or(0);
    }
    Ok(sums)
}

/// What other threads than the reactors did while hot requests were served.
fn print_wakes(wakes: &[ThreadWakes]) {
    println!("\n## P5: threads that woke while the volume served hot requests\n");
    println!(
        "| workload | requests | wakes of reactors per 1000 | of all other threads per 1000, by thread |"
    );
    println!("|---|---:|---:|---|");
    for ThreadWakes {
        workload,
        requests,
        before,
        after,
    } in wakes
    {
        let woken = |name: &String| {
            let before = before.get(name).copied().unwrap_or(0);
            (after[name] - before.min(after[name])) as f64 * 1000.0 / requests
        };
        let reactors: f64 = after
            .keys()
            .filter(|name| is_reactor(name))
            .map(woken)
            .sum();
        let others = after.keys().filter(|name| !is_reactor(name));
        let others: Vec<String> = others
            .map(|name| (name, woken(name)))
            .filter(|(_, woken)| *woken > 0.0)
            .map(|(name, woken)| format!("{name} {woken:.2}"))
            .collect();
        println!(
            "| {workload} | {requests:.0} | {reactors:.1} | {} |",
            others.join(", ")
        );
    }
}

fn is_reactor(name: &str) -> bool {
    name.starts_with("firn-reactor")
}
