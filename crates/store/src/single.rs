//! Conditions emulated for a store that has none, for users who vouch for a single writer.
//!
//! Compare and put are two requests here, so two servers *can* overwrite each other: this exists
//! only behind `--single-writer`, and must never be chosen by firn itself.

use async_trait::async_trait;
use bytes::Bytes;

use crate::{Error, Kind, Op, Result, Store, Version};

/// Turns `create` and `update` into a read, a comparison and a plain `put`.
#[derive(Debug)]
pub struct SingleWriterStore<S> {
    inner: S,
}

impl<S: Store> SingleWriterStore<S> {
    /// Wraps `inner`, whose conditions are no longer used.
    pub fn new(inner: S) -> Self {
        SingleWriterStore { inner }
    }
}

#[async_trait]
impl<S: Store> Store for SingleWriterStore<S> {
    async fn get(&self, key: &str) -> Result<(Bytes, Version)> {
        self.inner.get(key).await
    }

    async fn get_range(&self, key: &str, offset: u64, len: u64) -> Result<Bytes> {
        self.inner.get_range(key, offset, len).await
    }

    async fn put(&self, key: &str, bytes: Bytes) -> Result<Version> {
        self.inner.put(key, bytes).await
    }

    async fn create(&self, key: &str, bytes: Bytes) -> Result<Version> {
        match self.inner.get(key).await {
            Ok(_) => Err(Error::new(
                Kind::PreconditionFailed,
                Op::Create,
                key,
                "the object exists",
            )),
            Err(error) if error.kind() == Kind::NotFound => self.inner.put(key, bytes).await,
            Err(error) => Err(error),
        }
    }

    async fn update(&self, key: &str, bytes: Bytes, version: &Version) -> Result<Version> {
        let (_, now) = self.inner.get(key).await?;
        if now != *version {
            return Err(Error::new(
                Kind::PreconditionFailed,
                Op::Update,
                key,
                "another writer changed the object first; read it again",
            ));
        }
        self.inner.put(key, bytes).await
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
}
