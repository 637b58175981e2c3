//! P4 and P5: a volume that was opened from the store alone.
//!
//! It is written, brought to the store, and its server stopped; log and cache are thrown away and
//! another server takes it over. The first write to a block then has nothing local under it. The
//! second pass writes the same blocks in the same order: that is the hot write beside it. Cold reads are
//! compared in both ways of the bytes, for what is fetched travels by neither of them.

use std::path::PathBuf;

use super::BenchContext;
use super::report::{Bars, Report, Row};
use super::server::{Firn, World};
use crate::Failure;
use crate::bench::measure::{DirectFile, Length, Workload, fill, fio, median};
use crate::bench::ublk::servers::Mode;

/// Bytes of the volume.
const MIB: u64 = 96;

/// Blocks that are written cold and hot.
const WRITES: u32 = 4000;

/// Random reads of a cold volume; most ask for a chunk that none before them asked for.
const COLD_READS: u32 = 800;

/// Cold reads of a kind; no two of them share what they fetch.
const READS: u64 = 16;

pub(super) fn run(context: &BenchContext, report: &mut Report) -> Result<(), Failure> {
    report.part(
        "cold",
        "P4: first write to a cold block against a hot write",
        Bars::Ratio,
    );
    for depth in [1, 32] {
        let load = Workload::new("randwrite", "4k", depth);
        let workload = load.to_string();
        if !context.options.includes_row(&format!("cold {workload}")) {
            continue;
        }
        let mut samples = [Vec::new(), Vec::new()];
        let mut granted = String::new();
        let mut fetched = 0.0;
        for _ in 0..context.options.rounds {
            let world = World::new(context.program, context.dir, "cold")?;
            let (firn, disk) = open_cold(&world)?;
            granted = firn.granted("cold")?;
            let before = firn.store_reads()?;
            for pass in &mut samples {
                let length = Length::Requests(WRITES);
                pass.push(fio(load, std::slice::from_ref(&disk), length)?);
            }
            fetched += firn.store_reads()? - before;
        }
        for (server, samples) in ["hot", "cold"].iter().zip(samples.into_iter().rev()) {
            let row = Row {
                workload: &workload,
                server,
                granted: &granted,
            };
            report.row(row, &median(samples));
        }
        println!("<!-- store requests that read, in all of these writes: {fetched} -->");
    }
    if context.options.includes_row("cold reads") {
        reads(context)?;
    }
    reads_by_mode(context, report)
}

/// What reads wait for of which nothing is here, in zero-copy and in user-copy.
fn reads_by_mode(context: &BenchContext, report: &mut Report) -> Result<(), Failure> {
    report.part(
        "cold-reads",
        "Cold reads: zero-copy against user-copy",
        Bars::Ratio,
    );
    for depth in [1, 32] {
        let load = Workload::new("randread", "4k", depth);
        let workload = format!("cold {load}");
        if !context.options.includes_row(&format!("cold-reads {load}")) {
            continue;
        }
        for mode in [Mode::UserCopy, Mode::ZeroCopy] {
            let mut samples = Vec::new();
            let mut granted = String::new();
            for _ in 0..context.options.rounds {
                let world = World::new(context.program, context.dir, "cold")?;
                let (firn, disk) = open_cold_as(&world, mode)?;
                granted = firn.granted("cold")?;
                samples.push(fio(load, &[disk], Length::Requests(COLD_READS))?);
            }
            let row = Row {
                workload: &workload,
                server: mode.name(),
                granted: &granted,
            };
            report.row(row, &median(samples));
        }
    }
    Ok(())
}

/// A volume's disk, with nothing of it on this host but what opening it brings.
fn open_cold(world: &World) -> Result<(Firn, PathBuf), Failure> {
    open_cold_as(world, Mode::ZeroCopy)
}

/// The same with this way of its bytes.
fn open_cold_as(world: &World, mode: Mode) -> Result<(Firn, PathBuf), Failure> {
    let log = ["--log-size", "512MiB"];
    let volume = format!("cold={MIB}MiB");
    let mut firn = world.serve(&[&log[..], &["--volume", &volume]].concat())?;
    let disk = firn.attach("cold", Mode::ZeroCopy)?;
    fill(&disk)?;
    firn.ask(&["sync", "cold"])?;
    firn.stop()?;
    world.remove_cache()?;
    let mut firn = world.serve(&log)?;
    firn.ask(&["attach", "cold", "--transport", "nbd", "--take-over"])?;
    let disk = firn.attach("cold", mode)?;
    Ok((firn, disk))
}

/// P5: what cold reads ask of the store, one read at a time.
fn reads(context: &BenchContext) -> Result<(), Failure> {
    let world = World::new(context.program, context.dir, "cold")?;
    let (firn, disk) = open_cold(&world)?;
    println!("\n## P5: store requests of a cold read\n");
    println!("| read | reads | store requests each, mean | most |\n|---|---:|---:|---:|");
    // 1 MiB apart: no chunk of another's is of use. The first block was read already, by the
    // kernel's look for partitions, so it is left alone.
    for (name, bytes, from) in [
        ("4 KiB", 4 << 10, 1 << 20),
        ("128 KiB", 128 << 10, 32 << 20),
    ] {
        let mut counts = Vec::new();
        for number in 0..READS {
            let before = firn.store_reads()?;
            // Past the page cache, which would read ahead.
            DirectFile::open(&disk, bytes)?.read(from + (number << 20))?;
            counts.push(firn.store_reads()? - before);
        }
        let mean = counts.iter().sum::<f64>() / counts.len() as f64;
        let most = counts.iter().fold(0.0_f64, |a, b| a.max(*b));
        println!("| {name} | {READS} | {mean:.2} | {most} |");
    }
    Ok(())
}
