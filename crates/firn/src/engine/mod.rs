//! The running engine: the crate `volume` with its files, store, clock and threads.
//!
//! Owns the threads and the order in which they start and stop. Reactors carry the clients' bytes
//! and the committer's writes; the job thread, the threads that compute and the runtime carry out everything
//! else.

pub(crate) mod boot_sets;
mod commit_io;
mod compute;
mod io_executor;
pub(crate) mod wakeup;

pub(crate) use io_executor::DISK_CALLS_MAX;

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
use ublk::device::LiveDevice;
use ublk::exit::ExitTimeouts;
use volume::{
    CompactOptions, Continuation, Host, Notify, Options, Permission, RecoveryReport, Rings,
    ScrubOptions, Setup,
};

use crate::config::Settings;
use crate::engine::commit_io::CommitIo;
use crate::engine::io_executor::{Clock, IoExecutor, JobThread};
use crate::engine::wakeup::Wakeup;
use crate::failure::{Failure, Result};
use crate::local_files::{self, BlockingIo, CacheDir, RingFiles};
use crate::memory_plan::MemoryPlan;
use crate::metrics::IoCounters;
use crate::units::Size;

/// How long a reactor may take to finish operations in flight when the server stops.
const REACTOR_STOP_TIMEOUT: Duration = Duration::from_secs(5);

/// Completion queue entries of a reactor: every tag of every disk on it may complete at once.
const COMPLETION_ENTRIES: u32 = 16_384;

/// Largest segment of a log: larger ones make reclaim coarse.
const SEGMENT_BYTES_MAX: u64 = 16 << 20;
/// Smallest segment: a large write spans only a few.
const SEGMENT_BYTES_MIN: u64 = 1 << 20;
/// Number of segments that a log should have at least, so that some are reclaimed while others fill.
const SEGMENTS_TARGET: u64 = 64;

/// Live ublk devices that a stopping server leaves to the next one.
#[derive(Debug)]
pub(crate) struct LiveDisks {
    pub(crate) control: ublk::control::ControlDevice,
    pub(crate) devices: Vec<LiveDevice>,
}

/// A running engine.
#[derive(Debug)]
pub(crate) struct Engine {
    pub(crate) host: Host,
    pub(crate) counters: Arc<IoCounters>,
    pub(crate) report: RecoveryReport,
    pub(crate) reactors: Vec<Reactor>,
    /// The names of the reactors' threads.
    pub(crate) reactor_names: Vec<String>,
    /// The files that plans refer to, as transports take them.
    pub(crate) export_files: Vec<BackendFile>,
    /// Where the engine's rings are.
    pub(crate) rings: Arc<RingFiles>,
    jobs: JobThread,
    files: CacheDir,
}

/// Wakes the threads that the engine asks for, from any thread and without waiting.
#[derive(Debug, Default)]
struct EngineNotifier {
    job_thread: Arc<Wakeup>,
    /// Wakes the reactor that runs [`CommitIo`]; set when that is attached. Requests from before
    /// are taken then.
    committer: OnceLock<Waker>,
}

impl Notify for EngineNotifier {
    fn commit_ready(&self) {
        if let Some(waker) = self.committer.get() {
            waker.wake_by_ref();
        }
    }

    fn jobs_ready(&self) {
        self.job_thread.wake();
    }
}

