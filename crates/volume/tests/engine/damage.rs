//! What is damaged or gone costs its own range and nothing else: a block of the log, a pack, an object
//! of the index. And what footers alone say about packs that no root ever named.
//!
//! With the feature `planted` each of these tests also runs with the bug that it is there for.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;

use blkmq::error::ErrorKind;
use blkmq::io::{Backend, FileId, Op, Place, Plan, Step};
use volume::object::pack::{self, Item, Section};
use volume::{OpenError, Volume};

use crate::support::hosts::taken_over;
use crate::support::{Environment, World, waker, with_volume};

fn try_read(world: &mut World, volume: &Volume, sector: u64) -> Result<u8, ErrorKind> {
    let mut data = [0xee; 4096];
    let op = Op::Read { sector, sectors: 8 };
    world.request(volume, op, &mut data)?;
    assert!(data.iter().all(|byte| *byte == data[0]), "mixed content");
    Ok(data[0])
}

/// Where the log holds the block at `sector`.
fn place_of(volume: &Volume, sector: u64) -> u64 {
    let op = Op::Read { sector, sectors: 8 };
    let Step::Read(plan) = volume.begin(&op, &waker()) else {
        panic!("it is in the log")
    };
    match plan.pieces()[0].place {
        Place::At {
            file: FileId::LOG,
            offset,
        } => offset,
        other => panic!("it is in the log: {other:?}"),
    }
}

/// Sixteen blocks side by side, of which the log loses the sixth.
fn with_unreadable_block() -> (World, Volume) {
    let (mut world, volume) = with_volume();
    for block in 0..16 {
        world.write(&volume, block * 8, block as u8 + 1, 4096);
    }
    world.flush(&volume);
    let bad = place_of(&volume, 5 * 8);
    world.env.unreadable.push(bad..bad + 4096);
    (world, volume)
}

fn assert_only_the_sixth_is_lost(world: &mut World, volume: &Volume) {
    for block in 0..16 {
        let expected = match block {
            5 => Err(ErrorKind::Io),
            _ => Ok(block as u8 + 1),
        };
        assert_eq!(try_read(world, volume, block * 8), expected, "{block}");
    }
}

#[test]
fn an_unreadable_block_of_the_log_is_stored_as_damaged_and_everything_else_goes_on() {
    let (mut world, volume) = with_unreadable_block();
    world.sync(&volume);
    assert_eq!(volume.damaged_bytes(), 4096);
    assert_eq!(volume.watermarks().stored.lsn, volume.newest());
    // Whatever the disk gives for it later.
    world.env.unreadable.clear();
    assert_only_the_sixth_is_lost(&mut world, &volume);
    let (mut other, theirs) = taken_over(&world);
    assert_only_the_sixth_is_lost(&mut other, &theirs);
    // Written again, it is whole again, here and elsewhere.
    other.write(&theirs, 5 * 8, 6, 4096);
    assert_eq!(try_read(&mut other, &theirs, 5 * 8), Ok(6));
    other.sync(&theirs);
    let (mut third, theirs) = taken_over(&other);
    assert_eq!(try_read(&mut third, &theirs, 5 * 8), Ok(6));
}

#[test]
fn what_was_stored_as_damaged_stays_so_over_a_power_cut_and_a_fold() {
    let (mut world, volume) = with_unreadable_block();
    world.sync(&volume);
    let mut env = world.kill();
    env.unreadable.clear();
    env.boot += 1;
    env.rings.lose_all();
    let mut world = World::start(env);
    let volume = world.open("demo");
    assert_only_the_sixth_is_lost(&mut world, &volume);
    for round in 0..10 {
        world.write(&volume, 4096, round, 4096);
        world.sync(&volume);
    }
    assert_only_the_sixth_is_lost(&mut world, &volume);
    let (mut other, theirs) = taken_over(&world);
    assert_only_the_sixth_is_lost(&mut other, &theirs);
}

#[test]
fn part_of_a_block_that_was_written_over_is_not_lost_with_the_rest() {
    let (mut world, volume) = with_unreadable_block();
    world.write(&volume, 5 * 8 + 2, 77, 512);
    world.sync(&volume);
    let (mut other, theirs) = taken_over(&world);
    assert_eq!(other.read_fill(&theirs, 5 * 8 + 2, 512), 77);
    assert_eq!(try_read(&mut other, &theirs, 5 * 8), Err(ErrorKind::Io));
    assert_eq!(other.read_fill(&theirs, 6 * 8, 4096), 7);
    assert_eq!(volume.damaged_bytes(), 7 * 512);
}

