//! `firn upgrade` on real processes: another program takes the place of a server under its clients.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use crate::common::process::Upgrade;
use crate::common::{Server, World, eventually, message, nbd};

const VOLUME: &str = "demo=64MiB";
const BLOCK: usize = 4096;

/// Where a server can be made to pause, to stop or to fail: up to `stopped` the old program, then the new one.
const STEPS: [&str; 8] = [
    "checked",
    "given",
    "stopped",
    "started",
    "locked",
    "recovered",
    "opened",
    "adopted",
];

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
                assert!(
                    world
                        .expect_success(&server, &["upgrade"])
                        .contains("upgraded")
                );
                // Each is on its way to a thread that serves it.
                eventually(
                    &format!("upgrade {upgrade}: all four are connected"),
                    || world.show(&server, "demo")["nbd"]["connections"] == 4,
                );
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
    world.expect_success(&server, &["upgrade"]);
    assert_eq!(client.read(0, BLOCK).unwrap(), block(1, 1));
    client.write(0, &block(1, 2)).unwrap();
    world.swap_store_and_file();
    world.expect_success(&server, &["sync", "demo", "--wait"]);
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
        let said = world.expect_failure(&server, &["upgrade", "--program", program]);
        assert!(said.contains(why) && said.contains("goes on"), "{said}");
        assert_eq!(client.read(0, BLOCK).unwrap(), block(1, 1));
    }
    world.expect_success(&server, &["upgrade"]);
    assert_eq!(client.read(0, BLOCK).unwrap(), block(1, 1));
}

#[test]
fn an_upgrade_that_lacks_descriptors_is_refused_and_every_client_stays_connected() {
    let world = World::new();
    let server = serve(&world, &[], None);
    let mut clients: Vec<_> = (0..40).map(|_| server.connect("demo")).collect();
    let (mut refused, mut done) = (0, 0);
    // From too few for the check of the program to as many as an upgrade takes, and more.
    for more in (1..=48).step_by(3) {
        server.limit_files(Some(server.open_files() + more));
        let output = world.run(&server, &["upgrade"]);
        server.limit_files(None);
        let said = message(&output);
        match output.status.success() {
            true => done += 1,
            false => {
                assert!(said.contains("Too many open files"), "{more}: {said}");
                assert!(said.contains("goes on"), "{more}: {said}");
                refused += 1;
            }
        }
        for (number, client) in clients.iter_mut().enumerate() {
            let data = block(number as u64, more);
            client.write(number as u64 * BLOCK as u64, &data).unwrap();
        }
        assert_eq!(
            server.connect("demo").read(0, BLOCK).unwrap(),
            block(0, more)
        );
    }
    assert!(refused > 1 && done > 1, "{refused} refused, {done} done");
    for (number, client) in clients.iter_mut().enumerate() {
        let data = client.read(number as u64 * BLOCK as u64, BLOCK).unwrap();
        assert_eq!(data, block(number as u64, 46));
    }
}

