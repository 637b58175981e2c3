//! How a procedure of the engine asks for I/O, computing and time.
//!
//! Counts what failed, and logs it with its place at most once a second of each kind. It repeats nothing:
//! what follows from a failure is decided by the procedure that asked.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use blkmq::io::FileId;
use bytes::Bytes;

use super::executor::Jobs;
use super::reply::Reply;
use crate::driver::{
    Computation, ComputeError, ComputeKind, DiskError, DiskOp, Outcome, RequestOp, StoreError,
    StoreOp, StoreReply,
};
use crate::failures::FailureKind;
use crate::lock::lock;
use crate::sync::Mutex;
use crate::units::Now;

/// How a procedure asks for I/O, computing and time.
#[derive(Clone, Debug)]
pub(crate) struct Port(pub(crate) Arc<Jobs>);

impl Port {
    /// Asks for a disk operation; it is emitted by this call, awaited by the future.
    pub(crate) fn disk(
        &self,
        op: DiskOp,
    ) -> impl Future<Output = Result<Bytes, DiskError>> + Send + use<> {
        let (place, kind) = (op.place(), FailureKind::of_disk(&op));
        let reply = self.0.emit(RequestOp::Disk(op));
        let jobs = Arc::clone(&self.0);
        async move {
            let result = match reply.await {
                Outcome::Disk(result) => result,
                other => Err(DiskError::new(format!(
                    "a {} outcome for a disk request",
                    other.kind()
                ))),
            };
            result.map_err(|error| {
                let error = error.at(place);
                if let Some(unlogged) = jobs.failures.record(kind, jobs.mono_ns()) {
                    tracing::warn!(error = error.cause, unlogged, "I/O of the engine failed");
                }
                error
            })
        }
    }

    /// Asks for a store operation; it is emitted by this call, awaited by the future.
    pub(crate) fn store(
        &self,
        op: StoreOp,
    ) -> impl Future<Output = Result<StoreReply, StoreError>> + Send + use<> {
        let reply = self.0.emit(RequestOp::Store(op));
        let jobs = Arc::clone(&self.0);
        async move {
            let result = match reply.await {
                Outcome::Store(result) => result,
                other => Err(StoreError::Unavailable(format!(
                    "a {} outcome for a store request",
                    other.kind()
                ))),
            };
            if let Err(
                StoreError::Unknown(_) | StoreError::Unavailable(_) | StoreError::Denied(_),
            ) = &result
            {
                jobs.failures.count(FailureKind::Store);
            }
            result
        }
    }

    /// Has `work` done on another thread: whatever takes longer than about a millisecond. It is handed
    /// out by this call; the future ends with its result. `bytes` is about how much it reads.
    pub(crate) fn compute<T: Send + 'static>(
        &self,
        kind: ComputeKind,
        bytes: u64,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> PendingComputation<T> {
        let result = Arc::new(Mutex::new(None));
        let slot = Arc::clone(&result);
        let run = move || {
            let value = work();
            *lock(&slot) = Some(value);
        };
        let reply = self
            .0
            .emit(RequestOp::Compute(Computation::new(kind, bytes, run)));
        PendingComputation {
            kind,
            reply,
            result,
        }
    }

    /// Reads exactly `len` bytes.
    pub(crate) async fn read(
        &self,
        file: FileId,
        offset: u64,
        len: usize,
    ) -> Result<Bytes, DiskError> {
        let op = DiskOp::Read { file, offset, len };
        let place = op.place();
        let data = self.disk(op).await?;
        if data.len() == len {
            return Ok(data);
        }
        Err(DiskError::new(format!("it gave {} bytes", data.len())).at(place))
    }

    pub(crate) async fn write(
        &self,
        file: FileId,
        offset: u64,
        data: Vec<u8>,
    ) -> Result<(), DiskError> {
        self.disk(DiskOp::Write { file, offset, data })
            .await
            .map(drop)
    }

    pub(crate) async fn sync(&self, file: FileId) -> Result<(), DiskError> {
        self.disk(DiskOp::Sync { file }).await.map(drop)
    }

    pub(crate) fn now(&self) -> Now {
        self.0.now()
    }

    /// Lets everything else that is ready go first, and its requests go out: for procedures that
    /// compute for long (packing), so that a fetch or a new segment does not wait for them.
    pub(crate) async fn pause(&self) {
        let mut paused = false;
        std::future::poll_fn(|cx| {
            if std::mem::replace(&mut paused, true) {
                return Poll::Ready(());
            }
            lock(&self.0.inner).pausing.push(cx.waker().clone());
            Poll::Pending
        })
        .await;
    }

    /// Sleeps for `ns`.
    pub(crate) fn sleep(&self, ns: u64) -> Sleep {
        Sleep {
            jobs: Arc::clone(&self.0),
            until: self.now().mono_ns.saturating_add(ns),
            timer: None,
        }
    }
}

/// The result of [`Port::compute`], when it is there. Dropping it leaves the computation to run its course.
pub(crate) struct PendingComputation<T> {
    kind: ComputeKind,
    reply: Reply,
    result: Arc<Mutex<Option<T>>>,
}

impl<T> Future for PendingComputation<T> {
    type Output = Result<T, ComputeError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let Poll::Ready(outcome) = Pin::new(&mut self.reply).poll(cx) else {
            return Poll::Pending;
        };
        Poll::Ready(match outcome {
            Outcome::Compute(Ok(())) => {
                let value = lock(&self.result).take();
                value.ok_or_else(|| ComputeError::dropped(self.kind))
            }
            Outcome::Compute(Err(error)) => Err(error),
            other => Err(ComputeError(format!(
                "{}: a {} outcome for a computation",
                self.kind.name(),
                other.kind()
            ))),
        })
    }
}

/// Ends when time has passed. Dropping it takes the timer back.
pub(crate) struct Sleep {
    jobs: Arc<Jobs>,
    until: u64,
    timer: Option<u64>,
}

impl Future for Sleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let jobs = Arc::clone(&self.jobs);
        let mut inner = lock(&jobs.inner);
        if let Some(timer) = self.timer.take() {
            inner.timers.remove(&(self.until, timer));
        }
        if inner.now.mono_ns >= self.until {
            return Poll::Ready(());
        }
        let timer = inner.next_timer;
        inner.next_timer += 1;
        inner.timers.insert((self.until, timer), cx.waker().clone());
        self.timer = Some(timer);
        Poll::Pending
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        if let Some(timer) = self.timer {
            lock(&self.jobs.inner).timers.remove(&(self.until, timer));
        }
    }
}
