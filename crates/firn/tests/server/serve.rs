//! The promises of a server, kept by the real binary: what survives what, and who may write.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crate::common::{World, eventually};

fn pattern(seed: u8, len: usize) -> Vec<u8> {
    (0..len)
        .map(|at| (at as u8).wrapping_mul(31) ^ (at >> 8) as u8 ^ seed)
        .collect()
}

#[test]
fn a_server_says_how_to_use_it() {
    let world = World::new();
    let server = world.serve("cache", &["--volume", "demo=64MiB", "--nbd", "127.0.0.1:0"]);
    let address = server.api.trim_start_matches("http://");
    let sync = format!("firn --api {address} sync demo");
    for part in ["nbdinfo", "qemu-system-x86_64", &sync, &server.api, "64MiB"] {
        assert!(
            server.announcement.contains(part),
            "{part}: {}",
            server.announcement
        );
    }
    let nbd = ["attach", "demo", "--transport", "nbd"];
    let uri = world.expect_success(&server, &nbd);
    assert!(uri.starts_with("nbd+unix:///demo?socket=/"), "{uri}");
    let all: serde_json::Value =
        serde_json::from_str(&world.expect_success(&server, &[&nbd[..], &["--json"]].concat()))
            .unwrap();
    let tcp = all["uris"][1].as_str().unwrap();
    assert!(
        tcp.starts_with("nbd://127.0.0.1:") && !tcp.contains(":0/"),
        "{tcp}"
    );
    assert_eq!(server.connect("demo").size, 64 << 20);
}

/// S1, through the whole server, however the log is written.
#[test]
fn completed_writes_survive_kill_9_unflushed() {
    for mode in ["auto", "buffered"] {
        let world = World::new();
        let mode = ["--log-io", mode];
        let volume = ["--volume", "demo=64MiB"];
        let mut server = world.serve("cache", &[mode, volume].concat());
        for round in 0..3_u8 {
            let mut client = server.connect("demo");
            let seed = |block: u64| round.wrapping_add(block as u8);
            for block in 0..40_u64 {
                client
                    .write(block * 8192, &pattern(seed(block), 8192))
                    .unwrap();
            }
            // Not aligned to anything but the sector.
            client
                .write((1 << 20) + 512, &pattern(round, 1536))
                .unwrap();
            server.kill();
            // Not told which volumes: it serves again what it served.
            server = world.serve("cache", &mode);
            let mut client = server.connect("demo");
            for block in 0..40_u64 {
                let found = client.read(block * 8192, 8192).unwrap();
                assert!(found == pattern(seed(block), 8192), "{round} {block}");
            }
            assert_eq!(
                client.read((1 << 20) + 512, 1536).unwrap(),
                pattern(round, 1536)
            );
        }
    }
}

/// S2 and S4: what the memory of the host held is gone, and that is not kept secret.
#[test]
fn without_the_index_ring_flushed_writes_survive_and_the_loss_is_reported() {
    let world = World::new();
    let server = world.serve("cache", &["--volume", "demo=64MiB", "--rpo", "1h"]);
    let mut client = server.connect("demo");
    client.write(0, &pattern(1, 4096)).unwrap();
    client.flush().unwrap();
    server.kill();
    let rings: Vec<_> = fs::read_dir(world.rings()).unwrap().collect();
    assert_eq!(rings.len(), 1);
    fs::remove_dir_all(rings[0].as_ref().unwrap().path()).unwrap();
    let server = world.serve("cache", &[]);
    assert_eq!(
        server.connect("demo").read(0, 4096).unwrap(),
        pattern(1, 4096)
    );
    let said = world.server_log();
    assert!(
        said.contains("index ring is gone") && said.contains("demo"),
        "{said}"
    );
}

