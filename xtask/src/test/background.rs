//! Owns the background: a thread for each lane, which runs that lane's steps one after the other beside
//! the steps in front.

use std::collections::BTreeSet;
use std::process::Command;
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{Scope, ScopedJoinHandle};
use std::time::Instant;

use super::StepReport;
use super::runner;
use super::step::{Lane, Step};
use crate::Failure;

/// A step and what it runs.
type Job<'scope> = (&'scope Step, Vec<Command>);

/// How the steps of a lane went, or why they could not be run.
type Reports = Result<Vec<StepReport>, String>;

/// Steps that run in the background.
pub(super) struct Background<'scope> {
    lanes: Vec<(Lane, Sender<Job<'scope>>, ScopedJoinHandle<'scope, Reports>)>,
    unfinished: Arc<Unfinished>,
}

/// Steps that were started and have not ended, by name.
#[derive(Default)]
struct Unfinished {
    names: Mutex<BTreeSet<&'static str>>,
    ended: Condvar,
}

impl Unfinished {
    fn names(&self) -> MutexGuard<'_, BTreeSet<&'static str>> {
        self.names.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn remove(&self, name: &str) {
        self.names().remove(name);
        self.ended.notify_all();
    }

    fn wait_for(&self, name: &str) {
        let waits = |names: &mut BTreeSet<_>| names.contains(name);
        drop(self.ended.wait_while(self.names(), waits));
    }
}

impl<'scope> Background<'scope> {
    pub(super) fn new(scope: &'scope Scope<'scope, '_>, verbose: bool, ci: bool) -> Self {
        let unfinished = Arc::<Unfinished>::default();
        let lanes = Lane::BACKGROUND.map(|lane| {
            let (sender, jobs) = mpsc::channel();
            let unfinished = Arc::clone(&unfinished);
            let thread = scope.spawn(move || run_lane(jobs, &unfinished, verbose, ci));
            (lane, sender, thread)
        });
        Background {
            lanes: lanes.into(),
            unfinished,
        }
    }

    /// Runs a step's commands once those before it in its lane have ended, and the one that it is to follow.
    pub(super) fn start(&self, step: &'scope Step, commands: Vec<Command>) {
        let Some((_, sender, _)) = self.lanes.iter().find(|(lane, ..)| *lane == step.lane) else {
            return;
        };
        self.unfinished.names().insert(step.name);
        // Where the thread has failed, its error is what `finish` answers.
        let _ = sender.send((step, commands));
    }

    /// Waits for all of them; how they went.
    pub(super) fn finish(self) -> Result<Vec<StepReport>, Failure> {
        let mut all = Vec::new();
        let threads: Vec<_> = self
            .lanes
            .into_iter()
            .map(|(_, _, thread)| thread)
            .collect();
        for thread in threads {
            let reports = thread.join();
            all.extend(reports.map_err(|_| "a thread that runs steps panicked")??);
        }
        Ok(all)
    }
}

fn run_lane(jobs: Receiver<Job<'_>>, unfinished: &Unfinished, verbose: bool, ci: bool) -> Reports {
    let mut reports = Ok(Vec::new());
    for (step, commands) in jobs {
        let Ok(done) = &mut reports else {
            // Nobody may wait for what is not run any more.
            unfinished.remove(step.name);
            continue;
        };
        if let Some(first) = step.after {
            unfinished.wait_for(first);
        }
        let begun = Instant::now();
        let outcome = runner::run(step, commands, verbose, ci);
        unfinished.remove(step.name);
        match outcome {
            Ok(outcome) => done.push(StepReport::new(step, outcome, begun.elapsed(), ci)),
            Err(error) => reports = Err(format!("{}: {error}", step.name)),
        }
    }
    reports
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::time::Duration;

    use super::super::step::{Kind, Output, Step};
    use super::*;

    /// A step of a shell script.
    fn step(name: &'static str, lane: Lane, after: Option<&'static str>) -> Step {
        Step {
            name,
            what: "",
            quick: false,
            lane,
            after,
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
    fn steps_of_a_lane_run_one_at_a_time_and_lanes_beside_each_other() {
        let folder = std::env::temp_dir().join(format!("firn-background-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let file = |name: &str| folder.join(name);
        let waits = |file: &Path| format!("until [ -e {} ]; do :; done", file.display());
        let makes = |file: &Path| format!("touch {}", file.display());
        let steps = [
            step("selftest-first", Lane::Programs, None),
            step("selftest-second", Lane::Programs, None),
            step("selftest-guest", Lane::Guests, Some("selftest-build")),
            step("selftest-build", Lane::Builds, None),
        ];
        let reports = std::thread::scope(|scope| {
            let background = Background::new(scope, false, true);
            // It ends behind the front and behind the lane of builds.
            let first = format!(
                "{} && {} && {}",
                waits(&file("front")),
                waits(&file("built")),
                makes(&file("first"))
            );
            let is_there = |name: &str| format!("[ -e {} ]", file(name).display());
            background.start(&steps[0], shell(&first));
            background.start(&steps[1], shell(&is_there("first")));
            let build = format!("{} && {}", waits(&file("front")), makes(&file("built")));
            background.start(&steps[3], shell(&build));
            background.start(&steps[2], shell(&is_there("built")));
            std::fs::write(file("front"), "").unwrap();
            background.finish().unwrap()
        });
        std::fs::remove_dir_all(&folder).unwrap();
        let passed: Vec<_> = reports.iter().map(|report| report.counts.passed).collect();
        assert_eq!(passed, [1, 1, 1, 1]);
    }
}
