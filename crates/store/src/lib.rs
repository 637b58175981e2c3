//! Object-store access: one narrow trait, its stores, and the decorators that stack on them.
//!
//! ```text
//!   engine ── Store ──▶ GovernedStore ──▶ RetryStore ──▶ HedgedStore ──▶ DirStore ──▶ files
//!                          a turn           again, where    a slow read   ObjectStoreAdapter ──▶ HTTP
//!                                           that is safe    again
//!   engine ◀── done, certainly not done, unknown (Kind), with the object and what helps ◀────┘
//! ```
//!
//! Owns every request to the object store: what its outcome means ([`Kind`]), when it may be
//! repeated ([`RetryStore`]), how many run at once ([`Governor`]), and whether a store can be
//! trusted with a volume at all ([`probe`]). It must never repeat a conditional PUT whose outcome is unknown:
//! the first attempt may have won, and the second would then report a loss to the winner. Only
//! the engine, which knows its own nonce, can read back and tell.
//!
//! Why a trait of our own above the `object_store` crate: firn needs eight operations with three
//! outcomes each (done, certainly not done, unknown), and a directory store with a conditional
//! update, which the crate's local store lacks. Reading order: this file, [`Error`], `dir`.

#![forbid(unsafe_code)]

mod adapter;
mod addresses;
mod classify;
mod cloud;
mod dir;
mod error;
mod exchange;
mod faults;
mod governor;
mod hedge;
mod key;
mod key_rule;
mod part;
mod probe;
mod retry;
mod single;
mod stack;
mod url;

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;

pub use adapter::ObjectStoreAdapter;
pub use dir::{DirStore, mount_point};
pub use error::{Error, Kind, Op};
pub use faults::{FaultKind, FaultPlan, FaultyStore, Rate};
pub use governor::{Class, GovernedStore, Governor, GovernorPolicy, Permit, WindowBounds};
pub use hedge::{HedgePolicy, HedgedStore};
pub use key::check_key;
pub use probe::{Condition, ProbeReport, probe};
pub use retry::{RetryPolicy, RetryStore};
pub use single::SingleWriterStore;
pub use stack::with_policies;
pub use url::{files_of_url, open_url};

/// The result of a store operation.
pub type Result<T> = std::result::Result<T, Error>;

/// A store that can be shared between tasks and stacked under decorators.
pub type SharedStore = Arc<dyn Store>;

/// What a store calls one content of one object: an ETag, opaque to everybody else.
///
/// Two contents of a key that follow each other have different versions. Identical content
/// written again *may* have the same version (S3 takes the ETag from the content alone), so
/// whoever relies on versions embeds a sequence number and a nonce in the content.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Version(pub String);

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // A version may hold a line break between two tags; it must not break a log line.
        write!(f, "{}", self.0.escape_debug())
    }
}

/// The operations firn needs of an object store.
///
/// Keys are `/`-separated names (see [`check_key`]). Objects appear whole or not at all, whatever
/// dies meanwhile, and a write that was answered is durable. Every method is safe to cancel by
/// dropping its future; what was asked may then still happen.
#[async_trait]
pub trait Store: fmt::Debug + Send + Sync + 'static {
    /// The whole object and its version.
    async fn get(&self, key: &str) -> Result<(Bytes, Version)>;

    /// Exactly `len` bytes from `offset` on; a range that leaves the object is
    /// [`Kind::OutOfRange`].
    async fn get_range(&self, key: &str, offset: u64, len: u64) -> Result<Bytes>;

    /// Writes unconditionally. Only for names that are never reused: then repeating it is safe.
    async fn put(&self, key: &str, bytes: Bytes) -> Result<Version>;

    /// Writes if there is no such object (`If-None-Match: *`), else [`Kind::PreconditionFailed`].
    async fn create(&self, key: &str, bytes: Bytes) -> Result<Version>;

    /// Writes if the object still has this version (`If-Match`), else [`Kind::PreconditionFailed`], or
    /// [`Kind::NotFound`] where it is gone and the store says so.
    async fn update(&self, key: &str, bytes: Bytes, version: &Version) -> Result<Version>;

    /// Removes the object. A missing one is a success: the outcome is the same.
    async fn delete(&self, key: &str) -> Result<()>;

    /// Keys below `prefix` (empty, or ending in `/`) with their sizes, in ascending order.
    async fn list(&self, prefix: &str) -> Result<Vec<(String, u64)>>;

    /// The first `limit` of these keys behind `after`, which is empty or a key, and need not exist; fewer: there are no
    /// more. However many keys there are, no more than these are in memory.
    async fn list_part(
        &self,
        prefix: &str,
        after: &str,
        limit: usize,
    ) -> Result<Vec<(String, u64)>>;

    /// What messages call this store, for example `directory /srv/firn/store`.
    fn name(&self) -> String;

    /// Why two hosts could both win a conditional write here though no test on one host shows it, if
    /// that is known.
    fn describe_hazard(&self) -> Option<String> {
        None
    }

    /// From now on names versions in `If-Match` without the quotes of their ETag, or with them again; whether
    /// this store can. For [`probe`] alone, which tests the other form where the right one is refused.
    fn set_bare_tags(&self, bare: bool) -> bool {
        let _ = bare;
        false
    }
}

#[async_trait]
impl<S: Store + ?Sized> Store for Arc<S> {
    async fn get(&self, key: &str) -> Result<(Bytes, Version)> {
        (**self).get(key).await
    }

    async fn get_range(&self, key: &str, offset: u64, len: u64) -> Result<Bytes> {
        (**self).get_range(key, offset, len).await
    }

    async fn put(&self, key: &str, bytes: Bytes) -> Result<Version> {
        (**self).put(key, bytes).await
    }

    async fn create(&self, key: &str, bytes: Bytes) -> Result<Version> {
        (**self).create(key, bytes).await
    }

    async fn update(&self, key: &str, bytes: Bytes, version: &Version) -> Result<Version> {
        (**self).update(key, bytes, version).await
    }

    async fn delete(&self, key: &str) -> Result<()> {
        (**self).delete(key).await
    }

    async fn list(&self, prefix: &str) -> Result<Vec<(String, u64)>> {
        (**self).list(prefix).await
    }

    async fn list_part(
        &self,
        prefix: &str,
        after: &str,
        limit: usize,
    ) -> Result<Vec<(String, u64)>> {
        (**self).list_part(prefix, after, limit).await
    }

    fn name(&self) -> String {
        (**self).name()
    }

    fn describe_hazard(&self) -> Option<String> {
        (**self).describe_hazard()
    }

    fn set_bare_tags(&self, bare: bool) -> bool {
        (**self).set_bare_tags(bare)
    }
}
