//! The ways out of a log: of one that is poisoned, to another disk, and to another size. What durable
//! frames cover goes to the store first, no volume is lost, and nothing is taken over.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::common::nbd::Client;
use crate::common::{Server, World, message};

const BLOCK: usize = 4096;

/// Writes the file `attached` of a stopped server as an attach of a disk does (docs/format.md).
fn record_disk(world: &World, cache: &str, shown: &serde_json::Value) {
    const SLOT_BYTES: usize = 1 << 20;
    let (id, since) = (&shown["id"], &shown["epoch"]);
    let content = format!(
        r#"{{"version": 3, "volumes": {{"demo": {{"disk": {{"id": 4000, "volume_id": {id}, "since": {since},
            "wanted": {{"data_mode": "zero-copy", "queues": 1, "depth": 128, "read_only": false,
                "part_scan": true, "patience": "default"}}}}}}}}}}"#
    );
    let sequence: u64 = 1000;
    let mut hasher = blake3::Hasher::new();
    hasher.update(&sequence.to_le_bytes());
    hasher.update(content.as_bytes());
    let digest = &hasher.finalize().to_hex()[..32];
    let image = format!(
        "firn-reserved-1 {sequence} {} {digest}\n{content}",
        content.len()
    );
    let mut bytes = vec![0; 2 * SLOT_BYTES];
    bytes[..image.len()].copy_from_slice(image.as_bytes());
    fs::write(world.path(cache).join("attached"), bytes).unwrap();
}

/// The code of what keeps a volume from being served.
fn why_it_waits(world: &World, server: &Server) -> serde_json::Value {
    let listed = world.expect_success(server, &["volume", "list", "--json"]);
    let listed: serde_json::Value = serde_json::from_str(&listed).unwrap();
    listed["waiting"][0]["code"].clone()
}

/// `firn rescue log` of the cache directory "old", which must succeed; what it printed.
fn rescue(world: &World, more: &[&str]) -> String {
    let rings = world.rings().to_str().unwrap();
    let args = ["rescue", "log", "--store", "store", "--ring-dir", rings];
    let output = world.firn(&[&args[..], &["--cache", "old"], more].concat());
    assert!(output.status.success(), "{}", message(&output));
    String::from_utf8(output.stdout).unwrap()
}

/// The rings of all servers in this world.
fn ring_files(dir: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(dir)
        .unwrap()
        .map(|entry| entry.unwrap().path());
    let (dirs, files): (Vec<_>, Vec<_>) = entries.partition(|path| path.is_dir());
    let below = dirs.iter().flat_map(|dir| ring_files(dir));
    below
        .chain(files)
        .filter(|path| path.file_name().unwrap() != "cache-dir")
        .collect()
}

/// Marks the log of a dead server as a failed sync does: by one store into the header of each ring
/// (docs/format.md).
fn poison(world: &World) {
    const CRC: std::ops::Range<usize> = 120..128;
    let rings = ring_files(world.rings());
    assert!(rings.len() >= 2, "{rings:?}");
    for path in rings {
        let mut bytes = fs::read(&path).unwrap();
        bytes[CRC].iter_mut().for_each(|byte| *byte = !*byte);
        fs::write(&path, bytes).unwrap();
    }
}

