//! Volumes branched under load with the real binary: each snapshot and fork is one moment of the history,
//! and what becomes of one is never seen in another.

use std::fs;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use serde_json::{Value, json};

use crate::common::{Server, World, eventually};

const BLOCK: usize = 4096;
const BLOCKS: u64 = 512;

/// The content of a block that the write of this number put there.
fn content(number: u64) -> Vec<u8> {
    number.to_le_bytes().repeat(BLOCK / 8)
}

/// Write `number` goes to block `number % BLOCKS`: so the newest number says what each block holds.
fn offset(number: u64) -> u64 {
    number % BLOCKS * BLOCK as u64
}

/// Writes one after the other until it is told to stop; `acked` is the newest that completed.
fn write_numbers(server: &Server, volume: &str, acked: &AtomicU64, stop: &AtomicBool) {
    let mut client = server.connect(volume);
    while !stop.load(Ordering::SeqCst) {
        let number = acked.load(Ordering::SeqCst) + 1;
        client.write(offset(number), &content(number)).unwrap();
        acked.store(number, Ordering::SeqCst);
    }
}

/// The newest write that the volume has, if it has exactly those up to it.
fn newest_of_prefix(server: &Server, volume: &str) -> u64 {
    let mut client = server.connect(volume);
    let bytes = client.read(0, BLOCKS as usize * BLOCK).unwrap();
    let blocks: Vec<u64> = bytes
        .chunks(BLOCK)
        .map(|block| {
            let number = u64::from_le_bytes(block[..8].try_into().unwrap());
            assert_eq!(block, content(number), "{volume}: a block is of two writes");
            number
        })
        .collect();
    let newest = *blocks.iter().max().unwrap();
    for (at, found) in blocks.iter().enumerate() {
        let at = at as u64;
        // Numbers begin with 1: what was never written is 0.
        let expected = (newest + 1).saturating_sub(BLOCKS).max(1);
        let last = (expected..=newest)
            .rev()
            .find(|number| number % BLOCKS == at);
        assert_eq!(
            *found,
            last.unwrap_or(0),
            "{volume}: block {at} with write {newest} as the newest"
        );
    }
    newest
}

fn snapshots(world: &World, server: &Server) -> Vec<String> {
    let listed = world.expect_success(server, &["snapshot", "list", "demo", "--json"]);
    let listed: Value = serde_json::from_str(&listed).unwrap();
    let snapshots = listed["snapshots"].as_array().unwrap().iter();
    let name = |snapshot: &Value| snapshot["name"].as_str().unwrap().to_owned();
    snapshots.map(name).collect()
}

#[test]
fn a_snapshot_is_taken_while_the_store_is_away_and_survives_a_kill_until_the_store_has_it() {
    let world = World::new();
    let serve = || world.serve("cache", &["--volume", "demo=8MiB", "--rpo", "200ms"]);
    let server = serve();
    let mut client = server.connect("demo");
    client.write(0, &[1; BLOCK]).unwrap();
    let create = |server: &Server, more: &[&str]| {
        let args = [&["snapshot", "create"], more].concat();
        world.expect_success(server, &args)
    };
    // With it the server learns which names are free.
    create(&server, &["demo@stored", "--wait", "store"]);
    let is_stored = |server: &Server, name: &str| {
        let listed = world.expect_success(server, &["snapshot", "list", "demo", "--json"]);
        let listed: Value = serde_json::from_str(&listed).unwrap();
        let mut all = listed["snapshots"].as_array().unwrap().iter();
        let one = all.find(|snapshot| snapshot["name"] == name);
        one.unwrap_or_else(|| panic!("no {name}: {listed}"))["stored"] == true
    };
    assert!(is_stored(&server, "demo@stored"));
    create(&server, &["demo@first"]);
    eventually("it is in the store", || is_stored(&server, "demo@first"));
    fs::rename(world.path("store"), world.path("away")).unwrap();
    client.write(0, &[2; BLOCK]).unwrap();
    assert_eq!(world.show(&server, "demo").get("log_snapshots"), None);
    assert_eq!(create(&server, &["demo@away"]).trim(), "demo@away");
    assert_eq!(world.show(&server, "demo")["log_snapshots"], 1);
    let said = world.expect_success(&server, &["volume", "show", "demo"]);
    assert!(said.contains("1 in the log of this server alone"), "{said}");
    client.write(0, &[3; BLOCK]).unwrap();
    drop(client);
    server.kill();
    fs::rename(world.path("away"), world.path("store")).unwrap();
    let server = serve();
    eventually("it is in the store", || is_stored(&server, "demo@away"));
    world.expect_success(&server, &["fork", "demo@away", "was"]);
    world.expect_success(&server, &["attach", "was", "--transport", "nbd"]);
    assert_eq!(server.connect("was").read(0, BLOCK).unwrap(), [2; BLOCK]);
    assert_eq!(server.connect("demo").read(0, BLOCK).unwrap(), [3; BLOCK]);
}

