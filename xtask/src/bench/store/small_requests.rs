//! P4, P5, P6 and P11 of a volume whose store is a real S3 server, over NBD: what a small request costs when nothing of its
//! place is on this host, what writers gain that wait for a FLUSH together, and what is sent for a byte written.
//!
//! The same of a volume as a disk, its store a directory, is what `bench volume` measures.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

use s3_testbed::Traffic;

use super::{Arguments, Line, flags};
use crate::Failure;
use crate::bench::nbd_load::{Connection, Load, LoadEnd, Outcome};
use crate::bench::rig::{FirnServer, Programs, StoreRig};

const BLOCK_BYTES: usize = 4096;
/// Of the volume that is written in sequence and then opened from the store alone.
const VOLUME_MIB: u64 = 512;
/// Requests of each run of P4, no two of them in one place.
const PLACES: usize = 4000;
/// Reads of each size in P5.
const READS: u64 = 64;
/// Writers of P6.
const WRITERS: usize = 64;
/// Random writes of P11, over a volume twice as large.
const WRITTEN_MIB: u64 = 1024;
/// How long nothing must be sent until compaction is taken to have come to its end.
const QUIET: Duration = Duration::from_secs(15);

const fn small(writes: bool, depth: usize) -> Load {
    Load {
        writes,
        random: true,
        block: BLOCK_BYTES,
        depth,
        span: VOLUME_MIB << 20,
    }
}

/// A store that has a volume `disk`, written in sequence.
fn written_store(programs: &Programs, arguments: &Arguments) -> Result<StoreRig, Failure> {
    let rig = StoreRig::new(programs, arguments.objects_on_disk)?;
    let server = rig.serve("written", &flags("disk", VOLUME_MIB, arguments.log_mib))?;
    let load = Load {
        random: false,
        block: 1 << 20,
        ..small(true, 8)
    };
    server
        .connect("disk")?
        .run(load, LoadEnd::Bytes(VOLUME_MIB << 20))?;
    server.sync("disk")?;
    server.stop()?;
    Ok(rig)
}

/// Blocks in no order, none twice.
fn places() -> Vec<u64> {
    let mut blocks: Vec<u64> = (0..(VOLUME_MIB << 20) / BLOCK_BYTES as u64).collect();
    fastrand::Rng::with_seed(4).shuffle(&mut blocks);
    let places = blocks.into_iter().take(PLACES);
    places.map(|block| block * BLOCK_BYTES as u64).collect()
}

/// P4.
pub(super) fn first_writes(
    programs: &Programs,
    arguments: &Arguments,
    lines: &[Line],
) -> Result<(), Failure> {
    println!(
        "\n## P4: {PLACES} writes of 4 KiB to cold blocks of a volume opened from the store alone, and the same again\n\n\
         | latency | depth | cold: median us | p99 | hot: median us | p99 | cold to hot, in all | GETs of cold writes |\n\
         |---:|---:|---:|---:|---:|---:|---:|---:|"
    );
    let places = places();
    for line in lines {
        let rig = written_store(programs, arguments)?;
        for depth in [1, 32] {
            let mut rounds = Vec::new();
            for round in 0..arguments.rounds.max(1) {
                rounds.push(first_writes_once(
                    &rig,
                    arguments,
                    *line,
                    (depth, round),
                    &places,
                )?);
            }
            let (mut cold, mut hot, gets) =
                super::median(rounds, |(cold, hot, _)| cold.seconds / hot.seconds)?;
            let us = |outcome: &mut Outcome, share| outcome.percentile(share).as_secs_f64() * 1e6;
            println!(
                "| {} ms | {depth} | {:.0} | {:.0} | {:.0} | {:.0} | {:.2} | {gets} |",
                line.latency.as_millis(),
                us(&mut cold, 0.5),
                us(&mut cold, 0.99),
                us(&mut hot, 0.5),
                us(&mut hot, 0.99),
                cold.seconds / hot.seconds,
            );
        }
    }
    Ok(())
}

