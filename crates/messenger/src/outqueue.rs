//! The out-queue: the one small lock between thousands of senders and the worker.
//!
//! Owns what senders and the worker share: the queue, the messages that were sent and are not
//! acknowledged, a copy of the session's state, their bytes, and whether the worker was kicked. The
//! lock is held for a push and three compares. It must never be held while a message is built,
//! encoded, signed or freed, and never while a socket is touched. It is no spin lock: if the
//! holder of one is preempted, all others spin for milliseconds.
//!
//! Invariants:
//! - I1 The state is written under the lock *and* by the worker ([`LockedQueue`] is the only way), so
//!   either is enough to read it, and a sender that saw "not closed" under the lock may push.
//! - I2 `kicked` means: the worker will check the queue without another kick. It is set under the
//!   lock with the push, and cleared only under a lock that found nothing to do. No wake-up is lost,
//!   and the worker is kicked once per idle period, not once per message.
//! - I3 A message gets its sequence number when it is taken, so one that is revoked before leaves
//!   no hole. One that was taken keeps its number when it goes back into the queue.
//! - I4 `queue` is in order of sending; returned messages go to its front, so every message with
//!   a number is before every one without.
//! - I5 Lists are moved out under the lock and freed after it.
//!
//! Senders cannot reach the lists without the lock, and only the worker can write the state:
//!
//! ```compile_fail
//! use messenger::outqueue::{Bounds, OutQueue};
//! let (queue, _owner) = OutQueue::new(Bounds::default());
//! queue.inner.queue.push_back(todo!()); // private, and inside the mutex
//! ```
//! ```compile_fail
//! use messenger::outqueue::{Bounds, OutQueue, State};
//! let (_queue, mut owner) = OutQueue::new(Bounds::default());
//! owner.set_state(State::Open); // the worker's half alone cannot write the state
//! ```
//! ```compile_fail
//! use messenger::outqueue::{Bounds, OutQueue, State};
//! let (queue, _owner) = OutQueue::new(Bounds::default());
//! queue.set_state(State::Open); // a sender's side cannot write the state
//! ```
//! ```
//! use messenger::outqueue::{Bounds, OutQueue, State};
//! let (_queue, mut owner) = OutQueue::new(Bounds::default());
//! owner.lock().set_state(State::Open); // the worker's half and the lock together can
//! ```

mod owner;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use thiserror::Error;

use crate::lock::{Condvar, Guard, Lock};
use crate::message::Message;

pub use crate::lock::Site;
#[cfg(feature = "meter")]
pub use crate::lock::{LockStats, SITES, SiteStats};
pub use owner::{LockedQueue, Next, QueueOwner};

/// The state of a session as far as senders need it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// No connection yet, or not any more; the worker is connecting.
    Connecting,
    /// Messages flow.
    Open,
    /// The connection failed while there was nothing to send. The first send or keepalive
    /// reconnects.
    Standby,
    /// Over. Nothing can be queued any more.
    Closed,
}

/// Why a message was not taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum Refusal {
    /// The bound of the queue is reached: try later, or use `send`, which waits.
    #[error("the queue is full: the peer has not acknowledged what was sent")]
    Full,
    /// The session is over; why is in its `Closed` event. Open a new one.
    #[error("the session is closed")]
    Closed,
    /// The message alone is larger than a message may be. Split it.
    #[error("the message is larger than the session's limit for one message")]
    TooLarge,
    /// The deadline passed while the queue was full.
    #[error("the queue stayed full until the deadline")]
    TimedOut,
    /// A blocking send on the I/O thread would wait for itself: handlers use `try_send`.
    #[error("a blocking send was called on the I/O thread")]
    OnIoThread,
}

/// A message that was not taken, with the reason.
#[derive(Debug, Error)]
#[error("message {tid} was not sent: {reason}", tid = message.tid)]
pub struct SendError {
    /// The message, unchanged.
    pub message: Message,
    /// Why.
    pub reason: Refusal,
}

/// Bounds of one queue. They cover what waits and what was sent but is not acknowledged. A message
/// is taken while both are below their bound, so the bytes exceed it by less than one message.
/// Keepalives and acknowledgements pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bounds {
    /// Payload bytes.
    pub bytes_max: usize,
    /// Messages.
    pub count_max: usize,
    /// The largest single message. The peer's limits are not negotiated: both hosts of a cluster
    /// are configured alike.
    pub message_max: usize,
}

impl Default for Bounds {
    /// 32 MiB and 16,384 messages: a tenth of a second at 10 Gbit/s with room for small ones.
    fn default() -> Self {
        Self {
            bytes_max: 32 << 20,
            count_max: 16 << 10,
            message_max: 16 << 20,
        }
    }
}

