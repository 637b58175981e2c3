//! What may happen next in a world, and how a schedule reads.

use super::collect::low_target;
use super::commit::can_commit;
use super::rules::{Rule, Rules};
use super::state::{CommitPhase, Machine, Phase, Power, State};
use super::step::{Fault, Step};
use super::store::{HOSTS, LSNS, RootState, VOLUMES};

/// What a machine's user may ask for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Job {
    Open,
    Close,
    /// Brings the root up to the log.
    Fold,
    /// The same, with a merged pack in place of all others.
    Compact,
    Restore,
    /// Makes the next volume a fork of this one.
    Fork,
    Delete,
}

pub(crate) const JOBS: [Job; 7] = [
    Job::Open,
    Job::Close,
    Job::Fold,
    Job::Compact,
    Job::Restore,
    Job::Fork,
    Job::Delete,
];

impl Job {
    /// Its place in a machine's mask.
    pub(crate) fn bit(self, volume: usize) -> u32 {
        1 << (self as usize * VOLUMES + volume)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Action {
    Write(u8, u8),
    Read(u8, u8),
    Commit(u8, Fault),
    Begin(u8, u8, Job),
    Work(u8, u8, Fault, Phase),
    Kill(u8),
    CutPower(u8),
    Start(u8),
    CloneDirectory(u8, u8),
    CloneImage(u8, u8),
    Land(u8),
    ComputeLow(u8),
    RaiseLow(u8),
    DeleteRecord(u8),
    Collect(u8),
    DeletePack,
    BackUp,
    RollBack,
    Retire(u8),
    LoseStore,
}

/// Whether a step of this phase sends a conditional write.
fn sends(phase: Phase) -> bool {
    matches!(
        phase,
        Phase::ClaimSent
            | Phase::AdoptSent
            | Phase::FoldSent
            | Phase::CloseSent
            | Phase::DeleteSent
            | Phase::RestoreSent
            | Phase::PutFence
    )
}

/// Whether what a machine does with a volume has a next step.
pub(crate) fn can_work(state: &State, index: usize, volume: usize) -> bool {
    let machine = &state.machines[index];
    let phase = machine.activities[volume].phase;
    if !machine.is_on() || phase.is_at_rest() || matches!(phase, Phase::End | Phase::Name) {
        return false;
    }
    if state.store_away {
        return false;
    }
    match phase {
        Phase::Compact | Phase::PutObject => state.store.has_room(),
        Phase::Close | Phase::Delete | Phase::Restore => is_quiet(machine, volume),
        _ => true,
    }
}

/// Whether everything of the volume is in the store, and no create carries it.
fn is_quiet(machine: &Machine, volume: usize) -> bool {
    let tail = &machine.disk.tails[volume];
    let is_carried = machine.record.slices[volume].epoch != 0;
    tail.newest == tail.stored && (machine.commit == CommitPhase::Idle || !is_carried)
}

fn can_begin(state: &State, index: usize, volume: usize, job: Job) -> bool {
    let machine = &state.machines[index];
    let phase = machine.activities[volume].phase;
    let live = phase == Phase::Live;
    let root = &machine.activities[volume].root;
    match job {
        Job::Open => {
            !live && phase.is_at_rest() && state.store.roots[volume].state != RootState::Absent
        }
        Job::Close | Job::Delete => live && is_quiet(machine, volume),
        Job::Restore => live && machine.disk.tails[volume].stored > 1 && is_quiet(machine, volume),
        Job::Fold => live && machine.disk.tails[volume].stored > root.lsn,
        Job::Compact => live && machine.disk.tails[volume].stored > 0 && state.store.has_room(),
        Job::Fork => {
            let is_absent = |volume: usize| state.store.roots[volume].state == RootState::Absent;
            (live || phase == Phase::Idle) && !is_absent(volume) && is_absent(volume + 1)
        }
    }
}

/// Adds a step, and what may go wrong with its write.
fn with_faults(
    state: &State,
    (would_win, late): (bool, u8),
    actions: &mut Vec<Action>,
    of: impl Fn(Fault) -> Action,
) {
    actions.push(of(Fault::None));
    if would_win && state.budget.unknown > 0 {
        actions.push(of(Fault::AnswerLost));
    }
    if would_win && late > 0 {
        actions.push(of(Fault::Late));
    }
}

fn machine_actions(state: &State, reads: bool, index: usize, actions: &mut Vec<Action>) {
    let machine = &state.machines[index];
    let (budget, number) = (&state.budget, index as u8);
    if machine.power == Power::Off {
        actions.push(Action::Start(number));
    }
    if machine.power != Power::On {
        return;
    }
    if !state.store_away && can_commit(machine, state.store.has_room()) {
        let place = state.store.record(machine.disk.host, machine.disk.next);
        let wins = machine.commit == CommitPhase::Framed && place.is_absent();
        with_faults(state, (wins, budget.late), actions, |fault| {
            Action::Commit(number, fault)
        });
    }
    for volume in 0..VOLUMES {
        let activity = &machine.activities[volume];
        let name = volume as u8;
        if can_work(state, index, volume) {
            let root = &state.store.roots[volume];
            let host = activity.root.predecessor.map_or(0, |before| before.host);
            let wins = match activity.phase {
                Phase::PutFence => state.store.record(host, activity.position).is_absent(),
                phase => sends(phase) && root.etag() == activity.root.etag(),
            };
            let phase = activity.phase;
            let late = if phase == Phase::PutFence {
                budget.late
            } else {
                budget.late_updates
            };
            with_faults(state, (wins, late), actions, |fault| {
                Action::Work(number, name, fault, phase)
            });
        }
        let serves = activity.phase.is_serving() && machine.is_on();
        if serves && budget.writes > 0 && (machine.disk.tails[volume].newest as usize) < LSNS {
            actions.push(Action::Write(number, name));
        }
        if serves && reads && activity.phase != Phase::Checking && !state.store_away {
            actions.push(Action::Read(number, name));
        }
        for job in JOBS {
            let asked = machine.jobs & job.bit(volume) != 0 && machine.is_on();
            if asked && !state.store_away && can_begin(state, index, volume, job) {
                actions.push(Action::Begin(number, name, job));
            }
        }
    }
    if budget.kills > 0 {
        actions.push(Action::Kill(number));
    }
    if budget.power_cuts > 0 {
        actions.push(Action::CutPower(number));
    }
}

fn clones(state: &State, actions: &mut Vec<Action>) {
    let free = |machine: &Machine| machine.power == Power::None;
    let Some(to) = state.machines.iter().position(free) else {
        return;
    };
    // Machine 0 is the one that is cloned.
    if state.budget.directory_clones > 0 {
        actions.push(Action::CloneDirectory(0, to as u8));
    }
    if state.budget.image_clones > 0 && state.machines[0].power == Power::On {
        actions.push(Action::CloneImage(0, to as u8));
    }
}

/// Whether a machine has won a create and not yet looked around, or has a root update under way
/// that leans on objects newer than the root.
fn is_looking(machine: &Machine) -> bool {
    let won = [
        CommitPhase::Won,
        CommitPhase::LowRead,
        CommitPhase::ChainRead,
    ];
    let updates = |phase| {
        matches!(
            phase,
            Phase::PutObject
                | Phase::Name
                | Phase::FoldReady
                | Phase::FoldSent
                | Phase::Low
                | Phase::Scan
                | Phase::PutFence
                | Phase::AfterFence
                | Phase::Adopt
                | Phase::AdoptSent
        )
    };
    let mut activities = machine.activities.iter();
    won.contains(&machine.commit) || activities.any(|activity| updates(activity.phase))
}

fn store_actions(state: &State, rules: Rules, actions: &mut Vec<Action>) {
    let budget = &state.budget;
    for late in 0..state.late.len() {
        actions.push(Action::Land(late as u8));
    }
    for host in 0..HOSTS {
        let number = host as u8;
        let (marks, newest) = (
            rules.has(Rule::LowKeepsMarks),
            rules.has(Rule::LowKeepsNewest),
        );
        if state.low_targets[host] != 0 {
            actions.push(Action::RaiseLow(number));
        } else if budget.low_marks > 0
            && state.store.low[host] != 0
            && low_target(state, host, marks, newest) > state.store.low[host]
        {
            actions.push(Action::ComputeLow(number));
        }
        if Step::deletable(state, host, rules.has(Rule::LowBeforeDelete)).is_some() {
            actions.push(Action::DeleteRecord(number));
        }
    }
    let collector = &state.collector;
    if collector.condemned != 0 {
        actions.push(Action::DeletePack);
    } else if collector.step > 0 || budget.passes > 0 {
        actions.push(Action::Collect(collector.step));
    }
    if budget.backups > 0 {
        actions.push(Action::BackUp);
    }
    // Between a won create and the look after it, it is as if it came after both. Within a
    // fold, an adoption, a raise or a pass it is out of scope: see the limits in docs/store-protocol.md.
    let collects = collector.step > 0 || collector.condemned != 0;
    let raises = state.low_targets.iter().any(|target| *target != 0);
    let looks = collects || raises || state.machines.iter().any(is_looking);
    if budget.rollbacks > 0 && state.backup.is_some() && !looks {
        actions.push(Action::RollBack);
    }
    let named = rules.has(Rule::RetiresUnnamed) && Step::is_named(state, 0);
    let done = state.retired[0] && state.store.low[0] == 0;
    if budget.retirements > 0 && !named && !done {
        actions.push(Action::Retire(0));
    }
    if budget.outages > 0 {
        actions.push(Action::LoseStore);
    }
}

/// Everything that may happen next.
pub(crate) fn list(state: &State, rules: Rules, reads: bool, actions: &mut Vec<Action>) {
    for index in 0..state.machines.len() {
        machine_actions(state, reads, index, actions);
    }
    clones(state, actions);
    if !state.store_away {
        store_actions(state, rules, actions);
    }
}

fn machine_name(index: u8) -> &'static str {
    ["machine A", "machine B", "machine C", "machine D"][index as usize]
}

fn volume_name(index: u8) -> &'static str {
    ["V", "W", "X"][index as usize]
}

