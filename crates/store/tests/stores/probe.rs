//! The probe on stores that are right, and on ones that are subtly wrong.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use bytes::Bytes;
use store::{
    Condition, Error, FaultKind, FaultPlan, FaultyStore, Kind, Op, Rate, Result, Store, Version,
    probe,
};

/// A store whose versions are taken from the content alone, as S3's ETags are.
#[derive(Debug, Default)]
struct ContentVersions {
    objects: Mutex<BTreeMap<String, Bytes>>,
    /// If-Match on a missing key is taken for a create, as a MinIO of before 2025-09 did.
    updates_missing: bool,
    /// If-Match is never met, as on Ceph radosgw 16, which takes the quotes off an ETag.
    refuses_updates: bool,
    /// What is known against it.
    hazard: Option<String>,
}

fn version(bytes: &Bytes) -> Version {
    Version(String::from_utf8_lossy(bytes).into_owned())
}

fn fail(kind: Kind, op: Op) -> Error {
    Error::new(kind, op, "k", "as planned")
}

#[async_trait]
impl Store for ContentVersions {
    async fn get(&self, key: &str) -> Result<(Bytes, Version)> {
        let objects = self.objects.lock().unwrap();
        let bytes = objects.get(key).ok_or(fail(Kind::NotFound, Op::Get))?;
        Ok((bytes.clone(), version(bytes)))
    }

    async fn get_range(&self, key: &str, _: u64, _: u64) -> Result<Bytes> {
        Ok(self.get(key).await?.0)
    }

    async fn put(&self, key: &str, bytes: Bytes) -> Result<Version> {
        let version = version(&bytes);
        self.objects.lock().unwrap().insert(key.to_owned(), bytes);
        Ok(version)
    }

    async fn create(&self, key: &str, bytes: Bytes) -> Result<Version> {
        if self.objects.lock().unwrap().contains_key(key) {
            return Err(fail(Kind::PreconditionFailed, Op::Create));
        }
        self.put(key, bytes).await
    }

    async fn update(&self, key: &str, bytes: Bytes, expected: &Version) -> Result<Version> {
        let found = self.objects.lock().unwrap().get(key).map(version);
        match found {
            Some(_) if self.refuses_updates => Err(fail(Kind::PreconditionFailed, Op::Update)),
            Some(found) if found == *expected => self.put(key, bytes).await,
            None if self.updates_missing => self.put(key, bytes).await,
            None => Err(fail(Kind::NotFound, Op::Update)),
            Some(_) => Err(fail(Kind::PreconditionFailed, Op::Update)),
        }
    }

    async fn delete(&self, key: &str) -> Result<()> {
        self.objects.lock().unwrap().remove(key);
        Ok(())
    }

    async fn list(&self, prefix: &str) -> Result<Vec<(String, u64)>> {
        let objects = self.objects.lock().unwrap();
        let found = objects.keys().filter(|key| key.starts_with(prefix));
        Ok(found.map(|key| (key.clone(), 0)).collect())
    }

    async fn list_part(
        &self,
        prefix: &str,
        after: &str,
        limit: usize,
    ) -> Result<Vec<(String, u64)>> {
        let mut found = self.list(prefix).await?;
        found.retain(|(key, _)| key.as_str() > after);
        found.truncate(limit);
        Ok(found)
    }

    fn name(&self) -> String {
        "content versions".to_owned()
    }

    fn describe_hazard(&self) -> Option<String> {
        self.hazard.clone()
    }
}

#[tokio::test]
async fn versions_that_come_from_the_content_alone_do_not_fool_the_probe() {
    let store = ContentVersions::default();
    let report = probe(&store, false).await.unwrap();
    assert!(report.can_fence() && !report.fresh_versions, "{report:?}");
    assert_eq!(store.list("").await.unwrap(), [], "cleaned up");
}

#[tokio::test]
async fn a_directory_whose_locks_may_be_lost_is_refused_unless_single_writer() {
    let store = store::with_policies(Arc::new(ContentVersions {
        hazard: Some("/mnt/nas is mounted as nfs4".to_owned()),
        ..ContentVersions::default()
    }));
    let refused = probe(&store, false).await.unwrap_err();
    assert_eq!(refused.kind(), Kind::Unsupported);
    let text = refused.to_string();
    assert!(
        text.contains("nfs4") && text.contains("--single-writer"),
        "{text}"
    );
    let report = probe(&store, true).await.unwrap();
    assert!(!report.can_fence(), "{report:?}");
    assert_eq!(report.update, Condition::OneWins);
}

#[tokio::test]
async fn a_store_that_replaces_what_was_deleted_is_refused() {
    let store = ContentVersions {
        updates_missing: true,
        ..ContentVersions::default()
    };
    let error = probe(&store, false).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Unsupported);
    assert!(error.to_string().contains("missing key"), "{error}");
    assert_eq!(store.list("").await.unwrap(), [], "cleaned up");
}

#[tokio::test]
async fn a_store_that_no_write_reaches_is_told_by_the_write_not_by_what_is_missing_after_it() {
    let plan = FaultPlan {
        lose_request: Rate(1000),
        ..FaultPlan::default()
    };
    let store = FaultyStore::new(ContentVersions::default(), 1, plan);
    for single_writer in [false, true] {
        let error = probe(&store, single_writer).await.unwrap_err();
        assert_eq!((error.kind(), error.op()), (Kind::Unknown, Op::Create));
    }
    assert!(store.count(FaultKind::LostRequest) > 0);
}

#[tokio::test]
async fn a_store_that_refuses_the_right_version_too_is_not_said_to_let_two_win() {
    let store = ContentVersions {
        refuses_updates: true,
        ..ContentVersions::default()
    };
    let report = probe(&store, true).await.unwrap();
    assert_eq!(
        (report.create, report.update),
        (Condition::OneWins, Condition::NobodyWins)
    );
    let error = probe(&store, false).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Unsupported);
    let text = error.to_string();
    for part in ["refused all", "right version", "--single-writer"] {
        assert!(text.contains(part), "{text}");
    }
    assert_eq!(store.list("").await.unwrap(), [], "cleaned up");
}
