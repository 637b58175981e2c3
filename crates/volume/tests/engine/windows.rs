//! Narrow windows: between a commit and its answer, between a death and the next start.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::task::{Wake, Waker};

use blkmq::error::ErrorKind;
use blkmq::io::{Backend, Direction, FileId, MoveError, Op, Place, Plan, Step};
use bytes::Bytes;
use volume::driver::{DiskError, DiskOp, Outcome, Request, RequestOp};
use volume::{FailureKind, OpenError, Options};

use crate::support::{Environment, World, options, waker};

const GIB: u64 = 1 << 30;
/// Where the segments begin in the log of `crate::support::options`, behind superblocks and journal.
const SEGMENTS: u64 = 827_392;

/// Everything but the objects is lost; another host takes the volume over.
fn take_over_on_other_host(world: World) -> (World, volume::Volume) {
    let env = Environment {
        objects: world.kill().objects,
        versions: 100_000,
        ..Environment::default()
    };
    let mut world = World::start(env);
    let volume = world.try_open("demo", true).expect("taken over");
    (world, volume)
}

#[test]
fn a_root_that_took_effect_unseen_brings_back_no_discarded_bytes() {
    let mut world = World::new();
    world.create("demo", 64 * GIB);
    let volume = world.open("demo");
    // Another directory node than everything else here.
    let far = 16 * GIB / 512;
    for round in 0..4 {
        world.write(&volume, 0, round, 4096);
        world.sync(&volume);
    }
    // The next upload makes a fold due, and nobody hears that its root was written.
    world.write(&volume, far, 9, 4096);
    world.env.outage_after_update = true;
    world.sync(&volume);
    world.pass(15_000);
    assert!(world.env.outage, "the root was written");
    let discard = Op::Discard {
        sector: far,
        sectors: 8,
        fua: false,
    };
    world.request(&volume, discard, &mut []).expect("discarded");
    world.env.outage = false;
    world.sync(&volume);
    for round in 10..20 {
        world.write(&volume, 0, round, 4096);
        world.sync(&volume);
    }
    assert_eq!(world.read_fill(&volume, far, 4096), 0);
    let (mut world, volume) = take_over_on_other_host(world);
    assert_eq!(world.read_fill(&volume, 0, 4096), 19);
    assert_eq!(world.read_fill(&volume, far, 4096), 0);
}

#[test]
fn a_failed_sync_is_known_to_the_successor_though_the_mark_never_reached_the_disk() {
    let mut world = World::new();
    world.create("demo", GIB);
    let volume = world.open("demo");
    world.write(&volume, 0, 1, 4096);
    world.flush(&volume);
    world.write(&volume, 8, 2, 4096);
    let Step::Sync(_) = volume.begin(&Op::Flush, &waker()) else {
        panic!("there is something to make durable")
    };
    let sync = world.host.take_commit_requests();
    assert!(matches!(
        sync[..],
        [Request {
            op: RequestOp::Disk(DiskOp::Sync { .. }),
            ..
        }]
    ));
    let failed = Outcome::Disk(Err(DiskError::new("input/output error")));
    world.host.complete(sync[0].id, failed);
    // The process dies before it could write anything more.
    let mut world = World::start(world.kill());
    assert!(world.report.poisoned, "the ring says so");
    assert_eq!(world.report.rings_lost, ["demo"]);
    let volume = world.open("demo");
    assert_eq!(world.read_fill(&volume, 0, 4096), 1);
    assert_eq!(world.read_fill(&volume, 8, 4096), 0);
    let refused = world.request(&volume, Op::Flush, &mut []);
    assert_eq!(refused, Err(ErrorKind::Io));
    // And that one wrote the mark.
    let mut env = world.kill();
    (env.boot, env.rings) = (2, Default::default());
    let world = World::start(env);
    assert!(world.report.poisoned, "the log says so");
}