fn fault_clause(fault: Fault) -> &'static str {
    match fault {
        Fault::None => "",
        Fault::AnswerLost => "; it takes effect, the answer is lost",
        Fault::Late => "; it is still on its way",
    }
}

fn phase_sentence(phase: Phase) -> &'static str {
    match phase {
        Phase::Checking => "reads the root of the tail that it continued",
        Phase::Claim => "reads the root for a claim",
        Phase::ClaimSent => "claims the next epoch in the root",
        Phase::Low => "reads the predecessor's low mark",
        Phase::Scan => "reads the next record of the predecessor's log",
        Phase::PutFence => "puts a fence there",
        Phase::AfterFence => "reads the low mark again, after the fence",
        Phase::Adopt => "prepares the adoption of what it read",
        Phase::AdoptSent => "adopts: the root names packs and owner; it serves",
        Phase::Fold => "prepares a fold of its records",
        Phase::Compact => "begins a merged pack",
        Phase::PutObject => "writes the merged pack",
        Phase::FoldReady => "prepares a fold",
        Phase::FoldSent => "updates the root: it has everything up to the mark",
        Phase::Close => "prepares the close",
        Phase::CloseSent => "closes the root",
        Phase::Delete => "prepares the tombstone",
        Phase::DeleteSent => "puts a tombstone in the root's place",
        Phase::Restore => "prepares a restore in place",
        Phase::RestoreSent => "restores in place: the root goes back to LSN 1",
        Phase::ForkRead => "reads root and records for a fork",
        Phase::ForkPin => "puts the fork's pin",
        Phase::ForkLook => "reads the parent's root again",
        Phase::ForkRoot => "creates the fork's root",
        Phase::End | Phase::Name | Phase::Idle | Phase::Live | Phase::Fenced | Phase::GaveUp => {
            "rests"
        }
    }
}

