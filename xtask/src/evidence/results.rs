//! The result file of `cargo xtask evidence`: what each run of a benchmark printed for programs, and how it went.
//!
//! It is written anew after each run, so that what was interrupted can be gone on with. It must never hold a
//! figure that was not printed by a run it names.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::{Map, Value, json};

use crate::{Failure, figures};

/// What this program reads and writes.
const FORMAT: u64 = 1;

/// What a line begins with that says where figures are from.
const LANES: [&str; 2] = ["lane: ", "this machine: lane: "];

/// What a program says that cannot do its work here.
const SKIPPED: &str = "skipped: ";

/// How this program begins what it fails with.
const COMPLAINT: &str = "cargo xtask: ";

/// How a run went.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// It ended well.
    Measured,
    /// This machine lacks something, or it was left out; why.
    Skipped(String),
    /// It failed or was ended; why. What it printed before was measured all the same.
    Failed(String),
}

/// One run of a benchmark.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct RunResult {
    pub(super) outcome: Outcome,
    /// When the invocation of `cargo xtask evidence` began that this run is of, and which commit that was.
    pub(super) go: String,
    /// Whether it was cut short for a quick look.
    pub(super) quick: bool,
    /// What was run, as one types it.
    pub(super) command: String,
    pub(super) seconds: f64,
    /// The machine's load average when that invocation began.
    pub(super) load_before: f64,
    pub(super) lanes: Vec<String>,
    pub(super) figures: Vec<Value>,
}

/// All runs, each under `ROW/NAME`.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Results {
    pub(super) runs: BTreeMap<String, RunResult>,
}

impl Results {
    /// Reads a result file.
    pub(super) fn load(path: &Path) -> Result<Results, Failure> {
        let at = path.display();
        let text = std::fs::read_to_string(path).map_err(|error| format!("{at}: {error}"))?;
        let value: Value =
            serde_json::from_str(&text).map_err(|error| format!("{at} is no JSON: {error}"))?;
        Results::from_json(&value)
            .ok_or_else(|| format!("{at} is not a result of this version; measure again").into())
    }

    /// Writes it whole or not at all.
    pub(super) fn save(&self, path: &Path) -> Result<(), Failure> {
        let new = path.with_extension("new");
        std::fs::write(&new, format!("{:#}\n", self.to_json()))?;
        Ok(std::fs::rename(new, path)?)
    }

    pub(super) fn from_json(value: &Value) -> Option<Results> {
        if value["format"].as_u64() != Some(FORMAT) {
            return None;
        }
        let runs = value["runs"].as_object()?.iter();
        Some(Results {
            runs: runs
                .map(|(name, run)| Some((name.clone(), RunResult::from_json(run)?)))
                .collect::<Option<_>>()?,
        })
    }

    pub(super) fn to_json(&self) -> Value {
        let runs: Map<String, Value> = self
            .runs
            .iter()
            .map(|(name, run)| (name.clone(), run.to_json()))
            .collect();
        json!({ "format": FORMAT, "runs": runs })
    }
}

impl RunResult {
    /// Whether anything on the page is of this run.
    pub(super) fn has_figures(&self) -> bool {
        !self.figures.is_empty()
    }

    fn from_json(value: &Value) -> Option<RunResult> {
        let text = |value: &Value| value.as_str().map(str::to_owned);
        let why = text(&value["why"]).unwrap_or_default();
        Some(RunResult {
            outcome: match value["outcome"].as_str()? {
                "measured" => Outcome::Measured,
                "skipped" => Outcome::Skipped(why),
                "failed" => Outcome::Failed(why),
                _ => return None,
            },
            go: text(&value["go"])?,
            quick: value["quick"].as_bool()?,
            command: text(&value["command"])?,
            seconds: value["seconds"].as_f64()?,
            load_before: value["load_before"].as_f64()?,
            lanes: value["lanes"].as_array()?.iter().filter_map(text).collect(),
            figures: value["figures"].as_array()?.clone(),
        })
    }

    fn to_json(&self) -> Value {
        let (outcome, why) = match &self.outcome {
            Outcome::Measured => ("measured", None),
            Outcome::Skipped(why) => ("skipped", Some(why)),
            Outcome::Failed(why) => ("failed", Some(why)),
        };
        json!({
            "outcome": outcome, "why": why, "go": self.go, "quick": self.quick,
            "command": self.command, "seconds": self.seconds, "load_before": self.load_before,
            "lanes": self.lanes, "figures": self.figures,
        })
    }

    /// Takes from a line of the benchmark's output what it has for programs.
    pub(super) fn take_line(&mut self, line: &str) {
        if let Some(row) = figures::parse(line) {
            self.figures.push(row);
        } else if let Some(Value::Object(mut document)) = whole_document(line) {
            document.insert("table".to_owned(), json!("document"));
            self.figures.push(Value::Object(document));
        } else if let Some(lane) = LANES.iter().find_map(|words| line.strip_prefix(words)) {
            let lane = without_build(lane);
            if !self.lanes.contains(&lane) {
                self.lanes.push(lane);
            }
        }
    }

