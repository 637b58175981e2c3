//! What came out of a step, read from what Rust's test harness prints.
//!
//! The harness does not know "skipped": a test that lacks something prints `skipped: why` and
//! returns. With `--show-output` that line appears under the test's name, and here it is counted.

use std::fmt;

/// What a machine for continuous integration provides: lacking it there is a failure.
const CI_PROVIDES: &[&str] = &[
    "not installed",
    "is not here",
    "is missing",
    "has no NBD engine",
    NO_GUESTS,
];

/// What is said of a machine that cannot run guests.
pub(super) const NO_GUESTS: &str = "this machine runs no guests";

/// Why a test is ignored that is none: another one starts it, as a process of its own. It is not
/// counted.
const ROLE: &str = "a role in another test";

/// Why a test may be skipped in a guest. Whatever else it lacks there is a fault of the lane.
const GUEST_MAY_SKIP: &[&str] = &["this kernel lacks", "only in the whole table"];

/// Passed, failed and skipped tests.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Counts {
    pub(super) passed: u64,
    /// Their names.
    pub(super) failed: Vec<String>,
    /// Their names and why.
    pub(super) skipped: Vec<String>,
}

impl Counts {
    pub(super) fn add(&mut self, other: &Counts) {
        self.passed += other.passed;
        self.failed.extend(other.failed.iter().cloned());
        self.skipped.extend(other.skipped.iter().cloned());
    }

    /// Turns the skips that must not be into failures.
    pub(super) fn skips_that_fail(&mut self) {
        self.fail_skips(|skip| CI_PROVIDES.iter().any(|words| skip.contains(words)));
    }

    /// Turns the skips into failures that a guest gives no reason for.
    pub(super) fn skips_that_fail_in_a_guest(&mut self) {
        self.fail_skips(|skip| !GUEST_MAY_SKIP.iter().any(|words| skip.contains(words)));
    }

    fn fail_skips(&mut self, fails: impl Fn(&str) -> bool) {
        let (failed, skipped) = self.skipped.drain(..).partition(|skip| fails(skip));
        self.skipped = skipped;
        let failed: Vec<String> = failed;
        self.failed.extend(failed);
    }
}

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (failed, skipped) = (self.failed.len(), self.skipped.len());
        write!(
            f,
            "{} passed, {failed} failed, {skipped} skipped",
            self.passed
        )
    }
}

/// Reads the output of test programs line by line.
#[derive(Debug, Default)]
pub(super) struct Reader {
    counts: Counts,
    /// The program that runs.
    program: String,
    /// The test whose output this is, while the outputs of passed tests are printed.
    shown: Option<String>,
    in_successes: bool,
    /// Skips of this program: to be taken off its passed tests.
    skipped_here: u64,
    /// Programs without a single test.
    empty: Vec<String>,
}

impl Reader {
    /// Takes one line; whether it is worth a developer's time.
    pub(super) fn line(&mut self, line: &str) -> bool {
        let word = line.trim_start();
        if let Some(program) = word
            .strip_prefix("Running ")
            .or(word.strip_prefix("Doc-tests "))
        {
            self.program = program.split(" (").next().unwrap_or(program).to_owned();
            self.shown = None;
            return true;
        }
        if line == "successes:" || line == "failures:" {
            self.in_successes = line == "successes:";
            self.shown = None;
            return !self.in_successes;
        }
        if let Some(rest) = line.strip_prefix("test result: ") {
            self.result(rest);
            return true;
        }
        if let Some(rest) = line.strip_prefix("test ") {
            return self.verdict(rest);
        }
        let name = line
            .strip_prefix("---- ")
            .and_then(|rest| rest.strip_suffix(" stdout ----"));
        if let Some(name) = name.filter(|_| self.in_successes) {
            self.shown = Some(name.to_owned());
            return false;
        }
        if self.in_successes {
            return self.skip(line);
        }
        !word.is_empty() && !line.starts_with("running ")
    }

    /// The line `test NAME ... VERDICT`; a passed one is not shown.
    fn verdict(&mut self, rest: &str) -> bool {
        let Some((name, verdict)) = rest.rsplit_once(" ... ") else {
            return true;
        };
        if verdict == "FAILED" {
            self.counts.failed.push(format!("{} {name}", self.program));
        } else if let Some(why) = verdict.strip_prefix("ignored") {
            let why = why.trim_start_matches(", ");
            if why == ROLE {
                return false;
            }
            self.counts
                .skipped
                .push(format!("{} {name}: {why}", self.program));
        }
        verdict != "ok"
    }

    /// A line that a passed test printed.
    fn skip(&mut self, line: &str) -> bool {
        let Some(why) = line.trim_start().strip_prefix("skipped: ") else {
            return false;
        };
        if let Some(name) = self.shown.take() {
            self.counts
                .skipped
                .push(format!("{} {name}: {why}", self.program));
            self.skipped_here += 1;
        }
        true
    }

