//! Increments between two stores with the real binary: a copy that follows its original, byte by byte, and what is
//! refused so that it stays one.

use std::fs;
use std::io::Write;
use std::process::{Output, Stdio};

use serde_json::Value;

use crate::common::{Server, World, message};

const MIB: u64 = 1 << 20;
/// Of a header or a block, before what follows it; docs/format.md.
const HEADER_BYTES: usize = 16;
const BLOCK_BYTES: usize = 32;

/// Two servers, each on a store of its own, as if they were in two regions.
fn two_stores(world: &World) -> (Server, Server) {
    let here = world.serve("cache", &["--volume", "demo=8MiB", "--rpo", "1h"]);
    let there = world.serve("there", &["--store", "store-there", "--rpo", "1h"]);
    (here, there)
}

/// What a volume or snapshot holds.
fn content(world: &World, server: &Server, name: &str) -> Vec<u8> {
    let output = world.run(server, &["export", name, "-"]);
    assert!(output.status.success(), "{}", message(&output));
    output.stdout
}

fn noise(seed: u64, bytes: usize) -> Vec<u8> {
    let mut data = vec![0; bytes];
    fastrand::Rng::with_seed(seed).fill(&mut data);
    data
}

fn snapshots(world: &World, server: &Server, volume: &str) -> Vec<String> {
    let listed = world.expect_success(server, &["snapshot", "list", volume, "--json"]);
    let listed: Value = serde_json::from_str(&listed).unwrap();
    let snapshots = listed["snapshots"].as_array().unwrap().iter();
    let name = |snapshot: &Value| snapshot["name"].as_str().unwrap().to_owned();
    snapshots.map(name).collect()
}

/// `firn import - ARGUMENTS` with this on its standard input.
fn import_piped(world: &World, server: &Server, bytes: &[u8], arguments: &[&str]) -> Output {
    let mut all = vec!["--api", &server.api, "import", "-"];
    all.extend(arguments);
    let mut import = world
        .command(&all)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // One that refuses what it reads does not read all of it.
    let _ = import.stdin.take().unwrap().write_all(bytes);
    import.wait_with_output().unwrap()
}

/// Where the header of an increment ends, and then each of its blocks.
fn ends(bytes: &[u8]) -> Vec<usize> {
    let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap()) as usize;
    let mut ends = vec![HEADER_BYTES + word(12) + 8];
    while *ends.last().unwrap() < bytes.len() {
        let at = *ends.last().unwrap();
        ends.push(at + BLOCK_BYTES + word(at + 4));
    }
    ends
}

/// A first state, its snapshot `demo@a`, a second one, its snapshot `demo@b`.
fn two_states(world: &World, server: &Server) {
    let mut client = server.connect("demo");
    client.write(0, &noise(1, MIB as usize)).unwrap();
    client.write(2 * MIB, &vec![7; 65_536]).unwrap();
    client.write(6 * MIB, &noise(2, 65_536)).unwrap();
    world.expect_success(server, &["snapshot", "create", "demo@a"]);
    // A sector, zeroes over content by trim and by write, content over nothing, the last sector.
    client.write(512, &noise(3, 512)).unwrap();
    client.trim(2 * MIB, 32_768).unwrap();
    client.write(6 * MIB, &[0; 8192]).unwrap();
    client.write(4 * MIB, &noise(4, 300 * 1024)).unwrap();
    client.write(8 * MIB - 512, &[9; 512]).unwrap();
    world.expect_success(server, &["snapshot", "create", "demo@b"]);
}

