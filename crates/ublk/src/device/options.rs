//! What the queues of a device are given beside their handlers, and how tags are distributed to
//! reactors.

use std::fmt;

use crate::negotiate::Grant;
use crate::queue::{Pool, Share};

/// Options of a device's queues.
pub struct QueueOptions {
    /// The most buffer slots that a zero-copy queue reserves of its ring's 16,384. Requests beyond
    /// them take the slower way of user copy, so this is the number of large requests of one queue
    /// that are expected at once, not its depth.
    pub slots_max: u16,
    /// Distributes the tags of each queue to all reactors, instead of whole queues (6.16): a queue
    /// that one processor keeps busy then has all of them at work. A handler is made for every
    /// share, and requests of one queue are answered in no common order.
    pub spread: bool,
    /// Makes the pool for a get-data queue's writes, by queue number; without it they use their
    /// reactor's pool.
    pub pool: Option<PoolFactory>,
}

/// Makes the pool of a queue.
pub type PoolFactory = Box<dyn Fn(u16) -> Box<dyn Pool>>;

impl Default for QueueOptions {
    fn default() -> QueueOptions {
        QueueOptions {
            slots_max: 64,
            spread: false,
            pool: None,
        }
    }
}

impl fmt::Debug for QueueOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("QueueOptions")
            .field("slots_max", &self.slots_max)
            .field("spread", &self.spread)
            .finish_non_exhaustive()
    }
}

/// A hardware queue, or the part of it that one source serves.
#[derive(Clone, Copy, Debug)]
pub(super) struct QueueShare {
    pub(super) queue: u16,
    pub(super) share: Share,
}

impl QueueOptions {
    /// The sources that a device needs, one for each share of each queue.
    pub(super) fn queue_shares(
        &self,
        grant: &Grant,
        reactors: usize,
    ) -> impl Iterator<Item = QueueShare> + use<> {
        let (queues, step) = (grant.queues, self.shares_per_queue(grant, reactors));
        let of_queue = move |queue| {
            (0..step).map(move |first| QueueShare {
                queue,
                share: Share { first, step },
            })
        };
        (0..queues).flat_map(of_queue)
    }

    fn shares_per_queue(&self, grant: &Grant, reactors: usize) -> u16 {
        if !self.spread {
            return 1;
        }
        u16::try_from(reactors).map_or(grant.depth, |count| count.min(grant.depth))
    }
}
