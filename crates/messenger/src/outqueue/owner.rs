//! The worker's half of the out-queue.

use std::sync::Arc;

use super::{Entry, Inner, OutQueue, State};
use crate::lock::{Guard, Site};

/// The worker's ownership of one queue: there is exactly one, and it is not cloned.
#[derive(Debug)]
pub struct QueueOwner {
    queue: Arc<OutQueue>,
    state: State,
}

/// What the worker does next.
#[derive(Debug)]
pub enum Next {
    /// The application asked to end the session.
    Close,
    /// A keepalive was requested.
    Keepalive,
    /// The application's own acknowledgement.
    Done(u64),
    /// A message, now with its sequence number. It is also in the list of sent ones if the
    /// session resends.
    Message {
        /// Its place in the session.
        seq: u64,
        /// The message.
        message: Arc<crate::message::Message>,
    },
    /// Nothing: the next push kicks.
    Idle,
}

impl QueueOwner {
    pub(super) fn new(queue: Arc<OutQueue>) -> Self {
        Self {
            queue,
            state: State::Connecting,
        }
    }

    /// The queue senders share.
    pub fn queue(&self) -> &Arc<OutQueue> {
        &self.queue
    }

    /// The state, read by its owner without the lock.
    pub fn state(&self) -> State {
        self.state
    }

    /// Takes the lock as well.
    pub fn lock(&mut self) -> LockedQueue<'_> {
        self.lock_at(Site::State)
    }

    pub(crate) fn lock_at(&mut self, site: Site) -> LockedQueue<'_> {
        let inner = self.queue.inner.lock(site);
        debug_assert_eq!(
            inner.state, self.state,
            "I1: both copies agree outside a hold"
        );
        LockedQueue {
            inner,
            state: &mut self.state,
            queue: &self.queue,
        }
    }

    /// Takes the next thing to send. `next_seq` is the worker's counter and advances with a
    /// message that has no number yet; `keep` says whether messages stay until acknowledged.
    pub fn take_next(&mut self, next_seq: &mut u64, keep: bool) -> Next {
        let next = self.lock_at(Site::Next).next(next_seq, keep);
        if canary::active!("clear_pending_outside_lock") && matches!(next, Next::Idle) {
            self.lock_at(Site::Next).inner.kicked = false;
        }
        next
    }

    /// Ends the session; everything that was queued or not acknowledged, in order of sending. It is
    /// freed, or given to the application, outside the lock.
    pub fn close(&mut self) -> Vec<Entry> {
        // The lock is a temporary of this statement's tail and is dropped before the list is
        // returned.
        self.lock().close()
    }

    /// Removes what is acknowledged up to `seq` into `out`, which the caller clears after.
    /// `keep_count` leaves the messages counted: they are not done yet.
    pub fn take_acked(&mut self, seq: u64, keep_count: bool, out: &mut Vec<Entry>) {
        let mut both = self.lock_at(Site::Acked);
        both.take_acked(seq, keep_count, out);
        if canary::active!("free_under_lock") {
            out.clear();
        }
    }
}

/// A worker that is gone, also by a panic, leaves no sender waiting for it.
impl Drop for QueueOwner {
    fn drop(&mut self) {
        if self.state != State::Closed {
            drop(self.close());
        }
    }
}

/// The lock and the worker's ownership together.
#[derive(Debug)]
pub struct LockedQueue<'a> {
    inner: Guard<'a, Inner>,
    state: &'a mut State,
    queue: &'a OutQueue,
}

