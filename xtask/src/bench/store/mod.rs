//! `cargo xtask bench store`: volumes on a real S3 server over a line that is as narrow and as long
//! as asked (P4, P5, P6, P11, P16 to P21).
//!
//! MinIO stands beside the server, its objects in memory; between them is the proxy that limits the
//! line to a rate which both the server and a plain client of the same store reach. Every figure is
//! a ratio within one run, round by round; the median of the rounds counts.

pub(super) mod index;
mod peers;
mod reads;
mod requests;
mod small_requests;
mod writes;
mod zerofs;

use std::path::PathBuf;
use std::time::Duration;

use super::rig::Programs;
use crate::{Failure, minio, process, workspace};

/// Arguments of `cargo xtask bench store`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Only these rows, separated by commas: p4, p5, p6, p11, p16, p17, p18, p19, p20, p21; peers, which is measured only if it is
    /// asked for
    #[arg(long, value_delimiter = ',')]
    only: Vec<Row>,
    /// Seconds per measurement
    #[arg(long, default_value_t = 10)]
    seconds: u64,
    /// Rounds; the median counts
    #[arg(long, default_value_t = 1)]
    rounds: usize,
    /// MiB a second that the line to the store carries, in each direction; 0 is no limit
    #[arg(long, default_value_t = 64)]
    rate: u64,
    /// Milliseconds that the line adds to each answer, separated by commas
    #[arg(long, value_delimiter = ',', default_values_t = [0, 30])]
    latency: Vec<u64>,
    /// Size of the server's log in MiB
    #[arg(long, default_value_t = 256)]
    log_mib: u64,
    /// Requests that the plain client has under way
    #[arg(long, default_value_t = 8)]
    concurrency: usize,
    /// Volumes of P21
    #[arg(long, default_value_t = 1000)]
    volumes: usize,
    /// Minutes that count of P21, after as many seconds as its volumes need to come to a steady state
    #[arg(long, default_value_t = 10)]
    minutes: u32,
    /// MinIO's objects in target/, not in memory
    #[arg(long)]
    objects_on_disk: bool,
    /// Measure this server instead of the one built here
    #[arg(long)]
    program: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Row {
    /// The first write to a cold block
    P4,
    /// Store requests of a cold read
    P5,
    /// Writers that wait for a FLUSH
    P6,
    /// Bytes sent for a byte written
    P11,
    /// Sustained sequential writes
    P16,
    /// Sustained random writes
    P17,
    /// Cold reads
    P18,
    /// Hot reads beside uploads
    P19,
    /// The index of a large volume
    P20,
    /// Requests of many volumes
    P21,
    /// Other systems beside a volume
    Peers,
}

impl Row {
    /// Whether the plain client does the same beside it.
    fn is_ratio(self) -> bool {
        matches!(self, Row::P16 | Row::P17 | Row::P18 | Row::P19)
    }
}

/// One combination of the line.
#[derive(Clone, Copy, Debug)]
struct Line {
    rate_mib: u64,
    latency: Duration,
}

pub(super) fn run(arguments: &Arguments) -> Result<(), Failure> {
    if arguments.only == [Row::P20] {
        return index::at_scale();
    }
    let programs = build(arguments)?;
    println!("{}", crate::lane::describe_machine()?);
    println!(
        "log {} MiB, line {} MiB/s, {} s a measurement, {} rounds",
        arguments.log_mib, arguments.rate, arguments.seconds, arguments.rounds
    );
    let lines: Vec<Line> = arguments
        .latency
        .iter()
        .map(|latency| Line {
            rate_mib: arguments.rate,
            latency: Duration::from_millis(*latency),
        })
        .collect();
    let wanted = |row| arguments.only.is_empty() || arguments.only.contains(&row);
    if wanted(Row::P4) {
        small_requests::first_writes(&programs, arguments, &lines)?;
    }
    if wanted(Row::P5) {
        small_requests::cold_reads(&programs, arguments, &lines)?;
    }
    if wanted(Row::P6) {
        small_requests::flushing_writers(&programs, arguments, &lines)?;
    }
    if wanted(Row::P11) {
        small_requests::bytes_sent(&programs, arguments)?;
    }
    if wanted(Row::P16) {
        writes::sequential(&programs, arguments, &lines)?;
    }
    if wanted(Row::P17) {
        writes::random(&programs, arguments, &lines)?;
    }
    if wanted(Row::P18) {
        reads::cold(&programs, arguments, &lines)?;
    }
    if wanted(Row::P19) {
        reads::beside_uploads(&programs, arguments, &lines)?;
    }
    if wanted(Row::P20) {
        index::at_scale()?;
    }
    if wanted(Row::P21) {
        requests::of_many_volumes(&programs, arguments)?;
    }
    if arguments.only.contains(&Row::Peers) {
        peers::compare(&programs, arguments, &lines)?;
    }
    println!("\n{}", crate::lane::describe_machine()?);
    Ok(())
}

fn build(arguments: &Arguments) -> Result<Programs, Failure> {
    let mut build = workspace::cargo(["build", "--quiet", "--profile", "dist", "-p", "firn"]);
    let compares = arguments.only.is_empty() || arguments.only.iter().any(|row| row.is_ratio());
    if compares {
        build.args(["--example", "plain_client"]);
    }
    if arguments.program.is_none() {
        build.arg("--bins");
    }
    if compares || arguments.program.is_none() {
        process::run(&mut build)?;
    }
    Ok(Programs {
        firn: match &arguments.program {
            Some(program) => program.canonicalize()?,
            None => workspace::packaged("firn"),
        },
        plain: workspace::packaged("examples/plain_client"),
        minio: minio::build()?,
    })
}

/// Flags of `serve` for one volume of this size.
fn flags(volume: &str, mib: u64, log_mib: u64) -> Vec<String> {
    vec![
        format!("--volume={volume}={mib}MiB"),
        format!("--log-size={log_mib}MiB"),
        "--cache-size=2GiB".to_owned(),
        "--rpo=30s".to_owned(),
    ]
}

/// The middle one by `value`.
fn median<T>(mut samples: Vec<T>, value: impl Fn(&T) -> f64) -> Result<T, Failure> {
    samples.sort_by(|a, b| value(a).total_cmp(&value(b)));
    let middle = samples.len() / 2;
    samples
        .into_iter()
        .nth(middle)
        .ok_or_else(|| "no rounds".into())
}
