//! P18 and P19: reads of what is in the store alone, and hot reads while uploads run.

use std::process::Command;
use std::time::Duration;

use super::{Arguments, Line, flags, median};
use crate::Failure;
use crate::bench::nbd_load::{Connection, Load, LoadEnd};
use crate::bench::rig::{Programs, StoreRig};

/// Size of the volume that is read cold.
const COLD_MIB: u64 = 512;
/// Random reads of a measurement.
const RANDOM_READS: usize = 3000;

/// Length of one of the short runs of P19, whose median counts.
const READ_TIME: Duration = Duration::from_millis(500);

/// How the cold volume is read.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Pattern {
    Sequential,
    RandomWarmIndex,
    RandomColdIndex,
}

impl Pattern {
    const ALL: [Pattern; 3] = [
        Pattern::Sequential,
        Pattern::RandomWarmIndex,
        Pattern::RandomColdIndex,
    ];

    fn name(self) -> &'static str {
        match self {
            Pattern::Sequential => "1 MiB sequential, QD8",
            Pattern::RandomWarmIndex => "4 KiB random, QD32, index warm",
            Pattern::RandomColdIndex => "4 KiB random, QD32, index cold",
        }
    }

    fn load(self) -> Load {
        let (block, depth) = match self {
            Pattern::Sequential => (1 << 20, 8),
            Pattern::RandomWarmIndex | Pattern::RandomColdIndex => (4096, 32),
        };
        Load {
            writes: false,
            random: false,
            block,
            depth,
            span: COLD_MIB << 20,
        }
    }

    /// Where it reads.
    fn places(self) -> Vec<u64> {
        match self {
            Pattern::Sequential => (0..COLD_MIB).map(|mib| mib << 20).collect(),
            Pattern::RandomWarmIndex | Pattern::RandomColdIndex => {
                let mut random = fastrand::Rng::with_seed(11);
                let blocks = (COLD_MIB << 20) / 4096;
                (0..RANDOM_READS)
                    .map(|_| random.u64(0..blocks) * 4096)
                    .collect()
            }
        }
    }
}

struct Round {
    mib_per_second: f64,
    ratio: f64,
    requests_per_read: f64,
    bytes_per_byte: f64,
    cpu_us_per_read: f64,
}

/// P18.
pub(super) fn cold(
    programs: &Programs,
    arguments: &Arguments,
    lines: &[Line],
) -> Result<(), Failure> {
    println!(
        "\n## P18: cold reads of {COLD_MIB} MiB written in sequence, against the same ranged GETs\n\n\
         | latency | reads | volume MiB/s | ratio | requests per read | bytes fetched per byte read | \
         CPU us/read |\n|---:|---|---:|---:|---:|---:|---:|"
    );
    for line in lines {
        let lab = StoreRig::new(programs, arguments.objects_on_disk)?;
        let server = lab.serve("written", &cold_flags(arguments))?;
        let mut connection = server.connect("disk")?;
        let load = Load {
            writes: true,
            ..Pattern::Sequential.load()
        };
        connection.run(load, LoadEnd::Bytes(COLD_MIB << 20))?;
        server.sync("disk")?;
        drop(connection);
        server.stop()?;
        for pattern in Pattern::ALL {
            let rounds: Result<Vec<_>, Failure> = (0..arguments.rounds.max(1))
                .map(|n| {
                    let cache = format!("cold-{}-{n}", pattern as u8);
                    measure_cold(&lab, arguments, *line, pattern, &cache)
                })
                .collect();
            let round = median(rounds?, |round| round.ratio)?;
            println!(
                "| {} ms | {} | {:.1} | {:.2} | {:.2} | {:.2} | {:.0} |",
                line.latency.as_millis(),
                pattern.name(),
                round.mib_per_second,
                round.ratio,
                round.requests_per_read,
                round.bytes_per_byte,
                round.cpu_us_per_read,
            );
        }
    }
    Ok(())
}