#[test]
fn clients_that_were_given_away_are_taken_back_when_the_record_cannot_be_made() {
    let world = World::new();
    let server = serve(&world, &[], Some("given=fail"));
    let mut clients: Vec<_> = (0..8).map(|_| server.connect("demo")).collect();
    for round in 0..4 {
        let said = world.expect_failure(&server, &["upgrade"]);
        assert!(said.contains("made to fail"), "{said}");
        for client in &mut clients {
            client.write(0, &block(1, round)).unwrap();
        }
        let mut other = server.connect("demo");
        assert_eq!(other.read(0, BLOCK).unwrap(), block(1, round));
    }
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
            let said = world.expect_failure(&server, &["upgrade", "--timeout", "3s"]);
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
    for step in STEPS {
        let world = World::new();
        let server = serve(&world, &[], Some(&format!("{step}=pause")));
        let mut client = server.connect("demo");
        for at in 0..200 {
            client.write(at * BLOCK as u64, &block(1, at)).unwrap();
        }
        let upgrade = Upgrade::start(&world, &server, "30s");
        eventually("it stops at the step", || {
            world.server_log().contains("stopped at step")
        });
        if step == "checked" {
            let refused = message(&world.run(&server, &["upgrade"]));
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
    world.expect_success(&server, &["snapshot", "create", "demo@one"]);
    world.expect_success(&server, &["attach", "demo@one", "--transport", "nbd"]);
    client.write(0, &block(1, 2)).unwrap();
    let mut reader = server.connect("demo@one");
    for _ in 0..2 {
        world.expect_success(&server, &["upgrade"]);
        assert_eq!(reader.read(0, BLOCK).unwrap(), block(1, 1));
        assert_eq!(client.read(0, BLOCK).unwrap(), block(1, 2));
    }
}

fn setting(world: &World, server: &Server, name: &str) -> serde_json::Value {
    let shown = world.expect_success(server, &["config", "get", "--json"]);
    let shown: serde_json::Value = serde_json::from_str(&shown).unwrap();
    shown[name].clone()
}

#[test]
fn settings_that_were_changed_stay_so_through_upgrades_and_end_with_the_server() {
    let world = World::new();
    let server = serve(&world, &["--rpo", "1h"], None);
    world.expect_success(&server, &["config", "set", "rpo=7s", "trash-keep=2h"]);
    world.expect_success(
        &server,
        &["config", "set", "snapshot-schedule=demo=1h,keep=2"],
    );
    for _ in 0..2 {
        world.expect_success(&server, &["upgrade"]);
        assert_eq!(setting(&world, &server, "rpo"), "7s");
        assert_eq!(setting(&world, &server, "trash_keep"), "7200s");
        assert_eq!(
            setting(&world, &server, "snapshot_schedule"),
            serde_json::json!(["demo=1h,keep=2"])
        );
    }
    world.expect_success(&server, &["config", "set", "rpo=9s"]);
    world.expect_success(&server, &["upgrade"]);
    assert_eq!(setting(&world, &server, "rpo"), "9s");
    assert!(server.stop().success());
    let server = serve(&world, &["--rpo", "1h"], None);
    assert_eq!(setting(&world, &server, "rpo"), "3600s");
}

#[test]
fn clients_that_wait_for_their_volume_stay_connected_through_a_second_upgrade() {
    let world = World::new();
    let server = serve(&world, &[], None);
    let mut client = server.connect("demo");
    client.write(0, &block(1, 1)).unwrap();
    world.expect_success(&server, &["snapshot", "create", "demo@one"]);
    world.expect_success(&server, &["attach", "demo@one", "--transport", "nbd"]);
    let mut reader = server.connect("demo@one");
    client.write(0, &block(1, 2)).unwrap();
    // Without the store the snapshot cannot be opened, and its clients wait.
    world.swap_store_and_file();
    for round in 3..6 {
        world.expect_success(&server, &["upgrade"]);
        client.write(0, &block(1, round)).unwrap();
    }
    world.swap_store_and_file();
    assert_eq!(reader.read(0, BLOCK).unwrap(), block(1, 1));
    assert_eq!(client.read(0, BLOCK).unwrap(), block(1, 5));
}

/// Takes so many replies, each to a request of its own.
#[test]
fn clients_are_served_before_volumes_that_nobody_uses_are_opened() {
    let world = World::new();
    let unused = ["--volume", "unused=8MiB"];
    let server = serve(&world, &unused, Some("clients-served=pause"));
    let mut client = server.connect("demo");
    client.write(0, &[1; BLOCK]).unwrap();
    let _upgrade = Upgrade::start(&world, &server, "30s");
    let log = world.path("cache.stderr");
    let text = || std::fs::read_to_string(&log).unwrap();
    eventually("demo is served alone", || {
        text().contains("stopped at step clients-served")
    });
    assert_eq!(client.read(0, BLOCK).unwrap(), [1; BLOCK]);
    client.write(0, &[2; BLOCK]).unwrap();
    assert!(text().contains("put_off=1"), "{}", text());
    // Whoever connects now is served, too, or waits for a volume that is not open.
    assert_eq!(server.connect("demo").read(0, BLOCK).unwrap(), [2; BLOCK]);
    let refused = nbd::Client::connect(&server.socket, "none").map(drop);
    assert!(refused.unwrap_err().to_string().contains("refused"));
    let socket = server.socket.clone();
    let waiting = std::thread::spawn(move || nbd::Client::connect(&socket, "unused").map(drop));
    assert_eq!(client.read(0, BLOCK).unwrap(), [2; BLOCK]);
    assert!(!waiting.is_finished(), "nobody has opened it");
    server.kill();
    let server = serve(&world, &unused, None);
    assert_eq!(server.connect("demo").read(0, BLOCK).unwrap(), [2; BLOCK]);
    assert_eq!(server.connect("unused").read(0, BLOCK).unwrap(), [0; BLOCK]);
    assert!(waiting.join().unwrap().is_err(), "its server was killed");
}

#[test]
fn clients_that_connect_in_an_upgrade_wait_for_volumes_that_are_opened_from_the_store() {
    let world = World::new();
    let server = serve(&world, &["--volume", "unused=8MiB"], None);
    let mut client = server.connect("demo");
    client.write(0, &block(1, 1)).unwrap();
    world.expect_success(&server, &["snapshot", "create", "demo@one"]);
    world.expect_success(&server, &["attach", "demo@one", "--transport", "nbd"]);
    client.write(0, &block(1, 2)).unwrap();
    let stop = AtomicBool::new(false);
    let served = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for volume in ["demo", "demo@one"] {
            let (server, stop, served) = (&server, &stop, &served);
            scope.spawn(move || {
                while !stop.load(Ordering::SeqCst) {
                    // A connection in its handshake ends with an upgrade; none is refused.
                    let found = nbd::Client::connect(&server.socket, volume);
                    let refused = found.as_ref().err().map(ToString::to_string);
                    let refused = refused.filter(|why| why.contains("refused with 0x80000006"));
                    assert_eq!(refused, None, "{volume}");
                    if found.is_ok_and(|found| found.size == 64 << 20) {
                        served.fetch_add(1, Ordering::SeqCst);
                    }
                }
            });
        }
        for _ in 0..3 {
            let before = served.load(Ordering::SeqCst);
            world.expect_success(&server, &["upgrade"]);
            eventually("clients are served behind it", || {
                served.load(Ordering::SeqCst) > before + 10
            });
        }
        stop.store(true, Ordering::SeqCst);
    });
    for (volume, expected) in [("demo", 2), ("demo@one", 1)] {
        let found = server.connect(volume).read(0, BLOCK).unwrap();
        assert_eq!(found, block(1, expected));
    }
}

