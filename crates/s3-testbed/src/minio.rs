//! A MinIO server of one's own, on a free port of the loopback address.
//!
//! It ends with its owner. The program is built by `cargo xtask minio`; this crate only starts it.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

/// How long a server may take until it answers.
const START_TIMEOUT: Duration = Duration::from_secs(60);
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// What a server is started with.
#[derive(Clone, Debug)]
pub struct MinioConfig {
    /// The program.
    pub program: PathBuf,
    /// Key that may do everything.
    pub access_key: String,
    /// Its secret.
    pub secret_key: String,
    /// Directory of the objects; one of the server's own where none is named. Each directory in it is
    /// a bucket.
    pub data: Option<PathBuf>,
    /// More of its environment.
    pub environment: Vec<(String, String)>,
}

impl MinioConfig {
    /// From `FIRN_MINIO` and the keys in the environment, as `cargo xtask test minio` sets them;
    /// `None`, and says so, where there is no server to start.
    pub fn from_environment() -> Option<MinioConfig> {
        let Some(program) = std::env::var_os("FIRN_MINIO").map(PathBuf::from) else {
            println!("skipped: MinIO is not here (cargo xtask test minio builds and uses it)");
            return None;
        };
        let key = |name| std::env::var(name).unwrap_or_else(|_| panic!("{name} is not set"));
        Some(MinioConfig {
            program,
            access_key: key("AWS_ACCESS_KEY_ID"),
            secret_key: key("AWS_SECRET_ACCESS_KEY"),
            data: None,
            environment: Vec::new(),
        })
    }
}

/// A running server with a bucket `firn`.
#[derive(Debug)]
pub struct Minio {
    /// What it was started with; a restart takes what stands here then.
    pub config: MinioConfig,
    /// A directory of its own: certificates, and the objects unless they are elsewhere.
    pub dir: tempfile::TempDir,
    /// Where it listens.
    pub address: SocketAddr,
    speaks_tls: bool,
    child: Child,
}

impl Minio {
    /// Starts one with an empty bucket `firn` and waits until it answers.
    pub fn start(config: MinioConfig) -> io::Result<Minio> {
        Minio::start_with(config, |_| false)
    }

    /// The same with what `prepare` puts into the directory of certificates; it says whether the
    /// server is to speak TLS.
    pub fn start_with(
        config: MinioConfig,
        prepare: impl FnOnce(&Path) -> bool,
    ) -> io::Result<Minio> {
        let dir = tempfile::tempdir()?;
        let certificates = dir.path().join("certs");
        std::fs::create_dir_all(&certificates)?;
        let speaks_tls = prepare(&certificates);
        let data = data_dir(&config, dir.path());
        std::fs::create_dir_all(data.join("firn"))?;
        let address = free_address()?;
        let child = spawn(&config, dir.path(), address)?;
        let mut minio = Minio {
            config,
            dir,
            address,
            speaks_tls,
            child,
        };
        let end = Instant::now() + START_TIMEOUT;
        // The port was free when it was chosen: another program may have taken it before MinIO did.
        while let Err(error) = minio.wait(end) {
            if Instant::now() > end || !minio.has_ended()? {
                return Err(error);
            }
            minio.address = free_address()?;
            minio.child = spawn(&minio.config, minio.dir.path(), minio.address)?;
        }
        Ok(minio)
    }

    fn has_ended(&mut self) -> io::Result<bool> {
        Ok(self.child.try_wait()?.is_some())
    }

    fn wait(&mut self, end: Instant) -> io::Result<()> {
        loop {
            let ready = if self.speaks_tls {
                TcpStream::connect(self.address).is_ok()
            } else {
                is_ready(self.address)
            };
            if ready {
                return Ok(());
            }
            if let Some(status) = self.child.try_wait()? {
                return Err(io::Error::other(format!("MinIO ended: {status}")));
            }
            if Instant::now() > end {
                return Err(io::Error::other("MinIO does not come up"));
            }
            std::thread::sleep(POLL_INTERVAL);
        }
    }

