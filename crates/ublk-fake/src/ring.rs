//! A reactor without a thread: sources submit to it; the test drives it and sees what completes,
//! in an order that a seed decides.
//!
//! Commands go to the [`Driver`]; reads and writes of its character devices to their window;
//! every other file is a real one (tests use memory files). Nothing is submitted before
//! [`Ring::turn`], as nothing is before a real ring is entered.

mod execute;
mod port;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Wake;
use std::time::Duration;

use reactor::{Buf, BufferPool, BufferPurpose, Completion, FileIndex, Op, Port, Token};

use crate::device::{RingId, TaskId};
use crate::driver::Driver;

/// Identifies a source on a ring.
pub type SourceKey = usize;

/// An event for a source.
#[derive(Debug)]
pub enum Event {
    /// An operation completed.
    Completed(Token, Completion),
    /// A waker was called, with its key.
    Wake(u64),
    /// The turn that was asked for.
    Turn,
}

/// Faults that a ring injects, each into so many of 256 operations.
#[derive(Clone, Copy, Debug, Default)]
pub struct RingFaults {
    /// File operations that fail with EIO.
    pub errors: u8,
    /// Operations that complete some turns late.
    pub delayed: u8,
    /// Requests for a buffer that have to wait.
    pub pool_empty: u8,
}

#[derive(Debug)]
struct InFlight {
    source: SourceKey,
    token: Token,
    op: Option<Op>,
    /// Its number, if it is an armed command.
    armed: Option<u32>,
    /// Turns until it is begun.
    delay: u32,
}

/// A completion on its way to its source.
#[derive(Debug)]
struct Delivery {
    source: SourceKey,
    token: Token,
    completion: Completion,
}

/// A source that waits for a buffer.
#[derive(Debug)]
struct BufferWaiter {
    source: SourceKey,
    token: Token,
    len: usize,
    need: BufferPurpose,
}

#[derive(Debug, Default)]
struct SourceState {
    turn: bool,
    detached: bool,
    files: Vec<FileIndex>,
    slots: Vec<u16>,
}

type Wakes = Arc<Mutex<Vec<(SourceKey, u64)>>>;

struct WakeKey {
    wakes: Wakes,
    source: SourceKey,
    key: u64,
}

impl Wake for WakeKey {
    fn wake(self: Arc<Self>) {
        let mut wakes = self.wakes.lock().unwrap_or_else(PoisonError::into_inner);
        wakes.push((self.source, self.key));
    }
}

/// A double of a reactor's ring.
#[derive(Debug)]
pub struct Ring {
    driver: Driver,
    id: RingId,
    faults: RingFaults,
    random: fastrand::Rng,
    files: Vec<Option<Arc<OwnedFd>>>,
    ops: BTreeMap<u64, InFlight>,
    next: u64,
    /// Submitted and not handed over yet, in order.
    queued: VecDeque<u64>,
    /// Buffers to keep until the queued operations are handed over.
    held_buffers: Vec<Buf>,
    timers: Vec<(Duration, u64)>,
    now: Duration,
    ready: Vec<Delivery>,
    pool: BufferPool,
    buffer_waiters: VecDeque<BufferWaiter>,
    slots_free: Vec<u16>,
    sources: Vec<SourceState>,
    wakes: Wakes,
    enters: u64,
}

impl Ring {
    /// A ring of a task, with so many buffer slots and bytes of buffers.
    pub fn new(driver: &Driver, task: TaskId, slots: u16, pool_bytes: usize, seed: u64) -> Ring {
        Ring {
            driver: driver.clone(),
            id: driver.open_ring(task, slots),
            faults: RingFaults::default(),
            random: fastrand::Rng::with_seed(seed),
            files: Vec::new(),
            ops: BTreeMap::new(),
            next: 0,
            queued: VecDeque::new(),
            held_buffers: Vec::new(),
            timers: Vec::new(),
            now: Duration::ZERO,
            ready: Vec::new(),
            pool: BufferPool::new(pool_bytes, 64 << 10).expect("a pool's reserve is small"),
            buffer_waiters: VecDeque::new(),
            slots_free: (0..slots).rev().collect(),
            sources: Vec::new(),
            wakes: Wakes::default(),
            enters: 0,
        }
    }

    /// Sets the faults that it injects from now on.
    pub fn set_faults(&mut self, faults: RingFaults) {
        self.faults = faults;
    }

    /// Attaches a source.
    pub fn attach(&mut self) -> SourceKey {
        self.sources.push(SourceState::default());
        self.sources.len() - 1
    }

