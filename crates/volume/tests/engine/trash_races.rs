//! The trash while other hosts, passes and whoever comes late are at it: no snapshot goes that another volume of the name has,
//! and no copy of a root keeps what it does not hold (S6, S9).
//!
//! With the feature `planted` each planted bug is seen by the test that is there for it.

use volume::object::root::Root;
use volume::object::root_key;
use volume::{OpenError, VolumeSpec};

use crate::rename_races::steps;
use crate::support::checks::check_all;
use crate::support::hosts::{close, delete, elsewhere, hand_over, root_of};
use crate::support::points::{done, gc, packs, snapshot, snapshot_names, write_over};
use crate::support::{Fault, World, with_volume};
use crate::trash::{
    HOUR_MS, MIB, collect, empty, fill, listed, names, restore, trash, with_snapshot,
};

fn spec() -> VolumeSpec {
    VolumeSpec {
        name: "demo".into(),
        bytes: 64 * MIB,
        block: 512,
    }
}

fn pass_ms(world: &mut World, ms: u64) {
    world.now_ns += ms * 1_000_000;
    world.pass(10);
}

/// There, with what it holds and its snapshot.
fn check_whole(world: &mut World, name: &str, what: &str) {
    let taken = format!("{name}@one");
    assert_eq!(snapshot_names(world, name), [&*taken], "{what}");
    assert_eq!((fill(world, name), fill(world, &taken)), (2, 1), "{what}");
}

/// A volume in the trash whose name another had: it comes back as a fork of itself. Its id.
fn behind_another(world: &mut World) -> String {
    trash(world, "demo").expect("moved");
    let id = listed(world)[0].id.to_string();
    world.create("demo", 64 * MIB);
    delete(world, "demo");
    id
}

/// A volume comes back behind another, which is cut at one request. It is deleted again, and what was left of it in the
/// trash goes before it does. Whether there was such a request.
fn with_fault_before_a_second_trash(at: usize, fault: Fault, is_retaken: bool) -> bool {
    let mut world = with_snapshot();
    let id = behind_another(&mut world);
    world.env.fault_after = Some((at, fault));
    let answer = world.host.restore_from_trash(&id, None);
    match fault {
        Fault::LostAnswer => drop(world.wait(|_| answer.try_take())),
        Fault::Outage | Fault::OutageBehind => world.pass(200),
    }
    let was_reached = world.env.fault_after.take().is_none();
    world.env.outage = false;
    let what = format!("request {at}, {fault:?}, retaken: {is_retaken}");
    let mut world = World::start(world.kill());
    if names(&mut world).is_empty() {
        restore(&mut world, &id, None).expect("it can be done again");
    }
    pass_ms(&mut world, HOUR_MS / 2);
    trash(&mut world, "demo").expect("moved");
    let again = root_of(&world.env, "demo").volume;
    if is_retaken {
        world.create("demo", 64 * MIB);
    }
    pass_ms(&mut world, HOUR_MS / 2 + 60_000);
    collect(&mut world);
    assert_eq!(
        snapshot_names(&mut world, "demo"),
        [""; 0],
        "hidden: {what}"
    );
    let found = listed(&mut world);
    assert_eq!(
        (found.len(), found[0].id, found[0].snapshots),
        (1, again, 1)
    );
    match is_retaken {
        false => {
            restore(&mut world, "demo", None).expect("restored");
            check_whole(&mut world, "demo", &what);
        }
        true => {
            restore(&mut world, "demo", Some("back")).expect("restored");
            assert_eq!(snapshot_names(&mut world, "demo"), [""; 0], "{what}");
            check_whole(&mut world, "back", &what);
        }
    }
    collect(&mut world);
    was_reached
}

fn snapshots_stay_with_what_came_back() {
    for is_retaken in [false, true] {
        for fault in [Fault::LostAnswer, Fault::Outage, Fault::OutageBehind] {
            let is_cut = |at: &usize| with_fault_before_a_second_trash(*at, fault, is_retaken);
            let cuts = (0..100).take_while(is_cut).count();
            assert!((4..100).contains(&cuts), "{cuts} requests");
        }
    }
}

