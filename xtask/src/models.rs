//! `cargo xtask models`: the proofs of the multi-queue core, of the threads inside the engine, and of the
//! messenger's sessions and out-queue, that an ordinary test run leaves out.
//!
//! Each model checker replaces the core's atomics and locks: a feature of the crates concerned, so that
//! what they depend on is compiled once.

use std::process::Command;
use std::time::Instant;

use crate::{Failure, process, workspace};

/// Arguments of `cargo xtask models`.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Steps of the random run against the reference model
    #[arg(long, default_value_t = 10_000_000)]
    pub(crate) steps: u64,
    /// Its seed
    #[arg(long, default_value_t = 1)]
    pub(crate) seed: u64,
    /// Seeds of the messenger's simulator
    #[arg(long, default_value_t = 100_000)]
    pub(crate) messenger_seeds: u64,
}

/// A proof: whose, what it shows, and the command that runs it.
pub(crate) struct Model {
    pub(crate) package: &'static str,
    what: &'static str,
    pub(crate) command: Command,
}

impl Default for Arguments {
    fn default() -> Arguments {
        Arguments {
            steps: 10_000_000,
            seed: 1,
            messenger_seeds: 100_000,
        }
    }
}

pub(crate) fn run(arguments: &Arguments) -> Result<(), Failure> {
    for mut model in models(arguments) {
        println!("== {}: {}", model.package, model.what);
        let start = Instant::now();
        model.command.args(["--", "--nocapture"]);
        process::run(&mut model.command)?;
        println!("== {:.1} s", start.elapsed().as_secs_f64());
    }
    Ok(())
}

/// All of them, in order of cost.
pub(crate) fn models(arguments: &Arguments) -> Vec<Model> {
    let mut models = blkmq(arguments);
    models.push(engine());
    models.extend(messenger(arguments));
    models
}

/// With every assertion on, and with what the tests' build has compiled already: building the engine with all
/// optimizations takes longer than these runs.
fn test(package: &'static str, what: &'static str, args: &[&str]) -> Model {
    let mut command = workspace::cargo(["test", "-p", package]);
    command.args(args);
    Model {
        package,
        what,
        command,
    }
}

fn blkmq(arguments: &Arguments) -> Vec<Model> {
    let programs = [
        "--test=reference_model",
        "--test=barriers",
        "--test=contract",
    ];
    let what = "reference model, contract, stress of both barriers";
    let mut random = test("blkmq", what, &programs);
    random
        .command
        .env("BLKMQ_STEPS", arguments.steps.to_string())
        .env("BLKMQ_SEED", arguments.seed.to_string());

    let what = "shuttle: random and priority schedules";
    let shuttle = test("blkmq", what, &["--features=shuttle", "--test=shuttle_mix"]);

    let what = "loom: every interleaving, and every planted bug";
    let loom = test("blkmq", what, &["--features=loom", "--lib"]);
    vec![random, shuttle, loom]
}

fn engine() -> Model {
    let what = "shuttle: group commit, segments, waiters, a whole host; every planted bug";
    test("volume", what, &["--features=shuttle", "--lib", "models::"])
}

fn messenger(arguments: &Arguments) -> Vec<Model> {
    let mut sessions = test(
        "messenger",
        "sessions on a bad network",
        &["--lib", "sim_no_message"],
    );
    sessions
        .command
        .env("FIRN_SIM_SEEDS", arguments.messenger_seeds.to_string());

    let args = ["--features=loom", "--lib", "loom_"];
    let queue = test("messenger", "loom: the out-queue", &args);
    vec![sessions, queue]
}
