//! firn's promises about a store, on a real S3 server: MinIO, plain and under TLS, through a proxy
//! that loses answers, killed, without its bucket.

#![allow(clippy::unwrap_used)]

mod common;

use std::process::Command;
use std::sync::Arc;

use bytes::Bytes;
use common::{open, start_minio, start_minio_with, wait_until_it_answers};
use futures_util::future::join_all;
use s3_testbed::{Fault, FaultRule, Proxy, url_at};
use store::{Kind, Store, probe, with_policies};

fn bytes(text: &str) -> Bytes {
    Bytes::copy_from_slice(text.as_bytes())
}

fn kind<T: std::fmt::Debug>(result: store::Result<T>) -> Kind {
    result.unwrap_err().kind()
}

/// What `contract.rs` asks of every store, in one walk.
async fn check_contract(store: &dyn Store) {
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

#[tokio::test]
async fn minio_keeps_the_contract_and_passes_the_probe() {
    let Some(minio) = start_minio() else { return };
    let store = with_policies(open(&minio));
    check_contract(&store).await;
    let report = probe(&store, false).await.unwrap();
    assert!(report.can_fence(), "{report:?}");
    assert_eq!(store.list("probe/").await.unwrap(), [], "cleaned up");
    assert!(!format!("{store:?}").contains("firn-secret"));
}

/// A CA and a certificate for the loopback address, made by openssl; where the CA's file is.
fn make_certificates(dir: &std::path::Path) -> bool {
    let script = "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=firn-test-ca \
        -keyout ca.key -out ca.pem && \
        openssl req -newkey rsa:2048 -nodes -subj /CN=localhost -keyout private.key -out s.csr && \
        printf 'subjectAltName=IP:127.0.0.1\\nbasicConstraints=CA:FALSE\\n' > ext && \
        openssl x509 -req -in s.csr -CA ca.pem -CAkey ca.key -CAcreateserial -days 2 \
        -extfile ext -out public.crt";
    let made = Command::new("sh")
        .args(["-c", script])
        .current_dir(dir)
        .output()
        .unwrap();
    assert!(made.status.success(), "{made:?}");
    let ca = dir.parent().unwrap().join("ca.pem");
    std::fs::rename(dir.join("ca.pem"), ca).unwrap();
    true
}

#[tokio::test]
async fn a_private_ca_is_trusted_when_named_and_refused_with_the_remedy_when_not() {
    let Some(minio) = start_minio_with(make_certificates) else {
        return;
    };
    let ca = minio.dir.path().join("ca.pem");
    let https = format!("s3://firn/test?endpoint=https://{}", minio.address);
    let trusted = store::open_url(&format!("{https}&ca={}", ca.display())).unwrap();
    wait_until_it_answers(&trusted).await;
    check_contract(&trusted).await;
    let stranger = store::open_url(&https).unwrap();
    let error = stranger.get("k").await.unwrap_err();
    assert_eq!(error.kind(), Kind::Unavailable);
    assert!(error.to_string().contains("ca=FILE"), "{error}");
    let error = stranger.create("k", bytes("1")).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Unavailable, "certainly not applied");
}

#[tokio::test]
async fn refused_credentials_and_a_missing_bucket_are_told_apart_and_say_what_helps() {
    let Some(minio) = start_minio() else { return };
    let anonymous = store::open_url(&format!("{}&anonymous=true", minio.url())).unwrap();
    let error = anonymous.put("k", bytes("1")).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Denied, "{error}");
    let other = minio.url().replace("//firn/", "//no-such-bucket/");
    let other = with_policies(store::open_url(&other).unwrap());
    for error in [
        other.get("k").await.unwrap_err(),
        other.put("k", bytes("1")).await.unwrap_err(),
        other.create("k", bytes("1")).await.unwrap_err(),
        other.list("").await.unwrap_err(),
        probe(&other, false).await.unwrap_err(),
    ] {
        assert_eq!(error.kind(), Kind::NoBucket, "{error}");
        assert!(error.to_string().contains("create it"), "{error}");
    }
}

