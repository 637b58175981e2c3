//! Which directories become a store, and which are refused.

use std::fs;

use bytes::Bytes;
use store::{DirStore, Kind, Store};

#[tokio::test]
async fn a_missing_directory_is_created_and_opens_again_with_what_it_holds() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("deep/er/store");
    let version = DirStore::open(&root)
        .unwrap()
        .put("k", Bytes::from("1"))
        .await
        .unwrap();
    let store = DirStore::open(&root).unwrap();
    assert_eq!(store.get("k").await.unwrap(), (Bytes::from("1"), version));
    assert_eq!(
        fs::read(root.join("k")).unwrap(),
        b"1",
        "an object is a plain file"
    );
}

#[test]
fn a_directory_with_other_files_is_refused_and_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("thesis.tex"), "x").unwrap();
    let error = DirStore::open(dir.path()).unwrap_err();
    assert_eq!(error.kind(), Kind::Incompatible);
    assert!(error.to_string().contains("thesis.tex"), "{error}");
    assert_eq!(
        fs::read_dir(dir.path()).unwrap().count(),
        1,
        "nothing was added"
    );
}

#[test]
fn a_newer_format_is_refused_by_number() {
    let dir = tempfile::tempdir().unwrap();
    DirStore::open(dir.path()).unwrap();
    let marker = dir.path().join(".firn-store/format");
    fs::write(&marker, "firn directory store, format 2\n").unwrap();
    let error = DirStore::open(dir.path()).unwrap_err();
    assert_eq!(error.kind(), Kind::Incompatible);
    assert!(error.to_string().contains("format 2"), "{error}");
    for damage in [&b""[..], b"\xff\xfe", b"something else"] {
        fs::write(&marker, damage).unwrap();
        assert_eq!(
            DirStore::open(dir.path()).unwrap_err().kind(),
            Kind::Incompatible
        );
    }
}

#[test]
fn a_file_in_place_of_the_directory_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("file");
    fs::write(&path, "x").unwrap();
    for path in [path.clone(), path.join("below")] {
        let error = DirStore::open(&path).unwrap_err();
        assert_eq!(error.kind(), Kind::Invalid, "{error}");
    }
    assert_eq!(fs::read(path).unwrap(), b"x");
}

#[test]
fn many_openers_at_once_agree_on_one_store() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("store");
    std::thread::scope(|scope| {
        let openers: Vec<_> = (0..8)
            .map(|_| scope.spawn(|| DirStore::open(&root)))
            .collect();
        for opener in openers {
            opener.join().unwrap().unwrap();
        }
    });
    let tmp = root.join(".firn-store/tmp");
    assert_eq!(fs::read_dir(tmp).unwrap().count(), 0);
}

#[tokio::test]
async fn a_directory_without_permission_is_refused_by_name() {
    use std::os::unix::fs::PermissionsExt;
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("store");
    let store = DirStore::open(&root).unwrap();
    let tmp = root.join(".firn-store/tmp");
    fs::set_permissions(&tmp, fs::Permissions::from_mode(0o500)).unwrap();
    match store.put("k", Bytes::from("1")).await {
        Ok(_) => println!("skipped: this user may write anywhere"),
        Err(error) => assert_eq!(error.kind(), Kind::Denied, "{error}"),
    }
    fs::set_permissions(&tmp, fs::Permissions::from_mode(0o700)).unwrap();
}
