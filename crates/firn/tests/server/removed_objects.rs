//! Objects that somebody removed from the store, or set back: what is said of them, and what goes on without them.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::common::{World, eventually};

/// The files below a directory.
fn files(dir: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(dir)
        .unwrap()
        .map(|entry| entry.unwrap().path());
    let below = |path: PathBuf| match path.is_dir() {
        true => files(&path),
        false => vec![path],
    };
    entries.flat_map(below).collect()
}

#[test]
fn a_root_that_was_removed_is_said_and_what_is_here_is_served_over_restarts() {
    let world = World::new();
    let server = world.serve("cache", &["--volume", "demo=8MiB", "--rpo", "1h"]);
    let mut client = server.connect("demo");
    client.write(0, &[1; 4096]).unwrap();
    world.expect_success(&server, &["sync", "demo"]);
    client.write(4096, &[2; 4096]).unwrap();
    drop(client);
    server.kill();
    let (root, kept) = (world.path("store/volumes/demo/root"), world.path("root"));
    fs::rename(&root, &kept).unwrap();

    // The size on the command line asks for the root, too.
    for sized in [true, false] {
        let flags: &[&str] = match sized {
            true => &["--volume", "demo=8MiB"],
            false => &[],
        };
        let server = world.serve("cache", flags);
        let said = server.get("/readyz");
        assert_eq!(said.0, 200, "what is here is not served: {}", said.1);
        eventually("the word of it", || {
            let (_, said) = server.get("/readyz");
            said.contains("volumes/demo/root") && said.contains("`firn check demo --rebuild`")
        });
        let mut client = server.connect("demo");
        assert_eq!(client.read(4096, 4096).unwrap(), [2; 4096]);
        client.write(8192, &[3; 4096]).unwrap();
        client.flush().unwrap();
        drop(client);
        let refused = world.expect_failure(&server, &["sync", "demo"]);
        assert!(refused.contains("volumes/demo/root"), "{refused}");
        server.kill();
    }

    // It is back while a server runs: everything goes on.
    let server = world.serve("cache", &[]);
    fs::rename(&kept, &root).unwrap();
    eventually("the check", || server.get("/readyz").1 == "ready\n");
    world.expect_success(&server, &["sync", "demo"]);
    let found = server.connect("demo").read(0, 12288).unwrap();
    assert_eq!(found, [[1; 4096], [2; 4096], [3; 4096]].concat());
}

#[test]
fn a_volume_whose_pack_was_removed_opens_again_and_fails_its_range_alone() {
    let world = World::new();
    let server = world.serve("cache", &["--volume", "demo=8MiB", "--rpo", "1h"]);
    server.connect("demo").write(0, &[1; 4096]).unwrap();
    world.expect_success(&server, &["sync", "demo"]);
    let first = files(&world.path("store/packs"));
    server.connect("demo").write(4096, &[2; 4096]).unwrap();
    world.expect_success(&server, &["sync", "demo"]);
    server.kill();
    for pack in &first {
        fs::remove_file(pack).unwrap();
    }
    // Nothing of it may come from this host.
    let server = world.serve("new", &[]);
    world.take_over(&server, "demo");
    let mut client = server.connect("demo");
    assert!(client.read(0, 4096).is_err(), "its bytes are gone");
    assert_eq!(client.read(4096, 4096).unwrap(), [2; 4096]);
    drop(client);
    server.kill();
    let server = world.serve("new", &[]);
    let mut client = server.connect("demo");
    assert!(client.read(0, 4096).is_err(), "its bytes are gone");
    assert_eq!(client.read(4096, 4096).unwrap(), [2; 4096]);
    client.write(0, &[3; 4096]).unwrap();
    assert_eq!(client.read(0, 4096).unwrap(), [3; 4096]);
}

#[test]
fn a_store_that_was_set_back_below_a_server_is_said_so_and_is_no_take_over() {
    let world = World::new();
    let server = world.serve("cache", &["--volume", "demo=8MiB"]);
    let mut client = server.connect("demo");
    client.write(0, &[1; 4096]).unwrap();
    world.expect_success(&server, &["sync", "demo"]);
    let (store, old) = (world.path("store"), world.path("old"));
    let copied = Command::new("cp").arg("-a").args([&store, &old]).status();
    assert!(copied.unwrap().success());
    client.write(0, &[2; 4096]).unwrap();
    world.expect_success(&server, &["sync", "demo"]);
    fs::rename(&store, world.path("newest")).unwrap();
    fs::rename(&old, &store).unwrap();
    client.write(0, &[3; 4096]).unwrap();
    let refused = world.expect_failure(&server, &["sync", "demo"]);
    assert!(refused.contains("set back"), "{refused}");
    let (status, said) = server.get("/readyz");
    assert_eq!(status, 503, "{said}");
    assert!(
        said.contains("was set back") && said.contains("`firn rescue list`"),
        "what became of it is not said: {said}"
    );
    assert!(client.write(0, &[4; 4096]).is_err());
}
