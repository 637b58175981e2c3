//! Reads of what is only in the store: how many requests they take, and how long they wait.
//!
//! The store answers each request after 30 virtual milliseconds, and any number side by side.

use std::collections::BTreeMap;

use blkmq::error::ErrorKind;
use blkmq::io::{Backend, Op, Step};
use volume::{Options, Volume};

use crate::support::{Environment, World, waker};

const VOLUME_BYTES: u64 = 32 << 20;
const CHUNK: usize = 64 << 10;
const STORE_MS: u64 = 30;

fn options() -> Options {
    Options {
        log_bytes: 128 << 20,
        segment_bytes: 1 << 20,
        memory_bytes: 32 << 20,
        cache_bytes: 0,
        pack_bytes: 8 << 20,
        ..Options::default()
    }
}

/// Bytes that do not compress, and differ from sector to sector.
fn content(bytes: usize) -> Vec<u8> {
    let mut rng = fastrand::Rng::with_seed(11);
    std::iter::repeat_with(|| rng.u8(..)).take(bytes).collect()
}

/// A volume that is wholly in the store, opened on a host that has nothing of it, and its content.
fn cold_volume() -> (World, Volume, Vec<u8>) {
    let mut world = start(Environment::default());
    world.create("disk", VOLUME_BYTES);
    let volume = world.open("disk");
    let bytes = content(VOLUME_BYTES as usize);
    for (nth, part) in bytes.chunks(1 << 20).enumerate() {
        let (sector, sectors) = (nth as u64 * 2048, 2048);
        let op = Op::Write {
            sector,
            sectors,
            fua: false,
        };
        world
            .request(&volume, op, &mut part.to_vec())
            .expect("written");
        if nth % 8 == 7 {
            world.sync(&volume);
        }
    }
    let answer = world.host.close_volume(&volume);
    world.wait(|_| answer.try_take()).expect("closed");
    drop(volume);
    let mut left = world.kill();
    left.files.clear();
    left.rings.lose_all();
    let mut world = start(left);
    let volume = world.open("disk");
    world.env.store_ms = STORE_MS;
    world.env.store_requests = BTreeMap::new();
    (world, volume, bytes)
}

fn start(env: Environment) -> World {
    World::try_start(env, options()).unwrap_or_else(|e| panic!("{}", e.0))
}

fn ranges(world: &World) -> usize {
    let count = world.env.store_requests.get("range");
    count.copied().unwrap_or_default()
}

fn ms(world: &World) -> u64 {
    world.now_ns / 1_000_000
}

/// Reads `range` of the volume in steps and compares it.
fn read_through(
    world: &mut World,
    volume: &Volume,
    bytes: &[u8],
    range: std::ops::Range<usize>,
    step: usize,
) {
    for at in range.step_by(step) {
        let found = world.read(volume, at as u64 / 512, step);
        assert!(found == bytes[at..at + step], "other bytes at {at}");
    }
}

#[test]
fn a_sequential_reader_waits_for_the_store_a_few_times_and_not_for_each_chunk() {
    let (mut world, volume, bytes) = cold_volume();
    let begun = ms(&world);
    read_through(&mut world, &volume, &bytes, 0..bytes.len(), 64 << 10);
    let (took, requests) = (ms(&world) - begun, ranges(&world));
    let chunks = bytes.len() / CHUNK;
    assert!(
        took <= 16 * STORE_MS,
        "{took} ms, one after the other {} ms",
        chunks as u64 * STORE_MS
    );
    assert!(
        requests <= chunks / 6,
        "{requests} requests for {chunks} chunks"
    );
}

#[test]
fn reads_in_no_order_fetch_what_they_need_and_nothing_else() {
    let (mut world, volume, bytes) = cold_volume();
    let mut rng = fastrand::Rng::with_seed(3);
    let mut chunks: Vec<usize> = (0..bytes.len() / CHUNK).collect();
    rng.shuffle(&mut chunks);
    for chunk in &chunks[..64] {
        let at = chunk * CHUNK + 8192;
        read_through(&mut world, &volume, &bytes, at..at + 4096, 4096);
    }
    let pages = 1;
    assert!(ranges(&world) <= 64 + pages, "{} requests", ranges(&world));
}

