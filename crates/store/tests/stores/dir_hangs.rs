//! A file system that hangs must not take everything else with it.

use std::fs::OpenOptions;
use std::time::Duration;

use bytes::Bytes;
use store::{DirStore, Store};
use tokio::time::timeout;

#[test]
fn calls_that_hang_leave_threads_for_others() {
    let dir = tempfile::tempdir().unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .max_blocking_threads(128)
        .build()
        .unwrap();
    let store = DirStore::open(dir.path()).unwrap();
    runtime
        .block_on(store.put("k", Bytes::from_static(b"1")))
        .unwrap();
    // Whoever holds the key's lock is a file system that does not answer.
    let locks = dir.path().join(".firn-store/lock");
    let held: Vec<_> = std::fs::read_dir(locks)
        .unwrap()
        .map(|entry| {
            let file = OpenOptions::new().write(true).open(entry.unwrap().path());
            let file = file.unwrap();
            file.lock().unwrap();
            file
        })
        .collect();
    assert!(!held.is_empty());
    let alive = runtime.block_on(async {
        for _ in 0..3 {
            let puts = (0..100).map(|_| {
                let store = store.clone();
                tokio::spawn(async move {
                    let put = store.put("k", Bytes::from_static(b"2"));
                    timeout(Duration::from_millis(100), put).await.is_err()
                })
            });
            for put in puts.collect::<Vec<_>>() {
                assert!(put.await.unwrap(), "the lock is held");
            }
        }
        timeout(Duration::from_secs(5), tokio::task::spawn_blocking(|| ())).await
    });
    drop(held);
    assert!(alive.is_ok(), "no thread was left for a local file");
}