    /// A source's view of the ring.
    pub fn port(&mut self, source: SourceKey) -> RingPort<'_> {
        RingPort { ring: self, source }
    }

    /// Whether a source has detached.
    pub fn is_detached(&self, source: SourceKey) -> bool {
        self.sources[source].detached
    }

    /// Times that operations were handed over.
    pub fn enters(&self) -> u64 {
        self.enters
    }

    /// Operations in flight of a source that do not end by the driver's will only.
    pub fn in_flight(&self, source: SourceKey) -> usize {
        let own = |entry: &&InFlight| entry.source == source;
        self.ops
            .values()
            .filter(own)
            .filter(|entry| !entry.is_armed())
            .count()
    }

    /// Hands over what was submitted, and takes what ended. Empty where nothing can end any more
    /// without the driver's clients.
    pub fn turn(&mut self) -> Vec<(SourceKey, Event)> {
        self.enter();
        self.serve_buffer_waiters();
        for (key, raw) in self.driver.completions(self.id) {
            if let Some(entry) = self.ops.remove(&key)
                && let Some(Op::Command(_)) = entry.op
            {
                let end = match entry.armed {
                    Some(number) => Completion::ArmedCommand(number, raw),
                    None => Completion::Command(raw),
                };
                self.deliver(entry.source, entry.token, end);
            }
        }
        self.close_files();
        let mut events = self.events();
        if events.is_empty() {
            self.fire_timer();
            events = self.events();
        }
        events
    }

    /// Closes the files of sources that left, once nothing uses them.
    fn close_files(&mut self) {
        for source in 0..self.sources.len() {
            let used = self.ops.values().any(|entry| entry.source == source);
            if !self.sources[source].detached || used {
                continue;
            }
            for file in std::mem::take(&mut self.sources[source].files) {
                self.port(source).close(file);
            }
        }
    }

    fn events(&mut self) -> Vec<(SourceKey, Event)> {
        let mut events = Vec::new();
        for delivery in std::mem::take(&mut self.ready) {
            let event = Event::Completed(delivery.token, delivery.completion);
            events.push((delivery.source, event));
        }
        for at in (1..events.len()).rev() {
            let other = self.below(at as u64 + 1) as usize;
            events.swap(at, other);
        }
        let woken = std::mem::take(&mut *self.wakes.lock().unwrap_or_else(PoisonError::into_inner));
        events.extend(
            woken
                .into_iter()
                .map(|(source, key)| (source, Event::Wake(key))),
        );
        for (source, state) in self.sources.iter_mut().enumerate() {
            if std::mem::take(&mut state.turn) {
                events.push((source, Event::Turn));
            }
        }
        events.retain(|(source, _)| !self.sources[*source].detached);
        events
    }

    /// Closes the ring, as at its thread's end: what is in flight is gone.
    pub fn close(self) {
        // The driver gives up the memory of the commands before they are dropped.
        self.driver.close_ring(self.id);
        drop(self.ops);
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.random.u64(..bound)
    }

    fn chance(&mut self, share: u8) -> bool {
        share > 0 && self.below(256) < u64::from(share)
    }

    fn enter(&mut self) {
        let mut later = VecDeque::new();
        self.enters += u64::from(!self.queued.is_empty());
        while let Some(key) = self.queued.pop_front() {
            let Some(entry) = self.ops.get_mut(&key) else {
                continue;
            };
            if entry.delay > 0 {
                entry.delay -= 1;
                later.push_back(key);
                continue;
            }
            self.start_op(key);
        }
        self.queued = later;
        self.held_buffers.clear();
    }

    fn complete_op(&mut self, key: u64, how: impl FnOnce(Op) -> Completion) {
        if let Some(mut entry) = self.ops.remove(&key)
            && let Some(op) = entry.op.take()
        {
            self.deliver(entry.source, entry.token, how(op));
        }
    }

    fn deliver(&mut self, source: SourceKey, token: Token, completion: Completion) {
        self.ready.push(Delivery {
            source,
            token,
            completion,
        });
    }

    /// Advances the time to the next timer, when nothing else can happen.
    fn fire_timer(&mut self) {
        let Some(&(due, key)) = self.timers.iter().min() else {
            return;
        };
        self.timers.retain(|timer| *timer != (due, key));
        self.now = self.now.max(due);
        self.complete_op(key, |_| Completion::Timeout(Ok(())));
    }

    /// Lends buffers to the sources that wait, in the order of each source.
    fn serve_buffer_waiters(&mut self) {
        let mut exhausted = BTreeSet::new();
        for waiter in std::mem::take(&mut self.buffer_waiters) {
            let BufferWaiter {
                source,
                token,
                len,
                need,
            } = waiter;
            let lent = match exhausted.contains(&source) {
                true => None,
                false => self.pool.take_for(source as u64, len, need),
            };
            if let Some(buf) = lent {
                self.deliver(source, token, Completion::Buffer(buf));
            } else {
                exhausted.insert(source);
                self.buffer_waiters.push_back(waiter);
            }
        }
    }
}

impl InFlight {
    fn is_armed(&self) -> bool {
        self.armed.is_some()
    }
}

/// A [`Port`] of one source.
#[derive(Debug)]
pub struct RingPort<'a> {
    ring: &'a mut Ring,
    source: SourceKey,
}
