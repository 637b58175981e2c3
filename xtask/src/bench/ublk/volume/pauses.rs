//! P9 and P23: how long requests wait while the server of their disks is upgraded, or killed and replaced.
//!
//! Busy disks have clients with 32 requests of 4 KiB under way, light ones a client with one and pauses; all verify what
//! they read, and none sees more than a pause. Periods with an event and without one take turns; what a round says is how
//! much longer its longest request was with one. The next server is executed as soon as the last one got its signal: no
//! supervisor's delay is in it.
//!
//! Before the clients come every block of the busy disks was written by 4 KiB in random order, and all of it is in the log: as
//! much as a server lets it hold before it uploads. The kernel tree's server, which has no log, is killed and recovered below the same clients: what it
//! takes is the kernel's part, and a process for each disk.

mod kublk;
mod starts;

use std::ops::Range;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use serde_json::json;

use self::kublk::Kublk;
use self::starts::Starts;
use super::BenchContext;
use super::report::Report;
use super::server::{Firn, World};
use crate::bench::disk_load::{Answers, Clients, unix_ms};
use crate::bench::handoff::{spread, steps};
use crate::bench::measure::{Length, Workload, fio};
use crate::bench::ublk::servers::Mode;
use crate::{Failure, figures};

/// MiB of all busy disks together, and of the log: a server begins to upload when a third of its log is not in the store.
const BUSY_MIB: u64 = 384;
const LOG_MIB: u64 = 1280;

/// MiB of a light disk.
const LIGHT_MIB: u64 = 8;

/// Busy and light disks of an upgrade (P9).
const UPGRADED: (usize, usize) = (4, 60);

/// Busy disks of a server that is killed (P23).
const KILLED: [usize; 2] = [1, 64];

/// How long clients go on before the first period, and at least after an event.
const SETTLING: Duration = Duration::from_secs(1);

/// What happens to the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Event {
    Upgrade,
    Kill,
}

impl Event {
    fn name(self) -> &'static str {
        match self {
            Event::Upgrade => "upgrade",
            Event::Kill => "kill -9",
        }
    }
}

/// What is measured together.
#[derive(Clone, Copy, Debug)]
struct Case {
    event: Event,
    server: &'static str,
    mode: Mode,
    busy: usize,
    light: usize,
}

impl Case {
    /// As `--only` knows it.
    fn name(&self) -> String {
        let (event, server, mode) = (self.event.name(), self.server, self.mode.name());
        format!("{event} {server} {mode} x{}", self.busy)
    }

    /// MiB of each busy disk.
    fn busy_mib(&self) -> u64 {
        BUSY_MIB / self.busy as u64
    }

    /// What each of its servers is started with.
    fn arguments(&self) -> Vec<String> {
        let mut arguments = vec!["--log-size".to_owned(), format!("{LOG_MIB}MiB")];
        for number in 0..self.busy + self.light {
            let busy = number < self.busy;
            let mib = if busy { self.busy_mib() } else { LIGHT_MIB };
            arguments.push(format!("--volume={}={mib}MiB", volume(number)));
        }
        arguments
    }
}

/// A period without an event and the one with it, in milliseconds since 1970.
struct Round {
    without: Range<u64>,
    with: Range<u64>,
}

/// A server of volumes, what it was started with, and what its successors said. Its disks go before its files do.
struct Volumes {
    firn: Firn,
    world: World,
    arguments: Vec<String>,
    starts: Starts,
}

/// A server below its clients.
enum Below {
    Firn(Box<Volumes>),
    Kublk(Kublk),
}

impl Below {
    /// Has the event happen; returns when each disk has answered again.
    fn happen(&mut self, event: Event, clients: &mut Clients) -> Result<(), Failure> {
        match self {
            Below::Firn(served) => {
                let Volumes {
                    firn,
                    world,
                    arguments,
                    starts,
                } = &mut **served;
                if event == Event::Upgrade {
                    firn.ask(&["upgrade"])?;
                } else {
                    let (killed_at, said) = (unix_ms(), world.server_log()?.len());
                    firn.kill_and_replace(world, &words(arguments))?;
                    starts.note(killed_at, &world.server_log()?[said..]);
                }
                clients.wait_until_all_are_answered(&mut || Ok(()))
            }
            Below::Kublk(kublk) => {
                kublk.kill_and_recover()?;
                clients.wait_until_all_are_answered(&mut || kublk.retry())
            }
        }
    }
}

pub(super) fn run(context: &BenchContext, _: &mut Report) -> Result<(), Failure> {
    let cases = cases().filter(|case| context.options.includes_row(&case.name()));
    for event in [Event::Upgrade, Event::Kill] {
        let cases: Vec<Case> = cases.clone().filter(|case| case.event == event).collect();
        if cases.is_empty() {
            continue;
        }
        match event {
            Event::Upgrade => println!("\n## P9: the longest request in an upgrade\n"),
            Event::Kill => println!("\n## P23: the longest request in kill -9 and restart\n"),
        }
        for case in cases {
            measure(context, &case)?;
        }
    }
    Ok(())
}

fn cases() -> impl Iterator<Item = Case> + Clone {
    let modes = [Mode::ZeroCopy, Mode::UserCopy];
    let upgrades = modes.map(|mode| Case {
        event: Event::Upgrade,
        server: "firn",
        mode,
        busy: UPGRADED.0,
        light: UPGRADED.1,
    });
    let kills = KILLED.into_iter().flat_map(move |busy| {
        let servers = ["firn", "kublk"].into_iter();
        servers.flat_map(move |server| {
            modes.map(|mode| Case {
                event: Event::Kill,
                server,
                mode,
                busy,
                light: 0,
            })
        })
    });
    upgrades.into_iter().chain(kills)
}

