//! A world: who is there, what may still happen, and how it is judged when everything has settled.

use super::action::{self, Action, Job};
use super::commit::{can_commit, has_position};
use super::ghost::{GARBAGE, Ghost, NOT_SERVED, TOO_MANY, WAITS};
use super::rules::{Rule, Rules};
use super::search::{Checked, Model};
use super::state::{Activity, CommitPhase, LateRequest, Machine, Phase, Power, State, Tail};
use super::step::{Fault, Requests, Step};
use super::store::{NOBODY, POSITIONS, Pack, Root, RootState, VOLUMES, indexes};

/// What is asked of a world beyond what its steps judge.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Judgement {
    /// Owners read from the store at any time.
    pub(crate) reads: bool,
    /// When all is settled, unreachable bytes are at most twice the reachable ones.
    pub(crate) garbage: bool,
    /// Nothing but what the machines are at already happens.
    pub(crate) still: bool,
    /// Most fences that all take-overs of the world may put.
    pub(crate) fences: Option<u8>,
}

#[derive(Clone)]
pub(crate) struct World {
    pub(crate) initial: State,
    pub(crate) rules: Rules,
    pub(crate) judgement: Judgement,
}

/// Steps in which everything must come to rest.
const REST_STEPS: usize = 400;

impl World {
    fn step<'a>(&self, state: &'a mut State, fault: Fault) -> Step<'a> {
        Step {
            state,
            rules: self.rules,
            fault,
            requests: Requests::default(),
        }
    }

    /// A step in which nothing goes wrong.
    pub(crate) fn step_without_faults<'a>(&self, state: &'a mut State) -> Step<'a> {
        self.step(state, Fault::None)
    }

    /// Lets a world begin with a machine at a job.
    pub(crate) fn begin_in(&mut self, machine: usize, volume: usize, job: Job) {
        World::begin(&mut self.initial, self.rules, machine, volume, job);
    }

    /// Lets a world begin with a copy of a machine's cache directory on another.
    pub(crate) fn copy_directory(&mut self, from: usize, to: usize) {
        World::clone_machine(&mut self.initial, from, to, false);
    }

    /// Lets a world begin where a machine has come so far with a volume, undisturbed.
    pub(crate) fn run_until(&mut self, machine: usize, volume: usize, phase: Phase) {
        let mut state = self.initial.clone();
        while state.machines[machine].activities[volume].phase != phase {
            let mut step = self.step_without_faults(&mut state);
            let done = if action::can_work(step.state, machine, volume) {
                World::work(&mut step, machine, volume)
            } else {
                step.commit(machine)
            };
            assert!(done.is_ok(), "a world begins with a breach: {done:?}");
        }
        self.initial = state;
    }

    fn spend_fault(state: &mut State, fault: Fault, is_update: bool) {
        match fault {
            Fault::None => {}
            Fault::AnswerLost => state.budget.unknown -= 1,
            Fault::Late if is_update => state.budget.late_updates -= 1,
            Fault::Late => state.budget.late -= 1,
        }
    }

    fn write(state: &mut State, index: usize, volume: usize) -> Checked<()> {
        state.budget.writes -= 1;
        state.ghost.newest += 1;
        let value = state.ghost.newest;
        let tail = &mut state.machines[index].disk.tails[volume];
        tail.newest += 1;
        tail.data[tail.newest as usize - 1] = value;
        // A host that counts the LSN as stored already says so at once.
        if tail.newest <= tail.stored {
            let range = (tail.newest, tail.newest);
            let (epoch, data) = (tail.epoch, tail.data);
            return state.ghost.on_stored(volume, epoch, range, &data);
        }
        Ok(())
    }

    fn begin(state: &mut State, rules: Rules, index: usize, volume: usize, job: Job) {
        let machine = &mut state.machines[index];
        machine.jobs &= !job.bit(volume);
        let activity = &mut machine.activities[volume];
        if job == Job::Open {
            *activity = Activity::NONE;
            machine.disk.tails[volume].attached = false;
        }
        let activity = &mut machine.activities[volume];
        activity.phase = match job {
            Job::Open => Phase::Claim,
            Job::Close => Phase::Close,
            Job::Fold => Phase::Fold,
            Job::Compact => Phase::Compact,
            Job::Restore => Phase::Restore,
            Job::Fork => Phase::ForkRead,
            Job::Delete => Phase::Delete,
        };
        let ends = matches!(job, Job::Close | Job::Delete | Job::Restore);
        if ends && rules.has(Rule::EndInLog) {
            activity.after = activity.phase;
            activity.phase = Phase::End;
        }
        if job == Job::Restore {
            state.ghost.on_restore_begun(volume);
        }
        if job == Job::Delete {
            state.ghost.lines[volume].stored = [0; super::store::LSNS];
        }
    }

    /// The next step of what a machine does with a volume.
    pub(crate) fn work(step: &mut Step<'_>, index: usize, volume: usize) -> Checked<()> {
        match step.machine(index).activities[volume].phase {
            Phase::Checking => step.check_tail(index, volume),
            Phase::Claim => step.claim(index, volume),
            Phase::ClaimSent => return step.send_claim(index, volume),
            Phase::Low => return step.read_low(index, volume),
            Phase::Scan => return step.scan(index, volume),
            Phase::PutFence => step.put_fence(index, volume),
            Phase::AfterFence => step.look_after_fence(index, volume),
            Phase::Adopt => step.adopt(index, volume),
            Phase::AdoptSent => return step.send_adoption(index, volume),
            Phase::Fold => step.fold(index, volume),
            Phase::Compact => step.number_object(index, volume),
            Phase::PutObject => return step.put_object(index, volume),
            Phase::FoldReady => step.ready_fold(index, volume),
            Phase::Close | Phase::Delete => step.prepare_close(index, volume),
            Phase::Restore => step.prepare_restore(index, volume),
            Phase::FoldSent | Phase::CloseSent | Phase::DeleteSent | Phase::RestoreSent => {
                return step.send_update(index, volume);
            }
            Phase::ForkRead => step.read_parent(index, volume),
            Phase::ForkPin => step.put_pin(index, volume, volume + 1),
            Phase::ForkLook => step.look_after_pin(index, volume),
            Phase::ForkRoot => step.make_child(index, volume, volume + 1),
            Phase::End
            | Phase::Name
            | Phase::Idle
            | Phase::Live
            | Phase::Fenced
            | Phase::GaveUp => {}
        }
        Ok(())
    }

    fn cut_power(state: &mut State, index: usize) {
        state.machines[index].kill();
        for tail in &mut state.machines[index].disk.tails {
            tail.newest = tail.durable;
            for value in tail.data.iter_mut().skip(tail.durable as usize) {
                *value = 0;
            }
        }
    }

    fn clone_machine(state: &mut State, from: usize, to: usize, image: bool) {
        let mut copy = state.machines[from].clone();
        if !image {
            let activities = copy.activities;
            copy.kill();
            for (tail, activity) in copy.disk.tails.iter_mut().zip(activities) {
                // The ring is not in the directory.
                tail.attached |= activity.phase.is_serving();
                tail.newest = tail.durable;
                for value in tail.data.iter_mut().skip(tail.durable as usize) {
                    *value = 0;
                }
            }
        }
        state.machines[to] = copy;
        state.ghost.may_stop = true;
    }

    fn land(state: &mut State, index: usize) {
        match state.late.remove(index) {
            LateRequest::Create {
                host,
                position,
                record,
            } => {
                state.store.create_record(host, position, record);
            }
            LateRequest::Update {
                volume,
                expected,
                root,
            } => {
                state.store.update_root(volume, expected, root);
            }
        }
    }

    fn take(&self, state: &mut State, action: Action) -> Checked<()> {
        match action {
            Action::Write(machine, volume) => {
                return World::write(state, machine as usize, volume as usize);
            }
            Action::Read(machine, volume) => {
                let mut step = self.step(state, Fault::None);
                return step.read(machine as usize, volume as usize);
            }
            Action::Commit(machine, fault) => {
                World::spend_fault(state, fault, false);
                return self.step(state, fault).commit(machine as usize);
            }
            Action::Work(machine, volume, fault, phase) => {
                World::spend_fault(state, fault, phase != Phase::PutFence);
                let mut step = self.step(state, fault);
                return World::work(&mut step, machine as usize, volume as usize);
            }
            Action::Begin(machine, volume, job) => {
                World::begin(state, self.rules, machine as usize, volume as usize, job);
            }
            Action::Kill(machine) => {
                state.budget.kills -= 1;
                state.machines[machine as usize].kill();
            }
            Action::CutPower(machine) => {
                state.budget.power_cuts -= 1;
                World::cut_power(state, machine as usize);
            }
            Action::Start(machine) => self.step(state, Fault::None).start(machine as usize),
            Action::CloneDirectory(from, to) => {
                state.budget.directory_clones -= 1;
                World::clone_machine(state, from as usize, to as usize, false);
            }
            Action::CloneImage(from, to) => {
                state.budget.image_clones -= 1;
                World::clone_machine(state, from as usize, to as usize, true);
            }
            Action::Land(index) => World::land(state, index as usize),
            _ => self.take_store_action(state, action),
        }
        Ok(())
    }

    fn take_store_action(&self, state: &mut State, action: Action) {
        match action {
            Action::ComputeLow(host) => {
                state.budget.low_marks -= 1;
                self.step(state, Fault::None).compute_low(host as usize);
            }
            Action::RaiseLow(host) => self.step(state, Fault::None).raise_low(host as usize),
            Action::DeleteRecord(host) => {
                self.step(state, Fault::None).delete_record(host as usize);
            }
            Action::Collect(begun) => {
                state.budget.passes -= u8::from(begun == 0);
                self.step(state, Fault::None).collect();
            }
            Action::DeletePack => self.step(state, Fault::None).delete_pack(),
            Action::BackUp => {
                state.budget.backups -= 1;
                state.backup = Some(Box::new((state.store.clone(), state.ghost)));
            }
            Action::RollBack => {
                state.budget.rollbacks -= 1;
                self.roll_back(state);
            }
            Action::Retire(host) => {
                state.budget.retirements -= 1;
                self.step(state, Fault::None).retire(host as usize);
            }
            Action::LoseStore => {
                state.budget.outages -= 1;
                state.store_away = true;
            }
            _ => {}
        }
    }

    /// The store goes back. What it still holds is what an opener would have found in it then; no
    /// more than that can be asked for.
    fn roll_back(&self, state: &mut State) {
        let Some(backup) = state.backup.take() else {
            return;
        };
        let (store, ghost) = *backup;
        let mut then = State::new();
        then.store = store.clone();
        then.ghost = ghost;
        let found = self.probe(&mut then);
        let newest = state.ghost.newest;
        let before = state.store.packs;
        state.store = store;
        // Names are never used again, also those that only the lost days knew.
        for (pack, lost) in state.store.packs.iter_mut().zip(before) {
            if lost.made && !pack.made {
                *pack = Pack {
                    deleted: true,
                    ..lost
                };
            }
        }
        state.ghost = Ghost { newest, ..ghost };
        state.ghost.may_stop = true;
        state.ghost.was_set_back = true;
        if found.is_ok() {
            for (line, found) in state.ghost.lines.iter_mut().zip(then.ghost.lines) {
                line.stored = found.stored;
            }
        }
    }

    /// Lets every machine finish what it is at. False: somebody still works after all that time.
    fn rest(&self, state: &mut State) -> Checked<bool> {
        for _ in 0..REST_STEPS {
            let mut worked = false;
            for index in 0..state.machines.len() {
                if can_commit(&state.machines[index], state.store.has_room()) {
                    self.step(state, Fault::None).commit(index)?;
                    worked = true;
                }
                for volume in 0..VOLUMES {
                    if action::can_work(state, index, volume) {
                        World::work(&mut self.step(state, Fault::None), index, volume)?;
                        worked = true;
                    }
                }
            }
            if !worked {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// A host that was never here opens every volume, from the store alone.
    fn probe(&self, state: &mut State) -> Checked<()> {
        let Some(free) = (state.machines.iter()).position(|machine| machine.power == Power::None)
        else {
            return Ok(());
        };
        let mut machine = Machine::NONE;
        machine.power = Power::On;
        machine.disk.host = free as u8;
        state.machines[free] = machine;
        for volume in 0..VOLUMES {
            if state.store.roots[volume].state == RootState::Absent {
                continue;
            }
            World::begin(state, self.rules, free, volume, Job::Open);
            let rests = self.rest(state)?;
            let phase = state.machines[free].activities[volume].phase;
            // After a set-back it may refuse, unless something was called stored since.
            let excused = state.ghost.may_stop && !state.ghost.lines[volume].has_news;
            // A log of the model may have no position left for the fence.
            let is_full = state
                .store
                .logs
                .iter()
                .any(|log| !log[POSITIONS - 1].is_absent());
            let refuses = phase == Phase::GaveUp && (excused || is_full);
            if !rests || phase != Phase::Live && !refuses {
                return Err(WAITS);
            }
        }
        if self.judgement.garbage {
            self.judge_garbage(state, free)?;
        }
        Ok(())
    }

    fn judge_garbage(&self, state: &mut State, holder: usize) -> Checked<()> {
        for volume in 0..VOLUMES {
            let live = state.machines[holder].activities[volume].phase == Phase::Live;
            if live && self.rules.has(Rule::SharedPacksDissolve) {
                // A maintenance holder rewrites what it holds.
                World::begin(state, self.rules, holder, volume, Job::Compact);
                self.rest(state)?;
            }
        }
        // Nothing is left on the others: their sessions end.
        for host in 0..holder {
            let mut step = self.step(state, Fault::None);
            step.retire(host);
            step.retire(host);
        }
        for host in 0..super::store::HOSTS {
            let mut step = self.step(state, Fault::None);
            step.compute_low(host);
            step.raise_low(host);
            for _ in 0..POSITIONS {
                step.delete_record(host);
            }
        }
        for _ in 0..3 * (2 + VOLUMES) {
            self.step(state, Fault::None).collect();
            while state.collector.condemned != 0 {
                self.step(state, Fault::None).delete_pack();
            }
        }
        let held = |index: u8| {
            let contents = state.store.packs[index as usize].contents;
            contents
                .iter()
                .flatten()
                .filter(|value| **value != 0)
                .count()
        };
        let all: usize = indexes(state.packs()).map(held).sum();
        let reachable: usize = (state.store.roots.iter())
            .filter(|root| root.state != RootState::Absent)
            .map(|root| root.lsn as usize)
            .sum();
        if all > 3 * reachable {
            return Err(GARBAGE);
        }
        Ok(())
    }
}

impl Model for World {
    type State = State;
    type Action = Action;

    fn initial(&self) -> State {
        self.initial.clone()
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        if !self.judgement.still {
            action::list(state, self.rules, self.judgement.reads, actions);
        }
    }

    fn apply(&self, state: &mut State, action: Action) -> Checked<()> {
        self.take(state, action)
    }

    fn judge_at_rest(&self, state: &State) -> Checked<()> {
        let served = |machine: &Machine| {
            let volumes = machine.disk.tails.iter().zip(&machine.activities);
            let waits = |(tail, activity): (&Tail, &Activity)| {
                tail.attached && matches!(activity.phase, Phase::Claim | Phase::Idle)
            };
            machine.power != Power::On || !volumes.into_iter().any(waits)
        };
        if state.store_away {
            return if state.machines.iter().all(served) {
                Ok(())
            } else {
                Err(NOT_SERVED)
            };
        }
        let mut state = state.clone();
        state.late.clear();
        if !self.rest(&mut state)? {
            return Err(WAITS);
        }
        if self
            .judgement
            .fences
            .is_some_and(|most| state.fences > most)
        {
            return Err(TOO_MANY);
        }
        for machine in state.machines.iter().filter(|machine| machine.is_on()) {
            let idle = matches!(machine.commit, CommitPhase::Idle | CommitPhase::Stopped);
            let rests = |activity: &Activity| activity.phase.is_at_rest();
            // Worlds are bounded: with a full log nothing can be named or ended.
            let is_bounded = !state.store.has_room() || !has_position(machine);
            if !(is_bounded || idle && machine.activities.iter().all(rests)) {
                return Err(WAITS);
            }
        }
        self.probe(&mut state)
    }

    fn sentence(&self, action: Action) -> String {
        action::sentence(action)
    }
}

/// A machine whose process runs, with a host of its own.
pub(crate) fn host(index: u8) -> Machine {
    let mut machine = Machine::NONE;
    machine.power = Power::On;
    machine.disk.host = index;
    machine.disk.session = 1;
    machine.bits = index;
    machine
}

/// Makes a volume open on a host, empty, in epoch 1.
pub(crate) fn attach(state: &mut State, index: usize, volume: usize) {
    let root = Root {
        state: RootState::Open,
        epoch: 1,
        owner: state.machines[index].disk.host,
        claimant: NOBODY,
        origin: volume as u8,
        ..Root::ABSENT
    };
    state.store.roots[volume] = root;
    let machine = &mut state.machines[index];
    machine.disk.tails[volume] = Tail {
        attached: true,
        epoch: 1,
        ..Tail::default()
    };
    machine.activities[volume] = Activity {
        phase: Phase::Live,
        root,
        ..Activity::NONE
    };
    state.ghost.lines[volume].epoch = 1;
}
