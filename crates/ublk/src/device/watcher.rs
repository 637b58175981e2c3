//! What the queues of a device have to say, for threads that wait for it.
//!
//! Queues speak on their rings' threads, so they only leave a note under a lock that nobody holds
//! for long. A refused fetch ends the START (or END_USER_RECOVERY) that waits for all fetches.

use std::sync::mpsc::channel;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use reactor::{Handle, SourceId};

use crate::control::Cancel;
use crate::error::{Error, Kind, Operation};
use crate::queue::{KEY_DRAIN, KEY_RELEASE, KEY_RESUME, QueueObserver, QueueStats};

#[derive(Debug)]
pub(super) struct Watcher {
    device: u32,
    notes: Mutex<Notes>,
    changed: Condvar,
    cancel: Cancel,
}

#[derive(Debug, Default)]
struct Notes {
    seats: Vec<Seat>,
    aborted: usize,
    refused: Option<(u16, u16, i32)>,
}

/// A queue, or a share of one.
#[derive(Clone, Debug, Default)]
struct Seat {
    /// It has left its reactor.
    gone: bool,
    /// It takes nothing up, and has nothing in hand.
    rests: bool,
    at: Option<(Handle, SourceId)>,
}

impl Notes {
    fn all(&self, what: impl Fn(&Seat) -> bool) -> bool {
        self.seats.iter().all(|seat| seat.gone || what(seat))
    }
}

/// A queue's way to say something.
pub(super) struct Voice {
    watcher: Arc<Watcher>,
    seat: usize,
}

impl Watcher {
    /// Of a device with this many queues, or shares of queues.
    pub(super) fn new(device: u32, queues: usize) -> Watcher {
        Watcher {
            device,
            notes: Mutex::new(Notes {
                seats: vec![Seat::default(); queues],
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
            Some((queue, tag, errno)) => {
                let text = std::io::Error::from_raw_os_error(errno);
                Error::new(
                    Operation::Fetch,
                    Kind::Kernel,
                    format!("the driver refuses tag {tag} of queue {queue}: {text}"),
                    "a queue is fetched once, from one thread, in the device's data mode; see \
                     that nothing else serves this device",
                )
                .on(self.device)
            }
        }
    }

    /// What the queue of this seat is given to speak with.
    pub(super) fn voice(self: &Arc<Watcher>, seat: usize) -> Arc<dyn QueueObserver> {
        let watcher = Arc::clone(self);
        Arc::new(Voice { watcher, seat })
    }

    /// Says where a queue is.
    pub(super) fn sits(&self, seat: usize, reactor: Handle, source: SourceId) {
        self.note(|notes| notes.seats[seat].at = Some((reactor, source)));
    }

    /// Makes the queues leave, of a device that did not come alive: by themselves they would go
    /// on trying. They have no requests.
    pub(super) fn evict(&self) {
        for (reactor, source) in self.places() {
            // A reactor that has ended has no queues.
            let _ = reactor.post(move |core| core.detach(source));
        }
    }

    /// Where the queues are that are still there.
    fn places(&self) -> Vec<(Handle, SourceId)> {
        let notes = self.notes();
        let here = notes.seats.iter().filter(|seat| !seat.gone);
        here.filter_map(|seat| seat.at.clone()).collect()
    }

    fn wake(&self, key: u64) {
        for (reactor, source) in self.places() {
            reactor.waker(source, key).wake();
        }
    }

    /// Makes the queues finish what they have and keep what comes, until [`Watcher::resume`] or
    /// [`Watcher::let_go`]. Waits until all do, with all that they gave to the driver handed over;
    /// false at the deadline.
    pub(super) fn rest(&self, until: Instant) -> bool {
        self.note(|notes| notes.seats.iter_mut().for_each(|seat| seat.rests = false));
        self.wake(KEY_DRAIN);
        self.wait(until, |notes| notes.all(|seat| seat.rests)) && self.handed_over(until)
    }

    /// Makes queues that rest go on, and take up what they kept.
    pub(super) fn resume(&self) {
        self.wake(KEY_RESUME);
    }

    /// Makes queues that rest leave, once the driver has none of their tags any more. What they kept
    /// stays with it.
    pub(super) fn let_go(&self) {
        self.wake(KEY_RELEASE);
    }

    /// Waits until what the queues did before is with the driver: a reactor hands it over before it
    /// takes its next messages.
    fn handed_over(&self, until: Instant) -> bool {
        let (to, from) = channel();
        let mut asked = 0;
        for (reactor, _) in self.places() {
            let to = to.clone();
            // Nobody may be there to hear it any more; and a reactor that has ended has no queues.
            let heard = move || to.send(()).unwrap_or_default();
            asked += usize::from(reactor.post(move |_| heard()).is_ok());
        }
        let heard = || from.recv_timeout(until.saturating_duration_since(Instant::now()));
        (0..asked).all(|_| heard().is_ok())
    }

    /// Waits until every queue has left; false at the deadline.
    pub(super) fn wait_gone(&self, until: Instant) -> bool {
        self.wait(until, |notes| notes.all(|_| false))
    }

    fn wait(&self, until: Instant, what: impl Fn(&Notes) -> bool) -> bool {
        blkmq::may_block("waiting for a device's queues");
        let mut notes = self.notes();
        while !what(&notes) {
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

impl QueueObserver for Voice {
    fn on_fetch_failed(&self, queue: u16, tag: u16, errno: i32) {
        let watcher = &self.watcher;
        tracing::error!(
            device = watcher.device,
            queue,
            tag,
            errno,
            "ublk: a fetch is refused"
        );
        watcher.note(|notes| {
            notes.refused.get_or_insert((queue, tag, errno.abs()));
        });
        watcher.cancel.cancel();
    }

    fn on_aborted(&self, _queue: u16) {
        self.watcher.note(|notes| notes.aborted += 1);
    }

    fn on_drained(&self, _queue: u16) {
        self.watcher
            .note(|notes| notes.seats[self.seat].rests = true);
    }

    fn on_detached(&self, _queue: u16, _stats: QueueStats) {
        self.watcher
            .note(|notes| notes.seats[self.seat].gone = true);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_refused_fetch_cancels_the_start_and_is_the_reason_that_is_told() {
        let watcher = Arc::new(Watcher::new(3, 2));
        assert!(!watcher.cancel().is_cancelled());
        watcher.voice(1).on_fetch_failed(1, 0, libc::EINVAL);
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
        watcher.voice(0).on_detached(0, QueueStats::default());
        assert!(!watcher.wait_gone(soon()));
        let other = watcher.voice(1);
        let queue = std::thread::spawn(move || other.on_detached(1, QueueStats::default()));
        assert!(watcher.wait_gone(Instant::now() + Duration::from_secs(10)));
        queue.join().unwrap();
    }
}
