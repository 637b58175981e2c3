//! Bad input, as far as these commands reach (DESIGN section 7): the error names the thing and
//! the remedy, nothing is changed, nothing is lost.

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::common::{World, message};

#[test]
fn bad_names_and_sizes_are_refused_and_create_nothing() {
    let world = World::new();
    let server = world.serve("cache", &[]);
    let long = "x".repeat(65);
    for name in ["", ".hidden", "a/b", "../../etc", "a b", "é", "-", &long] {
        let create = ["volume", "create", "--size", "1GiB", "--", name];
        let output = world.run(&server, &create);
        let said = message(&output);
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(
            said.contains("not a volume name") && said.contains("letters"),
            "{name}: {said}"
        );
    }
    for (size, says) in [
        ("0B", "above zero"),
        ("5000B", "multiple of 4096"),
        ("65TiB", "64 TiB"),
    ] {
        let output = world.run(&server, &["volume", "create", "x", "--size", size]);
        let said = message(&output);
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(said.contains(says), "{size}: {said}");
    }
    let list = world.expect_success(&server, &["volume", "list", "--json"]);
    assert_eq!(
        list.split_whitespace().collect::<String>(),
        r#"{"volumes":[]}"#
    );
    assert!(!world.path("store/volumes").exists());
}

#[test]
fn duplicate_and_missing_volumes_are_named() {
    let world = World::new();
    let server = world.serve("cache", &[]);
    world.expect_success(&server, &["volume", "create", "a", "--size", "8MiB"]);
    let id = world.show(&server, "a")["id"].clone();
    let said = world.expect_failure(&server, &["volume", "create", "a", "--size", "16MiB"]);
    assert!(said.contains("named a exists"), "{said}");
    let shown = world.show(&server, "a");
    assert_eq!(
        (shown["id"].clone(), shown["size_bytes"].as_u64()),
        (id, Some(8 << 20))
    );
    for command in [
        &["volume", "show", "b"][..],
        &["volume", "delete", "b"],
        &["attach", "b"],
        &["sync", "b"],
    ] {
        let said = world.expect_failure(&server, command);
        assert!(
            said.contains("no volume named b") && said.contains("volume list"),
            "{said}"
        );
    }
}

#[test]
fn a_volume_with_clients_is_not_deleted() {
    let world = World::new();
    let server = world.serve("cache", &["--volume", "demo=8MiB"]);
    let mut client = server.connect("demo");
    client.write(0, &[7; 4096]).unwrap();
    let said = world.expect_failure(&server, &["volume", "delete", "demo"]);
    assert!(
        said.contains("used by 1 connection") && said.contains("disconnect"),
        "{said}"
    );
    assert_eq!(client.read(0, 4096).unwrap(), [7; 4096]);
    drop(client);
    crate::common::eventually("the deletion", || {
        world
            .run(&server, &["volume", "delete", "demo"])
            .status
            .success()
    });
    assert!(crate::common::nbd::Client::connect(&server.socket, "demo").is_err());
}

#[test]
fn a_second_server_on_one_cache_directory_is_refused_by_process_id() {
    let world = World::new();
    let server = world.serve("cache", &["--volume", "demo=8MiB"]);
    let said = world.expect_refusal("cache", &[]);
    assert!(
        said.contains(&format!("process id {}", server.pid())),
        "{said}"
    );
    assert!(said.contains("--cache"), "{said}");
    server.connect("demo").write(0, &[1; 512]).unwrap();
}

#[test]
fn a_volume_that_another_host_has_open_is_neither_opened_nor_deleted() {
    let world = World::new();
    let one = world.serve("one", &["--volume", "demo=8MiB"]);
    let two = world.serve("two", &[]);
    for command in [&["attach", "demo"][..], &["volume", "delete", "demo"]] {
        let said = world.expect_failure(&two, command);
        assert!(
            said.contains("demo is held by host") && said.contains("/one"),
            "{said}"
        );
    }
    let shown = world.show(&two, "demo");
    assert_eq!(shown["state"], "held");
    assert!(
        shown["holder"].as_str().unwrap().ends_with("/one"),
        "{shown}"
    );
    one.connect("demo").write(0, &[1; 512]).unwrap();
    world.expect_success(&one, &["sync", "demo"]);
}