impl Engine {
    /// Starts the engine on these files and waits for its recovery.
    pub(crate) async fn start(
        settings: &Settings,
        store: SharedStore,
        files: CacheDir,
        runtime: &Handle,
        continues: Option<Continuation>,
        may_begin: Option<Permission>,
    ) -> Result<Self> {
        let options = options(settings, &files, MemoryPlan::of_host());
        let memory = reactor::memfd(c"firn-fetched", options.memory_bytes)
            .map_err(|source| internal_io("allocate memory for fetched data", &source))?;
        let memory = std::fs::File::from(memory);
        let export_files = export_files(&files, &memory)?;
        let blocking_io = BlockingIo {
            log: Arc::clone(&files.log.file),
            log_direct: files.log.align.is_some(),
            cache: Arc::clone(&files.cache.file),
            cache_direct: files.cache.align.is_some(),
            memory: Arc::new(memory),
            buffers: Arc::default(),
        };
        let notifier = Arc::new(EngineNotifier::default());
        let clock = Clock::start();
        if let Some(why) = local_files::ring_dir::why_it_may_go(&settings.ring_dir) {
            tracing::warn!(why, "the index rings may not last");
        }
        let rings = Arc::new(RingFiles::open(&settings.ring_dir, &files.path)?);
        let setup = Setup {
            continues,
            may_begin,
            ..setup(&files, options, &rings, &notifier, clock)?
        };
        let (host, recovered) = Host::start(setup);
        let counters = Arc::new(IoCounters::default());
        let jobs = IoExecutor::new(
            host.clone(),
            store,
            blocking_io,
            runtime.clone(),
            Arc::clone(&counters),
            clock,
        )
        .start(Arc::clone(&notifier.job_thread))
        .map_err(|source| internal_io("start a thread", &source))?;
        let reactors = start_reactors()?;
        attach_commit_io(&reactors, &host, &notifier, &export_files, &counters)?;
        let report = recovered.await.map_err(Failure::from)?;
        check_segment_bytes(settings, report.segment_bytes)?;
        Ok(Engine {
            host,
            counters,
            report,
            reactor_names: (0..reactors.len()).map(thread_name).collect(),
            reactors,
            export_files,
            rings,
            jobs,
            files,
        })
    }

    /// The backend of the reactors: what was granted, not what was asked for (R9).
    pub(crate) fn backend(&self) -> &'static str {
        match self.reactors.first().map(Reactor::backend) {
            Some(BackendKind::IoUring) => "io_uring",
            _ => "epoll: io_uring is refused here, see `firn doctor`",
        }
    }

    /// The cache directory.
    pub(crate) fn files(&self) -> &CacheDir {
        &self.files
    }

    /// Stops the threads. All data is in the store or in the log by now. `disks` are left to the
    /// next server, in the order that `ublk::exit` defines.
    pub(crate) fn stop(&mut self, disks: Option<LiveDisks>) {
        let reactors = std::mem::take(&mut self.reactors);
        let reports = match disks {
            Some(LiveDisks { control, devices }) => {
                let limits = ExitTimeouts {
                    drain: REACTOR_STOP_TIMEOUT,
                    ..ExitTimeouts::default()
                };
                let count = devices.len();
                let left = ublk::exit::shut_down(&control, devices, reactors, limits);
                tracing::info!(
                    disks = count,
                    unquiesced = left.quiesce_failures.len(),
                    unseen = left.unconfirmed.len(),
                    drained = ?left.drain_time,
                    quiesced = ?left.quiesce_time,
                    stopped = ?left.stop_time,
                    closed = ?left.close_time,
                    seen = ?left.confirm_time,
                    "the disks are left to the next server"
                );
                left.reactors
            }
            None => {
                let stops = reactors.into_iter();
                stops
                    .map(|reactor| reactor.stop(REACTOR_STOP_TIMEOUT))
                    .collect()
            }
        };
        for report in reports {
            if report.ops_abandoned > 0 || report.panics > 0 || report.thread_stuck {
                tracing::error!(
                    ?report,
                    "a reactor stopped with operations in flight or after a panic"
                );
            }
        }
        self.jobs.stop();
    }
}

fn internal_io(what: &str, source: &std::io::Error) -> Failure {
    Failure::internal(format!("cannot {what}: {source}"))
}

fn options(settings: &Settings, files: &CacheDir, memory: MemoryPlan) -> Options {
    let log_bytes = files.log.bytes;
    Options {
        log_bytes,
        segment_bytes: settings
            .segment_size
            .map_or_else(|| segment_bytes(log_bytes), |size| size.0),
        cache_bytes: files.cache.bytes,
        memory_bytes: memory.fetched_bytes,
        index_bytes: memory.index_bytes,
        delta_extents_max: memory.delta_extents,
        pack_bytes: memory.pack_bytes,
        gc_interval_ns: settings.gc.ns(),
        compact: CompactOptions {
            interval_ns: settings.compact.ns(),
            ..CompactOptions::default()
        },
        scrub: ScrubOptions {
            interval_ns: settings.scrub.ns(),
            ..ScrubOptions::default()
        },
        rpo_ns: u64::try_from(settings.rpo.as_nanos()).unwrap_or(u64::MAX),
        ..Options::default()
    }
}

