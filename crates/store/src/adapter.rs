//! Any `object_store::ObjectStore` as a [`Store`].
//!
//! Owns the translation of keys, versions and errors, nothing else. What it must never do is call
//! an outcome certain that is not: an error it does not know is [`Kind::Unknown`] for a write.
//! Whoever builds the inner store turns the crate's own retries off for writes, because it
//! repeats conditional PUTs and so may tell the winner that it lost.

use std::fmt;
use std::future::Future;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::TryStreamExt;
use object_store::path::Path;
use object_store::{GetOptions, ObjectStore, ObjectStoreExt, PutMode, UpdateVersion};

use crate::classify::classify;
use crate::exchange::{Exchange, ExchangeOutcome, observe};
use crate::key::check_prefix;
use crate::part::{first_of_all, first_of_ordered};
use crate::{Error, Kind, Op, Result, Store, Version, check_key};

/// A [`Store`] made of an `object_store` store.
#[derive(Clone)]
pub struct ObjectStoreAdapter {
    inner: Arc<dyn ObjectStore>,
    name: String,
    /// Whether versions go without their quotes, where that can be chosen.
    bare_tags: Option<Arc<AtomicBool>>,
}

/// By name alone: the inner store may hold credentials.
impl fmt::Debug for ObjectStoreAdapter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ObjectStoreAdapter")
            .field(&self.name)
            .finish()
    }
}

impl ObjectStoreAdapter {
    /// Wraps `inner`, which messages will call `name`.
    pub fn new(inner: Arc<dyn ObjectStore>, name: impl Into<String>) -> Self {
        ObjectStoreAdapter {
            inner,
            name: name.into(),
            bare_tags: None,
        }
    }

    /// The same, able to send ETags without their quotes ([`Store::set_bare_tags`]): to a store that speaks S3.
    #[must_use]
    pub fn allowing_bare_tags(self) -> Self {
        ObjectStoreAdapter {
            bare_tags: Some(Arc::default()),
            ..self
        }
    }

    fn sends_bare_tags(&self) -> bool {
        let bare = self.bare_tags.as_ref();
        bare.is_some_and(|bare| bare.load(Ordering::Acquire))
    }

    async fn write(&self, op: Op, key: &str, bytes: Bytes, mode: PutMode) -> Result<Version> {
        let path = path(op, key)?;
        let put = self.inner.put_opts(&path, bytes.into(), mode.into());
        let done = self.run(op, key, put).await?;
        Ok(join_tags(done.e_tag, done.version))
    }

    /// Runs one operation. What the store said over HTTP, if anything, decides what a failure means.
    async fn run<T>(
        &self,
        op: Op,
        key: &str,
        operation: impl Future<Output = object_store::Result<T>>,
    ) -> Result<T> {
        let (result, exchange) = observe(operation).await;
        result.map_err(|source| self.explain(op, key, source, &exchange))
    }

    fn explain(
        &self,
        op: Op,
        key: &str,
        source: object_store::Error,
        exchange: &Exchange,
    ) -> Error {
        // Deletes travel in batches, whose answer is a success that has the outcome of each inside.
        let answered = matches!(exchange.outcome, Some(ExchangeOutcome::Success));
        let is_gone = matches!(source, object_store::Error::NotFound { .. });
        if op == Op::Delete && answered && is_gone {
            return from_object_store(op, key, source);
        }
        classify(op, key, &self.name, exchange)
            .unwrap_or_else(|| from_object_store(op, key, source))
    }
}

#[async_trait]
impl Store for ObjectStoreAdapter {
    async fn get(&self, key: &str) -> Result<(Bytes, Version)> {
        let path = path(Op::Get, key)?;
        self.run(Op::Get, key, async {
            let found = self.inner.get(&path).await?;
            let version = join_tags(found.meta.e_tag.clone(), found.meta.version.clone());
            Ok((found.bytes().await?, version))
        })
        .await
    }

