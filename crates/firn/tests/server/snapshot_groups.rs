//! Groups of snapshots with the real binary: several volumes at one moment, under load and over kill -9.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use serde_json::Value;

use crate::common::{Server, World, eventually, message};

const BLOCK: usize = 4096;

fn content(number: u64) -> Vec<u8> {
    number.to_le_bytes().repeat(BLOCK / 8)
}

/// Writes each number to the log and, once that is answered, to the data; as a database does.
fn write_ahead(server: &Server, acked: &AtomicU64, stop: &AtomicBool) {
    let (mut wal, mut data) = (server.connect("wal"), server.connect("data"));
    while !stop.load(Ordering::SeqCst) {
        let number = acked.load(Ordering::SeqCst) + 1;
        wal.write(0, &content(number)).unwrap();
        data.write(0, &content(number)).unwrap();
        acked.store(number, Ordering::SeqCst);
    }
}

/// Sets it also when its thread panics, so that whoever waits for it ends.
struct SetOnDrop<'a>(&'a AtomicBool);

impl Drop for SetOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// The number in a fork of the snapshot.
fn number_in(world: &World, server: &Server, snapshot: &str) -> u64 {
    let fork = snapshot.replace('@', "-");
    world.expect_success(server, &["fork", snapshot, &fork]);
    world.expect_success(server, &["attach", &fork, "--transport", "nbd"]);
    let block = server.connect(&fork).read(0, BLOCK).unwrap();
    let number = u64::from_le_bytes(block[..8].try_into().unwrap());
    assert_eq!(
        block,
        content(number),
        "{snapshot}: a block is of two writes"
    );
    number
}

#[test]
fn a_group_of_snapshots_is_one_moment_of_several_volumes_under_load_also_after_a_kill() {
    let world = World::new();
    let args = [
        "--volume",
        "wal=8MiB",
        "--volume",
        "data=8MiB",
        "--rpo",
        "200ms",
    ];
    let server = world.serve("cache", &args);
    let (acked, stop) = (AtomicU64::new(0), AtomicBool::new(false));
    let mut moments = Vec::new();
    std::thread::scope(|scope| {
        scope.spawn(|| write_ahead(&server, &acked, &stop));
        let end_writer = SetOnDrop(&stop);
        for nth in 0..4 {
            let begun = acked.load(Ordering::SeqCst);
            eventually("writes", || acked.load(Ordering::SeqCst) > begun + 100);
            let before = acked.load(Ordering::SeqCst);
            let names = ["data", "wal"].map(|volume| format!("{volume}@g{nth}"));
            let said = world.expect_success(
                &server,
                &[
                    "snapshot", "create", &names[0], &names[1], "--label", "why=test",
                ],
            );
            assert_eq!(said.lines().collect::<Vec<_>>(), names);
            moments.push((names, before..=acked.load(Ordering::SeqCst) + 1));
        }
        drop(end_writer);
    });
    server.kill();
    let server = world.serve("cache", &args);
    for ([data, wal], moment) in &moments {
        let (in_data, in_wal) = (
            number_in(&world, &server, data),
            number_in(&world, &server, wal),
        );
        assert!(moment.contains(&in_data), "{in_data} is not in {moment:?}");
        assert!(
            in_wal == in_data || in_wal == in_data + 1,
            "the data has {in_data}, and its log {in_wal}"
        );
    }
    let listed = world.expect_success(&server, &["snapshot", "list", "wal", "--json"]);
    let listed: Value = serde_json::from_str(&listed).unwrap();
    let labels = &listed["snapshots"][0]["labels"];
    assert_eq!(labels["group"], "data@g0 wal@g0");
    assert_eq!(labels["why"], "test");
}

#[test]
fn a_group_is_refused_whose_volumes_are_not_all_open_here() {
    let world = World::new();
    let server = world.serve("cache", &["--volume", "demo=8MiB"]);
    world.expect_success(&server, &["volume", "create", "idle", "--size", "8MiB"]);
    let said = world.expect_failure(&server, &["snapshot", "create", "demo@one", "idle@one"]);
    assert!(said.contains("volume idle is not open here"), "{said}");
    let said = world.expect_failure(&server, &["snapshot", "create", "demo@one", "demo@two"]);
    assert!(said.contains("twice in the group"), "{said}");
    let listed = world.expect_success(&server, &["snapshot", "list", "demo"]);
    assert!(!listed.contains("demo@"), "{listed}");
    let refused = world.firn(&["snapshot", "create"]);
    assert_eq!(refused.status.code(), Some(2), "{}", message(&refused));
}
