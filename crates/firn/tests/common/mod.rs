//! A world for tests of the real binary: a temporary directory, servers in it, and clients.
//!
//! Whatever a test starts ends with it, also when it panics.

#![allow(clippy::unwrap_used, dead_code, unreachable_pub)]

pub mod disk_oracle;
pub mod guest;
pub mod kernel_nbd;
pub mod mapped;
pub mod nbd;
pub mod process;
pub mod watchdog;

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use serde_json::Value;

/// No step of a test may take longer.
pub const DEADLINE: Duration = Duration::from_secs(60);

/// The same in an emulated guest, where everything takes its time.
pub fn deadline() -> Duration {
    match std::env::var_os("FIRN_VM_SCRATCH") {
        Some(_) => 5 * DEADLINE,
        None => DEADLINE,
    }
}

/// A directory on disk for stores and caches, and one in memory for rings.
pub struct World {
    pub dir: tempfile::TempDir,
    rings: tempfile::TempDir,
}

/// A running server.
pub struct Server {
    child: Child,
    pub api: String,
    /// What its API wants to see over TCP, for the role admin.
    pub token: String,
    pub socket: PathBuf,
    pub announcement: String,
}

impl World {
    pub fn new() -> World {
        let shm = Path::new("/dev/shm");
        let rings = if shm.is_dir() {
            tempfile::tempdir_in(shm)
        } else {
            tempfile::tempdir()
        };
        World {
            dir: tempfile::tempdir().unwrap(),
            rings: rings.unwrap(),
        }
    }

    /// A world whose files are below `dir`, on a file system that the test chose.
    pub fn in_dir(dir: &Path) -> World {
        World {
            dir: tempfile::tempdir_in(dir).unwrap(),
            ..World::new()
        }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// What the servers with the cache directory `cache` have written to stderr so far, those before the running one
    /// included.
    pub fn server_log(&self) -> String {
        std::fs::read_to_string(self.path("cache.stderr")).unwrap()
    }

    /// A copy of the program in this directory, which takes the place of what is there as a package's does.
    pub fn install(&self, dir: &str) -> PathBuf {
        let dir = self.path(dir);
        std::fs::create_dir_all(&dir).unwrap();
        let unpacked = dir.join("firn.dpkg-new");
        std::fs::copy(env!("CARGO_BIN_EXE_firn"), &unpacked).unwrap();
        let program = dir.join("firn");
        std::fs::rename(&unpacked, &program).unwrap();
        program
    }

    /// Where servers of this world keep their index rings.
    pub fn rings(&self) -> &Path {
        self.rings.path()
    }

    /// A command in this world's directory.
    pub fn firn(&self, args: &[&str]) -> Output {
        self.command(args).output().unwrap()
    }

    /// The same with more in its environment.
    pub fn run_with(&self, args: &[&str], environment: &[(&str, &str)]) -> Output {
        let mut command = self.command(args);
        command.envs(environment.iter().copied()).output().unwrap()
    }

    pub fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_firn"));
        command
            .current_dir(self.dir.path())
            .env_remove("FIRN_API")
            .env_remove("FIRN_TOKEN_FILE")
            .args(args);
        command
    }

    /// `firn serve` on the store `store` with the cache directory `cache`, small, plus `args`.
    pub fn serve_command(&self, cache: &str, args: &[&str]) -> Command {
        let mut command = self.command(&["serve"]);
        if !args.contains(&"--api") {
            command.args(["--api", "127.0.0.1:0"]);
        }
        let socket = format!("unix:{}", self.socket(cache).display());
        command.args(["--cache", cache, "--nbd", &socket]);
        let rings = self.rings.path().to_str().unwrap();
        for (flag, usual) in [("--store", "store"), ("--ring-dir", rings)] {
            if !args.contains(&flag) {
                command.args([flag, usual]);
            }
        }
        if !self.path(cache).join("log").exists() {
            for (flag, usual) in [("--log-size", "64MiB"), ("--cache-size", "16MiB")] {
                if !args.contains(&flag) {
                    command.args([flag, usual]);
                }
            }
        }
        command.args(args);
        command
    }

    /// From now on a file is where the store's directory was; and back again by the same. In one step, for a
    /// store that is missing in between is another failure.
    pub fn swap_store_and_file(&self) {
        let (store, away) = (self.path("store"), self.path("away"));
        if !away.exists() {
            std::fs::write(&away, "not a directory").unwrap();
        }
        let flags = rustix::fs::RenameFlags::EXCHANGE;
        let here = rustix::fs::CWD;
        rustix::fs::renameat_with(here, store, here, away, flags).unwrap();
    }

    /// The token that servers of this world want for a role.
    pub fn token(&self, role: &str) -> Option<String> {
        let file = self.path("firn-data/tokens").join(role);
        let text = std::fs::read_to_string(file).ok()?;
        Some(text.trim().to_owned())
    }

    fn socket(&self, cache: &str) -> PathBuf {
        self.path(&format!("{cache}.sock"))
    }

    /// Starts a server that must come up.
    pub fn serve(&self, cache: &str, args: &[&str]) -> Server {
        self.serve_as(cache, args, |_| {})
    }

