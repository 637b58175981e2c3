//! What every store promises, checked on the directory store and on the adapter.

use std::sync::Arc;

use bytes::Bytes;
use object_store::memory::InMemory;
use store::{DirStore, Kind, ObjectStoreAdapter, SharedStore, Store};

struct Fixture {
    store: SharedStore,
    _dir: Option<tempfile::TempDir>,
}

fn stores() -> Vec<Fixture> {
    let dir = tempfile::tempdir().unwrap();
    vec![
        Fixture {
            store: Arc::new(DirStore::open(&dir.path().join("store")).unwrap()),
            _dir: Some(dir),
        },
        Fixture {
            store: Arc::new(ObjectStoreAdapter::new(Arc::new(InMemory::new()), "memory")),
            _dir: None,
        },
    ]
}

fn bytes(text: &str) -> Bytes {
    Bytes::copy_from_slice(text.as_bytes())
}

fn kind<T: std::fmt::Debug>(result: store::Result<T>) -> Kind {
    result.unwrap_err().kind()
}

#[tokio::test]
async fn what_was_put_is_got_whole_and_in_ranges() {
    for Fixture { store, _dir } in stores() {
        let written = store.put("packs/01", bytes("0123456789")).await.unwrap();
        let (content, version) = store.get("packs/01").await.unwrap();
        assert_eq!((content, version), (bytes("0123456789"), written));
        assert_eq!(
            store.get_range("packs/01", 2, 3).await.unwrap(),
            bytes("234")
        );
        assert_eq!(
            store.get_range("packs/01", 0, 10).await.unwrap(),
            bytes("0123456789")
        );
        assert_eq!(store.get_range("packs/01", 4, 0).await.unwrap(), bytes(""));
    }
}

#[tokio::test]
async fn a_range_that_leaves_the_object_is_an_error_never_a_short_answer() {
    for Fixture { store, _dir } in stores() {
        store.put("k", bytes("0123456789")).await.unwrap();
        assert_eq!(
            kind(store.get_range("k", 8, 3).await),
            Kind::OutOfRange,
            "{}",
            store.name()
        );
        assert_eq!(
            kind(store.get_range("k", u64::MAX, 2).await),
            Kind::OutOfRange
        );
        assert_eq!(kind(store.get_range("none", 0, 1).await), Kind::NotFound);
    }
}

#[tokio::test]
async fn create_refuses_what_exists() {
    for Fixture { store, _dir } in stores() {
        store.create("volumes/a/root", bytes("1")).await.unwrap();
        assert_eq!(
            kind(store.create("volumes/a/root", bytes("2")).await),
            Kind::PreconditionFailed
        );
        assert_eq!(store.get("volumes/a/root").await.unwrap().0, bytes("1"));
    }
}

#[tokio::test]
async fn update_replaces_only_the_version_it_names() {
    for Fixture { store, _dir } in stores() {
        let first = store.create("root", bytes("1")).await.unwrap();
        let second = store.update("root", bytes("2"), &first).await.unwrap();
        assert_eq!(
            kind(store.update("root", bytes("x"), &first).await),
            Kind::PreconditionFailed
        );
        let third = store.update("root", bytes("3"), &second).await.unwrap();
        assert_eq!(store.get("root").await.unwrap(), (bytes("3"), third));
    }
}

#[tokio::test]
async fn identical_content_has_a_version_of_its_own_each_time() {
    for Fixture { store, _dir } in stores() {
        let first = store.create("root", bytes("same")).await.unwrap();
        let second = store.update("root", bytes("same"), &first).await.unwrap();
        assert_ne!(first, second, "{}", store.name());
        assert_eq!(
            kind(store.update("root", bytes("x"), &first).await),
            Kind::PreconditionFailed
        );
    }
}

#[tokio::test]
async fn update_of_a_missing_object_never_creates_it() {
    for Fixture { store, _dir } in stores() {
        let version = store.create("root", bytes("1")).await.unwrap();
        store.delete("root").await.unwrap();
        let refused = kind(store.update("root", bytes("2"), &version).await);
        assert!(
            matches!(refused, Kind::NotFound | Kind::PreconditionFailed),
            "{refused:?}"
        );
        assert_eq!(kind(store.get("root").await), Kind::NotFound);
    }
}

