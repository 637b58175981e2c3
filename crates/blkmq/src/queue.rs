//! A hardware queue: the gate, the tags and the dispatch list put together.
//!
//! [`Queue`] is the owner's end: one value, used by one thread, and only it admits and runs.
//! [`QueueHandle`] is everybody else's: they submit, look, and kick. Completing is for whoever
//! has the [`AdmittedRequest`]. No step here waits, and the list's small lock is never held while
//! somebody else's code runs.

use std::fmt;
use std::sync::{Arc, OnceLock, Weak};
use std::task::{Wake, Waker};
use std::time::Duration;

use crate::admitted::AdmittedRequest;
use crate::device::{Device, Member, QueueLoad};
use crate::error::ErrorKind;
use crate::gate::{CANCELLED, Enter, Gate};
use crate::may_block::SmallLock;
use crate::parked::{Drained, Held, ParkReason, Parked};
use crate::tags::{Tag, TagSet};

/// How a transport is told that a request is complete.
pub trait Completer<T>: Send + Sync {
    /// Called exactly once per request that was not finished by [`AdmittedRequest::complete_with`], from
    /// whatever thread the request came to its end on. Must not wait.
    fn complete(&self, payload: T, result: Result<(), ErrorKind>);
}

/// How others tell a queue's owner to call [`Queue::run`].
pub trait Kick: Send + Sync {
    /// Called from any thread, the owner's included; at most once per run. Must not wait. The
    /// owner must come to its run after this call, also if it was about to sleep.
    fn kick(&self);
}

/// What became of a request at the gate.
#[derive(Debug)]
pub enum Admission<T: Send + 'static> {
    /// Go on with it.
    Run(AdmittedRequest<T>),
    /// It waits in the dispatch list; a later [`Queue::run`] hands it out.
    Parked,
    /// The device is cancelled: the request is complete, with the device's error.
    Refused,
}

pub(crate) struct HwQueue<T> {
    id: u32,
    device: Arc<Device>,
    gate: Gate,
    tags: TagSet,
    wakers: Wakers,
    parked: SmallLock<Parked<T>>,
    completer: Arc<dyn Completer<T>>,
    kick: Arc<dyn Kick>,
}

/// One waker per tag, made when the tag is first used: memory follows use, not depth (R5).
struct Wakers(Box<[OnceLock<Box<WakerChunk>>]>);

type WakerChunk = [OnceLock<Waker>; 64];

impl Wakers {
    fn new(depth: u16) -> Wakers {
        Wakers((0..depth.div_ceil(64)).map(|_| OnceLock::new()).collect())
    }

    fn of(&self, tag: Tag, make: impl FnOnce() -> Waker) -> &Waker {
        let (chunk, index) = (usize::from(tag.0 / 64), usize::from(tag.0 % 64));
        self.0[chunk].get_or_init(|| Box::new([const { OnceLock::new() }; 64]))[index]
            .get_or_init(make)
    }
}

/// What a waker points at.
struct Seat<T> {
    queue: Weak<HwQueue<T>>,
    tag: Tag,
}

impl<T: Send + 'static> Wake for Seat<T> {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if let Some(queue) = self.queue.upgrade() {
            queue.change(|parked| parked.wake(self.tag));
            queue.kick_if_due();
        }
    }
}

/// What everybody may do.
impl<T: Send + 'static> HwQueue<T> {
    /// Changes the dispatch list, and makes its counts visible before the lock is let go.
    fn change<R>(&self, with: impl FnOnce(&mut Parked<T>) -> R) -> R {
        let mut parked = self.parked.lock();
        let result = with(&mut parked);
        self.gate.publish(parked.counts());
        result
    }

    /// Hot side of P2: the caller has published what it has for the owner.
    fn kick_if_due(&self) {
        if self.gate.must_run() {
            self.kick_owner();
        }
    }

    fn kick_owner(&self) {
        if self.gate.claim_kick() {
            self.kick.kick();
        }
    }

    fn submit(&self, payload: T) {
        let refused = self.change(|parked| parked.wait(payload));
        match refused {
            Some(payload) => self.completer.complete(payload, Err(ErrorKind::Closed)),
            None => self.kick_if_due(),
        }
    }

    pub(crate) fn waker(self: &Arc<Self>, tag: Tag) -> &Waker {
        self.wakers.of(tag, || {
            Waker::from(Arc::new(Seat {
                queue: Arc::downgrade(self),
                tag,
            }))
        })
    }

    /// Parks an admitted request. It is listed before it leaves flight, so it is always in one of
    /// the two counts, and the owner may hand it out again before this call returns.
    pub(crate) fn park(&self, tag: Tag, held: Held<T>) {
        let reason = held.reason;
        if let Some(held) = self.change(|parked| parked.hold(tag, held)) {
            // The owner is gone, and nobody would ever hand it out.
            self.complete(tag, held.payload, Err(self.closing_error()));
            return;
        }
        if reason != ParkReason::Sync {
            self.leave_flight();
        }
        // Pairs with a cancel as well as with unquiesce: P2.
        self.kick_if_due();
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

    /// The end of a request in flight, once its completion is with the transport.
    #[inline]
    pub(crate) fn release(&self, tag: Tag) {
        self.tags.put(tag);
        self.leave_flight();
        // Completing side of P3: who waits for a tag is published, or finds this one.
        if self.gate.has_pending() {
            self.kick_owner();
        }
    }

    /// Completing side of P3: who waits for a drain has set the flag, or sees the count.
    #[inline]
    fn leave_flight(&self) {
        self.gate.leave();
        if self.gate.flags() != 0 {
            self.device.progress();
        }
    }

    fn closing_error(&self) -> ErrorKind {
        self.device.cancel_error().unwrap_or(ErrorKind::Closed)
    }
}

