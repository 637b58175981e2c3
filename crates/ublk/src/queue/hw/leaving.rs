//! How a queue leaves: its driver retires the tags, its reactor stops, or its device leaves alone. What
//! the server has in hand then is finished first, or left with the driver, and only after that is the
//! queue detached: a queue never goes while a handler has a request of it.
//!
//! A device that leaves alone rests first: its queues finish what they have and only keep what comes,
//! so that nothing is handed over while the driver takes tags back. Then it is let go, with what was
//! kept left to the driver; or it goes on, with what was kept taken up.

use std::time::Duration;

use reactor::{Op, Port};

use super::{Hw, Kind, State, token};
use crate::queue::descriptors::bytes_of;
use crate::queue::mode::zero_copy::NO_SLOT;
use crate::queue::mode::{Arrival, Mode};
use crate::request::{Data, Request};
use crate::sys;

/// How long a queue whose first tag was retired waits for the others. A quiesced driver may leave
/// some armed for ever.
const GRACE: Duration = Duration::from_secs(1);

/// Why a queue is about to leave its reactor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Leaving {
    No,
    /// Its device may be about to leave: what comes is kept.
    Resting {
        told: bool,
        aborted: bool,
    },
    /// The driver was told to retire all tags, of a queue that rests.
    LetGo,
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
        match self.leaving {
            Leaving::Stopping => !self.exit_needs_idle_tag || self.tags.count(State::Armed) > 0,
            Leaving::LetGo => true,
            Leaving::No | Leaving::Resting { .. } | Leaving::Aborted { .. } => false,
        }
    }

    /// Keeps a request that came to a queue that rests, or the announcement of one; false where it
    /// does not rest.
    #[inline]
    pub(super) fn held(&mut self, tag: u16) -> bool {
        if !matches!(self.leaving, Leaving::Resting { .. }) {
            return false;
        }
        self.held.push_back((tag, self.tags.state(tag)));
        self.tags.set(tag, State::Left);
        true
    }

    /// Finishes what is in hand, tells it, and keeps what comes.
    pub(in crate::queue) fn rest(&mut self) {
        match self.leaving {
            Leaving::No => {
                self.leaving = Leaving::Resting {
                    told: false,
                    aborted: false,
                };
            }
            // It tells anew.
            Leaving::Resting { aborted, .. } => {
                self.leaving = Leaving::Resting {
                    told: false,
                    aborted,
                };
            }
            // It leaves already.
            Leaving::LetGo | Leaving::Aborted { .. } | Leaving::Stopping => {
                self.watch.rested(self.queue);
            }
        }
    }

    /// Goes on after a rest. What it kept is to be taken up.
    pub(in crate::queue) fn resume<P: Port>(&mut self, port: &mut P) {
        if let Leaving::Resting { aborted, .. } = self.leaving {
            self.leaving = Leaving::No;
            if aborted {
                self.abort(port);
            }
        }
    }

    /// Takes up what was kept, one after the other, once the rest is over.
    pub(in crate::queue) fn take_up<P: Port>(&mut self, port: &mut P) -> Option<Request> {
        while let Some(held) = self.held.pop_front() {
            match held {
                (tag, State::Owed) => self.owed(port, tag),
                (tag, _) => match self.came(port, tag) {
                    None => {}
                    request => return request,
                },
            }
        }
        None
    }

    /// Leaves after a rest, as soon as the driver has no tag of it any more.
    pub(in crate::queue) fn let_go<P: Port>(&mut self, port: &mut P) {
        if matches!(self.leaving, Leaving::Resting { .. }) {
            self.leaving = Leaving::LetGo;
            self.leave_held(port);
        }
    }

    fn leave_held<P: Port>(&mut self, port: &mut P) {
        for (tag, _) in std::mem::take(&mut self.held) {
            self.leave_tag(port, tag);
        }
    }

    /// The driver takes no more from this tag.
    pub(super) fn retired<P: Port>(&mut self, port: &mut P, tag: u16) {
        self.counters.aborts.one();
        self.tags.set(tag, State::Retired);
        match &mut self.leaving {
            Leaving::No => self.abort(port),
            Leaving::Resting { aborted, .. } => *aborted = true,
            Leaving::LetGo | Leaving::Aborted { .. } | Leaving::Stopping => {}
        }
    }

    fn abort<P: Port>(&mut self, port: &mut P) {
        self.counters
            .owned_at_abort
            .set(u64::from(self.tags.owned()));
        self.leaving = Leaving::Aborted { grace_over: false };
        port.submit(token::own(Kind::Grace, 0), Op::Timeout { after: GRACE });
    }

    pub(in crate::queue) fn grace_over(&mut self) {
        if let Leaving::Aborted { grace_over } = &mut self.leaving {
            *grace_over = true;
        }
    }

    pub(super) fn leave_tag<P: Port>(&mut self, port: &mut P, tag: u16) {
        self.counters.abandoned.one();
        self.empty_slot(port, tag);
        if self.leaving != Leaving::Stopping {
            self.empty_drivers_slot(port, tag);
        }
        self.tags.set(tag, State::Left);
    }

    /// Takes a request's pages out of the slot that the driver put them into, where the ring stays: the
    /// driver takes nobody for gone before all pages are back.
    fn empty_drivers_slot<P: Port>(&mut self, port: &mut P, tag: u16) {
        let Mode::ZeroCopy(zero_copy) = &self.mode else {
            return;
        };
        let descriptor = self.descriptors.get(tag);
        let bytes = bytes_of(&descriptor, self.io_bytes_max).unwrap_or(0);
        let arrival = zero_copy.arrived(tag, descriptor.op_flags, bytes);
        if let Arrival::Ready(Data::Fixed { slot }) = arrival {
            let command = self
                .driver()
                .plain(sys::IO_UNREGISTER_BUFFER, tag, 0, u64::from(slot));
            port.submit(token::own(Kind::Unregister, NO_SLOT), Op::Command(command));
        }
    }

    /// The reactor stops: no more requests are taken up, those in hand are finished.
    pub(in crate::queue) fn stop<P: Port>(&mut self, port: &mut P) {
        self.leaving = Leaving::Stopping;
        self.leave_held(port);
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
        matches!(self.leaving, Leaving::Aborted { .. } | Leaving::LetGo)
    }

    /// Leaves the reactor once nothing is in hand any more.
    pub(in crate::queue) fn leave_if_done<P: Port>(&mut self, port: &mut P) {
        if self.leaving == Leaving::No {
            return;
        }
        let count = |state| self.tags.count(state);
        let in_hand = count(State::Served) + count(State::Owed) + count(State::Fetching);
        let with_driver = count(State::Armed);
        let unsettled = count(State::Pausing);
        let done = match &mut self.leaving {
            Leaving::No => false,
            Leaving::Resting { told, .. } => {
                if in_hand + unsettled == 0 && !std::mem::replace(told, true) {
                    self.watch.rested(self.queue);
                }
                false
            }
            Leaving::LetGo => in_hand + unsettled + with_driver == 0,
            Leaving::Aborted { grace_over } => {
                // What a driver that is about to go refuses for so long, it settles by itself
                // when its character device is closed.
                in_hand == 0 && (*grace_over || with_driver + unsettled == 0)
            }
            Leaving::Stopping => in_hand + unsettled == 0,
        };
        if done && !std::mem::replace(&mut self.detached, true) {
            port.detach();
        }
    }
}