    /// How it went by its end, and by what it said last.
    pub(super) fn conclude(&mut self, ended_well: bool, in_time: bool, said: &[String]) {
        let skipped = said.iter().find_map(|line| line.strip_prefix(SKIPPED));
        // The first complaint is the innermost program's; those around it only say that it failed.
        let complaint = said.iter().find_map(|line| line.strip_prefix(COMPLAINT));
        let last = said.iter().rev().find(|line| !line.trim().is_empty());
        let last = last.map_or("it said nothing", |line| line.trim());
        self.outcome = match (ended_well, in_time) {
            (_, false) => Outcome::Failed(format!(
                "ended after {:.0} s, which is more than it was given; it said last: {last}",
                self.seconds
            )),
            (true, _) if !self.has_figures() => {
                Outcome::Failed("it ended well and printed no figure".to_owned())
            }
            (true, _) => Outcome::Measured,
            (false, _) => match skipped {
                Some(why) => Outcome::Skipped(why.to_owned()),
                None => Outcome::Failed(complaint.unwrap_or(last).to_owned()),
            },
        };
    }
}

/// A machine's lane without what whoever built its kernel added to the version.
fn without_build(lane: &str) -> String {
    let Some((before, after)) = lane
        .strip_prefix("native, ")
        .and_then(|_| lane.split_once(", Linux "))
    else {
        return lane.to_owned();
    };
    let (version, rest) = after.split_at(after.find(',').unwrap_or(after.len()));
    let version = version.split('-').next().unwrap_or(version);
    format!("{before}, Linux {version}{rest}")
}

/// The JSON document that a line is, as a soak with `--json` prints it.
fn whole_document(line: &str) -> Option<Value> {
    let is_document = line.starts_with('{') && line.ends_with('}');
    is_document
        .then(|| serde_json::from_str(line).ok())
        .flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run() -> RunResult {
        RunResult {
            outcome: Outcome::Failed("not begun".to_owned()),
            go: "2026-11-27 10:00".to_owned(),
            quick: true,
            command: "cargo xtask bench messenger --quick".to_owned(),
            seconds: 4.5,
            load_before: 0.25,
            lanes: Vec::new(),
            figures: Vec::new(),
        }
    }

    #[test]
    fn of_a_benchmarks_output_figures_documents_and_lanes_are_taken_and_nothing_else() {
        let mut run = run();
        for line in [
            "lane: native, 2 x CPU, Linux 6.18-here, load average 1.00",
            "$ sh -c 'echo lane: guest'",
            "| table | 5 |",
            "this machine: lane: native, 2 x CPU, Linux 6.18, load average 1.00",
            "@figure {\"table\":\"exit\",\"ms\":1}",
            "{\"devices\":16}",
            "{broken}",
            "@figure {broken",
        ] {
            run.take_line(line);
        }
        assert_eq!(
            run.lanes,
            ["native, 2 x CPU, Linux 6.18, load average 1.00"]
        );
        let expected = [
            json!({"table": "exit", "ms": 1}),
            json!({"table": "document", "devices": 16}),
        ];
        assert_eq!(run.figures, expected);
    }

    #[test]
    fn a_run_is_measured_only_if_it_ended_well_in_time_and_with_figures() {
        let said = [
            "skipped: no kernel",
            "cargo xtask: the disk is full",
            "$ next",
            "cargo xtask: the guest ended with 1",
        ];
        let said = said.map(str::to_owned);
        let outcome = |figures: bool, ended_well, in_time, said: &[String]| {
            let mut run = run();
            run.figures.extend(figures.then(|| json!({})));
            run.conclude(ended_well, in_time, said);
            run.outcome
        };
        assert_eq!(outcome(true, true, true, &said), Outcome::Measured);
        let skipped = Outcome::Skipped("no kernel".to_owned());
        assert_eq!(outcome(false, false, true, &said), skipped);
        let failed = Outcome::Failed("the disk is full".to_owned());
        assert_eq!(outcome(true, false, true, &said[1..]), failed);
        for (figures, in_time) in [(false, true), (true, false)] {
            let bad = outcome(figures, true, in_time, &said);
            assert!(matches!(bad, Outcome::Failed(_)), "{bad:?}");
        }
    }

    #[test]
    fn a_result_comes_back_as_it_was_saved_and_another_format_does_not() {
        let mut results = Results::default();
        results.runs.insert("002/messenger".to_owned(), run());
        let mut json = results.to_json();
        assert_eq!(Results::from_json(&json), Some(results));
        json["format"] = json!(FORMAT + 1);
        assert_eq!(Results::from_json(&json), None);
    }
}
