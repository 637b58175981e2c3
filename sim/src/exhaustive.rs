//! The exhaustive modes: not drawn, but all of them up to a bound.
//!
//! [`crashes`]: every workload of up to three operations on two blocks, on a new volume and on
//! one that was just opened from the store, with a crash after every disk and store event: of
//! the process, and of the host with several subsets of the unsynced sectors. Small workloads
//! find what random ones pass by: most known crash bugs of file systems need three operations.
//!
//! [`schedules`]: two writers and a reader on the same block while the engine freezes, uploads,
//! reuses and evicts around them, in every order in which at most so many events are put off.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use blkmq::io::Op;

use crate::disk::{Corruptible, DiskFaults, PowerCut};
use crate::oracle::history::Loss;
use crate::profile::{Limits, Profile, RingFaults};
use crate::store::StoreFaults;
use crate::trace::Violation;
use crate::workload::Action;
use crate::world::{DELAYS_NS, Order, Outcome, Plan, PlannedCrash, Watch, World};

/// What an exhaustive run amounted to.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// Workloads, or scenes.
    pub cases: u64,
    /// Worlds run.
    pub worlds: u64,
    /// Cases that the time did not suffice for.
    pub left: u64,
    /// The first failure: what ran, and what happened.
    pub failure: Option<(String, Violation)>,
}

const MS: u64 = 1_000_000;

/// The world of all planned runs: one small volume, no faults but the planned one, limits so
/// small that a few operations fill them.
fn profile() -> Profile {
    Profile {
        volumes: 1,
        sectors: 32,
        block: 1,
        clients: 1,
        depth: 16,
        actions: 0,
        crash_every: 0,
        crash_weights: [1, 0, 0],
        cut: PowerCut::LoseAll,
        disk: DiskFaults::default(),
        corruptible: Corruptible::default(),
        store: StoreFaults::default(),
        rings: RingFaults {
            stale: 10_000,
            ..RingFaults::default()
        },
        outage: 0,
        disk_ns: 100_000,
        slow_reads: 0,
        store_ns: MS,
        think_ns: 1000,
        wake_ns: 1000,
        limits: Limits {
            log_bytes: 768 << 10,
            segment_bytes: 8 << 10,
            ring_entries: 16,
            cache_bytes: 16 << 10,
            memory_bytes: 16 << 10,
            chunk_bytes: 4 << 10,
            pack_bytes: 8 << 10,
            deltas_max: 1,
            delta_extents_max: 8,
            pages_max: 1,
            rpo_ns: 15 * MS,
            frame_interval_ns: 5 * MS,
            retry_ns: MS,
        },
    }
}

fn world(plan: Plan) -> World {
    let mut world = World::with(1, profile(), Watch::default());
    world.follow(plan);
    world
}

fn write(sector: u64, sectors: u32, fua: bool) -> Action {
    Action::Op(Op::Write {
        sector,
        sectors,
        fua,
    })
}

/// The operations of the small workloads. Two blocks, and one write across both.
fn alphabet() -> Vec<Action> {
    vec![
        write(0, 8, false),
        write(8, 8, false),
        write(4, 8, false),
        write(0, 8, true),
        write(3, 1, true),
        Action::Op(Op::Discard {
            sector: 0,
            sectors: 8,
            fua: false,
        }),
        Action::Op(Op::WriteZeroes {
            sector: 4,
            sectors: 8,
            fua: true,
        }),
        Action::Op(Op::Flush),
        Action::Sync,
    ]
}

/// All words over the alphabet up to `longest`, shortest first.
fn words(longest: usize) -> Vec<Vec<Action>> {
    let letters = alphabet();
    let mut all = Vec::new();
    let mut last: Vec<Vec<Action>> = vec![Vec::new()];
    for _ in 0..longest {
        last = last
            .iter()
            .flat_map(|word| {
                letters.iter().map(|letter| {
                    let mut longer = word.clone();
                    longer.push(*letter);
                    longer
                })
            })
            .collect();
        all.extend(last.iter().cloned());
    }
    all
}

/// What is tried after each event.
fn crash_kinds() -> Vec<(Loss, PowerCut)> {
    let cuts = [
        PowerCut::LoseAll,
        PowerCut::KeepAll,
        PowerCut::Mask(0x5555_5555_5555_5555),
        PowerCut::Mask(0x00ff_00ff_00ff_00ff),
        PowerCut::Mask(!0xff),
    ];
    let hosts = cuts.into_iter().map(|cut| (Loss::Host, cut));
    [
        (Loss::Process, PowerCut::KeepAll),
        (Loss::Cache, PowerCut::LoseAll),
    ]
    .into_iter()
    .chain(hosts)
    .collect()
}

/// One small workload in one setting.
#[derive(Clone, Debug)]
struct Case {
    word: Vec<Action>,
    /// Each operation is awaited before the next.
    sequential: bool,
    /// The volume has content in the store already.
    warm: bool,
}

