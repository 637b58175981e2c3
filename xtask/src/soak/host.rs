//! A host of a soak: where its server answers and has its files, and what is asked of it over HTTP.
//!
//! Each request has a connection of its own and a deadline, so that a server that hangs never hangs the soak.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use ureq::http::Request;

use crate::Failure;
use crate::running_command::RunningCommand;

/// How long connecting may take.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// How long an answer may take: attaching a disk waits for the store, which has outages.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(300);

/// Of the first host; each has the one behind the port of the host before.
const FIRST_PORT: usize = 7070;

/// A host, of which a machine can have several.
#[derive(Clone, Debug)]
pub(super) struct Host {
    pub(super) number: usize,
    /// Cache and log are below it.
    dir: PathBuf,
}

impl Host {
    pub(super) fn new(soak: &Path, number: usize) -> Host {
        Host {
            number,
            dir: soak.join(format!("host{number}")),
        }
    }

    pub(super) fn api(&self) -> String {
        format!("127.0.0.1:{}", FIRST_PORT + self.number)
    }

    fn temporary(&self, what: &str) -> PathBuf {
        std::env::temp_dir().join(format!("firn-soak-{}-{what}", self.number))
    }

    /// Where the server keeps the tokens that its API wants.
    pub(super) fn tokens(&self) -> PathBuf {
        self.temporary("tokens")
    }

    fn admin_token(&self) -> PathBuf {
        self.tokens().join("admin")
    }

    /// Where the server listens for NBD clients.
    pub(super) fn nbd_socket(&self) -> PathBuf {
        self.temporary("nbd.sock")
    }

    pub(super) fn cache(&self) -> PathBuf {
        self.dir.join("cache")
    }

    /// The file with the servers' standard error.
    pub(super) fn log_path(&self) -> PathBuf {
        self.dir.join("said")
    }

    /// Index rings of this run, in memory.
    pub(super) fn rings(&self) -> PathBuf {
        PathBuf::from(format!("/dev/shm/firn-soak-{}", self.number))
    }

    pub(super) fn make_directories(&self) -> Result<(), Failure> {
        fs::create_dir_all(&self.dir)?;
        Ok(fs::create_dir_all(self.rings())?)
    }

    /// Forgets the log and the cache: what comes after comes from the store alone.
    pub(super) fn remove_local_files(&self) -> Result<(), Failure> {
        fs::remove_dir_all(self.cache())?;
        Ok(fs::remove_dir_all(self.rings())?)
    }

    /// Forgets everything, also what a server that was killed has left.
    pub(super) fn remove_everything(&self) {
        // What is not there need not be removed, and what cannot be is in the way of the next server, which says so.
        for dir in [&self.dir, &self.rings(), &self.tokens()] {
            let _ = fs::remove_dir_all(dir);
        }
        let _ = fs::remove_file(self.nbd_socket());
    }

