//! The page: what is better, equal and worse, and then each claim with its source, its commands, its tables and its limits.
//!
//! It is made of the result file alone. A run that failed or was left out says so, with the reason.

use std::collections::BTreeSet;
use std::path::Path;

use super::execute::command_line;
use super::plan::{Row, Run};
use super::results::{Outcome, Results, RunResult};
use super::section::{CHARTS, Measured, NOT_MEASURED, Section, Standing};
use crate::Failure;
use crate::chart::Chart;

/// A load average above which something else must have been running.
const QUIET_LOAD: f64 = 0.5;

/// A page with its charts.
#[derive(Debug)]
pub(super) struct Page {
    pub(super) text: String,
    pub(super) charts: Vec<(&'static str, Chart)>,
}

impl Page {
    pub(super) fn of(rows: &[&Row], results: &Results, name: &str) -> Page {
        let sections: Vec<Section> = rows.iter().map(|row| section(row, results)).collect();
        let mut text = head(results);
        text += &summary(&sections);
        let mut charts = Vec::new();
        for (row, section) in rows.iter().zip(sections) {
            text += &part(row, results, &section.text);
            for mut drawn in section.charts {
                drawn.chart.note = note(row, drawn.runs, results);
                charts.push((drawn.name, drawn.chart));
            }
        }
        Page {
            text: format!("{}\n", text.replace(CHARTS, name).trim_end()),
            charts,
        }
    }

    /// Writes the page, and its charts into the directory of its name beside it.
    pub(super) fn write(rows: &[&Row], results: &Results, out: &Path) -> Result<(), Failure> {
        let directory = out.with_extension("");
        let name = directory.file_name().ok_or("--out names no file")?;
        let page = Page::of(rows, results, &name.to_string_lossy());
        std::fs::create_dir_all(&directory)?;
        for (name, chart) in &page.charts {
            std::fs::write(directory.join(format!("{name}.svg")), chart.svg())?;
        }
        Ok(std::fs::write(out, page.text)?)
    }
}

fn section(row: &Row, results: &Results) -> Section {
    let measured = Measured {
        row: row.id,
        results,
    };
    let mut section = Section::default();
    (row.write)(&measured, &mut section);
    section
}

/// What was run, when, and where.
fn head(results: &Results) -> String {
    let mut text = String::from(
        "# Evidence: published claims beside ours\n\n\
         Written by `cargo xtask evidence`; `--only 002` repeats a row, `--quick` takes minutes instead of one to two hours. Each claim stands with its source in \
         the layout in which it was published, and beside it what this project's own programs did. A ratio is of figures of one run; figures of two \
         lanes ([testing-kernels.md](testing-kernels.md)) are not compared, and seconds of another machine are not ours to beat.\n\n",
    );
    let of = |value: fn(&RunResult) -> String| -> BTreeSet<String> {
        results.runs.values().map(value).collect()
    };
    let goes = of(|run| run.go.clone());
    let loads = results.runs.values().map(|run| run.load_before);
    let load = loads.fold(0.0, f64::max);
    let kinds = of(|run| if run.quick { "quick" } else { "whole" }.to_owned());
    text += &match goes.len() {
        0 => "**Nothing was measured.**\n\n".to_owned(),
        1 => format!("Measured in one go that began {}.\n\n", list(&goes)),
        _ => format!(
            "**Not of one go**: they began {}. Each run says which it is of.\n\n",
            goes.iter().cloned().collect::<Vec<_>>().join("; ")
        ),
    };
    if kinds.contains("quick") {
        text += "**A quick run**: fewer rounds, fewer devices, shorter loads, and what takes long left out. Its figures show that the commands work, and \
                 roughly where things stand.\n\n";
    }
    if load > QUIET_LOAD {
        text += &format!(
            "**Beside other load**: when it began the load average was {load:.1} on a machine of two processors.\n\n"
        );
    }
    text
}

fn list(of: &BTreeSet<String>) -> String {
    of.iter().cloned().collect::<Vec<_>>().join(", ")
}

/// What is better, equal, worse.
fn summary(sections: &[Section]) -> String {
    let verdicts: Vec<_> = sections.iter().flat_map(|one| &one.verdicts).collect();
    let count = |standing| {
        let of = |verdict: &&&super::section::Verdict| verdict.standing == standing;
        verdicts.iter().filter(of).count()
    };
    let mut text = format!(
        "## What is better, equal, worse\n\n\
         {} better, {} equal (within 5 %), {} worse, {} not measured. *Better* is against the published ratio where one is published, else against the peer \
         in the same run; what that is worth is said with each row's limits.\n\n\
         | what | published or peer | ours | |\n|---|---:|---:|---|\n",
        count(Some(Standing::Better)),
        count(Some(Standing::Equal)),
        count(Some(Standing::Worse)),
        count(None),
    );
    for verdict in &verdicts {
        text += &format!(
            "| {} | {} | {} | {} |\n",
            verdict.what,
            verdict.published,
            verdict.ours,
            verdict.standing.map_or(NOT_MEASURED, Standing::name),
        );
    }
    text.push('\n');
    text
}

/// A claim with all that belongs to it.
fn part(row: &Row, results: &Results, tables: &str) -> String {
    let mut text = format!(
        "## {}: {}\n\n**Published.** {}\n\nSource: {}.\n\n**Ours.** `{}`\n\n",
        row.id,
        row.title,
        row.claim,
        row.source,
        command_line(&["evidence", "--only", row.id]),
    );
    text += "| run | command | lane | took, s | |\n|---|---|---|---:|---|\n";
    for run in row.runs {
        text += &run_line(row, run, results);
    }
    text += &format!("\n{tables}");
    text += "What these machines cannot show:\n\n";
    for limit in row.limits {
        text += &format!("- {limit}\n");
    }
    text.push('\n');
    text
}

fn run_line(row: &Row, run: &Run, results: &Results) -> String {
    let Some(result) = results.runs.get(&format!("{}/{}", row.id, run.name)) else {
        let command = command_line(run.whole);
        return format!("| {} | `{command}` | | | not run in this go |\n", run.name);
    };
    let how = match &result.outcome {
        Outcome::Measured => "measured".to_owned(),
        Outcome::Skipped(why) => format!("**skipped**: {}", one_line(why)),
        Outcome::Failed(why) => format!("**failed**: {}", one_line(why)),
    };
    let kind = if result.quick { "quick, " } else { "" };
    format!(
        "| {} | `{}` | {} | {:.0} | {how} ({kind}{}) |\n",
        run.name,
        result.command,
        result.lanes.join("; "),
        result.seconds,
        result.go,
    )
}

/// Words that cannot end a cell.
fn one_line(text: &str) -> String {
    text.replace('|', "/").replace('\n', " ")
}

/// What stands on a chart: where and when, for it will be looked at without its page.
fn note(row: &Row, runs: &[&str], results: &Results) -> String {
    let mut goes = BTreeSet::new();
    let mut lanes = Vec::new();
    for name in runs {
        let Some(run) = results.runs.get(&format!("{}/{name}", row.id)) else {
            continue;
        };
        let kind = if run.quick { ", a quick run" } else { "" };
        goes.insert(format!("{}{kind}", run.go));
        // A guest's lane comes behind that of its machine.
        let lane = run.lanes.iter().rfind(|lane| !lane.starts_with("native, "));
        let lane = lane.or(run.lanes.last()).map_or("", String::as_str);
        let lane = lane.split(", load average").next().unwrap_or(lane);
        if !lane.is_empty() && !lanes.contains(&lane) {
            lanes.push(lane);
        }
    }
    format!("{}; {}", lanes.join(" and "), list(&goes))
}
