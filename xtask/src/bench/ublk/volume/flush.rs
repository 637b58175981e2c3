//! P6: many writers that each wait for their write's flush against one, where a flush is slow.
//!
//! The log is on a disk whose every flush takes a millisecond or more and whose writes take nothing, so
//! the rate is how many writes one flush makes durable. The kernel helps on the way: of one queue's
//! flushes it has one in flight, and lets those that come meanwhile share the next. A write with
//! O_DSYNC to a disk is sent with FUA and followed by such a flush. Writers on disks of their own
//! have no help: what they share is this server's doing. The bare disk is measured beside it, to
//! show what there is to win.

use std::path::{Path, PathBuf};

use super::BenchContext;
use super::hot::create_filled;
use super::medium::SlowFlush;
use super::report::{Bars, Report, Row};
use super::server::World;
use crate::Failure;
use crate::bench::measure::{self, DirectFile, Sample, median};
use crate::bench::ublk::servers::Mode;

/// Writers in all, where there are many.
const MANY: usize = 64;

/// Disks of a mode: each has as many of the many writers, where they are spread.
const DISKS: usize = 16;

/// MiB of a disk, and of the file that stands for a bare one.
const MIB: u64 = 8;

/// Writes whose flush is timed to see what the disk costs by itself.
const BARE_WRITES: u32 = 100;

/// How a writer waits for its write to be durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Durability {
    /// A write, then `fdatasync`.
    Sync,
    /// A write with `O_DSYNC`: FUA, and a flush after it that finds nothing left to do where nobody
    /// else writes.
    Fua,
}

impl Durability {
    fn name(self) -> &'static str {
        match self {
            Durability::Sync => "fdatasync",
            Durability::Fua => "O_DSYNC",
        }
    }
}

/// Writers on a number of disks.
struct FlushLoad {
    name: &'static str,
    writers: usize,
    disks: usize,
}

impl FlushLoad {
    const fn new(name: &'static str, writers: usize, disks: usize) -> FlushLoad {
        FlushLoad {
            name,
            writers,
            disks,
        }
    }
}

const CROWDS: [FlushLoad; 3] = [
    FlushLoad::new("1 writer", 1, 1),
    FlushLoad::new("64 writers, 1 disk", MANY, 1),
    FlushLoad::new("64 writers, 16 disks", MANY, DISKS),
];

/// What the log's disk did during a measurement.
struct FlushCount {
    workload: String,
    crowd: &'static str,
    writes: f64,
    flushes: f64,
}

pub(super) fn run(context: &BenchContext, report: &mut Report) -> Result<(), Failure> {
    let slow = SlowFlush::new(context.flush_ms * 1_000_000)?;
    report.part(
        "flush",
        "P6: 64 writers that wait for a flush against one",
        Bars::Ratio,
    );
    println!(
        "<!-- the log's disk: {} -->",
        measure_bare_flush(&slow, context.flush_ms)?
    );
    let dir = slow.mounted()?;
    let world = World::new(context.program, &dir, "flush")?;
    let mut firn = world.serve(&["--log-size", "1GiB"])?;
    println!("<!-- volumes: {} -->", firn.log);
    let mut flush_counts = Vec::new();
    let files = files(&dir)?;
    let bench = Bench {
        context,
        slow: &slow,
    };
    // The disk carries out FUA at once, so for a file of its own that is no measure.
    let (bare, durabilities) = (("bare file", "ext4"), [Durability::Sync]);
    bench.rows(report, &mut flush_counts, bare, &files, &durabilities)?;
    for mode in [Mode::ZeroCopy, Mode::UserCopy] {
        let disks = create_filled(&mut firn, mode, (DISKS, MIB))?;
        let granted = firn.granted(&format!("{}-0", mode.name()))?;
        let what = (mode.name(), &*granted);
        let durabilities = [Durability::Sync, Durability::Fua];
        bench.rows(report, &mut flush_counts, what, &disks, &durabilities)?;
    }
    println!("\n| workload | writers | writes | flushes of the disk | writes a flush |");
    println!("|---|---|---:|---:|---:|");
    for one in flush_counts {
        println!(
            "| {} | {} | {:.0} | {:.0} | {:.2} |",
            one.workload,
            one.crowd,
            one.writes,
            one.flushes,
            one.writes / one.flushes.max(1.0),
        );
    }
    Ok(())
}

