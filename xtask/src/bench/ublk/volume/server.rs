//! The shipped binary, serving volumes as disks of the guest.
//!
//! What was started goes with its value: disks are detached, the server is ended and waited for,
//! its files are removed.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use serde_json::Value;

use crate::Failure;
use crate::bench::ublk::servers::{DEPTH, Mode};

/// A running server.
#[derive(Debug)]
pub(in crate::bench) struct Firn {
    child: Child,
    program: PathBuf,
    api: String,
    /// The file of the token that the API wants.
    token: PathBuf,
    attached: Vec<String>,
    /// What it said of its log: size, direct or buffered I/O, why.
    pub(in crate::bench) log: String,
}

/// Its files.
#[derive(Debug)]
pub(in crate::bench) struct World {
    dir: PathBuf,
    /// The server's.
    program: PathBuf,
}

impl World {
    /// Below `dir`, for servers of this program.
    pub(in crate::bench) fn new(program: &Path, dir: &Path, name: &str) -> Result<World, Failure> {
        let dir = dir.join(name);
        std::fs::create_dir_all(&dir)?;
        let program = program.to_owned();
        Ok(World { dir, program })
    }

    /// Throws the log and the cache away: what is left is the store.
    pub(in crate::bench) fn remove_cache(&self) -> Result<(), Failure> {
        Ok(std::fs::remove_dir_all(self.dir.join("cache"))?)
    }

    fn stderr(&self) -> PathBuf {
        self.dir.join("stderr")
    }

    /// What its servers have said in their logs.
    pub(in crate::bench) fn server_log(&self) -> Result<String, Failure> {
        Ok(std::fs::read_to_string(self.stderr())?)
    }

    /// Starts a server; it uploads when it is told to, or when much is dirty.
    pub(in crate::bench) fn serve(&self, more: &[&str]) -> Result<Firn, Failure> {
        let at = |name: &str| self.dir.join(name).display().to_string();
        let mut command = Command::new(&self.program);
        command.args(["serve", "--api", "127.0.0.1:0", "--rpo", "1h"]);
        command.args(["--api-tokens", &at("tokens")]);
        command.args(["--store", &at("store"), "--cache", &at("cache")]);
        command.args(["--nbd", &format!("unix:{}", at("nbd.sock"))]);
        if !more.contains(&"--cache-size") {
            command.args(["--cache-size", "64MiB"]);
        }
        command.args(more);
        let said = self.stderr();
        let log = File::options().create(true).append(true).open(&said)?;
        let child = command.stdout(Stdio::piped()).stderr(log).spawn()?;
        let mut firn = Firn {
            child,
            program: self.program.clone(),
            api: String::new(),
            token: self.dir.join("tokens/admin"),
            attached: Vec::new(),
            log: String::new(),
        };
        let output = firn.child.stdout.take().ok_or("a server without output")?;
        let mut lines = BufReader::new(output).lines();
        // It says where its API is when it is ready, or it ends.
        while let Some(line) = lines.next().transpose()? {
            if let Some((_, log)) = line.split_once(" (log ") {
                firn.log = format!("log {}", log.trim_end_matches(')'));
            }
            if let Some(api) = line.strip_prefix("  API    http://") {
                firn.api = api.to_owned();
                // Whatever it says later must not block it.
                std::thread::spawn(move || lines.for_each(drop));
                return Ok(firn);
            }
        }
        let said = std::fs::read_to_string(said)?;
        Err(format!("the server did not come up: {said}").into())
    }
}

impl Drop for World {
    fn drop(&mut self) {
        // It is the guest's memory; nothing depends on it.
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

impl Firn {
    /// `firn ARGS`, and what it printed.
    pub(in crate::bench) fn ask(&self, args: &[&str]) -> Result<String, Failure> {
        let mut command = Command::new(&self.program);
        command.args(["--api", &self.api]);
        command.arg("--token-file").arg(&self.token);
        let output = command.args(args).output()?;
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr);
            return Err(format!("firn {}: {said}", args.join(" ")).into());
        }
        Ok(String::from_utf8(output.stdout)?)
    }

