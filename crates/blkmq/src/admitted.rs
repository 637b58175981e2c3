//! A request in flight, as a value that must complete (R6).
//!
//! Its holder completes it, parks it, or (a bug that is made harmless) drops it. Each of the three
//! returns the tag and lowers the in-flight count exactly once, and only after the transport has
//! the completion: a drained device has answered everything.

use std::fmt;
use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;

use crate::dispatch::{ParkReason, ParkedRequest};
use crate::error::ErrorKind;
use crate::hw_queue::HwQueue;
use crate::tags::Tag;

/// A request in flight. It completes exactly once (R6): by one of the `complete` methods, which
/// consume it, or, if it is dropped, with [`ErrorKind::Io`], which the device counts.
pub struct AdmittedRequest<T: Send + 'static> {
    queue: Arc<HwQueue<T>>,
    tag: Tag,
    /// Its place in the order of admission.
    ticket: u64,
    /// When `expire` first saw it parked.
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

    /// Its number in the queue, which no other request has until it completes.
    pub fn tag(&self) -> Tag {
        self.tag
    }

    /// The transport's part of the request.
    pub fn payload(&self) -> &T {
        self.payload.as_ref().expect("present until consumed")
    }

    /// The transport's part of the request.
    pub fn payload_mut(&mut self) -> &mut T {
        self.payload.as_mut().expect("present until consumed")
    }

    /// The waker by which the engine makes this request run again. Allocates only at the first
    /// use of a tag. May be woken from any thread, before or after the request is parked, and more
    /// than once; a wake too many makes the request try once more.
    pub fn waker(&self) -> &Waker {
        self.queue.waker(self.tag)
    }

    /// Parks the request until its waker is woken; then `Queue::run` hands it out again. Parked
    /// for [`ParkReason::Space`] or [`ParkReason::Fetch`] it is not in flight; a cancel or the device's
    /// time-out completes it.
    pub fn park(mut self, reason: impl Into<ParkReason>) {
        let payload = self.take();
        let request = ParkedRequest {
            payload,
            ticket: self.ticket,
            reason: reason.into(),
            since: self.since,
        };
        self.queue.park(self.tag, request);
    }

    /// Completes the request through the queue's completer.
    #[inline]
    pub fn complete(mut self, result: Result<(), ErrorKind>) {
        let payload = self.take();
        self.queue.complete(self.tag, payload, result);
    }

    /// Completes the request by `answer`, for owners that answer in place. The tag is returned
    /// after `answer` returns.
    #[inline]
    pub fn complete_with<R>(mut self, answer: impl FnOnce(T) -> R) -> R {
        let payload = self.take();
        // Also if `answer` panics: else the tag is lost, and a quiesce never ends.
        let _release = ReleaseGuard(&self);
        answer(payload)
    }

    fn take(&mut self) -> T {
        self.payload.take().expect("present until consumed")
    }
}

struct ReleaseGuard<'a, T: Send + 'static>(&'a AdmittedRequest<T>);

impl<T: Send + 'static> Drop for ReleaseGuard<'_, T> {
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
