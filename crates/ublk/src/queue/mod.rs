//! The data path of one hardware queue: a source on the reactor that owns all its tags, or, from
//! 6.16 on where that is wanted, one source per reactor that owns a [`Share`] of them.
//!
//! `hw` speaks with the driver, `mode` holds what the data modes differ in, [`Handler`] is what a
//! user writes, and [`QueueSource`] puts them together. Everything runs on the reactor's thread;
//! requests may be answered from anywhere. One reactor carries any number of queues of any number
//! of devices, and no queue's end disturbs another.
//!
//! Order of answers: results go to the driver in the order in which requests are answered, and
//! requests reach the handler in the order in which the driver handed them over (get-data writes
//! when their bytes are there).
//!
//! # Slots and completions: the budget of a ring
//!
//! A zero-copy queue takes `min(depth, slots_max)` buffer slots of its ring's 16,384, or half as
//! many, and so on, where they are not free any more. A tag has one command with the driver, or its
//! request is here and has some file operations in flight, `pieces` at most: so a ring's
//! completion queue has room for everything where it holds `sum over queues of depth * max(1,
//! pieces)`, one more for a request that is put into a slot of its own, and one for the ring's
//! wake. What does not fit is kept aside by the kernel, which costs time and loses nothing.

mod cx;
mod descriptors;
mod handler;
mod hw;
mod mode;
mod stats;
mod tags;
#[cfg(test)]
pub(crate) mod tests;
mod token;

use std::any::Any;
use std::fmt;
use std::os::fd::OwnedFd;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;

use reactor::{Buf, Completion, Cx, Port, Source, Token};

pub use cx::QueueCx;
pub use descriptors::Descriptors;
pub use handler::Handler;
pub use mode::get_data::Pool;
pub use stats::{Counters, QueueStats};
pub use tags::Share;

use crate::request::{Request, Returned};
use crate::sys;
use hw::Hw;
use token::{Armed, Kind};

/// The waker's key of requests that were answered elsewhere.
const KEY_RETURNED: u64 = u64::MAX;
/// The waker's key that makes a queue rest: it finishes what it has, says so, and keeps what comes.
pub(crate) const KEY_REST: u64 = u64::MAX - 1;
/// The waker's key that ends a rest.
pub(crate) const KEY_RESUME: u64 = u64::MAX - 2;
/// The waker's key that makes a queue leave after a rest, as soon as the driver has none of its tags.
pub(crate) const KEY_LET_GO: u64 = u64::MAX - 3;

/// Who is told what happens to a queue. Called on its reactor's thread: must not wait.
pub trait Watch: Send + Sync {
    /// Every tag was given to the driver. What the driver refuses it says later.
    fn armed(&self, _queue: u16) {}

    /// The driver refused a tag's first command with this errno: the device cannot start. It is
    /// tried again after a pause.
    fn fetch_failed(&self, queue: u16, errno: i32);

    /// The driver retired the first tag: the device stops or is quiesced.
    fn aborted(&self, _queue: u16) {}

    /// The queue has answered what it had, and takes nothing up: its device may be about to leave.
    fn rested(&self, _queue: u16) {}

    /// The queue has left its reactor: its memory is unmapped, its files are closed.
    fn gone(&self, _queue: u16, _stats: QueueStats) {}
}

/// What a queue is made of.
pub struct QueueParts {
    /// Its number.
    pub queue: u16,
    /// Its tags.
    pub depth: u16,
    /// Which of them are served here.
    pub share: Share,
    /// The device's character device, opened with `O_NONBLOCK`: the kernel then copies on the
    /// ring's own thread, without it on a helper thread. All queues share it.
    pub char_device: Arc<OwnedFd>,
    /// The queue's descriptors.
    pub descriptors: Descriptors,
    /// The `F_` flags that the driver granted. They decide the [`crate::DataMode`].
    pub flags: u64,
    /// The largest request in bytes.
    pub io_bytes_max: u32,
    /// Buffer slots that a zero-copy queue takes at most.
    pub slots_max: u16,
    /// Where the memory for a get-data device's writes comes from, if not from the reactor.
    pub pool: Option<Box<dyn Pool>>,
    /// The queue's figures, for who keeps a copy.
    pub counters: Arc<Counters>,
    /// Who is told.
    pub watch: Arc<dyn Watch>,
}

