//! One measurement: fio against devices that are there, judged by its exit status and its report.

use std::fmt;
use std::fs::File;
use std::io::Write;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::Failure;

/// The load on each of some devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Workload {
    /// fio's pattern.
    pub(super) pattern: &'static str,
    /// Bytes per request, as fio writes them.
    pub(super) block: &'static str,
    /// Requests in flight per device.
    pub(super) depth: u32,
    /// Requests that are submitted with one call, and taken with one.
    pub(super) batch: u32,
    /// Devices.
    pub(super) devices: usize,
}

impl Workload {
    /// A load on one device that submits half of its requests at a time.
    pub(super) const fn new(pattern: &'static str, block: &'static str, depth: u32) -> Workload {
        Workload {
            pattern,
            block,
            depth,
            batch: depth.div_ceil(2),
            devices: 1,
        }
    }

    /// The same on so many devices.
    pub(super) const fn with_devices(self, devices: usize) -> Workload {
        Workload { devices, ..self }
    }
}

/// Pattern, bytes and depth, as rows are called.
impl fmt::Display for Workload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} QD{}", self.pattern, self.block, self.depth)
    }
}

/// When a load ends.
#[derive(Clone, Copy, Debug)]
pub(super) enum Length {
    /// After this many seconds; places may come twice.
    Seconds(f64),
    /// After this many requests, none of which is for a place of another. The same on every run.
    Requests(u32),
    /// When every byte of the devices was reached once.
    Once,
}

/// What came out, over all devices.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Sample {
    /// Requests per second.
    pub(super) per_second: f64,
    /// Mean completion latency in microseconds.
    pub(super) mean_us: f64,
    /// The completion latency in microseconds that 50, 99 and 99.9 % of the requests stay below;
    /// of the slower direction where a job has both.
    pub(super) percentiles_us: [f64; 3],
    /// Requests.
    pub(super) requests: f64,
}

/// Runs a load on the first of these devices, a job for each, to its end.
pub(super) fn fio(
    workload: Workload,
    devices: &[PathBuf],
    length: Length,
) -> Result<Sample, Failure> {
    let mut command = fio_command();
    command.arg("--ioengine=libaio");
    match length {
        Length::Seconds(seconds) => {
            command.args(["--time_based", "--norandommap"]);
            command.arg(format!("--runtime={:.0}ms", seconds * 1e3));
        }
        Length::Requests(number) => {
            command.arg(format!("--number_ios={number}"));
        }
        Length::Once => {}
    }
    // Seeding and telling time must not drown what is measured.
    command.args(["--randrepeat=1", "--gtod_reduce=0", "--lat_percentiles=0"]);
    command.arg(format!("--rw={}", workload.pattern));
    command.arg(format!("--bs={}", workload.block));
    command.arg(format!("--iodepth={}", workload.depth));
    command.arg(format!("--iodepth_batch_submit={}", workload.batch));
    command.arg(format!("--iodepth_batch_complete_max={}", workload.batch));
    for device in &devices[..workload.devices] {
        let name = device
            .file_name()
            .map_or_else(String::new, |name| name.to_string_lossy().into_owned());
        command.arg(format!("--name={name}"));
        command.arg(format!("--filename={}", device.display()));
    }
    sample(&report(&mut command)?)
}

/// The same some times; the sample with the middle rate.
pub(super) fn median_of(
    rounds: usize,
    workload: Workload,
    devices: &[PathBuf],
    length: Length,
) -> Result<Sample, Failure> {
    let samples: Result<_, _> = (0..rounds)
        .map(|_| fio(workload, devices, length))
        .collect();
    Ok(median(samples?))
}

/// Writes every byte of a disk once.
pub(super) fn fill(disk: &PathBuf) -> Result<Sample, Failure> {
    let whole = Workload::new("write", "1m", 4);
    fio(whole, std::slice::from_ref(disk), Length::Once)
}

/// A file of so many MiB, every block of it written: holes and unwritten extents read faster than any
/// disk.
pub(super) fn write_file(path: &Path, mib: u64) -> Result<(), Failure> {
    let mut file = File::create(path)?;
    let mut block = vec![0_u8; 1 << 20];
    fastrand::Rng::with_seed(1).fill(&mut block);
    for _ in 0..mib {
        file.write_all(&block)?;
    }
    Ok(file.sync_all()?)
}

/// A file or disk past the page cache, for requests of one size, each of which is timed.
pub(super) struct DirectFile {
    file: File,
    /// Direct I/O wants its memory aligned: the part of a larger buffer that is.
    buffer: Vec<u8>,
    bytes: usize,
}

const PAGE_BYTES: usize = 4096;

impl DirectFile {
    pub(super) fn open(path: &Path, bytes: usize) -> Result<DirectFile, Failure> {
        let direct = rustix::fs::OFlags::DIRECT.bits().cast_signed();
        let mut options = File::options();
        options.read(true).write(true).custom_flags(direct);
        let file = options.open(path);
        Ok(DirectFile {
            file: file.map_err(|error| format!("cannot open {}: {error}", path.display()))?,
            buffer: vec![0x5a; bytes + PAGE_BYTES],
            bytes,
        })
    }

