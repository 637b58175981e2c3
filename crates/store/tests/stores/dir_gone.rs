//! A directory store whose directory goes away and comes back: an unmounted disk, a moved folder.

use bytes::Bytes;
use store::{DirStore, Kind, Store};

#[tokio::test]
async fn a_directory_that_went_away_is_an_outage_and_is_not_made_anew() {
    let place = tempfile::tempdir().expect("a temporary directory");
    let (root, away) = (place.path().join("store"), place.path().join("away"));
    let store = DirStore::open(&root).expect("opened");
    let data = Bytes::from_static(b"content");
    let version = store.create("a/b", data.clone()).await.expect("created");

    std::fs::rename(&root, &away).expect("moved away");
    let errors = [
        store.get("a/b").await.expect_err("get"),
        store.get_range("a/b", 0, 1).await.expect_err("get_range"),
        store.put("c/d", data.clone()).await.expect_err("put"),
        store.create("e", data.clone()).await.expect_err("create"),
        store
            .update("a/b", data.clone(), &version)
            .await
            .expect_err("update"),
        store.delete("a/b").await.expect_err("delete"),
        store.list("").await.expect_err("list"),
    ];
    for error in errors {
        assert_eq!(error.kind(), Kind::Unavailable, "{}", error.chain());
    }
    assert!(!root.exists(), "nothing was made in its place");

    std::fs::rename(&away, &root).expect("moved back");
    let (found, same) = store.get("a/b").await.expect("there again");
    assert_eq!((found, same), (data, version));
}
