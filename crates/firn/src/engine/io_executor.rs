//! Carries out the engine's store requests, background disk requests and computations.
//!
//! Owns the engine's clock and its job thread. A store request becomes a tokio task, a background
//! disk request a blocking call, a computation a job of `compute`'s threads; the committer's disk requests run
//! on a reactor (`commit_io`).
//! This file must never interpret an outcome: it reports what happened, and reports as unknown
//! what it does not know. Every request gets exactly one outcome, also when its task dies.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use store::{SharedStore, Store, Version};
use tokio::runtime::Handle;
use tokio::sync::Semaphore;
use volume::driver::{
    Computation, ComputeError, ComputeKind, DiskError, DiskOp, RequestOp, StoreError, StoreOp,
    StoreReply,
};
use volume::units::Now;
use volume::{Host, Outcome, Request, RequestId};

use crate::abort_on_panic::AbortOnPanic;
use crate::engine::compute::{ComputeQueues, ComputeThreads, Lane};
use crate::engine::wakeup::Wakeup;
use crate::local_files::{BlockingIo, PIECE_BYTES};
use crate::metrics::IoCounters;
use crate::store_answers::{into_engine_version, into_store_error};

/// Concurrent reads of the store: enough to hide its latency, few enough not to be throttled.
const READS_MAX: usize = 64;

/// Packs on their way to the store at once. Each is in memory.
const PACKS_MAX: usize = 8;

/// Background requests to local files at once. Each has a thread, and more of them make no disk quicker.
pub(crate) const DISK_CALLS_MAX: usize = 32;

/// Of them, those that move more than a piece at once: each has one piece under way, and four keep a disk busy. With 32 MiB of
/// them before it in the disk's queue, a client's 4 KiB waited for 20 ms.
const TRANSFERS_MAX: usize = 4;

/// Longest sleep of the job thread: its clock is never older than this.
const TICK_INTERVAL: Duration = Duration::from_millis(250);

/// How long procedures run before their requests are handed out and time passes for all of them.
const RUN_MAX: Duration = Duration::from_millis(1);

/// Everything that carrying out requests needs.
#[derive(Debug)]
pub(crate) struct IoExecutor {
    host: Host,
    store: SharedStore,
    files: BlockingIo,
    runtime: Handle,
    reads: Semaphore,
    packs: Semaphore,
    disk_calls: Arc<Semaphore>,
    transfers: Arc<Semaphore>,
    compute: Arc<ComputeQueues>,
    counters: Arc<IoCounters>,
    clock: Clock,
    stop: AtomicBool,
}

/// The time that the engine sees.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    started: Instant,
}

impl Clock {
    pub(crate) fn start() -> Self {
        Clock {
            started: Instant::now(),
        }
    }

    pub(crate) fn now(self) -> Now {
        let mono = self.started.elapsed().as_nanos();
        let unix = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .map_or(0, |d| d.as_millis());
        Now {
            mono_ns: u64::try_from(mono).unwrap_or(u64::MAX),
            unix_ms: u64::try_from(unix).unwrap_or(u64::MAX),
        }
    }
}

/// The running job thread and those that compute for it. Dropping it stops the threads.
#[derive(Debug)]
pub(crate) struct JobThread {
    executor: Arc<IoExecutor>,
    wakeup: Arc<Wakeup>,
    thread: Option<JoinHandle<()>>,
    compute: ComputeThreads,
}

impl IoExecutor {
    pub(crate) fn new(
        host: Host,
        store: SharedStore,
        files: BlockingIo,
        runtime: Handle,
        counters: Arc<IoCounters>,
        clock: Clock,
    ) -> Arc<Self> {
        Arc::new(IoExecutor {
            host,
            store,
            files,
            runtime,
            reads: Semaphore::new(READS_MAX),
            packs: Semaphore::new(PACKS_MAX),
            disk_calls: Arc::new(Semaphore::new(DISK_CALLS_MAX - TRANSFERS_MAX)),
            transfers: Arc::new(Semaphore::new(TRANSFERS_MAX)),
            compute: Arc::default(),
            counters,
            clock,
            stop: AtomicBool::new(false),
        })
    }