    /// The same by a command that was changed.
    pub fn serve_as(
        &self,
        cache: &str,
        args: &[&str],
        change: impl FnOnce(&mut Command),
    ) -> Server {
        let log = self.path(&format!("{cache}.stderr"));
        let mut command = self.serve_command(cache, args);
        change(&mut command);
        let mut child = command
            .stdout(Stdio::piped())
            .stderr(
                File::options()
                    .create(true)
                    .append(true)
                    .open(&log)
                    .unwrap(),
            )
            .spawn()
            .unwrap();
        let (sender, parts) = mpsc::channel();
        let mut output = child.stdout.take().unwrap();
        // Ends with the child, whose output it reads to the end. A server writes its announcement at once, so
        // that the part which has its end has all of it.
        std::thread::spawn(move || {
            let mut part = vec![0; 64 << 10];
            while let Ok(bytes @ 1..) = output.read(&mut part) {
                let text = String::from_utf8_lossy(&part[..bytes]).into_owned();
                if sender.send(text).is_err() {
                    return;
                }
            }
        });
        let mut server = Server {
            child,
            api: String::new(),
            token: String::new(),
            socket: self.socket(cache),
            announcement: String::new(),
        };
        let started = Instant::now();
        while !server.announcement.contains("\n  NBD ") {
            let left = deadline().saturating_sub(started.elapsed());
            match parts.recv_timeout(left) {
                Ok(part) => server.announcement.push_str(&part),
                Err(error) => {
                    let said = std::fs::read_to_string(&log).unwrap_or_default();
                    panic!("the server did not come up ({error}): {said}");
                }
            }
        }
        while let Ok(part) = parts.recv_timeout(Duration::from_millis(100)) {
            server.announcement.push_str(&part);
        }
        let api = server
            .announcement
            .lines()
            .find_map(|line| line.strip_prefix("  API    "));
        server.api = api.unwrap().to_owned();
        // A server that listens on a Unix socket alone makes none.
        server.token = self.token("admin").unwrap_or_default();
        server
    }

    /// Starts a server that must refuse to; what it said.
    pub fn expect_refusal(&self, cache: &str, args: &[&str]) -> String {
        let output = self.serve_command(cache, args).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(
            !String::from_utf8_lossy(&output.stdout).contains("ready"),
            "{said}"
        );
        said
    }

    /// A command for a server.
    pub fn run(&self, server: &Server, args: &[&str]) -> Output {
        let mut all = vec!["--api", &server.api];
        all.extend(args);
        self.firn(&all)
    }

    /// A command for a server that must succeed, and what it printed.
    pub fn expect_success(&self, server: &Server, args: &[&str]) -> String {
        let output = self.run(server, args);
        assert!(output.status.success(), "{args:?}: {}", message(&output));
        String::from_utf8(output.stdout).unwrap()
    }

    /// A command for a server that must fail, and what it said.
    pub fn expect_failure(&self, server: &Server, args: &[&str]) -> String {
        let output = self.run(server, args);
        assert_eq!(
            output.status.code(),
            Some(1),
            "{args:?}: {}",
            message(&output)
        );
        assert!(output.stdout.is_empty(), "{args:?}");
        message(&output)
    }

    /// The names of all volumes.
    pub fn volume_names(&self, server: &Server) -> Vec<String> {
        let list = self.expect_success(server, &["volume", "list", "--json"]);
        let list: Value = serde_json::from_str(&list).unwrap();
        let volumes = list["volumes"].as_array().unwrap().iter();
        let name = |volume: &Value| volume["name"].as_str().unwrap().to_owned();
        volumes.map(name).collect()
    }

    /// `firn attach VOLUME --take-over`, and what it said of the loss.
    pub fn take_over(&self, server: &Server, volume: &str) -> String {
        let attach = ["attach", volume, "--transport", "nbd", "--take-over"];
        let output = self.run(server, &attach);
        assert!(output.status.success(), "{}", message(&output));
        message(&output)
    }

    /// `firn volume show --json`.
    pub fn show(&self, server: &Server, name: &str) -> Value {
        serde_json::from_str(&self.expect_success(server, &["volume", "show", name, "--json"]))
            .unwrap()
    }
}

pub fn message(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

impl Server {
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Status and text of `GET PATH`, asked with the role admin.
    pub fn get(&self, path: &str) -> (u16, String) {
        let agent = ureq::Agent::config_builder()
            .http_status_as_error(false)
            .build()
            .new_agent();
        let request = agent
            .get(format!("{}{path}", self.api))
            .header("authorization", format!("Bearer {}", self.token));
        let mut answer = request.call().unwrap();
        let text = answer.body_mut().read_to_string().unwrap();
        (answer.status().as_u16(), text)
    }

    /// A connection to a volume.
    pub fn connect(&self, volume: &str) -> nbd::Client {
        nbd::Client::connect(&self.socket, volume).unwrap()
    }

    /// kill -9, while others still use what is known of it.
    pub fn kill_in_place(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// kill -9.
    pub fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// SIGTERM.
    pub fn ask_to_stop(&self) {
        let pid = i32::try_from(self.child.id()).unwrap();
        let pid = rustix::process::Pid::from_raw(pid).unwrap();
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    }

    /// Asks it to stop and waits until it has.
    pub fn stop(mut self) -> std::process::ExitStatus {
        self.ask_to_stop();
        let started = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status;
            }
            assert!(started.elapsed() < deadline(), "the server does not stop");
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Waits until `condition` holds.
pub fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let started = Instant::now();
    while !condition() {
        assert!(
            started.elapsed() < deadline(),
            "{what} did not happen in time"
        );
        std::thread::sleep(Duration::from_millis(20));
    }
}
