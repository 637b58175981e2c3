//! Retries, faults, the single-writer emulation and the probe, on a store in memory.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use object_store::memory::InMemory;
use store::{
    DirStore, Error, FaultKind, FaultPlan, FaultyStore, Kind, ObjectStoreAdapter, Op, Rate, Result,
    RetryPolicy, RetryStore, SharedStore, SingleWriterStore, Store, Version, probe,
};

fn memory() -> SharedStore {
    Arc::new(ObjectStoreAdapter::new(Arc::new(InMemory::new()), "memory"))
}

fn bytes(text: &str) -> Bytes {
    Bytes::copy_from_slice(text.as_bytes())
}

/// A store that ignores conditions, or answers that it has none, or never answers; it counts
/// what it was asked.
#[derive(Debug)]
struct MisbehavingStore {
    inner: SharedStore,
    how: Misbehaviour,
    asked: AtomicU64,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Misbehaviour {
    IgnoresCreate,
    IgnoresUpdate,
    HasNoConditions,
    NeverAnswers,
    Denies,
}

impl MisbehavingStore {
    fn new(how: Misbehaviour) -> Arc<Self> {
        Arc::new(MisbehavingStore {
            inner: memory(),
            how,
            asked: AtomicU64::new(0),
        })
    }

    async fn misbehave(&self, op: Op) -> Result<()> {
        self.asked.fetch_add(1, Ordering::SeqCst);
        match self.how {
            Misbehaviour::NeverAnswers => std::future::pending().await,
            Misbehaviour::Denies => Err(Error::new(Kind::Denied, op, "k", "no")),
            Misbehaviour::HasNoConditions if matches!(op, Op::Create | Op::Update) => {
                Err(Error::new(Kind::Unsupported, op, "k", "no conditions"))
            }
            _ => Ok(()),
        }
    }
}

#[async_trait]
impl Store for MisbehavingStore {
    async fn get(&self, key: &str) -> Result<(Bytes, Version)> {
        self.misbehave(Op::Get).await?;
        self.inner.get(key).await
    }

    async fn get_range(&self, key: &str, offset: u64, len: u64) -> Result<Bytes> {
        self.misbehave(Op::GetRange).await?;
        self.inner.get_range(key, offset, len).await
    }

    async fn put(&self, key: &str, bytes: Bytes) -> Result<Version> {
        self.misbehave(Op::Put).await?;
        self.inner.put(key, bytes).await
    }

    async fn create(&self, key: &str, bytes: Bytes) -> Result<Version> {
        self.misbehave(Op::Create).await?;
        match self.how {
            Misbehaviour::IgnoresCreate => self.inner.put(key, bytes).await,
            _ => self.inner.create(key, bytes).await,
        }
    }

    async fn update(&self, key: &str, bytes: Bytes, version: &Version) -> Result<Version> {
        self.misbehave(Op::Update).await?;
        match self.how {
            Misbehaviour::IgnoresUpdate => self.inner.put(key, bytes).await,
            _ => self.inner.update(key, bytes, version).await,
        }
    }

    async fn delete(&self, key: &str) -> Result<()> {
        self.misbehave(Op::Delete).await?;
        self.inner.delete(key).await
    }

    async fn list(&self, prefix: &str) -> Result<Vec<(String, u64)>> {
        self.misbehave(Op::List).await?;
        self.inner.list(prefix).await
    }

    async fn list_part(
        &self,
        prefix: &str,
        after: &str,
        limit: usize,
    ) -> Result<Vec<(String, u64)>> {
        self.misbehave(Op::List).await?;
        self.inner.list_part(prefix, after, limit).await
    }

