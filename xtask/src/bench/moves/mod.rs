//! `cargo xtask bench move`: what a client that follows its volume sees of `firn move` (P25).
//!
//! Two servers on one store behind a delay; the volume is in use. Each round has a second server of its own, whose cache
//! is empty, so rounds with a warm-up and without one can take turns. The stall is from the last request that the first
//! server answered until the first that the second did.

mod client;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use self::client::{BLOCK_BYTES, Client, Sample, Shared};
use super::handoff::spread;
use super::nbd_load::{Load, LoadEnd};
use super::rig::{FirnServer, Programs, StoreRig};
use crate::{Failure, figures, minio, server_program};

/// Arguments of `cargo xtask bench move`.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Moves with a warm-up, and as many without
    #[arg(long, default_value_t = 7)]
    rounds: usize,
    /// What every answer of the store takes longer, in milliseconds
    #[arg(long, default_value_t = 30)]
    latency: u64,
    /// Connections of the client, each with one request under way
    #[arg(long, default_value_t = 4)]
    connections: u64,
    /// Microseconds between an answer and the next request of its connection
    #[arg(long, default_value_t = 1000)]
    pause: u64,
    /// Of a hundred requests, how many read
    #[arg(long, default_value_t = 70)]
    reads: u32,
    /// MiB of the working set
    #[arg(long, default_value_t = 64)]
    working_set: u64,
    /// Seconds in use before a move
    #[arg(long, default_value_t = 3)]
    before: u64,
    /// The program has no warm-up: all moves are without one
    #[arg(long)]
    no_warm_up: bool,
    /// Measure this server instead of the one built here
    #[arg(long)]
    program: Option<PathBuf>,
    /// Print each round
    #[arg(long)]
    verbose: bool,
}

const VOLUME: &str = "demo";
const VOLUME_MIB: u64 = 1024;

/// Of each server, in MiB: less than a working set, so that reads come from the cache.
const LOG_MIB: u64 = 64;

/// After a move: reads of the first second, and of those up to the end.
const FIRST: Duration = Duration::from_secs(1);
const AFTER: Duration = Duration::from_secs(5);

/// What one move was like.
struct Round {
    is_warm: bool,
    stall: Duration,
    /// The whole command.
    took: Duration,
    /// What the command says of its steps, in their order.
    steps: Vec<(String, f64)>,
    /// Times of reads, before the move, in the first second after it and in the rest.
    reads: [Vec<Duration>; 3],
}

pub(super) fn run(arguments: &Arguments) -> Result<(), Failure> {
    let programs = Programs {
        firn: server_program::build_unless(arguments.program.as_deref())?,
        plain: PathBuf::new(),
        minio: minio::build()?,
    };
    println!("{}", crate::lane::describe_machine()?);
    let rig = StoreRig::new(&programs, false)?;
    rig.slow_down(0, Duration::from_millis(arguments.latency));
    let shared = Shared::default();
    let rounds = thread::scope(|scope| {
        let shared = &shared;
        let clients: Vec<_> = (0..arguments.connections)
            .map(|at| client(arguments, at))
            .map(|client| scope.spawn(move || client.run(shared).map_err(|e| e.to_string())))
            .collect();
        let is_done = || clients.iter().any(|one| one.is_finished());
        let measured = measure(arguments, &rig, shared, &is_done);
        shared.stop();
        for client in clients {
            client.join().map_err(|_| "a client panicked")??;
        }
        measured
    })?;
    report(arguments, &rounds);
    println!("\n{}", crate::lane::describe_machine()?);
    Ok(())
}

fn client(arguments: &Arguments, at: u64) -> Client {
    let blocks = (arguments.working_set << 20) / BLOCK_BYTES as u64;
    Client {
        export: VOLUME,
        at,
        of: arguments.connections,
        blocks,
        stride: ((VOLUME_MIB << 20) / BLOCK_BYTES as u64 / blocks).max(1),
        reads: arguments.reads,
        pause: Duration::from_micros(arguments.pause),
    }
}