/// What only the owner does.
impl<T: Send + 'static> HwQueue<T> {
    fn admit(self: &Arc<Self>, payload: T) -> Admission<T> {
        if self.gate.line_ahead() {
            // Somebody may wait at the gate: go behind, and let the run sort it out.
            return self.wait(payload);
        }
        match self.gate.enter() {
            Enter::In { ticket } => match self.tags.take() {
                Some(tag) => {
                    let queue = Arc::clone(self);
                    return Admission::Run(AdmittedRequest::new(queue, tag, payload, ticket, None));
                }
                None => self.leave_flight(),
            },
            Enter::Shut { counted: true, .. } => self.leave_flight(),
            Enter::Shut { counted: false, .. } => {}
        }
        self.wait(payload)
    }

    /// Puts a request at the end of the dispatch list. Whatever ends its wait sees it there, or
    /// is seen here: for the gate that is P2, for a tag P3.
    fn wait(&self, payload: T) -> Admission<T> {
        if self.gate.flags() & CANCELLED != 0
            && let Some(error) = self.device.cancel_error()
        {
            self.completer.complete(payload, Err(error));
            return Admission::Refused;
        }
        let refused = self.change(|parked| parked.wait(payload));
        debug_assert!(refused.is_none(), "the owner is here");
        if canary::active!("wait_for_tag_without_second_look") {
            return Admission::Parked;
        }
        self.gate.meet_completers();
        // With the gate open and no tag free, a completion will kick; a kick now would only make
        // the owner spin.
        if self.tags.any_free() || self.gate.flags() != 0 {
            self.kick_if_due();
        }
        Admission::Parked
    }

    fn run(self: &Arc<Self>, mut go: impl FnMut(AdmittedRequest<T>)) -> usize {
        let late = canary::active!("kick_answered_after_the_look");
        if !late {
            self.gate.answer_kick();
        }
        let must_run = self.gate.must_run();
        if late {
            self.gate.answer_kick();
        }
        if !must_run {
            return 0;
        }
        // A pass is bounded: requests that park again at once cannot keep the owner here.
        let pass_max = self.parked.lock().len();
        let mut ran = 0;
        while ran < pass_max
            && let Some((tag, held)) = self.change(Parked::next_synced)
        {
            go(self.resume(tag, held));
            ran += 1;
        }
        while ran < pass_max {
            match self.gate.enter() {
                Enter::In { ticket } => {
                    let Some(request) = self.next(ticket) else {
                        self.leave_flight();
                        return ran;
                    };
                    go(request);
                    ran += 1;
                }
                Enter::Shut { cancelled, counted } => {
                    if counted {
                        self.leave_flight();
                    }
                    return if cancelled {
                        ran + self.finish_cancelled()
                    } else {
                        ran
                    };
                }
            }
        }
        self.kick_if_due();
        ran
    }

    /// The next request that may go on. The caller has counted itself in for it.
    fn next(self: &Arc<Self>, ticket: u64) -> Option<AdmittedRequest<T>> {
        let (tag, held) = self.change(|parked| {
            parked
                .next_held()
                .or_else(|| parked.next_waiting(ticket, || self.take_tag()))
        })?;
        Some(self.resume(tag, held))
    }

    fn resume(self: &Arc<Self>, tag: Tag, held: Held<T>) -> AdmittedRequest<T> {
        AdmittedRequest::new(Arc::clone(self), tag, held.payload, held.ticket, held.since)
    }

    /// A tag for a request that is published in the dispatch list. Waiting side of P3: if there
    /// is none even after the step on `finished`, whoever gives one back later sees the request.
    fn take_tag(&self) -> Option<Tag> {
        let once = canary::active!("run_without_second_look_for_a_tag");
        self.tags.take().or_else(|| {
            if once {
                return None;
            }
            self.gate.meet_completers();
            self.tags.take()
        })
    }

    /// Completes what is parked on a cancelled device. The flag is read under the list's lock:
    /// a request that arrived after a re-arm is in the list only if the flag is seen cleared.
    fn finish_cancelled(&self) -> usize {
        let drained = self.change(|parked| {
            let cancelled = self.gate.flags() & CANCELLED != 0;
            let error = self.device.cancel_error().filter(|_| cancelled)?;
            Some((parked.drain_cancelled(), error))
        });
        drained.map_or(0, |(drained, error)| self.finish_parked(drained, error))
    }

    fn expire(&self, now: Duration) -> usize {
        let Some(limit) = self.device.park_timeout() else {
            return 0;
        };
        let drained = self.change(|parked| parked.drain_expired(now, limit));
        let count = self.finish_parked(drained, ErrorKind::TimedOut);
        if count > 0 {
            self.kick_if_due();
        }
        count
    }

    /// Completes requests that were taken out of the list and are not in flight.
    fn finish_parked(&self, (waiting, held): Drained<T>, error: ErrorKind) -> usize {
        let count = waiting.len() + held.len();
        for (tag, one) in held {
            self.completer.complete(one.payload, Err(error));
            self.tags.put(tag);
        }
        for one in waiting {
            self.completer.complete(one.payload, Err(error));
        }
        count
    }

    fn retire(&self) {
        let error = self.closing_error();
        let (drained, syncs) = self.change(|parked| (parked.retire(), parked.drain_syncs()));
        self.finish_parked(drained, error);
        for (tag, one) in syncs {
            self.complete(tag, one.payload, Err(error));
        }
    }
}

