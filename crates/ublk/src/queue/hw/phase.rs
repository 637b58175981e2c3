//! The phases of a queue between its first FETCH and its detach from the reactor.

/// Where a queue is on its way out of its reactor, and why.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// Requests go to the handler.
    Serving,
    /// The device may be about to leave its server: requests in hand are finished, new ones are
    /// held back.
    Draining {
        /// The observer has heard that nothing is in hand.
        reported: bool,
        /// The driver has aborted a tag meanwhile.
        aborted: bool,
    },
    /// The queue was draining, and detaches as soon as the driver has none of its tags.
    Releasing,
    /// The driver aborted a tag: it aborts all of them.
    Aborted {
        /// The time that the remaining tags had is over.
        grace_over: bool,
    },
    /// The reactor stops.
    Stopping,
}
