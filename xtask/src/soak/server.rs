//! The server under test: the shipped binary as a process, how it is started and ended, and its resource use.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use rustix::process::{Pid, Signal, kill_process};

use super::host::Host;
use super::object_store::ObjectStore;
use crate::{Failure, minio};

/// Passes of the garbage collector, and looks for something to compact, follow each other as closely as that a soak of minutes
/// has many of them; a look at closed volumes is every sixth.
const GC_INTERVAL: &str = "10s";
const COMPACT_INTERVAL: &str = "2s";

/// How servers are started.
#[derive(Clone, Debug)]
pub(super) struct Setup {
    pub(super) program: PathBuf,
    /// The store and what each host has are below it.
    pub(super) dir: PathBuf,
    /// How many hosts use the store.
    pub(super) hosts: usize,
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
    pub(super) host: Host,
    child: Child,
    /// The time from its start until it was ready.
    pub(super) startup_time: Duration,
    pub(super) started: SystemTime,
    /// How often the process has gone on with a program anew.
    upgrades: u32,
}

/// The resource use of a process.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ProcessUsage {
    pub(super) rss_kib: u64,
    pub(super) anonymous_kib: u64,
    pub(super) threads: u64,
    pub(super) descriptors: u64,
}

impl std::ops::Add for ProcessUsage {
    type Output = ProcessUsage;

    fn add(self, other: ProcessUsage) -> ProcessUsage {
        ProcessUsage {
            rss_kib: self.rss_kib + other.rss_kib,
            anonymous_kib: self.anonymous_kib + other.anonymous_kib,
            threads: self.threads + other.threads,
            descriptors: self.descriptors + other.descriptors,
        }
    }
}

impl Setup {
    pub(super) fn host(&self, number: usize) -> Host {
        Host::new(&self.dir, number)
    }

    pub(super) fn all_hosts(&self) -> impl Iterator<Item = Host> {
        (0..self.hosts).map(|number| self.host(number))
    }

    /// Forgets all that was written, and what servers leave beside it.
    pub(super) fn remove_everything(&self) {
        self.all_hosts().for_each(|host| host.remove_everything());
        // As above: what is in the way of the next server is said by it.
        let _ = fs::remove_dir_all(&self.dir);
    }

    /// Starts a host's server and waits until it is ready.
    pub(super) fn start(&self, host: &Host, within: Duration) -> Result<Server, Failure> {
        let began = Instant::now();
        let mut server = Server {
            host: host.clone(),
            child: self.command(host)?.spawn()?,
            startup_time: Duration::ZERO,
            started: SystemTime::now(),
            upgrades: 0,
        };
        loop {
            if let Some(status) = server.child.try_wait()? {
                return Err(format!("the server ended while it came up: {status}").into());
            }
            if host
                .send("GET", "/readyz", None, Duration::from_secs(5))
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

    fn command(&self, host: &Host) -> Result<Command, Failure> {
        host.make_directories()?;
        let said = File::options()
            .create(true)
            .append(true)
            .open(host.log_path())?;
        let mut command = Command::new(&self.program);
        command.args(["serve", "--api", &host.api(), "--api-tokens"]);
        command.arg(host.tokens());
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
        command.arg("--cache").arg(host.cache());
        command.arg("--ring-dir").arg(host.rings());
        command.arg(format!("--nbd=unix:{}", host.nbd_socket().display()));
        command.args(["--log-size", &format!("{}MiB", self.log_mib)]);
        command.args(["--cache-size", &format!("{}MiB", self.cache_mib)]);
        command.args(["--gc", GC_INTERVAL, "--compact", COMPACT_INTERVAL]);
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
        Ok(command)
    }
}

impl Server {
    pub(super) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Changes when its counters begin at zero: the process, and how often it was upgraded.
    pub(super) fn incarnation(&self) -> (u32, u32) {
        (self.pid(), self.upgrades)
    }

    /// `firn upgrade`. It is the same process after that.
    pub(super) fn upgrade(&mut self, program: &Path, within: Duration) -> Result<(), Failure> {
        self.host.upgrade(program, within)?;
        self.upgrades += 1;
        Ok(())
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
