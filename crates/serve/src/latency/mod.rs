//! How long requests take: per volume, operation and step.
//!
//! A thread that serves requests counts into tables that it alone writes, so counting is an addition
//! without a lock and without an atomic read-modify-write. Whoever wants to know sums up the tables of
//! all threads. Tables are made for operations and steps that occur, so that an idle volume has none
//! (R5). Nothing here may wait or log: slow requests are put into a bounded list for others to report.

mod histogram;
mod slow;
mod timeline;

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::ThreadId;
use std::time::Duration;

use blkmq::SmallLock;
use blkmq::error::ErrorKind;
use blkmq::io::Op;

use reactor::monotonic_ns;

use histogram::{Histogram, raise};
pub use histogram::{HistogramCounts, bucket_bound_us};
pub use slow::{SlowRequest, SlowRequests};
pub(crate) use timeline::Timeline;

/// What a request asks, without its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum OpKind {
    /// READ.
    Read,
    /// WRITE.
    Write,
    /// FLUSH.
    Flush,
    /// DISCARD or TRIM.
    Discard,
    /// WRITE_ZEROES.
    WriteZeroes,
    /// What is in a range.
    Status,
    /// A range that will be read.
    Prefetch,
}

impl OpKind {
    /// All of them.
    pub const ALL: [OpKind; 7] = [
        OpKind::Read,
        OpKind::Write,
        OpKind::Flush,
        OpKind::Discard,
        OpKind::WriteZeroes,
        OpKind::Status,
        OpKind::Prefetch,
    ];

    /// The kind of an operation.
    pub fn of(op: &Op) -> OpKind {
        match op {
            Op::Read { .. } => OpKind::Read,
            Op::Write { .. } => OpKind::Write,
            Op::Flush => OpKind::Flush,
            Op::Discard { .. } => OpKind::Discard,
            Op::WriteZeroes { .. } => OpKind::WriteZeroes,
            Op::Status { .. } => OpKind::Status,
            Op::Prefetch { .. } => OpKind::Prefetch,
        }
    }

    /// A word for labels.
    pub fn name(self) -> &'static str {
        match self {
            OpKind::Read => "read",
            OpKind::Write => "write",
            OpKind::Flush => "flush",
            OpKind::Discard => "discard",
            OpKind::WriteZeroes => "write-zeroes",
            OpKind::Status => "status",
            OpKind::Prefetch => "prefetch",
        }
    }
}

/// A step of a request, as far as its time is counted by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Step {
    /// It waited to be planned: the device was quiesced, or had no tag.
    Queue,
    /// It was planned. Of one request in [`Step::SAMPLED_EVERY`].
    Plan,
    /// It waited for a buffer of the pool.
    Buffer,
    /// It waited for log space.
    Space,
    /// It waited for bytes that only the store has.
    Fetch,
    /// Its bytes moved. Of one request in [`Step::SAMPLED_EVERY`].
    Move,
    /// It was committed and answered. Of one request in [`Step::SAMPLED_EVERY`].
    Commit,
    /// It waited for the group commit.
    Flush,
}

impl Step {
    /// All of them.
    pub const ALL: [Step; 8] = [
        Step::Queue,
        Step::Plan,
        Step::Buffer,
        Step::Space,
        Step::Fetch,
        Step::Move,
        Step::Commit,
        Step::Flush,
    ];

    /// The steps that every request takes are timed for one request in this many, because each would
    /// cost all of them a look at the clock. Waits are timed for all.
    pub const SAMPLED_EVERY: u32 = 16;

    /// A word for labels.
    pub fn name(self) -> &'static str {
        match self {
            Step::Queue => "queue",
            Step::Plan => "plan",
            Step::Buffer => "buffer",
            Step::Space => "space",
            Step::Fetch => "fetch",
            Step::Move => "move",
            Step::Commit => "commit",
            Step::Flush => "flush",
        }
    }
}

/// What one thread counted of one operation.
#[derive(Default)]
struct OpTable {
    requests: Histogram,
    bytes: AtomicU64,
    steps: [OnceLock<Box<Histogram>>; Step::ALL.len()],
}

impl OpTable {
    fn count_steps(&self, timeline: &Timeline) {
        for (step, took_ns) in timeline.steps() {
            let steps = &self.steps[step as usize];
            steps.get_or_init(Box::default).observe(took_ns);
        }
    }
}

/// What one thread counted of one volume.
#[derive(Default)]
pub(crate) struct ThreadTable([OnceLock<Box<OpTable>>; OpKind::ALL.len()]);

impl ThreadTable {
    /// A request of `bytes` was answered. Only this table's thread may call it.
    fn count(&self, kind: OpKind, bytes: u32, took_ns: u64) -> &OpTable {
        let table = self.0[kind as usize].get_or_init(Box::default);
        table.requests.observe(took_ns);
        raise(&table.bytes, u64::from(bytes));
        table
    }
}

/// The latencies of one volume, counted by every thread that serves it.
pub struct Latencies {
    volume: Arc<str>,
    tables: SmallLock<Vec<(ThreadId, Arc<ThreadTable>)>>,
    /// By operation. Failures are rare, so all threads share these.
    errors: [AtomicU64; OpKind::ALL.len()],
    slow: Arc<SlowRequests>,
}

impl Latencies {
    /// Those of this volume, whose slow requests go to `slow`.
    pub fn new(volume: &str, slow: Arc<SlowRequests>) -> Arc<Latencies> {
        Arc::new(Latencies {
            volume: volume.into(),
            tables: SmallLock::new("latency tables", Vec::new()),
            errors: Default::default(),
            slow,
        })
    }

