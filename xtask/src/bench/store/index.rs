//! P20: what the index of a large volume costs: the time to the first read, memory, and bytes in the store.
//!
//! No server of this machine holds 10 TiB. The engine's own tests have a store that generates an index of full
//! size, and one that keeps no payload, in virtual time: so the figures need no quiet machine.

use crate::{Failure, process, workspace};

pub(super) fn at_scale() -> Result<(), Failure> {
    println!("\n## P20: the index of 10 TiB and of random writes\n");
    run_engine_tests("index_scale", "")?;
    run_engine_tests("engine", "index_bytes::")
}

/// Runs tests of a program of the engine's, which print what they found: those in whose names `filter` is.
pub(in crate::bench) fn run_engine_tests(program: &str, filter: &str) -> Result<(), Failure> {
    let mut tests = workspace::cargo_for_tests("test");
    tests.args(["--quiet", "--test", program, "--", filter]);
    tests.args(["--nocapture", "--test-threads", "1"]);
    tests.arg("--include-ignored");
    process::run(&mut tests)
}
