//! Clients that others wrote, against the real server with the real engine.
//!
//! Each part says "skipped" where its tool is not installed.

use std::fs;
use std::process::{Command, Output};

use crate::common::{Server, World, message};

/// Runs a foreign tool; `None` where it is not installed.
fn tool(world: &World, program: &str, args: &[&str]) -> Option<Output> {
    // Scripts among them are to find the interpreter that their package is made for.
    let path = std::env::var("PATH").unwrap_or_default();
    match Command::new(program)
        .env("PATH", format!("/usr/bin:{path}"))
        .args(args)
        .current_dir(world.dir.path())
        .output()
    {
        Ok(output) => Some(output),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            println!("skipped: {program} is not installed");
            None
        }
        Err(error) => panic!("{program}: {error}"),
    }
}

/// Runs a foreign tool that must succeed.
fn succeeds(world: &World, program: &str, args: &[&str]) -> Option<String> {
    let output = tool(world, program, args)?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(
        output.status.success(),
        "{program} {args:?}: {text}{}",
        message(&output)
    );
    Some(text)
}

fn serve(world: &World) -> (Server, String) {
    let server = world.serve("cache", &["--volume", "demo=96MiB", "--rpo", "500ms"]);
    let uri = world
        .expect_success(&server, &["attach", "demo", "--transport", "nbd"])
        .trim()
        .to_owned();
    (server, uri)
}

/// Half noise, a quarter zeroes, a quarter text: what images are made of.
fn image(world: &World) {
    let mut bytes = vec![0; 48 << 20];
    fastrand::Rng::with_seed(42).fill(&mut bytes);
    bytes.resize(72 << 20, 0);
    while bytes.len() < 96 << 20 {
        bytes.extend(b"all work and no play makes a dull disk. ");
    }
    bytes.truncate(96 << 20);
    fs::write(world.path("image"), bytes).unwrap();
}

#[test]
fn nbdinfo_sees_what_is_offered() {
    let world = World::new();
    let (_server, uri) = serve(&world);
    let Some(text) = succeeds(&world, "nbdinfo", &["--json", &uri]) else {
        return;
    };
    let info: serde_json::Value = serde_json::from_str(&text).unwrap();
    let export = &info["exports"][0];
    assert_eq!(export["export-size"], 96 << 20, "{text}");
    for offered in [
        "can_flush",
        "can_fua",
        "can_multi_conn",
        "can_trim",
        "can_zero",
    ] {
        assert_eq!(export[offered], true, "{offered}: {text}");
    }
}

#[test]
fn an_image_that_is_converted_onto_a_volume_compares_equal_there_and_from_the_store_alone() {
    let world = World::new();
    image(&world);
    let (server, uri) = serve(&world);
    let convert = ["convert", "-n", "-f", "raw", "-O", "raw", "image", &uri];
    if succeeds(&world, "qemu-img", &convert).is_none() {
        return;
    }
    let compare = ["compare", "-f", "raw", "-F", "raw", "image", &uri];
    succeeds(&world, "qemu-img", &compare);
    assert!(server.stop().success());
    fs::remove_dir_all(world.path("cache")).unwrap();
    let _server = world.serve("cache", &["--volume", "demo=96MiB"]);
    succeeds(&world, "qemu-img", &compare);
}

#[test]
fn what_nbdcopy_brings_it_takes_back_over_several_connections() {
    let world = World::new();
    image(&world);
    let (_server, uri) = serve(&world);
    if succeeds(
        &world,
        "nbdcopy",
        &["--connections=4", "--flush", "image", &uri],
    )
    .is_none()
    {
        return;
    }
    succeeds(&world, "nbdcopy", &["--connections=4", &uri, "copy"]);
    assert!(fs::read(world.path("image")).unwrap() == fs::read(world.path("copy")).unwrap());
}

