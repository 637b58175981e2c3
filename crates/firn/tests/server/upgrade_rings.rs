//! What an upgrade leaves in the directory of the index rings: memory that no disk gives back.

use std::collections::BTreeSet;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use crate::common::process::Upgrade;
use crate::common::{Server, World, eventually};

const VOLUMES: [&str; 6] = [
    "--volume", "a=8MiB", "--volume", "b=8MiB", "--volume", "c=8MiB",
];

fn serve(world: &World, plan: &str) -> Server {
    let api = format!("unix:{}", world.path("api.sock").display());
    let mut args = vec!["--api", &api];
    args.extend(VOLUMES);
    world.serve_as("cache", &args, |command| {
        command.env("FIRN_HANDOVER_AT", plan);
    })
}

/// Of the rings, and of the session's own region.
fn inodes(world: &World) -> BTreeSet<u64> {
    let files = ring_files(world).into_iter();
    let rings = files.filter(|file| file.file_name().unwrap() != "cache-dir");
    rings.map(|file| file.metadata().unwrap().ino()).collect()
}

fn ring_files(world: &World) -> Vec<PathBuf> {
    let dirs = std::fs::read_dir(world.rings()).unwrap().flatten();
    let files = dirs.flat_map(|dir| std::fs::read_dir(dir.path()).into_iter().flatten());
    files.flatten().map(|file| file.path()).collect()
}

/// Of each volume, of the session, and the name of the cache directory. Those of the last session go behind a server's back.
fn expect_own_rings_alone(world: &World, what: &str) {
    eventually(&format!("{what}: only rings in use are left"), || {
        ring_files(world).len() == VOLUMES.len() / 2 + 2
    });
}

#[test]
fn an_upgrade_that_succeeds_fails_or_is_refused_leaves_only_the_rings_in_use() {
    for plan in ["", "given=fail", "recovered=fail", "opened=fail"] {
        let world = World::new();
        let server = serve(&world, plan);
        let mut client = server.connect("a");
        for round in 1..4 {
            client.write(0, &[round; 4096]).unwrap();
            let upgraded = world.run(&server, &["upgrade"]);
            assert_eq!(upgraded.status.success(), plan.is_empty(), "{plan}");
            assert_eq!(client.read(0, 4096).unwrap(), [round; 4096]);
            expect_own_rings_alone(&world, plan);
        }
    }
}

#[test]
fn the_next_program_goes_on_with_the_rings_of_the_one_before() {
    let world = World::new();
    let server = serve(&world, "");
    let before = inodes(&world);
    for round in 1..4 {
        let mut client = server.connect("a");
        client.write(0, &[round; 4096]).unwrap();
        assert!(world.run(&server, &["upgrade"]).status.success());
        assert_eq!(inodes(&world), before);
    }
    server.kill();
    let server = serve(&world, "");
    assert_eq!(server.connect("a").read(0, 4096).unwrap(), [3; 4096]);
    expect_own_rings_alone(&world, "killed");
    assert!(
        inodes(&world).is_disjoint(&before),
        "a plain start makes its own"
    );
}

#[test]
fn a_server_that_is_killed_as_it_hands_over_leaves_no_rings_behind() {
    for step in ["given", "started", "recovered"] {
        let world = World::new();
        let server = serve(&world, &format!("{step}=pause"));
        server.connect("a").write(0, &[7; 4096]).unwrap();
        let upgrade = Upgrade::start(&world, &server, "30s");
        let log = world.path("cache.stderr");
        eventually("the upgrade stands still", || {
            std::fs::read_to_string(&log)
                .unwrap()
                .contains("stopped at step")
        });
        server.kill();
        drop(upgrade);
        let server = serve(&world, "");
        assert_eq!(server.connect("a").read(0, 4096).unwrap(), [7; 4096]);
        expect_own_rings_alone(&world, step);
    }
}
