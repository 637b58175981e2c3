//! A server that is killed again and again, each time before all that its log held is in the store.
//!
//! A life ends after so many round trips to disk and store: what is judged does not depend on how
//! fast they are. With the feature `planted` each of these tests also runs with the bug that it is there for.

use std::sync::Arc;

use blkmq::error::ErrorKind;
use blkmq::io::{Backend, Op, Step};
use blkmq::{Admission, AdmittedRequest, Completer, Device, DeviceOptions, Kick};
use volume::driver::{Outcome, Request, RequestOp};
use volume::units::Now;
use volume::{OpenMode, Volume};

use crate::support::{Environment, World, waker};

const MIB: u64 = 1 << 20;
const NAMES: [&str; 4] = ["a", "b", "c", "d"];
const WRITE_BYTES: u64 = 32 << 10;

/// Writes these sectors; false if that has to wait.
fn try_write(volume: &Volume, sector: u64, bytes: u64) -> bool {
    let op = Op::Write {
        sector,
        sectors: (bytes / 512) as u32,
        fua: false,
    };
    match volume.begin(&op, &waker()) {
        Step::Write(plan) => {
            let done = volume.written(plan, Ok(()), &waker());
            assert!(matches!(done, Step::Done(Ok(()))));
            true
        }
        Step::Park(_) => false,
        other => panic!("there is no error here: {other:?}"),
    }
}

/// Writes the next of the volume's places.
fn try_write_next(volume: &Volume, number: u64) -> bool {
    let places = 16 * MIB / WRITE_BYTES;
    try_write(volume, number % places * WRITE_BYTES / 512, WRITE_BYTES)
}

/// While the store is away, "c" writes more than its share of the log, until it is kept from the
/// rest of it, and "a" a block after each of its writes: no two of them are neighbours in the log.
/// Then the server is killed.
fn log_that_one_volume_fills() -> Environment {
    let mut world = World::new();
    let volumes = NAMES.map(|name| {
        world.create(name, 64 * MIB);
        world.open(name)
    });
    world.env.outage = true;
    let (mut number, mut waits) = (0, 0);
    while waits < 200 {
        if try_write_next(&volumes[2], number) {
            assert!(try_write(&volumes[0], 0, 4096), "a is below its share");
            (number, waits) = (number + 1, 0);
        } else {
            waits += 1;
        }
        world.pass(10);
    }
    assert!(number > 60, "it holds more than its share: {number}");
    world.flush(&volumes[2]);
    world.env.outage = false;
    world.kill()
}

/// One life of so many round trips, from when its volumes begin to open; how much each volume has written
/// in it. What they find in the log begins to go to the store at once.
fn live(env: Environment, round_trips: usize) -> (Environment, [u64; 4]) {
    let mut world = World::start(env);
    let opening = NAMES.map(|name| world.host.open_volume(name, OpenMode::default()));
    let mut volumes: [Option<Volume>; 4] = Default::default();
    let mut written = [0; 4];
    for _ in 0..round_trips {
        for ((opening, volume), written) in opening.iter().zip(&mut volumes).zip(&mut written) {
            let opened = opening.try_take().map(|opened| opened.expect("opened"));
            *volume = volume.take().or(opened);
            if let Some(volume) = volume {
                *written += u64::from(try_write_next(volume, *written));
            }
        }
        world.now_ns += 10_000_000;
        world.host.tick(Now {
            mono_ns: world.now_ns,
            unix_ms: 0,
        });
        let _ = world.host.run_jobs();
        let mut requests = world.host.take_requests();
        requests.extend(world.host.take_commit_requests());
        for Request { id, op } in requests {
            let outcome = match op {
                RequestOp::Disk(op) => Outcome::Disk(world.disk(op).map(Into::into)),
                RequestOp::Store(op) => Outcome::Store(world.store(op)),
                RequestOp::Compute(work) => crate::support::compute(work),
            };
            world.host.complete(id, outcome);
        }
    }
    (world.kill(), written)
}

/// A life of so many round trips is enough to open, and to bring something of each volume to the store.
const ROUND_TRIPS: usize = 120;
/// What each volume writes in two of them, at least: a log that is read at one place after the other leaves
/// time for half of that.
const WRITES_MIN: u64 = 16;

#[test]
fn every_volume_writes_within_any_two_lives_of_a_few_round_trips() {
    let mut env = log_that_one_volume_fills();
    let mut lives = Vec::new();
    for _ in 0..12 {
        let (left, written) = live(env, ROUND_TRIPS);
        env = left;
        lives.push(written);
    }
    for two in lives.windows(2) {
        for (volume, name) in NAMES.iter().enumerate() {
            let written = two[0][volume] + two[1][volume];
            assert!(
                written >= WRITES_MIN,
                "{name} wrote {written} times in two lives: {lives:?}"
            );
        }
    }
}

/// Each volume holds three slices that the store has nothing of.
fn log_of_several_slices_a_volume() -> Environment {
    let mut world = World::new();
    let volumes = NAMES.map(|name| {
        world.create(name, 64 * MIB);
        world.open(name)
    });
    world.env.outage = true;
    for number in 0..6 {
        for (at, volume) in volumes.iter().enumerate() {
            world.write_noise(volume, 128 * number, 4 * number + at as u64, 64 << 10);
        }
    }
    world.env.outage = false;
    world.kill()
}

