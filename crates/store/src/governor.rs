//! How many requests run at once: additive increase, multiplicative decrease, foreground first.
//!
//! Three classes have a window each: fetches (somebody waits), uploads, and gc (deletes and lists).
//! A window grows by one per round of requests while it is full and all goes well, and is halved
//! when the store says that it has too much to do (429, 503, silence), at most once per round. A
//! sign of overload halves the lower classes, too: they make room for those above. While a class
//! waits for its window, the classes below it run no more than a few requests. Small conditional
//! writes are commits and pass freely: they are few, and everything waits for them.
//!
//! It must never starve a class: each has a floor of one. It holds its lock for memory work alone.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use bytes::Bytes;
use tokio::sync::oneshot;

use crate::{Error, Op, Result, Store, Version};

/// Whose request it is, the most urgent first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// A read that a client waits for.
    Fetch,
    /// A pack on its way to the store.
    Upload,
    /// Garbage collection.
    Gc,
}

impl Class {
    /// All classes, the most urgent first.
    pub const ALL: [Class; 3] = [Class::Fetch, Class::Upload, Class::Gc];

    /// The class of an operation; `None` passes freely.
    fn of(op: Op) -> Option<Class> {
        match op {
            Op::Get | Op::GetRange => Some(Class::Fetch),
            Op::Put => Some(Class::Upload),
            Op::Delete | Op::List => Some(Class::Gc),
            Op::Create | Op::Update | Op::Open | Op::Probe => None,
        }
    }

    fn index(self) -> usize {
        match self {
            Class::Fetch => 0,
            Class::Upload => 1,
            Class::Gc => 2,
        }
    }
}

/// Bounds of the window of one class.
#[derive(Clone, Copy, Debug)]
pub struct WindowBounds {
    /// What it starts with.
    pub first: f64,
    /// What it grows to.
    pub max: f64,
    /// How many it may run while a class above waits.
    pub beside: f64,
}

/// Bounds of all classes, in the order of [`Class::ALL`].
#[derive(Clone, Copy, Debug)]
pub struct GovernorPolicy {
    /// The bounds.
    pub windows: [WindowBounds; 3],
}

impl Default for GovernorPolicy {
    /// Starts with what any service bears. 64 fetches of 128 KiB at 30 ms fill 2 Gbit/s, 32 packs
    /// under way more than any host compresses.
    fn default() -> Self {
        let window = |first, max, beside| WindowBounds { first, max, beside };
        GovernorPolicy {
            windows: [
                window(32.0, 128.0, 128.0),
                window(8.0, 32.0, 2.0),
                window(4.0, 16.0, 1.0),
            ],
        }
    }
}

/// Decides when a request may start. Shared by [`GovernedStore`], which asks, and
/// [`crate::RetryStore`], which reports how attempts went.
#[derive(Debug)]
pub struct Governor {
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    windows: [Window; 3],
}

#[derive(Debug)]
struct Window {
    bounds: WindowBounds,
    size: f64,
    running: u32,
    waiting: VecDeque<oneshot::Sender<Permit>>,
    /// Attempts that must end before the window is halved again: they began before it was.
    cooling: u32,
}

/// The right to run one request; gives it back when dropped.
#[derive(Debug)]
pub struct Permit {
    governor: Arc<Governor>,
    class: Class,
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.governor.lock().windows[self.class.index()].running -= 1;
        self.governor.admit_waiting();
    }
}

impl Governor {
    /// A governor with these bounds.
    pub fn new(policy: GovernorPolicy) -> Arc<Self> {
        let windows = policy.windows.map(|bounds| Window {
            bounds,
            size: bounds.first,
            running: 0,
            waiting: VecDeque::new(),
            cooling: 0,
        });
        Arc::new(Governor {
            state: Mutex::new(State { windows }),
        })
    }

    /// How many requests of `class` may run at once now.
    pub fn window(&self, class: Class) -> f64 {
        self.lock().windows[class.index()].size
    }

    /// Waits until a request of `class` may start.
    pub async fn admit(self: &Arc<Self>, class: Class) -> Permit {
        let (sender, admitted) = oneshot::channel();
        self.lock().windows[class.index()].waiting.push_back(sender);
        self.admit_waiting();
        match admitted.await {
            Ok(permit) => permit,
            // Senders leave the queue only with a permit.
            Err(_) => unreachable!("the queue dropped a waiter"),
        }
    }

