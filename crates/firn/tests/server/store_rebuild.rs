//! `firn check --rebuild` by the real binary: a volume whose root and index files were removed from the store is there
//! again, block by block, on the host that had it and on another; what it did not store is rescued.

use serde_json::Value;

use crate::common::{Server, World};

const BLOCK: usize = 4096;
const BLOCKS: usize = 2048;

/// The blocks of a volume, as clients wrote them.
struct Model(Vec<u8>);

impl Model {
    fn new() -> Model {
        Model(vec![0; BLOCKS * BLOCK])
    }

    /// Writes at random places, a FLUSH behind each tenth.
    fn write(&mut self, client: &mut crate::common::nbd::Client, seed: u64, writes: usize) {
        let mut random = fastrand::Rng::with_seed(seed);
        for nth in 0..writes {
            let blocks = random.usize(1..16);
            let at = random.usize(0..BLOCKS - blocks) * BLOCK;
            let data: Vec<u8> = (0..blocks * BLOCK).map(|_| random.u8(..)).collect();
            client.write(at as u64, &data).unwrap();
            self.0[at..at + data.len()].copy_from_slice(&data);
            if nth % 10 == 9 {
                client.flush().unwrap();
            }
        }
    }

    fn trim(&mut self, client: &mut crate::common::nbd::Client, at: usize, blocks: usize) {
        let bytes = blocks * BLOCK;
        client.trim((at * BLOCK) as u64, bytes as u32).unwrap();
        self.0[at * BLOCK..][..bytes].fill(0);
    }