#[tokio::test]
async fn a_lost_answer_leaves_a_write_unknown_and_applied() {
    let Some(minio) = start_minio() else { return };
    let proxy = Proxy::start(minio.address).unwrap();
    let (direct, store) = (
        open(&minio),
        store::open_url(&url_at(proxy.address)).unwrap(),
    );
    let first = store.create("root", bytes("1")).await.unwrap();
    proxy.set_faults(&[FaultRule::always(Fault::LoseAnswer)]);
    assert_eq!(
        kind(store.update("root", bytes("2"), &first).await),
        Kind::Unknown
    );
    assert_eq!(direct.get("root").await.unwrap().0, bytes("2"));
    // The policies must not turn the winner into a loser by asking again.
    let careful = with_policies(Arc::clone(&store));
    assert_eq!(kind(careful.create("new", bytes("n")).await), Kind::Unknown);
    assert_eq!(direct.get("new").await.unwrap().0, bytes("n"));
    assert_eq!(kind(store.get("root").await), Kind::Unavailable);
}

#[tokio::test]
async fn a_cut_answer_and_a_throttled_store_are_what_they_are() {
    let Some(minio) = start_minio() else { return };
    let proxy = Proxy::start(minio.address).unwrap();
    let store = store::open_url(&url_at(proxy.address)).unwrap();
    let pack = Bytes::from(vec![7; 1 << 20]);
    store.put("pack", pack).await.unwrap();
    proxy.set_faults(&[FaultRule::always(Fault::CutAnswer)]);
    assert_eq!(kind(store.get("pack").await), Kind::Unavailable);
    assert_eq!(
        kind(store.get_range("pack", 0, 1 << 19).await),
        Kind::Unavailable
    );
    proxy.set_faults(&[FaultRule::always(Fault::SLOW_DOWN)]);
    let error = store.put("pack", bytes("x")).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Unknown);
    assert!(error.is_overload(), "{error}");
    proxy.set_faults(&[FaultRule::always(Fault::TOO_MANY)]);
    let error = store.create("c", bytes("x")).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Unavailable, "{error}");
    assert!(error.is_overload(), "{error}");
    proxy.set_faults(&[]);
    assert_eq!(store.get("pack").await.unwrap().0.len(), 1 << 20);
}

#[tokio::test]
async fn a_server_that_is_down_applied_nothing_and_serves_again_when_it_is_up() {
    let Some(mut minio) = start_minio() else {
        return;
    };
    let store = open(&minio);
    let version = store.create("root", bytes("1")).await.unwrap();
    minio.kill();
    // The first may leave on a connection that was open before; the second finds none.
    let first = kind(store.update("root", bytes("2"), &version).await);
    assert!(matches!(first, Kind::Unknown | Kind::Unavailable));
    assert_eq!(
        kind(store.update("root", bytes("2"), &version).await),
        Kind::Unavailable
    );
    minio.restart().unwrap();
    assert_eq!(store.get("root").await.unwrap(), (bytes("1"), version));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_many_writers_with_clients_of_their_own_one_wins_each_round() {
    let Some(minio) = start_minio() else { return };
    let writers: Vec<_> = (0..8).map(|_| open(&minio)).collect();
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
                Err(error) => assert_eq!(error.kind(), Kind::PreconditionFailed, "{error}"),
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

#[tokio::test]
async fn a_pack_on_a_slow_line_is_stored_however_long_no_answer_can_come() {
    let Some(minio) = start_minio() else { return };
    let proxy = Proxy::start(minio.address).unwrap();
    let store = with_policies(store::open_url(&url_at(proxy.address)).unwrap());
    // 32 s, and 42 s is what an attempt of this size has.
    proxy.set_rate(Some(1 << 20));
    let pack = Bytes::from(vec![7; 32 << 20]);
    store.put("packs/slow", pack.clone()).await.unwrap();
    proxy.set_rate(None);
    let read = store.get_range("packs/slow", 0, pack.len() as u64);
    assert_eq!(read.await.unwrap(), pack);
    assert_eq!(proxy.traffic().of("PUT").requests, 1, "in one attempt");
}
