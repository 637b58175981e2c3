//! The scrub finds damage on the local disk of which the store has the bytes, too, before a client does; and it
//! gives up nothing that is right, whatever happens to the place beside it.
//!
//! With the feature `planted` each of these tests also runs with the bug that it is there for.

use blkmq::io::{Backend, FileId, Op, Place, Plan, Step};
use volume::{Continuation, Options, ScrubOptions, Volume};

use crate::support::{Environment, World, options, waker};

const MIB: u64 = 1 << 20;
/// Sectors between two blocks with content: each has a chunk of its own.
const APART: u64 = 1 << 13;
const BLOCK: usize = 64 << 10;
const SECOND_NS: u64 = 1_000_000_000;
/// Virtual time in which a scrub that works comes round several times.
const ROUNDS_MS: u64 = 20_000;

/// Memory keeps nothing that nobody reads just now.
fn scrubbing(interval_ns: u64) -> Options {
    Options {
        memory_bytes: 0,
        scrub: ScrubOptions {
            interval_ns,
            bytes_per_s: u64::MAX,
        },
        ..options()
    }
}

fn start(env: Environment, interval_ns: u64) -> World {
    let started = World::try_start(env, scrubbing(interval_ns));
    started.unwrap_or_else(|error| panic!("{}", error.0))
}

/// A volume of which the store alone has so many blocks, each in a chunk of its own: N + 1.
fn stored(blocks: u64, interval_ns: u64) -> (World, Volume) {
    let mut world = start(Environment::default(), 0);
    world.create("demo", 1024 * MIB);
    let volume = world.open("demo");
    for block in 0..blocks {
        world.write(&volume, block * APART, block as u8 + 1, BLOCK);
        if block % 16 == 15 {
            world.sync(&volume);
        }
    }
    world.sync(&volume);
    let env = Environment {
        objects: world.kill().objects,
        versions: 100_000,
        ..Environment::default()
    };
    let mut world = start(env, interval_ns);
    let volume = world.try_open("demo", true).expect("taken over");
    (world, volume)
}

fn assert_holds(world: &mut World, volume: &Volume, blocks: std::ops::Range<u64>) {
    for block in blocks {
        let found = world.read_fill(volume, block * APART, BLOCK);
        assert_eq!(found, block as u8 + 1, "block {block}");
    }
}

fn pack_reads(world: &World) -> usize {
    let requests = world.env.requests.iter();
    let reads = requests.filter(|((kind, _), _)| *kind == "range");
    let packs = reads.filter(|((_, place), _)| place.contains("pack"));
    packs.map(|(_, count)| count).sum()
}

fn requests(world: &World) -> usize {
    world.env.requests.values().sum()
}

/// Where the file of the read cache has a block.
fn place_in_cache(world: &World, block: u64) -> usize {
    let content = vec![block as u8 + 1; BLOCK];
    let file = &world.env.files[&FileId::CACHE];
    let mut places = (0..file.len()).step_by(4096);
    let place = places.find(|at| file[*at..].starts_with(&content));
    place.expect("it is in the cache")
}

fn flip(world: &mut World, at: usize) {
    world
        .env
        .files
        .get_mut(&FileId::CACHE)
        .expect("it is there")[at] ^= 0x40;
}

fn damaged(world: &World) -> (u64, u64) {
    let damaged = world.host.scrub().damaged;
    (damaged.chunks, damaged.index)
}

#[test]
fn a_damaged_chunk_of_the_cache_is_found_and_read_from_the_store() {
    let (mut world, volume) = stored(12, SECOND_NS);
    assert_holds(&mut world, &volume, 0..12);
    let at = place_in_cache(&world, 3);
    flip(&mut world, at + 5000);
    world.pass(ROUNDS_MS);
    assert_eq!(damaged(&world), (1, 0));
    world.env.requests.clear();
    assert_holds(&mut world, &volume, 0..12);
    assert_eq!(pack_reads(&world), 1, "{:?}", world.env.requests);
    // Its place in the file is used again.
    world.env.requests.clear();
    assert_holds(&mut world, &volume, 0..12);
    assert_eq!(pack_reads(&world), 0, "{:?}", world.env.requests);
    world.pass(ROUNDS_MS);
    let report = world.host.scrub();
    assert_eq!(report.damaged.chunks, 1);
    assert!(report.passes > 1 && report.last_pass_unix_ms > Some(0));
    assert!(report.read_bytes.chunks >= 24 * BLOCK as u64);
}

