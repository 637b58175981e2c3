//! Settings that change while the server runs.

use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::panic::AssertUnwindSafe;
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
    let said = world.expect_success(
        &server,
        &["config", "set", "gc=1s", "compact=10m", "scrub=24h"],
    );
    assert!(said.contains("gc = \"1s\"\ncompact = \"600s\""), "{said}");
    eventually("a pass by itself", || passes().1 > 0);
    world.expect_success(&server, &["upgrade"]);
    assert_eq!(settings(&world, &server)["compact"], "600s");
    assert_eq!(settings(&world, &server)["scrub"], "86400s");
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
        (
            &["rpo=5s", "cache-size=60KiB"],
            "0B for none, or at least 64KiB",
        ),
        (&["log-size=1GiB"], "firn rescue log --log-size"),
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

/// What is in the volume of the tests of the read cache, by its sector.
fn content(offset: u64) -> Vec<u8> {
    let stamps = (offset / 512..offset / 512 + 128).flat_map(|sector| [sector; 64]);
    stamps.flat_map(u64::to_le_bytes).collect()
}

const CONTENT_BYTES: u64 = 24 << 20;
const READ_BYTES: u64 = 64 << 10;

/// A world whose store has the volume demo, which no host holds.
fn world_with_content() -> World {
    let world = World::new();
    let server = world.serve("writer", &["--volume", "demo=64MiB"]);
    let mut client = server.connect("demo");
    for offset in (0..CONTENT_BYTES).step_by(READ_BYTES as usize) {
        client.write(offset, &content(offset)).unwrap();
    }
    client.flush().unwrap();
    drop(client);
    assert!(server.stop().success());
    world
}

fn check_all(server: &crate::common::Server) {
    let mut client = server.connect("demo");
    for offset in (0..CONTENT_BYTES).step_by(READ_BYTES as usize) {
        let found = client.read(offset, READ_BYTES as usize).unwrap();
        assert!(found == content(offset), "at {offset}");
    }
}

fn cache_file_bytes(world: &World) -> u64 {
    let file = world.path("reader/cache");
    std::fs::metadata(file).unwrap().len()
}

/// Reads at random until the server is gone; how many reads there were.
fn read_for_ever(server: &crate::common::Server) -> std::thread::JoinHandle<u64> {
    let mut client = server.connect("demo");
    std::thread::spawn(move || {
        let mut random = fastrand::Rng::with_seed(1);
        for reads in 0.. {
            let offset = random.u64(0..CONTENT_BYTES / READ_BYTES) * READ_BYTES;
            // The client panics as its connection ends.
            let read = AssertUnwindSafe(|| client.read(offset, READ_BYTES as usize));
            match std::panic::catch_unwind(read) {
                Ok(Ok(found)) => assert!(found == content(offset), "at {offset}"),
                _ => return reads,
            }
        }
        0
    })
}

#[test]
fn the_read_cache_grows_and_shrinks_while_it_is_read_and_an_upgrade_keeps_its_size() {
    let world = world_with_content();
    let server = world.serve("reader", &["--volume", "demo=64MiB"]);
    let reader = read_for_ever(&server);
    for bytes in [64 << 20, 1 << 20, 32 << 20, 0, 8 << 20] {
        let size = format!("cache-size={bytes}B");
        let said = world.expect_success(&server, &["config", "set", &size]);
        assert!(said.contains("cache-size = "), "{said}");
        assert_eq!(cache_file_bytes(&world), bytes);
        check_all(&server);
    }
    assert_eq!(settings(&world, &server)["cache_size"], "8MiB");
    world.expect_success(&server, &["upgrade"]);
    assert_eq!(settings(&world, &server)["cache_size"], "8MiB");
    assert_eq!(cache_file_bytes(&world), 8 << 20);
    check_all(&server);
    let refused = world.run(&server, &["config", "set", "cache-size=4097B"]);
    assert!(message(&refused).contains("multiple of 4096"));
    assert_eq!(cache_file_bytes(&world), 8 << 20);
    assert!(server.stop().success());
    assert!(reader.join().unwrap() > 0);

    // No size is configured: that of the file counts. Where one is, it does.
    let server = world.serve("reader", &["--volume", "demo=64MiB"]);
    assert_eq!(settings(&world, &server)["cache_size"], "8MiB");
    assert!(server.stop().success());
    let args = ["--volume", "demo=64MiB", "--cache-size", "16MiB"];
    let server = world.serve("reader", &args);
    assert_eq!(settings(&world, &server)["cache_size"], "16MiB");
    world.expect_success(&server, &["config", "set", "cache-size=4MiB"]);
    world.expect_success(&server, &["upgrade"]);
    assert_eq!(settings(&world, &server)["cache_size"], "4MiB");
    assert!(server.stop().success());
}