    fn aligned(&self) -> std::ops::Range<usize> {
        let skip = self.buffer.as_ptr().align_offset(PAGE_BYTES);
        skip..skip + self.bytes
    }

    pub(super) fn read(&mut self, at: u64) -> Result<Duration, Failure> {
        let range = self.aligned();
        let began = Instant::now();
        self.file.read_exact_at(&mut self.buffer[range], at)?;
        Ok(began.elapsed())
    }

    pub(super) fn write(&mut self, at: u64) -> Result<Duration, Failure> {
        let range = self.aligned();
        let began = Instant::now();
        self.file.write_all_at(&self.buffer[range], at)?;
        Ok(began.elapsed())
    }

    /// Makes what was written durable.
    pub(super) fn flush(&mut self) -> Result<Duration, Failure> {
        let began = Instant::now();
        self.file.sync_data()?;
        Ok(began.elapsed())
    }
}

/// fio as all measurements run it: past the page cache, one report over all of its jobs.
pub(super) fn fio_command() -> Command {
    let mut command = Command::new("fio");
    command.args(["--output-format=json", "--direct=1"]);
    command.args(["--group_reporting", "--thread"]);
    command
}

/// Runs fio to its end; its report.
pub(super) fn report(command: &mut Command) -> Result<Value, Failure> {
    let output = command
        .output()
        .map_err(|error| format!("cannot start fio: {error}"))?;
    let text = String::from_utf8_lossy(&output.stdout);
    if !output.status.success() {
        let errors = String::from_utf8_lossy(&output.stderr);
        return Err(format!("fio ended with {}:\n{text}{errors}", output.status).into());
    }
    parse_json(&text)
}

/// The report in what fio printed, which may begin with notes.
pub(super) fn parse_json(text: &str) -> Result<Value, Failure> {
    let start = text.find('{').unwrap_or(text.len());
    serde_json::from_str(&text[start..]).map_err(|_| format!("fio gave no report:\n{text}").into())
}

/// Reads fio's report; what did nothing, or had an error, is a failure.
pub(super) fn sample(report: &Value) -> Result<Sample, Failure> {
    let job = &report["jobs"][0];
    let (mut requests, mut per_second, mut nanoseconds) = (0.0, 0.0, 0.0);
    let mut percentiles_us = [0.0_f64; 3];
    for side in ["read", "write"] {
        let count = job[side]["total_ios"].as_f64().unwrap_or(0.0);
        requests += count;
        per_second += job[side]["iops"].as_f64().unwrap_or(0.0);
        nanoseconds += count * job[side]["clat_ns"]["mean"].as_f64().unwrap_or(0.0);
        for (at, name) in ["50.000000", "99.000000", "99.900000"].iter().enumerate() {
            let below = job[side]["clat_ns"]["percentile"][name].as_f64();
            percentiles_us[at] = percentiles_us[at].max(below.unwrap_or(0.0) / 1e3);
        }
    }
    if job["error"] != 0 || requests == 0.0 {
        return Err(format!("fio did nothing, or failed:\n{report}").into());
    }
    Ok(Sample {
        per_second,
        mean_us: nanoseconds / requests / 1e3,
        percentiles_us,
        requests,
    })
}

/// The sample with the middle rate.
pub(super) fn median(mut samples: Vec<Sample>) -> Sample {
    samples.sort_by(|a, b| a.per_second.total_cmp(&b.per_second));
    samples[samples.len() / 2]
}

#[cfg(test)]
mod tests {
    use super::*;

    const REPORT: &str = r#"note
        {"jobs":[{"error":0,
        "read":{"total_ios":0,"iops":0.0,"clat_ns":{"mean":0.0}},
        "write":{"total_ios":200,"iops":100.0,"clat_ns":{"mean":2500.0,"percentile":
        {"50.000000":2000,"99.000000":7000,"99.900000":9000}}}}]}"#;

    #[test]
    fn a_report_is_read_over_both_directions() {
        let expected = Sample {
            per_second: 100.0,
            mean_us: 2.5,
            percentiles_us: [2.0, 7.0, 9.0],
            requests: 200.0,
        };
        assert_eq!(sample(&parse_json(REPORT).unwrap()).unwrap(), expected);
    }

    #[test]
    fn what_failed_or_did_nothing_is_no_sample() {
        let of = |text: &str| parse_json(text).and_then(|report| sample(&report));
        assert!(of("").is_err());
        assert!(of(&REPORT.replace("\"error\":0", "\"error\":5")).is_err());
        assert!(of(&REPORT.replace("200", "0")).is_err());
    }

    #[test]
    fn the_median_is_by_rate() {
        let samples = [3.0, 1.0, 2.0].map(|per_second| Sample {
            per_second,
            ..Sample::default()
        });
        assert!((median(samples.to_vec()).per_second - 2.0).abs() < 1e-9);
    }
}