#[test]
fn a_cache_file_that_is_damaged_everywhere_is_given_up_and_what_is_in_order_is_kept() {
    let (mut world, volume) = stored(12, SECOND_NS);
    assert_holds(&mut world, &volume, 0..12);
    world.pass(ROUNDS_MS);
    assert_eq!(damaged(&world), (0, 0));
    let held = world.host.usage().cache.disk_bytes;
    assert!(held >= 12 * BLOCK as u64, "{held}");
    for at in (0..world.env.files[&FileId::CACHE].len()).step_by(4096) {
        flip(&mut world, at);
    }
    world.pass(ROUNDS_MS);
    let (chunks, index) = damaged(&world);
    assert!(chunks >= 12 && index > 0, "{chunks} {index}");
    assert_eq!(world.host.usage().cache.disk_bytes, 0);
    assert_holds(&mut world, &volume, 0..12);
}

#[test]
fn while_the_store_is_away_the_cache_is_scrubbed_and_damage_is_never_served() {
    let (mut world, volume) = stored(12, SECOND_NS);
    assert_holds(&mut world, &volume, 0..12);
    let at = place_in_cache(&world, 7);
    world.env.outage = true;
    flip(&mut world, at);
    let before = requests(&world);
    world.pass(ROUNDS_MS);
    assert_eq!(damaged(&world), (1, 0));
    assert_eq!(requests(&world), before, "a scrub asks the store nothing");
    // All the rest is still there.
    assert_holds(&mut world, &volume, 0..7);
    assert_holds(&mut world, &volume, 8..12);
    world.env.outage = false;
    assert_holds(&mut world, &volume, 0..12);
}

#[test]
fn a_scrub_is_off_until_it_is_switched_on_and_then_off_again() {
    let (mut world, volume) = stored(12, 0);
    assert_holds(&mut world, &volume, 0..12);
    let at = place_in_cache(&world, 3);
    flip(&mut world, at);
    world.pass(ROUNDS_MS);
    assert_eq!(world.host.scrub(), volume::ScrubReport::default());
    assert!(world.host.set_scrub_interval(SECOND_NS));
    world.pass(ROUNDS_MS);
    assert_eq!(damaged(&world), (1, 0));
    assert!(world.host.set_scrub_interval(0));
    world.pass(1000);
    let then = world.host.scrub();
    world.pass(ROUNDS_MS);
    assert_eq!(world.host.scrub(), then);
}

/// The scrub has asked for a chunk; before the disk reads it, its place is another's, and the chunk is elsewhere.
fn evict_below_a_scrub() {
    let (mut world, volume) = stored(40, SECOND_NS);
    assert_holds(&mut world, &volume, 0..4);
    for _ in 0..40 {
        world.hold_reads_of = Some(FileId::CACHE);
        world.pass(3000);
        // More than the file holds, and then those that were there.
        assert_holds(&mut world, &volume, 4..40);
        assert_holds(&mut world, &volume, 0..4);
        world.hold_reads_of = None;
        assert!(world.do_held_reads() > 0, "the scrub is at work");
        world.pass(10);
        // It reads what fails once more.
        world.do_held_reads();
        assert_eq!(damaged(&world), (0, 0));
    }
    assert_holds(&mut world, &volume, 0..40);
}

#[test]
fn a_chunk_that_is_evicted_or_fetched_again_below_a_scrub_is_not_given_up() {
    evict_below_a_scrub();
}

