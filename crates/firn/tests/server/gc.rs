//! Garbage collection by the real binary (S9): a store's bytes come down, and nothing that anybody reads is missing.

use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::common::{Server, World, eventually};

const MIB: usize = 1 << 20;
const PART: usize = 128 << 10;
/// More than a root lists before they are folded: what a fold hides is garbage then.
const ROUNDS: u64 = 300;

fn noise(seed: u64) -> Vec<u8> {
    let mut random = fastrand::Rng::with_seed(seed);
    (0..PART).map(|_| random.u8(..)).collect()
}

fn bytes_below(dir: &Path) -> u64 {
    let mut bytes = 0;
    for entry in std::fs::read_dir(dir).unwrap() {
        let entry = entry.unwrap();
        // One may go while it is looked at.
        let Ok(found) = entry.metadata() else {
            continue;
        };
        bytes += match found.is_dir() {
            true => bytes_below(&entry.path()),
            false => found.len(),
        };
    }
    bytes
}

/// The file in which a volume's root is.
fn root_of(world: &World, name: &str) -> PathBuf {
    let roots = std::fs::read_dir(world.path("store").join("volumes")).unwrap();
    let mut roots = roots.map(|entry| entry.unwrap().path());
    let of_name = |path: &PathBuf| {
        path.file_name()
            .unwrap()
            .to_string_lossy()
            .starts_with(name)
    };
    let root = roots.find(of_name).expect("a root");
    match root.is_dir() {
        false => root,
        true => std::fs::read_dir(&root)
            .unwrap()
            .next()
            .unwrap()
            .unwrap()
            .path(),
    }
}

fn gc(world: &World, server: &Server, args: &[&str]) -> Value {
    let said = world.expect_success(server, &[&["gc", "--json"], args].concat());
    serde_json::from_str(&said).unwrap()
}

#[test]
fn a_stores_bytes_come_down_after_overwriting_and_another_host_verifies_all_content() {
    let world = World::new();
    let server = world.serve(
        "one",
        &["--volume", "demo=64MiB", "--rpo", "1h", "--gc", "off"],
    );
    let mut client = server.connect("demo");
    client.write(32 * MIB as u64, &noise(1000)).unwrap();
    world.expect_success(&server, &["sync", "demo"]);
    let store = world.path("store");
    let first = bytes_below(&store);
    let dry = gc(&world, &server, &["--dry-run"]);
    assert_eq!(dry["removed"]["objects"], 0);
    assert_eq!(bytes_below(&store), first, "a dry run changes nothing");
    for round in 0..ROUNDS {
        client.write(0, &noise(round)).unwrap();
        world.expect_success(&server, &["sync", "demo"]);
    }
    let before = bytes_below(&store);
    assert!(before > ROUNDS * PART as u64, "{before}");
    eventually("a fold leaves garbage", || {
        let found = gc(&world, &server, &[]);
        found["garbage"]["objects"].as_u64().unwrap() > ROUNDS / 2
    });
    let second = gc(&world, &server, &[]);
    assert!(
        second["removed"]["objects"].as_u64().unwrap() > ROUNDS / 2,
        "{second}"
    );
    assert_eq!(second["recovered"]["objects"], 0, "{second}");
    let after = bytes_below(&store);
    assert!(after * 2 < before, "{after} of {before}");
    let (status, metrics) = server.get("/metrics");
    assert_eq!(status, 200);
    assert!(metrics.contains("firn_gc_passes_total "), "{metrics}");
    server.kill();
    let other = world.serve("two", &["--gc", "off"]);
    world.take_over(&other, "demo");
    let mut client = other.connect("demo");
    assert!(client.read(0, PART).unwrap() == noise(ROUNDS - 1));
    assert!(client.read(32 * MIB as u64, PART).unwrap() == noise(1000));
    assert!(client.read(16 * MIB as u64, MIB).unwrap() == vec![0; MIB]);
}

