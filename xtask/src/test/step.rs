//! What a step of `cargo xtask test` is: what it runs, how its output is read, and its bound.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use super::count::Counts;

/// How to read what a step prints.
pub(super) enum Output {
    /// Rust's test harness.
    Tests,
    /// Rust's test harness in a guest, where nothing that a test needs may be lacking.
    Guest,
    /// The same of a guest whose exit status judges.
    GuestStatus,
    /// Everything is worth a look; the exit status judges.
    All,
    /// Long and dull: only into the log, unless it fails.
    Log,
}

/// What a step does.
pub(super) enum Kind {
    /// It was done in this process, and this came out.
    Inside(Counts),
    /// These commands are to be run one after the other.
    Commands(Vec<Command>),
}

/// One step of `cargo xtask test`.
pub(super) struct Step {
    pub(super) name: &'static str,
    pub(super) what: &'static str,
    /// Part of the inner loop.
    pub(super) quick: bool,
    pub(super) output: Output,
    /// It waits more than it computes: once built it runs beside the steps behind it.
    pub(super) background: bool,
    /// What still runs then hangs.
    pub(super) limit: Duration,
    /// Takes how many times longer than usual what is bounded by time should run.
    pub(super) run: Box<dyn Fn(u64) -> Kind + Send + Sync>,
}

/// The test programs in a directory, by name.
pub(super) fn test_programs(directory: &Path) -> Vec<String> {
    let mut names: Vec<String> = std::fs::read_dir(directory)
        .into_iter()
        .flatten()
        .flatten()
        .map(|file| file.path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "rs"))
        .filter_map(|path| Some(path.file_stem()?.to_string_lossy().into_owned()))
        .collect();
    names.sort();
    names
}