#[test]
fn a_scrub_beside_reads_that_evict_gives_up_nothing_that_is_right() {
    let (mut world, volume) = stored(40, SECOND_NS / 50);
    let mut random = 7_u64;
    for _ in 0..1500 {
        random = random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        let block = (random >> 33) % 40;
        assert_holds(&mut world, &volume, block..block + 1);
        world.pass(10);
    }
    let report = world.host.scrub();
    assert_eq!(damaged(&world), (0, 0));
    assert!(report.passes > 3, "{report:?}");
}

#[test]
fn damage_is_found_after_the_cache_went_to_the_next_program() {
    let (mut world, volume) = stored(12, 0);
    assert_holds(&mut world, &volume, 0..12);
    let listed = world.host.list_cache().expect("it is recovered");
    let at = place_in_cache(&world, 3);
    let mut env = world.hand_over();
    env.continues = Some(Continuation {
        cache_follows: true,
        ..env.continues.take().expect("it goes on")
    });
    let mut world = start(env, SECOND_NS);
    assert!(world.host.restore_cache(&listed).expect("it fits") >= 12);
    let volume = world.open("demo");
    world.pass(ROUNDS_MS);
    assert_eq!(damaged(&world), (0, 0));
    flip(&mut world, at);
    world.pass(ROUNDS_MS);
    assert_eq!(damaged(&world), (1, 0));
    assert_holds(&mut world, &volume, 0..12);
}

/// A volume with so many blocks that are in the store and in the log, which has room for few more.
fn synced(blocks: u64) -> (World, Volume) {
    let mut world = start(Environment::default(), SECOND_NS);
    world.create("demo", 1024 * MIB);
    let volume = world.open("demo");
    write_all(&mut world, &volume, blocks, 1);
    (world, volume)
}

fn write_all(world: &mut World, volume: &Volume, blocks: u64, fill: u8) {
    for block in 0..blocks {
        world.write(volume, block * APART, fill + block as u8, BLOCK);
    }
    world.sync(volume);
}

/// Where the log has a block, and nothing else.
fn place_in_log(volume: &Volume, block: u64) -> Option<u64> {
    place_of_sector(volume, block * APART)
}

fn place_of_sector(volume: &Volume, sector: u64) -> Option<u64> {
    let op = Op::Read { sector, sectors: 8 };
    let Step::Read(plan) = volume.begin(&op, &waker()) else {
        return None;
    };
    match plan.pieces()[0].place {
        Place::At {
            file: FileId::LOG,
            offset,
        } => Some(offset),
        _ => None,
    }
}

#[test]
fn damaged_bytes_of_the_log_that_the_store_has_are_found_and_read_from_there() {
    let (mut world, volume) = synced(12);
    let at = place_in_log(&volume, 3).expect("it is in the log");
    world.env.files.get_mut(&FileId::LOG).expect("it is there")[at as usize + 5000] ^= 1;
    world.pass(ROUNDS_MS);
    assert_eq!(world.host.scrub().damaged.log, 1);
    world.env.requests.clear();
    assert_holds(&mut world, &volume, 0..12);
    assert_eq!(pack_reads(&world), 1, "{:?}", world.env.requests);
    // The blocks beside the damaged one are read from the log as before.
    assert_eq!(place_in_log(&volume, 3), Some(at));
    world.pass(ROUNDS_MS);
    assert_eq!(world.host.scrub().damaged.log, 1);
    assert!(world.host.scrub().passes > 1);
}

#[test]
fn a_place_of_the_log_that_cannot_be_read_is_read_from_the_store_once_it_was_scrubbed() {
    let (mut world, volume) = synced(12);
    let places = |volume: &Volume| {
        let sectors = (0..16).map(|nth| 3 * APART + nth * 8);
        sectors
            .map(|sector| place_of_sector(volume, sector))
            .collect::<Vec<_>>()
    };
    let before = places(&volume);
    let bad = before[4].expect("it is in the log");
    world.env.unreadable.push(bad..bad + 4096);
    world.pass(ROUNDS_MS);
    assert_eq!(world.host.scrub().damaged.log, 1);
    // The blocks beside it are read from the log as before.
    let after = places(&volume);
    assert_eq!((&after[..4], &after[5..]), (&before[..4], &before[5..]));
    assert_ne!(after[4], before[4]);
    world.env.requests.clear();
    assert_holds(&mut world, &volume, 0..12);
    assert_eq!(pack_reads(&world), 1, "{:?}", world.env.requests);
    world.pass(ROUNDS_MS);
    assert_eq!(world.host.scrub().damaged.log, 1);
    assert!(world.host.scrub().passes > 1);
}