/// S4: rings that one start did not find are no part of what a later one recovers.
#[test]
fn a_start_with_another_ring_directory_loses_unflushed_writes_and_never_mixes_them_in_later() {
    let world = World::new();
    let elsewhere = tempfile::tempdir_in("/dev/shm").unwrap();
    let server = world.serve("cache", &["--volume", "demo=64MiB", "--rpo", "1h"]);
    let mut client = server.connect("demo");
    client.write(0, &pattern(1, 4096)).unwrap();
    client.flush().unwrap();
    for block in 1..20 {
        client.write(block * 4096, &pattern(1, 4096)).unwrap();
    }
    server.kill();
    let rings = [
        "--rpo",
        "1h",
        "--ring-dir",
        elsewhere.path().to_str().unwrap(),
    ];
    let server = world.serve("cache", &rings);
    let mut client = server.connect("demo");
    for block in 0..5 {
        client.write(block * 4096, &pattern(2, 4096)).unwrap();
    }
    client.flush().unwrap();
    server.kill();
    let server = world.serve("cache", &["--rpo", "1h"]);
    let mut client = server.connect("demo");
    let mut end = 5;
    for block in 0..20 {
        let found = client.read(block * 4096, 4096).unwrap();
        // A frame of the first server may have covered some of its writes: a prefix of them.
        if block >= 5 && block == end && found == pattern(1, 4096) {
            end += 1;
            continue;
        }
        let expected = if block < 5 {
            pattern(2, 4096)
        } else {
            vec![0; 4096]
        };
        assert_eq!(found, expected, "block {block}");
    }
    let said = world.server_log();
    assert!(
        said.contains("index ring is gone") && said.contains("kept aside"),
        "{said}"
    );
}

/// S3, through the whole server.
#[test]
fn what_was_synced_survives_the_loss_of_the_cache_directory() {
    let world = World::new();
    // A recovery point so far away that only the command can bring anything to the store.
    let server = world.serve("cache", &["--volume", "demo=64MiB", "--rpo", "1h"]);
    let mut client = server.connect("demo");
    client.write(0, &pattern(1, 1 << 20)).unwrap();
    client.write(32 << 20, &pattern(2, 4096)).unwrap();
    let lsn = |rung: &str| world.show(&server, "demo")["watermarks"][rung]["lsn"].as_u64();
    let newest = lsn("acknowledged").unwrap();
    assert_eq!(lsn("stored"), Some(0));
    let said = world.expect_success(&server, &["sync", "demo"]);
    assert!(
        said.contains(&format!("stored up to LSN {newest}")),
        "{said}"
    );
    client.write(0, &pattern(3, 4096)).unwrap();
    assert_eq!(
        (lsn("stored"), lsn("acknowledged")),
        (Some(newest), Some(newest + 1))
    );
    server.kill();
    fs::remove_dir_all(world.path("cache")).unwrap();

    let server = world.serve("cache", &["--volume", "demo=64MiB"]);
    assert_eq!(world.show(&server, "demo")["state"], "held");
    let lost = world.take_over(&server, "demo");
    assert!(lost.contains(&format!("after LSN {newest},")), "{lost}");
    let mut client = server.connect("demo");
    assert!(client.read(0, 1 << 20).unwrap() == pattern(1, 1 << 20));
    assert_eq!(client.read(32 << 20, 4096).unwrap(), pattern(2, 4096));
    assert_eq!(client.read(16 << 20, 4096).unwrap(), vec![0; 4096]);
}

#[test]
fn a_server_that_is_asked_to_stop_leaves_nothing_behind_in_its_cache() {
    let world = World::new();
    let server = world.serve("cache", &["--volume", "demo=64MiB", "--rpo", "1h"]);
    server
        .connect("demo")
        .write(4096, &pattern(9, 65536))
        .unwrap();
    assert!(server.stop().success());
    fs::remove_dir_all(world.path("cache")).unwrap();
    // It let go of the volume: no take-over needed.
    let server = world.serve("cache", &["--volume", "demo=64MiB"]);
    assert!(server.connect("demo").read(4096, 65536).unwrap() == pattern(9, 65536));
}

#[test]
fn the_recovery_point_timer_brings_writes_to_the_store() {
    let world = World::new();
    let server = world.serve("cache", &["--volume", "demo=64MiB", "--rpo", "200ms"]);
    server.connect("demo").write(0, &pattern(1, 4096)).unwrap();
    eventually("the upload", || {
        world.show(&server, "demo")["watermarks"]["stored"]["lsn"].as_u64() == Some(1)
    });
}

