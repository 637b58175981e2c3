//! A hardware queue as a source of its reactor: it passes what the driver hands over to the handler,
//! and what the handler answers back to the driver.
//!
//! It owns the handler and the driver's side (`hw`), and catches what a handler panics over. It must
//! not know data modes or tag states.

use std::any::Any;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;

use reactor::{Buf, Completion, Cx, Port, Source, Token};

use super::cx::QueueCx;
use super::handler::Handler;
use super::hw::HwQueue;
use super::parts::{QueueObserver, QueueParts};
use super::request::{Request, ReturnedRequest};
use super::stats::Counters;
use super::token::{
    self, CommandKind, KEY_DRAIN, KEY_RELEASE, KEY_RESUME, KEY_RETURN_QUEUE, OpKind,
};
use crate::sys;

/// Reports that a queue has detached. The last part of a queue to be dropped.
struct DetachNotice {
    queue: u16,
    counters: Arc<Counters>,
    observer: Arc<dyn QueueObserver>,
}

impl Drop for DetachNotice {
    fn drop(&mut self) {
        self.observer.on_detached(self.queue, self.counters.stats());
    }
}

/// A hardware queue and its handler, to be attached to a reactor. The methods take any [`Port`],
/// so that it also runs without a reactor; on a real one they are called through [`Source`].
pub struct QueueSource<H: Handler> {
    // In the order of their drop: requests that the handler has go to `hw`'s return queue, and the
    // descriptors are unmapped before the observer hears of the detach.
    handler: H,
    hw: HwQueue,
    /// Memory that is swapped with the return queue.
    returned: Vec<ReturnedRequest>,
    /// The handler is being called with a request.
    in_handler: bool,
    abort_reported: bool,
    _detach_notice: DetachNotice,
}

impl<H: Handler> QueueSource<H> {
    /// Makes a queue. It sends nothing before it is attached.
    pub fn new(parts: QueueParts, handler: H) -> QueueSource<H> {
        let detach_notice = DetachNotice {
            queue: parts.queue,
            counters: Arc::clone(&parts.counters),
            observer: Arc::clone(&parts.observer),
        };
        QueueSource {
            handler,
            hw: HwQueue::new(parts),
            returned: Vec::new(),
            in_handler: false,
            abort_reported: false,
            _detach_notice: detach_notice,
        }
    }

