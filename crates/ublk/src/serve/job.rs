//! A request as the multi-queue core carries it, and what it waits for.

use std::fmt;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Waker;

use blkmq::error::ErrorKind;
use blkmq::io::{Backend, Direction, Op, Piece, Plan};
use blkmq::{Completer, Kick};
use reactor::{Buf, Moving};

use super::fixed::FixedMove;
use crate::queue::{Answer, Data, Request};

/// A plan of either kind.
pub(super) enum Planned<B: Backend> {
    Read(B::Read),
    Write(B::Write),
}

impl<B: Backend> Planned<B> {
    pub(super) fn pieces(&self) -> &[Piece] {
        match self {
            Planned::Read(plan) => plan.pieces(),
            Planned::Write(plan) => plan.pieces(),
        }
    }

    pub(super) fn direction(&self) -> Direction {
        match self {
            Planned::Read(_) => Direction::Read,
            Planned::Write(_) => Direction::Write,
        }
    }
}

/// The way in which the bytes of a plan are moved.
pub(super) enum Mover {
    Fixed(FixedMove),
    Buffered(Moving),
}

/// Where a request is in its four steps.
pub(super) enum Stage<B: Backend> {
    /// To be planned (again).
    Plan,
    /// Planned, waiting for a buffer.
    Buffer,
    /// Planned; a write's bytes come from its window.
    CopyIn,
    /// Planned; bytes are moving.
    Moving(Mover),
    /// Done; a read's bytes go to its window.
    CopyOut,
    /// Done but for durability.
    Sync(B::Sync),
}

/// A request on its way. It is some hundred bytes and passes through many hands, so it stays at
/// one place from its admission to its answer, and its box is used again ([`Spare`]).
pub(super) struct Job<B: Backend> {
    /// There until it is answered.
    request: Option<Request>,
    pub(super) stage: Stage<B>,
    /// Where its bytes are or go, from [`Stage::Buffer`] to the end of [`Stage::Moving`].
    pub(super) planned: Option<Planned<B>>,
    /// Its bytes, or room for them, while they are not moving.
    pub(super) data: Option<Buf>,
    /// `data` came with the request, and is kept while it waits.
    pub(super) keeps: bool,
    /// Its slot cannot be used: its bytes are copied.
    pub(super) copied: bool,
}

impl<B: Backend> Job<B> {
    fn new(mut request: Request) -> Job<B> {
        let data = request.take_buffer();
        Job {
            request: Some(request),
            stage: Stage::Plan,
            planned: None,
            keeps: data.is_some(),
            data,
            copied: false,
        }
    }

    /// The place of a request that was answered, for the next one.
    fn begin(&mut self, mut request: Request) {
        self.data = request.take_buffer();
        self.keeps = self.data.is_some();
        self.copied = false;
        self.stage = Stage::Plan;
        self.planned = None;
        self.request = Some(request);
    }

    pub(super) fn request(&self) -> &Request {
        self.request.as_ref().expect("present until answered")
    }

    /// Lets memory go that can be had again, before a wait of unknown length (R5).
    pub(super) fn slim(&mut self) {
        if !self.keeps {
            self.data = None;
        }
    }

    /// Whether its bytes pass through its window, in a buffer of ours.
    pub(super) fn by_window(&self) -> bool {
        matches!(self.request().data(), Data::Window | Data::Fixed { .. })
    }

    pub(super) fn is_read(&self) -> bool {
        matches!(self.request().op(), Op::Read { .. })
    }

    /// Takes the request out, with its buffer, to be answered so. What it was planned is let go.
    pub(super) fn take_answer(&mut self, result: Result<(), ErrorKind>) -> (Request, Answer) {
        self.planned = None;
        self.stage = Stage::Plan;
        let by_window = self.by_window();
        let mut request = self.request.take().expect("answered once");
        if let Some(buf) = self.data.take()
            && !by_window
        {
            request.set_buffer(buf);
        }
        let answer = match result {
            Ok(()) => Answer::Done,
            Err(kind) => Answer::Failed(kind.errno()),
        };
        (request, answer)
    }
}

/// Boxes of answered requests, for those that come: a hot queue asks no allocator.
pub(super) struct Spare<B: Backend>(Vec<Box<Job<B>>>);

impl<B: Backend> Spare<B> {
    /// As many as are answered in one turn; more in flight than that are allocated as they come,
    /// so that a queue which was busy once does not hold a box for each of its tags (R5).
    const MAX: usize = 64;

    pub(super) fn new() -> Spare<B> {
        Spare(Vec::new())
    }

    pub(super) fn job(&mut self, request: Request) -> Box<Job<B>> {
        match self.0.pop() {
            Some(mut job) => {
                job.begin(request);
                job
            }
            None => Box::new(Job::new(request)),
        }
    }

    /// Takes the box of a request that was answered.
    pub(super) fn put(&mut self, job: Box<Job<B>>) {
        debug_assert!(job.request.is_none(), "its request was answered");
        if self.0.len() < Spare::<B>::MAX {
            self.0.push(job);
        }
    }
}

impl<B: Backend> fmt::Debug for Job<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.request.fmt(f)
    }
}

/// Answers requests that end inside the core: cancelled, refused, timed out.
#[derive(Default)]
pub(super) struct Ended {
    /// The server leaves: what only waited stays with the driver.
    pub(super) leaving: AtomicBool,
}

impl<B: Backend> Completer<Box<Job<B>>> for Ended {
    fn complete(&self, mut job: Box<Job<B>>, result: Result<(), ErrorKind>) {
        let (request, answer) = job.take_answer(result);
        let leaving = self.leaving.load(Ordering::Relaxed);
        if leaving && result == Err(ErrorKind::Closed) {
            request.answer(Answer::Abandoned);
        } else {
            request.answer(answer);
        }
    }
}

/// Wakes the queue's owner, once it is known.
#[derive(Default)]
pub(super) struct Doorbell(OnceLock<Waker>);

impl Doorbell {
    pub(super) fn hang(&self, waker: Waker) {
        // Set once: a queue is attached once.
        let _ = self.0.set(waker);
    }
}

impl Kick for Doorbell {
    fn kick(&self) {
        if let Some(waker) = self.0.get() {
            waker.wake_by_ref();
        }
    }
}
