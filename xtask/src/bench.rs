//! `cargo xtask bench`: builds a benchmark, runs it alone, and says where it ran.
//!
//! One benchmark at a time on a machine: a file lock in the target directory sees to it. Timing is
//! only as good as the machine is quiet; where valgrind is installed the instructions are counted
//! too, and those are the same on every run.

mod blkmq;
mod disk_load;
mod forks;
mod guard;
mod handoff;
mod measure;
mod moves;
mod nbd;
mod nbd_load;
mod rig;
mod stall;
mod store;
mod ublk;

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use crate::{Failure, figures};

/// Arguments of `cargo xtask bench`.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Also print each figure as a line of JSON, for programs
    #[arg(long, global = true)]
    figures: bool,
    #[command(subcommand)]
    what: Benchmark,
}

#[derive(clap::Subcommand)]
enum Benchmark {
    /// The multi-queue core: second look, admission and completion, quiesce
    Blkmq(blkmq::Arguments),
    /// Snapshots and forks: the calls, a thousand of them, the first requests (P8)
    Forks(forks::Arguments),
    /// The instructions of a request, from descriptor to answer, against the committed ones
    Guard(guard::Arguments),
    /// The longest stall of NBD clients in an upgrade of the server (P9)
    Handoff(handoff::Arguments),
    /// The messenger: what senders wait with the out-queue's own lock and without it
    Messenger {
        /// Three short rounds instead of seven
        #[arg(long)]
        quick: bool,
    },
    /// What a client sees of `firn move`, with a store at a distance (P25)
    Move(moves::Arguments),
    /// The NBD server against nbdkit and qemu-nbd (P7)
    Nbd(nbd::Arguments),
    /// A server with many volumes leaves, and the next serves them (P23, P24, NBD)
    Restart(handoff::restart::Arguments),
    /// Volumes on a real S3 server over a narrow, long line (P16 to P19, P21)
    Store(store::Arguments),
    /// The ublk example servers against the kernel tree's own, in a guest (P1, P14, P15)
    Ublk(ublk::Arguments),
    /// Volumes as disks: hot, cold and while evicting, in a guest (P2 to P6)
    Volume(ublk::volume::Arguments),
}

pub(crate) fn run(arguments: &Arguments) -> Result<(), Failure> {
    if arguments.figures {
        figures::want();
    }
    let inside = match &arguments.what {
        Benchmark::Ublk(arguments) => ublk::is_inside(arguments),
        Benchmark::Volume(arguments) => ublk::volume::is_inside(arguments),
        Benchmark::Forks(arguments) => forks::is_inside(arguments),
        Benchmark::Blkmq(_)
        | Benchmark::Guard(_)
        | Benchmark::Handoff(_)
        | Benchmark::Messenger { .. }
        | Benchmark::Move(_)
        | Benchmark::Nbd(_)
        | Benchmark::Restart(_)
        | Benchmark::Store(_) => false,
    };
    let _alone = (!inside).then(wait_for_turn).transpose()?;
    match &arguments.what {
        Benchmark::Blkmq(arguments) => blkmq::run(arguments),
        Benchmark::Forks(arguments) => forks::run(arguments),
        Benchmark::Guard(arguments) => guard::run(arguments),
        Benchmark::Handoff(arguments) => handoff::run(arguments),
        Benchmark::Messenger { quick } => messenger(*quick),
        Benchmark::Move(arguments) => moves::run(arguments),
        Benchmark::Nbd(arguments) => nbd::run(arguments),
        Benchmark::Restart(arguments) => handoff::restart::run(arguments),
        Benchmark::Store(arguments) => store::run(arguments),
        Benchmark::Ublk(arguments) => ublk::run(arguments),
        Benchmark::Volume(arguments) => ublk::volume::run(arguments),
    }
}

/// Holds the lock under which benchmarks run.
fn wait_for_turn() -> Result<File, Failure> {
    let path = Path::new("target/bench.lock");
    let cannot = |error| {
        format!(
            "cannot lock {}: {error}; run this in the repository",
            path.display()
        )
    };
    let lock = File::create(path).map_err(cannot)?;
    if lock.try_lock().is_err() {
        eprintln!("another benchmark is running; waiting for it");
        lock.lock().map_err(cannot)?;
    }
    Ok(lock)
}

fn messenger(quick: bool) -> Result<(), Failure> {
    let program = build("messenger", "messenger", &["--features", "meter"])?;
    println!("{}", crate::lane::describe_machine()?);
    let mut command = Command::new(&program);
    command
        .args(quick.then_some("--quick"))
        .args(figures::flag());
    if !command.status()?.success() {
        return Err("the benchmark failed".into());
    }
    Ok(())
}

/// Builds a benchmark with these further arguments and answers where its program is.
fn build(package: &str, bench: &str, arguments: &[&str]) -> Result<PathBuf, Failure> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = Command::new(cargo)
        .args([
            "bench", "--quiet", "-p", package, "--bench", bench, "--no-run",
        ])
        .args(arguments)
        .arg("--message-format=json-render-diagnostics")
        .stderr(Stdio::inherit())
        .output()?;
    if !output.status.success() {
        return Err(format!("the benchmark {bench} does not build").into());
    }
    String::from_utf8(output.stdout)?
        .lines()
        .filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok())
        .filter(|message| message["target"]["kind"][0] == "bench")
        .find_map(|message| message["executable"].as_str().map(PathBuf::from))
        .ok_or_else(|| format!("cargo did not say where the benchmark {bench} is").into())
}

/// How many instructions a case takes, the program's start included.
fn instructions(program: &Path, case: &str, count: u32) -> Result<u64, Failure> {
    let output = Command::new("valgrind")
        .args(["--tool=callgrind", "--callgrind-out-file=/dev/null"])
        .arg(program)
        .args(["--instructions", case, &count.to_string()])
        .output()?;
    collected(&output).ok_or_else(|| {
        let report = String::from_utf8_lossy(&output.stderr);
        format!("callgrind gave no count for \"{case}\":\n{report}").into()
    })
}

/// The instructions that a run below callgrind says it counted.
fn collected(output: &Output) -> Option<u64> {
    let report = String::from_utf8_lossy(&output.stderr);
    let line = report
        .lines()
        .find_map(|line| line.split_once("Collected :"));
    line?.1.trim().parse().ok()
}
