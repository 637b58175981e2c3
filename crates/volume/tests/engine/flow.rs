//! The flow of slices to the store: in order, side by side, repeated alone, and what it means for
//! writers. The store is simulated in virtual time.

use std::collections::BTreeSet;

use blkmq::io::{Backend, Op, Step};
use volume::units::Lsn;
use volume::{Options, Volume};

use crate::support::{Environment, World, options, random_bytes, waker};

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

/// Slices of 256 KiB, and memory for eight packs of as much.
fn log_of_16_mib() -> Options {
    Options {
        log_bytes: 16 * MIB,
        ..options()
    }
}

fn with_volume() -> (World, Volume) {
    with_volume_of(log_of_16_mib())
}

fn with_volume_of(options: Options) -> (World, Volume) {
    let mut world = World::try_start(Environment::default(), options)
        .unwrap_or_else(|failed| panic!("{}", failed.0));
    world.create("demo", 64 * MIB);
    let volume = world.open("demo");
    (world, volume)
}

/// Bytes that do not compress, of their own for each `seed`.
/// Writes noise; false if it has to wait.
fn try_write(world: &mut World, volume: &Volume, sector: u64, data: &[u8]) -> bool {
    let op = Op::Write {
        sector,
        sectors: data.len() as u32 / 512,
        fua: false,
    };
    match volume.begin(&op, &waker()) {
        Step::Write(plan) => {
            use blkmq::io::{Place, Plan};
            for piece in plan.pieces() {
                let Place::At { file, offset } = piece.place else {
                    panic!("a hole");
                };
                world.put(
                    file,
                    offset,
                    &data[piece.at as usize..][..piece.len as usize],
                );
            }
            let done = volume.written(plan, Ok(()), &waker());
            assert!(matches!(done, Step::Done(Ok(()))));
            true
        }
        Step::Park(_) => false,
        other => panic!("there is no error here: {other:?}"),
    }
}

/// The first slice of a life goes alone; those after it go side by side.
fn store_first_slice(world: &mut World, volume: &Volume) {
    world.write(volume, 8192, 1, 4096);
    world.sync(volume);
}

/// Writes part after part of 64 KiB of random_bytes, each at its own place.
fn write_parts(world: &mut World, volume: &Volume, parts: std::ops::Range<u64>) {
    for part in parts {
        write_noise(world, volume, part * 128, part);
    }
}

fn write_noise(world: &mut World, volume: &Volume, sector: u64, seed: u64) {
    world.write_noise(volume, sector, seed, 64 * KIB);
}

/// Writes a mebibyte of noise: four slices.
fn write_four_slices(world: &mut World, volume: &Volume) {
    write_parts(world, volume, 0..16);
}

fn check_four_slices(world: &mut World, volume: &Volume) {
    for part in 0..16 {
        let found = world.read(volume, part * 128, 64 << 10);
        assert!(found == random_bytes(part, 64 * KIB), "part {part}");
    }
}

/// The volume as another host finds it in the store.
fn from_the_store_alone(world: World) -> (World, Volume) {
    let env = Environment {
        objects: world.kill().objects,
        versions: 90_000,
        ..Environment::default()
    };
    let mut world = World::start(env);
    let volume = world.try_open("demo", true).expect("opened");
    (world, volume)
}

#[test]
fn a_failed_put_is_repeated_alone() {
    let (mut world, volume) = with_volume();
    write_four_slices(&mut world, &volume);
    world.env.failing_puts = 2;
    world.sync(&volume);
    let keys = &world.env.put_keys;
    let names: BTreeSet<&String> = keys.iter().collect();
    assert_eq!((names.len(), keys.len()), (4, 6), "{keys:?}");
    let (mut world, volume) = from_the_store_alone(world);
    check_four_slices(&mut world, &volume);
}

#[test]
fn what_was_put_is_kept_however_often_publishing_fails() {
    let (mut world, volume) = with_volume();
    write_four_slices(&mut world, &volume);
    world.env.failing_creates = 23;
    let target = volume.newest();
    let answer = world.host.sync(&volume);
    for _ in 0..600 {
        world.pass(1000);
        if volume.watermarks().stored.lsn >= target {
            break;
        }
    }
    assert!(answer.try_take().expect("it ended").is_ok());
    assert_eq!(world.env.failing_creates, 0);
    assert_eq!(world.env.put_keys.len(), 4);
    let (mut world, volume) = from_the_store_alone(world);
    check_four_slices(&mut world, &volume);
}

