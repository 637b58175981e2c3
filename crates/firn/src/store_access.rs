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
use crate::store_trouble::{StoreTrouble, Trouble, WatchedStore, is_recoverable};

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
        self.trouble.describe(Instant::now())
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
            Arc::new(WatchedStore::new(inner, trouble)) as SharedStore
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