/// Two kills, the second one before anything of the fork is in the store.
#[test]
fn a_fork_is_made_attached_and_written_to_while_the_store_is_away_and_survives_kills() {
    let world = World::new();
    let serve = || world.serve("cache", &["--volume", "demo=8MiB", "--rpo", "200ms"]);
    let server = serve();
    let mut client = server.connect("demo");
    client.write(0, &[1; BLOCK]).unwrap();
    client.write(BLOCK as u64, &[1; BLOCK]).unwrap();
    fs::rename(world.path("store"), world.path("away")).unwrap();
    client.write(0, &[2; BLOCK]).unwrap();
    let forked = world.expect_success(&server, &["fork", "demo", "branch", "--json"]);
    let forked: Value = serde_json::from_str(&forked).unwrap();
    assert_eq!(
        (&forked["name"], &forked["stored"]),
        (&json!("branch"), &json!(false))
    );
    client.write(0, &[3; BLOCK]).unwrap();
    world.expect_success(&server, &["attach", "branch", "--transport", "nbd"]);
    let mut fork = server.connect("branch");
    assert_eq!(fork.read(0, BLOCK).unwrap(), [2; BLOCK]);
    fork.write(2 * BLOCK as u64, &[4; BLOCK]).unwrap();
    fork.flush().unwrap();
    // An upgrade in the outage goes on with it, and with its client.
    world.expect_success(&server, &["upgrade"]);
    assert_eq!(fork.read(0, BLOCK).unwrap(), [2; BLOCK]);
    assert_eq!(fork.read(2 * BLOCK as u64, BLOCK).unwrap(), [4; BLOCK]);
    // Its name is given.
    let again = world.expect_failure(&server, &["fork", "demo", "branch"]);
    assert!(again.contains("branch exists already"), "{again}");
    drop((client, fork));
    server.kill();
    let server = serve();
    assert_eq!(server.connect("branch").read(0, BLOCK).unwrap(), [2; BLOCK]);
    assert_eq!(server.connect("demo").read(0, BLOCK).unwrap(), [3; BLOCK]);
    server.kill();
    fs::rename(world.path("away"), world.path("store")).unwrap();
    let server = serve();
    // It waits until the store has the fork.
    world.expect_success(&server, &["sync", "branch"]);
    let mut fork = server.connect("branch");
    for (at, fill) in [(0, 2), (1, 1), (2, 4), (3, 0)] {
        assert_eq!(fork.read(at * BLOCK as u64, BLOCK).unwrap(), [fill; BLOCK]);
    }
    let other = world.serve("other", &[]);
    world.expect_success(
        &other,
        &["attach", "branch", "--take-over", "--transport", "nbd"],
    );
    let mut fork = other.connect("branch");
    for (at, fill) in [(0, 2), (1, 1), (2, 4), (3, 0)] {
        assert_eq!(fork.read(at * BLOCK as u64, BLOCK).unwrap(), [fill; BLOCK]);
    }
}

