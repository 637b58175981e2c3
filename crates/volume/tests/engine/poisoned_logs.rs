//! Volumes on a log that was poisoned stay their host's own, whatever the log lost of its last session.
//!
//! With the feature `planted` each planted bug is seen by the test that is there for it.

use blkmq::io::{FileId, Op};

use crate::support::hosts::{close, open_bound, other_host};
use crate::support::{Environment, World, with_volume};

const MIB: u64 = 1 << 20;

#[test]
fn a_log_that_was_poisoned_before_its_first_session_knows_its_own_volumes() {
    let env = Environment {
        good_syncs: 2,
        failing_syncs: 1,
        ..Environment::default()
    };
    let failed = World::try_start(env, crate::support::options());
    let (_, env) = *failed
        .err()
        .expect("the sync of the first checkpoint failed");
    let mut world = World::start(env);
    assert!(world.host.usage().poisoned);
    world.create("demo", 64 * MIB);
    world.open("demo");
    let mut world = World::start(world.kill());
    world.open("demo");
}

#[test]
fn a_volume_opened_on_a_poisoned_log_is_its_own_though_the_log_lost_its_last_session() {
    let mut env = World::new().kill();
    let before = env.files[&FileId::LOG].clone();
    // The checkpoint of this recovery is written and never durable; the next start still reads it.
    env.failing_syncs = 1;
    let failed = World::try_start(env, crate::support::options());
    let (_, env) = *failed.err().expect("a sync of the recovery failed");
    let mut world = World::start(env);
    world.create("demo", 64 * MIB);
    world.open("demo");
    // Power is lost: of the log only the mark is as it was.
    let mut env = world.kill();
    let log = env.files.get_mut(&FileId::LOG).expect("the log");
    log.truncate(8192);
    log.extend_from_slice(&before[8192..]);
    env.boot += 1;
    env.rings.lose_all();
    let mut world = World::start(env);
    assert!(world.host.usage().poisoned);
    world.open("demo");
}

#[test]
fn a_volume_opened_on_a_poisoned_log_is_its_own_though_power_took_the_mark_that_says_so() {
    let mut world = World::new();
    world.create("demo", 64 * MIB);
    let before = world.env.files[&FileId::LOG].clone();
    // The syncs of new segments' headers, and of the mark in the superblock.
    world.env.failing_syncs = 2;
    world.create("other", 64 * MIB);
    assert!(world.try_open("other", false).is_err());
    assert!(world.host.usage().poisoned);
    world.open("demo");
    // What was not durable is gone, the mark too: the next start finds a good log.
    let mut env = world.kill();
    env.files.insert(FileId::LOG, before);
    env.boot += 1;
    env.rings.lose_all();
    let mut world = World::start(env);
    assert!(!world.report.poisoned);
    let volume = world.open("demo");
    world.write(&volume, 0, 1, 4096);
    world.sync(&volume);
    // A hold that began on a poisoned log took no write: there is nothing in it that could be mixed in.
    let mut world = World::start(world.kill());
    let volume = world.open("demo");
    assert_eq!(world.read_fill(&volume, 0, 4096), 1);
}

#[test]
fn a_volume_that_a_poisoned_log_gives_back_again_and_again_goes_on_from_the_same_hold() {
    let (mut one, volume) = with_volume();
    one.write(&volume, 0, 1, 4096);
    one.flush(&volume);
    one.env.failing_syncs = 1;
    one.write(&volume, 0, 2, 4096);
    assert!(one.request(&volume, Op::Flush, &mut []).is_err());
    let hold = volume.hold();
    let mut one = World::start(one.kill());
    for _ in 0..3 {
        assert!(one.report.poisoned);
        let volume = one.open("demo");
        assert_eq!(volume.hold(), hold);
        close(&mut one, &volume);
        // It cannot record that it has: the next start finds the tail again.
        one = World::start(one.kill());
    }
    assert!(one.host.unserved_tails().iter().all(|tail| !tail.rescue));
    // A new log, which has nothing of the volume.
    let mut two = other_host(&mut one);
    let volume = open_bound(&mut two, hold).expect("given back, and opened by nobody since");
    assert_eq!(two.read_fill(&volume, 0, 4096), 1);
}

#[cfg(feature = "planted")]
#[test]
fn each_planted_bug_is_seen_by_its_test() {
    canary::each_is_seen(&[(
        "lost_mark_makes_a_copy",
        a_volume_opened_on_a_poisoned_log_is_its_own_though_power_took_the_mark_that_says_so,
    )]);
}
