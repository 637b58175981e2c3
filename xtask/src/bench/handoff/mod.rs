//! `cargo xtask bench handoff`: the longest stall of an NBD client in a `firn upgrade` (P9).
//!
//! One server, some busy clients and many light ones, all verifying what they read. Periods with an upgrade and
//! without one take turns; what a round says is how much longer its longest request was with one. The server says
//! itself how long each step of the pause took.

pub(super) mod restart;
mod server;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use self::server::Place;
use super::stall::{Client, Notes};
use crate::{Failure, server_program, workspace};

/// Arguments of `cargo xtask bench handoff`.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Rounds: a period without an upgrade, and one with
    #[arg(long, default_value_t = 15)]
    rounds: usize,
    /// Clients with 32 requests under way
    #[arg(long, default_value_t = 4)]
    busy: usize,
    /// Clients with one request under way and pauses
    #[arg(long, default_value_t = 60)]
    light: usize,
    /// Volumes that are open, and that no client uses
    #[arg(long, default_value_t = 0)]
    idle: usize,
    /// Requests that each busy client has under way
    #[arg(long, default_value_t = 32)]
    depth: usize,
    /// Milliseconds of a period
    #[arg(long, default_value_t = 1500)]
    period: u64,
    /// Size of the server's log in MiB
    #[arg(long, default_value_t = 1024)]
    log_mib: u64,
    /// Measure this server instead of the one built here
    #[arg(long)]
    program: Option<PathBuf>,
    /// Print each round
    #[arg(long)]
    verbose: bool,
}

/// How long a light client waits after an answer.
const LIGHT_PAUSE: Duration = Duration::from_millis(20);

struct Round {
    without: Duration,
    with: Duration,
}

impl Round {
    fn beyond_ms(&self) -> f64 {
        (self.with.as_secs_f64() - self.without.as_secs_f64()) * 1e3
    }
}

pub(super) fn run(arguments: &Arguments) -> Result<(), Failure> {
    let program = server_program::build_unless(arguments.program.as_deref())?;
    println!("{}", crate::lane::describe_machine()?);
    let dir = tempfile::tempdir_in(workspace::target())?;
    let rings = tempfile::tempdir_in("/dev/shm")?;
    let clients = clients(arguments);
    let place = Place {
        dir: dir.path(),
        rings: rings.path(),
        log_mib: arguments.log_mib,
    };
    let server = place.start(&program, &volumes(arguments, &clients))?;
    place.wait_until_it_answers(&program)?;
    let notes = Notes::new(2 * arguments.rounds.max(1));
    let socket = dir.path().join("nbd.sock");
    let measured = thread::scope(|scope| {
        let (notes, socket) = (&notes, &socket);
        let threads = clients.iter();
        let threads: Vec<_> = threads
            .map(|client| scope.spawn(move || client.run(socket, notes).map_err(|e| e.to_string())))
            .collect();
        let is_done = || threads.iter().any(|one| one.is_finished());
        let measured = measure(arguments, &program, dir.path(), (notes, &is_done));
        notes.stop();
        for client in threads {
            client.join().map_err(|_| "a client panicked")??;
        }
        measured
    })?;
    drop(server);
    report(arguments, &measured, &notes, dir.path())?;
    println!("\n{}", crate::lane::describe_machine()?);
    Ok(())
}

fn clients(arguments: &Arguments) -> Vec<Client> {
    let busy = (0..arguments.busy).map(|at| Client {
        export: format!("busy-{at}"),
        depth: arguments.depth,
        pause: Duration::ZERO,
    });
    let light = (0..arguments.light).map(|at| Client {
        export: format!("light-{at}"),
        depth: 1,
        pause: LIGHT_PAUSE,
    });
    busy.chain(light).collect()
}

/// Volumes, by name, and how many MiB each has.
fn volumes(arguments: &Arguments, clients: &[Client]) -> Vec<(String, u64)> {
    let used = clients
        .iter()
        .map(|client| (client.export.clone(), client.bytes().div_ceil(1 << 20)));
    let idle = (0..arguments.idle).map(|at| (format!("idle-{at}"), 8));
    used.chain(idle).collect()
}