#[test]
fn qemu_io_finds_its_patterns_around_zeroes_and_discards() {
    let world = World::new();
    let (_server, uri) = serve(&world);
    let mut args = vec!["-f", "raw"];
    for command in [
        "write -P 0x11 0 1M",
        "write -P 0x22 4608 512",
        "write -z 8192 4096",
        "discard 65536 131072",
        "write -f -P 0x33 70144 1024",
        "flush",
        "read -P 0x11 0 4608",
        "read -P 0x22 4608 512",
        "read -P 0x11 5120 3072",
        "read -P 0x00 8192 4096",
        "read -P 0x00 65536 4608",
        "read -P 0x33 70144 1024",
        "read -P 0x00 71168 125440",
        "read -P 0x11 196608 851968",
    ] {
        args.extend(["-c", command]);
    }
    args.push(&uri);
    let Some(text) = succeeds(&world, "qemu-io", &args) else {
        return;
    };
    assert!(!text.contains("failed"), "{text}");
}

#[test]
fn fio_verifies_what_it_wrote_between_trims() {
    let world = World::new();
    let (_server, uri) = serve(&world);
    let uri = format!("--uri={uri}");
    for pattern in [
        &[
            "--rw=randwrite",
            "--bsrange=512-64k",
            "--blockalign=512",
            "--io_size=64M",
            "--iodepth=32",
        ],
        &[
            "--rw=randwrite",
            "--bsrange=4M-4M",
            "--io_size=128M",
            "--iodepth=4",
            "--numjobs=1",
        ],
        &[
            "--rw=randtrimwrite",
            "--bs=4k",
            "--io_size=32M",
            "--iodepth=16",
            "--numjobs=1",
        ],
    ] {
        let mut args = vec![
            "--name=verify",
            "--ioengine=nbd",
            &uri,
            "--size=90M",
            "--verify=crc32c",
            "--verify_fatal=1",
            "--verify_state_save=0",
        ];
        args.extend(pattern);
        let Some(output) = tool(&world, "fio", &args) else {
            return;
        };
        let said = format!(
            "{}{}",
            String::from_utf8_lossy(&output.stdout),
            message(&output)
        );
        if said.contains("engine nbd not loadable") {
            println!("skipped: this fio has no NBD engine");
            return;
        }
        assert!(
            output.status.success() && !said.contains("verify failed"),
            "{said}"
        );
    }
}

/// Offset, length and state of each extent of a metadata context, as nbdinfo prints them.
fn map(world: &World, uri: &str, context: &str) -> Option<Vec<(u64, u64, u64)>> {
    let text = succeeds(
        world,
        "nbdinfo",
        &["--json", &format!("--map={context}"), uri],
    )?;
    let extents: Vec<serde_json::Value> = serde_json::from_str(&text).unwrap();
    let number = |extent: &serde_json::Value, key: &str| extent[key].as_u64().unwrap();
    let all = extents
        .iter()
        .map(|e| (number(e, "offset"), number(e, "length"), number(e, "type")));
    Some(all.collect())
}

#[test]
fn maps_tell_holes_and_what_the_store_has_not_yet() {
    const MIB: u64 = 1 << 20;
    let world = World::new();
    let (server, uri) = serve(&world);
    let write = [
        "-f",
        "raw",
        "-c",
        "write -P 0x11 4M 1M",
        "-c",
        "discard 4608K 64K",
    ];
    if succeeds(&world, "qemu-io", &[&write[..], &[&uri]].concat()).is_none() {
        return;
    }
    let Some(allocation) = map(&world, &uri, "base:allocation") else {
        return;
    };
    let hole_at = 4 * MIB + MIB / 2;
    let data_at = hole_at + 64 * 1024;
    let want = [
        (0, 4 * MIB, 3),
        (4 * MIB, MIB / 2, 0),
        (hole_at, 64 * 1024, 3),
        (data_at, 5 * MIB - data_at, 0),
        (5 * MIB, 91 * MIB, 3),
    ];
    assert_eq!(allocation, want);
    world.expect_success(&server, &["sync", "demo"]);
    let dirty = map(&world, &uri, "firn:dirty").unwrap();
    assert_eq!(dirty, [(0, 96 * MIB, 0)], "all of it is in the store");
    // A host that has nothing of it learns the same from the store.
    assert!(server.stop().success());
    fs::remove_dir_all(world.path("cache")).unwrap();
    let server = world.serve("cache", &["--volume", "demo=96MiB"]);
    let uri = world.expect_success(&server, &["attach", "demo", "--transport", "nbd"]);
    let uri = uri.trim();
    assert_eq!(map(&world, uri, "base:allocation").unwrap(), want);
    let Some(text) = succeeds(&world, "qemu-img", &["map", "--output=json", uri]) else {
        return;
    };
    let extents: Vec<serde_json::Value> = serde_json::from_str(&text).unwrap();
    let data: Vec<_> = extents.iter().filter(|e| e["data"] == true).collect();
    assert_eq!(data.len(), 2, "{text}");
    assert_eq!(data[0]["start"], 4 * MIB, "{text}");
}