/// Children of a process, ended or not.
fn children(pid: u32) -> String {
    std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap()
}

/// The old program's memory is given back by a process of its own.
#[test]
fn an_upgrade_that_succeeds_or_fails_leaves_no_process_behind() {
    for plan in [None, Some("given=fail"), Some("opened=fail")] {
        let world = World::new();
        let server = serve(&world, &[], plan);
        for _ in 0..2 {
            let upgraded = world.run(&server, &["upgrade"]);
            assert_eq!(upgraded.status.success(), plan.is_none());
            eventually("it has no child", || children(server.pid()).is_empty());
        }
    }
}

fn take_replies(mut stream: &UnixStream, count: usize) {
    let mut seen = vec![false; count];
    for taken in 0..count {
        let mut reply = [0; 16];
        if let Err(error) = stream.read_exact(&mut reply) {
            panic!("{taken} of {count} requests were answered: {error}");
        }
        assert_eq!(reply[..8], [0x67, 0x44, 0x66, 0x98, 0, 0, 0, 0]);
        let handle = u64::from_be_bytes(reply[8..].try_into().unwrap());
        let before = std::mem::replace(&mut seen[handle as usize], true);
        assert!(!before, "request {handle} was answered twice");
    }
}

#[test]
fn requests_that_are_sent_without_waiting_are_answered_once_through_upgrades() {
    const REQUESTS: usize = 20_000;
    let world = World::new();
    let server = serve(&world, &[], None);
    let client = server.connect("demo");
    let stream = client.stream();
    stream
        .set_read_timeout(Some(Duration::from_secs(20)))
        .unwrap();
    let at = |request: usize| (request % 8000 * BLOCK) as u64;
    std::thread::scope(|scope| {
        let mut sender = client.stream();
        let sent = scope.spawn(move || {
            for request in 0..REQUESTS {
                let data = block(1, request as u64);
                // Cut at odd bytes: what a server has received of it goes along.
                let bytes = nbd::Client::write_request(request as u64, at(request), &data);
                let (one, other) = bytes.split_at(request * 31 % bytes.len());
                sender
                    .write_all(one)
                    .and_then(|()| sender.write_all(other))?;
            }
            Ok::<_, std::io::Error>(())
        });
        let taken = scope.spawn(|| take_replies(&stream, REQUESTS));
        let mut upgrades = 0;
        while !taken.is_finished() && upgrades < 8 {
            world.expect_success(&server, &["upgrade"]);
            upgrades += 1;
        }
        taken.join().unwrap();
        sent.join().unwrap().unwrap();
        assert!(upgrades > 1, "{upgrades}: too few to mean anything");
    });
    let mut client = server.connect("demo");
    for request in (REQUESTS - 8000..REQUESTS).step_by(97) {
        let found = client.read(at(request), BLOCK).unwrap();
        assert_eq!(found, block(1, request as u64));
    }
}

