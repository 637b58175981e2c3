//! P14: a server with many devices goes, and the kernel is asked how long that took and what it did.
//!
//! The time is that from the signal until every device is seen without a server. From the kernel
//! itself, by ftrace: how often a request queue was quiesced, which is what made this slow, and the
//! time from the first ring's end to the last thing done for a device. User-Mode Linux has no tracer.
//! Calls are the same on every lane; times are the lane's.

use std::io::{BufRead, BufReader, Lines};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};
use std::{fmt, fs};

use serde_json::{Value, json};

use super::Arguments;
use super::servers::{DEPTH, wait};
use crate::{Failure, figures, workspace};

/// Where the kernel's tracer is.
const TRACING: &str = "/sys/kernel/tracing";

/// What is traced, where the kernel has it: the names differ between releases.
const FUNCTIONS: [&str; 10] = [
    "blk_mq_quiesce_queue",
    CANCEL,
    "io_ring_ctx_wait_and_kill",
    "ublk_ch_release",
    "ublk_ch_release_work_fn",
    "ublk_reset_ch_dev",
    "ublk_quiesce_work_fn",
    "__ublk_quiesce_dev",
    "ublk_stop_work_fn",
    "blk_mq_unquiesce_queue",
];

/// What takes back all commands of a device at once: for a server's QUIESCE_DEV, or by itself.
const CANCEL: &str = "ublk_cancel_dev";

/// How long after a server's end its devices may still be busy.
const START_TIMEOUT: Duration = Duration::from_secs(120);

/// Looks at the trace, a second apart, that must find nothing new before it is taken for whole: between
/// two things that a ring's end does, an emulated kernel takes its time.
const QUIET: usize = 5;

/// Devices and queues of each; no device has more queues than there could be processors.
const SHAPES: [(usize, usize); 15] = [
    (1, 2),
    (8, 2),
    (16, 2),
    (32, 2),
    (64, 2),
    (128, 2),
    (8, 4),
    (32, 4),
    (64, 4),
    (128, 4),
    (8, 24),
    (16, 24),
    (32, 24),
    (64, 24),
    (128, 24),
];

/// Our server with few rings; the same when it leaves the quiescing to its rings' end; and with as
/// many rings as queues.
const FEW_RINGS: &str = "firn 2 rings";
const FEW_BY_RING: &str = "firn 2 rings by ring";
const MANY_RINGS: &str = "firn ring per queue";
const SERVERS: [&str; 4] = [FEW_RINGS, FEW_BY_RING, MANY_RINGS, "kublk"];

/// Threads that a server is given at most.
const THREADS_MAX: usize = 1024;

/// What the kernel did.
#[derive(Debug, Default, PartialEq)]
struct Trace {
    /// Calls that quiesce a queue.
    quiesces: usize,
    /// Calls that take back all commands of a device.
    cancels: usize,
    /// Releases of a device.
    releases: usize,
    /// Milliseconds from the first ring's end to the last thing traced.
    from_ring: f64,
}

/// A row's figures.
#[derive(Debug)]
struct Exit {
    /// Milliseconds from the signal until no device has a server.
    from_signal: f64,
    /// What the kernel tells, where it does.
    traced: Option<Trace>,
}

impl Exit {
    /// A row for programs, with what the kernel told.
    fn with_traced(&self, mut row: Value) -> Value {
        if let Some(trace) = &self.traced {
            row["quiesces"] = json!(trace.quiesces);
            row["cancels"] = json!(trace.cancels);
            row["from_ring_ms"] = json!(trace.from_ring);
        }
        row
    }
}

impl fmt::Display for Exit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.traced {
            None => write!(f, "| | {:.0} |", self.from_signal),
            Some(trace) => write!(
                f,
                "{} | {} | {:.0} | {:.0}",
                trace.quiesces, trace.cancels, self.from_signal, trace.from_ring
            ),
        }
    }
}