#[tokio::test]
async fn delete_of_a_missing_object_succeeds() {
    for Fixture { store, _dir } in stores() {
        store.delete("a/b").await.unwrap();
        store.put("a/b", bytes("1")).await.unwrap();
        store.delete("a/b").await.unwrap();
        store.delete("a/b").await.unwrap();
        store.delete("a").await.unwrap();
        store.delete("a/b/c").await.unwrap();
        assert_eq!(kind(store.get("a/b").await), Kind::NotFound);
    }
}

#[tokio::test]
async fn a_prefix_of_keys_is_not_an_object() {
    for Fixture { store, _dir } in stores() {
        store.put("a/b", bytes("1")).await.unwrap();
        assert_eq!(
            kind(store.get("a").await),
            Kind::NotFound,
            "{}",
            store.name()
        );
        assert_eq!(
            kind(store.get("a/b/c").await),
            Kind::NotFound,
            "{}",
            store.name()
        );
    }
}

#[tokio::test]
async fn list_names_what_is_below_a_prefix_in_order_with_sizes() {
    for Fixture { store, _dir } in stores() {
        for (key, content) in [("b/2", "22"), ("b/1", "1"), ("a", "aaa"), ("bb/3", "3")] {
            store.put(key, bytes(content)).await.unwrap();
        }
        let all = store.list("").await.unwrap();
        let expected = [("a", 3), ("b/1", 1), ("b/2", 2), ("bb/3", 1)];
        assert_eq!(all, expected.map(|(key, size)| (key.to_owned(), size)));
        let some = store.list("b/").await.unwrap();
        assert_eq!(some, [("b/1".to_owned(), 1), ("b/2".to_owned(), 2)]);
        assert_eq!(store.list("none/").await.unwrap(), []);
        assert_eq!(kind(store.list("b").await), Kind::Invalid);
    }
}

#[tokio::test]
async fn parts_of_a_list_are_all_of_it_in_the_order_of_keys() {
    for Fixture { store, _dir } in stores() {
        let names = ["a", "a-1", "a.b", "a0", "b", "c"];
        let mut expected: Vec<String> = names.map(|name| format!("v/{name}/root")).into();
        for key in &expected {
            store.put(key, bytes("1")).await.unwrap();
        }
        store.put("w/z", bytes("1")).await.unwrap();
        expected.sort_unstable();
        for limit in 1..=7 {
            let (mut listed, mut after) = (Vec::new(), String::new());
            loop {
                let found = store.list_part("v/", &after, limit).await.unwrap();
                let is_last = found.len() < limit;
                listed.extend(found.into_iter().map(|(key, _)| key));
                if is_last {
                    break;
                }
                after = listed.last().cloned().unwrap();
            }
            assert_eq!(listed, expected, "{limit} of {}", store.name());
        }
        // Where nothing stands; and as far as the prefix goes.
        let found = store.list_part("v/", "v/b-", 9).await.unwrap();
        let expected = [("v/b/root".to_owned(), 1), ("v/c/root".to_owned(), 1)];
        assert_eq!(found, expected, "{}", store.name());
        assert_eq!(store.list_part("none/", "", 9).await.unwrap(), []);
        assert_eq!(kind(store.list_part("v", "", 9).await), Kind::Invalid);
        assert_eq!(kind(store.list_part("v/", "../x", 9).await), Kind::Invalid);
    }
}

#[tokio::test]
async fn a_key_that_leaves_the_store_is_refused_by_every_operation() {
    for Fixture { store, _dir } in stores() {
        let version = store.put("k", bytes("1")).await.unwrap();
        for key in ["../x", "/etc/hostname", "", "a//b", ".firn-store/format"] {
            assert_eq!(kind(store.get(key).await), Kind::Invalid);
            assert_eq!(kind(store.get_range(key, 0, 1).await), Kind::Invalid);
            assert_eq!(kind(store.put(key, bytes("x")).await), Kind::Invalid);
            assert_eq!(kind(store.create(key, bytes("x")).await), Kind::Invalid);
            assert_eq!(
                kind(store.update(key, bytes("x"), &version).await),
                Kind::Invalid
            );
            assert_eq!(kind(store.delete(key).await), Kind::Invalid);
        }
    }
}
