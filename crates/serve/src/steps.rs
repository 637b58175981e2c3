//! Takes requests from step to step: *plan*, *move*, *commit*.
//!
//! A request is always at one place: in the core (parked), among the engine's active requests
//! (bytes moving, or waiting for a buffer), or on the stack of the call that takes it on. Which way
//! the bytes go is chosen per request:
//!
//! | bytes are | and the plan | they go |
//! |---|---|---|
//! | in a buffer slot | fits the files' direct I/O | between slot and files, without a copy |
//! | in a buffer slot | does not fit | through a buffer of the pool and the request's window |
//! | in a window | | the same |
//! | in a buffer that came with the request | | between that buffer and the files |
//! | to be read, without a buffer | | into a buffer of the pool, which answers the request |
//!
//! Buffers of the pool are taken after the plan, and released before a request parks: what waits
//! for space or for the store holds no memory of the pool (R5). A write that came in a buffer is
//! the exception: its bytes were received before it could be planned, and stay there, for which
//! the pool has bounds of its own (`reactor::BufferPurpose::Held` and `Client`).

use blkmq::ParkReason;
use blkmq::error::ErrorKind;
use blkmq::io::{Backend, Direction, MoveError, MoveResult, Park, Plan, Step, StepOf};
use reactor::{Buf, BufferPurpose, Completion, Op, Port};

use crate::engine::{AdmittedJob, RequestEngine};
use crate::job::{Move, MovePlan, Stage};
use crate::latency::Step as TimedStep;
use crate::moves::buffered::BufferedMove;
use crate::moves::fixed::{self, FixedMove};
use crate::token;
use crate::transport::{Location, Request, Transport, Window};

/// A request whose move has ended; none where it waits for something and was put away.
type EndedMove<B, R> = Option<(AdmittedJob<B, R>, MoveResult)>;

impl<B: Backend, R: Request> RequestEngine<B, R> {
    /// Plans a request, or asks whether it is durable now.
    pub(crate) fn begin<T: Transport<Request = R>>(
        &mut self,
        cx: &mut T,
        mut admitted: AdmittedJob<B, R>,
    ) {
        let stage = std::mem::replace(&mut admitted.payload_mut().stage, Stage::Plan);
        let step = match stage {
            Stage::Sync(sync) => self.backend.poll_sync(sync, admitted.waker()),
            _ => self
                .backend
                .begin(admitted.payload().request().op(), admitted.waker()),
        };
        self.follow(cx, admitted, step);
    }

    /// Takes a request from step to step until it waits for something or is answered.
    fn follow<T: Transport<Request = R>>(
        &mut self,
        cx: &mut T,
        mut admitted: AdmittedJob<B, R>,
        mut step: StepOf<B>,
    ) {
        loop {
            admitted.payload_mut().planned = Some(match step {
                Step::Done(result) => return self.finish(cx, admitted, result),
                Step::Park(park) => {
                    let job = admitted.payload_mut();
                    job.release_buffer();
                    let wait = match park {
                        Park::Space => TimedStep::Space,
                        Park::Fetch => TimedStep::Fetch,
                    };
                    let turn_time_ns = cx.port().turn_time_ns();
                    job.timeline.on_wait(TimedStep::Plan, wait, turn_time_ns);
                    self.start_tick(cx.port());
                    return admitted.park(park);
                }
                Step::Sync(sync) => {
                    let job = admitted.payload_mut();
                    job.release_buffer();
                    let (step, wait) = (TimedStep::Commit, TimedStep::Flush);
                    job.timeline.on_wait(step, wait, cx.port().turn_time_ns());
                    job.stage = Stage::Sync(sync);
                    return admitted.park(ParkReason::Sync);
                }
                Step::Read(plan) => MovePlan::Read(plan),
                Step::Write(plan) => MovePlan::Write(plan),
                Step::Status(extents) => {
                    admitted.payload_mut().request_mut().set_extents(extents);
                    return self.finish(cx, admitted, Ok(()));
                }
            });
            match self.begin_move(cx, admitted) {
                None => return,
                Some((back, result)) => (admitted, step) = self.on_moved(back, result),
            }
        }
    }

