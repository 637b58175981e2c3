//! Every small workload with a crash after every event.

use std::time::Duration;

use blkmq::io::Op;

use super::cases::{Report, run_all, world, write};
use crate::disk::PowerCut;
use crate::oracle::history::Loss;
use crate::trace::Violation;
use crate::workload::Action;
use crate::world::{Order, Outcome, Plan, PlannedCrash};

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
    fn crash_everywhere(
        &self,
        mut continues: impl FnMut(PlannedCrash, Outcome) -> bool,
    ) -> Outcome {
        let kinds = crash_kinds();
        let mut before = 0;
        world(self.plan(None)).run_watched(|world| {
            let after = world.crash_places();
            let new = after > std::mem::replace(&mut before, after);
            !new || kinds.iter().all(|(loss, cut)| {
                let (loss, cut) = (*loss, *cut);
                let crash = PlannedCrash { after, loss, cut };
                continues(crash, world.fork_at_crash(crash).run())
            })
        })
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_world_that_parts_at_a_crash_goes_on_as_if_it_had_been_run_anew() {
        let case = Case {
            word: vec![write(4, 8, true), Action::Sync],
            sequential: true,
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
