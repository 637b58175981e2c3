//! Runs the worlds and prints what was found: each world clean with all rules, each rule missed
//! when it is off, and then random walks for the rest of the time.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use super::cost::{costs, rates};
use super::rules::{Rule, Rules};
use super::search::{Bounds, Findings, Model, Violation, breadth_first};
use super::walks::{WALK_STEPS, Walks, fleets};
use super::worlds::{Build, Entry, WORLDS};

/// What is asked of a run.
#[derive(Debug, Clone)]
pub struct Options {
    /// In all; the worlds take what they take, the walks have the rest.
    pub time: Duration,
    /// Searches that run at the same time.
    pub threads: usize,
    /// The first seed of the walks.
    pub seed: u64,
    /// At most so many walks of each fleet.
    pub walks: u64,
    /// Only worlds and fleets whose name contains this.
    pub world: Option<String>,
    /// Print the schedule of each canary.
    pub trace: bool,
}

/// No world of the table has as many; a search that gets here has left it.
const STATES_MAX: u64 = 2_000_000;

/// What one search came to, in words.
pub(crate) struct Outcome {
    pub(crate) states: u64,
    pub(crate) depth: u32,
    pub(crate) complete: bool,
    took: Duration,
    pub(crate) failure: Option<(Violation, Vec<String>)>,
}

fn outcome<M: Model>(model: &M, findings: Findings<M::Action>, begun: Instant) -> Outcome {
    let sentences = |actions: Vec<M::Action>| {
        let sentences = actions.into_iter().map(|action| model.sentence(action));
        sentences.collect()
    };
    let failure = findings.failure;
    Outcome {
        states: findings.states,
        depth: findings.depth,
        complete: findings.complete,
        took: begun.elapsed(),
        failure: failure.map(|(why, actions)| (why, sentences(actions))),
    }
}

/// Searches one world, with one rule off if one is given.
pub(crate) fn search(entry: &Entry, off: Option<Rule>) -> Outcome {
    let begun = Instant::now();
    let bounds = Bounds {
        states: STATES_MAX,
        settle_one_in: entry.settle_one_in,
    };
    let rules = off.map_or(Rules::ALL, |rule| Rules::ALL.without(rule));
    match entry.build {
        Build::Hosts(build) => {
            let mut world = build();
            world.rules = rules;
            outcome(&world, breadth_first(&world, bounds), begun)
        }
        Build::Peers(build) => {
            let mut world = build();
            world.rules = rules;
            outcome(&world, breadth_first(&world, bounds), begun)
        }
    }
}

/// One search of the table: a world, its schedule, the rule that is off.
type Search = (&'static Entry, Option<(&'static str, Rule)>);

fn searches(options: &Options) -> Vec<Search> {
    let wanted = |entry: &&Entry| {
        let part = options.world.as_deref().unwrap_or("");
        entry.name.contains(part)
    };
    let of = |entry: &'static Entry| {
        let canaries = entry
            .canaries
            .iter()
            .map(move |canary| (entry, Some(*canary)));
        std::iter::once((entry, None)).chain(canaries)
    };
    WORLDS.iter().filter(wanted).flat_map(of).collect()
}

/// Runs the worlds, the canaries and the walks. True if all is as it must be.
#[must_use]
pub fn run(options: &Options) -> bool {
    let begun = Instant::now();
    let searches = searches(options);
    let outcomes = search_all(&searches, options.threads);
    let fleets = fleets(options.world.as_deref().unwrap_or(""));
    let mut good = !searches.is_empty() || !fleets.is_empty();
    if !searches.is_empty() {
        println!(
            "{:16} {:>9} {:>6} {:>8}",
            "world", "states", "steps", "time"
        );
    }
    for ((entry, canary), outcome) in searches.iter().zip(&outcomes) {
        good &= match canary {
            None => print_world(entry, outcome),
            Some((schedule, rule)) => print_canary(schedule, *rule, outcome, options.trace),
        };
    }
    let states: u64 = outcomes.iter().map(|outcome| outcome.states).sum();
    println!(
        "{} searches, {states} states in {:.1} s",
        searches.len(),
        begun.elapsed().as_secs_f64()
    );
    if options.world.is_none() {
        good &= print_costs();
    }
    if !fleets.is_empty() {
        good &= print_walks(&Walks {
            fleets,
            first: options.seed,
            most: options.walks,
            threads: options.threads,
            begun,
            time: options.time,
        });
    }
    good
}

