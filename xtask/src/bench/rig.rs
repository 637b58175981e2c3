//! What stands around a measurement: MinIO in memory, the proxy, a firn server, the plain client.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use s3_testbed::{Minio, MinioConfig, Proxy, Traffic, url_at};

use super::nbd_load::Connection;
use crate::{Failure, minio, workspace};

/// How long a server may take until it answers, or until it has ended: a thousand volumes with unfolded slices read a
/// footer for each.
const SERVER_TIMEOUT: Duration = Duration::from_secs(900);
const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// Ticks per second in /proc, the same on every Linux architecture served here.
const TICKS: f64 = 100.0;

/// A store and the network in front of it, new for each row.
pub(super) struct StoreRig {
    pub(super) proxy: Proxy,
    minio: Minio,
    programs: Programs,
    /// Cache directories, sockets, logs.
    scratch: tempfile::TempDir,
    /// MinIO's objects; declared last, removed when the server has ended.
    _objects: tempfile::TempDir,
}

/// What is run.
#[derive(Clone)]
pub(super) struct Programs {
    pub(super) firn: PathBuf,
    pub(super) plain: PathBuf,
    pub(super) minio: PathBuf,
}

/// What the plain client reports of itself.
#[derive(Clone, Copy, Debug)]
pub(super) struct PlainRun {
    pub(super) seconds: f64,
    /// Of the content, before compression, where it uploads; requests where it reads.
    pub(super) amount: f64,
    pub(super) cpu_seconds: f64,
}

impl PlainRun {
    pub(super) fn mib_per_second(&self) -> f64 {
        self.amount / f64::from(1 << 20) / self.seconds
    }

    pub(super) fn cpu_per_gib(&self) -> f64 {
        self.cpu_seconds / (self.amount / f64::from(1 << 30))
    }
}

impl StoreRig {
    pub(super) fn new(programs: &Programs, objects_on_disk: bool) -> Result<StoreRig, Failure> {
        let memory = Path::new("/dev/shm");
        let objects = if memory.is_dir() && !objects_on_disk {
            tempfile::tempdir_in(memory)?
        } else {
            tempfile::tempdir_in(workspace::target())?
        };
        let minio = Minio::start(MinioConfig {
            program: programs.minio.clone(),
            access_key: minio::ACCESS_KEY.to_owned(),
            secret_key: minio::SECRET_KEY.to_owned(),
            data: Some(objects.path().join("data")),
            environment: Vec::new(),
        })?;
        Ok(StoreRig {
            proxy: Proxy::start(minio.address)?,
            minio,
            programs: programs.clone(),
            scratch: tempfile::tempdir_in(workspace::target())?,
            _objects: objects,
        })
    }

    /// Where caches, sockets and logs are.
    pub(super) fn scratch(&self) -> &Path {
        self.scratch.path()
    }

    /// Makes the network as slow as the row wants it.
    pub(super) fn slow_down(&self, rate_mib: u64, latency: Duration) {
        self.proxy
            .set_rate((rate_mib > 0).then_some(rate_mib << 20));
        self.proxy.set_latency(latency);
    }

    fn command(&self, program: &Path) -> Command {
        let mut command = Command::new(program);
        command
            .env("AWS_ACCESS_KEY_ID", minio::ACCESS_KEY)
            .env("AWS_SECRET_ACCESS_KEY", minio::SECRET_KEY)
            .env_remove("FIRN_API")
            .current_dir(self.scratch.path());
        command
    }

    /// Starts a server on the cache directory `cache` with flags of `serve`, and waits for it.
    pub(super) fn serve(&self, cache: &str, flags: &[String]) -> Result<FirnServer<'_>, Failure> {
        self.serve_from(&url_at(self.proxy.address), cache, flags)
    }

    /// The same on another store.
    pub(super) fn serve_from(
        &self,
        store: &str,
        cache: &str,
        flags: &[String],
    ) -> Result<FirnServer<'_>, Failure> {
        let socket = self.scratch.path().join(format!("{cache}.sock"));
        let output = self.scratch.path().join(format!("{cache}.out"));
        let mut command = self.command(&self.programs.firn);
        command.args(["serve", "--api", "127.0.0.1:0", "--cache", cache]);
        command.args(["--store", store]);
        command.arg("--ring-dir").arg(self.scratch.path());
        command.arg(format!("--nbd=unix:{}", socket.display()));
        let log = File::create(self.scratch.path().join(format!("{cache}.err")))?;
        let child = command
            .args(flags)
            .stdout(File::create(&output)?)
            .stderr(log)
            .spawn()
            .map_err(|error| format!("cannot start {}: {error}", self.programs.firn.display()))?;
        let mut server = FirnServer {
            lab: self,
            child,
            socket,
            api: String::new(),
        };
        let until = Instant::now() + SERVER_TIMEOUT;
        loop {
            let said = std::fs::read_to_string(&output)?;
            if said.contains("\n  NBD ") {
                let api = said.lines().find_map(|line| line.strip_prefix("  API    "));
                server.api = api.ok_or("the server names no API")?.to_owned();
                return Ok(server);
            }
            if server.child.try_wait()?.is_some() || Instant::now() > until {
                let log = self.scratch.path().join(format!("{cache}.err"));
                let why = std::fs::read_to_string(log)?;
                return Err(format!("the server does not come up: {said}{why}").into());
            }
            std::thread::sleep(POLL_INTERVAL);
        }
    }

    /// Has the plain client compress and send objects for a time.
    pub(super) fn upload_plainly(
        &self,
        seconds: f64,
        concurrency: usize,
    ) -> Result<PlainRun, Failure> {
        let (seconds, concurrency) = (seconds.to_string(), concurrency.to_string());
        let words = ["--seconds", &seconds, "--concurrency", &concurrency];
        self.run_plain("upload", &words)
    }

    /// Has the plain client repeat reads of packs that passed the proxy.
    pub(super) fn replay_plainly(
        &self,
        traffic: &Traffic,
        concurrency: usize,
    ) -> Result<PlainRun, Failure> {
        let list = self.scratch.path().join("reads");
        std::fs::write(&list, list_of_reads(traffic))?;
        let file = list.display().to_string();
        self.run_plain(
            "replay",
            &[&file, "--concurrency", &concurrency.to_string()],
        )
    }

    fn run_plain(&self, what: &str, words: &[&str]) -> Result<PlainRun, Failure> {
        let mut command = self.command(&self.programs.plain);
        command
            .arg(url_at(self.proxy.address))
            .arg(what)
            .args(words);
        let output = command.output()?;
        let text = String::from_utf8_lossy(&output.stdout);
        let numbers: Vec<f64> = text
            .split_whitespace()
            .filter_map(|word| word.parse().ok())
            .collect();
        match numbers.as_slice() {
            [seconds, amount, _, cpu_seconds] if output.status.success() => Ok(PlainRun {
                seconds: *seconds,
                amount: *amount,
                cpu_seconds: *cpu_seconds,
            }),
            _ => Err(format!(
                "the plain client failed: {text}{}",
                String::from_utf8_lossy(&output.stderr)
            )
            .into()),
        }
    }

    /// Processor seconds of MinIO so far.
    pub(super) fn minio_cpu_seconds(&self) -> Result<f64, Failure> {
        cpu_seconds(self.minio.pid())
    }
}

