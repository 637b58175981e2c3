//! What each operation costs in requests, counted by running it in the model.
//!
//! A pack or a footer counts as one request each; folds of many volumes share their index objects,
//! which the model, with one volume at a time, does not show.

use super::action::{Job, can_work};
use super::commit::can_commit;
use super::search::Checked;
use super::step::Requests;
use super::store::VOLUMES;
use super::world::World;
use super::worlds::bench;

/// An operation and its requests.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Cost {
    pub(crate) operation: &'static str,
    pub(crate) requests: Requests,
}

/// Counts the requests of everything that the machines of a world are at.
fn run(world: &World) -> Checked<Requests> {
    let mut state = world.initial.clone();
    let mut total = Requests::default();
    let mut worked = true;
    while worked {
        worked = false;
        for machine in 0..state.machines.len() {
            for volume in 0..=VOLUMES {
                let mut step = world.step_without_faults(&mut state);
                if volume < VOLUMES && can_work(step.state, machine, volume) {
                    World::work(&mut step, machine, volume)?;
                } else if volume == VOLUMES && can_commit(&step.state.machines[machine], true) {
                    step.commit(machine)?;
                } else {
                    continue;
                }
                worked = true;
                total.puts += step.requests.puts;
                total.gets += step.requests.gets;
            }
        }
    }
    Ok(total)
}

fn cost(operation: &'static str, world: &World) -> Checked<Cost> {
    let requests = run(world)?;
    Ok(Cost {
        operation,
        requests,
    })
}

/// The operations of the page, one after the other.
pub(crate) fn costs() -> Checked<Vec<Cost>> {
    let asked = |machine, job| {
        let mut world = bench(2, 0);
        world.begin_in(machine, 0, job);
        world
    };
    let mut first = bench(2, 1);
    first.initial.machines[0].disk.tails[0].verified = false;
    let mut take_overs = bench(1, 0);
    for volume in 0..VOLUMES {
        take_overs.begin_in(1, volume, Job::Open);
    }
    Ok(vec![
        cost("the first record of an epoch, one volume", &first)?,
        cost("a record of one volume", &bench(2, 1))?,
        cost("a record of three volumes", &bench(2, 3))?,
        cost(
            "a take-over, two records since the mark",
            &asked(1, Job::Open),
        )?,
        cost("three take-overs at once, one record", &take_overs)?,
        cost("a fold", &asked(0, Job::Fold))?,
        cost("a fold that writes an object", &asked(0, Job::Compact))?,
        cost("a close, everything stored", &asked(0, Job::Close))?,
        cost("a restore in place", &asked(0, Job::Restore))?,
    ])
}

/// Requests a second of the host that P21 describes: 1,000 volumes that write 64 KiB a minute each.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Rates {
    pub(crate) puts: f64,
    pub(crate) gets: f64,
}

/// With a record every so many seconds, and a fold after so many slices of a volume.
pub(crate) fn rates(record_seconds: f64, slices_per_fold: f64) -> Checked<Rates> {
    let volumes = 1000.0;
    let record = run(&bench(2, 3))?;
    let mut fold = bench(2, 0);
    fold.begin_in(0, 0, Job::Fold);
    let fold = run(&fold)?;
    // Who raises the low mark reads each record once.
    let passed = 1.0;
    // A volume has one slice a minute, since it writes once; 32 folds share an index object.
    let folds = volumes / 60.0 / slices_per_fold;
    let index_objects = folds / 32.0;
    Ok(Rates {
        puts: f64::from(record.puts) / record_seconds
            + f64::from(fold.puts) * folds
            + index_objects,
        gets: (f64::from(record.gets) + passed) / record_seconds + f64::from(fold.gets) * folds,
    })
}