#[test]
fn a_chunk_that_many_reads_ask_for_at_once_is_fetched_once() {
    let (mut world, volume, bytes) = cold_volume();
    read_through(&mut world, &volume, &bytes, 0..4096, 4096);
    let before = ranges(&world);
    let far = (bytes.len() / 2) as u64 / 512;
    // Backwards: a reader that goes forward is read ahead for.
    let op = |nth: u64| Op::Read {
        sector: far + (15 - nth) * 8,
        sectors: 8,
    };
    let waker = waker();
    for nth in 0..16 {
        assert!(matches!(volume.begin(&op(nth), &waker), Step::Park(_)));
    }
    world.pass(2 * STORE_MS);
    for nth in 0..16 {
        assert!(matches!(volume.begin(&op(nth), &waker), Step::Read(_)));
    }
    assert_eq!(ranges(&world) - before, 1);
}

#[test]
fn a_cold_read_does_not_wait_behind_read_ahead() {
    let (mut world, volume, bytes) = cold_volume();
    let (near, far) = (0, 24 << 20);
    // The index pages of both ends are here from now on.
    read_through(&mut world, &volume, &bytes, near..4096, 4096);
    read_through(&mut world, &volume, &bytes, far..far + 4096, 4096);
    // One after the other: every request that is already asked for is one before the client's.
    world.env.store_serial = true;
    let first = Op::Read {
        sector: (far as u64 + (1 << 20)) / 512,
        sectors: 8,
    };
    assert!(matches!(volume.begin(&first, &waker()), Step::Park(_)));
    world.run_until_idle();
    let ahead = (1 << 11)..(15 << 11);
    volume.prefetch(std::slice::from_ref(&ahead));
    world.run_until_idle();
    let begun = ms(&world);
    let at = far + (4 << 20);
    read_through(&mut world, &volume, &bytes, at..at + 4096, 4096);
    let took = ms(&world) - begun;
    assert!(
        took <= 7 * STORE_MS,
        "a cold read took {took} ms, where a request takes {STORE_MS} ms"
    );
}

#[test]
fn a_volume_has_one_hint_of_its_clients_under_way_and_drops_those_that_come_meanwhile() {
    let (mut world, volume, _) = cold_volume();
    let hint = |mib: u64| {
        let op = Op::Prefetch {
            sector: mib << 11,
            sectors: 2048,
        };
        assert!(matches!(volume.begin(&op, &waker()), Step::Done(Ok(()))));
    };
    let is_here = |mib: u64| {
        let op = Op::Read {
            sector: (mib << 11) + 128,
            sectors: 8,
        };
        matches!(volume.begin(&op, &waker()), Step::Read(_))
    };
    for nth in 0..1000 {
        hint(nth % 31);
    }
    world.pass(20 * STORE_MS);
    assert!(is_here(0), "the first is followed");
    assert!(ranges(&world) <= 4, "{} requests", ranges(&world));
    hint(20);
    world.pass(20 * STORE_MS);
    assert!(is_here(20), "one that comes later is followed again");
    assert!(!is_here(10));
}

#[test]
fn what_was_read_first_is_here_before_it_is_asked_for_after_the_next_opening() {
    let (mut world, volume, bytes) = cold_volume();
    let mut rng = fastrand::Rng::with_seed(5);
    let places: Vec<usize> = (0..100)
        .map(|_| rng.usize(0..bytes.len() / 4096) * 4096)
        .collect();
    for at in &places {
        read_through(&mut world, &volume, &bytes, *at..at + 4096, 4096);
    }
    let boot_set = volume.boot_set();
    assert!(
        boot_set
            .iter()
            .map(|range| range.end - range.start)
            .sum::<u64>()
            <= 100 * 128
    );
    drop(volume);
    let mut left = world.kill();
    left.store_ms = 0;
    let mut world = start(left);
    let volume = world.open("disk");
    world.env.store_ms = STORE_MS;
    volume.prefetch(&boot_set);
    // A page, then chunks by sixteen requests at a time.
    world.pass(12 * STORE_MS);
    let (requests, begun) = (ranges(&world), ms(&world));
    for at in &places {
        read_through(&mut world, &volume, &bytes, *at..at + 4096, 4096);
    }
    assert_eq!((ranges(&world), ms(&world)), (requests, begun));
}

