//! `firn serve --sandbox` on a kernel with Landlock, and on one without.

use std::fs;
use std::process::Command;

use crate::common::{Server, World, eventually, message, nbd};

#[test]
fn a_server_that_cannot_restrict_itself_says_so_at_its_start_and_goes_on_unless_it_must() {
    let world = World::new();
    let server = world.serve("cache", &["--volume", "demo=64MiB", "--sandbox", "auto"]);
    world.expect_success(&server, &["upgrade"]);
    let mut client = server.connect("demo");
    client.write(0, &[7; 4096]).unwrap();
    client.flush().unwrap();
    drop(client);
    let is_restricted = world
        .server_log()
        .contains("are out of its reach (Landlock)");
    let warned = world
        .server_log()
        .matches("keeps access to all files")
        .count();
    // By the first program, and by the next one.
    let expected = if is_restricted { 0 } else { 2 };
    assert_eq!(warned, expected, "{}", world.server_log());
    assert!(server.stop().success());
    if !is_restricted {
        let refused = world.expect_refusal("cache", &["--sandbox", "require"]);
        assert!(refused.contains("the kernel has no Landlock"), "{refused}");
    }
}

#[test]
fn a_restricted_server_is_upgraded_where_it_is_and_runs_no_program_from_elsewhere() {
    let world = World::new();
    let (program, elsewhere) = (world.install("bin"), world.install("elsewhere"));
    let args = [
        "--volume",
        "demo=64MiB",
        "--sandbox",
        "auto",
        "--api",
        "unix:api.sock",
    ];
    let server = world.serve_as("cache", &args, |command| {
        let mut own = Command::new(&program);
        own.args(command.get_args());
        own.current_dir(command.get_current_dir().unwrap());
        *command = own;
    });
    if !world
        .server_log()
        .contains("are out of its reach (Landlock)")
    {
        println!("skipped: the kernel has no Landlock");
        return;
    }
    let mut client = server.connect("demo");
    client.write(0, &[7; 4096]).unwrap();
    // More of them than there may be restrictions one on another.
    for _ in 0..20 {
        world.install("bin");
        world.expect_success(&server, &["upgrade"]);
        assert_eq!(client.read(0, 4096).unwrap(), [7; 4096]);
    }
    let refused = world.run(
        &server,
        &["upgrade", "--program", elsewhere.to_str().unwrap()],
    );
    let refused = message(&refused);
    assert!(refused.contains("ermission denied"), "{refused}");
    assert!(refused.contains("below /usr or /opt"), "{refused}");
    world.expect_success(
        &server,
        &["snapshot", "create", "demo@one", "--wait", "store"],
    );
    world.expect_success(&server, &["fork", "demo@one", "child"]);
    world.expect_success(&server, &["volume", "delete", "child"]);
    drop(client);
    assert!(server.stop().success());
}

#[test]
fn nothing_is_given_up_by_a_server_that_was_not_told_to() {
    let world = World::new();
    let server = world.serve("cache", &["--volume", "demo=64MiB"]);
    assert!(server.stop().success());
    assert!(
        !world.server_log().contains("Landlock"),
        "{}",
        world.server_log()
    );
}

#[test]
fn a_server_that_is_to_be_restricted_from_an_upgrade_on_says_what_that_takes() {
    let world = World::new();
    let file = world.path("firn.toml");
    fs::write(&file, "volume = [\"demo=64MiB\"]\n").unwrap();
    let server = world.serve("cache", &["--config", "firn.toml"]);
    fs::write(&file, "volume = [\"demo=64MiB\"]\nsandbox = \"auto\"\n").unwrap();
    world.expect_success(&server, &["upgrade"]);
    assert!(
        world.server_log().contains("takes a stop and a start"),
        "{}",
        world.server_log()
    );
    fs::write(&file, "volume = [\"demo=64MiB\"]\nsandbox = \"require\"\n").unwrap();
    let refused = message(&world.run(&server, &["upgrade"]));
    assert!(
        refused.contains("stop this server and start it again"),
        "{refused}"
    );
    assert!(server.stop().success());
}

