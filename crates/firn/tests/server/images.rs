//! Images in and out of volumes with the real binary: what goes in comes out, and nothing is left behind.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::process::{Child, Command, Stdio};

use serde_json::Value;

use crate::common::{Server, World, eventually, message};

/// An image of 40 MiB and 10 bytes: noise, holes, text, zeroes that are no hole, and an odd end.
fn image(world: &World) -> Vec<u8> {
    let mut bytes = vec![0; (40 << 20) + 10];
    fastrand::Rng::with_seed(7).fill(&mut bytes[..5 << 20]);
    for line in bytes[20 << 20..22 << 20].chunks_mut(16) {
        line.copy_from_slice(b"firn is old snow");
    }
    bytes[30 << 20] = 1;
    bytes[(40 << 20) + 9] = 2;
    let file = File::create(world.path("image")).unwrap();
    for part in [0..5 << 20, 20 << 20..25 << 20, 30 << 20..(30 << 20) + 1] {
        file.write_all_at(&bytes[part.clone()], part.start as u64)
            .unwrap();
    }
    file.write_all_at(&[2], (40 << 20) + 9).unwrap();
    bytes
}

/// An exported image, up to the length of the one that was imported.
fn exported(world: &World, name: &str, bytes: usize) -> Vec<u8> {
    let mut found = fs::read(world.path(name)).unwrap();
    assert!(found[bytes..].iter().all(|byte| *byte == 0));
    found.truncate(bytes);
    found
}

#[test]
fn an_imported_image_is_in_the_store_and_comes_out_the_same_on_another_host() {
    let world = World::new();
    let bytes = image(&world);
    let server = world.serve("cache", &["--rpo", "1h"]);
    let said = world.expect_success(&server, &["import", "image", "demo", "--json"]);
    let said: Value = serde_json::from_str(&said).unwrap();
    assert_eq!(said["size_bytes"], (40 << 20) + 4096);
    // Noise, text, and two blocks that are not all zeroes.
    assert_eq!(said["data_bytes"], (7 << 20) + 2 * 4096);
    assert_eq!(world.show(&server, "demo")["state"], "closed");
    server.kill();
    let server = world.serve("another", &[]);
    let said = world.expect_success(&server, &["export", "demo", "copy"]);
    assert!(said.contains("of it data"), "{said}");
    assert!(exported(&world, "copy", bytes.len()) == bytes);
    let copy = fs::metadata(world.path("copy")).unwrap();
    assert_eq!(copy.len(), (40 << 20) + 4096);
    let taken = copy.blocks() * 512;
    assert!(taken < 8 << 20, "{taken} bytes: holes stay holes");
    assert_eq!(world.volume_names(&server), ["demo"]);
    assert_eq!(world.show(&server, "demo")["state"], "closed");
    // Through pipes, the volume larger than the image.
    let mut import = world
        .command(&[
            "--api",
            &server.api,
            "import",
            "-",
            "piped",
            "--size",
            "48MiB",
        ])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    import.stdin.take().unwrap().write_all(&bytes).unwrap();
    assert!(import.wait().unwrap().success());
    let export = world.run(&server, &["export", "piped", "-"]);
    assert!(export.status.success(), "{}", message(&export));
    assert_eq!(export.stdout.len(), 48 << 20);
    assert!(export.stdout[..bytes.len()] == bytes);
    assert!(export.stdout[bytes.len()..].iter().all(|byte| *byte == 0));
    assert_eq!(world.volume_names(&server), ["demo", "piped"]);
}

#[test]
fn a_volume_that_is_there_is_replaced_only_on_demand_and_then_as_a_whole() {
    let world = World::new();
    let bytes = image(&world);
    let server = world.serve("cache", &["--volume", "demo=64MiB", "--rpo", "1h"]);
    let mut client = server.connect("demo");
    client.write(10 << 20, &[9; 4096]).unwrap();
    client.write(50 << 20, &[9; 4096]).unwrap();
    let said = world.expect_failure(&server, &["import", "image", "demo"]);
    assert!(said.contains("--overwrite"), "{said}");
    let said = world.expect_failure(&server, &["import", "image", "demo", "--overwrite"]);
    assert!(said.contains("in use"), "{said}");
    assert_eq!(client.read(10 << 20, 1).unwrap_err().0, 22);
    assert_eq!(client.read(10 << 20, 4096).unwrap(), [9; 4096]);
    drop(client);
    eventually("the client is gone", || {
        world.show(&server, "demo")["nbd"]["connections"] == 0
    });
    let said = world.expect_failure(&server, &["import", "image", "dmeo", "--overwrite"]);
    assert!(said.contains("did you mean demo"), "{said}");
    world.expect_success(&server, &["import", "image", "demo", "--overwrite"]);
    assert_eq!(world.show(&server, "demo")["state"], "open", "as it was");
    world.expect_success(&server, &["export", "demo", "copy"]);
    assert!(exported(&world, "copy", bytes.len()) == bytes);
}