#[test]
fn a_request_of_which_half_came_before_an_upgrade_is_answered_after_it() {
    let world = World::new();
    let server = serve(&world, &[], None);
    let mut client = server.connect("demo");
    let stream = client.stream();
    for (handle, cut) in [1, 11, 27, 28, 29, 2000, 4123].into_iter().enumerate() {
        let bytes = nbd::Client::write_request(0, 0, &block(1, handle as u64));
        (&stream).write_all(&bytes[..cut]).unwrap();
        // A payload that was begun is waited for.
        std::thread::scope(|scope| {
            let rest = scope.spawn(|| {
                if cut < 28 {
                    eventually("it is given away", || {
                        world
                            .server_log()
                            .matches("this program has taken over")
                            .count()
                            > handle
                    });
                }
                (&stream).write_all(&bytes[cut..])
            });
            world.expect_success(&server, &["upgrade"]);
            rest.join().unwrap().unwrap();
        });
        take_replies(&stream, 1);
        assert_eq!(client.read(0, BLOCK).unwrap(), block(1, handle as u64));
    }
}

#[test]
fn a_program_that_serves_is_not_given_up_when_its_time_is_over() {
    let world = World::new();
    let server = serve(&world, &[], None);
    let mut client = server.connect("demo");
    world.expect_success(&server, &["upgrade", "--timeout", "2s"]);
    let until = std::time::Instant::now() + Duration::from_millis(2500);
    let mut round = 0;
    while std::time::Instant::now() < until {
        if let Err(error) = client.try_write(0, &block(1, round)) {
            panic!("the server that was upgraded ended: {error}");
        }
        round += 1;
    }
    assert!(!world.server_log().contains("does not come up"));
}

#[test]
fn a_server_that_is_stopped_for_a_while_at_any_step_of_an_upgrade_goes_on_with_all_clients() {
    // Within the time that the new program has, and beyond it.
    for (timeout, stopped) in [("30s", 700), ("1s", 1600)] {
        std::thread::scope(|scope| {
            for step in STEPS {
                scope.spawn(move || stop_at(step, timeout, Duration::from_millis(stopped)));
            }
        });
    }
}

fn stop_at(step: &str, timeout: &str, stopped: Duration) {
    let world = World::new();
    let server = serve(&world, &[], Some(&format!("{step}=sigstop")));
    let mut client = server.connect("demo");
    for at in 0..100 {
        client.write(at * BLOCK as u64, &block(1, at)).unwrap();
    }
    let mut upgrade = Upgrade::start(&world, &server, timeout);
    eventually("it is stopped at the step", || server.state() == 'T');
    std::thread::scope(|scope| {
        // It is sent to a process that does not run.
        let write = scope.spawn(|| client.try_write(0, &block(1, 1000)));
        std::thread::sleep(stopped);
        rustix::process::kill_process(server.process(), rustix::process::Signal::CONT).unwrap();
        if let Err(error) = write.join().unwrap() {
            panic!("{step}, {timeout}: {error}: {}", world.server_log());
        }
    });
    let status = upgrade.wait();
    // Beyond its time the new program may still be quicker than the one that watches over it.
    assert!(
        status.success() || timeout == "1s",
        "{step}: {}",
        world.server_log()
    );
    assert_eq!(client.read(0, BLOCK).unwrap(), block(1, 1000), "{step}");
    for at in 1..100 {
        let found = client.read(at * BLOCK as u64, BLOCK).unwrap();
        assert_eq!(found, block(1, at), "{step}");
    }
    let mut other = server.connect("demo");
    assert_eq!(other.read(0, BLOCK).unwrap(), block(1, 1000), "{step}");
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
        let upgrade = Upgrade::start(&world, &server, "30s");
        std::thread::sleep(Duration::from_millis(round * 40));
        // By the signal, where the new program is not ready for it yet.
        let _ = server.stop();
        drop(upgrade);
    }
}
