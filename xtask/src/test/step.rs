//! What a step of `cargo xtask test` is: what it runs, how its output is read, and its bound.

use std::path::{Path, PathBuf};
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

impl Kind {
    /// What could be made of commands, or that the step failed because they could not be.
    pub(super) fn from_commands(
        step: &str,
        commands: Result<Vec<Command>, crate::Failure>,
    ) -> Kind {
        match commands {
            Ok(commands) => Kind::Commands(commands),
            Err(error) => Kind::Inside(Counts {
                failed: vec![format!("{step}: {error}")],
                ..Counts::default()
            }),
        }
    }
}

/// What a step runs beside: the steps of a lane run one after the other, lanes side by side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lane {
    /// What calls cargo on the directory of the tests' build, which is locked meanwhile.
    Front,
    /// Test programs of this machine. They wait more than they compute, and have deadlines.
    Programs,
    /// Virtual machines.
    Guests,
    /// Builds in directories of their own.
    Builds,
}

impl Lane {
    /// Lanes that run behind the front.
    pub(super) const BACKGROUND: [Lane; 3] = [Lane::Programs, Lane::Guests, Lane::Builds];

    /// Who waits for others gets the processor at once when it has something to do.
    pub(super) fn niceness(self) -> u32 {
        match self {
            Lane::Programs => 0,
            Lane::Front | Lane::Guests => 5,
            // A third of the front's share. With less they end last, and what they are for then runs alone.
            Lane::Builds => 10,
        }
    }
}

/// One step of `cargo xtask test`.
pub(super) struct Step {
    pub(super) name: &'static str,
    pub(super) what: &'static str,
    /// Part of the inner loop.
    pub(super) quick: bool,
    pub(super) output: Output,
    pub(super) lane: Lane,
    /// The step of another lane that must have ended before, if it is run at all.
    pub(super) after: Option<&'static str>,
    /// What still runs then hangs.
    pub(super) limit: Duration,
    /// Takes how many times longer than usual what is bounded by time should run. It is called in front, so
    /// what it builds is built there.
    pub(super) run: Box<dyn Fn(u64) -> Kind + Send + Sync>,
}

/// The test programs in a directory, by name: a file of it, or a folder with a `main.rs`.
pub(super) fn test_programs(directory: &Path) -> Vec<String> {
    let is_program = |path: &PathBuf| {
        let is_file = path.extension().is_some_and(|extension| extension == "rs");
        is_file || path.join("main.rs").is_file()
    };
    let mut names: Vec<String> = std::fs::read_dir(directory)
        .into_iter()
        .flatten()
        .flatten()
        .map(|file| file.path())
        .filter(is_program)
        .filter_map(|path| Some(path.file_stem()?.to_string_lossy().into_owned()))
        .collect();
    names.sort();
    names
}