impl fmt::Debug for QueueParts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("QueueParts")
            .field("queue", &self.queue)
            .field("depth", &self.depth)
            .field("flags", &format_args!("{:#x}", self.flags))
            .finish_non_exhaustive()
    }
}

/// Says that a queue has left, last of all that it owned.
struct Farewell {
    queue: u16,
    counters: Arc<Counters>,
    watch: Arc<dyn Watch>,
}

impl Drop for Farewell {
    fn drop(&mut self) {
        self.watch.gone(self.queue, self.counters.stats());
    }
}

/// A hardware queue and its handler, to be attached to a reactor. The methods take any [`Port`],
/// so that it also runs without a reactor; on a real one they are called through [`Source`].
pub struct QueueSource<H: Handler> {
    // In the order in which they go: requests that the handler has return to `hw`'s list, and
    // the descriptors are unmapped before anybody is told.
    handler: H,
    hw: Hw,
    returned: Vec<Returned>,
    /// The handler is being called with a request.
    calling: bool,
    told_aborted: bool,
    _farewell: Farewell,
}

impl<H: Handler> QueueSource<H> {
    /// Puts a queue together. Nothing is sent before it is attached.
    pub fn new(parts: QueueParts, handler: H) -> QueueSource<H> {
        let farewell = Farewell {
            queue: parts.queue,
            counters: Arc::clone(&parts.counters),
            watch: Arc::clone(&parts.watch),
        };
        QueueSource {
            handler,
            hw: Hw::new(parts),
            returned: Vec::new(),
            calling: false,
            told_aborted: false,
            _farewell: farewell,
        }
    }