#[test]
fn a_volume_opened_on_a_poisoned_log_does_not_hide_that_from_the_next_start() {
    let mut world = World::new();
    world.create("demo", GIB);
    let volume = world.open("demo");
    world.write(&volume, 0, 1, 4096);
    world.flush(&volume);
    world.write(&volume, 8, 2, 4096);
    let superblocks = world.env.files[&FileId::LOG][..8192].to_vec();
    world.env.failing_syncs = 1;
    let refused = world.request(&volume, Op::Flush, &mut []);
    assert_eq!(refused, Err(ErrorKind::Io));
    for _ in 0..3 {
        let mut env = world.kill();
        // The mark does not last, as it may not on a disk that fails.
        let log = env.files.get_mut(&FileId::LOG).expect("the log");
        log[..8192].copy_from_slice(&superblocks);
        world = World::start(env);
        assert!(world.report.poisoned);
        world.open("demo");
    }
}

#[test]
fn a_sync_that_fails_during_recovery_is_never_tried_again() {
    let mut world = World::new();
    world.create("demo", GIB);
    let volume = world.open("demo");
    world.write(&volume, 0, 1, 4096);
    world.flush(&volume);
    world.write(&volume, 8, 2, 4096);
    // The first sync covers the dead process's bytes, the second what recovery wrote.
    for nth in [1, 2] {
        let mut env = Environment {
            files: world.env.files.clone(),
            objects: world.env.objects.clone(),
            rings: Arc::new(world.env.rings.copy()),
            versions: 500 * nth,
            ..Environment::default()
        };
        env.good_syncs = nth as usize - 1;
        env.failing_syncs = 1;
        let Err(failed) = World::try_start(env, options()) else {
            panic!("the log could not be made durable")
        };
        assert!(matches!(failed.0, OpenError::Disk(_)), "{}", failed.0);
        let mut world = World::start(failed.1);
        assert!(world.report.poisoned, "sync {nth}");
        let volume = world.open("demo");
        assert_eq!(world.read_fill(&volume, 0, 4096), 1);
        // With the first sync the bytes themselves may be gone.
        let lost = if nth == 1 { ["demo"].as_slice() } else { &[] };
        assert_eq!(world.report.rings_lost, lost);
        let expected = if nth == 1 { 0 } else { 2 };
        assert_eq!(world.read_fill(&volume, 8, 4096), expected);
        let refused = world.request(&volume, Op::Flush, &mut []);
        assert_eq!(refused, Err(ErrorKind::Io));
    }
}

#[test]
fn a_flush_waits_for_the_syncs_of_segment_headers_and_fails_if_one_of_them_fails() {
    let mut world = World::new();
    world.create("demo", 64 << 20);
    let volume = world.open("demo");
    // Writes use up the segments that are ready, until new headers are to be made durable.
    let mut held = None;
    for nth in 0..2000_u64 {
        let op = Op::Write {
            sector: nth * 128 % 65_536,
            sectors: 128,
            fua: false,
        };
        if let Step::Write(plan) = volume.begin(&op, &waker()) {
            let _ = volume.written(plan, Ok(()), &waker());
        }
        held = world.settle_up_to_a_sync_behind(SEGMENTS);
        if held.is_some() {
            break;
        }
    }
    let held = held.expect("headers are made durable");
    let write = Op::Write {
        sector: 0,
        sectors: 8,
        fua: false,
    };
    assert_eq!(world.request(&volume, write, &mut [7; 4096]), Ok(()));
    let Step::Sync(flush) = volume.begin(&Op::Flush, &waker()) else {
        panic!("there is something to make durable")
    };
    // A kernel reports that bytes did not reach the disk to one of the syncs in flight only: so
    // there must be no other. The one that fails is heard of at once, whatever the jobs do.
    let beside = world.host.take_commit_requests();
    assert!(beside.is_empty(), "{beside:?}");
    let failed = Outcome::Disk(Err(DiskError::new("input/output error")));
    world.host.complete(held, failed);
    for request in world.host.take_commit_requests() {
        world
            .host
            .complete(request.id, Outcome::Disk(Ok(Bytes::new())));
    }
    let answer = volume.poll_sync(flush, &waker());
    assert!(
        matches!(answer, Step::Done(Err(ErrorKind::Io))),
        "{answer:?}"
    );
    assert!(world.host.usage().poisoned);
    let refused = world.request(&volume, write, &mut [8; 4096]);
    assert_eq!(refused, Err(ErrorKind::Io));
}

