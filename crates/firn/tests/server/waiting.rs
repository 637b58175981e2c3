//! A server opens what it can and waits with the rest: what waits is said, retried, and taken from
//! another host by one act for one volume alone.

use std::fs;
use std::time::Duration;

use serde_json::Value;

use crate::common::{Server, World, eventually, message};

const ROUNDS: u32 = 4;

fn list(world: &World, server: &Server) -> Value {
    serde_json::from_str(&world.expect_success(server, &["volume", "list", "--json"])).unwrap()
}

/// Status and text of `/readyz`.
fn readiness(server: &Server) -> (u16, String) {
    server.get("/readyz")
}

#[test]
fn a_volume_that_another_host_holds_waits_and_the_others_are_served() {
    let world = World::new();
    let one = world.serve("one", &["--volume", "demo=8MiB"]);
    one.connect("demo").write(0, &[1; 4096]).unwrap();
    let two = world.serve("two", &["--volume", "demo=8MiB", "--volume", "own=8MiB"]);
    two.connect("own").write(0, &[2; 4096]).unwrap();
    assert!(
        two.announcement.contains("volume demo waits"),
        "{}",
        two.announcement
    );

    let (status, said) = readiness(&two);
    assert_eq!(status, 503, "{said}");
    assert!(
        said.contains("not-ready") && said.contains("demo is held by host"),
        "{said}"
    );
    let listed = list(&world, &two);
    assert_eq!(listed["waiting"][0]["name"], "demo", "{listed}");
    assert_eq!(listed["waiting"][0]["code"], "volume-held", "{listed}");
    let shown = world.expect_success(&two, &["volume", "list"]);
    assert!(
        shown.contains("held, waiting") && shown.contains("is retried"),
        "{shown}"
    );
    let waits = world.show(&two, "demo")["waiting"].clone();
    assert!(waits.as_str().unwrap().contains("--take-over"), "{waits}");
    let said = world.expect_failure(&two, &["sync", "demo"]);
    assert!(said.contains("not known to be stored"), "{said}");
    // The owner noticed nothing.
    one.connect("demo").write(4096, &[1; 4096]).unwrap();
    world.expect_success(&one, &["sync", "demo"]);

    eventually("the release", || {
        world.run(&one, &["detach", "demo"]).status.success()
    });
    eventually("the opening", || {
        readiness(&two) == (200, "ready\n".to_owned())
    });
    assert_eq!(two.connect("demo").read(4096, 4096).unwrap(), [1; 4096]);
    assert!(list(&world, &two)["waiting"].is_null());
}

#[test]
fn a_volume_that_waits_is_let_go_of_by_detach_and_waits_again_after_a_restart_until_then() {
    let world = World::new();
    let _one = world.serve("one", &["--volume", "demo=8MiB"]);
    let two = world.serve("two", &["--volume", "demo=8MiB"]);
    two.kill();
    // Not told again which volume: the wait outlives the server.
    let two = world.serve("two", &[]);
    assert_eq!(readiness(&two).0, 503);
    world.expect_success(&two, &["detach", "demo"]);
    assert_eq!(readiness(&two).0, 200);
    assert!(two.stop().success());
    assert_eq!(readiness(&world.serve("two", &[])).0, 200);
}

#[test]
fn a_volume_is_served_by_the_same_command_line_after_it_was_resized_and_grown_by_a_larger_one() {
    let world = World::new();
    let args = ["--volume", "demo=8MiB"];
    let server = world.serve("cache", &args);
    world.expect_success(&server, &["volume", "resize", "demo", "16MiB"]);
    assert!(server.stop().success());
    let server = world.serve("cache", &args);
    assert_eq!(server.connect("demo").size, 16 << 20);
    assert_eq!(readiness(&server).0, 200);
    assert!(server.stop().success());
    let server = world.serve("cache", &["--volume", "demo=24MiB"]);
    assert_eq!(server.connect("demo").size, 24 << 20);
    assert_eq!(world.show(&server, "demo")["size_bytes"], 24 << 20);
    assert!(server.stop().success());
    for bad in ["../x=8MiB", "demo=5000B"] {
        let output = world.firn(&["serve", "--volume", bad]);
        assert_eq!(output.status.code(), Some(2), "{}", message(&output));
    }
}

