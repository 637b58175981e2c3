//! The trait that a user of this crate implements: how the requests of a queue are served.

use reactor::{Completion, Port, Token};

use super::cx::QueueCx;
use super::request::Request;
use crate::spec::Modes;

/// Serves the requests of one hardware queue. Every method runs on the ring's thread and must not
/// block (R1). A panic fails the request of the call and no other.
pub trait Handler: 'static {
    /// The data modes that it can serve. No other is negotiated for its device.
    const MODES: Modes = Modes::ALL;

    /// The queue is attached to its reactor, and has sent FETCH for every tag.
    fn on_attached<P: Port>(&mut self, _queue: &mut QueueCx<'_, P>) {}

    /// A request arrived. Answer it now ([`QueueCx::answer`]), or keep it and answer it later, from
    /// any thread.
    fn on_request<P: Port>(&mut self, queue: &mut QueueCx<'_, P>, request: Request);

    /// An operation that this handler submitted has completed.
    fn on_completion<P: Port>(
        &mut self,
        _queue: &mut QueueCx<'_, P>,
        _token: Token,
        _completion: Completion,
    ) {
    }

    /// A waker of this handler was woken, perhaps spuriously.
    fn on_wake<P: Port>(&mut self, _queue: &mut QueueCx<'_, P>, _key: u64) {}

    /// All completions of a turn were delivered. Called where [`Port::request_turn`] asked for it.
    fn on_turn<P: Port>(&mut self, _queue: &mut QueueCx<'_, P>) {}

    /// The driver aborts the queue's tags: no new request arrives. Requests in hand are still
    /// answered.
    fn on_aborted<P: Port>(&mut self, _queue: &mut QueueCx<'_, P>) {}

    /// The reactor stops: no new request arrives. Requests whose work has begun are answered;
    /// requests that only wait may be abandoned ([`crate::Answer::Abandoned`]).
    fn on_stop<P: Port>(&mut self, _queue: &mut QueueCx<'_, P>) {}
}
