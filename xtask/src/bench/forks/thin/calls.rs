//! Single snapshots and forks of a disk in use: how long the call takes, and what its clients notice.

use std::ops::Range;
use std::time::{Duration, Instant};

use super::super::{median_ms, most_ms};
use super::{Branching, Systems};
use crate::Failure;
use crate::bench::disk_load::{Clients, completed, unix_ms};

/// How long the longest request is looked for around a call, and without one.
const PERIOD: Duration = Duration::from_millis(700);
/// How long the clients go on before the first period.
const SETTLING: Duration = Duration::from_secs(1);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Call {
    Snapshot,
    Fork,
}

impl Call {
    fn name(self) -> &'static str {
        match self {
            Call::Snapshot => "snapshot",
            Call::Fork => "fork",
        }
    }

    /// How long the call took, and making its fork a disk.
    fn make(self, system: &mut dyn Branching, name: &str) -> Result<[Duration; 2], Failure> {
        match self {
            Call::Snapshot => Ok([system.snapshot(name)?, Duration::ZERO]),
            Call::Fork => Ok([system.fork(None, name)?, system.attach(name)?.0]),
        }
    }

    fn undo(self, system: &mut dyn Branching, name: &str) -> Result<(), Failure> {
        match self {
            Call::Snapshot => system.remove_snapshot(name),
            Call::Fork => {
                system.detach(name)?;
                system.remove_fork(name)
            }
        }
    }
}

/// What a system's calls came to.
#[derive(Default)]
struct Found {
    idle: [Vec<Duration>; 2],
    loaded: [Vec<Duration>; 2],
    /// Without a call, and with one.
    longest: [Vec<Duration>; 2],
    per_second: [Vec<f64>; 2],
}

pub(super) fn measure(systems: &mut Systems, rounds: usize) -> Result<(), Failure> {
    println!(
        "| | | idle, ms: median | most | beside the load, ms: median | most | longest request with one, ms: median | most \
         | without: median | most | requests a second with one | without |\n\
         |---|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|"
    );
    for call in [Call::Snapshot, Call::Fork] {
        let mut found = [Found::default(), Found::default()];
        for round in 0..rounds {
            for (system, found) in systems.iter_mut().zip(&mut found) {
                let name = format!("idle-{}-{round}", call.name());
                system.settle()?;
                note(call.make(&mut **system, &name)?, &mut found.idle);
                call.undo(&mut **system, &name)?;
            }
        }
        for round in 0..rounds {
            for (system, found) in systems.iter_mut().zip(&mut found) {
                let name = format!("loaded-{}-{round}", call.name());
                under_load(&mut **system, call, &name, found)?;
                call.undo(&mut **system, &name)?;
            }
        }
        for (system, found) in systems.iter().zip(&found) {
            print_rows(system.name(), call, found);
        }
    }
    Ok(())
}

fn note(took: [Duration; 2], times: &mut [Vec<Duration>; 2]) {
    for (took, times) in took.into_iter().zip(times) {
        times.push(took);
    }
}

fn print_rows(system: &str, call: Call, found: &Found) {
    let [without, with] = &found.longest;
    println!(
        "| {system} | {} | {} | {} | {} | {} | {:.0} | {:.0} |",
        call.name(),
        median_and_most(&found.idle[0]),
        median_and_most(&found.loaded[0]),
        median_and_most(with),
        median_and_most(without),
        median(&found.per_second[1]),
        median(&found.per_second[0]),
    );
    if call == Call::Fork {
        let (idle, loaded) = (&found.idle[1], &found.loaded[1]);
        let (idle, loaded) = (median_and_most(idle), median_and_most(loaded));
        println!("| | its disk | {idle} | {loaded} | | | | | | |");
    }
}

fn median_and_most(times: &[Duration]) -> String {
    format!("{:.2} | {:.2}", median_ms(times), most_ms(times))
}

fn median(rates: &[f64]) -> f64 {
    let mut rates = rates.to_vec();
    rates.sort_by(f64::total_cmp);
    rates.get(rates.len() / 2).copied().unwrap_or_default()
}

/// One call beside a client that writes 4 KiB in random order and reads what it wrote, 32 requests under way.
fn under_load(
    system: &mut dyn Branching,
    call: Call,
    name: &str,
    found: &mut Found,
) -> Result<(), Failure> {
    system.settle()?;
    let disk = system.origin().to_owned();
    let mut clients = Clients::start(std::slice::from_ref(&disk), &[])?;
    clients.wait_until_all_are_answered(&mut || Ok(()))?;
    std::thread::sleep(SETTLING);
    let mut took = [Duration::ZERO; 2];
    let count = || completed(&disk);
    let periods = [
        period(&count, || Ok(()))?,
        period(&count, || {
            took = call.make(system, name)?;
            Ok(())
        })?,
    ];
    note(took, &mut found.loaded);
    let answers = clients.end()?;
    for (at, (times, rate)) in periods.into_iter().enumerate() {
        let longest = answers.longest(&times)?;
        found.longest[at].push(Duration::from_secs_f64(longest / 1e3));
        found.per_second[at].push(rate);
    }
    Ok(())
}

/// A period that begins with `call`: when it was, and the requests a second in it.
fn period(
    count: &dyn Fn() -> Result<u64, Failure>,
    call: impl FnOnce() -> Result<(), Failure>,
) -> Result<(Range<u64>, f64), Failure> {
    let (from, began, before) = (unix_ms(), Instant::now(), count()?);
    call()?;
    std::thread::sleep(PERIOD.saturating_sub(began.elapsed()));
    let requests = count()? - before;
    let rate = requests as f64 / began.elapsed().as_secs_f64();
    Ok((from..unix_ms(), rate))
}