#[test]
fn a_take_over_is_of_one_volume_and_says_what_is_given_up() {
    let world = World::new();
    let volumes = ["--volume", "a=8MiB", "--volume", "b=8MiB", "--rpo", "1h"];
    let old = world.serve("old", &volumes);
    old.connect("a").write(0, &[1; 4096]).unwrap();
    world.expect_success(&old, &["sync", "a"]);
    old.connect("a").write(4096, &[2; 4096]).unwrap();
    let mut to_b = old.connect("b");
    to_b.write(0, &[3; 4096]).unwrap();
    let new = world.serve("new", &volumes);

    let said = world.take_over(&new, "a");
    for part in [
        "a was taken over from",
        "/old (host ",
        "last seen",
        "after LSN 1,",
        "firn rescue",
    ] {
        assert!(said.contains(part), "{part}: {said}");
    }
    let mut to_a = new.connect("a");
    assert_eq!(
        to_a.read(0, 8192).unwrap(),
        [vec![1; 4096], vec![0; 4096]].concat()
    );
    // The other volume is as safe as before.
    assert_eq!(world.show(&new, "b")["state"], "held");
    to_b.write(4096, &[4; 4096]).unwrap();
    world.expect_success(&old, &["sync", "b"]);
    // Nothing is given up twice, and scripts find it in the API.
    let again = ["attach", "a", "--transport", "nbd", "--take-over", "--json"];
    let again: Value = serde_json::from_str(&world.expect_success(&new, &again)).unwrap();
    assert!(again["given_up"].is_null(), "{again}");
    let other = ["attach", "b", "--transport", "nbd", "--take-over", "--json"];
    let other: Value = serde_json::from_str(&world.expect_success(&new, &other)).unwrap();
    assert_eq!(other["given_up"]["stored_lsn"], 2, "{other}");
    assert!(
        other["given_up"]["owner"]
            .as_str()
            .unwrap()
            .ends_with("/old"),
        "{other}"
    );

    // No start takes anything over: not by a flag, not by the file.
    for bad in [
        &["serve", "--take-over"][..],
        &["serve", "--config", "firn.toml"],
    ] {
        fs::write(world.path("firn.toml"), "take-over = true\n").unwrap();
        let output = world.firn(bad);
        assert_eq!(output.status.code(), Some(2), "{}", message(&output));
    }
}

/// The store is a directory that is not mounted: missing, or empty.
#[test]
fn a_server_starts_while_its_store_is_away_and_serves_as_soon_as_that_is_back() {
    for empty in [false, true] {
        let world = World::new();
        let server = world.serve("cache", &["--volume", "demo=8MiB", "--rpo", "1h"]);
        server.connect("demo").write(0, &[1; 4096]).unwrap();
        world.expect_success(&server, &["sync", "demo"]);
        server.connect("demo").write(4096, &[2; 4096]).unwrap();
        server.kill();
        fs::rename(world.path("store"), world.path("away")).unwrap();
        if empty {
            fs::create_dir(world.path("store")).unwrap();
        }
        let server = world.serve("cache", &["--volume", "demo=8MiB"]);
        let (status, said) = readiness(&server);
        assert_eq!(status, 200, "{said}");
        assert!(said.contains("is it mounted?"), "{said}");
        assert!(said.contains("volume demo: unchecked"), "{said}");
        let listed = world.run(&server, &["volume", "list", "--json"]);
        let said = message(&listed);
        assert_eq!(
            listed.status.code(),
            Some(1),
            "the list is not whole: {said}"
        );
        assert!(
            !world.path("store/volumes").exists(),
            "no new store is made"
        );
        if empty {
            fs::remove_dir(world.path("store")).unwrap();
        }
        fs::rename(world.path("away"), world.path("store")).unwrap();
        eventually("the opening", || readiness(&server).0 == 200);
        let mut client = server.connect("demo");
        let found = client.read(0, 8192).unwrap();
        assert_eq!(found, [vec![1; 4096], vec![2; 4096]].concat());
        drop(client);
        world.expect_success(&server, &["sync", "demo"]);
        assert!(server.stop().success());
    }
}