/// Prints a row for every shape, server and way to go.
pub(super) fn run(arguments: &Arguments, kublk: &Path) -> Result<(), Failure> {
    let ours = workspace::packaged("examples/null");
    // It is there already where the guest's start has mounted it.
    let _ = Command::new("mount")
        .args(["-t", "tracefs", "tracefs", TRACING])
        .stderr(Stdio::null())
        .status();
    println!(
        "| server | devices x queues | end | quiesces | cancels | from the signal, ms | from the first ring's end, ms |"
    );
    println!("|---|---|---|---:|---:|---:|---:|");
    let possible = processors()?;
    for (devices, queues) in SHAPES {
        for server in SERVERS {
            for signal in ["TERM", "KILL"] {
                let name = format!("{server} {devices}x{queues} {signal}");
                let impossible =
                    queues > possible || server == MANY_RINGS && devices * queues > THREADS_MAX;
                if impossible || !arguments.options.includes_row(&name) {
                    continue;
                }
                let program = if server == "kublk" { kublk } else { &ours };
                let exit = measure_exit(server, program, (devices, queues), signal)?;
                println!("| {server} | {devices} x {queues} | {signal} | {exit} |");
                let row = json!({
                    "server": server, "devices": devices, "queues": queues, "depth": DEPTH,
                    "signal": signal, "from_signal_ms": exit.from_signal,
                });
                figures::put("exit", &exit.with_traced(row));
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

/// Processors that there could be, which is how many queues a device may have: `0-23` are 24.
fn processors() -> Result<usize, Failure> {
    let text = fs::read_to_string("/sys/devices/system/cpu/possible")?;
    let last = text.trim().rsplit(['-', ',']).next().unwrap_or_default();
    Ok(last.parse::<usize>()? + 1)
}

fn paths(devices: usize) -> Vec<std::path::PathBuf> {
    (0..devices)
        .map(|id| format!("/dev/ublkb{id}").into())
        .collect()
}

/// Starts a server, ends it, and sees what that took.
fn measure_exit(
    server: &str,
    program: &Path,
    (devices, queues): (usize, usize),
    signal: &str,
) -> Result<Exit, Failure> {
    let mut children = start(server, program, (devices, queues))?;
    wait(&paths(devices), true)?;
    let mut watcher = Watcher::start(devices)?;
    let traced = start_tracing()?;
    let began = Instant::now();
    for child in &children {
        let pid = rustix::process::Pid::from_child(child);
        let signal = if signal == "TERM" {
            rustix::process::Signal::TERM
        } else {
            rustix::process::Signal::KILL
        };
        rustix::process::kill_process(pid, signal)?;
    }
    watcher.expect_word("exited")?;
    let from_signal = 1e3 * began.elapsed().as_secs_f64();
    for child in &mut children {
        child.wait()?;
    }
    let traced = traced.then(|| wait_until_quiet(devices)).transpose()?;
    Ok(Exit {
        from_signal,
        traced,
    })
}

/// Starts a server, or one for each device.
fn start(
    server: &str,
    program: &Path,
    (devices, queues): (usize, usize),
) -> Result<Vec<Child>, Failure> {
    let depth = DEPTH.to_string();
    let queues_word = queues.to_string();
    let shape = ["-q", &queues_word, "-d", &depth];
    let mut children = Vec::new();
    if server.starts_with("firn") {
        let mut command = Command::new(program);
        command.args(["--id", "0", "--devices", &devices.to_string()]);
        command.args([
            "--queues",
            &queues_word,
            "--depth",
            &depth,
            "--mode",
            "copy",
        ]);
        command.args(["--recovery", "reissue", "--leave"]);
        if server == FEW_BY_RING {
            command.arg("--quiesce-by-ring");
        }
        let rings = if server == MANY_RINGS {
            devices * queues
        } else {
            2
        };
        command.args(["--reactors", &rings.to_string()]);
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
    Ok(children)
}

/// Says when no device has a server any more.
struct Watcher(Child, Lines<BufReader<ChildStdout>>);

impl Watcher {
    fn start(devices: usize) -> Result<Watcher, Failure> {
        let mut command = Command::new(workspace::packaged("examples/await_exit"));
        command.arg(devices.to_string()).stdout(Stdio::piped());
        let mut child = command.spawn()?;
        let out = child.stdout.take().ok_or("it has no output")?;
        let mut watcher = Watcher(child, BufReader::new(out).lines());
        watcher.expect_word("watching")?;
        Ok(watcher)
    }

    fn expect_word(&mut self, word: &str) -> Result<(), Failure> {
        match self.1.next().transpose()? {
            Some(line) if line == word => Ok(()),
            other => Err(format!("it should say {word} and said {other:?}").into()),
        }
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Begins to trace, and marks the beginning; false where this kernel has no tracer.
fn start_tracing() -> Result<bool, Failure> {
    if !Path::new(TRACING).join("trace").exists() {
        return Ok(false);
    }
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
    write("tracing_on", "1")?;
    Ok(true)
}

/// Reads the trace once every device is released and nothing more comes.
fn wait_until_quiet(devices: usize) -> Result<Trace, Failure> {
    let until = Instant::now() + START_TIMEOUT;
    let mut before = Trace::default();
    let mut quiet = 0;
    loop {
        std::thread::sleep(Duration::from_secs(1));
        let now = read(&fs::read_to_string(format!("{TRACING}/trace"))?);
        quiet = if now == before { quiet + 1 } else { 0 };
        if now.releases >= devices && quiet >= QUIET {
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
            CANCEL => trace.cancels += 1,
            "ublk_ch_release" => trace.releases += 1,
            "io_ring_ctx_wait_and_kill" => {
                // The control ring closes with its process, when devices may be long released.
                first = first.or(Some(time));
                continue;
            }
            _ => {}
        }
        last = time;
    }
    trace.from_ring = first.map_or(0.0, |first| 1e3 * (last - first));
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
            firn-77 [001] d..1.   10.200000: ublk_cancel_dev <-ublk_ctrl_uring_cmd\n\
            kublk-77 [000] d..1.   10.250000: ublk_ch_release <-__fput\n\
            kublk-77 [000] d..1.   19.000000: io_ring_ctx_wait_and_kill <-io_uring_release\n";
        let trace = read(text);
        assert_eq!((trace.quiesces, trace.cancels, trace.releases), (1, 1, 1));
        assert!((trace.from_ring - 250.0).abs() < 0.01);
        assert_eq!(read("nothing\n: x\n"), Trace::default());
    }
}