    /// Reports how one attempt of a request went.
    pub fn report(self: &Arc<Self>, op: Op, error: Option<&Error>) {
        let class = Class::of(op);
        {
            let mut state = self.lock();
            match (error, class) {
                (Some(error), _) if error.is_overload() => {
                    // Commits have no window; packs and gc make room for them.
                    let first = class.unwrap_or(Class::Upload).index();
                    for window in &mut state.windows[first..] {
                        window.shrink();
                    }
                }
                (Some(_), Some(class)) => state.windows[class.index()].end_cooling(),
                (None, Some(class)) => state.windows[class.index()].grow(),
                (_, None) => {}
            }
        }
        self.admit_waiting();
    }

    fn admit_waiting(self: &Arc<Self>) {
        loop {
            let Some((sender, class)) = self.lock().next_admitted() else {
                return;
            };
            let permit = Permit {
                governor: Arc::clone(self),
                class,
            };
            // Outside of the lock: a waiter that has gone gives the permit back by dropping it.
            drop(sender.send(permit));
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// The most urgent waiter whose class has room; it counts as running from here on.
    fn next_admitted(&mut self) -> Option<(oneshot::Sender<Permit>, Class)> {
        let mut waits_above = false;
        for class in Class::ALL {
            let window = &mut self.windows[class.index()];
            while window
                .waiting
                .front()
                .is_some_and(oneshot::Sender::is_closed)
            {
                window.waiting.pop_front();
            }
            if window.waiting.is_empty() {
                continue;
            }
            let limit = if waits_above {
                window.size.min(window.bounds.beside)
            } else {
                window.size
            };
            if f64::from(window.running) + 1.0 <= limit.max(1.0) {
                window.running += 1;
                return window.waiting.pop_front().map(|sender| (sender, class));
            }
            waits_above = true;
        }
        None
    }
}

impl Window {
    fn grow(&mut self) {
        self.end_cooling();
        // A window that is not used says nothing about what the store bears.
        if f64::from(self.running) + 1.0 > self.size {
            self.size = (self.size + 1.0 / self.size).min(self.bounds.max);
        }
    }

    fn shrink(&mut self) {
        if self.cooling > 0 {
            self.end_cooling();
            return;
        }
        self.size = (self.size / 2.0).max(1.0);
        self.cooling = self.running;
    }

    fn end_cooling(&mut self) {
        self.cooling = self.cooling.saturating_sub(1);
    }
}

/// A [`Store`] whose requests start when a [`Governor`] admits them.
#[derive(Debug)]
pub struct GovernedStore<S> {
    inner: S,
    governor: Arc<Governor>,
}

impl<S: Store> GovernedStore<S> {
    /// Wraps `inner`.
    pub fn new(inner: S, governor: Arc<Governor>) -> Self {
        GovernedStore { inner, governor }
    }

    async fn admit(&self, op: Op) -> Option<Permit> {
        Some(self.governor.admit(Class::of(op)?).await)
    }
}

#[async_trait]
impl<S: Store> Store for GovernedStore<S> {
    async fn get(&self, key: &str) -> Result<(Bytes, Version)> {
        let _permit = self.admit(Op::Get).await;
        self.inner.get(key).await
    }

    async fn get_range(&self, key: &str, offset: u64, len: u64) -> Result<Bytes> {
        let _permit = self.admit(Op::GetRange).await;
        self.inner.get_range(key, offset, len).await
    }

    async fn put(&self, key: &str, bytes: Bytes) -> Result<Version> {
        let _permit = self.admit(Op::Put).await;
        self.inner.put(key, bytes).await
    }

    async fn create(&self, key: &str, bytes: Bytes) -> Result<Version> {
        let _permit = self.admit(Op::Create).await;
        self.inner.create(key, bytes).await
    }

    async fn update(&self, key: &str, bytes: Bytes, version: &Version) -> Result<Version> {
        let _permit = self.admit(Op::Update).await;
        self.inner.update(key, bytes, version).await
    }

    async fn delete(&self, key: &str) -> Result<()> {
        let _permit = self.admit(Op::Delete).await;
        self.inner.delete(key).await
    }

    async fn list(&self, prefix: &str) -> Result<Vec<(String, u64)>> {
        let _permit = self.admit(Op::List).await;
        self.inner.list(prefix).await
    }

    async fn list_part(
        &self,
        prefix: &str,
        after: &str,
        limit: usize,
    ) -> Result<Vec<(String, u64)>> {
        let _permit = self.admit(Op::List).await;
        self.inner.list_part(prefix, after, limit).await
    }

    fn name(&self) -> String {
        self.inner.name()
    }

    fn describe_hazard(&self) -> Option<String> {
        self.inner.describe_hazard()
    }

    fn set_bare_tags(&self, bare: bool) -> bool {
        self.inner.set_bare_tags(bare)
    }
}