/// Its log is so small that it goes round many times, so the detach comes in the midst of uploads and checkpoints.
#[test]
fn a_volume_that_this_host_deleted_is_made_anew_by_its_next_start() {
    let tiny = ["--log-size", "4MiB", "--segment-size", "32KiB"];
    let tiny = [&tiny[..], &["--cache-size", "512KiB", "--rpo", "100ms"]].concat();
    let world = World::new();
    for round in 0..ROUNDS {
        let args = [&tiny[..], &["--volume", "demo=12MiB"]].concat();
        let server = world.serve("cache", &args);
        assert_eq!(readiness(&server), (200, "ready\n".to_owned()), "{round}");
        std::thread::scope(|scope| {
            for part in 0..3_u64 {
                let mut client = server.connect("demo");
                scope.spawn(move || {
                    let fill = vec![1 + part as u8; 32 << 10];
                    for nth in 0..120_u64 {
                        let at = (part * 128 + nth * 7 % 128) * fill.len() as u64;
                        client.write(at, &fill).unwrap();
                    }
                });
            }
        });
        eventually("the detach", || {
            world.run(&server, &["detach", "demo"]).status.success()
        });
        world.expect_success(&server, &["volume", "delete", "demo"]);
        if round % 2 == 0 {
            assert!(server.stop().success());
        } else {
            server.kill();
        }
    }
}

/// A host that was killed with one stored block of `demo`, and one behind it that was never flushed; then its store goes
/// away.
fn killed_without_its_store(world: &World, meanwhile: impl FnOnce()) -> Server {
    let server = world.serve("cache", &["--volume", "demo=8MiB", "--rpo", "1h"]);
    let mut client = server.connect("demo");
    client.write(0, &[1; 4096]).unwrap();
    world.expect_success(&server, &["sync", "demo"]);
    client.flush().unwrap();
    client.write(4096, &[2; 4096]).unwrap();
    server.kill();
    meanwhile();
    world.swap_store_and_file();
    world.serve("cache", &[])
}

#[test]
fn a_volume_that_its_log_continues_is_served_before_the_store_answers_and_checked_then() {
    let world = World::new();
    let server = killed_without_its_store(&world, || {});
    let (status, said) = readiness(&server);
    assert_eq!(status, 200, "it is served: {said}");
    assert!(said.contains("volume demo: unchecked"), "{said}");
    let mut client = server.connect("demo");
    assert_eq!(client.size, 8 << 20);
    assert_eq!(client.read(4096, 4096).unwrap(), [2; 4096]);
    client.write(8192, &[3; 4096]).unwrap();
    client.flush().unwrap();
    let shown = world.show(&server, "demo");
    let health = &shown["health"];
    assert!(
        health["why"].as_str().unwrap().contains("unchecked"),
        "{shown}"
    );
    // It cannot be given back: a stop waits for the store until a second signal. The next server goes on from there, and so
    // does the one after a kill.
    drop(client);
    server.ask_to_stop();
    eventually("the first signal's effect", || {
        let said = world.server_log();
        said.contains("firn: stopping")
    });
    assert_eq!(server.stop().code(), Some(1));
    let server = world.serve("cache", &[]);
    assert!(readiness(&server).1.contains("volume demo: unchecked"));
    server.kill();
    let server = world.serve("cache", &[]);
    let mut client = server.connect("demo");
    assert_eq!(client.read(8192, 4096).unwrap(), [3; 4096]);
    std::thread::scope(|scope| {
        let synced = scope.spawn(|| world.run(&server, &["sync", "demo"]));
        let mut other = server.connect("demo");
        let read = scope.spawn(move || other.read(0, 4096).unwrap());
        client.write(12288, &[4; 4096]).unwrap();
        std::thread::sleep(Duration::from_secs(1));
        let waits = !synced.is_finished();
        // First, for the scope does not end before they do. What this host still has of the block may be read sooner.
        world.swap_store_and_file();
        let synced = synced.join().unwrap();
        assert!(synced.status.success(), "{}", message(&synced));
        assert_eq!(read.join().unwrap(), [1; 4096]);
        assert!(waits, "{}", message(&synced));
    });
    eventually("the check", || {
        readiness(&server) == (200, "ready\n".to_owned())
    });
    world.expect_success(&server, &["sync", "demo"]);
    drop(client);
    assert!(server.stop().success());
    let server = world.serve("other", &["--volume", "demo=8MiB"]);
    let mut client = server.connect("demo");
    for (at, fill) in [(0, 1), (4096, 2), (8192, 3), (12288, 4)] {
        assert_eq!(client.read(at, 4096).unwrap(), [fill; 4096], "{at}");
    }
}

