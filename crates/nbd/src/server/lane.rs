//! A connection's requests between the gate and the reply: *plan*, *move*, *commit*.
//!
//! Each connection has a hardware queue of its own. So a connection that ends takes exactly its
//! own tags and parked requests with it, its depth is the bound on what a client may have
//! outstanding, and no two connections share a dispatch list. The price, a flag per connection
//! that a quiesce must set, is paid on the rare side.
//!
//! A request is always at one place: in the queue (parked), in `active` (bytes moving, or waiting
//! for a buffer), or on the stack of the call that carries it on.

use std::fmt;
use std::sync::Arc;

use blkmq::error::ErrorKind;
use blkmq::io::{Backend, Direction, Plan, Step, StepOf};
use blkmq::{Admission, AdmittedRequest, Completer, ParkReason, Queue, SmallLock};
use reactor::{Buf, Completion, Cx, MoveTokens, Moving, Need, OpenFile, Token};

use super::export::Export;
use super::outbox::{Outbox, Weight};
use super::token;
use crate::codec::{Command, Request};

/// Where a request is in its four steps.
enum Stage<B: Backend> {
    /// To be planned (again).
    Plan,
    /// Planned, waiting for a buffer to read into.
    ReadBuffer(B::Read),
    /// Bytes are moving.
    Reading(B::Read, Moving),
    /// Bytes are moving.
    Writing(B::Write, Moving),
    /// Done but for durability.
    Sync(B::Sync),
}

/// A request as the queue carries it.
pub(super) struct Job<B: Backend> {
    request: Request,
    stage: Stage<B>,
    /// A write's payload, or what a read brought; `None` while it is moving.
    data: Option<Buf>,
}

impl<B: Backend> fmt::Debug for Job<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.request.fmt(f)
    }
}

/// What a client's request accounts for from its header to its reply.
pub(super) fn weight(request: &Request) -> Weight {
    let moves = matches!(request.command, Command::Read | Command::Write);
    Weight {
        requests: 1,
        bytes: if moves { request.length as usize } else { 0 },
    }
}

/// Requests that ended inside the queue: cancelled, refused, timed out.
pub(super) struct Ended<B: Backend>(SmallLock<Vec<Outcome<B>>>);

type Outcome<B> = (Job<B>, Result<(), ErrorKind>);

impl<B: Backend> Ended<B> {
    pub(super) fn new() -> Self {
        Ended(SmallLock::new("ended requests", Vec::new()))
    }
}

impl<B: Backend> Completer<Job<B>> for Ended<B> {
    fn complete(&self, job: Job<B>, result: Result<(), ErrorKind>) {
        self.0.lock().push((job, result));
    }
}

/// The serving part of a connection.
pub(super) struct Lane<B: Backend> {
    pub(super) export: Arc<Export<B>>,
    /// Gone once the connection is cut.
    queue: Option<Queue<Job<B>>>,
    ended: Arc<Ended<B>>,
    files: Vec<OpenFile>,
    /// By tag.
    active: Vec<Option<AdmittedRequest<Job<B>>>>,
    active_count: usize,
}

fn tokens(tag: u16) -> MoveTokens {
    MoveTokens {
        piece: token::piece,
        bounce: token::bounce,
        tag,
    }
}

impl<B: Backend> Lane<B> {
    pub(super) fn new(
        cx: &mut Cx<'_>,
        export: Arc<Export<B>>,
        queue: Queue<Job<B>>,
        ended: Arc<Ended<B>>,
    ) -> Self {
        let open = export.files.iter().map(|file| OpenFile {
            id: file.id,
            index: cx.register(Arc::clone(&file.fd)),
            align: file.align,
        });
        let files = open.collect();
        Lane {
            export,
            queue: Some(queue),
            ended,
            files,
            active: Vec::new(),
            active_count: 0,
        }
    }

    /// Requests whose bytes are moving.
    pub(super) fn is_moving(&self) -> bool {
        self.active_count > 0
    }

    /// Brings a checked request to the gate.
    pub(super) fn admit(
        &mut self,
        cx: &mut Cx<'_>,
        out: &mut Outbox,
        request: Request,
        data: Option<Buf>,
    ) {
        let Some(queue) = &mut self.queue else { return };
        match queue.admit(Job {
            request,
            stage: Stage::Plan,
            data,
        }) {
            Admission::Run(admitted) => self.go(cx, out, admitted),
            Admission::Parked | Admission::Refused => {}
        }
    }

