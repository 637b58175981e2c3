//! What the read cache holds is there through `firn upgrade`: a client whose working set is cached finds it so.

use crate::common::{Server, World, eventually, nbd};

const MIB: usize = 1 << 20;
/// Of the volume, all of it cached.
const SIZE: usize = 8 * MIB;

/// A server whose volume has its content in the store alone, and no log that knows of it.
fn serve_stored(world: &World, plan: Option<&str>) -> Server {
    let first = world.serve("first", &["--volume", "demo=8MiB"]);
    let mut client = first.connect("demo");
    for at in (0..SIZE).step_by(64 << 10) {
        client.write(at as u64, &content(at)).unwrap();
    }
    drop(client);
    world.expect_success(&first, &["sync", "demo", "--wait"]);
    world.expect_success(&first, &["detach", "demo", "--force"]);
    assert!(first.stop().success());
    let server = world.serve_as("cache", &["--cache-size", "64MiB"], |command| {
        if let Some(plan) = plan {
            command.env("FIRN_HANDOVER_AT", plan);
        }
    });
    world.expect_success(&server, &["attach", "demo", "--transport", "nbd"]);
    server
}

/// Which does not compress.
fn content(at: usize) -> Vec<u8> {
    let mut state = at as u64 + 1;
    let words = (0..8192).flat_map(|_| {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (state ^ state >> 29).to_le_bytes()
    });
    words.collect()
}

fn read_all(client: &mut nbd::Client) {
    for at in (0..SIZE).step_by(64 << 10) {
        assert!(
            client.read(at as u64, 64 << 10).unwrap() == content(at),
            "at {at}"
        );
    }
}

/// What this process has read from the store.
fn fetched(server: &Server) -> f64 {
    metric(server, "firn_store_read_bytes_total")
}

fn metric(server: &Server, name: &str) -> f64 {
    let (code, page) = server.get("/metrics");
    assert_eq!(code, 200);
    let lines = page.lines().filter(|line| line.starts_with(name));
    lines
        .filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok())
        .sum()
}

/// Reads until what was read is in the cache's file, which is filled behind the reads.
fn fill_cache(server: &Server, client: &mut nbd::Client) {
    read_all(client);
    assert!(fetched(server) >= SIZE as f64, "{} bytes", fetched(server));
    eventually("all of it is in the cache file", || {
        metric(server, "firn_cache_bytes{tier=\"disk\"}") >= SIZE as f64
    });
}

#[test]
fn what_was_cached_is_read_without_the_store_after_an_upgrade() {
    let world = World::new();
    let server = serve_stored(&world, None);
    let mut client = server.connect("demo");
    fill_cache(&server, &mut client);
    for _ in 0..3 {
        world.expect_success(&server, &["upgrade"]);
        eventually("the next program has the cache", || {
            metric(&server, "firn_cache_bytes{tier=\"disk\"}") >= SIZE as f64
        });
        read_all(&mut client);
        let fetched = fetched(&server);
        assert!(fetched < SIZE as f64 / 16.0, "{fetched} bytes were fetched");
    }
    assert!(!world.server_log().contains("the read cache begins empty"));
}

#[test]
fn an_upgrade_that_fails_leaves_a_cache_that_is_used_and_right() {
    for plan in ["given=fail", "opened=fail"] {
        let world = World::new();
        let server = serve_stored(&world, Some(plan));
        let mut client = server.connect("demo");
        fill_cache(&server, &mut client);
        world.expect_failure(&server, &["upgrade"]);
        read_all(&mut client);
        eventually("it is filled again, or was never emptied", || {
            metric(&server, "firn_cache_bytes{tier=\"disk\"}") >= SIZE as f64
        });
        read_all(&mut client);
    }
}

#[test]
fn a_cache_file_that_was_replaced_below_the_server_is_not_read() {
    let world = World::new();
    let server = serve_stored(&world, None);
    let mut client = server.connect("demo");
    fill_cache(&server, &mut client);
    let cache = world.path("cache/cache");
    let size = std::fs::metadata(&cache).unwrap().len();
    std::fs::remove_file(&cache).unwrap();
    std::fs::File::create(&cache)
        .unwrap()
        .set_len(size)
        .unwrap();
    world.expect_success(&server, &["upgrade"]);
    read_all(&mut client);
    assert!(fetched(&server) >= SIZE as f64, "{}", fetched(&server));
}