impl LockedQueue<'_> {
    /// Writes the state, both copies.
    pub fn set_state(&mut self, state: State) {
        self.inner.state = state;
        *self.state = state;
    }

    /// Whether nothing is queued and nothing was requested.
    pub fn is_idle(&self) -> bool {
        let wants = &self.inner.orders;
        let asked = wants.keepalive || wants.done.is_some() || wants.close;
        self.inner.queue.is_empty() && !asked
    }

    /// Whether the application requested the end of the session.
    pub fn is_close_requested(&self) -> bool {
        self.inner.orders.close
    }

    fn next(&mut self, next_seq: &mut u64, keep: bool) -> Next {
        let inner = &mut *self.inner;
        if inner.orders.close {
            return Next::Close;
        }
        if std::mem::take(&mut inner.orders.keepalive) {
            return Next::Keepalive;
        }
        if let Some(seq) = inner.orders.done.take() {
            return Next::Done(seq);
        }
        let Some(mut entry) = inner.queue.pop_front() else {
            if !canary::active!("clear_pending_outside_lock") {
                inner.kicked = false;
            }
            return Next::Idle;
        };
        let seq = *entry.seq.get_or_insert_with(|| {
            *next_seq += 1;
            *next_seq
        });
        let message = Arc::clone(&entry.message);
        if keep {
            inner.sent.push_back(entry);
        } else {
            inner.release_bytes(message.size());
            inner.count -= 1;
            self.wake_one();
            // `entry` shares the message, which the caller holds: nothing is freed here.
        }
        Next::Message { seq, message }
    }

    /// Moves what is acknowledged up to `seq` to `out`.
    pub fn take_acked(&mut self, seq: u64, keep_count: bool, out: &mut Vec<Entry>) {
        let acked = self
            .inner
            .sent
            .partition_point(|e| e.seq.is_some_and(|s| s <= seq));
        let inner = &mut *self.inner;
        let before = out.len();
        out.extend(inner.sent.drain(..acked));
        self.release(&out[before..], keep_count);
    }

    /// The connection failed: what was sent and not acknowledged goes back to the front, in order
    /// and with its numbers. The worker now has to check the queue.
    pub fn requeue(&mut self) {
        let inner = &mut *self.inner;
        if canary::active!("requeue_behind") {
            inner.queue.append(&mut inner.sent);
        }
        while let Some(entry) = inner.sent.pop_back() {
            inner.queue.push_front(entry);
        }
        inner.kicked = true;
    }

    /// The messages at the front that were sent before and are acknowledged up to `seq` after
    /// all: the peer had them when the connection failed.
    pub fn take_requeued(&mut self, seq: u64, keep_count: bool, out: &mut Vec<Entry>) {
        let inner = &mut *self.inner;
        let acked = inner
            .queue
            .iter()
            .take_while(|e| e.seq.is_some_and(|s| s <= seq))
            .count();
        let before = out.len();
        out.extend(inner.queue.drain(..acked));
        self.release(&out[before..], keep_count);
    }

    /// Makes room for others in the place of messages that are acknowledged.
    fn release(&mut self, acked: &[Entry], keep_count: bool) {
        let bytes = acked.iter().map(|e| e.message.size()).sum();
        self.inner.release_bytes(bytes);
        if !keep_count {
            self.inner.count -= acked.len();
        }
        if !acked.is_empty() {
            self.wake_one();
        }
    }

    /// Messages that were only counted until they were done.
    pub fn release_count(&mut self, n: usize) {
        debug_assert!(self.inner.count >= n, "what is released was counted");
        self.inner.count = self.inner.count.saturating_sub(n);
        if n > 0 {
            self.wake_one();
        }
    }

    /// Parks the session if there is nothing to do. State and `kicked` change under the same hold of the
    /// lock as the check, so the first send after it kicks, and only the first.
    pub fn park_if_idle(&mut self) -> bool {
        let idle = self.is_idle();
        if idle {
            self.set_state(State::Standby);
            self.inner.kicked = false;
        }
        idle
    }

    fn close(&mut self) -> Vec<Entry> {
        self.set_state(State::Closed);
        let inner = &mut *self.inner;
        let mut all = std::mem::take(&mut inner.sent);
        all.append(&mut inner.queue);
        inner.bytes = 0;
        inner.count = 0;
        self.queue.room.notify_all();
        all.into()
    }

    fn wake_one(&self) {
        if self.inner.waiting > 0 {
            self.queue.room.notify_one();
        }
    }
}
