//! A working set larger than the cache: everything that is read pushes something else out.
//!
//! The volume comes from the store alone. Fetched chunks land in the server's memory file (128
//! MiB) and are demoted to a small disk cache; what is written goes to the log.

use super::BenchContext;
use super::report::{Bars, Report, Row};
use super::server::World;
use crate::Failure;
use crate::bench::measure::{Length, Workload, fill, fio, median};
use crate::bench::ublk::servers::Mode;

/// Bytes of the volume, more than twice of what both tiers of the cache hold.
const MIB: u64 = 320;

const WORKLOADS: [Workload; 4] = [
    Workload::new("randread", "4k", 32),
    Workload::new("randrw", "4k", 32),
    Workload::new("read", "128k", 8),
    Workload::new("randwrite", "4k", 32),
];

pub(super) fn run(context: &BenchContext, report: &mut Report) -> Result<(), Failure> {
    let world = World::new(context.program, context.dir, "evict")?;
    let volume = format!("large={MIB}MiB");
    let usual = [
        "--log-size",
        "512MiB",
        "--cache-size",
        "16MiB",
        "--volume",
        &volume,
    ];
    let mut firn = world.serve(&usual)?;
    fill(&firn.attach("large", Mode::ZeroCopy)?)?;
    firn.ask(&["sync", "large"])?;
    firn.stop()?;
    world.remove_cache()?;
    let mut firn = world.serve(&usual)?;
    firn.ask(&["attach", "large", "--transport", "nbd", "--take-over"])?;
    let disk = firn.attach("large", Mode::ZeroCopy)?;
    let granted = firn.granted("large")?;
    report.part("evict", "A working set larger than the cache", Bars::Cost);
    println!(
        "<!-- volume: {MIB} MiB; cache: 128 MiB in memory, 16 MiB on disk; {} -->",
        firn.log
    );
    // Into the steady state: everything once, in order.
    let disks = [disk];
    fio(Workload::new("read", "1m", 4), &disks, Length::Once)?;
    let mut fetches = Vec::new();
    for load in WORKLOADS {
        let workload = load.to_string();
        if !context.options.includes_row(&format!("evict {workload}")) {
            continue;
        }
        let mut samples = Vec::new();
        let before = firn.store_reads()?;
        for _ in 0..context.options.rounds {
            let length = Length::Seconds(context.options.seconds);
            samples.push(fio(load, &disks, length)?);
        }
        let requests: f64 = samples.iter().map(|sample| sample.requests).sum();
        fetches.push((workload.clone(), (firn.store_reads()? - before) / requests));
        let row = Row {
            workload: &workload,
            server: "firn volume",
            granted: &granted,
        };
        report.row(row, &median(samples));
    }
    println!("\n| workload | store requests that read, per request |\n|---|---:|");
    for (workload, each) in fetches {
        println!("| {workload} | {each:.3} |");
    }
    Ok(())
}
