//! One run of a benchmark: this program again, followed to its end or its deadline.
//!
//! It must leave nothing running, and give a run no figure that the benchmark did not print.

use std::fs::File;
use std::io::{IsTerminal, Write};
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use super::plan::{Row, Run};
use super::results::{Outcome, RunResult};
use crate::running_command::RunningCommand;
use crate::{Failure, figures, process, workspace};

/// Lines of the output that are looked at for why a run failed.
const TAIL_LINES: usize = 200;

/// One invocation of `cargo xtask evidence`.
#[derive(Clone, Debug)]
pub(super) struct Go {
    /// When it began, and with which commit.
    pub(super) begun: String,
    pub(super) quick: bool,
    /// The machine's load average when it began.
    pub(super) load: f64,
    /// This program, where no build replaces it while guests run it.
    pub(super) program: PathBuf,
}

impl Go {
    pub(super) fn begin(quick: bool) -> Result<Go, Failure> {
        let load = std::fs::read_to_string("/proc/loadavg")?;
        let load = load.split(' ').next().and_then(|load| load.parse().ok());
        let program = workspace::target().join("evidence/xtask");
        std::fs::copy(process::own_path()?, &program)?;
        let date = said_by("date", &["-u", "+%Y-%m-%d %H:%M:%S UTC"])?;
        Ok(Go {
            begun: format!("{date}, commit {}", commit()?),
            quick,
            load: load.ok_or("/proc/loadavg does not begin with a number")?,
            program,
        })
    }

    /// Measures, and says how it went: only what keeps a run from being begun is an error.
    pub(super) fn measure(&self, row: &Row, run: &Run) -> Result<RunResult, Failure> {
        let mut result = RunResult {
            outcome: Outcome::Skipped("it takes too long for a quick look".to_owned()),
            go: self.begun.clone(),
            quick: self.quick,
            command: command_line(run.words(self.quick).unwrap_or(run.whole)),
            seconds: 0.0,
            load_before: self.load,
            lanes: Vec::new(),
            figures: Vec::new(),
        };
        let Some(words) = run.words(self.quick) else {
            return Ok(result);
        };
        println!("\n=== {}/{}: {}", row.id, run.name, result.command);
        let mut command = Command::new(&self.program);
        command.args(words).current_dir(workspace::root());
        if words.first() == Some(&"bench") {
            command.arg(figures::FLAG);
        }
        let log = workspace::target().join(format!("evidence/{}-{}.log", row.id, run.name));
        let mut log = File::create(log)?;
        let begun = Instant::now();
        let until = begun + Duration::from_secs(60 * run.minutes(self.quick));
        let mut said = Vec::new();
        // At a terminal ^C must reach everything; elsewhere all of it is ended at the deadline.
        let leads = !std::io::stdin().is_terminal();
        let mut running = RunningCommand::start(&mut command, &result.command, leads)?;
        let status = running.follow(until, |line| {
            let _ = writeln!(log, "{line}");
            if !line.starts_with(figures::MARK) {
                println!("{line}");
                said.push(line.to_owned());
            }
            if said.len() > TAIL_LINES {
                said.remove(0);
            }
            result.take_line(line);
        })?;
        result.seconds = begun.elapsed().as_secs_f64();
        let well = status.is_some_and(|status| status.success());
        result.conclude(well, status.is_some(), &said);
        println!("=== {}/{}: {:?}", row.id, run.name, result.outcome);
        Ok(result)
    }
}

/// The commit that is measured, and whether the tree differs from it.
fn commit() -> Result<String, Failure> {
    let commit = said_by("git", &["rev-parse", "--short=12", "HEAD"])?;
    let changes = said_by("git", &["status", "--porcelain", "--", "crates", "xtask"])?;
    Ok(match changes.is_empty() {
        true => commit,
        false => format!("{commit} with changes"),
    })
}

/// A command as one types it.
pub(super) fn command_line(words: &[&str]) -> String {
    process::command_line(Command::new("cargo").arg("xtask").args(words))
}

/// What a program prints, in one line.
fn said_by(program: &str, words: &[&str]) -> Result<String, Failure> {
    let output = Command::new(program)
        .args(words)
        .current_dir(workspace::root())
        .output()
        .map_err(|error| format!("cannot start {program}: {error}"))?;
    if !output.status.success() {
        return Err(format!("{program} {}: {}", words.join(" "), output.status).into());
    }
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::evidence::section::Section;

    const UNASKED: Run = Run {
        name: "long",
        whole: &["bench", "store", "--only", "peers"],
        quick: None,
        minutes: [1, 1],
        rounds: [3, 1],
    };

    #[test]
    fn what_takes_too_long_for_a_quick_look_is_skipped_and_says_so() {
        let row = Row {
            id: "x",
            title: "",
            claim: "",
            source: "",
            runs: &[],
            limits: &[],
            write: |_, _: &mut Section| {},
        };
        let go = Go {
            begun: "now".to_owned(),
            quick: true,
            load: 0.0,
            program: PathBuf::new(),
        };
        let result = go.measure(&row, &UNASKED).unwrap();
        assert!(matches!(result.outcome, Outcome::Skipped(_)));
        assert_eq!(result.command, "cargo xtask bench store --only peers");
        assert!(result.figures.is_empty());
    }
}
