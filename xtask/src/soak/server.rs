//! The server under test: the shipped binary as a process, and what its API and the kernel say of it.
//!
//! Everything is asked over HTTP or read from /proc. The client is as small as the API lets it be: one
//! request per connection, each under a deadline.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant, SystemTime};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::Failure;

const API: &str = "127.0.0.1:7070";

/// How long one answer may take: a disk that is made waits for the store, which has outages.
const ANSWER: Duration = Duration::from_secs(300);

/// How a server is started.
#[derive(Clone, Debug)]
pub(super) struct Setup {
    pub(super) program: PathBuf,
    /// Store and cache are below it.
    pub(super) dir: PathBuf,
    /// What the store does wrong; nothing if empty.
    pub(super) faults: String,
    pub(super) rpo_seconds: u64,
    pub(super) log_mib: u64,
    pub(super) cache_mib: u64,
    /// A planted bug.
    pub(super) canary: Option<String>,
}

/// A running server.
#[derive(Debug)]
pub(super) struct Server {
    child: Child,
    /// From its start until it was ready.
    pub(super) came_up: Duration,
    pub(super) started: SystemTime,
}

/// What the kernel says of a process.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Size {
    pub(super) rss_kib: u64,
    pub(super) anonymous_kib: u64,
    pub(super) threads: u64,
    pub(super) descriptors: u64,
}

impl Setup {
    /// What the servers said on standard error.
    pub(super) fn said(&self) -> PathBuf {
        self.dir.join("said")
    }

    fn cache(&self) -> PathBuf {
        self.dir.join("cache")
    }

    /// Index rings of this run, in memory.
    pub(super) fn rings(&self) -> PathBuf {
        Path::new("/dev/shm/firn-soak").to_owned()
    }

    /// Forgets the log and the cache: what comes after comes from the store alone.
    pub(super) fn forget_local(&self) -> Result<(), Failure> {
        fs::remove_dir_all(self.cache())?;
        Ok(fs::remove_dir_all(self.rings())?)
    }