    /// Where the objects are.
    pub fn data(&self) -> PathBuf {
        data_dir(&self.config, self.dir.path())
    }

    /// Its process.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Ends it as SIGKILL does.
    pub fn kill(&mut self) {
        // It may have ended by itself; either way nothing is left.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Starts it again, at the same address and with the same objects. Where a connection of another program has
    /// the port meanwhile, it is waited for.
    pub fn restart(&mut self) -> io::Result<()> {
        let end = Instant::now() + START_TIMEOUT;
        loop {
            self.kill();
            self.child = spawn(&self.config, self.dir.path(), self.address)?;
            let Err(error) = self.wait(end) else {
                return Ok(());
            };
            if Instant::now() > end || !self.has_ended()? {
                return Err(error);
            }
            std::thread::sleep(POLL_INTERVAL);
        }
    }

    /// Stops it as SIGSTOP does: its connections stay, and nothing on them is answered.
    pub fn suspend(&self) -> io::Result<()> {
        self.send(Signal::STOP)
    }

    /// Ends it, and returns what all its threads were doing.
    pub fn end_with_stacks(&mut self) -> io::Result<String> {
        // It takes SIGQUIT for a request to end in peace.
        self.send(Signal::ABORT)?;
        let _ = self.child.wait()?;
        std::fs::read_to_string(output_path(self.dir.path()))
    }

    /// Lets it go on.
    pub fn resume(&self) -> io::Result<()> {
        self.send(Signal::CONT)
    }

    fn send(&self, signal: Signal) -> io::Result<()> {
        Ok(kill_process(Pid::from_child(&self.child), signal)?)
    }

    /// A store's URL there.
    pub fn url(&self) -> String {
        url_at(self.address)
    }
}

impl Drop for Minio {
    fn drop(&mut self) {
        self.kill();
    }
}

/// The URL of a store in the bucket `firn` that is reached at `address`.
pub fn url_at(address: SocketAddr) -> String {
    format!("s3://firn/test?endpoint=http://{address}")
}

/// An address of the loopback interface whose port is free now.
fn free_address() -> io::Result<SocketAddr> {
    TcpListener::bind("127.0.0.1:0")?.local_addr()
}

fn data_dir(config: &MinioConfig, own: &Path) -> PathBuf {
    config.data.clone().unwrap_or_else(|| own.join("data"))
}

fn output_path(dir: &Path) -> PathBuf {
    dir.join("said")
}

fn spawn(config: &MinioConfig, dir: &Path, address: SocketAddr) -> io::Result<Child> {
    let said = std::fs::File::create(output_path(dir))?;
    Command::new(&config.program)
        .args(["server", "--quiet", "--address", &address.to_string()])
        .arg("--certs-dir")
        .arg(dir.join("certs"))
        .arg(data_dir(config, dir))
        .env("MINIO_ROOT_USER", &config.access_key)
        .env("MINIO_ROOT_PASSWORD", &config.secret_key)
        .env("MINIO_BROWSER", "off")
        .env("MINIO_UPDATE", "off")
        .env("HOME", dir)
        .env("GOTRACEBACK", "all")
        .envs(config.environment.iter().cloned())
        .stdout(Stdio::null())
        .stderr(said)
        .spawn()
}

fn is_ready(address: SocketAddr) -> bool {
    let ask = || -> io::Result<bool> {
        let mut stream = TcpStream::connect(address)?;
        stream.set_read_timeout(Some(Duration::from_secs(1)))?;
        stream.write_all(b"GET /firn/none HTTP/1.0\r\nHost: x\r\n\r\n")?;
        let mut answer = [0; 12];
        stream.read_exact(&mut answer)?;
        // A stranger is refused as soon as the server knows its buckets; until then it says 503.
        Ok(answer.ends_with(b"403"))
    };
    ask().unwrap_or(false)
}
