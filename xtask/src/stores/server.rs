//! A foreign store that runs on a free port of the loopback address, with an empty bucket, and ends
//! with its owner.

use std::fs::File;
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::{Failure, process, workspace};

/// How long a server may take until it answers.
const START_TIMEOUT: Duration = Duration::from_secs(60);
const POLL_INTERVAL: Duration = Duration::from_millis(50);
/// Bytes of its log that are shown when it does not come up.
const LOG_BYTES_SHOWN: usize = 2000;

/// A running store.
pub(super) struct RunningStore {
    /// What `--store` gets.
    pub(super) url: String,
    /// Keys, for who uses the URL.
    pub(super) environment: Vec<(&'static str, String)>,
    child: Child,
    /// Run after the server has ended, if something else was started for it.
    cleanup: Option<Command>,
    /// Its files; removed last.
    dir: ServerDir,
}

/// What a server keeps, and what it says.
pub(super) struct ServerDir {
    dir: tempfile::TempDir,
}

impl ServerDir {
    pub(super) fn new() -> Result<ServerDir, Failure> {
        Ok(ServerDir {
            dir: tempfile::tempdir_in(workspace::target())?,
        })
    }

    pub(super) fn path(&self) -> &Path {
        self.dir.path()
    }

    /// A directory that is a bucket to servers that keep objects as files: their root, and the bucket in it.
    pub(super) fn make_bucket(&self, bucket: &str) -> Result<PathBuf, Failure> {
        let root = self.path().join("data");
        std::fs::create_dir_all(root.join(bucket))?;
        Ok(root)
    }

    fn log(&self) -> PathBuf {
        self.path().join("log")
    }
}

/// An address of the loopback interface whose port is free now.
pub(super) fn free_address() -> Result<SocketAddr, Failure> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?)
}

impl RunningStore {
    /// Starts a server that will listen at `address`, and waits until it answers.
    pub(super) fn start(
        dir: ServerDir,
        mut command: Command,
        address: SocketAddr,
        cleanup: Option<Command>,
    ) -> Result<RunningStore, Failure> {
        println!("$ {}", process::command_line(&command));
        let log = File::create(dir.log())?;
        let child = command
            .current_dir(dir.path())
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()
            .map_err(|error| {
                let program = command.get_program().to_string_lossy();
                format!("cannot start {program}: {error}")
            })?;
        let mut server = RunningStore {
            url: String::new(),
            environment: Vec::new(),
            child,
            cleanup,
            dir,
        };
        let until = Instant::now() + START_TIMEOUT;
        while !answers(address) {
            if server.child.try_wait()?.is_some() || Instant::now() > until {
                let said = std::fs::read(server.dir.log())?;
                let last = &said[said.len().saturating_sub(LOG_BYTES_SHOWN)..];
                let said = String::from_utf8_lossy(last);
                return Err(format!("it does not come up: {said}").into());
            }
            std::thread::sleep(POLL_INTERVAL);
        }
        Ok(server)
    }

    /// Gives `command` the keys of this store.
    pub(super) fn set_environment(&self, command: &mut Command) {
        for (name, value) in &self.environment {
            command.env(name, value);
        }
    }

    /// Waits until somebody ends it.
    pub(super) fn wait(&mut self) -> Result<(), Failure> {
        let status = self.child.wait()?;
        Err(format!("the server ended: {status}").into())
    }
}

impl Drop for RunningStore {
    fn drop(&mut self) {
        // It may have ended by itself; either way nothing is left.
        let _ = self.child.kill();
        let _ = self.child.wait();
        if let Some(cleanup) = &mut self.cleanup
            && let Err(error) = process::run(cleanup)
        {
            eprintln!("{error}");
        }
    }
}

/// Whether it answers a stranger, in whatever way, and is not just starting.
fn answers(address: SocketAddr) -> bool {
    let agent = ureq::Agent::config_builder()
        .http_status_as_error(false)
        .timeout_global(Some(Duration::from_secs(1)))
        .build()
        .new_agent();
    let answer = agent.get(format!("http://{address}/none/none")).call();
    answer.is_ok_and(|answer| answer.status() != 503)
}