    /// Makes a volume a disk of one queue, like those of the other servers; its path.
    pub(in crate::bench) fn attach(
        &mut self,
        volume: &str,
        mode: Mode,
    ) -> Result<PathBuf, Failure> {
        let depth = DEPTH.to_string();
        let attach = ["attach", volume, "--transport", "ublk", "--queues", "1"];
        let how = ["--depth", &depth, "--data-mode", mode.name()];
        let path = self.ask(&[&attach[..], &how].concat())?;
        self.attached.push(volume.to_owned());
        Ok(PathBuf::from(path.trim()))
    }

    /// Where its API is, with the scheme, and the file of the token that this wants.
    pub(in crate::bench) fn api(&self) -> (String, &Path) {
        (format!("http://{}", self.api), &self.token)
    }

    /// What the server says of a volume's disk.
    pub(in crate::bench) fn disk(&self, volume: &str) -> Result<Value, Failure> {
        let shown = self.ask(&["--json", "volume", "show", volume])?;
        let shown: Value = serde_json::from_str(&shown)?;
        Ok(shown["disk"].clone())
    }

    /// What was granted to a volume's disk, in a few words.
    pub(in crate::bench) fn granted(&self, volume: &str) -> Result<String, Failure> {
        let disk = self.disk(volume)?;
        let mode = disk["data_mode"].as_str().unwrap_or("no disk");
        let dropped = disk["dropped"].as_array().map_or(0, Vec::len);
        let without = if dropped == 0 {
            String::new()
        } else {
            format!(", {dropped} options not granted")
        };
        Ok(format!(
            "ublk {mode}, {} x {}{without}",
            disk["queues"], disk["depth"]
        ))
    }

    /// The sum of a metric over all samples whose labels contain `labels`.
    pub(in crate::bench) fn metric(&self, name: &str, labels: &str) -> Result<f64, Failure> {
        let token = std::fs::read_to_string(&self.token)?;
        let answer = ureq::get(format!("http://{}/metrics", self.api))
            .header("authorization", format!("Bearer {}", token.trim()))
            .call()?
            .body_mut()
            .read_to_string()?;
        let values = answer
            .lines()
            .filter(|line| line.split(['{', ' ']).next() == Some(name) && line.contains(labels))
            .filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok());
        Ok(values.sum())
    }

    /// Requests to the store that read.
    pub(in crate::bench) fn store_reads(&self) -> Result<f64, Failure> {
        self.metric("firn_store_requests_total", "op=\"get")
    }

    /// Kills it, and executes the next at once with the same arguments; returns when that is ready.
    pub(in crate::bench) fn kill_and_replace(
        &mut self,
        world: &World,
        more: &[&str],
    ) -> Result<(), Failure> {
        self.child.kill()?;
        // It is waited for when the next is ready: that waits for what the kernel still has of it.
        let next = world.serve(more)?;
        let mut killed = std::mem::replace(self, next);
        self.attached = std::mem::take(&mut killed.attached);
        killed.api.clear();
        killed.child.wait()?;
        Ok(())
    }

    pub(in crate::bench) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Ends the server with its disks gone and all of its volumes in the store.
    pub(in crate::bench) fn stop(mut self) -> Result<(), Failure> {
        self.end()
    }

    fn end(&mut self) -> Result<(), Failure> {
        for volume in std::mem::take(&mut self.attached) {
            self.ask(&["detach", &volume, "--force"])?;
        }
        self.terminate();
        Ok(())
    }

    fn terminate(&mut self) {
        // One that was waited for is gone, and its number may be another's.
        if matches!(self.child.try_wait(), Ok(None)) {
            let pid = rustix::process::Pid::from_child(&self.child);
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
            let _ = self.child.wait();
        }
    }
}

impl Drop for Firn {
    fn drop(&mut self) {
        if !self.api.is_empty()
            && let Err(error) = self.end()
        {
            println!("{error}");
        }
        self.terminate();
    }
}
