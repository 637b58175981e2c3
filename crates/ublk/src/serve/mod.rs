//! The mover: serves any `blkmq::io::Backend` over a queue, in every data mode.
//!
//! A request is *admitted* by the multi-queue core, *planned* by the backend, its bytes are
//! *moved*, and the backend *commits*. Which way the bytes go is chosen per request:
//!
//! | bytes are | and the plan | they go |
//! |---|---|---|
//! | in a buffer slot | fits the files' direct I/O | between slot and files, without a copy |
//! | in a buffer slot | does not fit | through a buffer of the pool and the request's window |
//! | in a window (user copy, or the slot was taken) | | the same |
//! | in a buffer (copy; a write of get-data) | | between that buffer and the files |
//! | to be brought (a read of get-data) | | into a buffer of the pool, which answers it |
//!
//! Buffers of the pool are taken after the plan, and let go before a request parks: what waits
//! for space or for the store holds no memory of the pool (R5). A get-data write is the exception: its
//! bytes were fetched before anybody could plan, and stay in its buffer, for which the pool has bounds
//! of its own (`reactor::Need::Held`). One blkmq queue stands behind each ublk queue.

mod fixed;
mod job;
mod mover;
#[cfg(test)]
mod tests;
mod token;

use std::fmt;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use blkmq::io::{Backend, FileId};
use blkmq::{Admission, AdmittedRequest, Device, Queue};
use reactor::{Completion, DioAlign, FileIndex, Op, OpenFile, Port, Token};

use crate::queue::Request;
use crate::queue::{Handler, QueueCx};
use job::{Doorbell, Ended, Job, Spare};
use token::Named;

/// A request as the core holds it.
type Held<B> = Box<Job<B>>;

/// The waker's key of the core's kick.
const KEY_RUN: u64 = 0;

/// How often parked requests are looked at for their time-out.
const TICK: Duration = Duration::from_secs(1);

/// A file that a backend's plans may name.
#[derive(Clone, Debug)]
pub struct ServedFile {
    /// How plans call it.
    pub id: FileId,
    /// The open file. Shared by all queues and reactors.
    pub fd: Arc<OwnedFd>,
    /// What its direct I/O asks for; [`DioAlign::NONE`] where it is opened without `O_DIRECT`.
    pub align: DioAlign,
}

/// Serves a backend over one hardware queue.
pub struct Serve<B: Backend> {
    backend: Arc<B>,
    served: Vec<ServedFile>,
    zeroes_fd: Option<Arc<OwnedFd>>,
    /// Gone once the server leaves.
    queue: Option<Queue<Held<B>>>,
    doorbell: Arc<Doorbell>,
    ended: Arc<Ended>,
    files: Vec<OpenFile>,
    zeroes: Option<FileIndex>,
    /// Requests whose bytes move or that wait for a buffer, by the core's tag.
    active: Vec<Option<AdmittedRequest<Held<B>>>>,
    spare: Spare<B>,
    began: Instant,
    ticking: bool,
}

impl<B: Backend> Serve<B> {
    /// A server of `backend` for a hardware queue of `depth` tags. Its requests are admitted
    /// through `device`, whose owner may quiesce and cancel it. `files` are all that plans may
    /// name. Takes a sleeping lock: not to be called on a ring thread.
    pub fn new(
        backend: Arc<B>,
        device: &Arc<Device>,
        files: Vec<ServedFile>,
        depth: u16,
    ) -> Serve<B> {
        let (ended, doorbell) = (Arc::<Ended>::default(), Arc::<Doorbell>::default());
        let (completer, kick) = (Arc::clone(&ended), Arc::clone(&doorbell));
        Serve {
            backend,
            served: files,
            zeroes_fd: fixed::zeroes(),
            queue: Some(device.add_queue(depth, completer, kick)),
            doorbell,
            ended,
            files: Vec::new(),
            zeroes: None,
            active: Vec::new(),
            spare: Spare::new(),
            began: Instant::now(),
            ticking: false,
        }
    }

    fn put(&mut self, admitted: AdmittedRequest<Held<B>>) {
        let at = usize::from(admitted.tag().number());
        if self.active.len() <= at {
            self.active.resize_with(at + 1, || None);
        }
        let before = self.active[at].replace(admitted);
        debug_assert!(before.is_none(), "a tag belongs to one request");
    }

    fn take(&mut self, tag: u16) -> Option<AdmittedRequest<Held<B>>> {
        self.active.get_mut(usize::from(tag))?.take()
    }

    /// Carries on what the core hands out.
    fn run<P: Port>(&mut self, cx: &mut QueueCx<'_, P>) {
        // Taken out for the call: what it hands out is carried on by all of `self`.
        let Some(mut queue) = self.queue.take() else {
            return;
        };
        // Each by itself: a panic over one must neither take the queue along nor leave behind
        // those that are woken already, whom nobody wakes again.
        queue.run(|admitted| cx.catch_panic(|cx| self.go(cx, admitted)));
        self.queue = Some(queue);
    }

    fn tick<P: Port>(&mut self, cx: &mut QueueCx<'_, P>) {
        if !std::mem::replace(&mut self.ticking, true) {
            cx.submit(token::TICK, Op::Timeout { after: TICK });
        }
    }

    fn ticked<P: Port>(&mut self, cx: &mut QueueCx<'_, P>) {
        self.ticking = false;
        let Some(queue) = &mut self.queue else {
            return;
        };
        queue.expire(self.began.elapsed());
        if queue.handle().load().parked > 0 {
            self.tick(cx);
        }
    }
}

impl<B: Backend> Handler for Serve<B> {
    fn on_attached<P: Port>(&mut self, cx: &mut QueueCx<'_, P>) {
        self.doorbell.hang(cx.waker(KEY_RUN));
        let open = self.served.drain(..).map(|file| OpenFile {
            id: file.id,
            index: cx.register(file.fd),
            align: file.align,
        });
        self.files = open.collect();
        self.zeroes = self.zeroes_fd.take().map(|fd| cx.register(fd));
    }

    fn on_request<P: Port>(&mut self, cx: &mut QueueCx<'_, P>, request: Request) {
        let Some(queue) = &mut self.queue else {
            return cx.answer(request, crate::Answer::Abandoned);
        };
        match queue.admit(self.spare.job(request)) {
            Admission::Run(admitted) => self.go(cx, admitted),
            Admission::Parked => self.tick(cx),
            Admission::Refused => {}
        }
    }

    fn on_completion<P: Port>(
        &mut self,
        cx: &mut QueueCx<'_, P>,
        token: Token,
        completion: Completion,
    ) {
        match token::parse(token) {
            Named::Tick => self.ticked(cx),
            Named::Piece(tag, piece) => self.piece_moved(cx, tag, piece, completion),
            Named::Bounce(tag) => self.bounce_came(cx, tag, completion),
            Named::Buffer(tag) => self.buffer_came(cx, tag, completion),
            Named::Copy(tag) => self.copied(cx, tag, completion),
        }
    }

    fn on_wake<P: Port>(&mut self, cx: &mut QueueCx<'_, P>, _key: u64) {
        self.run(cx);
    }

    fn on_stop<P: Port>(&mut self, _cx: &mut QueueCx<'_, P>) {
        self.ended.leaving.store(true, Ordering::Relaxed);
        // What is parked ends now; what moves goes on, so that no plan is given back under a
        // write in flight.
        self.queue = None;
    }
}

impl<B: Backend> fmt::Debug for Serve<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Serve")
            .field("files", &self.files.len())
            .finish_non_exhaustive()
    }
}
