//! Devices and queues driven step by step, and the model they are compared with.
//!
//! The model knows each request by its number and keeps it in exactly one place. It never looks
//! into the queues; it hears of them through the transport's own interfaces.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::task::Waker;
use std::time::Duration;

use blkmq::error::ErrorKind;
use blkmq::{
    Admission, AdmittedRequest, CancelWork, Device, DeviceOptions, ParkReason, Queue, QuiesceGuard,
};

use super::doubles::{Outcome, PostedWork, Random, Transport};
use super::queue_model::{Id, QueueModel};

const PARK_TIMEOUT: Duration = Duration::from_secs(30);
const QUEUES_MAX: usize = 3;

/// How often each kind of event happened.
#[derive(Debug, Default)]
pub(crate) struct EventCounts(BTreeMap<&'static str, u64>);

impl EventCounts {
    const KINDS: [&'static str; 15] = [
        "admitted",
        "parked at the gate",
        "refused",
        "run from the gate",
        "run after a fetch",
        "run after space",
        "run after a sync",
        "completed",
        "dropped",
        "cancelled",
        "timed out",
        "quiesced",
        "rearmed",
        "queue removed",
        "device removed",
    ];

    fn count(&mut self, kind: &'static str) {
        debug_assert!(EventCounts::KINDS.contains(&kind), "{kind} is on the list");
        *self.0.entry(kind).or_default() += 1;
    }

    pub(crate) fn missing(&self) -> Vec<&'static str> {
        EventCounts::KINDS
            .into_iter()
            .filter(|kind| !self.0.contains_key(kind))
            .collect()
    }
}

struct QueueUnderTest {
    queue: Queue<Id>,
    transport: Arc<Transport>,
    model: QueueModel,
    /// Requests in flight that somebody has in hand.
    admitted: Vec<AdmittedRequest<Id>>,
    /// Wakers that the engine may still use, rightly or not.
    wakers: VecDeque<(u16, Waker)>,
}

pub(crate) struct World {
    device: Arc<Device>,
    control: Arc<PostedWork>,
    queues: Vec<QueueUnderTest>,
    guards: Vec<QuiesceGuard>,
    cancelled: Option<ErrorKind>,
    removed: bool,
    cancel_posted: bool,
    grace_periods: u64,
    dropped: u64,
    now: Duration,
    next_id: Id,
    events: EventCounts,
}

fn make_device() -> (Arc<Device>, Arc<PostedWork>) {
    let control = Arc::new(PostedWork::default());
    let options = DeviceOptions {
        park_timeout: Some(PARK_TIMEOUT),
        control: Some(Arc::clone(&control) as _),
        ..Default::default()
    };
    (Device::new("under test", options), control)
}

impl World {
    pub(crate) fn new() -> World {
        let (device, control) = make_device();
        World {
            device,
            control,
            queues: Vec::new(),
            guards: Vec::new(),
            cancelled: None,
            removed: false,
            cancel_posted: false,
            grace_periods: 0,
            dropped: 0,
            now: Duration::ZERO,
            next_id: 0,
            events: EventCounts::default(),
        }
    }

    /// One step: what, and to whom, is in `choice`.
    pub(crate) fn step(&mut self, choice: u64) {
        let mut random = Random(choice);
        let what = random.below(1000);
        if self.queues.is_empty() {
            return self.add_queue(&mut random);
        }
        let which = random.below(self.queues.len());
        match what {
            0..220 => self.admit(which, &mut random),
            220..300 => self.submit(which),
            300..600 => self.advance_admitted(which, &mut random),
            600..720 => self.wake(which, &mut random),
            720..920 => self.run(which, &mut random),
            920..932 => self.quiesce(),
            932..970 => self.unquiesce(&mut random),
            970..973 => self.cancel(&mut random),
            973..985 => self.rearm(),
            985..990 => self.expire(which, &mut random),
            990..994 => self.add_queue(&mut random),
            994..997 => self.remove_queue(which),
            997..998 => self.remove_device(),
            _ => self.compare_counts(),
        }
        self.check();
    }

    /// Completes everything, and says what was seen.
    pub(crate) fn finish(mut self) -> EventCounts {
        self.remove_device();
        self.check();
        self.events
    }