    /// Tells the backend how the move went.
    fn on_moved(
        &mut self,
        mut admitted: AdmittedJob<B, R>,
        result: MoveResult,
    ) -> (AdmittedJob<B, R>, StepOf<B>) {
        let job = admitted.payload_mut();
        job.timeline.on_step(TimedStep::Move);
        let step = match job.planned.take() {
            Some(MovePlan::Read(plan)) => {
                if result.is_ok() {
                    job.request_mut().on_read(plan.pieces());
                }
                self.backend.read(plan, result, admitted.waker())
            }
            Some(MovePlan::Write(plan)) => self.backend.written(plan, result, admitted.waker()),
            // Its bytes cannot have moved.
            None => Step::Done(Err(ErrorKind::Io)),
        };
        (admitted, step)
    }

    /// Goes on with a request whose move has ended, if it has.
    fn resume_ended<T: Transport<Request = R>>(&mut self, cx: &mut T, ended: EndedMove<B, R>) {
        if let Some((admitted, result)) = ended {
            let (admitted, step) = self.on_moved(admitted, result);
            self.follow(cx, admitted, step);
        }
    }

    /// Answers a request. What a read brought into a buffer of the engine's goes to its window first.
    fn finish<T: Transport<Request = R>>(
        &mut self,
        cx: &mut T,
        mut admitted: AdmittedJob<B, R>,
        result: Result<(), ErrorKind>,
    ) {
        let job = admitted.payload_mut();
        let last = match job.stage {
            Stage::CopyOut => TimedStep::Move,
            _ => TimedStep::Commit,
        };
        if result.is_ok()
            && job.is_read()
            && job.is_by_window()
            && let Some(buf) = job.data.take()
            && let Some(Window { file, offset }) = cx.window(job.request())
        {
            job.stage = Stage::CopyOut;
            job.timeline.on_step(last);
            let tag = admitted.tag().number();
            cx.port()
                .submit(token::copy(tag), Op::Write { file, offset, buf });
            return self.put(admitted);
        }
        let (jobs, latencies) = (&mut self.jobs, &self.latencies);
        let table = self.latency_table.as_deref();
        admitted.complete_with(|mut job| {
            let request = job.take_request();
            job.timeline.on_answered(last, cx.port().turn_time_ns());
            if let Some(table) = table {
                let carried = (request.op(), request.bytes());
                latencies.on_answered(table, carried, &job.timeline, result);
            }
            cx.answer(request, result);
            jobs.put(job);
        });
    }

    /// Chooses the way in which a plan's bytes move, and begins to move them.
    fn begin_move<T: Transport<Request = R>>(
        &mut self,
        cx: &mut T,
        mut admitted: AdmittedJob<B, R>,
    ) -> EndedMove<B, R> {
        let job = &mut **admitted.payload_mut();
        job.timeline.on_step(TimedStep::Plan);
        let (bytes, direction) = (job.request().bytes(), job.direction());
        let Some(planned) = &job.planned else {
            return self.fail(cx, admitted, MoveError::of_plan(direction));
        };
        if bytes == 0 || planned.direction() != direction {
            // A plan that its request did not ask for.
            return self.fail(cx, admitted, MoveError::of_plan(direction));
        }
        if let Location::Slot(slot) = job.request().location()
            && !job.is_copied
            && fixed::fits(planned.pieces(), &self.files)
        {
            let moving = FixedMove::new(direction, slot, bytes, planned.pieces());
            job.stage = Stage::Moving(Move::Fixed(moving));
            return self.pump(cx, admitted);
        }
        if let Some(buf) = job.data.take() {
            return self.move_buffered(cx, admitted, buf);
        }
        let window = cx.window(job.request());
        if window.is_none() && (direction == Direction::Write || job.is_by_window()) {
            // No way to the bytes, or a write whose buffer was lost with a failed move.
            let error = MoveError::of_window(direction, 0, bytes, libc::EFAULT);
            return self.fail(cx, admitted, error);
        }
        let tag = admitted.tag().number();
        let len = bytes as usize;
        let is_allocated = len > cx.port().reserve_len();
        let buf = if is_allocated {
            // It might never come from the pool: this one is the allocator's.
            Buf::allocate(len)
        } else {
            cx.port()
                .request_buffer(token::buffer(tag), len, BufferPurpose::Fresh)
        };
        match buf {
            Some(buf) => self.on_buffer_ready(cx, admitted, buf),
            None if is_allocated => {
                let offset = window.map_or(0, |window| window.offset);
                let error = MoveError::of_window(direction, offset, bytes, libc::ENOMEM);
                self.fail(cx, admitted, error)
            }
            None => {
                let job = admitted.payload_mut();
                job.stage = Stage::Buffer;
                let (step, wait) = (TimedStep::Plan, TimedStep::Buffer);
                job.timeline.on_wait(step, wait, cx.port().turn_time_ns());
                self.put(admitted);
                None
            }
        }
    }