    fn name(&self) -> String {
        "odd store".to_owned()
    }
}

#[tokio::test]
async fn the_probe_passes_a_store_with_conditions_and_cleans_up() {
    let dir = tempfile::tempdir().unwrap();
    let on_disk: SharedStore = Arc::new(DirStore::open(&dir.path().join("s")).unwrap());
    for store in [memory(), on_disk] {
        let report = probe(&store, false).await.unwrap();
        assert!(report.can_fence() && report.fresh_versions, "{report:?}");
        assert_eq!(store.list("").await.unwrap(), []);
    }
}

#[tokio::test]
async fn the_probe_refuses_a_store_without_conditional_put_unless_single_writer() {
    for how in [
        Misbehaviour::IgnoresCreate,
        Misbehaviour::IgnoresUpdate,
        Misbehaviour::HasNoConditions,
    ] {
        let store = MisbehavingStore::new(how);
        let error = probe(&store, false).await.unwrap_err();
        assert_eq!(error.kind(), Kind::Unsupported, "{how:?}");
        let text = error.to_string();
        assert!(
            text.contains("odd store") && text.contains("--single-writer"),
            "{text}"
        );
        assert_eq!(
            store.inner.list("").await.unwrap(),
            [],
            "{how:?} leaves nothing behind"
        );

        let report = probe(&store, true).await.unwrap();
        assert!(!report.can_fence(), "{how:?}");
    }
}

#[tokio::test]
async fn the_probe_reports_refused_credentials_even_to_a_single_writer() {
    let store = MisbehavingStore::new(Misbehaviour::Denies);
    assert_eq!(probe(&store, true).await.unwrap_err().kind(), Kind::Denied);
}

#[tokio::test]
async fn single_writer_emulates_conditions_on_a_store_that_has_none() {
    let store = SingleWriterStore::new(MisbehavingStore::new(Misbehaviour::HasNoConditions));
    let first = store.create("k", bytes("1")).await.unwrap();
    assert_eq!(
        store.create("k", bytes("2")).await.unwrap_err().kind(),
        Kind::PreconditionFailed
    );
    store.update("k", bytes("2"), &first).await.unwrap();
    assert_eq!(
        store
            .update("k", bytes("3"), &first)
            .await
            .unwrap_err()
            .kind(),
        Kind::PreconditionFailed
    );
    assert_eq!(store.get("k").await.unwrap().0, bytes("2"));
}

fn short_retries() -> RetryPolicy {
    RetryPolicy {
        pause_first: Duration::from_millis(10),
        pause_max: Duration::from_millis(200),
        attempt: Duration::from_secs(1),
        attempt_per_mib: Duration::ZERO,
        deadline: Duration::from_secs(20),
    }
}

#[tokio::test(start_paused = true)]
async fn reads_and_plain_puts_outlive_a_flaky_store() {
    let plan = FaultPlan {
        refuse: Rate(300),
        lose_request: Rate(200),
        lose_answer: Rate(200),
        delay: Rate(100),
        delay_max: Duration::from_millis(1500),
    };
    let faults = Arc::new(FaultyStore::new(memory(), 7, plan));
    let store = RetryStore::new(Arc::clone(&faults), short_retries());
    for n in 0..200 {
        let (key, content) = (format!("packs/{n}"), bytes(&n.to_string()));
        store.put(&key, content.clone()).await.unwrap();
        assert_eq!(store.get(&key).await.unwrap().0, content);
        assert_eq!(
            store.get_range(&key, 0, 1).await.unwrap(),
            content.slice(..1)
        );
        if n % 2 == 0 {
            store.delete(&key).await.unwrap();
        }
    }
    assert_eq!(store.list("packs/").await.unwrap().len(), 100);
    for kind in FaultKind::ALL {
        assert_eq!(
            faults.count(kind) > 0,
            kind != FaultKind::Outage,
            "{kind:?}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn an_unknown_conditional_write_is_reported_once_and_not_repeated() {
    let odd = MisbehavingStore::new(Misbehaviour::IgnoresCreate);
    let plan = FaultPlan {
        lose_answer: Rate(1000),
        ..FaultPlan::default()
    };
    let store = RetryStore::new(FaultyStore::new(Arc::clone(&odd), 1, plan), short_retries());
    let error = store.create("k", bytes("1")).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Unknown);
    assert_eq!(odd.asked.load(Ordering::SeqCst), 1);
    assert_eq!(
        odd.inner.get("k").await.unwrap().0,
        bytes("1"),
        "it was applied all the same"
    );
}

#[tokio::test(start_paused = true)]
async fn a_refused_conditional_write_is_repeated_and_wins_once() {
    let plan = FaultPlan {
        refuse: Rate(500),
        ..FaultPlan::default()
    };
    let faults = Arc::new(FaultyStore::new(memory(), 3, plan));
    let store = RetryStore::new(Arc::clone(&faults), short_retries());
    let mut version = store.create("root", bytes("0")).await.unwrap();
    for n in 1..50 {
        version = store
            .update("root", bytes(&n.to_string()), &version)
            .await
            .unwrap();
    }
    assert_eq!(store.get("root").await.unwrap(), (bytes("49"), version));
    assert!(faults.count(FaultKind::Refused) > 0);
}

#[tokio::test(start_paused = true)]
async fn a_silent_store_ends_in_a_time_out_of_the_right_kind() {
    let odd = MisbehavingStore::new(Misbehaviour::NeverAnswers);
    let store = RetryStore::new(Arc::clone(&odd), short_retries());
    let started = tokio::time::Instant::now();
    assert_eq!(store.get("k").await.unwrap_err().kind(), Kind::Unavailable);
    let took = started.elapsed();
    let bound = short_retries().deadline + short_retries().attempt;
    assert!(
        took > short_retries().attempt * 2 && took <= bound,
        "{took:?}"
    );

    odd.asked.store(0, Ordering::SeqCst);
    assert_eq!(
        store.create("k", bytes("1")).await.unwrap_err().kind(),
        Kind::Unknown
    );
    assert_eq!(odd.asked.load(Ordering::SeqCst), 1);
}

#[tokio::test(start_paused = true)]
async fn an_outage_ends_when_it_is_switched_off() {
    let faults = Arc::new(FaultyStore::new(memory(), 1, FaultPlan::default()));
    let store = Arc::new(RetryStore::new(Arc::clone(&faults), short_retries()));
    faults.set_outage(true);
    let waiting = tokio::spawn({
        let store = Arc::clone(&store);
        async move { store.put("k", bytes("1")).await }
    });
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert!(!waiting.is_finished());
    faults.set_outage(false);
    waiting.await.unwrap().unwrap();
    assert!(faults.count(FaultKind::Outage) > 0);
    assert_eq!(store.get("k").await.unwrap().0, bytes("1"));
}

#[tokio::test(start_paused = true)]
async fn the_same_seed_fails_alike() {
    let run = |seed| async move {
        let plan = FaultPlan {
            refuse: Rate(400),
            lose_answer: Rate(300),
            ..Default::default()
        };
        let store = FaultyStore::new(memory(), seed, plan);
        let mut outcomes = Vec::new();
        for _ in 0..64 {
            outcomes.push(
                store
                    .put("k", bytes("1"))
                    .await
                    .map_err(|error| error.kind())
                    .err(),
            );
        }
        outcomes
    };
    assert_eq!(run(5).await, run(5).await);
    assert_ne!(run(5).await, run(6).await);
}
