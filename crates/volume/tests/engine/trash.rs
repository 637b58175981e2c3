//! The trash: a deleted volume is kept for a while with its snapshots, its name is free, and nothing of it is lost or
//! left whichever request a crash cuts (S6, S9).
//!
//! With `--cfg canary` each planted bug is seen by the test that is there for it.

use volume::{OpenError, TrashedVolume, Volume};

use crate::support::checks::check_all;
use crate::support::hosts::{close, elsewhere, root_of};
use crate::support::points::{
    delete_snapshot, done, fork, gc, make_fork, packs, snapshot, snapshot_names, whole_list,
};
use crate::support::{Environment, Fault, World, with_volume};

pub(crate) const MIB: u64 = 1 << 20;
pub(crate) const HOUR_MS: u64 = 3_600_000;

pub(crate) fn trash(world: &mut World, name: &str) -> Result<(), OpenError> {
    let answer = world.host.trash_volume(name, HOUR_MS);
    world.wait(|_| answer.try_take())
}

pub(crate) fn restore(world: &mut World, which: &str, name: Option<&str>) -> Result<(), OpenError> {
    let answer = world.host.restore_from_trash(which, name);
    world.wait(|_| answer.try_take()).map(drop)
}

pub(crate) fn empty(world: &mut World, which: &str) -> Result<(), OpenError> {
    let answer = world.host.empty_trash(which);
    world.wait(|_| answer.try_take())
}

pub(crate) fn listed(world: &mut World) -> Vec<TrashedVolume> {
    let answer = world.host.list_trash(whole_list());
    done(world, &answer).items
}

pub(crate) fn names(world: &mut World) -> Vec<String> {
    let answer = world.host.list_volumes(whole_list());
    let found = done(world, &answer).items;
    found.into_iter().map(|info| info.name).collect()
}

/// A closed volume, `demo`, that holds 2 and has a snapshot `demo@one` that holds 1.
pub(crate) fn with_snapshot() -> World {
    let (mut world, volume) = with_volume();
    world.write(&volume, 0, 1, 4096);
    snapshot(&mut world, "demo@one").expect("taken");
    world.write(&volume, 0, 2, 4096);
    close(&mut world, &volume);
    world
}

/// What a volume, or a fork of a snapshot, holds.
pub(crate) fn fill(world: &mut World, name: &str) -> u8 {
    let volume = match name.contains('@') {
        true => fork(world, name, "looked-at").expect("forked"),
        false => world.open(name),
    };
    let found = world.read_fill(&volume, 0, 4096);
    close(world, &volume);
    if name.contains('@') {
        let deleted = world.host.delete_volume("looked-at");
        done(world, &deleted);
    }
    found
}

/// Passes until nothing more goes.
pub(crate) fn collect(world: &mut World) {
    for _ in 0..4 {
        gc(world);
    }
    let found = check_all(&world.env.objects, true);
    assert_eq!(found.damage, []);
}

#[test]
fn a_volume_comes_back_from_the_trash_with_its_snapshots_after_any_number_of_passes() {
    let mut world = with_snapshot();
    let id = root_of(&world.env, "demo").volume;
    let epoch = root_of(&world.env, "demo").epoch;
    trash(&mut world, "demo").expect("moved");
    assert_eq!(names(&mut world), [""; 0]);
    assert_eq!(snapshot_names(&mut world, "demo"), [""; 0], "hidden");
    let found = listed(&mut world);
    assert_eq!((found.len(), found[0].id, found[0].snapshots), (1, id, 1));
    assert_eq!(found[0].until_unix_ms - found[0].deleted_unix_ms, HOUR_MS);
    let missing = world.try_open("demo", true).expect_err("it is gone");
    assert_eq!(missing, OpenError::NoSuchVolume("demo".into()));
    collect(&mut world);
    // From any host.
    let mut other = elsewhere(&world);
    for world in [&mut world, &mut other] {
        restore(world, "demo", None).expect("restored");
        assert_eq!(listed(world), []);
        assert_eq!(snapshot_names(world, "demo"), ["demo@one"]);
        assert_eq!((fill(world, "demo"), fill(world, "demo@one")), (2, 1));
        let root = root_of(&world.env, "demo");
        assert!(root.volume == id && root.epoch > epoch);
    }
}

