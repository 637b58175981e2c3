//! What many idle disks cost: time to attach, memory here and in the kernel, exit and recovery.
//!
//! One server, no requests, no planned faults. Each row begins with a fresh store and cache. Memory of
//! the kernel is what became unavailable and is not the server's own: it counts what the disks' nodes in
//! sysfs and devtmpfs cost, too.

use std::fs;
use std::time::{Duration, Instant, SystemTime};

use rustix::process::Signal;
use serde_json::json;

use super::operator::PATIENCE;
use super::server::{self, Server, Setup, Size};
use crate::Failure;

/// The driver's own limit, which is 64 unless it is told otherwise.
const LIMIT: &str = "/sys/module/ublk_drv/parameters/ublks_max";

/// How long a server with all its disks may take to end or to come up.
const WITHIN: Duration = Duration::from_secs(900);

/// What a server says of each disk that it brings back.
const BACK: &str = "the disk is back";

/// What it says when it has left them.
const LEFT: &str = "disks wait for the next server";

const VOLUME_BYTES: u64 = 64 << 20;

/// Memory of the guest that nobody can have any more.
fn used_kib() -> Result<u64, Failure> {
    let text = fs::read_to_string("/proc/meminfo")?;
    let of = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name))?;
        line.trim().split(' ').next()?.parse::<u64>().ok()
    };
    let total = of("MemTotal:").ok_or("no MemTotal")?;
    Ok(total - of("MemAvailable:").ok_or("no MemAvailable")?)
}

/// A server at rest.
#[derive(Clone, Copy, Debug)]
struct Rest {
    server: Size,
    used_kib: u64,
}

impl Rest {
    fn now(server: &Server) -> Result<Rest, Failure> {
        Ok(Rest {
            server: server.size(),
            used_kib: used_kib()?,
        })
    }

    /// The kernel's part.
    fn kernel_kib(&self) -> u64 {
        self.used_kib.saturating_sub(self.server.rss_kib)
    }
}

/// Prints a row for each number of devices.
pub(super) fn run(setup: &Setup, mode: &str, counts: &[usize], json: bool) -> Result<(), Failure> {
    if let Err(error) = fs::write(LIMIT, "4200") {
        println!("the driver's limit stays: {error}");
    }
    println!(
        "| devices | create ms each | attach ms each: first 16 | last 16 | all | RSS KiB each | kernel KiB each | \
         threads | descriptors each | stop s | back after stop s | back after kill s | detach ms each |"
    );
    println!("|{}", "---:|".repeat(13));
    for count in counts {
        let mut setup = setup.clone();
        setup.dir = setup.dir.join(format!("scale{count}"));
        fs::create_dir_all(&setup.dir)?;
        let row = row(&setup, mode, *count).map_err(|error| {
            let said = server::tail(&setup.said(), usize::MAX);
            let troubles = said.lines().filter(|line| !line.contains(" INFO "));
            let troubles: Vec<_> = troubles.take(20).collect();
            format!("{count} devices: {error}\n{}", troubles.join("\n"))
        })?;
        if json {
            println!("{row}");
        }
        fs::remove_dir_all(&setup.dir)?;
        fs::remove_dir_all(setup.rings())?;
    }
    Ok(())
}

