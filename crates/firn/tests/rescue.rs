//! What a host keeps of a volume that another host took over: listed, shown, dropped, accounted.

#![allow(clippy::unwrap_used)]

mod common;

use common::{Server, World};
use serde_json::Value;

fn tails(world: &World, server: &Server) -> Value {
    serde_json::from_str(&world.done(server, &["rescue", "list", "--json"])).unwrap()
}

#[test]
fn a_tail_that_was_lost_is_kept_with_its_log_space_until_it_is_dropped() {
    const BLOCK: usize = 64 << 10;
    let world = World::new();
    let old = world.serve("old", &["--volume", "demo=8MiB", "--rpo", "1h"]);
    let mut client = old.connect("demo");
    client.write(0, &vec![1; BLOCK]).unwrap();
    world.done(&old, &["sync", "demo"]);
    client.write(0, &vec![2; BLOCK]).unwrap();
    client.write(1 << 20, &vec![3; BLOCK]).unwrap();
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
    let said = world.fails(&old, &["rescue", "drop", "demo"]);
    assert!(
        said.contains("waits for its volume") && said.contains("--force"),
        "{said}"
    );
    let said = world.done(&old, &["rescue", "show", "demo"]);
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
    world.done(&old, &["rescue", "drop", tail["id"].as_str().unwrap()]);
    assert_eq!(tails(&world, &old)["log_bytes"], 0);
    let said = world.fails(&old, &["rescue", "drop", "demo"]);
    assert!(said.contains("no tail demo"), "{said}");
    // Dropped is dropped, and the volume is as it was.
    old.kill();
    let old = world.serve("old", &[]);
    assert_eq!(tails(&world, &old)["tails"].as_array().unwrap().len(), 0);
    assert_eq!(old.connect("demo").read(0, BLOCK).unwrap(), vec![1; BLOCK]);
}