/// Whether the caller has to wake the worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use = "a kick that is not passed on is a lost wake-up"]
pub enum Kick {
    /// Yes: it does not know of this change.
    Worker,
    /// No: it will check the queue anyway.
    Nobody,
}

/// Names a queued message for [`OutQueue::revoke`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Ticket(u64);

/// A message in one of the lists.
#[derive(Debug)]
pub struct Entry {
    ticket: Ticket,
    /// Given when the message is taken.
    pub(crate) seq: Option<u64>,
    /// The message.
    pub message: Arc<Message>,
}

/// Small orders to the worker that pass the bound.
#[derive(Debug, Default)]
struct WorkerOrders {
    keepalive: bool,
    /// The highest sequence the application called done, when the peer was not told yet.
    done: Option<u64>,
    close: bool,
}

#[derive(Debug)]
struct Inner {
    queue: VecDeque<Entry>,
    sent: VecDeque<Entry>,
    state: State,
    bytes: usize,
    count: usize,
    kicked: bool,
    orders: WorkerOrders,
    next_ticket: u64,
    /// Callers that wait for room.
    waiting: usize,
    /// Only the canary `sequence_at_enqueue` uses it.
    canary_seq: u64,
}

/// What queue and acknowledgement hold at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Load {
    /// Messages that wait to be taken.
    pub queued: usize,
    /// Messages that were taken and are not acknowledged.
    pub unacked: usize,
    /// Payload bytes that count against the bound.
    pub bytes: usize,
    /// Messages that count against the bound.
    pub count: usize,
}

/// The queue between senders and the worker. Shared by both; see the module for its rules.
#[derive(Debug)]
pub struct OutQueue {
    inner: Lock<Inner>,
    room: Condvar,
    bounds: Bounds,
}

impl OutQueue {
    /// A queue for a session that starts to connect, and the worker's half of it. The worker looks
    /// at it once the session is open, so it starts out kicked.
    pub fn new(bounds: Bounds) -> (Arc<Self>, QueueOwner) {
        let inner = Inner {
            queue: VecDeque::new(),
            sent: VecDeque::new(),
            state: State::Connecting,
            bytes: 0,
            count: 0,
            kicked: true,
            orders: WorkerOrders::default(),
            next_ticket: 0,
            waiting: 0,
            canary_seq: 0,
        };
        let queue = Arc::new(Self {
            inner: Lock::new(inner),
            room: Condvar::new(),
            bounds,
        });
        (Arc::clone(&queue), QueueOwner::new(queue))
    }

    /// Queues a message, or gives it back with the reason. Never waits for I/O.
    pub fn try_send(&self, message: Message) -> Result<(Ticket, Kick), SendError> {
        self.push(message, |_, guard| (guard, Err(Refusal::Full)))
    }

    /// Queues a message; waits for room, until `deadline` if there is one.
    pub fn send(
        &self,
        message: Message,
        deadline: Option<Instant>,
    ) -> Result<(Ticket, Kick), SendError> {
        self.push(message, |queue, guard| queue.wait_for_room(guard, deadline))
    }

    fn push(
        &self,
        message: Message,
        when_full: impl for<'a> Fn(
            &'a Self,
            Guard<'a, Inner>,
        ) -> (Guard<'a, Inner>, Result<(), Refusal>),
    ) -> Result<(Ticket, Kick), SendError> {
        let size = message.size();
        if size > self.bounds.message_max {
            return Err(SendError {
                message,
                reason: Refusal::TooLarge,
            });
        }
        let message = Arc::new(message);
        let mut inner = self.inner.lock(Site::Send);
        let reason = loop {
            if inner.is_closing() {
                break Refusal::Closed;
            }
            if inner.has_room(&self.bounds) {
                if canary::active!("push_after_close") {
                    drop(inner);
                    inner = self.inner.lock(Site::Send);
                }
                let pushed = inner.push(message, size);
                // A chain, not a herd: each sender that finds room for one more wakes one more.
                let more = inner.waiting > 0 && inner.has_room(&self.bounds);
                drop(inner);
                if more {
                    self.room.notify_one();
                }
                return Ok(pushed);
            }
            let (guard, waited) = when_full(self, inner);
            inner = guard;
            if let Err(reason) = waited {
                break reason;
            }
        };
        drop(inner);
        let message =
            Arc::try_unwrap(message).expect("a message that was not queued has one owner");
        Err(SendError { message, reason })
    }

