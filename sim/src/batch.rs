//! Runs many worlds on a few threads and adds up what they amounted to.
//!
//! Each world is deterministic; only how many of them fit into the time is not. Every so many
//! seeds one is run twice, and must give the same digest.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::faults::FaultCounts;
use crate::trace::Violation;
use crate::world::{Outcome, Watch, World};

/// One in so many seeds is run twice.
const REPEAT_EVERY: u64 = 16;
/// Lines kept for the report of a failure.
const KEEP_LINES: usize = 60;

/// What to run.
#[derive(Clone, Copy, Debug)]
pub struct Batch {
    /// The first seed; the next ones follow.
    pub first: u64,
    /// Begin no world after this time.
    pub time: Duration,
    /// Run at most so many.
    pub most: u64,
    /// On so many threads.
    pub threads: usize,
    /// See [`Watch::clients_only`].
    pub clients_only: bool,
}

/// What a batch amounted to.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// Worlds run.
    pub seeds: u64,
    /// Worlds run twice.
    pub repeated: u64,
    /// Events in all of them.
    pub events: u64,
    /// Client requests answered.
    pub answered: u64,
    /// Recovered images judged.
    pub settled: u64,
    /// The longest that a FLUSH waited, in virtual time.
    pub flush_ns: u64,
    /// Virtual time.
    pub virtual_ns: u64,
    /// Faults that took effect.
    pub faults: FaultCounts,
    /// The first failures, by seed.
    pub failures: Vec<Outcome>,
}

/// Runs the world of one seed.
pub fn run_seed(seed: u64, watch: Watch) -> Outcome {
    World::new(seed, watch).run()
}

/// Runs a batch to its end, or to the first failure.
pub fn run(batch: Batch, prepare: impl Fn() + Sync) -> Report {
    let next = AtomicU64::new(batch.first);
    let stop = AtomicBool::new(false);
    let report = Mutex::new(Report::default());
    let begun = Instant::now();
    std::thread::scope(|scope| {
        for _ in 0..batch.threads.max(1) {
            scope.spawn(|| {
                prepare();
                while !stop.load(Ordering::Relaxed) && begun.elapsed() < batch.time {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed - batch.first >= batch.most {
                        break;
                    }
                    let (outcome, repeated) = run_checked(seed, batch.clients_only);
                    let mut report = report.lock().expect("no panic while adding up");
                    if report.add(outcome, repeated) {
                        stop.store(true, Ordering::Relaxed);
                    }
                }
            });
        }
    });
    report.into_inner().expect("no panic while adding up")
}

/// Runs a seed, now and then twice.
fn run_checked(seed: u64, clients_only: bool) -> (Outcome, bool) {
    let watch = Watch {
        clients_only,
        ..Watch::default()
    };
    let mut outcome = run_seed(seed, watch);
    if outcome.violation.is_some() {
        // Once more, with the lines that tell the story: they cost more than the rest.
        let watch = Watch {
            keep: KEEP_LINES,
            ..watch
        };
        outcome = run_seed(seed, watch);
    }
    let repeat = seed.is_multiple_of(REPEAT_EVERY) && outcome.violation.is_none();
    if repeat {
        let again = run_seed(seed, watch);
        if again.digest != outcome.digest {
            let detail = format!("digest {:016x}, then {:016x}", outcome.digest, again.digest);
            outcome.violation = Some(Violation::new("determinism", detail));
        }
    }
    (outcome, repeat)
}

impl Report {
    /// Adds a world's outcome. True if it failed.
    fn add(&mut self, outcome: Outcome, repeated: bool) -> bool {
        self.seeds += 1;
        self.repeated += u64::from(repeated);
        self.events += outcome.events;
        self.answered += outcome.answered;
        self.settled += outcome.settled;
        self.flush_ns = self.flush_ns.max(outcome.flush_ns);
        self.virtual_ns += outcome.virtual_ns;
        self.faults.add(&outcome.faults);
        let failed = outcome.violation.is_some();
        if failed {
            self.failures.push(outcome);
            self.failures.sort_by_key(|outcome| outcome.seed);
        }
        failed
    }
}
