//! `firn clone`: a volume with its snapshots in another store, byte by byte, whatever kills the command on the way.

use std::fs::File;
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::Duration;

use serde_json::Value;

use crate::common::{Server, World, eventually, message};

const MIB: u64 = 1 << 20;
pub(crate) const CACHE: &str = "clone-cache";

pub(crate) fn noise(seed: u64, bytes: usize) -> Vec<u8> {
    let mut data = vec![0; bytes];
    fastrand::Rng::with_seed(seed).fill(&mut data);
    data
}

pub(crate) fn content(world: &World, server: &Server, name: &str) -> Vec<u8> {
    let output = world.run(server, &["export", name, "-"]);
    assert!(output.status.success(), "{}", message(&output));
    output.stdout
}

pub(crate) fn snapshots(world: &World, server: &Server, volume: &str) -> Vec<Value> {
    let listed = world.expect_success(server, &["snapshot", "list", volume, "--json"]);
    let listed: Value = serde_json::from_str(&listed).unwrap();
    listed["snapshots"].as_array().unwrap().clone()
}

/// A volume with three snapshots, the second behind a restore, and more since; it grew, too.
pub(crate) fn history(world: &World, server: &Server) {
    let mut client = server.connect("demo");
    client.write(0, &noise(1, 5 * MIB as usize)).unwrap();
    client.write(6 * MIB, &noise(2, 65_536)).unwrap();
    let taken = ["snapshot", "create", "demo@a", "--label", "why=before"];
    world.expect_success(server, &taken);
    client.write(512, &noise(3, 512)).unwrap();
    client.trim(2 * MIB, MIB as u32).unwrap();
    client.write(6 * MIB, &[0; 8192]).unwrap();
    let taken = [
        "snapshot", "create", "demo@z", "--label", "why=x", "--label", "who=me",
    ];
    world.expect_success(server, &taken);
    drop(client);
    world.expect_success(server, &["volume", "resize", "demo", "24MiB"]);
    let mut client = server.connect("demo");
    client.write(20 * MIB, &noise(4, 3 * MIB as usize)).unwrap();
    world.expect_success(server, &["snapshot", "create", "demo@m"]);
    client.write(4 * MIB, &noise(5, 300 * 1024)).unwrap();
}

