//! The page: what is better, equal and worse, and then each claim with its source, its commands, its tables and its limits.
//!
//! It is made of the result file alone. A run that failed or was left out says so, with the reason, and counts for nothing
//! else if it has no figures: not for when and of what the page is, and not for what is said of its figures.

use std::collections::BTreeSet;
use std::path::Path;

use super::execute::command_line;
use super::plan::{Row, Run};
use super::results::{Outcome, Results};
use super::section::{CHARTS, Judgement, Measured, NOT_MEASURED, Section};
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
        text += &summary(rows, &sections, results);
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
    let measured = || results.runs.values().filter(|run| run.has_figures());
    let goes: BTreeSet<String> = measured().map(|run| run.go.clone()).collect();
    let load = measured().map(|run| run.load_before).fold(0.0, f64::max);
    text += &match goes.len() {
        0 => "**Nothing was measured.**\n\n".to_owned(),
        1 => format!("Measured in one go that began {}.\n\n", list(&goes)),
        _ => format!(
            "**Not of one go**: they began {}. Each run says which it is of.\n\n",
            goes.iter().cloned().collect::<Vec<_>>().join("; ")
        ),
    };
    if measured().any(|run| run.quick) {
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
fn summary(rows: &[&Row], sections: &[Section], results: &Results) -> String {
    let mut text = String::new();
    // Of several rounds and of one alone, in the order of the standings.
    let mut stands = [[0; 3]; 2];
    let (mut withheld, mut missing) = (0, 0);
    for (row, section) in rows.iter().zip(sections) {
        for verdict in &section.verdicts {
            let is_of_one = is_of_one_round(row, verdict.run, results);
            let how = match &verdict.judgement {
                Judgement::Stands(standing) => {
                    stands[usize::from(is_of_one)][*standing as usize] += 1;
                    let rounds = if is_of_one { ", of one round" } else { "" };
                    format!("{}{rounds}", standing.name())
                }
                Judgement::Withheld(why) => {
                    withheld += 1;
                    format!("withheld: {}", one_line(why))
                }
                Judgement::NotMeasured => {
                    missing += 1;
                    NOT_MEASURED.to_owned()
                }
            };
            text += &format!(
                "| {} | {} | {} | {how} |\n",
                verdict.what, verdict.published, verdict.ours,
            );
        }
    }
    let [[better, equal, worse], [one_better, one_equal, one_worse]] = stands;
    format!(
        "## What is better, equal, worse\n\n\
         Of the middle of several rounds: {better} better, {equal} equal (within 5 %), {worse} worse. Of one round alone, which the next may turn \
         round: {one_better} better, {one_equal} equal, {one_worse} worse. {withheld} withheld, {missing} not measured. *Better* is against the published \
         ratio where one is published, else against the peer in the same run; what that is worth is said with each row's limits.\n\n\
         | what | published or peer | ours | |\n|---|---:|---:|---|\n{text}\n"
    )
}

/// Whether each figure of a run is of a single round.
fn is_of_one_round(row: &Row, run: &str, results: &Results) -> bool {
    let planned = row.runs.iter().find(|planned| planned.name == run);
    let result = results.runs.get(&format!("{}/{run}", row.id));
    planned
        .zip(result)
        .is_some_and(|(planned, result)| planned.rounds(result.quick) == 1)
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
    let measured = Measured {
        row: row.id,
        results,
    };
    for limit in row.limits {
        if limit.of.is_none_or(|run| measured.has(run)) {
            text += &format!("- {}\n", limit.text);
        }
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
    // Without figures it says nothing of any commit.
    let go = match result.has_figures() {
        true => format!(" ({kind}{})", result.go),
        false => String::new(),
    };
    format!(
        "| {} | `{}` | {} | {:.0} | {how}{go} |\n",
        run.name,
        result.command,
        result.lanes.join("; "),
        result.seconds,
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
        let run = results.runs.get(&format!("{}/{name}", row.id));
        let Some(run) = run.filter(|run| run.has_figures()) else {
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
