//! Moving a volume from one server to another of the same store, by `firn move`.

use std::path::Path;
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use serde_json::Value;

use crate::common::{Server, World, eventually, nbd};

const BLOCK: usize = 4096;
const BLOCKS: u64 = 256;

fn state(world: &World, server: &Server) -> String {
    let shown = world.expect_success(server, &["volume", "show", "demo", "--json"]);
    let shown: Value = serde_json::from_str(&shown).unwrap();
    shown["state"].as_str().unwrap().to_owned()
}

/// Writes numbers, each to the block that it says, until its connection ends; `acked` is the newest that completed.
fn write_numbers(server: &Server, acked: &AtomicU64, stop: &AtomicBool) {
    write_numbers_by(&mut server.connect("demo"), acked, stop);
}

fn write_numbers_by(client: &mut nbd::Client, acked: &AtomicU64, stop: &AtomicBool) {
    while !stop.load(Ordering::SeqCst) {
        let number = acked.load(Ordering::SeqCst) + 1;
        let content = number.to_le_bytes().repeat(BLOCK / 8);
        let offset = number % BLOCKS * BLOCK as u64;
        if client.try_write(offset, &content).ok() != Some(0) {
            return;
        }
        acked.store(number, Ordering::SeqCst);
    }
}

/// The newest number that the volume has.
fn newest(server: &Server) -> u64 {
    let mut client = server.connect("demo");
    let bytes = client.read(0, BLOCKS as usize * BLOCK).unwrap();
    let numbers = bytes.chunks(BLOCK).map(|block| {
        let number = u64::from_le_bytes(block[..8].try_into().unwrap());
        assert_eq!(
            block,
            number.to_le_bytes().repeat(BLOCK / 8),
            "a torn block"
        );
        number
    });
    numbers.max().unwrap()
}

#[test]
fn a_volume_moves_under_load_with_every_write_that_completed_and_back() {
    let world = World::new();
    let one = world.serve("one", &["--volume", "demo=8MiB"]);
    let two = world.serve("two", &[]);
    let acked = AtomicU64::new(0);
    for (from, to) in [(&one, &two), (&two, &one)] {
        let stop = AtomicBool::new(false);
        let before = acked.load(Ordering::SeqCst);
        std::thread::scope(|scope| {
            scope.spawn(|| write_numbers(from, &acked, &stop));
            eventually("writes", || acked.load(Ordering::SeqCst) > before + 300);
            let refused = world.run(from, &["move", "demo", "--to", &to.api]);
            assert!(!refused.status.success(), "it is in use");
            assert_eq!(state(&world, from), "open", "nothing has happened");
            let moved = world.expect_success(
                from,
                &["move", "demo", "--to", &to.api, "--force", "--json"],
            );
            stop.store(true, Ordering::SeqCst);
            let moved: Value = serde_json::from_str(&moved).unwrap();
            assert!(moved["unserved_seconds"].as_f64().unwrap() > 0.0);
            assert_eq!(moved["attachment"]["transport"], "nbd");
        });
        assert_eq!(state(&world, to), "open");
        assert_eq!(state(&world, from), "held");
        // The last one may have been in the volume without an answer.
        let (newest, acked) = (newest(to), acked.load(Ordering::SeqCst));
        assert!((acked..=acked + 1).contains(&newest), "{newest}, {acked}");
    }
}

#[test]
fn a_server_of_another_store_is_refused_before_anything_is_given_up() {
    let world = World::new();
    let one = world.serve("one", &["--volume", "demo=8MiB"]);
    let foreign = world.serve("foreign", &["--store", "elsewhere"]);
    let said = world.expect_failure(&one, &["move", "demo", "--to", &foreign.api]);
    assert!(said.contains("the same store"), "{said}");
    // Another volume of the name is not this one.
    world.expect_success(&foreign, &["volume", "create", "demo", "--size", "8MiB"]);
    let said = world.expect_failure(&one, &["move", "demo", "--to", &foreign.api]);
    assert!(said.contains("the same store"), "{said}");
    let said = world.expect_failure(&one, &["move", "demo", "--to", &one.api]);
    assert!(said.contains("already"), "{said}");
    assert_eq!(state(&world, &one), "open");
    let two = world.serve("two", &[]);
    let said = world.expect_failure(&two, &["move", "demo", "--to", &one.api]);
    assert!(said.contains("held here"), "{said}");
}

