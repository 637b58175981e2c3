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

/// `cargo test` of these crates for a model of `package`, with every assertion on.
fn test(package: &'static str, what: &'static str, args: &[&str]) -> Model {
    let mut command = workspace::cargo(["test"]);
    command.args(args);
    Model {
        package,
        what,
        command,
    }
}

/// The same of test programs that replace nothing: those that the other steps of the tests have built.
fn test_as_built(package: &'static str, what: &'static str, args: &[&str]) -> Model {
    let mut command = workspace::cargo_for_tests("test");
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
    let mut random = test_as_built("blkmq", what, &programs);
    random
        .command
        .env("BLKMQ_STEPS", arguments.steps.to_string())
        .env("BLKMQ_SEED", arguments.seed.to_string());

    // Named together with the engine, whose models are next, both have the same features of what they depend on.
    let what = "shuttle: random and priority schedules";
    let args = [
        "-p=blkmq",
        "-p=volume",
        "--features=volume/shuttle",
        "--test=shuttle_mix",
    ];
    let shuttle = test("blkmq", what, &args);

    let what = "loom: every interleaving, and every planted bug";
    let loom = test("blkmq", what, &["-p=blkmq", "--features=loom", "--lib"]);
    vec![random, shuttle, loom]
}

/// The engine is not optimized here: to optimize it once more takes longer than all of these runs.
fn engine() -> Model {
    let what = "shuttle: group commit, segments, waiters, a whole host; every planted bug";
    let args = [
        "--config=profile.dev.package.volume.opt-level=0",
        "-p=volume",
        "--features=shuttle",
        "--lib",
        "models::",
    ];
    test("volume", what, &args)
}

fn messenger(arguments: &Arguments) -> Vec<Model> {
    let what = "sessions on a bad network";
    let mut sessions = test_as_built("messenger", what, &["--lib", "sim_no_message"]);
    sessions
        .command
        .env("FIRN_SIM_SEEDS", arguments.messenger_seeds.to_string());

    let args = ["-p=messenger", "--features=loom", "--lib", "loom_"];
    let queue = test("messenger", "loom: the out-queue", &args);
    vec![sessions, queue]
}
