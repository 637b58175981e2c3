//! Pins under the collector (S9): what a fork or a restore is about to name stays until its root does, and not longer.
//!
//! With the feature `planted` each planted bug is seen by the test that is there for it.

use std::collections::BTreeMap;

use volume::object::root::Root;
use volume::object::root_key;
use volume::units::Epoch;

use crate::rename::{create, rename};
use crate::support::hosts::{close, delete, elsewhere, root_of};
use crate::support::points::{delete_snapshot, done, gc, packs, snapshot, write_over};
use crate::support::{Environment, Fault, World, with_volume};
use volume::{Durability, OpenError};

const MIB: u64 = 1 << 20;

#[test]
fn a_fork_outlives_its_parent_its_snapshot_and_any_number_of_passes() {
    let (mut world, volume) = with_volume();
    world.write(&volume, 0, 7, 4096);
    write_over(&mut world, &volume, 20);
    let taken = world
        .host
        .create_snapshot("demo@one", Vec::new(), Durability::Store);
    done(&mut world, &taken);
    let forked = world
        .host
        .fork_volume("demo@one", "child", Durability::Store);
    done(&mut world, &forked);
    write_over(&mut world, &volume, 60);
    let dropped = world.host.delete_snapshot("demo@one");
    done(&mut world, &dropped);
    let closed = world.host.close_volume(&volume);
    done(&mut world, &closed);
    let deleted = world.host.delete_volume("demo");
    done(&mut world, &deleted);
    for _ in 0..3 {
        assert_eq!(gc(&mut world).recovered.objects, 0);
    }
    let mut other = elsewhere(&world);
    let child = other.open("child");
    for place in 0..4 {
        assert_eq!(other.read_fill(&child, 8 * place, 4096), 27);
    }
}

#[test]
fn what_a_pin_names_stays_though_its_child_is_not_there_yet() {
    let (mut world, volume) = with_volume();
    write_over(&mut world, &volume, 20);
    let forked = world.host.fork_volume("demo", "child", Durability::Store);
    done(&mut world, &forked);
    // The fork's root is on its way.
    let root = world.env.objects.remove(&root_key("child"));
    write_over(&mut world, &volume, 60);
    for _ in 0..3 {
        gc(&mut world);
    }
    world
        .env
        .objects
        .insert(root_key("child"), root.expect("made"));
    let mut other = elsewhere(&world);
    let child = other.open("child");
    for place in 0..4 {
        assert_eq!(other.read_fill(&child, 8 * place, 4096), 27);
    }
}

#[test]
fn a_pin_goes_when_its_child_has_a_root_and_never_before() {
    let (mut world, volume) = with_volume();
    write_over(&mut world, &volume, 20);
    let forked = world.host.fork_volume("demo", "child", Durability::Store);
    done(&mut world, &forked);
    let root = world.env.objects.remove(&root_key("child"));
    gc(&mut world);
    assert_eq!(pins(&world.env), 1, "its child may come yet");
    world
        .env
        .objects
        .insert(root_key("child"), root.expect("made"));
    assert_eq!(gc(&mut world).needless_pins, 1);
    assert_eq!(pins(&world.env), 0);
    write_over(&mut world, &volume, 60);
    for _ in 0..3 {
        gc(&mut world);
    }
    let mut other = elsewhere(&world);
    let child = other.open("child");
    for place in 0..4 {
        assert_eq!(other.read_fill(&child, 8 * place, 4096), 27);
    }
}

/// Pins that stand in the store.
fn pins(env: &Environment) -> usize {
    let keys = env.objects.keys();
    keys.filter(|key| key.starts_with("pins/")).count()
}

/// A fork is refused because a renaming, which was cut short, keeps its name.
fn refused_forks_leave_no_pin() {
    let cut = |at: usize| {
        let (mut world, volume) = with_volume();
        world.write(&volume, 0, 7, 4096);
        close(&mut world, &volume);
        create(&mut world, "a").expect("created");
        world.env.fault_after = Some((at, Fault::Outage));
        let answer = world.host.rename_volume("a", "b");
        world.pass(200);
        drop(answer);
        world.env.outage = false;
        let is_kept = world.env.objects.contains_key(&root_key("b"));
        let is_kept = is_kept && root_of(&world.env, "b").rename_mark().is_some();
        (is_kept && !root_of(&world.env, "a").deleted).then(|| World::start(world.kill()))
    };
    let mut world = (0..100).find_map(cut).expect("a name that is kept");
    for _ in 0..2 {
        let forked = world.host.fork_volume("demo", "b", Durability::Store);
        let refused = world.wait(|_| forked.try_take()).expect_err("it is kept");
        assert!(matches!(refused, OpenError::Renaming { .. }), "{refused}");
    }
    assert_eq!(pins(&world.env), 0);
    rename(&mut world, "a", "b").expect("it is gone on with");
    delete(&mut world, "demo");
    for _ in 0..4 {
        gc(&mut world);
    }
    assert_eq!((pins(&world.env), packs(&world.env)), (0, 0));
}

#[test]
fn a_fork_to_a_name_that_a_renaming_keeps_leaves_no_pin() {
    refused_forks_leave_no_pin();
}