/// The disk gives nothing for longer than a scrub tries, and then for a moment, again and again.
fn fail_for_a_while(world: &mut World, set: fn(&mut Environment, Vec<std::ops::Range<u64>>)) {
    let all = || -> Vec<_> { std::iter::once(0..u64::MAX).collect() };
    let nothing = volume::ScrubCounts::default();
    set(&mut world.env, all());
    world.pass(ROUNDS_MS);
    assert_eq!(world.host.scrub().damaged, nothing);
    let before = world.host.scrub().passes;
    world.pass(ROUNDS_MS);
    // What was left out was not read.
    assert_eq!(world.host.scrub().passes, before);
    for _ in 0..20 {
        set(&mut world.env, Vec::new());
        world.pass(700);
        set(&mut world.env, all());
        world.pass(350);
    }
    set(&mut world.env, Vec::new());
    world.pass(2 * ROUNDS_MS);
    let report = world.host.scrub();
    assert_eq!(report.damaged, nothing);
    assert!(report.passes > before, "{report:?}");
}

fn fail_reads_of_the_log_for_a_while() {
    let (mut world, volume) = synced(12);
    world.pass(ROUNDS_MS);
    fail_for_a_while(&mut world, |env, unreadable| env.unreadable = unreadable);
    for block in 0..12 {
        assert!(place_in_log(&volume, block).is_some(), "block {block}");
    }
    assert_holds(&mut world, &volume, 0..12);
}

#[test]
fn reads_of_the_log_that_fail_for_a_while_give_up_nothing() {
    fail_reads_of_the_log_for_a_while();
}

#[test]
fn reads_of_the_cache_that_fail_for_a_while_give_up_nothing_and_a_place_that_fails_is_given_up() {
    let (mut world, volume) = stored(12, SECOND_NS);
    assert_holds(&mut world, &volume, 0..12);
    world.pass(ROUNDS_MS);
    fail_for_a_while(&mut world, |env, unreadable| {
        env.unreadable_cache = unreadable;
    });
    let at = place_in_cache(&world, 3) as u64;
    world.env.unreadable_cache.push(at..at + 4096);
    world.pass(ROUNDS_MS);
    assert_eq!(damaged(&world), (1, 0));
    world.env.requests.clear();
    assert_holds(&mut world, &volume, 0..12);
    assert_eq!(pack_reads(&world), 1, "{:?}", world.env.requests);
}

#[test]
fn a_block_of_the_log_that_fails_in_one_of_two_reads_is_not_given_up() {
    let (mut world, volume) = synced(12);
    let sectors = (0..12 * 16).map(|nth| nth / 16 * APART + nth % 16 * 8);
    let places: Vec<_> = sectors
        .map(|sector| place_of_sector(&volume, sector).expect("it is in the log"))
        .collect();
    // Every other block of the log.
    let flip = |world: &mut World, odd: u64| {
        let log = world.env.files.get_mut(&FileId::LOG).expect("it is there");
        for at in places.iter().filter(|at| **at / 4096 % 2 == odd) {
            log[*at as usize + 7] ^= 1;
        }
    };
    world.hold_reads_of = Some(FileId::LOG);
    world.pass(3000);
    flip(&mut world, 0);
    assert!(world.do_held_reads() > 0, "the scrub is at work");
    flip(&mut world, 0);
    world.pass(10);
    flip(&mut world, 1);
    assert!(world.do_held_reads() > 0, "it reads what failed once more");
    flip(&mut world, 1);
    world.hold_reads_of = None;
    world.pass(ROUNDS_MS);
    world.do_held_reads();
    world.pass(ROUNDS_MS);
    let report = world.host.scrub();
    assert_eq!(report.damaged, volume::ScrubCounts::default());
    assert!(report.passes > 0, "{report:?}");
}