#[test]
fn a_volume_that_is_branched_under_load_is_one_moment_in_each_branch_also_after_a_kill() {
    let world = World::new();
    let server = world.serve("cache", &["--volume", "demo=8MiB", "--rpo", "200ms"]);
    let (acked, stop) = (AtomicU64::new(0), AtomicBool::new(false));
    let mut moments = Vec::new();
    std::thread::scope(|scope| {
        scope.spawn(|| write_numbers(&server, "demo", &acked, &stop));
        for (command, name) in [
            ("snapshot", "demo@one"),
            ("fork", "two"),
            ("snapshot", "demo@three"),
        ] {
            let begun = acked.load(Ordering::SeqCst);
            eventually("writes", || acked.load(Ordering::SeqCst) > begun + 300);
            let before = acked.load(Ordering::SeqCst);
            let said = match command {
                "fork" => world.expect_success(&server, &["fork", "demo", name]),
                _ => world.expect_success(
                    &server,
                    &["snapshot", "create", name, "--label", "why=test"],
                ),
            };
            assert_eq!(said.trim(), name);
            // One may have been on its way.
            moments.push((name, before..=acked.load(Ordering::SeqCst) + 1));
        }
        stop.store(true, Ordering::SeqCst);
    });
    assert_eq!(snapshots(&world, &server), ["demo@one", "demo@three"]);
    world.expect_success(&server, &["fork", "demo@one", "one"]);
    world.expect_success(&server, &["fork", "demo@three", "three"]);
    for fork in ["one", "two", "three"] {
        world.expect_success(&server, &["attach", fork, "--transport", "nbd"]);
    }
    for (name, moment) in &moments {
        let newest = newest_of_prefix(&server, name.trim_start_matches("demo@"));
        assert!(
            moment.contains(&newest),
            "{name}: {newest} is not in {moment:?}"
        );
    }
    // Each goes its own way.
    let newest = newest_of_prefix(&server, "demo");
    let other = server.connect("two").write(0, &content(7_000_000));
    other.unwrap();
    server
        .connect("one")
        .write(offset(1), &content(8_000_000))
        .unwrap();
    server.kill();
    let server = world.serve("cache", &["--rpo", "200ms"]);
    eventually("the volumes", || {
        let states =
            ["demo", "one", "two", "three"].map(|name| world.show(&server, name)["state"].clone());
        states.iter().all(|state| state == "open")
    });
    assert_eq!(newest_of_prefix(&server, "demo"), newest);
    assert!(moments[2].1.contains(&newest_of_prefix(&server, "three")));
    let read = |volume: &str, at| server.connect(volume).read(at, BLOCK).unwrap();
    assert_eq!(read("two", 0), content(7_000_000));
    assert_eq!(read("one", offset(1)), content(8_000_000));
    assert_ne!(read("three", offset(1)), content(8_000_000));
}

#[test]
fn many_forks_are_made_by_one_command_which_ends_at_the_first_that_fails() {
    let world = World::new();
    let server = world.serve("cache", &["--volume", "demo=8MiB"]);
    server.connect("demo").write(0, &content(1)).unwrap();
    world.expect_success(&server, &["snapshot", "create", "demo@one"]);
    let names: Vec<String> = (0..40).map(|nth| format!("f{nth}")).collect();
    let fork = |parent: &str, names: &[String]| {
        let names = names.iter().map(String::as_str);
        let args: Vec<&str> = ["fork", parent].into_iter().chain(names).collect();
        world.run(&server, &args)
    };
    let said = String::from_utf8(fork("demo@one", &names).stdout).unwrap();
    let mut printed: Vec<&str> = said.lines().collect();
    printed.sort_by_key(|name| name[1..].parse::<u32>().unwrap());
    assert_eq!(printed, names);
    world.expect_success(&server, &["attach", "f39", "--transport", "nbd"]);
    assert_eq!(server.connect("f39").read(0, BLOCK).unwrap(), content(1));
    // The fourth is there already.
    let more = ["g1", "g2", "g3", "f39"].into_iter().map(str::to_owned);
    let more: Vec<String> = more.chain((4..90).map(|nth| format!("g{nth}"))).collect();
    let output = fork("demo", &more);
    let said = crate::common::message(&output);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("f39 exists"), "{said}");
    let made = String::from_utf8(output.stdout).unwrap();
    assert!(made.lines().count() < more.len() - 1, "{made}");
    let volumes = world.volume_names(&server);
    for name in made.lines() {
        assert!(volumes.iter().any(|volume| volume == name), "{name}");
    }
    let pins = || -> usize {
        let pins = fs::read_dir(world.path("store/pins")).unwrap();
        pins.map(|of| fs::read_dir(of.unwrap().path()).unwrap().count())
            .sum()
    };
    // One for each fork, when it is in the store, and the snapshot: what failed left none.
    eventually("the forks are in the store", || pins() == volumes.len());
}

