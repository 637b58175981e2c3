//! What documents say of the code must be there: the tests that promises name, the titles that
//! code refers to.

use std::collections::BTreeSet;

use super::{Finding, Source};

/// Documents in which each sentence names its tests.
const PROMISES: [&str; 3] = [
    "docs/SEMANTICS.md",
    "docs/failure-model.md",
    "docs/evidence.md",
];

/// The document that lists planted bugs beside the tests that see them.
const BUGS: &str = "docs/simulator.md";

pub(super) fn check(sources: &[Source]) -> Vec<Finding> {
    vec![
        ("tests that the promises name exist", missing_tests(sources)),
        (
            "titles of docs/format.md that code names exist",
            missing_titles(sources),
        ),
    ]
}

/// The names of all functions.
pub(super) fn functions(sources: &[Source]) -> BTreeSet<&str> {
    sources
        .iter()
        .filter(|source| source.is_rust())
        .flat_map(|source| source.text.split("fn ").skip(1))
        .filter_map(|rest| rest.split(['(', '<']).next())
        .collect()
}

fn missing_tests(sources: &[Source]) -> Vec<String> {
    let functions = functions(sources);
    let planted: BTreeSet<&str> = sources
        .iter()
        .filter(|source| source.is_rust())
        .flat_map(|source| quoted(&source.text, "canary::active!(\"", "\""))
        .collect();
    let mut missing = Vec::new();
    for source in sources {
        let path = source.path.to_string_lossy();
        let lists_bugs = path == BUGS;
        if lists_bugs || PROMISES.contains(&&*path) {
            let named = quoted(&source.text, "`", "`").filter(|name| is_sentence(name));
            let is_there =
                |name: &&str| functions.contains(name) || (lists_bugs && planted.contains(name));
            let gone = named.filter(|name| !is_there(name));
            missing.extend(gone.map(|name| format!("{path}: {name}")));
        }
    }
    missing
}

fn missing_titles(sources: &[Source]) -> Vec<String> {
    let format = sources
        .iter()
        .find(|source| source.path.ends_with("docs/format.md"));
    let titles: BTreeSet<&str> = format
        .into_iter()
        .flat_map(|source| source.text.lines())
        .filter_map(|line| line.strip_prefix('#'))
        .map(|title| title.trim_start_matches('#').trim())
        .collect();
    let mut missing = Vec::new();
    for source in sources.iter().filter(|source| source.is_rust()) {
        for title in quoted(&source.text, "docs/format.md \"", "\"") {
            if !titles.contains(title) && !title.contains(['{', '\\']) {
                missing.push(format!("{}: {title}", source.path.display()));
            }
        }
    }
    missing
}

/// A test is named as a sentence: at least four words.
fn is_sentence(name: &str) -> bool {
    let word = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
    name.matches('_').count() >= 3 && name.chars().all(word)
}

/// What stands between `open` and the next `close`, again and again.
fn quoted<'a>(text: &'a str, open: &'a str, close: &'a str) -> impl Iterator<Item = &'a str> {
    let mut rest = text;
    std::iter::from_fn(move || {
        let (_, after) = rest.split_once(open)?;
        let (inside, behind) = after.split_once(close)?;
        rest = behind;
        Some(inside)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(path: &str, text: &str) -> Source {
        Source {
            path: path.into(),
            text: text.into(),
        }
    }

    #[test]
    fn a_test_that_is_gone_and_a_title_that_is_not_there_are_named() {
        let code = "/// docs/format.md \"Frames\" and docs/format.md \"Nothing\"\n\
                    #[test]\nfn it_is_still_there() {}";
        let sources = [
            source("crates/x/tests/x.rs", code),
            source("docs/format.md", "# Format\n\n## Frames\n"),
            source(
                "docs/SEMANTICS.md",
                "engine `it_is_still_there`, `it_is_not_there_any_more`, `src/space.rs`",
            ),
            source(
                "crates/x/src/x.rs",
                "if canary::active!(\"a_bug_of_four_words\") {}",
            ),
            source(
                BUGS,
                "| `it_is_still_there` | `a_bug_of_four_words`, `a_bug_that_nobody_plants` |",
            ),
        ];
        let broken: Vec<String> = check(&sources).into_iter().flat_map(|f| f.1).collect();
        assert_eq!(
            broken,
            [
                "docs/SEMANTICS.md: it_is_not_there_any_more",
                "docs/simulator.md: a_bug_that_nobody_plants",
                "crates/x/tests/x.rs: Nothing"
            ]
        );
    }
}
