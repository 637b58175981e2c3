//! The search: breadth first through every state of a small world, or random deep walks through a
//! larger one; a failing walk is shrunk to a short schedule.
//!
//! It knows no protocol. A model says what may happen next and what each step leads to; a step that
//! breaks a promise is a violation, and the actions that led to it are the schedule.

use std::collections::HashMap;
use std::fmt::Debug;
use std::hash::{BuildHasherDefault, Hash, Hasher};

use super::fingerprint;

/// A promise that a step broke.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Violation {
    /// The sentence of the contract: S3, S7, S9, S10, or progress.
    pub(crate) promise: &'static str,
    pub(crate) what: &'static str,
}

pub(crate) type Checked<T> = Result<T, Violation>;

/// What can be searched.
pub(crate) trait Model {
    type State: Clone + Hash;
    type Action: Copy + PartialEq + Debug;

    fn initial(&self) -> Self::State;
    /// Everything that may happen next.
    fn actions(&self, state: &Self::State, actions: &mut Vec<Self::Action>);
    fn apply(&self, state: &mut Self::State, action: Self::Action) -> Checked<()>;
    /// Lets everything come to rest without further faults, and judges what is left.
    fn judge_at_rest(&self, state: &Self::State) -> Checked<()>;
    fn sentence(&self, action: Self::Action) -> String;
}

/// What a search found.
#[derive(Debug, Clone)]
pub(crate) struct Findings<A> {
    pub(crate) states: u64,
    pub(crate) depth: u32,
    /// Whether every reachable state was seen.
    pub(crate) complete: bool,
    pub(crate) failure: Option<(Violation, Vec<A>)>,
}

/// Where a search ends although there is more.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Bounds {
    pub(crate) states: u64,
    /// One state in so many is let come to rest; terminal states always are.
    pub(crate) settle_one_in: u64,
}

/// Fingerprints are hashes already.
#[derive(Default)]
struct Identity(u64);

impl Hasher for Identity {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, _: &[u8]) {}
    fn write_u64(&mut self, value: u64) {
        self.0 = value;
    }
}

/// How a state was reached first: its predecessor, and the action.
type Paths<A> = Vec<(u32, Option<A>)>;

/// Searches breadth first, so a schedule that it finds is as short as any.
pub(crate) fn breadth_first<M: Model>(model: &M, bounds: Bounds) -> Findings<M::Action> {
    let mut seen: HashMap<u64, (), BuildHasherDefault<Identity>> = HashMap::default();
    let mut paths: Paths<M::Action> = Vec::new();
    let mut level = Vec::new();
    let first = model.initial();
    seen.insert(fingerprint::of(&first), ());
    paths.push((0, None));
    level.push((first, 0));
    let mut findings = Findings {
        states: 1,
        depth: 0,
        complete: true,
        failure: None,
    };
    let mut actions = Vec::new();
    while !level.is_empty() {
        let mut next = Vec::new();
        for (state, at) in level.drain(..) {
            if findings.states >= bounds.states {
                findings.complete = false;
                return findings;
            }
            actions.clear();
            model.actions(&state, &mut actions);
            let print = fingerprint::of(&state);
            if (actions.is_empty() || print.is_multiple_of(bounds.settle_one_in))
                && let Err(violation) = model.judge_at_rest(&state)
            {
                findings.failure = Some((violation, schedule(&paths, at, None)));
                return findings;
            }
            for &action in &actions {
                let mut after = state.clone();
                if let Err(violation) = model.apply(&mut after, action) {
                    let actions = schedule(&paths, at, Some(action));
                    findings.failure = Some((violation, actions));
                    return findings;
                }
                if seen.insert(fingerprint::of(&after), ()).is_none() {
                    let index = paths.len() as u32;
                    paths.push((at, Some(action)));
                    next.push((after, index));
                    findings.states += 1;
                }
            }
        }
        level = next;
        findings.depth += 1;
    }
    findings
}

fn schedule<A: Copy>(paths: &Paths<A>, mut at: u32, last: Option<A>) -> Vec<A> {
    let mut actions: Vec<A> = last.into_iter().collect();
    while let (before, Some(action)) = paths[at as usize] {
        actions.push(action);
        at = before;
    }
    actions.reverse();
    actions
}

/// Numbers from a seed (splitmix64).
pub(crate) struct Draws(u64);

impl Draws {
    pub(crate) fn new(seed: u64) -> Draws {
        Draws(seed)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    pub(crate) fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound.max(1) as u64) as usize
    }
}

/// One random walk, settled at its end. A failing one is shrunk.
pub(crate) fn walk<M: Model>(model: &M, seed: u64, steps: usize) -> Findings<M::Action> {
    let mut draws = Draws::new(seed);
    let mut state = model.initial();
    let mut taken = Vec::new();
    let mut actions = Vec::new();
    let mut outcome = Ok(());
    for _ in 0..steps {
        actions.clear();
        model.actions(&state, &mut actions);
        if actions.is_empty() {
            break;
        }
        let action = actions[draws.below(actions.len())];
        taken.push(action);
        outcome = model.apply(&mut state, action);
        if outcome.is_err() {
            break;
        }
    }
    let outcome = outcome.and_then(|()| model.judge_at_rest(&state));
    Findings {
        states: taken.len() as u64,
        depth: taken.len() as u32,
        complete: false,
        failure: outcome.err().map(|why| shrink(model, why, taken)),
    }
}

/// Leaves out actions as long as what is left still breaks the same promise.
fn shrink<M: Model>(
    model: &M,
    violation: Violation,
    mut schedule: Vec<M::Action>,
) -> (Violation, Vec<M::Action>) {
    let mut length = schedule.len().div_ceil(2);
    while length > 0 {
        let before = schedule.len();
        let mut from = 0;
        while from < schedule.len() {
            let to = (from + length).min(schedule.len());
            let fewer = [&schedule[..from], &schedule[to..]].concat();
            match replay(model, &fewer, violation) {
                Some(taken) => schedule = taken,
                None => from = to,
            }
        }
        // One by one until nothing more can go: what goes late may free what was needed early.
        if length > 1 || schedule.len() == before {
            length /= 2;
        }
    }
    (violation, schedule)
}

/// The actions of the schedule that led to a breach of this promise; `None` if it is not broken.
/// An action that cannot happen any more, since what made it possible was left out, is passed over.
pub(crate) fn replay<M: Model>(
    model: &M,
    schedule: &[M::Action],
    expected: Violation,
) -> Option<Vec<M::Action>> {
    let is_expected = |violation: Violation| violation.promise == expected.promise;
    let mut state = model.initial();
    let mut actions = Vec::new();
    let mut taken = Vec::new();
    for action in schedule {
        actions.clear();
        model.actions(&state, &mut actions);
        if !actions.contains(action) {
            continue;
        }
        taken.push(*action);
        if let Err(violation) = model.apply(&mut state, *action) {
            return is_expected(violation).then_some(taken);
        }
    }
    model
        .judge_at_rest(&state)
        .err()
        .filter(|violation| is_expected(*violation))
        .map(|_| taken)
}