    fn add_queue(&mut self, random: &mut Random) {
        if self.queues.len() == QUEUES_MAX {
            return;
        }
        let depth = if random.one_in(8) {
            70
        } else {
            1 + random.below(4) as u16
        };
        let transport = Arc::new(Transport::default());
        let queue = self.device.add_queue(
            depth,
            Arc::clone(&transport) as _,
            Arc::clone(&transport) as _,
        );
        let model = QueueModel {
            depth: depth.into(),
            ..Default::default()
        };
        let (admitted, wakers) = (Vec::new(), VecDeque::new());
        self.queues.push(QueueUnderTest {
            queue,
            transport,
            model,
            admitted,
            wakers,
        });
    }

    fn fresh_id(&mut self) -> Id {
        self.next_id += 1;
        self.next_id
    }

    fn admit(&mut self, which: usize, random: &mut Random) {
        let id = self.fresh_id();
        let shut = !self.guards.is_empty() || self.cancelled.is_some();
        let q = &mut self.queues[which];
        match q.queue.admit(id) {
            Admission::Run(request) => {
                assert!(!shut, "{id} was admitted through a shut gate");
                assert!(
                    q.model.waiting.is_empty(),
                    "{id} overtook a waiting request"
                );
                self.events.count("admitted");
                q.take_request(request, None, random);
            }
            Admission::Parked => {
                self.events.count("parked at the gate");
                assert!(
                    self.cancelled.is_none(),
                    "{id} was parked on a cancelled device"
                );
                q.model.waiting.push_back((id, None));
            }
            Admission::Refused => {
                self.events.count("refused");
                let error = self.cancelled.expect("only a cancelled device refuses");
                assert_eq!(q.take_done(), [(id, Err(error))]);
            }
        }
    }

    fn submit(&mut self, which: usize) {
        let id = self.fresh_id();
        let q = &mut self.queues[which];
        q.queue.handle().submit(id);
        q.model.waiting.push_back((id, None));
    }

    /// Does something with a request in hand.
    fn advance_admitted(&mut self, which: usize, random: &mut Random) {
        let q = &mut self.queues[which];
        if q.admitted.is_empty() {
            return;
        }
        let index = random.below(q.admitted.len());
        let request = q.admitted.swap_remove(index);
        let id = *request.payload();
        match random.below(10) {
            0 => {
                self.dropped += 1;
                self.events.count("dropped");
                q.model.running.remove(&id);
                drop(request);
                assert_eq!(q.take_done(), [(id, Err(ErrorKind::Io))]);
            }
            1..=4 => q.park(request, random),
            5 => {
                q.model.running.remove(&id);
                assert_eq!(request.complete_with(|payload| payload), id);
            }
            _ => {
                self.events.count("completed");
                q.model.running.remove(&id);
                request.complete(Ok(()));
                assert_eq!(q.take_done(), [(id, Ok(()))]);
            }
        }
    }

    fn wake(&mut self, which: usize, random: &mut Random) {
        let q = &mut self.queues[which];
        if q.wakers.is_empty() {
            return;
        }
        let index = random.below(q.wakers.len());
        let (tag, waker) = q.wakers[index].clone();
        if random.one_in(2) {
            q.wakers.remove(index);
        }
        q.model.wake(tag);
        waker.wake();
    }

    fn run(&mut self, which: usize, random: &mut Random) {
        let (quiesced, cancelled) = (!self.guards.is_empty(), self.cancelled);
        let events = &mut self.events;
        let QueueUnderTest {
            queue,
            transport,
            model,
            admitted,
            wakers,
        } = &mut self.queues[which];
        // A pass is bounded, and kicks for what it leaves. On a cancelled device go on until
        // there is nothing more, so that all that was parked is complete.
        loop {
            transport.kicks.store(0, SeqCst);
            queue.run(|request| {
                events.count(model.check_handed_out(&request, quiesced || cancelled.is_some()));
                // Park again at once, as an engine does that has no room yet; or keep it in hand.
                if random.one_in(2) {
                    wakers.push_back((request.tag().number(), request.waker().clone()));
                    let reason =
                        [ParkReason::Space, ParkReason::Fetch, ParkReason::Sync][random.below(3)];
                    model.park(&request, reason);
                    request.park(reason);
                } else {
                    admitted.push(request);
                }
            });
            model.close_space_after_probe();
            if cancelled.is_none() || transport.kicks.load(SeqCst) == 0 {
                break;
            }
        }
        if let Some(error) = cancelled {
            self.expect_parked_done(which, error, "cancelled");
        }
    }