fn row(setup: &Setup, mode: &str, count: usize) -> Result<serde_json::Value, Failure> {
    let names: Vec<_> = (0..count).map(|number| format!("scale{number}")).collect();
    let server = setup.start(PATIENCE)?;
    let began = Instant::now();
    for name in &names {
        let wish = json!({"name": name, "size_bytes": VOLUME_BYTES});
        server::done("POST", "/v1/volumes", Some(&wish))?;
    }
    let create = ms_each(began.elapsed(), count);
    let before = Rest::now(&server)?;
    let mut took = Vec::with_capacity(count);
    for name in &names {
        let began = Instant::now();
        server::attach(name, mode, PATIENCE)?;
        took.push(began.elapsed());
    }
    let sum = |times: &[Duration]| ms_each(times.iter().sum(), times.len());
    let some = count.min(16);
    let (first, last, all) = (sum(&took[..some]), sum(&took[count - some..]), sum(&took));
    let idle = Rest::now(&server)?;
    let each = |now: u64, then: u64| now.saturating_sub(then) as f64 / count as f64;
    let rss = each(idle.server.rss_kib, before.server.rss_kib);
    let kernel = each(idle.kernel_kib(), before.kernel_kib());
    let descriptors = each(idle.server.descriptors, before.server.descriptors);
    let (stop, status) = server.end(Signal::TERM, WITHIN)?;
    if !status.success() {
        return Err(format!("the server ended with {status}").into());
    }
    let text = server::tail(&setup.said(), usize::MAX);
    let left = text.lines().rfind(|line| line.contains(LEFT));
    println!("after {:.2} s: {}", stop.as_secs_f64(), left.unwrap_or("?"));
    let server = setup.start(WITHIN)?;
    let after_stop = server.came_up;
    all_back(&names)?;
    println!("after stop: {}", parts(setup, &server));
    let (killed, _) = server.end(Signal::KILL, WITHIN)?;
    let server = setup.start(WITHIN)?;
    let after_kill = server.came_up;
    all_back(&names)?;
    println!("gone {:.2} s after kill", killed.as_secs_f64());
    println!("after kill: {}", parts(setup, &server));
    let began = Instant::now();
    for name in &names {
        server::detach(name, PATIENCE)?;
    }
    let detach = ms_each(began.elapsed(), count);
    server.end(Signal::TERM, WITHIN)?;
    println!(
        "| {count} | {create:.1} | {first:.1} | {last:.1} | {all:.1} | {rss:.0} | {kernel:.0} | {} | {descriptors:.1} | \
         {:.2} | {:.2} | {:.2} | {detach:.1} |",
        idle.server.threads,
        stop.as_secs_f64(),
        after_stop.as_secs_f64(),
        after_kill.as_secs_f64()
    );
    Ok(json!({
        "devices": count, "create_ms": create, "attach_ms_first": first, "attach_ms_last": last,
        "attach_ms": all, "rss_kib_each": rss, "kernel_kib_each": kernel,
        "threads": idle.server.threads, "descriptors_each": descriptors,
        "stop_s": stop.as_secs_f64(), "back_after_stop_s": after_stop.as_secs_f64(),
        "back_after_kill_s": after_kill.as_secs_f64(), "detach_ms": detach,
    }))
}

/// What a server that has just come up said of its way there, in seconds after its start.
fn parts(setup: &Setup, server: &Server) -> String {
    let text = server::tail(&setup.said(), usize::MAX);
    let day = |time: SystemTime| {
        let since = time.duration_since(SystemTime::UNIX_EPOCH);
        since.unwrap_or_default().as_secs_f64() % 86_400.0
    };
    let started = day(server.started);
    // `2026-11-22T01:02:03.456789Z  INFO module: text`
    let seconds = |line: &str| {
        let stamp = line.split_once('T')?.1.split_once('Z')?.0;
        let parts: Vec<f64> = stamp
            .split(':')
            .filter_map(|part| part.parse().ok())
            .collect();
        let [hours, minutes, seconds] = parts[..] else {
            return None;
        };
        let after = hours * 3600.0 + minutes * 60.0 + seconds - started;
        (after > -1.0).then_some(after)
    };
    let when = |words: &str| -> Vec<f64> {
        let lines = text.lines().filter(|line| line.contains(words));
        lines.filter_map(seconds).collect()
    };
    let back = when(BACK);
    let shown = |time: Option<&f64>| time.map_or("?".to_owned(), |time| format!("{time:.2}"));
    format!(
        "waits for the last server's log from {}, log recovered {}, volumes open {}, first disk back {}, last {}, ready {:.2}",
        shown(when("waiting until the I/O").first()),
        shown(when("the log was recovered").first()),
        shown(when("volumes are open").first()),
        shown(back.first()),
        shown(back.last()),
        server.came_up.as_secs_f64()
    )
}

/// Every volume must be a disk again, by itself.
fn all_back(names: &[String]) -> Result<(), Failure> {
    for name in names {
        let shown = server::done("GET", &format!("/v1/volumes/{name}"), None)?;
        if shown["disk"].is_null() {
            return Err(format!("{name} is no disk after the restart").into());
        }
    }
    Ok(())
}

fn ms_each(time: Duration, count: usize) -> f64 {
    time.as_secs_f64() * 1e3 / count as f64
}
