//! `firn clone` beside other commands, users and servers: what is theirs stays so, and what an earlier command left is gone
//! on with.

use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::Child;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::clones::{
    CACHE, check_copy, clone_arguments, content, has_a_part, history, is_served, noise, snapshots,
    spawn,
};
use crate::common::{Server, World, eventually, message};

const MIB: u64 = 1 << 20;

fn source(world: &World) -> Server {
    let here = world.serve("cache", &["--volume", "demo=8MiB", "--rpo", "1h"]);
    history(world, &here);
    here
}

/// The directory of a command that makes a copy of this name.
fn work_dir(world: &World, name: &str) -> PathBuf {
    let hash = blake3::hash(format!("{name} store-there").as_bytes()).to_hex();
    world.path(CACHE).join(format!("clone-{}", &hash[..16]))
}

/// What a command leaves that is killed before its copy has a mark, or after that lost it.
fn leave_note(world: &World, name: &str, note: &Value) {
    let dir = work_dir(world, name);
    fs::create_dir_all(&dir).unwrap();
    fs::write(dir.join("progress.json"), note.to_string()).unwrap();
}

fn signal(child: &Child, signal: Signal) {
    kill_process(Pid::from_child(child), signal).unwrap();
}

fn names(snapshots: &[Value]) -> Vec<&str> {
    let names = snapshots.iter().map(|one| one["name"].as_str().unwrap());
    names.collect()
}

#[test]
fn a_clone_that_was_killed_before_its_mark_takes_no_volume_of_that_name_that_is_anothers() {
    let world = World::new();
    let here = source(&world);
    let note = json!({ "moment": "none", "size_bytes": 8 * MIB, "whole": null });
    // Another host has one of the same size open, in which nothing was written yet.
    let there = world.serve(
        "there",
        &[
            "--store",
            "store-there",
            "--volume",
            "demo=8MiB",
            "--rpo",
            "1h",
        ],
    );
    world.expect_success(&there, &["volume", "create", "full", "--size", "8MiB"]);
    world.expect_success(&there, &["attach", "full", "--transport", "nbd"]);
    there.connect("full").write(0, &[5; 4096]).unwrap();
    eventually("its connection ends", || {
        world.show(&there, "full")["nbd"]["connections"] == 0
    });
    world.expect_success(&there, &["detach", "full"]);
    world.expect_success(&there, &["volume", "create", "other", "--size", "4MiB"]);
    for name in ["demo", "full", "other"] {
        leave_note(&world, name, &note);
        let said = world.expect_failure(&here, &clone_arguments(&["--name", name]));
        assert!(
            said.contains(&format!("a volume named {name} is in that store already")),
            "{said}"
        );
        assert!(snapshots(&world, &there, name).is_empty());
    }
    let mut client = there.connect("demo");
    client.write(0, &[6; 4096]).unwrap();
    client.flush().unwrap();
    drop(client);
    world.expect_success(&there, &["sync", "demo"]);
    assert!(content(&world, &there, "full").starts_with(&[5; 4096]));
}

#[test]
fn a_clone_that_fails_early_leaves_the_files_of_an_earlier_one() {
    let world = World::new();
    let here = source(&world);
    let mut clone = spawn(&world, &here, &[]);
    eventually("a part is there", || {
        has_a_part(&world.path("store-there/snapshots/demo"))
    });
    clone.kill().unwrap();
    clone.wait().unwrap();
    eventually("its server ends", || !is_served(&world.path(CACHE)));
    let log = work_dir(&world, "demo").join("cache/log");
    assert!(log.exists());
    fs::rename(world.path("store-there"), world.path("aside")).unwrap();
    fs::write(world.path("store-there"), "not a directory").unwrap();
    let said = world.expect_failure(&here, &clone_arguments(&[]));
    assert!(said.contains("store-there"), "{said}");
    assert!(log.exists(), "{said}");
    fs::remove_file(world.path("store-there")).unwrap();
    fs::rename(world.path("aside"), world.path("store-there")).unwrap();
    let output = world.run(&here, &clone_arguments(&[]));
    let said = message(&output);
    assert!(
        output.status.success() && said.contains("going on after it"),
        "{said}"
    );
    let there = world.serve("there", &["--store", "store-there"]);
    check_copy(&world, &here, &there, "demo");
}

#[test]
fn a_second_clone_says_who_makes_the_copy_and_waits_for_a_server_that_is_about_to_end() {
    let world = World::new();
    let here = source(&world);
    let mut first = spawn(&world, &here, &[]);
    eventually("it is served", || is_served(&world.path(CACHE)));
    signal(&first, Signal::STOP);
    let said = world.expect_failure(&here, &clone_arguments(&[]));
    let holder = format!("another `firn clone` (process id {})", first.id());
    assert!(
        said.contains(&holder) && said.contains("wait until it has ended"),
        "{said}"
    );
    first.kill().unwrap();
    first.wait().unwrap();
    eventually("its server ends", || !is_served(&world.path(CACHE)));
    // As if that took longer.
    let lock = File::open(work_dir(&world, "demo").join("cache/lock")).unwrap();
    lock.lock().unwrap();
    let mut second = spawn(&world, &here, &[]);
    let mut lines = BufReader::new(second.stderr.take().unwrap()).lines();
    let waits = lines.next().unwrap().unwrap();
    assert!(
        waits.contains("waiting for the server of an earlier clone"),
        "{waits}"
    );
    // Longer than a server waits for it.
    std::thread::sleep(std::time::Duration::from_secs(4));
    lock.unlock().unwrap();
    let rest: Vec<String> = lines.map(Result::unwrap).collect();
    assert!(second.wait().unwrap().success(), "{rest:?}");
}

