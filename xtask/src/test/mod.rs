//! `cargo xtask test`: everything that is tested, in order of cost, with a summary at the end.
//!
//! Each step says what it runs, streams what matters and keeps everything in
//! `target/xtask/STEP.log`. What needs no lock of cargo's runs in lanes beside the steps in front: test
//! programs, guests, builds of their own. A failing step does not stop the others: one run tells all. The last
//! line is always `N passed, N failed, N skipped`.

mod aarch64;
mod background;
mod count;
mod guest;
mod packages;
mod programs;
mod runner;
mod step;
mod steps;

use std::time::{Duration, Instant};

use crate::Failure;
use background::Background;
use count::Counts;
pub(crate) use guest::{TableFilter, memory_arguments};
pub(crate) use programs::{TestProgram, build_programs};
use runner::Outcome;
use step::{Kind, Lane, Step};

/// Arguments of `cargo xtask test`.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Only these steps (see --list); a name stands for all steps that begin with it
    steps: Vec<String>,
    /// The inner loop: what takes seconds once everything is compiled
    #[arg(long)]
    quick: bool,
    /// Print the steps and what each runs
    #[arg(long)]
    list: bool,
    /// Print everything that the steps print
    #[arg(long, short)]
    verbose: bool,
    /// Multiply the time of simulation and fuzzing and the rounds of kill -9
    #[arg(long, default_value_t = 1, value_name = "N")]
    times: u64,
}

/// `cargo xtask vm --all`: every guest test in every variant, on every kernel, or what is wanted of that.
pub(crate) fn whole_table(wanted: TableFilter) -> Result<(), Failure> {
    run_steps(&[guest::whole_table(wanted)?], 1, false)
}

/// How a step went.
struct StepReport {
    name: &'static str,
    counts: Counts,
    wall: Duration,
    /// Of its commands.
    cpu: Duration,
}

impl StepReport {
    /// Judges a step that has ended, and says how it went.
    fn new(step: &Step, outcome: Outcome, wall: Duration, ci: bool) -> StepReport {
        let Outcome { mut counts, cpu } = outcome;
        if ci {
            counts.skips_that_fail();
        }
        println!("== {}: {counts} in {}", step.name, seconds(wall));
        StepReport {
            name: step.name,
            counts,
            wall,
            cpu,
        }
    }
}

pub(crate) fn run(arguments: &Arguments) -> Result<(), Failure> {
    let steps = select_steps(arguments)?;
    if arguments.list {
        for step in &steps {
            println!("{:16} {}", step.name, step.what);
        }
        return Ok(());
    }
    run_steps(&steps, arguments.times, arguments.verbose)
}

fn run_steps(steps: &[Step], times: u64, verbose: bool) -> Result<(), Failure> {
    let ci = std::env::var("CI").as_deref() == Ok("true");
    let begun = Instant::now();
    let mut reports = std::thread::scope(|scope| {
        let background = Background::new(scope, verbose, ci);
        let mut reports = Vec::new();
        for step in steps {
            println!("\n== {}: {}", step.name, step.what);
            let begun = Instant::now();
            let outcome = match (step.run)(times) {
                Kind::Inside(counts) => Outcome {
                    counts,
                    ..Outcome::default()
                },
                Kind::Commands(commands) if step.lane != Lane::Front => {
                    background.start(step, commands);
                    continue;
                }
                Kind::Commands(commands) => runner::run(step, commands, verbose, ci)?,
            };
            reports.push(StepReport::new(step, outcome, begun.elapsed(), ci));
        }
        reports.extend(background.finish()?);
        Ok::<_, Failure>(reports)
    })?;
    reports.sort_by_key(|report| steps.iter().position(|step| step.name == report.name));
    summary(&reports, begun.elapsed())
}

/// The steps that were asked for.
fn select_steps(arguments: &Arguments) -> Result<Vec<Step>, Failure> {
    let mut all = steps::all();
    for wanted in &arguments.steps {
        if !all
            .iter()
            .any(|step| step.name.starts_with(wanted.as_str()))
        {
            let names: Vec<_> = all.iter().map(|step| step.name).collect();
            return Err(format!("no step {wanted}; there are: {}", names.join(", ")).into());
        }
    }
    all.retain(|step| {
        let named = |wanted: &String| step.name.starts_with(wanted.as_str());
        if arguments.steps.is_empty() {
            step.quick || !arguments.quick
        } else {
            arguments.steps.iter().any(named)
        }
    });
    Ok(all)
}

fn seconds(time: Duration) -> String {
    format!("{:.1} s", time.as_secs_f64())
}

/// Prints the table, what was skipped and what failed, and the closing line.
fn summary(reports: &[StepReport], wall: Duration) -> Result<(), Failure> {
    let (mut total, mut cpu) = (Counts::default(), Duration::ZERO);
    println!(
        "\n{:16} {:>7} {:>7} {:>8} {:>10} {:>12}",
        "step", "passed", "failed", "skipped", "time", "processor"
    );
    for step in reports {
        println!(
            "{:16} {:>7} {:>7} {:>8} {:>10} {:>12}",
            step.name,
            step.counts.passed,
            step.counts.failed.len(),
            step.counts.skipped.len(),
            seconds(step.wall),
            seconds(step.cpu)
        );
        total.add(&step.counts);
        cpu += step.cpu;
    }
    println!("{:41} {:>10} {:>12}", "", seconds(wall), seconds(cpu));
    for skip in &total.skipped {
        println!("skipped: {skip}");
    }
    for failure in &total.failed {
        println!("failed: {failure}");
    }
    println!("\n{total}");
    if total.failed.is_empty() {
        Ok(())
    } else {
        Err("there are failures".into())
    }
}
