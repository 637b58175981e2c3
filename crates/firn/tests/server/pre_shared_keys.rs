//! NBD over TLS with pre-shared keys: foreign clients by GnuTLS, which is what libnbd and QEMU have.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Output};

use crate::common::{Server, World, message};

/// A key that no client of these tests has.
const WRONG: &str = "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff";

/// Runs a foreign tool; `None`, and said so, if it is not here.
fn tool(world: &World, program: &str, args: &[&str]) -> Option<Output> {
    let path = std::env::var("PATH").unwrap_or_default();
    let output = Command::new(program)
        .env("PATH", format!("/usr/bin:{path}"))
        .args(args)
        .current_dir(world.dir.path())
        .output();
    match output {
        Ok(output) => Some(output),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            println!("skipped: {program} is not installed");
            None
        }
        Err(error) => panic!("{program}: {error}"),
    }
}

/// A file of `keys.psk`, the name that QEMU wants, in this directory; its path.
fn write_keys(world: &World, dir: &str, text: &str) -> String {
    fs::create_dir_all(world.path(dir)).unwrap();
    let path = world.path(dir).join("keys.psk");
    fs::write(&path, text).unwrap();
    fs::set_permissions(&path, PermissionsExt::from_mode(0o600)).unwrap();
    path.display().to_string()
}

/// A new key for each of these names, by `psktool`; the path and the text of their file.
fn make_keys(world: &World, names: &[&str]) -> Option<(String, String)> {
    let path = write_keys(world, "keys", "");
    for name in names {
        let made = tool(world, "psktool", &["-u", name, "-p", &path])?;
        assert!(made.status.success(), "{}", message(&made));
    }
    let text = fs::read_to_string(&path).unwrap();
    Some((path, text))
}

/// A volume as a client with this name and file of keys finds it.
fn uri(server: &Server, name: &str, volume: &str, keys: &str) -> String {
    let socket = server.socket.display();
    format!("nbds+unix://{name}@/{volume}?socket={socket}&tls-psk-file={keys}")
}

/// Whether `nbdinfo` is let in; what it said.
fn nbdinfo(world: &World, uri: &str) -> Option<(bool, String)> {
    let output = tool(world, "nbdinfo", &["--size", uri])?;
    Some((output.status.success(), message(&output)))
}

#[test]
fn clients_with_keys_use_what_the_access_list_gives_them_and_nothing_else() {
    let world = World::new();
    let Some((keys, _)) = make_keys(&world, &["alice", "bob"]) else {
        return;
    };
    fs::write(world.path("access"), "alice demo\nbob other\n").unwrap();
    let access = world.path("access").display().to_string();
    let flags = ["--nbd-tls-psk", &keys, "--nbd-access", &access];
    let volumes = ["--volume", "demo=8MiB", "--volume", "other=8MiB"];
    let server = world.serve("cache", &[&flags[..], &volumes].concat());
    let attached = world.expect_success(&server, &["attach", "demo", "--transport", "nbd"]);
    assert!(attached.starts_with("nbds+unix:///demo?"), "{attached}");
    let mut image = vec![0; 8 << 20];
    fastrand::Rng::with_seed(7).fill(&mut image);
    fs::write(world.path("image"), &image).unwrap();
    let demo = uri(&server, "alice", "demo", &keys);
    for args in [["--flush", "image", &demo], ["--flush", &demo, "copy"]] {
        let Some(copied) = tool(&world, "nbdcopy", &args) else {
            return;
        };
        assert!(copied.status.success(), "{}", message(&copied));
    }
    assert!(fs::read(world.path("copy")).unwrap() == image);
    let is_let_in = |uri: &str| nbdinfo(&world, uri).unwrap().0;
    assert!(is_let_in(&uri(&server, "bob", "other", &keys)));
    assert!(!is_let_in(&uri(&server, "alice", "other", &keys)));
    assert!(!is_let_in(&uri(&server, "bob", "demo", &keys)));
    assert!(!is_let_in(attached.trim()), "without a key");
    let plain = attached.trim().replace("nbds+", "nbd+");
    assert!(!is_let_in(&plain), "without TLS");
    let connect = format!("h.set_uri_allow_local_file(True); h.connect_uri({demo:?})");
    let script =
        "h.pwrite(b'7' * 4096, 4096); h.flush(); assert h.pread(4096, 4096) == b'7' * 4096";
    let args = ["-c", connect.as_str(), "-c", script];
    if let Some(said) = tool(&world, "nbdsh", &args) {
        assert!(said.status.success(), "{}", message(&said));
    }
    assert!(server.stop().success());
}

