//! `cargo xtask bench nbd`: P7, this server against nbdkit and qemu-nbd, like with like.
//!
//! All servers stand side by side and every workload goes round them in turn, several times, so a
//! busy moment of the machine hits all of them; the median of the rounds is reported. The client
//! is the same for all (fio's NBD engine, one connection on a Unix socket). Beside the rate stands
//! the processor time that the server's process took per request: it says what the rate cannot
//! where client and server share the processors. With `--also`, two builds of the server are compared
//! with each other instead, their disks in memory, so that no disk's mood is taken for a build's.

mod servers;

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::json;

use self::servers::{MEMORY, Mode, Places, Programs, Sample, Server, fio, start_all, start_volume};
use super::measure::{Workload, write_file};
use crate::{Failure, figures, server_program, workspace};

/// Arguments of `cargo xtask bench nbd`.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Seconds per measurement
    #[arg(long, default_value_t = 2)]
    seconds: u32,
    /// Rounds; the median counts
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Size of the served disk in MiB
    #[arg(long, default_value_t = 512)]
    mib: u64,
    /// Measure this server instead of the one built here
    #[arg(long)]
    program: Option<PathBuf>,
    /// Print these tables alone
    #[arg(long, value_delimiter = ',')]
    only: Vec<Mode>,
    /// Compare it with this other build of it, in memory and turn by turn, and with nothing else
    #[arg(long, value_name = "PROGRAM")]
    also: Option<PathBuf>,
}

/// The sequential ones come first: random writes scatter a log, and files that are written in place know
/// no such thing.
const WORKLOADS: [Workload; 4] = [
    Workload::new("write", "1m", 8),
    Workload::new("read", "1m", 8),
    Workload::new("randread", "4k", 32),
    Workload::new("randwrite", "4k", 32),
];

/// The two builds that are compared.
const NAMES: [&str; 2] = ["first", "also"];

pub(super) fn run(arguments: &Arguments) -> Result<(), Failure> {
    for tool in ["fio", "nbdkit", "qemu-nbd", "nbdinfo"] {
        let there = Command::new(tool)
            .arg("--version")
            .stdout(Stdio::null())
            .status();
        there.map_err(|error| format!("{tool} is needed for this benchmark: {error}"))?;
    }
    if let Some(also) = &arguments.also {
        return compare_builds(arguments, &also.canonicalize()?);
    }
    let programs = build(arguments)?;
    println!("{}", crate::lane::describe_machine()?);
    let is_asked_for = |mode: &Mode| arguments.only.is_empty() || arguments.only.contains(mode);
    for mode in Mode::ALL.into_iter().filter(is_asked_for) {
        table(
            arguments,
            &programs,
            mode,
            &Places::in_dir(&workspace::target())?,
        )?;
    }
    println!("\n{}", crate::lane::describe_machine()?);
    Ok(())
}

fn build(arguments: &Arguments) -> Result<Programs, Failure> {
    let volume = server_program::build_unless(arguments.program.as_deref())?;
    let bare = ["build", "--quiet", "--profile", "dist", "-p", "nbd"];
    crate::process::run(workspace::cargo(bare).args(["--example", "bare_file"]))?;
    Ok(Programs {
        bare: workspace::packaged("examples/bare_file"),
        volume,
    })
}