#[test]
fn a_volume_is_deleted_after_its_snapshots_and_its_forks_live_on() {
    let world = World::new();
    let server = world.serve("cache", &["--volume", "demo=8MiB"]);
    server.connect("demo").write(0, &content(1)).unwrap();
    world.expect_success(&server, &["snapshot", "create", "demo@one"]);
    let said = world.expect_failure(&server, &["snapshot", "create", "demo@one"]);
    assert!(said.contains("a snapshot named demo@one exists"), "{said}");
    world.expect_success(&server, &["fork", "demo@one", "branch"]);
    let said = world.expect_failure(&server, &["volume", "delete", "demo", "--now", "--yes"]);
    assert!(said.contains("firn snapshot delete demo@one"), "{said}");
    let listed = world.expect_success(&server, &["volume", "list"]);
    assert!(!listed.contains("demo@one"), "{listed}");
    world.expect_success(&server, &["snapshot", "delete", "demo@one"]);
    let said = world.expect_failure(&server, &["snapshot", "delete", "demo@one"]);
    assert!(said.contains("no snapshot named demo@one"), "{said}");
    let said = world.expect_failure(&server, &["fork", "demo@one", "again"]);
    assert!(said.contains("firn snapshot list demo"), "{said}");
    world.expect_success(&server, &["volume", "delete", "demo", "demo", "--now"]);
    world.expect_success(&server, &["attach", "branch", "--transport", "nbd"]);
    assert_eq!(server.connect("branch").read(0, BLOCK).unwrap(), content(1));
    let refused = world.firn(&["snapshot", "create", "demo"]);
    assert_eq!(
        refused.status.code(),
        Some(2),
        "{}",
        crate::common::message(&refused)
    );
}

#[test]
fn a_volume_is_set_back_to_its_snapshot_and_what_it_held_is_kept() {
    let world = World::new();
    let server = world.serve("cache", &["--volume", "demo=8MiB"]);
    let mut client = server.connect("demo");
    client.write(0, &content(1)).unwrap();
    world.expect_success(&server, &["snapshot", "create", "demo@one"]);
    client.write(0, &content(2)).unwrap();
    let said = world.expect_failure(&server, &["snapshot", "restore", "demo@one"]);
    assert!(said.contains("used by 1 connections"), "{said}");
    drop(client);
    let said = world.expect_failure(&server, &["snapshot", "restore", "demo@two"]);
    assert!(said.contains("no snapshot named demo@two"), "{said}");
    let id = world.show(&server, "demo")["id"].clone();
    let mut kept = String::new();
    // Its connection may take a moment to go.
    eventually("the restore", || {
        let done = world.run(&server, &["snapshot", "restore", "demo@one"]);
        kept = String::from_utf8(done.stdout).unwrap().trim().to_owned();
        done.status.success()
    });
    assert_eq!(world.show(&server, "demo")["id"], id);
    assert_eq!(server.connect("demo").read(0, BLOCK).unwrap(), content(1));
    world.expect_success(&server, &["fork", &kept, "held"]);
    world.expect_success(&server, &["attach", "held", "--transport", "nbd"]);
    assert_eq!(server.connect("held").read(0, BLOCK).unwrap(), content(2));
}

#[test]
fn a_fork_of_a_volume_that_another_host_has_says_what_it_lacks() {
    let world = World::new();
    let server = world.serve("cache", &["--volume", "demo=8MiB"]);
    let mut client = server.connect("demo");
    client.write(0, &content(1)).unwrap();
    world.expect_success(&server, &["sync", "demo"]);
    let other = world.serve("other", &[]);
    let forked = world.run(&other, &["fork", "demo", "branch"]);
    let said = crate::common::message(&forked);
    assert!(forked.status.success(), "{said}");
    assert_eq!(String::from_utf8(forked.stdout).unwrap().trim(), "branch");
    assert!(
        said.contains("demo is open on host") && said.contains("up to LSN 1"),
        "{said}"
    );
    let forked = world.expect_success(&other, &["fork", "demo", "again", "--json"]);
    let forked: Value = serde_json::from_str(&forked).unwrap();
    assert_eq!(
        (&forked["name"], &forked["parent_lsn"]),
        (&Value::from("again"), &Value::from(1))
    );
    assert!(forked["parent_holder"].is_string(), "{forked}");
    world.expect_success(&other, &["attach", "branch", "--transport", "nbd"]);
    assert_eq!(other.connect("branch").read(0, BLOCK).unwrap(), content(1));
    let here = world.run(&server, &["fork", "demo", "here"]);
    assert_eq!(
        crate::common::message(&here),
        "",
        "its own host has all of it"
    );
}