/// S7, through two whole servers.
#[test]
fn a_server_whose_volume_was_taken_over_completes_no_more_writes() {
    let world = World::new();
    let old = world.serve("old", &["--volume", "demo=64MiB", "--rpo", "1h"]);
    let mut to_old = old.connect("demo");
    to_old.write(0, &pattern(1, 4096)).unwrap();
    world.expect_success(&old, &["sync", "demo"]);
    to_old.write(0, &pattern(2, 4096)).unwrap();

    let new = world.serve("new", &[]);
    let refused = world.expect_failure(&new, &["attach", "demo", "--transport", "nbd"]);
    assert!(
        refused.contains("demo is held by host") && refused.contains("old"),
        "{refused}"
    );
    world.take_over(&new, "demo");
    let mut to_new = new.connect("demo");
    assert_eq!(
        to_new.read(0, 4096).unwrap(),
        pattern(1, 4096),
        "what was synced, no more"
    );
    to_new.write(0, &pattern(3, 4096)).unwrap();

    let said = world.expect_failure(&old, &["sync", "demo"]);
    assert!(said.contains("taken over by another host"), "{said}");
    assert!(to_old.write(8192, &pattern(4, 4096)).is_err());
    assert_eq!(world.show(&old, "demo")["state"], "fenced");
    world.expect_success(&new, &["sync", "demo"]);
    assert_eq!(to_new.read(0, 4096).unwrap(), pattern(3, 4096));
    assert_eq!(to_new.read(8192, 4096).unwrap(), vec![0; 4096]);
}

/// S10, as far as a directory can be away.
#[test]
fn while_the_store_is_away_the_volume_serves_and_accepts() {
    let world = World::new();
    let server = world.serve("cache", &["--volume", "demo=64MiB", "--rpo", "200ms"]);
    let mut client = server.connect("demo");
    client.write(0, &pattern(1, 4096)).unwrap();
    world.expect_success(&server, &["sync", "demo"]);
    world.swap_store_and_file();

    client.write(4096, &pattern(2, 4096)).unwrap();
    client.flush().unwrap();
    assert_eq!(client.read(0, 4096).unwrap(), pattern(1, 4096));
    eventually("the store's failure", || {
        world.show(&server, "demo")["upload_error"].is_string()
    });
    let shown = world.show(&server, "demo");
    assert_eq!(shown["state"], "open");
    assert_eq!(shown["watermarks"]["acknowledged"]["lsn"], 2);

    world.swap_store_and_file();
    world.expect_success(&server, &["sync", "demo"]);
    assert_eq!(
        world.show(&server, "demo")["watermarks"]["stored"]["lsn"],
        2
    );
}

/// S10: an outage never becomes an error for the guest, also when it is longer than the log.
#[test]
fn a_full_log_parks_writes_until_the_store_is_back() {
    const CHUNK: usize = 1 << 20;
    let world = World::new();
    let server = world.serve("cache", &["--volume", "demo=96MiB", "--rpo", "200ms"]);
    let mut client = server.connect("demo");
    world.swap_store_and_file();
    let written = AtomicUsize::new(0);
    // The server is moved in, so that a failure in here ends it, and with it the writer.
    let _server = std::thread::scope(|scope| {
        let server = server;
        let writer = scope.spawn(|| {
            for chunk in 0..80 {
                let data = pattern(chunk as u8, CHUNK);
                client.write((chunk * CHUNK) as u64, &data).unwrap();
                written.fetch_add(1, Ordering::SeqCst);
            }
        });
        // The log has 64 MiB: this many can never be written without the store.
        let mut seen = (0, Instant::now());
        eventually("the writes' stop", || {
            let now = written.load(Ordering::SeqCst);
            if now != seen.0 {
                seen = (now, Instant::now());
            }
            now > 10 && seen.1.elapsed() > Duration::from_secs(3)
        });
        assert!(!writer.is_finished() && written.load(Ordering::SeqCst) < 64);
        world.swap_store_and_file();
        writer.join().unwrap();
        server
    });
    for chunk in 0..80 {
        let found = client.read((chunk * CHUNK) as u64, CHUNK).unwrap();
        assert!(found == pattern(chunk as u8, CHUNK), "chunk {chunk}");
    }
}