#[test]
fn the_name_of_a_volume_in_the_trash_is_free_and_both_can_be_had() {
    let mut world = with_snapshot();
    let id = root_of(&world.env, "demo").volume;
    trash(&mut world, "demo").expect("moved");
    let epoch = root_of(&world.env, "demo").epoch;
    world.create("demo", 64 * MIB);
    assert!(
        root_of(&world.env, "demo").epoch > epoch,
        "it never goes back"
    );
    let volume = world.open("demo");
    world.write(&volume, 0, 7, 4096);
    snapshot(&mut world, "demo@new").expect("taken");
    let refused = snapshot(&mut world, "demo@one").expect_err("it has the name yet");
    assert!(refused.to_string().contains("in the trash"), "{refused}");
    assert_eq!(snapshot_names(&mut world, "demo"), ["demo@new"]);
    close(&mut world, &volume);
    collect(&mut world);
    let refused = restore(&mut world, "demo", None).expect_err("it is taken");
    assert!(refused.to_string().contains("--as NEW"), "{refused}");
    restore(&mut world, "demo", Some("old")).expect("restored");
    assert_eq!(listed(&mut world), []);
    assert_eq!(snapshot_names(&mut world, "old"), ["old@one"]);
    assert_eq!(snapshot_names(&mut world, "demo"), ["demo@new"]);
    collect(&mut world);
    assert_eq!(
        (fill(&mut world, "old"), fill(&mut world, "old@one")),
        (2, 1)
    );
    assert_eq!(
        (fill(&mut world, "demo"), fill(&mut world, "demo@new")),
        (7, 7)
    );
    // And is set back to its snapshots as before.
    let set_back = world.host.restore_volume("old@one", "old@kept");
    done(&mut world, &set_back);
    assert_eq!(
        (fill(&mut world, "old"), fill(&mut world, "old@kept")),
        (1, 2)
    );
    assert_ne!(root_of(&world.env, "old").volume, id, "it is a fork");
}

#[test]
fn of_two_volumes_of_one_name_in_the_trash_each_is_found_by_its_id_and_the_last_one_by_its_name() {
    let mut world = with_snapshot();
    trash(&mut world, "demo").expect("moved");
    let first = listed(&mut world)[0].id;
    world.create("demo", 64 * MIB);
    let volume = world.open("demo");
    world.write(&volume, 0, 7, 4096);
    close(&mut world, &volume);
    world.pass(10);
    trash(&mut world, "demo").expect("moved");
    assert_eq!(listed(&mut world).len(), 2);
    // The name is free again: the first one takes it, and the second is put aside.
    restore(&mut world, &first.to_string(), None).expect("restored");
    assert_eq!(
        (fill(&mut world, "demo"), fill(&mut world, "demo@one")),
        (2, 1)
    );
    assert_eq!(snapshot_names(&mut world, "demo"), ["demo@one"]);
    collect(&mut world);
    restore(&mut world, "demo", Some("second")).expect("restored");
    assert_eq!(fill(&mut world, "second"), 7);
    assert_eq!(listed(&mut world), []);
}

#[test]
fn what_leaves_the_trash_is_garbage_and_forks_of_it_live_on() {
    for is_retaken in [false, true] {
        let mut world = with_snapshot();
        make_fork(&mut world, "demo@one", "branch").expect("forked");
        trash(&mut world, "demo").expect("moved");
        if is_retaken {
            world.create("demo", 64 * MIB);
        }
        collect(&mut world);
        let before = packs(&world.env);
        empty(&mut world, "demo").expect("emptied");
        assert_eq!(listed(&mut world), []);
        let refused = restore(&mut world, "demo", Some("back")).expect_err("it is gone");
        assert_eq!(refused, OpenError::NotInTrash("demo".into()));
        collect(&mut world);
        assert_eq!(
            packs(&world.env),
            before - 1,
            "that of the newer write went"
        );
        assert_eq!(fill(&mut world, "branch"), 1);
        let left = world.env.objects.keys();
        assert!(!left.clone().any(|key| key.starts_with("trash/")));
        // Its snapshot's name is free, too.
        if !is_retaken {
            world.create("demo", 64 * MIB);
        }
        snapshot(&mut world, "demo@one").expect("taken");
        assert_eq!(fill(&mut world, "demo@one"), 0);
    }
}