/// A life of half a second; how far the store has each volume at its end.
fn live_for_half_a_second(env: Environment) -> (Environment, [u64; 4]) {
    let mut world = World::start(env);
    let end_ns = world.now_ns + 500_000_000;
    let opening = NAMES.map(|name| world.host.open_volume(name, OpenMode::default()));
    let volumes = opening.map(|volume| world.wait(|_| volume.try_take()).expect("opened"));
    let mut number = 0;
    while world.now_ns < end_ns {
        // What is written now is no reason to leave what was found.
        world.write_noise(&volumes[number as usize % 4], 2048, number, 4096);
        number += 1;
        world.pass(10);
    }
    let stored = volumes.each_ref().map(|v| v.watermarks().stored.lsn.0);
    (world.kill(), stored)
}

#[test]
fn killed_every_half_second_every_volumes_stored_lsn_goes_on() {
    let mut env = log_of_several_slices_a_volume();
    // All that a volume holds takes the store longer than a life, one slice of each does not.
    env.store_bytes_per_s = 2 * MIB;
    env.store_ms = 10;
    let mut before = [0; 4];
    for life in 0..3 {
        let (left, stored) = live_for_half_a_second(env);
        env = left;
        for (volume, name) in NAMES.iter().enumerate() {
            let (was, is) = (before[volume], stored[volume]);
            assert!(is > was, "{name} stood still at {was} in life {life}");
        }
        before = stored;
    }
}

#[test]
fn layers_whose_bytes_are_gone_are_found_with_those_that_hide_them() {
    let mut world = World::new();
    world.create("a", 64 * MIB);
    let volume = world.open("a");
    world.env.outage = true;
    const NUMBERS: u64 = 130;
    // Three slices, written over until the log has been round: what was hidden has died, and its
    // segments were used again. Small writes beside them, that few layers of are hidden at a time, keep
    // the layers from being merged before a cut.
    for number in 0..NUMBERS {
        world.write_noise(&volume, number % 6 * 128, number, 64 << 10);
        for nth in 0..4 {
            world.write_noise(&volume, 4096 + (number % 8 * 4 + nth) * 16, number, 4096);
        }
    }
    world.flush(&volume);
    let mut world = World::start(world.kill());
    world.env.outage = false;
    let layers = world.host.usage().layers;
    assert!(layers > 1, "all in {layers}");
    let volume = world.open("a");
    world.sync(&volume);
    world.env.rings.lose_all();
    world.env.files.clear();
    let mut world = World::start(world.kill());
    let volume = world.try_open("a", true).expect("from the store alone");
    for part in 0..6 {
        let newest = (0..NUMBERS).rev().find(|number| number % 6 == part);
        let wanted = crate::support::random_bytes(newest.expect("written"), 64 << 10);
        assert!(
            world.read(&volume, part * 128, 64 << 10) == wanted,
            "{part}"
        );
    }
}

/// Completions of a disk's queue; nothing waits for them.
struct Disk;

impl Completer<u64> for Disk {
    fn complete(&self, _: u64, result: Result<(), ErrorKind>) {
        assert_eq!(result, Ok(()));
    }
}

impl Kick for Disk {
    fn kick(&self) {}
}

fn the_oldest_waits_no_longer_than_others() {
    let env = log_that_one_volume_fills();
    let mut world = World::start(env);
    world.env.outage = true;
    let opened = world.host.open_unchecked("c", OpenMode::default());
    let volume = world.wait(|_| opened.try_take()).expect("it goes on");
    let device = Device::new("c", DeviceOptions::default());
    let mut queue = device.add_queue(16, Arc::new(Disk), Arc::new(Disk));
    let mut served = Vec::new();
    let mut try_one = |request: AdmittedRequest<u64>, volume: &Volume| {
        let op = Op::Write {
            sector: *request.payload() * 64,
            sectors: 64,
            fua: false,
        };
        match volume.begin(&op, request.waker()) {
            Step::Write(plan) => {
                let done = volume.written(plan, Ok(()), request.waker());
                assert!(matches!(done, Step::Done(Ok(()))));
                served.push(*request.payload());
                request.complete(Ok(()));
            }
            Step::Park(why) => request.park(why),
            other => panic!("there is no error here: {other:?}"),
        }
        served.len()
    };
    // Issued again to the server that came up, which has no room for any.
    for number in 0..12 {
        let Admission::Run(request) = queue.admit(number) else {
            panic!("there are tags")
        };
        assert_eq!(try_one(request, &volume), 0, "the log is full");
    }
    world.env.outage = false;
    let mut count = 0;
    for _ in 0..6000 {
        world.pass(10);
        queue.run(|request| count = try_one(request, &volume));
        if count == 12 {
            break;
        }
    }
    assert_eq!(served, Vec::from_iter(0..12));
}

#[test]
fn a_disk_that_is_back_serves_its_oldest_waiting_request_first() {
    the_oldest_waits_no_longer_than_others();
}

#[cfg(feature = "planted")]
#[test]
fn each_planted_bug_is_seen_by_its_test() {
    canary::each_is_seen(&[
        (
            "log_is_read_one_place_at_a_time",
            every_volume_writes_within_any_two_lives_of_a_few_round_trips,
        ),
        (
            "space_goes_to_the_newest",
            the_oldest_waits_no_longer_than_others,
        ),
    ]);
    let stored = killed_every_half_second_every_volumes_stored_lsn_goes_on;
    canary::each_is_seen(&[
        ("checkpoint_forgets_cuts", stored),
        ("recovered_tail_is_one_layer", stored),
        (
            "layers_outlive_their_bytes",
            layers_whose_bytes_are_gone_are_found_with_those_that_hide_them,
        ),
        (
            "cleaner_counts_its_reserve",
            layers_whose_bytes_are_gone_are_found_with_those_that_hide_them,
        ),
    ]);
}
