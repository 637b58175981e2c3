//! Admission and second requests, on tokio's own clock: no test waits for real time.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::future::join_all;
use store::{
    Class, Error, GovernedStore, Governor, GovernorPolicy, HedgePolicy, HedgedStore, Kind, Op,
    Result, RetryPolicy, RetryStore, Store, Version, WindowBounds,
};
use tokio::time::{Instant, sleep};

/// A store that answers after a delay, refuses what exceeds its capacity, and remembers the most
/// that ran at once.
#[derive(Debug, Default)]
struct ScriptedStore {
    latency_ms: AtomicU64,
    capacity: AtomicU64,
    running: AtomicU64,
    most: AtomicU64,
    asked: AtomicU64,
    slow_once: AtomicU64,
}

impl ScriptedStore {
    fn new(latency_ms: u64, capacity: u64) -> Arc<Self> {
        Arc::new(ScriptedStore {
            latency_ms: AtomicU64::new(latency_ms),
            capacity: AtomicU64::new(capacity),
            ..ScriptedStore::default()
        })
    }

    async fn serve(&self, op: Op) -> Result<()> {
        self.asked.fetch_add(1, Ordering::SeqCst);
        let running = self.running.fetch_add(1, Ordering::SeqCst) + 1;
        self.most.fetch_max(running, Ordering::SeqCst);
        let slow = self.slow_once.swap(0, Ordering::SeqCst);
        let latency = self.latency_ms.load(Ordering::SeqCst).max(slow);
        sleep(Duration::from_millis(latency)).await;
        self.running.fetch_sub(1, Ordering::SeqCst);
        if running > self.capacity.load(Ordering::SeqCst) {
            return Err(Error::new(Kind::Unavailable, op, "k", "slow down").overloaded());
        }
        Ok(())
    }
}

#[async_trait]
impl Store for ScriptedStore {
    async fn get(&self, _: &str) -> Result<(Bytes, Version)> {
        self.serve(Op::Get).await?;
        Ok((Bytes::new(), Version(String::new())))
    }

    async fn get_range(&self, _: &str, _: u64, len: u64) -> Result<Bytes> {
        self.serve(Op::GetRange).await?;
        Ok(Bytes::from(vec![0; usize::try_from(len).unwrap()]))
    }

    async fn put(&self, _: &str, _: Bytes) -> Result<Version> {
        self.serve(Op::Put).await?;
        Ok(Version(String::new()))
    }

    async fn create(&self, _: &str, _: Bytes) -> Result<Version> {
        self.serve(Op::Create).await?;
        Ok(Version(String::new()))
    }

    async fn update(&self, _: &str, _: Bytes, _: &Version) -> Result<Version> {
        self.serve(Op::Update).await?;
        Ok(Version(String::new()))
    }

    async fn delete(&self, _: &str) -> Result<()> {
        self.serve(Op::Delete).await
    }

    async fn list(&self, _: &str) -> Result<Vec<(String, u64)>> {
        self.serve(Op::List).await?;
        Ok(Vec::new())
    }

    async fn list_part(&self, prefix: &str, _: &str, _: usize) -> Result<Vec<(String, u64)>> {
        self.list(prefix).await
    }

    fn name(&self) -> String {
        "scripted".to_owned()
    }
}

fn policy(first: f64) -> GovernorPolicy {
    let window = |beside| WindowBounds {
        first,
        max: 64.0,
        beside,
    };
    GovernorPolicy {
        windows: [window(64.0), window(2.0), window(1.0)],
    }
}

fn overload() -> Error {
    Error::new(Kind::Unavailable, Op::Put, "k", "slow down").overloaded()
}

fn governed(
    store: &Arc<ScriptedStore>,
    governor: &Arc<Governor>,
) -> Arc<GovernedStore<RetryStore<Arc<ScriptedStore>>>> {
    let retried = RetryStore::new(Arc::clone(store), RetryPolicy::default())
        .reporting_to(Arc::clone(governor));
    Arc::new(GovernedStore::new(retried, Arc::clone(governor)))
}

#[tokio::test(start_paused = true)]
async fn no_more_requests_run_than_their_window_admits() {
    let scripted = ScriptedStore::new(20, u64::MAX);
    let governor = Governor::new(GovernorPolicy {
        windows: policy(4.0)
            .windows
            .map(|window| WindowBounds { max: 4.0, ..window }),
    });
    let store = governed(&scripted, &governor);
    join_all((0..40).map(|_| store.get_range("k", 0, 1))).await;
    assert_eq!(scripted.most.load(Ordering::SeqCst), 4);
    assert_eq!(scripted.asked.load(Ordering::SeqCst), 40);
}

#[tokio::test(start_paused = true)]
async fn a_full_window_grows_by_one_a_round_and_an_idle_one_not_at_all() {
    let scripted = ScriptedStore::new(20, u64::MAX);
    let governor = Governor::new(policy(4.0));
    let store = governed(&scripted, &governor);
    for _ in 0..100 {
        store.get_range("k", 0, 1).await.unwrap();
    }
    assert!(governor.window(Class::Fetch) < 4.1, "one at a time");
    join_all((0..400).map(|_| store.get_range("k", 0, 1))).await;
    let grown = governor.window(Class::Fetch);
    // A round of n requests adds one, so 400 add the n for which 4 + 5 + … + n is 400.
    assert!((20.0..32.0).contains(&grown), "{grown}");
}

