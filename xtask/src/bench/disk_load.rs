//! Clients of disks that do not stop while servers come and go: fio, which verifies what it reads, with its log of
//! latencies, which says when each disk answered and how long the longest of these requests took.
//!
//! All clients are one process that runs until it is told to end: what is looked at is read from its logs then. An
//! error, or a byte that is not what was written, ends it and fails the benchmark.

use std::fs::{self, File};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant, SystemTime};

use rustix::process::{Pid, Signal, kill_process};

use super::measure::{fio_command, parse_json, sample};
use crate::Failure;

/// Milliseconds of which fio keeps the longest request of a disk.
const WINDOW_MS: u64 = 10;

/// Requests that a busy disk has under way.
const DEPTH: u32 = 32;

/// How long a client of a light disk waits after an answer, in microseconds.
const LIGHT_PAUSE_US: u32 = 20_000;

/// How long clients may take to end, and disks to answer: far more than any pause.
const TIMEOUT: Duration = Duration::from_secs(120);

/// How soon is looked again whether a disk has answered.
const RETRY_INTERVAL: Duration = Duration::from_millis(2);

/// How fio ends after SIGINT.
const INTERRUPTED: i32 = 128;

/// The clients of some disks.
pub(super) struct Clients {
    child: Child,
    dir: tempfile::TempDir,
    disks: Vec<PathBuf>,
}

/// When a disk answered, and how many milliseconds the longest request took that it had answered since the entry before.
type Answered = (u64, f64);

/// What all clients saw.
pub(super) struct Answers {
    disks: Vec<Vec<Answered>>,
    /// Requests, all of them.
    pub(super) requests: f64,
}

impl Clients {
    /// Starts a client on each of these disks.
    pub(super) fn start(busy: &[PathBuf], light: &[PathBuf]) -> Result<Clients, Failure> {
        let dir = tempfile::tempdir()?;
        let mut command = fio_command();
        command.current_dir(dir.path());
        command.args(["--ioengine=libaio", "--rw=randwrite", "--bs=4k"]);
        command.args(["--verify=crc32c", "--verify_fatal=1", "--verify_backlog=16"]);
        command.args(["--verify_state_save=0", "--create_serialize=0"]);
        command.args(["--time_based", "--runtime=1d", "--write_lat_log=disk"]);
        command.args(["--per_job_logs=1", "--disable_clat=1", "--disable_slat=1"]);
        command.args(["--log_max_value=1", "--log_unix_epoch=1"]);
        command.arg(format!("--log_avg_msec={WINDOW_MS}"));
        for (number, disk) in busy.iter().chain(light).enumerate() {
            command.arg(format!("--name=disk{number}"));
            command.arg(format!("--filename={}", disk.display()));
            if number < busy.len() {
                command.arg(format!("--iodepth={DEPTH}"));
            } else {
                command.arg(format!("--thinktime={LIGHT_PAUSE_US}"));
            }
        }
        command.stdin(Stdio::null());
        command.stdout(File::create(dir.path().join("report"))?);
        command.stderr(File::create(dir.path().join("errors"))?);
        let child = command
            .spawn()
            .map_err(|error| format!("cannot start fio: {error}"))?;
        let disks = busy.iter().chain(light).cloned().collect();
        Ok(Clients { child, dir, disks })
    }

    /// Waits until each disk has answered a request after this call, and calls `meanwhile` again and again.
    pub(super) fn wait_until_all_are_answered(
        &mut self,
        meanwhile: &mut dyn FnMut() -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let until = Instant::now() + TIMEOUT;
        for disk in &self.disks {
            let before = completed(disk)?;
            while completed(disk)? == before {
                if let Some(status) = self.child.try_wait()? {
                    return Err(format!("fio ended with {status}:\n{}", self.said()).into());
                }
                if Instant::now() > until {
                    return Err(format!("{} does not answer", disk.display()).into());
                }
                meanwhile()?;
                std::thread::sleep(RETRY_INTERVAL);
            }
        }
        Ok(())
    }