    /// Calls the handler, and catches a panic.
    fn call_handler<P: Port>(
        &mut self,
        port: &mut P,
        what: impl FnOnce(&mut H, &mut QueueCx<'_, P>),
    ) {
        let mut cx = QueueCx {
            hw: &mut self.hw,
            port,
        };
        cx.catch_panic(|cx| what(&mut self.handler, cx));
    }

    fn deliver<P: Port>(&mut self, port: &mut P, request: Option<Request>) {
        if let Some(request) = request {
            self.call_handler(port, |handler, cx| handler.on_request(cx, request));
        }
    }

    /// The queue is attached: issues FETCH for every tag.
    pub fn on_attached<P: Port>(&mut self, port: &mut P) {
        self.hw.start(port);
        self.call_handler(port, |handler, cx| handler.on_attached(cx));
    }

    /// FETCH, COMMIT_AND_FETCH or NEED_GET_DATA commands have completed: `next` gives their numbers
    /// and raw results. A panic of the handler fails its request alone, but there is one
    /// `catch_unwind` for the whole batch, so that a request which the handler answers within the
    /// call is never moved in memory.
    #[inline]
    pub fn on_armed_completions<P: Port>(
        &mut self,
        port: &mut P,
        mut next: impl FnMut(&mut P) -> Option<(u32, i32)>,
    ) {
        loop {
            let all = catch_unwind(AssertUnwindSafe(|| {
                while let Some((number, raw)) = next(port) {
                    self.on_command(port, number, raw);
                }
            }));
            match all {
                Ok(()) => return,
                Err(panic) => self.on_panic(port, panic),
            }
        }
    }

    #[inline(always)]
    fn on_command<P: Port>(&mut self, port: &mut P, number: u32, raw: i32) {
        // The frequent cases are dispatched first and directly, for the reason above.
        match token::parse_command_number(number) {
            (CommandKind::Fetch, tag) if raw == sys::RESULT_OK && self.hw.is_serving() => {
                if let Some(request) = self.hw.on_fetched_serving(port, tag) {
                    self.deliver_unguarded(port, request);
                }
            }
            (CommandKind::Fetch, tag)
                if raw == sys::RESULT_NEED_GET_DATA && self.hw.is_serving() =>
            {
                self.hw.on_get_data_serving(port, tag);
            }
            (CommandKind::Fetch, tag) => {
                let request = self.hw.on_command(port, tag, raw);
                self.deliver(port, request);
                self.after_event(port);
            }
            (CommandKind::GetData, tag) => {
                if let Some(request) = self.hw.on_data_copied(port, tag, raw) {
                    self.deliver_unguarded(port, request);
                }
                self.after_event(port);
            }
        }
    }

    /// Delivers a request to the handler. The caller catches a panic.
    #[inline(always)]
    fn deliver_unguarded<P: Port>(&mut self, port: &mut P, request: Request) {
        self.in_handler = true;
        let mut cx = QueueCx {
            hw: &mut self.hw,
            port,
        };
        self.handler.on_request(&mut cx, request);
        self.in_handler = false;
    }

    /// A panic in [`QueueSource::on_armed_completions`]: of the handler, or of the queue itself, which goes on.
    #[cold]
    fn on_panic<P: Port>(&mut self, port: &mut P, panic: Box<dyn Any + Send>) {
        if !std::mem::take(&mut self.in_handler) {
            resume_unwind(panic);
        }
        self.hw.on_handler_panic();
        self.after_event(port);
    }

    /// An operation has completed.
    pub fn on_completion<P: Port>(&mut self, port: &mut P, token: Token, completion: Completion) {
        if let Completion::ArmedCommand(number, raw) = completion {
            let mut one = Some((number, raw));
            return self.on_armed_completions(port, |_| one.take());
        }
        let (kind, number) = match token::parse(token) {
            Ok(own) => own,
            Err(token) => {
                self.call_handler(port, |handler, cx| {
                    handler.on_completion(cx, Token(token), completion)
                });
                return self.after_event(port);
            }
        };
        let hw = &mut self.hw;
        let request = match kind {
            OpKind::Register => {
                // A command has no other completion.
                let Completion::Command(raw) = completion else {
                    return;
                };
                hw.on_registered(port, number, raw)
            }
            OpKind::Unregister => {
                hw.on_slot_free(port, number);
                None
            }
            OpKind::Buffer => {
                if let Completion::Buffer(buf) = completion {
                    hw.on_buffer(port, number, buf);
                }
                None
            }
            OpKind::RetryTimer => {
                hw.on_retry_timer(port, number);
                None
            }
            OpKind::GraceTimer => {
                hw.on_grace_timer();
                None
            }
            OpKind::PoolTimer => {
                hw.on_pool_timer(port);
                None
            }
        };
        self.deliver(port, request);
        self.after_event(port);
    }

    /// A waker with this key was woken.
    pub fn on_wake<P: Port>(&mut self, port: &mut P, key: u64) {
        match key {
            KEY_RETURN_QUEUE => {}
            KEY_DRAIN => {
                self.hw.drain();
                return self.after_event(port);
            }
            KEY_RESUME => {
                self.hw.resume(port);
                while let Some(request) = self.hw.next_held(port) {
                    self.deliver(port, Some(request));
                }
                return self.after_event(port);
            }
            KEY_RELEASE => {
                self.hw.release(port);
                return self.after_event(port);
            }
            _ => {
                self.call_handler(port, |handler, cx| handler.on_wake(cx, key));
                return self.after_event(port);
            }
        }
        let mut returned = std::mem::take(&mut self.returned);
        self.hw.return_queue.swap(&mut returned);
        for one in returned.drain(..) {
            self.hw.on_answered(port, one);
        }
        self.returned = returned;
        self.hw.on_pool_woken(port);
        self.after_event(port);
    }

    /// All completions of a turn were delivered.
    pub fn on_turn<P: Port>(&mut self, port: &mut P) {
        self.call_handler(port, |handler, cx| handler.on_turn(cx));
        self.after_event(port);
    }

    /// The reactor stops.
    pub fn on_stop<P: Port>(&mut self, port: &mut P) {
        self.hw.stop(port);
        self.call_handler(port, |handler, cx| handler.on_stop(cx));
        self.after_event(port);
    }

    /// After every event: detaches once nothing is left to do.
    #[inline]
    fn after_event<P: Port>(&mut self, port: &mut P) {
        if !self.hw.is_serving() {
            self.advance_detach(port);
        }
    }

    /// Reports an abort once, and detaches when all is done.
    #[cold]
    fn advance_detach<P: Port>(&mut self, port: &mut P) {
        if self.hw.is_aborted() && !std::mem::replace(&mut self.abort_reported, true) {
            self.hw.observer.on_aborted(self.hw.queue());
            self.call_handler(port, |handler, cx| handler.on_aborted(cx));
        }
        self.hw.detach_if_done(port);
    }
}

impl<H: Handler> Source for QueueSource<H> {
    fn on_attached(&mut self, cx: &mut Cx<'_>) {
        QueueSource::on_attached(self, cx);
    }

    fn on_completion(&mut self, cx: &mut Cx<'_>, token: Token, completion: Completion) {
        QueueSource::on_completion(self, cx, token, completion);
    }

    fn on_armed_completions(&mut self, cx: &mut Cx<'_>) {
        QueueSource::on_armed_completions(self, cx, Cx::next_armed);
    }

    fn release_armed_memory(&mut self) -> Vec<Buf> {
        self.hw.take_driver_buffers()
    }

    fn on_wake(&mut self, cx: &mut Cx<'_>, key: u64) {
        QueueSource::on_wake(self, cx, key);
    }

    fn on_turn(&mut self, cx: &mut Cx<'_>) {
        QueueSource::on_turn(self, cx);
    }

    fn on_stop(&mut self, cx: &mut Cx<'_>) {
        QueueSource::on_stop(self, cx);
    }
}

impl<H: Handler> fmt::Debug for QueueSource<H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "QueueSource({})", self.hw.queue())
    }
}
