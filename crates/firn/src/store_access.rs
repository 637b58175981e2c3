//! The server's way to its object store, which need not be there when the server starts.
//!
//! A server must come up while its store is away: its disks' requests wait for it, and other
//! volumes, the API and the log need no store. So the store is opened when it can be. No write
//! passes before a probe has shown that the store can keep a second server out. A log that is
//! there has a store somewhere: a directory that is missing is then taken for one that is not
//! mounted, and never made anew.

use std::path::Path;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use bytes::Bytes;
use store::{Error, Kind, Op, SharedStore, SingleWriterStore, Store, Version, with_policies};

use crate::failure::{Failure, Result};
use crate::store_faults::{InjectedFaults, StoreFaultPlan};

/// How long a start waits for the store before it goes on without.
const START_TIMEOUT: Duration = Duration::from_secs(3);

/// Attempts to open the store are at least this far apart.
const ATTEMPT_INTERVAL: Duration = Duration::from_millis(500);

/// What says which store, and whether to trust it.
#[derive(Clone, Debug)]
pub(crate) struct StoreSettings {
    pub(crate) url: String,
    pub(crate) single_writer: bool,
    pub(crate) faults: Option<StoreFaultPlan>,
    /// Whether this server may make a new store: not if it has a log already.
    pub(crate) may_create: bool,
}

/// A store is well again when nothing has failed for so long: one that refuses every other request
/// is in one trouble, not in a new one each second.
const CALM: Duration = Duration::from_secs(5);

/// Failures that were repeated with success are not worth a word unless there are so many in a row of
/// less than [`CALM`] each.
const FAILURES_MAX: u32 = 2;

/// An attempt that is given up after so long had no answer; one that is given up sooner lost against
/// a second one.
const SILENCE: Duration = Duration::from_secs(5);

/// Requests that fail now, by whether they write: a full store still answers reads.
#[derive(Debug, Default)]
struct Trouble {
    reads: Mutex<RecentFailures>,
    writes: Mutex<RecentFailures>,
}

/// Failures of one kind of request, since the last time all was well.
#[derive(Debug, Default)]
struct RecentFailures {
    since: Option<Instant>,
    last: Option<Instant>,
    last_success: Option<Instant>,
    count: u32,
    why: String,
    kind: Option<Kind>,
}

