//! Rules about single files: size, first line, names, words.

use super::{Finding, Source};

/// Lines of code (not blank, not only a comment, before the tests) that a file may have.
const LINES_MAX: usize = 500;
/// The same for files of tests.
const TEST_LINES_MAX: usize = 800;

/// Names that say nothing about what is inside.
const EMPTY_NAMES: &[&str] = &["utils", "util", "helpers", "helper", "misc"];

/// Rooms without unsafe code; `reactor` and `blkmq` have theirs, under clippy's rules.
const SAFE: &[&str] = &[
    "crates/firn/src/main.rs",
    "crates/messenger/src/lib.rs",
    "crates/nbd/src/lib.rs",
    "crates/s3-testbed/src/lib.rs",
    "crates/store/src/lib.rs",
    "crates/volume/src/lib.rs",
    "sim/src/lib.rs",
    "xtask/src/main.rs",
];

pub(super) fn check(sources: &[Source]) -> Vec<Finding> {
    let rust: Vec<&Source> = sources.iter().filter(|source| source.is_rust()).collect();
    vec![
        (
            "a file has at most 500 lines of code",
            each(&rust, too_long),
        ),
        (
            "a file begins with //! and what it is",
            each(&rust, no_head),
        ),
        ("a file's name says what is inside", each(&rust, empty_name)),
        (
            "what is to be done is an issue",
            each(&rust, find_open_task),
        ),
        ("safe rooms forbid unsafe code", each(&rust, may_be_unsafe)),
        (
            "no path of a developer's machine",
            sources.iter().flat_map(machine_paths).collect(),
        ),
    ]
}

fn each(sources: &[&Source], rule: fn(&Source) -> Option<String>) -> Vec<String> {
    let told = |source: &&Source| {
        let why = rule(source)?;
        Some(format!("{}: {why}", source.path.display()))
    };
    sources.iter().filter_map(told).collect()
}

fn too_long(source: &Source) -> Option<String> {
    let path = source.path.to_string_lossy();
    let test = path.contains("/tests/") || path.ends_with("tests.rs");
    let most = if test { TEST_LINES_MAX } else { LINES_MAX };
    let lines = code_lines(&source.text);
    (lines > most).then(|| format!("{lines} lines of code, at most {most}"))
}

/// Lines before the unit tests that are neither blank nor a comment alone.
fn code_lines(text: &str) -> usize {
    text.lines()
        .take_while(|line| *line != "#[cfg(test)]" || text.starts_with("#![cfg(test)]"))
        .map(str::trim)
        .filter(|line| !line.is_empty() && !line.starts_with("//"))
        .count()
}

fn no_head(source: &Source) -> Option<String> {
    let first = source.text.lines().find(|line| !line.starts_with("#!["));
    let good = first.is_some_and(|line| line.starts_with("//! "));
    (!good).then(|| "its first line is no //!".to_owned())
}

fn empty_name(source: &Source) -> Option<String> {
    let stem = source.path.file_stem()?.to_str()?;
    EMPTY_NAMES
        .contains(&stem)
        .then(|| format!("{stem} is no name"))
}

fn find_open_task(source: &Source) -> Option<String> {
    // Spelled so that this file does not name itself.
    let marks = [
        concat!("TO", "DO"),
        concat!("FIX", "ME"),
        concat!("XX", "X"),
    ];
    let marked = |line: &&str| {
        let words = || line.split(|c: char| !c.is_ascii_alphanumeric());
        words().any(|word| marks.contains(&word)) && !line.contains("issue")
    };
    source.text.lines().find(marked).map(str::to_owned)
}

fn may_be_unsafe(source: &Source) -> Option<String> {
    let path = source.path.to_str()?;
    let open = SAFE.contains(&path) && !source.text.contains("#![forbid(unsafe_code)]");
    open.then(|| "no #![forbid(unsafe_code)]".to_owned())
}

fn machine_paths(source: &Source) -> Vec<String> {
    // Spelled so that this file does not name itself.
    let homes = [
        concat!("/ho", "me/"),
        concat!("/ro", "ot/"),
        concat!("/wo", "rk/"),
    ];
    let path = source.path.display();
    source
        .text
        .lines()
        .enumerate()
        .filter(|(_, line)| homes.iter().any(|home| line.contains(home)))
        .map(|(number, line)| format!("{path}:{}: {}", number + 1, line.trim()))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn violations(path: &str, text: &str) -> Vec<&'static str> {
        let source = Source {
            path: path.into(),
            text: text.into(),
        };
        let findings = check(&[source]).into_iter();
        findings
            .filter(|(_, places)| !places.is_empty())
            .map(|(rule, _)| rule)
            .collect()
    }

    #[test]
    fn each_rule_is_broken_by_what_it_forbids() {
        assert_eq!(
            violations("sim/src/x.rs", "//! Good.\nfn f() {}\n"),
            [""; 0]
        );
        assert_eq!(violations("sim/src/x.rs", "fn f() {}\n").len(), 1);
        assert_eq!(violations("sim/src/helpers.rs", "//! Bad.\n").len(), 1);
        assert_eq!(violations("sim/src/lib.rs", "//! Bad.\n").len(), 1);
        let undone = format!("//! Bad.\n// {}: later\n", concat!("TO", "DO"));
        assert_eq!(violations("sim/src/x.rs", &undone).len(), 1);
        let path = format!("see {}me/me/firn\n", "/ho");
        assert_eq!(violations("docs/x.md", &path).len(), 1);
    }

    #[test]
    fn lines_of_tests_comments_and_blank_lines_are_not_counted() {
        let code = "    f();\n".repeat(500);
        let free = "// why\n\n".repeat(300);
        let tests = format!("#[cfg(test)]\n{}", "    f();\n".repeat(300));
        assert_eq!(
            violations("sim/src/x.rs", &format!("//! X.\n{free}{code}{tests}")),
            [""; 0]
        );
        assert_eq!(
            violations("sim/src/x.rs", &format!("//! X.\n{code}    f();\n")).len(),
            1
        );
    }
}