#[test]
fn a_pass_lets_go_what_was_kept_long_enough_and_nothing_before() {
    for is_retaken in [false, true] {
        let mut world = with_snapshot();
        trash(&mut world, "demo").expect("moved");
        if is_retaken {
            world.create("demo", 64 * MIB);
        }
        let before = packs(&world.env);
        collect(&mut world);
        assert_eq!((packs(&world.env), listed(&mut world).len()), (before, 1));
        world.now_ns += HOUR_MS * 1_000_000;
        world.pass(10);
        collect(&mut world);
        assert_eq!((packs(&world.env), listed(&mut world).len()), (0, 0));
        let snapshots = snapshot_names(&mut world, "demo");
        assert_eq!(snapshots, [""; 0], "retaken: {is_retaken}");
    }
}

#[test]
fn a_volume_that_is_in_use_held_elsewhere_or_not_all_in_the_store_stays_where_it_is() {
    let (mut world, volume) = with_volume();
    world.write(&volume, 0, 1, 4096);
    let refused = trash(&mut world, "demo").expect_err("it is open");
    assert_eq!(refused, OpenError::InUse("demo".into()));
    let mut other = elsewhere(&world);
    let refused = trash(&mut other, "demo").expect_err("another host has it");
    assert!(matches!(refused, OpenError::Held { .. }), "{refused}");
    drop(volume);
    // Its newest write is in the log alone.
    let mut world = World::start(world.kill());
    let refused = trash(&mut world, "demo").expect_err("the store lacks something");
    assert!(refused.to_string().contains("the store lacks"), "{refused}");
    assert_eq!(fill(&mut world, "demo"), 1);
    trash(&mut world, "demo").expect("moved");
}

#[test]
fn a_host_that_had_the_volume_before_it_went_through_the_trash_opens_what_came_back() {
    let mut world = with_snapshot();
    let mut other = elsewhere(&world);
    trash(&mut other, "demo").expect("moved");
    restore(&mut other, "demo", None).expect("restored");
    let volume = other.open("demo");
    other.write(&volume, 8, 3, 4096);
    close(&mut other, &volume);
    crate::support::hosts::hand_over(&mut other, &mut world);
    let volume = world.open("demo");
    let found = [0, 8].map(|sector| world.read_fill(&volume, sector, 4096));
    assert_eq!(found, [2, 3]);
}

/// What is done to the trash, and is cut at a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Trash,
    CreateAnew,
    Restore,
    RestoreAs,
    Empty,
}

fn run(world: &mut World, step: Step, is_cut: bool) -> Option<Result<(), OpenError>> {
    let (is_done, answer) = match step {
        Step::Trash => (None, Some(world.host.trash_volume("demo", HOUR_MS))),
        Step::Empty => (None, Some(world.host.empty_trash("demo"))),
        Step::CreateAnew => {
            let spec = volume::VolumeSpec {
                name: "demo".into(),
                bytes: 64 * MIB,
                block: 512,
            };
            (Some(world.host.create_volume(spec)), None)
        }
        Step::Restore => (Some(world.host.restore_from_trash("demo", None)), None),
        Step::RestoreAs => {
            let answer = world.host.restore_from_trash("demo", Some("back"));
            (Some(answer), None)
        }
    };
    if is_cut {
        world.pass(200);
        return None;
    }
    let look = |_: &mut World| match (&is_done, &answer) {
        (Some(one), _) => one.try_take().map(|done| done.map(drop)),
        (_, Some(other)) => other.try_take(),
        _ => None,
    };
    Some(world.wait(look))
}

