//! The states of a device's queues, for threads that wait for them.
//!
//! Queues report on their rings' threads, so they only set a field under a lock that nobody holds for
//! long. A refused FETCH cancels the START_DEV (or END_USER_RECOVERY) that waits for all of them.

use std::sync::mpsc::channel;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use reactor::{Handle, SourceId};

use crate::control::CancelToken;
use crate::error::{Error, Operation};
use crate::queue::{KEY_DRAIN, KEY_RELEASE, KEY_RESUME, QueueObserver, QueueStats};

#[derive(Debug)]
pub(super) struct QueueMonitor {
    device: u32,
    state: Mutex<MonitorState>,
    changed: Condvar,
    start_cancel: CancelToken,
}

#[derive(Debug, Default)]
struct MonitorState {
    queues: Vec<QueueState>,
    aborted: usize,
    refused: Option<RefusedFetch>,
}

/// A queue, or a share of one.
#[derive(Clone, Debug, Default)]
struct QueueState {
    detached: bool,
    /// It holds new requests back, and has none in hand.
    drained: bool,
    location: Option<(Handle, SourceId)>,
}

#[derive(Clone, Copy, Debug)]
struct RefusedFetch {
    queue: u16,
    tag: u16,
    errno: i32,
}

impl MonitorState {
    fn all_attached(&self, has: impl Fn(&QueueState) -> bool) -> bool {
        self.queues.iter().all(|queue| queue.detached || has(queue))
    }
}

/// Reports for one queue, or share of one.
struct MonitoredQueue {
    monitor: Arc<QueueMonitor>,
    index: usize,
}

impl QueueMonitor {
    /// For a device with this many queues, or shares of queues.
    pub(super) fn new(device: u32, queues: usize) -> QueueMonitor {
        QueueMonitor {
            device,
            state: Mutex::new(MonitorState {
                queues: vec![QueueState::default(); queues],
                ..MonitorState::default()
            }),
            changed: Condvar::new(),
            start_cancel: CancelToken::new(),
        }
    }

    fn state(&self) -> MutexGuard<'_, MonitorState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn update(&self, update: impl FnOnce(&mut MonitorState)) {
        update(&mut self.state());
        self.changed.notify_all();
    }

    /// Cancels the command that waits for all FETCH commands.
    pub(super) fn start_cancel(&self) -> &CancelToken {
        &self.start_cancel
    }

    /// The reason of a failed start: the refused FETCH, if there is one, because then the start was only
    /// cancelled.
    pub(super) fn start_error(&self, error: Error) -> Error {
        match self.state().refused {
            None => error,
            Some(RefusedFetch { queue, tag, errno }) => {
                Error::kernel(Operation::Fetch, Some(self.device), errno).on_queue(queue, Some(tag))
            }
        }
    }

    /// The observer of a queue.
    pub(super) fn observer(self: &Arc<QueueMonitor>, index: usize) -> Arc<dyn QueueObserver> {
        let monitor = Arc::clone(self);
        Arc::new(MonitoredQueue { monitor, index })
    }

    /// Sets where a queue is attached.
    pub(super) fn set_location(&self, index: usize, reactor: Handle, source: SourceId) {
        self.update(|state| state.queues[index].location = Some((reactor, source)));
    }

    /// Detaches the queues of a device that did not start: by themselves they would issue FETCH again
    /// and again. They have no requests.
    pub(super) fn detach_all(&self) {
        for (reactor, source) in self.locations() {
            // A reactor that has ended has no queues.
            let _ = reactor.post(move |core| core.detach(source));
        }
    }

    /// Where the queues are that have not detached.
    fn locations(&self) -> Vec<(Handle, SourceId)> {
        let state = self.state();
        let attached = state.queues.iter().filter(|queue| !queue.detached);
        attached
            .filter_map(|queue| queue.location.clone())
            .collect()
    }

    fn wake(&self, key: u64) {
        for (reactor, source) in self.locations() {
            reactor.waker(source, key).wake();
        }
    }

    /// Makes the queues finish the requests in hand and hold new ones back, until
    /// [`QueueMonitor::resume`] or [`QueueMonitor::release`]. Waits until all have drained, and all
    /// their commands are submitted; false at the deadline.
    pub(super) fn drain(&self, deadline: Instant) -> bool {
        self.update(|state| {
            state
                .queues
                .iter_mut()
                .for_each(|queue| queue.drained = false)
        });
        self.wake(KEY_DRAIN);
        self.wait(deadline, |state| state.all_attached(|queue| queue.drained))
            && self.wait_submitted(deadline)
    }

    /// Makes drained queues serve again, beginning with the requests that they held back.
    pub(super) fn resume(&self) {
        self.wake(KEY_RESUME);
    }

    /// Makes drained queues detach, once the driver has none of their tags. The requests that they held
    /// back are left for the next server.
    pub(super) fn release(&self) {
        self.wake(KEY_RELEASE);
    }

    /// Waits until the driver has every command that the queues issued before: a reactor submits them
    /// before it takes its next messages.
    fn wait_submitted(&self, deadline: Instant) -> bool {
        let (sender, receiver) = channel();
        let mut posted = 0;
        for (reactor, _) in self.locations() {
            let sender = sender.clone();
            // The receiver may have given up; and a reactor that has ended has no queues.
            let reply = move || sender.send(()).unwrap_or_default();
            posted += usize::from(reactor.post(move |_| reply()).is_ok());
        }
        let receive = || receiver.recv_timeout(deadline.saturating_duration_since(Instant::now()));
        (0..posted).all(|_| receive().is_ok())
    }

    /// Waits until every queue has detached; false at the deadline.
    pub(super) fn wait_detached(&self, deadline: Instant) -> bool {
        self.wait(deadline, |state| state.all_attached(|_| false))
    }

    fn wait(&self, deadline: Instant, condition: impl Fn(&MonitorState) -> bool) -> bool {
        blkmq::may_block("waiting for a device's queues");
        let mut state = self.state();
        while !condition(&state) {
            let remaining = deadline.saturating_duration_since(Instant::now());
            if remaining.is_zero() {
                return false;
            }
            let waited = self.changed.wait_timeout(state, remaining);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        true
    }

    /// The number of queues of which the driver has begun to abort the tags.
    pub(super) fn aborted_queues(&self) -> usize {
        self.state().aborted
    }
}