#[test]
fn a_server_that_is_killed_while_its_cache_changes_size_has_one_of_the_sizes_and_every_byte() {
    let world = world_with_content();
    for round in 0..6 {
        let server = world.serve("reader", &["--volume", "demo=64MiB"]);
        let reader = read_for_ever(&server);
        let sizes: [u64; 4] = [64 << 20, 1 << 20, 16 << 20, 128 << 10];
        let api = server.api.clone();
        let set = |bytes: u64| {
            let size = format!("cache-size={bytes}B");
            let mut command = world.command(&["--api", &api, "config", "set", &size]);
            command.stderr(std::process::Stdio::null());
            command.stdout(std::process::Stdio::null()).spawn().unwrap()
        };
        let mut commands: Vec<_> = sizes.into_iter().map(set).collect();
        // One more each round has come to its end by then.
        for command in &mut commands[..round.min(4)] {
            command.wait().unwrap();
        }
        server.kill();
        for mut command in commands {
            command.wait().unwrap();
        }
        reader.join().unwrap();
        let found = cache_file_bytes(&world);
        assert!(sizes.contains(&found), "{found} bytes");
        let server = world.serve("reader", &["--volume", "demo=64MiB"]);
        assert_eq!(cache_file_bytes(&world), found);
        check_all(&server);
        assert!(server.stop().success());
    }
}

#[test]
fn an_upgrade_goes_on_with_the_file_of_the_read_cache_whatever_size_is_configured() {
    let world = World::new();
    let configure = |text: &str| std::fs::write(world.path("firn.toml"), text).unwrap();
    configure("cache-size = \"16MiB\"\n");
    let args = ["--config", "firn.toml", "--volume", "demo=64MiB"];
    // The file has a size, so that the flag of these tests does not say one.
    drop(world.serve("reader", &args));
    let server = world.serve("reader", &args);
    // Held open, so that a new file cannot get its number.
    let file = File::open(world.path("reader/cache")).unwrap();
    let number = file.metadata().unwrap().ino();
    let upgraded = || {
        world.expect_success(&server, &["upgrade"]);
        let found = std::fs::metadata(world.path("reader/cache")).unwrap();
        assert_eq!(found.ino(), number, "it was made anew");
    };
    world.expect_success(&server, &["config", "set", "cache-size=4MiB", "rpo=7s"]);
    for _ in 0..2 {
        upgraded();
        assert_eq!(settings(&world, &server)["cache_size"], "4MiB");
        assert_eq!(cache_file_bytes(&world), 4 << 20);
    }
    // Who writes another size wants that one.
    for (size, bytes) in [("32MiB", 32 << 20), ("8MiB", 8 << 20)] {
        configure(&format!("cache-size = \"{size}\"\n"));
        upgraded();
        eventually(size, || settings(&world, &server)["cache_size"] == size);
        assert_eq!(cache_file_bytes(&world), bytes);
        assert_eq!(settings(&world, &server)["rpo"], "7s");
    }
    // Without one, the file's.
    configure("");
    upgraded();
    assert_eq!(settings(&world, &server)["cache_size"], "8MiB");
    assert!(server.stop().success());
}