#[test]
fn what_is_left_of_a_volume_that_came_back_takes_no_snapshot_when_that_is_in_the_trash_again() {
    snapshots_stay_with_what_came_back();
}

fn inherited_snapshots_go_through_the_trash() {
    let mut world = with_snapshot();
    trash(&mut world, "demo").expect("moved");
    for (old, new) in [("demo", "second"), ("second", "third")] {
        restore(&mut world, old, Some(new)).expect("restored");
        assert_eq!(listed(&mut world), []);
        check_whole(&mut world, new, old);
        trash(&mut world, new).expect("moved");
        assert_eq!(snapshot_names(&mut world, new), [""; 0], "hidden");
        assert_eq!(listed(&mut world)[0].snapshots, 1);
        collect(&mut world);
    }
    restore(&mut world, "third", None).expect("restored");
    check_whole(&mut world, "third", "in place");
    trash(&mut world, "third").expect("moved");
    empty(&mut world, "third").expect("emptied");
    collect(&mut world);
    assert_eq!(packs(&world.env), 0, "its snapshot went with it");
}

#[test]
fn what_came_out_of_the_trash_under_another_name_goes_through_it_with_all_of_its_snapshots() {
    inherited_snapshots_go_through_the_trash();
}

/// A host stops in the middle of a restore, another one empties the trash, and the first goes on. Whether it was in the middle,
/// and what it said.
fn emptied_beside(before: usize, new_name: Option<&str>) -> (bool, Result<(), OpenError>) {
    let mut world = with_snapshot();
    let id = behind_another(&mut world);
    let mut late = elsewhere(&world);
    hand_over(&mut world, &mut late);
    let answer = late.host.restore_from_trash(&id, new_name);
    steps(&mut late, before);
    let ended = answer.try_take();
    let is_between = ended.is_none();
    hand_over(&mut late, &mut world);
    let emptied = empty(&mut world, &id);
    hand_over(&mut world, &mut late);
    let restored = ended.unwrap_or_else(|| late.wait(|_| answer.try_take()));
    hand_over(&mut late, &mut world);
    let restored = restored.map(drop);
    collect(&mut world);
    let what = format!("{before} requests: {emptied:?}, {restored:?}");
    if restored.is_ok() {
        check_whole(&mut world, new_name.unwrap_or("demo"), &what);
    }
    (is_between, restored)
}

fn restored_is_whole() {
    for new_name in [None, Some("back")] {
        let (mut wholes, mut refusals) = (0, 0);
        for before in 0..200 {
            let (is_between, restored) = emptied_beside(before, new_name);
            match restored {
                Ok(()) => wholes += 1,
                Err(error) if error.to_string().contains("perhaps not all") => refusals += 1,
                Err(_) => {}
            }
            if !is_between {
                break;
            }
        }
        assert!(wholes > 1 && refusals > 0, "{wholes}, {refusals}");
    }
}

#[test]
fn a_volume_that_comes_back_while_the_trash_is_emptied_is_whole_or_not_said_to_be() {
    restored_is_whole();
}

/// One of two has a snapshot that is read when their time is over.
fn one_in_use_keeps_no_other() {
    let mut world = World::new();
    for name in ["aaa", "bbb"] {
        world.create(name, 64 * MIB);
        let volume = world.open(name);
        world.write(&volume, 0, 1, 4096);
        snapshot(&mut world, &format!("{name}@one")).expect("taken");
        world.write(&volume, 0, 2, 4096);
        close(&mut world, &volume);
    }
    let answer = world.host.open_snapshot("aaa@one");
    let reader = done(&mut world, &answer);
    for name in ["aaa", "bbb"] {
        trash(&mut world, name).expect("moved");
    }
    pass_ms(&mut world, HOUR_MS);
    gc(&mut world);
    let left: Vec<_> = listed(&mut world).into_iter().map(|it| it.name).collect();
    assert_eq!(left, ["aaa"]);
    let refused = empty(&mut world, "aaa").expect_err("it is read");
    assert_eq!(refused, OpenError::InUse("aaa@one".into()));
    assert_eq!(world.read_fill(&reader, 0, 4096), 1);
    restore(&mut world, "aaa", None).expect("nothing of it was deleted");
    assert_eq!(snapshot_names(&mut world, "aaa"), ["aaa@one"]);
    assert_eq!(fill(&mut world, "aaa"), 2);
    trash(&mut world, "aaa").expect("moved");
    close(&mut world, &reader);
    pass_ms(&mut world, HOUR_MS);
    collect(&mut world);
    assert_eq!((listed(&mut world).len(), packs(&world.env)), (0, 0));
}

