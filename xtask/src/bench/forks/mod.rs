//! `cargo xtask bench forks`: what branching a volume costs (P8), over NBD with MinIO in memory as its store, and as disks.
//!
//! [`api`] asks the server and takes the time, [`calls`] measures single snapshots and forks, idle and under load,
//! [`many`] a thousand of them and what the first requests to one cost, [`qcow2`] the same of overlays through qemu-nbd,
//! [`thin`] firn's disks beside dm-thin's, in a guest, [`gc`] what the collector reads and what clients notice of it. A diff of 10 TiB is a test of the engine, whose index is generated.

mod api;
mod calls;
mod gc;
mod many;
mod qcow2;
mod thin;

use std::path::PathBuf;
use std::time::Duration;

use super::rig::{FirnServer, Programs, StoreRig};
use super::store::index::run_engine_tests;
use super::ublk::volume::Medium;
use crate::{Failure, minio, server_program};

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Part {
    /// Single snapshots and forks
    Calls,
    /// Many forks of one snapshot
    Many,
    /// Overlays through qemu-nbd
    Qcow2,
    /// Snapshots and forks as disks, beside dm-thin, in a guest
    Thin,
    /// The garbage collector
    Gc,
    /// A diff of 10 TiB
    Diff,
}

/// Arguments of `cargo xtask bench forks`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Parts, separated by commas; `thin` takes a guest, and long with many forks or rounds
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = [Part::Calls, Part::Many, Part::Qcow2, Part::Gc, Part::Diff])]
    only: Vec<Part>,
    /// Snapshots and forks of which the median counts
    #[arg(long, default_value_t = 15)]
    rounds: usize,
    /// Forks of one snapshot
    #[arg(long, default_value_t = 1000)]
    forks: usize,
    /// Milliseconds that the line to the store adds to each answer, separated by commas
    #[arg(long, value_delimiter = ',', default_values_t = [0, 30])]
    latency: Vec<u64>,
    /// MiB that were written, and are not in the store, when the snapshot of the second table is taken
    #[arg(long, default_value_t = 1024)]
    dirty_mib: u64,
    /// MinIO's objects in target/, not in memory
    #[arg(long)]
    objects_on_disk: bool,
    /// Where logs, stores and pools are, for `thin`
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = [Medium::Disk, Medium::Memory])]
    medium: Vec<Medium>,
    /// Measure this server instead of the one built here
    #[arg(long)]
    program: Option<PathBuf>,
    /// This is the run in the guest
    #[arg(long, hide = true)]
    inside: bool,
}

/// The volume that is branched, and its size.
const PARENT: &str = "parent";
const PARENT_BYTES: u64 = 1 << 40;

/// Whether this is the second run, in the guest, which the first one's lock is for.
pub(super) fn is_inside(arguments: &Arguments) -> bool {
    arguments.inside
}

pub(super) fn run(arguments: &Arguments) -> Result<(), Failure> {
    if arguments.inside {
        return thin::measure_in_guest(arguments);
    }
    let is_asked = |part| arguments.only.contains(&part);
    println!("{}", crate::lane::describe_machine()?);
    if is_asked(Part::Diff) {
        println!("\n## A diff of 10 TiB by its index\n");
        println!(
            "| changed | pages | ranges | store | requests, s | computed, s |\n|---|---:|---:|---|---:|---:|"
        );
        run_engine_tests("index_scale", "a_diff_of_ten_tebibytes")?;
    }
    if is_asked(Part::Thin) {
        thin::run_on_host(arguments)?;
    }
    let over_nbd = |part: &Part| !matches!(part, Part::Diff | Part::Thin);
    if !arguments.only.iter().any(over_nbd) {
        return Ok(());
    }
    let programs = build(arguments)?;
    println!(
        "a volume of 1 TiB, store MinIO, {} rounds",
        arguments.rounds
    );
    for &latency in arguments.latency.iter().filter(|_| is_asked(Part::Calls)) {
        let rig = StoreRig::new(&programs, arguments.objects_on_disk)?;
        rig.slow_down(0, Duration::from_millis(latency));
        println!("\n## {latency} ms to the store\n");
        calls::measure(&rig, arguments)?;
    }
    if is_asked(Part::Gc) {
        let rig = StoreRig::new(&programs, arguments.objects_on_disk)?;
        gc::measure(&rig, arguments)?;
    }
    let rig = StoreRig::new(&programs, arguments.objects_on_disk)?;
    if is_asked(Part::Many) {
        println!(
            "\n## {} forks of one snapshot\n\n\
             | store | one after the other, in | {} at once, in | store requests of each | attached in | memory of each |\n\
             |---|---:|---:|---:|---:|---:|",
            arguments.forks,
            many::AT_ONCE
        );
        let directory = rig.scratch().join("store").display().to_string();
        many::measure(&rig, arguments, Some(&directory))?;
        many::measure(&rig, arguments, None)?;
    }
    if is_asked(Part::Qcow2) {
        qcow2::measure(&rig, arguments)?;
    }
    println!("\n{}", crate::lane::describe_machine()?);
    Ok(())
}

fn build(arguments: &Arguments) -> Result<Programs, Failure> {
    let firn = server_program::build_unless(arguments.program.as_deref())?;
    Ok(Programs {
        firn,
        // Nothing here is compared with it.
        plain: PathBuf::new(),
        minio: minio::build()?,
    })
}

/// A server whose volume is branched, on MinIO unless a directory is named.
fn serve<'a>(
    rig: &'a StoreRig,
    cache: &str,
    rpo: &str,
    directory: Option<&str>,
) -> Result<FirnServer<'a>, Failure> {
    let flags = [
        "--log-size=3GiB".to_owned(),
        "--cache-size=1GiB".to_owned(),
        format!("--rpo={rpo}"),
        format!("--volume={PARENT}={}GiB", PARENT_BYTES >> 30),
    ];
    match directory {
        Some(store) => rig.serve_from(store, cache, &flags),
        None => rig.serve(cache, &flags),
    }
}

/// The middle one of some times, in milliseconds.
fn median_ms(times: &[Duration]) -> f64 {
    let mut times = times.to_vec();
    times.sort_unstable();
    let middle = times.get(times.len() / 2).copied().unwrap_or_default();
    middle.as_secs_f64() * 1e3
}

fn most_ms(times: &[Duration]) -> f64 {
    let most = times.iter().max().copied().unwrap_or_default();
    most.as_secs_f64() * 1e3
}