/// Two builds of the server, each with a volume in memory. Within a round they take turns in both orders,
/// because who comes second finds the caches as the first left them.
fn compare_builds(arguments: &Arguments, also: &Path) -> Result<(), Failure> {
    let volume = server_program::build_unless(arguments.program.as_deref())?;
    let places = Places::in_dir(Path::new(MEMORY))?;
    let mut servers = Vec::new();
    for (name, program) in NAMES.into_iter().zip([volume.as_path(), also]) {
        servers.push(start_volume(
            name,
            program,
            Mode::Buffered,
            &places,
            arguments.mib,
        )?);
    }
    fill(&servers, arguments.mib)?;
    println!("{}", crate::lane::describe_machine()?);
    println!("first: {}\nalso: {}\n", volume.display(), also.display());
    println!(
        "| workload | first: requests/s | CPU us/request | also: requests/s | CPU us/request | also/first, median (least, most) | CPU |"
    );
    println!("|---|---:|---:|---:|---:|---:|---:|");
    for workload in WORKLOADS {
        let mut job = job(workload, arguments.seconds);
        if workload.pattern.ends_with("write") {
            // Each write is uploaded to a store in memory; this bounds it, and what a log holds.
            job.push(format!("--io_size={}m", 2 * arguments.mib));
        }
        let (mut first, mut second) = (Vec::new(), Vec::new());
        let mut ratios = Vec::new();
        for round in 0..arguments.rounds.max(1) {
            let mut samples = [Sample::default(); 2];
            for turn in [round % 2, 1 - round % 2] {
                // What a log has to upload is paid for outside of the measurement.
                sync(&volume, &places, NAMES[turn])?;
                samples[turn] = fio(&servers[turn], &job, arguments.mib)?;
            }
            ratios.push(samples[1].per_second / samples[0].per_second);
            first.push(samples[0]);
            second.push(samples[1]);
        }
        ratios.sort_by(f64::total_cmp);
        let (first, second) = (median(first), median(second));
        println!(
            "| {workload} | {:.0} | {:.1} | {:.0} | {:.1} | {:.2} ({:.2}, {:.2}) | {:.2} |",
            first.per_second,
            first.cpu_us,
            second.per_second,
            second.cpu_us,
            ratios[ratios.len() / 2],
            ratios[0],
            ratios[ratios.len() - 1],
            second.cpu_us / first.cpu_us,
        );
    }
    println!("\n{}", crate::lane::describe_machine()?);
    Ok(())
}

/// Has a server upload all that its log holds.
fn sync(program: &Path, places: &Places, name: &str) -> Result<(), Failure> {
    let api = places.disk.path().join(name).join("api.sock");
    let mut sync = Command::new(program);
    sync.arg(format!("--api=unix:{}", api.display()));
    crate::process::run(sync.args(["sync", "disk"]).stdout(Stdio::null()))
}

/// Writes each disk once: what is read later must be somewhere, in the log as hot data is.
fn fill(servers: &[Server], mib: u64) -> Result<(), Failure> {
    for server in servers {
        let filled = ["--rw=write", "--bs=1m", "--iodepth=8"].map(str::to_owned);
        fio(server, &filled, mib)?;
    }
    Ok(())
}

/// The words of fio for a workload that lasts so many seconds.
fn job(workload: Workload, seconds: u32) -> Vec<String> {
    vec![
        format!("--rw={}", workload.pattern),
        format!("--bs={}", workload.block),
        format!("--iodepth={}", workload.depth),
        "--time_based".into(),
        format!("--runtime={seconds}"),
        "--randseed=7".into(),
    ]
}

fn table(
    arguments: &Arguments,
    programs: &Programs,
    mode: Mode,
    places: &Places,
) -> Result<(), Failure> {
    let image = places.disk.path().join("image");
    write_file(&image, arguments.mib)?;
    let servers = start_all(mode, places, &image, (programs, arguments.mib))?;
    fill(&servers, arguments.mib)?;
    let title = mode.title();
    println!(
        "\n## {title}\n\n| workload | server | requests/s | of the best peer | CPU us/request |"
    );
    println!("|---|---|---:|---:|---:|");
    for workload in WORKLOADS {
        let job = job(workload, arguments.seconds);
        let mut samples = vec![Vec::new(); servers.len()];
        for _ in 0..arguments.rounds.max(1) {
            for (server, samples) in servers.iter().zip(&mut samples) {
                samples.push(fio(server, &job, arguments.mib)?);
            }
        }
        let medians: Vec<Sample> = samples.into_iter().map(median).collect();
        let is_peer = |server: &Server| !server.name.starts_with("firn");
        let best = servers
            .iter()
            .zip(&medians)
            .filter(|(server, _)| is_peer(server))
            .map(|(_, sample)| sample.per_second)
            .fold(0.0, f64::max);
        for (server, sample) in servers.iter().zip(&medians) {
            let Sample { per_second, cpu_us } = *sample;
            let ratio = per_second / best;
            println!(
                "| {workload} | {} | {per_second:.0} | {ratio:.2} | {cpu_us:.1} |",
                server.name
            );
            let row = json!({
                "mode": title, "workload": workload.to_string(), "server": server.name,
                "per_second": per_second, "cpu_us": cpu_us,
            });
            figures::put("nbd", &row);
        }
    }
    Ok(())
}

/// The sample with the middle rate.
fn median(mut samples: Vec<Sample>) -> Sample {
    samples.sort_by(|a, b| a.per_second.total_cmp(&b.per_second));
    samples[samples.len() / 2]
}
