//! Volumes that nobody has open, and of which the log has a snapshot that the store lacks (S6): nothing is done to them
//! that would lose it.
//!
//! With the feature `planted` the planted bug is seen by the test that is there for it.

use volume::OpenError;

use crate::kept_snapshots::{take, with_known_names};
use crate::support::World;
use crate::support::hosts::close;
use crate::support::points::{has_root, snapshot_infos, snapshot_names};

/// A snapshot that only the log has, of a volume that nobody has opened since the power failed.
fn with_one_in_the_log_alone() -> World {
    let (mut world, volume) = with_known_names();
    world.env.outage = true;
    take(&mut world, "demo@one").expect("no store is needed");
    drop(volume);
    let mut env = world.kill();
    (env.outage, env.boot) = (false, env.boot + 1);
    World::start(env)
}

fn set_back(world: &mut World) -> Result<(), OpenError> {
    let answer = world.host.restore_volume("demo@first", "demo@kept");
    world.wait(|_| answer.try_take()).map(drop)
}

fn move_to_trash(world: &mut World) -> Result<(), OpenError> {
    let answer = world.host.trash_volume("demo", 3_600_000);
    world.wait(|_| answer.try_take())
}

fn rename(world: &mut World) -> Result<(), OpenError> {
    let answer = world.host.rename_volume("demo", "another");
    world.wait(|_| answer.try_take()).map(drop)
}

/// The store has all writes of the volume, so the snapshot alone is what would be lost.
fn closed_volumes_keep_what_the_log_has() {
    for step in [set_back, move_to_trash, rename] {
        let mut world = with_one_in_the_log_alone();
        let refused = step(&mut world).expect_err("the store lacks a snapshot");
        let refused = refused.to_string();
        assert!(refused.contains("snapshots on this host"), "{refused}");
        assert!(refused.contains("attach and detach it first"), "{refused}");
        assert_eq!(
            snapshot_names(&mut world, "demo"),
            ["demo@first", "demo@one"]
        );
        let volume = world.open("demo");
        close(&mut world, &volume);
        assert!(has_root(&world.env, "demo@one"));
        step(&mut world).expect("the store has everything");
    }
}

#[test]
fn a_volume_whose_snapshot_only_the_log_has_is_not_set_back_deleted_or_renamed() {
    closed_volumes_keep_what_the_log_has();
}

#[test]
fn what_is_kept_of_a_volume_that_is_set_back_takes_no_name_that_the_log_has_given() {
    let (mut world, volume) = with_known_names();
    close(&mut world, &volume);
    world.create("other", 64 << 20);
    let other = world.open("other");
    world.write(&other, 0, 2, 4096);
    world.env.failing_puts = usize::MAX;
    let taken = take(&mut world, "other@one").expect("taken");
    let answer = world.host.restore_volume("demo@first", "other@one");
    let refused = world.wait(|_| answer.try_take()).expect_err("it is taken");
    assert_eq!(refused, OpenError::Exists("other@one".into()));
    world.env.failing_puts = 0;
    world.pass(60_000);
    let listed = snapshot_infos(&mut world, "other");
    let names: Vec<_> = listed.iter().map(|info| (&*info.name, info.id)).collect();
    assert_eq!(names, [("other@one", taken.id)]);
}

#[test]
#[cfg_attr(not(feature = "planted"), ignore = "needs --features planted")]
fn planted_bugs_are_seen() {
    canary::each_is_seen(&[(
        "closed_volume_leaves_snapshots_in_the_log",
        closed_volumes_keep_what_the_log_has,
    )]);
}