#[test]
fn a_log_keeps_the_segments_that_it_was_made_with() {
    let world = World::new();
    let small = ["--log-size", "8MiB", "--segment-size"];
    let with = |size| [&small[..], &[size]].concat();
    for size in ["4KiB", "65001B", "1MiB"] {
        let output = world.firn(&[&["serve", "--cache", "cache"], &with(size)[..]].concat());
        let said = message(&output);
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(
            said.contains("--segment-size") && said.contains("multiple of 4096"),
            "{said}"
        );
        assert!(!world.path("cache").exists());
    }
    let server = world.serve(
        "cache",
        &[&with("64KiB")[..], &["--volume", "a=8MiB"]].concat(),
    );
    server.connect("a").write(0, &vec![3; 1 << 20]).unwrap();
    server.kill();
    let said = world.expect_refusal("cache", &with("32KiB"));
    assert!(said.contains("64KiB") && said.contains("32KiB"), "{said}");
    let server = world.serve("cache", &[]);
    assert_eq!(
        server.connect("a").read(0, 1 << 20).unwrap(),
        vec![3; 1 << 20]
    );
}

#[test]
fn a_log_of_another_size_is_refused_and_kept() {
    let world = World::new();
    assert!(world.serve("cache", &[]).stop().success());
    let said = world.expect_refusal("cache", &["--log-size", "128MiB"]);
    assert!(said.contains("64MiB") && said.contains("128MiB"), "{said}");
    assert_eq!(
        fs::metadata(world.path("cache/log")).unwrap().len(),
        64 << 20
    );
}

#[test]
fn directories_of_others_and_newer_formats_are_refused_and_left_alone() {
    let world = World::new();
    fs::create_dir(world.path("home")).unwrap();
    fs::write(world.path("home/thesis.tex"), "x").unwrap();
    let said = world.expect_refusal("home", &[]);
    assert!(
        said.contains("thesis.tex") && said.contains("not made by firn"),
        "{said}"
    );
    let home = world.path("home");
    let said = world.expect_refusal("cache", &["--store", home.to_str().unwrap()]);
    assert!(
        said.contains("thesis.tex") && said.contains("not a firn store"),
        "{said}"
    );
    assert_eq!(fs::read_dir(home).unwrap().count(), 1);

    assert!(
        world
            .serve("cache", &["--volume", "demo=8MiB"])
            .stop()
            .success()
    );
    let newer = |file: &Path, line: &str| {
        let before = fs::read(file).unwrap();
        let log = fs::read(world.path("cache/log")).unwrap();
        fs::write(file, line).unwrap();
        let said = world.expect_refusal("cache", &[]);
        assert!(
            said.contains("format 9") && said.contains("newer firn"),
            "{said}"
        );
        let is_left = fs::read(world.path("cache/log")).unwrap() == log;
        assert!(is_left, "a refused start has written to the log");
        fs::write(file, before).unwrap();
    };
    newer(
        &world.path("cache/format"),
        "firn cache directory, format 9\n",
    );
    newer(
        &world.path("store/.firn-store/format"),
        "firn directory store, format 9\n",
    );
    world.serve("cache", &["--volume", "demo=8MiB"]);
}

/// Flips one bit of a file.
fn damage(path: &Path, at: u64) {
    let file = fs::File::options()
        .read(true)
        .write(true)
        .open(path)
        .unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, at).unwrap();
    file.write_all_at(&[byte[0] ^ 0x10], at).unwrap();
}

/// The files in a directory and in the directories below it.
fn files_below(dir: PathBuf) -> Vec<PathBuf> {
    let (mut files, mut dirs) = (Vec::new(), vec![dir]);
    while let Some(dir) = dirs.pop() {
        let entries = fs::read_dir(dir).unwrap();
        for path in entries.map(|entry| entry.unwrap().path()) {
            let list = if path.is_dir() { &mut dirs } else { &mut files };
            list.push(path);
        }
    }
    files
}

