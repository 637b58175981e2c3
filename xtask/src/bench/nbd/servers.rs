//! The servers that are compared, each in a process that ends with the benchmark, and fio against one of them.
//!
//! With TLS all have the certificate of the server's own tests, and fio finds its own where libnbd looks for it:
//! below the home directory, for fio lets no URI name files.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::{Failure, workspace};

/// Certificates and keys of a server and of clients.
const CERTIFICATES: &str = "crates/nbd/tests/fixtures/tls";

/// Where libnbd looks for certificates, below the home directory.
const CLIENT_CERTIFICATES: &str = ".pki/libnbd";

/// What is measured beside the peers.
pub(super) struct Programs {
    pub(super) bare: PathBuf,
    pub(super) volume: PathBuf,
}

/// Where files are in memory.
pub(super) const MEMORY: &str = "/dev/shm";

/// How long a server may take until it answers.
const START_TIMEOUT: Duration = Duration::from_secs(60);

/// Ticks per second in /proc, the same on every Linux architecture served here.
const TICKS: f64 = 100.0;

/// How servers and clients do what they do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Mode {
    /// Through the page cache
    Buffered,
    /// Past it
    Direct,
    /// Through the page cache, and TLS
    Tls,
}

impl Mode {
    pub(super) const ALL: [Mode; 3] = [Mode::Buffered, Mode::Direct, Mode::Tls];

    pub(super) fn title(self) -> &'static str {
        match self {
            Mode::Buffered => "Buffered",
            Mode::Direct => "Direct I/O",
            Mode::Tls => "TLS, buffered",
        }
    }
}