#[test]
fn a_read_of_the_log_that_fails_for_a_while_gives_nothing_up() {
    let (mut world, volume) = with_unreadable_block();
    let answer = world.host.sync(&volume);
    world.pass(3000);
    world.env.unreadable.clear();
    world.wait(|_| answer.try_take()).expect("synced");
    assert_eq!(volume.damaged_bytes(), 0);
    // A disk that answers nothing at all is waited for.
    world.write(&volume, 0, 99, 4096);
    world.env.unreadable.push(0..u64::MAX);
    let answer = world.host.sync(&volume);
    world.pass(60_000);
    assert!(answer.try_take().is_none(), "nothing is stored meanwhile");
    world.env.unreadable.clear();
    world.wait(|_| answer.try_take()).expect("synced");
    assert_eq!(volume.damaged_bytes(), 0);
    let (mut other, theirs) = taken_over(&world);
    assert_eq!(try_read(&mut other, &theirs, 0), Ok(99));
    assert_eq!(try_read(&mut other, &theirs, 40), Ok(6));
}

/// Closes the volume, damages the store with `damage`, and opens the volume again.
fn reopened(mut world: World, volume: &Volume, damage: impl FnOnce(&mut World)) -> (World, Volume) {
    let answer = world.host.close_volume(volume);
    world.wait(|_| answer.try_take()).expect("closed");
    damage(&mut world);
    let mut world = World::start(world.kill());
    let volume = world
        .try_open("demo", false)
        .expect("it opens all the same");
    (world, volume)
}

fn keys(world: &World, prefix: &str) -> Vec<String> {
    let all = world.env.objects.keys();
    all.filter(|key| key.starts_with(prefix)).cloned().collect()
}

#[test]
fn a_volume_whose_pack_is_gone_opens_and_fails_reads_of_that_range_alone() {
    let (mut world, volume) = with_volume();
    world.write(&volume, 0, 1, 4096);
    world.write(&volume, 80, 2, 4096);
    world.sync(&volume);
    let gone = keys(&world, "packs/");
    assert_eq!(gone.len(), 1);
    world.write(&volume, 40, 3, 4096);
    world.write(&volume, 8000, 4, 4096);
    world.sync(&volume);
    let mut taken = None;
    let (mut world, volume) = reopened(world, &volume, |world| {
        taken = world.env.objects.remove(&gone[0]);
    });
    assert_eq!(try_read(&mut world, &volume, 0), Err(ErrorKind::Io));
    assert_eq!(try_read(&mut world, &volume, 80), Err(ErrorKind::Io));
    assert_eq!(try_read(&mut world, &volume, 40), Ok(3), "it is newer");
    assert_eq!(try_read(&mut world, &volume, 8000), Ok(4));
    assert_eq!(try_read(&mut world, &volume, 16_000), Ok(0));
    for round in 10..20 {
        world.write(&volume, 80, round, 4096);
        world.sync(&volume);
    }
    assert_eq!(try_read(&mut world, &volume, 80), Ok(19));
    assert_eq!(try_read(&mut world, &volume, 0), Err(ErrorKind::Io));
    // Once it is put back, the volume is whole, with what was written meanwhile.
    let (mut world, volume) = reopened(world, &volume, |world| {
        let object = taken.expect("it was there");
        world.env.objects.insert(gone[0].clone(), object);
    });
    for (sector, fill) in [(0, 1), (80, 19), (40, 3), (8000, 4)] {
        assert_eq!(try_read(&mut world, &volume, sector), Ok(fill), "{sector}");
    }
}

#[test]
fn a_volume_whose_index_objects_are_gone_or_damaged_opens_and_takes_writes() {
    for damaged in [false, true] {
        let (mut world, volume) = with_volume();
        for round in 0..6 {
            world.write(&volume, round * 8, round as u8 + 1, 4096);
            world.sync(&volume);
        }
        let (mut world, volume) = reopened(world, &volume, |world| {
            for key in keys(world, "indexes/") {
                if damaged {
                    let (bytes, _) = world.env.objects.get_mut(&key).expect("listed");
                    bytes.iter_mut().for_each(|byte| *byte ^= 0x55);
                } else {
                    world.env.objects.remove(&key);
                }
            }
        });
        let lost = try_read(&mut world, &volume, 0);
        assert_eq!(lost, Err(ErrorKind::Io), "never zeroes");
        for round in 0..10 {
            world.write(&volume, 0, 50 + round, 4096);
            world.sync(&volume);
        }
        assert_eq!(try_read(&mut world, &volume, 0), Ok(59));
        assert_eq!(try_read(&mut world, &volume, 16), Err(ErrorKind::Io));
    }
}

