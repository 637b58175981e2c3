//! `cargo xtask bench nbd`: P7, this server against nbdkit and qemu-nbd, like with like.
//!
//! All servers stand side by side and every workload goes round them in turn, several times, so a
//! busy moment of the machine hits all of them; the median of the rounds is reported. The client
//! is the same for all (fio's NBD engine, one connection on a Unix socket). Beside the rate stands
//! the processor time that the server's process took per request: it says what the rate cannot
//! where client and server share the processors.

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
    /// And another build of it, in rows of its own
    #[arg(long, value_name = "PROGRAM")]
    also: Option<PathBuf>,
}

/// What is measured beside the peers.
struct Programs {
    bare: PathBuf,
    volume: PathBuf,
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

/// How long a server may take until it answers.
const START_TIMEOUT: Duration = Duration::from_secs(60);

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

/// A directory that goes when the benchmark does.
struct Scratch(PathBuf);

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// One measurement.
#[derive(Clone, Copy)]
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
    let programs = build(arguments)?;
    println!("{}", crate::lane::describe_machine()?);
    for mode in [Mode::Buffered, Mode::Direct] {
        let scratch =
            Scratch(workspace::target().join(format!("bench-nbd-{}", std::process::id())));
        std::fs::create_dir_all(&scratch.0)?;
        table(arguments, &programs, mode, &scratch.0)?;
    }
    println!("\n{}", crate::lane::describe_machine()?);
    Ok(())
}

fn build(arguments: &Arguments) -> Result<Programs, Failure> {
    let volume = server_program::build_unless(arguments.program.as_deref())?;
    let bare = ["build", "--quiet", "--profile", "dist", "-p", "nbd"];
    crate::process::run(workspace::cargo(bare).args(["--example", "bare_file"]))?;
    let also = arguments.also.as_ref().map(|file| file.canonicalize());
    Ok(Programs {
        bare: workspace::packaged("examples/bare_file"),
        volume,
        also: also.transpose()?,
    })
}

fn table(
    arguments: &Arguments,
    programs: &Programs,
    mode: Mode,
    dir: &Path,
) -> Result<(), Failure> {
    let image = dir.join("image");
    write_file(&image, arguments.mib)?;
    let servers = start_all(mode, dir, &image, (programs, arguments.mib))?;
    // The volume's bytes must be somewhere before they are read: in its log, as hot data is.
    for server in &servers {
        let filled = ["--rw=write", "--bs=1m", "--iodepth=8"];
        fio(server, &filled, arguments.mib)?;
    }
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
        let rw = format!("--rw={}", workload.pattern);
        let bs = format!("--bs={}", workload.block);
        let iodepth = format!("--iodepth={}", workload.depth);
        let runtime = format!("--runtime={}", arguments.seconds);
        let job = [
            rw.as_str(),
            &bs,
            &iodepth,
            "--time_based",
            &runtime,
            "--randseed=7",
        ];
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

/// A server of a volume with a directory of its own, and its socket.
fn serve_volume(program: &Path, mode: Mode, dir: &Path, mib: u64) -> Result<Command, Failure> {
    std::fs::create_dir_all(dir)?;
    let mut volume = Command::new(program);
    volume.args(["serve", "--rpo", "1h", "--log-size", "4GiB"]);
    volume.arg("--store").arg(dir.join("store"));
    volume.arg("--cache").arg(dir.join("cache"));
    volume.arg(format!("--api=unix:{}", dir.join("api.sock").display()));
    volume.arg(format!("--nbd=unix:{}", dir.join("nbd.sock").display()));
    volume.arg(format!("--volume=disk={mib}MiB"));
    volume.args(match mode {
        Mode::Direct => ["--log-io", "direct"],
        Mode::Buffered => ["--log-io", "buffered"],
    });
    Ok(volume)
}

fn start_all(
    mode: Mode,
    dir: &Path,
    image: &Path,
    (programs, mib): (&Programs, u64),
) -> Result<Vec<Server>, Failure> {
    let mut servers = Vec::new();
    let mut bare = Command::new(&programs.bare);
    bare.arg(image).arg(dir.join("bare.sock"));
    if mode == Mode::Direct {
        bare.arg("--direct");
    }
    servers.push(start("firn, bare file", bare, dir, "bare.sock", "file")?);
    let volumes = [
        ("firn, volume", Some(&programs.volume), "volume"),
        ("firn, volume, --also", programs.also.as_ref(), "also"),
    ];
    for (name, program, folder) in volumes {
        if let Some(program) = program {
            let dir = dir.join(folder);
            let volume = serve_volume(program, mode, &dir, mib)?;
            servers.push(start(name, volume, &dir, "nbd.sock", "disk")?);
        }
    }
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
fn fio(server: &Server, job: &[&str], mib: u64) -> Result<Sample, Failure> {
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