/// Refuses a segment size that differs from the existing log's: it is fixed when the log is made.
fn check_segment_bytes(settings: &Settings, found: u64) -> Result<()> {
    match settings.segment_size {
        Some(wanted) if wanted.0 != found => Err(Failure::invalid(format!(
            "the log of this cache directory has segments of {}, --segment-size says {wanted}, and \
             that cannot change; leave --segment-size out, or name a new --cache",
            Size(found)
        ))),
        _ => Ok(()),
    }
}

/// The segment size of a new log, unless the settings name one.
fn segment_bytes(log_bytes: u64) -> u64 {
    (log_bytes / SEGMENTS_TARGET)
        .next_power_of_two()
        .clamp(SEGMENT_BYTES_MIN, SEGMENT_BYTES_MAX)
}

fn setup(
    files: &CacheDir,
    options: Options,
    rings: &Arc<RingFiles>,
    notifier: &Arc<EngineNotifier>,
    clock: Clock,
) -> Result<Setup> {
    let mut entropy = [0; 32];
    rustix::rand::getrandom(&mut entropy, rustix::rand::GetRandomFlags::empty())
        .map_err(|source| internal_io("get random bytes", &source.into()))?;
    let name = rustix::system::uname();
    Ok(Setup {
        options,
        rings: Arc::clone(rings) as Arc<dyn Rings>,
        notify: Arc::clone(notifier) as Arc<dyn Notify>,
        boot_id: local_files::boot_id()?,
        entropy,
        label: format!(
            "{}:{}",
            name.nodename().to_string_lossy(),
            files.path.display()
        ),
        now: clock.now(),
        continues: None,
        may_begin: None,
    })
}

fn export_files(files: &CacheDir, memory: &std::fs::File) -> Result<Vec<BackendFile>> {
    let export_file = |id, file: &std::fs::File, align| -> Result<BackendFile> {
        // A duplicate shares the open file description: the log's lock lives as long as any I/O.
        let fd = file
            .try_clone()
            .map_err(|source| internal_io("share a file", &source))?;
        Ok(BackendFile {
            id,
            fd: Arc::new(OwnedFd::from(fd)),
            align,
        })
    };
    Ok(vec![
        export_file(
            FileId::LOG,
            &files.log.file,
            files.log.align.unwrap_or(DioAlign::NONE),
        )?,
        export_file(
            FileId::CACHE,
            &files.cache.file,
            files.cache.align.unwrap_or(DioAlign::NONE),
        )?,
        export_file(FileId::MEMORY, memory, DioAlign::NONE)?,
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
                completions: COMPLETION_ENTRIES,
                ..Config::default()
            };
            Reactor::start(config).map_err(|source| internal_io("start a reactor", &source))
        })
        .collect()
}

fn attach_commit_io(
    reactors: &[Reactor],
    host: &Host,
    notifier: &Arc<EngineNotifier>,
    files: &[BackendFile],
    counters: &Arc<IoCounters>,
) -> Result<()> {
    let reactor_ended = || Failure::internal("a reactor ended while it was set up");
    let log = files
        .iter()
        .find(|file| file.id == FileId::LOG)
        .ok_or_else(reactor_ended)?;
    let reactor = reactors.first().ok_or_else(reactor_ended)?;
    let (host, notifier, fd) = (host.clone(), Arc::clone(notifier), Arc::clone(&log.fd));
    let counters = Arc::clone(counters);
    reactor
        .handle()
        .attach(move |cx| {
            let log = cx.register(fd);
            notifier.committer.get_or_init(|| cx.waker(0));
            CommitIo::new(host, log, counters)
        })
        .map_err(|_| reactor_ended())
}

#[cfg(test)]
mod tests;