#[test]
fn a_volume_that_was_taken_over_before_it_is_checked_ends_and_its_writes_are_for_rescue() {
    let world = World::new();
    let server = killed_without_its_store(&world, || {
        let new = world.serve("new", &[]);
        world.take_over(&new, "demo");
        new.connect("demo").write(4096, &[9; 4096]).unwrap();
        world.expect_success(&new, &["sync", "demo"]);
        new.kill();
    });
    let mut client = server.connect("demo");
    client.write(8192, &[3; 4096]).unwrap();
    world.swap_store_and_file();
    eventually("the check", || readiness(&server).0 == 503);
    assert!(client.write(12288, &[4; 4096]).is_err());
    drop(client);
    // What the log was told of the end is durable with another volume's FLUSH.
    world.expect_success(&server, &["volume", "create", "other", "--size", "8MiB"]);
    world.expect_success(&server, &["attach", "other", "--transport", "nbd"]);
    let mut other = server.connect("other");
    other.write(0, &[5; 4096]).unwrap();
    other.flush().unwrap();
    drop(other);
    server.kill();
    let server = world.serve("cache", &[]);
    let listed = world.expect_success(&server, &["rescue", "list", "--json"]);
    let listed: Value = serde_json::from_str(&listed).unwrap();
    assert_eq!(listed["tails"][0]["rescue"], true, "{listed}");
    // What its writer was told is there, and what it was refused is not.
    world.expect_success(&server, &["rescue", "fork", "demo", "saved"]);
    world.expect_success(&server, &["attach", "saved", "--transport", "nbd"]);
    let saved = server.connect("saved").read(0, 16384).unwrap();
    let block = |fill: u8| vec![fill; 4096];
    assert_eq!(saved, [block(1), block(2), block(3), block(0)].concat());
    let new = world.serve("new", &[]);
    let found = new.connect("demo").read(4096, 8192).unwrap();
    assert_eq!(found, [block(9), block(0)].concat());
}

#[test]
fn a_volume_that_was_served_is_not_made_anew_in_a_store_that_lacks_it() {
    let world = World::new();
    let demo = ["--volume", "demo=8MiB"];
    let server = world.serve("cache", &demo);
    server.connect("demo").write(0, &[1; 4096]).unwrap();
    server.kill();
    drop(world.serve("other", &["--store", "elsewhere"]));
    let server = world.serve("cache", &[&["--store", "elsewhere"], &demo[..]].concat());
    let (status, said) = readiness(&server);
    assert_eq!(status, 503, "{said}");
    assert!(said.contains("is it the right store?"), "{said}");
    assert!(!world.path("elsewhere/volumes").exists());
    server.kill();
    let server = world.serve("cache", &demo);
    assert_eq!(server.connect("demo").read(0, 4096).unwrap(), [1; 4096]);
}

