//! `firn check` by the real binary (S8): what is whole is found whole beside a running server, and what is damaged is
//! named with what it costs.

use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::common::{Server, World};

const MIB: usize = 1 << 20;

fn noise(seed: u64, bytes: usize) -> Vec<u8> {
    let mut random = fastrand::Rng::with_seed(seed);
    (0..bytes).map(|_| random.u8(..)).collect()
}

/// A server with a volume that has a snapshot and a fork; everything of it is in the store.
fn furnished(world: &World) -> Server {
    let server = world.serve("one", &["--volume", "demo=64MiB", "--gc", "off"]);
    let mut client = server.connect("demo");
    client.write(0, &noise(1, 2 * MIB)).unwrap();
    world.expect_success(&server, &["snapshot", "create", "demo@before"]);
    client.write(MIB as u64, &noise(2, 2 * MIB)).unwrap();
    world.expect_success(&server, &["fork", "--wait", "store", "demo", "branch"]);
    world.expect_success(&server, &["sync", "demo"]);
    server
}

/// Files below a directory of the store, the largest first.
fn files(dir: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true => found.extend(files(&path)),
            false => found.push(path),
        }
    }
    found.sort_by_key(|path| std::cmp::Reverse(path.metadata().unwrap().len()));
    found
}

fn check(world: &World, args: &[&str]) -> (Option<i32>, String, String) {
    let output = world.firn(&[&["check", "--store", "store"], args].concat());
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (
        output.status.code(),
        text(&output.stdout),
        text(&output.stderr),
    )
}

#[test]
fn a_store_is_found_whole_beside_its_server_and_without_one() {
    let world = World::new();
    let server = furnished(&world);
    let (status, out, err) = check(&world, &[]);
    assert_eq!(status, Some(0), "{out}{err}");
    assert!(out.starts_with("2 volumes and 1 snapshots: "), "{out}");
    server.kill();
    let (status, out, err) = check(&world, &["--deep", "--rate", "1GiB", "demo", "branch"]);
    assert_eq!(status, Some(0), "{out}{err}");
    let (_, out, _) = check(&world, &["--json", "--deep"]);
    let found: Value = serde_json::from_str(&out).unwrap();
    assert!(found["chunks"].as_u64().unwrap() > 0, "{found}");
    assert!(
        found["bytes_read"].as_u64().unwrap() > 3 * MIB as u64,
        "{found}"
    );
    assert_eq!(found["damage"], Value::Array(Vec::new()));
}

#[test]
fn what_is_damaged_is_named_with_its_volumes_and_what_it_costs_them() {
    let world = World::new();
    let server = furnished(&world);
    server.kill();
    let largest = files(&world.path("store").join("packs")).remove(0);
    let whole = std::fs::read(&largest).unwrap();
    let mut flipped = whole.clone();
    flipped[whole.len() / 2] ^= 1;
    std::fs::write(&largest, &flipped).unwrap();
    let (status, out, _) = check(&world, &[]);
    assert_eq!(
        status,
        Some(0),
        "only a deep check reads what is in packs: {out}"
    );
    let (status, out, err) = check(&world, &["--deep", "--json"]);
    assert_eq!(status, Some(1), "{out}{err}");
    assert!(err.contains("objects are damaged"), "{err}");
    let found: Value = serde_json::from_str(&out).unwrap();
    let name = largest.file_name().unwrap().to_str().unwrap();
    for damage in found["damage"].as_array().unwrap() {
        assert_eq!(damage["kind"], "corrupt", "{found}");
        assert!(damage["object"].as_str().unwrap().contains(name), "{found}");
        assert!(damage["bytes"].as_u64().unwrap() > 0, "{found}");
    }
    std::fs::remove_file(&largest).unwrap();
    let (status, out, _) = check(&world, &[]);
    assert_eq!(status, Some(1), "{out}");
    assert!(
        out.contains("missing") && out.contains("it is not in the store"),
        "{out}"
    );
    std::fs::write(&largest, &whole).unwrap();
    assert_eq!(
        check(&world, &["--deep"]).0,
        Some(0),
        "put back, it is whole"
    );
}

#[test]
fn a_check_of_what_is_not_there_says_so_and_makes_no_store() {
    let world = World::new();
    let server = furnished(&world);
    server.kill();
    let (status, _, err) = check(&world, &["dmeo"]);
    assert_eq!(status, Some(1));
    assert!(err.contains("did you mean demo?"), "{err}");
    let (status, _, err) = check(&world, &["demo@never"]);
    assert_eq!(status, Some(1));
    assert!(err.contains("there is no demo@never"), "{err}");
    let (status, _, _) = check(&world, &["a b"]);
    assert_eq!(status, Some(2));
    let nowhere = world.path("nowhere");
    let output = world.firn(&["check", "--store", nowhere.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(1));
    assert!(!nowhere.exists());
    let err = String::from_utf8_lossy(&output.stderr);
    assert!(err.contains("there is no store at"), "{err}");
}
