//! The server under test: the shipped binary as a process, its API, and its resource use.
//!
//! Everything is asked over HTTP or read from /proc. Each request has a connection of its own and a
//! deadline, so that a server that hangs never hangs the soak.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use ureq::http::Request;

use super::object_store::ObjectStore;
use crate::{Failure, minio};

/// How long connecting may take.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

const API: &str = "127.0.0.1:7070";

/// Where the server keeps the tokens that its API wants.
fn tokens() -> PathBuf {
    std::env::temp_dir().join("firn-soak-tokens")
}

/// Where the server listens for NBD clients.
pub(super) fn nbd_socket() -> PathBuf {
    std::env::temp_dir().join("firn-soak.sock")
}

/// How long an answer may take: attaching a disk waits for the store, which has outages.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(300);

/// How a server is started.
#[derive(Clone, Debug)]
pub(super) struct Setup {
    pub(super) program: PathBuf,
    /// Store and cache are below it.
    pub(super) dir: PathBuf,
    /// The store, where it is none of the directories.
    pub(super) store_url: Option<String>,
    /// The same, where it is this process that starts it.
    pub(super) store: Option<Arc<ObjectStore>>,
    /// The store faults to inject; none if empty.
    pub(super) faults: String,
    pub(super) rpo_seconds: u64,
    pub(super) log_mib: u64,
    pub(super) cache_mib: u64,
    /// The volumes are used over NBD, not as disks.
    pub(super) over_nbd: bool,
    /// A planted bug.
    pub(super) canary: Option<String>,
}

/// A running server.
#[derive(Debug)]
pub(super) struct Server {
    child: Child,
    /// The time from its start until it was ready.
    pub(super) startup_time: Duration,
    pub(super) started: SystemTime,
}

/// The resource use of a process.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ProcessUsage {
    pub(super) rss_kib: u64,
    pub(super) anonymous_kib: u64,
    pub(super) threads: u64,
    pub(super) descriptors: u64,
}