#[test]
fn an_export_is_one_moment_of_a_volume_whose_clients_go_on() {
    let world = World::new();
    let server = world.serve("cache", &["--volume", "demo=8MiB"]);
    let mut client = server.connect("demo");
    client.write(0, &[1; 4096]).unwrap();
    world.expect_success(&server, &["snapshot", "create", "demo@one"]);
    client.write(0, &[2; 4096]).unwrap();
    world.expect_success(&server, &["export", "demo", "now"]);
    client.write(0, &[3; 4096]).unwrap();
    world.expect_success(&server, &["export", "demo@one", "before"]);
    for (file, fill) in [("now", 2), ("before", 1)] {
        assert_eq!(fs::read(world.path(file)).unwrap()[..4096], [fill; 4096]);
    }
    let said = world.expect_failure(&server, &["export", "demo", "now"]);
    assert!(said.contains("--overwrite"), "{said}");
    world.expect_success(&server, &["export", "demo", "now", "--overwrite"]);
    assert_eq!(fs::read(world.path("now")).unwrap()[..4096], [3; 4096]);
    assert_eq!(client.read(0, 4096).unwrap(), [3; 4096]);
    assert_eq!(world.volume_names(&server), ["demo"]);
}

#[test]
fn a_command_that_fails_or_is_interrupted_leaves_nothing_behind() {
    let world = World::new();
    image(&world);
    let server = world.serve("cache", &["--volume", "demo=8MiB"]);
    server.connect("demo").write(0, &[1; 4096]).unwrap();
    for (args, says) in [
        (&["import", "nothing", "new"][..], "nothing"),
        (&["import", ".", "new"], "directory"),
        (
            &["import", "/dev/zero", "new", "--size", "4MiB"],
            "larger than the volume",
        ),
        (
            &["import", "image", "new", "--size", "4MiB"],
            "more than the",
        ),
        (&["export", "nothing", "copy"], "no volume"),
        (&["export", "demo@nothing", "copy"], "no snapshot"),
        (&["export", "demo", "missing/copy"], "missing/copy"),
        (&["export", "demo", "/dev/full"], "No space left"),
    ] {
        let said = world.expect_failure(&server, args);
        assert!(said.contains(says), "{args:?}: {said}");
        assert_eq!(world.volume_names(&server), ["demo"], "{args:?}");
    }
    // One that waits for input, and one whose output nobody takes.
    for args in [
        &["import", "-", "new", "--size", "64MiB"][..],
        &["export", "demo", "-"],
    ] {
        let mut all = vec!["--api", &server.api];
        all.extend(args);
        let mut child = world
            .command(&all)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        // Its end would be the image's.
        let input = child.stdin.take();
        eventually("it is at work", || {
            let names = world.volume_names(&server);
            let other = names.iter().find(|name| *name != "demo");
            other.is_some_and(|name| {
                world.show(&server, name)["nbd"]["connections"]
                    .as_u64()
                    .is_some_and(|count| count > 0)
            })
        });
        let pid = rustix::process::Pid::from_raw(child.id().cast_signed()).unwrap();
        rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
        assert_eq!(child.wait().unwrap().code(), Some(130), "{args:?}");
        drop(input);
        assert_eq!(world.volume_names(&server), ["demo"], "{args:?}");
    }
    let left = |name: &str| world.path(name).exists();
    assert!(!left("copy") && !left("copy.partial") && !left("missing"));
}