#[test]
fn a_copy_in_another_store_follows_its_original_through_a_chain_of_increments() {
    let world = World::new();
    let (here, there) = two_stores(&world);
    two_states(&world, &here);
    let mut client = here.connect("demo");
    client.trim(0, 512 * 1024).unwrap();
    client.write(5 * MIB, &noise(5, MIB as usize)).unwrap();
    world.expect_success(&here, &["snapshot", "create", "demo@c"]);
    drop(client);
    world.expect_success(&here, &["volume", "resize", "demo", "12MiB"]);
    let mut client = here.connect("demo");
    client.write(11 * MIB, &noise(6, 4096)).unwrap();
    world.expect_success(&here, &["snapshot", "create", "demo@d"]);
    client.write(0, &noise(7, 4096)).unwrap();

    let whole = ["export", "demo@a", "a.inc", "--format", "increment"];
    world.expect_success(&here, &whole);
    world.expect_success(&there, &["import", "a.inc", "copy"]);
    assert_eq!(snapshots(&world, &there, "copy"), ["copy@a"]);
    for (since, to, names_it) in [("a", "b", false), ("b", "c", true), ("c", "d", false)] {
        let (file, since) = (format!("{to}.inc"), format!("@{since}"));
        let of = format!("demo@{to}");
        let made = ["export", &of, &file, "--since", &since, "--json"];
        let said: Value = serde_json::from_str(&world.expect_success(&here, &made)).unwrap();
        let (moved, bytes) = (
            &said["data_bytes"],
            fs::metadata(world.path(&file)).unwrap(),
        );
        let moved = moved.as_u64().unwrap();
        assert!(moved < 2 * MIB && bytes.len() < moved + 4096, "{said}");
        let onto = match names_it {
            true => format!("copy{since}"),
            false => "copy".to_owned(),
        };
        let said = world.expect_success(&there, &["import", &file, "--onto", &onto]);
        assert!(said.starts_with(&format!("copy@{to}:")), "{said}");
        let original = content(&world, &here, &format!("demo@{to}"));
        assert!(content(&world, &there, "copy") == original, "{to}");
        assert!(content(&world, &there, &format!("copy@{to}")) == original);
    }
    // And all points before are what they were.
    for point in ["a", "b", "c"] {
        let of =
            |server: &Server, volume: &str| content(&world, server, &format!("{volume}@{point}"));
        assert!(of(&there, "copy") == of(&here, "demo"), "{point}");
    }
    assert_eq!(world.show(&there, "copy")["state"], "closed");
    // A copy of the copy, through pipes, goes on where the original does.
    let third = world.serve("third", &["--store", "store-third"]);
    let piped = world.run(&there, &["export", "copy@a", "-", "--format", "increment"]);
    let made = import_piped(
        &world,
        &third,
        &piped.stdout,
        &["far", "--format", "increment"],
    );
    assert!(made.status.success(), "{}", message(&made));
    for (server, of, since) in [(&there, "copy@b", "@a"), (&here, "demo@d", "demo@b")] {
        let piped = world.run(server, &["export", of, "-", "--since", since]);
        let made = import_piped(&world, &third, &piped.stdout, &["--onto", "far"]);
        assert!(made.status.success(), "{}", message(&made));
    }
    assert!(content(&world, &third, "far") == content(&world, &here, "demo@d"));
}

#[test]
fn an_increment_that_is_cut_or_damaged_anywhere_leaves_the_volume_at_its_point() {
    let world = World::new();
    let (here, there) = two_stores(&world);
    two_states(&world, &here);
    world.expect_success(
        &here,
        &["export", "demo@a", "a.inc", "--format", "increment"],
    );
    world.expect_success(&there, &["import", "a.inc", "copy"]);
    world.expect_success(&here, &["export", "demo@b", "b.inc", "--since", "@a"]);
    let whole = fs::read(world.path("b.inc")).unwrap();
    let at_a = content(&world, &there, "copy");
    let ends = ends(&whole);
    assert!(ends.len() > 6, "{} pieces", ends.len());
    let mut wrong: Vec<Vec<u8>> = ends[..ends.len() - 1]
        .iter()
        .map(|end| whole[..*end].to_vec())
        .collect();
    let begins = std::iter::once(&0).chain(&ends);
    for (begin, end) in begins.zip(&ends) {
        for at in [*begin + 8, *end - 1] {
            let mut damaged = whole.clone();
            damaged[at] ^= 4;
            wrong.push(damaged);
        }
    }
    wrong.push([&whole[..], b"more"].concat());
    for (nth, bytes) in wrong.iter().enumerate() {
        fs::write(world.path("wrong.inc"), bytes).unwrap();
        let before = world.show(&there, "copy")["epoch"].clone();
        let said = world.expect_failure(&there, &["import", "wrong.inc", "--onto", "copy"]);
        assert!(said.contains("wrong.inc"), "{said}");
        // A file is looked through before anything is opened.
        assert_eq!(world.show(&there, "copy")["epoch"], before, "{nth}");
        let piped = import_piped(&world, &there, bytes, &["--onto", "copy@a"]);
        assert_eq!(piped.status.code(), Some(1), "{nth}: {}", message(&piped));
        assert_eq!(snapshots(&world, &there, "copy"), ["copy@a"], "{nth}");
        assert!(content(&world, &there, "copy") == at_a, "{nth}");
    }
    let listed = world.expect_success(&there, &["diff", "copy@a", "copy", "--json"]);
    let listed: Value = serde_json::from_str(&listed).unwrap();
    assert_eq!(listed["ranges"], serde_json::json!([]));
    world.expect_success(&there, &["import", "b.inc", "--onto", "copy"]);
    assert!(content(&world, &there, "copy") == content(&world, &here, "demo@b"));
    // Of one that makes a volume, none stays.
    let whole = fs::read(world.path("a.inc")).unwrap();
    let cut = &whole[..whole.len() - 1];
    let piped = import_piped(&world, &there, cut, &["new", "--format", "increment"]);
    assert_eq!(piped.status.code(), Some(1));
    let said = message(&piped);
    assert!(
        said.contains("cut short") && said.contains("no volume was made"),
        "{said}"
    );
    let listed = world.expect_success(&there, &["volume", "list"]);
    assert!(!listed.contains("new"), "{listed}");
}

