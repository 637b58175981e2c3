//! A host that continues one which was stopped a moment ago, without closing its volumes.
//!
//! It finds out less by itself, and must believe nothing that the log does not confirm.

use volume::{Continuation, JournalMark, OpenError, OpenMode, Volume};

use crate::support::{Environment, World};

const MIB: u64 = 1 << 20;

fn serve(world: &mut World, name: &str) -> Volume {
    let answer = world.host.open_unchecked(name, OpenMode::default());
    world.wait(|_| answer.try_take()).expect("it goes on")
}

/// Block N of `demo` holds N + 1, some of it flushed.
fn written(world: &mut World, volume: &Volume, blocks: std::ops::Range<u64>) {
    for block in blocks {
        world.write(volume, block * 8, block as u8 + 1, 4096);
        if block % 5 == 0 {
            world.flush(volume);
        }
    }
}

fn assert_holds(world: &mut World, volume: &Volume, blocks: std::ops::Range<u64>) {
    for block in blocks {
        assert_eq!(
            world.read_fill(volume, block * 8, 4096),
            block as u8 + 1,
            "{block}"
        );
    }
}

fn in_service() -> (World, Volume) {
    let mut world = World::new();
    world.create("demo", 64 * MIB);
    let volume = world.open("demo");
    written(&mut world, &volume, 0..33);
    (world, volume)
}

#[test]
fn a_host_that_continues_another_has_all_of_it_and_reads_less_of_the_log() {
    let (world, _) = in_service();
    let mut plain = World::start(world.env.copy());
    let all = plain.env.bytes_read;
    let volume = serve(&mut plain, "demo");
    assert_holds(&mut plain, &volume, 0..33);
    let mut env = world.hand_over();
    env.bytes_read = 0;
    let mut next = World::start(env);
    assert!(next.env.bytes_read < all, "{} {all}", next.env.bytes_read);
    let volume = serve(&mut next, "demo");
    assert_holds(&mut next, &volume, 0..33);
}

#[test]
fn what_is_written_to_a_host_that_continues_survives_its_kill_unflushed() {
    let (mut world, _) = in_service();
    for round in 0..4 {
        let last = 33 + round * 7;
        world = World::start(world.hand_over());
        let volume = serve(&mut world, "demo");
        assert_holds(&mut world, &volume, 0..last);
        for block in last..last + 7 {
            world.write(&volume, block * 8, block as u8 + 1, 4096);
        }
    }
    let mut world = World::start(world.kill());
    let volume = serve(&mut world, "demo");
    assert_holds(&mut world, &volume, 0..61);
}

/// A tail with a ring and nothing that serves it is part of every round, too.
#[test]
fn volumes_that_are_not_opened_keep_what_they_had_through_rounds_and_kills() {
    let (mut world, volume) = in_service();
    world.create("other", 64 * MIB);
    let other = world.open("other");
    world.write(&other, 0, 9, 4096);
    drop((volume, other));
    let mut world = World::start(world.hand_over());
    let other = serve(&mut world, "other");
    for round in 0..3 {
        world.write(&other, 8, round, 4096);
        world.flush(&other);
        world.pass(2_000);
    }
    let mut world = World::start(world.hand_over());
    let demo = serve(&mut world, "demo");
    assert_holds(&mut world, &demo, 0..33);
    let other = serve(&mut world, "other");
    assert_eq!(world.read_fill(&other, 0, 4096), 9);
    assert_eq!(world.read_fill(&other, 8, 4096), 2);
}

#[test]
fn a_mark_that_the_log_does_not_confirm_is_not_believed() {
    let (world, _) = in_service();
    let mark = world.host.journal_mark().expect("it has a journal");
    for wrong in [
        JournalMark {
            half: 1 - mark.half,
            ..mark
        },
        JournalMark { half: 7, ..mark },
        JournalMark {
            lap: mark.lap + 1,
            ..mark
        },
        JournalMark {
            lap: mark.lap + (1 << 32),
            ..mark
        },
        JournalMark {
            frames: mark.frames + 1,
            ..mark
        },
        JournalMark {
            bytes: u64::MAX / 2,
            ..mark
        },
        JournalMark { bytes: 0, ..mark },
        JournalMark {
            frames: 0,
            bytes: 0,
            ..mark
        },
        JournalMark {
            frames: 1,
            bytes: 4096,
            ..mark
        },
    ] {
        let mut next = World::start(Environment {
            continues: Some(Continuation {
                journal: Some(wrong),
                cache_follows: false,
            }),
            ..world.env.copy()
        });
        assert!(!next.report.goes_on);
        let volume = serve(&mut next, "demo");
        assert_holds(&mut next, &volume, 0..33);
    }
}

