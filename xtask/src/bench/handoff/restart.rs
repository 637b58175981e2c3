//! `cargo xtask bench restart`: a server with many volumes leaves, by SIGTERM or SIGKILL, and the next one is executed at
//! once. How long the first takes to end, and the next until it serves its first volume and all of them, over NBD.
//!
//! Each volume has a block that says its number; *served* is that a new connection reads it. Some volumes have more to
//! recover: random blocks of 4 KiB that only the log has.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use super::server::{Place, Server};
use super::spread;
use crate::bench::nbd_load::{Connection, Load, LoadEnd};
use crate::bench::stall;
use crate::{Failure, server_program, workspace};

/// Arguments of `cargo xtask bench restart`.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Volumes of the server
    #[arg(long, default_value_t = 1024)]
    volumes: usize,
    /// Of these, volumes with writes that only the log has
    #[arg(long, default_value_t = 16)]
    written: usize,
    /// MiB of random blocks of 4 KiB that are written to these volumes together before each end
    #[arg(long, default_value_t = 64)]
    written_mib: u64,
    /// Times by each signal
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Size of the server's log in MiB
    #[arg(long, default_value_t = 1024)]
    log_mib: u64,
    /// Measure this server instead of the one built here
    #[arg(long)]
    program: Option<PathBuf>,
}

/// MiB of each volume.
const VOLUME_MIB: u64 = 64;

/// How long a server may take to end, and its successor until it serves.
const TIMEOUT: Duration = Duration::from_secs(300);

/// How soon a volume that is not served yet is asked for again.
const RETRY_INTERVAL: Duration = Duration::from_millis(1);

/// What one restart took.
struct Restart {
    ended: Duration,
    first: Duration,
    all: Duration,
}

pub(crate) fn run(arguments: &Arguments) -> Result<(), Failure> {
    let program = server_program::build_unless(arguments.program.as_deref())?;
    println!("{}", crate::lane::describe_machine()?);
    let dir = tempfile::tempdir_in(workspace::target())?;
    let rings = tempfile::tempdir_in("/dev/shm")?;
    let place = Place {
        dir: dir.path(),
        rings: rings.path(),
        log_mib: arguments.log_mib,
    };
    let volumes: Vec<(String, u64)> = (0..arguments.volumes.max(1))
        .map(|at| (format!("volume-{at}"), VOLUME_MIB))
        .collect();
    let mut server = place.start(&program, &volumes)?;
    place.wait_until_it_answers(&program)?;
    for (at, (name, _)) in volumes.iter().enumerate() {
        stall::mark(&place.socket(), name, (at as u64, false))?;
    }
    println!(
        "\n{} volumes, {} of them with {} MiB in blocks of 4 KiB that only the log has, {} rounds\n",
        volumes.len(),
        arguments.written,
        arguments.written_mib,
        arguments.rounds
    );
    println!(
        "| | ended, ms: median | most | first served after | most | all served after | most |\n\
         |---|---:|---:|---:|---:|---:|---:|"
    );
    for (name, signal) in [("SIGTERM", Signal::TERM), ("SIGKILL", Signal::KILL)] {
        let mut restarts = Vec::new();
        for _ in 0..arguments.rounds.max(1) {
            write(arguments, &place, &volumes)?;
            let ended = end(&mut server, signal)?;
            let started = Instant::now();
            server = place.start(&program, &volumes)?;
            let (first, all) = wait_until_all_are_served(&place, &volumes, started)?;
            restarts.push(Restart { ended, first, all });
        }
        let column = |of: fn(&Restart) -> Duration| {
            let times = restarts.iter().map(|one| of(one).as_secs_f64() * 1e3);
            let [_, middle, most] = spread(times.collect());
            format!("{middle:.0} | {most:.0}")
        };
        println!(
            "| {name} | {} | {} | {} |",
            column(|one| one.ended),
            column(|one| one.first),
            column(|one| one.all)
        );
    }
    println!("\n{}", crate::lane::describe_machine()?);
    Ok(())
}

/// Writes blocks at random, and what they may have overwritten: the number.
fn write(
    arguments: &Arguments,
    place: &Place<'_>,
    volumes: &[(String, u64)],
) -> Result<(), Failure> {
    let written = volumes.iter().enumerate().take(arguments.written);
    let each = (arguments.written_mib << 20) / arguments.written.max(1) as u64;
    for (at, (name, mib)) in written {
        let load = Load {
            writes: true,
            random: true,
            block: 4096,
            depth: 32,
            span: mib << 20,
        };
        Connection::open(&place.socket(), name)?.run(load, LoadEnd::Bytes(each))?;
        stall::mark(&place.socket(), name, (at as u64, false))?;
    }
    Ok(())
}

/// Sends a signal, and waits until the server has ended.
fn end(server: &mut Server, signal: Signal) -> Result<Duration, Failure> {
    let begun = Instant::now();
    let pid = Pid::from_raw(server.0.id().cast_signed()).ok_or("a server without a number")?;
    kill_process(pid, signal)?;
    while server.0.try_wait()?.is_none() {
        if begun.elapsed() > TIMEOUT {
            return Err("the server does not end".into());
        }
        std::thread::sleep(RETRY_INTERVAL);
    }
    Ok(begun.elapsed())
}

/// How long after `started` the first volume is served that has something to recover, and when all are.
fn wait_until_all_are_served(
    place: &Place<'_>,
    volumes: &[(String, u64)],
    started: Instant,
) -> Result<(Duration, Duration), Failure> {
    let mut first = None;
    for (at, (name, _)) in volumes.iter().enumerate() {
        while let Err(error) = stall::mark(&place.socket(), name, (at as u64, true)) {
            if started.elapsed() > TIMEOUT {
                return Err(format!("{name} is not served: {error}").into());
            }
            std::thread::sleep(RETRY_INTERVAL);
        }
        first.get_or_insert_with(|| started.elapsed());
    }
    Ok((first.unwrap_or_default(), started.elapsed()))
}
