//! Zero-copy: a request's own pages are in a buffer slot of the ring, where file operations reach
//! them by number.
//!
//! Each FETCH names a slot in advance, and the driver registers the request's pages there
//! (auto-registration). Slots are scarce (16,384 per ring, shared by all devices on it), so tags may
//! share one: where a slot is in use the driver hands the request over with NEED_REGISTER_BUFFER
//! instead of failing it. Such a request is copied through its window or, where the device has no user
//! copy, registered in a slot of its own. A queue without slots works, too: then every request comes
//! with that flag.
//!
//! COMMIT_AND_FETCH on the same ring empties a slot that the driver filled; the queue itself empties
//! one that it filled by REGISTER_IO_BUF.

use std::collections::VecDeque;

use reactor::Port;
use reactor::op::Command;

use super::driver::DataAccess;
use crate::queue::request::Data;
use crate::queue::tags::Share;
use crate::sys;

/// The number of no slot: the driver cannot fill it, and says so.
pub(in crate::queue) const NO_SLOT: u16 = u16::MAX;

pub(in crate::queue) struct ZeroCopy {
    /// The driver fills slots by itself. It does for every device that this library adds; a queue
    /// made from [`crate::queue::QueueParts`] may belong to a device of Linux 6.15, where it does
    /// not: then each request is registered in a slot of its own.
    auto: bool,
    /// The bytes of a request that is in no slot can be copied.
    user_copy: bool,
    slots_max: u16,
    depth: u16,
    share: Share,
    /// The slot of each tag, which other tags may share; empty where there are no slots.
    slot_by_tag: Vec<u16>,
    /// Slots for requests that need one of their own, not in use now.
    own_free: Vec<u16>,
    /// How many such slots the queue has, in use or not.
    own_count: usize,
    /// Tags that wait for such a slot, in order.
    pub(in crate::queue) waiting: VecDeque<u16>,
}

impl ZeroCopy {
    pub(super) fn new(flags: u64, slots_max: u16, depth: u16, share: Share) -> ZeroCopy {
        let tags = share.tags(depth).count() as u16;
        ZeroCopy {
            auto: flags & sys::F_AUTO_BUFFER != 0,
            user_copy: flags & sys::F_USER_COPY != 0,
            slots_max: slots_max.min(tags),
            depth,
            share,
            slot_by_tag: Vec::new(),
            own_free: Vec::new(),
            own_count: 0,
            waiting: VecDeque::new(),
        }
    }

    /// Reserves slots of the ring: `slots_max`, or half as many, and so on.
    pub(in crate::queue) fn reserve_slots<P: Port>(&mut self, port: &mut P) {
        if let Err(error) = port.enable_buffer_slots() {
            tracing::warn!(%error, "ublk: no table of buffer slots on this ring: requests will be copied");
            return;
        }
        let mut count = usize::from(self.slots_max);
        let mut taken = None;
        while count > 0 && taken.is_none() {
            taken = port.take_buffer_slots(count);
            count /= 2;
        }
        let mut taken = taken.unwrap_or_default();
        if self.auto {
            if !self.user_copy {
                // One that no tag shares, so that a request whose slot is in use always gets on.
                self.own_free = port
                    .take_buffer_slots(1)
                    .or_else(|| taken.pop().map(|slot| vec![slot]))
                    .unwrap_or_default();
            }
            self.assign_slots(&taken);
        } else {
            self.own_free = taken;
        }
        self.own_count = self.own_free.len();
        if self.own_count == 0 && !(self.auto && self.user_copy) {
            tracing::error!(
                "ublk: no buffer slot is free on this ring, and the device has no user copy: \
                 requests in no slot fail; use another reactor, or devices with fewer slots"
            );
        }
    }

    /// Assigns the slots to the tags in turn.
    fn assign_slots(&mut self, slots: &[u16]) {
        if !slots.is_empty() {
            let of = |tag| slots[self.share.index_in_share(tag) % slots.len()];
            self.slot_by_tag = (0..self.depth).map(of).collect();
        }
    }

    fn slot(&self, tag: u16) -> u16 {
        let slot = self.slot_by_tag.get(usize::from(tag));
        slot.copied().unwrap_or(NO_SLOT)
    }