impl<T: Send + 'static> Member for HwQueue<T> {
    fn gate(&self) -> &Gate {
        &self.gate
    }

    fn kick_if_listed(&self) {
        if self.gate.has_pending() {
            self.kick_owner();
        }
    }

    fn load(&self) -> QueueLoad {
        let parked = self.parked.lock();
        let idle: Vec<Tag> = parked.idle_tags().collect();
        let counts = parked.counts();
        drop(parked);
        let mut tags = self.tags.taken();
        tags.retain(|tag| !idle.contains(tag));
        QueueLoad {
            queue: self.id,
            in_flight: self.gate.in_flight(),
            tags,
            parked: counts.parked as usize,
        }
    }
}

/// The owner's end of a hardware queue. It can be sent to its thread, and stays there.
///
/// Dropped, it completes what is parked with the device's error, or [`ErrorKind::Closed`].
/// Requests in flight stay with whoever has them.
pub struct Queue<T: Send + 'static> {
    inner: Arc<HwQueue<T>>,
}

impl<T: Send + 'static> Queue<T> {
    pub(crate) fn new(
        id: u32,
        device: Arc<Device>,
        depth: u16,
        completer: Arc<dyn Completer<T>>,
        kick: Arc<dyn Kick>,
    ) -> Queue<T> {
        let tags = TagSet::new(depth);
        let inner = Arc::new(HwQueue {
            id,
            gate: Gate::new(device.barrier()),
            device,
            wakers: Wakers::new(tags.depth()),
            tags,
            parked: SmallLock::new("dispatch list", Parked::new()),
            completer,
            kick,
        });
        Queue { inner }
    }

    pub(crate) fn member(&self) -> Arc<dyn Member> {
        let member: Arc<HwQueue<T>> = Arc::clone(&self.inner);
        member
    }

    /// What everybody else holds.
    pub fn handle(&self) -> QueueHandle<T> {
        QueueHandle {
            inner: Arc::clone(&self.inner),
        }
    }

    /// Brings a request to the gate. Nobody overtakes a request that waits there.
    #[inline]
    pub fn admit(&mut self, payload: T) -> Admission<T> {
        self.inner.admit(payload)
    }

    /// Hands out what can go on: woken requests, then those at the gate, in order. Call it after
    /// a kick, and whenever it is convenient; it costs two looks when there is nothing to do.
    /// Answers how many requests it handed out or, on a cancelled device, completed.
    pub fn run(&mut self, go: impl FnMut(AdmittedRequest<T>)) -> usize {
        self.inner.run(go)
    }

    /// Completes with [`ErrorKind::TimedOut`] what has been parked longer than the device allows,
    /// and answers how many. `now` is the time since any fixed moment; a request's clock starts
    /// with the first call that finds it parked. Does nothing if the device sets no limit.
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

/// A hardware queue as everybody but its owner sees it.
pub struct QueueHandle<T: Send + 'static> {
    inner: Arc<HwQueue<T>>,
}

impl<T: Send + 'static> QueueHandle<T> {
    /// Puts a request into the dispatch list and kicks the owner, from any thread. On a queue
    /// whose owner is gone it completes with [`ErrorKind::Closed`].
    pub fn submit(&self, payload: T) {
        self.inner.submit(payload);
    }

    /// "Must this queue run?", without a lock. See the crate's notes on pairing P2.
    #[inline]
    pub fn must_run(&self) -> bool {
        self.inner.gate.must_run()
    }

    /// The first half of [`QueueHandle::must_run`]: one look, without the barrier. A hint only.
    #[inline]
    pub fn has_pending(&self) -> bool {
        self.inner.gate.has_pending()
    }

    /// How many requests are in flight now.
    pub fn in_flight(&self) -> u64 {
        self.inner.gate.in_flight()
    }

    /// What the queue holds, for reports.
    pub fn load(&self) -> QueueLoad {
        Member::load(&*self.inner)
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