    /// Everything that was parked, but for syncs, is complete with this error.
    fn expect_parked_done(&mut self, which: usize, error: ErrorKind, kind: &'static str) {
        let q = &mut self.queues[which];
        let mut expected: Vec<Id> = q.model.waiting.drain(..).map(|(id, _)| id).collect();
        q.model.parked.retain(|id, parked| {
            let kept = parked.reason == ParkReason::Sync;
            if !kept {
                expected.push(*id);
            }
            kept
        });
        q.model.space_open = false;
        self.expect_done(which, expected, error, kind);
    }

    fn expect_done(&mut self, which: usize, ids: Vec<Id>, error: ErrorKind, kind: &'static str) {
        let mut done = self.queues[which].take_done();
        let mut expected: Vec<_> = ids.into_iter().map(|id| (id, Err(error))).collect();
        done.sort_by_key(|(id, _)| *id);
        expected.sort_by_key(|(id, _)| *id);
        assert_eq!(done, expected, "completed by {kind}");
        done.iter().for_each(|_| self.events.count(kind));
    }

    fn quiesce(&mut self) {
        if self.guards.is_empty() {
            self.grace_periods += 1;
        }
        self.events.count("quiesced");
        self.guards.push(self.device.quiesce());
    }

    fn unquiesce(&mut self, random: &mut Random) {
        if !self.guards.is_empty() {
            let index = random.below(self.guards.len());
            drop(self.guards.swap_remove(index));
        }
    }

    fn cancel(&mut self, random: &mut Random) {
        let error = [ErrorKind::Closed, ErrorKind::Fenced][random.below(2)];
        let applies = self.cancelled.is_none() && !self.removed;
        if random.one_in(2) {
            assert_eq!(self.device.request_cancel(error), !self.cancel_posted);
            let posted = std::mem::take(&mut *self.control.0.lock().unwrap());
            assert_eq!(posted.len(), usize::from(!self.cancel_posted));
            posted.into_iter().for_each(CancelWork::run);
        } else {
            assert_eq!(self.device.cancel(error), applies);
        }
        if applies {
            self.cancel_posted = true;
            self.cancelled = Some(error);
            self.grace_periods += 1;
        }
    }

    fn rearm(&mut self) {
        let applies = self.cancelled.is_some() && !self.removed;
        assert_eq!(self.device.rearm(), applies);
        if applies {
            self.cancelled = None;
            self.cancel_posted = false;
            self.events.count("rearmed");
        }
    }

    fn expire(&mut self, which: usize, random: &mut Random) {
        self.now += Duration::from_secs(random.below(20) as u64);
        let now = self.now;
        let q = &mut self.queues[which];
        q.queue.expire(now);
        let due = |since: &mut Option<Duration>| now - *since.get_or_insert(now) >= PARK_TIMEOUT;
        let mut expected = Vec::new();
        q.model.waiting.retain_mut(|(id, since)| {
            let due = due(since);
            expected.extend(due.then_some(*id));
            !due
        });
        let mut reopen = false;
        q.model.parked.retain(|id, parked| {
            let due = parked.reason != ParkReason::Sync && due(&mut parked.since);
            expected.extend(due.then_some(*id));
            reopen |= due && parked.reason == ParkReason::Space;
            !due
        });
        if reopen {
            q.model.open_space();
        }
        self.expect_done(which, expected, ErrorKind::TimedOut, "timed out");
    }