    /// Starts the thread that runs the engine's jobs whenever `wakeup` wakes it.
    pub(crate) fn start(self: &Arc<Self>, wakeup: Arc<Wakeup>) -> std::io::Result<JobThread> {
        let compute = ComputeThreads::start(&self.compute)?;
        let executor = Arc::clone(self);
        let sleeper = Arc::clone(&wakeup);
        let thread = std::thread::Builder::new()
            .name("firn-jobs".to_owned())
            .spawn(move || {
                let _guard = AbortOnPanic("the job thread");
                executor.run(&sleeper);
            })?;
        Ok(JobThread {
            executor: Arc::clone(self),
            wakeup,
            thread: Some(thread),
            compute,
        })
    }

    fn run(self: &Arc<Self>, wakeup: &Wakeup) {
        while !self.stop.load(Ordering::Acquire) {
            self.host.tick(self.clock.now());
            let begun = Instant::now();
            let more = self.host.run_jobs_while(|| begun.elapsed() < RUN_MAX);
            self.counters.observe_job_stretch(begun.elapsed());
            for request in self.host.take_requests() {
                self.dispatch(request);
            }
            if !more {
                wakeup.wait(self.until_next_timer());
            }
        }
    }

    fn until_next_timer(&self) -> Duration {
        let at = self.host.next_tick_ns();
        Duration::from_nanos(at.saturating_sub(self.clock.now().mono_ns)).min(TICK_INTERVAL)
    }

    fn dispatch(self: &Arc<Self>, request: Request) {
        let kind = match &request.op {
            RequestOp::Disk(_) => RequestKind::Disk,
            RequestOp::Store(_) => RequestKind::Store,
            RequestOp::Compute(work) => RequestKind::Compute(work.kind()),
        };
        let guard = OutcomeGuard {
            executor: Arc::clone(self),
            id: Some(request.id),
            kind,
        };
        match request.op {
            RequestOp::Disk(op) => {
                let calls = if op.bytes() > PIECE_BYTES as u64 {
                    Arc::clone(&self.transfers)
                } else {
                    Arc::clone(&self.disk_calls)
                };
                drop(self.runtime.spawn(async move {
                    // Never closed; were it, going on without a permit is right.
                    let permit = calls.acquire_owned().await;
                    drop(tokio::task::spawn_blocking(move || {
                        let result = guard.executor.disk(op);
                        drop(permit);
                        guard.complete(Outcome::Disk(result));
                    }));
                }));
            }
            RequestOp::Store(op) => {
                drop(self.runtime.spawn(async move {
                    let result = guard.executor.store(op).await;
                    guard.complete(Outcome::Store(result));
                }));
            }
            RequestOp::Compute(work) => {
                let lane = if work.kind().is_awaited() {
                    Lane::Awaited
                } else {
                    Lane::Background
                };
                self.compute.push(lane, move || {
                    let result = guard.executor.compute(work);
                    guard.complete(Outcome::Compute(result));
                });
            }
        }
    }

    fn compute(&self, work: Computation) -> Result<(), ComputeError> {
        let (kind, begun) = (work.kind(), Instant::now());
        let result = work.run();
        self.counters.count_computation(kind, begun.elapsed());
        result.inspect_err(|error| {
            tracing::error!(error = %error.0, "a computation of the engine ended without a result");
        })
    }

    fn disk(&self, op: DiskOp) -> Result<Bytes, DiskError> {
        // The engine logs it: it knows the place, and how much it has logged.
        let result = self.files.execute(op);
        result.inspect_err(|_| self.counters.count_disk_error())
    }

    async fn store(&self, op: StoreOp) -> Result<StoreReply, StoreError> {
        // The semaphores are never closed; if they were, the request may go without a permit.
        let _permit = match &op {
            StoreOp::Put { .. } => self.packs.acquire().await.ok(),
            StoreOp::Get { .. }
            | StoreOp::GetRange { .. }
            | StoreOp::List { .. }
            | StoreOp::ListPart { .. } => self.reads.acquire().await.ok(),
            // Roots are small, and a volume's commit must not wait for other volumes' packs.
            StoreOp::Create { .. } | StoreOp::Update { .. } | StoreOp::Delete { .. } => None,
        };
        let index = counter_index(&op);
        let result = self.attempt(op).await;
        self.counters
            .count_store_request(index, result.as_ref().err().map(store::Error::kind));
        result.map_err(|error| into_store_error(&error))
    }

