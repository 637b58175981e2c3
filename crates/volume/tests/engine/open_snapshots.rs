//! Snapshots that are served: read-only, and for as long as they have it the bytes that they had (S6).
//!
//! With the feature `planted` each planted bug is seen by the test that is there for it.

use blkmq::error::ErrorKind;
use blkmq::io::{Backend, Op};
use volume::{Durability, OpenError, Volume};

use crate::support::hosts::{close, elsewhere, hand_over, other_host, root_of, try_write};
use crate::support::points::{delete_snapshot, done, gc, snapshot, write_over};
use crate::support::{Environment, World, with_volume};

fn open(world: &mut World, name: &str) -> Result<Volume, OpenError> {
    let answer = world.host.open_snapshot(name);
    world.wait(|_| answer.try_take())
}

/// The byte that a block is made of, or how its read ended.
fn read(world: &mut World, volume: &Volume, sector: u64) -> Result<u8, ErrorKind> {
    let mut data = vec![0xee; 4096];
    let op = Op::Read { sector, sectors: 8 };
    world.request(volume, op, &mut data)?;
    assert!(data.iter().all(|byte| *byte == data[0]), "one write");
    Ok(data[0])
}

/// A volume with 1 and 2 in two blocks, a snapshot of that, and other content by now.
fn with_snapshot() -> (World, Volume) {
    let (mut world, volume) = with_volume();
    world.write(&volume, 0, 1, 4096);
    world.sync(&volume);
    world.write(&volume, 4096, 2, 4096);
    snapshot(&mut world, "demo@one").expect("taken");
    world.write(&volume, 0, 3, 4096);
    world.write(&volume, 4096, 4, 4096);
    (world, volume)
}

#[test]
fn a_snapshot_that_is_open_reads_as_it_was_on_any_host_and_takes_no_write() {
    let (mut world, volume) = with_snapshot();
    let mut other = elsewhere(&world);
    for world in [&mut world, &mut other] {
        let opened = open(world, "demo@one").expect("opened");
        assert!(opened.geometry().read_only);
        assert_eq!(opened.geometry().bytes, 64 << 20);
        assert_eq!(read(world, &opened, 0), Ok(1));
        assert_eq!(read(world, &opened, 4096), Ok(2));
        assert_eq!(read(world, &opened, 64), Ok(0));
        assert_eq!(try_write(world, &opened), Err(ErrorKind::ReadOnly));
        let discard = Op::Discard {
            sector: 0,
            sectors: 8,
            fua: false,
        };
        let discarded = world.request(&opened, discard, &mut []);
        assert_eq!(discarded, Err(ErrorKind::ReadOnly));
        world.flush(&opened);
        world.sync(&opened);
        assert!(world.grow(&opened, 128 << 20).is_err());
        assert!(matches!(
            open(world, "demo@one"),
            Err(OpenError::InUse(name)) if name == "demo@one"
        ));
        close(world, &opened);
        assert_eq!(read(world, &opened, 0), Err(ErrorKind::Closed));
        let again = open(world, "demo@one").expect("opened again");
        assert_eq!(read(world, &again, 0), Ok(1));
    }
    assert_eq!(world.read_fill(&volume, 0, 4096), 3);
    let missing = open(&mut world, "demo@two").expect_err("there is none");
    assert!(matches!(missing, OpenError::NoSuchSnapshot(name) if name == "demo@two"));
    assert!(open(&mut world, "demo").is_err(), "it is no snapshot");
}

#[test]
fn an_open_snapshot_leaves_nothing_in_the_store_or_the_log() {
    let (mut world, volume) = with_snapshot();
    world.sync(&volume);
    close(&mut world, &volume);
    let roots = |env: &Environment| -> Vec<_> {
        let of_roots = env.objects.iter();
        let of_roots = of_roots.filter(|(key, _)| key.starts_with("volumes/"));
        of_roots
            .map(|(key, (bytes, _))| (key.clone(), bytes.clone()))
            .collect()
    };
    let before = roots(&world.env);
    let opened = open(&mut world, "demo@one").expect("opened");
    assert_eq!(read(&mut world, &opened, 0), Ok(1));
    world.flush(&opened);
    assert_eq!(roots(&world.env), before);
    let again = World::start(world.kill());
    assert!(again.report.tails.is_empty(), "{:?}", again.report.tails);
}

