//! Every scene in every order in which a few events are put off.

use std::time::{Duration, Instant};

use blkmq::io::Op;

use super::cases::{Report, run_all, world, write};
use crate::trace::Violation;
use crate::workload::Action;
use crate::world::{DELAYS_NS, Order, Plan};

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
}