#[test]
fn an_increment_is_laid_over_nothing_but_the_point_where_it_begins() {
    let world = World::new();
    let (here, there) = two_stores(&world);
    two_states(&world, &here);
    world.expect_success(&here, &["snapshot", "create", "demo@c"]);
    for (of, file, since) in [("demo@b", "b.inc", "@a"), ("demo@c", "c.inc", "@b")] {
        world.expect_success(&here, &["export", of, file, "--since", since]);
    }
    world.expect_success(
        &here,
        &["export", "demo@a", "a.inc", "--format", "increment"],
    );
    world.expect_success(&here, &["export", "demo@a", "a.img"]);
    world.expect_success(&there, &["import", "a.inc", "copy"]);
    world.expect_success(&there, &["import", "a.img", "image"]);
    world.expect_success(&there, &["snapshot", "create", "image@a"]);
    for (arguments, said) in [
        ("import c.inc --onto copy", "no snapshot of copy is demo@b"),
        ("import c.inc --onto copy@a", "copy@a is not demo@b"),
        (
            "import b.inc --onto image@a",
            "nor known to be a copy of it",
        ),
        ("import b.inc --onto copy@x", "no snapshot named copy@x"),
        ("import b.inc --onto cpoy", "did you mean copy?"),
        (
            "import b.inc new",
            "say which volume has that point with --onto",
        ),
        ("import a.inc --onto copy", "make a volume of it with"),
        ("import a.inc copy", "a volume named copy exists already"),
        ("import a.img --onto copy", "is no increment"),
    ] {
        let arguments: Vec<&str> = arguments.split(' ').collect();
        let found = world.expect_failure(&there, &arguments);
        assert!(found.contains(said), "{arguments:?}: {found}");
    }
    // In one store, too: the snapshot itself is the point.
    let found = world.expect_failure(&here, &["import", "c.inc", "--onto", "demo"]);
    assert!(found.contains("demo@c is there already"), "{found}");
    for arguments in [
        &["export", "demo", "x.inc", "--since", "@a"][..],
        &["import", "b.inc"],
        &["import", "b.inc", "copy", "--onto", "copy"],
        &["export", "demo@b", "x.inc", "--since", "a"],
        &[
            "export", "demo@b", "x.inc", "--since", "@a", "--format", "qcow2",
        ],
    ] {
        let refused = world.run(&here, arguments);
        assert_eq!(refused.status.code(), Some(2), "{}", message(&refused));
    }
    assert!(!world.path("x.inc").exists());
}

#[test]
fn a_copy_that_was_written_is_refused_until_it_is_set_back() {
    let world = World::new();
    let (here, there) = two_stores(&world);
    two_states(&world, &here);
    world.expect_success(&here, &["snapshot", "create", "demo@c"]);
    for (of, file, since) in [("demo@b", "b.inc", "@a"), ("demo@c", "c.inc", "@b")] {
        world.expect_success(&here, &["export", of, file, "--since", since]);
    }
    world.expect_success(
        &here,
        &["export", "demo@a", "a.inc", "--format", "increment"],
    );
    world.expect_success(&there, &["import", "a.inc", "copy"]);
    world.expect_success(&there, &["attach", "copy", "--transport", "nbd"]);
    let mut client = there.connect("copy");
    client.write(4096, &[1; 512]).unwrap();
    let found = world.expect_failure(&there, &["import", "b.inc", "--onto", "copy"]);
    assert!(found.contains("in use"), "{found}");
    drop(client);
    crate::common::eventually("the client is gone", || {
        world.show(&there, "copy")["nbd"]["connections"] == 0
    });
    let found = world.expect_failure(&there, &["import", "b.inc", "--onto", "copy"]);
    assert!(
        found.contains("copy is not at copy@a: 512 B were written"),
        "{found}"
    );
    assert_eq!(there.connect("copy").read(4096, 512).unwrap(), [1; 512]);
    crate::common::eventually("the client is gone", || {
        world.show(&there, "copy")["nbd"]["connections"] == 0
    });
    world.expect_success(&there, &["snapshot", "restore", "copy@a"]);
    world.expect_success(&there, &["import", "b.inc", "--onto", "copy"]);
    assert_eq!(world.show(&there, "copy")["state"], "open", "as it was");
    let found = world.expect_failure(&there, &["import", "b.inc", "--onto", "copy"]);
    assert!(found.contains("copy@b is there already"), "{found}");
    world.expect_success(&there, &["import", "c.inc", "--onto", "copy"]);
    assert!(content(&world, &there, "copy") == content(&world, &here, "demo@c"));
}
