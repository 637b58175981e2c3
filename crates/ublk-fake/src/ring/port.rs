//! What a source asks of its ring. Nothing is carried out before the ring's next turn.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::task::Waker;

use reactor::op::Command;
use reactor::{Buf, BufferPurpose, FileIndex, Op, OpId, Port, Token};

use super::execute::failed_completion;
use super::{BufferWaiter, InFlight, RingPort, WakeKey};

impl RingPort<'_> {
    fn queue(&mut self, token: Token, op: Op, armed: Option<u32>) -> u64 {
        let ring = &mut *self.ring;
        let key = ring.next;
        ring.next += 1;
        // Commands keep their order: a slot is emptied before its request is committed.
        let ordered = matches!(op, Op::Command(_));
        let delay = if !ordered && ring.chance(ring.faults.delayed) {
            1 + ring.below(4) as u32
        } else {
            0
        };
        let entry = InFlight {
            source: self.source,
            token,
            op: Some(op),
            armed,
            delay,
        };
        ring.ops.insert(key, entry);
        ring.queued.push_back(key);
        key
    }
}

impl Port for RingPort<'_> {
    fn submit(&mut self, token: Token, op: Op) -> OpId {
        OpId::for_test(self.queue(token, op, None))
    }

    fn arm(&mut self, number: u32, command: Command) {
        let token = Token(u64::from(number));
        self.queue(token, Op::Command(command), Some(number));
    }

    fn hold_until_submitted(&mut self, buf: Buf) {
        self.ring.held_buffers.push(buf);
    }

    fn cancel(&mut self, op: OpId) {
        let key = self.ring.ops.keys().find(|key| OpId::for_test(**key) == op);
        let Some(&key) = key else { return };
        if !self.ring.ops[&key].is_armed() {
            self.ring
                .complete_op(key, |op| failed_completion(op, libc::ECANCELED));
        }
    }

    fn request_buffer(&mut self, token: Token, len: usize, need: BufferPurpose) -> Option<Buf> {
        let ring = &mut *self.ring;
        let waits = ring
            .buffer_waiters
            .iter()
            .any(|one| one.source == self.source);
        let dry = waits || ring.chance(ring.faults.pool_empty);
        let lent = match dry {
            true => None,
            false => ring.pool.take_for(self.source as u64, len, need),
        };
        if lent.is_some() {
            return lent;
        }
        let source = self.source;
        ring.buffer_waiters.push_back(BufferWaiter {
            source,
            token,
            len,
            need,
        });
        None
    }

    fn reserve_len(&self) -> usize {
        self.ring.pool.reserve_len()
    }

    fn register(&mut self, fd: Arc<OwnedFd>) -> FileIndex {
        self.ring.files.push(Some(fd));
        let index = FileIndex::for_test(self.ring.files.len() as u32 - 1);
        self.ring.sources[self.source].files.push(index);
        index
    }

    fn close(&mut self, file: FileIndex) {
        let known = |at: &usize| FileIndex::for_test(*at as u32) == file;
        let at = (0..self.ring.files.len()).find(known);
        if let Some(at) = at {
            self.ring.files[at] = None;
        }
    }

    fn enable_buffer_slots(&mut self) -> io::Result<()> {
        Ok(())
    }

    fn take_buffer_slots(&mut self, count: usize) -> Option<Vec<u16>> {
        let ring = &mut *self.ring;
        let from = ring.slots_free.len().checked_sub(count)?;
        let taken = ring.slots_free.split_off(from);
        ring.sources[self.source].slots.extend(&taken);
        Some(taken)
    }

    fn release_buffer_slots(&mut self, slots: &[u16]) {
        self.ring.slots_free.extend(slots);
        self.ring.sources[self.source]
            .slots
            .retain(|slot| !slots.contains(slot));
    }

    fn request_turn(&mut self) {
        self.ring.sources[self.source].turn = true;
    }

    fn waker(&self, key: u64) -> Waker {
        Waker::from(Arc::new(WakeKey {
            wakes: Arc::clone(&self.ring.wakes),
            source: self.source,
            key,
        }))
    }

    /// The source leaves: its slots are free, and what is in flight ends unseen. Armed commands
    /// stay until the driver or the ring ends them, those that were not handed over yet still
    /// are, and its files are closed after the last of them.
    fn detach(&mut self) {
        let source = self.source;
        let ring = &mut *self.ring;
        let state = &mut ring.sources[source];
        state.detached = true;
        let slots = std::mem::take(&mut state.slots);
        ring.slots_free.extend(slots);
        ring.ops
            .retain(|_, entry| entry.source != source || entry.is_armed());
        ring.buffer_waiters
            .retain(|waiting| waiting.source != source);
    }
}
