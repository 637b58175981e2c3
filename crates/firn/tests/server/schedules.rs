//! Snapshots that a server takes and removes by itself.

use serde_json::Value;

use crate::common::nbd::Client;
use crate::common::{Server, World, eventually};

/// The snapshots of a volume with their schedules, without the volume's name.
fn snapshots(world: &World, server: &Server, volume: &str) -> Vec<(String, Option<String>)> {
    let list = world.expect_success(server, &["snapshot", "list", volume, "--json"]);
    let list: Value = serde_json::from_str(&list).unwrap();
    let of_one = |snapshot: &Value| {
        let name = snapshot["name"].as_str().unwrap();
        let schedule = snapshot["labels"]["schedule"].as_str();
        let (_, name) = name.split_once('@').unwrap();
        (name.to_owned(), schedule.map(str::to_owned))
    };
    list["snapshots"]
        .as_array()
        .unwrap()
        .iter()
        .map(of_one)
        .collect()
}

/// Those of one schedule.
fn of_schedule(world: &World, server: &Server, volume: &str, schedule: &str) -> Vec<String> {
    let all = snapshots(world, server, volume).into_iter();
    let own = all.filter(|(_, own)| own.as_deref() == Some(schedule));
    own.map(|(name, _)| name).collect()
}

/// Writes something that was not there.
fn write(client: &mut Client, count: &mut u64) {
    *count += 1;
    client.write(0, &count.to_le_bytes().repeat(512)).unwrap();
}

#[test]
fn a_schedule_keeps_the_newest_of_its_snapshots_and_removes_no_other() {
    let world = World::new();
    let schedule = [
        "--volume",
        "demo=16MiB",
        "--snapshot-schedule",
        "demo=1s,keep=2",
    ];
    let server = world.serve("cache", &schedule);
    let mut client = server.connect("demo");
    let mut count = 0;
    write(&mut client, &mut count);
    world.expect_success(&server, &["snapshot", "create", "demo@mine"]);
    eventually("the first snapshot by schedule", || {
        !of_schedule(&world, &server, "demo", "1s").is_empty()
    });
    let first = of_schedule(&world, &server, "demo", "1s").remove(0);
    assert!(first.starts_with("auto-1s-"), "{first}");
    eventually("two newer ones", || {
        write(&mut client, &mut count);
        let own = of_schedule(&world, &server, "demo", "1s");
        own.len() == 2 && !own.contains(&first)
    });
    let names = snapshots(&world, &server, "demo").into_iter();
    let names: Vec<String> = names.map(|(name, _)| name).collect();
    assert!(
        names.contains(&"mine".to_owned()),
        "{names:?} lack the user's own"
    );
    let metrics = server.get("/metrics").1;
    assert!(
        metrics.contains("firn_scheduled_snapshots_total{outcome=\"removed\"}"),
        "{metrics}"
    );
    let said = world.expect_failure(
        &server,
        &["snapshot", "create", "demo@other", "--label", "schedule=1s"],
    );
    assert!(said.contains("schedule"), "{said}");
}

#[test]
fn a_volume_that_nobody_writes_to_gets_no_second_snapshot() {
    let world = World::new();
    let server = world.serve(
        "cache",
        &[
            "--volume",
            "idle=16MiB",
            "--volume",
            "busy=16MiB",
            "--snapshot-schedule",
            "*=1s,keep=9",
        ],
    );
    let (mut idle, mut busy) = (server.connect("idle"), server.connect("busy"));
    let mut count = 0;
    write(&mut idle, &mut count);
    eventually("a snapshot of the idle one", || {
        !of_schedule(&world, &server, "idle", "1s").is_empty()
    });
    eventually("three of the busy one", || {
        write(&mut busy, &mut count);
        of_schedule(&world, &server, "busy", "1s").len() >= 3
    });
    assert_eq!(of_schedule(&world, &server, "idle", "1s").len(), 1);
}

#[test]
fn a_schedule_goes_on_after_a_kill_where_it_was() {
    let world = World::new();
    let schedules = [
        "--volume",
        "demo=16MiB",
        "--snapshot-schedule",
        "demo=1h,keep=5",
        "--snapshot-schedule",
        "demo=1s,keep=1",
    ];
    let server = world.serve("cache", &schedules);
    let mut count = 0;
    write(&mut server.connect("demo"), &mut count);
    eventually("the first of both", || {
        ["1h", "1s"]
            .iter()
            .all(|one| !of_schedule(&world, &server, "demo", one).is_empty())
    });
    let hourly = of_schedule(&world, &server, "demo", "1h");
    let before = of_schedule(&world, &server, "demo", "1s");
    server.kill();
    let server = world.serve("cache", &schedules);
    let mut client = server.connect("demo");
    eventually("another one that was due", || {
        write(&mut client, &mut count);
        let now = of_schedule(&world, &server, "demo", "1s");
        now.len() == 1 && now != before
    });
    let again = of_schedule(&world, &server, "demo", "1h");
    assert_eq!(again, hourly, "the hour is not over");
}

#[test]
fn what_a_schedule_keeps_no_longer_goes_without_another_snapshot() {
    let world = World::new();
    let serve = |schedule| {
        let arguments = ["--volume", "demo=16MiB", "--snapshot-schedule", schedule];
        world.serve("cache", &arguments)
    };
    let server = serve("demo=1s,keep=3");
    let mut client = server.connect("demo");
    let mut count = 0;
    eventually("three", || {
        write(&mut client, &mut count);
        of_schedule(&world, &server, "demo", "1s").len() == 3
    });
    drop(client);
    // It has what the volume is, so nothing is to be taken.
    eventually("the newest has all", || {
        let newest = world.show(&server, "demo")["watermarks"]["acknowledged"]["lsn"].clone();
        let list = world.expect_success(&server, &["snapshot", "list", "demo", "--json"]);
        let list: Value = serde_json::from_str(&list).unwrap();
        let all = list["snapshots"].as_array().unwrap();
        all.iter().any(|one| one["lsn"] == newest)
    });
    assert!(server.stop().success());
    let server = serve("demo=1s,keep=1");
    eventually("the older ones go", || {
        of_schedule(&world, &server, "demo", "1s").len() == 1
    });
}

#[test]
fn a_schedule_goes_on_while_the_store_is_away_and_nothing_can_be_removed() {
    let world = World::new();
    let arguments = [
        "--volume",
        "demo=16MiB",
        "--snapshot-schedule",
        "demo=1s,keep=1",
    ];
    let server = world.serve("cache", &arguments);
    let mut client = server.connect("demo");
    let mut count = 0;
    eventually("the first one", || {
        write(&mut client, &mut count);
        !of_schedule(&world, &server, "demo", "1s").is_empty()
    });
    world.swap_store_and_file();
    eventually("the log has three", || {
        write(&mut client, &mut count);
        world.show(&server, "demo")["log_snapshots"].as_u64() >= Some(3)
    });
    world.swap_store_and_file();
    drop(client);
    eventually("the older ones go", || {
        of_schedule(&world, &server, "demo", "1s").len() == 1
    });
}
