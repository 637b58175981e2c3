//! `cargo xtask evidence`: published claims beside ours, measured by one command and shown on one page.
//!
//! Each row names a claim, its source, and the benchmarks of ours that measure the same; those run as programs of
//! their own, one after the other, each under a deadline. What they print for programs goes into one result file, and the
//! page is made of that alone. Nothing is measured here, and nothing is shown that was not.

mod bugs;
mod execute;
mod page;
mod plan;
mod results;
mod section;
mod tables;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use clap::ValueEnum;
use clap::builder::PossibleValuesParser;

use crate::vm::Kernel;
use crate::{Failure, process, vm, workspace};
use execute::{Go, command_line};
use page::Page;
use plan::Row;
use results::{Outcome, Results};
use tables::ROWS;

/// Arguments of `cargo xtask evidence`.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Minutes instead of hours: fewer rounds, fewer devices, and what takes long left out
    #[arg(long)]
    quick: bool,
    /// Only these rows, into a result and a page of their own below target/evidence, unless --resume adds them to the whole
    #[arg(
        long,
        value_delimiter = ',',
        value_name = "ROW,...",
        value_parser = PossibleValuesParser::new(ROWS.iter().map(|row| row.id))
    )]
    only: Vec<String>,
    /// Keep what the last invocation measured, and go on with the rest
    #[arg(long)]
    resume: bool,
    /// Make the page of this result file, and measure nothing
    #[arg(long, value_name = "FILE", conflicts_with_all = ["quick", "only", "resume"])]
    render: Option<PathBuf>,
    /// The page; its charts go into the directory of the same name. docs/evidence.md, or with --only a file below
    /// target/evidence
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
}

impl Arguments {
    fn is_apart(&self) -> bool {
        !self.only.is_empty() && !self.resume
    }

    fn wants(&self, row: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|id| id == row)
    }

    fn result_file(&self) -> PathBuf {
        let name = if self.is_apart() { "only" } else { "results" };
        workspace::target().join(format!("evidence/{name}.json"))
    }

    fn page_file(&self) -> PathBuf {
        match &self.out {
            Some(out) => out.clone(),
            None if self.is_apart() => workspace::target().join("evidence/only.md"),
            None => workspace::root().join("docs/evidence.md"),
        }
    }
}

pub(crate) fn run(arguments: &Arguments) -> Result<(), Failure> {
    let out = arguments.page_file();
    if let Some(file) = &arguments.render {
        Page::write(&rows(|_| true), &Results::load(file)?, &out)?;
        println!("{}", out.display());
        return Ok(());
    }
    std::fs::create_dir_all(workspace::target().join("evidence"))?;
    let file = arguments.result_file();
    let mut results = match arguments.resume && file.exists() {
        true => Results::load(&file)?,
        false => Results::default(),
    };
    let go = Go::begin(arguments.quick)?;
    prepare(arguments, &go)?;
    measure(arguments, &go, &mut results, &file)?;
    // A page of some rows has those alone; the whole one says of each what is missing.
    let shown = rows(|row| !arguments.is_apart() || arguments.wants(row.id));
    Page::write(&shown, &results, &out)?;
    println!("\n{}\n{}", file.display(), out.display());
    let failed: Vec<&str> = results
        .runs
        .iter()
        .filter(|(_, run)| matches!(run.outcome, Outcome::Failed(_)))
        .map(|(name, _)| name.as_str())
        .collect();
    match failed.as_slice() {
        [] => Ok(()),
        failed => Err(format!(
            "failed: {}; the page says why, {} tries them again",
            failed.join(", "),
            command_line(&["evidence", "--resume"])
        )
        .into()),
    }
}

fn rows(are_shown: impl Fn(&Row) -> bool) -> Vec<&'static Row> {
    ROWS.iter().filter(|row| are_shown(row)).collect()
}

/// Runs what is wanted and not measured yet.
fn measure(
    arguments: &Arguments,
    go: &Go,
    results: &mut Results,
    file: &Path,
) -> Result<(), Failure> {
    for row in ROWS.iter().filter(|row| arguments.wants(row.id)) {
        for run in row.runs {
            let name = format!("{}/{}", row.id, run.name);
            let kept = results.runs.get(&name);
            if kept.is_some_and(|run| run.outcome == Outcome::Measured && run.quick == go.quick) {
                println!("{name}: kept");
                continue;
            }
            results.runs.insert(name, go.measure(row, run)?);
            results.save(file)?;
        }
    }
    Ok(())
}

/// Builds what the benchmarks would build, and makes their kernels ready, so that no deadline has that in it.
fn prepare(arguments: &Arguments, go: &Go) -> Result<(), Failure> {
    for words in [
        &["-p", "ublk", "--examples"][..],
        &["-p", "firn"],
        &["-p", "nbd", "--example", "bare_file"],
    ] {
        let mut build = workspace::cargo(["build", "--quiet", "--profile", "dist"]);
        process::run(build.args(words))?;
    }
    let wanted = rows(|row| arguments.wants(row.id));
    let runs = wanted.iter().flat_map(|row| row.runs);
    let kernels: BTreeSet<&str> = runs
        .filter_map(|run| kernel_of(run.words(go.quick)?))
        .collect();
    for kernel in kernels {
        // What this machine cannot do is said by the run that needs it.
        let made =
            Kernel::from_str(kernel, false).map_or_else(|error| Err(error.into()), vm::prepare);
        if let Err(error) = made {
            println!("{kernel}: {error}");
        }
    }
    Ok(())
}

/// The kernel of the guest that a command starts, if it starts one.
fn kernel_of(words: &'static [&'static str]) -> Option<&'static str> {
    let named = words.iter().position(|word| *word == "--kernel");
    match words {
        _ if named.is_some() => words.get(named? + 1).copied(),
        ["bench", "ublk" | "volume", ..] | ["soak", ..] => Some("uml"),
        _ => None,
    }
}