#[test]
fn slices_go_side_by_side_and_are_stored_in_order() {
    let few_folds = Options {
        deltas_max: 8,
        ..log_of_16_mib()
    };
    let (mut world, volume) = with_volume_of(few_folds);
    store_first_slice(&mut world, &volume);
    let records = world.env.store_requests["create"];
    world.env.put_keys.clear();
    write_four_slices(&mut world, &volume);
    world.env.hanging_puts = 1;
    let answer = world.host.sync(&volume);
    world.pass(5000);
    assert_eq!(world.env.put_keys.len(), 3, "the others did not wait");
    assert_eq!(volume.watermarks().stored.lsn, Lsn(1), "but for its turn");
    world.answer_hanging_puts();
    world.pass(10);
    assert!(answer.try_take().expect("it ended").is_ok());
    let records = world.env.store_requests["create"] - records;
    assert_eq!(records, 1, "all that was ready went in one");
    let (mut world, volume) = from_the_store_alone(world);
    check_four_slices(&mut world, &volume);
}

#[test]
fn a_slow_slice_of_one_volume_holds_up_no_other() {
    let (mut world, slow) = with_volume();
    world.create("other", 64 * MIB);
    let other = world.open("other");
    store_first_slice(&mut world, &slow);
    // Memory for eight packs, and all that the slow volume may send hangs.
    write_four_slices(&mut world, &slow);
    write_parts(&mut world, &slow, 16..40);
    world.env.hanging_puts = 100;
    let answer = world.host.sync(&slow);
    world.pass(1000);
    world.env.hanging_puts = 0;
    for round in 0..20 {
        write_noise(&mut world, &other, round * 128, round);
        world.sync(&other);
    }
    assert!(answer.try_take().is_none());
    world.answer_hanging_puts();
    world.wait(|_| answer.try_take()).expect("synced");
}

#[test]
fn what_is_overwritten_within_a_slice_is_not_uploaded() {
    let (mut world, volume) = with_volume();
    for round in 0..32 {
        write_noise(&mut world, &volume, 0, round);
    }
    world.sync(&volume);
    let objects = &world.env.objects;
    let packs = objects.iter().filter(|(key, _)| key.starts_with("packs/"));
    let bytes: usize = packs.map(|(_, (data, _))| data.len()).sum();
    assert!(bytes < 70 << 10, "{bytes}");
}

#[test]
fn a_hot_set_of_several_slices_is_uploaded_once_and_not_once_a_slice() {
    let (mut world, volume) = with_volume();
    // Half a mebibyte, two slices, written over ten times before anything of it is asked for.
    let newest = |part: u64| 9 * 8 + part;
    for number in 0..80 {
        write_noise(&mut world, &volume, number % 8 * 128, number);
    }
    world.sync(&volume);
    let objects = &world.env.objects;
    let packs = objects.iter().filter(|(key, _)| key.starts_with("packs/"));
    let bytes: usize = packs.map(|(_, (data, _))| data.len()).sum();
    assert!(bytes < 800 << 10, "{bytes} bytes of packs for 512 KiB");
    let (mut world, volume) = from_the_store_alone(world);
    for part in 0..8 {
        let found = world.read(&volume, part * 128, 64 << 10);
        assert!(found == random_bytes(newest(part), 64 * KIB), "part {part}");
    }
}

#[test]
fn a_hot_set_that_grows_with_every_merge_of_it_is_cut_nevertheless() {
    let (mut world, volume) = with_volume();
    let mut number = 0;
    let mut write_slice = |world: &mut World| {
        for _ in 0..4 {
            write_noise(world, &volume, number % 4 * 128, number);
            number += 1;
        }
    };
    write_slice(&mut world);
    write_slice(&mut world);
    world.hold_merges = true;
    let target = volume.newest();
    let answer = world.host.sync(&volume);
    for _ in 0..40 {
        world.run_until_idle();
        write_slice(&mut world);
        world.do_held_merges();
    }
    world.pass(100);
    assert!(volume.watermarks().stored.lsn >= target, "never cut");
    assert!(answer.try_take().expect("it ended").is_ok());
}

#[test]
fn a_sync_hears_of_a_log_that_is_poisoned_while_a_hot_set_is_merged() {
    let (mut world, volume) = with_volume();
    for number in 0..16 {
        write_noise(&mut world, &volume, number % 4 * 128, number);
    }
    world.hold_merges = true;
    let answer = world.host.sync(&volume);
    world.run_until_idle();
    world.env.failing_syncs = 1;
    world.write(&volume, 0, 1, 4096);
    let flush = world.request(&volume, Op::Flush, &mut []);
    assert!(flush.is_err(), "the log is poisoned");
    world.do_held_merges();
    world.hold_merges = false;
    world.pass(5000);
    assert!(answer.try_take().is_some(), "never answered");
}

