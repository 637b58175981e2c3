//! A volume whose opening ends the server three times is left out by the next start, which serves the others; nothing that
//! it holds is lost, and no other end of a server leaves a volume out.

use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Stdio};

use rustix::process::Signal;
use serde_json::Value;

use crate::common::{Server, World, eventually, message};

/// A log so small that it goes round many times while a volume is left out.
const SMALL: [&str; 6] = [
    "--log-size",
    "4MiB",
    "--segment-size",
    "32KiB",
    "--cache-size",
    "512KiB",
];

/// What a server does when it has opened a volume: `abort=VOLUME` or `hang=VOLUME`.
fn planned(what: &str) -> impl Fn(&mut Command) {
    let what = what.to_owned();
    move |command| {
        command.env("FIRN_OPENING", &what);
    }
}

/// A start that ends as soon as it has opened this volume; what it said.
fn crash_with(world: &World, volume: &str) -> String {
    let mut command = world.serve_command("cache", &[]);
    planned(&format!("abort={volume}"))(&mut command);
    let ended = command.output().unwrap();
    let said = message(&ended);
    assert_eq!(ended.status.signal(), Some(6), "{said}");
    said
}

/// A start that a signal ends while it opens this volume.
fn end_while_opening(world: &World, volume: &str, signal: Signal) {
    let log = world.path("hanging.stderr");
    let mut command = world.serve_command("cache", &[]);
    planned(&format!("hang={volume}"))(&mut command);
    command
        .stdout(Stdio::null())
        .stderr(fs::File::create(&log).unwrap());
    let mut child = command.spawn().unwrap();
    eventually("the opening hangs", || {
        let said = fs::read_to_string(&log).unwrap();
        said.contains("was made to hang")
    });
    let pid = rustix::process::Pid::from_raw(i32::try_from(child.id()).unwrap());
    rustix::process::kill_process(pid.unwrap(), signal).unwrap();
    let ended = child.wait().unwrap();
    assert_eq!(ended.success(), signal != Signal::KILL);
}

fn waiting(world: &World, server: &Server) -> Value {
    let list = world.expect_success(server, &["volume", "list", "--json"]);
    let list: Value = serde_json::from_str(&list).unwrap();
    list["waiting"].clone()
}

fn block(volume: u8, at: u64) -> Vec<u8> {
    vec![volume + u8::try_from(at % 100).unwrap(); 4096]
}

/// Writes `a` again and again, so that the log goes round: all but what it keeps for `b` is used anew.
fn go_round(server: &Server, round: u64) {
    let mut client = server.connect("a");
    for at in 0..512 {
        client
            .write(at * 16384, &[block(1, at + round), vec![9; 12288]].concat())
            .unwrap();
    }
    client.flush().unwrap();
}

const BLOCKS_OF_B: u64 = 40;

#[test]
fn a_volume_whose_opening_ends_the_server_three_times_is_left_out_and_keeps_all_that_it_holds() {
    let world = World::new();
    let made = [
        &SMALL[..],
        &["--volume", "a=8MiB", "--volume", "b=8MiB", "--rpo", "1h"],
    ]
    .concat();
    let server = world.serve("cache", &made);
    let mut to_b = server.connect("b");
    for at in 0..BLOCKS_OF_B {
        to_b.write(at * 4096, &block(2, at)).unwrap();
        if at == BLOCKS_OF_B / 2 {
            to_b.flush().unwrap();
        }
    }
    server.connect("a").write(0, &block(1, 0)).unwrap();
    server.kill();
    (0..3).for_each(|_| _ = crash_with(&world, "b"));

    // The fault is still there.
    let server = world.serve_as("cache", &["--rpo", "100ms"], planned("abort=b"));
    assert!(
        server.announcement.contains("volume b is left out since"),
        "{}",
        server.announcement
    );
    assert_eq!(server.connect("a").read(0, 4096).unwrap(), block(1, 0));
    says_that_it_is_left_out(&world, &server);
    (0..3).for_each(|round| go_round(&server, round));
    // Opened by hand it ends the server once, and is left out at once.
    let attached = world.run(&server, &["attach", "b", "--transport", "nbd"]);
    assert!(!attached.status.success());
    drop(server);
    let server = world.serve_as("cache", &["--rpo", "100ms"], planned("abort=b"));
    assert_eq!(waiting(&world, &server)[0]["code"], "left-out");
    (3..6).for_each(|round| go_round(&server, round));
    assert!(server.stop().success());

    // It stays so without the fault, too: nothing tells a server that it is gone.
    let server = world.serve("cache", &["--rpo", "100ms"]);
    assert_eq!(waiting(&world, &server)[0]["name"], "b");
    world.expect_success(&server, &["attach", "b", "--transport", "nbd"]);
    has_all_of_b(&server);
    assert_eq!(server.get("/readyz"), (200, "ready\n".to_owned()));
    assert!(waiting(&world, &server).is_null());
    assert!(server.stop().success());
    let server = world.serve("cache", &[]);
    has_all_of_b(&server);
}

fn has_all_of_b(server: &Server) {
    let mut client = server.connect("b");
    for at in 0..BLOCKS_OF_B {
        let found = client.read(at * 4096, 4096).unwrap();
        assert_eq!(found, block(2, at), "block {at} is missing");
    }
}