    /// Fails a request for which another plan would not help. The backend reports why.
    #[cold]
    fn fail<T: Transport<Request = R>>(
        &mut self,
        cx: &mut T,
        mut admitted: AdmittedJob<B, R>,
        error: MoveError,
    ) -> EndedMove<B, R> {
        admitted.payload_mut().planned = None;
        self.backend.on_request_failed(&error);
        self.finish(cx, admitted, Err(error.into()));
        None
    }

    /// Goes on with a buffer of the pool: a read moves into it, a write's bytes are copied in first.
    fn on_buffer_ready<T: Transport<Request = R>>(
        &mut self,
        cx: &mut T,
        mut admitted: AdmittedJob<B, R>,
        buf: Buf,
    ) -> EndedMove<B, R> {
        let job = admitted.payload_mut();
        if job.is_read() {
            return self.move_buffered(cx, admitted, buf);
        }
        let Some(Window { file, offset }) = cx.window(job.request()) else {
            let error = MoveError::of_window(Direction::Read, 0, buf.len() as u32, libc::EFAULT);
            return self.fail(cx, admitted, error);
        };
        job.stage = Stage::CopyIn;
        let tag = admitted.tag().number();
        cx.port()
            .submit(token::copy(tag), Op::Read { file, offset, buf });
        self.put(admitted);
        None
    }

    fn move_buffered<T: Transport<Request = R>>(
        &mut self,
        cx: &mut T,
        mut admitted: AdmittedJob<B, R>,
        buf: Buf,
    ) -> EndedMove<B, R> {
        let tag = admitted.tag().number();
        let job = &mut **admitted.payload_mut();
        let Some(planned) = &job.planned else {
            let error = MoveError::of_plan(job.direction());
            return self.fail(cx, admitted, error);
        };
        let moving = BufferedMove::new(planned.direction(), tag, buf, planned.pieces());
        job.stage = Stage::Moving(Move::Buffered(moving));
        self.pump(cx, admitted)
    }

    /// Begins the file operations that can begin.
    fn pump<T: Transport<Request = R>>(
        &mut self,
        cx: &mut T,
        mut admitted: AdmittedJob<B, R>,
    ) -> EndedMove<B, R> {
        let tag = admitted.tag().number();
        let job = &mut **admitted.payload_mut();
        let (Stage::Moving(ongoing), Some(planned)) = (&mut job.stage, &job.planned) else {
            // Only such requests are pumped; anything else keeps waiting for what it waits for.
            self.put(admitted);
            return None;
        };
        let (pieces, files) = (planned.pieces(), &self.files);
        let outcome = match ongoing {
            Move::Fixed(moving) => moving.pump(cx.port(), pieces, files, self.zeroes, tag),
            Move::Buffered(moving) => moving.pump(cx.port(), pieces, files).then_some(Ok(())),
        };
        let Some(outcome) = outcome else {
            self.put(admitted);
            return None;
        };
        if matches!(ongoing, Move::Fixed(_)) {
            job.stage = Stage::Plan;
            return match outcome {
                Ok(()) => {
                    cx.count_move(false);
                    Some((admitted, Ok(())))
                }
                Err(error) if fixed::is_refused(error) && cx.window(job.request()).is_some() => {
                    job.is_copied = true;
                    self.begin_move(cx, admitted)
                }
                Err(error) => Some((admitted, Err(error))),
            };
        }
        let Stage::Moving(Move::Buffered(moving)) = std::mem::replace(&mut job.stage, Stage::Plan)
        else {
            unreachable!("the other move was handled above");
        };
        let (buf, result) = moving.into_buffer();
        job.data = buf;
        cx.count_move(true);
        Some((admitted, result))
    }

