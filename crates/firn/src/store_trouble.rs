//! Which requests to the store fail now, and since when: what `/readyz` and the log say of the store.
//!
//! Each attempt is noted below those that repeat it, so that an outage shows at once. Nothing here
//! decides about a request.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use bytes::Bytes;
use store::{Kind, SharedStore, Store, Version};

/// A store is well again when nothing has failed for so long: one that refuses every other request
/// is in one trouble, not in a new one each second.
const CALM: Duration = Duration::from_secs(5);

/// A trouble that comes again so many times sooner than the calm was long was not over: four times the
/// calm must pass then, or the log repeats itself as long as a store throttles.
const RELAPSE: u32 = 10;

/// The longest that a store is called troubled after its last failure.
const LONGEST_CALM: Duration = Duration::from_secs(60);

/// Failures that were repeated with success are not worth a word unless there are so many in a row with
/// no calm between them.
const FAILURES_MAX: u32 = 2;

/// An attempt that is given up after so long had no answer; one that is given up sooner lost against
/// a second one.
const SILENCE: Duration = Duration::from_secs(5);

/// Requests that fail now, by whether they write: a full store still answers reads.
#[derive(Debug, Default)]
pub(crate) struct Trouble {
    reads: Mutex<RecentFailures>,
    writes: Mutex<RecentFailures>,
}

/// Failures of one kind of request, since the last time all was well.
#[derive(Debug)]
struct RecentFailures {
    /// How long nothing may fail before this trouble is over.
    calm: Duration,
    since: Option<Instant>,
    last: Option<Instant>,
    last_success: Option<Instant>,
    count: u32,
    why: String,
    kind: Option<Kind>,
}

impl Default for RecentFailures {
    fn default() -> Self {
        RecentFailures {
            calm: CALM,
            since: None,
            last: None,
            last_success: None,
            count: 0,
            why: String::new(),
            kind: None,
        }
    }
}

impl RecentFailures {
    fn note_failure(&mut self, now: Instant, kind: Kind, why: String) {
        if self.is_over(now) {
            self.calm = match self.last {
                // What nobody was told of was no trouble.
                Some(last) if self.count > FAILURES_MAX && now - last < self.calm * RELAPSE => {
                    (self.calm * 4).min(LONGEST_CALM)
                }
                _ => CALM,
            };
            self.since = Some(now);
            self.count = 0;
        }
        self.last = Some(now);
        self.count = self.count.saturating_add(1);
        self.why = why;
        self.kind = Some(kind);
    }

    /// Whether the failure that came last has been followed by a success, and both by calm.
    fn is_over(&self, now: Instant) -> bool {
        let Some(last) = self.last else { return true };
        self.last_success > Some(last) && now.saturating_duration_since(last) >= self.calm
    }

    /// What fails, where `what` is requests of this kind.
    fn describe(&self, now: Instant, what: &str) -> Option<StoreTrouble> {
        let repeated_with_success = self.last_success > self.last && self.count <= FAILURES_MAX;
        if self.is_over(now) || repeated_with_success {
            return None;
        }
        let seconds = |since| now.saturating_duration_since(since).as_secs();
        let (since, last) = (self.since?, self.last?);
        let when = match self.last_success > self.last && seconds(last) >= CALM.as_secs() {
            true => format!("failed again and again, {} s ago last", seconds(last)),
            false => format!("fail since {} s", seconds(since)),
        };
        Some(StoreTrouble {
            why: format!("{what} {when}: {}", self.why),
            kind: self.kind.unwrap_or(Kind::Unavailable),
        })
    }
}

/// What requests to the store fail with.
#[derive(Clone, Debug)]
pub(crate) struct StoreTrouble {
    /// In words, with the remedy.
    pub(crate) why: String,
    pub(crate) kind: Kind,
}

impl Trouble {
    /// What fails at `now`: writes are said first.
    pub(crate) fn describe(&self, now: Instant) -> Option<StoreTrouble> {
        let writes = self.slot(true).describe(now, "writes");
        writes.or_else(|| self.slot(false).describe(now, "reads"))
    }

    fn slot(&self, writes: bool) -> std::sync::MutexGuard<'_, RecentFailures> {
        let slot = if writes { &self.writes } else { &self.reads };
        slot.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn begin(&self, writes: bool) -> Attempt<'_> {
        Attempt {
            trouble: self,
            writes,
            started: Instant::now(),
            has_ended: false,
        }
    }
}

/// One attempt of a request. Who repeats requests drops it when it has taken too long, and that, too,
/// is how an attempt ends.
struct Attempt<'a> {
    trouble: &'a Trouble,
    writes: bool,
    started: Instant,
    has_ended: bool,
}

impl Attempt<'_> {
    /// Notes how it ended. Answers that say what the store holds are no trouble.
    fn end<T>(mut self, result: store::Result<T>) -> store::Result<T> {
        self.has_ended = true;
        let now = Instant::now();
        let mut slot = self.trouble.slot(self.writes);
        match &result {
            Err(error) if is_recoverable(error.kind()) => {
                slot.note_failure(now, error.kind(), error.chain())
            }
            _ => slot.last_success = Some(now),
        }
        result
    }
}