fn first_writes_once(
    rig: &StoreRig,
    arguments: &Arguments,
    line: Line,
    (depth, round): (usize, usize),
    places: &[u64],
) -> Result<(Outcome, Outcome, u64), Failure> {
    rig.slow_down(line.rate_mib, line.latency);
    let cache = format!("first-{depth}-{round}");
    let mut flags = flags("disk", VOLUME_MIB, arguments.log_mib);
    // What is written here must not be sent while it is measured.
    flags.retain(|flag| flag != "--rpo=30s");
    flags.push("--rpo=1h".to_owned());
    let server = rig.serve(&cache, &flags)?;
    let mut connection = server.connect("disk")?;
    rig.proxy.take_traffic();
    let cold = connection.visit(places, small(true, depth))?;
    let gets = rig.proxy.take_traffic().of("GET").requests;
    let hot = connection.visit(places, small(true, depth))?;
    rig.slow_down(0, Duration::ZERO);
    server.stop()?;
    Ok((cold, hot, gets))
}

/// P5.
pub(super) fn cold_reads(
    programs: &Programs,
    arguments: &Arguments,
    lines: &[Line],
) -> Result<(), Failure> {
    println!(
        "\n## P5: store requests of a cold read, {READS} reads one after the other\n\n\
         | latency | read | requests, mean | most |\n|---:|---|---:|---:|"
    );
    for line in lines {
        let rig = written_store(programs, arguments)?;
        for block in [BLOCK_BYTES, 128 << 10] {
            rig.slow_down(line.rate_mib, line.latency);
            let cache = format!("cold-{block}");
            let server = rig.serve(&cache, &flags("disk", VOLUME_MIB, arguments.log_mib))?;
            let mut connection = server.connect("disk")?;
            rig.proxy.take_traffic();
            let load = Load {
                block,
                ..small(false, 1)
            };
            let (mut sum, mut most) = (0, 0);
            for n in 0..READS {
                // Never a neighbour, so that nobody reads ahead.
                let place = (n * 37 % READS) * (VOLUME_MIB << 20) / READS;
                connection.visit(&[place], load)?;
                let asked = rig.proxy.take_traffic().requests();
                (sum, most) = (sum + asked, most.max(asked));
            }
            println!(
                "| {} ms | {} KiB | {:.2} | {most} |",
                line.latency.as_millis(),
                block >> 10,
                sum as f64 / READS as f64
            );
            rig.slow_down(0, Duration::ZERO);
            server.stop()?;
        }
    }
    Ok(())
}

/// P6.
pub(super) fn flushing_writers(
    programs: &Programs,
    arguments: &Arguments,
    lines: &[Line],
) -> Result<(), Failure> {
    let rig = StoreRig::new(programs, arguments.objects_on_disk)?;
    println!(
        "\n## P6: writers that wait for a FLUSH after each 4 KiB, uploads on (recovery point 1 s)\n\n\
         fdatasync of 4 KiB on the log's disk: {:.2} ms\n\n\
         | latency | 1 writer, writes/s | {WRITERS} writers | times |\n|---:|---:|---:|---:|",
        file_sync_ms(&rig)?
    );
    for line in lines {
        let rig = StoreRig::new(programs, arguments.objects_on_disk)?;
        rig.slow_down(line.rate_mib, line.latency);
        let mut flags = flags("disk", VOLUME_MIB, arguments.log_mib);
        flags.retain(|flag| flag != "--rpo=30s");
        flags.push("--rpo=1s".to_owned());
        let server = rig.serve("cache", &flags)?;
        let time = Duration::from_secs(arguments.seconds);
        let one = flushed_per_second(&server, 1, time)?;
        let many = flushed_per_second(&server, WRITERS, time)?;
        println!(
            "| {} ms | {one:.0} | {many:.0} | {:.1} |",
            line.latency.as_millis(),
            many / one
        );
        rig.slow_down(0, Duration::ZERO);
        server.stop()?;
    }
    Ok(())
}