#[test]
fn index_blocks_and_footers_that_the_line_damages_once_are_read_again() {
    let (mut world, volume) = with_volume();
    for round in 0..40 {
        world.write(&volume, round * 8, round as u8 + 1, 4096);
        world.sync(&volume);
    }
    world.pass(1000);
    assert!(!keys(&world, "indexes/").is_empty(), "it was folded");
    let objects = world.env.objects.clone();
    let seen: Mutex<BTreeSet<(String, u64)>> = Mutex::default();
    let versions = world.env.versions + 5000;
    let stored = objects.clone();
    // Chunks are another matter: of a footer the last bytes are asked for.
    let generate = move |key: &str, offset: u64, len: u64| {
        let (data, _) = stored.get(key)?;
        let end = (offset + len) as usize;
        let of_index = key.starts_with("indexes/") || end == data.len();
        let mut found = data.get(offset as usize..end)?.to_vec();
        let mut seen = seen.lock().expect("no panics");
        let is_first = of_index && seen.insert((key.to_owned(), offset));
        found[len as usize / 2] ^= u8::from(is_first);
        Some(found)
    };
    let mut world = World::start(Environment {
        objects,
        versions,
        generated: Some(Box::new(generate)),
        ..Environment::default()
    });
    let volume = world.try_open("demo", true).expect("taken over");
    for block in 0..40 {
        assert_eq!(
            try_read(&mut world, &volume, block * 8),
            Ok(block as u8 + 1)
        );
    }
}

fn sections(world: &World) -> BTreeMap<String, Vec<Section>> {
    let packs = world.env.objects.iter();
    packs
        .filter(|(key, _)| key.starts_with("packs/"))
        .map(|(key, (bytes, _))| (key.clone(), pack::decode(bytes).expect("a pack").sections))
        .collect()
}

#[test]
fn footers_alone_tell_what_a_fenced_host_left_from_what_its_successor_wrote() {
    let (mut a, volume) = with_volume();
    a.write(&volume, 0, 1, 4096);
    a.sync(&volume);
    let (mut b, theirs) = taken_over(&a);
    // Both go on from LSN 1, with the same numbers for other bytes.
    for block in 1..4 {
        a.write(&volume, block * 8, 10, 4096);
        b.write(&theirs, block * 8, 20, 4096);
    }
    b.sync(&theirs);
    let before = sections(&b);
    a.env.objects = b.env.objects.clone();
    let answer = a.host.sync(&volume);
    let fenced = a.wait(|_| answer.try_take());
    assert!(matches!(fenced, Err(OpenError::Fenced(_))));
    let all = sections(&a);
    assert_eq!(
        all.len(),
        before.len() + 1,
        "its pack was sent and never named"
    );
    let slices: Vec<_> = all
        .values()
        .flatten()
        .map(|section| section.slice.clone())
        .collect();
    let is_void = |section: &Section| {
        let older = &section.slice;
        let voided = |newer: &pack::Slice| {
            newer.origin == older.origin && newer.epoch > older.epoch && older.last >= newer.first
        };
        slices.iter().any(voided)
    };
    for (key, sections) in &all {
        for section in sections {
            assert_eq!(is_void(section), !before.contains_key(key), "{section:?}");
            let lsns = section.items.iter().map(|item| match item {
                Item::Chunk(chunk) => chunk.lsn,
                Item::Zeroes { lsn, .. } => *lsn,
            });
            assert!(lsns.max() <= Some(section.slice.last));
        }
    }
}

#[cfg(feature = "planted")]
#[test]
fn each_planted_bug_is_seen_by_its_test() {
    canary::each_is_seen(&[
        (
            "unreadable_block_stops_uploads",
            an_unreadable_block_of_the_log_is_stored_as_damaged_and_everything_else_goes_on,
        ),
        (
            "unreadable_block_is_zeroes",
            what_was_stored_as_damaged_stays_so_over_a_power_cut_and_a_fold,
        ),
        (
            "lost_pack_keeps_volume_closed",
            a_volume_whose_pack_is_gone_opens_and_fails_reads_of_that_range_alone,
        ),
        (
            "damaged_blocks_are_read_once",
            index_blocks_and_footers_that_the_line_damages_once_are_read_again,
        ),
        (
            "slices_of_one_epoch",
            footers_alone_tell_what_a_fenced_host_left_from_what_its_successor_wrote,
        ),
    ]);
}
