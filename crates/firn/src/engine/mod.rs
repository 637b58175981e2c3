//! The engine with everything it stands on: files, store, clock, reactors.
//!
//! Owns the threads and the order in which they start and stop. Reactors carry the clients'
//! bytes and the commit path; the job thread and the runtime carry the rest.

mod commit_io;
mod io_executor;
pub(crate) mod wakeup;

use std::os::fd::OwnedFd;
use std::sync::{Arc, OnceLock};
use std::task::Waker;
use std::thread;
use std::time::Duration;

use blkmq::io::FileId;
use nbd::server::BackendFile;
use reactor::{BackendKind, Config, DioAlign, Reactor};
use store::SharedStore;
use tokio::runtime::Handle;
use ublk::device::Live;
use ublk::exit::Limits;
use volume::{Host, Notify, Options, RecoveryReport, Setup};

use crate::config::Settings;
use crate::engine::commit_io::Committer;
use crate::engine::io_executor::{Clock, Edge, JobThread};
use crate::engine::wakeup::Bell;
use crate::failure::{Failure, Result};
use crate::local_files::{self, CacheDir, Disk, RingFiles};
use crate::metrics::Counters;
use crate::units::Size;

/// How long reactors get to let go of what is in flight when the server ends.
const REACTOR_PATIENCE: Duration = Duration::from_secs(5);

/// Completion queue entries of a reactor: every tag of every disk that it serves may have one.
const COMPLETIONS: u32 = 16_384;

/// The largest segment of a log: larger ones make reclaiming coarse.
const SEGMENT_BYTES_MAX: u64 = 16 << 20;
/// The smallest: a large write spans few segments.
const SEGMENT_BYTES_MIN: u64 = 1 << 20;
/// Segments that a log should have at least, so that some can be reclaimed while others fill.
const SEGMENTS: u64 = 64;

/// A running engine.
#[derive(Debug)]
pub(crate) struct Engine {
    pub(crate) host: Host,
    pub(crate) counters: Arc<Counters>,
    pub(crate) report: RecoveryReport,
    pub(crate) reactors: Vec<Reactor>,
    /// The names of their threads.
    pub(crate) threads: Vec<String>,
    /// The files that plans name, as transports take them.
    pub(crate) export_files: Vec<BackendFile>,
    jobs: JobThread,
    files: CacheDir,
}

/// Passes the engine's wishes on, from any thread, without waiting.
#[derive(Debug, Default)]
struct Bells {
    jobs: Arc<Bell>,
    /// Of the reactor that has the committer; set once it is attached. What is wanted before
    /// that, the committer finds when it comes.
    commit: OnceLock<Waker>,
}

impl Notify for Bells {
    fn commit_ready(&self) {
        if let Some(waker) = self.commit.get() {
            waker.wake_by_ref();
        }
    }

    fn jobs_ready(&self) {
        self.jobs.ring();
    }
}

impl Engine {
    /// Starts the engine on these files and waits for its recovery.
    pub(crate) async fn start(
        settings: &Settings,
        store: SharedStore,
        files: CacheDir,
        runtime: &Handle,
    ) -> Result<Self> {
        let options = options(settings, &files);
        let memory = reactor::memfd(c"firn-fetched", options.memory_bytes)
            .map_err(|source| failed("make memory for fetched bytes", &source))?;
        let memory = std::fs::File::from(memory);
        let export_files = export_files(&files, &memory)?;
        let disk = Disk {
            log: Arc::clone(&files.log.file),
            log_direct: files.log.align.is_some(),
            cache: Arc::clone(&files.cache.file),
            cache_direct: files.cache.align.is_some(),
            memory: Arc::new(memory),
        };
        let bells = Arc::new(Bells::default());
        let clock = Clock::start();
        let setup = setup(settings, &files, options, &bells, clock)?;
        let (host, recovered) = Host::start(setup);
        let counters = Arc::new(Counters::default());
        let jobs = Edge::new(
            host.clone(),
            store,
            disk,
            runtime.clone(),
            Arc::clone(&counters),
            clock,
        )
        .start(Arc::clone(&bells.jobs))
        .map_err(|source| failed("start a thread", &source))?;
        let reactors = start_reactors()?;
        attach_committer(&reactors, &host, &bells, &export_files)?;
        let report = recovered.await.map_err(Failure::from)?;
        check_segments(settings, report.segment_bytes)?;
        Ok(Engine {
            host,
            counters,
            report,
            threads: (0..reactors.len()).map(thread_name).collect(),
            reactors,
            export_files,
            jobs,
            files,
        })
    }

