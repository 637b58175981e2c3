//! What many idle disks cost: time to attach, memory here and in the kernel, exit and recovery.
//!
//! One server, no requests, no planned faults. Each row begins with a fresh store and cache. Memory of
//! the kernel is what became unavailable and is not the server's own: it counts what the disks' nodes in
//! sysfs and devtmpfs cost, too. Some disks are attached and detached one after the other, which says what
//! one of them takes; the many between them side by side, as a host does it that has so many.

use std::fs;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant, SystemTime};

use rustix::process::Signal;
use serde_json::json;

use super::host::{Host, tail};
use super::operator::OPERATION_TIMEOUT;
use super::server::{self, ProcessUsage, Server, Setup};
use crate::Failure;

/// The driver's own limit, which is 64 unless it is told otherwise.
const LIMIT: &str = "/sys/module/ublk_drv/parameters/ublks_max";

/// How long a server with all its disks may take to end or to come up.
const RESTORE_TIMEOUT: Duration = Duration::from_secs(900);

/// Disks that are attached or detached one after the other.
const ONE_BY_ONE_COUNT: usize = 16;

/// Those that are, side by side.
const CONCURRENCY: usize = 16;

/// What a server says of each disk that it brings back.
const RECOVERED_MESSAGE: &str = "the disk is recovered";

/// What it says when it has left them.
const LEFT_MESSAGE: &str = "the disks are left to the next server";

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
struct IdleCost {
    server: ProcessUsage,
    used_kib: u64,
}

impl IdleCost {
    fn now(server: &Server) -> Result<IdleCost, Failure> {
        Ok(IdleCost {
            server: server.size(),
            used_kib: used_kib()?,
        })
    }

    /// The kernel's part.
    fn kernel_kib(&self) -> u64 {
        self.used_kib.saturating_sub(self.server.rss_kib)
    }
}

/// The longest that rows of so many devices may take.
pub(super) fn limit(counts: &[usize]) -> Duration {
    let devices: usize = counts.iter().sum();
    Duration::from_secs(600 + 2 * devices as u64)
}

/// Does something to each of these, side by side; how long all of it took.
fn concurrently(
    names: &[String],
    work: impl Fn(&str) -> Result<(), Failure> + Sync,
) -> Result<Duration, Failure> {
    let began = Instant::now();
    let (next, failed) = (AtomicUsize::new(0), Mutex::new(None));
    std::thread::scope(|scope| {
        for _ in 0..CONCURRENCY {
            scope.spawn(|| {
                while let Some(name) = names.get(next.fetch_add(1, Ordering::Relaxed)) {
                    if let Err(error) = work(name) {
                        // The first failure is told, and nothing more is begun.
                        next.store(names.len(), Ordering::Relaxed);
                        let mut failed = failed.lock().unwrap_or_else(|error| error.into_inner());
                        failed.get_or_insert(error.to_string());
                    }
                }
            });
        }
    });
    let failed = failed.into_inner();
    match failed.unwrap_or_else(|error| error.into_inner()) {
        Some(error) => Err(error.into()),
        None => Ok(began.elapsed()),
    }
}

/// Does something to each of these, one after the other; how long all of it took.
fn time_each(
    names: &[String],
    work: impl Fn(&str) -> Result<(), Failure>,
) -> Result<Duration, Failure> {
    let began = Instant::now();
    names.iter().try_for_each(|name| work(name))?;
    Ok(began.elapsed())
}

/// Prints a row for each number of devices.
pub(super) fn run(setup: &Setup, mode: &str, counts: &[usize], json: bool) -> Result<(), Failure> {
    if let Err(error) = fs::write(LIMIT, "4200") {
        println!("the driver's limit stays: {error}");
    }
    println!(
        "| devices | create ms each | attach ms each: first {ONE_BY_ONE_COUNT} | {CONCURRENCY} side by side | last {ONE_BY_ONE_COUNT} | \
         RSS KiB each | kernel KiB each | threads | descriptors each | stop s | back after stop s | \
         back after kill s | detach ms each: first {ONE_BY_ONE_COUNT} | {CONCURRENCY} side by side |"
    );
    println!("|{}", "---:|".repeat(14));
    for count in counts {
        let mut setup = setup.clone();
        setup.dir = setup.dir.join(format!("scale{count}"));
        fs::create_dir_all(&setup.dir)?;
        let row = row(&setup, mode, *count).map_err(|error| {
            let said = tail(&setup.host(0).log_path(), usize::MAX);
            format!(
                "{count} devices: {error}\n{}",
                find_errors(&said).join("\n")
            )
        })?;
        if json {
            println!("{row}");
        }
        setup.host(0).remove_local_files()?;
        fs::remove_dir_all(&setup.dir)?;
    }
    Ok(())
}

/// The first things that went wrong.
fn find_errors(said: &str) -> Vec<&str> {
    let lines = said
        .lines()
        .filter(|line| line.contains(" WARN ") || line.contains("ERROR"));
    lines.take(20).collect()
}

