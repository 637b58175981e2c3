//! `cargo xtask tidy`: the house rules that neither the compiler nor clippy knows.
//!
//! Each rule is a function from the workspace's files to the places that break it. An exception
//! stands in a table here, with its reason, or there is none.

mod arrows;
mod circles;
mod docs;
mod fence;
mod files;
mod models;
mod uses;

use std::path::{Path, PathBuf};

use clap::Args;

use crate::{Failure, workspace};

/// A rule and the places that break it.
pub(crate) type Finding = (&'static str, Vec<String>);

/// A text file of the workspace.
struct Source {
    /// From the workspace's root.
    path: PathBuf,
    text: String,
}

impl Source {
    fn is_rust(&self) -> bool {
        self.path
            .extension()
            .is_some_and(|extension| extension == "rs")
    }
}

#[derive(Args)]
pub(crate) struct Arguments {
    /// Only list the files of a crate that use each other in a circle, and what ties them
    #[arg(long)]
    circles: bool,
}

pub(crate) fn run(arguments: &Arguments) -> Result<(), Failure> {
    if arguments.circles {
        let circles = circles::circles(&sources(workspace::root()));
        circles.iter().for_each(|circle| println!("{circle}"));
        return Ok(());
    }
    let mut broken = 0;
    for (rule, places) in check() {
        println!(
            "{rule}: {}",
            if places.is_empty() { "good" } else { "broken" }
        );
        places.iter().for_each(|place| println!("    {place}"));
        broken += places.len();
    }
    match broken {
        0 => Ok(()),
        n => Err(format!("{n} places break a rule").into()),
    }
}

/// Checks every rule.
pub(crate) fn check() -> Vec<Finding> {
    let sources = sources(workspace::root());
    let mut findings = files::check(&sources);
    findings.extend(arrows::check(&sources));
    findings.extend(docs::check(&sources));
    findings.push((
        "protocol cores name no clock, thread, socket or file",
        sources.iter().flat_map(fence::outside_names).collect(),
    ));
    findings.push((
        "the engine takes locks, atomics and threads from the file that its models see",
        sources.iter().flat_map(models::unseen_names).collect(),
    ));
    findings.push((
        "files of a crate do not use each other in a circle",
        circles::circles(&sources),
    ));
    findings
}

/// Of these names those that no function of the workspace has.
#[cfg(test)]
pub(crate) fn missing_functions(names: &[&str]) -> Vec<String> {
    let sources = sources(workspace::root());
    let functions = docs::functions(&sources);
    let missing = names.iter().filter(|name| !functions.contains(**name));
    missing.map(|name| (*name).to_owned()).collect()
}

/// Every text file below `root` that is not built or hidden.
fn sources(root: &Path) -> Vec<Source> {
    let mut found = Vec::new();
    let mut directories = vec![root.to_owned()];
    while let Some(directory) = directories.pop() {
        for entry in std::fs::read_dir(&directory)
            .into_iter()
            .flatten()
            .flatten()
        {
            let path = entry.path();
            let name = entry.file_name();
            let hidden = name.to_string_lossy().starts_with('.');
            if path.is_dir() {
                let made = ["target", "firn-data", "corpus"]
                    .iter()
                    .any(|made| name == *made);
                let ours = !hidden || name == ".ci" || name == ".cargo";
                if ours && !made {
                    directories.push(path);
                }
            } else if hidden {
                // Settings of tools, and whatever else is nobody's to read.
            } else if let Ok(text) = std::fs::read_to_string(&path) {
                let path = path.strip_prefix(root).unwrap_or(&path).to_owned();
                found.push(Source { path, text });
            }
        }
    }
    found.sort_by(|a, b| a.path.cmp(&b.path));
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_house_is_tidy() {
        for (rule, places) in check() {
            assert!(places.is_empty(), "{rule}: {places:#?}");
        }
    }
}