#[test]
fn what_a_poisoned_log_has_durable_moves_to_another_directory_and_no_volume_is_lost() {
    let world = World::new();
    let volumes = [
        "--volume",
        "demo=8MiB",
        "--volume",
        "idle=8MiB",
        "--rpo",
        "1h",
    ];
    let server = world.serve("old", &volumes);
    let mut client = server.connect("demo");
    client.write(0, &vec![1; BLOCK]).unwrap();
    world.expect_success(&server, &["sync", "demo"]);
    let durable = 1 + flush_all_but_the_last(&mut client, BLOCK as u64);
    server.kill();
    poison(&world);
    let server = world.serve("old", &[]);
    assert_eq!(world.show(&server, "demo")["state"], "poisoned");
    assert!(server.connect("demo").write(0, &[9; BLOCK]).is_err());
    let rings = world.rings().to_str().unwrap().to_owned();
    let rescue = [
        "rescue",
        "log",
        "--store",
        "store",
        "--cache",
        "old",
        "--ring-dir",
        &rings,
    ];
    let rescue_to = [&rescue[..], &["--to", "new", "--log-size", "72MiB"]].concat();
    let output = world.firn(&rescue_to);
    let said = message(&output);
    assert!(
        !output.status.success() && said.contains("in use by"),
        "{said}"
    );
    server.kill();

    let output = world.firn(&rescue_to);
    assert!(output.status.success(), "{}", message(&output));
    let said = String::from_utf8(output.stdout).unwrap();
    assert!(
        said.contains(&format!("demo: stored up to LSN {durable}, and given back")),
        "{said}"
    );
    assert!(said.contains("firn serve --cache new"), "{said}");
    assert!(
        ring_files(world.rings()).is_empty(),
        "rings of a log that is gone"
    );

    // The same volumes are served again, and nothing is taken over.
    let server = world.serve("new", &[]);
    for volume in ["demo", "idle"] {
        assert_eq!(world.show(&server, volume)["state"], "open", "{volume}");
    }
    assert_eq!(fs::metadata(world.path("new/log")).unwrap().len(), 72 << 20);
    let mut client = server.connect("demo");
    assert_eq!(
        client.read(0, 2 * BLOCK).unwrap(),
        [vec![1; BLOCK], vec![2; BLOCK]].concat()
    );
    client.write(0, &vec![4; BLOCK]).unwrap();
    client.flush().unwrap();
    assert!(
        !world.path("old/log").exists(),
        "nobody starts on it by mistake"
    );
    assert!(server.stop().success());
}

#[test]
fn log_and_cache_get_another_size_and_every_unflushed_write_stays() {
    let world = World::new();
    let server = world.serve("cache", &["--volume", "demo=8MiB", "--rpo", "1h"]);
    server.connect("demo").write(0, &vec![5; BLOCK]).unwrap();
    server.kill();
    let refused = world.expect_refusal("cache", &["--log-size", "80MiB"]);
    assert!(
        refused.contains("firn rescue log --log-size 80MiB"),
        "{refused}"
    );
    let rings = world.rings().to_str().unwrap();
    // The file says already what the next server is to have.
    let file = "store = \"store\"\ncache = \"cache\"\nlog-size = \"80MiB\"\n";
    fs::write(world.path("firn.toml"), file).unwrap();
    let args = [
        "rescue",
        "log",
        "--config",
        "firn.toml",
        "--ring-dir",
        rings,
    ];
    let sizes = ["--log-size", "80MiB", "--cache-size", "4MiB"];
    let output = world.firn(&[&args[..], &sizes].concat());
    assert!(output.status.success(), "{}", message(&output));
    let said = String::from_utf8(output.stdout).unwrap();
    assert!(!said.contains("lost"), "{said}");
    for (file, bytes) in [("cache/log", 80 << 20), ("cache/cache", 4 << 20)] {
        assert_eq!(
            fs::metadata(world.path(file)).unwrap().len(),
            bytes,
            "{file}"
        );
    }
    let server = world.serve("cache", &[]);
    assert_eq!(
        server.connect("demo").read(0, BLOCK).unwrap(),
        vec![5; BLOCK]
    );
    server.kill();
    // A log that holds nothing is replaced as well, and again.
    let output = world.firn(&[&args[..], &["--log-size", "64MiB", "--json"]].concat());
    assert!(output.status.success(), "{}", message(&output));
    let server = world.serve("cache", &[]);
    assert_eq!(
        server.connect("demo").read(0, BLOCK).unwrap(),
        vec![5; BLOCK]
    );
}