/// What goes wrong with points in time, and what a user is told: the text, and what helps.
#[test]
fn what_cannot_be_done_with_points_in_time_is_said_with_what_helps() {
    let world = World::new();
    let server = world.serve("cache", &["--volume", "demo=8MiB"]);
    let _client = server.connect("demo");
    world.expect_success(&server, &["snapshot", "create", "demo@one"]);
    world.expect_success(&server, &["volume", "create", "other", "--size", "8MiB"]);
    for (arguments, said) in [
        (
            "snapshot create demo@one",
            "a snapshot named demo@one exists already",
        ),
        ("snapshot create dmeo@two", "did you mean demo?"),
        ("snapshot list dmeo", "did you mean demo?"),
        ("snapshot delete demo@two", "see `firn snapshot list demo`"),
        ("snapshot delete dmeo@one", "did you mean demo?"),
        ("snapshot restore demo@two", "see `firn snapshot list demo`"),
        ("snapshot restore dmeo@one", "did you mean demo?"),
        ("snapshot restore demo@one", "used by 1 connections"),
        (
            "snapshot restore other@one",
            "see `firn snapshot list other`",
        ),
        ("fork demo other", "a volume named other exists already"),
        ("fork demo@two new", "see `firn snapshot list demo`"),
        ("fork dmeo new", "did you mean demo?"),
        ("diff demo@one other", "share no history"),
        ("diff demo@two demo", "see `firn snapshot list demo`"),
        ("diff demo@one dmeo", "did you mean demo?"),
        ("diff dmeo@one demo", "did you mean demo?"),
    ] {
        let arguments: Vec<&str> = arguments.split(' ').collect();
        let found = world.expect_failure(&server, &arguments);
        assert!(found.contains(said), "{arguments:?}: {found}");
    }
    for (arguments, named) in [
        ("fork demo new@one", "new@one"),
        ("volume resize demo@one 16MiB", "demo@one"),
    ] {
        let arguments: Vec<&str> = arguments.split(' ').collect();
        let refused = world.run(&server, &arguments);
        let found = crate::common::message(&refused);
        assert_eq!(refused.status.code(), Some(2), "{found}");
        assert!(found.contains(named), "{found}");
    }
    assert_eq!(snapshots(&world, &server), ["demo@one"]);
}

/// Where a snapshot is attached, as its list says.
fn attached_at(world: &World, server: &Server) -> Value {
    let listed = world.expect_success(server, &["snapshot", "list", "demo", "--json"]);
    let listed: Value = serde_json::from_str(&listed).unwrap();
    listed["snapshots"][0]["attached"].clone()
}

#[test]
fn a_snapshot_that_is_attached_is_read_as_it_was_by_any_host_and_is_back_after_a_kill() {
    const EPERM: u32 = 1;
    let world = World::new();
    let server = world.serve("cache", &["--volume", "demo=8MiB"]);
    let mut client = server.connect("demo");
    client.write(0, &content(1)).unwrap();
    world.expect_success(&server, &["snapshot", "create", "demo@one"]);
    client.write(0, &content(2)).unwrap();
    let attach = ["attach", "demo@one", "--transport", "nbd"];
    let uri = world.expect_success(&server, &attach);
    assert!(uri.contains("/demo@one"), "{uri}");
    assert_eq!(attached_at(&world, &server), uri.trim());
    let other = world.serve("other", &[]);
    world.expect_success(&other, &attach);
    for server in [&server, &other] {
        let mut reader = server.connect("demo@one");
        assert_eq!(reader.size, 8 << 20);
        assert_eq!(reader.read(0, BLOCK).unwrap(), content(1));
        assert_eq!(reader.read(BLOCK as u64, BLOCK).unwrap(), content(0));
        assert_eq!(reader.try_write(0, &content(3)).unwrap(), EPERM);
        reader.flush().unwrap();
    }
    let listed = world.expect_success(&server, &["volume", "list"]);
    assert!(!listed.contains("demo@one"), "{listed}");
    let said = world.expect_failure(&server, &["snapshot", "delete", "demo@one"]);
    assert!(said.contains("firn detach demo@one"), "{said}");
    let said = world.expect_failure(&server, &["attach", "demo@one", "--take-over"]);
    assert!(said.contains("leave --take-over out"), "{said}");
    let said = world.expect_failure(&server, &["attach", "demo@two", "--transport", "nbd"]);
    assert!(said.contains("no snapshot named demo@two"), "{said}");
    server.kill();
    let server = world.serve("cache", &[]);
    let mut reader = server.connect("demo@one");
    assert_eq!(reader.read(0, BLOCK).unwrap(), content(1));
    assert_eq!(server.connect("demo").read(0, BLOCK).unwrap(), content(2));
    let said = world.expect_failure(&server, &["detach", "demo@one"]);
    assert!(said.contains("used by 1 connections"), "{said}");
    world.expect_success(&server, &["detach", "--force", "demo@one"]);
    assert_eq!(attached_at(&world, &server), Value::Null);
    // The other host has it attached: what is here was asked alone.
    world.expect_success(&server, &["snapshot", "delete", "demo@one"]);
    let found = other.connect("demo@one").read(0, BLOCK);
    assert!(found.is_err() || found == Ok(content(1)), "other bytes");
    world.expect_success(&other, &["detach", "--force", "demo@one"]);
    let said = world.expect_failure(&other, &attach);
    assert!(said.contains("no snapshot named demo@one"), "{said}");
}

