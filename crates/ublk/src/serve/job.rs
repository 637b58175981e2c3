//! A request as the multi-queue core carries it, and what it waits for.

use std::fmt;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Waker;

use blkmq::error::ErrorKind;
use blkmq::io::{Backend, Op, Piece, Plan};
use blkmq::{Completer, Kick};
use reactor::{Buf, Direction, Moving};

use super::fixed::FixedMove;
use crate::request::{Answer, Data, Request};

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
    Buffer(Planned<B>),
    /// Planned; a write's bytes come from its window.
    CopyIn(Planned<B>),
    /// Bytes are moving.
    Moving(Planned<B>, Mover),
    /// Done; a read's bytes go to its window.
    CopyOut,
    /// Done but for durability.
    Sync(B::Sync),
}

/// A request on its way.
pub(super) struct Job<B: Backend> {
    pub(super) request: Request,
    pub(super) stage: Stage<B>,
    /// Its bytes, or room for them, while they are not moving.
    pub(super) data: Option<Buf>,
    /// `data` came with the request, and is kept while it waits.
    pub(super) keeps: bool,
    /// Its slot cannot be used: its bytes are copied.
    pub(super) copied: bool,
}

impl<B: Backend> Job<B> {
    pub(super) fn new(mut request: Request) -> Job<B> {
        let data = request.take_buffer();
        Job {
            request,
            stage: Stage::Plan,
            keeps: data.is_some(),
            data,
            copied: false,
        }
    }

    /// Lets memory go that can be had again, before a wait of unknown length (R5).
    pub(super) fn slim(&mut self) {
        if !self.keeps {
            self.data = None;
        }
    }

    /// Whether its bytes pass through its window, in a buffer of ours.
    pub(super) fn by_window(&self) -> bool {
        matches!(self.request.data(), Data::Window | Data::Fixed { .. })
    }

    pub(super) fn is_read(&self) -> bool {
        matches!(self.request.op(), Op::Read { .. })
    }

    /// The request with its buffer, to be answered so.
    pub(super) fn into_answer(mut self, result: Result<(), ErrorKind>) -> (Request, Answer) {
        if let Some(buf) = self.data.take()
            && !self.by_window()
        {
            self.request.set_buffer(buf);
        }
        let answer = match result {
            Ok(()) => Answer::Done,
            Err(kind) => Answer::Failed(kind.errno()),
        };
        (self.request, answer)
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

impl<B: Backend> Completer<Job<B>> for Ended {
    fn complete(&self, job: Job<B>, result: Result<(), ErrorKind>) {
        let (request, answer) = job.into_answer(result);
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
