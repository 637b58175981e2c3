//! The core's own costs, in one run and one table; `cargo xtask bench blkmq` is the door.
//!
//! Compare figures of one run only. Each is the median of several short rounds in which the variants
//! alternate, so that a machine that slows down slows all of them down. `--instructions CASE N`
//! runs one case N times and nothing else, for an instruction counter to watch. `--quick` is table (a)
//! alone, `--figures` prints its rows for programs, too.
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "benchmarks measure with threads and clocks"
)]
#![allow(clippy::print_stdout, reason = "this program's output is its table")]

mod cases;
mod must_run;
mod null;
mod quiesce;

use std::time::Duration;

/// Length of one round of one variant.
const ROUND: Duration = Duration::from_millis(120);
/// Rounds per variant.
const ROUNDS: usize = 5;

fn main() {
    let arguments: Vec<String> = std::env::args()
        .skip(1)
        .filter(|a| a != "--bench")
        .collect();
    if let [flag, case, count] = &arguments[..]
        && flag == "--instructions"
    {
        let count = count.parse().expect("a number of iterations");
        return cases::repeat(case, count);
    }
    let is_given = |flag: &str| arguments.iter().any(|argument| argument == flag);
    if blkmq::Barrier::membarrier().is_none() {
        println!("membarrier: skipped: this kernel or sandbox refuses membarrier(2)");
    }
    must_run::table(is_given("--figures"));
    if is_given("--quick") {
        return;
    }
    cases::table();
    quiesce::table();
}

/// The median of several figures.
fn median(mut figures: Vec<f64>) -> f64 {
    figures.sort_by(f64::total_cmp);
    figures[figures.len() / 2]
}

/// The two forms of the barriers, as far as the kernel grants them.
fn barriers() -> Vec<(&'static str, blkmq::Barrier)> {
    let mut barriers = vec![("fences", blkmq::Barrier::fences())];
    barriers.extend(blkmq::Barrier::membarrier().map(|barrier| ("membarrier", barrier)));
    barriers
}