    /// Those of a disk that nobody asks about.
    pub fn unobserved() -> Arc<Latencies> {
        Latencies::new("", Arc::default())
    }

    /// The table of the calling thread.
    pub(crate) fn table_of_this_thread(&self) -> Arc<ThreadTable> {
        let this = std::thread::current().id();
        let mut tables = self.tables.lock();
        if let Some((_, table)) = tables.iter().find(|(thread, _)| *thread == this) {
            return Arc::clone(table);
        }
        let table = Arc::<ThreadTable>::default();
        tables.push((this, Arc::clone(&table)));
        table
    }

    /// Counts a request that the calling thread answered without an engine.
    pub fn count(&self, op: &Op, bytes: u32, took: Duration) {
        let table = self.table_of_this_thread();
        table.count(OpKind::of(op), bytes, took.as_nanos() as u64);
    }

    /// A request was answered by the thread of `table`.
    pub(crate) fn on_answered(
        &self,
        table: &ThreadTable,
        (op, bytes): (&Op, u32),
        timeline: &Timeline,
        result: Result<(), ErrorKind>,
    ) {
        let took_ns = timeline.total_ns();
        match result {
            Ok(()) => {
                let counted = table.count(OpKind::of(op), bytes, took_ns);
                if timeline.has_steps() {
                    counted.count_steps(timeline);
                }
            }
            Err(_) => self.count_error(op),
        }
        if took_ns >= self.slow.threshold_ns() {
            self.slow.push(&self.volume, op, timeline, result.err());
        }
    }

    /// A request ended inside the multi-queue core, on any thread: cancelled, refused or timed out.
    pub(crate) fn on_ended_in_core(
        &self,
        op: &Op,
        timeline: &mut Timeline,
        result: Result<(), ErrorKind>,
    ) {
        // Closed: its client has gone, or the server leaves it to the next one.
        if let Err(error) = result
            && error != ErrorKind::Closed
        {
            self.count_error(op);
            timeline.on_resumed(monotonic_ns());
            if timeline.total_ns() >= self.slow.threshold_ns() {
                self.slow.push(&self.volume, op, timeline, Some(error));
            }
        }
    }

    fn count_error(&self, op: &Op) {
        self.errors[OpKind::of(op) as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// Everything that was counted up to now, by all threads.
    pub fn counts(&self) -> LatencyCounts {
        let tables: Vec<Arc<ThreadTable>> = {
            let tables = self.tables.lock();
            tables.iter().map(|(_, table)| Arc::clone(table)).collect()
        };
        let mut counts = LatencyCounts::default();
        for kind in OpKind::ALL {
            let of_kind = &mut counts.ops[kind as usize];
            of_kind.errors = self.errors[kind as usize].load(Ordering::Relaxed);
            for table in tables
                .iter()
                .filter_map(|table| table.0[kind as usize].get())
            {
                of_kind.requests.add(&table.requests.counts());
                of_kind.bytes += table.bytes.load(Ordering::Relaxed);
                for (step, histogram) in of_kind.steps.iter_mut().zip(&table.steps) {
                    if let Some(histogram) = histogram.get() {
                        step.add(&histogram.counts());
                    }
                }
            }
        }
        counts
    }
}

impl fmt::Debug for Latencies {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Latencies")
            .field("volume", &self.volume)
            .finish_non_exhaustive()
    }
}

/// What was counted of one operation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OpCounts {
    /// Requests that were served, by how long each took from admission to answer.
    pub requests: HistogramCounts,
    /// Bytes that they carried.
    pub bytes: u64,
    /// Requests that failed.
    pub errors: u64,
    steps: [HistogramCounts; Step::ALL.len()],
}

impl OpCounts {
    /// How long this step took, of the requests that took it.
    pub fn step(&self, step: Step) -> &HistogramCounts {
        &self.steps[step as usize]
    }

    fn each(&mut self, other: &OpCounts, each: fn(&mut HistogramCounts, &HistogramCounts)) {
        each(&mut self.requests, &other.requests);
        for (step, other) in self.steps.iter_mut().zip(&other.steps) {
            each(step, other);
        }
    }
}

/// What was counted of a volume, or of several.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LatencyCounts {
    ops: [OpCounts; OpKind::ALL.len()],
}

impl LatencyCounts {
    /// What was counted of an operation.
    pub fn op(&self, kind: OpKind) -> &OpCounts {
        &self.ops[kind as usize]
    }

    /// Requests of all operations, failed ones included.
    pub fn requests(&self) -> u64 {
        let of_op = |op: &OpCounts| op.requests.count() + op.errors;
        self.ops.iter().map(of_op).sum()
    }

    /// Adds what was counted elsewhere.
    pub fn add(&mut self, other: &LatencyCounts) {
        for (op, other) in self.ops.iter_mut().zip(&other.ops) {
            op.bytes += other.bytes;
            op.errors += other.errors;
            op.each(other, HistogramCounts::add);
        }
    }

    /// What was counted since `earlier`.
    #[must_use]
    pub fn since(mut self, earlier: &LatencyCounts) -> LatencyCounts {
        for (op, earlier) in self.ops.iter_mut().zip(&earlier.ops) {
            op.bytes = op.bytes.saturating_sub(earlier.bytes);
            op.errors = op.errors.saturating_sub(earlier.errors);
            op.each(earlier, HistogramCounts::subtract);
        }
        self
    }
}

#[cfg(test)]
mod tests;