#[test]
fn a_volume_whose_snapshot_is_read_stays_in_the_trash_whole_and_keeps_no_other_there() {
    one_in_use_keeps_no_other();
}

fn has_copy(world: &World) -> bool {
    let mut keys = world.env.objects.keys();
    keys.any(|key| key.starts_with("trash/"))
}

/// Somebody was about to take the name of a volume in the trash and died. The trash is emptied, which is cut at one request, and
/// the name taken. Whether there was such a request, and whether the volume could be had back then.
fn emptied_in_part(at: usize) -> (bool, bool) {
    let mut world = with_snapshot();
    trash(&mut world, "demo").expect("moved");
    let id = listed(&mut world)[0].id.to_string();
    let mut other = elsewhere(&world);
    hand_over(&mut world, &mut other);
    other.env.store_ms = 100;
    let _creation = other.host.create_volume(spec());
    other.wait(|world| has_copy(world).then_some(()));
    hand_over(&mut other, &mut world);
    world.env.fault_after = Some((at, Fault::Outage));
    let answer = world.host.empty_trash("demo");
    world.pass(200);
    drop(answer);
    let was_reached = world.env.fault_after.take().is_none();
    world.env.outage = false;
    let mut world = World::start(world.kill());
    world.create("demo", 64 * MIB);
    let restored = restore(&mut world, &id, Some("back")).is_ok();
    if restored {
        check_whole(&mut world, "back", &format!("request {at}"));
    }
    collect(&mut world);
    (was_reached, restored)
}

fn what_is_going_is_not_had_back() {
    let (mut requests, mut wholes) = (0, 0);
    for at in 0..100 {
        let (was_reached, restored) = emptied_in_part(at);
        wholes += usize::from(restored);
        if !was_reached {
            break;
        }
        requests += 1;
    }
    assert!((4..100).contains(&requests), "{requests} requests");
    assert!((1..requests).contains(&wholes), "{wholes} of {requests}");
}

#[test]
fn a_volume_that_is_going_does_not_come_back_by_a_copy_from_before() {
    what_is_going_is_not_had_back();
}

/// A volume in the trash with an index, and another host that is about to put its root aside with its next request.
fn with_late_hands() -> (
    World,
    World,
    volume::Answer<Result<volume::VolumeInfo, OpenError>>,
) {
    let (mut world, volume) = with_volume();
    write_over(&mut world, &volume, 20);
    close(&mut world, &volume);
    trash(&mut world, "demo").expect("moved");
    assert!(!root_of(&world.env, "demo").nodes.is_empty());
    let is_before = |count: &usize| {
        let mut other = elsewhere(&world);
        let _creation = other.host.create_volume(spec());
        steps(&mut other, *count);
        !has_copy(&other)
    };
    let before = (0..100).take_while(is_before).count() - 1;
    let mut late = elsewhere(&world);
    hand_over(&mut world, &mut late);
    let creation = late.host.create_volume(spec());
    steps(&mut late, before);
    hand_over(&mut late, &mut world);
    (world, late, creation)
}

/// The volume is back, and nothing is left of the index that it had.
fn restored_and_folded(world: &mut World) -> volume::Volume {
    restore(world, "demo", None).expect("restored");
    let volume = world.open("demo");
    write_over(world, &volume, 60);
    for _ in 0..3 {
        gc(world);
    }
    volume
}

