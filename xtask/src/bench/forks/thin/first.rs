//! The first request to each of many forks, beside the same to the origin: where it shares blocks, and where it does not.

use std::path::PathBuf;
use std::time::Duration;

use super::super::median_ms;
use super::{Branching, ORIGIN_MIB, Systems};
use crate::Failure;
use crate::bench::measure::{DirectFile, fill};

/// Forks of a round: a half is read first, the other half written.
const FORKS: usize = 64;
/// No two requests of a round are nearer to each other: as far as pieces that may be shared as a whole.
const APART: u64 = 64 << 10;

const REQUESTS: [&str; 3] = ["read", "write", "FLUSH after the write"];

/// Times of each of the requests: to forks, to the origin whose blocks the snapshot has too, and to blocks that only it has.
type Times = [[Vec<Duration>; 3]; 3];

pub(super) fn measure(systems: &mut Systems, rounds: usize) -> Result<(), Failure> {
    let mut found: [Times; 2] = Default::default();
    let mut random = fastrand::Rng::with_seed(5);
    for round in 0..rounds {
        let mut places: Vec<u64> = (0..(ORIGIN_MIB << 20) / APART).collect();
        random.shuffle(&mut places);
        for (system, found) in systems.iter_mut().zip(&mut found) {
            one_round(&mut **system, round, &places, found)?;
        }
    }
    println!(
        "\n| {FORKS} forks of a snapshot, first request | | fork, us | origin, us | origin again, us | fork to origin again |\n\
         |---|---|---:|---:|---:|---:|"
    );
    for (at, request) in REQUESTS.iter().enumerate() {
        for (system, found) in systems.iter().zip(&found) {
            let [fork, shared, own] = found[at].each_ref().map(|times| median_ms(times) * 1e3);
            let name = system.name();
            println!(
                "| {request} | {name} | {fork:.0} | {shared:.0} | {own:.0} | {:.2} |",
                fork / own
            );
        }
    }
    Ok(())
}

fn one_round(
    system: &mut dyn Branching,
    round: usize,
    places: &[u64],
    found: &mut Times,
) -> Result<(), Failure> {
    // Written just before, so that neither side reads what it has put away.
    fill(&system.origin().to_owned())?;
    system.settle()?;
    let base = format!("first-{round}");
    system.stored_snapshot(&base)?;
    let mut forks: Vec<(String, PathBuf)> = Vec::new();
    for nth in 0..FORKS {
        let name = format!("first-{round}-{nth}");
        system.fork(Some(&base), &name)?;
        let (_, disk) = system.attach(&name)?;
        forks.push((name, disk));
    }
    let mut origin = DirectFile::open(system.origin(), 4096)?;
    for (nth, ((_, disk), places)) in forks.iter().zip(places.chunks_exact(2)).enumerate() {
        let mut fork = DirectFile::open(disk, 4096)?;
        let at = [places[0] * APART, places[1] * APART];
        requests(&mut fork, &mut origin, nth % 2 == 0, at, found)?;
    }
    drop(origin);
    for (name, _) in forks {
        system.detach(&name)?;
        system.remove_fork(&name)?;
    }
    system.remove_snapshot(&base)
}

/// The first request to a fork, and the same to the origin, each at a place of its own.
fn requests(
    fork: &mut DirectFile,
    origin: &mut DirectFile,
    reads: bool,
    [at_fork, at_origin]: [u64; 2],
    found: &mut Times,
) -> Result<(), Failure> {
    if reads {
        found[0][0].push(fork.read(at_fork)?);
        found[0][1].push(origin.read(at_origin)?);
        return Ok(());
    }
    for (kind, (file, at)) in [(&mut *fork, at_fork), (&mut *origin, at_origin)]
        .into_iter()
        .enumerate()
    {
        found[1][kind].push(file.write(at)?);
        found[2][kind].push(file.flush()?);
    }
    // It has the block for itself by now.
    found[1][2].push(origin.write(at_origin)?);
    found[2][2].push(origin.flush()?);
    found[0][2].push(origin.read(at_origin)?);
    Ok(())
}
