//! `firn import --resume`: an import that was cut short goes on where it was, of the same image and of no other.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::FileExt;
use std::process::{Child, ChildStderr, Stdio};

use serde_json::Value;

use crate::common::{Server, World, eventually, message};

const MIB: usize = 1 << 20;
/// More than the log takes, so that no import of it ends without the store.
const IMAGE_BYTES: usize = 160 * MIB + 5 * 4096;

/// Content with holes, and zeroes that are written.
fn image(seed: u64) -> Vec<u8> {
    let mut data = vec![0; IMAGE_BYTES];
    fastrand::Rng::with_seed(seed).fill(&mut data);
    for nth in 0..16 {
        data[nth * 10 * MIB..][..MIB / 2].fill(0);
    }
    data
}

fn content(world: &World, server: &Server, name: &str) -> Vec<u8> {
    let output = world.run(server, &["export", name, "-"]);
    assert!(output.status.success(), "{}", message(&output));
    output.stdout
}

fn snapshots(world: &World, server: &Server) -> Vec<Value> {
    let listed = world.run(server, &["snapshot", "list", "demo", "--json"]);
    let listed = serde_json::from_slice(&listed.stdout).unwrap_or(Value::Null);
    listed["snapshots"].as_array().cloned().unwrap_or_default()
}

/// Begins an import, and takes the store away once a part of it is marked: it cannot end any more.
fn begin(world: &World, server: &Server, more: &[&str]) -> Child {
    let arguments = ["--api", &server.api, "import", "disk.img", "demo"];
    let marks = ["--mark-interval", "20ms"];
    let mut command = world.command(&[&arguments[..], &marks, more].concat());
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let import = command.spawn().unwrap();
    let has_a_part = |one: &Value| {
        one["labels"]["import-end"]
            .as_str()
            .is_some_and(|end| end != "0")
    };
    eventually("a part is marked", || {
        snapshots(world, server).iter().any(has_a_part)
    });
    world.swap_store_and_file();
    import
}

/// Waits until nobody is connected to the volume.
fn wait_unused(world: &World, server: &Server) {
    eventually("its connections end", || {
        world.show(server, "demo")["nbd"]["connections"] == 0
    });
}

/// The names of the snapshots but for those that a restore kept.
fn own(world: &World, server: &Server) -> Vec<String> {
    let all = snapshots(world, server).into_iter();
    let names = all.map(|one| one["name"].as_str().unwrap().to_owned());
    names
        .filter(|name| !name.starts_with("demo@before-restore-"))
        .collect()
}

/// Goes on, and checks that the volume is what the image is by now.
fn resume(world: &World, server: &Server, more: &[&str]) {
    let all = [
        &["import", "disk.img", "demo", "--resume", "--json"][..],
        more,
    ]
    .concat();
    let output = world.run(server, &all);
    let said = message(&output);
    assert!(output.status.success(), "{said}");
    assert!(
        said.contains("that part is unchanged: going on there"),
        "{said}"
    );
    let image = fs::read(world.path("disk.img")).unwrap();
    assert!(content(world, server, "demo") == image);
    // The marks are gone. What the volume held behind the newest is nobody's to delete.
    assert!(own(world, server).is_empty());
    let blocks = image.chunks(4096).filter(|block| **block != [0; 4096]);
    let told: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(told["data_bytes"], blocks.count() * 4096);
}