    fn remove_queue(&mut self, which: usize) {
        let error = self.cancelled.unwrap_or(ErrorKind::Closed);
        let mut q = self.queues.swap_remove(which);
        let mut expected: Vec<Id> = q.model.waiting.drain(..).map(|(id, _)| id).collect();
        expected.extend(std::mem::take(&mut q.model.parked).into_keys());
        expected.sort_unstable();
        let handle = q.queue.handle();
        drop(q.queue);
        let mut done = std::mem::take(&mut *q.transport.done.lock().unwrap());
        done.sort_by_key(|(id, _)| *id);
        let expected: Vec<_> = expected.into_iter().map(|id| (id, Err(error))).collect();
        assert_eq!(done, expected, "completed when its queue went");
        // What is in flight outlives the owner's end, and completes or parks with an answer.
        for (n, request) in q.admitted.drain(..).enumerate() {
            let id = *request.payload();
            let expected = if n % 2 == 0 { Ok(()) } else { Err(error) };
            match expected {
                Ok(()) => request.complete(Ok(())),
                Err(_) => request.park(ParkReason::Fetch),
            }
            let done = std::mem::take(&mut *q.transport.done.lock().unwrap());
            assert_eq!(done, [(id, expected)]);
        }
        assert_eq!(handle.in_flight(), 0);
        q.wakers.into_iter().for_each(|(_, waker)| waker.wake());
        self.events.count("queue removed");
    }

    fn remove_device(&mut self) {
        if self.cancelled.is_none() {
            self.grace_periods += 1;
            self.cancelled = Some(ErrorKind::Closed);
        }
        self.device.remove();
        assert!(
            !self.device.cancel(ErrorKind::Io) && !self.device.rearm(),
            "it is gone"
        );
        self.compare_counts();
        for which in (0..self.queues.len()).rev() {
            self.remove_queue(which);
        }
        self.guards.clear();
        let fresh = World::new();
        self.device = fresh.device;
        self.control = fresh.control;
        (self.cancelled, self.removed, self.cancel_posted) = (None, false, false);
        (self.grace_periods, self.dropped) = (0, 0);
        self.events.count("device removed");
    }

    /// The device's own figures against the model's.
    fn compare_counts(&self) {
        let counts = self.device.counts();
        assert_eq!(
            counts.grace_periods, self.grace_periods,
            "one per quiesce and per cancel"
        );
        assert_eq!(counts.dropped, self.dropped);
        for q in &self.queues {
            let load = q.queue.handle().load();
            assert_eq!(load.in_flight, q.model.in_flight() as u64);
            assert_eq!(
                load.tags.len(),
                q.model.in_flight(),
                "the report names what is in flight"
            );
            let syncs = q
                .model
                .parked
                .values()
                .filter(|parked| parked.reason == ParkReason::Sync)
                .count();
            assert_eq!(
                load.parked,
                q.model.waiting.len() + q.model.parked.len() - syncs
            );
        }
        if let Some(guard) = self.guards.first() {
            // A guard knows the queues that were there when it was made; the rest never opened.
            let drained = self.queues.iter().all(|q| q.model.in_flight() == 0);
            assert!(
                !drained || guard.is_drained(),
                "{:?}",
                guard.still_in_flight()
            );
        }
    }

    /// Nothing is complete that the step did not expect, and each owner that has something to do is kicked.
    fn check(&self) {
        let (quiesced, cancelled) = (!self.guards.is_empty(), self.cancelled.is_some());
        for q in &self.queues {
            assert!(
                q.transport.done.lock().unwrap().is_empty(),
                "an unexpected completion"
            );
            assert_eq!(q.queue.handle().invariants(), Ok(()));
            let due = q.model.must_run(quiesced, cancelled);
            let kicked = q.transport.kicks.load(SeqCst) > 0;
            assert!(
                !due || kicked,
                "something can run, and nobody kicked the owner: {:?}, {:?}",
                q.model,
                q.queue.handle().load(),
            );
        }
    }
}

impl QueueUnderTest {
    fn take_done(&self) -> Vec<(Id, Outcome)> {
        std::mem::take(&mut *self.transport.done.lock().unwrap())
    }

    fn take_request(
        &mut self,
        request: AdmittedRequest<Id>,
        since: Option<Duration>,
        random: &mut Random,
    ) {
        let order = self.model.admissions;
        self.model.admissions += 1;
        self.model
            .running
            .insert(*request.payload(), (order, since));
        if random.one_in(2) {
            self.wakers
                .push_back((request.tag().number(), request.waker().clone()));
            self.wakers.truncate(8);
        }
        self.admitted.push(request);
    }

    fn park(&mut self, request: AdmittedRequest<Id>, random: &mut Random) {
        let reason = [ParkReason::Space, ParkReason::Fetch, ParkReason::Sync][random.below(3)];
        self.wakers
            .push_back((request.tag().number(), request.waker().clone()));
        self.model.park(&request, reason);
        request.park(reason);
    }
}
