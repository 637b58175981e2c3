//! Repeats what may be repeated, with exponential back-off, full jitter and deadlines.
//!
//! Reads, plain puts (their names are never reused) and deletes are repeated after
//! [`Kind::Unavailable`] and [`Kind::Unknown`]. Conditional writes are repeated only after
//! [`Kind::Unavailable`], which says that nothing was applied: after an unknown outcome the first
//! attempt may have won, and a second would lose against it. An attempt that outlives its
//! time-out is abandoned, and so for a write unknown.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use tokio::time::{Instant, sleep, timeout};

use crate::{Error, Governor, Kind, Op, Result, Store, Version};

/// How long and how often to try.
#[derive(Clone, Copy, Debug)]
pub struct RetryPolicy {
    /// Upper bound of the first pause; each further bound doubles.
    pub pause_first: Duration,
    /// Largest upper bound of a pause.
    pub pause_max: Duration,
    /// Time-out of one attempt that carries no bytes.
    pub attempt: Duration,
    /// An attempt that carries bytes gets this much longer per MiB.
    pub attempt_per_mib: Duration,
    /// No attempt starts later than this after the first.
    pub deadline: Duration,
}

impl Default for RetryPolicy {
    /// For a service over a network: 10 s per attempt and a second per MiB (a line of 8 Mbit/s
    /// still carries a pack), half a minute in all. Longer outages are the caller's to wait
    /// for: it knows what has become stale meanwhile.
    fn default() -> Self {
        RetryPolicy {
            pause_first: Duration::from_millis(50),
            pause_max: Duration::from_secs(5),
            attempt: Duration::from_secs(10),
            attempt_per_mib: Duration::from_secs(1),
            deadline: Duration::from_secs(30),
        }
    }
}

/// What is read whole is small: roots, records, marks. A request whose answer never comes must not be
/// waited for as if it were a pack.
const GET_BYTES_MAX: u64 = 8 << 20;

impl RetryPolicy {
    fn attempt_timeout(&self, bytes: u64) -> Duration {
        let mib = u32::try_from(bytes.div_ceil(1 << 20)).unwrap_or(u32::MAX);
        self.attempt
            .saturating_add(self.attempt_per_mib.saturating_mul(mib))
    }

    /// A random pause before attempt `n` (the first retry is 1): anything up to the bound, so
    /// that many hosts that failed together do not return together.
    fn pause(&self, n: u32) -> Duration {
        let bound = self
            .pause_first
            .saturating_mul(1_u32.checked_shl(n.saturating_sub(1)).unwrap_or(u32::MAX))
            .min(self.pause_max);
        bound.mul_f64(fastrand::f64())
    }
}

/// A [`Store`] that repeats the operations of another where that is safe.
#[derive(Debug)]
pub struct RetryStore<S> {
    inner: S,
    policy: RetryPolicy,
    governor: Option<Arc<Governor>>,
}

impl<S: Store> RetryStore<S> {
    /// Wraps `inner`.
    pub fn new(inner: S, policy: RetryPolicy) -> Self {
        RetryStore {
            inner,
            policy,
            governor: None,
        }
    }

    /// Reports how each attempt went to `governor`.
    #[must_use]
    pub fn reporting_to(mut self, governor: Arc<Governor>) -> Self {
        self.governor = Some(governor);
        self
    }

    fn report(&self, op: Op, error: Option<&Error>) {
        if let Some(governor) = &self.governor {
            governor.report(op, error);
        }
    }

    async fn run<T, F>(&self, op: Op, key: &str, bytes: u64, attempt: impl Fn() -> F) -> Result<T>
    where
        F: Future<Output = Result<T>>,
    {
        let started = Instant::now();
        let limit = self.policy.attempt_timeout(bytes);
        for n in 1.. {
            let error = match timeout(limit, attempt()).await {
                Ok(Ok(done)) => {
                    self.report(op, None);
                    return Ok(done);
                }
                Ok(Err(error)) => error,
                Err(_) => timed_out(op, key, limit),
            };
            self.report(op, Some(&error));
            let pause = self.policy.pause(n);
            if !is_repeatable(op, error.kind())
                || started.elapsed().saturating_add(pause) > self.policy.deadline
            {
                return Err(error);
            }
            tracing::debug!(attempt = n, ?pause, error = %error.chain(), "store request repeated");
            sleep(pause).await;
        }
        unreachable!("the loop is left by its deadline")
    }
}

fn is_repeatable(op: Op, kind: Kind) -> bool {
    match kind {
        Kind::Unavailable => true,
        Kind::Unknown => !matches!(op, Op::Create | Op::Update),
        _ => false,
    }
}

fn timed_out(op: Op, key: &str, limit: Duration) -> Error {
    let kind = if op.writes() {
        Kind::Unknown
    } else {
        Kind::Unavailable
    };
    Error::new(
        kind,
        op,
        key,
        format!("no answer within {limit:?}; check the store's address and the network"),
    )
    .overloaded()
}

#[async_trait]
impl<S: Store> Store for RetryStore<S> {
    async fn get(&self, key: &str) -> Result<(Bytes, Version)> {
        self.run(Op::Get, key, GET_BYTES_MAX, || self.inner.get(key))
            .await
    }

    async fn get_range(&self, key: &str, offset: u64, len: u64) -> Result<Bytes> {
        self.run(Op::GetRange, key, len, || {
            self.inner.get_range(key, offset, len)
        })
        .await
    }

    async fn put(&self, key: &str, bytes: Bytes) -> Result<Version> {
        let len = bytes.len() as u64;
        self.run(Op::Put, key, len, || self.inner.put(key, bytes.clone()))
            .await
    }

    async fn create(&self, key: &str, bytes: Bytes) -> Result<Version> {
        let len = bytes.len() as u64;
        self.run(Op::Create, key, len, || {
            self.inner.create(key, bytes.clone())
        })
        .await
    }

    async fn update(&self, key: &str, bytes: Bytes, version: &Version) -> Result<Version> {
        let len = bytes.len() as u64;
        self.run(Op::Update, key, len, || {
            self.inner.update(key, bytes.clone(), version)
        })
        .await
    }

    async fn delete(&self, key: &str) -> Result<()> {
        self.run(Op::Delete, key, 0, || self.inner.delete(key))
            .await
    }

    async fn list(&self, prefix: &str) -> Result<Vec<(String, u64)>> {
        self.run(Op::List, prefix, 1 << 20, || self.inner.list(prefix))
            .await
    }

    async fn list_part(
        &self,
        prefix: &str,
        after: &str,
        limit: usize,
    ) -> Result<Vec<(String, u64)>> {
        let list = || self.inner.list_part(prefix, after, limit);
        self.run(Op::List, prefix, 1 << 20, list).await
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_are_bounded_and_spread() {
        let policy = RetryPolicy::default();
        for n in 1..200 {
            assert!(policy.pause(n) <= policy.pause_max);
        }
        assert!(policy.pause(1) <= policy.pause_first);
        let pauses: std::collections::HashSet<_> = (0..50).map(|_| policy.pause(20)).collect();
        assert!(pauses.len() > 40, "full jitter spreads the pauses");
    }

    #[test]
    fn a_conditional_write_of_unknown_outcome_is_never_repeated() {
        for op in [Op::Create, Op::Update] {
            assert!(!is_repeatable(op, Kind::Unknown));
            assert!(is_repeatable(op, Kind::Unavailable));
            assert!(!is_repeatable(op, Kind::PreconditionFailed));
        }
        assert!(is_repeatable(Op::Put, Kind::Unknown));
        assert!(is_repeatable(Op::Delete, Kind::Unknown));
    }
}
