//! What a volume says of a range without reading it: never that something is a hole which is not.
//!
//! With the feature `planted` the first of these tests also runs with the bug that it is there for.

use blkmq::error::ErrorKind;
use blkmq::io::{Backend, Op, Step};
use volume::{Options, Volume};

use crate::support::{Environment, World, waker};

const VOLUME_BYTES: u64 = 1 << 40;
const MIB: u64 = 2048;

fn start(env: Environment) -> World {
    let options = Options {
        log_bytes: 64 << 20,
        segment_bytes: 1 << 20,
        memory_bytes: 16 << 20,
        cache_bytes: 0,
        deltas_max: 1,
        ..Options::default()
    };
    World::try_start(env, options).unwrap_or_else(|e| panic!("{}", e.0))
}

fn zero(world: &mut World, volume: &Volume, sector: u64, sectors: u64) {
    let op = Op::Discard {
        sector,
        sectors,
        fua: false,
    };
    world.request(volume, op, &mut []).expect("discarded");
}

/// One answer: sectors, allocated, dirty.
fn answer(world: &mut World, volume: &Volume, sector: u64, sectors: u64) -> Vec<(u64, bool, bool)> {
    for _ in 0..100 {
        match volume.begin(&Op::Status { sector, sectors }, &waker()) {
            Step::Status(extents) => {
                let extents = extents.iter();
                return extents.map(|e| (e.sectors, e.allocated, e.dirty)).collect();
            }
            Step::Park(_) => world.run_until_idle(),
            step => panic!("{step:?}"),
        }
        world.pass(10);
    }
    panic!("parked for ever")
}

/// Asks on until the range is covered, and joins what is alike.
fn status(world: &mut World, volume: &Volume, sector: u64, sectors: u64) -> Vec<(u64, bool, bool)> {
    let mut all: Vec<(u64, bool, bool)> = Vec::new();
    let mut at = sector;
    while at < sector + sectors {
        for (length, allocated, dirty) in answer(world, volume, at, sector + sectors - at) {
            at += length;
            match all.last_mut() {
                Some(last) if (last.1, last.2) == (allocated, dirty) => last.0 += length,
                _ => all.push((length, allocated, dirty)),
            }
        }
    }
    assert_eq!(at, sector + sectors, "covers more than was asked for");
    all
}

/// A volume with 1 MiB at 0, 1 MiB at 64 GiB, all in the store, on a host that has nothing of it.
fn cold_volume() -> (World, Volume) {
    let mut world = start(Environment::default());
    world.create("disk", VOLUME_BYTES);
    let volume = world.open("disk");
    world.write(&volume, 0, 0x11, 1 << 20);
    world.write(&volume, 64 * 1024 * MIB, 0x22, 1 << 20);
    world.sync(&volume);
    world.write(&volume, 64 * 1024 * MIB, 0x33, 1 << 20);
    world.sync(&volume);
    // All of it is in pages, which a host that opens the volume has not read.
    world.pass(2000);
    let closed = world.host.close_volume(&volume);
    world.wait(|_| closed.try_take()).expect("closed");
    drop(volume);
    let mut left = world.kill();
    left.files.clear();
    left.rings.lose_all();
    let mut world = start(left);
    let volume = world.open("disk");
    (world, volume)
}

#[test]
fn what_is_only_in_the_store_is_never_called_a_hole() {
    let (mut world, volume) = cold_volume();
    let all = status(&mut world, &volume, 0, VOLUME_BYTES / 512);
    let far = 64 * 1024 * MIB;
    let want = [
        (MIB, true, false),
        (far - MIB, false, false),
        (MIB, true, false),
        (VOLUME_BYTES / 512 - far - MIB, false, false),
    ];
    assert_eq!(all, want);
}

#[test]
fn status_tells_holes_from_content_and_dirty_from_stored() {
    let mut world = start(Environment::default());
    world.create("disk", VOLUME_BYTES);
    let volume = world.open("disk");
    world.write(&volume, 0, 0x11, 2 << 20);
    world.sync(&volume);
    world.write(&volume, 8, 0x22, 4096);
    zero(&mut world, &volume, MIB, MIB / 2);
    let want = [
        (8, true, false),
        (8, true, true),
        (MIB - 16, true, false),
        (MIB / 2, false, true),
        (MIB / 2, true, false),
        (MIB, false, false),
    ];
    assert_eq!(status(&mut world, &volume, 0, 3 * MIB), want);
    world.sync(&volume);
    let want = [
        (MIB, true, false),
        (MIB / 2, false, false),
        (MIB / 2, true, false),
    ];
    assert_eq!(status(&mut world, &volume, 0, 2 * MIB), want);
}

#[test]
fn one_answer_about_a_fragmented_range_is_bounded() {
    let mut world = start(Environment::default());
    world.create("disk", VOLUME_BYTES);
    let volume = world.open("disk");
    for block in 0..3000 {
        world.write(&volume, block * 16, 0x11, 4096);
    }
    let first = answer(&mut world, &volume, 0, VOLUME_BYTES / 512);
    assert!(first.len() <= 2048, "{} extents at once", first.len());
    let all = status(&mut world, &volume, 0, 3000 * 16);
    assert_eq!(all.len(), 6000);
}

#[test]
fn a_range_outside_the_volume_is_refused_and_a_prefetch_within_it_is_not() {
    let (mut world, volume) = cold_volume();
    let (sector, sectors) = (VOLUME_BYTES / 512 - 8, 16);
    let step = volume.begin(&Op::Status { sector, sectors }, &waker());
    assert!(
        matches!(step, Step::Done(Err(ErrorKind::Invalid))),
        "{step:?}"
    );
    let step = volume.begin(&Op::Prefetch { sector, sectors }, &waker());
    assert!(
        matches!(step, Step::Done(Err(ErrorKind::Invalid))),
        "{step:?}"
    );
    let op = Op::Prefetch {
        sector: 0,
        sectors: MIB,
    };
    let step = volume.begin(&op, &waker());
    assert!(matches!(step, Step::Done(Ok(()))), "{step:?}");
    world.pass(1000);
    let op = Op::Read {
        sector: 0,
        sectors: 2048,
    };
    let step = volume.begin(&op, &waker());
    assert!(matches!(step, Step::Read(_)), "was not fetched: {step:?}");
}

#[cfg(feature = "planted")]
#[test]
fn each_planted_bug_is_seen_by_its_test() {
    canary::each_is_seen(&[(
        "status_guesses_holes",
        what_is_only_in_the_store_is_never_called_a_hole,
    )]);
}