/// Measures one case and prints it, before its disks go: that takes long, and may fail.
fn measure(context: &BenchContext, case: &Case) -> Result<(), Failure> {
    let (mut below, disks, found) = start(context, case)?;
    let (busy, light) = disks.split_at(case.busy);
    let mut clients = Clients::start(busy, light)?;
    clients.wait_until_all_are_answered(&mut || Ok(()))?;
    std::thread::sleep(SETTLING);
    let period = Duration::from_secs_f64(context.options.seconds);
    let mut rounds = Vec::new();
    for _ in 0..context.options.rounds.max(1) {
        let from = unix_ms();
        std::thread::sleep(period);
        let event_at = unix_ms();
        let until = Instant::now() + period;
        below.happen(case.event, &mut clients)?;
        let rest = until.saturating_duration_since(Instant::now());
        std::thread::sleep(rest.max(SETTLING));
        rounds.push(Round {
            without: from..event_at,
            with: event_at..unix_ms(),
        });
    }
    let answers = clients.end()?;
    print_row(case, &rounds, &answers)?;
    if let Below::Firn(served) = &below {
        println!("{}", details(case, &found, served)?);
    }
    Ok(())
}

/// Starts a case's server: the busy disks, each block of them written by itself, and the light ones; what was granted, and how
/// full the log is.
fn start(context: &BenchContext, case: &Case) -> Result<(Below, Vec<PathBuf>, String), Failure> {
    if case.server == "kublk" {
        let count_and_mib = (case.busy, case.busy_mib());
        let kublk = Kublk::start(context.kublk, context.dir, case.mode, count_and_mib)?;
        let disks = kublk.disks();
        return Ok((Below::Kublk(kublk), disks, String::new()));
    }
    let world = World::new(context.program, context.dir, "pauses")?;
    let arguments = case.arguments();
    let mut firn = world.serve(&words(&arguments))?;
    let mut disks = Vec::new();
    for number in 0..case.busy + case.light {
        disks.push(firn.attach(&volume(number), case.mode)?);
    }
    let scattered = Workload::new("randwrite", "4k", 32).with_devices(case.busy);
    fio(scattered, &disks[..case.busy], Length::Once)?;
    let found = format!(
        "{}; {}, {} of its {} segments spare",
        firn.granted("disk-0")?,
        firn.log,
        firn.metric("firn_log_segments_spare", "")?,
        firn.metric("firn_log_segments", "")?,
    );
    let served = Box::new(Volumes {
        firn,
        world,
        arguments,
        starts: Starts::default(),
    });
    Ok((Below::Firn(served), disks, found))
}

fn words(arguments: &[String]) -> Vec<&str> {
    arguments.iter().map(String::as_str).collect()
}

fn volume(number: usize) -> String {
    format!("disk-{number}")
}

fn print_row(case: &Case, rounds: &[Round], answers: &Answers) -> Result<(), Failure> {
    let (mut without, mut with, mut beyond) = (Vec::new(), Vec::new(), Vec::new());
    for round in rounds {
        let longest = [
            answers.longest(&round.without)?,
            answers.longest(&round.with)?,
        ];
        without.push(longest[0]);
        with.push(longest[1]);
        beyond.push(longest[1] - longest[0]);
    }
    let [_, usual, most_without] = spread(without);
    let [_, middle, most] = spread(with);
    let [beyond_least, beyond_middle, beyond_most] = spread(beyond);
    println!(
        "\n| server | data mode | busy | light | longest request, ms, without: median | most | with: median | most \
         | beyond: least | median | most | requests |"
    );
    println!("|---|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|");
    println!(
        "| {} | {} | {} | {} | {usual:.1} | {most_without:.1} | {middle:.1} | {most:.1} \
         | {beyond_least:.1} | {beyond_middle:.1} | {beyond_most:.1} | {:.0} |",
        case.server,
        case.mode.name(),
        case.busy,
        case.light,
        answers.requests
    );
    let row = json!({
        "event": case.event.name(), "server": case.server, "mode": case.mode.name(),
        "busy": case.busy, "light": case.light, "rounds": rounds.len(),
        "without_ms": usual, "with_ms": middle, "with_most_ms": most,
        "beyond_ms": beyond_middle, "beyond_most_ms": beyond_most, "requests": answers.requests,
    });
    figures::put("pauses", &row);
    Ok(())
}

/// What the servers said of their way to serving.
fn details(case: &Case, found: &str, served: &Volumes) -> Result<String, Failure> {
    let times = match case.event {
        Event::Upgrade => steps(&served.world.server_log()?),
        Event::Kill => served.starts.times(),
    };
    let what = match case.event {
        Event::Upgrade => "step of the pause, ms",
        Event::Kill => "ms after the kill",
    };
    let mut table = format!(
        "\n{}; {found}\n\n| {what} | least | median | most |\n|---|---:|---:|---:|\n",
        case.name()
    );
    for (name, times) in times {
        let [least, middle, most] = spread(times);
        table += &format!("| {name} | {least:.1} | {middle:.1} | {most:.1} |\n");
    }
    Ok(table)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cases_are_told_apart_by_their_names() {
        let names: std::collections::BTreeSet<String> = cases().map(|case| case.name()).collect();
        assert_eq!(names.len(), cases().count());
        assert!(names.contains("kill -9 kublk zero-copy x64"), "{names:?}");
    }
}
