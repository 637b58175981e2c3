//! Takes requests from step to step: *plan*, *move*, *commit*.
//!
//! A request is always at one place: in the core (parked), in `active` (bytes moving, or waiting
//! for a buffer), or on the stack of the call that carries it on.

use blkmq::error::ErrorKind;
use blkmq::io::{Backend, Direction, MoveResult, Step, StepOf};
use blkmq::{AdmittedRequest, ParkReason};
use reactor::{Buf, Completion, MoveTokens, Moving, Need, Op, Port};

use super::fixed::{self, FixedMove};
use super::job::{Mover, Planned, Stage};
use super::{Held, Serve, token};
use crate::queue::Data;
use crate::queue::QueueCx;

fn tokens(tag: u16) -> MoveTokens {
    MoveTokens {
        piece: token::piece,
        bounce: token::bounce,
        tag,
    }
}

/// A request whose bytes have moved, or not; none where it waits for something and was put away.
type Carried<B> = Option<(AdmittedRequest<Held<B>>, MoveResult)>;

impl<B: Backend> Serve<B> {
    /// Plans a request, or asks whether it is durable now.
    pub(super) fn go<P: Port>(
        &mut self,
        cx: &mut QueueCx<'_, P>,
        mut admitted: AdmittedRequest<Held<B>>,
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
    fn follow<P: Port>(
        &mut self,
        cx: &mut QueueCx<'_, P>,
        mut admitted: AdmittedRequest<Held<B>>,
        mut step: StepOf<B>,
    ) {
        loop {
            admitted.payload_mut().planned = Some(match step {
                Step::Done(result) => return self.done(cx, admitted, result),
                Step::Park(park) => {
                    admitted.payload_mut().slim();
                    self.tick(cx);
                    return admitted.park(park);
                }
                Step::Sync(sync) => {
                    let job = admitted.payload_mut();
                    job.slim();
                    job.stage = Stage::Sync(sync);
                    return admitted.park(ParkReason::Sync);
                }
                Step::Read(plan) => Planned::Read(plan),
                Step::Write(plan) => Planned::Write(plan),
            });
            match self.begin_move(cx, admitted) {
                None => return,
                Some((back, result)) => (admitted, step) = self.moved(back, result),
            }
        }
    }

    /// Tells the backend how the move went.
    fn moved(
        &mut self,
        mut admitted: AdmittedRequest<Held<B>>,
        result: MoveResult,
    ) -> (AdmittedRequest<Held<B>>, StepOf<B>) {
        let step = match admitted.payload_mut().planned.take() {
            Some(Planned::Read(plan)) => self.backend.read(plan, result, admitted.waker()),
            Some(Planned::Write(plan)) => self.backend.written(plan, result, admitted.waker()),
            // Its bytes cannot have moved.
            None => Step::Done(Err(ErrorKind::Io)),
        };
        (admitted, step)
    }

    /// Carries on with what a try brought.
    fn carry<P: Port>(&mut self, cx: &mut QueueCx<'_, P>, carried: Carried<B>) {
        if let Some((admitted, result)) = carried {
            let (admitted, step) = self.moved(admitted, result);
            self.follow(cx, admitted, step);
        }
    }

    /// Answers a request; what was read into a buffer of ours goes to its window first.
    fn done<P: Port>(
        &mut self,
        cx: &mut QueueCx<'_, P>,
        mut admitted: AdmittedRequest<Held<B>>,
        result: Result<(), ErrorKind>,
    ) {
        let job = admitted.payload_mut();
        if result.is_ok()
            && job.is_read()
            && job.by_window()
            && let Some(buf) = job.data.take()
            && let Some(offset) = job.request().window()
        {
            job.stage = Stage::CopyOut;
            let file = cx.char_device();
            let tag = admitted.tag().number();
            cx.submit(token::copy(tag), Op::Write { file, offset, buf });
            return self.put(admitted);
        }
        let spare = &mut self.spare;
        admitted.complete_with(|mut job| {
            let (request, answer) = job.take_answer(result);
            cx.answer(request, answer);
            spare.put(job);
        });
    }

    /// Chooses the way of a plan's bytes and begins to move them.
    fn begin_move<P: Port>(
        &mut self,
        cx: &mut QueueCx<'_, P>,
        mut admitted: AdmittedRequest<Held<B>>,
    ) -> Carried<B> {
        let job = &mut **admitted.payload_mut();
        let Some(planned) = &job.planned else {
            return self.hopeless(cx, admitted);
        };
        let (bytes, direction) = (job.request().bytes(), planned.direction());
        if bytes == 0 || job.is_read() != (direction == Direction::Read) {
            // A plan that its request did not ask for.
            return self.hopeless(cx, admitted);
        }
        if let Data::Fixed { slot } = *job.request().data()
            && !job.copied
            && fixed::fits(planned.pieces(), &self.files)
        {
            let moving = FixedMove::new(direction, slot, bytes, planned.pieces());
            job.stage = Stage::Moving(Mover::Fixed(moving));
            return self.pump(cx, admitted);
        }
        if let Some(buf) = job.data.take() {
            return self.move_buffered(cx, admitted, buf);
        }
        let reachable = job.request().window().is_some() || !job.by_window();
        if !reachable || (direction == Direction::Write && !job.by_window()) {
            // No way to the bytes, or a write whose buffer was lost with a failed move.
            return self.hopeless(cx, admitted);
        }
        let tag = admitted.tag().number();
        let bytes = bytes as usize;
        let buf = if bytes > cx.reserve_len() {
            // It might never come from the pool: this one is the allocator's.
            Buf::allocate(bytes)
        } else {
            cx.request_buffer(token::buffer(tag), bytes, Need::Fresh)
        };
        match buf {
            Some(buf) => self.fill(cx, admitted, buf),
            None if bytes > cx.reserve_len() => self.hopeless(cx, admitted),
            None => {
                admitted.payload_mut().stage = Stage::Buffer;
                self.put(admitted);
                None
            }
        }
    }

    /// Another plan would not help.
    fn hopeless<P: Port>(
        &mut self,
        cx: &mut QueueCx<'_, P>,
        mut admitted: AdmittedRequest<Held<B>>,
    ) -> Carried<B> {
        admitted.payload_mut().planned = None;
        self.done(cx, admitted, Err(ErrorKind::Io));
        None
    }

    /// Has a buffer: a read moves into it, a write's bytes come from the window first.
    fn fill<P: Port>(
        &mut self,
        cx: &mut QueueCx<'_, P>,
        mut admitted: AdmittedRequest<Held<B>>,
        buf: Buf,
    ) -> Carried<B> {
        let job = admitted.payload_mut();
        if job.is_read() {
            return self.move_buffered(cx, admitted, buf);
        }
        let Some(offset) = job.request().window() else {
            return self.hopeless(cx, admitted);
        };
        job.stage = Stage::CopyIn;
        let file = cx.char_device();
        let tag = admitted.tag().number();
        cx.submit(token::copy(tag), Op::Read { file, offset, buf });
        self.put(admitted);
        None
    }

    fn move_buffered<P: Port>(
        &mut self,
        cx: &mut QueueCx<'_, P>,
        mut admitted: AdmittedRequest<Held<B>>,
        buf: Buf,
    ) -> Carried<B> {
        let job = &mut **admitted.payload_mut();
        let Some(planned) = &job.planned else {
            return self.hopeless(cx, admitted);
        };
        let moving = Moving::new(planned.direction(), buf, planned.pieces());
        job.stage = Stage::Moving(Mover::Buffered(moving));
        self.pump(cx, admitted)
    }

    /// Moves bytes as far as it goes.
    fn pump<P: Port>(
        &mut self,
        cx: &mut QueueCx<'_, P>,
        mut admitted: AdmittedRequest<Held<B>>,
    ) -> Carried<B> {
        let tag = admitted.tag().number();
        let job = &mut **admitted.payload_mut();
        let (Stage::Moving(mover), Some(planned)) = (&mut job.stage, &job.planned) else {
            // Only such requests are pumped; anything else keeps waiting for what it waits for.
            self.put(admitted);
            return None;
        };
        let (pieces, files) = (planned.pieces(), &self.files);
        let outcome = match mover {
            Mover::Fixed(moving) => moving.pump(cx, pieces, files, self.zeroes, tag),
            Mover::Buffered(moving) => moving
                .pump(cx, pieces, files, tokens(tag))
                .then_some(Ok(())),
        };
        let Some(outcome) = outcome else {
            self.put(admitted);
            return None;
        };
        if matches!(mover, Mover::Fixed(_)) {
            job.stage = Stage::Plan;
            return match outcome {
                Err(error) if fixed::is_refused(error) && job.request().window().is_some() => {
                    job.copied = true;
                    self.begin_move(cx, admitted)
                }
                result => {
                    if result.is_ok() {
                        cx.count_move(true);
                    }
                    Some((admitted, result))
                }
            };
        }
        let Stage::Moving(Mover::Buffered(moving)) = std::mem::replace(&mut job.stage, Stage::Plan)
        else {
            unreachable!("looked at above");
        };
        let (buf, result) = moving.into_buffer();
        job.data = buf;
        cx.count_move(false);
        Some((admitted, result))
    }

    /// A file operation of a request has ended.
    pub(super) fn piece_moved<P: Port>(
        &mut self,
        cx: &mut QueueCx<'_, P>,
        tag: u16,
        piece: usize,
        completion: Completion,
    ) {
        let Some(mut admitted) = self.take(tag) else {
            return;
        };
        let job = &mut **admitted.payload_mut();
        if let (Stage::Moving(mover), Some(planned)) = (&mut job.stage, &job.planned) {
            match mover {
                Mover::Fixed(moving) => moving.completed(piece, &completion, planned.pieces()),
                Mover::Buffered(moving) => {
                    moving.completed(piece, completion, planned.pieces(), &self.files);
                }
            }
        }
        let carried = self.pump(cx, admitted);
        self.carry(cx, carried);
    }

    /// A bounce buffer that a request waited for is here.
    pub(super) fn bounce_came<P: Port>(
        &mut self,
        cx: &mut QueueCx<'_, P>,
        tag: u16,
        completion: Completion,
    ) {
        let (Completion::Buffer(buf), Some(mut admitted)) = (completion, self.take(tag)) else {
            return;
        };
        let job = &mut **admitted.payload_mut();
        if let (Stage::Moving(Mover::Buffered(moving)), Some(planned)) =
            (&mut job.stage, &job.planned)
        {
            moving.bounce_granted(cx, buf, planned.pieces(), &self.files, tokens(tag));
        }
        let carried = self.pump(cx, admitted);
        self.carry(cx, carried);
    }

    /// A buffer that a request waited for is here.
    pub(super) fn buffer_came<P: Port>(
        &mut self,
        cx: &mut QueueCx<'_, P>,
        tag: u16,
        completion: Completion,
    ) {
        let (Completion::Buffer(buf), Some(mut admitted)) = (completion, self.take(tag)) else {
            return;
        };
        let job = admitted.payload_mut();
        if !matches!(job.stage, Stage::Buffer) {
            return self.put(admitted);
        }
        job.stage = Stage::Plan;
        let carried = self.fill(cx, admitted, buf);
        self.carry(cx, carried);
    }

    /// Bytes were copied between a buffer and the request's window.
    pub(super) fn copied<P: Port>(
        &mut self,
        cx: &mut QueueCx<'_, P>,
        tag: u16,
        completion: Completion,
    ) {
        let Some(admitted) = self.take(tag) else {
            return;
        };
        match (&admitted.payload().stage, completion) {
            (Stage::CopyIn, Completion::Read(buf, Ok(()))) => {
                let carried = self.move_buffered(cx, admitted, buf);
                self.carry(cx, carried);
            }
            // Not the plan's fault: another one would meet the same window.
            (Stage::CopyIn, Completion::Read(_, Err(_))) => {
                self.hopeless(cx, admitted);
            }
            (Stage::CopyOut, Completion::Write(_, result)) => {
                self.done(cx, admitted, result.map_err(|_| ErrorKind::Io));
            }
            _ => self.put(admitted),
        }
    }
}
