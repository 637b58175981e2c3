//! Carries out what the engine asks for: the join between it and the world.
//!
//! Owns the engine's clock and its job thread. Store requests become tokio tasks, background disk
//! requests blocking calls; the commit path's disk requests are the reactor's (see `commit`). It
//! must never decide what an outcome means: it reports what happened, and an unknown outcome as
//! unknown. Every request gets exactly one outcome, also when its task dies.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use store::{Kind, SharedStore, Store, Version};
use tokio::runtime::Handle;
use tokio::sync::Semaphore;
use volume::driver::{DiskError, DiskOp, RequestOp, StoreError, StoreOp, StoreReply};
use volume::units::Now;
use volume::{Host, Outcome, Request, RequestId};

use crate::abort_on_panic::Vital;
use crate::engine::wakeup::Bell;
use crate::local_files::Disk;
use crate::metrics::Counters;

/// Reads of the store at once: enough to fill a long line, few enough not to be throttled.
const READS_MAX: usize = 64;

/// Writes to the store at once. Each holds a pack in memory.
const WRITES_MAX: usize = 8;

/// Longest sleep of the job thread: its clock is never older than this.
const TICK: Duration = Duration::from_millis(250);

/// What requests are carried out with.
#[derive(Debug)]
pub(crate) struct Edge {
    host: Host,
    store: SharedStore,
    disk: Disk,
    runtime: Handle,
    reads: Semaphore,
    writes: Semaphore,
    counters: Arc<Counters>,
    clock: Clock,
    stop: AtomicBool,
}

/// The time as the engine sees it.
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

/// The running job thread. Dropping it stops the thread.
#[derive(Debug)]
pub(crate) struct JobThread {
    edge: Arc<Edge>,
    bell: Arc<Bell>,
    thread: Option<JoinHandle<()>>,
}

impl Edge {
    pub(crate) fn new(
        host: Host,
        store: SharedStore,
        disk: Disk,
        runtime: Handle,
        counters: Arc<Counters>,
        clock: Clock,
    ) -> Arc<Self> {
        Arc::new(Edge {
            host,
            store,
            disk,
            runtime,
            reads: Semaphore::new(READS_MAX),
            writes: Semaphore::new(WRITES_MAX),
            counters,
            clock,
            stop: AtomicBool::new(false),
        })
    }

    /// Starts the thread that runs the engine's jobs whenever `bell` rings.
    pub(crate) fn start(self: &Arc<Self>, bell: Arc<Bell>) -> std::io::Result<JobThread> {
        let edge = Arc::clone(self);
        let heard = Arc::clone(&bell);
        let thread = std::thread::Builder::new()
            .name("firn-jobs".to_owned())
            .spawn(move || {
                let _vital = Vital("the job thread");
                edge.run(&heard);
            })?;
        Ok(JobThread {
            edge: Arc::clone(self),
            bell,
            thread: Some(thread),
        })
    }

    fn run(self: &Arc<Self>, bell: &Bell) {
        while !self.stop.load(Ordering::Acquire) {
            self.host.tick(self.clock.now());
            let more = self.host.run_jobs();
            for request in self.host.take_requests() {
                self.dispatch(request);
            }
            if !more {
                bell.wait(self.until_next_timer());
            }
        }
    }

    fn until_next_timer(&self) -> Duration {
        let at = self.host.next_tick_ns();
        Duration::from_nanos(at.saturating_sub(self.clock.now().mono_ns)).min(TICK)
    }

    fn dispatch(self: &Arc<Self>, request: Request) {
        let of = match request.op {
            RequestOp::Disk(_) => Of::Disk,
            RequestOp::Store(_) => Of::Store,
        };
        let answer = Answer {
            edge: Arc::clone(self),
            id: Some(request.id),
            of,
        };
        match request.op {
            RequestOp::Disk(op) => {
                drop(self.runtime.spawn_blocking(move || {
                    let result = answer.edge.disk(op);
                    answer.give(Outcome::Disk(result));
                }));
            }
            RequestOp::Store(op) => {
                drop(self.runtime.spawn(async move {
                    let result = answer.edge.store(op).await;
                    answer.give(Outcome::Store(result));
                }));
            }
        }
    }

    fn disk(&self, op: DiskOp) -> Result<Vec<u8>, DiskError> {
        self.disk.run(op).inspect_err(|error| {
            self.counters.disk_error();
            tracing::error!(error = %error.0, "a local file failed");
        })
    }