#[test]
fn a_pin_goes_when_its_child_was_deleted_and_its_name_taken_again_before_a_pass() {
    let (mut world, volume) = with_volume();
    for fill in [20, 60] {
        write_over(&mut world, &volume, fill);
        snapshot(&mut world, "demo@one").expect("taken");
        let forked = world
            .host
            .fork_volume("demo@one", "child", Durability::Store);
        done(&mut world, &forked);
        if fill == 20 {
            let deleted = world.host.delete_volume("child");
            done(&mut world, &deleted);
            delete_snapshot(&mut world, "demo@one").expect("deleted");
        }
    }
    assert!(pins(&world.env) >= 4);
    assert_eq!(gc(&mut world).needless_pins, 4);
    assert_eq!(pins(&world.env), 0);
    for _ in 0..3 {
        assert_eq!(gc(&mut world).recovered.objects, 0);
    }
    let mut other = elsewhere(&world);
    let child = other.open("child");
    for place in 0..4 {
        assert_eq!(other.read_fill(&child, 8 * place, 4096), 67);
    }
}

#[test]
fn a_restores_pin_goes_when_its_volume_was_deleted_and_its_name_taken_again_before_a_pass() {
    let (mut world, volume) = with_volume();
    write_over(&mut world, &volume, 20);
    snapshot(&mut world, "demo@one").expect("taken");
    close(&mut world, &volume);
    let restored = world.host.restore_volume("demo@one", "demo@kept");
    done(&mut world, &restored);
    for name in ["demo@one", "demo@kept"] {
        delete_snapshot(&mut world, name).expect("deleted");
    }
    let deleted = world.host.delete_volume("demo");
    done(&mut world, &deleted);
    world.create("demo", 64 * MIB);
    assert!(pins(&world.env) > 0);
    gc(&mut world);
    assert_eq!(pins(&world.env), 0);
}

#[test]
fn a_pin_stays_while_its_child_may_come_though_another_took_the_name_meanwhile() {
    let (mut world, volume) = with_volume();
    write_over(&mut world, &volume, 20);
    // A fork has everything but for its root: another volume has its name, and is deleted before it comes.
    let mut slow = elsewhere(&world);
    let forked = slow.host.fork_volume("demo", "child", Durability::Store);
    done(&mut slow, &forked);
    let mut brought = brought(&world.env, &slow.env);
    let (bytes, _) = brought.remove(&root_key("child")).expect("made");
    world.env.objects.extend(brought);
    world.create("child", 64 * MIB);
    write_over(&mut world, &volume, 60);
    for _ in 0..3 {
        gc(&mut world);
    }
    assert_eq!(pins(&world.env), 1);
    let deleted = world.host.delete_volume("child");
    done(&mut world, &deleted);
    let (tombstone, _) = &world.env.objects[&root_key("child")];
    let tombstone = Root::decode(tombstone).expect("a root");
    let mut root = Root::decode(&bytes).expect("a root");
    root.epoch = Epoch(tombstone.epoch.0 + 1);
    root.since = root.epoch;
    root.sequence = tombstone.sequence + 1;
    world.env.versions += 1;
    let version = world.env.versions;
    let objects = &mut world.env.objects;
    objects.insert(root_key("child"), (root.encode(), version));
    let mut other = elsewhere(&world);
    let child = other.open("child");
    for place in 0..4 {
        assert_eq!(other.read_fill(&child, 8 * place, 4096), 27);
    }
}

/// Objects that the second store has and the first has not.
fn brought(before: &Environment, after: &Environment) -> BTreeMap<String, (Vec<u8>, u64)> {
    let objects = after.objects.iter();
    let is_new = |(key, _): &(&String, _)| !before.objects.contains_key(*key);
    let new = objects.filter(is_new);
    new.map(|(key, object)| (key.clone(), object.clone()))
        .collect()
}

#[test]
fn what_a_second_restore_is_about_to_name_stays_though_the_first_ones_pin_goes() {
    let (mut world, volume) = with_volume();
    write_over(&mut world, &volume, 20);
    snapshot(&mut world, "demo@one").expect("taken");
    write_over(&mut world, &volume, 60);
    close(&mut world, &volume);
    let first = world.host.restore_volume("demo@one", "demo@kept");
    done(&mut world, &first);
    let volume = world.open("demo");
    write_over(&mut world, &volume, 100);
    close(&mut world, &volume);
    // A second restore has done everything but for its root, which lands late.
    let mut slow = elsewhere(&world);
    let second = slow.host.restore_volume("demo@one", "demo@later");
    done(&mut slow, &second);
    world.env.objects.extend(brought(&world.env, &slow.env));
    let root = slow.env.objects[&root_key("demo")].clone();
    gc(&mut world);
    delete_snapshot(&mut world, "demo@one").expect("deleted");
    for _ in 0..3 {
        gc(&mut world);
    }
    world.env.objects.insert(root_key("demo"), root);
    gc(&mut world);
    assert_eq!(pins(&world.env), 0);
    let mut other = elsewhere(&world);
    let there = other.open("demo");
    for place in 0..4 {
        assert_eq!(other.read_fill(&there, 8 * place, 4096), 27);
    }
}

#[cfg(feature = "planted")]
#[test]
fn each_planted_bug_is_seen() {
    canary::each_is_seen(&[
        (
            "pins_of_names_taken_again_stay",
            a_pin_goes_when_its_child_was_deleted_and_its_name_taken_again_before_a_pass,
        ),
        (
            "pins_go_when_their_name_is_taken",
            a_pin_stays_while_its_child_may_come_though_another_took_the_name_meanwhile,
        ),
        (
            "restores_share_a_pin",
            what_a_second_restore_is_about_to_name_stays_though_the_first_ones_pin_goes,
        ),
        (
            "collector_reads_no_pins",
            what_a_pin_names_stays_though_its_child_is_not_there_yet,
        ),
        ("refused_child_leaves_its_pin", refused_forks_leave_no_pin),
    ]);
}