fn cold_flags(arguments: &Arguments) -> Vec<String> {
    flags("disk", COLD_MIB, arguments.log_mib)
}

fn measure_cold(
    lab: &StoreRig,
    arguments: &Arguments,
    line: Line,
    pattern: Pattern,
    cache: &str,
) -> Result<Round, Failure> {
    lab.slow_down(0, Duration::ZERO);
    let server = lab.serve(cache, &cold_flags(arguments))?;
    let mut connection = server.connect("disk")?;
    let load = pattern.load();
    if pattern == Pattern::RandomWarmIndex {
        // One block of every MiB: each page of the index is asked for, and little of the content.
        let places: Vec<u64> = (0..COLD_MIB).map(|mib| (mib << 20) + (1 << 19)).collect();
        connection.visit(&places, load)?;
    }
    lab.slow_down(line.rate_mib, line.latency);
    lab.proxy.record_reads(true);
    lab.proxy.take_traffic();
    let cpu = server.cpu_seconds()?;
    let places = pattern.places();
    let outcome = connection.visit(&places, load)?;
    let cpu = server.cpu_seconds()? - cpu;
    let traffic = lab.proxy.take_traffic();
    lab.proxy.record_reads(false);
    drop(connection);
    // Whoever opens the volume next must find it closed.
    lab.slow_down(0, Duration::ZERO);
    server.stop()?;
    lab.slow_down(line.rate_mib, line.latency);
    let plain = lab.replay_plainly(&traffic, load.depth)?;
    let gets = traffic.of("GET");
    Ok(Round {
        mib_per_second: outcome.mib_per_second(),
        ratio: plain.seconds / outcome.seconds,
        requests_per_read: gets.requests as f64 / places.len() as f64,
        bytes_per_byte: gets.received as f64 / outcome.bytes as f64,
        cpu_us_per_read: cpu * 1e6 / places.len() as f64,
    })
}

/// P19.
pub(super) fn beside_uploads(
    programs: &Programs,
    arguments: &Arguments,
    lines: &[Line],
) -> Result<(), Failure> {
    println!(
        "\n## P19: hot random 4 KiB reads, QD1, while uploads run flat out\n\n\
         | latency | p99 without | p99 beside uploads | ratio | uploaded meanwhile MiB/s | p99 beside a plain client's uploads | \
         ratio |\n|---:|---:|---:|---:|---:|---:|---:|"
    );
    for line in lines {
        let rounds: Result<Vec<_>, Failure> = (0..arguments.rounds.max(1))
            .map(|_| measure_beside(programs, arguments, *line))
            .collect();
        let round = median(rounds?, |round| round.to_idle(round.busy))?;
        let us = |time: Duration| time.as_secs_f64() * 1e6;
        println!(
            "| {} ms | {:.0} us | {:.0} us | {:.2} | {:.0} | {:.0} us | {:.2} |",
            line.latency.as_millis(),
            us(round.idle),
            us(round.busy),
            round.to_idle(round.busy),
            round.uploaded_mib,
            us(round.beside_plain),
            round.to_idle(round.beside_plain),
        );
    }
    Ok(())
}

/// The p99 of hot reads.
struct Beside {
    idle: Duration,
    /// Beside uploads of the same server.
    busy: Duration,
    /// Beside those of a program that does nothing else: what the machine makes of so much traffic.
    beside_plain: Duration,
    uploaded_mib: f64,
}

impl Beside {
    fn to_idle(&self, time: Duration) -> f64 {
        time.as_secs_f64() / self.idle.as_secs_f64()
    }
}