    async fn store(&self, op: StoreOp) -> Result<StoreReply, StoreError> {
        let lane = if writes(&op) {
            &self.writes
        } else {
            &self.reads
        };
        // The semaphores are never closed; if they were, going on without a permit is right.
        let _permit = lane.acquire().await;
        let index = counter_index(&op);
        let result = self.attempt(op).await;
        self.counters
            .store_request(index, result.as_ref().err().map(store::Error::kind));
        result.map_err(|error| told(&error))
    }

    async fn attempt(&self, op: StoreOp) -> store::Result<StoreReply> {
        let written = |version: Version| StoreReply::Written {
            version: seen(version),
        };
        match op {
            StoreOp::Get { key } => {
                let (bytes, version) = self.store.get(&key).await?;
                self.counters.store_read(bytes.len());
                Ok(StoreReply::Object {
                    data: bytes.into(),
                    version: seen(version),
                })
            }
            StoreOp::GetRange { key, offset, len } => {
                let bytes = self.store.get_range(&key, offset, len).await?;
                self.counters.store_read(bytes.len());
                Ok(StoreReply::Range(bytes.into()))
            }
            StoreOp::Put { key, data } => {
                self.counters.store_written(data.len());
                self.store.put(&key, Bytes::from(data)).await.map(written)
            }
            StoreOp::Create { key, data } => {
                self.counters.store_written(data.len());
                self.store
                    .create(&key, Bytes::from(data))
                    .await
                    .map(written)
            }
            StoreOp::Update { key, data, version } => {
                self.counters.store_written(data.len());
                let version = Version(version.0);
                self.store
                    .update(&key, Bytes::from(data), &version)
                    .await
                    .map(written)
            }
            StoreOp::Delete { key } => self.store.delete(&key).await.map(|()| StoreReply::Deleted),
            StoreOp::List { prefix } => {
                let found = self.store.list(&prefix).await?;
                Ok(StoreReply::Keys(
                    found.into_iter().map(|(key, _)| key).collect(),
                ))
            }
        }
    }
}

/// The duty to give one outcome. Dropped without it (a task that panicked, a runtime that shut
/// down), it says that nobody knows.
struct Answer {
    edge: Arc<Edge>,
    id: Option<RequestId>,
    of: Of,
}

/// What kind of request is answered.
#[derive(Clone, Copy)]
enum Of {
    Disk,
    Store,
}

impl Answer {
    fn give(mut self, outcome: Outcome) {
        if let Some(id) = self.id.take() {
            self.edge.host.complete(id, outcome);
        }
    }
}

impl Drop for Answer {
    fn drop(&mut self) {
        if let Some(id) = self.id.take() {
            let why = "its task ended without a result".to_owned();
            let outcome = match self.of {
                Of::Disk => Outcome::Disk(Err(DiskError(why))),
                Of::Store => Outcome::Store(Err(StoreError::Unknown(why))),
            };
            self.edge.host.complete(id, outcome);
        }
    }
}

impl JobThread {
    /// Stops the thread after its current round.
    pub(crate) fn stop(&mut self) {
        let Some(thread) = self.thread.take() else {
            return;
        };
        self.edge.stop.store(true, Ordering::Release);
        self.bell.ring();
        if thread.join().is_err() {
            tracing::error!("the job thread panicked");
        }
    }
}

impl Drop for JobThread {
    fn drop(&mut self) {
        self.stop();
    }
}

fn writes(op: &StoreOp) -> bool {
    match op {
        StoreOp::Put { .. }
        | StoreOp::Create { .. }
        | StoreOp::Update { .. }
        | StoreOp::Delete { .. } => true,
        StoreOp::Get { .. } | StoreOp::GetRange { .. } | StoreOp::List { .. } => false,
    }
}

/// The operation's place in [`crate::metrics::STORE_OPS`].
fn counter_index(op: &StoreOp) -> usize {
    match op {
        StoreOp::Get { .. } => 0,
        StoreOp::GetRange { .. } => 1,
        StoreOp::Put { .. } => 2,
        StoreOp::Create { .. } => 3,
        StoreOp::Update { .. } => 4,
        StoreOp::Delete { .. } => 5,
        StoreOp::List { .. } => 6,
    }
}

fn seen(version: Version) -> volume::driver::Version {
    volume::driver::Version(version.0)
}

/// A store's error in the engine's words.
fn told(error: &store::Error) -> StoreError {
    match error.kind() {
        Kind::NotFound => StoreError::NotFound,
        Kind::Lost => StoreError::PreconditionFailed,
        Kind::Unknown => StoreError::Unknown(error.chain()),
        Kind::Unavailable => StoreError::Unavailable(error.chain()),
        _ => StoreError::Denied(error.chain()),
    }
}