#[test]
fn a_server_that_cannot_reach_its_store_leaves_at_the_second_signal_and_loses_nothing() {
    let world = World::new();
    let server = world.serve("cache", &["--volume", "demo=64MiB", "--rpo", "1h"]);
    let mut client = server.connect("demo");
    client.write(0, &pattern(1, 4096)).unwrap();
    world.swap_store_and_file();
    server.ask_to_stop();
    eventually("the first signal's effect", || {
        fs::read_to_string(world.path("cache.stderr"))
            .unwrap()
            .contains("firn: stopping")
    });
    assert_eq!(server.stop().code(), Some(1));

    world.swap_store_and_file();
    let server = world.serve("cache", &[]);
    assert_eq!(
        server.connect("demo").read(0, 4096).unwrap(),
        pattern(1, 4096)
    );
}

#[test]
fn volumes_that_were_attached_are_served_again_after_a_restart() {
    let world = World::new();
    let server = world.serve("cache", &[]);
    world.expect_success(
        &server,
        &[
            "volume",
            "create",
            "a",
            "--size",
            "8MiB",
            "--block-size",
            "4096",
        ],
    );
    world.expect_success(&server, &["volume", "create", "b", "--size", "8MiB"]);
    assert_eq!(world.show(&server, "a")["state"], "closed");
    world.expect_success(&server, &["attach", "a", "--transport", "nbd"]);
    server.connect("a").write(0, &pattern(1, 4096)).unwrap();
    assert!(server.stop().success());
    let server = world.serve("cache", &[]);
    assert_eq!(server.connect("a").read(0, 4096).unwrap(), pattern(1, 4096));
    assert_eq!(world.show(&server, "b")["state"], "closed");
    world.expect_success(&server, &["volume", "delete", "a"]);
    world.expect_success(&server, &["volume", "delete", "b"]);
    assert!(server.stop().success());
    let server = world.serve("cache", &[]);
    for gone in ["a", "b"] {
        let said = world.expect_failure(&server, &["volume", "show", gone]);
        assert!(said.contains("no volume named"), "{said}");
    }
}

#[test]
fn a_volume_that_was_detached_is_in_the_store_and_may_be_had_by_another_host() {
    let world = World::new();
    let one = world.serve("one", &["--volume", "demo=8MiB"]);
    let mut client = one.connect("demo");
    client.write(0, &pattern(1, 4096)).unwrap();
    let said = world.expect_failure(&one, &["detach", "demo"]);
    assert!(said.contains("used by 1 connection"), "{said}");
    assert_eq!(client.read(0, 4096).unwrap(), pattern(1, 4096));
    drop(client);
    eventually("the detach", || {
        world.run(&one, &["detach", "demo"]).status.success()
    });
    assert_eq!(world.show(&one, "demo")["state"], "closed");
    let said = world.expect_failure(&one, &["detach", "demo"]);
    assert!(said.contains("not attached here"), "{said}");
    let said = world.expect_failure(&one, &["detach", "none"]);
    assert!(said.contains("no volume named none"), "{said}");

    let two = world.serve("two", &["--volume", "demo=8MiB"]);
    assert_eq!(two.connect("demo").read(0, 4096).unwrap(), pattern(1, 4096));
    assert!(one.stop().success());
    let one = world.serve("one", &[]);
    assert_eq!(world.show(&one, "demo")["state"], "held");
}

#[test]
fn a_volume_grows_whether_it_is_open_or_not_and_never_shrinks() {
    let world = World::new();
    let server = world.serve("cache", &["--volume", "demo=8MiB"]);
    server.connect("demo").write(0, &pattern(1, 4096)).unwrap();
    world.expect_success(&server, &["volume", "resize", "demo", "16MiB"]);
    let mut client = server.connect("demo");
    assert_eq!(client.size, 16 << 20);
    client.write((16 << 20) - 4096, &pattern(2, 4096)).unwrap();
    let said = world.expect_failure(&server, &["volume", "resize", "demo", "8MiB"]);
    assert!(said.contains("never shrinks"), "{said}");
    assert_eq!(world.show(&server, "demo")["size_bytes"], 16 << 20);
    world.expect_success(&server, &["volume", "create", "shut", "--size", "8MiB"]);
    world.expect_success(&server, &["volume", "resize", "shut", "12MiB"]);
    let shut = world.show(&server, "shut");
    assert_eq!(
        (&shut["state"], shut["size_bytes"].as_u64()),
        (&"closed".into(), Some(12 << 20))
    );
    server.kill();
    let server = world.serve("cache", &[]);
    let mut client = server.connect("demo");
    assert_eq!(client.size, 16 << 20);
    assert_eq!(client.read(0, 4096).unwrap(), pattern(1, 4096));
    let found = client.read((16 << 20) - 4096, 4096).unwrap();
    assert_eq!(found, pattern(2, 4096));
}