impl QueueObserver for MonitoredQueue {
    fn on_fetch_failed(&self, queue: u16, tag: u16, errno: i32) {
        let monitor = &self.monitor;
        let errno = errno.abs();
        tracing::error!(
            device = monitor.device,
            queue,
            tag,
            errno,
            "ublk: the driver refused FETCH; the device cannot start"
        );
        monitor.update(|state| {
            state
                .refused
                .get_or_insert(RefusedFetch { queue, tag, errno });
        });
        monitor.start_cancel.cancel();
    }

    fn on_aborted(&self, _queue: u16) {
        self.monitor.update(|state| state.aborted += 1);
    }

    fn on_drained(&self, _queue: u16) {
        self.monitor
            .update(|state| state.queues[self.index].drained = true);
    }

    fn on_detached(&self, _queue: u16, _stats: QueueStats) {
        self.monitor
            .update(|state| state.queues[self.index].detached = true);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_refused_fetch_cancels_the_start_and_is_the_reason_that_is_told() {
        let monitor = Arc::new(QueueMonitor::new(3, 2));
        assert!(!monitor.start_cancel().is_cancelled());
        monitor.observer(1).on_fetch_failed(1, 5, libc::EINVAL);
        assert!(monitor.start_cancel().is_cancelled());
        let start = Error::kernel(Operation::Start, Some(3), libc::ECANCELED);
        let reason = monitor.start_error(start);
        assert_eq!(reason.operation(), Operation::Fetch);
        assert_eq!(reason.errno(), Some(libc::EINVAL));
        let text = reason.to_string();
        assert!(text.contains("device 3, queue 1, tag 5"), "{text}");
        assert!(text.contains("Invalid argument"), "{text}");
    }

    #[test]
    fn a_device_is_left_when_its_last_queue_is_gone() {
        let monitor = Arc::new(QueueMonitor::new(3, 2));
        let soon = || Instant::now() + Duration::from_millis(5);
        monitor.observer(0).on_detached(0, QueueStats::default());
        assert!(!monitor.wait_detached(soon()));
        let other = monitor.observer(1);
        let queue = std::thread::spawn(move || other.on_detached(1, QueueStats::default()));
        assert!(monitor.wait_detached(Instant::now() + Duration::from_secs(10)));
        queue.join().unwrap();
    }
}