impl Case {
    fn plan(&self, crash: Option<PlannedCrash>) -> Plan {
        let mut script = Vec::new();
        for action in &self.word {
            script.push(*action);
            if self.sequential {
                script.push(Action::Drain);
            }
        }
        let warm = if self.warm {
            vec![write(0, 16, false)]
        } else {
            Vec::new()
        };
        let order = Order::default();
        Plan {
            warm,
            scripts: vec![script],
            crash,
            order,
        }
    }

    /// Crashes everywhere: one world that goes to its end, and from each of its places one more
    /// for each kind of crash. Answers how many worlds were run, and the first violation.
    fn run(&self) -> (u64, Option<(String, Violation)>) {
        let mut worlds = 1;
        let mut failure = None;
        let whole = self.crash_everywhere(|crash, outcome| {
            worlds += 1;
            failure = outcome.violation.map(|violation| (Some(crash), violation));
            failure.is_none()
        });
        let failure = failure.or(whole.violation.map(|violation| (None, violation)));
        let told = |(crash, violation)| (format!("{self:?} with {crash:?}"), violation);
        (worlds, failure.map(told))
    }

    /// Answers how the world without a crash ended, and tells of each world with one, until the
    /// answer to that is no.
    fn crash_everywhere(&self, mut goes_on: impl FnMut(PlannedCrash, Outcome) -> bool) -> Outcome {
        let kinds = crash_kinds();
        let mut before = 0;
        world(self.plan(None)).run_watched(|world| {
            let after = world.crash_places();
            let new = after > std::mem::replace(&mut before, after);
            !new || kinds.iter().all(|(loss, cut)| {
                let (loss, cut) = (*loss, *cut);
                let crash = PlannedCrash { after, loss, cut };
                goes_on(crash, world.crashed(crash).run())
            })
        })
    }
}

/// Runs the cases on some threads, each to its end, while there is time.
fn run_all<C: Sync>(
    cases: &[C],
    time: Duration,
    threads: usize,
    prepare: impl Fn() + Sync,
    run: impl Fn(&C, Instant) -> (u64, Option<(String, Violation)>) + Sync,
) -> Report {
    let begun = Instant::now();
    let next = AtomicUsize::new(0);
    let report = Mutex::new(Report::default());
    std::thread::scope(|scope| {
        for _ in 0..threads.max(1) {
            scope.spawn(|| {
                prepare();
                loop {
                    let index = next.fetch_add(1, Ordering::Relaxed);
                    let Some(case) = cases.get(index) else { break };
                    let mut held = report.lock().expect("no panic while adding up");
                    if begun.elapsed() >= time || held.failure.is_some() {
                        held.left += 1;
                        continue;
                    }
                    drop(held);
                    let (worlds, failure) = run(case, begun + time);
                    let mut held = report.lock().expect("no panic while adding up");
                    held.cases += 1;
                    held.worlds += worlds;
                    if held.failure.is_none() {
                        held.failure = failure;
                    }
                }
            });
        }
    });
    report.into_inner().expect("no panic while adding up")
}

/// Every small workload with a crash after every event.
pub fn crashes(
    longest: usize,
    time: Duration,
    threads: usize,
    prepare: impl Fn() + Sync,
) -> Report {
    let mut cases = Vec::new();
    for word in words(longest) {
        for warm in [false, true] {
            // With one operation there is nothing to overlap.
            for sequential in [true, false] {
                if sequential || word.len() > 1 {
                    cases.push(Case {
                        word: word.clone(),
                        sequential,
                        warm,
                    });
                }
            }
        }
    }
    run_all(&cases, time, threads, prepare, |case, _| case.run())
}

/// A scene whose orders are enumerated.
#[derive(Clone, Debug)]
struct Scene {
    name: &'static str,
    warm: bool,
    scripts: Vec<Vec<Action>>,
}

#[expect(clippy::too_many_lines, reason = "a table, not steps")]
fn scenes() -> Vec<Scene> {
    let read = |sector, sectors| Action::Op(Op::Read { sector, sectors });
    let discard = |sector, sectors| {
        Action::Op(Op::Discard {
            sector,
            sectors,
            fua: false,
        })
    };
    let scene = |name, warm, scripts: [Vec<Action>; 3]| Scene {
        name,
        warm,
        scripts: scripts.into(),
    };
    vec![
        scene(
            "two writers of one block, cold reader",
            true,
            [
                vec![write(0, 8, false), Action::Drain, write(0, 8, true)],
                vec![write(4, 8, false)],
                vec![read(0, 16), Action::Drain, read(0, 8)],
            ],
        ),
        scene(
            "fetch against write and trim",
            true,
            [
                vec![write(2, 2, false), Action::Drain, read(0, 8)],
                vec![discard(4, 8)],
                vec![read(0, 16), read(8, 8)],
            ],
        ),
        scene(
            "upload against overwriting",
            false,
            [
                vec![
                    write(0, 8, false),
                    Action::Sync,
                    Action::Drain,
                    write(0, 8, false),
                ],
                vec![write(0, 8, false), Action::Drain, Action::Sync],
                vec![read(0, 8), Action::Drain, read(0, 8)],
            ],
        ),
        scene(
            "trim against upload",
            true,
            [
                vec![write(0, 16, false), Action::Drain, Action::Sync],
                vec![discard(0, 8), Action::Drain, write(4, 1, false)],
                vec![read(0, 8), Action::Drain, read(0, 8)],
            ],
        ),
        scene(
            "reuse of segments under a reader",
            false,
            [
                (0..6)
                    .map(|n| write(n % 2 * 8, 8, false))
                    .chain([Action::Sync])
                    .collect(),
                (0..6).map(|n| write(16 + n % 2 * 8, 8, n == 3)).collect(),
                vec![
                    read(0, 32),
                    Action::Drain,
                    read(0, 32),
                    Action::Drain,
                    read(0, 32),
                ],
            ],
        ),
        scene(
            "flush against commit",
            false,
            [
                vec![
                    write(0, 8, false),
                    Action::Op(Op::Flush),
                    write(0, 8, false),
                ],
                vec![write(4, 8, true), Action::Op(Op::Flush)],
                vec![read(0, 16)],
            ],
        ),
    ]
}

