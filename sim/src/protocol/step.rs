//! One step of a machine: what it works on, which rules hold, what goes wrong, what it costs.

use super::ghost::{FALSE_FENCE, FALSE_STOP};
use super::rules::Rules;
use super::search::Checked;
use super::state::{CommitPhase, LateRequest, Machine, Phase, State};
use super::store::{CreateResult, NOBODY, Record, Root};

/// What goes wrong with the step's conditional write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    None,
    /// It takes effect, and the answer is lost.
    AnswerLost,
    /// It takes no effect now, may land later, and there is no answer.
    Late,
}

/// Requests of one kind each.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Requests {
    pub(crate) puts: u32,
    pub(crate) gets: u32,
}

/// What a host may say of a conditional write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    Won,
    Lost,
    Unknown,
}

pub(crate) struct Step<'a> {
    pub(crate) state: &'a mut State,
    pub(crate) rules: Rules,
    pub(crate) fault: Fault,
    pub(crate) requests: Requests,
}

impl Step<'_> {
    pub(crate) fn get(&mut self) {
        self.requests.gets += 1;
    }

    pub(crate) fn machine(&mut self, machine: usize) -> &mut Machine {
        &mut self.state.machines[machine]
    }

    /// Sends a create of a record.
    pub(crate) fn create_record(&mut self, host: u8, position: u8, record: Record) -> Outcome {
        self.requests.puts += 1;
        if self.fault == Fault::Late {
            self.state.late.push(LateRequest::Create {
                host,
                position,
                record,
            });
            return Outcome::Unknown;
        }
        let created = self.state.store.create_record(host, position, record);
        match (created, self.fault) {
            (_, Fault::AnswerLost) => Outcome::Unknown,
            (CreateResult::Won, _) => Outcome::Won,
            (CreateResult::Exists, _) => Outcome::Lost,
        }
    }

    /// Sends a conditional update of a root. What stands there already is read back.
    pub(crate) fn update_root(&mut self, volume: usize, expected: u32, root: Root) -> Outcome {
        self.requests.puts += 1;
        let now = self.state.store.roots[volume];
        // It says what was sent, in whatever version: won.
        let said = Root {
            sequence: root.sequence,
            ..now
        };
        if said == root {
            self.get();
            return Outcome::Won;
        }
        if self.fault == Fault::Late {
            self.state.late.push(LateRequest::Update {
                volume: volume as u8,
                expected,
                root,
            });
            return Outcome::Unknown;
        }
        let won = self.state.store.update_root(volume as u8, expected, root);
        match (won, self.fault) {
            (true, Fault::AnswerLost) => Outcome::Unknown,
            (true, _) => Outcome::Won,
            (false, _) => Outcome::Lost,
        }
    }

    /// The host says that it was cloned or retired, or that the store went back, and does no more.
    pub(crate) fn stop(&mut self, machine: usize) -> Checked<()> {
        self.machine(machine).commit = CommitPhase::Stopped;
        if self.state.ghost.may_stop {
            Ok(())
        } else {
            Err(FALSE_STOP)
        }
    }

    /// The host completes no more writes of the volume, and keeps its tail for rescue.
    pub(crate) fn fence(&mut self, machine: usize, volume: usize) -> Checked<()> {
        let root = self.state.store.roots[volume];
        let machine = &mut self.state.machines[machine];
        let tail = &mut machine.disk.tails[volume];
        let still_owner = root.owner == machine.disk.host && root.epoch == tail.epoch;
        tail.attached = false;
        machine.activities[volume].phase = Phase::Fenced;
        machine.activities[volume].object = NOBODY;
        if still_owner && !self.state.ghost.may_stop {
            return Err(FALSE_FENCE);
        }
        Ok(())
    }
}