fn says_that_it_is_left_out(world: &World, server: &Server) {
    let log = world.server_log();
    let line = log.lines().find(|line| line.contains("it is left out"));
    let line = line.unwrap_or_else(|| panic!("the log does not say so: {log}"));
    assert!(line.contains("ERROR") && line.contains("\"b\""), "{line}");
    let (status, said) = server.get("/readyz");
    assert_eq!(status, 503, "{said}");
    let remedy = "firn attach b --transport nbd";
    assert!(
        said.contains("volume b is left out since") && said.contains(remedy),
        "{said}"
    );
    assert!(!said.contains("volume a"), "{said}");
    let listed = waiting(world, server);
    assert_eq!(listed[0]["name"], "b", "{listed}");
    assert_eq!(listed[0]["code"], "left-out", "{listed}");
    assert!(listed[1].is_null(), "{listed}");
    let listed = world.expect_success(server, &["volume", "list"]);
    assert!(
        listed.contains("closed, left out") && listed.contains(remedy),
        "{listed}"
    );
    assert!(!listed.contains("is retried"), "{listed}");
    let shown = world.expect_success(server, &["volume", "show", "b"]);
    assert!(shown.contains(remedy), "{shown}");
    let (_, metrics) = server.get("/metrics");
    for line in [
        "firn_volume_left_out{volume=\"b\"} 1",
        "firn_health{what=\"volume b\"} 2",
    ] {
        assert!(metrics.contains(line), "{line}: {metrics}");
    }
    let said = world.expect_failure(server, &["sync", "b"]);
    assert!(said.contains("not known to be stored"), "{said}");
}

/// All of them are opened at the same time at first.
#[test]
fn of_many_volumes_only_the_one_whose_opening_ends_the_server_is_left_out() {
    let world = World::new();
    let names: Vec<String> = (0..8).map(|number| format!("v{number}")).collect();
    let sizes: Vec<String> = names.iter().map(|name| format!("{name}=8MiB")).collect();
    let args: Vec<&str> = sizes.iter().flat_map(|size| ["--volume", size]).collect();
    world.serve("cache", &args).kill();
    (0..3).for_each(|_| _ = crash_with(&world, "v5"));
    let server = world.serve_as("cache", &[], planned("abort=v5"));
    let left_out = waiting(&world, &server);
    assert_eq!(left_out[0]["name"], "v5", "{left_out}");
    assert!(left_out[1].is_null(), "{left_out}");
    for name in names.iter().filter(|name| *name != "v5") {
        server.connect(name).read(0, 4096).unwrap();
    }
    // Deleted and made anew it is another volume.
    world.expect_success(&server, &["volume", "delete", "v5", "v5", "--now"]);
    assert_eq!(server.get("/readyz").0, 200);
    server.kill();
    let server = world.serve("cache", &args);
    assert!(waiting(&world, &server).is_null());
    server.connect("v5").read(0, 4096).unwrap();
}

fn is_served(world: &World) {
    let server = world.serve("cache", &[]);
    assert_eq!(
        server.get("/readyz"),
        (200, "ready\n".to_owned()),
        "b was left out"
    );
    assert_eq!(server.connect("b").read(0, 4096).unwrap(), block(2, 0));
    server.kill();
}

fn with_b() -> World {
    let world = World::new();
    let server = world.serve("cache", &["--volume", "b=8MiB"]);
    server.connect("b").write(0, &block(2, 0)).unwrap();
    server.kill();
    world
}

#[test]
fn no_volume_is_left_out_by_kills_of_a_server_that_serves_or_by_ends_that_name_no_volume() {
    let world = with_b();
    for _ in 0..5 {
        is_served(&world);
    }
    // Before it opens any volume.
    (0..4).for_each(|_| _ = crash_with(&world, ""));
    is_served(&world);
    // Two ends are not enough, also if others come between.
    for _ in 0..2 {
        (0..2).for_each(|_| _ = crash_with(&world, "b"));
        crash_with(&world, "");
    }
    is_served(&world);
}

#[test]
fn no_volume_is_left_out_by_who_stops_the_server_while_it_opens_one() {
    let world = with_b();
    for _ in 0..4 {
        end_while_opening(&world, "b", Signal::TERM);
        end_while_opening(&world, "b", Signal::INT);
    }
    is_served(&world);
    // The kernel's own way to end it says nothing of why.
    for _ in 0..3 {
        end_while_opening(&world, "b", Signal::KILL);
    }
    let server = world.serve("cache", &[]);
    assert_eq!(waiting(&world, &server)[0]["name"], "b");
}

#[test]
fn a_record_of_starts_that_is_damaged_or_cannot_be_written_keeps_no_server_from_starting() {
    let world = with_b();
    let record = world.path("cache/starts");
    (0..2).for_each(|_| _ = crash_with(&world, "b"));
    fs::write(&record, "not a record").unwrap();
    let says_once = |said: &str, what: &str| assert_eq!(said.matches(what).count(), 1, "{said}");
    says_once(&crash_with(&world, "b"), "the record of starts is damaged");
    is_served(&world);
    fs::remove_file(&record).unwrap();
    fs::create_dir(&record).unwrap();
    for _ in 0..4 {
        says_once(
            &crash_with(&world, "b"),
            "the record of starts cannot be used",
        );
    }
    is_served(&world);
}
