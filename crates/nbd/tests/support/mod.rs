//! A server over memory disks, and a small client of its own that shares no code with the codec.
#![allow(
    clippy::unwrap_used,
    reason = "helpers of tests, where a panic is the report"
)]
#![allow(dead_code, reason = "each test file uses a part of it")]
#![allow(unreachable_pub, reason = "a module of several test programs")]

pub mod chunks;
pub mod client;

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use blkmq::io::FileId;
use blkmq::{Device, DeviceOptions};
use nbd::codec::ExportEntry;
use nbd::server::{
    BackendFile, ClientIdentity, Export, ExportState, Exports, Listen, Options, Server,
};
use reactor::{BackendChoice, BackendKind, Config, DioAlign, PoolStats, Reactor};
use serve::testing::{Faults, MemoryDisk};

/// How long anything may take before a test fails.
pub const DEADLINE: Duration = Duration::from_secs(30);

/// The drivers this host can run.
pub fn backends() -> Vec<BackendKind> {
    let only = |kind| Config {
        backend: BackendChoice::Only(kind),
        ..Config::default()
    };
    match Reactor::start(only(BackendKind::IoUring)) {
        Ok(_) => vec![BackendKind::IoUring, BackendKind::Epoll],
        Err(error) => {
            println!("skipped: io_uring: {error}");
            vec![BackendKind::Epoll]
        }
    }
}

