//! Another name for a volume with the real binary: what it holds and what it is stay, and who asks by the old name hears
//! the new one.

use crate::common::{Server, World, message};

const BLOCK: usize = 4096;

fn first_block(world: &World, server: &Server, name: &str) -> Vec<u8> {
    world.expect_success(server, &["attach", name, "--transport", "nbd"]);
    let found = server.connect(name).read(0, BLOCK).unwrap();
    world.expect_success(server, &["detach", "--force", name]);
    found
}

/// A closed volume that holds 2, and whose snapshot `demo@one` holds 1.
fn with_snapshot(world: &World, server: &Server) {
    let create = ["volume", "create", "demo", "--size", "8MiB"];
    world.expect_success(server, &create);
    world.expect_success(server, &["attach", "demo", "--transport", "nbd"]);
    let mut client = server.connect("demo");
    client.write(0, &[1; BLOCK]).unwrap();
    world.expect_success(server, &["snapshot", "create", "demo@one"]);
    client.write(0, &[2; BLOCK]).unwrap();
    drop(client);
    let said = world.expect_failure(server, &["volume", "rename", "demo", "archive"]);
    assert!(said.contains("`firn detach demo` first"), "{said}");
    world.expect_success(server, &["detach", "--force", "demo"]);
}

#[test]
fn a_renamed_volume_is_the_same_volume_on_every_server() {
    let world = World::new();
    let server = world.serve("cache", &[]);
    let other = world.serve("other", &[]);
    with_snapshot(&world, &server);
    let id = world.show(&server, "demo")["id"].clone();
    // No server may have it open, nor this one a snapshot of it.
    world.expect_success(&other, &["attach", "demo", "--transport", "nbd"]);
    let said = world.expect_failure(&server, &["volume", "rename", "demo", "archive"]);
    assert!(said.contains("held by host"), "{said}");
    world.expect_success(&other, &["detach", "demo"]);
    world.expect_success(&server, &["attach", "demo@one", "--transport", "nbd"]);
    let said = world.expect_failure(&server, &["volume", "rename", "demo", "archive"]);
    assert!(said.contains("`firn detach demo@one` first"), "{said}");
    world.expect_success(&server, &["detach", "demo@one"]);
    let renamed = world.expect_success(&server, &["volume", "rename", "demo", "archive"]);
    assert_eq!(renamed.trim(), "archive");
    for server in [&server, &other] {
        assert_eq!(world.show(server, "archive")["id"], id);
        assert_eq!(first_block(&world, server, "archive"), [2; BLOCK]);
        assert_eq!(first_block(&world, server, "archive@one"), [1; BLOCK]);
        for asked in [
            &["volume", "show", "demo"][..],
            &["attach", "demo", "--transport", "nbd"],
            &["fork", "demo", "branch"],
            &["volume", "delete", "demo"],
        ] {
            let said = world.expect_failure(server, asked);
            assert!(
                said.contains("demo was renamed: its name is archive now"),
                "{said}"
            );
        }
        let said = world.expect_failure(server, &["fork", "demo@one", "branch"]);
        assert!(said.contains("its name is archive@one now"), "{said}");
    }
    // Given again, it is done already; and the name is free.
    world.expect_success(&other, &["volume", "rename", "demo", "archive"]);
    let create = ["volume", "create", "demo", "--size", "8MiB"];
    world.expect_success(&server, &create);
    let said = world.expect_failure(&server, &["volume", "rename", "archive", "demo"]);
    assert!(
        said.contains("a volume named demo exists already"),
        "{said}"
    );
    assert_eq!(first_block(&world, &server, "demo"), [0; BLOCK]);
    assert_eq!(first_block(&world, &server, "archive"), [2; BLOCK]);
}

#[test]
fn a_server_that_is_to_serve_a_renamed_volume_says_the_name_and_makes_no_other() {
    let world = World::new();
    let server = world.serve("cache", &["--volume", "demo=8MiB"]);
    let id = world.show(&server, "demo")["id"].clone();
    server.connect("demo").write(0, &[2; BLOCK]).unwrap();
    assert!(server.stop().success());
    let other = world.serve("other", &[]);
    world.expect_success(&other, &["volume", "rename", "demo", "archive"]);
    // By its command line, and by what it had attached.
    let server = world.serve("cache", &["--volume", "demo=8MiB"]);
    let said = world.expect_success(&server, &["volume", "list"]);
    assert!(said.contains("its name is archive now"), "{said}");
    let said = world.expect_failure(&server, &["volume", "show", "demo"]);
    assert!(said.contains("its name is archive now"), "{said}");
    world.expect_success(&server, &["detach", "demo"]);
    assert_eq!(world.show(&server, "archive")["id"], id);
    assert_eq!(first_block(&world, &server, "archive"), [2; BLOCK]);
}

#[test]
fn the_help_of_a_renaming_says_what_is_to_be_told_by_hand() {
    let world = World::new();
    let server = world.serve("cache", &[]);
    let help = world.run(&server, &["volume", "rename", "--help"]);
    let help = String::from_utf8_lossy(&help.stdout).replace('\n', " ");
    for told in ["give it again", "--snapshot-schedule", "firn detach demo"] {
        assert!(help.contains(told), "{help}");
    }
    let wrong = world.run(&server, &["volume", "rename", "demo", "a name"]);
    assert_eq!(wrong.status.code(), Some(2), "{}", message(&wrong));
}