/// The rings that it needs are gone since the later host has made its first checkpoint.
#[test]
fn a_mark_from_before_another_host_wrote_to_the_log_is_not_believed() {
    let (world, _) = in_service();
    let old = world.host.journal_mark();
    let between = World::start(world.hand_over());
    let mut env = between.kill();
    env.continues = Some(Continuation {
        journal: old,
        cache_follows: false,
    });
    let mut world = World::start(env);
    let volume = serve(&mut world, "demo");
    assert_holds(&mut world, &volume, 0..33);
    assert_eq!(world.report.rings_lost.len(), 0);
}

/// The host that continues another, and cannot make its first frame durable.
fn continued_without_a_frame(mut env: Environment) -> World {
    env.requests.clear();
    env.failing_syncs = 1;
    World::start(env)
}

#[test]
fn a_host_that_continues_another_goes_on_with_its_rings() {
    let (world, _) = in_service();
    let before = world.env.rings.names();
    let mut world = World::start(world.hand_over());
    assert_eq!(world.env.rings.names(), before);
    assert!(world.report.goes_on);
    let volume = serve(&mut world, "demo");
    written(&mut world, &volume, 33..40);
    // One that nobody names as its successor makes its own.
    let mut world = World::start(world.kill());
    let volume = serve(&mut world, "demo");
    assert_holds(&mut world, &volume, 0..40);
    let after = world.env.rings.names();
    assert_eq!(after.len(), before.len());
    assert!(after.iter().all(|ring| !before.contains(ring)));
}

#[test]
fn nothing_of_a_host_that_continues_is_in_the_store_before_the_log_has_its_session() {
    let (world, _) = in_service();
    let mut next = continued_without_a_frame(world.hand_over());
    let refused = next.try_open("demo", false).map(drop);
    assert!(matches!(refused, Err(OpenError::Poisoned)), "{refused:?}");
    assert!(next.env.requests.is_empty(), "{:?}", next.env.requests);
    // What the frames have is served by the one after it, of a poisoned log.
    let mut next = World::start(next.kill());
    let volume = next.open("demo");
    assert_eq!(next.read_fill(&volume, 30 * 8, 4096), 31);
}

#[test]
fn a_host_that_has_committed_last_writes_no_frame_any_more() {
    let (mut world, volume) = in_service();
    let answer = world.host.commit_last();
    world.wait(|_| answer.try_take()).expect("committed");
    let mark = world.host.journal_mark();
    assert!(mark.expect("it has a journal").is_settled);
    // It is quiet for long enough that a frame would prove the last one, and commits go on.
    world.pass(5_000);
    world.write(&volume, 8 * 40, 41, 4096);
    let flushed = world.host.commit();
    world.pass(5_000);
    assert!(flushed.try_take().is_none());
    assert_eq!(world.host.journal_mark(), mark);
    let mut world = World::start(world.hand_over());
    assert!(world.report.goes_on);
    let volume = serve(&mut world, "demo");
    assert_holds(&mut world, &volume, 0..33);
    assert_eq!(world.read_fill(&volume, 8 * 40, 4096), 41);
}

/// The rings' commits hide all that the frames name. Without the rings the frames must find it.
#[test]
fn what_frames_name_is_there_until_a_frame_has_what_superseded_it() {
    // A segment, and less than a slice: what is written over them hides all that the segment holds.
    const BLOCKS: std::ops::Range<u64> = 0..15;
    let mut world = World::new();
    world.create("demo", 64 * MIB);
    let volume = world.open("demo");
    world.env.outage = true;
    for block in BLOCKS {
        world.write(&volume, block * 8, 1, 4096);
    }
    world.flush(&volume);
    for block in BLOCKS {
        world.write(&volume, block * 8, 2, 4096);
    }
    let mut env = continued_without_a_frame(world.hand_over()).kill();
    env.rings.lose_all();
    env.boot += 1;
    env.outage = false;
    let mut world = World::start(env);
    let volume = world.open("demo");
    for block in BLOCKS {
        assert_eq!(world.read_fill(&volume, block * 8, 4096), 1, "{block}");
    }
}

#[test]
#[cfg_attr(not(feature = "planted"), ignore = "needs --features planted")]
fn planted_bugs_of_continuing_are_seen() {
    canary::each_is_seen(&[
        (
            "store_hears_of_a_session_too_early",
            nothing_of_a_host_that_continues_is_in_the_store_before_the_log_has_its_session,
        ),
        (
            "continued_log_reuses_at_once",
            what_frames_name_is_there_until_a_frame_has_what_superseded_it,
        ),
    ]);
}