#[test]
fn libnbd_from_python_reads_holes_in_chunks_and_maps_what_it_trimmed() {
    let world = World::new();
    let (_server, uri) = serve(&world);
    let script = r#"
h.pwrite(b"\x5a" * 8192, 65536)
h.flush()
chunks = []
def seen(buf, offset, status, error):
    chunks.append((offset, len(buf), status))
h.pread_structured(131072, 0, seen)
assert chunks == [(0, 65536, nbd.READ_HOLE), (65536, 8192, nbd.READ_DATA),
                  (73728, 57344, nbd.READ_HOLE)], chunks
chunks.clear()
h.pread_structured(131072, 0, seen, nbd.CMD_FLAG_DF)
assert [c[2] for c in chunks] == [nbd.READ_DATA], chunks
assert h.can_cache() and h.can_df() and h.can_fast_zero()
h.cache(1 << 20, 0)
h.zero(8192, 65536, nbd.CMD_FLAG_FAST_ZERO | nbd.CMD_FLAG_NO_HOLE)
maps = {}
def extents(context, offset, entries, error):
    maps[context] = entries
h.block_status(1 << 20, 0, extents)
assert maps["base:allocation"] == [1 << 20, 3], maps
h.set_strict_mode(0)
try:
    h.pread(512, h.get_size())
    raise SystemExit("a read behind the end succeeded")
except nbd.Error as error:
    assert error.errno == "EINVAL", error
assert h.pread(512, 0) == bytearray(512)
"#;
    let connect = format!("h.connect_uri({uri:?})");
    let args = [
        "-c",
        "h.add_meta_context('base:allocation')",
        "-c",
        &connect,
        "-c",
        script,
    ];
    succeeds(&world, "nbdsh", &args);
}

/// A directory of certificates for a server or a client, by the names that NBD tools use.
fn certificates(world: &World, dir: &str, who: &str, name: &str) -> String {
    let fixtures = concat!(env!("CARGO_MANIFEST_DIR"), "/../nbd/tests/fixtures/tls");
    let dir = world.path(dir);
    fs::create_dir_all(&dir).unwrap();
    for (from, to) in [
        ("ca-cert.pem".to_owned(), "ca-cert.pem".to_owned()),
        (format!("{who}-cert.pem"), format!("{name}-cert.pem")),
        (format!("{who}-key.pem"), format!("{name}-key.pem")),
    ] {
        fs::copy(format!("{fixtures}/{from}"), dir.join(to)).unwrap();
    }
    dir.display().to_string()
}

#[test]
fn clients_use_over_tls_what_the_access_list_gives_them_and_nothing_else() {
    let world = World::new();
    let dir = certificates(&world, "pki", "server", "server");
    fs::write(world.path("access"), "alice demo\nbob other\n").unwrap();
    let access = world.path("access").display().to_string();
    let flags = ["--nbd-tls", &dir, "--nbd-access", &access];
    let volumes = ["--volume", "demo=96MiB", "--volume", "other=8MiB"];
    let server = world.serve("cache", &[&flags[..], &volumes].concat());
    let attached = world.expect_success(&server, &["attach", "demo", "--transport", "nbd"]);
    assert!(attached.starts_with("nbds+unix:///demo?"), "{attached}");
    let as_client = |who: &str, volume: &str| {
        let dir = certificates(&world, who, who, "client");
        let uri = attached.trim().replace("/demo?", &format!("/{volume}?"));
        format!("{uri}&tls-certificates={dir}")
    };
    image(&world);
    let demo = as_client("alice", "demo");
    if succeeds(&world, "nbdcopy", &["--flush", "image", &demo]).is_none() {
        return;
    }
    succeeds(&world, "nbdcopy", &[&demo, "copy"]);
    assert!(fs::read(world.path("image")).unwrap() == fs::read(world.path("copy")).unwrap());
    let refused = |uri: &str| !tool(&world, "nbdinfo", &[uri]).unwrap().status.success();
    assert!(refused(&as_client("alice", "other")));
    assert!(refused(&as_client("bob", "demo")));
    assert!(!refused(&as_client("bob", "other")));
    assert!(refused(attached.trim()), "without a certificate");
    assert!(
        refused(&attached.trim().replace("nbds+", "nbd+")),
        "without TLS"
    );
}