/// Waits for a condition.
pub fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let until = Instant::now() + DEADLINE;
    while !holds() {
        assert!(Instant::now() < until, "not in time: {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// A fixed list of exports; the first is the default one.
pub struct Fixed {
    exports: Vec<Arc<Export<MemoryDisk>>>,
    /// The only client that may use them, by the name in its certificate.
    only_for: Option<&'static str>,
    /// They are being opened.
    opening: AtomicBool,
    /// For which of them clients have begun to wait.
    pub parked: Mutex<Vec<String>>,
}

impl Fixed {
    fn is_for(&self, client: &ClientIdentity) -> bool {
        self.only_for
            .is_none_or(|name| client.names.iter().any(|own| own == name))
    }
}

impl Exports<MemoryDisk> for Fixed {
    fn find(&self, name: &str, client: &ClientIdentity) -> ExportState<Arc<Export<MemoryDisk>>> {
        let mut for_client = self.exports.iter().filter(|_| self.is_for(client));
        match for_client.find(|export| name.is_empty() || export.name == name) {
            Some(found) if self.opening.load(Ordering::SeqCst) => {
                ExportState::Opening(found.name.clone())
            }
            Some(found) => ExportState::Open(Arc::clone(found)),
            None => ExportState::Absent,
        }
    }

    fn on_parked(&self, name: &str) {
        self.parked.lock().unwrap().push(name.to_owned());
    }

    fn list(&self, client: &ClientIdentity) -> Vec<ExportEntry> {
        let line = |export: &Arc<Export<MemoryDisk>>| ExportEntry {
            name: export.name.clone(),
            description: export.description.clone(),
        };
        let for_client = self.exports.iter().filter(|_| self.is_for(client));
        for_client.map(line).collect()
    }
}

/// How a world is set up.
pub struct Setup {
    pub kind: BackendKind,
    pub reactors: usize,
    pub bytes: u64,
    pub logical_block: u32,
    pub align: DioAlign,
    pub faults: Faults,
    pub options: Options,
    pub pool_bytes: usize,
    pub reserve_bytes: usize,
    /// Where the extents are; a memory file if there is none.
    pub file: Option<OwnedFd>,
    /// The only client that may use the export.
    pub only_for: Option<&'static str>,
    /// The export is being opened.
    pub opening: bool,
}

impl Setup {
    pub fn new(kind: BackendKind) -> Setup {
        Setup {
            kind,
            reactors: 2,
            bytes: 16 << 20,
            logical_block: 512,
            align: DioAlign::NONE,
            faults: Faults::NONE,
            options: Options {
                tick: Duration::from_millis(20),
                ..Options::default()
            },
            pool_bytes: 128 << 20,
            reserve_bytes: Config::default().reserve_bytes,
            file: None,
            only_for: None,
            opening: false,
        }
    }

    pub fn with_faults(self, faults: Faults) -> Setup {
        Setup { faults, ..self }
    }

    pub fn with_options(self, options: Options) -> Setup {
        Setup { options, ..self }
    }
}

/// Reactors, a server, and one export named `disk`, on a Unix socket and a TCP port.
pub struct World {
    pub disk: Arc<MemoryDisk>,
    pub export: Arc<Export<MemoryDisk>>,
    pub exports: Arc<Fixed>,
    pub server: Server<MemoryDisk>,
    pub unix: std::path::PathBuf,
    pub tcp: std::net::SocketAddr,
    pub reactors: Vec<Reactor>,
    dir: tempfile::TempDir,
}

impl Drop for World {
    /// Whatever a client sends, no connection's source panics: others would hear nothing of it, and no test either.
    fn drop(&mut self) {
        if std::thread::panicking() {
            return;
        }
        for reactor in &self.reactors {
            let (to, answer) = std::sync::mpsc::channel();
            let asked = reactor
                .handle()
                .post(move |core| to.send(core.stats().panics).unwrap_or_default());
            // One that has been stopped answers nothing.
            if asked.is_ok()
                && let Ok(panics) = answer.recv_timeout(DEADLINE)
            {
                assert_eq!(panics, 0, "sources panicked");
            }
        }
    }
}

impl World {
    pub fn new(setup: Setup) -> World {
        let reactors: Vec<Reactor> = (0..setup.reactors)
            .map(|number| {
                let config = Config {
                    name: format!("reactor-{number}"),
                    backend: BackendChoice::Only(setup.kind),
                    pool_bytes: setup.pool_bytes,
                    reserve_bytes: setup.reserve_bytes,
                    ..Config::default()
                };
                Reactor::start(config).unwrap()
            })
            .collect();
        let (bytes, block, faults) = (setup.bytes, setup.logical_block, setup.faults);
        let (disk, file) = match setup.file {
            Some(file) => (
                MemoryDisk::with_file_of_caller(bytes, block, faults),
                Arc::new(file),
            ),
            None => MemoryDisk::new(bytes, block, faults),
        };
        let export = Arc::new(Export {
            name: "disk".to_owned(),
            description: "a disk in memory".to_owned(),
            backend: Arc::clone(&disk),
            device: Device::new("disk", DeviceOptions::default()),
            files: vec![BackendFile {
                id: FileId::LOG,
                fd: file,
                align: setup.align,
            }],
            latencies: serve::latency::Latencies::unobserved(),
        });
        let handles = reactors
            .iter()
            .map(|reactor| reactor.handle().clone())
            .collect();
        let exports = Arc::new(Fixed {
            exports: vec![Arc::clone(&export)],
            only_for: setup.only_for,
            opening: AtomicBool::new(setup.opening),
            parked: Mutex::default(),
        });
        let looked_up = Arc::clone(&exports);
        let server = Server::new(handles, looked_up, setup.options).unwrap();
        let dir = tempfile::tempdir().unwrap();
        let unix = dir.path().join("nbd.sock");
        server.listen(&Listen::Unix(unix.clone())).unwrap();
        let Listen::Tcp(tcp) = server.listen(&"127.0.0.1:0".parse().unwrap()).unwrap() else {
            panic!("asked for TCP")
        };
        World {
            disk,
            export,
            exports,
            server,
            unix,
            tcp,
            reactors,
            dir,
        }
    }

    /// Whether the export is being opened. If it is not any more, those who wait for it hear of that.
    pub fn set_opening(&self, opening: bool) {
        self.exports.opening.store(opening, Ordering::SeqCst);
        if !opening {
            self.server.wake_parked("disk");
        }
    }

    /// A client on the Unix socket, in the transmission phase.
    pub fn client(&self) -> client::Client {
        client::Client::unix(&self.unix, "disk")
    }

    /// Another server on the same reactors, which listens nowhere: of the same disk, or of none.
    pub fn successor(&self, has_disk: bool) -> Server<MemoryDisk> {
        let exports = Arc::new(Fixed {
            exports: has_disk
                .then(|| Arc::clone(&self.export))
                .into_iter()
                .collect(),
            only_for: None,
            opening: AtomicBool::new(false),
            parked: Mutex::default(),
        });
        let handles = self.reactors.iter().map(|one| one.handle().clone());
        Server::new(handles.collect(), exports, Options::default()).unwrap()
    }

    /// The pool of each reactor.
    pub fn pools(&self) -> Vec<PoolStats> {
        let ask = |reactor: &Reactor| {
            let (to, from) = std::sync::mpsc::channel();
            reactor
                .handle()
                .post(move |core| to.send(core.pool().stats()).unwrap())
                .unwrap();
            from.recv_timeout(DEADLINE).unwrap()
        };
        self.reactors.iter().map(ask).collect()
    }

    /// Waits until nothing is left of any request: no tag, no pin, no buffer.
    pub fn assert_nothing_left(&self) {
        eventually("no request in flight or parked", || {
            self.export
                .device
                .load()
                .iter()
                .all(|load| load.in_flight == 0 && load.parked == 0)
        });
        eventually("no plan lives", || self.disk.pins() == 0);
        eventually("all buffers are back", || {
            self.pools()
                .iter()
                .all(|pool| pool.lent == 0 && !pool.reserve_lent)
        });
        assert_eq!(
            self.export.device.counts().dropped,
            0,
            "a request was dropped"
        );
        let (taken, used) = self.disk.blocks();
        assert_eq!(taken, used, "log space was lost");
    }
}

/// Keeps waking what the disk parked, as an engine would, until dropped.
pub struct Engine {
    stop: Arc<AtomicBool>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Engine {
    pub fn start(disk: &Arc<MemoryDisk>) -> Engine {
        let stop = Arc::new(AtomicBool::new(false));
        let (disk, until) = (Arc::clone(disk), Arc::clone(&stop));
        let thread = std::thread::spawn(move || {
            while !until.load(Ordering::SeqCst) {
                disk.wake_all();
                disk.make_durable();
                std::thread::sleep(Duration::from_micros(200));
            }
        });
        Engine {
            stop,
            thread: Some(thread),
        }
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::SeqCst);
        let _ = self.thread.take().map(std::thread::JoinHandle::join);
    }
}