/// A directory that is mounted at another, until it is dropped.
struct Mounted(std::path::PathBuf);

impl Mounted {
    fn new(of: &std::path::Path, at: &std::path::Path) -> Option<Mounted> {
        let mount = Command::new("mount").arg("--bind").args([of, at]).output();
        let is_mounted = mount.is_ok_and(|output| output.status.success());
        is_mounted.then(|| Mounted(at.to_owned()))
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("--lazy").arg(&self.0).status();
    }
}

#[test]
fn a_store_that_is_mounted_after_the_start_or_anew_is_reached_by_a_restricted_server() {
    let world = World::new();
    // The world's own directory is that of a socket, and reached for that.
    let other = tempfile::tempdir().unwrap();
    let (disk, nas) = (other.path().join("disk"), other.path().join("nas"));
    fs::create_dir(&disk).unwrap();
    fs::create_dir(&nas).unwrap();
    let Some(mounted) = Mounted::new(&disk, &nas) else {
        println!("skipped: this user may not mount");
        return;
    };
    let serve = |sandbox| {
        let args = ["--store", nas.to_str().unwrap(), "--sandbox", sandbox];
        let server = world.serve("cache", &[&["--volume", "demo=64MiB"], &args[..]].concat());
        let is_restricted = world
            .server_log()
            .contains("are out of its reach (Landlock)");
        let has_landlock = !world.server_log().contains("the kernel has no Landlock");
        (server, is_restricted, has_landlock)
    };
    let bring_to_store = |server: &Server, name| {
        let is_whole = || world.run(server, &["volume", "list"]).status.success();
        eventually("the store's return", is_whole);
        // A volume that waited for the store is opened once that is reached.
        let is_served = || nbd::Client::connect(&server.socket, "demo").is_ok();
        eventually("the volume's opening", is_served);
        server.connect("demo").write(0, &[7; 4096]).unwrap();
        let snapshot = format!("demo@{name}");
        world.expect_success(
            server,
            &["snapshot", "create", &snapshot, "--wait", "store"],
        );
    };
    let (server, is_restricted, has_landlock) = serve("auto");
    assert_eq!(is_restricted, has_landlock);
    bring_to_store(&server, "one");
    drop(mounted);
    // A file system that is mounted anew has other inodes.
    let mut copy = Command::new("cp");
    copy.args(["-a", "disk", "disk-again"]);
    let copied = copy.current_dir(other.path()).status().unwrap();
    assert!(copied.success());
    let disk = other.path().join("disk-again");
    let mounted = Mounted::new(&disk, &nas).unwrap();
    bring_to_store(&server, "two");
    assert!(server.stop().success());
    drop(mounted);

    // Its log serves, and the mount comes later.
    for (sandbox, name) in [("auto", "three"), ("require", "four")] {
        if sandbox == "require" && !has_landlock {
            println!("skipped: the kernel has no Landlock");
            continue;
        }
        let (server, _, _) = serve(sandbox);
        assert!(fs::read_dir(&nas).unwrap().next().is_none());
        let mounted = Mounted::new(&disk, &nas).unwrap();
        bring_to_store(&server, name);
        assert!(server.stop().success());
        drop(mounted);
        let doubts = world.server_log().contains("is it to be mounted");
        assert_eq!(doubts, has_landlock, "{}", world.server_log());
    }
}

#[test]
fn a_restricted_server_reads_the_certificates_that_the_url_of_its_store_names() {
    let world = World::new();
    // The world's own directory is that of a socket.
    let other = tempfile::tempdir().unwrap();
    let ca = other.path().join("ca.pem");
    fs::write(&ca, "not a certificate").unwrap();
    let store = format!("s3://bucket/x?ca={}", ca.display());
    let args = ["--store", &store, "--sandbox"];
    for sandbox in ["auto", "require"] {
        let refused = world.expect_refusal("cache", &[&args[..], &[sandbox]].concat());
        if refused.contains("the kernel has no Landlock") {
            println!("skipped: the kernel has no Landlock");
            return;
        }
        assert!(refused.contains("ca.pem"), "{refused}");
        assert!(!refused.contains("ermission denied"), "{refused}");
    }
}
