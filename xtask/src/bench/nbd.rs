//! `cargo xtask bench nbd`: P7, this server against nbdkit and qemu-nbd, like with like.
//!
//! All servers stand side by side and every workload goes round them in turn, several times, so a
//! busy moment of the machine hits all of them; the median of the rounds is reported. The client
//! is the same for all (fio's NBD engine, one connection on a Unix socket). Beside the rate stands
//! the processor time that the server's process took per request: it says what the rate cannot
//! where client and server share the processors. With `--also`, two builds of the server are compared
//! with each other instead, their disks in memory, so that no disk's mood is taken for a build's.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use super::measure::{Workload, write_file};
use crate::{Failure, server_program, workspace};

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
    /// Compare it with this other build of it, in memory and turn by turn, and with nothing else
    #[arg(long, value_name = "PROGRAM")]
    also: Option<PathBuf>,
}

/// What is measured beside the peers.
struct Programs {
    bare: PathBuf,
    volume: PathBuf,
}

/// The sequential ones come first: random writes scatter a log, and files that are written in place know
/// no such thing.
const WORKLOADS: [Workload; 4] = [
    Workload::new("write", "1m", 8),
    Workload::new("read", "1m", 8),
    Workload::new("randread", "4k", 32),
    Workload::new("randwrite", "4k", 32),
];

/// Where files are in memory.
const MEMORY: &str = "/dev/shm";

/// How long a server may take until it answers.
const START_TIMEOUT: Duration = Duration::from_secs(60);

/// The two builds that are compared.
const NAMES: [&str; 2] = ["first", "also"];

/// Ticks per second in /proc, the same on every Linux architecture served here.
const TICKS: f64 = 100.0;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Mode {
    Buffered,
    Direct,
}

/// A running server; ended when dropped.
struct Server {
    name: String,
    uri: String,
    child: Child,
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may have ended by itself; either way nothing is left.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Where servers keep what they have; both go when the benchmark does.
struct Places {
    disk: tempfile::TempDir,
    /// A server that is killed leaves its rings behind.
    rings: tempfile::TempDir,
}

impl Places {
    fn in_dir(parent: &Path) -> std::io::Result<Self> {
        let mut named = tempfile::Builder::new();
        let named = named.prefix("bench-nbd-");
        Ok(Self {
            disk: named.tempdir_in(parent)?,
            rings: named.tempdir_in(MEMORY)?,
        })
    }
}

/// One measurement.
#[derive(Clone, Copy, Default)]
struct Sample {
    per_second: f64,
    cpu_us: f64,
}

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
    for mode in [Mode::Buffered, Mode::Direct] {
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
    let title = if mode == Mode::Buffered {
        "Buffered"
    } else {
        "Direct I/O"
    };
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
        }
    }
    Ok(())
}

/// The sample with the middle rate.
fn median(mut samples: Vec<Sample>) -> Sample {
    samples.sort_by(|a, b| a.per_second.total_cmp(&b.per_second));
    samples[samples.len() / 2]
}

/// Starts a server of a volume, in a directory of its own.
fn start_volume(
    name: &str,
    program: &Path,
    mode: Mode,
    places: &Places,
    mib: u64,
) -> Result<Server, Failure> {
    let dir = places.disk.path().join(name);
    std::fs::create_dir_all(&dir)?;
    let mut volume = Command::new(program);
    volume.args([
        "serve",
        "--rpo",
        "1h",
        "--log-size",
        "4GiB",
        "--cache-size",
        "256MiB",
    ]);
    volume.arg("--store").arg(dir.join("store"));
    volume.arg("--cache").arg(dir.join("cache"));
    volume.arg("--ring-dir").arg(places.rings.path());
    volume.arg(format!("--api=unix:{}", dir.join("api.sock").display()));
    volume.arg(format!("--nbd=unix:{}", dir.join("nbd.sock").display()));
    volume.arg(format!("--volume=disk={mib}MiB"));
    volume.args(match mode {
        Mode::Direct => ["--log-io", "direct"],
        Mode::Buffered => ["--log-io", "buffered"],
    });
    start(&format!("firn, {name}"), volume, &dir, "nbd.sock", "disk")
}

