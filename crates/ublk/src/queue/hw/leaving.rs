//! How a queue leaves: its driver retires the tags, or its reactor stops. What the server has in
//! hand then is finished first, or left with the driver, and only after that is the queue detached: a
//! queue never goes while a handler has a request of it.

use std::time::Duration;

use reactor::{Op, Port};

use super::{Hw, Kind, State, token};

/// How long a queue whose first tag was retired waits for the others. A quiesced driver may leave
/// some armed for ever.
const GRACE: Duration = Duration::from_secs(1);

/// Why a queue is about to leave its reactor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Leaving {
    No,
    /// The driver retired a tag: it retires all.
    Aborted {
        grace_over: bool,
    },
    /// The reactor stops.
    Stopping,
}

impl Hw {
    /// Whether a request that comes now is to stay with the driver.
    #[inline]
    pub(super) fn leaves_it(&self) -> bool {
        let last_idle = || self.exit_needs_idle_tag && self.tags.count(State::Armed) == 0;
        self.leaving == Leaving::Stopping && !last_idle()
    }

    /// The driver takes no more from this tag.
    pub(super) fn retired<P: Port>(&mut self, port: &mut P, tag: u16) {
        self.counters.aborts.one();
        self.tags.set(tag, State::Retired);
        if self.leaving == Leaving::No {
            self.counters
                .owned_at_abort
                .set(u64::from(self.tags.owned()));
            self.leaving = Leaving::Aborted { grace_over: false };
            port.submit(token::own(Kind::Grace, 0), Op::Timeout { after: GRACE });
        }
    }

    pub(in crate::queue) fn grace_over(&mut self) {
        if let Leaving::Aborted { grace_over } = &mut self.leaving {
            *grace_over = true;
        }
    }

    pub(super) fn leave_tag<P: Port>(&mut self, port: &mut P, tag: u16) {
        self.counters.abandoned.one();
        self.empty_slot(port, tag);
        self.tags.set(tag, State::Left);
    }

    /// The reactor stops: no more requests are taken up, those in hand are finished.
    pub(in crate::queue) fn stop<P: Port>(&mut self, port: &mut P) {
        self.leaving = Leaving::Stopping;
        for tag in self.share.tags(self.depth) {
            if self.tags.state(tag) == State::Owed && self.leaves_it() {
                self.leave_tag(port, tag);
            }
        }
    }

    /// Whether it is on its way out, for whatever reason.
    #[inline]
    pub(in crate::queue) fn is_leaving(&self) -> bool {
        self.leaving != Leaving::No
    }

    pub(in crate::queue) fn aborted(&self) -> bool {
        matches!(self.leaving, Leaving::Aborted { .. })
    }

    /// Leaves the reactor once nothing is in hand any more.
    pub(in crate::queue) fn leave_if_done<P: Port>(&mut self, port: &mut P) {
        if self.leaving == Leaving::No {
            return;
        }
        let count = |state| self.tags.count(state);
        let in_hand = count(State::Served) + count(State::Owed) + count(State::Fetching);
        let with_driver = count(State::Armed);
        let done = match self.leaving {
            Leaving::No => false,
            Leaving::Aborted { grace_over } => {
                // What a driver that is about to go refuses for so long, it settles by itself
                // when its character device is closed.
                in_hand == 0 && (grace_over || with_driver + count(State::Pausing) == 0)
            }
            Leaving::Stopping => {
                let unsettled = count(State::Pausing) > 0;
                in_hand == 0 && !unsettled
            }
        };
        if done && !std::mem::replace(&mut self.detached, true) {
            port.detach();
        }
    }
}