#[test]
fn a_log_is_not_replaced_while_it_holds_what_the_store_lacks() {
    let world = World::new();
    let old = world.serve("old", &["--volume", "demo=8MiB", "--rpo", "1h"]);
    old.connect("demo").write(0, &vec![6; BLOCK]).unwrap();
    old.kill();
    let other = world.serve("other", &[]);
    world.take_over(&other, "demo");
    let log = fs::metadata(world.path("old/log")).unwrap().len();
    let rings = world.rings().to_str().unwrap();
    let args = [
        "rescue",
        "log",
        "--store",
        "store",
        "--cache",
        "old",
        "--ring-dir",
        rings,
    ];
    let resize = [&args[..], &["--log-size", "80MiB"]].concat();
    for _ in 0..2 {
        let output = world.firn(&resize);
        let said = message(&output);
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(
            said.contains("--without demo") && said.contains("nothing was replaced"),
            "{said}"
        );
        assert_eq!(fs::metadata(world.path("old/log")).unwrap().len(), log);
    }
    let output = world.firn(&[&resize[..], &["--without", "demo"]].concat());
    assert!(output.status.success(), "{}", message(&output));
    assert_eq!(fs::metadata(world.path("old/log")).unwrap().len(), 80 << 20);
    // Nonsense touches nothing.
    let missing = world.firn(&["rescue", "log", "--cache", "nothing", "--log-size", "80MiB"]);
    assert_eq!(missing.status.code(), Some(2), "{}", message(&missing));
    assert!(!world.path("nothing").exists());
}

/// Writes a block of 2s, flushes it, and writes a block of 3s over it that no frame covers: the next frame is
/// written a second after that of the FLUSH, so that all is done again where this takes long. The number of
/// writes that are flushed.
fn flush_all_but_the_last(client: &mut Client, offset: u64) -> u64 {
    for tries in 0.. {
        client.write(offset, &vec![2; BLOCK]).unwrap();
        let flushed = Instant::now();
        client.flush().unwrap();
        client.write(offset, &vec![3; BLOCK]).unwrap();
        if flushed.elapsed() < Duration::from_millis(500) {
            return 2 * tries + 1;
        }
    }
    unreachable!("tries have no end")
}

/// A poisoned log with a disk of its volume; whether a write is lost that no FLUSH has covered.
fn poisoned_with_disk(world: &World, loses_a_write: bool) {
    let server = world.serve("old", &["--volume", "demo=8MiB", "--rpo", "1h"]);
    let mut client = server.connect("demo");
    client.write(0, &vec![1; BLOCK]).unwrap();
    client.flush().unwrap();
    let shown = world.show(&server, "demo");
    if loses_a_write {
        flush_all_but_the_last(&mut client, 0);
    }
    server.kill();
    poison(world);
    record_disk(world, "old", &shown);
}

#[test]
fn a_disk_whose_unflushed_writes_a_poisoned_log_lost_is_not_served_again() {
    let world = World::new();
    poisoned_with_disk(&world, true);
    let said = rescue(&world, &["--to", "new"]);
    assert!(
        said.contains("writes after its last FLUSH are lost")
            && said.contains("firn detach --force demo"),
        "{said}"
    );
    let server = world.serve("new", &[]);
    assert_eq!(why_it_waits(&world, &server), "hold-ended");
}

#[test]
fn a_disk_of_a_poisoned_log_that_lost_nothing_goes_on_however_often_the_rescue_runs() {
    let world = World::new();
    poisoned_with_disk(&world, false);
    // A move that was cut short has made a log there.
    fs::create_dir(world.path("new")).unwrap();
    fs::write(world.path("new/format"), "firn cache directory, format 1\n").unwrap();
    fs::write(world.path("new/log"), vec![0; 64 << 20]).unwrap();
    for more in [&[][..], &[], &["--to", "new", "--log-size", "72MiB"]] {
        let said = rescue(&world, more);
        assert!(!said.contains("lost"), "{said}");
    }
    assert_eq!(fs::metadata(world.path("new/log")).unwrap().len(), 72 << 20);
    let server = world.serve("new", &[]);
    assert_eq!(why_it_waits(&world, &server), serde_json::Value::Null);
    assert_eq!(
        server.connect("demo").read(0, BLOCK).unwrap(),
        vec![1; BLOCK]
    );
}