#[test]
fn a_corrupt_root_is_refused_by_name_and_the_others_are_served() {
    let world = World::new();
    let server = world.serve("cache", &["--volume", "good=8MiB", "--volume", "bad=8MiB"]);
    server.connect("good").write(0, &[1; 4096]).unwrap();
    assert!(server.stop().success());
    damage(&world.path("store/volumes/bad/root"), 40);
    let server = world.serve("cache", &["--volume", "good=8MiB"]);
    assert_eq!(server.connect("good").read(0, 4096).unwrap(), [1; 4096]);
    for command in [&["attach", "bad"][..], &["volume", "show", "bad"]] {
        let said = world.expect_failure(&server, command);
        assert!(said.contains("volumes/bad/root"), "{said}");
    }
    let root = fs::metadata(world.path("store/volumes/bad/root")).unwrap();
    assert!(root.len() > 0, "it was left as it is");
}

#[test]
fn bytes_of_a_corrupt_pack_are_an_error_never_data() {
    let world = World::new();
    let server = world.serve("cache", &["--volume", "demo=8MiB"]);
    // Incompressible, so that the middle of the pack is data.
    let mut data = vec![0; 65536];
    fastrand::Rng::with_seed(1).fill(&mut data);
    server.connect("demo").write(0, &data).unwrap();
    assert!(server.stop().success());
    fs::remove_dir_all(world.path("cache")).unwrap();
    let packs = files_below(world.path("store/packs"));
    assert_eq!(packs.len(), 1);
    damage(&packs[0], 30_000);
    let server = world.serve("cache", &["--volume", "demo=8MiB"]);
    let mut client = server.connect("demo");
    assert_eq!(
        client.read(0, 65536).unwrap_err(),
        crate::common::nbd::Refused(5)
    );
    assert_eq!(
        client.read(1 << 20, 4096).unwrap(),
        [0; 4096],
        "the rest is served"
    );
    // Once the object is mended, so is the volume.
    damage(&packs[0], 30_000);
    // The failure is remembered for a moment, so that many waiting reads fail together.
    crate::common::eventually("the mended read", || {
        client.read(0, 65536).is_ok_and(|read| read == data)
    });
}

#[test]
fn a_port_that_is_taken_is_named_and_nothing_was_made() {
    let world = World::new();
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = listener.local_addr().unwrap().to_string();
    let output = world.firn(&[
        "serve", "--api", &taken, "--cache", "cache", "--store", "store",
    ]);
    let said = message(&output);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains(&taken) && said.contains("--api"), "{said}");
    assert!(!world.path("cache").exists() && !world.path("store").exists());

    let said = world.expect_refusal("cache", &["--nbd", &taken]);
    assert!(said.contains(&taken) && said.contains("--nbd"), "{said}");
}

#[test]
fn a_socket_in_a_directory_that_is_missing_is_made_with_it() {
    let world = World::new();
    let socket = world.path("run/firn/nbd.sock");
    let place = format!("unix:{}", socket.display());
    let _server = world.serve("cache", &["--volume", "demo=8MiB", "--nbd", &place]);
    assert_eq!(
        crate::common::nbd::Client::connect(&socket, "demo")
            .unwrap()
            .size,
        8 << 20
    );
}

#[test]
fn stores_that_cannot_be_used_are_refused_before_the_cache_is_touched() {
    let world = World::new();
    fs::write(world.path("file"), "x").unwrap();
    for (store, says) in [
        ("s3://", "no bucket"),
        ("ftp://x", "not a known kind"),
        ("file://relative", "absolute path"),
        ("file", "another kind of file"),
        ("file/below", "another kind of file"),
    ] {
        let said = world.expect_refusal("cache", &["--store", store]);
        assert!(
            said.contains(says) && said.contains(store),
            "{store}: {said}"
        );
    }
    assert!(!world.path("cache").exists());
}