impl RecentFailures {
    fn note_failure(&mut self, now: Instant, kind: Kind, why: String) {
        if self.is_over(now) {
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
        self.last_success > Some(last) && now.saturating_duration_since(last) >= CALM
    }

    /// What fails, where `what` is requests of this kind.
    fn describe(&self, now: Instant, what: &str) -> Option<StoreTrouble> {
        let repeated_with_success = self.last_success > self.last && self.count <= FAILURES_MAX;
        if self.is_over(now) || repeated_with_success {
            return None;
        }
        let time = now.saturating_duration_since(self.since?);
        Some(StoreTrouble {
            why: format!("{what} fail since {} s: {}", time.as_secs(), self.why),
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
    fn slot(&self, writes: bool) -> std::sync::MutexGuard<'_, RecentFailures> {
        let slot = if writes { &self.writes } else { &self.reads };
        slot.lock().unwrap_or_else(PoisonError::into_inner)
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

impl Trouble {
    fn begin(&self, writes: bool) -> Attempt<'_> {
        Attempt {
            trouble: self,
            writes,
            started: Instant::now(),
            has_ended: false,
        }
    }
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
struct WatchedStore {
    inner: SharedStore,
    trouble: Arc<Trouble>,
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

/// An opened store.
#[derive(Clone, Debug)]
struct OpenedStore {
    /// Without planned faults: the probe finds out whether the store can be trusted at all.
    bare: SharedStore,
    faulty: SharedStore,
    faults: Option<InjectedFaults>,
}

/// The store, opened or not yet.
#[derive(Debug)]
pub(crate) struct StoreAccess {
    settings: StoreSettings,
    /// Serves reads.
    opened: OnceLock<OpenedStore>,
    /// Serves writes: the probe has passed.
    proven: OnceLock<SharedStore>,
    /// Held by who opens or probes.
    opening: tokio::sync::Mutex<()>,
    last_failure: Mutex<Option<(Instant, Failure, Kind)>>,
    trouble: Arc<Trouble>,
}

impl StoreAccess {
    pub(crate) fn new(settings: StoreSettings) -> Arc<Self> {
        Arc::new(StoreAccess {
            settings,
            opened: OnceLock::new(),
            proven: OnceLock::new(),
            opening: tokio::sync::Mutex::default(),
            last_failure: Mutex::default(),
            trouble: Arc::default(),
        })
    }

    /// Opens and probes the store. A store that is away is no failure for a server that has a log.
    pub(crate) async fn start(&self) -> Result<()> {
        let attempt = tokio::time::timeout(START_TIMEOUT, self.for_writes()).await;
        let failure = match attempt {
            Ok(Ok(_)) => return Ok(()),
            Ok(Err(error)) if self.settings.may_create || !is_recoverable(error.kind()) => {
                return Err(error.into());
            }
            Ok(Err(error)) => Failure::from(error),
            Err(_) if self.settings.may_create => {
                self.for_writes().await.map_err(Failure::from)?;
                return Ok(());
            }
            Err(_) => {
                let slow = self.error(Kind::Unavailable, "it does not answer");
                self.note_error(&slow);
                slow.into()
            }
        };
        if canary::active!("no_start_without_the_store") {
            return Err(failure);
        }
        tracing::error!(%failure, "the store is away: what needs it waits, and it is asked again and again");
        Ok(())
    }

    /// Why the store is away, unless it has been reached.
    pub(crate) fn failure(&self) -> Option<Failure> {
        self.unavailability().map(|(failure, _)| failure)
    }

    fn unavailability(&self) -> Option<(Failure, Kind)> {
        if self.proven.get().is_some() {
            return None;
        }
        let last = self
            .last_failure
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        last.as_ref()
            .map(|(_, failure, kind)| (failure.clone(), *kind))
    }

    /// What requests to the store fail with now, and since when.
    pub(crate) fn trouble(&self) -> Option<StoreTrouble> {
        if let Some((failure, kind)) = self.unavailability() {
            let why = failure.detail;
            return Some(StoreTrouble { why, kind });
        }
        let now = Instant::now();
        let writes = self.trouble.slot(true).describe(now, "writes");
        writes.or_else(|| self.trouble.slot(false).describe(now, "reads"))
    }

    /// The faults that `--planned-store-faults` asks for.
    pub(crate) fn faults(&self) -> Option<InjectedFaults> {
        self.opened.get()?.faults.clone()
    }

    fn error(&self, kind: Kind, why: &str) -> Error {
        let object = format!("store {}", self.settings.url);
        Error::new(kind, Op::Open, object, why.to_owned())
    }

    fn note_error(&self, error: &Error) {
        let failure = Failure::new(crate::failure::FailureCode::StoreUnavailable, error.chain());
        let mut last = self
            .last_failure
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        *last = Some((Instant::now(), failure, error.kind()));
    }

    /// The failure of an attempt that was only just made.
    fn recent_failure(&self) -> Option<Error> {
        let last = self
            .last_failure
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let (at, failure, kind) = last.as_ref()?;
        (at.elapsed() < ATTEMPT_INTERVAL).then(|| self.error(*kind, &failure.detail))
    }

    async fn for_reads(&self) -> store::Result<SharedStore> {
        if let Some(opened) = self.opened.get() {
            return Ok(Arc::clone(&opened.faulty));
        }
        let _one = self.opening.lock().await;
        self.open().await.map(|opened| opened.faulty)
    }

    async fn for_writes(&self) -> store::Result<SharedStore> {
        if let Some(proven) = self.proven.get() {
            return Ok(Arc::clone(proven));
        }
        let _one = self.opening.lock().await;
        if let Some(proven) = self.proven.get() {
            return Ok(Arc::clone(proven));
        }
        let opened = self.open().await?;
        let report = store::probe(&opened.bare, self.settings.single_writer).await;
        let report = report.inspect_err(|error| self.note_error(error))?;
        if report.bare_tags {
            tracing::info!(
                store = %opened.bare.name(),
                "the store takes an ETag in If-Match only without its quotes; firn sends it so"
            );
        }
        let store = if report.can_fence() {
            opened.faulty
        } else {
            let why = opened.bare.describe_hazard();
            let why = why.unwrap_or_else(|| "no conditional PUT".to_owned());
            tracing::warn!(store = %opened.bare.name(), why, "a second server would overwrite");
            Arc::new(SingleWriterStore::new(opened.faulty))
        };
        if self.failure().is_some() {
            tracing::info!(store = %store.name(), "the store is reached");
        }
        Ok(Arc::clone(self.proven.get_or_init(|| store)))
    }

    /// Opens the store; the caller holds `opening`.
    async fn open(&self) -> store::Result<OpenedStore> {
        if let Some(opened) = self.opened.get() {
            return Ok(opened.clone());
        }
        if let Some(error) = self.recent_failure() {
            return Err(error);
        }
        let (url, may_create) = (self.settings.url.clone(), self.settings.may_create);
        let opened = tokio::task::spawn_blocking(move || {
            if may_create || is_initialized(&url) {
                store::open_url(&url).map(Some)
            } else {
                Ok(None)
            }
        });
        let opened = match opened.await {
            Ok(Ok(Some(bare))) => Ok(bare),
            Ok(Ok(None)) => Err(self.error(
                Kind::Unavailable,
                "there is no firn store, but this cache directory has been used with one; is it \
                 mounted? A new store is made only for a new cache directory",
            )),
            Ok(Err(error)) => Err(error),
            Err(_) => Err(self.error(Kind::Unavailable, "opening it panicked")),
        };
        let bare = opened.inspect_err(|error| self.note_error(error))?;
        let faults = self
            .settings
            .faults
            .map(|plan| plan.apply(Arc::clone(&bare)));
        let faulty = faults
            .as_ref()
            .map_or_else(|| Arc::clone(&bare), InjectedFaults::store);
        let watched = |inner| {
            let trouble = Arc::clone(&self.trouble);
            Arc::new(WatchedStore { inner, trouble }) as SharedStore
        };
        let opened = OpenedStore {
            bare: with_policies(watched(bare)),
            faulty: with_policies(watched(faulty)),
            faults,
        };
        Ok(self.opened.get_or_init(|| opened).clone())
    }
}

/// Whether a directory store is at this place. Only its own file says so: an empty directory may be
/// the place where it is to be mounted.
pub(crate) fn is_initialized(url: &str) -> bool {
    let path = url.strip_prefix("file://").unwrap_or(url);
    if path.contains("://") || path.is_empty() {
        return true;
    }
    let path = Path::new(path);
    path.join(".firn-store/format").exists() || has_files(path)
}

/// Whether something else is there: then opening says what is wrong with it.
fn has_files(path: &Path) -> bool {
    std::fs::read_dir(path).is_ok_and(|mut entries| entries.next().is_some())
}

/// Whether a store that fails like this may work later without any change here.
fn is_recoverable(kind: Kind) -> bool {
    matches!(
        kind,
        Kind::Unavailable | Kind::Unknown | Kind::Denied | Kind::NoBucket
    )
}

#[async_trait]
impl Store for StoreAccess {
    async fn get(&self, key: &str) -> store::Result<(Bytes, Version)> {
        self.for_reads().await?.get(key).await
    }

    async fn get_range(&self, key: &str, offset: u64, len: u64) -> store::Result<Bytes> {
        self.for_reads().await?.get_range(key, offset, len).await
    }

    async fn put(&self, key: &str, bytes: Bytes) -> store::Result<Version> {
        self.for_writes().await?.put(key, bytes).await
    }

    async fn create(&self, key: &str, bytes: Bytes) -> store::Result<Version> {
        self.for_writes().await?.create(key, bytes).await
    }

    async fn update(&self, key: &str, bytes: Bytes, version: &Version) -> store::Result<Version> {
        self.for_writes().await?.update(key, bytes, version).await
    }

    async fn delete(&self, key: &str) -> store::Result<()> {
        self.for_writes().await?.delete(key).await
    }

    async fn list(&self, prefix: &str) -> store::Result<Vec<(String, u64)>> {
        self.for_reads().await?.list(prefix).await
    }

    async fn list_part(
        &self,
        prefix: &str,
        after: &str,
        limit: usize,
    ) -> store::Result<Vec<(String, u64)>> {
        let store = self.for_reads().await?;
        store.list_part(prefix, after, limit).await
    }

    fn name(&self) -> String {
        self.settings.url.clone()
    }
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

    #[test]
    fn a_store_that_never_succeeded_since_is_not_well_however_long_ago_it_failed() {
        let start = Instant::now();
        let mut failures = RecentFailures::default();
        failures.note_failure(start, Kind::Denied, "refused".to_owned());
        assert!(failures.describe(start + 60 * SECOND, "writes").is_some());
    }
}
