//! Serves a plain file over NBD, in place: what the transport costs without an engine.
//!
//!     cargo run --release -p nbd --example bare_file -- FILE SOCKET [--direct] [--epoll] [--tls DIR]
//!
//! It also shows how an owner has disk work done: a flush is asked for by many requests, one
//! source on the reactor turns what has gathered into one sync, and wakes them (group commit).
//! Zeroing and trimming a plain file are not offered.

use std::error::Error;
use std::os::fd::OwnedFd;
use std::os::unix::fs::OpenOptionsExt;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::task::Waker;

use blkmq::error::ErrorKind;
use blkmq::io::{
    Backend, FileId, Geometry, MoveError, MoveResult, Op, Piece, Place, Plan, SECTOR_BYTES, Step,
    StepOf,
};
use blkmq::{Device, DeviceOptions};
use nbd::codec::ExportEntry;
use nbd::server::{
    BackendFile, ClientIdentity, Export, ExportState, Exports, Listen, Options, Server, TlsConfig,
    TlsOptions,
};
use reactor::{
    BackendChoice, BackendKind, Completion, Config, Cx, DioAlign, FileIndex, Reactor, Source, Token,
};

/// The file as a disk. Offsets on the disk are offsets in the file.
struct FileDisk {
    bytes: u64,
    logical_block: u32,
    flushes: Mutex<Flushes>,
    committer: OnceLock<Waker>,
}

/// Flushes by number. A sync that begins when `asked` is n makes all up to n durable.
#[derive(Default)]
struct Flushes {
    asked: u64,
    done: u64,
    failed: bool,
    waiting: Vec<Waker>,
}

#[derive(Debug)]
struct FilePlan([Piece; 1]);

#[derive(Debug)]
struct FileWritePlan(FilePlan, bool);

#[derive(Debug)]
struct Ticket(u64);

impl Plan for FilePlan {
    fn pieces(&self) -> &[Piece] {
        &self.0
    }
}

impl Plan for FileWritePlan {
    fn pieces(&self) -> &[Piece] {
        &self.0.0
    }
}

fn whole(sector: u64, sectors: u32) -> FilePlan {
    let place = Place::At {
        file: FileId::LOG,
        offset: sector * SECTOR_BYTES,
    };
    FilePlan([Piece {
        at: 0,
        len: sectors * SECTOR_BYTES as u32,
        place,
    }])
}

impl FileDisk {
    fn flushes(&self) -> MutexGuard<'_, Flushes> {
        self.flushes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn flush<R, W>(&self, waker: &Waker) -> Step<R, W, Ticket> {
        let mut flushes = self.flushes();
        if flushes.failed {
            return Step::Done(Err(ErrorKind::Io));
        }
        flushes.asked += 1;
        flushes.waiting.push(waker.clone());
        let ticket = Ticket(flushes.asked);
        drop(flushes);
        if let Some(committer) = self.committer.get() {
            committer.wake_by_ref();
        }
        Step::Sync(ticket)
    }
}

impl Backend for FileDisk {
    type Read = FilePlan;
    type Write = FileWritePlan;
    type Sync = Ticket;

    fn geometry(&self) -> Geometry {
        Geometry {
            bytes: self.bytes,
            logical_block: self.logical_block,
            physical_block: 4096,
            read_only: false,
        }
    }

    fn begin(&self, op: &Op, waker: &Waker) -> StepOf<Self> {
        match *op {
            Op::Read { sector, sectors } => Step::Read(whole(sector, sectors)),
            Op::Write {
                sector,
                sectors,
                fua,
            } => Step::Write(FileWritePlan(whole(sector, sectors), fua)),
            Op::Flush => self.flush(waker),
            Op::Prefetch { .. } => Step::Done(Ok(())),
            Op::Discard { .. } | Op::WriteZeroes { .. } | Op::Status { .. } => {
                Step::Done(Err(ErrorKind::Unsupported))
            }
        }
    }

    fn read(&self, _: FilePlan, moved: MoveResult, _: &Waker) -> StepOf<Self> {
        Step::Done(moved.map_err(ErrorKind::from))
    }

    fn written(&self, plan: FileWritePlan, moved: MoveResult, waker: &Waker) -> StepOf<Self> {
        if plan.1 && moved.is_ok() {
            self.flush(waker)
        } else {
            Step::Done(moved.map_err(ErrorKind::from))
        }
    }

    fn poll_sync(&self, ticket: Ticket, waker: &Waker) -> StepOf<Self> {
        let mut flushes = self.flushes();
        if flushes.failed {
            return Step::Done(Err(ErrorKind::Io));
        }
        if flushes.done >= ticket.0 {
            return Step::Done(Ok(()));
        }
        flushes.waiting.push(waker.clone());
        Step::Sync(ticket)
    }

    fn on_request_failed(&self, _: &MoveError) {}
}