    /// `ok. 3 passed; 0 failed; …`
    fn result(&mut self, rest: &str) {
        let passed = rest
            .split_once(" passed;")
            .and_then(|(left, _)| left.rsplit(' ').next())
            .and_then(|number| number.parse::<u64>().ok())
            .unwrap_or(0);
        if passed == 0 && rest.contains(" 0 failed;") && rest.contains(" 0 ignored;") {
            self.empty.push(self.program.clone());
        }
        self.counts.passed += passed.saturating_sub(self.skipped_here);
        self.skipped_here = 0;
        self.in_successes = false;
        self.shown = None;
    }

    /// The end: `ok` is what the exit status said, `what` was run.
    pub(super) fn finish(mut self, ok: bool, what: &str) -> Counts {
        if !ok && self.counts.failed.is_empty() {
            // It did not compile, or died without a verdict.
            let program = if self.program.is_empty() {
                what
            } else {
                &self.program
            };
            self.counts
                .failed
                .push(format!("{program} ended with an error"));
        }
        self.counts
    }

    /// The end in a guest: every program has tests there, and what they need.
    pub(super) fn finish_in_guest(mut self, ok: bool, what: &str) -> Counts {
        let empty = std::mem::take(&mut self.empty);
        let mut counts = self.finish(ok, what);
        counts.skips_that_fail_in_a_guest();
        let none = |program| format!("{program} ran no test");
        counts.failed.extend(empty.into_iter().map(none));
        if counts == Counts::default() {
            counts.failed.push(format!("no test ran: {what}"));
        }
        counts
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str, ok: bool) -> Counts {
        let mut reader = Reader::default();
        for line in text.lines() {
            reader.line(line);
        }
        reader.finish(ok, "cargo test")
    }

    const PASSED: &str = "     Running unittests src/lib.rs (target/debug/deps/a-1)\n\
        running 3 tests\ntest a ... ok\ntest b ... ok\ntest c ... ignored, too slow\n\n\
        successes:\n\n---- b stdout ----\nskipped: fio is not installed\nmore\n\n\
        successes:\n    a\n    b\n\n\
        test result: ok. 2 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out\n";

    #[test]
    fn a_test_that_says_skipped_is_not_counted_as_passed() {
        let counts = read(PASSED, true);
        assert_eq!(counts.to_string(), "1 passed, 0 failed, 2 skipped");
        assert_eq!(
            counts.skipped[1],
            "unittests src/lib.rs b: fio is not installed"
        );
    }

    #[test]
    fn under_ci_a_missing_tool_fails_and_a_slow_test_does_not() {
        let mut counts = read(PASSED, true);
        counts.skips_that_fail();
        assert_eq!(counts.to_string(), "1 passed, 1 failed, 1 skipped");
    }

    #[test]
    fn a_role_in_another_test_is_not_counted() {
        let text = PASSED.replace("too slow", ROLE);
        assert_eq!(
            read(&text, true).to_string(),
            "1 passed, 0 failed, 1 skipped"
        );
    }

    fn read_in_guest(text: &str) -> Counts {
        let mut reader = Reader::default();
        for line in text.lines() {
            reader.line(line);
        }
        reader.finish_in_guest(true, "the guest")
    }

    #[test]
    fn in_a_guest_only_the_kernel_and_the_table_excuse_a_skip() {
        let excused = PASSED.replace("fio is not installed", "this kernel lacks zero-copy");
        assert_eq!(read_in_guest(&excused).failed.len(), 1);
        let excused = excused.replace("too slow", "only in the whole table");
        assert_eq!(
            read_in_guest(&excused).to_string(),
            "1 passed, 0 failed, 2 skipped"
        );
        let lacking = PASSED.replace("fio is not installed", "no /dev/ublk-control");
        assert_eq!(read_in_guest(&lacking).failed.len(), 2);
    }

    #[test]
    fn in_a_guest_a_program_without_tests_fails_and_so_does_silence() {
        let empty = "     Running tests/guest_x.rs (x-1)\nrunning 0 tests\n\n\
            test result: ok. 0 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out\n";
        assert_eq!(
            read_in_guest(empty).failed,
            ["tests/guest_x.rs ran no test"]
        );
        assert_eq!(read_in_guest("").failed, ["no test ran: the guest"]);
    }

    #[test]
    fn failures_are_named_once() {
        let text = "     Running tests/x.rs (target/debug/deps/x-1)\n\
            test a ... FAILED\ntest b ... ok\n\nsuccesses:\n\nsuccesses:\n    b\n\nfailures:\n\n\
            ---- a stdout ----\nskipped: not this\npanicked\n\nfailures:\n    a\n\n\
            test result: FAILED. 1 passed; 1 failed; 0 ignored; 0 measured\n";
        let counts = read(text, false);
        assert_eq!(counts.to_string(), "1 passed, 1 failed, 0 skipped");
        assert_eq!(counts.failed, ["tests/x.rs a"]);
    }

    #[test]
    fn what_dies_without_a_verdict_is_a_failure() {
        assert_eq!(read("error: could not compile\n", false).failed.len(), 1);
        let died = "     Running tests/x.rs (x-1)\ntest a ... ok\n";
        assert_eq!(read(died, false).failed, ["tests/x.rs ended with an error"]);
    }
}
