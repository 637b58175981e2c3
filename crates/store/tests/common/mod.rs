//! A MinIO server of the test's own, and clients of it; what every server is asked.

#![allow(clippy::unwrap_used, dead_code, unreachable_pub)]

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::future::join_all;
use s3_testbed::{Minio, MinioConfig};
use store::{Kind, SharedStore, Store, probe};

/// Starts a server with an empty bucket `firn`; `None`, and says so, where there is none to start.
pub fn start_minio() -> Option<Minio> {
    start_minio_with(|_| false)
}

/// The same with what `prepare` puts into the directory of certificates; it says whether to speak TLS.
pub fn start_minio_with(prepare: impl FnOnce(&Path) -> bool) -> Option<Minio> {
    let config = MinioConfig::from_environment()?;
    Some(Minio::start_with(config, prepare).unwrap())
}

/// Waits until a server answers `store`.
pub async fn wait_until_it_answers(store: &dyn Store) {
    let end = Instant::now() + Duration::from_secs(60);
    while store.get("none").await.unwrap_err().kind() != Kind::NotFound {
        assert!(Instant::now() < end, "MinIO does not answer");
        std::thread::sleep(Duration::from_millis(20));
    }
}

pub fn open(minio: &Minio) -> SharedStore {
    store::open_url(&minio.url()).unwrap()
}

pub fn bytes(text: &str) -> Bytes {
    Bytes::copy_from_slice(text.as_bytes())
}

pub fn kind<T: std::fmt::Debug>(result: store::Result<T>) -> Kind {
    result.unwrap_err().kind()
}

/// What `contract.rs` asks of every store, in one walk.
pub async fn check_contract(store: &dyn Store) {
    let first = store.create("v/root", bytes("1")).await.unwrap();
    assert_eq!(
        kind(store.create("v/root", bytes("x")).await),
        Kind::PreconditionFailed
    );
    let second = store.update("v/root", bytes("2"), &first).await.unwrap();
    assert_eq!(
        kind(store.update("v/root", bytes("x"), &first).await),
        Kind::PreconditionFailed
    );
    assert_eq!(
        store.get("v/root").await.unwrap(),
        (bytes("2"), second.clone())
    );
    store.put("packs/1", bytes("0123456789")).await.unwrap();
    assert_eq!(
        store.get_range("packs/1", 2, 3).await.unwrap(),
        bytes("234")
    );
    for (offset, len) in [(8, 3), (10, 1), (100, 1)] {
        assert_eq!(
            kind(store.get_range("packs/1", offset, len).await),
            Kind::OutOfRange
        );
    }
    assert_eq!(kind(store.get("none").await), Kind::NotFound);
    assert_eq!(kind(store.get_range("none", 0, 1).await), Kind::NotFound);
    let large = Bytes::from(vec![7; 3 << 20]);
    store.put("packs/2", large.clone()).await.unwrap();
    assert_eq!(store.get("packs/2").await.unwrap().0, large);
    let listed = store.list("packs/").await.unwrap();
    let expected = [("packs/1".to_owned(), 10), ("packs/2".to_owned(), 3 << 20)];
    assert_eq!(listed, expected);
    for _ in 0..2 {
        store.delete("v/root").await.unwrap();
    }
    let gone = kind(store.update("v/root", bytes("3"), &second).await);
    assert!(matches!(gone, Kind::NotFound | Kind::PreconditionFailed));
    assert_eq!(kind(store.get("v/root").await), Kind::NotFound);
}

/// Eight writers, each with a client of its own, replace one object for twenty rounds: one wins each.
pub async fn check_races(url: &str) {
    let writers: Vec<_> = (0..8).map(|_| store::open_url(url).unwrap()).collect();
    let report = probe(&writers[0], false).await.unwrap();
    for writer in &writers {
        writer.set_bare_tags(report.bare_tags);
    }
    let mut version = writers[0].create("counter", bytes("0")).await.unwrap();
    for round in 1..=20 {
        let attempts = writers.iter().enumerate().map(|(n, writer)| {
            let (writer, version) = (Arc::clone(writer), version.clone());
            tokio::spawn(async move {
                let text = format!("{round} by {n}");
                writer.update("counter", bytes(&text), &version).await
            })
        });
        let mut won = Vec::new();
        for (n, result) in join_all(attempts).await.into_iter().enumerate() {
            match result.unwrap() {
                Ok(version) => won.push((n, version)),
                // Ceph radosgw answers 500 to some losers: who is told nothing reads back.
                Err(error) => assert!(
                    matches!(error.kind(), Kind::PreconditionFailed | Kind::Unknown),
                    "{error}"
                ),
            }
        }
        let [(n, newer)] = won.as_slice() else {
            panic!("round {round}: winners {won:?}");
        };
        let (content, found) = writers[0].get("counter").await.unwrap();
        assert_eq!(content, bytes(&format!("{round} by {n}")));
        assert_eq!(&found, newer);
        version = found;
    }
}
