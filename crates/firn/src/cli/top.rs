//! `firn top` and what repeats a picture of the server on a terminal.
//!
//! The server says what was done since its volumes were opened; this subtracts two answers, so
//! several may look at one server, and looking costs it nothing in between.

use std::collections::BTreeMap;
use std::io::IsTerminal;
use std::time::Duration;

use super::args::{ApiArgs, TopArgs};
use super::client::Client;
use super::output;
use crate::failure::Result;
use crate::model::{Activity, LatencyBucket, OpActivity, VolumeActivity};

/// Clears the terminal.
const CLEAR: &str = "\x1b[H\x1b[2J";

/// Shows a picture again and again: in place on a terminal, else one below the other. `count`
/// bounds how often.
pub(super) fn redraw(
    interval: Duration,
    count: Option<u64>,
    mut picture: impl FnMut() -> Result<String>,
) -> Result<()> {
    let is_terminal = std::io::stdout().is_terminal();
    let mut shown = 0;
    loop {
        let picture = picture()?;
        let before = match (is_terminal, shown) {
            (true, _) => CLEAR,
            (false, 0) => "",
            (false, _) => "\n",
        };
        output::raw(format!("{before}{picture}\n").as_bytes())?;
        shown += 1;
        if count.is_some_and(|count| shown >= count) {
            return Ok(());
        }
        // A program for people, with nothing to wait for but the time.
        std::thread::sleep(interval);
    }
}

pub(crate) fn top(api: &ApiArgs, json: bool, args: &TopArgs) -> Result<()> {
    let client = Client::new(api)?;
    let ask = || client.get::<Activity>("/v1/activity");
    let interval = args.interval.0.max(Duration::from_millis(100));
    if json {
        return redraw(interval, args.count, || {
            let now = ask()?;
            Ok(serde_json::to_string(&now).expect("the API's own types always serialize"))
        });
    }
    let mut before = ask()?;
    std::thread::sleep(interval);
    redraw(interval, args.count, || {
        let now = ask()?;
        let picture = render(&before, &now);
        before = now;
        Ok(picture)
    })
}

fn render(before: &Activity, now: &Activity) -> String {
    let elapsed = (now.at_seconds - before.at_seconds).max(0.001);
    let requests = now.store_requests.saturating_sub(before.store_requests);
    let mut lines = vec![format!(
        "{} volumes   log {:.0} % not stored   cache {:.1} GiB   store {:.1} requests/s",
        now.volumes.len(),
        now.log_pressure * 100.0,
        now.cache_disk_bytes as f64 / (1_u64 << 30) as f64,
        requests as f64 / elapsed
    )];
    let mut rows: Vec<(u64, Vec<String>)> = now
        .volumes
        .iter()
        .map(|volume| {
            let earlier = before.volumes.iter().find(|one| one.name == volume.name);
            row(earlier, volume, elapsed)
        })
        .collect();
    rows.sort_by_key(|(requests, _)| std::cmp::Reverse(*requests));
    let rows: Vec<Vec<String>> = rows.into_iter().map(|(_, row)| row).collect();
    let heading = [
        "VOLUME",
        "READ/s",
        "MiB/s",
        "p50",
        "p99",
        "WRITE/s",
        "MiB/s",
        "p50",
        "p99",
        "FLUSH/s",
        "p99",
        "ERRORS",
        "NOT STORED FOR",
    ];
    lines.push(String::new());
    lines.push(output::table_text(&heading, &rows));
    lines.join("\n").trim_end().to_owned()
}

/// A volume's line, and how many requests it had.
fn row(before: Option<&VolumeActivity>, now: &VolumeActivity, elapsed: f64) -> (u64, Vec<String>) {
    let of = |op: &str| Interval::new(before.and_then(|before| find(before, op)), find(now, op));
    let (read, write, flush) = (of("read"), of("write"), of("flush"));
    let rate = |count: u64| format!("{:.0}", count as f64 / elapsed);
    let mib = |bytes: u64| format!("{:.1}", bytes as f64 / elapsed / (1 << 20) as f64);
    let errors: u64 = now.ops.iter().map(|op| op.errors).sum();
    let cells = vec![
        now.name.clone(),
        rate(read.requests),
        mib(read.bytes),
        read.percentile(50),
        read.percentile(99),
        rate(write.requests),
        mib(write.bytes),
        write.percentile(50),
        write.percentile(99),
        rate(flush.requests),
        flush.percentile(99),
        errors.to_string(),
        format!("{:.1}s", now.watermarks.stored.age_seconds),
    ];
    (read.requests + write.requests + flush.requests, cells)
}

fn find<'a>(volume: &'a VolumeActivity, op: &str) -> Option<&'a OpActivity> {
    volume.ops.iter().find(|one| one.op == op)
}

/// What was done of one operation between two answers.
#[derive(Default)]
struct Interval {
    requests: u64,
    bytes: u64,
    /// By where the bucket ends; the last one has no end.
    latencies: BTreeMap<u64, u64>,
}

impl Interval {
    fn new(before: Option<&OpActivity>, now: Option<&OpActivity>) -> Interval {
        let Some(now) = now else {
            return Interval::default();
        };
        // A volume that was closed and opened in between counts from nothing.
        let before = before.filter(|before| before.requests <= now.requests);
        let ends = |bucket: &LatencyBucket| bucket.below_us.unwrap_or(u64::MAX);
        let mut latencies: BTreeMap<u64, u64> = now
            .latencies
            .iter()
            .map(|one| (ends(one), one.requests))
            .collect();
        for bucket in before.iter().flat_map(|before| &before.latencies) {
            if let Some(count) = latencies.get_mut(&ends(bucket)) {
                *count = count.saturating_sub(bucket.requests);
            }
        }
        Interval {
            requests: now.requests - before.map_or(0, |before| before.requests),
            bytes: now
                .bytes
                .saturating_sub(before.map_or(0, |before| before.bytes)),
            latencies,
        }
    }

    /// So many of a hundred requests took less than this.
    fn percentile(&self, percent: u64) -> String {
        let total: u64 = self.latencies.values().sum();
        let rank = (total * percent).div_ceil(100).max(1);
        let mut seen = 0;
        for (&below_us, count) in &self.latencies {
            seen += count;
            if total > 0 && seen >= rank {
                return output::short_time(below_us);
            }
        }
        "-".to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn op(buckets: &[(u64, u64)]) -> OpActivity {
        let bucket = |&(below_us, requests): &(u64, u64)| LatencyBucket {
            below_us: Some(below_us),
            requests,
        };
        OpActivity {
            op: "read".to_owned(),
            requests: buckets.iter().map(|(_, count)| count).sum(),
            errors: 0,
            bytes: 0,
            seconds: 0.0,
            latencies: buckets.iter().map(bucket).collect(),
        }
    }

    #[test]
    fn percentiles_are_of_the_time_between_two_answers() {
        let before = op(&[(8, 1000), (1024, 10)]);
        let now = op(&[(8, 1000), (1024, 100), (2_000_000, 10)]);
        let interval = Interval::new(Some(&before), Some(&now));
        assert_eq!(interval.requests, 100);
        assert_eq!(interval.percentile(50), "1.0ms");
        assert_eq!(interval.percentile(90), "1.0ms");
        assert_eq!(interval.percentile(99), "2.0s");
        assert_eq!(Interval::new(None, Some(&now)).percentile(50), "8us");
        assert_eq!(Interval::new(Some(&now), Some(&now)).percentile(50), "-");
        // The volume was opened anew meanwhile.
        assert_eq!(Interval::new(Some(&now), Some(&before)).requests, 1010);
    }
}
