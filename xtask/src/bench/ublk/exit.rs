//! P14: a server with many devices goes, and the kernel is asked how long that took and what it did.
//!
//! The figures are the kernel's own, by ftrace: how often a request queue was quiesced, which is
//! what made this slow, and the time from the first ring's end to the last device's release.
//! Calls are the same on every lane; times are the lane's.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use super::Arguments;
use super::servers::{DEPTH, wait};
use crate::{Failure, workspace};

/// Where the kernel's tracer is.
const TRACING: &str = "/sys/kernel/tracing";

/// What is traced, where the kernel has it: the names differ between releases.
const FUNCTIONS: [&str; 5] = [
    "blk_mq_quiesce_queue",
    "io_ring_ctx_wait_and_kill",
    "ublk_ch_release",
    "ublk_ch_release_work_fn",
    "ublk_quiesce_work_fn",
];

/// How long after a server's end its devices may still be busy.
const PATIENCE: Duration = Duration::from_secs(120);

/// Devices and queues of each.
const SHAPES: [(usize, usize); 5] = [(1, 2), (8, 2), (8, 4), (32, 4), (64, 4)];

/// Our server with as many rings as devices; otherwise it has one.
const MANY_RINGS: &str = "firn, many rings";

/// What the kernel did.
#[derive(Debug, Default, PartialEq)]
struct Trace {
    /// Calls that quiesce a queue.
    quiesces: usize,
    /// Releases of a device.
    releases: usize,
    /// Milliseconds from the first ring's end to the last thing traced.
    milliseconds: f64,
}

/// Prints a row for every shape, server and way to go.
pub(super) fn run(arguments: &Arguments, kublk: &Path) -> Result<(), Failure> {
    let ours = workspace::target().join("release/examples/null");
    // It is there already where the guest's start has mounted it.
    let _ = Command::new("mount")
        .args(["-t", "tracefs", "tracefs", TRACING])
        .stderr(Stdio::null())
        .status();
    println!(
        "| server | devices x queues | end | quiesces | releases | first ring's end to last release, ms |"
    );
    println!("|---|---|---|---:|---:|---:|");
    for (devices, queues) in SHAPES {
        for server in ["firn", MANY_RINGS, "kublk"] {
            for signal in ["TERM", "KILL"] {
                let name = format!("{server} {devices}x{queues} {signal}");
                if !name.contains(&arguments.only) {
                    continue;
                }
                let program = if server == "kublk" { kublk } else { &ours };
                let trace = one(server, program, (devices, queues), signal)?;
                let Trace {
                    quiesces,
                    releases,
                    milliseconds,
                } = trace;
                println!(
                    "| {server} | {devices} x {queues} | {signal} | {quiesces} | {releases} | {milliseconds:.1} |"
                );
                let _ = Command::new(kublk)
                    .args(["del", "-a"])
                    .stdout(Stdio::null())
                    .status();
                wait(&paths(devices), false)?;
            }
        }
    }
    Ok(())
}

fn paths(devices: usize) -> Vec<std::path::PathBuf> {
    (0..devices)
        .map(|id| format!("/dev/ublkb{id}").into())
        .collect()
}

