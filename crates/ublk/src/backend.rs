//! A handler that serves any `blkmq::io::Backend`, in every data mode.
//!
//! It says to the request engine where a request's bytes are and how its answer leaves. The engine
//! (`serve`) admits, plans, moves and commits. One blkmq queue stands behind each ublk queue.

use std::fmt;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use blkmq::error::ErrorKind;
use blkmq::io::{Backend, Op};
use blkmq::{Completer, Device};
use reactor::{Buf, Completion, Port, Token};
use serve::latency::Latencies;
use serve::{BackendFile, EngineOptions, Location, RequestEngine, Transport, Window};

use crate::queue::{Answer, Data, Handler, QueueCx, Request};
use crate::sys::IO_BYTES_MAX;

/// The key of the waker with which the core asks for a run.
const KEY_RUN: u64 = 0;

/// How often parked requests are looked at for their time-out.
const TICK: Duration = Duration::from_secs(1);

/// A file of zeroes that takes no memory, as long as the longest request. All queues share it.
fn zeroes() -> Option<Arc<OwnedFd>> {
    static ZEROES: OnceLock<Option<Arc<OwnedFd>>> = OnceLock::new();
    let make = || {
        reactor::memfd(c"zeroes", u64::from(IO_BYTES_MAX))
            .map(Arc::new)
            .ok()
    };
    ZEROES.get_or_init(make).clone()
}

impl serve::Request for Request {
    #[inline]
    fn op(&self) -> &Op {
        Request::op(self)
    }

    #[inline]
    fn bytes(&self) -> u32 {
        Request::bytes(self)
    }

    #[inline]
    fn location(&self) -> Location {
        match *self.data() {
            Data::Fixed { slot } => Location::Slot(slot),
            Data::Window => Location::Window,
            Data::None | Data::Buffer(_) => Location::Buffer,
        }
    }

    #[inline]
    fn take_buffer(&mut self) -> Option<Buf> {
        Request::take_buffer(self)
    }

    fn set_buffer(&mut self, buf: Buf) {
        Request::set_buffer(self, buf);
    }
}

fn answer_of(result: Result<(), ErrorKind>) -> Answer {
    match result {
        Ok(()) => Answer::Done,
        Err(kind) => Answer::Failed(kind.errno()),
    }
}

impl<P: Port> Transport for QueueCx<'_, P> {
    type Request = Request;
    type Port = Self;

    #[inline]
    fn port(&mut self) -> &mut Self {
        self
    }

    #[inline]
    fn answer(&mut self, request: Request, result: Result<(), ErrorKind>) {
        QueueCx::answer(self, request, answer_of(result));
    }

    fn reject(&mut self, request: Request) {
        QueueCx::answer(self, request, Answer::Abandoned);
    }

    fn window(&self, request: &Request) -> Option<Window> {
        let offset = request.window()?;
        let file = self.char_device();
        Some(Window { file, offset })
    }

    #[inline]
    fn count_move(&mut self, copied: bool) {
        QueueCx::count_move(self, !copied);
    }

    fn catch_panic(&mut self, call: impl FnOnce(&mut Self)) {
        QueueCx::catch_panic(self, call);
    }
}

/// Answers requests that end inside the core.
#[derive(Debug, Default)]
struct CoreCompleter {
    /// The server leaves: what only waited stays with the driver.
    leaving: AtomicBool,
}

impl Completer<Request> for CoreCompleter {
    fn complete(&self, request: Request, result: Result<(), ErrorKind>) {
        let leaving = self.leaving.load(Ordering::Relaxed);
        if leaving && result == Err(ErrorKind::Closed) {
            request.answer(Answer::Abandoned);
        } else {
            request.answer(answer_of(result));
        }
    }
}

/// Serves a backend to one hardware queue.
pub struct BackendHandler<B: Backend> {
    engine: RequestEngine<B, Request>,
    completer: Arc<CoreCompleter>,
}

impl<B: Backend> BackendHandler<B> {
    /// A handler for a hardware queue of `depth` tags. Its requests are admitted through `device`,
    /// whose owner may quiesce and cancel it. `files` are all that plans may name. Takes a sleeping
    /// lock: not to be called on a ring thread.
    pub fn new(
        backend: Arc<B>,
        device: &Arc<Device>,
        files: Vec<BackendFile>,
        depth: u16,
    ) -> BackendHandler<B> {
        Self::observed(backend, device, files, depth, Latencies::unobserved())
    }

    /// The same; how long requests take is counted in `latencies`.
    pub fn observed(
        backend: Arc<B>,
        device: &Arc<Device>,
        files: Vec<BackendFile>,
        depth: u16,
        latencies: Arc<Latencies>,
    ) -> BackendHandler<B> {
        let completer = Arc::<CoreCompleter>::default();
        let options = EngineOptions {
            files,
            depth,
            tick: TICK,
            zeroes: zeroes(),
            latencies,
        };
        BackendHandler {
            engine: RequestEngine::new(backend, device, options, Arc::clone(&completer)),
            completer,
        }
    }
}

impl<B: Backend> Handler for BackendHandler<B> {
    fn on_attached<P: Port>(&mut self, cx: &mut QueueCx<'_, P>) {
        self.engine.attach(cx, KEY_RUN);
    }

    fn on_request<P: Port>(&mut self, cx: &mut QueueCx<'_, P>, request: Request) {
        self.engine.admit(cx, request);
    }

    fn on_completion<P: Port>(
        &mut self,
        cx: &mut QueueCx<'_, P>,
        token: Token,
        completion: Completion,
    ) {
        self.engine.on_completion(cx, token, completion);
    }

    fn on_wake<P: Port>(&mut self, cx: &mut QueueCx<'_, P>, _key: u64) {
        self.engine.run(cx);
    }

    fn on_stop<P: Port>(&mut self, _cx: &mut QueueCx<'_, P>) {
        self.completer.leaving.store(true, Ordering::Relaxed);
        self.engine.retire();
    }
}

impl<B: Backend> fmt::Debug for BackendHandler<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BackendHandler").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