#[tokio::test(start_paused = true)]
async fn a_window_settles_at_what_the_store_bears() {
    let scripted = ScriptedStore::new(20, 10);
    let governor = Governor::new(policy(32.0));
    let store = governed(&scripted, &governor);
    let tasks = (0..32).map(|_| {
        let store = Arc::clone(&store);
        tokio::spawn(async move {
            for _ in 0..40 {
                let _ = store.put("k", Bytes::new()).await;
            }
        })
    });
    join_all(tasks).await;
    let settled = governor.window(Class::Upload);
    assert!((4.0..14.0).contains(&settled), "{settled}");
}

#[tokio::test(start_paused = true)]
async fn requests_that_failed_together_halve_the_window_once() {
    let governor = Governor::new(policy(16.0));
    let mut permits = Vec::new();
    for _ in 0..16 {
        permits.push(governor.admit(Class::Upload).await);
    }
    for _ in 0..16 {
        governor.report(Op::Put, Some(&overload()));
    }
    assert!((governor.window(Class::Upload) - 8.0).abs() < 0.01);
    assert!((governor.window(Class::Fetch) - 16.0).abs() < 0.01);
    assert!(governor.window(Class::Gc) < 16.0, "gc makes room");
    for _ in 0..100 {
        governor.report(Op::Put, Some(&overload()));
    }
    assert!(governor.window(Class::Upload) >= 1.0, "never starved");
}

#[tokio::test(start_paused = true)]
async fn what_somebody_waits_for_goes_before_uploads_and_gc() {
    let governor = Governor::new(policy(4.0));
    let mut fetches = Vec::new();
    for _ in 0..4 {
        fetches.push(governor.admit(Class::Fetch).await);
    }
    // A fifth fetch waits, so that uploads and gc keep to their share beside it.
    let waiting = tokio::spawn({
        let governor = Arc::clone(&governor);
        async move { drop(governor.admit(Class::Fetch).await) }
    });
    tokio::task::yield_now().await;
    let admitted = |class, count: usize| {
        let governor = Arc::clone(&governor);
        async move {
            let mut permits = Vec::new();
            for _ in 0..count {
                let soon = Duration::from_secs(1);
                match tokio::time::timeout(soon, governor.admit(class)).await {
                    Ok(permit) => permits.push(permit),
                    Err(_) => break,
                }
            }
            permits
        }
    };
    let uploads = admitted(Class::Upload, 4).await;
    assert_eq!(uploads.len(), 2);
    let gc = admitted(Class::Gc, 4).await;
    assert_eq!(gc.len(), 1);
    drop(fetches);
    waiting.await.unwrap();
    assert_eq!(admitted(Class::Upload, 2).await.len(), 2, "room again");
}

#[tokio::test(start_paused = true)]
async fn a_caller_that_goes_away_leaves_no_permit_behind() {
    let governor = Governor::new(policy(1.0));
    let held = governor.admit(Class::Fetch).await;
    let gone = tokio::time::timeout(Duration::from_secs(1), governor.admit(Class::Fetch)).await;
    assert!(gone.is_err());
    drop(held);
    let soon = Duration::from_secs(1);
    let next = tokio::time::timeout(soon, governor.admit(Class::Fetch)).await;
    assert!(next.is_ok());
}

#[tokio::test(start_paused = true)]
async fn commits_wait_for_no_pack() {
    let scripted = ScriptedStore::new(20, u64::MAX);
    let governor = Governor::new(policy(1.0));
    let store = governed(&scripted, &governor);
    let _held = governor.admit(Class::Upload).await;
    let begun = Instant::now();
    store.create("root", Bytes::new()).await.unwrap();
    assert_eq!(begun.elapsed(), Duration::from_millis(20));
}

#[tokio::test(start_paused = true)]
async fn a_read_slower_than_almost_all_is_asked_for_twice() {
    let scripted = ScriptedStore::new(20, u64::MAX);
    let store = HedgedStore::new(Arc::clone(&scripted), HedgePolicy::default());
    for _ in 0..40 {
        store.get_range("k", 0, 1).await.unwrap();
    }
    assert_eq!(store.hedged(), 0);
    scripted.slow_once.store(5000, Ordering::SeqCst);
    let begun = Instant::now();
    store.get_range("k", 0, 1).await.unwrap();
    assert_eq!(store.hedged(), 1);
    assert!(
        begun.elapsed() <= Duration::from_millis(45),
        "{:?}",
        begun.elapsed()
    );
}

#[tokio::test(start_paused = true)]
async fn a_store_that_is_slow_as_a_whole_is_not_asked_twice_for_everything() {
    let scripted = ScriptedStore::new(20, u64::MAX);
    let store = HedgedStore::new(Arc::clone(&scripted), HedgePolicy::default());
    for _ in 0..200 {
        store.get_range("k", 0, 1).await.unwrap();
    }
    scripted.latency_ms.store(500, Ordering::SeqCst);
    join_all((0..1000).map(|_| store.get_range("k", 0, 1))).await;
    assert!(store.hedged() <= 61, "{}", store.hedged());
}

#[tokio::test(start_paused = true)]
async fn a_write_is_never_asked_for_twice() {
    let scripted = ScriptedStore::new(20, u64::MAX);
    let store = HedgedStore::new(Arc::clone(&scripted), HedgePolicy::default());
    for _ in 0..100 {
        store.put("k", Bytes::new()).await.unwrap();
    }
    scripted.slow_once.store(5000, Ordering::SeqCst);
    store.put("k", Bytes::new()).await.unwrap();
    assert_eq!(scripted.asked.load(Ordering::SeqCst), 101);
}