/// `KEY OFFSET LENGTH` of each ranged read of a pack.
fn list_of_reads(traffic: &Traffic) -> String {
    let lines = traffic.reads.iter().filter_map(|read| {
        let key = read.path.strip_prefix("/firn/test/")?;
        let (offset, length) = read.range?;
        key.starts_with("packs/")
            .then(|| format!("{key} {offset} {length}\n"))
    });
    lines.collect()
}

/// A running server; killed when dropped.
pub(super) struct FirnServer<'a> {
    lab: &'a StoreRig,
    child: Child,
    pub(super) socket: PathBuf,
    pub(super) api: String,
}

impl Drop for FirnServer<'_> {
    fn drop(&mut self) {
        // It may have ended by itself; either way nothing is left.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl FirnServer<'_> {
    pub(super) fn connect(&self, volume: &str) -> Result<Connection, Failure> {
        Connection::open(&self.socket, volume)
    }

    /// A `firn` command for this server.
    pub(super) fn command(&self, words: &[&str]) -> Command {
        let mut command = self.lab.command(&self.lab.programs.firn);
        command.args(["--api", &self.api]).args(words);
        command.stdout(Stdio::null());
        command
    }

    /// Waits until all that was written is in the store.
    pub(super) fn sync(&self, volume: &str) -> Result<(), Failure> {
        let status = self.command(&["sync", volume]).status()?;
        if status.success() {
            Ok(())
        } else {
            Err(format!("firn sync {volume}: {status}").into())
        }
    }

    pub(super) fn cpu_seconds(&self) -> Result<f64, Failure> {
        cpu_seconds(self.child.id())
    }

    /// Its memory.
    pub(super) fn resident_bytes(&self) -> Result<u64, Failure> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id()))?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let kib = line.and_then(|line| line.split_whitespace().next());
        let kib: u64 = kib.ok_or("the server has no memory")?.parse()?;
        Ok(kib << 10)
    }

    /// The directory in which it runs.
    pub(super) fn scratch(&self) -> &Path {
        self.lab.scratch()
    }

    /// Ends it as an operator does: it gives its volumes back.
    pub(super) fn stop(mut self) -> Result<(), Failure> {
        kill_process(Pid::from_child(&self.child), Signal::TERM)?;
        let until = Instant::now() + SERVER_TIMEOUT;
        while self.child.try_wait()?.is_none() {
            if Instant::now() > until {
                return Err("the server does not end".into());
            }
            std::thread::sleep(POLL_INTERVAL);
        }
        Ok(())
    }
}

/// Processor time that a process has taken, user and system.
fn cpu_seconds(pid: u32) -> Result<f64, Failure> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"))?;
    // The name in parentheses may contain anything; the fields after it do not.
    let fields = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
    let times = fields.split_whitespace().skip(11).take(2);
    Ok(times
        .filter_map(|field| field.parse::<f64>().ok())
        .sum::<f64>()
        / TICKS)
}

#[cfg(test)]
mod tests {
    use super::*;
    use s3_testbed::ObjectRead;

    #[test]
    fn only_ranged_reads_of_packs_are_repeated() {
        let read = |path: &str, range| ObjectRead {
            path: path.to_owned(),
            range,
        };
        let traffic = Traffic {
            reads: vec![
                read("/firn/test/packs/a/1", Some((4096, 100))),
                read("/firn/test/indexes/a/1", Some((0, 10))),
                read("/firn/test/packs/a/2", None),
            ],
            ..Traffic::default()
        };
        assert_eq!(list_of_reads(&traffic), "packs/a/1 4096 100\n");
    }
}