#[test]
fn a_missing_ring_directory_is_named_with_the_flag() {
    let world = World::new();
    let said = world.expect_refusal("cache", &["--ring-dir", "/nowhere/rings"]);
    assert!(said.contains("/nowhere/rings"), "{said}");
}

#[test]
fn direct_io_that_is_not_possible_is_an_error_only_when_insisted_on() {
    let world = World::new();
    let Ok(memory) = tempfile::tempdir_in("/dev/shm") else {
        println!("skipped: no /dev/shm here");
        return;
    };
    let cache = memory.path().join("cache");
    // With a limit: where this tmpfs takes direct I/O the server comes up and stays.
    let output = Command::new("timeout")
        .args([
            "10",
            env!("CARGO_BIN_EXE_firn"),
            "serve",
            "--log-io",
            "direct",
        ])
        .args([
            "--api",
            "127.0.0.1:0",
            "--nbd",
            "unix:sock",
            "--log-size",
            "64MiB",
        ])
        .args(["--cache-size", "4MiB", "--cache", cache.to_str().unwrap()])
        .args(["--ring-dir", memory.path().to_str().unwrap()])
        .current_dir(world.dir.path())
        .output()
        .unwrap();
    let said = message(&output);
    if output.status.code() == Some(124) || output.status.success() {
        println!("skipped: this tmpfs takes direct I/O");
        return;
    }
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(
        said.contains("direct I/O on") && said.contains("--log-io auto"),
        "{said}"
    );
}

#[test]
fn a_full_disk_is_named_with_the_flags_that_help_and_leaves_no_half_log() {
    let world = World::new();
    let script = "mount -t tmpfs -o size=16m none small || exit 99; \
        \"$0\" serve --api 127.0.0.1:0 --nbd unix:sock --store store --cache small/cache \
        --log-size 64MiB; status=$?; ls -A small/cache; exit $status";
    fs::create_dir(world.path("small")).unwrap();
    let output = Command::new("unshare")
        .args([
            "--mount",
            "--map-root-user",
            "sh",
            "-c",
            script,
            env!("CARGO_BIN_EXE_firn"),
        ])
        .current_dir(world.dir.path())
        .output();
    let Ok(output) = output else {
        println!("skipped: unshare(1) is not here");
        return;
    };
    let said = message(&output);
    if output.status.code() == Some(99) || said.contains("unshare:") {
        println!("skipped: no private mount here: {said}");
        return;
    }
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(
        said.contains("make a log of 64MiB") && said.contains("--log-size"),
        "{said}"
    );
    let left = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(!left.contains("log"), "{left}");
}

#[test]
fn a_store_of_ones_own_without_credentials_is_refused_at_once_with_what_helps() {
    let world = World::new();
    // Nobody answers there, and nobody is asked.
    let store = "s3://bucket/firn?endpoint=http://127.0.0.1:9";
    let serve = [
        "serve",
        "--store",
        store,
        "--cache",
        "cache",
        "--log-size",
        "64MiB",
        // The default port may be another server's.
        "--nbd",
        "unix:nbd.sock",
    ];
    let output = Command::new(env!("CARGO_BIN_EXE_firn"))
        .current_dir(&world.dir)
        .env_clear()
        .env("HOME", world.dir.path())
        .args(serve)
        .output()
        .unwrap();
    let refused = message(&output);
    assert_eq!(output.status.code(), Some(1), "{refused}");
    assert!(
        refused.contains("no credentials") && refused.contains("AWS_ACCESS_KEY_ID"),
        "{refused}"
    );
    assert!(!world.path("cache/log").exists());
}

#[test]
fn a_cache_directory_whose_first_start_was_killed_as_it_wrote_its_first_file_is_used() {
    let world = World::new();
    fs::create_dir(world.path("cache")).unwrap();
    fs::write(world.path("cache/lock"), "1\n").unwrap();
    fs::write(world.path("cache/format.new"), "fir").unwrap();
    let server = world.serve("cache", &["--volume", "demo=8MiB"]);
    server.connect("demo").write(0, &[1; 4096]).unwrap();
    assert!(!world.path("cache/format.new").exists());
}
