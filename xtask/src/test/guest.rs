//! The step `ublk-guest`: test programs that need ublk, run under real kernels.
//!
//! They are ordinary test programs, `crates/{ublk,firn}/tests/guest_*.rs`, built here and run in guests,
//! all of them in one boot per kernel and one test at a time, for what they test is the kernel's
//! and there is one. On this machine itself they are not run: it rarely has ublk, and where it has,
//! its devices are not theirs.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;

use super::count::Counts;
use super::steps::{Kind, Output, Step, test_programs};
use crate::{Failure, process, workspace};

/// How the names of test programs begin that are for guests only.
pub(super) const PREFIX: &str = "guest_";

/// Where they are.
const PROGRAMS: [&str; 2] = ["crates/ublk/tests", "crates/firn/tests"];

/// The servers that they drive.
const EXAMPLES: &str = "crates/ublk/examples";

/// Programs that a smoke run has; they read [`TABLE`].
const SMOKE: [&str; 2] = ["guest_smoke", "guest_servers"];

/// Programs that only the whole table has: minutes each under emulation.
const LONG: [&str; 13] = [
    "guest_blktests",
    "guest_faulty",
    "guest_fs",
    "guest_mischief",
    "guest_modes",
    "guest_neighbours",
    "guest_power",
    "guest_promises",
    "guest_races",
    "guest_recovery",
    "guest_scenarios",
    "guest_shared_queue",
    "guest_volume",
];

/// The variable that says how much of the table is run: `smoke`, `all`, or unset for what CI runs.
const TABLE: &str = "FIRN_UBLK_TABLE";