/// Cuts a step at one request, starts another server, and looks: each state is to be had, under one name. Whether the
/// step was whole.
fn with_fault(step: Step, at: usize, fault: Fault) -> bool {
    let mut world = with_snapshot();
    if step != Step::Trash {
        trash(&mut world, "demo").expect("moved");
    }
    world.env.fault_after = Some((at, fault));
    let outcome = run(&mut world, step, fault != Fault::LostAnswer);
    let was_reached = world.env.fault_after.take().is_none();
    world.env.outage = false;
    let what = format!("{step:?}, request {at}, {fault:?}: {outcome:?}");
    let mut world = World::start(world.kill());
    collect(&mut world);
    let in_trash = listed(&mut world).len();
    let there = names(&mut world);
    match step {
        Step::Trash | Step::Restore => {
            let is_there = there == ["demo"];
            assert_eq!(usize::from(is_there) + in_trash, 1, "{what}: {there:?}");
            if let Some(Ok(())) = outcome {
                assert_eq!(is_there, step == Step::Restore, "{what}");
            }
            if !is_there {
                restore(&mut world, "demo", None).expect("restored");
            }
            let found = (fill(&mut world, "demo"), fill(&mut world, "demo@one"));
            assert_eq!(found, (2, 1), "{what}");
        }
        Step::CreateAnew => {
            assert_eq!(in_trash, 1, "{what}");
            let is_made = there == ["demo"];
            assert!(is_made || !matches!(outcome, Some(Ok(()))), "{what}");
            restore(&mut world, "demo", Some("back")).expect("restored");
            let found = (fill(&mut world, "back"), fill(&mut world, "back@one"));
            assert_eq!(found, (2, 1), "{what}");
        }
        Step::RestoreAs => {
            let is_back = there == ["back"];
            assert!(is_back || in_trash == 1, "{what}: {there:?}");
            if let Some(Ok(())) = outcome {
                assert!(is_back, "{what}");
            }
            if empty_is_begun(&world.env) {
                assert!(is_back, "{what}");
                empty(&mut world, "demo").expect("it is gone on with");
            } else if in_trash == 1 {
                // What was begun is deleted, and done again.
                for name in snapshot_names(&mut world, "back") {
                    delete_snapshot(&mut world, &name).expect("deleted");
                }
                if is_back {
                    let deleted = world.host.delete_volume("back");
                    done(&mut world, &deleted);
                }
                restore(&mut world, "demo", Some("back")).expect("it can be done again");
            }
            collect(&mut world);
            let found = (fill(&mut world, "back"), fill(&mut world, "back@one"));
            assert_eq!(found, (2, 1), "{what}");
        }
        Step::Empty => {
            assert!(in_trash == 0 || !matches!(outcome, Some(Ok(()))), "{what}");
            if in_trash == 1 {
                empty(&mut world, "demo").expect("it is gone on with");
            }
            assert_eq!(listed(&mut world), [], "{what}");
            collect(&mut world);
            assert_eq!(packs(&world.env), 0, "{what}");
        }
    }
    collect(&mut world);
    was_reached
}

/// Whether a root says that it is leaving the trash.
fn empty_is_begun(env: &Environment) -> bool {
    root_of(env, "demo")
        .trash_mark()
        .is_some_and(|mark| mark.is_going)
}

#[test]
fn whatever_is_done_to_the_trash_and_cut_at_any_request_leaves_each_volume_in_one_place() {
    let steps = [
        Step::Trash,
        Step::CreateAnew,
        Step::Restore,
        Step::RestoreAs,
        Step::Empty,
    ];
    for step in steps {
        for fault in [Fault::LostAnswer, Fault::Outage, Fault::OutageBehind] {
            let cuts = (0..100)
                .take_while(|at| with_fault(step, *at, fault))
                .count();
            assert!((2..100).contains(&cuts), "{step:?}: {cuts} requests");
        }
    }
}

/// A volume comes back under its own name, which another had meanwhile, and that is cut at one request. Whether there
/// was such a request.
fn with_fault_behind_another(at: usize, fault: Fault) -> bool {
    let mut world = with_snapshot();
    trash(&mut world, "demo").expect("moved");
    let id = listed(&mut world)[0].id.to_string();
    world.create("demo", 64 * MIB);
    world.pass(10);
    trash(&mut world, "demo").expect("moved");
    world.env.fault_after = Some((at, fault));
    let answer = world.host.restore_from_trash(&id, None);
    match fault {
        Fault::LostAnswer => drop(world.wait(|_| answer.try_take())),
        Fault::Outage | Fault::OutageBehind => world.pass(200),
    }
    let was_reached = world.env.fault_after.take().is_none();
    world.env.outage = false;
    let what = format!("request {at}, {fault:?}");
    let mut world = World::start(world.kill());
    if names(&mut world).is_empty() {
        restore(&mut world, &id, None).expect("it can be done again");
    }
    // What is left in the trash goes, and nothing that the volume has.
    world.now_ns += HOUR_MS * 1_000_000;
    world.pass(10);
    collect(&mut world);
    assert_eq!(listed(&mut world), [], "{what}");
    assert_eq!(snapshot_names(&mut world, "demo"), ["demo@one"], "{what}");
    let found = (fill(&mut world, "demo"), fill(&mut world, "demo@one"));
    assert_eq!(found, (2, 1), "{what}");
    was_reached
}