#[test]
fn what_a_poisoned_log_has_durable_is_brought_to_the_store_and_given_back_for_a_new_log() {
    let mut world = World::new();
    world.create("demo", GIB);
    let volume = world.open("demo");
    for block in 0..20 {
        world.write(&volume, block * 8, block as u8 + 1, 4096);
    }
    world.flush(&volume);
    world.write(&volume, 0, 99, 4096);
    world.env.failing_syncs = 1;
    assert!(world.request(&volume, Op::Flush, &mut []).is_err());
    // A restart on the same log: it has what frames cover, and closing brings that to the store.
    let mut world = World::start(world.kill());
    assert!(world.report.poisoned);
    let volume = world.open("demo");
    let answer = world.host.close_volume(&volume);
    world.wait(|_| answer.try_take()).expect("closed");
    // A new log of another size; nobody holds the volume, so nothing is taken over.
    let env = Environment {
        objects: world.kill().objects,
        versions: 100_000,
        ..Environment::default()
    };
    let options = Options {
        log_bytes: 8 << 20,
        cache_bytes: 2 << 20,
        ..options()
    };
    let mut world = World::try_start(env, options).unwrap_or_else(|e| panic!("{}", e.0));
    let volume = world.try_open("demo", false).expect("it was given back");
    for block in 0..20 {
        assert_eq!(world.read_fill(&volume, block * 8, 4096), block as u8 + 1);
    }
    world.write(&volume, 0, 7, 4096);
    world.flush(&volume);
}

#[test]
fn a_superblock_whose_sync_failed_is_written_again_before_anything_rests_on_it() {
    let env = Environment {
        good_syncs: 1,
        failing_syncs: 1,
        ..Environment::default()
    };
    let Err(failed) = World::try_start(env, options()) else {
        panic!("the log could not be formatted")
    };
    let mut env = failed.1;
    // What can be read now may never have reached the disk.
    assert_eq!(&env.files[&FileId::LOG][..7], b"FIRNLOG");
    env.written.clear();
    let world = World::start(env);
    for offset in [0, 4096] {
        assert!(world.env.written.contains(&(FileId::LOG, offset)));
    }
}

#[test]
fn a_panic_inside_a_commit_fails_its_volume_and_loses_nothing_that_was_acknowledged() {
    let mut world = World::new();
    world.create("demo", GIB);
    world.create("other", GIB);
    let (volume, other) = (world.open("demo"), world.open("other"));
    world.write(&volume, 0, 1, 4096);
    world.write(&other, 0, 2, 4096);
    let write = Op::Write {
        sector: 8,
        sectors: 8,
        fua: false,
    };
    let Step::Write(plan) = volume.begin(&write, &waker()) else {
        panic!("there is room")
    };
    world.env.rings.set_trap();
    let commit = AssertUnwindSafe(|| drop(volume.written(plan, Ok(()), &waker())));
    assert!(catch_unwind(commit).is_err(), "the trap was not touched");
    // That volume says so from now on, whatever it is asked.
    let read = Op::Read {
        sector: 0,
        sectors: 8,
    };
    let mut data = [0; 4096];
    for op in [read, write, Op::Flush] {
        assert_eq!(
            world.request(&volume, op, &mut data),
            Err(ErrorKind::Io),
            "{op:?}"
        );
    }
    assert!(world.host.sync(&volume).try_take().is_none());
    world.pass(1000);
    // Others go on, until the journal must be written anew: what the failed one holds cannot be.
    world.write(&other, 8, 3, 4096);
    world.flush(&other);
    assert_eq!(world.read_fill(&other, 8, 4096), 3);
    let mut rounds = 0;
    let ended = loop {
        let fua = Op::Write {
            sector: 16,
            sectors: 8,
            fua: true,
        };
        match world.request(&other, fua, &mut [rounds as u8; 4096]) {
            Ok(()) => rounds += 1,
            Err(error) => break error,
        }
    };
    assert!(ended == ErrorKind::Io && rounds > 20, "after {rounds}");
    // The next process has it all.
    let mut world = World::start(world.kill());
    assert!(!world.report.poisoned && world.report.rings_lost.is_empty());
    let (volume, other) = (world.open("demo"), world.open("other"));
    assert_eq!(world.read_fill(&volume, 0, 4096), 1);
    assert_eq!(
        world.read_fill(&volume, 8, 4096),
        0,
        "it was never committed"
    );
    assert_eq!(world.read_fill(&other, 8, 4096), 3);
    // The last one failed, and may be there.
    let found = world.read_fill(&other, 16, 4096);
    assert!([rounds - 1, rounds].contains(&i32::from(found)), "{found}");
}