/// The ranges of `firn diff --json`.
fn differences(world: &World, server: &Server, from: &str, to: &str) -> Value {
    let said = world.expect_success(server, &["diff", from, to, "--json"]);
    serde_json::from_str(&said).unwrap()
}

#[test]
fn a_diff_lists_what_was_written_between_two_states_and_on_another_host_what_the_store_has() {
    let world = World::new();
    let server = world.serve("cache", &["--volume", "demo=8MiB", "--rpo", "1h"]);
    let mut client = server.connect("demo");
    client.write(0, &content(1)).unwrap();
    client.write(1 << 20, &content(1)).unwrap();
    world.expect_success(&server, &["snapshot", "create", "demo@one"]);
    client.write(4096, &content(2)).unwrap();
    client.trim(1 << 20, 4096).unwrap();
    world.expect_success(&server, &["snapshot", "create", "demo@two"]);
    client.write(2 << 20, &content(3)).unwrap();
    let found = differences(&world, &server, "demo@one", "demo@two");
    let expected = json!([
        {"offset": 4096, "bytes": 4096, "kind": "data"},
        {"offset": 1 << 20, "bytes": 4096, "kind": "zero"},
    ]);
    assert_eq!(found["ranges"], expected);
    assert_eq!(
        (&found["data_bytes"], &found["zero_bytes"]),
        (&json!(4096), &json!(4096))
    );
    assert_eq!(found["from"]["name"], "demo@one");
    let output = world.run(&server, &["diff", "demo@one", "demo@two"]);
    let rows = String::from_utf8(output.stdout.clone()).unwrap();
    let rows: Vec<Vec<&str>> = rows
        .lines()
        .map(|row| row.split_whitespace().collect())
        .collect();
    assert_eq!(rows[0], ["OFFSET", "BYTES", "KIND"]);
    assert_eq!(rows[2], ["1048576", "4096", "zero"]);
    let said = crate::common::message(&output);
    assert!(said.contains("2 ranges"), "{said}");
    // What was not uploaded is not the store's.
    let since = |server: &Server| differences(&world, server, "demo@two", "demo")["ranges"].clone();
    assert_eq!(since(&server), json!([]));
    world.expect_success(&server, &["sync", "demo"]);
    let expected = json!([{"offset": 2 << 20, "bytes": 4096, "kind": "data"}]);
    assert_eq!(since(&server), expected);
    let other = world.serve("other", &[]);
    assert_eq!(since(&other), expected);
    // A page at a time.
    let path = "/v1/volumes/demo%40two/diff?from=demo%40one&limit=1";
    let (status, text) = other.get(path);
    assert_eq!(status, 200, "{text}");
    let part: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(part["ranges"].as_array().unwrap().len(), 1);
    let next = part["next"].as_str().unwrap();
    let (_, text) = other.get(&format!("{path}&after={next}"));
    let part: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(part["ranges"][0]["offset"], 1 << 20);
    assert_eq!(part.get("next"), None);
    let (status, text) = other.get(&format!("{path}&after=nonsense"));
    assert_eq!(status, 400, "{text}");
}