#[test]
fn an_import_that_was_killed_goes_on_where_it_was_and_a_changed_image_is_refused() {
    let world = World::new();
    let server = world.serve("cache", &[]);
    fs::write(world.path("disk.img"), image(1)).unwrap();
    let mut import = begin(&world, &server, &[]);
    import.kill().unwrap();
    import.wait().unwrap();
    world.swap_store_and_file();
    wait_unused(&world, &server);

    let again = ["import", "disk.img", "demo"];
    let said = world.expect_failure(&server, &again);
    assert!(said.contains("goes on with --resume"), "{said}");
    // A block of what was imported, and the length.
    let resumed = [&again[..], &["--resume"]].concat();
    let file = File::options()
        .write(true)
        .open(world.path("disk.img"))
        .unwrap();
    let old = image(1);
    file.write_all_at(&[7; 512], MIB as u64).unwrap();
    let said = world.expect_failure(&server, &resumed);
    assert!(
        said.contains("is not the image of which demo has a part"),
        "{said}"
    );
    file.write_all_at(&old[MIB..MIB + 512], MIB as u64).unwrap();
    file.set_len(IMAGE_BYTES as u64 - 4096).unwrap();
    let said = world.expect_failure(&server, &resumed);
    assert!(
        said.contains("is not the image") && said.contains("--overwrite and without --resume"),
        "{said}"
    );
    file.write_all_at(&old[IMAGE_BYTES - 4096..], IMAGE_BYTES as u64 - 4096)
        .unwrap();
    // What a command leaves that is killed as it has set the volume back.
    let marks = snapshots(&world, &server);
    let mark = marks.iter().max_by_key(|one| one["lsn"].as_u64()).unwrap();
    let mark = mark["name"].as_str().unwrap();
    world.expect_success(&server, &["snapshot", "restore", mark]);
    // What is behind may change: nothing of what was written of it stays.
    file.write_all_at(&vec![0; 8 * MIB], IMAGE_BYTES as u64 - 20 * MIB as u64)
        .unwrap();
    // Somebody takes it for whole, and uses it.
    world.expect_success(&server, &["attach", "demo", "--transport", "nbd"]);
    let mine = vec![7; 4096];
    server.connect("demo").write(0, &mine).unwrap();
    wait_unused(&world, &server);
    resume(&world, &server, &[]);
    let all = snapshots(&world, &server).into_iter();
    let kept = all.map(|one| one["name"].as_str().unwrap().to_owned());
    let has_mine = |(nth, name): (usize, String)| {
        let fork = format!("kept-{nth}");
        world.expect_success(&server, &["fork", &name, &fork]);
        content(&world, &server, &fork).starts_with(&mine)
    };
    assert!(kept.enumerate().any(has_mine), "what was written is gone");
    // There is nothing to go on with any more.
    let said = world.expect_failure(&server, &resumed);
    assert!(said.contains("no import of it was cut short"), "{said}");
}

#[test]
fn an_import_whose_server_was_killed_goes_on_at_the_next_one() {
    let world = World::new();
    let server = world.serve("cache", &[]);
    fs::write(world.path("disk.img"), image(2)).unwrap();
    let import = begin(&world, &server, &[]);
    server.kill();
    let output = import.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let said = message(&output);
    assert!(
        said.contains("holds a part of the image: go on with --resume"),
        "{said}"
    );
    world.swap_store_and_file();
    let server = world.serve("cache", &[]);
    resume(&world, &server, &[]);
}

#[test]
fn a_volume_that_is_replaced_goes_on_too_and_keeps_its_own_snapshots() {
    let world = World::new();
    let volume = ["--volume", "demo=176MiB", "--rpo", "1h"];
    let server = world.serve("cache", &volume);
    server
        .connect("demo")
        .write(150 * MIB as u64, &vec![9; MIB])
        .unwrap();
    world.expect_success(
        &server,
        &["snapshot", "create", "demo@mine", "--wait", "store"],
    );
    fs::write(world.path("disk.img"), image(3)).unwrap();
    let import = begin(&world, &server, &["--overwrite", "--resume"]);
    let pid = rustix::process::Pid::from_child(&import);
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    world.swap_store_and_file();
    let output = import.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(130), "{}", message(&output));
    wait_unused(&world, &server);
    let all = ["import", "disk.img", "demo", "--overwrite", "--resume"];
    let output = world.run(&server, &all);
    let said = message(&output);
    assert!(
        output.status.success() && said.contains("going on there"),
        "{said}"
    );
    let mut expected = fs::read(world.path("disk.img")).unwrap();
    expected.resize(176 * MIB, 0);
    assert!(content(&world, &server, "demo") == expected);
    assert_eq!(own(&world, &server), ["demo@mine"]);
}

/// What a command says up to a line with these words; its messages go on behind that.
fn wait_said(import: &mut Child, words: &str) -> BufReader<ChildStderr> {
    let mut said = BufReader::new(import.stderr.take().unwrap());
    let mut all = String::new();
    while !all.contains(words) {
        let bytes = said.read_line(&mut all).unwrap();
        assert!(bytes > 0, "it ended, and said: {all}");
    }
    said
}