    async fn get_range(&self, key: &str, offset: u64, len: u64) -> Result<Bytes> {
        let path = path(Op::GetRange, key)?;
        let end = offset
            .checked_add(len)
            .ok_or_else(|| out_of_range(key, offset, len))?;
        if len == 0 {
            return Ok(Bytes::new());
        }
        let range: Range<u64> = offset..end;
        let options = GetOptions::new().with_range(Some(range));
        let (read, exchange) = observe(async {
            let found = self.inner.get_opts(&path, options).await?;
            let size = found.meta.size;
            Ok((found.bytes().await?, size))
        })
        .await;
        let (bytes, size) = match read {
            Ok(read) => read,
            Err(source) => {
                let error = self.explain(Op::GetRange, key, source, &exchange);
                // Where a range begins at the object's end some servers answer 206 and no bytes, which the
                // client takes for a broken answer: the object's size decides.
                let answered = matches!(exchange.outcome, Some(ExchangeOutcome::Success));
                let ends_before =
                    answered && matches!(self.inner.head(&path).await, Ok(meta) if meta.size < end);
                return Err(if ends_before {
                    out_of_range(key, offset, len)
                } else {
                    error
                });
            }
        };
        if u64::try_from(bytes.len()).ok() == Some(len) {
            return Ok(bytes);
        }
        // Stores cut a range at the object's end and answer success. What is missing of an object that is
        // long enough was lost on the way.
        if size < end {
            return Err(out_of_range(key, offset, len));
        }
        let detail = format!(
            "the answer has {} bytes of {len}; look at the proxy or the network in between",
            bytes.len()
        );
        Err(Error::new(Kind::Unavailable, Op::GetRange, key, detail))
    }

    async fn put(&self, key: &str, bytes: Bytes) -> Result<Version> {
        self.write(Op::Put, key, bytes, PutMode::Overwrite).await
    }

    async fn create(&self, key: &str, bytes: Bytes) -> Result<Version> {
        self.write(Op::Create, key, bytes, PutMode::Create).await
    }

    async fn update(&self, key: &str, bytes: Bytes, version: &Version) -> Result<Version> {
        let mut tags = split_tags(version);
        if self.sends_bare_tags() {
            tags.e_tag = tags.e_tag.map(without_quotes);
        }
        let mode = PutMode::Update(tags);
        self.write(Op::Update, key, bytes, mode).await
    }

    async fn delete(&self, key: &str) -> Result<()> {
        let path = path(Op::Delete, key)?;
        match self.run(Op::Delete, key, self.inner.delete(&path)).await {
            Err(error) if error.kind() == Kind::NotFound => Ok(()),
            done => done,
        }
    }

    async fn list(&self, prefix: &str) -> Result<Vec<(String, u64)>> {
        check_prefix(Op::List, prefix)?;
        let under = match prefix.strip_suffix('/') {
            Some(dir) => Some(path(Op::List, dir)?),
            None => None,
        };
        let mut found: Vec<(String, u64)> = self
            .run(Op::List, prefix, async {
                self.inner
                    .list(under.as_ref())
                    .map_ok(|meta| (meta.location.to_string(), meta.size))
                    .try_collect()
                    .await
            })
            .await?;
        found.sort_unstable();
        Ok(found)
    }

    async fn list_part(
        &self,
        prefix: &str,
        after: &str,
        limit: usize,
    ) -> Result<Vec<(String, u64)>> {
        check_prefix(Op::List, prefix)?;
        let under = match prefix.strip_suffix('/') {
            Some(dir) => Some(path(Op::List, dir)?),
            None => None,
        };
        let under = under.as_ref();
        let ordered = match after {
            "" => self.inner.list(under),
            after => self.inner.list_with_offset(under, &path(Op::List, after)?),
        };
        self.run(Op::List, prefix, async {
            match first_of_ordered(ordered, after, limit).await? {
                Some(found) => Ok(found),
                None => first_of_all(self.inner.list(under), after, limit).await,
            }
        })
        .await
    }

    fn name(&self) -> String {
        self.name.clone()
    }

    fn set_bare_tags(&self, bare: bool) -> bool {
        let Some(flag) = &self.bare_tags else {
            return false;
        };
        flag.store(bare, Ordering::Release);
        true
    }
}