#[test]
fn what_is_uploaded_is_read_from_the_log_until_its_space_is_needed() {
    let mut world = start(Environment::default());
    world.create("disk", VOLUME_BYTES);
    let volume = world.open("disk");
    world.write(&volume, 0, 7, 1 << 20);
    world.sync(&volume);
    world.env.store_requests = BTreeMap::new();
    world.env.outage = true;
    assert_eq!(world.read_fill(&volume, 0, 1 << 20), 7);
    assert_eq!(ranges(&world), 0);
}

/// Reads the volume in steps of a chunk; which chunks cannot be read.
fn failing_chunks(world: &mut World, volume: &Volume, bytes: &[u8]) -> Vec<usize> {
    let mut failing = Vec::new();
    for (nth, expected) in bytes.chunks(CHUNK).enumerate() {
        let mut found = vec![0; CHUNK];
        let op = Op::Read {
            sector: (nth * CHUNK / 512) as u64,
            sectors: (CHUNK / 512) as u32,
        };
        match world.request(volume, op, &mut found) {
            Ok(()) => assert!(found == expected, "other bytes in chunk {nth}"),
            Err(error) => {
                assert_eq!(error, ErrorKind::Corrupt);
                failing.push(nth);
            }
        }
    }
    failing
}

#[test]
fn a_pack_that_is_shorter_than_its_index_says_fails_reads_of_what_is_missing_alone_and_at_once() {
    let (mut world, volume, bytes) = cold_volume();
    let packs = world.env.objects.keys();
    let packs: Vec<String> = packs
        .filter(|key| key.starts_with("packs/"))
        .cloned()
        .collect();
    let (data, _) = world.env.objects.get_mut(&packs[1]).expect("several packs");
    let whole = data.clone();
    // Half of its chunks are left, and a little of the next.
    let chunks = whole.len() / CHUNK;
    data.truncate(chunks / 2 * CHUNK + 1000);
    let begun = ms(&world);
    let failing = failing_chunks(&mut world, &volume, &bytes);
    assert_eq!(failing.len(), chunks - chunks / 2, "{failing:?}");
    assert!(failing.is_sorted_by(|one, next| one + 1 == *next));
    let took = ms(&world) - begun;
    assert!(took < 5000, "{took} ms: neighbours waited for it");
    // What is written there anew can be read, and all of it once the pack is whole again.
    let sector = |chunk: usize| (chunk * CHUNK / 512) as u64;
    world.write(&volume, sector(failing[0]), 7, CHUNK);
    assert_eq!(world.read_fill(&volume, sector(failing[0]), CHUNK), 7);
    world.pass(2000);
    world.env.objects.insert(packs[1].clone(), (whole, 1));
    let rest = failing[1] * CHUNK..bytes.len();
    read_through(&mut world, &volume, &bytes, rest, CHUNK);
}

#[cfg(feature = "planted")]
#[test]
fn each_planted_bug_is_seen_by_its_test() {
    canary::each_is_seen(&[
        (
            "read_ahead_first",
            a_cold_read_does_not_wait_behind_read_ahead,
        ),
        (
            "each_hint_is_a_job",
            a_volume_has_one_hint_of_its_clients_under_way_and_drops_those_that_come_meanwhile,
        ),
        (
            "short_objects_are_asked_for_again",
            a_pack_that_is_shorter_than_its_index_says_fails_reads_of_what_is_missing_alone_and_at_once,
        ),
    ]);
}