    /// Starts a server and waits until it is ready.
    pub(super) fn start(&self, within: Duration) -> Result<Server, Failure> {
        fs::create_dir_all(self.rings())?;
        let said = File::options()
            .create(true)
            .append(true)
            .open(self.said())?;
        let mut command = Command::new(&self.program);
        command.args(["serve", "--api", API]);
        command.args(["--rpo", &format!("{}s", self.rpo_seconds)]);
        command.arg("--store").arg(self.dir.join("store"));
        command.arg("--cache").arg(self.cache());
        command.arg("--ring-dir").arg(self.rings());
        command.args(["--nbd", "unix:/run/firn-soak.sock"]);
        command.args(["--log-size", &format!("{}MiB", self.log_mib)]);
        command.args(["--cache-size", &format!("{}MiB", self.cache_mib)]);
        if !self.faults.is_empty() {
            command.args(["--planned-store-faults", &self.faults]);
        }
        if let Some(canary) = &self.canary {
            command.env("FIRN_CANARY", canary);
        }
        command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(said);
        let began = Instant::now();
        let mut server = Server {
            child: command.spawn()?,
            came_up: Duration::ZERO,
            started: SystemTime::now(),
        };
        loop {
            if let Some(status) = server.child.try_wait()? {
                return Err(format!("the server ended while it came up: {status}").into());
            }
            if ask("GET", "/readyz", None, Duration::from_secs(5))
                .is_ok_and(|(code, _)| code == 200)
            {
                server.came_up = began.elapsed();
                return Ok(server);
            }
            if began.elapsed() > within {
                return Err(format!("the server is not ready after {} s", within.as_secs()).into());
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Server {
    pub(super) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Whether it has ended although nobody asked it to.
    pub(super) fn ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().ok().flatten()
    }

    /// Sends a signal and waits until it is gone; how long that took.
    pub(super) fn end(
        mut self,
        signal: Signal,
        within: Duration,
    ) -> Result<(Duration, ExitStatus), Failure> {
        let began = Instant::now();
        kill_process(Pid::from_child(&self.child), signal)?;
        loop {
            if let Some(status) = self.child.try_wait()? {
                return Ok((began.elapsed(), status));
            }
            if began.elapsed() > within {
                let state = where_it_is(self.pid());
                return Err(format!("the server does not end on {signal:?}:\n{state}").into());
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    pub(super) fn size(&self) -> Size {
        size(self.pid())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Where it is gone already there is nothing to end.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn size(pid: u32) -> Size {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let of = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name))?;
        line.trim().split(' ').next()?.parse().ok()
    };
    Size {
        rss_kib: of("VmRSS:").unwrap_or(0),
        anonymous_kib: of("RssAnon:").unwrap_or(0),
        threads: of("Threads:").unwrap_or(0),
        descriptors: fs::read_dir(format!("/proc/{pid}/fd"))
            .map_or(0, |files| files.count() as u64),
    }
}

/// What each thread of a process waits for, for who has to find out why it hangs.
pub(super) fn where_it_is(pid: u32) -> String {
    let mut text = String::new();
    let Ok(threads) = fs::read_dir(format!("/proc/{pid}/task")) else {
        return format!("process {pid} is gone");
    };
    for thread in threads.flatten() {
        let read = |name: &str| {
            let read = fs::read_to_string(thread.path().join(name)).unwrap_or_default();
            read.trim().replace('\n', " < ")
        };
        let state = read("stat")
            .rsplit(')')
            .next()
            .unwrap_or_default()
            .trim()
            .chars()
            .next();
        text += &format!(
            "  {} {} {} at {} {}\n",
            thread.file_name().to_string_lossy(),
            read("comm"),
            state.unwrap_or('?'),
            read("wchan"),
            read("stack"),
        );
    }
    text
}

/// One request to the API: status and body.
fn ask(
    method: &str,
    path: &str,
    body: Option<&Value>,
    within: Duration,
) -> Result<(u16, String), Failure> {
    let address = API.parse()?;
    let mut stream = TcpStream::connect_timeout(&address, Duration::from_secs(5))?;
    stream.set_read_timeout(Some(within))?;
    stream.set_write_timeout(Some(within))?;
    let body = body.map(Value::to_string).unwrap_or_default();
    let head = format!(
        "{method} {path} HTTP/1.1\r\nhost: {API}\r\nconnection: close\r\n\
         content-type: application/json\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    stream.write_all(head.as_bytes())?;
    stream.write_all(body.as_bytes())?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    let (head, body) = answer.split_once("\r\n\r\n").ok_or("no answer")?;
    let code = head.split(' ').nth(1).and_then(|code| code.parse().ok());
    Ok((code.ok_or("no status")?, body.to_owned()))
}

/// A request that must succeed: its answer.
pub(super) fn done(method: &str, path: &str, body: Option<&Value>) -> Result<Value, Failure> {
    let (code, text) =
        ask(method, path, body, ANSWER).map_err(|error| format!("{method} {path}: {error}"))?;
    if code / 100 != 2 {
        return Err(format!("{method} {path}: {code} {text}").into());
    }
    Ok(serde_json::from_str(&text).unwrap_or(Value::Null))
}

/// Repeats a request until it succeeds: the store has outages, and the kernel looks at new disks.
pub(super) fn until_done(
    method: &str,
    path: &str,
    body: &Value,
    within: Duration,
) -> Result<Value, Failure> {
    let began = Instant::now();
    let mut said = Duration::from_secs(5);
    loop {
        match done(method, path, Some(body)) {
            Ok(answer) => return Ok(answer),
            Err(error) if began.elapsed() > within => return Err(error),
            Err(error) => {
                if began.elapsed() > said {
                    println!(
                        "after {:.0} s still: {error}",
                        began.elapsed().as_secs_f64()
                    );
                    said *= 2;
                }
                std::thread::sleep(Duration::from_millis(200));
            }
        }
    }
}

/// Makes a volume a disk; its path, once the kernel has it.
pub(super) fn attach(name: &str, mode: &str, within: Duration) -> Result<PathBuf, Failure> {
    let mut wish = json!({"transport": "ublk"});
    if mode != "auto" {
        wish["data_mode"] = mode.into();
    }
    let answer = until_done("POST", &format!("/v1/volumes/{name}/attach"), &wish, within)?;
    let path = answer["device"]
        .as_str()
        .ok_or_else(|| format!("{name} is no disk: {answer}"))?;
    let shown = done("GET", &format!("/v1/volumes/{name}"), None)?;
    let granted = &shown["disk"]["data_mode"];
    if mode != "auto" && granted != mode {
        return Err(format!("{name} was to be served by {mode} and is by {granted}").into());
    }
    Ok(path.into())
}

/// Takes a disk away and gives the volume back.
pub(super) fn detach(name: &str, within: Duration) -> Result<(), Failure> {
    until_done(
        "POST",
        &format!("/v1/volumes/{name}/detach"),
        &json!({}),
        within,
    )
    .map(drop)
}

/// What the server counts, by the sample's whole name; empty while it does not answer.
pub(super) fn metrics() -> Vec<(String, f64)> {
    let Ok((200, text)) = ask("GET", "/metrics", None, Duration::from_secs(5)) else {
        return Vec::new();
    };
    let samples = text.lines().filter(|line| !line.starts_with('#'));
    let samples = samples.filter_map(|line| {
        let (name, value) = line.rsplit_once(' ')?;
        Some((name.to_owned(), value.parse().ok()?))
    });
    samples.collect()
}

/// The last lines of what the servers said.
pub(super) fn tail(path: &Path, lines: usize) -> String {
    let text = fs::read_to_string(path).unwrap_or_default();
    let all: Vec<_> = text.lines().collect();
    all[all.len().saturating_sub(lines)..].join("\n")
}