#[test]
fn what_has_no_checksum_takes_its_part_of_the_time_and_the_first_pass_counts() {
    let mut world = start(Environment::default(), 0);
    world.create("demo", 2048 * MIB);
    let volume = world.open("demo");
    for block in 0..400 {
        world.write(&volume, block * APART, block as u8, 4096);
        if block % 50 == 49 {
            world.sync(&volume);
        }
    }
    assert!(world.host.set_scrub_interval(100 * SECOND_NS));
    // It waits a minute before it begins, and has to pause several times then.
    world.pass(100_000);
    assert_eq!(world.host.scrub().passes, 0);
    world.pass(100_000);
    let report = world.host.scrub();
    assert_eq!((report.passes, report.read_bytes.log), (1, 0), "{report:?}");
}

#[test]
fn bytes_of_the_log_that_the_store_has_not_are_not_scrubbed() {
    let (mut world, volume) = synced(4);
    world.write(&volume, 0, 200, BLOCK);
    let at = place_in_log(&volume, 0).expect("it is in the log");
    world.env.files.get_mut(&FileId::LOG).expect("it is there")[at as usize] ^= 1;
    world.pass(1000);
    assert_eq!(world.host.scrub().damaged.log, 0);
    assert_eq!(
        world.read(&volume, 0, 4096)[0],
        201,
        "there is nothing else"
    );
}

#[test]
fn a_scrub_beside_writes_that_use_the_log_again_gives_up_nothing_that_is_right() {
    let (mut world, volume) = synced(12);
    for round in 0..60 {
        // The scrub has asked for a place, and reads it when other things stand there.
        world.hold_reads_of = (round % 3 == 0).then_some(FileId::LOG);
        world.pass(300);
        world.hold_reads_of = None;
        write_all(&mut world, &volume, 12, round);
        if round % 3 == 2 {
            world.do_held_reads();
        }
        for block in 0..12 {
            let found = world.read_fill(&volume, block * APART, BLOCK);
            assert_eq!(found, round + block as u8, "block {block}");
        }
    }
    let report = world.host.scrub();
    assert_eq!(report.damaged, volume::ScrubCounts::default());
    assert!(report.read_bytes.log > 12 * BLOCK as u64, "{report:?}");
}

#[test]
fn what_was_packed_while_the_scrub_was_off_is_not_judged_by_what_stood_there_before() {
    let (mut world, volume) = synced(12);
    // All of the log, and then as much again.
    for round in 0..8 {
        write_all(&mut world, &volume, 12, round);
    }
    assert!(world.host.set_scrub_interval(0));
    for round in 8..16 {
        write_all(&mut world, &volume, 12, round);
    }
    assert!(world.host.set_scrub_interval(SECOND_NS));
    world.pass(ROUNDS_MS);
    let report = world.host.scrub();
    assert_eq!(report.damaged, volume::ScrubCounts::default());
    assert!(report.passes > 0);
}

#[test]
#[cfg(feature = "planted")]
fn each_planted_bug_of_the_scrub_is_seen() {
    let cases: [(&str, fn()); 5] = [
        (
            "scrub_takes_an_outage_for_damage",
            fail_reads_of_the_log_for_a_while,
        ),
        (
            "scrub_keeps_what_it_found",
            damaged_bytes_of_the_log_that_the_store_has_are_found_and_read_from_there,
        ),
        (
            "checksums_outlive_their_segment",
            what_was_packed_while_the_scrub_was_off_is_not_judged_by_what_stood_there_before,
        ),
        (
            "scrub_keeps_what_it_found",
            a_damaged_chunk_of_the_cache_is_found_and_read_from_the_store,
        ),
        ("scrub_pins_nothing", evict_below_a_scrub),
    ];
    for (bug, test) in cases {
        let seen = std::panic::catch_unwind(|| canary::with(bug, test)).is_err();
        assert!(seen, "{bug} is not seen");
    }
}