fn row(setup: &Setup, mode: &str, count: usize) -> Result<serde_json::Value, Failure> {
    let names: Vec<_> = (0..count).map(|number| format!("scale{number}")).collect();
    let host = setup.host(0);
    let server = setup.start(&host, OPERATION_TIMEOUT)?;
    let create = concurrently(&names, |name| {
        let options = json!({"name": name, "size_bytes": VOLUME_BYTES});
        host.request("POST", "/v1/volumes", Some(&options))
            .map(drop)
    })?;
    let before = IdleCost::now(&server)?;
    let alone = count.min(ONE_BY_ONE_COUNT);
    let (first, others) = names.split_at(alone);
    let (middle, last) = others.split_at(others.len().saturating_sub(ONE_BY_ONE_COUNT));
    let attach = |name: &str| host.attach(name, mode, OPERATION_TIMEOUT).map(drop);
    let attached = || {
        Ok([
            time_each(first, attach)?,
            concurrently(middle, attach)?,
            time_each(last, attach)?,
        ])
    };
    let attached = attached().map_err(|error: Failure| {
        let now = server.size();
        let place = server::thread_stacks(server.pid());
        format!("{error}\nthe server, {now:?}:\n{place}")
    })?;
    let idle = IdleCost::now(&server)?;
    let each = |now: u64, then: u64| now.saturating_sub(then) as f64 / count as f64;
    let (stop, status) = server.stop(Signal::TERM, RESTORE_TIMEOUT)?;
    if !status.success() {
        return Err(format!("the server ended with {status}").into());
    }
    let text = tail(&host.log_path(), usize::MAX);
    let left = text.lines().rfind(|line| line.contains(LEFT_MESSAGE));
    println!("after {:.2} s: {}", stop.as_secs_f64(), left.unwrap_or("?"));
    for line in find_errors(&text) {
        println!("  {line}");
    }
    let server = restarted(setup, &host, &names, "stop")?;
    let after_stop = server.startup_time;
    let (killed, _) = server.stop(Signal::KILL, RESTORE_TIMEOUT)?;
    println!("gone {:.2} s after kill", killed.as_secs_f64());
    let server = restarted(setup, &host, &names, "kill")?;
    let after_kill = server.startup_time;
    let detach = |name: &str| host.detach(name, OPERATION_TIMEOUT);
    let detached = [time_each(first, detach)?, concurrently(others, detach)?];
    server.stop(Signal::TERM, RESTORE_TIMEOUT)?;
    let row = json!({
        "devices": count,
        "create_ms": ms_each(create, count),
        "attach_ms_first": ms_each(attached[0], alone),
        "attach_ms_together": ms_each(attached[1], middle.len()),
        "attach_ms_last": ms_each(attached[2], last.len()),
        "rss_kib_each": each(idle.server.rss_kib, before.server.rss_kib),
        "kernel_kib_each": each(idle.kernel_kib(), before.kernel_kib()),
        "threads": idle.server.threads,
        "descriptors_each": each(idle.server.descriptors, before.server.descriptors),
        "stop_s": stop.as_secs_f64(),
        "back_after_stop_s": after_stop.as_secs_f64(),
        "back_after_kill_s": after_kill.as_secs_f64(),
        "detach_ms_first": ms_each(detached[0], alone),
        "detach_ms_together": ms_each(detached[1], others.len()),
    });
    print_row(&row);
    Ok(row)
}

/// Figures in the order of the table, with as many digits as they are worth.
const COLUMNS: [(&str, usize); 14] = [
    ("devices", 0),
    ("create_ms", 1),
    ("attach_ms_first", 1),
    ("attach_ms_together", 1),
    ("attach_ms_last", 1),
    ("rss_kib_each", 0),
    ("kernel_kib_each", 0),
    ("threads", 0),
    ("descriptors_each", 1),
    ("stop_s", 2),
    ("back_after_stop_s", 2),
    ("back_after_kill_s", 2),
    ("detach_ms_first", 1),
    ("detach_ms_together", 1),
];

fn print_row(row: &serde_json::Value) {
    let cells = COLUMNS.map(|(name, digits)| match row[name].as_f64() {
        Some(value) => format!("{value:.digits$}"),
        None => "-".to_owned(),
    });
    println!("| {} |", cells.join(" | "));
}

/// Starts a server over the disks of the last one; each must be back when it is ready.
fn restarted(setup: &Setup, host: &Host, names: &[String], after: &str) -> Result<Server, Failure> {
    let said = fs::metadata(host.log_path())?.len();
    let server = setup.start(host, RESTORE_TIMEOUT)?;
    check_all_restored(host, names)?;
    let text = tail(&host.log_path(), usize::MAX);
    let text = text.get(said as usize..).unwrap_or_default();
    println!("after {after}: {}", parts(text, &server));
    Ok(server)
}

/// What a server that has just come up said of its way there, in seconds after its start.
fn parts(text: &str, server: &Server) -> String {
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
        Some(hours * 3600.0 + minutes * 60.0 + seconds - started)
    };
    let when = |words: &str| -> Vec<f64> {
        let lines = text.lines().filter(|line| line.contains(words));
        lines.filter_map(seconds).collect()
    };
    let back = when(RECOVERED_MESSAGE);
    let shown = |time: Option<&f64>| time.map_or("?".to_owned(), |time| format!("{time:.2}"));
    format!(
        "waits for the last server's log from {}, log recovered {}, volumes open {}, first disk back {}, last {}, ready {:.2}",
        shown(when("waiting until the I/O").first()),
        shown(when("the log was recovered").first()),
        shown(when("volumes are open").first()),
        shown(back.first()),
        shown(back.last()),
        server.startup_time.as_secs_f64()
    )
}

/// Every volume must be a disk again, by itself.
fn check_all_restored(host: &Host, names: &[String]) -> Result<(), Failure> {
    for name in names {
        let shown = host.show(name)?;
        if shown["disk"].is_null() {
            return Err(format!("{name} is no disk after the restart").into());
        }
    }
    Ok(())
}

/// None if there are none.
fn ms_each(time: Duration, count: usize) -> Option<f64> {
    (count > 0).then(|| time.as_secs_f64() * 1e3 / count as f64)
}
