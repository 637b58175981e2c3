//! What a queue is made of, and the observer that hears what happens to it. Data and one trait; the
//! queue itself is in `source`.

use std::fmt;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use super::descriptors::Descriptors;
use super::mode::get_data::Pool;
use super::stats::{Counters, QueueStats};
use super::tags::Share;

/// Hears what happens to a queue. Called on its reactor's thread: must not block.
pub trait QueueObserver: Send + Sync {
    /// FETCH was issued for every tag. What the driver refuses is reported later.
    fn on_fetches_issued(&self, _queue: u16) {}

    /// The driver refused FETCH for this tag with this errno: the device cannot start. The queue
    /// tries again after a pause.
    fn on_fetch_failed(&self, queue: u16, tag: u16, errno: i32);

    /// The driver aborted the first tag: the device is stopped or quiesced.
    fn on_aborted(&self, _queue: u16) {}

    /// The queue drains, and has no request in hand any more.
    fn on_drained(&self, _queue: u16) {}

    /// The queue has detached from its reactor: its memory is unmapped, its files are closed.
    fn on_detached(&self, _queue: u16, _stats: QueueStats) {}
}

/// What a queue is made of.
pub struct QueueParts {
    /// The device's number, for messages.
    pub device: u32,
    /// The hardware queue's number.
    pub queue: u16,
    /// The hardware queue's tags.
    pub depth: u16,
    /// The tags that this queue serves.
    pub share: Share,
    /// The device's character device, opened with `O_NONBLOCK`: the kernel then copies on the
    /// ring's own thread, without it on a helper thread. All queues share it.
    pub char_device: Arc<OwnedFd>,
    /// The queue's descriptors.
    pub descriptors: Descriptors,
    /// The `F_` flags that the driver granted. They decide the [`crate::DataMode`].
    pub flags: u64,
    /// The largest request in bytes.
    pub io_bytes_max: u32,
    /// The most buffer slots that a zero-copy queue reserves.
    pub slots_max: u16,
    /// Where the memory for a get-data device's writes comes from, if not from the reactor.
    pub pool: Option<Box<dyn Pool>>,
    /// The queue's counters, of which others keep a copy.
    pub counters: Arc<Counters>,
    /// Hears what happens to the queue.
    pub observer: Arc<dyn QueueObserver>,
}

impl fmt::Debug for QueueParts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("QueueParts")
            .field("device", &self.device)
            .field("queue", &self.queue)
            .field("depth", &self.depth)
            .field("flags", &format_args!("{:#x}", self.flags))
            .finish_non_exhaustive()
    }
}
