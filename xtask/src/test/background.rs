//! Owns the background: a thread that runs the steps which mostly wait (guests, servers that are
//! killed), one after the other, while the steps in front of it compile.

use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{self, Sender};
use std::thread::{Scope, ScopedJoinHandle};
use std::time::Instant;

use super::StepReport;
use super::runner;
use super::step::Step;
use crate::Failure;

/// Steps that run in the background.
pub(super) struct Background<'scope> {
    sender: Sender<(&'scope Step, Vec<Command>)>,
    /// Steps that were started and have not ended.
    unfinished: Arc<AtomicUsize>,
    thread: ScopedJoinHandle<'scope, Result<Vec<StepReport>, String>>,
}

impl<'scope> Background<'scope> {
    pub(super) fn new(scope: &'scope Scope<'scope, '_>, ci: bool) -> Self {
        let (sender, steps) = mpsc::channel::<(&'scope Step, Vec<Command>)>();
        let unfinished = Arc::new(AtomicUsize::new(0));
        let left = Arc::clone(&unfinished);
        let thread = scope.spawn(move || {
            let mut reports = Vec::new();
            for (step, commands) in steps {
                let begun = Instant::now();
                let counts = runner::run(step, commands, false, ci);
                left.fetch_sub(1, Ordering::Relaxed);
                let counts = counts.map_err(|error| format!("{}: {error}", step.name))?;
                reports.push(StepReport::new(step, counts, begun.elapsed(), None, ci));
            }
            Ok(reports)
        });
        Background {
            sender,
            unfinished,
            thread,
        }
    }

    /// Runs a step's commands once those before it have ended.
    pub(super) fn start(&self, step: &'scope Step, commands: Vec<Command>) {
        self.unfinished.fetch_add(1, Ordering::Relaxed);
        // Where the thread has failed, its error is what `finish` answers.
        let _ = self.sender.send((step, commands));
    }

    pub(super) fn is_idle(&self) -> bool {
        self.unfinished.load(Ordering::Relaxed) == 0
    }

    /// Waits for all of them; how they went.
    pub(super) fn finish(self) -> Result<Vec<StepReport>, Failure> {
        drop(self.sender);
        let reports = self.thread.join();
        Ok(reports.map_err(|_| "the thread that runs steps in the background panicked")??)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::step::{Kind, Output, Step};
    use super::*;

    /// A step of a shell script.
    fn step(name: &'static str) -> Step {
        Step {
            name,
            what: "",
            quick: false,
            background: true,
            output: Output::All,
            limit: Duration::from_secs(60),
            run: Box::new(|_| Kind::Commands(Vec::new())),
        }
    }

    fn shell(script: &str) -> Vec<Command> {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        vec![command]
    }

    #[test]
    fn steps_in_the_background_run_one_at_a_time_beside_what_is_in_front() {
        let folder = std::env::temp_dir().join(format!("firn-background-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let (front, first) = (folder.join("front"), folder.join("first"));
        let waits = |file: &std::path::Path| format!("until [ -e {} ]; do :; done", file.display());
        let steps = [step("selftest-first"), step("selftest-second")];
        let reports = std::thread::scope(|scope| {
            let background = Background::new(scope, true);
            let after = format!("{} && touch {}", waits(&front), first.display());
            background.start(&steps[0], shell(&after));
            background.start(&steps[1], shell(&format!("[ -e {} ]", first.display())));
            assert!(!background.is_idle());
            std::fs::write(&front, "").unwrap();
            background.finish().unwrap()
        });
        std::fs::remove_dir_all(&folder).unwrap();
        let passed: Vec<_> = reports.iter().map(|report| report.counts.passed).collect();
        assert_eq!(passed, [1, 1]);
    }
}
