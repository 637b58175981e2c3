//! What becomes of an answer that was cut short between the store and here.

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::stream::{self, BoxStream, StreamExt};
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{
    CopyOptions, GetOptions, GetResult, GetResultPayload, ListResult, MultipartUpload, ObjectMeta,
    ObjectStore, PutMultipartOptions, PutOptions, PutPayload, PutResult, Result,
};
use store::{Kind, ObjectStoreAdapter, Store};

/// A store behind something that passes on at most three bytes of an answer, whole as it may look.
#[derive(Debug)]
struct BehindProxy(InMemory);

impl fmt::Display for BehindProxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[async_trait]
impl ObjectStore for BehindProxy {
    async fn put_opts(&self, at: &Path, data: PutPayload, how: PutOptions) -> Result<PutResult> {
        self.0.put_opts(at, data, how).await
    }

    async fn put_multipart_opts(
        &self,
        at: &Path,
        how: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        self.0.put_multipart_opts(at, how).await
    }

    async fn get_opts(&self, at: &Path, how: GetOptions) -> Result<GetResult> {
        let found = self.0.get_opts(at, how).await?;
        let (meta, range, attributes) = (
            found.meta.clone(),
            found.range.clone(),
            found.attributes.clone(),
        );
        let bytes = found.bytes().await?;
        let passed = bytes.slice(..bytes.len().min(3));
        Ok(GetResult {
            payload: GetResultPayload::Stream(stream::iter([Ok(passed)]).boxed()),
            meta,
            range,
            attributes,
            extensions: Default::default(),
        })
    }

    fn delete_stream(
        &self,
        all: BoxStream<'static, Result<Path>>,
    ) -> BoxStream<'static, Result<Path>> {
        self.0.delete_stream(all)
    }

    fn list(&self, under: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        self.0.list(under)
    }

    async fn list_with_delimiter(&self, under: Option<&Path>) -> Result<ListResult> {
        self.0.list_with_delimiter(under).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, how: CopyOptions) -> Result<()> {
        self.0.copy_opts(from, to, how).await
    }
}

#[tokio::test]
async fn an_answer_that_is_cut_short_is_no_object_that_is_too_short() {
    let store = ObjectStoreAdapter::new(Arc::new(BehindProxy(InMemory::new())), "memory");
    let content = Bytes::from_static(b"0123456789");
    store.put("k", content).await.unwrap();
    assert_eq!(store.get_range("k", 4, 3).await.unwrap(), "456");
    let cut = store.get_range("k", 4, 6).await.unwrap_err();
    assert_eq!(cut.kind(), Kind::Unavailable, "{cut}");
    let beyond = store.get_range("k", 4, 7).await.unwrap_err();
    assert_eq!(beyond.kind(), Kind::OutOfRange, "{beyond}");
}