    /// The queue was kicked: carry on what can go on.
    pub(super) fn run(&mut self, cx: &mut Cx<'_>, out: &mut Outbox) {
        let Some(mut queue) = self.queue.take() else {
            return;
        };
        queue.run(&mut |admitted| self.go(cx, out, admitted));
        self.queue = Some(queue);
    }

    /// Lets parked requests time out.
    pub(super) fn expire(&mut self, now: std::time::Duration) {
        if let Some(queue) = &mut self.queue {
            queue.expire(now);
        }
    }

    /// Answers what ended inside the queue.
    pub(super) fn answer_ended(&mut self, out: &mut Outbox) {
        let ended = std::mem::take(&mut *self.ended.0.lock());
        for (job, result) in ended {
            answer(out, job, result);
        }
    }

    /// Gives up the queue: parked requests end, also those that wait for a buffer; those whose
    /// bytes are moving go on, so that no plan is given back under a write in flight.
    pub(super) fn retire(&mut self) {
        self.queue = None;
        for tag in 0..self.active.len() as u16 {
            let waits = self.active[usize::from(tag)]
                .as_ref()
                .is_some_and(|one| matches!(one.payload().stage, Stage::ReadBuffer(_)));
            if let Some(admitted) = waits.then(|| self.take(tag)).flatten() {
                admitted.complete(Err(ErrorKind::Closed));
            }
        }
    }

    /// Lets the files go once nothing moves any more.
    pub(super) fn close_files(&mut self, cx: &mut Cx<'_>) {
        for file in self.files.drain(..) {
            cx.close(file.index);
        }
    }

    fn put(&mut self, admitted: AdmittedRequest<Job<B>>) {
        let at = usize::from(admitted.tag().number());
        if self.active.len() <= at {
            self.active.resize_with(at + 1, || None);
        }
        self.active_count += 1;
        let before = self.active[at].replace(admitted);
        debug_assert!(before.is_none(), "a tag belongs to one request");
    }

    fn take(&mut self, tag: u16) -> Option<AdmittedRequest<Job<B>>> {
        let admitted = self.active.get_mut(usize::from(tag))?.take()?;
        self.active_count -= 1;
        Some(admitted)
    }

    /// Plans a request, or asks whether it is durable now.
    fn go(&mut self, cx: &mut Cx<'_>, out: &mut Outbox, mut admitted: AdmittedRequest<Job<B>>) {
        let stage = std::mem::replace(&mut admitted.payload_mut().stage, Stage::Plan);
        let op = admitted.payload().request.op();
        let step = match stage {
            Stage::Sync(sync) => self.export.backend.poll_sync(sync, admitted.waker()),
            _ => self.export.backend.begin(&op, admitted.waker()),
        };
        self.follow(cx, out, admitted, step);
    }

    /// Takes a request from step to step until it waits for something or is answered.
    fn follow(
        &mut self,
        cx: &mut Cx<'_>,
        out: &mut Outbox,
        mut admitted: AdmittedRequest<Job<B>>,
        mut step: StepOf<B>,
    ) {
        loop {
            let tag = admitted.tag().number();
            let job = admitted.payload_mut();
            match step {
                Step::Done(result) => {
                    return admitted.complete_with(|job| answer(out, job, result));
                }
                Step::Park(park) => {
                    if job.request.command == Command::Read {
                        job.data = None;
                    }
                    return admitted.park(park);
                }
                Step::Sync(sync) => {
                    job.stage = Stage::Sync(sync);
                    return admitted.park(ParkReason::Sync);
                }
                Step::Read(plan) => {
                    let len = job.request.length as usize;
                    let Some(buf) = cx.request_buffer(token::read_buffer(tag), len, Need::Fresh)
                    else {
                        job.stage = Stage::ReadBuffer(plan);
                        return self.put(admitted);
                    };
                    let moving = Moving::new(Direction::Read, buf, plan.pieces());
                    job.stage = Stage::Reading(plan, moving);
                }
                Step::Write(plan) => {
                    let Some(payload) = job.data.take() else {
                        // Only a write has a payload, and it comes back after each move.
                        drop(plan);
                        step = Step::Done(Err(ErrorKind::Io));
                        continue;
                    };
                    let moving = Moving::new(Direction::Write, payload, plan.pieces());
                    job.stage = Stage::Writing(plan, moving);
                }
            }
            match self.pump(cx, admitted) {
                Some((back, next)) => (admitted, step) = (back, next),
                None => return,
            }
        }
    }

