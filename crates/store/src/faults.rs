//! A decorator that fails requests on purpose, drawn from a seed, and counts the faults.
//!
//! For tests. A write's request and its answer are lost independently, as on a network: a fault
//! that loses the answer lets the write happen. Every kind has a counter, so that a test can
//! fail when a fault that it relies on never fired.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;

use crate::{Error, Kind, Op, Result, Store, Version};

/// A probability in thousandths.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rate(pub u32);

/// What goes wrong, how often.
#[derive(Clone, Copy, Debug, Default)]
pub struct FaultPlan {
    /// The request is refused and certainly not applied.
    pub refuse: Rate,
    /// A write is not applied, and the caller is not told.
    pub lose_request: Rate,
    /// A write is applied, and the caller is not told.
    pub lose_answer: Rate,
    /// The request takes longer, up to [`FaultPlan::delay_max`].
    pub delay: Rate,
    /// Longest delay.
    pub delay_max: Duration,
}

/// The kinds of faults, for [`FaultyStore::count`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultKind {
    /// Refused, certainly not applied.
    Refused,
    /// Not applied, outcome unknown.
    LostRequest,
    /// Applied, outcome unknown.
    LostAnswer,
    /// Answered late.
    Delayed,
    /// Refused because of [`FaultyStore::set_outage`].
    Outage,
}

impl FaultKind {
    /// All kinds.
    pub const ALL: [FaultKind; 5] = [
        FaultKind::Refused,
        FaultKind::LostRequest,
        FaultKind::LostAnswer,
        FaultKind::Delayed,
        FaultKind::Outage,
    ];

    fn index(self) -> usize {
        match self {
            FaultKind::Refused => 0,
            FaultKind::LostRequest => 1,
            FaultKind::LostAnswer => 2,
            FaultKind::Delayed => 3,
            FaultKind::Outage => 4,
        }
    }
}

/// A [`Store`] that fails as planned. The same seed and the same order of calls
/// give the same faults.
#[derive(Debug)]
pub struct FaultyStore<S> {
    inner: S,
    plan: FaultPlan,
    rng: Mutex<fastrand::Rng>,
    outage: AtomicBool,
    counts: [AtomicU64; FaultKind::ALL.len()],
}

/// What was decided for one request before it is sent.
struct PlannedFault {
    lose_answer: bool,
}

impl<S: Store> FaultyStore<S> {
    /// Wraps `inner`.
    pub fn new(inner: S, seed: u64, plan: FaultPlan) -> Self {
        FaultyStore {
            inner,
            plan,
            rng: Mutex::new(fastrand::Rng::with_seed(seed)),
            outage: AtomicBool::new(false),
            counts: Default::default(),
        }
    }

    /// Turns an outage on or off: while it lasts every request is refused.
    pub fn set_outage(&self, on: bool) {
        self.outage.store(on, Ordering::SeqCst);
    }

    /// How often this kind fired.
    pub fn count(&self, kind: FaultKind) -> u64 {
        self.counts[kind.index()].load(Ordering::Relaxed)
    }

    fn record(&self, kind: FaultKind) {
        self.counts[kind.index()].fetch_add(1, Ordering::Relaxed);
    }

    fn draw(&self, rate: Rate) -> bool {
        // The lock is held for one draw; a poisoned one still draws.
        let mut rng = self
            .rng
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        rng.u32(0..1000) < rate.0
    }

    fn draw_delay(&self) -> Duration {
        let mut rng = self
            .rng
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        self.plan.delay_max.mul_f64(rng.f64())
    }

    /// Decides what happens to one request before it is sent. All draws are always made, so that
    /// seeds stay comparable.
    async fn before_request(&self, op: Op, key: &str) -> Result<PlannedFault> {
        let refused = self.draw(self.plan.refuse);
        let lose_request = self.draw(self.plan.lose_request) && op.writes();
        let lose_answer = self.draw(self.plan.lose_answer) && op.writes();
        let delayed = self.draw(self.plan.delay);
        let delay = self.draw_delay();
        if delayed {
            self.record(FaultKind::Delayed);
            tokio::time::sleep(delay).await;
        }
        if self.outage.load(Ordering::SeqCst) {
            self.record(FaultKind::Outage);
            return Err(Error::new(Kind::Unavailable, op, key, "planned outage"));
        }
        if refused {
            self.record(FaultKind::Refused);
            return Err(Error::new(Kind::Unavailable, op, key, "planned refusal"));
        }
        if lose_request {
            self.record(FaultKind::LostRequest);
            return Err(Error::new(Kind::Unknown, op, key, "planned loss"));
        }
        Ok(PlannedFault { lose_answer })
    }

    /// Withholds the answer of a request that reached the store, where that was its fate.
    fn after_request<T>(
        &self,
        fate: &PlannedFault,
        op: Op,
        key: &str,
        result: Result<T>,
    ) -> Result<T> {
        if fate.lose_answer {
            self.record(FaultKind::LostAnswer);
            return Err(Error::new(Kind::Unknown, op, key, "planned loss"));
        }
        result
    }
}

#[async_trait]
impl<S: Store> Store for FaultyStore<S> {
    async fn get(&self, key: &str) -> Result<(Bytes, Version)> {
        self.before_request(Op::Get, key).await?;
        self.inner.get(key).await
    }

    async fn get_range(&self, key: &str, offset: u64, len: u64) -> Result<Bytes> {
        self.before_request(Op::GetRange, key).await?;
        self.inner.get_range(key, offset, len).await
    }

    async fn put(&self, key: &str, bytes: Bytes) -> Result<Version> {
        let fate = self.before_request(Op::Put, key).await?;
        let result = self.inner.put(key, bytes).await;
        self.after_request(&fate, Op::Put, key, result)
    }

    async fn create(&self, key: &str, bytes: Bytes) -> Result<Version> {
        let fate = self.before_request(Op::Create, key).await?;
        let result = self.inner.create(key, bytes).await;
        self.after_request(&fate, Op::Create, key, result)
    }

    async fn update(&self, key: &str, bytes: Bytes, version: &Version) -> Result<Version> {
        let fate = self.before_request(Op::Update, key).await?;
        let result = self.inner.update(key, bytes, version).await;
        self.after_request(&fate, Op::Update, key, result)
    }

    async fn delete(&self, key: &str) -> Result<()> {
        let fate = self.before_request(Op::Delete, key).await?;
        let result = self.inner.delete(key).await;
        self.after_request(&fate, Op::Delete, key, result)
    }

    async fn list(&self, prefix: &str) -> Result<Vec<(String, u64)>> {
        self.before_request(Op::List, prefix).await?;
        self.inner.list(prefix).await
    }

    async fn list_part(
        &self,
        prefix: &str,
        after: &str,
        limit: usize,
    ) -> Result<Vec<(String, u64)>> {
        self.before_request(Op::List, prefix).await?;
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