#[test]
fn qemu_reads_and_writes_with_a_key() {
    let world = World::new();
    let Some((keys, _)) = make_keys(&world, &["alice"]) else {
        return;
    };
    let flags = ["--nbd-tls-psk", &keys, "--nbd-tls-required"];
    let server = world.serve("cache", &[&flags[..], &["--volume", "demo=8MiB"]].concat());
    let dir = world.path("keys").display().to_string();
    let run = |name: &str, commands: &[&str]| {
        let object = format!("tls-creds-psk,id=tls,endpoint=client,dir={dir},username={name}");
        let image = format!(
            "driver=nbd,server.type=unix,server.path={},export=demo,tls-creds=tls",
            server.socket.display()
        );
        let commands = commands.iter().flat_map(|command| ["-c", command]);
        let mut args = vec!["--object", &object, "--image-opts"];
        args.extend(commands);
        args.push(&image);
        tool(&world, "qemu-io", &args)
    };
    let commands = [
        "write -P 5 4k 1M",
        "flush",
        "read -P 5 4k 1M",
        "read -P 0 2M 4k",
    ];
    let Some(said) = run("alice", &commands) else {
        return;
    };
    let text = String::from_utf8_lossy(&said.stdout).into_owned();
    assert!(
        said.status.success() && !text.contains("failed"),
        "{text}{}",
        message(&said)
    );
    // QEMU takes the key of its user name from the file; the server knows that name alone.
    fs::write(
        &keys,
        fs::read_to_string(&keys)
            .unwrap()
            .replace("alice:", "carol:"),
    )
    .unwrap();
    assert!(!run("carol", &["read 0 4k"]).unwrap().status.success());
    assert!(server.stop().success());
}

#[test]
fn a_wrong_key_and_an_unknown_name_are_refused_and_logged_once_without_a_key() {
    let world = World::new();
    let Some((keys, text)) = make_keys(&world, &["alice"]) else {
        return;
    };
    let flags = [
        "--nbd-tls-psk",
        &keys,
        "--nbd-tls-required",
        "--volume",
        "demo=8MiB",
    ];
    let server = world.serve_as("cache", &flags, |command| {
        command.env("FIRN_LOG", "debug");
    });
    let wrong = write_keys(&world, "wrong", &format!("alice:{WRONG}\ncarol:{WRONG}\n"));
    let Some((is_let_in, said)) = nbdinfo(&world, &uri(&server, "alice", "demo", &wrong)) else {
        return;
    };
    // Both hear the same: whoever guesses does not learn which names there are.
    assert!(!is_let_in && said.contains("fatal alert"), "{said}");
    let (is_let_in, heard) = nbdinfo(&world, &uri(&server, "carol", "demo", &wrong)).unwrap();
    assert!(!is_let_in);
    let reason = |said: &str| said.rsplit(": ").next().map(str::to_owned);
    assert_eq!(reason(&said), reason(&heard));
    let log = || fs::read_to_string(world.path("cache.stderr")).unwrap();
    let count = |what: &str| log().matches(what).count();
    crate::common::eventually("both are logged", || count("TLS ended") == 2);
    assert_eq!(count("no key has the name"), 1, "{}", log());
    assert_eq!(count("PSK binder did not match"), 1, "{}", log());
    let (is_let_in, said) = nbdinfo(&world, &uri(&server, "alice", "demo", &keys)).unwrap();
    assert!(is_let_in, "{said}");
    assert!(server.stop().success());
    let key = text.trim().rsplit(':').next().unwrap();
    assert!(key.len() == 64 && !log().contains(key) && !log().contains(WRONG));
}

#[test]
fn a_file_of_keys_that_is_of_no_use_is_refused_by_line_and_without_a_key() {
    let world = World::new();
    let keys = write_keys(
        &world,
        "keys",
        &format!("alice:{WRONG}\nbob:{}\n", &WRONG[..9]),
    );
    let said = world.expect_refusal("cache", &["--nbd-tls-psk", &keys]);
    assert!(
        said.contains("line 2: the key of bob is not pairs"),
        "{said}"
    );
    assert!(!said.contains(&WRONG[..9]), "{said}");
    write_keys(&world, "keys", &format!("alice:{WRONG}\n"));
    fs::set_permissions(&keys, PermissionsExt::from_mode(0o644)).unwrap();
    let said = world.expect_refusal("cache", &["--nbd-tls-psk", &keys]);
    assert!(
        said.contains("(mode 0644)") && said.contains("chmod 600"),
        "{said}"
    );
}

#[test]
fn an_upgrade_closes_connections_with_keys_and_reads_the_file_anew() {
    let world = World::new();
    let Some((keys, text)) = make_keys(&world, &["alice"]) else {
        return;
    };
    let flags = [
        "--nbd-tls-psk",
        &keys,
        "--nbd-tls-required",
        "--volume",
        "demo=8MiB",
    ];
    let server = world.serve("cache", &[&flags[..], &["--sandbox", "auto"]].concat());
    let old = write_keys(&world, "old", &text);
    let Some((is_let_in, said)) = nbdinfo(&world, &uri(&server, "alice", "demo", &old)) else {
        return;
    };
    assert!(is_let_in, "{said}");
    write_keys(&world, "keys", &format!("bob:{WRONG}\n"));
    let is_let_in = |name: &str, keys: &str| {
        nbdinfo(&world, &uri(&server, name, "demo", keys))
            .unwrap()
            .0
    };
    assert!(
        is_let_in("alice", &old) && !is_let_in("bob", &keys),
        "read at the start"
    );
    world.expect_success(&server, &["upgrade"]);
    assert!(!is_let_in("alice", &old) && is_let_in("bob", &keys));
    assert!(server.stop().success());
}
