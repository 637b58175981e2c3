//! Worlds that are planned instead of drawn: fixed scripts, one crash at a given place, and a
//! chosen order of events. The exhaustive modes enumerate such plans.

use std::collections::VecDeque;

use super::clients::Client;
use super::{AttachmentPhase, Event, Phase, ProcessEvent, World};
use crate::disk::PowerCut;
use crate::oracle::history::Loss;
use crate::rng::Rng;
use crate::trace::Violation;
use crate::workload::{Action, Generator};

/// What a planned world does.
#[derive(Clone, Debug, Default)]
pub struct Plan {
    /// Before everything: done by one client, then brought to the store, then the machine is
    /// lost and the volume opened cold. Empty: the scripts meet a new volume.
    pub warm: Vec<Action>,
    /// What each client does.
    pub scripts: Vec<Vec<Action>>,
    /// The crash, if any.
    pub crash: Option<PlannedCrash>,
    /// The order of events while the scripts run.
    pub order: Order,
}

/// A crash at a given place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlannedCrash {
    /// After so many disk and store events since the scripts began.
    pub after: u64,
    /// What crashes.
    pub loss: Loss,
    /// How a power cut treats the pending sectors.
    pub cut: PowerCut,
}

/// A choice at each event of the scripts: zero lets it happen, `n` puts it off by the `n`-th of
/// [`DELAYS_NS`].
#[derive(Clone, Debug, Default)]
pub struct Order {
    /// The choices, from the first event of the scripts on; zero after the last.
    pub choices: Vec<u8>,
}

/// How long an event may be put off: behind its neighbours, or behind everything that an upload,
/// a group commit and the reuse of a segment take.
pub const DELAYS_NS: [u64; 2] = [300_000, 30_000_000];

/// How far a planned world is.
#[derive(Clone, Debug)]
pub(super) struct PlanProgress {
    plan: Plan,
    warm: bool,
    /// Disk and store events since the scripts began.
    io_events: u64,
    crashed: bool,
    /// Events of the scripts so far.
    steps: usize,
    ending: bool,
}

/// What a planned world tells beside its outcome.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PlanReport {
    /// The crash took place.
    pub crashed: bool,
    /// Events of the scripts, at each of which there was a choice.
    pub steps: usize,
}

/// Virtual time in which timers of the engine (frames, uploads) may still run after the scripts.
const IDLE_NS: u64 = 60_000_000;

/// Plays a list of actions.
#[derive(Debug)]
struct FixedScript(VecDeque<Action>);

impl Generator for FixedScript {
    fn next(&mut self, _: &mut Rng) -> Action {
        self.0.pop_front().unwrap_or(Action::Stop)
    }
}

fn player(actions: &[Action]) -> Client {
    Client::new(
        Rng::stream(0, "fixed"),
        Box::new(FixedScript(actions.iter().copied().collect())),
    )
}

impl World {
    /// Makes this a planned world. It must not have begun.
    pub fn follow(&mut self, plan: Plan) {
        let warm = !plan.warm.is_empty();
        let scripts = plan.scripts.clone();
        let mut warming = plan.warm.clone();
        warming.extend([Action::Drain, Action::Sync, Action::Drain]);
        self.planned = Some(PlanProgress {
            plan,
            warm,
            io_events: 0,
            crashed: false,
            steps: 0,
            ending: false,
        });
        if warm {
            self.play(&[warming])
        } else {
            self.play(&scripts)
        }
    }

    fn play(&mut self, scripts: &[Vec<Action>]) {
        self.actions_left = scripts.iter().map(|script| script.len() as u64).sum();
        self.attachments[0].clients = scripts.iter().map(|script| player(script)).collect();
    }

    /// Whether the clients meet the volume without it being read back first.
    pub(super) fn has_no_scan(&self) -> bool {
        self.planned
            .as_ref()
            .is_some_and(|p| !p.warm && !p.plan.warm.is_empty() && !p.crashed)
            && self.phase == Phase::Work
    }

    fn are_scripts_running(&self) -> bool {
        self.phase == Phase::Work
            && self.planned.as_ref().is_some_and(|p| !p.warm && !p.crashed)
            && self.attachments[0].phase == AttachmentPhase::Serving
    }

    /// How long the next event is put off, if at all.
    pub(super) fn next_delay(&mut self) -> Option<u64> {
        if !self.are_scripts_running() {
            return None;
        }
        let planned = self.planned.as_mut()?;
        let step = planned.steps;
        planned.steps += 1;
        let choice = planned.plan.order.choices.get(step).copied()?;
        DELAYS_NS.get(usize::from(choice).checked_sub(1)?).copied()
    }

    /// A disk or store event took place: perhaps the planned crash is due.
    pub(super) fn planned_crash(&mut self, event: Event) -> Result<(), Violation> {
        if !matches!(
            event,
            Event::Disk(..) | Event::Deliver(_) | Event::Answer(_)
        ) || !self.are_scripts_running()
        {
            return Ok(());
        }
        let Some(planned) = &mut self.planned else {
            return Ok(());
        };
        planned.io_events += 1;
        let Some(crash) = planned.plan.crash.filter(|c| c.after == planned.io_events) else {
            return Ok(());
        };
        self.crash_as_planned(crash);
        Ok(())
    }

    /// The planned crash takes place.
    pub(super) fn crash_as_planned(&mut self, crash: PlannedCrash) {
        if let Some(planned) = &mut self.planned {
            planned.crashed = true;
        }
        self.profile.cut = crash.cut;
        match crash.loss {
            Loss::Process => self.process_crash(0),
            Loss::Host => self.host_crash(0),
            Loss::Cache => self.host_loss(0),
        }
    }

    /// Places so far at which a planned crash could have struck: [`PlannedCrash::after`] of the
    /// last of them.
    pub fn crash_places(&self) -> u64 {
        self.planned.as_ref().map_or(0, |planned| planned.io_events)
    }

    /// Looks whether the stage of a planned world is over. False: the world is not planned, or
    /// its drawn end may follow.
    pub(super) fn check_plan(&mut self) -> bool {
        let quiet = self.attachments[0].is_quiet();
        let serving = self.attachments[0].phase == AttachmentPhase::Serving;
        let done = self.actions_left == 0 && quiet && serving;
        let Some(planned) = &mut self.planned else {
            return false;
        };
        if self.phase != Phase::Work {
            return false;
        }
        if planned.crashed {
            if serving {
                self.phase = Phase::Done;
            }
        } else if done && planned.warm {
            planned.warm = false;
            let scripts = planned.plan.scripts.clone();
            self.host_loss(0);
            self.play(&scripts);
        } else if done && !planned.ending {
            planned.ending = true;
            self.at_process(0, IDLE_NS, ProcessEvent::ScriptsEnd);
        }
        true
    }

    /// The scripts and what they set in motion are over.
    pub(super) fn end_scripts(&mut self) {
        let crash_planned = self
            .planned
            .as_ref()
            .is_some_and(|p| p.plan.crash.is_some());
        if crash_planned {
            // The crash lies behind the end: this place does not exist.
            self.phase = Phase::Done;
            return;
        }
        // The last word: what a successor recovers must be what the clients saw.
        if let Some(planned) = &mut self.planned {
            planned.crashed = true;
        }
        self.process_crash(0);
    }

    /// What a planned world tells beside its outcome.
    pub(super) fn plan_report(&self) -> PlanReport {
        self.planned
            .as_ref()
            .map_or_else(PlanReport::default, |planned| PlanReport {
                crashed: planned.crashed,
                steps: planned.steps,
            })
    }
}
