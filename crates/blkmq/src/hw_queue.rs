//! A hardware queue as every thread may use it: admission gate, tags and dispatch list together.
//!
//! What only the owner does (admit and run) is in `queue.rs`. Nothing here waits, and the list's
//! small lock is never held while code of others runs.

use std::sync::{Arc, OnceLock, Weak};
use std::task::{Wake, Waker};

use crate::dispatch::{DispatchList, ParkReason, ParkedRequest};
use crate::error::ErrorKind;
use crate::gate::Gate;
use crate::may_block::SmallLock;
use crate::state::{AnyQueue, DeviceState, QueueLoad};
use crate::tags::{Tag, TagSet};

/// How a transport learns that a request is complete.
pub trait Completer<T>: Send + Sync {
    /// Called exactly once per request that is not completed by
    /// [`AdmittedRequest::complete_with`](crate::AdmittedRequest::complete_with), on the thread
    /// that completes it. Must not wait.
    fn complete(&self, payload: T, result: Result<(), ErrorKind>);
}

/// How other threads make a queue's owner call [`Queue::run`](crate::Queue::run).
pub trait Kick: Send + Sync {
    /// Called from any thread, the owner's included; at most once per run. Must not wait. The
    /// owner must run the queue after this call, also if it was about to sleep.
    fn kick(&self);
}

pub(crate) struct HwQueue<T> {
    pub(crate) id: u32,
    pub(crate) device: Arc<DeviceState>,
    pub(crate) gate: Gate,
    pub(crate) tags: TagSet,
    wakers: TagWakers,
    pub(crate) list: SmallLock<DispatchList<T>>,
    pub(crate) completer: Arc<dyn Completer<T>>,
    kick: Arc<dyn Kick>,
}

/// One waker per tag, made when the tag is first used: memory follows use, not depth (R5).
struct TagWakers(Box<[OnceLock<Box<WakerChunk>>]>);

type WakerChunk = [OnceLock<Waker>; 64];

impl TagWakers {
    fn new(depth: u16) -> TagWakers {
        TagWakers((0..depth.div_ceil(64)).map(|_| OnceLock::new()).collect())
    }

    fn get_or_make(&self, tag: Tag, make: impl FnOnce() -> Waker) -> &Waker {
        let (chunk, index) = (usize::from(tag.0 / 64), usize::from(tag.0 % 64));
        self.0[chunk].get_or_init(|| Box::new([const { OnceLock::new() }; 64]))[index]
            .get_or_init(make)
    }
}

/// Wakes the request that has this tag.
struct TagWaker<T> {
    queue: Weak<HwQueue<T>>,
    tag: Tag,
}

impl<T: Send + 'static> Wake for TagWaker<T> {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if let Some(queue) = self.queue.upgrade() {
            queue.update_list(|list| list.wake(self.tag));
            queue.kick_if_must_run();
        }
    }
}

impl<T: Send + 'static> HwQueue<T> {
    pub(crate) fn new(
        id: u32,
        device: Arc<DeviceState>,
        depth: u16,
        completer: Arc<dyn Completer<T>>,
        kick: Arc<dyn Kick>,
    ) -> HwQueue<T> {
        let tags = TagSet::new(depth);
        HwQueue {
            id,
            gate: Gate::new(device.barrier()),
            device,
            wakers: TagWakers::new(tags.depth()),
            tags,
            list: SmallLock::new("dispatch list", DispatchList::new()),
            completer,
            kick,
        }
    }

    /// Changes the dispatch list, and publishes its counts before the lock is released.
    pub(crate) fn update_list<R>(&self, update: impl FnOnce(&mut DispatchList<T>) -> R) -> R {
        let mut list = self.list.lock();
        let result = update(&mut list);
        self.gate.publish_counts(list.counts());
        result
    }

    /// Hot side of P2: the caller has published what it has for the owner.
    pub(crate) fn kick_if_must_run(&self) {
        if self.gate.must_run() {
            self.kick_owner();
        }
    }

    fn kick_owner(&self) {
        if self.gate.claim_kick() {
            self.kick.kick();
        }
    }

    pub(crate) fn submit(&self, payload: T) {
        let refused = self.update_list(|list| list.push_waiting(payload));
        match refused {
            Some(payload) => self.completer.complete(payload, Err(ErrorKind::Closed)),
            None => self.kick_if_must_run(),
        }
    }

    pub(crate) fn waker(self: &Arc<Self>, tag: Tag) -> &Waker {
        self.wakers.get_or_make(tag, || {
            Waker::from(Arc::new(TagWaker {
                queue: Arc::downgrade(self),
                tag,
            }))
        })
    }

    /// Parks an admitted request. It is listed before it leaves flight, so it is always in one of
    /// the two counts, and the owner may hand it out again before this call returns.
    pub(crate) fn park(&self, tag: Tag, request: ParkedRequest<T>) {
        let reason = request.reason;
        if let Some(request) = self.update_list(|list| list.park(tag, request)) {
            // The owner is gone, and nobody would ever hand the request out.
            self.complete(tag, request.payload, Err(self.closing_error()));
            return;
        }
        if reason != ParkReason::Sync {
            self.leave_flight();
        }
        // P2: pairs with a cancel as well as with unquiesce.
        self.kick_if_must_run();
    }

    /// Completes a request in flight through the completer.
    #[inline]
    pub(crate) fn complete(&self, tag: Tag, payload: T, result: Result<(), ErrorKind>) {
        self.completer.complete(payload, result);
        self.release(tag);
    }

    /// Completes a request in flight that its holder dropped.
    pub(crate) fn complete_dropped(&self, tag: Tag, payload: T) {
        self.device.count_dropped();
        self.complete(tag, payload, Err(ErrorKind::Io));
    }

    /// Ends a request in flight, after the transport has its completion.
    #[inline]
    pub(crate) fn release(&self, tag: Tag) {
        self.tags.put(tag);
        self.leave_flight();
        // Completing side of P3: a request that needs a tag is published, or finds this one.
        if self.gate.has_pending() {
            self.kick_owner();
        }
    }

    /// Completing side of P3: a waiter for a drain has set the flag, or sees the count.
    #[inline]
    pub(crate) fn leave_flight(&self) {
        self.gate.exit();
        if self.gate.flags() != 0 {
            self.device.wake_drain_waiters();
        }
    }

    pub(crate) fn closing_error(&self) -> ErrorKind {
        self.device.cancel_error().unwrap_or(ErrorKind::Closed)
    }
}

impl<T: Send + 'static> AnyQueue for HwQueue<T> {
    fn gate(&self) -> &Gate {
        &self.gate
    }

    fn kick_if_pending(&self) {
        if self.gate.has_pending() {
            self.kick_owner();
        }
    }

    fn load(&self) -> QueueLoad {
        let list = self.list.lock();
        let parked: Vec<Tag> = list.parked_tags().collect();
        let counts = list.counts();
        drop(list);
        let mut tags = self.tags.taken_tags();
        tags.retain(|tag| !parked.contains(tag));
        QueueLoad {
            queue: self.id,
            in_flight: self.gate.in_flight(),
            tags,
            parked: counts.cancellable as usize,
        }
    }
}
