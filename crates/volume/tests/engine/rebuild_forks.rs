//! The rebuild of forks, of snapshots, and of volumes that were set back to one.
//!
//! With the feature `planted` each planted bug is seen by the test that is there for it.

use volume::rebuild::{RebuildReport, Unknown};

use crate::support::hosts::{close, elsewhere, hand_over, other_host};
use crate::support::points::{done, fork, gc, make_fork, packs, snapshot, write_over};
use crate::support::rebuilds::{of, remove_below, try_rebuild};
use crate::support::rebuilt::{assert_same, furnish, rebuilt, state};
use crate::support::{World, with_volume};

#[test]
fn a_fork_is_rebuilt_with_what_it_shares_and_nothing_that_its_parent_wrote_since() {
    for lost in ["pins/", "indexes/"] {
        let (mut world, volume) = with_volume();
        furnish(&mut world, &volume);
        let child = fork(&mut world, "demo", "child").expect("forked");
        // Both in one pack.
        world.write(&volume, 64, 30, 4096);
        world.write(&child, 0, 31, 4096);
        let answers = [world.host.sync(&volume), world.host.sync(&child)];
        for answer in answers {
            done(&mut world, &answer);
        }
        write_over(&mut world, &volume, 40);
        let grandchild = fork(&mut world, "child", "grandchild").expect("forked");
        world.write(&grandchild, 8, 32, 4096);
        world.sync(&grandchild);
        world.write(&child, 8, 33, 4096);
        world.sync(&child);
        for volume in [&volume, &child, &grandchild] {
            close(&mut world, volume);
        }
        gc(&mut world);
        gc(&mut world);
        let names = ["demo", "child", "grandchild"];
        let expected = names.map(|name| state(&world, name));
        for name in names {
            assert_eq!(remove_below(&mut world, &format!("volumes/{name}/")), 1);
        }
        remove_below(&mut world, lost);
        // A pass finds that roots are gone, and keeps all.
        let before = packs(&world.env);
        for _ in 0..3 {
            let answer = world.host.collect_garbage(false);
            let _ = world.wait(|_| answer.try_take());
        }
        assert_eq!(packs(&world.env), before);
        for (name, expected) in names.iter().zip(&expected) {
            rebuild_alone(&mut world, name);
            assert_same(&state(&world, name), expected, name);
        }
    }
}

/// Rebuilds one of several volumes that lost their roots: until all have theirs the store is not whole.
fn rebuild_alone(world: &mut World, name: &str) -> RebuildReport {
    try_rebuild(world, &of(name)).unwrap_or_else(|error| panic!("{error}"))
}

#[test]
fn a_fork_that_was_never_written_is_rebuilt_from_its_pin() {
    let (mut world, volume) = with_volume();
    furnish(&mut world, &volume);
    make_fork(&mut world, "demo", "child").expect("forked");
    let expected = state(&world, "child");
    write_over(&mut world, &volume, 90);
    remove_below(&mut world, "volumes/child/");
    rebuilt(&mut world, &of("child"));
    assert_same(&state(&world, "child"), &expected, "the fork");
}

#[test]
fn what_a_lost_fork_shares_stays_also_where_its_own_packs_are_of_a_host_without_a_log() {
    let (mut world, volume) = with_volume();
    furnish(&mut world, &volume);
    make_fork(&mut world, "demo", "child").expect("forked");
    let before = world.env.objects.clone();
    let mut other = other_host(&mut world);
    let child = other.open("child");
    other.write(&child, 0, 31, 4096);
    close(&mut other, &child);
    hand_over(&mut other, &mut world);
    let expected = state(&world, "child");
    let hosts = world.env.objects.keys();
    let hosts = hosts.filter(|key| key.starts_with("hosts/") && !before.contains_key(*key));
    let hosts: Vec<String> = hosts.cloned().collect();
    hosts
        .iter()
        .for_each(|key| drop(world.env.objects.remove(key)));
    remove_below(&mut world, "volumes/child/");
    // The parent writes over all that it shares.
    world.write(&volume, 64, 90, 16384);
    world.write_noise(&volume, 1024, 4, 700 << 10);
    write_over(&mut world, &volume, 91);
    let count = packs(&world.env);
    for _ in 0..3 {
        let answer = world.host.collect_garbage(false);
        let _ = world.wait(|_| answer.try_take());
    }
    assert_eq!(packs(&world.env), count, "no pack goes");
    let report = rebuilt(&mut world, &of("child"));
    assert_same(&state(&world, "child"), &expected, "the fork");
    assert!(
        report
            .unknown
            .iter()
            .any(|it| matches!(it, Unknown::Log(_)))
    );
}

#[test]
fn a_snapshot_that_lost_its_index_is_rebuilt_and_what_came_later_is_not_in_it() {
    let (mut world, volume) = with_volume();
    furnish(&mut world, &volume);
    snapshot(&mut world, "demo@one").expect("taken");
    write_over(&mut world, &volume, 70);
    close(&mut world, &volume);
    let forked = |world: &World| {
        let mut other = elsewhere(world);
        fork(&mut other, "demo@one", "of-one").expect("forked");
        state(&other, "of-one")
    };
    let (one, now) = (forked(&world), state(&world, "demo"));
    remove_below(&mut world, "indexes/");
    rebuild_alone(&mut world, "demo@one");
    rebuilt(&mut world, &of("demo"));
    assert_same(&state(&world, "demo"), &now, "the volume");
    assert_same(&forked(&world), &one, "the snapshot");
}

#[test]
fn a_volume_that_was_set_back_is_rebuilt_as_it_was_set_back() {
    for writes_after in [false, true] {
        let (mut world, volume) = with_volume();
        furnish(&mut world, &volume);
        snapshot(&mut world, "demo@one").expect("taken");
        world.write(&volume, 0, 80, 16384);
        world.write(&volume, 2048, 81, 4096);
        close(&mut world, &volume);
        let answer = world.host.restore_volume("demo@one", "demo@kept");
        done(&mut world, &answer);
        if writes_after {
            let volume = world.open("demo");
            world.write(&volume, 8, 82, 4096);
            close(&mut world, &volume);
        }
        let expected = state(&world, "demo");
        remove_below(&mut world, "volumes/demo/");
        remove_below(&mut world, "pins/");
        let report = rebuilt(&mut world, &of("demo"));
        assert_same(&state(&world, "demo"), &expected, "set back");
        assert_eq!(report.unknown, []);
        // Without the snapshots nothing says it, and without the one that it was set back to it is said.
        remove_below(&mut world, "volumes/demo/");
        remove_below(&mut world, "pins/");
        remove_below(&mut world, "snapshots/demo/one/");
        let report = rebuilt(&mut world, &of("demo"));
        let is_said = |it: &Unknown| matches!(it, Unknown::SetBack { .. });
        assert!(report.unknown.iter().any(is_said), "{report:?}");
    }
}

#[cfg(feature = "planted")]
#[test]
fn each_planted_bug_is_seen() {
    canary::each_is_seen(&[(
        "owners_of_what_stays_are_not_asked_for",
        what_a_lost_fork_shares_stays_also_where_its_own_packs_are_of_a_host_without_a_log,
    )]);
}
