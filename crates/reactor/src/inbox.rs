//! How other threads reach a reactor: its inbox, and the wakers that put something there.
//!
//! The inbox has a small lock of its own that is held for a push or a swap (R2). The wake
//! descriptor is written only when the reactor sleeps: it sets `sleeping` and looks into the
//! inbox again before it waits; a sender pushes first and looks at `sleeping` then. The inbox
//! lock orders the two: either the reactor's second look finds the message, or that look came
//! before the push, and then the sender's later look finds `sleeping` set.
//!
//! The inbox only carries posted work (`W`); the core defines what that is.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Wake, Waker};

use crate::error::StoppedError;
use crate::ids::SourceId;

pub(crate) enum Message<W> {
    /// Work to be done on the reactor's thread.
    Run(W),
    /// A source's waker was woken.
    Wake(Arc<SourceWaker<W>>),
    /// A buffer came back that a source waits for. The turn that this message causes lends it.
    BufferReturned,
}

struct Queue<W> {
    messages: Vec<Message<W>>,
    closed: bool,
}

pub(crate) struct Inbox<W> {
    queue: Mutex<Queue<W>>,
    sleeping: AtomicBool,
    wake: Arc<OwnedFd>,
}

impl<W> Inbox<W> {
    /// An inbox whose reactor waits for `wake`, an eventfd.
    pub(crate) fn new(wake: Arc<OwnedFd>) -> Inbox<W> {
        Inbox {
            queue: Mutex::new(Queue {
                messages: Vec::new(),
                closed: false,
            }),
            sleeping: AtomicBool::new(false),
            wake,
        }
    }

    fn lock(&self) -> MutexGuard<'_, Queue<W>> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn send(&self, message: Message<W>) -> Result<(), StoppedError> {
        {
            let mut queue = self.lock();
            if queue.closed {
                return Err(StoppedError);
            }
            queue.messages.push(message);
        }
        // Pairs with `prepare_sleep` through the inbox lock.
        if self.sleeping.swap(false, Ordering::SeqCst) {
            // It cannot block: the count would have to be near 2^64.
            let _ = rustix::io::write(&*self.wake, &1_u64.to_ne_bytes());
        }
        Ok(())
    }

    /// Takes what was sent. `into` is empty; its memory is swapped in.
    pub(crate) fn take(&self, into: &mut Vec<Message<W>>) {
        std::mem::swap(&mut self.lock().messages, into);
    }

    /// Announces a wait; false where there is a message to take first.
    pub(crate) fn prepare_sleep(&self) -> bool {
        self.sleeping.store(true, Ordering::SeqCst);
        let empty = self.lock().messages.is_empty();
        if !empty {
            self.end_sleep();
        }
        empty
    }

    /// The wait is over: senders need not write the wake descriptor.
    pub(crate) fn end_sleep(&self) {
        self.sleeping.store(false, Ordering::SeqCst);
    }

    /// Refuses messages from now on and returns the last ones.
    pub(crate) fn close(&self) -> Vec<Message<W>> {
        let mut queue = self.lock();
        queue.closed = true;
        std::mem::take(&mut queue.messages)
    }
}

impl<W: Send + 'static> Inbox<W> {
    /// A waker that causes a turn.
    pub(crate) fn turn_waker(inbox: &Arc<Inbox<W>>) -> Waker {
        Waker::from(Arc::clone(inbox))
    }

    /// A waker for a source, which gets `key`.
    pub(crate) fn source_waker(inbox: &Arc<Inbox<W>>, source: SourceId, key: u64) -> Waker {
        Waker::from(Arc::new(SourceWaker {
            inbox: Arc::clone(inbox),
            source,
            key,
            queued: AtomicBool::new(false),
        }))
    }
}

/// Wakes the reactor for a turn.
impl<W: Send + 'static> Wake for Inbox<W> {
    fn wake(self: Arc<Self>) {
        // A reactor that has ended lends nothing.
        let _ = self.send(Message::BufferReturned);
    }
}

/// A source's waker. Wakes that come before the last one was delivered are one wake.
pub(crate) struct SourceWaker<W> {
    inbox: Arc<Inbox<W>>,
    pub(crate) source: SourceId,
    pub(crate) key: u64,
    queued: AtomicBool,
}

impl<W> SourceWaker<W> {
    /// To be called before the wake is delivered, so that a later wake is a new one.
    pub(crate) fn clear_queued(&self) {
        self.queued.store(false, Ordering::SeqCst);
    }
}

impl<W: Send + 'static> Wake for SourceWaker<W> {
    fn wake(self: Arc<Self>) {
        if !self.queued.swap(true, Ordering::SeqCst) {
            let inbox = Arc::clone(&self.inbox);
            // A reactor that has ended has no sources to wake.
            let _ = inbox.send(Message::Wake(self));
        }
    }

    fn wake_by_ref(self: &Arc<Self>) {
        Arc::clone(self).wake();
    }
}
