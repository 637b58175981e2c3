//! Both ends of a hardware queue, and what only its owner does: admit and run.
//!
//! [`Queue`] is the owner's end: one value, used by one thread, and only it admits and runs.
//! [`QueueHandle`] is the end of all other threads: they submit, check, and kick. The holder of an
//! [`AdmittedRequest`] completes it. No step waits.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::admitted::AdmittedRequest;
use crate::dispatch::{DispatchList, ParkedRequest, RemovedRequests};
use crate::error::ErrorKind;
use crate::gate::{CANCELLED, Entry};
use crate::hw_queue::HwQueue;
use crate::state::{AnyQueue, QueueLoad};
use crate::tags::Tag;

/// What [`Queue::admit`] did with a request.
#[derive(Debug)]
pub enum Admission<T: Send + 'static> {
    /// It is admitted: carry it out.
    Run(AdmittedRequest<T>),
    /// It waits in the dispatch list; a later [`Queue::run`] hands it out.
    Parked,
    /// The device is cancelled: the request is complete, with the device's error.
    Refused,
}

/// What only the owner does. A block of `HwQueue`, so that both ends share one allocation.
impl<T: Send + 'static> HwQueue<T> {
    fn admit(self: &Arc<Self>, payload: T) -> Admission<T> {
        if self.gate.has_runnable() {
            // Older requests may wait for admission: queue behind them; `run` keeps the order.
            return self.wait(payload);
        }
        match self.gate.enter() {
            Entry::Open { ticket } => match self.tags.take() {
                Some(tag) => {
                    let queue = Arc::clone(self);
                    return Admission::Run(AdmittedRequest::new(queue, tag, payload, ticket, None));
                }
                None => self.leave_flight(),
            },
            Entry::Shut { counted: true, .. } => self.leave_flight(),
            Entry::Shut { counted: false, .. } => {}
        }
        self.wait(payload)
    }

    /// Puts a request at the tail of the dispatch list. The event that ends its wait either finds
    /// it there or is found here: for the gate by P2, for a tag by P3.
    fn wait(&self, payload: T) -> Admission<T> {
        if self.gate.flags() & CANCELLED != 0
            && let Some(error) = self.device.cancel_error()
        {
            self.completer.complete(payload, Err(error));
            return Admission::Refused;
        }
        let refused = self.update_list(|list| list.push_waiting(payload));
        debug_assert!(refused.is_none(), "the owner is here");
        if canary::active!("wait_for_tag_without_recheck") {
            return Admission::Parked;
        }
        self.gate.sync_with_completions();
        // If the gate is open and no tag is free, a completion kicks; a kick now would make the
        // owner spin.
        if self.tags.has_free() || self.gate.flags() != 0 {
            self.kick_if_must_run();
        }
        Admission::Parked
    }

    fn run(self: &Arc<Self>, mut handle: impl FnMut(AdmittedRequest<T>)) -> usize {
        let late = canary::active!("kick_cleared_after_the_check");
        if !late {
            self.gate.clear_kick();
        }
        let must_run = self.gate.must_run();
        if late {
            self.gate.clear_kick();
        }
        if !must_run {
            return 0;
        }
        // A pass is bounded: requests that park again at once cannot keep the owner here.
        let pass_max = self.list.lock().len();
        let mut ran = 0;
        while ran < pass_max
            && let Some((tag, request)) = self.update_list(DispatchList::pop_woken_sync)
        {
            handle(self.resume(tag, request));
            ran += 1;
        }
        while ran < pass_max {
            match self.gate.enter() {
                Entry::Open { ticket } => {
                    let Some(request) = self.next(ticket) else {
                        self.leave_flight();
                        return ran;
                    };
                    handle(request);
                    ran += 1;
                }
                Entry::Shut { cancelled, counted } => {
                    if counted {
                        self.leave_flight();
                    }
                    return if cancelled {
                        ran + self.complete_cancelled()
                    } else {
                        ran
                    };
                }
            }
        }
        self.kick_if_must_run();
        ran
    }

    /// The next request that may run. The caller has counted it in flight.
    fn next(self: &Arc<Self>, ticket: u64) -> Option<AdmittedRequest<T>> {
        let (tag, request) = self.update_list(|list| {
            list.pop_woken()
                .or_else(|| list.pop_waiting(ticket, || self.take_tag()))
        })?;
        Some(self.resume(tag, request))
    }

    fn resume(self: &Arc<Self>, tag: Tag, request: ParkedRequest<T>) -> AdmittedRequest<T> {
        AdmittedRequest::new(
            Arc::clone(self),
            tag,
            request.payload,
            request.ticket,
            request.since,
        )
    }

    /// A tag for a request that is published in the dispatch list. Waiting side of P3: if none is
    /// free even after the read-modify-write of `finished`, a thread that returns one later sees
    /// the request.
    fn take_tag(&self) -> Option<Tag> {
        let once = canary::active!("run_without_recheck_for_a_tag");
        self.tags.take().or_else(|| {
            if once {
                return None;
            }
            self.gate.sync_with_completions();
            self.tags.take()
        })
    }

    /// Completes what is parked on a cancelled device. The flag is read under the list's lock:
    /// a request that arrived after a re-arm is in the list only if the flag is seen cleared.
    fn complete_cancelled(&self) -> usize {
        let removed = self.update_list(|list| {
            let cancelled = self.gate.flags() & CANCELLED != 0;
            let error = self.device.cancel_error().filter(|_| cancelled)?;
            Some((list.remove_cancellable(), error))
        });
        removed.map_or(0, |(removed, error)| self.complete_removed(removed, error))
    }

    fn expire(&self, now: Duration) -> usize {
        let Some(limit) = self.device.park_timeout() else {
            return 0;
        };
        let removed = self.update_list(|list| list.remove_expired(now, limit));
        let count = self.complete_removed(removed, ErrorKind::TimedOut);
        if count > 0 {
            self.kick_if_must_run();
        }
        count
    }

    /// Completes requests that were removed from the list and are not in flight.
    fn complete_removed(&self, removed: RemovedRequests<T>, error: ErrorKind) -> usize {
        let count = removed.len();
        for (tag, request) in removed.parked {
            self.completer.complete(request.payload, Err(error));
            self.tags.put(tag);
        }
        for request in removed.waiting {
            self.completer.complete(request.payload, Err(error));
        }
        count
    }

    fn retire(&self) {
        let error = self.closing_error();
        let (removed, syncs) = self.update_list(|list| (list.retire(), list.remove_syncs()));
        self.complete_removed(removed, error);
        for (tag, request) in syncs {
            self.complete(tag, request.payload, Err(error));
        }
    }
}

