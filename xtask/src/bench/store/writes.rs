//! P16 and P17: what a volume takes for as long as one likes, once its log is full.

use std::time::Duration;

use super::{Arguments, Line, flags, median};
use crate::Failure;
use crate::bench::nbd_load::{Load, LoadEnd, Outcome};
use crate::bench::rig::{PlainRun, Programs, StoreRig};

const GIB: f64 = 1024.0 * 1024.0 * 1024.0;

/// One round: a volume and the plain client over the same line.
struct Round {
    volume: Outcome,
    volume_cpu: f64,
    /// MinIO's, while the volume was written.
    minio_cpu: f64,
    slowest_put: Duration,
    /// Bytes of bodies that were sent in the time of the measurement.
    sent: u64,
    plain: PlainRun,
}

impl Round {
    fn ratio(&self) -> f64 {
        self.volume.mib_per_second() / self.plain.mib_per_second()
    }

    fn gib(&self) -> f64 {
        self.volume.bytes as f64 / GIB
    }
}

fn measure(
    programs: &Programs,
    arguments: &Arguments,
    line: Line,
    load: Load,
) -> Result<Round, Failure> {
    let lab = StoreRig::new(programs, arguments.objects_on_disk)?;
    let volume_mib = load.span >> 20;
    let server = lab.serve("cache", &flags("disk", volume_mib, arguments.log_mib))?;
    lab.slow_down(line.rate_mib, line.latency);
    let mut connection = server.connect("disk")?;
    // From here on the log is full: what is taken is what leaves.
    let filled = arguments.log_mib * 3 / 2 * (1 << 20);
    connection.run(load, LoadEnd::Bytes(filled))?;
    lab.proxy.take_traffic();
    let (cpu, minio_cpu) = (server.cpu_seconds()?, lab.minio_cpu_seconds()?);
    let time = Duration::from_secs(arguments.seconds);
    let volume = connection.run(load, LoadEnd::Time(time))?;
    let volume_cpu = server.cpu_seconds()? - cpu;
    let minio_cpu = lab.minio_cpu_seconds()? - minio_cpu;
    let puts = lab.proxy.take_traffic().of("PUT");
    drop(connection);
    drop(server);
    let plain = lab.upload_plainly(arguments.seconds as f64, arguments.concurrency)?;
    Ok(Round {
        volume,
        volume_cpu,
        minio_cpu,
        slowest_put: puts.longest,
        sent: puts.sent,
        plain,
    })
}

fn rounds(
    programs: &Programs,
    arguments: &Arguments,
    line: Line,
    load: Load,
) -> Result<Round, Failure> {
    let rounds: Result<Vec<_>, Failure> = (0..arguments.rounds.max(1))
        .map(|_| measure(programs, arguments, line, load))
        .collect();
    median(rounds?, Round::ratio)
}

/// P16.
pub(super) fn sequential(
    programs: &Programs,
    arguments: &Arguments,
    lines: &[Line],
) -> Result<(), Failure> {
    println!(
        "\n## P16: sequential 1 MiB writes, QD8, after the log is full\n\n\
         | latency | volume MiB/s | plain client MiB/s | ratio | slowest second / mean | longest \
         request | CPU s/GiB: volume | plain client | ratio | MinIO |\n\
         |---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|"
    );
    let load = Load {
        writes: true,
        random: false,
        block: 1 << 20,
        depth: 8,
        span: 4096 << 20,
    };
    for line in lines {
        let round = rounds(programs, arguments, *line, load)?;
        let cpu = round.volume_cpu / round.gib();
        println!(
            "| {} ms | {:.0} | {:.0} | {:.2} | {:.2} | {:.0} ms | {cpu:.2} | {:.2} | {:.2} | {:.2} |",
            line.latency.as_millis(),
            round.volume.mib_per_second(),
            round.plain.mib_per_second(),
            round.ratio(),
            round.volume.slowest_second(),
            round.volume.longest().as_secs_f64() * 1e3,
            round.plain.cpu_per_gib(),
            cpu / round.plain.cpu_per_gib(),
            round.minio_cpu / round.gib(),
        );
    }
    Ok(())
}

/// P17.
pub(super) fn random(
    programs: &Programs,
    arguments: &Arguments,
    lines: &[Line],
) -> Result<(), Failure> {
    println!(
        "\n## P17: random 4 KiB writes, QD32, over eight times the log\n\n\
         | latency | volume MiB/s | plain client MiB/s | ratio | slowest second / mean | longest \
         request | slowest PUT | sent per byte written | CPU s/GiB: volume | plain client |\n\
         |---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|"
    );
    let load = Load {
        writes: true,
        random: true,
        block: 4096,
        depth: 32,
        span: arguments.log_mib * 8 * (1 << 20),
    };
    for line in lines {
        let round = rounds(programs, arguments, *line, load)?;
        println!(
            "| {} ms | {:.1} | {:.0} | {:.2} | {:.2} | {:.0} ms | {:.0} ms | {:.2} | {:.2} | {:.2} |",
            line.latency.as_millis(),
            round.volume.mib_per_second(),
            round.plain.mib_per_second(),
            round.ratio(),
            round.volume.slowest_second(),
            round.volume.longest().as_secs_f64() * 1e3,
            round.slowest_put.as_secs_f64() * 1e3,
            round.sent as f64 / round.volume.bytes as f64,
            round.volume_cpu / round.gib(),
            round.plain.cpu_per_gib(),
        );
    }
    Ok(())
}