fn an_open_snapshot_is_not_deleted() {
    let (mut world, _volume) = with_snapshot();
    let opened = open(&mut world, "demo@one").expect("opened");
    assert!(matches!(
        delete_snapshot(&mut world, "demo@one"),
        Err(OpenError::InUse(name)) if name == "demo@one"
    ));
    assert_eq!(read(&mut world, &opened, 4096), Ok(2));
    close(&mut world, &opened);
    delete_snapshot(&mut world, "demo@one").expect("deleted");
}

#[test]
fn a_snapshot_that_is_open_here_is_not_deleted_here() {
    an_open_snapshot_is_not_deleted();
}

fn a_flush_needs_no_log() {
    let (mut world, volume) = with_snapshot();
    let opened = open(&mut world, "demo@one").expect("opened");
    world.env.failing_syncs = 1;
    world.write(&volume, 8, 5, 4096);
    let failed = world.request(&volume, Op::Flush, &mut []);
    assert_eq!(failed, Err(ErrorKind::Io));
    assert!(world.host.usage().poisoned);
    assert_eq!(world.request(&opened, Op::Flush, &mut []), Ok(()));
    assert_eq!(read(&mut world, &opened, 0), Ok(1));
    close(&mut world, &opened);
    let mut world = World::start(world.kill());
    let again = open(&mut world, "demo@one").expect("opened on a poisoned log");
    assert_eq!(world.request(&again, Op::Flush, &mut []), Ok(()));
    assert_eq!(read(&mut world, &again, 4096), Ok(2));
}

#[test]
fn a_flush_of_an_open_snapshot_succeeds_on_a_poisoned_log() {
    a_flush_needs_no_log();
}

/// Another host deletes the snapshot and collects what it held, while this one serves it.
#[test]
fn a_snapshot_that_another_host_deletes_reads_its_bytes_or_fails_and_never_other_ones() {
    let (mut world, volume) = with_snapshot();
    world.sync(&volume);
    close(&mut world, &volume);
    let mut reader = other_host(&mut world);
    let opened = open(&mut reader, "demo@one").expect("opened");
    assert_eq!(read(&mut reader, &opened, 0), Ok(1));
    hand_over(&mut reader, &mut world);
    delete_snapshot(&mut world, "demo@one").expect("deleted by its own host");
    let volume = world.open("demo");
    for fill in [1, 21, 41] {
        write_over(&mut world, &volume, fill);
    }
    for round in 0..10 {
        world.write(&volume, 4096, 60 + round, 4096);
        world.sync(&volume);
    }
    world.pass(2_000);
    // The snapshot's pin goes with the first pass: what it held is found by the second, and removed by the third.
    let passes = [gc(&mut world), gc(&mut world), gc(&mut world)];
    assert!(passes[2].removed.objects > 0, "{passes:?}");
    // Somebody takes the name again, for other content.
    snapshot(&mut world, "demo@one").expect("taken again");
    hand_over(&mut world, &mut reader);
    let found = [0, 4096, 64].map(|sector| read(&mut reader, &opened, sector));
    assert_eq!(found[0], Ok(1), "it is cached");
    let is_honest = |found: &Result<u8, ErrorKind>, was: u8| match found {
        Ok(byte) => *byte == was,
        Err(error) => *error == ErrorKind::Corrupt,
    };
    assert!(
        is_honest(&found[1], 2) && is_honest(&found[2], 0),
        "{found:?}"
    );
    assert!(found[1].is_err(), "its pack is gone: {found:?}");
    // What has the name now is opened as what it is.
    close(&mut reader, &opened);
    let again = open(&mut reader, "demo@one").expect("opened");
    assert_eq!(read(&mut reader, &again, 4096), Ok(69));
}

#[test]
fn a_snapshot_that_was_deleted_is_not_opened() {
    let (mut world, _volume) = with_snapshot();
    delete_snapshot(&mut world, "demo@one").expect("deleted");
    assert!(root_of(&world.env, "demo@one").deleted);
    let refused = open(&mut world, "demo@one").expect_err("it is gone");
    assert!(matches!(refused, OpenError::NoSuchSnapshot(_)), "{refused}");
    let fork = world.host.fork_volume("demo", "branch", Durability::Store);
    done(&mut world, &fork);
}

#[cfg(feature = "planted")]
#[test]
fn each_planted_bug_of_open_snapshots_is_seen() {
    canary::each_is_seen(&[
        (
            "attached_snapshot_is_deleted",
            an_open_snapshot_is_not_deleted,
        ),
        ("snapshot_flush_asks_the_log", a_flush_needs_no_log),
    ]);
}
