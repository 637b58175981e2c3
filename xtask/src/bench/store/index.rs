//! P20: what the index of a large volume costs: the time to the first read, memory, and bytes in the store.
//!
//! No server of this machine holds 10 TiB. The engine's own tests have a store that generates an index of full
//! size, and one that keeps no payload, in virtual time: so the figures need no quiet machine.

use crate::{Failure, process, workspace};

pub(super) fn at_scale() -> Result<(), Failure> {
    println!("\n## P20: the index of 10 TiB and of random writes\n");
    run_engine_tests(&["index_scale", "index_bytes"])
}

/// Runs tests of the engine, which print what they found.
pub(super) fn run_engine_tests(names: &[&str]) -> Result<(), Failure> {
    let mut tests = workspace::cargo_for_tests("test");
    tests.arg("--quiet");
    for name in names {
        tests.args(["--test", name]);
    }
    tests.args(["--", "--nocapture", "--test-threads", "1"]);
    tests.arg("--include-ignored");
    process::run(&mut tests)
}
