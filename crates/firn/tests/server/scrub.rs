//! Damage on the local disk below a running server is found by its scrub, counted, logged, and read from the store.

use std::os::unix::fs::FileExt;

use crate::common::{Server, World, eventually, nbd};

const MIB: usize = 1 << 20;
const SIZE: usize = 8 * MIB;
const CHUNK: usize = 64 << 10;

/// Which does not compress.
fn content(at: usize) -> Vec<u8> {
    let mut state = at as u64 + 1;
    let words = (0..CHUNK / 8).flat_map(|_| {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (state ^ state >> 29).to_le_bytes()
    });
    words.collect()
}

fn metric(server: &Server, name: &str) -> f64 {
    let (code, page) = server.get("/metrics");
    assert_eq!(code, 200);
    let lines = page.lines().filter(|line| line.starts_with(name));
    lines
        .filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok())
        .sum()
}

fn write_all(server: &Server) {
    let mut client = server.connect("demo");
    for at in (0..SIZE).step_by(CHUNK) {
        client.write(at as u64, &content(at)).unwrap();
    }
}

fn assert_all(client: &mut nbd::Client) {
    for at in (0..SIZE).step_by(CHUNK) {
        let read = client.read(at as u64, CHUNK).unwrap();
        assert!(read == content(at), "at {at}");
    }
}

/// Where a file of the cache directory holds what was written at `at`, from 4096 bytes behind its beginning on.
fn place_of(world: &World, file: &str, at: usize) -> Option<u64> {
    let bytes = std::fs::read(world.path("cache").join(file)).unwrap();
    let wanted = &content(at)[4096..8192];
    let mut blocks = bytes.chunks(4096).zip(0..);
    let found = blocks.find(|(block, _)| *block == wanted)?;
    Some(found.1 * 4096)
}

fn flip(world: &World, file: &str, at: u64) {
    let path = world.path("cache").join(file);
    let options = &mut std::fs::File::options();
    let file = options.read(true).write(true).open(path).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, at).unwrap();
    file.write_all_at(&[byte[0] ^ 0x10], at).unwrap();
    file.sync_all().unwrap();
}

#[test]
fn a_cache_file_that_is_damaged_below_a_server_is_found_and_its_clients_read_what_they_wrote() {
    let world = World::new();
    let first = world.serve("first", &["--volume", "demo=8MiB"]);
    write_all(&first);
    world.expect_success(&first, &["sync", "demo", "--wait"]);
    world.expect_success(&first, &["detach", "demo", "--force"]);
    assert!(first.stop().success());
    let server = world.serve("cache", &["--cache-size", "64MiB", "--scrub", "off"]);
    world.expect_success(&server, &["attach", "demo", "--transport", "nbd"]);
    let mut client = server.connect("demo");
    assert_all(&mut client);
    eventually("all of it is in the cache file", || {
        metric(&server, "firn_cache_bytes{tier=\"disk\"}") >= SIZE as f64
    });
    assert_eq!(metric(&server, "firn_scrub_read_bytes_total"), 0.0);
    let at = place_of(&world, "cache", 5 * CHUNK).expect("it is cached");
    flip(&world, "cache", at + 100);
    world.expect_success(&server, &["config", "set", "scrub=1s"]);
    eventually("the scrub has found it", || {
        metric(&server, "firn_scrub_damaged_total{part=\"cache\"}") >= 1.0
    });
    eventually("the scrub has come round", || {
        metric(&server, "firn_scrub_passes_total") >= 1.0
    });
    assert_all(&mut client);
    assert_eq!(metric(&server, "firn_scrub_damaged_total"), 1.0);
    assert!(metric(&server, "firn_scrub_read_bytes_total") >= SIZE as f64);
    assert!(metric(&server, "firn_scrub_last_pass_timestamp_seconds") > 1e9);
    let log = world.server_log();
    assert!(
        log.contains("the scrub found damage in the read cache"),
        "{log}"
    );
}

#[test]
fn a_log_that_is_damaged_where_the_store_has_its_bytes_is_found_and_they_are_read_from_there() {
    let world = World::new();
    let server = world.serve(
        "cache",
        &[
            "--volume",
            "demo=8MiB",
            "--log-size",
            "64MiB",
            "--scrub",
            "1s",
        ],
    );
    write_all(&server);
    world.expect_success(&server, &["sync", "demo", "--wait"]);
    let at = place_of(&world, "log", 5 * CHUNK).expect("it is in the log");
    flip(&world, "log", at + 100);
    eventually("the scrub has found it", || {
        metric(&server, "firn_scrub_damaged_total{part=\"log\"}") >= 1.0
    });
    assert_all(&mut server.connect("demo"));
    assert_eq!(metric(&server, "firn_scrub_damaged_total"), 1.0);
    let log = world.server_log();
    assert!(log.contains("the scrub found damage in the log"), "{log}");
}
