//! What a host keeps of a volume that another host took over: listed, shown, dropped, accounted.

use serde_json::Value;

use crate::common::{Server, World};

const BLOCK: usize = 64 << 10;

fn tails(world: &World, server: &Server) -> Value {
    serde_json::from_str(&world.expect_success(server, &["rescue", "list", "--json"])).unwrap()
}

#[test]
fn a_tail_that_was_lost_is_kept_with_its_log_space_until_it_is_dropped() {
    let world = World::new();
    let old = world.serve("old", &["--volume", "demo=8MiB", "--rpo", "1h"]);
    let mut client = old.connect("demo");
    client.write(0, &vec![1; BLOCK]).unwrap();
    world.expect_success(&old, &["sync", "demo"]);
    client.write(0, &vec![2; BLOCK]).unwrap();
    client.write(1 << 20, &vec![3; BLOCK]).unwrap();
    // Its log says what is in the store, too: a FLUSH of nothing new would end before that is noted.
    client.flush().unwrap();
    old.kill();
    let new = world.serve("new", &[]);
    world.take_over(&new, "demo");
    new.connect("demo").write(0, &vec![4; BLOCK]).unwrap();

    let old = world.serve("old", &[]);
    // It waits until the store has been asked whose the volume is; then it is for rescue.
    let listed = tails(&world, &old);
    let tail = &listed["tails"][0];
    assert_eq!(
        (&tail["volume"], &tail["stored_lsn"]),
        (&"demo".into(), &1.into()),
        "{listed}"
    );
    assert_eq!(
        (&tail["newest_lsn"], &tail["extents"]),
        (&3.into(), &2.into()),
        "{listed}"
    );
    assert_eq!(tail["log_bytes"], 2 * BLOCK, "{listed}");
    assert_eq!(listed["log_bytes"], 2 * BLOCK, "{listed}");
    let said = world.expect_failure(&old, &["rescue", "drop", "demo"]);
    assert!(
        said.contains("waits for its volume") && said.contains("--force"),
        "{said}"
    );
    let said = world.expect_success(&old, &["rescue", "show", "demo"]);
    assert!(
        said.contains("128KiB") && said.contains("waiting"),
        "{said}"
    );

    // The other host has the volume again: what was here is a history of its own.
    world.take_over(&old, "demo");
    assert_eq!(
        old.connect("demo").read(0, BLOCK).unwrap(),
        vec![1; BLOCK],
        "never replayed"
    );
    let tail = tails(&world, &old)["tails"][0].clone();
    assert_eq!(
        (&tail["rescue"], &tail["log_bytes"]),
        (&true.into(), &(2 * BLOCK).into()),
        "{tail}"
    );
    world.expect_success(&old, &["rescue", "drop", tail["id"].as_str().unwrap()]);
    assert_eq!(tails(&world, &old)["log_bytes"], 0);
    let said = world.expect_failure(&old, &["rescue", "drop", "demo"]);
    assert!(said.contains("no tail demo"), "{said}");
    // Dropped is dropped, and the volume is as it was.
    old.kill();
    let old = world.serve("old", &[]);
    assert_eq!(tails(&world, &old)["tails"].as_array().unwrap().len(), 0);
    assert_eq!(old.connect("demo").read(0, BLOCK).unwrap(), vec![1; BLOCK]);
}

/// A host that has the tail of a volume another host took over, and that host's later writes at 2 MiB, which are slices of
/// their own in the store or merged with what was before.
fn with_lost_tail(world: &World, later_syncs: u16, is_merged: bool) -> Server {
    let old = world.serve("old", &["--volume", "demo=8MiB", "--rpo", "1h"]);
    let mut client = old.connect("demo");
    client.write(0, &vec![1; BLOCK]).unwrap();
    client.write(2 << 20, &vec![9; BLOCK]).unwrap();
    world.expect_success(&old, &["sync", "demo"]);
    client.write(0, &vec![2; BLOCK]).unwrap();
    client.write(1 << 20, &vec![3; BLOCK]).unwrap();
    // Its log says what is in the store, too: a FLUSH of nothing new would end before that is noted.
    client.flush().unwrap();
    old.kill();
    let new = world.serve("new", &[]);
    world.take_over(&new, "demo");
    let mut client = new.connect("demo");
    for n in 0..later_syncs {
        let fill = 100 + (n % 100) as u8;
        client.write(2 << 20, &vec![fill; BLOCK]).unwrap();
        world.expect_success(&new, &["sync", "demo"]);
    }
    drop(client);
    if is_merged {
        // Before a pass the volumes of its server are folded.
        world.expect_success(&new, &["gc"]);
    }
    assert!(new.stop().success());
    let old = world.serve("old", &[]);
    let attach = ["attach", "demo", "--transport", "nbd"];
    world.expect_success(&old, &attach);
    old
}