#[test]
fn an_import_goes_on_through_an_outage_of_the_store_in_which_it_cannot_be_marked() {
    let world = World::new();
    let server = world.serve("cache", &[]);
    fs::write(world.path("disk.img"), image(4)).unwrap();
    let mut import = begin(&world, &server, &[]);
    let mut said = wait_said(&mut import, "cannot be marked now");
    world.swap_store_and_file();
    let mut rest = String::new();
    said.read_to_string(&mut rest).unwrap();
    assert!(import.wait().unwrap().success(), "{rest}");
    assert!(content(&world, &server, "demo") == image(4));
    assert!(own(&world, &server).is_empty());
}

#[test]
fn an_import_that_is_marked_without_a_pause_comes_to_its_end() {
    let world = World::new();
    let server = world.serve("cache", &[]);
    fs::write(world.path("disk.img"), &image(5)[..48 * MIB]).unwrap();
    let arguments = ["import", "disk.img", "demo", "--mark-interval", "0s"];
    let mut all = vec!["--api", server.api.as_str()];
    all.extend(arguments);
    let mut import = world.command(&all).stderr(Stdio::null()).spawn().unwrap();
    eventually("it ends", || import.try_wait().unwrap().is_some());
    assert!(import.wait().unwrap().success());
    assert!(content(&world, &server, "demo") == image(5)[..48 * MIB]);
}

#[test]
fn an_import_whose_mark_cannot_be_removed_is_complete_and_says_so() {
    let world = World::new();
    let server = world.serve("cache", &[]);
    fs::write(world.path("disk.img"), image(6)).unwrap();
    let mut import = begin(&world, &server, &[]);
    let pid = rustix::process::Pid::from_child(&import);
    rustix::process::kill_process(pid, rustix::process::Signal::STOP).unwrap();
    world.swap_store_and_file();
    // Somebody looks at both.
    let mut attached = Vec::new();
    for mark in snapshots(&world, &server) {
        let name = mark["name"].as_str().unwrap().to_owned();
        // The import may be removing the older one.
        let looked = world.run(&server, &["attach", &name, "--transport", "nbd"]);
        if looked.status.success() {
            attached.push(name);
        }
    }
    assert!(!attached.is_empty());
    rustix::process::kill_process(pid, rustix::process::Signal::CONT).unwrap();
    let mut said = String::new();
    import
        .stderr
        .take()
        .unwrap()
        .read_to_string(&mut said)
        .unwrap();
    assert_eq!(import.wait().unwrap().code(), Some(1), "{said}");
    assert!(said.contains("the import is complete"), "{said}");
    for name in attached {
        assert!(
            said.contains(&format!("firn snapshot delete {name}")),
            "{said}"
        );
        world.expect_success(&server, &["detach", &name]);
    }
    assert!(content(&world, &server, "demo") == image(6));
    // From the beginning, whatever was marked.
    let again = ["import", "disk.img", "demo", "--overwrite"];
    world.expect_success(&server, &again);
    assert!(own(&world, &server).is_empty());
}

#[test]
fn what_cannot_be_gone_on_with_is_said_before_anything_is_touched() {
    let world = World::new();
    let server = world.serve("cache", &["--volume", "demo=8MiB"]);
    fs::write(world.path("disk.img"), vec![1; MIB]).unwrap();
    for (arguments, says) in [
        (
            "import - new --size 8MiB --resume",
            "comes through a pipe is read once",
        ),
        ("import disk.img new --format qcow2 --resume", "qcow2"),
        (
            "import disk.img new --format increment --resume",
            "an increment",
        ),
        ("import disk.img --onto demo --resume", "--resume"),
    ] {
        let arguments: Vec<&str> = arguments.split(' ').collect();
        let refused = world.run(&server, &arguments);
        let said = message(&refused);
        assert_eq!(refused.status.code(), Some(2), "{arguments:?}: {said}");
        assert!(said.contains(says), "{arguments:?}: {said}");
    }
    let said = world.expect_failure(&server, &["import", "disk.img", "demo", "--resume"]);
    assert!(said.contains("no import of it was cut short"), "{said}");
    assert_eq!(world.volume_names(&server), ["demo"]);
    // With nothing to go on with it is an import as any other.
    world.expect_success(&server, &["import", "disk.img", "new", "--resume"]);
    assert!(content(&world, &server, "new") == vec![1; MIB]);
}