pub(crate) fn clone_arguments(more: &[&'static str]) -> Vec<&'static str> {
    let all = ["clone", "demo", "--to", "store-there", "--cache", CACHE];
    all.into_iter().chain(more.iter().copied()).collect()
}

/// That the copy is what the original is: each snapshot, and the present state.
pub(crate) fn check_copy(world: &World, here: &Server, there: &Server, copy: &str) {
    let named = |one: &Value| {
        one["name"]
            .as_str()
            .unwrap()
            .split('@')
            .next_back()
            .unwrap()
            .to_owned()
    };
    let (originals, copies) = (
        snapshots(world, here, "demo"),
        snapshots(world, there, copy),
    );
    let names = |all: &[Value]| all.iter().map(named).collect::<Vec<_>>();
    assert_eq!(names(&originals), names(&copies));
    for (original, copied) in originals.iter().zip(&copies) {
        let name = named(original);
        for what in ["size_bytes", "taken_unix_ms"] {
            assert_eq!(original[what], copied[what], "{name} {what}");
        }
        assert_ne!(original["id"], copied["id"]);
        let mut labels = original["labels"].clone();
        labels["copy-of"] = original["id"].clone();
        assert_eq!(labels, copied["labels"], "{name}");
        let of = |server, volume| content(world, server, &format!("{volume}@{name}"));
        assert!(of(here, "demo") == of(there, copy), "{name}");
    }
    let moment = originals
        .iter()
        .map(named)
        .find(|name| name.starts_with("clone-"));
    let moment = content(world, here, &format!("demo@{}", moment.unwrap()));
    assert!(content(world, there, copy) == moment);
}

/// Nothing is left of the command, neither here nor on its way.
fn check_nothing_is_left(world: &World, here: &Server) {
    let left = std::fs::read_dir(world.path(CACHE)).into_iter().flatten();
    assert_eq!(left.count(), 0);
    let attached = snapshots(world, here, "demo").into_iter();
    let attached: Vec<Value> = attached
        .filter(|one| one.get("attached").is_some())
        .collect();
    assert!(attached.is_empty(), "{attached:?}");
}

/// The command as it is killed; what it began is in the background until its server has noticed.
pub(crate) fn spawn(world: &World, here: &Server, more: &[&'static str]) -> Child {
    let mut all = vec!["--api", here.api.as_str()];
    all.extend(clone_arguments(more));
    let mut command = world.command(&all);
    command.stdout(Stdio::null()).stderr(Stdio::piped());
    command.spawn().unwrap()
}

#[test]
fn a_volume_with_its_snapshots_is_the_same_in_another_store() {
    let world = World::new();
    let here = world.serve("cache", &["--volume", "demo=8MiB", "--rpo", "1h"]);
    history(&world, &here);
    let said = world.expect_success(&here, &clone_arguments(&["--json"]));
    let said: Value = serde_json::from_str(&said).unwrap();
    assert_eq!(said["volume"], "demo");
    assert_eq!(said["size_bytes"], 24 * MIB);
    assert_eq!(said["snapshots"].as_array().unwrap().len(), 4);
    // Each byte went once: what was not written between two snapshots was not copied again.
    let copied = said["copied_bytes"].as_u64().unwrap();
    assert!((8 * MIB..9 * MIB).contains(&copied), "{copied}");
    assert_eq!(said["went_on_after"], Value::Null);
    check_nothing_is_left(&world, &here);

    let there = world.serve("there", &["--store", "store-there", "--rpo", "1h"]);
    let copy = world.show(&there, "demo");
    assert_eq!(copy["state"], "closed");
    assert_eq!(copy["id"], said["id"]);
    assert_ne!(copy["id"], world.show(&here, "demo")["id"]);
    check_copy(&world, &here, &there, "demo");
    let deep = ["check", "--deep", "--store", "store-there"];
    let checked = world.firn(&deep);
    assert!(checked.status.success(), "{}", message(&checked));

    // It follows its original from there on.
    let moment = said["moment"].as_str().unwrap();
    here.connect("demo")
        .write(7 * MIB, &noise(9, 4096))
        .unwrap();
    world.expect_success(&here, &["snapshot", "create", "demo@later"]);
    world.expect_success(
        &here,
        &["export", "demo@later", "later.inc", "--since", moment],
    );
    world.expect_success(&there, &["import", "later.inc", "--onto", "demo"]);
    assert!(content(&world, &there, "demo") == content(&world, &here, "demo@later"));
}

#[test]
fn a_clone_that_is_killed_at_any_time_goes_on_after_the_last_snapshot_that_is_whole() {
    let world = World::new();
    let here = world.serve("cache", &["--volume", "demo=8MiB", "--rpo", "1h"]);
    history(&world, &here);
    // Killed once it has a part, with its files lost, too, when its server has gone: the copy is taken over.
    let mut clone = spawn(&world, &here, &["--name", "copy"]);
    eventually("a part is there", || {
        has_a_part(&world.path("store-there/snapshots/copy"))
    });
    clone.kill().unwrap();
    clone.wait().unwrap();
    eventually("its server ends", || !is_served(&world.path(CACHE)));
    std::fs::remove_dir_all(world.path(CACHE)).unwrap();
    for one in snapshots(&world, &here, "demo") {
        let _ = world.run(&here, &["detach", one["name"].as_str().unwrap(), "--force"]);
    }
    let (mut kills, mut went_on) = (0, 0);
    for wait_ms in (20..).step_by(70) {
        let mut clone = spawn(&world, &here, &["--name", "copy"]);
        std::thread::sleep(Duration::from_millis(wait_ms));
        let is_over = clone.try_wait().unwrap().is_some();
        let _ = clone.kill();
        let output = clone.wait_with_output().unwrap();
        went_on += usize::from(message(&output).contains("going on after it"));
        if is_over {
            // The one before may have been killed as it ended: then it is whole, and a volume as any other.
            let said = message(&output);
            assert!(
                output.status.success() || said.contains("is in that store already"),
                "{said}"
            );
            break;
        }
        kills += 1;
    }
    assert!(
        kills >= 3 && went_on >= 1,
        "{kills} kills, {went_on} times went on"
    );
    check_nothing_is_left(&world, &here);
    let there = world.serve("there", &["--store", "store-there", "--rpo", "1h"]);
    check_copy(&world, &here, &there, "copy");
    assert_eq!(world.volume_names(&there), ["copy"]);
}

/// Whether the copy has its first snapshot, and not its last one yet.
pub(crate) fn has_a_part(snapshots: &Path) -> bool {
    let entries = std::fs::read_dir(snapshots).into_iter().flatten().flatten();
    let names = entries.map(|entry| entry.file_name().into_string().unwrap());
    let names: Vec<String> = names.collect();
    let has = |start: &str| names.iter().any(|name| name.starts_with(start));
    has("a") && !has("clone-")
}

/// Whether the server of a command that was killed is there yet.
pub(crate) fn is_served(cache: &Path) -> bool {
    let dirs = std::fs::read_dir(cache).into_iter().flatten().flatten();
    let mut locks = dirs.filter_map(|dir| File::open(dir.path().join("cache/lock")).ok());
    locks.any(|lock| lock.try_lock().is_err())
}

#[test]
fn a_copy_that_was_changed_meanwhile_is_set_back_and_a_snapshot_that_is_not_whole_is_made_anew() {
    let world = World::new();
    let here = world.serve("cache", &["--volume", "demo=8MiB", "--rpo", "1h"]);
    history(&world, &here);
    {
        // What an interrupted command leaves, with a snapshot that holds something else, and writes behind it.
        let there = world.serve("there", &["--store", "store-there", "--rpo", "1h"]);
        world.expect_success(&there, &["volume", "create", "demo", "--size", "8MiB"]);
        let id = world.show(&here, "demo")["id"].as_str().unwrap().to_owned();
        let of = format!("clone-of={id}");
        let mark = [
            "snapshot",
            "create",
            "demo@unfinished-clone",
            "--label",
            &of,
        ];
        let mark = [&mark[..], &["--label", "clone-moment=none"]].concat();
        world.expect_success(&there, &mark);
        world.expect_success(&there, &["attach", "demo", "--transport", "nbd"]);
        there.connect("demo").write(0, &[3; 512]).unwrap();
        eventually("its connection ends", || {
            world.show(&there, "demo")["nbd"]["connections"] == 0
        });
        // It keeps what the volume was, and was killed before it removed that.
        let set_back = ["snapshot", "restore", "demo@unfinished-clone"];
        world.expect_success(&there, &set_back);
        let mut client = there.connect("demo");
        client.write(MIB, &noise(8, 8192)).unwrap();
        let first = &snapshots(&world, &here, "demo")[0];
        assert_eq!(first["name"], "demo@a");
        let copy_of = format!("copy-of={}", first["id"].as_str().unwrap());
        world.expect_success(
            &there,
            &["snapshot", "create", "demo@a", "--label", &copy_of],
        );
        client.write(3 * MIB, &noise(7, 8192)).unwrap();
        drop(client);
        assert!(there.stop().success());
    }
    let output = world.run(&here, &clone_arguments(&[]));
    let said = message(&output);
    assert!(output.status.success(), "{said}");
    assert!(
        said.contains("demo@a is not what demo@a is, and is made anew"),
        "{said}"
    );
    let there = world.serve("there", &["--store", "store-there", "--rpo", "1h"]);
    check_copy(&world, &here, &there, "demo");
}

#[test]
fn a_clone_to_a_name_in_use_or_to_no_store_is_refused_and_leaves_nothing() {
    let world = World::new();
    let here = world.serve("cache", &["--volume", "demo=8MiB", "--rpo", "1h"]);
    history(&world, &here);
    let names = || -> Vec<Value> {
        let listed = snapshots(&world, &here, "demo").into_iter();
        listed.map(|one| one["name"].clone()).collect()
    };
    {
        let there = world.serve(
            "there",
            &["--store", "store-there", "--volume", "demo=8MiB"],
        );
        there.connect("demo").write(0, &[5; 4096]).unwrap();
        assert!(there.stop().success());
    }
    let said = world.expect_failure(&here, &clone_arguments(&[]));
    assert!(
        said.contains("demo is in that store already") && said.contains("--name"),
        "{said}"
    );
    for (store, says) in [
        ("ftp://nowhere/x", "ftp"),
        ("/proc/nowhere", "/proc/nowhere"),
    ] {
        let said = world.expect_failure(&here, &["clone", "demo", "--to", store, "--cache", CACHE]);
        assert!(
            said.contains("the store of the copy cannot be used") && said.contains(says),
            "{said}"
        );
    }
    let said = world.expect_failure(&here, &["clone", "dmeo", "--to", "elsewhere"]);
    assert!(said.contains("did you mean demo?"), "{said}");
    assert!(!world.path("elsewhere").exists());
    assert_eq!(world.run(&here, &["clone", "demo"]).status.code(), Some(2));
    assert_eq!(names(), ["demo@a", "demo@m", "demo@z"]);
    check_nothing_is_left(&world, &here);
    // And what was there is.
    let there = world.serve("there", &["--store", "store-there"]);
    world.expect_success(&there, &["attach", "demo", "--transport", "nbd"]);
    assert_eq!(there.connect("demo").read(0, 4096).unwrap(), [5; 4096]);
}

#[test]
fn snapshots_of_a_schedule_and_of_an_attached_volume_are_copied_and_no_schedule_there_takes_them() {
    let world = World::new();
    let schedule = ["--snapshot-schedule", "demo=1s,keep=3"];
    let arguments = [&["--volume", "demo=8MiB", "--rpo", "1h"][..], &schedule].concat();
    let here = world.serve("cache", &arguments);
    here.connect("demo").write(0, &[1; 4096]).unwrap();
    eventually("the schedule takes one", || {
        !snapshots(&world, &here, "demo").is_empty()
    });
    let name = snapshots(&world, &here, "demo")[0]["name"]
        .as_str()
        .unwrap()
        .to_owned();
    world.expect_success(&here, &["attach", &name, "--transport", "nbd"]);
    world.expect_success(&here, &clone_arguments(&[]));
    // It was attached by somebody else, and stays so.
    let found = snapshots(&world, &here, "demo");
    assert!(
        found
            .iter()
            .any(|one| one["name"] == *name && one.get("attached").is_some())
    );
    let there = world.serve("there", &["--store", "store-there"]);
    let copies = snapshots(&world, &there, "demo");
    let copy = copies.iter().find(|one| one["name"] == *name).unwrap();
    assert_eq!(copy["labels"]["copied-schedule"], "1s");
    assert_eq!(copy["labels"].get("schedule"), None);
}
