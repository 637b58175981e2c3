//! `cargo xtask bench volume`: volumes as disks, on a real kernel.
//!
//! Hot requests against a bare file that the kernel tree's server serves (P2), zero-copy against
//! user-copy (P3), the first write to a cold block (P4), what a cold read asks of the store and
//! how many threads a hot request meets (P5), a working set larger than the cache, and writers that
//! share a flush (P6). By itself: how long requests wait while a server is upgraded (P9), or killed and
//! replaced (P23). Everything in one run, in one guest, so that ratios mean something. Like the
//! other benchmarks of ublk it runs itself a second time inside the guest. What idle disks cost
//! (P10) is the soak's to say.

mod cold;
mod evict;
mod flush;
mod hot;
pub(in crate::bench) mod medium;
mod modes;
mod pauses;
mod report;
pub(in crate::bench) mod server;

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::Stdio;

use super::Options;
use crate::chart::Chart;
use crate::{Failure, lane, process, server_program, vm, workspace};
use report::Report;

/// Arguments of `cargo xtask bench volume`.
#[derive(Clone, clap::Args)]
pub(crate) struct Arguments {
    /// What to measure
    #[arg(value_enum, default_value_t = VolumePart::All)]
    what: VolumePart,
    #[command(flatten)]
    options: Options,
    /// Where the log and the served files are
    #[arg(long, value_enum, default_value_t = Medium::Memory)]
    medium: Medium,
    /// Milliseconds that a flush of the log's disk takes, for `flush`
    #[arg(long, default_value_t = 1)]
    flush_ms: u64,
    /// Measure this server instead of the one built here
    #[arg(long)]
    program: Option<PathBuf>,
    /// The kernel tree's server, inside the guest
    #[arg(long, hide = true)]
    inside: Option<PathBuf>,
    /// Write the charts to docs/benchmarks, with this date
    #[arg(long, value_name = "DATE")]
    charts: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum VolumePart {
    /// All of P2 to P6
    All,
    /// P2: hot requests against a bare file, and the threads that a hot request meets (P5)
    Hot,
    /// P3: zero-copy against user-copy
    Modes,
    /// P4 and P5: the first write to a cold block; store requests of a cold read
    Cold,
    /// A working set larger than the cache
    Evict,
    /// P6: 64 writers that wait for each write's flush against one, where a flush is slow
    Flush,
    /// P9 and P23: the longest request while the server is upgraded, or killed and replaced
    Pauses,
}

/// Where the log and the served files are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(in crate::bench) enum Medium {
    /// On a disk in memory (null_blk, ext4): the servers are measured and not a disk
    Memory,
    /// On the guest's own disk (ext4)
    Disk,
}

/// Whether this is the second run, in the guest, which the first one's lock is for.
pub(in crate::bench) fn is_inside(arguments: &Arguments) -> bool {
    arguments.inside.is_some()
}

pub(in crate::bench) fn run(arguments: &Arguments) -> Result<(), Failure> {
    match &arguments.inside {
        Some(kublk) => measure_in_guest(arguments, kublk),
        None => run_on_host(arguments),
    }
}

/// A value of an enumeration as the command line knows it.
fn value_name(value: &impl clap::ValueEnum) -> Result<String, Failure> {
    let value = value.to_possible_value().ok_or("a value without a name")?;
    Ok(value.get_name().to_owned())
}

/// Builds the servers, starts the guest, and keeps what it draws.
fn run_on_host(arguments: &Arguments) -> Result<(), Failure> {
    let kublk = vm::kublk_path()?;
    if arguments.what != VolumePart::Pauses {
        super::build_servers()?;
    }
    let program = server_program::build_unless(arguments.program.as_deref())?;
    let (what, medium) = (value_name(&arguments.what)?, value_name(&arguments.medium)?);
    let guest = ["--memory", "6G", "--scratch", "4096"];
    let mut guest = arguments.options.in_guest(&guest, &["volume", &what])?;
    guest.args(["--medium", &medium]);
    guest.args(["--flush-ms", &arguments.flush_ms.to_string()]);
    guest.arg("--program").arg(program);
    guest.arg("--inside").arg(kublk);
    println!("this machine: {}", lane::describe_machine()?);
    println!("$ {}", process::command_line(&guest));
    let mut child = guest.stdout(Stdio::piped()).spawn()?;
    let output = child.stdout.take().ok_or("a guest without output")?;
    let mut charts = Vec::new();
    for line in BufReader::new(output).lines() {
        let line = line?;
        match report::chart(&line) {
            Some(chart) => charts.push(chart),
            None => println!("{line}"),
        }
    }
    let status = child.wait()?;
    println!("this machine: {}", lane::describe_machine()?);
    if !status.success() {
        return Err(format!("the guest ended with {status}").into());
    }
    write_charts(arguments, charts)
}

/// Writes the charts to docs/benchmarks, if that was asked for.
fn write_charts(arguments: &Arguments, charts: Vec<(String, Chart)>) -> Result<(), Failure> {
    let Some(date) = &arguments.charts else {
        return Ok(());
    };
    for (name, mut chart) in charts {
        chart.note = format!("{}; {date}", chart.note);
        let lane = match (&*arguments.options.kernel, arguments.options.icount) {
            (kernel, true) => format!("{kernel}-instructions"),
            (kernel, false) => kernel.to_owned(),
        };
        let path = format!("docs/benchmarks/volume-{name}-{lane}.svg");
        std::fs::write(workspace::root().join(&path), chart.svg())?;
        println!("{path}");
    }
    Ok(())
}

/// Measures, as root of the guest.
fn measure_in_guest(arguments: &Arguments, kublk: &Path) -> Result<(), Failure> {
    let Options { kernel, icount, .. } = &arguments.options;
    let lane = super::make_guest_ready(kernel, *icount)?;
    println!("{lane}");
    let mut report = Report::new(&arguments.options, &lane);
    let wanted = |what| match arguments.what {
        VolumePart::All => what != VolumePart::Pauses,
        one => one == what,
    };
    let parts: [(VolumePart, Part); 6] = [
        (VolumePart::Hot, hot::run),
        (VolumePart::Modes, modes::run),
        (VolumePart::Cold, cold::run),
        (VolumePart::Evict, evict::run),
        (VolumePart::Flush, flush::run),
        (VolumePart::Pauses, pauses::run),
    ];
    let dir = match arguments.medium {
        Medium::Memory => medium::in_memory()?,
        Medium::Disk => medium::scratch_disk()?,
    };
    let context = BenchContext {
        options: &arguments.options,
        flush_ms: arguments.flush_ms,
        program: arguments.program.as_deref().ok_or("no server's program")?,
        kublk,
        dir: &dir,
    };
    for (what, part) in parts {
        if wanted(what) {
            part(&context, &mut report)?;
        }
    }
    report.end();
    Ok(())
}

type Part = fn(&BenchContext, &mut Report) -> Result<(), Failure>;

/// Where a part measures.
struct BenchContext<'a> {
    options: &'a Options,
    flush_ms: u64,
    /// The server's program.
    program: &'a Path,
    kublk: &'a Path,
    /// The directory for logs and served files.
    dir: &'a Path,
}
