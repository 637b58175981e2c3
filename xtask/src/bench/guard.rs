//! `cargo xtask bench guard`: the instructions of a request, against those that are committed.
//!
//! It owns the table in docs/benchmarks/request.md, which is the baseline and the page in one. A case that
//! takes more than a fiftieth above its row fails; who means it writes the table anew in the same commit,
//! and says why. It must not time anything: callgrind counts instructions, which are the same on every
//! run of one build, and the kernel has no part in them.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use crate::{Failure, workspace};

/// The page with the baseline, from the workspace's root.
const PAGE: &str = "docs/benchmarks/request.md";
/// As what is packaged, but rustix takes the auxiliary vector from the C library: the kernel's own names a vDSO
/// that valgrind has unmapped, and a look into it ends the program.
const BUILD: [&str; 4] = ["--profile", "dist", "--features", "rustix/use-libc-auxv"];
/// Calls of what is counted, and requests that each of them serves.
const TURNS: u64 = 60;
/// A case may be worse by one part in so many.
const TOLERANCE: u64 = 50;

/// Arguments of `cargo xtask bench guard`.
#[derive(Clone, clap::Args)]
pub(crate) struct Arguments {
    /// Write what was counted into the page
    #[arg(long)]
    write: bool,
}

pub(super) fn run(arguments: &Arguments) -> Result<(), Failure> {
    if Command::new("valgrind").arg("--version").output().is_err() {
        return Err("valgrind is not installed: it counts the instructions".into());
    }
    let program = super::build("ublk", "request", &BUILD)?;
    let list = Command::new(&program).output()?;
    let cases = String::from_utf8(list.stdout)?;
    let page = workspace::root().join(PAGE);
    let text = std::fs::read_to_string(&page).map_err(|error| format!("{PAGE}: {error}"))?;
    let baseline = rows(&text);
    let mut counts = BTreeMap::new();
    println!("| case | baseline | now | change |\n|---|---:|---:|---:|");
    for case in cases.lines() {
        let now = count(&program, case)?;
        counts.insert(case.to_owned(), now);
        match baseline.get(case) {
            Some(&before) => {
                let change = 100.0 * (now as f64 / before as f64 - 1.0);
                println!("| {case} | {before} | {now} | {change:+.1} % |");
            }
            None => println!("| {case} | none | {now} | |"),
        }
    }
    if arguments.write {
        std::fs::write(&page, with_rows(&text, &counts))?;
        println!("{PAGE}");
        return Ok(());
    }
    judge(&baseline, &counts).map_err(Failure::from)
}

/// Instructions of one request of a case.
fn count(program: &Path, case: &str) -> Result<u64, Failure> {
    let output = Command::new("valgrind")
        .args(["--tool=callgrind", "--callgrind-out-file=/dev/null"])
        .arg("--toggle-collect=*serve_turn*")
        .arg(program)
        .args([case, &TURNS.to_string()])
        .output()?;
    let served: u64 = String::from_utf8_lossy(&output.stdout)
        .trim()
        .parse()
        .unwrap_or(0);
    super::collected(&output)
        .filter(|_| output.status.success() && served > 0)
        .map(|counted| counted / served)
        .ok_or_else(|| {
            let report = String::from_utf8_lossy(&output.stderr);
            format!("callgrind gave no count for \"{case}\":\n{report}").into()
        })
}

/// A row of the table: its case and its count.
fn row(line: &str) -> Option<(&str, u64)> {
    let mut cells = line.strip_prefix("| ")?.strip_suffix(" |")?.split(" | ");
    let (case, count) = (cells.next()?, cells.next()?);
    let count = count.replace(',', "").parse().ok()?;
    cells.next().is_none().then_some((case, count))
}

fn rows(page: &str) -> BTreeMap<&str, u64> {
    page.lines().filter_map(row).collect()
}

/// The page with these counts; a case that it does not have follows the last row.
fn with_rows(page: &str, counts: &BTreeMap<String, u64>) -> String {
    let mut left = counts.clone();
    let mut lines: Vec<String> = Vec::new();
    let mut end = 0;
    for line in page.lines() {
        match row(line).map(|(case, _)| (case, left.remove(case))) {
            // What is counted no more loses its row.
            Some((_, None)) => {}
            Some((case, Some(count))) => lines.push(format!("| {case} | {count} |")),
            None => {
                lines.push(line.to_owned());
                if !line.starts_with("|---") {
                    continue;
                }
            }
        }
        end = lines.len();
    }
    let new = left
        .iter()
        .map(|(case, count)| format!("| {case} | {count} |"));
    lines.splice(end..end, new);
    lines.join("\n") + "\n"
}

/// Whether no case is worse than it may be, and all that are in the table were counted.
fn judge(baseline: &BTreeMap<&str, u64>, counts: &BTreeMap<String, u64>) -> Result<(), String> {
    let mut findings = Vec::new();
    for (case, now) in counts {
        match baseline.get(&**case) {
            None => findings.push(format!("\"{case}\" has no row")),
            Some(before) if now * TOLERANCE > before * (TOLERANCE + 1) => {
                findings.push(format!("\"{case}\" takes {now} instructions, not {before}"));
            }
            Some(_) => {}
        }
    }
    let gone = baseline.keys().filter(|case| !counts.contains_key(**case));
    findings.extend(gone.map(|case| format!("\"{case}\" is not counted any more")));
    if findings.is_empty() {
        return Ok(());
    }
    Err(format!(
        "{}; where that is meant, run `cargo xtask bench guard --write` and commit {PAGE} with the \
         reason (another compiler counts differently, too)",
        findings.join(", ")
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str =
        "# Page\n\n| case | instructions |\n|---|---:|\n| a 4k | 1,000 |\n| b | 70 |\n\nEnd.\n";

    fn counts(list: &[(&str, u64)]) -> BTreeMap<String, u64> {
        list.iter()
            .map(|(case, n)| ((*case).to_owned(), *n))
            .collect()
    }

    #[test]
    fn what_takes_a_fiftieth_more_passes_and_what_takes_more_than_that_fails() {
        let baseline = rows(TABLE);
        assert_eq!(baseline, BTreeMap::from([("a 4k", 1000), ("b", 70)]));
        assert_eq!(
            judge(&baseline, &counts(&[("a 4k", 1020), ("b", 1)])),
            Ok(())
        );
        let worse = judge(&baseline, &counts(&[("a 4k", 1021), ("b", 70)])).unwrap_err();
        assert!(worse.contains("1021 instructions, not 1000"), "{worse}");
        assert!(
            judge(&baseline, &counts(&[("a 4k", 1000)])).is_err(),
            "gone"
        );
        let new = counts(&[("a 4k", 1000), ("b", 70), ("c", 1)]);
        assert!(judge(&baseline, &new).is_err(), "without a row");
    }

    #[test]
    fn a_table_written_anew_has_the_counts_and_the_rest_of_the_page() {
        let new = with_rows(TABLE, &counts(&[("a 4k", 999), ("c", 5)]));
        let want =
            "# Page\n\n| case | instructions |\n|---|---:|\n| a 4k | 999 |\n| c | 5 |\n\nEnd.\n";
        assert_eq!(new, want);
    }
}