    /// Moves bytes; the request and its next step once all have moved.
    fn pump(
        &mut self,
        cx: &mut Cx<'_>,
        mut admitted: AdmittedRequest<Job<B>>,
    ) -> Option<(AdmittedRequest<Job<B>>, StepOf<B>)> {
        let tokens = tokens(admitted.tag().number());
        let files = &self.files;
        let finished = match &mut admitted.payload_mut().stage {
            Stage::Reading(plan, moving) => moving.pump(cx, plan.pieces(), files, tokens),
            Stage::Writing(plan, moving) => moving.pump(cx, plan.pieces(), files, tokens),
            _ => true,
        };
        if !finished {
            self.put(admitted);
            return None;
        }
        let stage = std::mem::replace(&mut admitted.payload_mut().stage, Stage::Plan);
        let backend = &self.export.backend;
        let step = match stage {
            Stage::Reading(plan, moving) => {
                let (buf, moved) = moving.into_buffer();
                admitted.payload_mut().data = buf;
                backend.read(plan, moved, admitted.waker())
            }
            Stage::Writing(plan, moving) => {
                let (buf, moved) = moving.into_buffer();
                admitted.payload_mut().data = buf;
                backend.written(plan, moved, admitted.waker())
            }
            _ => Step::Done(Err(ErrorKind::Io)),
        };
        Some((admitted, step))
    }

    /// Carries a request on after one of its operations, found by tag.
    fn resume(&mut self, cx: &mut Cx<'_>, out: &mut Outbox, admitted: AdmittedRequest<Job<B>>) {
        if let Some((admitted, step)) = self.pump(cx, admitted) {
            self.follow(cx, out, admitted, step);
        }
    }

    /// A file operation of a request has ended.
    pub(super) fn piece_moved(
        &mut self,
        cx: &mut Cx<'_>,
        out: &mut Outbox,
        token: Token,
        completion: Completion,
    ) {
        let Some(mut admitted) = self.take(token::tag(token)) else {
            return;
        };
        let at = token::piece_number(token);
        match &mut admitted.payload_mut().stage {
            Stage::Reading(plan, moving) => {
                moving.completed(at, completion, plan.pieces(), &self.files);
            }
            Stage::Writing(plan, moving) => {
                moving.completed(at, completion, plan.pieces(), &self.files);
            }
            _ => {}
        }
        self.resume(cx, out, admitted);
    }

    /// A buffer that a request waited for is here.
    pub(super) fn buffer_granted(
        &mut self,
        cx: &mut Cx<'_>,
        out: &mut Outbox,
        token: Token,
        buf: Buf,
    ) {
        let tag = token::tag(token);
        let Some(mut admitted) = self.take(tag) else {
            return;
        };
        let job = admitted.payload_mut();
        job.stage = match std::mem::replace(&mut job.stage, Stage::Plan) {
            Stage::ReadBuffer(plan) => {
                let moving = Moving::new(Direction::Read, buf, plan.pieces());
                Stage::Reading(plan, moving)
            }
            Stage::Reading(plan, mut moving) => {
                moving.bounce_granted(cx, buf, plan.pieces(), &self.files, tokens(tag));
                Stage::Reading(plan, moving)
            }
            Stage::Writing(plan, mut moving) => {
                moving.bounce_granted(cx, buf, plan.pieces(), &self.files, tokens(tag));
                Stage::Writing(plan, moving)
            }
            stage => stage,
        };
        self.resume(cx, out, admitted);
    }
}

/// Puts a request's reply into the outbox. A read that succeeded without bringing its bytes is
/// an error: the stream must keep its step.
fn answer<B: Backend>(out: &mut Outbox, job: Job<B>, result: Result<(), ErrorKind>) {
    let request = job.request;
    let reads = request.command == Command::Read;
    let data = job
        .data
        .filter(|data| reads && data.len() == request.length as usize);
    let result = if reads && data.is_none() {
        result.and(Err(ErrorKind::Io))
    } else {
        result
    };
    let (error, data) = match result {
        Ok(()) => (0, data),
        Err(kind) => (kind.nbd(), None),
    };
    out.push_reply(request.cookie, error, data, weight(&request));
}
