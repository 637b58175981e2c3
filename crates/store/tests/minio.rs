//! firn's promises about a store, on a real S3 server: MinIO, plain and under TLS, through a proxy
//! that loses answers, killed, without its bucket.

#![allow(clippy::unwrap_used)]

mod common;

use std::sync::Arc;

use bytes::Bytes;
use common::{
    bytes, check_contract, check_races, kind, open, start_minio, start_minio_with,
    wait_until_it_answers,
};
use s3_testbed::{Fault, FaultRule, ForwardProxy, Proxy, make_certificates, url_at};
use store::{Kind, Store, probe, with_policies};

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

fn with_certificates(dir: &std::path::Path) -> bool {
    make_certificates(dir).unwrap();
    true
}

#[tokio::test]
async fn a_private_ca_is_trusted_when_named_and_refused_with_the_remedy_when_not() {
    let Some(minio) = start_minio_with(with_certificates) else {
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
async fn a_store_that_only_the_proxy_can_reach_is_used_through_it() {
    let Some(minio) = start_minio_with(with_certificates) else {
        return;
    };
    let forward = ForwardProxy::start(minio.address).unwrap();
    let ca = minio.dir.path().join("ca.pem");
    // A name that nobody but the proxy resolves.
    let url = format!(
        "s3://firn/test?endpoint=https://minio.test:9000&ca={}",
        ca.display()
    );
    let through = format!("{url}&proxy=http://{}", forward.address);
    let store = store::open_url(&through).unwrap();
    wait_until_it_answers(&store).await;
    check_contract(&store).await;
    let asked = forward.asked();
    assert!(!asked.is_empty());
    assert!(
        asked.iter().all(|name| name == "minio.test:9000"),
        "{asked:?}"
    );

    for beside in [url, format!("{through}&no-proxy=minio.test")] {
        let store = store::open_url(&beside).unwrap();
        let error = store.create("k", bytes("1")).await.unwrap_err();
        assert_eq!(error.kind(), Kind::Unavailable, "{error}");
        assert!(error.to_string().contains("and the proxy"), "{error}");
    }
    assert_eq!(forward.asked().len(), asked.len(), "nobody else asked it");

    forward.refuse();
    let store = store::open_url(&through).unwrap();
    let error = store.create("k", bytes("1")).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Unavailable, "certainly not applied");
    assert!(error.to_string().contains("the proxy"), "{error}");
    println!("{error}");
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
    check_races(&minio.url()).await;
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
