//! Many forks of one snapshot, one after the other, and all of them as disks at the same time.

use std::time::{Duration, Instant};

use super::super::{Arguments, median_ms, most_ms};
use super::{Branching, Systems};
use crate::Failure;

/// What a system's forks came to, a round each.
#[derive(Default)]
struct Found {
    forked: Vec<Duration>,
    attached: Vec<Duration>,
    /// Memory that the guest has less for each fork that is a disk.
    kib_each: Vec<f64>,
}

pub(super) fn measure(systems: &mut Systems, arguments: &Arguments) -> Result<(), Failure> {
    let mut found = [Found::default(), Found::default()];
    for round in 0..arguments.rounds {
        for (system, found) in systems.iter_mut().zip(&mut found) {
            one_round(&mut **system, round, arguments.forks, found)?;
        }
    }
    println!(
        "\n| {} forks of one snapshot | one after the other, s: median | most | made disks, s: median | most | memory of each disk, KiB |\n\
         |---|---:|---:|---:|---:|---:|",
        arguments.forks
    );
    for (system, found) in systems.iter().zip(&mut found) {
        found.kib_each.sort_by(f64::total_cmp);
        let kib = found.kib_each.get(found.kib_each.len() / 2);
        println!(
            "| {} | {:.2} | {:.2} | {:.2} | {:.2} | {:.0} |",
            system.name(),
            median_ms(&found.forked) / 1e3,
            most_ms(&found.forked) / 1e3,
            median_ms(&found.attached) / 1e3,
            most_ms(&found.attached) / 1e3,
            kib.copied().unwrap_or_default()
        );
    }
    Ok(())
}

fn one_round(
    system: &mut dyn Branching,
    round: usize,
    forks: usize,
    found: &mut Found,
) -> Result<(), Failure> {
    system.settle()?;
    let base = format!("many-{round}");
    system.stored_snapshot(&base)?;
    let names: Vec<String> = (0..forks).map(|nth| format!("{base}-{nth}")).collect();
    let before = available_kib()?;
    let began = Instant::now();
    for name in &names {
        system.fork(Some(&base), name)?;
    }
    found.forked.push(began.elapsed());
    let began = Instant::now();
    for name in &names {
        system.attach(name)?;
    }
    found.attached.push(began.elapsed());
    let taken = before - available_kib()?;
    found.kib_each.push(taken / forks.max(1) as f64);
    for name in &names {
        system.detach(name)?;
        system.remove_fork(name)?;
    }
    system.remove_snapshot(&base)
}

/// What the guest's kernel could give to programs.
fn available_kib() -> Result<f64, Failure> {
    let memory = std::fs::read_to_string("/proc/meminfo")?;
    let line = memory
        .lines()
        .find_map(|line| line.strip_prefix("MemAvailable:"));
    let kib = line.and_then(|line| line.split_whitespace().next());
    Ok(kib
        .ok_or("the kernel does not say what memory it has")?
        .parse()?)
}
