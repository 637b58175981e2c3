//! A MinIO server of the test's own, and a proxy in front of it that fails as it is told.

#![allow(clippy::unwrap_used, dead_code, unreachable_pub)]

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::{Duration, Instant};

use store::{Kind, SharedStore, Store};

/// A server on a free port of the loopback address, ended with the test.
pub struct Minio {
    program: PathBuf,
    pub dir: tempfile::TempDir,
    pub address: SocketAddr,
    tls: bool,
    child: Child,
}

impl Minio {
    /// Starts one with an empty bucket `firn`; `None`, and says so, where there is none to start.
    pub fn start() -> Option<Minio> {
        Minio::start_with(|_| false)
    }

    /// The same with what `prepare` puts into the directory of certificates; it says whether to
    /// speak TLS.
    pub fn start_with(prepare: impl FnOnce(&Path) -> bool) -> Option<Minio> {
        let Some(program) = std::env::var_os("FIRN_MINIO").map(PathBuf::from) else {
            println!("skipped: MinIO is not here (cargo xtask test minio builds and uses it)");
            return None;
        };
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(dir.path().join("data/firn")).unwrap();
        std::fs::create_dir_all(dir.path().join("certs")).unwrap();
        let tls = prepare(&dir.path().join("certs"));
        let port = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = port.local_addr().unwrap();
        drop(port);
        let child = run(&program, dir.path(), address);
        let minio = Minio {
            program,
            dir,
            address,
            tls,
            child,
        };
        minio.wait();
        Some(minio)
    }

    fn wait(&self) {
        let end = Instant::now() + Duration::from_secs(60);
        loop {
            let ready = if self.tls {
                TcpStream::connect(self.address).is_ok()
            } else {
                is_ready(self.address)
            };
            if ready {
                return;
            }
            assert!(Instant::now() < end, "MinIO does not come up");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Waits until a server answers `store`.
    pub async fn answers(store: &dyn Store) {
        let end = Instant::now() + Duration::from_secs(60);
        while store.get("none").await.unwrap_err().kind() != Kind::NotFound {
            assert!(Instant::now() < end, "MinIO does not answer");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    pub fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    pub fn restart(&mut self) {
        self.child = run(&self.program, self.dir.path(), self.address);
        self.wait();
    }

    pub fn url(&self) -> String {
        url_at(self.address)
    }

    pub fn open(&self) -> SharedStore {
        store::open_url(&self.url()).unwrap()
    }
}

impl Drop for Minio {
    fn drop(&mut self) {
        self.kill();
    }
}

pub fn url_at(address: SocketAddr) -> String {
    format!("s3://firn/test?endpoint=http://{address}")
}

fn run(program: &Path, dir: &Path, address: SocketAddr) -> Child {
    Command::new(program)
        .args(["server", "--quiet", "--address", &address.to_string()])
        .arg("--certs-dir")
        .arg(dir.join("certs"))
        .arg(dir.join("data"))
        .env(
            "MINIO_ROOT_USER",
            std::env::var("AWS_ACCESS_KEY_ID").unwrap(),
        )
        .env(
            "MINIO_ROOT_PASSWORD",
            std::env::var("AWS_SECRET_ACCESS_KEY").unwrap(),
        )
        .env("MINIO_BROWSER", "off")
        .env("MINIO_UPDATE", "off")
        .env("HOME", dir)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}

fn is_ready(address: SocketAddr) -> bool {
    let ask = || -> std::io::Result<bool> {
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

/// What the proxy does with a connection's next answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Fault {
    None = 0,
    /// The request reaches the store; its answer is dropped with the connection.
    LoseAnswer = 1,
    /// The answer is cut after its first kilobyte.
    CutAnswer = 2,
    /// The store is not asked: 503 SlowDown.
    SlowDown = 3,
    /// The store is not asked: 429.
    TooMany = 4,
}

/// A proxy that closes each connection after one exchange, and fails it as planned.
pub struct Proxy {
    pub address: SocketAddr,
    fault: Arc<AtomicU8>,
}

impl Proxy {
    pub fn start(upstream: SocketAddr) -> Proxy {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let fault = Arc::new(AtomicU8::new(0));
        let told = Arc::clone(&fault);
        // Ends with the test's process: the thread holds nothing but sockets.
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let told = Arc::clone(&told);
                std::thread::spawn(move || {
                    let _ = exchange(client, upstream, &told);
                });
            }
        });
        Proxy { address, fault }
    }

    pub fn set(&self, fault: Fault) {
        self.fault.store(fault as u8, Ordering::SeqCst);
    }
}

fn exchange(mut client: TcpStream, upstream: SocketAddr, told: &AtomicU8) -> std::io::Result<()> {
    let request = read_request(&mut client)?;
    let fault = told.load(Ordering::SeqCst);
    let refusal = match fault {
        3 => Some(("503 Slow", "SlowDown")),
        4 => Some(("429 Too Many Requests", "TooManyRequests")),
        _ => None,
    };
    if let Some((status, code)) = refusal {
        let body = format!("<Error><Code>{code}</Code></Error>");
        let head = format!(
            "HTTP/1.1 {status}\r\nConnection: close\r\nContent-Length: {}\r\n\r\n",
            body.len()
        );
        client.write_all(head.as_bytes())?;
        return client.write_all(body.as_bytes());
    }
    let mut server = TcpStream::connect(upstream)?;
    server.write_all(&request)?;
    let mut answer = Vec::new();
    // What has come before a reset is the answer.
    let _ = server.read_to_end(&mut answer);
    match fault {
        1 => answer.clear(),
        2 => answer.truncate(1024),
        _ => {}
    }
    client.write_all(&answer)?;
    client.shutdown(Shutdown::Both)
}

/// A whole request, told to close its connection afterwards.
fn read_request(client: &mut TcpStream) -> std::io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let mut block = vec![0; 65536];
    loop {
        let head_end = bytes.windows(4).position(|four| four == b"\r\n\r\n");
        if let Some(end) = head_end {
            let head = String::from_utf8_lossy(&bytes[..end]).into_owned();
            let length = head
                .lines()
                .filter_map(|line| line.split_once(':'))
                .find(|(name, _)| name.eq_ignore_ascii_case("content-length"))
                .map_or(0, |(_, value)| value.trim().parse().unwrap_or(0));
            if bytes.len() >= end + 4 + length {
                let mut request = format!("{head}\r\nConnection: close\r\n\r\n").into_bytes();
                request.extend_from_slice(&bytes[end + 4..]);
                return Ok(request);
            }
        }
        match client.read(&mut block)? {
            0 => return Err(std::io::ErrorKind::UnexpectedEof.into()),
            n => bytes.extend_from_slice(&block[..n]),
        }
    }
}