/// A running server; ended when dropped.
pub(super) struct Server {
    pub(super) name: String,
    uri: String,
    /// Its clients' home directory.
    home: PathBuf,
    child: Child,
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may have ended by itself; either way nothing is left.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Where servers keep what they have; both go when the benchmark does.
pub(super) struct Places {
    pub(super) disk: tempfile::TempDir,
    /// A server that is killed leaves its rings behind.
    rings: tempfile::TempDir,
}

impl Places {
    pub(super) fn in_dir(parent: &Path) -> std::io::Result<Self> {
        let mut named = tempfile::Builder::new();
        let named = named.prefix("bench-nbd-");
        let places = Self {
            disk: named.tempdir_in(parent)?,
            rings: named.tempdir_in(MEMORY)?,
        };
        let own = places.disk.path().join(CLIENT_CERTIFICATES);
        std::fs::create_dir_all(&own)?;
        for (from, to) in [
            ("ca-cert", "ca-cert"),
            ("alice-cert", "client-cert"),
            ("alice-key", "client-key"),
        ] {
            let from = certificates().join(from).with_extension("pem");
            std::fs::copy(from, own.join(to).with_extension("pem"))?;
        }
        Ok(places)
    }
}

/// One measurement.
#[derive(Clone, Copy, Default)]
pub(super) struct Sample {
    pub(super) per_second: f64,
    pub(super) cpu_us: f64,
}

/// Starts a server of a volume, in a directory of its own.
pub(super) fn start_volume(
    name: &str,
    program: &Path,
    mode: Mode,
    places: &Places,
    mib: u64,
) -> Result<Server, Failure> {
    let dir = places.disk.path().join(name);
    std::fs::create_dir_all(&dir)?;
    let mut volume = Command::new(program);
    volume.args([
        "serve",
        "--rpo",
        "1h",
        "--log-size",
        "4GiB",
        "--cache-size",
        "256MiB",
    ]);
    volume.arg("--store").arg(dir.join("store"));
    volume.arg("--cache").arg(dir.join("cache"));
    volume.arg("--ring-dir").arg(places.rings.path());
    volume.arg(format!("--api=unix:{}", dir.join("api.sock").display()));
    volume.arg(format!("--nbd=unix:{}", dir.join("nbd.sock").display()));
    volume.arg(format!("--volume=disk={mib}MiB"));
    volume.args(match mode {
        Mode::Direct => ["--log-io", "direct"],
        Mode::Buffered | Mode::Tls => ["--log-io", "buffered"],
    });
    if mode == Mode::Tls {
        volume.arg("--nbd-tls").arg(certificates());
        volume.arg("--nbd-tls-required");
    }
    let dir = (dir.as_path(), places.disk.path());
    start(
        mode,
        &format!("firn, {name}"),
        volume,
        dir,
        ("nbd.sock", "disk"),
    )
}

pub(super) fn start_all(
    mode: Mode,
    places: &Places,
    image: &Path,
    (programs, mib): (&Programs, u64),
) -> Result<Vec<Server>, Failure> {
    let dir = places.disk.path();
    let mut servers = Vec::new();
    let mut bare = Command::new(&programs.bare);
    bare.arg(image).arg(dir.join("bare.sock"));
    match mode {
        Mode::Buffered => {}
        Mode::Direct => drop(bare.arg("--direct")),
        Mode::Tls => drop(bare.arg("--tls").arg(certificates())),
    }
    servers.push(start(
        mode,
        "firn, bare file",
        bare,
        (dir, dir),
        ("bare.sock", "file"),
    )?);
    servers.push(start_volume("volume", &programs.volume, mode, places, mib)?);
    if mode != Mode::Direct {
        let mut nbdkit = Command::new("nbdkit");
        nbdkit
            .args(["-f", "-U"])
            .arg(dir.join("nbdkit.sock"))
            .arg("file")
            .arg(image);
        if mode == Mode::Tls {
            let own = certificates();
            nbdkit.arg("--tls=require");
            nbdkit.arg(format!("--tls-certificates={}", own.display()));
        }
        servers.push(start(
            mode,
            "nbdkit file",
            nbdkit,
            (dir, dir),
            ("nbdkit.sock", ""),
        )?);
        if mode == Mode::Buffered {
            servers.push(qemu(mode, "qemu-nbd", &["--cache=writeback"], dir, image)?);
        }
    } else {
        for aio in ["threads", "native", "io_uring"] {
            let options = ["--cache=none", &format!("--aio={aio}")];
            servers.push(qemu(
                mode,
                &format!("qemu-nbd, {aio}"),
                &options,
                dir,
                image,
            )?);
        }
    }
    Ok(servers)
}

fn qemu(
    mode: Mode,
    name: &str,
    options: &[&str],
    dir: &Path,
    image: &Path,
) -> Result<Server, Failure> {
    let socket = format!("{}.sock", name.replace(", ", "-"));
    let mut command = Command::new("qemu-nbd");
    command
        .args(["-t", "-e", "4", "-f", "raw", "-x", "disk", "-k"])
        .arg(dir.join(&socket));
    command.args(options).arg(image);
    start(mode, name, command, (dir, dir), (&socket, "disk"))
}

/// Starts a server and waits until it answers.
fn start(
    mode: Mode,
    name: &str,
    mut command: Command,
    (dir, home): (&Path, &Path),
    (socket, export): (&str, &str),
) -> Result<Server, Failure> {
    let log = File::create(dir.join(format!("{socket}.log")))?;
    // A server that watches its input for the end gets one that does not end.
    command
        .stdin(Stdio::piped())
        .stdout(log.try_clone()?)
        .stderr(log);
    let child = command
        .spawn()
        .map_err(|error| format!("cannot start {name}: {error}"))?;
    let scheme = match mode {
        Mode::Tls => "nbds",
        Mode::Buffered | Mode::Direct => "nbd",
    };
    let socket_path = dir.join(socket);
    let uri = format!("{scheme}+unix:///{export}?socket={}", socket_path.display());
    let server = Server {
        name: name.to_owned(),
        uri,
        home: home.to_owned(),
        child,
    };
    let until = Instant::now() + START_TIMEOUT;
    loop {
        let mut ask = Command::new("nbdinfo");
        let told = ask
            .args(["--size", &server.uri])
            .env("HOME", home)
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        if told.status()?.success() {
            return Ok(server);
        }
        if Instant::now() > until {
            let log = std::fs::read_to_string(dir.join(format!("{socket}.log")))?;
            return Err(format!("{name} does not answer:\n{log}").into());
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Runs one fio job against a server.
pub(super) fn fio(server: &Server, job: &[String], mib: u64) -> Result<Sample, Failure> {
    let before = cpu_seconds(server.child.id())?;
    let output = Command::new("fio")
        .args([
            "--name=job",
            "--thread",
            "--ioengine=nbd",
            "--output-format=json",
        ])
        .arg(format!("--uri={}", server.uri))
        .arg(format!("--size={mib}m"))
        .args(job)
        .env("HOME", &server.home)
        .output()?;
    let cpu = cpu_seconds(server.child.id())? - before;
    let text = String::from_utf8_lossy(&output.stdout);
    let start = text.find('{').unwrap_or(text.len());
    let report: serde_json::Value = serde_json::from_str(&text[start..])
        .map_err(|_| format!("fio failed against {}:\n{text}", server.name))?;
    let side = |name: &str, field: &str| report["jobs"][0][name][field].as_f64().unwrap_or(0.0);
    let requests = side("read", "total_ios") + side("write", "total_ios");
    if report["jobs"][0]["error"] != 0 || requests == 0.0 {
        return Err(format!("fio failed against {}:\n{text}", server.name).into());
    }
    let per_second = side("read", "iops") + side("write", "iops");
    Ok(Sample {
        per_second,
        cpu_us: cpu * 1e6 / requests,
    })
}

/// Processor time that a process has taken, user and system.
fn cpu_seconds(pid: u32) -> Result<f64, Failure> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"))?;
    // The name in parentheses may contain anything; the fields after it do not.
    let fields = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
    let mut times = fields
        .split_whitespace()
        .skip(11)
        .map_while(|field| field.parse::<f64>().ok());
    let (user, system) = (times.next().unwrap_or(0.0), times.next().unwrap_or(0.0));
    Ok((user + system) / TICKS)
}

fn certificates() -> PathBuf {
    workspace::root().join(CERTIFICATES)
}
