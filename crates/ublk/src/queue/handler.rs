//! What a user writes: how requests are served.

use reactor::{Completion, Port, Token};

use super::QueueCx;
use crate::request::Request;
use crate::spec::Modes;

/// Serves the requests of one hardware queue. Every method runs on the ring's thread and must not
/// wait (R1); a panic costs the request at hand.
pub trait Handler: 'static {
    /// The data modes that it can serve. No other is negotiated for its device.
    const MODES: Modes = Modes::ALL;

    /// The queue is attached and its tags are with the driver.
    fn attached<P: Port>(&mut self, _queue: &mut QueueCx<'_, P>) {}

    /// A request came. Answer it now ([`QueueCx::answer`]), or keep it and answer it later, from
    /// any thread.
    fn request<P: Port>(&mut self, queue: &mut QueueCx<'_, P>, request: Request);

    /// An operation that this handler began has ended.
    fn completed<P: Port>(
        &mut self,
        _queue: &mut QueueCx<'_, P>,
        _token: Token,
        _completion: Completion,
    ) {
    }

    /// A waker of this handler was woken, perhaps for nothing.
    fn woken<P: Port>(&mut self, _queue: &mut QueueCx<'_, P>, _key: u64) {}

    /// All completions of a turn were delivered, where it was asked for.
    fn turn<P: Port>(&mut self, _queue: &mut QueueCx<'_, P>) {}

    /// The driver takes the tags away: no new request comes. Those at hand are still answered.
    fn aborted<P: Port>(&mut self, _queue: &mut QueueCx<'_, P>) {}

    /// The server leaves: no new request comes. Those whose work has begun are answered; what
    /// only waits may be abandoned ([`crate::Answer::Abandoned`]).
    fn stopping<P: Port>(&mut self, _queue: &mut QueueCx<'_, P>) {}
}
