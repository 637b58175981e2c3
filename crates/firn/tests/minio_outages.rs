//! Outages of a real S3 server under load: no client sees an error, the log says once what is wrong
//! and what helps, and when the store is back everything gets there.
//!
//! Each lasts some seconds; `FIRN_OUTAGE_SECONDS=600` makes them as long as one likes.

#![allow(clippy::unwrap_used)]

mod common;

use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

use common::{World, eventually};
use s3_testbed::{Fault, FaultRule, Minio, MinioConfig, Proxy, RequestFilter, url_at};

const BLOCK_BYTES: usize = 64 << 10;
/// Blocks of the volume that are written in turn.
const BLOCKS: u64 = 256;
/// What is written in an outage, in blocks: well below the log, so that nobody waits for the store.
const WRITES: u32 = 400;

/// How long an outage lasts.
fn outage_time(seconds: u64) -> Duration {
    let asked = std::env::var("FIRN_OUTAGE_SECONDS").ok();
    let asked = asked.and_then(|text| text.parse().ok());
    Duration::from_secs(asked.unwrap_or(seconds))
}

/// A store, the way to it, and whether a process on either side is to be changed.
struct Stage {
    minio: Minio,
    proxy: Proxy,
}

impl Stage {
    fn new() -> Option<Stage> {
        let minio = Minio::start(MinioConfig::from_environment()?).unwrap();
        let proxy = Proxy::start(minio.address).unwrap();
        Some(Stage { minio, proxy })
    }
}

fn content(write: u64) -> Vec<u8> {
    (0..BLOCK_BYTES as u64)
        .map(|at| (write ^ (at / 4096) ^ (at % 251)) as u8)
        .collect()
}

/// What to expect of the server's log: words of the one line, none where nothing need be said.
type Said = &'static [&'static str];

/// Runs a load over an outage that `begin` makes and `end` ends.
fn check_outage(
    seconds: u64,
    said: Said,
    begin: impl FnOnce(&mut Stage),
    end: impl FnOnce(&mut Stage),
) {
    let Some(mut stage) = Stage::new() else {
        return;
    };
    let url = url_at(stage.proxy.address);
    let world = World::new();
    let flags = ["--store", &url, "--rpo", "1s", "--volume", "demo=64MiB"];
    let server = world.serve("cache", &flags);
    let log = || world.server_log();
    let time = outage_time(seconds);
    let ends = AtomicBool::new(false);
    let written = std::thread::scope(|scope| {
        let writer = scope.spawn(|| write_and_read(&server, time / WRITES, &ends));
        let end_writer = SetOnDrop(&ends);
        sleep(Duration::from_millis(500));
        begin(&mut stage);
        let began = Instant::now();
        eventually(&format!("a line with {said:?}"), || has_line(&log(), said));
        sleep(time.saturating_sub(began.elapsed()));
        end(&mut stage);
        drop(end_writer);
        writer.join().unwrap()
    });
    let all = log();
    // A line for each kind of failure: what an outage begins with may be a connection that breaks.
    for (words, most) in [
        ("degraded what=\"store\"", 2),
        ("ok again what=\"store\"", 1),
    ] {
        let lines = all.matches(words).count();
        assert!(lines <= most, "the log repeats itself: {all}");
    }
    world.expect_success(&server, &["sync", "demo"]);
    assert!(server.stop().success());

    let flags = ["--store", &stage.minio.url(), "--volume", "demo=64MiB"];
    let server = world.serve("other", &flags);
    let mut client = server.connect("demo");
    for block in 0..BLOCKS.min(written) {
        let newest = (written - 1 - block) / BLOCKS * BLOCKS + block;
        let found = client
            .read(block * BLOCK_BYTES as u64, BLOCK_BYTES)
            .unwrap();
        assert!(found == content(newest), "block {block}, write {newest}");
    }
}

/// Sets it also when its thread panics, so that whoever waits for it ends.
struct SetOnDrop<'a>(&'a AtomicBool);

impl Drop for SetOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

fn has_line(log: &str, said: Said) -> bool {
    let has = |line: &str| said.iter().all(|words| line.contains(words));
    said.is_empty() || log.lines().any(has)
}

/// Writes block after block, reads some of them back, and panics at the first error; how many it
/// wrote.
fn write_and_read(server: &common::Server, pause: Duration, ends: &AtomicBool) -> u64 {
    let mut client = server.connect("demo");
    let mut written = 0_u64;
    while !ends.load(Ordering::SeqCst) {
        let place = (written % BLOCKS) * BLOCK_BYTES as u64;
        client.write(place, &content(written)).unwrap();
        if written.is_multiple_of(8) {
            client.flush().unwrap();
            assert!(client.read(place, BLOCK_BYTES).unwrap() == content(written));
        }
        written += 1;
        sleep(pause);
    }
    written
}

/// An outage that the proxy makes.
fn check_faults(seconds: u64, said: Said, rules: &[FaultRule]) {
    check_outage(
        seconds,
        said,
        |stage| stage.proxy.set_faults(rules),
        |stage| stage.proxy.set_faults(&[]),
    );
}

const fn half(fault: Fault) -> FaultRule {
    FaultRule {
        permille: 500,
        ..FaultRule::always(fault)
    }
}

