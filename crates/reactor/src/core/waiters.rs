//! The queues of requests that wait for a buffer of the pool.
//!
//! Requests of sources that give a buffer back without waiting are in one queue and keep their order.
//! Buffers that may be held for long are asked for in a queue of each source's own: its head waits for
//! the source's own buffers (see `pool`), and never for another source's.

use std::collections::VecDeque;
use std::task::Waker;

use crate::buf::Buf;
use crate::ids::{SourceId, Token};
use crate::pool::{BufferPool, BufferPurpose};

/// A request for a buffer.
pub(super) struct Waiter {
    pub(super) source: SourceId,
    pub(super) token: Token,
    pub(super) len: usize,
    pub(super) need: BufferPurpose,
}

/// All requests for buffers that wait.
pub(super) struct BufferWaiters {
    progress: VecDeque<Waiter>,
    fresh: VecDeque<Waiter>,
    /// Requests for buffers that may be held, by source. No queue is empty.
    held: VecDeque<VecDeque<Waiter>>,
    /// What the pool wakes when a buffer comes back.
    pub(super) turn_waker: Waker,
    /// Whether the pool has it now.
    pub(super) is_watching: bool,
}

impl BufferWaiters {
    pub(super) fn new(turn_waker: Waker) -> BufferWaiters {
        BufferWaiters {
            progress: VecDeque::new(),
            fresh: VecDeque::new(),
            held: VecDeque::new(),
            turn_waker,
            is_watching: false,
        }
    }

    pub(super) fn has_waiters(&self) -> bool {
        !(self.progress.is_empty() && self.fresh.is_empty() && self.held.is_empty())
    }

    /// The queue in which this source waits for such a buffer, if there is one.
    pub(super) fn find_queue(
        &mut self,
        source: SourceId,
        need: BufferPurpose,
    ) -> Option<&mut VecDeque<Waiter>> {
        match need {
            BufferPurpose::Progress => Some(&mut self.progress),
            BufferPurpose::Fresh => Some(&mut self.fresh),
            BufferPurpose::Held | BufferPurpose::Client => {
                self.held.iter_mut().find(|queue| queue[0].source == source)
            }
        }
    }

    pub(super) fn push(&mut self, waiter: Waiter) {
        match self.find_queue(waiter.source, waiter.need) {
            Some(queue) => queue.push_back(waiter),
            None => self.held.push_back(VecDeque::from([waiter])),
        }
    }

    /// Takes out all requests of a source that leaves.
    pub(super) fn remove_source(&mut self, source: SourceId) {
        for queue in [&mut self.progress, &mut self.fresh] {
            queue.retain(|waiter| waiter.source != source);
        }
        self.held.retain(|queue| queue[0].source != source);
    }

    /// Takes out the requests that can be granted now, with their buffers; those for
    /// [`BufferPurpose::Progress`] come first.
    pub(super) fn grant(&mut self, pool: &BufferPool) -> Vec<(Waiter, Buf)> {
        let mut granted = Vec::new();
        grant_from(&mut self.progress, pool, &mut granted);
        grant_from(&mut self.fresh, pool, &mut granted);
        let mut served = VecDeque::new();
        for _ in 0..self.held.len() {
            let Some(mut queue) = self.held.pop_front() else {
                break;
            };
            let before = granted.len();
            grant_from(&mut queue, pool, &mut granted);
            match () {
                () if queue.is_empty() => {}
                () if granted.len() > before => served.push_back(queue),
                () => self.held.push_back(queue),
            }
        }
        // A source that got something stands behind the others the next time.
        self.held.append(&mut served);
        granted
    }
}

/// Grants the requests of a queue until one has to wait.
fn grant_from(queue: &mut VecDeque<Waiter>, pool: &BufferPool, granted: &mut Vec<(Waiter, Buf)>) {
    while let Some(head) = queue.front()
        && let Some(buf) = pool.take_for(head.source.as_u64(), head.len, head.need)
        && let Some(head) = queue.pop_front()
    {
        granted.push((head, buf));
    }
}