fn search_all(searches: &[Search], threads: usize) -> Vec<Outcome> {
    let next = AtomicUsize::new(0);
    let done = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..threads.max(1) {
            scope.spawn(|| {
                loop {
                    let index = next.fetch_add(1, Ordering::Relaxed);
                    let Some((entry, canary)) = searches.get(index) else {
                        return;
                    };
                    let outcome = search(entry, canary.map(|(_, rule)| rule));
                    let mut done = done.lock().unwrap_or_else(|poison| poison.into_inner());
                    done.push((index, outcome));
                }
            });
        }
    });
    let mut done = done
        .into_inner()
        .unwrap_or_else(|poison| poison.into_inner());
    done.sort_by_key(|(index, _)| *index);
    done.into_iter().map(|(_, outcome)| outcome).collect()
}

fn print_schedule((violation, schedule): &(Violation, Vec<String>)) {
    println!("    {}: {}", violation.promise, violation.what);
    for (index, sentence) in schedule.iter().enumerate() {
        println!("    {:3}. {sentence}", index + 1);
    }
}

fn print_world(entry: &Entry, outcome: &Outcome) -> bool {
    let whole = if outcome.complete {
        ""
    } else {
        "not searched to its end"
    };
    println!(
        "{:16} {:>9} {:>6} {:>7.2}s {} {whole}",
        entry.name,
        outcome.states,
        outcome.depth,
        outcome.took.as_secs_f64(),
        entry.cast
    );
    if let Some(failure) = &outcome.failure {
        println!("  FAILED {} with all rules in force", entry.name);
        print_schedule(failure);
    }
    outcome.failure.is_none() && outcome.complete
}

fn print_canary(schedule: &str, rule: Rule, outcome: &Outcome, trace: bool) -> bool {
    let Some(failure) = &outcome.failure else {
        println!("  FAILED without {} nothing was found", rule.name());
        return false;
    };
    let (violation, steps) = failure;
    println!(
        "  {schedule:1} without {:26} {:>7} states, {:>2} steps: {}: {}",
        rule.name(),
        outcome.states,
        steps.len(),
        violation.promise,
        violation.what
    );
    if trace {
        print_schedule(failure);
    }
    true
}

/// Prints what operations cost, and the rates of P21.
fn print_costs() -> bool {
    let Ok((costs, rates)) = costs().and_then(|costs| Ok((costs, rates(25.0, 256.0)?))) else {
        return false;
    };
    println!("{:42} {:>4} {:>4}", "operation", "PUT", "GET");
    for cost in costs {
        let requests = cost.requests;
        println!(
            "{:42} {:>4} {:>4}",
            cost.operation, requests.puts, requests.gets
        );
    }
    println!(
        "1,000 volumes, 64 KiB a minute each, a record every 25 s, a fold every 256 slices: \
         {:.3} PUT/s, {:.3} GET/s",
        rates.puts, rates.gets
    );
    rates.puts <= 0.2 && rates.gets <= 0.2
}

/// Random walks through larger worlds, as many as are asked for and the time suffices for.
fn print_walks(walks: &Walks) -> bool {
    let walked = walks.run();
    let walks = walked.walks;
    let Some(failed) = walked.into_failure() else {
        println!("{walks} walks of {WALK_STEPS} actions, no violation");
        return true;
    };
    let (fleet, seed) = (failed.fleet, failed.seed);
    println!("FAILED walk {seed} of {fleet}");
    print_schedule(&failed.failure);
    println!("repeat with: cargo xtask sim --protocol --world {fleet} --seed {seed} --seeds 1");
    false
}