#[test]
fn a_store_that_is_killed_costs_no_error() {
    check_outage(
        6,
        &["cannot connect", "check the endpoint"],
        |stage| {
            stage.minio.kill();
            stage.proxy.stop();
        },
        |stage| {
            stage.minio.restart().unwrap();
            stage.proxy.restart().unwrap();
        },
    );
}

/// What health says of a store that takes requests and does not answer. A failed upload says the like, later.
const SILENCE: Said = &[
    "degraded what=\"store\"",
    "no answer",
    "check the store's address",
];

#[test]
fn a_store_that_is_stopped_costs_no_error() {
    check_outage(
        16,
        SILENCE,
        |stage| stage.minio.suspend().unwrap(),
        |stage| stage.minio.resume().unwrap(),
    );
}

#[test]
fn requests_that_are_never_answered_cost_no_error() {
    check_faults(16, SILENCE, &[FaultRule::always(Fault::Silence)]);
}

#[test]
fn packets_that_are_dropped_cost_no_error() {
    let filter = match PacketFilter::new() {
        Ok(filter) => filter,
        Err(why) => {
            println!("skipped: the kernel's packet filter cannot be used here: {why}");
            return;
        }
    };
    let time = outage_time(16);
    check_outage(
        16,
        &["degraded what=\"store\"", "check the"],
        |stage| filter.drop_packets(stage.proxy.address.port(), time * 2),
        |_| filter.pass_packets(),
    );
}

/// Rules of nftables that drop packets of a port in both directions, those of open connections and of new ones; they
/// end with it.
struct PacketFilter {
    table: String,
}

impl PacketFilter {
    fn new() -> Result<PacketFilter, String> {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::SeqCst);
        let table = format!("inet firn_{}_{number}", std::process::id());
        // What is in the set leaves it by itself, also when this process was killed.
        nft(&format!(
            "add table {table}
             add set {table} ports {{ type inet_service; flags timeout; }}
             add chain {table} local {{ type filter hook input priority 0; }}
             add rule {table} local tcp dport @ports drop
             add rule {table} local tcp sport @ports drop"
        ))?;
        Ok(PacketFilter { table })
    }

    fn drop_packets(&self, port: u16, most: Duration) {
        let (table, seconds) = (&self.table, most.as_secs().max(1));
        let element = format!("add element {table} ports {{ {port} timeout {seconds}s }}");
        nft(&element).unwrap();
    }

    fn pass_packets(&self) {
        nft(&format!("flush set {} ports", self.table)).unwrap();
    }
}

impl Drop for PacketFilter {
    fn drop(&mut self) {
        // A test that has failed says why by itself.
        let _ = nft(&format!("delete table {}", self.table));
    }
}

fn nft(rules: &str) -> Result<(), String> {
    let output = Command::new("nft").arg(rules).output();
    let output = output.map_err(|error| format!("nft: {error}"))?;
    match output.status.success() {
        true => Ok(()),
        false => Err(String::from_utf8_lossy(&output.stderr).trim().to_owned()),
    }
}

#[test]
fn a_slow_store_costs_no_error() {
    for latency_ms in [50, 500] {
        check_outage(
            4,
            &[],
            |stage| stage.proxy.set_latency(Duration::from_millis(latency_ms)),
            |stage| stage.proxy.set_latency(Duration::ZERO),
        );
    }
}

#[test]
fn a_store_that_throttles_costs_no_error() {
    check_faults(6, &["too much to do"], &[half(Fault::SLOW_DOWN)]);
    check_faults(4, &["fewer requests"], &[half(Fault::TOO_MANY)]);
}

#[test]
fn connections_that_break_in_mid_body_cost_no_error() {
    let rules = [half(Fault::CutRequest), half(Fault::CutAnswer)];
    check_faults(6, &["broke before the whole answer"], &rules);
}

#[test]
fn answers_that_are_lost_cost_no_error() {
    check_faults(
        6,
        &["broke before the whole answer"],
        &[half(Fault::LoseAnswer)],
    );
}

#[test]
fn refused_credentials_cost_no_error() {
    check_outage(
        6,
        &["the secret key is wrong"],
        |stage| {
            stage.minio.config.secret_key = "another-secret".to_owned();
            stage.minio.restart().unwrap();
        },
        |stage| {
            stage.minio.config.secret_key = std::env::var("AWS_SECRET_ACCESS_KEY").unwrap();
            stage.minio.restart().unwrap();
        },
    );
}

#[test]
fn a_full_store_costs_no_error() {
    let full = Fault::Refuse {
        status: 507,
        code: "XMinioStorageFull",
    };
    let rule = FaultRule {
        filter: RequestFilter::Writes,
        ..FaultRule::always(full)
    };
    check_faults(6, &["the store is full", "give it space"], &[rule]);
}

#[test]
fn a_bucket_that_is_away_for_a_while_costs_no_error() {
    let away = |stage: &Stage| {
        let data = stage.minio.data();
        (data.join("firn"), data.with_file_name("away"))
    };
    check_outage(
        6,
        &["no such bucket", "create it"],
        |stage| {
            let (bucket, away) = away(stage);
            std::fs::rename(bucket, away).unwrap();
        },
        |stage| {
            let (bucket, away) = away(stage);
            std::fs::rename(away, bucket).unwrap();
        },
    );
}

#[test]
fn a_wrong_clock_costs_no_error() {
    check_faults(
        6,
        &["clock is wrong", "set it"],
        &[FaultRule::always(Fault::OldDate)],
    );
}