    /// Sends one request to the API. Returns the status and the body.
    pub(super) fn send(
        &self,
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
        let token = fs::read_to_string(self.admin_token()).unwrap_or_default();
        let request = Request::builder()
            .method(method)
            .uri(format!("http://{}{path}", self.api()))
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
    pub(super) fn request(
        &self,
        method: &str,
        path: &str,
        body: Option<&Value>,
    ) -> Result<Value, Failure> {
        let (code, text) = self
            .send(method, path, body, ANSWER_TIMEOUT)
            .map_err(|error| format!("{method} {path}: {error}"))?;
        if code / 100 != 2 {
            return Err(format!("{method} {path}: {code} {text}").into());
        }
        Ok(serde_json::from_str(&text).unwrap_or(Value::Null))
    }

    /// Repeats a request until it succeeds: the store has outages, and the kernel scans new disks.
    fn request_until_ok(
        &self,
        method: &str,
        path: &str,
        body: &Value,
        within: Duration,
    ) -> Result<Value, Failure> {
        let began = Instant::now();
        let mut said = Duration::from_secs(5);
        loop {
            match self.request(method, path, Some(body)) {
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

    pub(super) fn show(&self, name: &str) -> Result<Value, Failure> {
        self.request("GET", &format!("/v1/volumes/{name}"), None)
    }

    /// Attaches a volume as a disk. Returns the path of its device.
    pub(super) fn attach(
        &self,
        name: &str,
        mode: &str,
        within: Duration,
    ) -> Result<PathBuf, Failure> {
        let mut options = json!({"transport": "ublk"});
        if mode != "auto" {
            options["data_mode"] = mode.into();
        }
        let path = format!("/v1/volumes/{name}/attach");
        let answer = self.request_until_ok("POST", &path, &options, within)?;
        let path = answer["device"]
            .as_str()
            .ok_or_else(|| format!("{name} is not attached as a disk: {answer}"))?;
        let shown = self.show(name)?;
        let granted = &shown["disk"]["data_mode"];
        if mode != "auto" && granted != mode {
            return Err(
                format!("{name} was to be served by {mode} and is served by {granted}").into(),
            );
        }
        Ok(path.into())
    }

    /// Opens a volume for NBD clients, by one request.
    pub(super) fn try_to_attach_over_nbd(&self, name: &str) -> Result<(), Failure> {
        let options = json!({"transport": "nbd"});
        let path = format!("/v1/volumes/{name}/attach");
        self.request("POST", &path, Some(&options)).map(drop)
    }

    /// Opens a volume for NBD clients.
    pub(super) fn attach_over_nbd(&self, name: &str, within: Duration) -> Result<(), Failure> {
        let options = json!({"transport": "nbd"});
        let path = format!("/v1/volumes/{name}/attach");
        self.request_until_ok("POST", &path, &options, within)
            .map(drop)
    }

    /// Detaches a volume.
    pub(super) fn detach(&self, name: &str, within: Duration) -> Result<(), Failure> {
        let path = format!("/v1/volumes/{name}/detach");
        self.request_until_ok("POST", &path, &json!({}), within)
            .map(drop)
    }

    /// The server's metrics by full sample name; empty while it does not answer.
    pub(super) fn metrics(&self) -> Vec<(String, f64)> {
        let Ok((200, text)) = self.send("GET", "/metrics", None, Duration::from_secs(5)) else {
            return Vec::new();
        };
        let samples = text.lines().filter(|line| !line.starts_with('#'));
        let samples = samples.filter_map(|line| {
            let (name, value) = line.rsplit_once(' ')?;
            Some((name.to_owned(), value.parse().ok()?))
        });
        samples.collect()
    }

    /// `firn upgrade`, to the same program.
    pub(super) fn upgrade(&self, program: &Path, within: Duration) -> Result<(), Failure> {
        self.command(program, &["upgrade"], within)
    }

    /// `firn move` of a volume from here, which has clients.
    pub(super) fn move_volume(
        &self,
        program: &Path,
        name: &str,
        to: &Host,
        within: Duration,
    ) -> Result<(), Failure> {
        let (api, token) = (to.api(), to.admin_token().display().to_string());
        let words = [
            "move",
            name,
            "--force",
            "--warm-up",
            "2s",
            "--to",
            &api,
            "--to-token-file",
            &token,
        ];
        self.command(program, &words, within)
    }

    /// A command to this host's server, as a user gives it. What it says is in the error.
    fn command(&self, program: &Path, words: &[&str], within: Duration) -> Result<(), Failure> {
        let what = words[..words.len().min(2)].join(" ");
        let mut command = Command::new(program);
        command.args(["--api", &self.api(), "--token-file"]);
        command.arg(self.admin_token()).args(words);
        let mut running = RunningCommand::start(&mut command, &what, true)?;
        let mut said = Vec::new();
        let ended = running.follow(Instant::now() + within, |line| said.push(line.to_owned()))?;
        match ended {
            Some(status) if status.success() => Ok(()),
            Some(status) => Err(format!("{what}: {status}: {}", said.join(" / ")).into()),
            None => Err(format!("{what}: not over after {} s", within.as_secs()).into()),
        }
    }
}

/// The last lines of a file.
pub(super) fn tail(path: &Path, lines: usize) -> String {
    let text = fs::read_to_string(path).unwrap_or_default();
    let all: Vec<_> = text.lines().collect();
    all[all.len().saturating_sub(lines)..].join("\n")
}
