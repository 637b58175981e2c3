//! The shipped binary on any server: `FIRN_STORE_URL` names it, the environment has its keys (`cargo xtask stores`).
//!
//! Goal: a store that passes the probe carries a volume through what a volume goes through: verified writes, kill -9,
//! the loss of a host, snapshots, forks, deletion, collection. A store that is refused is refused in words, before
//! anything is made.

#![allow(clippy::unwrap_used)]

mod common;

use common::nbd::Client;
use common::{Server, World, eventually};
use oracle::SectorOracle;
use oracle::stamp::SECTOR_BYTES;
use s3_testbed::NamedStore;
use serde_json::Value;

const BLOCK_SECTORS: u64 = 8;
const SECTORS: u64 = (32 << 20) / SECTOR_BYTES as u64;
/// Largest write in blocks.
const RUN_MAX: u64 = 32;

/// A volume's content, as its writes and reads say it is.
struct Content {
    oracle: SectorOracle,
    random: fastrand::Rng,
}

impl Content {
    fn new(number: u32) -> Content {
        Content {
            oracle: SectorOracle::in_blocks(number, SECTORS, BLOCK_SECTORS),
            random: fastrand::Rng::with_seed(u64::from(number)),
        }
    }

    fn write(&mut self, client: &mut Client, writes: u32) {
        for _ in 0..writes {
            let blocks = self.random.u64(1..=RUN_MAX);
            let last = SECTORS / BLOCK_SECTORS - blocks;
            let first = self.random.u64(..=last) * BLOCK_SECTORS;
            let sectors = first..first + blocks * BLOCK_SECTORS;
            let (generation, bytes) = self.oracle.begin_filled(sectors);
            client.write(first * SECTOR_BYTES as u64, &bytes).unwrap();
            self.oracle.acknowledge(generation);
        }
    }

    fn check(&mut self, client: &mut Client) {
        const AT_ONCE: u64 = 2048;
        for first in (0..SECTORS).step_by(AT_ONCE as usize) {
            let read = self.oracle.begin_read(first..first + AT_ONCE);
            let len = AT_ONCE as usize * SECTOR_BYTES;
            let bytes = client.read(first * SECTOR_BYTES as u64, len).unwrap();
            if let Err(wrong) = self.oracle.check_bytes(&read, &bytes) {
                panic!("{wrong}");
            }
        }
    }
}

fn serve(world: &World, cache: &str, url: &str) -> Server {
    world.serve(cache, &["--store", url, "--rpo", "1s", "--gc", "off"])
}

fn gc(world: &World, server: &Server) -> Value {
    serde_json::from_str(&world.expect_success(server, &["gc", "--json"])).unwrap()
}

fn check_store(world: &World, url: &str) {
    let output = world.firn(&["check", "--store", url, "--deep"]);
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success(),
        "{said}{}",
        common::message(&output)
    );
}

#[test]
fn what_was_written_is_found_after_a_kill_and_what_was_synced_after_the_loss_of_a_host() {
    let Some(url) = NamedStore::Good.url_for("volume") else {
        return;
    };
    let world = World::new();
    let mut content = Content::new(1);
    let server = serve(&world, "one", &url);
    world.expect_success(&server, &["volume", "create", "demo", "--size", "32MiB"]);
    world.expect_success(&server, &["attach", "demo", "--transport", "nbd"]);
    let mut client = server.connect("demo");
    content.write(&mut client, 300);
    client.flush().unwrap();
    world.expect_success(&server, &["sync", "demo"]);
    // Acknowledged, and not asked to be anywhere.
    content.write(&mut client, 100);
    server.kill();

    let server = serve(&world, "one", &url);
    world.expect_success(&server, &["attach", "demo", "--transport", "nbd"]);
    let mut client = server.connect("demo");
    content.check(&mut client);
    content.write(&mut client, 100);
    world.expect_success(&server, &["sync", "demo"]);
    server.kill();
    std::fs::remove_dir_all(world.path("one")).unwrap();

    let server = serve(&world, "two", &url);
    world.take_over(&server, "demo");
    let mut client = server.connect("demo");
    content.check(&mut client);
    content.write(&mut client, 100);
    drop(client);
    assert!(server.stop().success());
    check_store(&world, &url);

    let server = serve(&world, "three", &url);
    world.expect_success(&server, &["attach", "demo", "--transport", "nbd"]);
    content.check(&mut server.connect("demo"));
}

#[test]
fn a_fork_outlives_its_deleted_parent_and_nothing_that_it_reads_is_collected() {
    let Some(url) = NamedStore::Good.url_for("forks") else {
        return;
    };
    let world = World::new();
    let mut parent = Content::new(2);
    let server = serve(&world, "one", &url);
    world.expect_success(&server, &["volume", "create", "demo", "--size", "32MiB"]);
    world.expect_success(&server, &["attach", "demo", "--transport", "nbd"]);
    let mut client = server.connect("demo");
    parent.write(&mut client, 200);
    world.expect_success(&server, &["snapshot", "create", "demo@one"]);
    let kept = client.read(0, 32 << 20).unwrap();
    parent.write(&mut client, 200);
    world.expect_success(&server, &["sync", "demo"]);
    world.expect_success(&server, &["fork", "demo@one", "branch"]);
    world.expect_success(&server, &["attach", "branch", "--transport", "nbd"]);
    let mut branch = server.connect("branch");
    assert!(branch.read(0, 32 << 20).unwrap() == kept);
    branch.write(4096, &[7; 4096]).unwrap();
    parent.check(&mut client);
    drop(client);

    world.expect_success(&server, &["snapshot", "delete", "demo@one"]);
    eventually("nobody uses the volume", || {
        world.show(&server, "demo")["nbd"]["connections"] == 0
    });
    world.expect_success(&server, &["volume", "delete", "demo", "demo", "--now"]);
    world.expect_success(&server, &["sync", "branch"]);
    let mut removed = 0;
    eventually("what only the parent had is removed", || {
        removed += gc(&world, &server)["removed"]["objects"].as_u64().unwrap();
        removed > 0
    });
    check_store(&world, &url);
    server.kill();

    let server = serve(&world, "two", &url);
    world.take_over(&server, "branch");
    let found = server.connect("branch").read(0, 32 << 20).unwrap();
    assert!(found[..4096] == kept[..4096] && found[8192..] == kept[8192..]);
    assert!(found[4096..8192] == [7; 4096]);
}

#[test]
fn a_server_whose_conditional_writes_are_broken_is_refused_before_anything_is_made() {
    let Some(url) = NamedStore::Refused.url_for("refused") else {
        return;
    };
    let world = World::new();
    let said = world.expect_refusal("cache", &["--store", &url]);
    let names_the_remedy = ["--single-writer", "check that it is of the kind"]
        .iter()
        .any(|words| said.contains(words));
    assert!(names_the_remedy, "{said}");
    assert!(!world.path("cache").join("log").exists());
}
