//! `firn upgrade` on real processes: another program takes the place of a server under its clients.

#![allow(clippy::unwrap_used)]

mod common;

use std::process::{Child, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use common::{Server, World, eventually, message};

const VOLUME: &str = "demo=64MiB";
const BLOCK: usize = 4096;

fn serve(world: &World, more: &[&str], plan: Option<&str>) -> Server {
    let api = format!("unix:{}", world.path("api.sock").display());
    let mut args = vec!["--api", &api, "--volume", VOLUME];
    args.extend(more);
    world.serve_as("cache", &args, |command| {
        if let Some(plan) = plan {
            command.env("FIRN_HANDOVER_AT", plan);
        }
    })
}

/// What the server said up to now.
fn server_log(world: &World) -> String {
    std::fs::read_to_string(world.path("cache.stderr")).unwrap()
}

/// A command that goes on beside the test, and ends with it.
struct Background(Child);

impl Background {
    fn upgrade(world: &World, server: &Server) -> Background {
        let mut command = world.command(&["--api", &server.api, "upgrade"]);
        let command = command.stdout(Stdio::null()).stderr(Stdio::null());
        Background(command.spawn().unwrap())
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn block(client: u64, round: u64) -> Vec<u8> {
    let stamp = client << 56 | round;
    stamp.to_le_bytes().repeat(BLOCK / 8)
}

/// Writes blocks of its own and reads them back over one connection until it is told to stop.
fn write_and_verify(server: &Server, number: u64, stop: &AtomicBool, rounds: &AtomicU64) {
    let mut client = server.connect("demo");
    let at = |round: u64| (number * 1000 + round % 1000) * BLOCK as u64;
    let mut round = 0;
    while !stop.load(Ordering::SeqCst) {
        client.write(at(round), &block(number, round)).unwrap();
        if round.is_multiple_of(16) {
            client.flush().unwrap();
        }
        let before = round.saturating_sub(round * 7 % 999 % (round + 1));
        assert_eq!(
            client.read(at(before), BLOCK).unwrap(),
            block(number, before)
        );
        round += 1;
        rounds.fetch_add(1, Ordering::SeqCst);
    }
    for old in round.saturating_sub(1000)..round {
        assert_eq!(client.read(at(old), BLOCK).unwrap(), block(number, old));
    }
}

#[test]
fn clients_stay_connected_and_find_every_write_through_upgrades_in_a_row() {
    let world = World::new();
    let server = serve(&world, &[], None);
    let pid = server.pid();
    let (stop, rounds) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for number in 0..4 {
            let (server, stop, rounds) = (&server, &stop, &rounds);
            scope.spawn(move || write_and_verify(server, number, stop, rounds));
        }
        let upgrades = std::panic::catch_unwind(|| {
            for upgrade in 1..=5 {
                let before = rounds.load(Ordering::SeqCst);
                eventually("the clients go on", || {
                    rounds.load(Ordering::SeqCst) > before + 100
                });
                assert!(world.done(&server, &["upgrade"]).contains("upgraded"));
                let state = world.done(&server, &["volume", "show", "demo", "--json"]);
                assert!(state.contains("\"connections\": 4"), "{upgrade}: {state}");
            }
        });
        stop.store(true, Ordering::SeqCst);
        upgrades.unwrap();
    });
    assert_eq!(server.pid(), pid);
    // It stops as any server does.
    assert!(server.stop().success());
}

#[test]
fn an_upgrade_needs_no_store() {
    let world = World::new();
    let server = serve(&world, &[], None);
    let mut client = server.connect("demo");
    client.write(0, &block(1, 1)).unwrap();
    world.swap_store_and_file();
    world.done(&server, &["upgrade"]);
    assert_eq!(client.read(0, BLOCK).unwrap(), block(1, 1));
    client.write(0, &block(1, 2)).unwrap();
    world.swap_store_and_file();
    world.done(&server, &["sync", "demo", "--wait"]);
    assert_eq!(client.read(0, BLOCK).unwrap(), block(1, 2));
}

#[test]
fn a_program_that_cannot_take_over_leaves_the_server_and_its_clients_as_they_are() {
    let world = World::new();
    let server = serve(&world, &[], None);
    let mut client = server.connect("demo");
    client.write(0, &block(1, 1)).unwrap();
    std::fs::write(world.path("text"), "no program").unwrap();
    for (program, why) in [
        ("/nowhere/firn", "No such file"),
        ("/bin/true", "is it a firn"),
        ("/bin/cat", "it said"),
        ("text", "not a program"),
    ] {
        let said = world.fails(&server, &["upgrade", "--program", program]);
        assert!(said.contains(why) && said.contains("goes on"), "{said}");
        assert_eq!(client.read(0, BLOCK).unwrap(), block(1, 1));
    }
    world.done(&server, &["upgrade"]);
    assert_eq!(client.read(0, BLOCK).unwrap(), block(1, 1));
}

#[test]
fn a_new_program_that_fails_panics_or_hangs_gives_its_place_back_with_all_clients() {
    for step in ["started", "locked", "recovered", "opened"] {
        for (action, why) in [
            ("fail", "made to fail"),
            ("panic", "panicked"),
            ("pause", "did not serve within"),
        ] {
            let world = World::new();
            let server = serve(&world, &[], Some(&format!("{step}={action}")));
            let mut client = server.connect("demo");
            client.write(0, &block(1, 1)).unwrap();
            let said = world.fails(&server, &["upgrade", "--timeout", "3s"]);
            assert!(
                said.contains(why) && said.contains("does not come up"),
                "{step}={action}: {said}"
            );
            assert_eq!(client.read(0, BLOCK).unwrap(), block(1, 1));
            client.write(0, &block(1, 2)).unwrap();
            client.flush().unwrap();
            assert_eq!(server.connect("demo").read(0, BLOCK).unwrap(), block(1, 2));
        }
    }
}

#[test]
fn a_server_that_is_killed_at_any_step_of_an_upgrade_loses_nothing() {
    for step in [
        "checked",
        "stopped",
        "started",
        "locked",
        "recovered",
        "opened",
        "adopted",
    ] {
        let world = World::new();
        let server = serve(&world, &[], Some(&format!("{step}=pause")));
        let mut client = server.connect("demo");
        for at in 0..200 {
            client.write(at * BLOCK as u64, &block(1, at)).unwrap();
        }
        let upgrade = Background::upgrade(&world, &server);
        eventually("it stops at the step", || {
            server_log(&world).contains("stopped at step")
        });
        if step == "checked" {
            let refused = message(&world.ask(&server, &["upgrade"]));
            assert!(refused.contains("under way"), "{refused}");
        }
        server.kill();
        drop(upgrade);
        let server = serve(&world, &[], None);
        let mut client = server.connect("demo");
        for at in 0..200 {
            assert_eq!(
                client.read(at * BLOCK as u64, BLOCK).unwrap(),
                block(1, at),
                "{step}"
            );
        }
    }
}

#[test]
fn clients_of_a_snapshot_stay_connected_through_an_upgrade() {
    let world = World::new();
    let server = serve(&world, &[], None);
    let mut client = server.connect("demo");
    client.write(0, &block(1, 1)).unwrap();
    world.done(&server, &["snapshot", "create", "demo@one"]);
    world.done(&server, &["attach", "demo@one", "--transport", "nbd"]);
    client.write(0, &block(1, 2)).unwrap();
    let mut reader = server.connect("demo@one");
    for _ in 0..2 {
        world.done(&server, &["upgrade"]);
        assert_eq!(reader.read(0, BLOCK).unwrap(), block(1, 1));
        assert_eq!(client.read(0, BLOCK).unwrap(), block(1, 2));
    }
}

#[test]
fn a_server_that_is_told_to_stop_in_an_upgrade_ends_and_loses_nothing() {
    let world = World::new();
    for round in 0..8 {
        let server = serve(&world, &[], None);
        let mut client = server.connect("demo");
        if round > 0 {
            assert_eq!(client.read(0, BLOCK).unwrap(), block(1, round - 1));
        }
        client.write(0, &block(1, round)).unwrap();
        let upgrade = Background::upgrade(&world, &server);
        std::thread::sleep(std::time::Duration::from_millis(round * 40));
        // By the signal, where the new program is not ready for it yet.
        let _ = server.stop();
        drop(upgrade);
    }
}