/// An import whose image has arrived, and which waits for the store: that is away.
fn import_that_waits_for_the_store(world: &World, server: &Server) -> Child {
    let mut import = world
        .command(&["--api", &server.api, "import", "-", "new", "--size", "4MiB"])
        .stdin(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let connections = || world.show(server, "new")["nbd"]["connections"].as_u64();
    eventually("it is at work", || {
        world.volume_names(server) == ["new"] && connections().is_some_and(|count| count > 0)
    });
    fs::rename(world.path("store"), world.path("away")).unwrap();
    import.stdin.take().unwrap().write_all(&[7; 16384]).unwrap();
    eventually("it waits for the store", || {
        connections() == Some(0) && server.get("/readyz").1.contains("store: writes fail")
    });
    import
}

#[test]
fn an_interrupted_import_whose_errors_nobody_reads_ends_all_the_same() {
    let world = World::new();
    let server = world.serve("cache", &["--rpo", "1h"]);
    let mut import = import_that_waits_for_the_store(&world, &server);
    // As where what its output goes through was interrupted, too.
    drop(import.stderr.take());
    let pid = rustix::process::Pid::from_raw(import.id().cast_signed()).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    let mut ended = None;
    let is_over = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        eventually("it ends", || {
            ended = import.try_wait().unwrap();
            ended.is_some()
        });
    }));
    // Also where it does not end.
    let _ = import.kill();
    assert!(is_over.is_ok(), "it goes on");
    assert_eq!(ended.unwrap().code(), Some(130));
    fs::rename(world.path("away"), world.path("store")).unwrap();
}

#[test]
fn an_import_that_is_interrupted_after_the_image_arrived_keeps_it_and_says_what_is_left_to_do() {
    let world = World::new();
    // A recovery point so far away that only the command asks for an upload.
    let server = world.serve("cache", &["--rpo", "1h"]);
    let import = import_that_waits_for_the_store(&world, &server);
    let pid = rustix::process::Pid::from_raw(import.id().cast_signed()).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    let output = import.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(130));
    let said = message(&output);
    assert!(said.contains("the image is in new"), "{said}");
    fs::rename(world.path("away"), world.path("store")).unwrap();
    for step in ["sync", "detach"] {
        assert!(said.contains(&format!("firn {step} new")), "{said}");
        world.expect_success(&server, &[step, "new"]);
    }
    world.expect_success(&server, &["export", "new", "copy"]);
    assert_eq!(fs::read(world.path("copy")).unwrap()[..16384], [7; 16384]);
}

#[test]
fn an_image_of_qcow2_goes_in_and_out_and_is_never_taken_for_its_bytes() {
    let world = World::new();
    let bytes = image(&world);
    let qemu_img = |args: &[&str]| {
        let mut command = Command::new("qemu-img");
        let done = command.args(args).current_dir(world.dir.path()).output();
        done.map(|output| assert!(output.status.success(), "{args:?}: {}", message(&output)))
    };
    let convert = [
        "convert",
        "-f",
        "raw",
        "-O",
        "qcow2",
        "image",
        "image.qcow2",
    ];
    if let Err(error) = qemu_img(&convert) {
        println!("skipped: qemu-img: {error}");
        return;
    }
    let server = world.serve("cache", &[]);
    let said = world.expect_failure(&server, &["import", "image.qcow2", "demo"]);
    assert!(said.contains("--format qcow2"), "{said}");
    let import = ["import", "image.qcow2", "demo", "--format", "qcow2"];
    world.expect_success(&server, &import);
    world.expect_success(&server, &["export", "demo", "copy"]);
    assert!(exported(&world, "copy", bytes.len()) == bytes);
    let export = ["export", "demo", "copy.qcow2", "--format", "qcow2"];
    world.expect_success(&server, &export);
    qemu_img(&["compare", "-f", "qcow2", "-F", "raw", "copy.qcow2", "copy"]).unwrap();
    // Whoever made a layer chose what it lies over.
    qemu_img(&[
        "create", "-q", "-f", "qcow2", "-b", "image", "-F", "raw", "layer",
    ])
    .unwrap();
    let import = ["import", "layer", "secret", "--format", "qcow2"];
    let said = world.expect_failure(&server, &import);
    assert!(said.contains("layer over another file"), "{said}");
    assert_eq!(world.volume_names(&server), ["demo"]);
}
