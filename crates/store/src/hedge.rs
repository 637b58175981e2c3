//! Asks a second time for a read that takes longer than almost all others, and takes the first
//! answer.
//!
//! Only reads, which change nothing: a second write could meet the first. The second request leaves
//! after the 95th percentile of recent reads of about the same size, and only a few percent of all
//! reads get one: a store that is slow as a whole must not be asked twice for everything.

use std::future::Future;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::future::{Either, select};
use tokio::time::{Instant, sleep};

use crate::{Result, Store, Version};

/// When to ask again.
#[derive(Clone, Copy, Debug)]
pub struct HedgePolicy {
    /// How many recent reads of a size class are remembered.
    pub samples: usize,
    /// No read is hedged before this many are known.
    pub samples_min: usize,
    /// No second request leaves earlier than this.
    pub delay_min: Duration,
    /// How many of a thousand reads may be asked for twice.
    pub permille: u32,
}

impl Default for HedgePolicy {
    fn default() -> Self {
        HedgePolicy {
            samples: 128,
            samples_min: 32,
            delay_min: Duration::from_millis(10),
            permille: 50,
        }
    }
}

/// Second requests that may have been saved up.
const CREDIT_MAX: u32 = 10_000;

/// Reads of up to 64 KiB, 1 MiB, 8 MiB and more, and whole objects.
const SIZE_CLASSES: usize = 5;

/// A [`Store`] that asks twice for slow reads.
#[derive(Debug)]
pub struct HedgedStore<S> {
    inner: S,
    policy: HedgePolicy,
    recent: Mutex<ReadHistory>,
}

#[derive(Debug, Default)]
struct ReadHistory {
    classes: [Latencies; SIZE_CLASSES],
    /// In thousandths of a request.
    credit: u32,
    hedged: u64,
}

/// The last reads of one size class, as a ring.
#[derive(Debug, Default)]
struct Latencies {
    ring: Vec<Duration>,
    next: usize,
}

impl Latencies {
    fn add(&mut self, latency: Duration, samples: usize) {
        if self.ring.len() < samples {
            self.ring.push(latency);
        } else {
            self.ring[self.next] = latency;
        }
        self.next = (self.next + 1) % samples;
    }

    fn p95(&self) -> Duration {
        let mut sorted = self.ring.clone();
        sorted.sort_unstable();
        sorted
            .get(sorted.len() * 95 / 100)
            .copied()
            .unwrap_or_default()
    }
}

fn size_class(len: u64) -> usize {
    const BOUNDS: [u64; SIZE_CLASSES - 2] = [64 << 10, 1 << 20, 8 << 20];
    BOUNDS.iter().filter(|bound| len > **bound).count()
}

/// The class of reads of whole objects, whose size is not known before.
const WHOLE: usize = SIZE_CLASSES - 1;

impl<S: Store> HedgedStore<S> {
    /// Wraps `inner`.
    pub fn new(inner: S, policy: HedgePolicy) -> Self {
        HedgedStore {
            inner,
            policy,
            recent: Mutex::default(),
        }
    }

    /// How many second requests have left.
    pub fn hedged(&self) -> u64 {
        self.lock().hedged
    }

    fn lock(&self) -> MutexGuard<'_, ReadHistory> {
        self.recent.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn read<T, F>(&self, class: usize, attempt: impl Fn() -> F) -> Result<T>
    where
        F: Future<Output = Result<T>> + Send,
    {
        let begun = Instant::now();
        let result = match self.delay(class) {
            Some(delay) => self.race(delay, &attempt).await,
            None => attempt().await,
        };
        if result.is_ok() {
            self.lock().classes[class].add(begun.elapsed(), self.policy.samples);
        }
        result
    }

    /// When a second request would leave, once enough is known.
    fn delay(&self, class: usize) -> Option<Duration> {
        let mut recent = self.lock();
        recent.credit = (recent.credit + self.policy.permille).min(CREDIT_MAX);
        let latencies = &recent.classes[class];
        (latencies.ring.len() >= self.policy.samples_min)
            .then(|| latencies.p95().max(self.policy.delay_min))
    }

    fn take_credit(&self) -> bool {
        let mut recent = self.lock();
        let paid = recent.credit >= 1000;
        if paid {
            recent.credit -= 1000;
            recent.hedged += 1;
        }
        paid
    }

    async fn race<T, F>(&self, delay: Duration, attempt: &impl Fn() -> F) -> Result<T>
    where
        F: Future<Output = Result<T>> + Send,
    {
        let first = Box::pin(attempt());
        let first = match select(first, Box::pin(sleep(delay))).await {
            Either::Left((result, _)) => return result,
            Either::Right(((), first)) => first,
        };
        if !self.take_credit() {
            return first.await;
        }
        match select(first, Box::pin(attempt())).await {
            // An error of one is no answer while the other may still bring one.
            Either::Left((Err(_), other)) | Either::Right((Err(_), other)) => other.await,
            Either::Left((result, _)) | Either::Right((result, _)) => result,
        }
    }
}

#[async_trait]
impl<S: Store> Store for HedgedStore<S> {
    async fn get(&self, key: &str) -> Result<(Bytes, Version)> {
        self.read(WHOLE, || self.inner.get(key)).await
    }

    async fn get_range(&self, key: &str, offset: u64, len: u64) -> Result<Bytes> {
        self.read(size_class(len), || self.inner.get_range(key, offset, len))
            .await
    }

    async fn put(&self, key: &str, bytes: Bytes) -> Result<Version> {
        self.inner.put(key, bytes).await
    }

    async fn create(&self, key: &str, bytes: Bytes) -> Result<Version> {
        self.inner.create(key, bytes).await
    }

    async fn update(&self, key: &str, bytes: Bytes, version: &Version) -> Result<Version> {
        self.inner.update(key, bytes, version).await
    }

    async fn delete(&self, key: &str) -> Result<()> {
        self.inner.delete(key).await
    }

    async fn list(&self, prefix: &str) -> Result<Vec<(String, u64)>> {
        self.inner.list(prefix).await
    }

    async fn list_part(
        &self,
        prefix: &str,
        after: &str,
        limit: usize,
    ) -> Result<Vec<(String, u64)>> {
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