#[test]
fn a_command_that_waits_finds_a_server_that_starts_later_and_a_volume_that_is_let_go_of() {
    let world = World::new();
    let socket = format!("unix:{}", world.path("api.sock").display());
    let create: &[&str] = &["volume", "create", "demo", "--size", "8MiB"];
    let attach: &[&str] = &["attach", "demo", "--transport", "nbd"];
    let patient = ["--wait", "--timeout", "60s"];
    let ask = |args: &[&str]| world.firn(&[&["--api", socket.as_str()], args, &patient].concat());
    let server = std::thread::scope(|scope| {
        let created = scope.spawn(|| ask(create));
        let server = world.serve("one", &["--api", &socket]);
        let created = created.join().unwrap();
        assert!(created.status.success(), "{}", message(&created));
        server
    });
    assert!(ask(attach).status.success());
    // Another host has it: it is waited for until that one lets it go.
    let other = world.serve("two", &[]);
    let refused = world.expect_failure(&other, attach);
    assert!(refused.contains("held by"), "{refused}");
    std::thread::scope(|scope| {
        let taken = scope.spawn(|| world.run(&other, &[attach, &patient].concat()));
        world.expect_success(&server, &["detach", "demo"]);
        let taken = taken.join().unwrap();
        assert!(taken.status.success(), "{}", message(&taken));
    });
    other.connect("demo").write(0, &[1; 4096]).unwrap();
}

#[test]
fn a_command_gives_up_when_its_time_is_over() {
    let world = World::new();
    let nobody = [
        "--api",
        "unix:nobody.sock",
        "sync",
        "demo",
        "--wait",
        "--timeout",
        "300ms",
    ];
    let gave_up = |output: std::process::Output| {
        let said = message(&output);
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(said.contains("--timeout is over"), "{said}");
    };
    gave_up(world.firn(&nobody));
    let server = world.serve("one", &["--volume", "demo=8MiB"]);
    let pid = rustix::process::Pid::from_raw(i32::try_from(server.pid()).unwrap()).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::STOP).unwrap();
    // The signal stops one thread after another: until the kernel reports the whole process as stopped,
    // another thread may answer.
    let stopped = rustix::process::waitpid(Some(pid), rustix::process::WaitOptions::UNTRACED);
    assert!(stopped.unwrap().unwrap().1.stopped());
    gave_up(world.run(&server, &["sync", "demo", "--timeout", "300ms"]));
    rustix::process::kill_process(pid, rustix::process::Signal::CONT).unwrap();
    world.expect_success(&server, &["sync", "demo", "--timeout", "60s"]);
}

#[test]
fn what_cannot_be_mounted_says_why_and_no_uri_is_taken_for_a_disk() {
    let world = World::new();
    let server = world.serve("one", &["--volume", "demo=8MiB"]);
    let mount = ["attach", "demo", "--mount", "here", "--mkfs", "ext4"];
    let senseless = world.run(&server, &[&mount[..], &["--transport", "nbd"]].concat());
    assert_eq!(senseless.status.code(), Some(2), "{}", message(&senseless));
    if std::path::Path::new("/dev/ublk-control").exists() {
        println!("skipped: this machine has disks, and they are not this test's");
        return;
    }
    let said = world.expect_failure(&server, &mount);
    assert!(
        said.contains("modprobe ublk_drv") || said.contains("io_uring"),
        "{said}"
    );
    assert!(!world.path("here").exists());
}

#[test]
fn a_volume_is_called_stored_only_where_it_is_open_and_closed_where_nobody_has_it() {
    let world = World::new();
    let server = world.serve("cache", &["--volume", "demo=8MiB", "--rpo", "1h"]);
    server.connect("demo").write(0, &[1; 4096]).unwrap();
    server.kill();
    fs::remove_dir_all(world.path("cache")).unwrap();
    // Another host to the store: the one that had the volume is lost, and its writes with it.
    let server = world.serve("cache", &[]);
    let said = world.expect_failure(&server, &["sync", "demo"]);
    assert!(
        said.contains("held by") && said.contains("not known to be stored"),
        "{said}"
    );
    world.take_over(&server, "demo");
    world.expect_success(&server, &["sync", "demo"]);
    world.expect_success(&server, &["detach", "demo"]);
    let said = world.expect_success(&server, &["sync", "demo"]);
    assert!(said.contains("closed here; nothing to upload"), "{said}");
}
