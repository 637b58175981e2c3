//! Settings that change while the server runs.

use std::time::{Duration, Instant};

use serde_json::Value;

use crate::common::{World, eventually, message};

fn settings(world: &World, server: &crate::common::Server) -> Value {
    let shown = world.expect_success(server, &["config", "get", "--json"]);
    serde_json::from_str(&shown).unwrap()
}

#[test]
fn a_recovery_point_that_is_set_is_kept_by_the_server_that_runs() {
    let world = World::new();
    let server = world.serve("cache", &["--volume", "demo=64MiB", "--rpo", "1h"]);
    let mut client = server.connect("demo");
    client.write(0, &[7; 4096]).unwrap();
    client.flush().unwrap();
    let stored = || {
        let shown = world.expect_success(&server, &["volume", "show", "demo", "--json"]);
        let shown: Value = serde_json::from_str(&shown).unwrap();
        shown["watermarks"]["stored"]["lsn"] == shown["watermarks"]["acknowledged"]["lsn"]
    };
    assert!(!stored());
    let said = world.expect_success(&server, &["config", "set", "rpo=100ms"]);
    assert!(said.contains("rpo = \"100ms\""), "{said}");
    eventually("what was written is stored", stored);
    assert_eq!(settings(&world, &server)["rpo"], "100ms");
    drop(client);
    assert!(server.stop().success());

    let server = world.serve("cache", &["--volume", "demo=64MiB", "--rpo", "1h"]);
    assert_eq!(settings(&world, &server)["rpo"], "3600s");
    assert!(server.stop().success());
}

#[test]
fn a_schedule_that_is_set_takes_snapshots_and_one_that_is_left_out_takes_none() {
    let world = World::new();
    let server = world.serve("cache", &["--volume", "demo=64MiB"]);
    let mut client = server.connect("demo");
    let snapshots = || {
        let shown = world.expect_success(&server, &["snapshot", "list", "demo", "--json"]);
        let shown: Value = serde_json::from_str(&shown).unwrap();
        shown["snapshots"].as_array().unwrap().len()
    };
    client.write(0, &[1; 4096]).unwrap();
    let schedule = "snapshot-schedule=demo=1s,keep=3";
    world.expect_success(&server, &["config", "set", schedule]);
    eventually("a snapshot by schedule", || snapshots() > 0);
    let said = world.expect_success(&server, &["config", "set", "snapshot-schedule="]);
    assert!(said.contains("snapshot-schedule = []"), "{said}");
    // A turn that had begun ends first.
    let mut before = snapshots();
    let began = Instant::now();
    while began.elapsed() < Duration::from_secs(4) {
        client.write(0, &[2; 4096]).unwrap();
        std::thread::sleep(Duration::from_millis(100));
        if began.elapsed() < Duration::from_secs(2) {
            before = snapshots();
        }
    }
    assert_eq!(snapshots(), before);
    drop(client);
    assert!(server.stop().success());
}

#[test]
fn the_collector_and_compaction_are_switched_on_and_off_while_the_server_runs() {
    let world = World::new();
    let server = world.serve("cache", &["--volume", "demo=64MiB", "--gc", "off"]);
    let passes = || {
        let (_, state) = server.get("/v1/gc");
        let state: Value = serde_json::from_str(&state).unwrap();
        (
            state["is_on"].as_bool().unwrap(),
            state["passes"].as_u64().unwrap(),
        )
    };
    assert_eq!(passes(), (false, 0));
    let said = world.expect_success(&server, &["config", "set", "gc=1s", "compact=10m"]);
    assert!(said.contains("gc = \"1s\"\ncompact = \"600s\""), "{said}");
    eventually("a pass by itself", || passes().1 > 0);
    world.expect_success(&server, &["upgrade"]);
    assert_eq!(settings(&world, &server)["compact"], "600s");
    eventually("a pass of the next program", || passes() > (true, 0));
    world.expect_success(&server, &["config", "set", "gc=off"]);
    assert!(!passes().0);
    assert!(server.stop().success());
}

#[test]
fn a_deletion_keeps_to_the_trash_time_that_was_set() {
    let world = World::new();
    let server = world.serve("cache", &["--volume", "demo=64MiB", "--trash-keep", "1h"]);
    world.expect_success(&server, &["config", "set", "trash-keep=0s"]);
    world.expect_success(&server, &["volume", "delete", "demo"]);
    let shown = world.expect_success(&server, &["trash", "list", "--json"]);
    assert!(!shown.contains("demo"), "{shown}");
    assert!(server.stop().success());
}

#[test]
fn a_change_that_is_refused_changes_nothing() {
    let world = World::new();
    let server = world.serve("cache", &["--volume", "demo=64MiB"]);
    let before = settings(&world, &server);
    for (given, words) in [
        (&["slow-request=5ms", "rpo=0s"][..], "more than nothing"),
        (&["rpo=5s", "snapshot-schedule=demo"], "VOLUME=TIME,keep=N"),
        (&["log-size=1GiB"], "restart it"),
    ] {
        let args = [&["config", "set"], given].concat();
        let output = world.run(&server, &args);
        let said = message(&output);
        assert!(!output.status.success(), "{given:?}: {said}");
        assert!(said.contains(words), "{given:?}: {said}");
        assert_eq!(settings(&world, &server), before, "{given:?}");
    }
    assert!(server.stop().success());
}