impl Scene {
    /// All orders in which at most `bound` events are put off, until the deadline.
    fn run(&self, bound: usize, deadline: Instant) -> (u64, Option<(String, Violation)>) {
        let mut choices: Vec<u8> = Vec::new();
        let mut worlds = 0;
        loop {
            let order = Order {
                choices: choices.clone(),
            };
            let warm = if self.warm {
                vec![write(0, 32, false)]
            } else {
                Vec::new()
            };
            let plan = Plan {
                warm,
                scripts: self.scripts.clone(),
                crash: None,
                order,
            };
            let outcome = world(plan).run();
            worlds += 1;
            if let Some(violation) = outcome.violation {
                let what = format!("{} in the order {choices:?}", self.name);
                return (worlds, Some((what, violation)));
            }
            if Instant::now() >= deadline {
                return (worlds, None);
            }
            match next_order(choices, outcome.plan.steps, bound) {
                Some(next) => choices = next,
                None => return (worlds, None),
            }
        }
    }
}

/// The next order in the enumeration: the last choice that can be raised is raised, and what
/// follows it takes its default. `steps` says how many there were.
fn next_order(mut choices: Vec<u8>, steps: usize, bound: usize) -> Option<Vec<u8>> {
    choices.resize(steps, 0);
    for step in (0..steps).rev() {
        let before = choices[..step].iter().filter(|choice| **choice > 0).count();
        if usize::from(choices[step]) < DELAYS_NS.len() && before < bound {
            let raised = choices[step] + 1;
            choices.truncate(step);
            choices.push(raised);
            return Some(choices);
        }
    }
    None
}

/// Every scene in every order up to the bound. A case is a scene with a bound; small bounds come
/// first, so that what the time suffices for is complete.
pub fn schedules(
    bound: usize,
    time: Duration,
    threads: usize,
    prepare: impl Fn() + Sync,
) -> Report {
    let mut cases = Vec::new();
    for bound in 1..=bound {
        cases.extend(scenes().into_iter().map(|scene| (scene, bound)));
    }
    run_all(
        &cases,
        time,
        threads,
        prepare,
        |(scene, bound), deadline| scene.run(*bound, deadline),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn orders_are_enumerated_once_each_up_to_the_bound() {
        let mut seen = Vec::new();
        let mut choices = Some(Vec::new());
        while let Some(current) = choices {
            let mut whole = current.clone();
            whole.resize(3, 0);
            seen.push(whole);
            choices = next_order(current, 3, 2);
        }
        let count = seen.len();
        seen.sort();
        seen.dedup();
        assert_eq!(seen.len(), count, "each once");
        // None put off; one of three by two delays; two of three by two delays each.
        assert_eq!(count, 1 + 3 * 2 + 3 * 4);
        assert!(
            seen.iter()
                .all(|order| order.iter().filter(|choice| **choice > 0).count() <= 2)
        );
    }

    #[test]
    fn a_world_that_parts_at_a_crash_goes_on_as_if_it_had_been_run_anew() {
        let case = Case {
            word: vec![write(4, 8, true), Action::Sync],
            sequential: false,
            warm: true,
        };
        let mut places = 0;
        case.crash_everywhere(|crash, parted| {
            let anew = world(case.plan(Some(crash))).run();
            assert!(anew.plan.crashed, "{crash:?}");
            assert_eq!(parted.digest, anew.digest, "{crash:?}");
            assert_eq!(parted.events, anew.events, "{crash:?}");
            places = places.max(crash.after);
            true
        });
        assert!(places > 10, "{places}");
        let (loss, cut) = crash_kinds()[0];
        let crash = PlannedCrash {
            after: places + 1,
            loss,
            cut,
        };
        let beyond = world(case.plan(Some(crash))).run();
        assert!(!beyond.plan.crashed, "no place was left out");
    }

    #[test]
    fn all_words_up_to_three_letters_are_there() {
        let letters = alphabet().len();
        assert_eq!(words(3).len(), letters + letters.pow(2) + letters.pow(3));
    }
}
