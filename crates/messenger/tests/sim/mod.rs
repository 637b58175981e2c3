//! The deterministic world of two hosts and a bad network: one seed, virtual time, no threads.
//!
//! `world` moves bytes between two [`Node`]s and breaks what the seed says; `app` sends, receives
//! and keeps the ledger that nothing is lost, doubled or reordered. The ledger shares no code
//! with the sessions: it compares what one application sent with what the other was given.
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "the simulator bounds itself by the wall clock"
)]

mod app;
mod coverage;
mod faults;
mod world;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use tracing_subscriber::EnvFilter;

use coverage::Coverage;
use world::World;

fn run_seed(seed: u64) -> Result<Coverage, String> {
    World::new(seed).run().map_err(|e| {
        format!("seed {seed}: {e}\nagain: FIRN_SIM_SEED={seed} cargo test -p messenger sim")
    })
}

fn env_number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

/// Runs as many seeds as fit two seconds, at least 200; `FIRN_SIM_SEEDS` says how many instead
/// (100,000 is the proof: `FIRN_SIM_SEEDS=100000 cargo test -p messenger --profile sim sim`),
/// `FIRN_SIM_SEED` names one.
#[test]
fn sim_no_message_is_lost_doubled_or_reordered() {
    if let Some(seed) = env_number("FIRN_SIM_SEED") {
        // One seed is run to be looked at: RUST_LOG=messenger=trace shows all of it.
        tracing_subscriber::fmt()
            .with_env_filter(EnvFilter::from_default_env())
            .init();
        run_seed(seed).unwrap();
        return;
    }
    let start = Instant::now();
    let asked = env_number("FIRN_SIM_SEEDS");
    let mut covered = Coverage::default();
    let mut seeds = 0;
    while match asked {
        Some(n) => seeds < n,
        None => seeds < 200 || start.elapsed() < Duration::from_secs(2),
    } {
        covered.add(&run_seed(seeds).unwrap());
        seeds += 1;
    }
    println!(
        "{seeds} seeds in {:.1} s: {covered:?}",
        start.elapsed().as_secs_f64()
    );
    covered.assert_everything_happened();
}

/// The first seed of the given number at which the oracle, or an assertion, finds the canary.
fn seed_that_finds(canary: &'static str, seeds: u64) -> Option<u64> {
    (0..seeds).find(|seed| {
        let run = || canary::with(canary, || run_seed(*seed));
        let found = catch_unwind(AssertUnwindSafe(run)).map_or(true, |outcome| outcome.is_err());
        // It is the canary that was found: without it the seed passes.
        found && run_seed(*seed).is_ok()
    })
}

#[test]
fn sim_catches_an_acknowledgement_before_receipt_in_order() {
    let seed = seed_that_finds("ack_before_in_order_receipt", 2000);
    println!("found at seed {seed:?}");
    assert!(seed.is_some());
}

#[test]
fn sim_catches_a_sequence_given_at_enqueue() {
    let seed = seed_that_finds("sequence_at_enqueue", 500);
    println!("found at seed {seed:?}");
    assert!(seed.is_some());
}

#[test]
fn sim_catches_unacknowledged_messages_requeued_behind_the_queue() {
    let seed = seed_that_finds("requeue_behind", 500);
    println!("found at seed {seed:?}");
    assert!(seed.is_some());
}

#[test]
fn sim_catches_a_message_freed_under_the_lock() {
    let seed = seed_that_finds("free_under_lock", 50);
    println!("found at seed {seed:?}");
    assert!(seed.is_some());
}

#[test]
fn sim_one_seed_gives_one_run() {
    for seed in 0..20 {
        assert_eq!(run_seed(seed), run_seed(seed), "seed {seed}");
    }
}
