//! Runs a step's commands: streams what matters, keeps all of it in a log, ends what hangs.

use std::fs::File;
use std::io::Write;
use std::process::{Command, ExitStatus};
use std::time::{Duration, Instant};

use super::count::{Counts, NO_GUESTS, Reader};
use super::step::{Lane, Output, Step};
use crate::running_command::RunningCommand;
use crate::{Failure, process, vm, workspace};

/// Lines of a failed command's output that are printed again.
const TAIL_LINES: usize = 60;

/// What a step's commands came to.
#[derive(Debug, Default)]
pub(super) struct Outcome {
    pub(super) counts: Counts,
    /// Processor time of the commands and of what they waited for: unlike the time on the wall it does not
    /// grow when others use the machine.
    pub(super) cpu: Duration,
}

/// Runs the commands one after the other and counts what came out.
pub(super) fn run(
    step: &Step,
    commands: Vec<Command>,
    verbose: bool,
    ci: bool,
) -> Result<Outcome, Failure> {
    let directory = workspace::target().join("xtask");
    std::fs::create_dir_all(&directory)?;
    let mut log = File::create(directory.join(format!("{}.log", step.name)))?;
    let until = Instant::now() + step.limit;
    let Outcome {
        mut counts,
        mut cpu,
    } = Outcome::default();
    for command in commands {
        let what = process::command_line(&command);
        // Lines of the background stand between those of the steps in front.
        let margin = match step.lane {
            Lane::Front => String::new(),
            _ => format!("{} | ", step.name),
        };
        println!("{margin}$ {what}");
        writeln!(log, "$ {what}")?;
        let mut watched = RunningCommand::start(&mut at_niceness(&command, step.lane), &what, ci)?;
        let mut reader = Reader::default();
        let mut tail = Vec::new();
        let ended = watched.follow(until, |line| {
            let _ = writeln!(log, "{line}");
            tail.push(line.to_owned());
            if tail.len() > TAIL_LINES {
                tail.remove(0);
            }
            let worth = match step.output {
                Output::Tests | Output::Guest => reader.line(line),
                Output::All | Output::GuestStatus => true,
                Output::Log => false,
            };
            if worth || verbose {
                println!("{margin}{line}");
            }
        })?;
        cpu += watched.cpu;
        let ok = ended.is_some_and(|status| status.success());
        if !ok && matches!(step.output, Output::Log) {
            tail.iter().for_each(|line| println!("{margin}    {line}"));
        }
        let in_guest = matches!(step.output, Output::Guest | Output::GuestStatus);
        if in_guest && status_is(ended, vm::SKIPPED) {
            counts.add(&no_guest_counts(&tail));
            continue;
        }
        let what = match ended {
            None => format!("{what} (still running after {} s)", step.limit.as_secs()),
            Some(_) => what,
        };
        counts.add(&verdict(step, reader, ok, &what));
    }
    Ok(Outcome { counts, cpu })
}

/// The same command at the niceness of a lane.
fn at_niceness(command: &Command, lane: Lane) -> Command {
    let mut nice = Command::new("nice");
    nice.args(["-n", &lane.niceness().to_string(), "--"]);
    nice.arg(command.get_program()).args(command.get_args());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => nice.env(name, value),
            None => nice.env_remove(name),
        };
    }
    if let Some(directory) = command.get_current_dir() {
        nice.current_dir(directory);
    }
    nice
}

fn status_is(ended: Option<ExitStatus>, code: u8) -> bool {
    ended.and_then(|status| status.code()) == Some(i32::from(code))
}

/// What is said where the machine cannot run guests: the reason is the last such line.
fn no_guest_counts(lines: &[String]) -> Counts {
    let why = lines
        .iter()
        .rev()
        .find_map(|line| line.strip_prefix("skipped: "))
        .unwrap_or("it did not say why");
    Counts {
        skipped: vec![format!("{NO_GUESTS}: {why}")],
        ..Counts::default()
    }
}

fn verdict(step: &Step, reader: Reader, ok: bool, what: &str) -> Counts {
    match (&step.output, ok) {
        (Output::Tests, ok) => reader.finish(ok, what),
        (Output::Guest, ok) => reader.finish_in_guest(ok, what),
        (_, true) => Counts {
            passed: 1,
            ..Counts::default()
        },
        (_, false) => Counts {
            failed: vec![format!("{}: {what}", step.name)],
            ..Counts::default()
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test::step::Kind;

    fn shell(output: Output, limit: Duration, script: &str) -> Counts {
        let step = Step {
            name: "selftest",
            what: "",
            quick: true,
            lane: Lane::Front,
            after: None,
            output,
            limit,
            run: Box::new(|_| Kind::Inside(Counts::default())),
        };
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        let outcome = run(&step, vec![command], false, true).unwrap();
        outcome.counts
    }

    #[test]
    fn a_command_is_judged_by_its_exit_status() {
        let limit = Duration::from_secs(60);
        assert_eq!(shell(Output::All, limit, "exit 0").passed, 1);
        assert_eq!(shell(Output::All, limit, "exit 3").failed.len(), 1);
        assert_eq!(shell(Output::Tests, limit, "exit 3").failed.len(), 1);
    }

    #[test]
    fn a_machine_without_guests_is_a_skip_that_fails_under_ci() {
        let script = "echo 'skipped: this is not Debian'; exit 77";
        let mut counts = shell(Output::Guest, Duration::from_secs(60), script);
        assert_eq!(
            counts.skipped,
            ["this machine runs no guests: this is not Debian"]
        );
        counts.skips_that_fail();
        assert_eq!(counts.failed.len(), 1);
    }

    #[test]
    fn a_command_that_hangs_is_ended_with_its_children() {
        let begun = Instant::now();
        let counts = shell(
            Output::All,
            Duration::from_millis(100),
            "sleep 600 & sleep 600",
        );
        assert!(counts.failed[0].contains("still running"), "{counts:?}");
        assert!(begun.elapsed() < Duration::from_secs(60));
    }

    #[test]
    fn what_a_command_leaves_behind_does_not_hold_its_step_up() {
        let begun = Instant::now();
        // The one left behind ends on its own soon after.
        let counts = shell(Output::All, Duration::from_secs(60), "sleep 20 & exit 0");
        assert_eq!(counts.passed, 1);
        assert!(begun.elapsed() < Duration::from_secs(15));
    }
}