fn start_all(
    mode: Mode,
    places: &Places,
    image: &Path,
    (programs, mib): (&Programs, u64),
) -> Result<Vec<Server>, Failure> {
    let dir = places.disk.path();
    let mut servers = Vec::new();
    let mut bare = Command::new(&programs.bare);
    bare.arg(image).arg(dir.join("bare.sock"));
    if mode == Mode::Direct {
        bare.arg("--direct");
    }
    servers.push(start("firn, bare file", bare, dir, "bare.sock", "file")?);
    servers.push(start_volume("volume", &programs.volume, mode, places, mib)?);
    if mode == Mode::Buffered {
        let mut nbdkit = Command::new("nbdkit");
        nbdkit
            .args(["-f", "-U"])
            .arg(dir.join("nbdkit.sock"))
            .arg("file")
            .arg(image);
        servers.push(start("nbdkit file", nbdkit, dir, "nbdkit.sock", "")?);
        servers.push(qemu("qemu-nbd", &["--cache=writeback"], dir, image)?);
    } else {
        for aio in ["threads", "native", "io_uring"] {
            let options = ["--cache=none", &format!("--aio={aio}")];
            servers.push(qemu(&format!("qemu-nbd, {aio}"), &options, dir, image)?);
        }
    }
    Ok(servers)
}

fn qemu(name: &str, options: &[&str], dir: &Path, image: &Path) -> Result<Server, Failure> {
    let socket = format!("{}.sock", name.replace(", ", "-"));
    let mut command = Command::new("qemu-nbd");
    command
        .args(["-t", "-e", "4", "-f", "raw", "-x", "disk", "-k"])
        .arg(dir.join(&socket));
    command.args(options).arg(image);
    start(name, command, dir, &socket, "disk")
}

/// Starts a server and waits until it answers.
fn start(
    name: &str,
    mut command: Command,
    dir: &Path,
    socket: &str,
    export: &str,
) -> Result<Server, Failure> {
    let log = File::create(dir.join(format!("{socket}.log")))?;
    // A server that watches its input for the end gets one that does not end.
    command
        .stdin(Stdio::piped())
        .stdout(log.try_clone()?)
        .stderr(log);
    let child = command
        .spawn()
        .map_err(|error| format!("cannot start {name}: {error}"))?;
    let uri = format!("nbd+unix:///{export}?socket={}", dir.join(socket).display());
    let server = Server {
        name: name.to_owned(),
        uri,
        child,
    };
    let until = Instant::now() + START_TIMEOUT;
    loop {
        let mut ask = Command::new("nbdinfo");
        let told = ask
            .args(["--size", &server.uri])
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        if told.status()?.success() {
            return Ok(server);
        }
        if Instant::now() > until {
            let log = std::fs::read_to_string(dir.join(format!("{socket}.log")))?;
            return Err(format!("{name} does not answer:\n{log}").into());
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Runs one fio job against a server.
fn fio(server: &Server, job: &[String], mib: u64) -> Result<Sample, Failure> {
    let before = cpu_seconds(server.child.id())?;
    let output = Command::new("fio")
        .args([
            "--name=job",
            "--thread",
            "--ioengine=nbd",
            "--output-format=json",
        ])
        .arg(format!("--uri={}", server.uri))
        .arg(format!("--size={mib}m"))
        .args(job)
        .output()?;
    let cpu = cpu_seconds(server.child.id())? - before;
    let text = String::from_utf8_lossy(&output.stdout);
    let start = text.find('{').unwrap_or(text.len());
    let report: serde_json::Value = serde_json::from_str(&text[start..])
        .map_err(|_| format!("fio failed against {}:\n{text}", server.name))?;
    let side = |name: &str, field: &str| report["jobs"][0][name][field].as_f64().unwrap_or(0.0);
    let requests = side("read", "total_ios") + side("write", "total_ios");
    if report["jobs"][0]["error"] != 0 || requests == 0.0 {
        return Err(format!("fio failed against {}:\n{text}", server.name).into());
    }
    let per_second = side("read", "iops") + side("write", "iops");
    Ok(Sample {
        per_second,
        cpu_us: cpu * 1e6 / requests,
    })
}

/// Processor time that a process has taken, user and system.
fn cpu_seconds(pid: u32) -> Result<f64, Failure> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"))?;
    // The name in parentheses may contain anything; the fields after it do not.
    let fields = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
    let mut times = fields
        .split_whitespace()
        .skip(11)
        .map_while(|field| field.parse::<f64>().ok());
    let (user, system) = (times.next().unwrap_or(0.0), times.next().unwrap_or(0.0));
    Ok((user + system) / TICKS)
}