fn trace_step(step: u8) -> &'static str {
    match step {
        0 => "lists the packs",
        1 => "reads logs (or the first root, if its rule is off)",
        _ => "reads the next root and the pin beside it",
    }
}

/// The action as a line of a schedule.
pub(crate) fn sentence(action: Action) -> String {
    let of = |machine: u8, volume: u8| (machine_name(machine), volume_name(volume));
    match action {
        Action::Write(machine, volume) => {
            let (machine, volume) = of(machine, volume);
            format!("{machine} completes a write of {volume}")
        }
        Action::Read(machine, volume) => {
            let (machine, volume) = of(machine, volume);
            format!("{machine} reads {volume} from the store")
        }
        Action::Commit(machine, fault) => {
            format!(
                "{} takes the next step of its commit{}",
                machine_name(machine),
                fault_clause(fault)
            )
        }
        Action::Begin(machine, volume, job) => {
            let (machine, volume) = of(machine, volume);
            format!("{machine} is asked: {job:?} {volume}")
        }
        Action::Work(machine, volume, fault, phase) => {
            let (machine, volume) = of(machine, volume);
            format!(
                "{machine}, {volume}: {}{}",
                phase_sentence(phase),
                fault_clause(fault)
            )
        }
        Action::Kill(machine) => format!("the process of {} is killed", machine_name(machine)),
        Action::CutPower(machine) => format!("{} loses power", machine_name(machine)),
        Action::Start(machine) => format!("a process starts on {}", machine_name(machine)),
        Action::CloneDirectory(from, to) => {
            format!(
                "{} gets a copy of the cache directory of {}",
                machine_name(to),
                machine_name(from)
            )
        }
        Action::CloneImage(from, to) => {
            format!(
                "{} resumes from the memory image of {}",
                machine_name(to),
                machine_name(from)
            )
        }
        Action::Land(_) => "a request that was on its way lands".to_owned(),
        Action::ComputeLow(host) => format!("somebody computes the low mark of host {host}"),
        Action::RaiseLow(host) => format!("the low mark of host {host} is raised"),
        Action::DeleteRecord(host) => format!("the lowest record of host {host} is deleted"),
        Action::Collect(step) => format!("the collector {}", trace_step(step)),
        Action::DeletePack => "the collector deletes a pack".to_owned(),
        Action::BackUp => "the bucket is backed up".to_owned(),
        Action::RollBack => "the bucket is set back to the backup".to_owned(),
        Action::Retire(host) => format!("host {host} is retired: the next step"),
        Action::LoseStore => "the store goes away".to_owned(),
    }
}