fn measure(
    arguments: &Arguments,
    rig: &StoreRig,
    shared: &Shared,
    is_done: &dyn Fn() -> bool,
) -> Result<Vec<Round>, Failure> {
    let mut from = serve(rig, 0, &[format!("--volume={VOLUME}={VOLUME_MIB}MiB")])?;
    let mut number = shared.add_server(from.socket.clone());
    let mut rounds = Vec::new();
    let modes: &[bool] = match arguments.no_warm_up {
        true => &[false],
        false => &[true, false],
    };
    let modes = modes.iter().cycle();
    let count = arguments.rounds.max(1) * if arguments.no_warm_up { 1 } else { 2 };
    for (at, is_warm) in modes.take(count).enumerate() {
        let to = serve(rig, at + 1, &[])?;
        fill_cache(&from)?;
        shared.take_samples();
        thread::sleep(Duration::from_secs(arguments.before));
        let next = shared.add_server(to.socket.clone());
        let began = Instant::now();
        let said = command(arguments, (&from, &to), *is_warm)?;
        let took = began.elapsed();
        thread::sleep(AFTER);
        if is_done() {
            return Err("a client has ended".into());
        }
        let round = round_of(
            &shared.take_samples(),
            (number, next),
            *is_warm,
            took,
            &said,
        )?;
        if arguments.verbose {
            println!(
                "round {at}, warm-up {is_warm}: stall {:.1} ms, {:?}",
                ms(round.stall),
                round.steps
            );
        }
        rounds.push(round);
        from.stop()?;
        (from, number) = (to, next);
    }
    Ok(rounds)
}

fn serve<'a>(rig: &'a StoreRig, at: usize, more: &[String]) -> Result<FirnServer<'a>, Failure> {
    let mut flags = vec![
        format!("--log-size={LOG_MIB}MiB"),
        "--cache-size=1GiB".to_owned(),
        "--rpo=5s".to_owned(),
    ];
    flags.extend_from_slice(more);
    rig.serve(&format!("server-{at}"), &flags)
}

/// Reads the whole volume once.
fn fill_cache(server: &FirnServer<'_>) -> Result<(), Failure> {
    let load = Load {
        writes: false,
        random: false,
        block: 128 << 10,
        depth: 8,
        span: VOLUME_MIB << 20,
    };
    let all = LoadEnd::Bytes(VOLUME_MIB << 20);
    server.connect(VOLUME)?.run(load, all).map(drop)
}

/// Runs `firn move`, and returns what it says in JSON.
fn command(
    arguments: &Arguments,
    (from, to): (&FirnServer<'_>, &FirnServer<'_>),
    is_warm: bool,
) -> Result<Value, Failure> {
    let mut command: Command =
        from.command(&["move", VOLUME, "--to", &to.api, "--force", "--json"]);
    if !is_warm && !arguments.no_warm_up {
        command.arg("--no-warm-up");
    }
    let output = command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .output()?;
    if !output.status.success() {
        return Err(format!("firn move: {}", String::from_utf8_lossy(&output.stderr)).into());
    }
    Ok(serde_json::from_slice(&output.stdout)?)
}

fn round_of(
    samples: &[Sample],
    (from, to): (usize, usize),
    is_warm: bool,
    took: Duration,
    said: &Value,
) -> Result<Round, Failure> {
    let of = |server| samples.iter().filter(move |one| one.server == server);
    let last = of(from).map(|one| one.answered).max();
    let first = of(to).map(|one| one.answered).min();
    let (last, first) = last.zip(first).ok_or("a server answered nothing")?;
    let reads = |server, is_wanted: &dyn Fn(&Sample) -> bool| {
        let reads = of(server).filter(|one| one.is_read && is_wanted(one));
        reads.map(|one| one.took).collect::<Vec<_>>()
    };
    // A read that was sent before the move waited for it, and not for its block.
    let sent = |one: &Sample| one.answered - one.took;
    let is_first = |one: &Sample| sent(one) < first + FIRST;
    let steps = said["steps"].as_array().into_iter().flatten();
    Ok(Round {
        is_warm,
        stall: first.saturating_duration_since(last),
        took,
        steps: steps
            .map(|step| {
                let name = step["step"].as_str().unwrap_or_default().to_owned();
                (name, step["seconds"].as_f64().unwrap_or(f64::NAN) * 1e3)
            })
            .collect(),
        reads: [
            reads(from, &|_| true),
            reads(to, &|one| sent(one) >= first && is_first(one)),
            reads(to, &|one| !is_first(one)),
        ],
    })
}

fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