/// Writes and FLUSHes a second of so many clients with a connection each.
fn flushed_per_second(
    server: &FirnServer<'_>,
    writers: usize,
    time: Duration,
) -> Result<f64, Failure> {
    let mut connections = Vec::new();
    for _ in 0..writers {
        connections.push(server.connect("disk")?);
    }
    let started = Instant::now();
    let count: Result<u64, String> = std::thread::scope(|scope| {
        let mut running = Vec::new();
        for (n, connection) in connections.into_iter().enumerate() {
            running.push(scope.spawn(move || {
                let written = write_and_flush(connection, n as u64, started + time);
                written.map_err(|error| error.to_string())
            }));
        }
        let ended = running.into_iter().map(|writer| writer.join());
        ended
            .map(|count| count.unwrap_or_else(|_| Err("a writer panicked".to_owned())))
            .sum()
    });
    Ok(count? as f64 / started.elapsed().as_secs_f64())
}

fn write_and_flush(
    mut connection: Connection,
    writer: u64,
    until: Instant,
) -> Result<u64, Failure> {
    let mut random = fastrand::Rng::with_seed(writer);
    let mut count = 0;
    while Instant::now() < until {
        let blocks = (VOLUME_MIB << 20) / BLOCK_BYTES as u64;
        let place = random.u64(0..blocks) * BLOCK_BYTES as u64;
        connection.visit(&[place], small(true, 1))?;
        connection.flush()?;
        count += 1;
    }
    Ok(count)
}

fn file_sync_ms(rig: &StoreRig) -> Result<f64, Failure> {
    let file = File::create(rig.scratch().join("synced"))?;
    file.set_len(1 << 20)?;
    file.sync_all()?;
    let rounds = 200;
    let started = Instant::now();
    for n in 0..rounds {
        file.write_all_at(&[1; BLOCK_BYTES], n * BLOCK_BYTES as u64)?;
        file.sync_data()?;
    }
    Ok(started.elapsed().as_secs_f64() * 1e3 / rounds as f64)
}

/// P11.
pub(super) fn bytes_sent(programs: &Programs, arguments: &Arguments) -> Result<(), Failure> {
    println!(
        "\n## P11: bytes sent for each byte written; {WRITTEN_MIB} MiB in random 4 KiB writes that cannot be compressed, \
         over {} MiB written in sequence\n\n\
         | what | all | packs | index objects | roots | records |\n|---|---:|---:|---:|---:|---:|",
        WRITTEN_MIB * 2
    );
    let rig = StoreRig::new(programs, arguments.objects_on_disk)?;
    let mut flags = flags("disk", WRITTEN_MIB * 2, WRITTEN_MIB);
    let server = rig.serve("cache", &flags)?;
    let mut connection = server.connect("disk")?;
    connection.write_noise();
    let load = Load {
        span: WRITTEN_MIB << 21,
        ..small(true, 32)
    };
    let in_sequence = Load {
        random: false,
        block: 1 << 20,
        depth: 8,
        ..load
    };
    connection.run(in_sequence, LoadEnd::Bytes(in_sequence.span))?;
    server.sync("disk")?;
    rig.proxy.take_traffic();
    connection.run(load, LoadEnd::Bytes(WRITTEN_MIB << 20))?;
    drop(connection);
    server.sync("disk")?;
    server.stop()?;
    report_bytes(
        "uploaded, until the volume is closed",
        &rig.proxy.take_traffic(),
    );
    flags.push("--compact=5s".to_owned());
    let server = rig.serve("cache", &flags)?;
    rig.proxy.take_traffic();
    let mut compacted = Traffic::default();
    let mut quiet_since = Instant::now();
    while quiet_since.elapsed() < QUIET {
        std::thread::sleep(Duration::from_millis(500));
        let now = rig.proxy.traffic();
        if now.sent_to_folder("PUT", "packs") > compacted.sent_to_folder("PUT", "packs") {
            quiet_since = Instant::now();
        }
        compacted = now;
    }
    server.stop()?;
    report_bytes("compaction after it", &rig.proxy.take_traffic());
    Ok(())
}

fn report_bytes(what: &str, traffic: &Traffic) {
    let written = (WRITTEN_MIB << 20) as f64;
    let share = |bytes: u64| bytes as f64 / written;
    let to = |folder| share(traffic.sent_to_folder("PUT", folder));
    println!(
        "| {what} | {:.3} | {:.3} | {:.3} | {:.4} | {:.4} |",
        share(traffic.of("PUT").sent),
        to("packs"),
        to("indexes"),
        to("volumes"),
        to("hosts"),
    );
}