impl Drop for Attempt<'_> {
    fn drop(&mut self) {
        let waited = self.started.elapsed();
        if self.has_ended || waited < SILENCE || canary::active!("silence_is_no_trouble") {
            return;
        }
        let mut slot = self.trouble.slot(self.writes);
        if slot.last_success < Some(self.started) {
            slot.note_failure(
                Instant::now(),
                Kind::Unavailable,
                format!(
                    "no answer within {} s; check the store's address and the network",
                    waited.as_secs()
                ),
            );
        }
    }
}

/// Notes how each attempt ends, below those that repeat it: an outage shows at once.
#[derive(Debug)]
pub(crate) struct WatchedStore {
    inner: SharedStore,
    trouble: Arc<Trouble>,
}

impl WatchedStore {
    pub(crate) fn new(inner: SharedStore, trouble: Arc<Trouble>) -> Self {
        WatchedStore { inner, trouble }
    }
}

#[async_trait]
impl Store for WatchedStore {
    async fn get(&self, key: &str) -> store::Result<(Bytes, Version)> {
        let attempt = self.trouble.begin(false);
        attempt.end(self.inner.get(key).await)
    }

    async fn get_range(&self, key: &str, offset: u64, len: u64) -> store::Result<Bytes> {
        let attempt = self.trouble.begin(false);
        attempt.end(self.inner.get_range(key, offset, len).await)
    }

    async fn put(&self, key: &str, bytes: Bytes) -> store::Result<Version> {
        let attempt = self.trouble.begin(true);
        attempt.end(self.inner.put(key, bytes).await)
    }

    async fn create(&self, key: &str, bytes: Bytes) -> store::Result<Version> {
        let attempt = self.trouble.begin(true);
        attempt.end(self.inner.create(key, bytes).await)
    }

    async fn update(&self, key: &str, bytes: Bytes, version: &Version) -> store::Result<Version> {
        let attempt = self.trouble.begin(true);
        attempt.end(self.inner.update(key, bytes, version).await)
    }

    async fn delete(&self, key: &str) -> store::Result<()> {
        let attempt = self.trouble.begin(true);
        attempt.end(self.inner.delete(key).await)
    }

    async fn list(&self, prefix: &str) -> store::Result<Vec<(String, u64)>> {
        let attempt = self.trouble.begin(false);
        attempt.end(self.inner.list(prefix).await)
    }

    async fn list_part(
        &self,
        prefix: &str,
        after: &str,
        limit: usize,
    ) -> store::Result<Vec<(String, u64)>> {
        let attempt = self.trouble.begin(false);
        attempt.end(self.inner.list_part(prefix, after, limit).await)
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

/// Whether a store that fails like this may work later without any change here.
pub(crate) fn is_recoverable(kind: Kind) -> bool {
    matches!(
        kind,
        Kind::Unavailable | Kind::Unknown | Kind::Denied | Kind::NoBucket
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn a_store_that_fails_now_and_then_is_in_one_trouble_until_it_is_calm() {
        let start = Instant::now();
        let mut failures = RecentFailures::default();
        assert!(failures.describe(start, "writes").is_none());
        for n in 0..20 {
            let now = start + n * SECOND;
            failures.note_failure(now, Kind::Denied, "refused".to_owned());
            let trouble = failures.describe(now, "writes").unwrap();
            assert_eq!(trouble.why, format!("writes fail since {n} s: refused"));
            assert_eq!(trouble.kind, Kind::Denied);
            failures.last_success = Some(now + SECOND / 2);
            let seen = failures.describe(now + SECOND / 2, "writes").is_some();
            assert_eq!(seen, n >= FAILURES_MAX, "after {n}");
        }
        assert!(failures.describe(start + 25 * SECOND, "writes").is_none());
    }

    /// For ten minutes, at random, as one that throttles does. A request comes each second, and is repeated until
    /// it succeeds.
    #[test]
    fn a_store_that_refuses_every_other_request_is_called_well_at_most_once() {
        for seed in 0..200 {
            let mut random = fastrand::Rng::with_seed(seed);
            let start = Instant::now();
            let mut failures = RecentFailures::default();
            let (mut was_bad, mut well_again) = (false, 0);
            for n in 0..600 {
                let mut now = start + n * SECOND;
                while random.bool() {
                    failures.note_failure(now, Kind::Unavailable, "slow down".to_owned());
                    now += SECOND / 100;
                }
                failures.last_success = Some(now);
                let is_bad = failures.describe(now, "writes").is_some();
                well_again += u32::from(was_bad && !is_bad);
                was_bad = is_bad;
            }
            assert!(well_again <= 1, "seed {seed}: {well_again} times");
        }
    }

    #[test]
    fn a_trouble_long_after_the_last_one_is_over_as_soon_as_the_first() {
        let start = Instant::now();
        let mut failures = RecentFailures::default();
        for outage in 0..5 {
            let began = start + outage * 3600 * SECOND;
            for n in 0..5 {
                failures.note_failure(began + n * SECOND, Kind::Denied, "refused".to_owned());
            }
            failures.last_success = Some(began + 6 * SECOND);
            assert!(failures.describe(began + 8 * SECOND, "writes").is_some());
            assert!(failures.describe(began + 10 * SECOND, "writes").is_none());
        }
    }

    #[test]
    fn a_store_that_never_succeeded_since_is_not_well_however_long_ago_it_failed() {
        let start = Instant::now();
        let mut failures = RecentFailures::default();
        failures.note_failure(start, Kind::Denied, "refused".to_owned());
        assert!(failures.describe(start + 60 * SECOND, "writes").is_some());
    }
}