#[derive(Default)]
struct NoopWaker;

impl Wake for NoopWaker {
    fn wake(self: Arc<Self>) {}
}

#[test]
fn a_flush_with_nothing_to_do_leaves_no_waker_behind() {
    let mut world = World::new();
    world.create("demo", GIB);
    let volume = world.open("demo");
    world.write(&volume, 0, 1, 4096);
    world.flush(&volume);
    let mut left = 0;
    for _ in 0..100 {
        let client = Arc::new(NoopWaker);
        let step = volume.begin(&Op::Flush, &Waker::from(Arc::clone(&client)));
        assert!(matches!(step, Step::Done(Ok(()))));
        left += Arc::strong_count(&client) - 1;
    }
    assert_eq!(left, 0);
}

#[test]
fn what_the_cache_disk_cannot_read_comes_from_the_store() {
    let mut world = World::new();
    world.create("demo", GIB);
    let volume = world.open("demo");
    // Far apart: two chunks.
    let (one, other) = (0, 1 << 20);
    world.write(&volume, one, 1, 4096);
    world.write(&volume, other, 2, 4096);
    world.sync(&volume);
    let env = Environment {
        objects: world.kill().objects,
        versions: 100_000,
        ..Environment::default()
    };
    // Memory keeps nothing that nobody reads just now.
    let options = Options {
        memory_bytes: 0,
        ..options()
    };
    let mut world = World::try_start(env, options).unwrap_or_else(|e| panic!("{}", e.0));
    let volume = world.try_open("demo", true).expect("taken over");
    assert_eq!(world.read_fill(&volume, one, 4096), 1);
    assert_eq!(world.read_fill(&volume, other, 4096), 2);
    let op = Op::Read {
        sector: one,
        sectors: 8,
    };
    let Step::Read(plan) = volume.begin(&op, &waker()) else {
        panic!("it is in the cache")
    };
    let from = |plan: &volume::ReadPlan| match plan.pieces()[0].place {
        Place::At { file, .. } => Some(file),
        Place::Hole => None,
    };
    assert_eq!(from(&plan), Some(FileId::CACHE));
    let failed =
        |plan: &volume::ReadPlan| Err(MoveError::of_piece(Direction::Read, &plan.pieces()[0], 5));
    let moved = failed(&plan);
    let again = volume.read(plan, moved, &waker());
    assert!(matches!(again, Step::Park(_)), "{again:?}");
    let Step::Park(_) = volume.begin(&op, &waker()) else {
        panic!("it must be fetched")
    };
    world.run_until_idle();
    let Step::Read(plan) = volume.begin(&op, &waker()) else {
        panic!("it was fetched")
    };
    assert_eq!(from(&plan), Some(FileId::MEMORY));
    let moved = failed(&plan);
    let last = volume.read(plan, moved, &waker());
    assert!(matches!(last, Step::Done(Err(ErrorKind::Io))), "{last:?}");
    assert_eq!(world.read_fill(&volume, one, 4096), 1);
}