impl Setup {
    /// The file with the servers' standard error.
    pub(super) fn log_path(&self) -> PathBuf {
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
    pub(super) fn remove_local_files(&self) -> Result<(), Failure> {
        fs::remove_dir_all(self.cache())?;
        Ok(fs::remove_dir_all(self.rings())?)
    }

    /// Forgets all that was written, and what servers leave beside it. One that was killed has left it.
    pub(super) fn remove_everything(&self) {
        // What is not there need not be removed, and what cannot be is in the way of the next server, which says so.
        for dir in [&self.dir, &self.rings(), &tokens()] {
            let _ = fs::remove_dir_all(dir);
        }
        let _ = fs::remove_file(nbd_socket());
    }

    /// Starts a server and waits until it is ready.
    pub(super) fn start(&self, within: Duration) -> Result<Server, Failure> {
        fs::create_dir_all(self.rings())?;
        let said = File::options()
            .create(true)
            .append(true)
            .open(self.log_path())?;
        let mut command = Command::new(&self.program);
        command.args(["serve", "--api", API, "--api-tokens"]);
        command.arg(tokens());
        command.args(["--rpo", &format!("{}s", self.rpo_seconds)]);
        match &self.store_url {
            Some(url) => {
                command.args(["--store", url]);
                command.env("AWS_ACCESS_KEY_ID", minio::ACCESS_KEY);
                command.env("AWS_SECRET_ACCESS_KEY", minio::SECRET_KEY);
            }
            None => {
                command.arg("--store").arg(self.dir.join("store"));
            }
        }
        command.arg("--cache").arg(self.cache());
        command.arg("--ring-dir").arg(self.rings());
        command.arg(format!("--nbd=unix:{}", nbd_socket().display()));
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
            startup_time: Duration::ZERO,
            started: SystemTime::now(),
        };
        loop {
            if let Some(status) = server.child.try_wait()? {
                return Err(format!("the server ended while it came up: {status}").into());
            }
            if send("GET", "/readyz", None, Duration::from_secs(5))
                .is_ok_and(|(code, _)| code == 200)
            {
                server.startup_time = began.elapsed();
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
    pub(super) fn exit_status(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().ok().flatten()
    }

    /// Sends a signal and waits until it is gone; how long that took.
    pub(super) fn stop(
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
                let state = thread_stacks(self.pid());
                return Err(format!("the server does not end on {signal:?}:\n{state}").into());
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    pub(super) fn size(&self) -> ProcessUsage {
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

fn size(pid: u32) -> ProcessUsage {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let of = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name))?;
        line.trim().split(' ').next()?.parse().ok()
    };
    ProcessUsage {
        rss_kib: of("VmRSS:").unwrap_or(0),
        anonymous_kib: of("RssAnon:").unwrap_or(0),
        threads: of("Threads:").unwrap_or(0),
        descriptors: fs::read_dir(format!("/proc/{pid}/fd"))
            .map_or(0, |files| files.count() as u64),
    }
}

/// What each thread of a process waits for, for who has to find out why it hangs.
pub(super) fn thread_stacks(pid: u32) -> String {
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

/// Sends one request to the API. Returns the status and the body.
fn send(
    method: &str,
    path: &str,
    body: Option<&Value>,
    timeout: Duration,
) -> Result<(u16, String), Failure> {
    let agent = ureq::Agent::config_builder()
        .http_status_as_error(false)
        .proxy(None)
        .timeout_connect(Some(CONNECT_TIMEOUT))
        .timeout_global(Some(timeout))
        .build()
        .new_agent();
    // Until the server has made it, nobody answers either.
    let token = fs::read_to_string(tokens().join("admin")).unwrap_or_default();
    let request = Request::builder()
        .method(method)
        .uri(format!("http://{API}{path}"))
        .header("authorization", format!("Bearer {}", token.trim()));
    let mut answer = match body {
        Some(body) => {
            let request = request.header("content-type", "application/json");
            agent.run(request.body(body.to_string())?)?
        }
        None => agent.run(request.body(())?)?,
    };
    let text = answer.body_mut().read_to_string()?;
    Ok((answer.status().as_u16(), text))
}

/// Sends a request that must succeed. Returns its answer.
pub(super) fn request(method: &str, path: &str, body: Option<&Value>) -> Result<Value, Failure> {
    let (code, text) = send(method, path, body, ANSWER_TIMEOUT)
        .map_err(|error| format!("{method} {path}: {error}"))?;
    if code / 100 != 2 {
        return Err(format!("{method} {path}: {code} {text}").into());
    }
    Ok(serde_json::from_str(&text).unwrap_or(Value::Null))
}

/// Repeats a request until it succeeds: the store has outages, and the kernel scans new disks.
pub(super) fn request_until_ok(
    method: &str,
    path: &str,
    body: &Value,
    within: Duration,
) -> Result<Value, Failure> {
    let began = Instant::now();
    let mut said = Duration::from_secs(5);
    loop {
        match request(method, path, Some(body)) {
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

/// Attaches a volume as a disk. Returns the path of its device.
pub(super) fn attach(name: &str, mode: &str, within: Duration) -> Result<PathBuf, Failure> {
    let mut options = json!({"transport": "ublk"});
    if mode != "auto" {
        options["data_mode"] = mode.into();
    }
    let answer = request_until_ok(
        "POST",
        &format!("/v1/volumes/{name}/attach"),
        &options,
        within,
    )?;
    let path = answer["device"]
        .as_str()
        .ok_or_else(|| format!("{name} is not attached as a disk: {answer}"))?;
    let shown = request("GET", &format!("/v1/volumes/{name}"), None)?;
    let granted = &shown["disk"]["data_mode"];
    if mode != "auto" && granted != mode {
        return Err(format!("{name} was to be served by {mode} and is served by {granted}").into());
    }
    Ok(path.into())
}

/// Opens a volume for NBD clients.
pub(super) fn attach_over_nbd(name: &str, within: Duration) -> Result<(), Failure> {
    let options = json!({"transport": "nbd"});
    let path = format!("/v1/volumes/{name}/attach");
    request_until_ok("POST", &path, &options, within).map(drop)
}

/// Detaches a volume.
pub(super) fn detach(name: &str, within: Duration) -> Result<(), Failure> {
    request_until_ok(
        "POST",
        &format!("/v1/volumes/{name}/detach"),
        &json!({}),
        within,
    )
    .map(drop)
}

/// The server's metrics by full sample name; empty while it does not answer.
pub(super) fn metrics() -> Vec<(String, f64)> {
    let Ok((200, text)) = send("GET", "/metrics", None, Duration::from_secs(5)) else {
        return Vec::new();
    };
    let samples = text.lines().filter(|line| !line.starts_with('#'));
    let samples = samples.filter_map(|line| {
        let (name, value) = line.rsplit_once(' ')?;
        Some((name.to_owned(), value.parse().ok()?))
    });
    samples.collect()
}

/// The last lines of a file.
pub(super) fn tail(path: &Path, lines: usize) -> String {
    let text = fs::read_to_string(path).unwrap_or_default();
    let all: Vec<_> = text.lines().collect();
    all[all.len().saturating_sub(lines)..].join("\n")
}