    async fn attempt(&self, op: StoreOp) -> store::Result<StoreReply> {
        let into_reply = |version: Version| StoreReply::Written {
            version: into_engine_version(version),
        };
        match op {
            StoreOp::Get { key } => {
                let (bytes, version) = self.store.get(&key).await?;
                self.counters.add_store_read(bytes.len());
                Ok(StoreReply::Object {
                    data: bytes.into(),
                    version: into_engine_version(version),
                })
            }
            StoreOp::GetRange { key, offset, len } => {
                let bytes = self.store.get_range(&key, offset, len).await?;
                self.counters.add_store_read(bytes.len());
                Ok(StoreReply::Range(bytes.into()))
            }
            StoreOp::Put { key, data } => {
                self.counters.add_store_written(data.len());
                self.store.create(&key, data).await.map(into_reply)
            }
            StoreOp::Create { key, data } => {
                self.counters.add_store_written(data.len());
                self.store
                    .create(&key, Bytes::from(data))
                    .await
                    .map(into_reply)
            }
            StoreOp::Update { key, data, version } => {
                self.counters.add_store_written(data.len());
                let version = Version(version.0);
                self.store
                    .update(&key, Bytes::from(data), &version)
                    .await
                    .map(into_reply)
            }
            StoreOp::Delete { key } => self.store.delete(&key).await.map(|()| StoreReply::Deleted),
            StoreOp::List { prefix } => {
                let found = self.store.list(&prefix).await?;
                Ok(StoreReply::Keys(found))
            }
            StoreOp::ListPart {
                prefix,
                after,
                limit,
            } => {
                let found = self.store.list_part(&prefix, &after, limit).await?;
                Ok(StoreReply::Keys(found))
            }
        }
    }
}

/// Completes one request exactly once. If it is dropped before (the task panicked, the runtime
/// shut down), it completes the request with an unknown outcome.
struct OutcomeGuard {
    executor: Arc<IoExecutor>,
    id: Option<RequestId>,
    kind: RequestKind,
}

#[derive(Clone, Copy)]
enum RequestKind {
    Disk,
    Store,
    Compute(ComputeKind),
}

impl OutcomeGuard {
    fn complete(mut self, outcome: Outcome) {
        if let Some(id) = self.id.take() {
            self.executor.host.complete(id, outcome);
        }
    }
}

impl Drop for OutcomeGuard {
    fn drop(&mut self) {
        if let Some(id) = self.id.take() {
            let why = "its task ended without a result".to_owned();
            let outcome = match self.kind {
                RequestKind::Disk => Outcome::Disk(Err(DiskError::new(why))),
                RequestKind::Store => Outcome::Store(Err(StoreError::Unknown(why))),
                RequestKind::Compute(kind) => Outcome::Compute(Err(ComputeError::dropped(kind))),
            };
            self.executor.host.complete(id, outcome);
        }
    }
}

impl JobThread {
    /// Stops the thread after its current round.
    pub(crate) fn stop(&mut self) {
        let Some(thread) = self.thread.take() else {
            return;
        };
        self.executor.stop.store(true, Ordering::Release);
        self.wakeup.wake();
        if thread.join().is_err() {
            tracing::error!("the job thread panicked");
        }
        self.compute.stop();
    }
}

impl Drop for JobThread {
    fn drop(&mut self) {
        self.stop();
    }
}