    fn verify(&self, server: &Server, name: &str) {
        let mut client = server.connect(name);
        let mut wrong = Vec::new();
        for (nth, expected) in self.0.chunks(16 * BLOCK).enumerate() {
            let found = client
                .read((nth * 16 * BLOCK) as u64, expected.len())
                .unwrap();
            if found != expected {
                wrong.push(nth);
            }
        }
        assert!(wrong.is_empty(), "{name}: wrong at {wrong:?}");
    }
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

/// A server that was killed, and what its volume was when it was last stored.
fn killed(world: &World) -> Model {
    let server = world.serve("one", &["--volume", "demo=8MiB", "--gc", "off"]);
    let mut model = Model::new();
    let mut client = server.connect("demo");
    for round in 0..4 {
        model.write(&mut client, round, 30);
        model.trim(&mut client, 100 * round as usize, 40);
        world.expect_success(&server, &["sync", "demo"]);
    }
    // Folds them, so that there is an index to lose.
    world.expect_success(&server, &["gc"]);
    model.write(&mut client, 9, 10);
    world.expect_success(&server, &["sync", "demo"]);
    server.kill();
    model
}

fn remove(world: &World, dir: &str) {
    std::fs::remove_dir_all(world.path("store").join(dir)).unwrap();
}

#[test]
fn a_volume_whose_root_and_index_are_gone_is_rebuilt_attached_and_verified() {
    let world = World::new();
    let model = killed(&world);
    remove(&world, "volumes/demo");
    remove(&world, "indexes");
    let (status, out, err) = check(&world, &[]);
    assert_eq!(status, Some(1), "{out}{err}");
    for part in [
        "volumes/demo/root",
        "missing",
        "`firn check --rebuild demo`",
    ] {
        assert!(out.contains(part), "{out}");
    }
    let (status, _, err) = check(&world, &["demo"]);
    assert_eq!(status, Some(1));
    assert!(err.contains("`firn check --rebuild demo`"), "{err}");
    let (_, out, _) = check(&world, &["--json"]);
    let found: Value = serde_json::from_str(&out).unwrap();
    assert_eq!(found["rebuildable"][0], "demo", "{found}");

    let (status, out, err) = check(&world, &["--rebuild", "demo"]);
    assert_eq!(status, Some(1), "{out}{err}");
    assert!(err.contains("--take-over"), "its server was killed: {err}");
    let trial = ["--rebuild", "demo", "--take-over", "--dry-run"];
    let (status, out, err) = check(&world, &trial);
    assert_eq!(status, Some(0), "{out}{err}");
    assert!(out.contains("nothing was changed"), "{out}");
    assert!(!world.path("store/volumes/demo").exists());
    let (status, out, err) = check(&world, &["--json", "--rebuild", "demo", "--take-over"]);
    assert_eq!(status, Some(0), "{out}{err}");
    let report: Value = serde_json::from_str(&out).unwrap();
    assert_eq!(report["written"], true, "{report}");
    assert_eq!(report["unknown"], Value::Array(Vec::new()), "{report}");
    assert_eq!(report["bytes"], 8 << 20, "{report}");
    let (status, out, err) = check(&world, &["--deep"]);
    assert_eq!(status, Some(0), "{out}{err}");
    let (status, _, err) = check(&world, &["--rebuild", "demo"]);
    assert_eq!(status, Some(1), "it is whole now");
    assert!(err.contains("nothing to rebuild"), "{err}");

    let other = world.serve("other", &["--gc", "off"]);
    let listed = world.expect_success(&other, &["volume", "list"]);
    assert!(listed.contains("demo"), "{listed}");
    world.expect_success(&other, &["attach", "demo", "--transport", "nbd"]);
    model.verify(&other, "demo");
    world.expect_success(&other, &["gc"]);
    world.expect_success(&other, &["gc"]);
    model.verify(&other, "demo");
    world.expect_success(&other, &["detach", "--force", "demo"]);
    // The host that had it opens it like any other.
    let one = world.serve("one", &["--gc", "off"]);
    world.expect_success(&one, &["attach", "demo", "--transport", "nbd"]);
    model.verify(&one, "demo");
}

#[test]
fn what_was_not_stored_before_the_loss_is_kept_by_its_host_for_rescue() {
    let world = World::new();
    let model = killed(&world);
    let server = world.serve(
        "one",
        &["--volume", "demo=8MiB", "--gc", "off", "--rpo", "1h"],
    );
    let mut client = server.connect("demo");
    client.write(0, &[77; BLOCK]).unwrap();
    client.flush().unwrap();
    server.kill();
    remove(&world, "volumes/demo");
    let (status, out, err) = check(&world, &["--rebuild", "demo", "--take-over"]);
    assert_eq!(status, Some(0), "{out}{err}");
    assert!(out.contains("firn rescue list"), "{out}");
    let one = world.serve("one", &["--gc", "off"]);
    world.expect_success(&one, &["attach", "demo", "--transport", "nbd"]);
    model.verify(&one, "demo");
    let listed = world.expect_success(&one, &["rescue", "list"]);
    assert!(listed.contains("demo"), "{listed}");
}

#[test]
fn a_repair_rebuilds_what_nobody_had_open_and_says_what_it_left_alone() {
    let world = World::new();
    let server = world.serve("one", &["--volume", "demo=8MiB", "--gc", "off"]);
    world.expect_success(&server, &["volume", "create", "other", "--size", "8MiB"]);
    world.expect_success(&server, &["attach", "other", "--transport", "nbd"]);
    let mut model = Model::new();
    let mut client = server.connect("other");
    model.write(&mut client, 1, 20);
    drop(client);
    server.connect("demo").write(0, &[1; BLOCK]).unwrap();
    world.expect_success(&server, &["sync", "demo"]);
    world.expect_success(&server, &["detach", "--force", "other"]);
    server.kill();
    remove(&world, "volumes");
    let (status, out, err) = check(&world, &["--repair"]);
    assert_eq!(status, Some(1), "demo was open: {out}{err}");
    for part in ["other was rebuilt", "demo was not repaired", "--take-over"] {
        assert!(out.contains(part), "{part}: {out}");
    }
    let (status, out, err) = check(&world, &["--rebuild", "demo", "--take-over"]);
    assert_eq!(status, Some(0), "{out}{err}");
    let (status, out, err) = check(&world, &["--repair", "--json"]);
    assert_eq!(status, Some(0), "{out}{err}");
    let found: Value = serde_json::from_str(&out).unwrap();
    assert_eq!(found["repaired"], Value::Array(Vec::new()), "{found}");
    let two = world.serve("two", &["--gc", "off"]);
    world.expect_success(&two, &["attach", "other", "--transport", "nbd"]);
    model.verify(&two, "other");
}

#[test]
fn a_rebuild_of_what_cannot_be_says_why_and_bad_words_are_usage_errors() {
    let world = World::new();
    killed(&world);
    for args in [
        &["--rebuild"][..],
        &["--rebuild", "demo", "--deep"],
        &["--rebuild", "demo", "other"],
        &["--rebuild", "demo", "--id", "12"],
        &["--dry-run", "demo"],
        &["--as", "new", "demo"],
    ] {
        let (status, out, err) = check(&world, args);
        assert_eq!(status, Some(2), "{args:?}: {out}{err}");
    }
    let (status, _, err) = check(&world, &["--rebuild", "dmeo"]);
    assert_eq!(status, Some(1));
    assert!(err.contains("no pack in this store"), "{err}");
    let (status, _, err) = check(&world, &["--rebuild", "demo"]);
    assert_eq!(status, Some(1));
    assert!(err.contains("nothing to rebuild"), "{err}");
}