    /// A file operation of a request has ended.
    pub(crate) fn on_piece_moved<T: Transport<Request = R>>(
        &mut self,
        cx: &mut T,
        tag: u16,
        piece: usize,
        completion: Completion,
    ) {
        let Some(mut admitted) = self.take(tag) else {
            return;
        };
        let job = &mut **admitted.payload_mut();
        if let (Stage::Moving(ongoing), Some(planned)) = (&mut job.stage, &job.planned) {
            match ongoing {
                Move::Fixed(moving) => moving.on_completion(piece, &completion, planned.pieces()),
                Move::Buffered(moving) => {
                    moving.on_completion(piece, completion, planned.pieces(), &self.files);
                }
            }
        }
        let ended = self.pump(cx, admitted);
        self.resume_ended(cx, ended);
    }

    /// A buffer that a request waited for is here: for all its bytes, or for a piece that bounces.
    pub(crate) fn on_buffer<T: Transport<Request = R>>(
        &mut self,
        cx: &mut T,
        tag: u16,
        completion: Completion,
    ) {
        let (Completion::Buffer(buf), Some(mut admitted)) = (completion, self.take(tag)) else {
            return;
        };
        let job = &mut **admitted.payload_mut();
        let ended = match (&mut job.stage, &job.planned) {
            (Stage::Moving(Move::Buffered(moving)), Some(planned)) => {
                moving.on_bounce_buffer(cx.port(), buf, planned.pieces(), &self.files);
                self.pump(cx, admitted)
            }
            (stage @ Stage::Buffer, _) => {
                *stage = Stage::Plan;
                job.timeline.on_resumed(cx.port().turn_time_ns());
                self.on_buffer_ready(cx, admitted, buf)
            }
            _ => return self.put(admitted),
        };
        self.resume_ended(cx, ended);
    }

    /// Bytes were copied between a buffer and the request's window.
    pub(crate) fn on_copied<T: Transport<Request = R>>(
        &mut self,
        cx: &mut T,
        tag: u16,
        completion: Completion,
    ) {
        let Some(admitted) = self.take(tag) else {
            return;
        };
        // A failure is not the plan's: another one would meet the same window.
        let ended = match (&admitted.payload().stage, completion) {
            (Stage::CopyIn, Completion::Read(buf, Ok(()))) => self.move_buffered(cx, admitted, buf),
            (Stage::CopyIn, Completion::Read(_, Err(error))) => {
                self.fail_copy(cx, admitted, Direction::Read, &error)
            }
            (Stage::CopyOut, Completion::Write(_, Err(error))) => {
                self.fail_copy(cx, admitted, Direction::Write, &error)
            }
            (Stage::CopyOut, Completion::Write(_, Ok(()))) => {
                return self.finish(cx, admitted, Ok(()));
            }
            _ => return self.put(admitted),
        };
        self.resume_ended(cx, ended);
    }

    /// Fails a request whose window could not be read or written.
    #[cold]
    fn fail_copy<T: Transport<Request = R>>(
        &mut self,
        cx: &mut T,
        admitted: AdmittedJob<B, R>,
        direction: Direction,
        error: &std::io::Error,
    ) -> EndedMove<B, R> {
        let request = admitted.payload().request();
        let (len, errno) = (request.bytes(), MoveError::errno_of(error));
        let offset = cx.window(request).map_or(0, |window| window.offset);
        let error = MoveError::of_window(direction, offset, len, errno);
        self.fail(cx, admitted, error)
    }
}
