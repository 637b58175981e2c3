//! Zero-copy: a request's own pages are in a buffer slot of the ring, where file operations reach
//! them by number.
//!
//! Each armed tag names a slot in advance, and the driver fills it when a request comes. Slots are
//! scarce (16,384 per ring, shared by all devices on it), so tags may share one: the driver is
//! always told to hand a request over with a note where the slot is taken, instead of failing it
//! unseen. Such a request is copied through its window or, where the device has none, put into
//! a slot that is taken for it alone. A queue without slots works, too: then all are noted.
//!
//! A commit on the same ring empties the slot that the driver filled; one that we filled we empty.

use std::collections::VecDeque;

use reactor::Port;
use reactor::op::Command;

use super::Arrival;
use crate::queue::Share;
use crate::request::Data;
use crate::sys;

/// No slot of any table: the driver notes that it cannot fill it.
pub(in crate::queue) const NO_SLOT: u16 = u16::MAX;

pub(in crate::queue) struct ZeroCopy {
    /// The driver fills slots by itself. It does for every device that is negotiated here; whoever
    /// puts a queue together from its parts may have one of Linux 6.15, which cannot: then each
    /// request is put into a slot of its own.
    auto: bool,
    /// What is in no slot can be copied.
    user_copy: bool,
    wanted: u16,
    depth: u16,
    share: Share,
    /// Each tag's slot, which several may have; none at all where there are no slots.
    of_tags: Vec<u16>,
    /// For requests that are put into a slot of their own; taken when the queue began.
    free: Vec<u16>,
    /// How many those are, in use or not.
    own: usize,
    /// Tags that wait for such a slot, in order.
    pub(in crate::queue) waiting: VecDeque<u16>,
}

impl ZeroCopy {
    pub(super) fn new(flags: u64, slots_max: u16, (depth, share): (u16, Share)) -> ZeroCopy {
        let tags = share.tags(depth).count() as u16;
        ZeroCopy {
            auto: flags & sys::F_AUTO_BUFFER != 0,
            user_copy: flags & sys::F_USER_COPY != 0,
            wanted: slots_max.min(tags),
            depth,
            share,
            of_tags: Vec::new(),
            free: Vec::new(),
            own: 0,
            waiting: VecDeque::new(),
        }
    }

    /// Takes slots: as many as are wanted, or half of it, and so on.
    pub(in crate::queue) fn begin<P: Port>(&mut self, port: &mut P) {
        if let Err(error) = port.enable_buffer_slots() {
            tracing::warn!(%error, "no table of buffer slots: requests will be copied");
            return;
        }
        let mut count = usize::from(self.wanted);
        let mut taken = None;
        while count > 0 && taken.is_none() {
            taken = port.take_buffer_slots(count);
            count /= 2;
        }
        let mut taken = taken.unwrap_or_default();
        if self.auto {
            if !self.user_copy {
                // One that nobody shares, so that what finds its slot taken always gets on.
                self.free = port
                    .take_buffer_slots(1)
                    .or_else(|| taken.pop().map(|slot| vec![slot]))
                    .unwrap_or_default();
            }
            self.share_out(&taken);
        } else {
            self.free = taken;
        }
        self.own = self.free.len();
        if self.own == 0 && !(self.auto && self.user_copy) {
            tracing::error!(
                "no buffer slot is free on this ring, and the device has no user copy: what is \
                 in no slot fails; use another reactor, or devices with fewer slots"
            );
        }
    }

    /// Gives the slots to the tags in turn.
    fn share_out(&mut self, slots: &[u16]) {
        if !slots.is_empty() {
            let of = |tag| slots[self.share.ordinal(tag) % slots.len()];
            self.of_tags = (0..self.depth).map(of).collect();
        }
    }

    fn slot(&self, tag: u16) -> u16 {
        let slot = self.of_tags.get(usize::from(tag));
        slot.copied().unwrap_or(NO_SLOT)
    }

    pub(super) fn dress(&self, plain: Command, tag: u16) -> Command {
        if !self.auto {
            return plain;
        }
        let addr = sys::auto_buffer(self.slot(tag), sys::AUTO_BUFFER_FALLBACK);
        plain.sqe_addr(addr)
    }