fn measure(
    arguments: &Arguments,
    program: &Path,
    dir: &Path,
    (notes, is_done): (&Notes, &dyn Fn() -> bool),
) -> Result<Vec<Round>, Failure> {
    let period = Duration::from_millis(arguments.period);
    thread::sleep(period);
    let mut rounds = Vec::new();
    for at in 0..arguments.rounds.max(1) {
        notes.begin(2 * at);
        thread::sleep(period);
        notes.begin(2 * at + 1);
        let until = Instant::now() + period;
        let mut upgrade = Command::new(program);
        upgrade.args(["--api", &server::api(dir), "upgrade"]);
        let output = upgrade.output()?;
        if !output.status.success() || is_done() {
            let said = String::from_utf8_lossy(&output.stderr);
            let log = std::fs::read_to_string(dir.join("log.txt"))?;
            return Err(format!("upgrade {at}: {said}\n{log}").into());
        }
        thread::sleep(until - Instant::now().min(until));
        let round = Round {
            without: notes.longest(2 * at),
            with: notes.longest(2 * at + 1),
        };
        if arguments.verbose {
            let (without, with) = (round.without.as_secs_f64(), round.with.as_secs_f64());
            println!(
                "round {at}: {:.1} ms without, {:.1} ms with",
                without * 1e3,
                with * 1e3
            );
        }
        rounds.push(round);
    }
    Ok(rounds)
}

fn report(
    arguments: &Arguments,
    rounds: &[Round],
    notes: &Notes,
    dir: &Path,
) -> Result<(), Failure> {
    println!(
        "\n{} busy clients at QD{}, {} light ones, {} idle volumes, {} upgrades, {} requests verified\n",
        arguments.busy,
        arguments.depth,
        arguments.light,
        arguments.idle,
        rounds.len(),
        notes.requests()
    );
    let ms = |time: Duration| time.as_secs_f64() * 1e3;
    let without = rounds.iter().map(|round| ms(round.without)).collect();
    let with = rounds.iter().map(|round| ms(round.with)).collect();
    let beyond = rounds.iter().map(Round::beyond_ms).collect();
    let columns: [(&str, Vec<f64>); 3] = [
        ("without an upgrade", without),
        ("with one", with),
        ("beyond", beyond),
    ];
    println!("| longest request, ms | least | median | most |\n|---|---:|---:|---:|");
    for (name, times) in columns {
        let [least, middle, most] = spread(times);
        println!("| {name} | {least:.1} | {middle:.1} | {most:.1} |");
    }
    println!("\n| step of the pause, ms | least | median | most |\n|---|---:|---:|---:|");
    let log = std::fs::read_to_string(dir.join("log.txt"))?;
    for (name, times) in steps(&log) {
        let [least, middle, most] = spread(times);
        println!("| {name} | {least:.1} | {middle:.1} | {most:.1} |");
    }
    Ok(())
}

/// The least, the middle one and the most.
pub(super) fn spread(mut values: Vec<f64>) -> [f64; 3] {
    values.sort_by(f64::total_cmp);
    let middle = values.get(values.len() / 2).copied().unwrap_or(f64::NAN);
    let ends = (values.first().copied(), values.last().copied());
    [
        ends.0.unwrap_or(f64::NAN),
        middle,
        ends.1.unwrap_or(f64::NAN),
    ]
}

/// What the server says of each upgrade: `steps="NAME MILLISECONDS, …"`, in their order.
pub(super) fn steps(log: &str) -> Vec<(String, Vec<f64>)> {
    let mut order = Vec::new();
    let mut times: BTreeMap<String, Vec<f64>> = BTreeMap::new();
    for line in log.lines() {
        let Some((_, said)) = line.split_once("steps=\"") else {
            continue;
        };
        let said = said.split('"').next().unwrap_or_default();
        for (name, time) in said.split(", ").filter_map(|step| step.rsplit_once(' ')) {
            if !order.iter().any(|one| one == name) {
                order.push(name.to_owned());
            }
            let time = time.parse().unwrap_or(f64::NAN);
            times.entry(name.to_owned()).or_default().push(time);
        }
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
    fn the_steps_of_several_upgrades_are_told_apart_in_their_order() {
        let log = "x took over steps=\"rest 1.5, stop 2.0\" pause=3\nother\n\
                   x took over steps=\"rest 2.5, stop 4.0\" pause=6\n";
        let expected = [("rest", vec![1.5, 2.5]), ("stop", vec![2.0, 4.0])];
        let expected = expected.map(|(name, times)| (name.to_owned(), times));
        assert_eq!(steps(log), expected);
        assert_eq!(spread(vec![3.0, 1.0, 2.0]), [1.0, 2.0, 3.0]);
    }
}