/// Builds the client in Go, which needs nothing but Go; its path, unless that is not here.
fn go_client(world: &World) -> Option<String> {
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/clients/nbd.go");
    let program = world.path("go-client").display().to_string();
    succeeds(world, "go", &["build", "-o", &program, source])?;
    Some(program)
}

#[test]
fn a_client_in_go_finds_what_it_wrote_with_and_without_tls() {
    let world = World::new();
    let Some(client) = go_client(&world) else {
        return;
    };
    let socket = world.path("cache.sock").display().to_string();
    let (server, _) = serve(&world);
    let said = succeeds(&world, &client, &[&socket, "demo"]).unwrap();
    assert_eq!(said.trim(), "verified 128 blocks of 100663296 bytes");
    assert!(server.stop().success());
    let dir = certificates(&world, "pki", "server", "server");
    fs::write(world.path("access"), "alice demo\n").unwrap();
    let access = world.path("access").display().to_string();
    let flags = ["--nbd-tls", &dir, "--nbd-access", &access];
    let server = world.serve("cache", &flags);
    let own = certificates(&world, "alice", "alice", "client");
    succeeds(&world, &client, &[&socket, "demo", &own]).unwrap();
    assert!(server.stop().success());
}

/// A daemon of QEMU's that ends with the test.
struct Daemon(std::process::Child);

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn qemu_storage_daemon_exports_a_volume_on_and_lives_through_a_restart_of_the_server() {
    let world = World::new();
    let (server, _) = serve(&world);
    let (below, above) = (world.path("cache.sock"), world.path("above.sock"));
    // It connects anew by itself, and repeats what was under way.
    let disk = format!(
        "driver=nbd,node-name=disk,server.type=unix,server.path={},export=demo,reconnect-delay=60",
        below.display()
    );
    let daemon = Command::new("qemu-storage-daemon")
        .args(["--blockdev", &disk, "--nbd-server"])
        .arg(format!("addr.type=unix,addr.path={}", above.display()))
        .args([
            "--export",
            "type=nbd,id=out,node-name=disk,name=out,writable=on",
        ])
        .spawn();
    let Ok(daemon) = daemon else {
        println!("skipped: qemu-storage-daemon is not installed");
        return;
    };
    let _daemon = Daemon(daemon);
    crate::common::eventually("its export", || above.exists());
    let uri = format!("nbd+unix:///out?socket={}", above.display());
    let io = |commands: &[&str]| {
        let mut args = vec!["-f", "raw"];
        args.extend(commands.iter().flat_map(|command| ["-c", command]));
        args.push(&uri);
        let said = succeeds(&world, "qemu-io", &args);
        said.is_none_or(|said| {
            assert!(!said.contains("failed"), "{said}");
            true
        })
    };
    assert!(io(&["write -P 5 4k 64k", "write -z 32k 4k", "flush"]));
    server.kill();
    let server = world.serve("cache", &[]);
    assert!(io(&[
        "read -P 5 4k 28k",
        "read -P 0 32k 4k",
        "read -P 5 36k 32k",
        "write -P 6 1M 4k"
    ]));
    assert_eq!(
        server.connect("demo").read(1 << 20, 4096).unwrap(),
        [6; 4096]
    );
}