    pub(in crate::queue) fn arrived(&self, tag: u16, op_flags: u32, bytes: u32) -> Arrival {
        let in_slot = self.auto && op_flags & sys::IO_NEED_REGISTER_BUFFER == 0;
        if bytes == 0 {
            Arrival::Ready(Data::None)
        } else if in_slot {
            Arrival::Ready(Data::Fixed {
                slot: self.slot(tag),
            })
        } else if self.auto && self.user_copy {
            Arrival::Ready(Data::Window)
        } else if self.own == 0 {
            // Nothing would ever come to its turn.
            Arrival::Unreachable
        } else {
            Arrival::Register
        }
    }

    /// A slot for one request alone, or its tag waits in line.
    pub(in crate::queue) fn take_own(&mut self, tag: u16) -> Option<u16> {
        let slot = if self.waiting.is_empty() {
            self.free.pop()
        } else {
            None
        };
        if slot.is_none() {
            self.waiting.push_back(tag);
        }
        slot
    }

    /// A slot is empty again: it goes to the first in line.
    pub(in crate::queue) fn give_own(&mut self, slot: u16) -> Option<u16> {
        let next = self.waiting.pop_front();
        if next.is_none() {
            self.free.push(slot);
        }
        next
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(flags: u64, shared: &[u16], free: &[u16]) -> ZeroCopy {
        let mut zero_copy = ZeroCopy::new(flags, 4, (8, Share::WHOLE));
        zero_copy.share_out(shared);
        zero_copy.free = free.to_vec();
        zero_copy.own = free.len();
        zero_copy
    }

    #[test]
    fn tags_share_slots_and_a_taken_one_is_copied() {
        let flags = sys::F_ZERO_COPY | sys::F_AUTO_BUFFER | sys::F_USER_COPY;
        let zero_copy = with(flags, &[10, 11], &[]);
        assert_eq!((zero_copy.slot(0), zero_copy.slot(5)), (10, 11));
        let arrived = |op_flags, bytes| zero_copy.arrived(5, op_flags, bytes);
        assert!(matches!(
            arrived(0, 512),
            Arrival::Ready(Data::Fixed { slot: 11 })
        ));
        let taken = sys::IO_NEED_REGISTER_BUFFER;
        assert!(matches!(arrived(taken, 512), Arrival::Ready(Data::Window)));
        assert!(matches!(arrived(0, 0), Arrival::Ready(Data::None)));
    }

    #[test]
    fn without_a_window_a_request_is_put_into_a_slot_of_its_own() {
        let zero_copy = with(sys::F_ZERO_COPY | sys::F_AUTO_BUFFER, &[10], &[12]);
        let taken = sys::IO_NEED_REGISTER_BUFFER;
        assert!(matches!(
            zero_copy.arrived(0, taken, 512),
            Arrival::Register
        ));
        let by_hand = with(sys::F_ZERO_COPY, &[], &[12]);
        assert!(matches!(by_hand.arrived(0, 0, 512), Arrival::Register));
    }

    #[test]
    fn slots_of_their_own_are_given_in_order() {
        let mut zero_copy = with(sys::F_ZERO_COPY, &[], &[12]);
        assert_eq!(zero_copy.take_own(1), Some(12));
        assert_eq!(zero_copy.take_own(2), None);
        assert_eq!(zero_copy.take_own(3), None);
        assert_eq!(zero_copy.give_own(12), Some(2));
        assert_eq!(zero_copy.give_own(12), Some(3));
        assert_eq!(zero_copy.give_own(12), None);
        assert_eq!(zero_copy.take_own(4), Some(12));
    }

    #[test]
    fn a_queue_without_slots_names_none() {
        let zero_copy = with(sys::F_ZERO_COPY | sys::F_AUTO_BUFFER, &[], &[]);
        assert_eq!(zero_copy.slot(7), NO_SLOT);
    }

    #[test]
    fn without_a_window_and_without_slots_a_request_fails_and_waits_for_nothing() {
        let zero_copy = with(sys::F_ZERO_COPY | sys::F_AUTO_BUFFER, &[], &[]);
        let taken = sys::IO_NEED_REGISTER_BUFFER;
        let arrived = zero_copy.arrived(0, taken, 512);
        assert!(matches!(arrived, Arrival::Unreachable));
    }
}
