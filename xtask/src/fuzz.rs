//! `cargo xtask fuzz [TARGET…]`: builds the fuzz targets with coverage instrumentation and runs
//! them for a bounded time.
//!
//! The instrumentation is a pass of LLVM that the stable compiler has too, and libFuzzer comes as
//! source in `libfuzzer-sys`; so nothing but a C++ compiler is needed beyond the toolchain. What
//! is found stays in `target/fuzz/corpus` and makes the next run begin where this one ended; the
//! committed seeds in `fuzz/corpus` are only read.

use std::path::PathBuf;
use std::process::Command;

use crate::{Failure, process, workspace};

/// Where coverage is counted: what cargo-fuzz passes too.
const FLAGS: &str = "--cfg fuzzing -Ccodegen-units=1 -Cpasses=sancov-module \
    -Cllvm-args=-sanitizer-coverage-level=4 \
    -Cllvm-args=-sanitizer-coverage-inline-8bit-counters \
    -Cllvm-args=-sanitizer-coverage-pc-table \
    -Cllvm-args=-sanitizer-coverage-trace-compares";

/// With a target given, build scripts and procedural macros are not instrumented.
const TRIPLE: &str = "x86_64-unknown-linux-gnu";

/// Inputs have at most this many bytes: structures are small, and so every run is short.
const INPUT_BYTES_MAX: u32 = 4096;

/// An input that takes longer hangs.
const INPUT_SECONDS_MAX: u32 = 10;

/// Arguments of `cargo xtask fuzz`.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Fuzz these targets only (see --list)
    targets: Vec<String>,
    /// For so long each
    #[arg(long, default_value_t = 60)]
    seconds: u64,
    /// List the targets
    #[arg(long)]
    list: bool,
    /// Run these inputs once instead, to repeat a failure
    #[arg(long, value_name = "FILE")]
    input: Vec<PathBuf>,
    /// Write the committed seeds anew, from the encoders
    #[arg(long)]
    seeds: bool,
}

pub(crate) fn run(arguments: &Arguments) -> Result<(), Failure> {
    let all = targets()?;
    if arguments.list {
        all.iter().for_each(|target| println!("{target}"));
        return Ok(());
    }
    if let Some(unknown) = arguments.targets.iter().find(|name| !all.contains(name)) {
        return Err(format!("no fuzz target {unknown}; there are: {}", all.join(", ")).into());
    }
    if arguments.seeds {
        return write_seeds();
    }
    process::run(&mut build_command())?;
    let chosen = if arguments.targets.is_empty() {
        &all
    } else {
        &arguments.targets
    };
    for target in chosen {
        let mut command = match arguments.input.as_slice() {
            [] => command(target, arguments.seconds)?,
            inputs => {
                let mut command = bounded(target);
                command.args(inputs);
                command
            }
        };
        process::run(&mut command)?;
    }
    Ok(())
}

/// Every target, by the files that hold them.
pub(crate) fn targets() -> Result<Vec<String>, Failure> {
    let mut names = Vec::new();
    for file in std::fs::read_dir(workspace::root().join("fuzz/targets"))? {
        let path = file?.path();
        if let Some(name) = path.file_stem() {
            names.push(name.to_string_lossy().into_owned());
        }
    }
    names.sort();
    Ok(names)
}

/// The command that builds all targets.
pub(crate) fn build_command() -> Command {
    let mut cargo = workspace::cargo(["build", "--quiet", "--release", "--target", TRIPLE]);
    cargo.current_dir(workspace::root().join("fuzz"));
    workspace::build_apart(&mut cargo, "fuzz", FLAGS);
    cargo
}

/// The encoders themselves write the seeds, in a build that counts no coverage.
fn write_seeds() -> Result<(), Failure> {
    let mut cargo = workspace::cargo(["run", "--quiet", "--example", "seeds", "--"]);
    cargo
        .current_dir(workspace::root().join("fuzz"))
        .arg(seeds());
    workspace::build_apart(&mut cargo, "fuzz-seeds", "--cfg fuzzing");
    process::run(&mut cargo)
}

fn program(target: &str) -> PathBuf {
    workspace::target()
        .join("fuzz")
        .join(TRIPLE)
        .join("release")
        .join(target)
}

fn seeds() -> PathBuf {
    workspace::root().join("fuzz/corpus")
}

/// The command that fuzzes one target for `seconds`.
pub(crate) fn command(target: &str, seconds: u64) -> Result<Command, Failure> {
    let found = workspace::target().join("fuzz");
    let (corpus, findings) = (found.join("corpus").join(target), found.join("findings"));
    std::fs::create_dir_all(&corpus)?;
    std::fs::create_dir_all(&findings)?;
    let mut command = bounded(target);
    command
        .arg(format!("-max_total_time={seconds}"))
        .arg(format!("-max_len={INPUT_BYTES_MAX}"))
        .arg(format!("-artifact_prefix={}/{target}-", findings.display()))
        .args(["-rss_limit_mb=1024", "-print_final_stats=1", "-verbosity=0"])
        .args([corpus, seeds().join(target)]);
    Ok(command)
}

fn bounded(target: &str) -> Command {
    let mut command = Command::new(program(target));
    command
        .current_dir(workspace::root())
        .arg(format!("-timeout={INPUT_SECONDS_MAX}"));
    command
}
