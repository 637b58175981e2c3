//! The store, as commands ask for it that need no server: `firn check` and `firn check --rebuild`.
//!
//! It opens a directory store that is there, and never makes one.

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use indicatif::ProgressBar;
use store::{SharedStore, SingleWriterStore, Store};
use volume::check::{CheckCounts, CheckPort};
use volume::driver::{ComputeError, StoreError, Version};
use volume::rebuild::RebuildPort;

use crate::cli::output;
use crate::failure::{Failure, FailureCode, Result};
use crate::store_access::is_initialized;
use crate::store_answers::{into_engine_version, into_store_error};
use crate::units::ApproximateSize;

/// The store, as checks and rebuilds ask for it.
pub(super) struct StorePort {
    /// What is probed.
    bare: SharedStore,
    store: SharedStore,
    pace: Option<Pace>,
    bar: ProgressBar,
}

impl StorePort {
    /// Opens a store that is there; `rate` bounds the bytes of ranges that are read in a second.
    pub(super) fn open(url: &str, rate: Option<u64>) -> Result<StorePort> {
        // Opening would make a store of an empty directory, which may be the place of a missing mount.
        if !is_initialized(url) {
            return Err(Failure::new(
                FailureCode::StoreUnavailable,
                format!(
                    "there is no store at {url}; if it is to be mounted there, mount it, or name another with --store"
                ),
            ));
        }
        let bare = store::open_url(url)?;
        Ok(StorePort {
            store: store::with_policies(Arc::clone(&bare)),
            bare,
            pace: rate.map(Pace::new),
            bar: output::spinner(),
        })
    }

    /// Proves that of two writers one loses, as a server does before its first write; or takes the word for it that
    /// there is no other.
    pub(super) async fn prove(&mut self, single_writer: bool) -> Result<()> {
        let report = store::probe(&self.bare, single_writer).await?;
        if !report.can_fence() {
            self.store = Arc::new(SingleWriterStore::new(Arc::clone(&self.store)));
        }
        Ok(())
    }

    /// Nothing goes on any more.
    pub(super) fn end_progress(&self) {
        self.bar.finish_and_clear();
    }
}

/// A runtime for requests to the store.
pub(super) fn runtime(url: &str) -> Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .map_err(|source| Failure::io("start the runtime for", Path::new(url), &source))
}

impl CheckPort for StorePort {
    async fn get(&self, key: &str) -> std::result::Result<(Vec<u8>, Version), StoreError> {
        let found = self.store.get(key).await;
        let (data, version) = found.map_err(|error| into_store_error(&error))?;
        Ok((data.into(), into_engine_version(version)))
    }

    async fn get_range(
        &self,
        key: &str,
        offset: u64,
        len: u64,
    ) -> std::result::Result<Vec<u8>, StoreError> {
        if let Some(pace) = &self.pace {
            pace.wait(len).await;
        }
        let found = self.store.get_range(key, offset, len).await;
        Ok(found.map_err(|error| into_store_error(&error))?.into())
    }

    async fn list(&self, prefix: &str) -> std::result::Result<Vec<(String, u64)>, StoreError> {
        let found = self.store.list(prefix).await;
        found.map_err(|error| into_store_error(&error))
    }

    async fn compute<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> std::result::Result<T, ComputeError> {
        let done = tokio::task::spawn_blocking(work).await;
        done.map_err(|error| ComputeError(error.to_string()))
    }

    fn on_progress(&self, counts: &CheckCounts) {
        self.bar.set_message(format!(
            "{} volumes, {} snapshots, {} packs, {} read",
            counts.volumes,
            counts.snapshots,
            counts.packs,
            ApproximateSize(counts.bytes_read)
        ));
    }
}

impl RebuildPort for StorePort {
    async fn create(&self, key: &str, data: Vec<u8>) -> std::result::Result<(), StoreError> {
        let created = self.store.create(key, Bytes::from(data)).await;
        created.map(drop).map_err(|error| into_store_error(&error))
    }

    async fn update(
        &self,
        key: &str,
        data: Vec<u8>,
        version: Version,
    ) -> std::result::Result<(), StoreError> {
        let version = store::Version(version.0);
        let updated = self.store.update(key, Bytes::from(data), &version).await;
        updated.map(drop).map_err(|error| into_store_error(&error))
    }

    fn on_footers(&self, read: usize, of: usize) {
        self.bar.set_message(format!("{read} of {of} packs"));
    }
}

/// Spreads reads over time.
struct Pace {
    bytes_per_second: u64,
    /// When what was asked for so far will have been read.
    free_at: Mutex<Instant>,
}

impl Pace {
    fn new(bytes_per_second: u64) -> Pace {
        Pace {
            bytes_per_second: bytes_per_second.max(1),
            free_at: Mutex::new(Instant::now()),
        }
    }

    async fn wait(&self, bytes: u64) {
        let begin = {
            let mut free_at = self.free_at.lock().unwrap_or_else(PoisonError::into_inner);
            let begin = (*free_at).max(Instant::now());
            let takes = bytes as f64 / self.bytes_per_second as f64;
            *free_at = begin + Duration::from_secs_f64(takes);
            begin
        };
        tokio::time::sleep_until(begin.into()).await;
    }
}
