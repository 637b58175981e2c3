//! How other threads reach a reactor: messages, wakes, wakers.
//!
//! The inbox has a small lock of its own that is held for a push or a swap (R2). The wake
//! descriptor is written only when the reactor sleeps: it sets `sleeping` and looks into the
//! inbox again before it waits; a sender pushes first and looks at `sleeping` then. The inbox
//! lock orders the two: either the reactor's second look finds the message, or that look came
//! before the push, and then the sender's later look finds `sleeping` set.

use std::fmt;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Wake, Waker};

use crate::core::Core;
use crate::source::{Cx, Source, SourceId};

/// Work posted to the reactor's thread.
type Posted = Box<dyn FnOnce(&mut Core) + Send>;

pub(crate) enum Message {
    Run(Posted),
    Wake(Arc<SourceWake>),
    /// A buffer came back that is waited for: what is due happens in every turn.
    Look,
}

#[derive(Default)]
struct Inbox {
    messages: Vec<Message>,
    closed: bool,
}

pub(crate) struct Shared {
    inbox: Mutex<Inbox>,
    sleeping: AtomicBool,
    wake: Arc<OwnedFd>,
}

impl Shared {
    pub(crate) fn new(wake: Arc<OwnedFd>) -> Shared {
        Shared {
            inbox: Mutex::default(),
            sleeping: AtomicBool::new(false),
            wake,
        }
    }

    fn inbox(&self) -> MutexGuard<'_, Inbox> {
        self.inbox.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn send(&self, message: Message) -> Result<(), StoppedError> {
        {
            let mut inbox = self.inbox();
            if inbox.closed {
                return Err(StoppedError);
            }
            inbox.messages.push(message);
        }
        // Pairs with `prepare_sleep` through the inbox lock.
        if self.sleeping.swap(false, Ordering::SeqCst) {
            // It cannot block: the count would have to be near 2^64.
            let _ = rustix::io::write(&*self.wake, &1_u64.to_ne_bytes());
        }
        Ok(())
    }

    /// Takes what was sent. `into` is empty; its memory is swapped in.
    pub(crate) fn take(&self, into: &mut Vec<Message>) {
        std::mem::swap(&mut self.inbox().messages, into);
    }

    /// Announces a wait; false where there is a message to take first.
    pub(crate) fn prepare_sleep(&self) -> bool {
        self.sleeping.store(true, Ordering::SeqCst);
        let empty = self.inbox().messages.is_empty();
        if !empty {
            self.awake();
        }
        empty
    }

    pub(crate) fn awake(&self) {
        self.sleeping.store(false, Ordering::SeqCst);
    }

    /// Refuses messages from now on and returns the last ones.
    pub(crate) fn close(&self) -> Vec<Message> {
        let mut inbox = self.inbox();
        inbox.closed = true;
        std::mem::take(&mut inbox.messages)
    }
}

/// Wakes the reactor for a turn.
impl Wake for Shared {
    fn wake(self: Arc<Self>) {
        // A reactor that has ended lends nothing.
        let _ = self.send(Message::Look);
    }
}

/// The reactor has ended; what was given is dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoppedError;

impl fmt::Display for StoppedError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the reactor has stopped")
    }
}

impl std::error::Error for StoppedError {}

/// A reactor as other threads see it. Never waits.
#[derive(Clone)]
pub struct Handle {
    pub(crate) shared: Arc<Shared>,
}

impl Handle {
    /// Runs `work` on the reactor's thread, soon and in the order of posting.
    pub fn post(&self, work: impl FnOnce(&mut Core) + Send + 'static) -> Result<(), StoppedError> {
        self.shared.send(Message::Run(Box::new(work)))
    }

    /// Attaches the source that `build` makes on the reactor's thread. It gets its id already.
    pub fn attach<S: Source>(
        &self,
        build: impl FnOnce(&mut Cx<'_>) -> S + Send + 'static,
    ) -> Result<(), StoppedError> {
        self.post(move |core| {
            core.attach(build);
        })
    }

    /// A waker that calls [`Source::on_wake`] with `key`. Waking a source that is gone is nothing.
    pub fn waker(&self, source: SourceId, key: u64) -> Waker {
        let shared = Arc::clone(&self.shared);
        Waker::from(Arc::new(SourceWake {
            shared,
            source,
            key,
            queued: AtomicBool::new(false),
        }))
    }
}

impl fmt::Debug for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Handle")
    }
}

/// What a waker wakes. Wakes that come before the last one was delivered are one wake.
pub(crate) struct SourceWake {
    shared: Arc<Shared>,
    pub(crate) source: SourceId,
    pub(crate) key: u64,
    queued: AtomicBool,
}

impl SourceWake {
    /// To be called before the wake is acted on, so that a later wake is a new one.
    pub(crate) fn deliver(&self) {
        self.queued.store(false, Ordering::SeqCst);
    }
}

impl Wake for SourceWake {
    fn wake(self: Arc<Self>) {
        if !self.queued.swap(true, Ordering::SeqCst) {
            let shared = Arc::clone(&self.shared);
            // A reactor that has ended has no sources to wake.
            let _ = shared.send(Message::Wake(self));
        }
    }

    fn wake_by_ref(self: &Arc<Self>) {
        Arc::clone(self).wake();
    }
}