fn late_copies_end_no_pass() {
    let (mut world, mut late, _creation) = with_late_hands();
    let volume = restored_and_folded(&mut world);
    hand_over(&mut world, &mut late);
    // The other host dies with this request.
    steps(&mut late, 1);
    hand_over(&mut late, &mut world);
    assert!(has_copy(&world));
    for _ in 0..3 {
        assert_eq!(gc(&mut world).recovered.objects, 0);
    }
    assert_eq!(listed(&mut world), []);
    pass_ms(&mut world, HOUR_MS);
    gc(&mut world);
    assert!(!has_copy(&world), "its time is over");
    assert_eq!(world.read_fill(&volume, 0, 4096), 67);
    assert_eq!(check_all(&world.env.objects, true).damage, []);
}

#[test]
fn a_copy_that_comes_when_its_volume_was_restored_ends_no_pass_and_goes() {
    late_copies_end_no_pass();
}

/// Who comes late takes no name, and leaves nothing that would pass for the end of the volume.
fn late_hands_leave_no_tombstone() {
    let (mut world, mut late, creation) = with_late_hands();
    let volume = restored_and_folded(&mut world);
    hand_over(&mut world, &mut late);
    let created = late.wait(|_| creation.try_take());
    assert_eq!(created, Err(OpenError::Exists("demo".into())));
    hand_over(&mut late, &mut world);
    gc(&mut world);
    assert!(!has_copy(&world));
    close(&mut world, &volume);
    let removed = world.env.objects.remove(&root_key("demo"));
    let removed = Root::decode(&removed.expect("there").0).expect("a root");
    for _ in 0..3 {
        let answer = world.host.collect_garbage(false);
        let refused = world.wait(|_| answer.try_take()).expect_err("it is missed");
        let remedy = format!("firn volume forget {}", removed.volume);
        assert!(refused.to_string().contains(&remedy), "{refused}");
    }
}

#[test]
fn without_its_root_a_volume_is_missed_though_somebody_was_late_to_take_its_name() {
    late_hands_leave_no_tombstone();
}

#[test]
fn a_copy_that_comes_when_its_volume_was_let_go_fails_passes_with_the_command_that_removes_it() {
    let (mut world, mut late, _creation) = with_late_hands();
    let id = listed(&mut world)[0].id.to_string();
    world.create("demo", 64 * MIB);
    empty(&mut world, &id).expect("emptied");
    collect(&mut world);
    assert!(!has_copy(&world));
    hand_over(&mut world, &mut late);
    // The other host dies with this request.
    steps(&mut late, 1);
    hand_over(&mut late, &mut world);
    let answer = world.host.collect_garbage(false);
    let refused = world.wait(|_| answer.try_take());
    let refused = refused.expect_err("what it names is gone").to_string();
    let remedy = format!("firn trash empty {id}");
    assert!(refused.contains(&remedy), "{refused}");
    empty(&mut world, &id).expect("it is removed");
    collect(&mut world);
    assert!(!has_copy(&world));
}

#[cfg(feature = "planted")]
#[test]
fn each_planted_bug_is_seen() {
    canary::each_is_seen(&[
        (
            "what_is_in_the_trash_has_no_snapshots",
            snapshots_stay_with_what_came_back,
        ),
        (
            "trash_leaves_what_was_inherited",
            inherited_snapshots_go_through_the_trash,
        ),
        ("trash_is_not_looked_at_again", restored_is_whole),
        ("one_entry_keeps_all_others", one_in_use_keeps_no_other),
        ("trash_goes_in_use", one_in_use_keeps_no_other),
        (
            "going_volume_keeps_its_epoch",
            what_is_going_is_not_had_back,
        ),
        ("late_copies_end_every_pass", late_copies_end_no_pass),
        ("late_hands_put_aside", late_hands_leave_no_tombstone),
    ]);
}