#[test]
fn nothing_is_uploaded_merely_because_much_is_dirty() {
    let (mut world, volume) = with_volume();
    // A third of the log, and far more than a few packs.
    for part in 0..64 {
        write_noise(&mut world, &volume, part * 128, part);
        world.pass(10);
    }
    world.pass(15_000);
    assert_eq!(world.env.put_keys.len(), 0);
    world.pass(20_000);
    assert_eq!(volume.watermarks().stored.lsn, volume.newest());
}

#[test]
fn each_published_slice_frees_its_part_of_the_log_at_once() {
    let (mut world, volume) = with_volume();
    // 32 slices at 256 KiB/s: a second each.
    world.env.store_bytes_per_s = 256 * KIB;
    write_parts(&mut world, &volume, 0..128);
    let answer = world.host.sync(&volume);
    let full = world.host.usage().pressure_permille;
    world.pass(18_000);
    let half = world.host.usage().pressure_permille;
    assert!(half * 10 < full * 6, "from {full} to {half} half-way");
    assert!(answer.try_take().is_none());
}

/// A writer that wants to write `offered` bytes a second of 16 KiB each, for so many seconds; how much
/// it wrote in each of them, and for how many ticks of 10 ms it wrote nothing, at most, after the eighth.
fn write_for(world: &mut World, volume: &Volume, seconds: u64, offered: u64) -> (Vec<u64>, usize) {
    let block = random_bytes(7, 16 * KIB);
    let (mut at, mut per_second) = (0, Vec::new());
    let (mut idle, mut longest) = (0, 0);
    for second in 0..seconds {
        let mut written = 0;
        for tick in 1..=100 {
            let before = written;
            while written < offered * tick / 100 {
                let mut data = block.clone();
                data[..8].copy_from_slice(&(second << 32 | written).to_le_bytes());
                if !try_write(world, volume, at % (32 * MIB / 512), &data) {
                    break;
                }
                at += 16 * KIB / 512;
                written += 16 * KIB;
                world.run_until_idle();
            }
            world.pass(10);
            idle = if written > before { 0 } else { idle + 1 };
            if second >= 8 {
                longest = longest.max(idle);
            }
        }
        per_second.push(written);
    }
    (per_second, longest)
}

#[test]
fn writers_are_paced_to_the_rate_of_commits_without_a_cliff() {
    let (mut world, volume) = with_volume();
    let rate = 2 * MIB;
    world.env.store_bytes_per_s = rate;
    world.env.store_ms = 50;
    let (seconds, idle) = write_for(&mut world, &volume, 40, 32 * MIB);
    println!("{seconds:?}, {idle} ticks without a write");
    // The log is half full before the first second ends.
    assert!(
        seconds[0] > 6 * MIB,
        "unpaced below half of it: {seconds:?}"
    );
    let paced = &seconds[8..];
    let mean = paced.iter().sum::<u64>() / paced.len() as u64;
    assert!(mean * 10 > rate * 9, "{mean} of {rate}: {seconds:?}");
    let slowest = *paced.iter().min().expect("not empty");
    assert!(slowest * 2 > mean, "{slowest} of {mean}: {seconds:?}");
    let falls = seconds
        .windows(2)
        .map(|pair| pair[1] as f64 / pair[0] as f64);
    let steepest = falls.skip(1).fold(f64::MAX, f64::min);
    assert!(steepest > 0.3, "{seconds:?}");
    assert!(idle <= 2, "{idle} ticks without a write: {seconds:?}");
}

#[test]
fn a_recovered_tail_is_uploaded_at_once() {
    let (mut world, volume) = with_volume();
    world.env.outage = true;
    write_four_slices(&mut world, &volume);
    let newest = volume.newest();
    drop(volume);
    let mut env = world.kill();
    env.outage = false;
    let mut world =
        World::try_start(env, log_of_16_mib()).unwrap_or_else(|failed| panic!("{}", failed.0));
    let volume = world.open("demo");
    world.pass(500);
    assert_eq!(volume.watermarks().stored.lsn, newest);
    check_four_slices(&mut world, &volume);
}

#[cfg(feature = "planted")]
#[test]
fn each_planted_bug_is_seen_by_its_test() {
    canary::each_is_seen(&[
        (
            "hot_sets_are_stored_once_a_slice",
            a_hot_set_of_several_slices_is_uploaded_once_and_not_once_a_slice,
        ),
        (
            "cuts_wait_for_a_hot_set",
            a_hot_set_that_grows_with_every_merge_of_it_is_cut_nevertheless,
        ),
        (
            "slices_are_published_out_of_order",
            slices_go_side_by_side_and_are_stored_in_order,
        ),
        (
            "one_volume_takes_all_memory",
            a_slow_slice_of_one_volume_holds_up_no_other,
        ),
        (
            "writers_run_into_a_full_log",
            writers_are_paced_to_the_rate_of_commits_without_a_cliff,
        ),
    ]);
}
