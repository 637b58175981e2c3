//! A request as the multi-queue core carries it: its stage, its plan and its buffer.

use std::fmt;
use std::sync::{Arc, OnceLock};
use std::task::Waker;

use blkmq::error::ErrorKind;
use blkmq::io::{Backend, Direction, Op, Piece, Plan};
use blkmq::{Completer, Kick};
use reactor::Buf;

use crate::latency::{Latencies, Timeline};
use crate::moves::buffered::BufferedMove;
use crate::moves::fixed::FixedMove;
use crate::transport::{Location, Request};

/// A plan of either kind.
pub(crate) enum MovePlan<B: Backend> {
    Read(B::Read),
    Write(B::Write),
}

impl<B: Backend> MovePlan<B> {
    pub(crate) fn pieces(&self) -> &[Piece] {
        match self {
            MovePlan::Read(plan) => plan.pieces(),
            MovePlan::Write(plan) => plan.pieces(),
        }
    }

    pub(crate) fn direction(&self) -> Direction {
        match self {
            MovePlan::Read(_) => Direction::Read,
            MovePlan::Write(_) => Direction::Write,
        }
    }
}

/// The move of a plan's bytes.
pub(crate) enum Move {
    Fixed(FixedMove),
    Buffered(BufferedMove),
}

/// Where a request is in its four steps.
pub(crate) enum Stage<B: Backend> {
    /// To be planned (again).
    Plan,
    /// Planned; waits for a buffer.
    Buffer,
    /// Planned; a write's bytes come from its window.
    CopyIn,
    /// Planned; bytes are moving.
    Moving(Move),
    /// Done; a read's bytes go to its window.
    CopyOut,
    /// Done but for durability.
    Sync(B::Sync),
}

/// A request on its way. It is some hundred bytes and passes through many hands, so it stays at
/// one place from its admission to its answer, and its box is used again ([`JobPool`]).
pub(crate) struct Job<B: Backend, R: Request> {
    /// There until it is answered.
    request: Option<R>,
    pub(crate) stage: Stage<B>,
    /// Where its bytes are or go, from [`Stage::Buffer`] to the end of [`Stage::Moving`].
    pub(crate) planned: Option<MovePlan<B>>,
    /// Its bytes, or room for them, while they are not moving.
    pub(crate) data: Option<Buf>,
    /// `data` came with the request, and is kept while it waits.
    keeps_data: bool,
    /// Its slot cannot be used: its bytes are copied.
    pub(crate) is_copied: bool,
    pub(crate) timeline: Timeline,
}

impl<B: Backend, R: Request> Job<B, R> {
    fn new(mut request: R, timeline: Timeline) -> Job<B, R> {
        let data = request.take_buffer();
        Job {
            request: Some(request),
            stage: Stage::Plan,
            planned: None,
            keeps_data: data.is_some(),
            data,
            is_copied: false,
            timeline,
        }
    }

    /// Puts a request in the place of one that was answered.
    fn reuse(&mut self, mut request: R, timeline: Timeline) {
        self.timeline = timeline;
        self.data = request.take_buffer();
        self.keeps_data = self.data.is_some();
        self.is_copied = false;
        self.stage = Stage::Plan;
        self.planned = None;
        self.request = Some(request);
    }

    pub(crate) fn request(&self) -> &R {
        self.request.as_ref().expect("present until answered")
    }

    pub(crate) fn request_mut(&mut self) -> &mut R {
        self.request.as_mut().expect("present until answered")
    }

    /// Releases a buffer of the pool before a wait of unknown length (R5).
    pub(crate) fn release_buffer(&mut self) {
        if !self.keeps_data {
            self.data = None;
        }
    }

    /// Whether its bytes pass through its window, in a buffer of the engine's.
    pub(crate) fn is_by_window(&self) -> bool {
        !matches!(self.request().location(), Location::Buffer)
    }

    pub(crate) fn is_read(&self) -> bool {
        matches!(self.request().op(), Op::Read { .. })
    }

    pub(crate) fn direction(&self) -> Direction {
        match self.is_read() {
            true => Direction::Read,
            false => Direction::Write,
        }
    }

    /// Takes the request out, with its buffer, to be answered. Its plan is released.
    pub(crate) fn take_request(&mut self) -> R {
        self.planned = None;
        self.stage = Stage::Plan;
        let by_window = self.is_by_window();
        let mut request = self.request.take().expect("answered once");
        if let Some(buf) = self.data.take()
            && !by_window
        {
            request.set_buffer(buf);
        }
        request
    }
}

impl<B: Backend, R: Request> fmt::Debug for Job<B, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.request.fmt(f)
    }
}

/// Boxes of answered requests, for the next ones: a hot queue does not allocate.
pub(crate) struct JobPool<B: Backend, R: Request>(Vec<Box<Job<B, R>>>);

impl<B: Backend, R: Request> JobPool<B, R> {
    /// As many as are answered in one turn. More in flight than that are allocated as they come,
    /// so that a queue which was busy once does not hold a box for each of its tags (R5).
    const MAX: usize = 64;

    pub(crate) fn new() -> JobPool<B, R> {
        JobPool(Vec::new())
    }

    /// A box with this request in it.
    pub(crate) fn get(&mut self, request: R, timeline: Timeline) -> Box<Job<B, R>> {
        match self.0.pop() {
            Some(mut job) => {
                job.reuse(request, timeline);
                job
            }
            None => Box::new(Job::new(request, timeline)),
        }
    }

    /// Takes the box of a request that was answered.
    pub(crate) fn put(&mut self, job: Box<Job<B, R>>) {
        debug_assert!(job.request.is_none(), "its request was answered");
        if self.0.len() < JobPool::<B, R>::MAX {
            self.0.push(job);
        }
    }
}

/// Gives requests that end inside the core (cancelled, refused, timed out, dropped) to the
/// transport's completer.
pub(crate) struct JobCompleter<C> {
    pub(crate) completer: Arc<C>,
    pub(crate) latencies: Arc<Latencies>,
}

impl<B: Backend, R: Request, C: Completer<R>> Completer<Box<Job<B, R>>> for JobCompleter<C> {
    fn complete(&self, mut job: Box<Job<B, R>>, result: Result<(), ErrorKind>) {
        let request = job.take_request();
        self.latencies
            .on_ended_in_core(request.op(), &mut job.timeline, result);
        self.completer.complete(request, result);
    }
}

/// Wakes the source that runs the queue, once it is attached.
#[derive(Default)]
pub(crate) struct QueueKick(OnceLock<Waker>);

impl QueueKick {
    pub(crate) fn set_waker(&self, waker: Waker) {
        // Set once: a queue is attached once.
        let _ = self.0.set(waker);
    }
}

impl Kick for QueueKick {
    fn kick(&self) {
        if let Some(waker) = self.0.get() {
            waker.wake_by_ref();
        }
    }
}