fn measure_beside(
    programs: &Programs,
    arguments: &Arguments,
    line: Line,
) -> Result<Beside, Failure> {
    // Less than half of the log is dirty, so that nobody is paced.
    let log_mib = arguments.log_mib.max(1024);
    let dirty_mib = log_mib * 2 / 5;
    let lab = StoreRig::new(programs, arguments.objects_on_disk)?;
    let mut all = flags("hot", 64, log_mib);
    all.push(format!("--volume=bulk={dirty_mib}MiB"));
    all.push("--rpo=1h".to_owned());
    all.retain(|flag| flag != "--rpo=30s");
    let server = lab.serve("cache", &all)?;
    let mut hot = server.connect("hot")?;
    let fill = Load {
        writes: true,
        random: false,
        block: 1 << 20,
        depth: 8,
        span: 64 << 20,
    };
    hot.run(fill, LoadEnd::Bytes(64 << 20))?;
    server.sync("hot")?;
    let reads = Load {
        writes: false,
        random: true,
        block: 4096,
        depth: 1,
        ..fill
    };
    // As below, so that a busy moment of the machine does not decide.
    let idle: Result<Vec<_>, Failure> = (0..arguments.seconds.max(1))
        .map(|_| Ok(hot.run(reads, LoadEnd::Time(READ_TIME))?.percentile(0.99)))
        .collect();
    let idle = median(idle?, Duration::as_secs_f64)?;
    let mut bulk = server.connect("bulk")?;
    let fill = Load {
        span: dirty_mib << 20,
        ..fill
    };
    bulk.run(fill, LoadEnd::Bytes(dirty_mib << 20))?;
    lab.slow_down(line.rate_mib, line.latency);
    lab.proxy.take_traffic();
    let mut sync = spawn_kill_on_drop(server.command(&["sync", "bulk"]))?;
    // Until the upload is over, in short runs; only those wholly within it count.
    let mut busy = Vec::new();
    let mut seconds = 0.0;
    loop {
        let mut run = hot.run(reads, LoadEnd::Time(READ_TIME))?;
        if sync.0.try_wait()?.is_some() {
            break;
        }
        seconds += run.seconds;
        busy.push(run.percentile(0.99));
    }
    let sent = lab.proxy.take_traffic().of("PUT").sent as f64 / f64::from(1 << 20);
    let busy = median(busy, Duration::as_secs_f64)
        .map_err(|_| "the upload was over before it could be measured: a larger --log-mib")?;
    let beside_plain = reads_beside_plain(&lab, arguments, &mut hot, reads)?;
    drop(server);
    Ok(Beside {
        idle,
        busy,
        beside_plain,
        uploaded_mib: sent / seconds.max(0.5),
    })
}

/// The same reads while the plain client uploads over the same line, and the server nothing.
fn reads_beside_plain(
    lab: &StoreRig,
    arguments: &Arguments,
    hot: &mut Connection,
    reads: Load,
) -> Result<Duration, Failure> {
    // Longer than the reads: a run that begins is wholly beside it.
    let seconds = arguments.seconds.max(1) as f64 * READ_TIME.as_secs_f64() + 3.0;
    let concurrency = arguments.concurrency;
    std::thread::scope(|scope| {
        let uploads = scope.spawn(move || {
            let ran = lab.upload_plainly(seconds, concurrency);
            ran.map_err(|error| error.to_string())
        });
        // It compresses first.
        std::thread::sleep(Duration::from_secs(1));
        let found: Result<Vec<_>, Failure> = (0..arguments.seconds.max(1))
            .map(|_| Ok(hot.run(reads, LoadEnd::Time(READ_TIME))?.percentile(0.99)))
            .collect();
        match uploads.join() {
            Ok(ran) => ran.map(drop)?,
            Err(_) => return Err("the plain client's thread panicked".into()),
        }
        median(found?, Duration::as_secs_f64)
    })
}

/// A child that does not outlive a failure.
struct KillOnDrop(std::process::Child);

impl Drop for KillOnDrop {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn spawn_kill_on_drop(mut command: Command) -> Result<KillOnDrop, Failure> {
    Ok(KillOnDrop(command.spawn()?))
}