/// What a flush of the disk takes by itself, said and checked.
fn measure_bare_flush(slow: &SlowFlush, least_ms: u64) -> Result<String, Failure> {
    let mut disk = DirectFile::open(&slow.disk, 4096)?;
    let (mut writes, mut flushes) = (0.0, 0.0);
    let before = slow.flushes()?;
    for number in 0..BARE_WRITES {
        writes += disk.write(u64::from(number) << 12)?.as_secs_f64();
        flushes += disk.flush()?.as_secs_f64();
    }
    let seen = slow.flushes()? - before;
    let ms = |sum: f64| sum * 1e3 / f64::from(BARE_WRITES);
    let said = format!(
        "a write of 4 KiB takes {:.3} ms, a flush after it {:.3} ms; it saw {seen} of {BARE_WRITES} flushes",
        ms(writes),
        ms(flushes)
    );
    if ms(flushes) < least_ms as f64 || seen < f64::from(BARE_WRITES) {
        return Err(format!("this is no disk with slow flushes: {said}").into());
    }
    Ok(said)
}

/// Files that were written once, so that a sync has no metadata to write.
fn files(dir: &Path) -> Result<Vec<PathBuf>, Failure> {
    let mut paths = Vec::new();
    for number in 0..DISKS {
        let path = dir.join(format!("bare-{number}"));
        measure::write_file(&path, MIB)?;
        paths.push(path);
    }
    Ok(paths)
}

struct Bench<'a> {
    context: &'a BenchContext<'a>,
    slow: &'a SlowFlush,
}

impl Bench<'_> {
    /// The rows of one kind of disk.
    fn rows(
        &self,
        report: &mut Report,
        flush_counts: &mut Vec<FlushCount>,
        (name, granted): (&str, &str),
        disks: &[PathBuf],
        durabilities: &[Durability],
    ) -> Result<(), Failure> {
        for &durability in durabilities {
            let workload = format!("{name} {}", durability.name());
            if !self
                .context
                .options
                .includes_row(&format!("flush {workload}"))
            {
                continue;
            }
            for crowd in CROWDS {
                let before = self.slow.flushes()?;
                let mut samples = Vec::new();
                for _ in 0..self.context.options.rounds {
                    samples.push(self.fio(
                        &disks[..crowd.disks],
                        crowd.writers / crowd.disks,
                        durability,
                    )?);
                }
                flush_counts.push(FlushCount {
                    workload: workload.clone(),
                    crowd: crowd.name,
                    writes: samples.iter().map(|sample| sample.requests).sum(),
                    flushes: self.slow.flushes()? - before,
                });
                let row = Row {
                    workload: &workload,
                    server: crowd.name,
                    granted,
                };
                report.row(row, &median(samples));
            }
        }
        Ok(())
    }

    /// So many writers on each of the disks.
    fn fio(
        &self,
        disks: &[PathBuf],
        writers: usize,
        durability: Durability,
    ) -> Result<Sample, Failure> {
        let mut command = measure::fio_command();
        command.args(["--ioengine=psync", "--rw=randwrite", "--bs=4k"]);
        command.args(["--time_based", "--norandommap", "--randrepeat=1"]);
        command.arg(format!(
            "--runtime={:.0}ms",
            self.context.options.seconds * 1e3
        ));
        command.arg(format!("--numjobs={writers}"));
        command.arg(format!("--size={MIB}m"));
        command.arg(match durability {
            Durability::Sync => "--fdatasync=1",
            Durability::Fua => "--sync=dsync",
        });
        for (number, disk) in disks.iter().enumerate() {
            command.arg(format!("--name=disk{number}"));
            command.arg(format!("--filename={}", disk.display()));
        }
        let report = measure::report(&mut command)?;
        let mut sample = measure::sample(&report)?;
        if durability == Durability::Sync {
            // Who syncs waits for the sync, and hardly for the write.
            sample.percentiles_us = syncs(&report)?;
        }
        Ok(sample)
    }
}

/// The latencies of the syncs in a report.
fn syncs(report: &serde_json::Value) -> Result<[f64; 3], Failure> {
    let of = &report["jobs"][0]["sync"]["lat_ns"]["percentile"];
    let mut percentiles = [0.0; 3];
    for (at, name) in ["50.000000", "99.000000", "99.900000"].iter().enumerate() {
        let below = of[name].as_f64();
        percentiles[at] = below.ok_or("fio told no latencies of syncs")? / 1e3;
    }
    Ok(percentiles)
}
