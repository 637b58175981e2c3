//! Sessions under the collector (S9): what a host brought and has named nowhere yet stays, whoever ends its session.
//!
//! With the feature `planted` each planted bug is seen by the test that is there for it.

use blkmq::io::Op;
use volume::object::root_key;

use crate::support::hosts::elsewhere;
use crate::support::points::{done, gc, packs, write_over};
use crate::support::{Environment, World, with_volume};

const MIB: u64 = 1 << 20;

#[test]
fn what_a_session_that_goes_on_has_not_named_yet_stays() {
    let (mut world, volume) = with_volume();
    write_over(&mut world, &volume, 1);
    // Packs are in the store, and no record names them: the host does not get through.
    world.env.failing_creates = usize::MAX;
    world.write(&volume, 0, 99, 4096);
    let synced = world.host.sync(&volume);
    world.pass(500);
    assert!(synced.try_take().is_none());
    let mut other = elsewhere(&world);
    for _ in 0..3 {
        let found = gc(&mut other);
        assert!(found.held.objects > 0, "{found:?}");
    }
    world.env.objects = other.env.objects;
    world.env.failing_creates = 0;
    done(&mut world, &synced);
    let mut third = elsewhere(&world);
    let theirs = third.try_open("demo", true).expect("opened");
    assert_eq!(third.read_fill(&theirs, 0, 4096), 99);
}

#[test]
fn what_a_poisoned_host_brings_stays_though_a_copy_of_it_ends_its_session() {
    a_copy_ends_the_session_of_a_poisoned_host(false);
}

#[test]
fn what_a_host_brought_before_it_was_poisoned_stays_though_a_copy_of_it_ends_its_session() {
    a_copy_ends_the_session_of_a_poisoned_host(true);
}

/// The host's packs come to the store behind the poison or, `before`, ahead of it, and its root a while later.
fn a_copy_ends_the_session_of_a_poisoned_host(before: bool) {
    let (mut world, demo) = with_volume();
    world.create("other", 64 * MIB);
    let other = world.open("other");
    world.write(&demo, 0, 1, 4096);
    world.sync(&demo);
    // The next record, which is another volume's, waits for an answer; so does whatever is behind it.
    world.env.failing_creates = usize::MAX;
    world.write(&other, 0, 1, 4096);
    let _others = world.host.sync(&other);
    world.pass(500);
    let (copy, old) = (world.env.copy(), packs(&world.env));
    world.env.outage = !before;
    world.write(&demo, 0, 99, 4096);
    world.flush(&demo);
    let synced = world.host.sync(&demo);
    world.pass(500);
    assert_eq!(packs(&world.env) > old, before);
    world.write(&other, 0, 2, 4096);
    world.env.failing_syncs = 1;
    world
        .request(&other, Op::Flush, &mut [])
        .expect_err("poisoned");
    // From now on roots say what is stored, and its root does not answer.
    world.env.failing_keys.push(root_key("demo"));
    world.env.outage = false;
    world.env.failing_creates = 0;
    world.pass(5_000);
    assert!(packs(&world.env) > old);
    let said = synced.try_take();
    assert!(!matches!(said, Some(Ok(_))), "{said:?}");
    let mut copy = World::start(Environment {
        objects: world.env.objects.clone(),
        versions: world.env.versions + 5000,
        ..copy
    });
    copy.create("third", 64 * MIB);
    let third = copy.open("third");
    copy.write(&third, 0, 3, 4096);
    copy.sync(&third);
    for _ in 0..3 {
        gc(&mut copy);
    }
    world.env.objects = copy.env.objects;
    world.env.failing_keys.clear();
    let again = world.host.sync(&demo);
    done(&mut world, &again);
    let mut elsewhere = elsewhere(&world);
    let theirs = elsewhere.try_open("demo", true).expect("opened");
    assert_eq!(elsewhere.read_fill(&theirs, 0, 4096), 99);
}

#[cfg(feature = "planted")]
#[test]
fn each_planted_bug_is_seen() {
    canary::each_is_seen(&[
        (
            "poisoned_packs_are_of_a_session",
            what_a_poisoned_host_brings_stays_though_a_copy_of_it_ends_its_session,
        ),
        (
            "packs_of_before_stay_in_their_session",
            what_a_host_brought_before_it_was_poisoned_stays_though_a_copy_of_it_ends_its_session,
        ),
        (
            "collector_trusts_no_session",
            what_a_session_that_goes_on_has_not_named_yet_stays,
        ),
    ]);
}
