//! P3: zero-copy against user-copy, over volumes.
//!
//! Volumes of both modes are attached to one server at once and take turns. What is published of
//! the reference system (16 devices, QD32, in thousands of requests/s: 575, 992 and 730 with
//! zero-copy; 413, 696 and 557 with user-copy) is of hardware and of other disks; only the sign
//! of a difference can be set beside what an emulator or User-Mode Linux shows.

use std::path::PathBuf;

use serde_json::json;

use super::BenchContext;
use super::hot::create_filled;
use super::report::{Bars, Report, Row};
use super::server::World;
use crate::bench::measure::{Length, Workload, fill, fio, median};
use crate::bench::ublk::servers::Mode;
use crate::{Failure, figures};

/// Devices of a mode, and their size: those of both modes together fit into the log.
const DEVICES: usize = 16;
const MIB: u64 = 8;

/// More than twice of what all volumes hold, for a server makes room before its log is full; less than all laps write,
/// so that no segment is used for the first time.
const LOG: &str = "704MiB";

/// Reads come first, while all is in the
/// log: seconds of writes to some volumes take the log from the others, and who reads those then
/// measures the cache, or the store.
const WORKLOADS: [Workload; 7] = [
    Workload::new("randread", "4k", 32).with_devices(DEVICES),
    Workload::new("randread", "4k", 64),
    Workload::new("read", "128k", 8),
    Workload::new("randrw", "4k", 32).with_devices(DEVICES),
    Workload::new("randwrite", "4k", 32).with_devices(DEVICES),
    Workload::new("randwrite", "4k", 64),
    Workload::new("write", "128k", 8),
];

pub(super) fn run(context: &BenchContext, report: &mut Report) -> Result<(), Failure> {
    let world = World::new(context.program, context.dir, "modes")?;
    let mut firn = world.serve(&["--log-size", LOG])?;
    let modes = [Mode::UserCopy, Mode::ZeroCopy];
    let mut disks: Vec<Vec<PathBuf>> = Vec::new();
    for mode in modes {
        disks.push(create_filled(&mut firn, mode, (DEVICES, MIB))?);
    }
    // A segment of the log is zeroed before its first use: that is behind it after this lap.
    for _ in 0..2 {
        for (mode, disks) in modes.iter().zip(&disks) {
            for (number, disk) in disks.iter().enumerate() {
                firn.ask(&["sync", &format!("{}-{number}", mode.name())])?;
                fill(disk)?;
            }
        }
    }
    report.part("modes", "P3: zero-copy against user-copy", Bars::Ratio);
    println!("<!-- volumes: {} -->", firn.log);
    for load in WORKLOADS {
        let workload = format!("{load} x{}", load.devices);
        if !context.options.includes_row(&format!("modes {workload}")) {
            continue;
        }
        let mut samples = vec![Vec::new(); modes.len()];
        let mut fetched = vec![0.0; modes.len()];
        for _ in 0..context.options.rounds {
            for (at, disks) in disks.iter().enumerate() {
                let length = Length::Seconds(context.options.seconds);
                let before = firn.store_reads()?;
                samples[at].push(fio(load, disks, length)?);
                fetched[at] += firn.store_reads()? - before;
            }
        }
        for (mode, fetched) in modes.iter().zip(fetched) {
            let mode = mode.name();
            println!("<!-- {workload} in {mode}: {fetched} store requests that read -->");
            let row = json!({"workload": workload, "server": mode, "store_reads": fetched});
            figures::put("modes-store", &row);
        }
        for (mode, samples) in modes.iter().zip(samples) {
            let granted = firn.granted(&format!("{}-0", mode.name()))?;
            let row = Row {
                workload: &workload,
                server: mode.name(),
                granted: &granted,
            };
            report.row(row, &median(samples));
        }
    }
    for mode in modes {
        let disk = firn.disk(&format!("{}-0", mode.name()))?;
        println!(
            "\nways of the requests of {}-0: {}",
            mode.name(),
            disk["requests"]
        );
    }
    Ok(())
}
