//! Runs worlds: one seed, many for a time, the exhaustive modes, the canaries.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Parser;
use sim::batch::{self, Batch, Report};
use sim::exhaustive;
use sim::faults::SWITCHED_OFF;
use sim::panics;
use sim::world::{Outcome, Watch};

mod canaries;

/// Runs simulated worlds of the engine and judges what their clients saw.
#[derive(Debug, Parser)]
#[command(name = "sim")]
struct Args {
    /// Run this seed alone; with --seconds: begin with it.
    #[arg(long)]
    seed: Option<u64>,
    /// Run seeds for so many seconds.
    #[arg(long)]
    seconds: Option<u64>,
    /// At most so many seeds, so that a faster machine runs the same ones; with --protocol: of each fleet.
    #[arg(long)]
    seeds: Option<u64>,
    /// Threads; by default one per core.
    #[arg(long)]
    threads: Option<usize>,
    /// Print every event (with a single seed).
    #[arg(long)]
    trace: bool,
    /// Enumerate small workloads with a crash after every event, and short schedules.
    #[arg(long)]
    exhaustive: bool,
    /// Plant each known bug in turn; each must be caught. Needs a build with the feature `planted`.
    #[arg(long)]
    canaries: bool,
    /// Search the model of the store protocol: its worlds, each rule taken out, random walks.
    #[arg(long)]
    protocol: bool,
    /// With --protocol: only worlds and fleets whose name contains this; --trace prints their schedules.
    #[arg(long, requires = "protocol")]
    world: Option<String>,
    /// Judge by what clients see alone, without the engine's invariants.
    #[arg(long)]
    clients_only: bool,
    /// Do not fail when a kind of fault never took effect (for short runs).
    #[arg(long)]
    allow_unfired: bool,
}

fn main() -> ExitCode {
    let args = Args::parse();
    // A panic inside a world is caught, judged and reported with its seed.
    if args.seed.is_none() || args.seconds.is_some() {
        panics::quiet_panics();
    }
    let threads = args
        .threads
        .or_else(|| std::thread::available_parallelism().ok().map(usize::from))
        .unwrap_or(1);
    let time = Duration::from_secs(args.seconds.unwrap_or(60));
    let good = if args.protocol {
        sim::protocol::run(&sim::protocol::Options {
            time,
            threads,
            seed: args.seed.unwrap_or(1),
            walks: args.seeds.unwrap_or(u64::MAX),
            world: args.world,
            trace: args.trace,
        })
    } else if args.canaries {
        run_canaries(time, threads, args.exhaustive)
    } else if args.exhaustive {
        run_exhaustive(time, threads)
    } else {
        match args.seed {
            Some(seed) if args.seconds.is_none() && args.seeds.is_none() => {
                run_twice(seed, args.trace)
            }
            seed => {
                let batch = Batch {
                    first: seed.unwrap_or(1),
                    time,
                    most: args.seeds.unwrap_or(u64::MAX),
                    threads,
                    clients_only: args.clients_only,
                };
                many(batch, args.allow_unfired)
            }
        }
    };
    if good {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

fn run_canaries(time: Duration, threads: usize, exhaustively: bool) -> bool {
    if !cfg!(feature = "planted") {
        println!("this build has no canaries: use `cargo xtask sim --canaries`");
        return false;
    }
    if exhaustively {
        canaries::exhaustively(time / 24, threads);
        return true;
    }
    canaries::run(time, threads)
}

/// Both exhaustive modes; most of the time is the crashes', and what they leave is added to the
/// schedules' share.
fn run_exhaustive(time: Duration, threads: usize) -> bool {
    let begun = Instant::now();
    let crashes = exhaustive::crashes(3, time * 2 / 3, threads, || {});
    let after = begun.elapsed();
    let first = print_exhaustive("crashes: up to 3 operations", &crashes, after);
    let left = time.saturating_sub(after);
    let schedules = exhaustive::schedules(2, left, threads, || {});
    let took = begun.elapsed() - after;
    let second = print_exhaustive("schedules: up to 2 events put off", &schedules, took);
    first && second
}

fn print_exhaustive(what: &str, report: &exhaustive::Report, took: Duration) -> bool {
    println!(
        "{what}: {} cases, {} worlds in {:.0} s; {} cases left when the time was up",
        report.cases,
        report.worlds,
        took.as_secs_f64(),
        report.left
    );
    if let Some((case, violation)) = &report.failure {
        println!("FAILED {case}\n  {violation}");
    }
    report.failure.is_none()
}

/// One seed, twice: the digests must agree.
fn run_twice(seed: u64, trace: bool) -> bool {
    if trace {
        eprintln!("{:#?}", sim::profile::Profile::draw(seed));
    }
    let outcome = batch::run_seed(
        seed,
        Watch {
            print: trace,
            keep: 40,
            clients_only: false,
        },
    );
    let again = batch::run_seed(seed, Watch::default());
    println!(
        "seed {seed}: digest {:016x}, {} events, {:.1} virtual seconds, {} requests answered \
         ({} with an error), {} recovered images judged",
        outcome.digest,
        outcome.events,
        outcome.virtual_ns as f64 / 1e9,
        outcome.answered,
        outcome.errors,
        outcome.settled,
    );
    print!("{}", outcome.faults);
    if outcome.digest != again.digest {
        println!(
            "NOT DETERMINISTIC: the second run's digest is {:016x}",
            again.digest
        );
        return false;
    }
    if outcome.violation.is_some() {
        report_failure(&outcome);
    }
    outcome.violation.is_none()
}

fn many(batch: Batch, allow_unfired: bool) -> bool {
    let begun = Instant::now();
    let report = batch::run(batch, || {});
    print_report(&report, begun.elapsed());
    if let Some(outcome) = report.failures.first() {
        report_failure(outcome);
        return false;
    }
    for fault in SWITCHED_OFF {
        println!("switched off: {}", fault.name());
    }
    let missing = report.faults.missing();
    if !missing.is_empty() {
        let names: Vec<_> = missing.iter().map(|fault| fault.name()).collect();
        println!("faults that never took effect: {}", names.join(", "));
    }
    missing.is_empty() || allow_unfired
}

fn print_report(report: &Report, elapsed: Duration) {
    let seconds = elapsed.as_secs_f64();
    println!(
        "{} seeds in {seconds:.0} s ({:.1}/s), {} of them twice with equal digests; {} events, \
         {} requests answered, {} recovered images judged, {:.1} virtual hours, \
         {:.0} ms the longest FLUSH; faults:",
        report.seeds,
        report.seeds as f64 / seconds,
        report.repeated,
        report.events,
        report.answered,
        report.settled,
        report.virtual_ns as f64 / 3.6e12,
        report.flush_ns as f64 / 1e6,
    );
    print!("{}", report.faults);
}

fn report_failure(outcome: &Outcome) {
    let Some(violation) = &outcome.violation else {
        return;
    };
    println!("\nFAILED seed {}: {violation}", outcome.seed);
    for line in &outcome.tail {
        println!("    {line}");
    }
    println!(
        "repeat with: cargo xtask sim --seed {} --trace",
        outcome.seed
    );
}