fn blocks(server: &Server, volume: &str) -> Vec<u8> {
    let mut client = server.connect(volume);
    let firsts = [0, 1, 2, 3].map(|mib| client.read(mib << 20, BLOCK).unwrap());
    firsts
        .iter()
        .map(|block| {
            assert!(block.iter().all(|byte| *byte == block[0]));
            block[0]
        })
        .collect()
}

#[test]
fn a_lost_tail_becomes_a_volume_of_what_its_host_had_and_of_nothing_that_came_later() {
    let world = World::new();
    let old = with_lost_tail(&world, 2, false);
    assert_eq!(blocks(&old, "demo"), [1, 0, 101, 0]);
    let said = world.expect_failure(&old, &["rescue", "fork", "demo", "demo"]);
    assert!(said.contains("exists already"), "{said}");
    let said = world.expect_success(&old, &["rescue", "fork", "demo", "saved"]);
    for what in ["as the store had it at LSN 2", "2 extents", "up to LSN 4"] {
        assert!(said.contains(what), "no {what} in {said}");
    }
    let attach = ["attach", "saved", "--transport", "nbd"];
    world.expect_success(&old, &attach);
    assert_eq!(blocks(&old, "saved"), [2, 3, 9, 0]);
    assert_eq!(blocks(&old, "demo"), [1, 0, 101, 0], "as it was");
    // The tail is there until it is dropped; the volume is one like others then.
    assert_eq!(tails(&world, &old)["log_bytes"], 2 * BLOCK);
    world.expect_success(&old, &["rescue", "drop", "demo"]);
    let mut client = old.connect("saved");
    client.write(3 << 20, &vec![7; BLOCK]).unwrap();
    world.expect_success(&old, &["sync", "saved"]);
    assert!(old.stop().success());
    let third = world.serve("third", &[]);
    world.expect_success(&third, &attach);
    assert_eq!(blocks(&third, "saved"), [2, 3, 9, 7]);
}

#[test]
fn a_fork_never_mixes_two_histories_and_offers_the_tail_alone_where_the_store_has_merged_them() {
    let world = World::new();
    let old = with_lost_tail(&world, 8, true);
    let said = world.expect_failure(&old, &["rescue", "fork", "demo", "saved"]);
    assert!(
        said.contains("merged with what came later") && said.contains("--without-base"),
        "{said}"
    );
    let said = world.expect_success(&old, &["rescue", "fork", "demo", "saved", "--without-base"]);
    assert!(said.contains("zeroes"), "{said}");
    world.expect_success(&old, &["attach", "saved", "--transport", "nbd"]);
    let mut client = old.connect("saved");
    assert_eq!(client.read(0, BLOCK).unwrap(), vec![2; BLOCK]);
    assert_eq!(client.read(1 << 20, BLOCK).unwrap(), vec![3; BLOCK]);
}

#[test]
fn a_volume_that_was_taken_over_is_detached_and_what_is_left_of_it_is_said() {
    let world = World::new();
    let old = world.serve("old", &["--volume", "demo=8MiB", "--rpo", "1h"]);
    old.connect("demo").write(0, &vec![1; BLOCK]).unwrap();
    let new = world.serve("new", &[]);
    world.take_over(&new, "demo");
    // It learns of that when it asks the store.
    let said = world.expect_failure(&old, &["sync", "demo"]);
    assert!(said.contains("demo"), "{said}");
    let output = world.run(&old, &["detach", "demo"]);
    let said = crate::common::message(&output);
    assert!(output.status.success(), "{said}");
    assert!(said.contains("firn rescue show demo"), "{said}");
    // Nothing here waits for it.
    assert_eq!(old.get("/readyz").0, 200);
    let said = world.expect_failure(&old, &["detach", "demo"]);
    assert!(said.contains("not attached here"), "{said}");
    // Nor at the next server, however this one ends.
    old.kill();
    let old = world.serve("old", &[]);
    assert_eq!(old.get("/readyz").0, 200);
    let listed = tails(&world, &old);
    let tail = &listed["tails"][0];
    assert_eq!(tail["rescue"], true, "{listed}");
    assert_eq!(tail["log_bytes"], BLOCK, "{listed}");
}
