//! How a queue detaches from its reactor: because the driver aborts its tags, because the reactor
//! stops, or because its device alone leaves the server. Requests in hand are finished first, or left
//! for the next server: a queue never detaches while a handler has a request of it.
//!
//! A device that leaves alone drains first: its queues finish the requests in hand and hold new ones
//! back, so that no command is submitted while the driver cancels FETCH commands. Then the queue is
//! released, and the held requests stay for the next server; or it resumes, and serves them.

use std::time::Duration;

use reactor::{Op, Port};

use super::HwQueue;
use super::phase::Phase;
use crate::queue::descriptors::bytes_of;
use crate::queue::mode::Mode;
use crate::queue::mode::driver::DataAccess;
use crate::queue::mode::zero_copy::NO_SLOT;
use crate::queue::request::{Data, Request};
use crate::queue::tags::TagState;
use crate::queue::token::{self, OpKind};
use crate::sys;

/// How long a queue waits for its remaining tags after the driver aborted the first one. A quiesced
/// driver may never abort some of them.
const GRACE: Duration = Duration::from_secs(1);

impl HwQueue {
    /// Whether a new request is left for the next server.
    #[inline]
    pub(super) fn abandons_new(&self) -> bool {
        match self.phase {
            Phase::Stopping => {
                !self.exit_needs_idle_tag || self.tags.count(TagState::WithDriver) > 0
            }
            Phase::Releasing => true,
            Phase::Serving | Phase::Draining { .. } | Phase::Aborted { .. } => false,
        }
    }

    /// Holds back a new request if the queue drains; otherwise returns false.
    #[inline]
    pub(super) fn hold_if_draining(&mut self, tag: u16) -> bool {
        if !matches!(self.phase, Phase::Draining { .. }) {
            return false;
        }
        self.held.push_back((tag, self.tags.state(tag)));
        self.tags.set(tag, TagState::Abandoned);
        true
    }

    /// Finishes the requests in hand, reports it, and holds back new ones.
    pub(in crate::queue) fn drain(&mut self) {
        match self.phase {
            Phase::Serving => {
                self.phase = Phase::Draining {
                    reported: false,
                    aborted: false,
                };
            }
            // It reports again.
            Phase::Draining { aborted, .. } => {
                self.phase = Phase::Draining {
                    reported: false,
                    aborted,
                };
            }
            // It detaches already.
            Phase::Releasing | Phase::Aborted { .. } | Phase::Stopping => {
                self.observer.on_drained(self.queue);
            }
        }
    }

    /// Serves again after a drain. The caller delivers the held requests.
    pub(in crate::queue) fn resume<P: Port>(&mut self, port: &mut P) {
        if let Phase::Draining { aborted, .. } = self.phase {
            self.phase = Phase::Serving;
            if aborted {
                self.begin_abort(port);
            }
        }
    }

    /// The next held request for the handler, once the drain is over.
    pub(in crate::queue) fn next_held<P: Port>(&mut self, port: &mut P) -> Option<Request> {
        while let Some(held) = self.held.pop_front() {
            match held {
                (tag, TagState::Waiting) => self.on_get_data(port, tag),
                (tag, _) => match self.on_fetched(port, tag) {
                    None => {}
                    request => return request,
                },
            }
        }
        None
    }

    /// Detaches after a drain, as soon as the driver has none of the tags.
    pub(in crate::queue) fn release<P: Port>(&mut self, port: &mut P) {
        if matches!(self.phase, Phase::Draining { .. }) {
            self.phase = Phase::Releasing;
            self.abandon_held(port);
        }
    }

    fn abandon_held<P: Port>(&mut self, port: &mut P) {
        for (tag, _) in std::mem::take(&mut self.held) {
            self.abandon_tag(port, tag);
        }
    }

