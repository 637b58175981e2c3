//! `cargo xtask canaries`: the tests that run in guests see the bugs that they are there for.
//!
//! A test that cannot fail proves nothing. The real server is built with planted bugs, in a target
//! directory of its own, and each run here must end with the words by which its bug is known: any
//! other failure, and success above all, fails the command. The bugs are the simulator's
//! (the crate `canary`); what ships has none of them.

mod planted;

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::time::Instant;

use self::planted::{CANARIES, Canary, Detector};
use crate::test::{self, TestProgram};
use crate::{Failure, minio, process, vm};

/// Arguments of `cargo xtask canaries`.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Where: uml (where it has been built, that is usual), or a packaged kernel
    #[arg(long)]
    kernel: Option<String>,
    /// Only the bug of this name
    #[arg(long)]
    only: Option<String>,
}

/// Power cuts per data mode: a dropped FUA shows only in a cut before the next flush.
const POWER_CUTS: &str = "16";

pub(crate) fn run(arguments: &Arguments) -> Result<(), Failure> {
    let kernel = match arguments.kernel.as_deref() {
        Some(kernel) => kernel,
        None if vm::has_user_mode() => "uml",
        None => "recent",
    };
    let wanted = |canary: &&Canary| {
        let only = arguments.only.as_deref();
        only.is_none_or(|name| name == canary.name)
    };
    let canaries: Vec<_> = CANARIES.iter().filter(wanted).collect();
    if canaries.is_empty() {
        let names = CANARIES.map(|canary| canary.name).join(", ");
        return Err(format!("no such bug; there are: {names}").into());
    }
    let programs = build()?;
    let mut unseen = Vec::new();
    for canary in canaries {
        println!("== {}: {}", canary.name, canary.what);
        let begun = Instant::now();
        let mut command = command(kernel, canary, &programs)?;
        let found = run_until_detected(&mut command, canary.words)?;
        let seconds = begun.elapsed().as_secs_f64();
        match found {
            Some(line) => println!("== {}: seen after {seconds:.0} s: {line}", canary.name),
            None => unseen.push(canary.name),
        }
    }
    if unseen.is_empty() {
        println!("each planted bug was seen");
        return Ok(());
    }
    Err(format!("planted and not seen: {}", unseen.join(", ")).into())
}

/// Builds the server and the test programs with the planted bugs.
fn build() -> Result<Vec<TestProgram>, Failure> {
    let programs = CANARIES.iter().map(|canary| match canary.judge {
        Detector::Test(program, _) | Detector::Here(program, _) => program,
    });
    let programs: BTreeSet<_> = programs.collect();
    let tests = programs.into_iter().flat_map(|program| ["--test", program]);
    test::build_programs(["--bin", "firn"].into_iter().chain(tests))
}

/// The run that must see a canary.
fn command(kernel: &str, canary: &Canary, programs: &[TestProgram]) -> Result<Command, Failure> {
    let planted = OsString::from(format!("FIRN_CANARY={}", canary.name));
    let mut command = Command::new(process::own_path()?);
    let find = |name| {
        let program = programs.iter().find(|built| built.name == name);
        let program = program.ok_or("cargo did not say where a test program is")?;
        Ok::<_, Failure>(&program.path)
    };
    match canary.judge {
        Detector::Here(name, test) => {
            let mut command = Command::new("sh");
            command.env("FIRN_CANARY", canary.name);
            if name.starts_with(minio::TESTS) {
                minio::build()?;
                minio::set_environment(&mut command);
            }
            // Panics are said on standard error.
            command.args(["-c", r#"exec "$@" 2>&1"#, "canary"]);
            command
                .arg(find(name)?)
                .args(["--exact", test, "--nocapture"]);
            return Ok(command);
        }
        Detector::Test(name, test) => {
            let program = find(name)?;
            let file = test.split("::").next().unwrap_or(test);
            command.args(["vm", "--kernel", kernel, "--deadline", "1800"]);
            command
                .args(test::memory_arguments(file))
                .args(["--", "env"]);
            command
                .arg(planted)
                .arg(format!("FIRN_POWER_CUTS={POWER_CUTS}"));
            command.args(["sh", "-c", RUN, "canary"]).arg(program);
            command.args(["--exact", test, "--nocapture"]);
        }
    }
    Ok(command)
}

const RUN: &str =
    r#"modprobe ublk_drv || exit 1; modprobe -qa loop dm-delay dm-flakey dm-log-writes; exec "$@""#;

/// Runs a command that must fail, showing what it prints; the first line with one of the words.
fn run_until_detected(command: &mut Command, words: &[&str]) -> Result<Option<String>, Failure> {
    println!("$ {}", process::command_line(command));
    let mut child = command.stdout(Stdio::piped()).spawn()?;
    let output = child.stdout.take().ok_or("its output is piped")?;
    let mut found = None;
    for line in BufReader::new(output).split(b'\n') {
        let line = String::from_utf8_lossy(&line?).into_owned();
        println!("{line}");
        if found.is_none() && words.iter().any(|words| line.contains(words)) {
            found = Some(line);
        }
    }
    let failed = !child.wait()?.success();
    Ok(found.filter(|_| failed))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workspace;

    #[test]
    fn only_a_failure_with_the_words_of_the_bug_counts() {
        let said = |script: &str| {
            let mut shell = Command::new("sh");
            run_until_detected(shell.args(["-c", script]), &["is missing"]).unwrap()
        };
        assert_eq!(said("echo 3 is missing; exit 1").unwrap(), "3 is missing");
        assert_eq!(said("echo 3 is missing"), None);
        assert_eq!(said("echo no such device; exit 1"), None);
    }

    #[test]
    fn every_bug_that_the_server_can_be_built_with_is_listed() {
        let listed = CANARIES.map(|canary| canary.name);
        for room in ["firn", "nbd"] {
            let sources = workspace::root().join("crates").join(room).join("src");
            assert_eq!(canary::unlisted(sources, &listed), Vec::<String>::new());
        }
    }

    #[test]
    fn the_tests_that_are_to_see_a_bug_are_there() {
        for canary in &CANARIES {
            let (Detector::Test(program, test) | Detector::Here(program, test)) = canary.judge;
            let (file, function) = match test.split_once("::") {
                Some((module, function)) => (format!("{program}/{module}"), function),
                None => (program.to_owned(), test),
            };
            let path = workspace::root().join(format!("crates/firn/tests/{file}.rs"));
            let text = std::fs::read_to_string(path).unwrap();
            assert!(text.contains(&format!("fn {function}()")), "{test}");
        }
    }
}