#[test]
fn a_snapshot_that_was_taken_again_or_deleted_meanwhile_is_neither_in_the_way_nor_in_the_copy() {
    for retaken in ["demo@z", "demo@gone"] {
        let world = World::new();
        let here = source(&world);
        {
            let there = world.serve("there", &["--store", "store-there", "--rpo", "1h"]);
            world.expect_success(&there, &["volume", "create", "demo", "--size", "8MiB"]);
            let of = format!(
                "clone-of={}",
                world.show(&here, "demo")["id"].as_str().unwrap()
            );
            let labels = ["--label", &of, "--label", "clone-moment=none"];
            let mark = [
                &["snapshot", "create", "demo@unfinished-clone"][..],
                &labels,
            ]
            .concat();
            world.expect_success(&there, &mark);
            world.expect_success(&there, &["attach", "demo", "--transport", "nbd"]);
            there.connect("demo").write(0, &noise(6, 8192)).unwrap();
            let copied = ["snapshot", "create", retaken, "--label"];
            let label = format!("copy-of={}", "5a".repeat(16));
            world.expect_success(&there, &[&copied[..], &[&label]].concat());
            eventually("its connection ends", || {
                world.show(&there, "demo")["nbd"]["connections"] == 0
            });
            assert!(there.stop().success());
        }
        let output = world.run(&here, &clone_arguments(&[]));
        let said = message(&output);
        assert!(output.status.success(), "{said}");
        assert!(
            said.contains(&format!(
                "{retaken} is a copy of a snapshot that demo does not have any more"
            )),
            "{said}"
        );
        let there = world.serve("there", &["--store", "store-there", "--rpo", "1h"]);
        check_copy(&world, &here, &there, "demo");
    }
}

#[test]
fn a_snapshot_that_somebody_attaches_while_it_is_copied_stays_attached() {
    let world = World::new();
    let here = source(&world);
    let mut clone = spawn(&world, &here, &[]);
    eventually("the first one is read", || {
        let all = snapshots(&world, &here, "demo");
        all.iter().any(|one| one.get("attached").is_some())
    });
    signal(&clone, Signal::STOP);
    // Most likely the clone holds the first one, and knows the others only from its list.
    let mine = ["demo@a", "demo@m", "demo@z"];
    for name in mine {
        world.expect_success(&here, &["attach", name, "--transport", "nbd"]);
    }
    signal(&clone, Signal::CONT);
    let status = clone.wait().unwrap();
    assert!(status.success());
    let all = snapshots(&world, &here, "demo");
    let attached: Vec<Value> = all
        .into_iter()
        .filter(|one| one.get("attached").is_some())
        .collect();
    assert_eq!(names(&attached), mine);
}

#[test]
fn a_clone_that_was_killed_at_its_end_names_the_moment_that_the_copy_holds() {
    let world = World::new();
    let here = source(&world);
    let said = world.expect_success(&here, &clone_arguments(&["--json"]));
    let said: Value = serde_json::from_str(&said).unwrap();
    {
        let there = world.serve("there", &["--store", "store-there"]);
        world.expect_success(&there, &["attach", "demo", "--transport", "nbd"]);
        there.connect("demo").write(0, &[1; 4096]).unwrap();
        world.expect_success(&there, &["snapshot", "create", "demo@later"]);
        assert!(there.stop().success());
    }
    let all = snapshots(&world, &here, "demo");
    let moment = all
        .iter()
        .find(|one| one["name"] == said["moment"])
        .unwrap();
    let note = json!({ "moment": moment["id"], "size_bytes": 24 * MIB, "whole": said["id"] });
    leave_note(&world, "demo", &note);
    let again = world.expect_success(&here, &clone_arguments(&["--json"]));
    let again: Value = serde_json::from_str(&again).unwrap();
    assert_eq!(again["moment"], said["moment"]);
}

#[test]
fn a_copy_of_a_snapshot_of_a_group_does_not_claim_to_be_of_one() {
    let world = World::new();
    let here = world.serve("cache", &["--volume", "demo=8MiB", "--volume", "wal=8MiB"]);
    here.connect("demo").write(0, &[1; 4096]).unwrap();
    world.expect_success(&here, &["snapshot", "create", "demo@both", "wal@both"]);
    world.expect_success(&here, &clone_arguments(&[]));
    let there = world.serve("there", &["--store", "store-there"]);
    let copies = snapshots(&world, &there, "demo");
    let copy = copies
        .iter()
        .find(|one| one["name"] == "demo@both")
        .unwrap();
    assert_eq!(copy["labels"].get("group"), None);
    assert_eq!(copy["labels"]["copied-group"], "demo@both wal@both");
}