    fn wait_for_room<'a>(
        &'a self,
        mut inner: Guard<'a, Inner>,
        deadline: Option<Instant>,
    ) -> (Guard<'a, Inner>, Result<(), Refusal>) {
        inner.waiting += 1;
        let (mut inner, in_time) = self.room.wait(inner, deadline);
        inner.waiting -= 1;
        // A wake-up that came together with the deadline is used if there is room.
        if in_time || inner.has_room(&self.bounds) || inner.is_closing() {
            (inner, Ok(()))
        } else {
            (inner, Err(Refusal::TimedOut))
        }
    }

    /// Asks for a keepalive to the peer. Passes the bound; wakes a parked session.
    pub fn keepalive(&self) -> Result<Kick, Refusal> {
        let mut inner = self.inner.lock(Site::Keepalive);
        if inner.is_closing() {
            return Err(Refusal::Closed);
        }
        inner.orders.keepalive = true;
        Ok(inner.kick())
    }

    /// The application's own acknowledgement: everything up to and including `seq`, as received,
    /// is done. Passes the bound.
    pub fn acknowledge(&self, seq: u64) -> Result<Kick, Refusal> {
        let mut inner = self.inner.lock(Site::Control);
        if inner.is_closing() {
            return Err(Refusal::Closed);
        }
        inner.orders.done = inner.orders.done.max(Some(seq));
        Ok(inner.kick())
    }

    /// Ends the session. From the return of this call nothing can be queued; what was is given
    /// back in the session's `Closed` event.
    pub fn close(&self) -> Kick {
        let mut inner = self.inner.lock(Site::Control);
        if inner.is_closing() {
            return Kick::Nobody;
        }
        inner.orders.close = true;
        drop(inner);
        self.room.notify_all();
        // The worker may owe the queue a look only once it is connected; this cannot wait for it.
        Kick::Worker
    }

    /// Takes back a message that was not taken yet. `None` when it is too late: it was or is being
    /// sent, and is sent whole; the peer may have it.
    pub fn revoke(&self, ticket: Ticket) -> Option<Arc<Message>> {
        let mut inner = self.inner.lock(Site::Control);
        let at = inner.queue.iter().position(|e| e.ticket == ticket)?;
        let unsent = inner.queue[at].seq.is_none() || canary::active!("sequence_at_enqueue");
        let entry = if unsent { inner.queue.remove(at) } else { None };
        if let Some(entry) = &entry {
            inner.release_bytes(entry.message.size());
            inner.count -= 1;
        }
        let wake = inner.waiting > 0;
        drop(inner);
        if wake {
            self.room.notify_one();
        }
        entry.map(|e| e.message)
    }

    /// What the queue holds now.
    pub fn load(&self) -> Load {
        let inner = self.inner.lock(Site::Control);
        Load {
            queued: inner.queue.len(),
            unacked: inner.sent.len(),
            bytes: inner.bytes,
            count: inner.count,
        }
    }

    /// The state, as of now.
    pub fn state(&self) -> State {
        self.inner.lock(Site::Control).state
    }

    /// What the lock cost so far.
    #[cfg(feature = "meter")]
    pub fn lock_stats(&self) -> LockStats {
        self.inner.stats()
    }
}

impl Inner {
    /// Closed, or asked to.
    fn is_closing(&self) -> bool {
        self.state == State::Closed || self.orders.close
    }

    fn has_room(&self, bounds: &Bounds) -> bool {
        self.bytes < bounds.bytes_max && self.count < bounds.count_max
    }

    fn push(&mut self, message: Arc<Message>, size: usize) -> (Ticket, Kick) {
        let ticket = Ticket(self.next_ticket);
        self.next_ticket += 1;
        self.bytes += size;
        self.count += 1;
        let seq = canary::active!("sequence_at_enqueue").then(|| {
            self.canary_seq += 1;
            self.canary_seq
        });
        self.queue.push_back(Entry {
            ticket,
            seq,
            message,
        });
        (ticket, self.kick())
    }

    /// I2: decided in the hold that made the work.
    fn kick(&mut self) -> Kick {
        if std::mem::replace(&mut self.kicked, true) {
            Kick::Nobody
        } else {
            Kick::Worker
        }
    }

    fn release_bytes(&mut self, bytes: usize) {
        debug_assert!(self.bytes >= bytes, "what is released was counted");
        self.bytes = self.bytes.saturating_sub(bytes);
    }
}

#[cfg(all(test, feature = "loom"))]
mod loom_tests;
#[cfg(all(test, not(feature = "loom")))]
mod tests;