#[test]
fn a_volume_that_cannot_be_attached_there_is_attached_here_again() {
    if Path::new("/dev/ublk-control").exists() {
        println!("skipped: this kernel has ublk, and the test is of one that cannot attach a disk");
        return;
    }
    let world = World::new();
    let one = world.serve("one", &["--volume", "demo=8MiB"]);
    let two = world.serve("two", &[]);
    one.connect("demo").write(0, &[5; BLOCK]).unwrap();
    let args = [
        "move",
        "demo",
        "--to",
        &two.api,
        "--force",
        "--transport",
        "ublk",
    ];
    let said = world.expect_failure(&one, &args);
    assert!(said.contains("attached here again"), "{said}");
    assert_eq!(one.connect("demo").read(0, BLOCK).unwrap(), [5; BLOCK]);
    assert_eq!(state(&world, &two), "held");
}

/// Moves the volume under load, kills one of the servers so long after the command was started, and starts it again. Then one
/// server has the volume, the other is refused, and all that completed is there.
fn is_whole_after_a_kill(of_the_first: bool, after: Duration) {
    let world = World::new();
    let mut one = world.serve("one", &["--volume", "demo=8MiB"]);
    let mut two = world.serve("two", &[]);
    let acked = AtomicU64::new(0);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let mut client = one.connect("demo");
        let (acked, stop) = (&acked, &stop);
        scope.spawn(move || write_numbers_by(&mut client, acked, stop));
        eventually("writes", || acked.load(Ordering::SeqCst) > 300);
        let args = [
            "--api", &one.api, "move", "demo", "--to", &two.api, "--force",
        ];
        let mut command = world.command(&args);
        let command = command.stdout(Stdio::null()).stderr(Stdio::null());
        let mut moving = command.spawn().unwrap();
        std::thread::sleep(after);
        let killed = match of_the_first {
            true => &mut one,
            false => &mut two,
        };
        killed.kill_in_place();
        moving.wait().unwrap();
        stop.store(true, Ordering::SeqCst);
        match of_the_first {
            true => one = world.serve("one", &[]),
            false => two = world.serve("two", &[]),
        }
    });
    let attach = ["attach", "demo", "--transport", "nbd"];
    let attached = [&one, &two].map(|server| world.run(server, &attach).status.success());
    let what = format!("killed the first: {of_the_first}, after {after:?}");
    let owner = match attached {
        [true, false] => &one,
        [false, true] => &two,
        both => panic!("{what}: attached {both:?}"),
    };
    let (newest, acked) = (newest(owner), acked.load(Ordering::SeqCst));
    assert!(
        (acked..=acked + 1).contains(&newest),
        "{what}: {newest}, {acked}"
    );
}

#[test]
fn a_server_that_is_killed_at_any_moment_of_a_move_leaves_the_volume_whole_and_with_one() {
    for moment in 0..6 {
        for of_the_first in [true, false] {
            is_whole_after_a_kill(of_the_first, Duration::from_millis(25 * moment));
        }
    }
}

#[test]
fn a_server_that_dies_as_soon_as_it_has_the_volume_serves_it_when_it_is_back() {
    let world = World::new();
    let one = world.serve("one", &["--volume", "demo=8MiB"]);
    let two = world.serve_as("two", &[], |command| {
        command.env("FIRN_OPENING", "abort=demo");
    });
    one.connect("demo").write(0, &[5; BLOCK]).unwrap();
    let said = world.expect_failure(&one, &["move", "demo", "--to", &two.api, "--force"]);
    assert!(said.contains("could not be attached here again"), "{said}");
    drop(two);
    assert_eq!(state(&world, &one), "held", "it had taken the volume");
    let two = world.serve("two", &[]);
    assert_eq!(state(&world, &two), "open");
    assert_eq!(two.connect("demo").read(0, BLOCK).unwrap(), [5; BLOCK]);
}