    /// Calls the handler, which may panic.
    fn call<P: Port>(&mut self, port: &mut P, what: impl FnOnce(&mut H, &mut QueueCx<'_, P>)) {
        let mut cx = QueueCx {
            hw: &mut self.hw,
            port,
        };
        cx.guarded(|cx| what(&mut self.handler, cx));
    }

    fn hand_out<P: Port>(&mut self, port: &mut P, request: Option<Request>) {
        if let Some(request) = request {
            self.call(port, |handler, cx| handler.request(cx, request));
        }
    }

    /// Gives all tags to the driver.
    pub fn begin<P: Port>(&mut self, port: &mut P) {
        self.hw.begin(port);
        self.call(port, |handler, cx| handler.attached(cx));
    }

    /// Armed commands have ended, which is most of what a queue is told: `next` has their numbers and
    /// raw answers. What the handler panics over costs its request alone, but is caught for all
    /// of them together: a request that goes in and out again by one call is moved nowhere.
    #[inline]
    pub fn commanded<P: Port>(
        &mut self,
        port: &mut P,
        mut next: impl FnMut(&mut P) -> Option<(u32, i32)>,
    ) {
        loop {
            let all = catch_unwind(AssertUnwindSafe(|| {
                while let Some((number, raw)) = next(port) {
                    self.command_ended(port, number, raw);
                }
            }));
            match all {
                Ok(()) => return,
                Err(panic) => self.panicked(port, panic),
            }
        }
    }

    #[inline(always)]
    fn command_ended<P: Port>(&mut self, port: &mut P, number: u32, raw: i32) {
        // Told apart early, and not put together again: see above.
        match token::parse_armed(number) {
            (Armed::Command, tag) if raw == sys::RESULT_OK && self.hw.takes_all() => {
                if let Some(request) = self.hw.served(port, tag) {
                    self.take(port, request);
                }
            }
            (Armed::Command, tag) if raw == sys::RESULT_NEED_GET_DATA && self.hw.takes_all() => {
                self.hw.announced(port, tag);
            }
            (Armed::Command, tag) => {
                let request = self.hw.commanded(port, tag, raw);
                self.hand_out(port, request);
                self.settle(port);
            }
            (Armed::GetData, tag) => {
                if let Some(request) = self.hw.data_came(port, tag, raw) {
                    self.take(port, request);
                }
                self.settle(port);
            }
        }
    }

    /// The handler takes a request; who calls this catches what it panics over.
    #[inline(always)]
    fn take<P: Port>(&mut self, port: &mut P, request: Request) {
        self.calling = true;
        let mut cx = QueueCx {
            hw: &mut self.hw,
            port,
        };
        self.handler.request(&mut cx, request);
        self.calling = false;
    }

    /// Something panicked while ends of commands were told: the handler, or what is ours.
    #[cold]
    fn panicked<P: Port>(&mut self, port: &mut P, panic: Box<dyn Any + Send>) {
        if !std::mem::take(&mut self.calling) {
            resume_unwind(panic);
        }
        self.hw.handler_panicked();
        self.settle(port);
    }

    /// An operation has ended.
    pub fn ended<P: Port>(&mut self, port: &mut P, token: Token, completion: Completion) {
        if let Completion::ArmedCommand(number, raw) = completion {
            let mut one = Some((number, raw));
            return self.commanded(port, |_| one.take());
        }
        let (kind, number) = match token::parse(token) {
            Ok(own) => own,
            Err(token) => {
                self.call(port, |handler, cx| {
                    handler.completed(cx, Token(token), completion)
                });
                return self.settle(port);
            }
        };
        let hw = &mut self.hw;
        let request = match kind {
            Kind::Register => {
                // Commands end in no other way.
                let Completion::Command(raw) = completion else {
                    return;
                };
                hw.registered(port, number, raw)
            }
            Kind::Unregister => {
                hw.slot_free(port, number);
                None
            }
            Kind::Buffer => {
                if let Completion::Buffer(buf) = completion {
                    hw.buffer_came(port, number, buf);
                }
                None
            }
            Kind::Pause => {
                hw.again(port, number);
                None
            }
            Kind::Grace => {
                hw.grace_over();
                None
            }
            Kind::Pool => {
                hw.pool_paused(port);
                None
            }
        };
        self.hand_out(port, request);
        self.settle(port);
    }

    /// A waker with this key was woken.
    pub fn woke<P: Port>(&mut self, port: &mut P, key: u64) {
        match key {
            KEY_RETURNED => {}
            KEY_REST => {
                self.hw.rest();
                return self.settle(port);
            }
            KEY_RESUME => {
                self.hw.resume(port);
                while let Some(request) = self.hw.take_up(port) {
                    self.hand_out(port, Some(request));
                }
                return self.settle(port);
            }
            KEY_LET_GO => {
                self.hw.let_go(port);
                return self.settle(port);
            }
            _ => {
                self.call(port, |handler, cx| handler.woken(cx, key));
                return self.settle(port);
            }
        }
        let mut returned = std::mem::take(&mut self.returned);
        self.hw.home.take(&mut returned);
        for one in returned.drain(..) {
            self.hw.answered(port, one);
        }
        self.returned = returned;
        self.hw.pool_woken(port);
        self.settle(port);
    }

    /// All completions of a turn were delivered.
    pub fn turned<P: Port>(&mut self, port: &mut P) {
        self.call(port, |handler, cx| handler.turn(cx));
        self.settle(port);
    }

    /// The reactor is to stop.
    pub fn stopping<P: Port>(&mut self, port: &mut P) {
        self.hw.stop(port);
        self.call(port, |handler, cx| handler.stopping(cx));
        self.settle(port);
    }

    /// Tells of an abort, and leaves when all is done.
    #[inline]
    fn settle<P: Port>(&mut self, port: &mut P) {
        if self.hw.is_leaving() {
            self.settle_leaving(port);
        }
    }

    #[cold]
    fn settle_leaving<P: Port>(&mut self, port: &mut P) {
        if self.hw.aborted() && !std::mem::replace(&mut self.told_aborted, true) {
            self.hw.watch.aborted(self.hw.queue());
            self.call(port, |handler, cx| handler.aborted(cx));
        }
        self.hw.leave_if_done(port);
    }
}

impl<H: Handler> Source for QueueSource<H> {
    fn on_attached(&mut self, cx: &mut Cx<'_>) {
        self.begin(cx);
    }

    fn on_completion(&mut self, cx: &mut Cx<'_>, token: Token, completion: Completion) {
        self.ended(cx, token, completion);
    }

    fn on_armed_completions(&mut self, cx: &mut Cx<'_>) {
        QueueSource::commanded(self, cx, Cx::next_armed);
    }

    fn release_armed_memory(&mut self) -> Vec<Buf> {
        self.hw.leave()
    }

    fn on_wake(&mut self, cx: &mut Cx<'_>, key: u64) {
        self.woke(cx, key);
    }

    fn on_turn(&mut self, cx: &mut Cx<'_>) {
        self.turned(cx);
    }

    fn on_stop(&mut self, cx: &mut Cx<'_>) {
        self.stopping(cx);
    }
}

impl<H: Handler> fmt::Debug for QueueSource<H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "QueueSource({})", self.hw.queue())
    }
}
