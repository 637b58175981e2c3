//! The trash with the real binary: what is deleted can be had back, and is freed when its time is over.

use serde_json::Value;

use crate::common::{Server, World, eventually, message};

const BLOCK: usize = 4096;

fn trash(world: &World, server: &Server) -> Vec<Value> {
    let listed = world.expect_success(server, &["trash", "list", "--json"]);
    let listed: Value = serde_json::from_str(&listed).unwrap();
    listed["volumes"].as_array().unwrap().clone()
}

fn first_block(world: &World, server: &Server, name: &str) -> Vec<u8> {
    world.expect_success(server, &["attach", name, "--transport", "nbd"]);
    let found = server.connect(name).read(0, BLOCK).unwrap();
    world.expect_success(server, &["detach", "--force", name]);
    found
}

/// A volume that holds 2, and whose snapshot `demo@one` holds 1.
fn with_snapshot(world: &World, server: &Server) {
    let create = ["volume", "create", "demo", "--size", "8MiB"];
    world.expect_success(server, &create);
    world.expect_success(server, &["attach", "demo", "--transport", "nbd"]);
    let mut client = server.connect("demo");
    client.write(0, &[1; BLOCK]).unwrap();
    world.expect_success(server, &["snapshot", "create", "demo@one"]);
    client.write(0, &[2; BLOCK]).unwrap();
    drop(client);
    eventually("the client is gone", || {
        world.show(server, "demo")["nbd"]["connections"] == 0
    });
}

#[test]
fn a_deleted_volume_is_had_back_with_its_snapshots_under_its_name_or_another() {
    let world = World::new();
    let server = world.serve("cache", &[]);
    with_snapshot(&world, &server);
    let id = world.show(&server, "demo")["id"].clone();
    // It is open here: everything is stored first.
    let deleted = world.run(&server, &["volume", "delete", "demo"]);
    assert!(deleted.status.success() && deleted.stdout.is_empty());
    let said = message(&deleted);
    assert!(said.contains("`firn trash restore demo`"), "{said}");
    let said = world.expect_failure(&server, &["volume", "show", "demo"]);
    assert!(said.contains("no volume named demo"), "{said}");
    let found = trash(&world, &server);
    assert_eq!(
        (&found[0]["id"], &found[0]["snapshots"]),
        (&id, &Value::from(1))
    );
    let listed = world.expect_success(&server, &["trash", "list"]);
    assert!(
        listed.contains("demo") && ["23h", "24h"].iter().any(|left| listed.contains(left)),
        "{listed}"
    );
    // Any host gives it back.
    let other = world.serve("other", &[]);
    assert_eq!(
        world
            .expect_success(&other, &["trash", "restore", "demo"])
            .trim(),
        "demo"
    );
    assert_eq!(world.show(&other, "demo")["id"], id);
    assert_eq!(first_block(&world, &other, "demo"), [2; BLOCK]);
    assert_eq!(first_block(&world, &other, "demo@one"), [1; BLOCK]);
    // And again, while another takes its name.
    world.expect_success(&other, &["volume", "delete", "demo"]);
    let create = ["volume", "create", "demo", "--size", "8MiB"];
    world.expect_success(&server, &create);
    let said = world.expect_failure(&server, &["trash", "restore", "demo"]);
    assert!(said.contains("--as NEW"), "{said}");
    let said = world.expect_failure(&server, &["snapshot", "create", "demo@one"]);
    assert!(said.contains("firn trash empty"), "{said}");
    world.expect_success(&server, &["trash", "restore", "demo", "--as", "old"]);
    assert_eq!(first_block(&world, &server, "old"), [2; BLOCK]);
    assert_eq!(first_block(&world, &server, "old@one"), [1; BLOCK]);
    assert_eq!(first_block(&world, &server, "demo"), [0; BLOCK]);
    world.expect_success(&server, &["snapshot", "restore", "old@one"]);
    assert_eq!(first_block(&world, &server, "old"), [1; BLOCK]);
    assert_eq!(trash(&world, &server), [Value::Null; 0]);
}

fn bytes_below(dir: &std::path::Path) -> u64 {
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    let bytes = entries.map(|entry| match entry.file_type() {
        Ok(kind) if kind.is_dir() => bytes_below(&entry.path()),
        _ => entry.metadata().map_or(0, |found| found.len()),
    });
    bytes.sum()
}

#[test]
fn what_was_kept_long_enough_goes_and_its_bytes_are_freed() {
    let world = World::new();
    let keep = ["--gc", "500ms", "--trash-keep", "2s"];
    let server = world.serve("cache", &keep);
    with_snapshot(&world, &server);
    world.expect_success(&server, &["attach", "demo", "--transport", "nbd"]);
    let mut noise = vec![0; 1 << 20];
    fastrand::Rng::with_seed(5).fill(&mut noise);
    let mut client = server.connect("demo");
    for part in 0..4 {
        client.write(part << 20, &noise).unwrap();
    }
    drop(client);
    world.expect_success(&server, &["detach", "--force", "demo"]);
    let packs = world.path("store/packs");
    let full = bytes_below(&packs);
    assert!(full > 1 << 20, "{full}");
    world.expect_success(&server, &["volume", "delete", "demo"]);
    assert_eq!(trash(&world, &server).len(), 1);
    eventually("it leaves the trash", || trash(&world, &server).is_empty());
    eventually("its bytes are freed", || bytes_below(&packs) < full / 2);
    let said = world.expect_failure(&server, &["trash", "restore", "demo"]);
    assert!(said.contains("no volume demo is in the trash"), "{said}");
}

#[test]
fn a_deletion_for_good_is_said_twice() {
    let world = World::new();
    let server = world.serve("cache", &[]);
    let create = ["volume", "create", "demo", "--size", "8MiB"];
    world.expect_success(&server, &create);
    for arguments in [
        &["volume", "delete", "demo", "--now"][..],
        &["volume", "delete", "demo", "dmeo", "--now"],
        &["volume", "delete", "demo", "demo"],
        &["volume", "delete", "demo", "--yes"],
    ] {
        let refused = world.run(&server, arguments);
        assert_eq!(refused.status.code(), Some(2), "{}", message(&refused));
    }
    assert_eq!(world.show(&server, "demo")["state"], "closed");
    world.expect_success(&server, &["volume", "delete", "demo", "demo", "--now"]);
    world.expect_success(&server, &create);
    world.expect_success(&server, &["volume", "delete", "demo", "--now", "--yes"]);
    assert_eq!(trash(&world, &server), [Value::Null; 0]);
    // What was moved there goes when it is told to, one by one or all.
    for _ in 0..2 {
        world.expect_success(&server, &create);
        world.expect_success(&server, &["volume", "delete", "demo"]);
    }
    assert_eq!(trash(&world, &server).len(), 2);
    world.expect_success(&server, &["trash", "empty", "demo"]);
    assert_eq!(trash(&world, &server).len(), 1);
    world.expect_success(&server, &["trash", "empty"]);
    assert_eq!(trash(&world, &server), [Value::Null; 0]);
    // Commands that make volumes for themselves leave none there.
    world.expect_success(&server, &create);
    world.expect_success(&server, &["export", "demo", "image"]);
    assert_eq!(trash(&world, &server), [Value::Null; 0]);
}