    /// Ends them; what they saw.
    pub(super) fn end(mut self) -> Result<Answers, Failure> {
        kill_process(Pid::from_child(&self.child), Signal::INT)?;
        let until = Instant::now() + TIMEOUT;
        let status = loop {
            if let Some(status) = self.child.try_wait()? {
                break status;
            }
            if Instant::now() > until {
                return Err("fio does not end".into());
            }
            std::thread::sleep(Duration::from_millis(10));
        };
        if !status.success() && status.code() != Some(INTERRUPTED) {
            return Err(format!("fio ended with {status}:\n{}", self.said()).into());
        }
        let report = fs::read_to_string(self.dir.path().join("report"))?;
        let requests = sample(&parse_json(&report)?)?.requests;
        let log = |number: usize| self.dir.path().join(format!("disk_lat.{number}.log"));
        let disks = (1..=self.disks.len()).map(|number| read_log(&log(number)));
        let disks = disks.collect::<Result<_, _>>()?;
        Ok(Answers { disks, requests })
    }

    fn said(&self) -> String {
        let of = |name: &str| fs::read_to_string(self.dir.path().join(name)).unwrap_or_default();
        format!("{}{}", of("report"), of("errors"))
    }
}

impl Drop for Clients {
    fn drop(&mut self) {
        // It may have ended; either way nothing is left.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Answers {
    /// The longest request of a period, in milliseconds; it counts where it was answered.
    pub(super) fn longest(&self, period: &Range<u64>) -> Result<f64, Failure> {
        let answered = self.disks.iter().flatten();
        let longest = answered
            .filter(|(at, _)| period.contains(at))
            .map(|(_, took)| *took)
            .reduce(f64::max);
        Ok(longest.ok_or("no disk answered anything in a period")?)
    }
}

/// Milliseconds since 1970, which fio's logs count in.
pub(super) fn unix_ms() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    u64::try_from(since.unwrap_or_default().as_millis()).unwrap_or(u64::MAX)
}

/// Requests that a disk has answered.
pub(super) fn completed(disk: &Path) -> Result<u64, Failure> {
    let name = disk.file_name().ok_or("a disk without a name")?;
    let text = fs::read_to_string(Path::new("/sys/block").join(name).join("stat"))?;
    let fields: Vec<u64> = text
        .split_whitespace()
        .filter_map(|field| field.parse().ok())
        .collect();
    // Reads, and writes.
    let both = fields.first().zip(fields.get(4)).map(|(a, b)| a + b);
    Ok(both.ok_or("this kernel does not count requests")?)
}

fn read_log(path: &Path) -> Result<Vec<Answered>, Failure> {
    let text = fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))?;
    let answered: Option<Vec<Answered>> = text.lines().map(parse).collect();
    answered.ok_or_else(|| format!("{} is no log of latencies", path.display()).into())
}

/// `milliseconds, nanoseconds, direction, …`
fn parse(line: &str) -> Option<Answered> {
    let mut fields = line.split(", ");
    let at = fields.next()?.parse().ok()?;
    let nanoseconds: f64 = fields.next()?.parse().ok()?;
    Some((at, nanoseconds / 1e6))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_request_of_a_period_is_that_of_any_disk() {
        let log = ["1000, 2500000, 0, 0, 0", "1010, 500000, 1, 0, 0"];
        let one: Vec<_> = log.iter().filter_map(|line| parse(line)).collect();
        let answers = Answers {
            disks: vec![one, vec![(1005, 7.5), (1020, 90.0)]],
            requests: 4.0,
        };
        assert!((answers.longest(&(1000..1020)).unwrap() - 7.5).abs() < 1e-9);
        assert!((answers.longest(&(1000..1006)).unwrap() - 7.5).abs() < 1e-9);
        // Where nothing was answered there is no longest request.
        assert!(answers.longest(&(1021..1030)).is_err());
        assert_eq!(parse("fio: no line of a log"), None);
    }
}