fn path(op: Op, key: &str) -> Result<Path> {
    check_key(op, key)?;
    Path::parse(key).map_err(|source| {
        Error::new(Kind::Invalid, op, key, "the store cannot hold this key").with_source(source)
    })
}

fn out_of_range(key: &str, offset: u64, len: u64) -> Error {
    let detail = format!(
        "bytes {offset}+{len} are not all inside the object; read its size with list first"
    );
    Error::new(Kind::OutOfRange, Op::GetRange, key, detail)
}

/// Some services condition on the ETag, some on a version number: both travel in one [`Version`].
fn join_tags(e_tag: Option<String>, version: Option<String>) -> Version {
    let mut text = e_tag.unwrap_or_default();
    if let Some(version) = version {
        text.push('\n');
        text.push_str(&version);
    }
    Version(text)
}

fn split_tags(version: &Version) -> UpdateVersion {
    let (e_tag, number) = match version.0.split_once('\n') {
        Some((e_tag, number)) => (e_tag, Some(number.to_owned())),
        None => (version.0.as_str(), None),
    };
    let e_tag = (!e_tag.is_empty()).then(|| e_tag.to_owned());
    UpdateVersion {
        e_tag,
        version: number,
    }
}

/// What stands between the quotes of a strong ETag; anything else stays as it is.
fn without_quotes(tag: String) -> String {
    let inner = tag.strip_prefix('"').and_then(|tag| tag.strip_suffix('"'));
    match inner {
        Some(inner) if !inner.is_empty() => inner.to_owned(),
        _ => tag,
    }
}

fn from_object_store(op: Op, key: &str, source: object_store::Error) -> Error {
    use object_store::Error as Inner;
    let (kind, detail) = match &source {
        Inner::NotFound { .. } => (Kind::NotFound, "there is no such object"),
        // In create mode a 409 (another conditional request is in progress) arrives as
        // `AlreadyExists`, and one service answered 304 for 412: all are the loser's outcome.
        Inner::AlreadyExists { .. } | Inner::Precondition { .. } | Inner::NotModified { .. } => (
            Kind::PreconditionFailed,
            "another writer changed the object first; read it again",
        ),
        Inner::NotImplemented { .. } | Inner::NotSupported { .. } => (
            Kind::Unsupported,
            "the store does not offer this operation; use one with conditional PUT (If-Match)",
        ),
        Inner::PermissionDenied { .. } | Inner::Unauthenticated { .. } => (
            Kind::Denied,
            "the store refuses the credentials; check the key and the bucket's policy",
        ),
        Inner::InvalidPath { .. } | Inner::UnknownConfigurationKey { .. } => {
            (Kind::Invalid, "the store cannot hold this key")
        }
        _ if op.writes() => (
            Kind::Unknown,
            "the store did not say whether it was done; read the object back before trying again",
        ),
        _ => (
            Kind::Unavailable,
            "the store did not answer; check its address and the network",
        ),
    };
    Error::new(kind, op, key, detail).with_source(source)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_tags_of_a_version_survive_the_round_trip() {
        for (e_tag, number) in [
            (Some("\"e\""), None),
            (Some("\"e\""), Some("7")),
            (None, Some("7")),
            (None, None),
        ] {
            let version = join_tags(e_tag.map(str::to_owned), number.map(str::to_owned));
            let split = split_tags(&version);
            assert_eq!(split.e_tag.as_deref(), e_tag);
            assert_eq!(split.version.as_deref(), number);
        }
    }

    #[test]
    fn an_unrecognised_failure_of_a_write_is_unknown_and_of_a_read_unavailable() {
        let generic = || object_store::Error::Generic {
            store: "S3",
            source: "reset".into(),
        };
        assert_eq!(
            from_object_store(Op::Update, "k", generic()).kind(),
            Kind::Unknown
        );
        assert_eq!(
            from_object_store(Op::Get, "k", generic()).kind(),
            Kind::Unavailable
        );
    }
}