    /// Names the tag's slot in a FETCH or COMMIT_AND_FETCH.
    pub(super) fn with_auto_buffer(&self, command: Command, tag: u16) -> Command {
        if !self.auto {
            return command;
        }
        let addr = sys::auto_buffer(self.slot(tag), sys::AUTO_BUFFER_FALLBACK);
        command.sqe_addr(addr)
    }

    /// Where the bytes of a request are that the driver handed over.
    pub(in crate::queue) fn data_access(&self, tag: u16, op_flags: u32, bytes: u32) -> DataAccess {
        let in_slot = self.auto && op_flags & sys::IO_NEED_REGISTER_BUFFER == 0;
        if bytes == 0 {
            DataAccess::Ready(Data::None)
        } else if in_slot {
            DataAccess::Ready(Data::Fixed {
                slot: self.slot(tag),
            })
        } else if self.auto && self.user_copy {
            DataAccess::Ready(Data::Window)
        } else if self.own_count == 0 {
            // No slot would ever become free for it.
            DataAccess::Unreachable
        } else {
            DataAccess::NeedsSlot
        }
    }

    /// A slot for one request alone; without one its tag waits in line.
    pub(in crate::queue) fn take_own_slot(&mut self, tag: u16) -> Option<u16> {
        let slot = if self.waiting.is_empty() {
            self.own_free.pop()
        } else {
            None
        };
        if slot.is_none() {
            self.waiting.push_back(tag);
        }
        slot
    }

    /// A slot is empty again: the tag that gets it, the first in line.
    pub(in crate::queue) fn return_own_slot(&mut self, slot: u16) -> Option<u16> {
        let next = self.waiting.pop_front();
        if next.is_none() {
            self.own_free.push(slot);
        }
        next
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(flags: u64, shared: &[u16], free: &[u16]) -> ZeroCopy {
        let mut zero_copy = ZeroCopy::new(flags, 4, 8, Share::WHOLE);
        zero_copy.assign_slots(shared);
        zero_copy.own_free = free.to_vec();
        zero_copy.own_count = free.len();
        zero_copy
    }

    #[test]
    fn tags_share_slots_and_a_taken_one_is_copied() {
        let flags = sys::F_ZERO_COPY | sys::F_AUTO_BUFFER | sys::F_USER_COPY;
        let zero_copy = with(flags, &[10, 11], &[]);
        assert_eq!((zero_copy.slot(0), zero_copy.slot(5)), (10, 11));
        let arrived = |op_flags, bytes| zero_copy.data_access(5, op_flags, bytes);
        assert!(matches!(
            arrived(0, 512),
            DataAccess::Ready(Data::Fixed { slot: 11 })
        ));
        let taken = sys::IO_NEED_REGISTER_BUFFER;
        assert!(matches!(
            arrived(taken, 512),
            DataAccess::Ready(Data::Window)
        ));
        assert!(matches!(arrived(0, 0), DataAccess::Ready(Data::None)));
    }

    #[test]
    fn without_a_window_a_request_is_put_into_a_slot_of_its_own() {
        let zero_copy = with(sys::F_ZERO_COPY | sys::F_AUTO_BUFFER, &[10], &[12]);
        let taken = sys::IO_NEED_REGISTER_BUFFER;
        assert!(matches!(
            zero_copy.data_access(0, taken, 512),
            DataAccess::NeedsSlot
        ));
        let by_hand = with(sys::F_ZERO_COPY, &[], &[12]);
        assert!(matches!(
            by_hand.data_access(0, 0, 512),
            DataAccess::NeedsSlot
        ));
    }

    #[test]
    fn slots_of_their_own_are_given_in_order() {
        let mut zero_copy = with(sys::F_ZERO_COPY, &[], &[12]);
        assert_eq!(zero_copy.take_own_slot(1), Some(12));
        assert_eq!(zero_copy.take_own_slot(2), None);
        assert_eq!(zero_copy.take_own_slot(3), None);
        assert_eq!(zero_copy.return_own_slot(12), Some(2));
        assert_eq!(zero_copy.return_own_slot(12), Some(3));
        assert_eq!(zero_copy.return_own_slot(12), None);
        assert_eq!(zero_copy.take_own_slot(4), Some(12));
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
        let arrived = zero_copy.data_access(0, taken, 512);
        assert!(matches!(arrived, DataAccess::Unreachable));
    }
}
