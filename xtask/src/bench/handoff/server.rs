//! The server of these measurements: its directories, its volumes, and when it answers.

use std::fs::OpenOptions;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use crate::Failure;

/// How long a server may take until it answers.
const START_TIMEOUT: Duration = Duration::from_secs(60);

/// A running server; ended when dropped.
pub(super) struct Server(pub(super) Child);

impl Drop for Server {
    fn drop(&mut self) {
        // It may have ended by itself; either way nothing is left.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Where a server has its files.
pub(super) struct Place<'a> {
    /// The store, the cache, the sockets, and what it logs.
    pub(super) dir: &'a Path,
    pub(super) rings: &'a Path,
    pub(super) log_mib: u64,
}

impl Place<'_> {
    /// Starts a server with these volumes, each with so many MiB.
    pub(super) fn start(
        &self,
        program: &Path,
        volumes: &[(String, u64)],
    ) -> Result<Server, Failure> {
        let mut command = Command::new(program);
        command.arg("serve").arg("--ring-dir").arg(self.rings);
        command.arg("--store").arg(self.dir.join("store"));
        command.arg("--cache").arg(self.dir.join("cache"));
        command.arg(format!("--log-size={}MiB", self.log_mib));
        command.arg(format!("--api={}", api(self.dir)));
        command.arg(format!("--nbd=unix:{}", self.socket().display()));
        for (name, mib) in volumes {
            command.arg(format!("--volume={name}={mib}MiB"));
        }
        let mut log = OpenOptions::new();
        let log = log.create(true).append(true).open(self.log())?;
        command.stdin(Stdio::null()).stdout(Stdio::null());
        Ok(Server(command.stderr(log).spawn()?))
    }

    pub(super) fn wait_until_it_answers(&self, program: &Path) -> Result<(), Failure> {
        let until = Instant::now() + START_TIMEOUT;
        let answers = || {
            let mut ask = Command::new(program);
            ask.args(["--api", &api(self.dir), "volume", "list"]);
            let status = ask.stdout(Stdio::null()).stderr(Stdio::null()).status();
            status.is_ok_and(|status| status.success())
        };
        while !answers() {
            if Instant::now() > until {
                let log = std::fs::read_to_string(self.log())?;
                return Err(format!("the server does not answer:\n{log}").into());
            }
            thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }

    pub(super) fn socket(&self) -> PathBuf {
        self.dir.join("nbd.sock")
    }

    pub(super) fn log(&self) -> PathBuf {
        self.dir.join("log.txt")
    }
}

pub(super) fn api(dir: &Path) -> String {
    format!("unix:{}", dir.join("api.sock").display())
}