/// The operation's index in [`crate::metrics::STORE_OPS`].
fn counter_index(op: &StoreOp) -> usize {
    match op {
        StoreOp::Get { .. } => 0,
        StoreOp::GetRange { .. } => 1,
        StoreOp::Put { .. } => 2,
        StoreOp::Create { .. } => 3,
        StoreOp::Update { .. } => 4,
        StoreOp::Delete { .. } => 5,
        StoreOp::List { .. } | StoreOp::ListPart { .. } => 6,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use blkmq::io::FileId;
    use object_store::memory::InMemory;
    use store::ObjectStoreAdapter;
    use tokio::task::yield_now;
    use volume::{Options, Setup};

    use super::*;
    use crate::engine::EngineNotifier;
    use crate::local_files::RingFiles;

    const DEADLINE: Duration = Duration::from_secs(30);
    /// Each is of two pieces.
    const TRANSFER_BYTES: usize = PIECE_BYTES + 4096;
    const TRANSFERS: usize = 2 * TRANSFERS_MAX;
    const SMALL: usize = 10;

    /// An executor whose host runs no jobs, so that it knows none of the requests.
    fn executor(dir: &std::path::Path, runtime: Handle) -> Arc<IoExecutor> {
        let clock = Clock::start();
        let (host, _) = Host::start(Setup {
            options: Options::default(),
            rings: Arc::new(RingFiles::open(dir, dir).unwrap()),
            notify: Arc::new(EngineNotifier::default()),
            boot_id: [1; 16],
            entropy: [2; 32],
            label: "test".to_owned(),
            now: clock.now(),
            continues: None,
            may_begin: None,
        });
        let file = || Arc::new(tempfile::tempfile_in(dir).unwrap());
        let files = BlockingIo {
            log: file(),
            log_direct: false,
            cache: file(),
            cache_direct: false,
            memory: file(),
            buffers: Arc::default(),
        };
        let store = Arc::new(ObjectStoreAdapter::new(Arc::new(InMemory::new()), "memory"));
        IoExecutor::new(host, store, files, runtime, Arc::default(), clock)
    }

    fn offset_of(nth: usize) -> u64 {
        (nth * TRANSFER_BYTES) as u64
    }

    fn write(executor: &Arc<IoExecutor>, nth: usize, bytes: usize) {
        let op = DiskOp::Write {
            file: FileId::LOG,
            offset: offset_of(nth),
            data: vec![nth as u8 + 1; bytes],
        };
        executor.dispatch(Request {
            id: RequestId(nth as u64),
            op: RequestOp::Disk(op),
        });
    }

    #[test]
    fn few_large_background_transfers_are_under_way_at_once_and_small_ones_do_not_wait_for_them() {
        let dir = tempfile::tempdir().unwrap();
        // The one thread for files is busy, so that whatever gets a place keeps it.
        let runtime = tokio::runtime::Builder::new_current_thread()
            .max_blocking_threads(1)
            .enable_all()
            .build()
            .unwrap();
        let executor = executor(dir.path(), runtime.handle().clone());
        let (transfers, calls) = (&executor.transfers, &executor.disk_calls);
        let calls_max = calls.available_permits();
        assert_eq!(transfers.available_permits(), TRANSFERS_MAX);
        runtime.block_on(async {
            let (release, busy) = mpsc::channel::<()>();
            drop(tokio::task::spawn_blocking(move || busy.recv().is_err()));
            (0..TRANSFERS).for_each(|nth| write(&executor, nth, TRANSFER_BYTES));
            // Each task begins.
            for _ in 0..TRANSFERS {
                yield_now().await;
            }
            assert_eq!(transfers.available_permits(), 0, "and as many wait");
            assert_eq!(calls.available_permits(), calls_max);
            // A piece is small.
            (TRANSFERS..TRANSFERS + SMALL).for_each(|nth| write(&executor, nth, PIECE_BYTES));
            for _ in 0..SMALL {
                yield_now().await;
            }
            assert_eq!(calls.available_permits(), calls_max - SMALL, "none waits");
            drop(release);
            // Those that wait for a place are before this.
            let all = u32::try_from(TRANSFERS_MAX).unwrap();
            let done = tokio::time::timeout(DEADLINE, transfers.acquire_many(all)).await;
            drop(done.expect("all are carried out").unwrap());
            let all = u32::try_from(calls_max).unwrap();
            let done = tokio::time::timeout(DEADLINE, calls.acquire_many(all)).await;
            drop(done.expect("all are carried out").unwrap());
        });
        for nth in 0..TRANSFERS + SMALL {
            let len = match nth < TRANSFERS {
                true => TRANSFER_BYTES,
                false => PIECE_BYTES,
            };
            let (file, offset) = (FileId::LOG, offset_of(nth));
            let found = executor.disk(DiskOp::Read { file, offset, len }).unwrap();
            assert!(found.iter().all(|byte| *byte == nth as u8 + 1), "{nth}");
        }
    }
}
