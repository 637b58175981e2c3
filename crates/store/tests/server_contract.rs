//! firn's promises about a store, on any server: `FIRN_STORE_URL` names it, the environment has its keys.
//! `cargo xtask stores` starts some and asks them.
//!
//! It must never pass because nothing was asked: without the variable every test says that it is
//! skipped. A server whose conditional writes are broken has `FIRN_STORE_REFUSED` set; then what is
//! shown is that the probe refuses it, in words that name the remedy.

#![allow(clippy::unwrap_used)]

mod common;

use std::net::SocketAddr;

use bytes::Bytes;
use common::{bytes, check_contract, check_races, kind};
use s3_testbed::{Fault, FaultRule, NamedStore, Proxy};
use store::{Kind, Store, probe, with_policies};

/// The same URL by way of a proxy, which must be told what the endpoint is.
fn through_proxy(url: &str) -> Option<(Proxy, String)> {
    let (before, rest) = url.split_once("endpoint=http://")?;
    let end = rest.find(['/', '&']).unwrap_or(rest.len());
    let address: SocketAddr = rest[..end].parse().ok()?;
    let proxy = Proxy::start(address).unwrap();
    let url = format!("{before}endpoint=http://{}{}", proxy.address, &rest[end..]);
    Some((proxy, url))
}

#[tokio::test]
async fn a_good_server_keeps_the_contract_and_passes_the_probe() {
    let Some(url) = NamedStore::Good.url_for("contract") else {
        return;
    };
    let store = with_policies(store::open_url(&url).unwrap());
    // First, as in the server: it decides how versions are sent.
    let report = probe(&store, false).await.unwrap();
    assert!(report.can_fence(), "{report:?}");
    assert_eq!(store.list("probe/").await.unwrap(), [], "cleaned up");
    check_contract(&store).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_many_writers_on_a_good_server_one_wins_each_round() {
    let Some(url) = NamedStore::Good.url_for("races") else {
        return;
    };
    check_races(&url).await;
}

#[tokio::test]
async fn a_list_of_more_than_a_page_is_whole_and_in_order() {
    let Some(url) = NamedStore::Good.url_for("list") else {
        return;
    };
    let store = with_policies(store::open_url(&url).unwrap());
    // Servers answer a thousand keys at once, Azure's five thousand: two pages of the former.
    let keys: Vec<String> = (0..1_100).map(|n| format!("many/{n:05}")).collect();
    for some in keys.chunks(32) {
        let puts = some.iter().map(|key| store.put(key, bytes("x")));
        for done in futures_util::future::join_all(puts).await {
            done.unwrap();
        }
    }
    store.delete("many/00007").await.unwrap();
    let listed = store.list("many/").await.unwrap();
    let expected = keys.iter().filter(|key| *key != "many/00007");
    assert!(listed.iter().map(|(key, _)| key).eq(expected), "{listed:?}");
    // In parts, from places between two objects, too.
    let mut parts = Vec::new();
    let mut after = String::new();
    loop {
        let found = store.list_part("many/", &after, 300).await.unwrap();
        let is_last = found.len() < 300;
        parts.extend(found);
        if is_last {
            break;
        }
        after = parts.last().map(|(key, _)| format!("{key}-")).unwrap();
    }
    assert_eq!(parts, listed);
}

/// Volumes' roots: as names `a` stands before `a-1`, as keys behind it, and some servers list directories.
#[tokio::test]
async fn parts_of_a_list_are_in_the_order_of_keys_also_where_names_have_another() {
    let Some(url) = NamedStore::Good.url_for("order") else {
        return;
    };
    let store = with_policies(store::open_url(&url).unwrap());
    let names = ["a", "a-1", "a.b", "a0", "b", "b-1", "c"];
    let mut keys: Vec<String> = names.map(|name| format!("v/{name}/root")).into();
    for key in &keys {
        store.put(key, bytes("x")).await.unwrap();
    }
    keys.sort_unstable();
    for limit in 1..=keys.len() {
        for (nth, after) in keys.iter().enumerate() {
            let found = store.list_part("v/", after, limit).await.unwrap();
            let found: Vec<String> = found.into_iter().map(|(key, _)| key).collect();
            let behind = &keys[nth + 1..];
            assert_eq!(found, behind[..behind.len().min(limit)], "behind {after}");
        }
    }
    let behind = store.list_part("v/", "v/a", 2).await.unwrap();
    assert_eq!(behind[0].0, keys[0], "behind the place of a name");
}

#[tokio::test]
async fn lost_and_cut_answers_are_never_taken_for_an_outcome() {
    let Some(url) = NamedStore::Good.url_for("cut") else {
        return;
    };
    let Some((proxy, far)) = through_proxy(&url) else {
        println!("skipped: a proxy can stand only before endpoint=http://ADDRESS:PORT");
        return;
    };
    let (direct, store) = (
        store::open_url(&url).unwrap(),
        store::open_url(&far).unwrap(),
    );
    probe(&store, false).await.unwrap();
    let first = store.create("root", bytes("1")).await.unwrap();
    store
        .put("pack", Bytes::from(vec![7; 1 << 20]))
        .await
        .unwrap();
    proxy.set_faults(&[FaultRule::always(Fault::CutAnswer)]);
    assert_eq!(kind(store.get("pack").await), Kind::Unavailable);
    proxy.set_faults(&[FaultRule::always(Fault::CutRequest)]);
    let cut = store.put("cut", Bytes::from(vec![7; 1 << 20])).await;
    assert_eq!(kind(cut), Kind::Unknown);
    assert_eq!(kind(direct.get("cut").await), Kind::NotFound, "half a body");
    proxy.set_faults(&[FaultRule::always(Fault::LoseAnswer)]);
    let lost = store.update("root", bytes("2"), &first).await;
    assert_eq!(kind(lost), Kind::Unknown);
    assert_eq!(direct.get("root").await.unwrap().0, bytes("2"));
}

#[tokio::test]
async fn a_bucket_that_is_not_there_is_told_from_a_missing_object() {
    let Some(url) = NamedStore::Good.url_for("none") else {
        return;
    };
    let (scheme, rest) = url.split_once("://").unwrap();
    let (_, rest) = rest.split_once('/').unwrap();
    let other = store::open_url(&format!("{scheme}://no-such-bucket/{rest}")).unwrap();
    let error = other.put("k", bytes("1")).await.unwrap_err();
    assert_eq!(error.kind(), Kind::NoBucket, "{error}");
    assert!(error.to_string().contains("create it"), "{error}");
}

#[tokio::test]
async fn a_server_without_conditional_writes_is_refused_with_the_remedy() {
    let Some(url) = NamedStore::Refused.url_for("refused") else {
        return;
    };
    let store = with_policies(store::open_url(&url).unwrap());
    let error = probe(&store, false).await.unwrap_err();
    let text = error.to_string();
    match error.kind() {
        Kind::Unsupported => assert!(text.contains("--single-writer"), "{text}"),
        // It does not even speak the protocol.
        Kind::Invalid => assert!(text.contains("check that it is of the kind"), "{text}"),
        kind => panic!("{kind:?}: {text}"),
    }
}