    /// What carries the clients' bytes: what was granted, not what was asked for (R9).
    pub(crate) fn backend(&self) -> &'static str {
        match self.reactors.first().map(Reactor::backend) {
            Some(BackendKind::IoUring) => "io_uring",
            _ => "epoll: io_uring is refused here, see `firn doctor`",
        }
    }

    /// Where the log and the cache are.
    pub(crate) fn files(&self) -> &CacheDir {
        &self.files
    }

    /// Stops the threads. Everything has been brought to the store, or stays in the log. Disks
    /// are left to the next server, in the order of `ublk::exit`.
    pub(crate) fn stop(&mut self, disks: Option<(ublk::control::Control, Vec<Live>)>) {
        let reactors = std::mem::take(&mut self.reactors);
        let reports = match disks {
            Some((control, devices)) => {
                let limits = Limits {
                    drain: REACTOR_PATIENCE,
                    ..Limits::default()
                };
                let count = devices.len();
                let left = ublk::exit::leave(&control, devices, reactors, limits);
                tracing::info!(
                    disks = count,
                    unquiesced = left.unquiesced.len(),
                    unseen = left.unseen.len(),
                    drained = ?left.drained,
                    quiesced = ?left.quiesced,
                    stopped = ?left.stopped,
                    closed = ?left.closed,
                    seen = ?left.seen,
                    "disks wait for the next server"
                );
                left.reactors
            }
            None => {
                let stops = reactors.into_iter();
                stops
                    .map(|reactor| reactor.stop(REACTOR_PATIENCE))
                    .collect()
            }
        };
        for report in reports {
            if report.ops_abandoned > 0 || report.panics > 0 || report.thread_stuck {
                tracing::error!(?report, "a reactor did not end well");
            }
        }
        self.jobs.stop();
    }
}

fn failed(what: &str, source: &std::io::Error) -> Failure {
    Failure::internal(format!("cannot {what}: {source}"))
}

fn options(settings: &Settings, files: &CacheDir) -> Options {
    let log_bytes = files.log.bytes;
    Options {
        log_bytes,
        segment_bytes: settings
            .segment_size
            .map_or_else(|| segment_bytes(log_bytes), |size| size.0),
        cache_bytes: files.cache.bytes,
        rpo_ns: u64::try_from(settings.rpo.as_nanos()).unwrap_or(u64::MAX),
        take_over: settings.take_over,
        ..Options::default()
    }
}

/// A log keeps the segments that it was made with.
fn check_segments(settings: &Settings, found: u64) -> Result<()> {
    match settings.segment_size {
        Some(wanted) if wanted.0 != found => Err(Failure::invalid(format!(
            "the log of this cache directory has segments of {}, --segment-size says {wanted}, and \
             that cannot change; leave --segment-size out, or stop the server in good order and \
             name a new --cache",
            Size(found)
        ))),
        _ => Ok(()),
    }
}

/// Of a log that is made without another wish: an older one keeps what it has.
fn segment_bytes(log_bytes: u64) -> u64 {
    (log_bytes / SEGMENTS)
        .next_power_of_two()
        .clamp(SEGMENT_BYTES_MIN, SEGMENT_BYTES_MAX)
}

fn setup(
    settings: &Settings,
    files: &CacheDir,
    options: Options,
    bells: &Arc<Bells>,
    clock: Clock,
) -> Result<Setup> {
    let rings = RingFiles::open(&settings.ring_dir, &files.path, files.fresh)?;
    let mount_id = rings.mount_id();
    let mut entropy = [0; 32];
    rustix::rand::getrandom(&mut entropy, rustix::rand::GetRandomFlags::empty())
        .map_err(|source| failed("get random bytes", &source.into()))?;
    let name = rustix::system::uname();
    Ok(Setup {
        options,
        rings: Arc::new(rings),
        notify: Arc::clone(bells) as Arc<dyn Notify>,
        boot_id: local_files::boot_id()?,
        mount_id,
        entropy,
        label: format!(
            "{}:{}",
            name.nodename().to_string_lossy(),
            files.path.display()
        ),
        now: clock.now(),
    })
}

fn export_files(files: &CacheDir, memory: &std::fs::File) -> Result<Vec<BackendFile>> {
    let of = |id, file: &std::fs::File, align| -> Result<BackendFile> {
        // The same open file description: the log's lock lives as long as any I/O on it.
        let fd = file
            .try_clone()
            .map_err(|source| failed("share a file", &source))?;
        Ok(BackendFile {
            id,
            fd: Arc::new(OwnedFd::from(fd)),
            align,
        })
    };
    Ok(vec![
        of(
            FileId::LOG,
            &files.log.file,
            files.log.align.unwrap_or(DioAlign::NONE),
        )?,
        of(
            FileId::CACHE,
            &files.cache.file,
            files.cache.align.unwrap_or(DioAlign::NONE),
        )?,
        of(FileId::MEMORY, memory, DioAlign::NONE)?,
    ])
}

fn thread_name(reactor: usize) -> String {
    format!("firn-reactor-{reactor}")
}

fn start_reactors() -> Result<Vec<Reactor>> {
    let count = thread::available_parallelism().map_or(1, usize::from);
    (0..count)
        .map(|n| {
            let config = Config {
                name: thread_name(n),
                completions: COMPLETIONS,
                ..Config::default()
            };
            Reactor::start(config).map_err(|source| failed("start a reactor", &source))
        })
        .collect()
}

fn attach_committer(
    reactors: &[Reactor],
    host: &Host,
    bells: &Arc<Bells>,
    files: &[BackendFile],
) -> Result<()> {
    let gone = || Failure::internal("a reactor ended while it was set up");
    let log = files
        .iter()
        .find(|file| file.id == FileId::LOG)
        .ok_or_else(gone)?;
    let reactor = reactors.first().ok_or_else(gone)?;
    let (host, bells, fd) = (host.clone(), Arc::clone(bells), Arc::clone(&log.fd));
    reactor
        .handle()
        .attach(move |cx| {
            let log = cx.register(fd);
            bells.commit.get_or_init(|| cx.waker(0));
            Committer::new(host, log)
        })
        .map_err(|_| gone())
}

#[cfg(test)]
mod tests;
