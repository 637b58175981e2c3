//! A request in flight, as a value that must complete (R6).
//!
//! Whoever has it decides its end: completed, parked, or (a bug that is made harmless) dropped.
//! Every way out gives the tag back and leaves the in-flight count exactly once, and only after
//! the completion is with the transport: a drained device has answered everything.

use std::fmt;
use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;

use crate::error::ErrorKind;
use crate::parked::{Held, ParkReason};
use crate::queue::HwQueue;
use crate::tags::Tag;

/// A request in flight. It completes exactly once (R6): by one of the `complete` methods, which
/// consume it, or, if it is dropped, with [`ErrorKind::Io`], which the device counts.
pub struct AdmittedRequest<T: Send + 'static> {
    queue: Arc<HwQueue<T>>,
    tag: Tag,
    /// Its place in the order of admission.
    ticket: u64,
    /// When the clock was first seen while it was parked.
    since: Option<Duration>,
    /// Present until the request completes or parks, which consumes the value.
    payload: Option<T>,
}

impl<T: Send + 'static> AdmittedRequest<T> {
    #[inline]
    pub(crate) fn new(
        queue: Arc<HwQueue<T>>,
        tag: Tag,
        payload: T,
        ticket: u64,
        since: Option<Duration>,
    ) -> AdmittedRequest<T> {
        AdmittedRequest {
            queue,
            tag,
            ticket,
            since,
            payload: Some(payload),
        }
    }

    /// Its number in the queue; nobody else's until it completes.
    pub fn tag(&self) -> Tag {
        self.tag
    }

    /// The transport's own part.
    pub fn payload(&self) -> &T {
        self.payload.as_ref().expect("present until consumed")
    }

    /// The transport's own part.
    pub fn payload_mut(&mut self) -> &mut T {
        self.payload.as_mut().expect("present until consumed")
    }

    /// What the engine wakes when this request should go on. Costs nothing but for the first use
    /// of a tag. May be woken from any thread, before or after the request is parked, and more
    /// than once; a wake too many makes the request try once more.
    pub fn waker(&self) -> &Waker {
        self.queue.waker(self.tag)
    }

    /// Parks the request until its waker is woken; then `Queue::run` hands it out again. Parked
    /// for [`ParkReason::Space`] or [`ParkReason::Fetch`] it is not in flight; a cancel or the device's
    /// time-out completes it.
    pub fn park(mut self, reason: impl Into<ParkReason>) {
        let payload = self.take();
        let held = Held {
            payload,
            ticket: self.ticket,
            reason: reason.into(),
            since: self.since,
        };
        self.queue.park(self.tag, held);
    }

    /// Completes the request through the queue's completer.
    #[inline]
    pub fn complete(mut self, result: Result<(), ErrorKind>) {
        let payload = self.take();
        self.queue.complete(self.tag, payload, result);
    }

    /// Completes the request by the caller's own hand, for owners that answer in place. The tag
    /// is given back after `answer` returns.
    #[inline]
    pub fn complete_with<R>(mut self, answer: impl FnOnce(T) -> R) -> R {
        let payload = self.take();
        // Also if `answer` panics: else the tag is lost, and a quiesce waits for ever.
        let _release = Release(&self);
        answer(payload)
    }

    fn take(&mut self) -> T {
        self.payload.take().expect("present until consumed")
    }
}

struct Release<'a, T: Send + 'static>(&'a AdmittedRequest<T>);

impl<T: Send + 'static> Drop for Release<'_, T> {
    fn drop(&mut self) {
        self.0.queue.release(self.0.tag);
    }
}

impl<T: Send + 'static> Drop for AdmittedRequest<T> {
    fn drop(&mut self) {
        if let Some(payload) = self.payload.take()
            && !canary::active!("dropped_request_is_lost")
        {
            self.queue.complete_dropped(self.tag, payload);
        }
    }
}

impl<T: Send + 'static> fmt::Debug for AdmittedRequest<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "AdmittedRequest(tag {})", self.tag)
    }
}