/// Starts a server, ends it, reads the trace.
fn one(
    server: &str,
    program: &Path,
    (devices, queues): (usize, usize),
    signal: &str,
) -> Result<Trace, Failure> {
    let (depth, queues) = (DEPTH.to_string(), queues.to_string());
    let shape = ["-q", &queues, "-d", &depth];
    let mut children = Vec::new();
    if server.starts_with("firn") {
        let mut command = Command::new(program);
        command.args(["--id", "0", "--devices", &devices.to_string()]);
        command.args(["--queues", &queues, "--depth", &depth, "--mode", "copy"]);
        command.args(["--recovery", "reissue", "--leave"]);
        if server == MANY_RINGS {
            command.args(["--reactors", &devices.to_string()]);
        }
        // It serves until its input ends.
        command.stdin(Stdio::piped());
        command.stdout(Stdio::null()).stderr(Stdio::null());
        children.push(command.spawn()?);
    } else {
        for id in 0..devices {
            let mut command = Command::new(program);
            command.args([
                "add",
                "-t",
                "null",
                "--foreground",
                "--quiet",
                "-r",
                "1",
                "-i",
                "1",
            ]);
            command
                .args(["-n", &id.to_string()])
                .args(shape)
                .stdout(Stdio::null());
            children.push(command.spawn()?);
        }
    }
    wait(&paths(devices), true)?;
    start_tracing()?;
    for child in &children {
        let pid = rustix::process::Pid::from_child(child);
        let signal = if signal == "TERM" {
            rustix::process::Signal::TERM
        } else {
            rustix::process::Signal::KILL
        };
        rustix::process::kill_process(pid, signal)?;
    }
    for child in &mut children {
        child.wait()?;
    }
    settled(devices)
}

fn start_tracing() -> Result<(), Failure> {
    let write = |name: &str, text: &str| fs::write(format!("{TRACING}/{name}"), text);
    write("tracing_on", "0")?;
    write("current_tracer", "nop")?;
    let known = fs::read_to_string(format!("{TRACING}/available_filter_functions"))?;
    let known: Vec<_> = known
        .lines()
        .filter_map(|line| line.split(' ').next())
        .collect();
    let wanted: Vec<_> = FUNCTIONS
        .into_iter()
        .filter(|name| known.contains(name))
        .collect();
    write("set_ftrace_filter", &wanted.join("\n"))?;
    write("current_tracer", "function")?;
    write("trace", "")?;
    Ok(write("tracing_on", "1")?)
}

/// Reads the trace once every device is released and nothing more comes.
fn settled(devices: usize) -> Result<Trace, Failure> {
    let until = Instant::now() + PATIENCE;
    let mut before = Trace::default();
    loop {
        std::thread::sleep(Duration::from_secs(1));
        let now = read(&fs::read_to_string(format!("{TRACING}/trace"))?);
        if now.releases >= devices && now == before {
            return Ok(now);
        }
        if Instant::now() > until {
            return Err(format!("{} of {devices} devices were released", now.releases).into());
        }
        before = now;
    }
}

/// Sums a trace up.
fn read(text: &str) -> Trace {
    let mut trace = Trace::default();
    let (mut first, mut last) = (None, 0.0);
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        // `sh-77  [001] d....  12.345678: function <-caller`
        let Some((before, after)) = line.split_once(": ") else {
            continue;
        };
        let time = before
            .rsplit(' ')
            .next()
            .and_then(|time| time.parse::<f64>().ok());
        let (Some(time), Some(function)) = (time, after.split(' ').next()) else {
            continue;
        };
        match function {
            "blk_mq_quiesce_queue" => trace.quiesces += 1,
            "ublk_ch_release" => trace.releases += 1,
            "io_ring_ctx_wait_and_kill" => first = first.or(Some(time)),
            _ => {}
        }
        last = time;
    }
    trace.milliseconds = first.map_or(0.0, |first| 1e3 * (last - first));
    trace
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trace_is_summed_up() {
        let text = "# tracer: function\n#\n\
            kublk-77 [001] d..1.   10.000000: io_ring_ctx_wait_and_kill <-io_uring_release\n\
            kublk-77 [001] d..1.   10.100000: blk_mq_quiesce_queue <-ublk_start_cancel\n\
            kublk-77 [001] d..1.   10.100001: blk_mq_quiesce_queue_nowait <-blk_mq_quiesce_queue\n\
            kublk-77 [000] d..1.   10.250000: ublk_ch_release <-__fput\n";
        let trace = read(text);
        assert_eq!((trace.quiesces, trace.releases), (1, 1));
        assert!((trace.milliseconds - 250.0).abs() < 0.01);
        assert_eq!(read("nothing\n: x\n"), Trace::default());
    }
}