fn report(arguments: &Arguments, rounds: &[Round]) {
    println!(
        "\nstore at {} ms, working set {} MiB, {} connections, {} % reads, {} moves\n",
        arguments.latency,
        arguments.working_set,
        arguments.connections,
        arguments.reads,
        rounds.len()
    );
    let modes = [(true, "with warm-up"), (false, "without")];
    let of = |is_warm| rounds.iter().filter(move |round| round.is_warm == is_warm);
    let modes = modes
        .into_iter()
        .filter(|(is_warm, _)| of(*is_warm).next().is_some());
    let modes: Vec<_> = modes.collect();
    println!("| ms | least | median | most |\n|---|---:|---:|---:|");
    for (is_warm, name) in &modes {
        put(
            &format!("stall, {name}"),
            of(*is_warm).map(|round| ms(round.stall)).collect(),
        );
        put(
            &format!("whole command, {name}"),
            of(*is_warm).map(|round| ms(round.took)).collect(),
        );
    }
    println!("\n| step, ms | least | median | most |\n|---|---:|---:|---:|");
    for (is_warm, mode) in &modes {
        for (name, times) in steps(of(*is_warm)) {
            put(&format!("{name}, {mode}"), times);
        }
    }
    println!(
        "\n| reads of 4 KiB, ms | number | median | p99 | longest |\n|---|---:|---:|---:|---:|"
    );
    for (is_warm, mode) in &modes {
        for (at, when) in [
            "before the move",
            "in the first second after it",
            "up to 5 s after it",
        ]
        .into_iter()
        .enumerate()
        {
            let mut times: Vec<Duration> = of(*is_warm)
                .flat_map(|round| round.reads[at].clone())
                .collect();
            times.sort_unstable();
            let share = |share: f64| {
                let nth = (times.len() as f64 * share) as usize;
                let last = times.len().saturating_sub(1);
                ms(times.get(nth.min(last)).copied().unwrap_or_default())
            };
            let (median, p99, longest) = (share(0.5), share(0.99), share(1.0));
            println!(
                "| {when}, {mode} | {} | {median:.2} | {p99:.2} | {longest:.1} |",
                times.len()
            );
            let row = json!({"when": when, "mode": mode, "median": median, "p99": p99, "longest": longest});
            figures::put("move-reads", &row);
        }
    }
}

fn put(name: &str, times: Vec<f64>) {
    let [least, median, most] = spread(times);
    println!("| {name} | {least:.1} | {median:.1} | {most:.1} |");
    let row = json!({"what": name, "least": least, "median": median, "most": most});
    figures::put("move", &row);
}

/// The times of each step, in the order of the steps.
fn steps<'a>(rounds: impl Iterator<Item = &'a Round>) -> Vec<(String, Vec<f64>)> {
    let (mut order, mut times) = (Vec::new(), BTreeMap::<String, Vec<f64>>::new());
    for (name, time) in rounds.flat_map(|round| &round.steps) {
        if !times.contains_key(name) {
            order.push(name.clone());
        }
        times.entry(name.clone()).or_default().push(*time);
    }
    let step = |name: String| {
        let found = times.remove(&name).unwrap_or_default();
        (name, found)
    };
    order.into_iter().map(step).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_stall_is_between_the_last_answer_there_and_the_first_here() {
        let began = Instant::now();
        let sample = |at, took, server| Sample {
            answered: began + Duration::from_millis(at),
            took: Duration::from_millis(took),
            is_read: true,
            server,
        };
        let samples = [
            sample(10, 1, 0),
            sample(20, 1, 0),
            sample(120, 100, 1),
            sample(130, 5, 1),
            sample(2000, 7, 1),
        ];
        let said = json!({"steps": [{"step": "drain", "seconds": 0.5}]});
        let took = Duration::from_secs(1);
        let round = round_of(&samples, (0, 1), true, took, &said).unwrap();
        assert_eq!(round.stall, Duration::from_millis(100));
        assert_eq!(round.steps, [("drain".to_owned(), 500.0)]);
        let ms = |times: &[Duration]| times.iter().map(Duration::as_millis).collect::<Vec<_>>();
        assert_eq!(
            round.reads.each_ref().map(|times| ms(times)),
            [vec![1, 1], vec![5], vec![7]]
        );
    }
}