    /// The driver aborted a tag: it sends no more requests with it.
    pub(super) fn on_tag_aborted<P: Port>(&mut self, port: &mut P, tag: u16) {
        self.counters.aborts.increment();
        self.tags.set(tag, TagState::Retired);
        match &mut self.phase {
            Phase::Serving => self.begin_abort(port),
            Phase::Draining { aborted, .. } => *aborted = true,
            Phase::Releasing | Phase::Aborted { .. } | Phase::Stopping => {}
        }
    }

    fn begin_abort<P: Port>(&mut self, port: &mut P) {
        self.counters
            .owned_at_abort
            .set(u64::from(self.tags.count_with_server()));
        self.phase = Phase::Aborted { grace_over: false };
        port.submit(
            token::queue_token(OpKind::GraceTimer, 0),
            Op::Timeout { after: GRACE },
        );
    }

    pub(in crate::queue) fn on_grace_timer(&mut self) {
        if let Phase::Aborted { grace_over } = &mut self.phase {
            *grace_over = true;
        }
    }

    pub(super) fn abandon_tag<P: Port>(&mut self, port: &mut P, tag: u16) {
        self.counters.abandoned.increment();
        self.unregister_slot(port, tag);
        if self.phase != Phase::Stopping {
            self.unregister_auto_slot(port, tag);
        }
        self.tags.set(tag, TagState::Abandoned);
    }

    /// Takes a request's pages out of the slot that the driver filled. Needed where the ring stays open:
    /// the driver does not consider a server gone that still has pages.
    fn unregister_auto_slot<P: Port>(&mut self, port: &mut P, tag: u16) {
        let Mode::ZeroCopy(zero_copy) = &self.mode else {
            return;
        };
        let descriptor = self.descriptors.get(tag);
        let bytes = bytes_of(&descriptor, self.io_bytes_max).unwrap_or(0);
        let access = zero_copy.data_access(tag, descriptor.op_flags, bytes);
        if let DataAccess::Ready(Data::Fixed { slot }) = access {
            let command = self
                .commands()
                .build(sys::IO_UNREGISTER_BUFFER, tag, 0, u64::from(slot));
            port.submit(
                token::queue_token(OpKind::Unregister, NO_SLOT),
                Op::Command(command),
            );
        }
    }

    /// The reactor stops: requests in hand are finished, new ones are left for the next server.
    pub(in crate::queue) fn stop<P: Port>(&mut self, port: &mut P) {
        self.phase = Phase::Stopping;
        self.abandon_held(port);
        for tag in self.share.tags(self.depth) {
            if self.tags.state(tag) == TagState::Waiting && self.abandons_new() {
                self.abandon_tag(port, tag);
            }
        }
    }

    /// Whether the handler is to hear that no new request arrives.
    pub(in crate::queue) fn is_aborted(&self) -> bool {
        matches!(self.phase, Phase::Aborted { .. } | Phase::Releasing)
    }

    /// Detaches from the reactor once nothing is in hand.
    pub(in crate::queue) fn detach_if_done<P: Port>(&mut self, port: &mut P) {
        if self.phase == Phase::Serving {
            return;
        }
        let count = |state| self.tags.count(state);
        let in_hand =
            count(TagState::WithHandler) + count(TagState::Waiting) + count(TagState::Preparing);
        let with_driver = count(TagState::WithDriver);
        let in_backoff = count(TagState::Backoff);
        let done = match &mut self.phase {
            Phase::Serving => false,
            Phase::Draining { reported, .. } => {
                if in_hand + in_backoff == 0 && !std::mem::replace(reported, true) {
                    self.observer.on_drained(self.queue);
                }
                false
            }
            Phase::Releasing => in_hand + in_backoff + with_driver == 0,
            Phase::Aborted { grace_over } => {
                // A command that the driver of a dying device refuses for so long needs no result:
                // the driver ends the request itself when the character device is closed.
                in_hand == 0 && (*grace_over || with_driver + in_backoff == 0)
            }
            Phase::Stopping => in_hand + in_backoff == 0,
        };
        if done && !std::mem::replace(&mut self.detached, true) {
            port.detach();
        }
    }
}
