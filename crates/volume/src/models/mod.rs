//! Shuttle models: many schedules of the threads inside one host, which the simulator runs on one.
//!
//! Each model is a sentence of the contract, with real threads of the model checker, under random and
//! under priority-based schedules drawn from one seed. A lost wake leaves a thread asleep, which shuttle
//! reports as a deadlock. `canaries` plants one bug after the other and demands that its model fails.
//! `cargo xtask models` runs them. They must not sleep, and must not read a clock: what waits here waits
//! for another thread.
//!
//! Shuttle's atomics are sequentially consistent: what a weak memory may show is not judged here.
#![allow(clippy::unwrap_used, reason = "these are tests")]

mod canaries;
mod host;
mod machine;
mod segments;
mod waiters;

use shuttle::scheduler::{PctScheduler, RandomScheduler};
use shuttle::{Config, FailurePersistence, MaxSteps, Runner};

/// Threads that are preempted at few moments, each for long: what random schedules seldom do.
const PREEMPTIONS: usize = 4;

/// Runs a model under this many schedules of each kind.
fn check(schedules: usize, model: fn()) {
    let mut config = Config::new();
    config.stack_size = 1 << 20;
    config.failure_persistence = FailurePersistence::None;
    config.max_steps = MaxSteps::FailAfter(200_000);
    config.silence_warnings = true;
    let random = RandomScheduler::new_from_seed(1, schedules);
    Runner::new(random, config.clone()).run(model);
    let few = PctScheduler::new_from_seed(1, PREEMPTIONS, schedules);
    Runner::new(few, config).run(model);
}