#[test]
fn a_forced_detach_ends_the_connections() {
    let world = World::new();
    let server = world.serve("cache", &["--volume", "demo=8MiB"]);
    let mut client = server.connect("demo");
    client.write(0, &pattern(1, 4096)).unwrap();
    world.expect_success(&server, &["detach", "demo", "--force"]);
    assert!(client.try_write(0, &pattern(2, 4096)).is_err());
    world.expect_success(&server, &["attach", "demo", "--transport", "nbd"]);
    let found = server.connect("demo").read(0, 4096).unwrap();
    assert_eq!(found, pattern(1, 4096));
}

#[test]
fn a_server_waits_until_the_io_of_a_dead_one_has_landed() {
    let world = World::new();
    let server = world.serve("cache", &["--volume", "demo=64MiB"]);
    server.connect("demo").write(0, &pattern(1, 4096)).unwrap();
    server.kill();
    // What is in flight keeps the dead process's open log, and so its lock, alive.
    let in_flight = fs::File::open(world.path("cache/log")).unwrap();
    in_flight.lock().unwrap();
    std::thread::scope(|scope| {
        let starting = scope.spawn(|| world.serve("cache", &[]));
        eventually("the server's wait", || {
            fs::read_to_string(world.path("cache.stderr"))
                .unwrap()
                .contains("waiting until")
        });
        assert!(!starting.is_finished());
        drop(in_flight);
        let server = starting.join().unwrap();
        assert_eq!(
            server.connect("demo").read(0, 4096).unwrap(),
            pattern(1, 4096)
        );
    });
}

#[test]
fn a_read_cache_through_the_page_cache_has_its_space_before_it_is_used() {
    let world = World::new();
    let size = ["--cache-size", "16MiB"];
    let cache = || fs::metadata(world.path("cache/cache")).unwrap();
    drop(world.serve("cache", &[&size[..], &["--log-io", "buffered"]].concat()));
    assert_eq!(cache().len(), 16 << 20);
    assert!(cache().blocks() * 512 >= 16 << 20, "a write may be refused");
    // As a crash leaves it that cuts its creation short.
    fs::rename(world.path("cache/cache"), world.path("cache/cache.new")).unwrap();
    fs::write(world.path("cache/cache.new"), "").unwrap();
    drop(world.serve("cache", &size));
    assert_eq!(cache().len(), 16 << 20);
    assert!(!world.path("cache/cache.new").exists());
}

#[test]
fn a_cache_that_was_chosen_to_be_none_stays_none() {
    let world = World::new();
    drop(world.serve("cache", &["--cache-size", "0B"]));
    drop(world.serve("cache", &[]));
    let cache = fs::metadata(world.path("cache/cache")).unwrap();
    assert_eq!(cache.len(), 0);
}

#[test]
fn a_cache_of_another_size_is_made_anew_and_the_volume_is_whole() {
    let world = World::new();
    let server = world.serve("cache", &["--volume", "demo=64MiB"]);
    server
        .connect("demo")
        .write(0, &pattern(1, 1 << 20))
        .unwrap();
    assert!(server.stop().success());
    for size in ["4MiB", "0B", "32MiB"] {
        let server = world.serve("cache", &["--cache-size", size]);
        let mut client = server.connect("demo");
        // Twice: from the store, then from wherever it is kept.
        for _ in 0..2 {
            assert!(
                client.read(0, 1 << 20).unwrap() == pattern(1, 1 << 20),
                "{size}"
            );
        }
        assert!(server.stop().success());
    }
}
