//! What the queues of a device have to say, for threads that wait for it.
//!
//! Queues speak on their rings' threads, so they only leave a note under a lock that nobody holds
//! for long. A refused fetch ends the START (or END_USER_RECOVERY) that waits for all fetches.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use reactor::{Handle, SourceId};

use crate::control::Cancel;
use crate::error::{Error, Kind, Operation};
use crate::queue::{QueueStats, Watch};

#[derive(Debug)]
pub(super) struct Watcher {
    device: u32,
    notes: Mutex<Notes>,
    changed: Condvar,
    cancel: Cancel,
}

#[derive(Debug, Default)]
struct Notes {
    /// Queues that are attached or about to be.
    here: usize,
    aborted: usize,
    refused: Option<(u16, i32)>,
    seats: Vec<(Handle, SourceId)>,
}

impl Watcher {
    /// Of a device with this many queues, or shares of queues.
    pub(super) fn new(device: u32, queues: usize) -> Watcher {
        Watcher {
            device,
            notes: Mutex::new(Notes {
                here: queues,
                ..Notes::default()
            }),
            changed: Condvar::new(),
            cancel: Cancel::new(),
        }
    }

    fn notes(&self) -> MutexGuard<'_, Notes> {
        self.notes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn note(&self, write: impl FnOnce(&mut Notes)) {
        write(&mut self.notes());
        self.changed.notify_all();
    }

    /// Ends the command that waits for all fetches.
    pub(super) fn cancel(&self) -> &Cancel {
        &self.cancel
    }

    /// The better reason: where a queue was refused, what waited for it was only cancelled.
    pub(super) fn reason(&self, error: Error) -> Error {
        match self.notes().refused {
            None => error,
            Some((queue, errno)) => {
                let text = std::io::Error::from_raw_os_error(errno);
                Error::new(
                    Operation::Fetch,
                    Kind::Kernel,
                    format!("the driver refuses the tags of queue {queue}: {text}"),
                    "a queue is fetched once, from one thread, in the device's data mode; see \
                     that nothing else serves this device",
                )
                .on(self.device)
            }
        }
    }

    /// Says where a queue is.
    pub(super) fn sits(&self, reactor: Handle, source: SourceId) {
        self.note(|notes| notes.seats.push((reactor, source)));
    }

    /// Makes the queues leave, of a device that did not come alive: by themselves they would go
    /// on trying. They have no requests.
    pub(super) fn evict(&self) {
        for (reactor, source) in self.notes().seats.drain(..) {
            // A reactor that has ended has no queues.
            let _ = reactor.post(move |core| core.detach(source));
        }
    }

    /// Waits until every queue has left; false at the deadline.
    pub(super) fn wait_gone(&self, until: Instant) -> bool {
        blkmq::may_block("waiting for a device's queues");
        let mut notes = self.notes();
        while notes.here > 0 {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            let waited = self.changed.wait_timeout(notes, left);
            notes = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        true
    }

    /// Queues that the driver has begun to take its tags from.
    pub(super) fn aborted(&self) -> usize {
        self.notes().aborted
    }
}

impl Watch for Watcher {
    fn fetch_failed(&self, queue: u16, errno: i32) {
        tracing::error!(
            device = self.device,
            queue,
            errno,
            "ublk: a fetch is refused"
        );
        self.note(|notes| {
            notes.refused.get_or_insert((queue, errno.abs()));
        });
        self.cancel.cancel();
    }

    fn aborted(&self, _queue: u16) {
        self.note(|notes| notes.aborted += 1);
    }

    fn gone(&self, _queue: u16, _stats: QueueStats) {
        self.note(|notes| notes.here -= 1);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_refused_fetch_cancels_the_start_and_is_the_reason_that_is_told() {
        let watcher = Watcher::new(3, 2);
        assert!(!watcher.cancel().is_cancelled());
        watcher.fetch_failed(1, libc::EINVAL);
        assert!(watcher.cancel().is_cancelled());
        let told = watcher.reason(Error::kernel(Operation::Start, Some(3), libc::ECANCELED));
        assert_eq!(told.operation(), Operation::Fetch);
        assert!(
            told.to_string().contains("queue 1: Invalid argument"),
            "{told}"
        );
    }

    #[test]
    fn a_device_is_left_when_its_last_queue_is_gone() {
        let watcher = Arc::new(Watcher::new(3, 2));
        let soon = || Instant::now() + Duration::from_millis(5);
        watcher.gone(0, QueueStats::default());
        assert!(!watcher.wait_gone(soon()));
        let other = Arc::clone(&watcher);
        let queue = std::thread::spawn(move || other.gone(1, QueueStats::default()));
        assert!(watcher.wait_gone(Instant::now() + Duration::from_secs(10)));
        queue.join().unwrap();
    }
}