#[test]
fn bytes_of_a_volume_that_nobody_opened_do_not_stop_the_cleaner() {
    let mut world = World::new();
    world.create("left", GIB);
    world.create("demo", GIB);
    let (left, volume) = (world.open("left"), world.open("demo"));
    // Twelve segments that hold one block of the other volume each.
    for block in 0..12 {
        world.write(&left, block * 8, 1, 4096);
        for _ in 0..14 {
            world.write(&volume, 0, 2, 4096);
        }
    }
    let mut world = World::start(world.kill());
    let volume = world.open("demo");
    world.env.outage = true;
    // A block that stays and nine that do not, over twice the size of the log.
    for block in 1..150 {
        world.write(&volume, block * 8, 3, 4096);
        for _ in 0..9 {
            world.write(&volume, 0, 4, 4096);
        }
    }
    assert!((1..150).all(|block| world.read_fill(&volume, block * 8, 4096) == 3));
}

#[test]
fn a_segment_whose_header_cannot_be_written_keeps_no_other_from_writers() {
    let mut world = World::new();
    world.create("demo", 64 << 20);
    let volume = world.open("demo");
    let segment = |number: u64| SEGMENTS + number * 65_536;
    world.env.bad = [5, 6, 11].map(|n| segment(n)..segment(n) + 4096).to_vec();
    for round in 0..3_u8 {
        for at in 0..64 {
            world.write(&volume, at * 64, round + 1, 32 << 10);
        }
        world.flush(&volume);
        for at in 0..64 {
            assert_eq!(world.read_fill(&volume, at * 64, 32 << 10), round + 1);
        }
    }
    let header = |n| (FileId::LOG, segment(n));
    assert!(
        world.env.written.contains(&header(12)),
        "the segments are there"
    );
    assert!(!world.env.written.contains(&header(11)));
    // All of it, for a while only: writers wait, and go on.
    world.env.bad.push(segment(0)..4 << 20);
    world.pass(5_000);
    world.env.bad.clear();
    for at in 0..64 {
        world.write(&volume, at * 64, 9, 32 << 10);
    }
    world.flush(&volume);
    assert_eq!(world.read_fill(&volume, 0, 32 << 10), 9);
}

#[test]
fn a_failed_log_write_is_counted_and_its_bytes_are_written_elsewhere() {
    let mut world = World::new();
    world.create("demo", GIB);
    let volume = world.open("demo");
    let op = Op::Write {
        sector: 0,
        sectors: 8,
        fua: false,
    };
    let log_writes = |world: &World| world.host.usage().failures.of(FailureKind::LogWrite);
    let Step::Write(plan) = volume.begin(&op, &waker()) else {
        panic!("there is room")
    };
    let first = plan.pieces()[0];
    let error = MoveError::of_piece(Direction::Write, &first, 5);
    let Step::Write(plan) = volume.written(plan, Err(error), &waker()) else {
        panic!("another place is tried")
    };
    assert_ne!(plan.pieces()[0].place, first.place);
    assert_eq!(log_writes(&world), 1);
    let Step::Write(plan) = volume.written(plan, Err(error), &waker()) else {
        panic!("another place is tried")
    };
    let last = volume.written(plan, Err(error), &waker());
    assert!(matches!(last, Step::Done(Err(ErrorKind::Io))), "{last:?}");
    assert_eq!(log_writes(&world), 3);
    world.env.failing_syncs = 1;
    let flush = world.request(&volume, Op::Flush, &mut []);
    assert_eq!(flush, Ok(()), "nothing was committed");
    world.write(&volume, 0, 1, 4096);
    assert!(world.request(&volume, Op::Flush, &mut []).is_err());
    let syncs = world.host.usage().failures.of(FailureKind::LogSync);
    assert_eq!(syncs, 1);
}

#[test]
fn a_request_whose_window_fails_is_counted_by_direction() {
    let mut world = World::new();
    world.create("demo", GIB);
    let volume = world.open("demo");
    for direction in [Direction::Read, Direction::Read, Direction::Write] {
        volume.on_request_failed(&MoveError::of_window(direction, 4096, 512, 14));
    }
    let failures = world.host.usage().failures;
    assert_eq!(failures.of(FailureKind::WindowRead), 2);
    assert_eq!(failures.of(FailureKind::WindowWrite), 1);
    assert_eq!(failures.of(FailureKind::CacheRead), 0);
}