#[test]
fn a_volume_that_comes_back_behind_another_keeps_its_snapshots_whatever_cuts_it_short() {
    for fault in [Fault::LostAnswer, Fault::Outage, Fault::OutageBehind] {
        let is_cut = |at: &usize| with_fault_behind_another(*at, fault);
        let cuts = (0..100).take_while(is_cut).count();
        assert!((4..100).contains(&cuts), "{cuts} requests");
    }
}

#[test]
fn a_volume_that_comes_back_while_its_name_is_being_taken_is_there_once() {
    let mut world = with_snapshot();
    trash(&mut world, "demo").expect("moved");
    // Another host has put the root aside, and is about to take the name.
    let mut other = elsewhere(&world);
    let spec = volume::VolumeSpec {
        name: "demo".into(),
        bytes: 64 * MIB,
        block: 512,
    };
    other.env.store_ms = 100;
    let creation = other.host.create_volume(spec);
    let is_aside = |world: &mut World| {
        let mut keys = world.env.objects.keys();
        keys.any(|key| key.starts_with("trash/")).then_some(())
    };
    other.wait(is_aside);
    crate::support::hosts::hand_over(&mut other, &mut world);
    restore(&mut world, "demo", None).expect("restored");
    crate::support::hosts::hand_over(&mut world, &mut other);
    let created = other.wait(|_| creation.try_take());
    assert_eq!(created, Err(OpenError::Exists("demo".into())));
    crate::support::hosts::hand_over(&mut other, &mut world);
    assert_eq!(listed(&mut world), [], "what was put aside counts no more");
    assert_eq!(
        (fill(&mut world, "demo"), fill(&mut world, "demo@one")),
        (2, 1)
    );
    // And goes in time, without what the volume has now.
    world.now_ns += HOUR_MS * 1_000_000;
    world.pass(10);
    collect(&mut world);
    let mut left = world.env.objects.keys();
    assert!(!left.any(|key| key.starts_with("trash/")));
    assert_eq!(
        (fill(&mut world, "demo"), fill(&mut world, "demo@one")),
        (2, 1)
    );
}

fn in_use(world: &mut World, volume: &Volume) -> bool {
    world.read_fill(volume, 0, 4096) > 0
}

#[test]
fn a_trashed_volumes_fork_is_used_while_the_trash_is_emptied() {
    let mut world = with_snapshot();
    let branch = fork(&mut world, "demo", "branch").expect("forked");
    trash(&mut world, "demo").expect("moved");
    assert!(in_use(&mut world, &branch));
    empty(&mut world, "demo").expect("emptied");
    collect(&mut world);
    let mut other = elsewhere(&world);
    let there = other.try_open("branch", true).expect("taken over");
    assert!(in_use(&mut other, &there));
}

#[cfg(feature = "planted")]
#[test]
fn each_planted_bug_is_seen() {
    canary::each_is_seen(&[
        (
            "collector_reads_no_trash",
            the_name_of_a_volume_in_the_trash_is_free_and_both_can_be_had,
        ),
        (
            "trash_holds_nothing",
            a_volume_comes_back_from_the_trash_with_its_snapshots_after_any_number_of_passes,
        ),
        (
            "name_is_taken_before_it_is_put_aside",
            whatever_is_done_to_the_trash_and_cut_at_any_request_leaves_each_volume_in_one_place,
        ),
        (
            "trash_takes_what_was_inherited",
            a_volume_that_comes_back_behind_another_keeps_its_snapshots_whatever_cuts_it_short,
        ),
        (
            "trash_leaves_snapshots",
            what_leaves_the_trash_is_garbage_and_forks_of_it_live_on,
        ),
    ]);
}