/// Turns flushes that were asked for into syncs, one at a time.
struct Committer {
    disk: Arc<FileDisk>,
    file: FileIndex,
    /// What the sync in flight covers.
    covers: Option<u64>,
}

impl Committer {
    fn go(&mut self, cx: &mut Cx<'_>) {
        let flushes = self.disk.flushes();
        if self.covers.is_some() || flushes.asked == flushes.done {
            return;
        }
        self.covers = Some(flushes.asked);
        drop(flushes);
        cx.submit(
            Token(0),
            reactor::Op::Sync {
                file: self.file,
                data_only: true,
            },
        );
    }
}

impl Source for Committer {
    fn on_completion(&mut self, cx: &mut Cx<'_>, _: Token, completion: Completion) {
        let mut flushes = self.disk.flushes();
        flushes.done = self.covers.take().unwrap_or(flushes.done);
        // A failed sync is never tried again: what it should have covered is unknown (R10).
        flushes.failed |= !matches!(completion, Completion::Sync(Ok(())));
        let waiting = std::mem::take(&mut flushes.waiting);
        drop(flushes);
        waiting.iter().for_each(Waker::wake_by_ref);
        self.go(cx);
    }

    fn on_wake(&mut self, cx: &mut Cx<'_>, _: u64) {
        self.go(cx);
    }
}

struct One(Arc<Export<FileDisk>>);

impl Exports<FileDisk> for One {
    fn find(&self, name: &str, _: &ClientIdentity) -> ExportState<Arc<Export<FileDisk>>> {
        match name.is_empty() || name == self.0.name {
            true => ExportState::Open(Arc::clone(&self.0)),
            false => ExportState::Absent,
        }
    }

    fn list(&self, _: &ClientIdentity) -> Vec<ExportEntry> {
        vec![ExportEntry {
            name: self.0.name.clone(),
            description: String::new(),
        }]
    }
}

/// With the server's certificate and key in the directory behind `--tls`, every client has to use it.
fn server_options(args: &[String]) -> Result<Options, Box<dyn Error>> {
    let Some(at) = args.iter().position(|arg| arg == "--tls") else {
        return Ok(Options::default());
    };
    let dir = args.get(at + 1).ok_or("give --tls a directory")?;
    let file = |name: &str| std::fs::read(std::path::Path::new(dir).join(name));
    let (chain, key) = (file("server-cert.pem")?, file("server-key.pem")?);
    let config = TlsConfig::from_pem(&chain, &key, None)?;
    Ok(Options {
        tls: Some(TlsOptions {
            config,
            required: true,
        }),
        ..Options::default()
    })
}

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let has = |flag: &str| args.iter().any(|arg| arg == flag);
    let [path, socket] = args.get(..2).ok_or("give FILE and SOCKET")? else {
        return Err("give FILE and SOCKET".into());
    };
    let mut options = std::fs::File::options();
    options.read(true).write(true);
    if has("--direct") {
        options.custom_flags(libc::O_DIRECT);
    }
    let file = options.open(path)?;
    let bytes = file.metadata()?.len();
    let align = if has("--direct") {
        DioAlign::of(&file)?.ok_or("the kernel does not tell this file's direct I/O alignment")?
    } else {
        DioAlign::NONE
    };
    let logical_block = align.offset.max(SECTOR_BYTES as u32);
    let disk = Arc::new(FileDisk {
        bytes: bytes - bytes % u64::from(logical_block),
        logical_block,
        flushes: Mutex::default(),
        committer: OnceLock::new(),
    });
    let fd: Arc<OwnedFd> = Arc::new(file.into());
    let backend = if has("--epoll") {
        BackendChoice::Only(BackendKind::Epoll)
    } else {
        BackendChoice::Auto
    };
    let reactor = Reactor::start(Config {
        backend,
        ..Config::default()
    })?;
    let (for_committer, for_source) = (Arc::clone(&fd), Arc::clone(&disk));
    reactor.handle().attach(move |cx| {
        let file = cx.register(for_committer);
        // Set once, here.
        let _ = for_source.committer.set(cx.waker(0));
        Committer {
            disk: for_source,
            file,
            covers: None,
        }
    })?;
    let export = Arc::new(Export {
        name: "file".to_owned(),
        description: path.clone(),
        backend: disk,
        device: Device::new("file", DeviceOptions::default()),
        files: vec![BackendFile {
            id: FileId::LOG,
            fd,
            align,
        }],
        latencies: serve::latency::Latencies::unobserved(),
    });
    let handles = vec![reactor.handle().clone()];
    let server = Server::new(handles, Arc::new(One(export)), server_options(&args)?)?;
    server.listen(&Listen::Unix(socket.into()))?;
    eprintln!("{:?}: nbd+unix:///file?socket={socket}", reactor.backend());
    // Until the standard input ends: whoever started this ends it.
    std::io::copy(&mut std::io::stdin(), &mut std::io::sink())?;
    let ended = server.stop(std::time::Duration::from_secs(5));
    eprintln!("{ended:?}");
    Ok(())
}
