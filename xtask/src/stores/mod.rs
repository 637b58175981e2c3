//! `cargo xtask stores`: foreign stores, each got, started, asked what firn needs of a store, used by
//! the shipped binary, and ended.
//!
//! The table below says of each what is expected, that it is good or that it is refused in words: a
//! release that turns out to be otherwise fails here, and then docs/stores.md is to change. What
//! cannot be got on this machine is skipped, and said so.

mod kinds;
pub(crate) mod programs;
mod server;

use std::time::Instant;

use crate::{Failure, process, workspace};
use kinds::{Expectation, Kind};

/// Tests that ask the store that is named to them, by package.
const TESTS: [&str; 2] = ["server_contract", "server_volume"];

/// Arguments of `cargo xtask stores`.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Only these
    names: Vec<Kind>,
    /// Start one, say how a shell reaches it, and run until it is ended
    #[arg(long, requires = "names")]
    serve: bool,
}

/// What became of one.
enum Outcome {
    AsExpected { seconds: u64 },
    Skipped(String),
    Failed(String),
}

/// Whether a test program asks a store that somebody names: no step of `cargo xtask test` has one.
pub(crate) fn asks_named_store(test_program: &str) -> bool {
    TESTS.contains(&test_program)
}

pub(crate) fn run(arguments: &Arguments) -> Result<(), Failure> {
    if arguments.serve {
        let [kind] = arguments.names.as_slice() else {
            return Err("--serve takes one store".into());
        };
        return serve(*kind);
    }
    let kinds = match arguments.names.as_slice() {
        [] => Kind::ALL,
        names => names,
    };
    let outcomes: Vec<(Kind, Outcome)> = kinds.iter().map(|kind| (*kind, ask(*kind))).collect();
    let width = kinds.iter().map(|kind| kind.title().len()).max();
    println!();
    for (kind, outcome) in &outcomes {
        let said = match outcome {
            Outcome::AsExpected { seconds } => {
                format!("{}, as expected, in {seconds} s", kind.expectation().verb())
            }
            Outcome::Skipped(why) => format!("skipped: {why}"),
            Outcome::Failed(why) => format!("FAILED: {why}"),
        };
        println!("{:<1$}  {said}", kind.title(), width.unwrap_or(0));
    }
    let failed = |outcome: &Outcome| matches!(outcome, Outcome::Failed(_));
    match outcomes
        .iter()
        .filter(|(_, outcome)| failed(outcome))
        .count()
    {
        0 => Ok(()),
        count => Err(format!("{count} stores are not what docs/stores.md says of them").into()),
    }
}

fn ask(kind: Kind) -> Outcome {
    println!("\n== {}", kind.title());
    if let Err(why) = kind.check_available() {
        println!("skipped: {why}");
        return Outcome::Skipped(why);
    }
    let started = Instant::now();
    match run_tests(kind) {
        Ok(()) => Outcome::AsExpected {
            seconds: started.elapsed().as_secs(),
        },
        Err(failure) => Outcome::Failed(failure.to_string()),
    }
}

fn run_tests(kind: Kind) -> Result<(), Failure> {
    // Built before the store runs: compilers would take its processors.
    let mut tests = workspace::cargo_for_tests("test");
    tests.arg("--quiet");
    for name in TESTS {
        tests.args(["--test", name]);
    }
    tests.arg("--no-run");
    process::run(&mut tests)?;
    let store = kind.start()?;
    let mut tests = workspace::cargo_for_tests("test");
    tests.arg("--no-fail-fast");
    for name in TESTS {
        tests.args(["--test", name]);
    }
    tests.args(["--", "--show-output"]);
    tests.env("FIRN_STORE_URL", &store.url);
    store.set_environment(&mut tests);
    if kind.expectation() == Expectation::Refused {
        tests.env("FIRN_STORE_REFUSED", "1");
    }
    process::run(&mut tests)
}

fn serve(kind: Kind) -> Result<(), Failure> {
    kind.check_available()?;
    let mut store = kind.start()?;
    println!("\n{} runs; in another shell:\n", kind.title());
    for (name, value) in &store.environment {
        println!("    export {name}={value}");
    }
    println!(
        "    firn serve --store '{}' --volume demo=10GiB\n",
        store.url
    );
    store.wait()
}