#[test]
fn a_removed_root_is_missed_and_its_data_stays_until_somebody_says_that_it_is_gone() {
    let world = World::new();
    let server = world.serve("one", &["--volume", "demo=64MiB", "--gc", "off"]);
    let mut client = server.connect("demo");
    for round in 0..4 {
        client.write(round * PART as u64, &noise(round)).unwrap();
        world.expect_success(&server, &["sync", "demo"]);
    }
    drop(client);
    world.expect_success(&server, &["detach", "demo"]);
    server.stop();
    // Its log names it no more, after a session of its own and a pass.
    let server = world.serve("one", &["--volume", "other=64MiB", "--gc", "off"]);
    let mut client = server.connect("other");
    for round in 0..2 {
        client.write(0, &noise(round)).unwrap();
        world.expect_success(&server, &["sync", "other"]);
        gc(&world, &server, &[]);
    }
    let root = root_of(&world, "demo");
    let kept = std::fs::read(&root).unwrap();
    std::fs::remove_file(&root).unwrap();
    let failed = (0..3).map(|_| world.run(&server, &["gc"]));
    let failed = failed.into_iter().find(|said| !said.status.success());
    let said = String::from_utf8(failed.expect("it misses the root").stderr).unwrap();
    let at = said.find("firn volume forget ").expect("a remedy") + "firn volume forget ".len();
    let id = said[at..at + 32].to_owned();
    let (_, health) = server.get("/readyz");
    assert!(health.contains("is missing"), "{health}");
    // Put back, all of it is there.
    std::fs::write(&root, &kept).unwrap();
    world.expect_failure(&server, &["volume", "forget", &id, "--gone"]);
    world.expect_success(&server, &["gc"]);
    std::fs::remove_file(&root).unwrap();
    let before = bytes_below(&world.path("store"));
    let asked = world.run(&server, &["volume", "forget", &id]);
    assert_eq!(asked.status.code(), Some(2), "it wants --gone");
    world.expect_success(&server, &["volume", "forget", &id, "--gone"]);
    for _ in 0..3 {
        world.expect_success(&server, &["gc"]);
    }
    let after = bytes_below(&world.path("store"));
    assert!(after + 3 * PART as u64 <= before, "{after} of {before}");
}

#[test]
fn a_server_collects_by_itself_and_off_means_off() {
    let world = World::new();
    let passes = |server: &Server| {
        let (_, state) = server.get("/v1/gc");
        let state: Value = serde_json::from_str(&state).unwrap();
        (
            state["is_on"].as_bool().unwrap(),
            state["passes"].as_u64().unwrap(),
        )
    };
    let server = world.serve("one", &["--volume", "demo=8MiB", "--gc", "200ms"]);
    eventually("three passes", || passes(&server).1 >= 3);
    server.stop();
    let server = world.serve("one", &["--gc", "off"]);
    assert_eq!(passes(&server), (false, 0));
    server.stop();
    let server = world.serve("one", &[]);
    assert_eq!(passes(&server), (true, 0), "on, and in no hurry");
}

#[test]
fn a_server_left_alone_frees_what_a_deleted_volume_held() {
    let world = World::new();
    let volumes = ["--volume", "demo=64MiB", "--volume", "kept=64MiB"];
    let server = world.serve("one", &[&volumes[..], &["--gc", "500ms"]].concat());
    let (mut demo, mut kept) = (server.connect("demo"), server.connect("kept"));
    for round in 0..32 {
        demo.write(round * PART as u64, &noise(round)).unwrap();
    }
    kept.write(0, &noise(100)).unwrap();
    for name in ["demo", "kept"] {
        world.expect_success(&server, &["sync", name]);
    }
    drop(demo);
    let store = world.path("store");
    let full = bytes_below(&store);
    assert!(full > 32 * PART as u64, "{full}");
    world.expect_success(&server, &["detach", "demo"]);
    world.expect_success(&server, &["volume", "delete", "demo", "--now", "--yes"]);
    eventually("the bytes are freed", || {
        bytes_below(&store) < 16 * PART as u64
    });
    assert!(kept.read(0, PART).unwrap() == noise(100));
    server.kill();
    let other = world.serve("two", &["--gc", "off"]);
    world.take_over(&other, "kept");
    assert!(other.connect("kept").read(0, PART).unwrap() == noise(100));
}