/// The owner's end of a hardware queue. It may be sent to the thread that will own it.
///
/// Dropping it completes what is parked with the device's error, or [`ErrorKind::Closed`].
/// Requests in flight stay with their holders.
pub struct Queue<T: Send + 'static> {
    inner: Arc<HwQueue<T>>,
}

impl<T: Send + 'static> Queue<T> {
    pub(crate) fn new(inner: HwQueue<T>) -> Queue<T> {
        Queue {
            inner: Arc::new(inner),
        }
    }

    /// The queue without the type of its requests, for the device's list.
    pub(crate) fn any_queue(&self) -> Arc<dyn AnyQueue> {
        let queue: Arc<HwQueue<T>> = Arc::clone(&self.inner);
        queue
    }

    /// The end that other threads hold.
    pub fn handle(&self) -> QueueHandle<T> {
        QueueHandle {
            inner: Arc::clone(&self.inner),
        }
    }

    /// Admits a request, or parks it behind those that already wait for admission.
    #[inline]
    pub fn admit(&mut self, payload: T) -> Admission<T> {
        self.inner.admit(payload)
    }

    /// Hands out the requests that can run: woken ones, then those that wait for admission, in
    /// order. Call it after a kick, and whenever it is convenient; with nothing to do it costs two
    /// checks. Returns how many requests it handed out or, on a cancelled device, completed.
    pub fn run(&mut self, handle: impl FnMut(AdmittedRequest<T>)) -> usize {
        self.inner.run(handle)
    }

    /// Completes with [`ErrorKind::TimedOut`] what has been parked longer than the device allows,
    /// and returns how many. `now` is the time since any fixed moment; a request's time counts
    /// from the first call that finds it parked. Does nothing if the device sets no limit.
    pub fn expire(&mut self, now: Duration) -> usize {
        self.inner.expire(now)
    }
}

impl<T: Send + 'static> Drop for Queue<T> {
    fn drop(&mut self) {
        self.inner.retire();
    }
}

impl<T: Send + 'static> fmt::Debug for Queue<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "Queue({} of {})",
            self.inner.id,
            self.inner.device.name()
        )
    }
}

/// A hardware queue as threads other than its owner hold it.
pub struct QueueHandle<T: Send + 'static> {
    inner: Arc<HwQueue<T>>,
}

impl<T: Send + 'static> QueueHandle<T> {
    /// Puts a request into the dispatch list and kicks the owner, from any thread. On a queue
    /// whose owner is gone it completes with [`ErrorKind::Closed`].
    pub fn submit(&self, payload: T) {
        self.inner.submit(payload);
    }

    /// "Must this queue run?", without a lock (pair P2 of `gate.rs`).
    #[inline]
    pub fn must_run(&self) -> bool {
        self.inner.gate.must_run()
    }

    /// The first half of [`QueueHandle::must_run`], without the barrier. A hint only.
    #[inline]
    pub fn has_pending(&self) -> bool {
        self.inner.gate.has_pending()
    }

    /// How many requests are in flight now.
    pub fn in_flight(&self) -> u64 {
        self.inner.gate.in_flight()
    }

    /// What holds of the queue's tags while no thread uses it: each request in flight has one, and
    /// every free one can be found. For tests.
    ///
    /// # Errors
    /// The first invariant that does not hold.
    pub fn invariants(&self) -> Result<(), String> {
        self.inner.tags.invariants(self.in_flight())
    }

    /// What the queue holds, for reports.
    pub fn load(&self) -> QueueLoad {
        AnyQueue::load(&*self.inner)
    }
}

impl<T: Send + 'static> Clone for QueueHandle<T> {
    fn clone(&self) -> QueueHandle<T> {
        QueueHandle {
            inner: Arc::clone(&self.inner),
        }
    }
}

impl<T: Send + 'static> fmt::Debug for QueueHandle<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "QueueHandle({} of {})",
            self.inner.id,
            self.inner.device.name()
        )
    }
}