/// Runs each program that is named to it and ends with the last bad status.
const RUN: &str = r#"modprobe ublk_drv || exit 1
modprobe -qa loop dm-delay dm-flakey dm-log-writes
worst=0
for program; do
  name=${program##*/}
  echo "     Running tests/${name%-*}.rs ($program)"
  "$program" --test-threads=1 --show-output || worst=$?
done
exit $worst"#;

/// One boot: kernel, part of the table, seconds that it may take.
type Boot = (&'static str, &'static str, u64);

/// What CI runs, meant for eight minutes on a quiet machine. The deadlines end what hangs, and
/// leave room for a busy one.
const CI: [Boot; 3] = [
    ("7.2", "", 360),
    ("6.12", "", 360),
    ("7.2-rt", "smoke", 240),
];

/// Everything.
const ALL: [Boot; 3] = [
    ("7.2", "all", 2 * 3600),
    ("6.12", "all", 2 * 3600),
    ("7.2-rt", "all", 3 * 3600),
];

/// The step of `cargo xtask test`.
pub(super) fn step() -> Step {
    Step {
        name: "ublk-guest",
        what: "ublk under real kernels: 7.2, 6.12, and a smoke run under 7.2 with PREEMPT_RT",
        quick: false,
        output: Output::Guest,
        // Fetching and building come on top of the deadlines.
        limit: std::time::Duration::from_secs(30 * 60),
        run: |_| boots(&CI),
    }
}

/// The same with nothing left out.
pub(super) fn whole_table() -> Step {
    Step {
        name: "ublk-guest-all",
        what: "ublk under real kernels, every row of the table",
        limit: std::time::Duration::from_secs(8 * 3600),
        run: |_| boots(&ALL),
        ..step()
    }
}

fn boots(boots: &[Boot]) -> Kind {
    let made = build().and_then(|programs| {
        let commands = boots.iter().map(|boot| command(&programs, *boot));
        commands.collect::<Result<Vec<_>, _>>()
    });
    match made {
        Ok(commands) => Kind::Commands(commands),
        Err(error) => Kind::Inside(Counts {
            failed: vec![format!("ublk-guest: {error}")],
            ..Counts::default()
        }),
    }
}

/// One guest with its programs.
fn command(
    programs: &[(String, PathBuf)],
    (kernel, table, seconds): Boot,
) -> Result<Command, Failure> {
    let mut command = Command::new(std::env::current_exe()?);
    command
        .args(["vm", "--kernel", kernel, "--deadline", &seconds.to_string()])
        .args(["--", "env", &format!("{TABLE}={table}")])
        .args(["sh", "-c", RUN, "guest"]);
    let chosen = |name: &str| match table {
        "smoke" => SMOKE.contains(&name),
        "all" => true,
        _ => !LONG.contains(&name),
    };
    for (name, program) in programs {
        if chosen(name) {
            command.arg(program);
        }
    }
    command.current_dir(workspace::root());
    Ok(command)
}

/// Builds the programs and the servers; answers the programs by name.
fn build() -> Result<Vec<(String, PathBuf)>, Failure> {
    let names: Vec<String> = PROGRAMS
        .iter()
        .flat_map(|directory| of_guests(&workspace::root().join(directory)))
        .collect();
    let examples = test_programs(&workspace::root().join(EXAMPLES));
    if !examples.is_empty() {
        // The whole workspace, so that features are those of all the other steps.
        let mut command = workspace::cargo(["build", "--quiet", "--workspace"]);
        for name in &examples {
            command.args(["--example", name]);
        }
        process::run(&mut command)?;
    }
    let mut command = workspace::cargo(["test", "--quiet", "--workspace", "--no-run"]);
    for name in &names {
        command.args(["--test", name]);
    }
    command.arg("--message-format=json-render-diagnostics");
    println!("$ {}", process::spelled(&command));
    let output = command.stderr(Stdio::inherit()).output()?;
    if !output.status.success() {
        return Err("the programs for the guest do not build".into());
    }
    let programs = executables(&String::from_utf8(output.stdout)?);
    match names
        .iter()
        .find(|name| !programs.iter().any(|(built, _)| built == *name))
    {
        Some(name) => Err(format!("cargo did not say where the test program {name} is").into()),
        None => Ok(programs),
    }
}

/// The test programs for guests in a directory, by name.
fn of_guests(directory: &Path) -> Vec<String> {
    let mut names = test_programs(directory);
    names.retain(|name| name.starts_with(PREFIX));
    names
}

/// Names and paths of the test programs in cargo's messages.
pub(crate) fn executables(messages: &str) -> Vec<(String, PathBuf)> {
    let mut programs: Vec<_> = messages
        .lines()
        .filter_map(|line| serde_json::from_str::<Value>(line).ok())
        .filter(|message| message["target"]["kind"][0] == "test")
        .filter_map(|message| {
            let name = message["target"]["name"].as_str()?.to_owned();
            Some((name, PathBuf::from(message["executable"].as_str()?)))
        })
        .collect();
    // The smoke test says first whether anything can work.
    programs.sort_by_key(|(name, _)| (name != SMOKE[0], name.clone()));
    programs
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_read_from_cargos_messages_the_smoke_test_first() {
        let line = |name: &str, kind: &str| {
            format!(
                r#"{{"target":{{"name":"{name}","kind":["{kind}"]}},"executable":"/deps/{name}-1"}}"#
            )
        };
        let text = [
            line("guest_control", "test"),
            line("null", "example"),
            "not json".to_owned(),
            line("guest_smoke", "test"),
        ]
        .join("\n");
        let names: Vec<_> = executables(&text)
            .into_iter()
            .map(|(name, _)| name)
            .collect();
        assert_eq!(names, ["guest_smoke", "guest_control"]);
    }

    #[test]
    fn boots_that_hang_end_before_the_step_does() {
        for (boots, step) in [(CI, step()), (ALL, whole_table())] {
            let seconds: u64 = boots.iter().map(|(_, _, seconds)| seconds).sum();
            assert!(seconds < step.limit.as_secs(), "{}", step.name);
        }
    }

    #[test]
    fn a_smoke_run_has_only_the_programs_that_know_of_it() {
        let programs = ["guest_smoke", "guest_control", "guest_scenarios"]
            .map(|name| (name.to_owned(), PathBuf::from(format!("/deps/{name}-1"))));
        let arguments = |boot| {
            let command = command(&programs, boot).unwrap();
            let words = command
                .get_args()
                .map(|word| word.to_string_lossy().into_owned());
            words.collect::<Vec<_>>()
        };
        let ends = |boot, last: &str| arguments(boot).last().is_some_and(|word| word == last);
        assert!(ends(("7.2-rt", "smoke", 1), "/deps/guest_smoke-1"));
        assert!(ends(("7.2", "", 1), "/deps/guest_control-1"));
        assert!(ends(("7.2-rt", "all", 1), "/deps/guest_scenarios-1"));
    }
}
