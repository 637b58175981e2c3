//! A snapshot that is made at the very moment when its volume leaves its name follows the volume, whoever stops when (S6, S7).
//!
//! With the feature `planted` each planted bug is seen by the test that is there for it.

use volume::object::root_key;
use volume::{Durability, OpenError};

use crate::rename::{check_renamed, collect, create, fill, names, rename, with_snapshot};
use crate::rename_races::{sent, steps};
use crate::support::hosts::{close, delete, elsewhere, hand_over, root_of};
use crate::support::points::{delete_snapshot, gc, make_fork, snapshot_infos, snapshot_names};
use crate::support::{Fault, World};

/// The snapshot went with its volume: it is under the new name, and is what was taken.
fn check_followed(world: &mut World, what: &str) {
    assert_eq!(snapshot_names(world, "demo"), [""; 0], "{what}");
    let taken = snapshot_names(world, "another");
    assert_eq!(taken, ["another@late", "another@one"], "{what}");
    let found = ["another", "another@late", "another@one"].map(|name| fill(world, name));
    assert_eq!(found, [2, 2, 1], "{what}");
}

/// Another host makes a snapshot of the closed volume and stops; the volume is renamed, and another may take its name. Then
/// the host goes on, or is dead and the store takes what it had sent. Whether it was in the middle, and whether the
/// snapshot had no place to stay.
fn made_beside(at: usize, is_retaken: bool, dies: bool) -> (bool, bool) {
    let mut world = with_snapshot();
    let id = root_of(&world.env, "demo").volume;
    let mut other = elsewhere(&world);
    hand_over(&mut world, &mut other);
    let made = other
        .host
        .create_snapshot("demo@late", Vec::new(), Durability::Store);
    steps(&mut other, at);
    let mut ended = made.try_take();
    let is_between = ended.is_none();
    hand_over(&mut other, &mut world);
    let was_there = world.env.objects.contains_key(&root_key("demo@late"));
    rename(&mut world, "demo", "another").expect("renamed");
    if is_retaken {
        create(&mut world, "demo").expect("the name is free");
    }
    if dies {
        for op in sent(&other) {
            let _ = world.store(op);
        }
    } else if is_between {
        hand_over(&mut world, &mut other);
        ended = Some(other.wait(|_| made.try_take()));
        hand_over(&mut other, &mut world);
    }
    if let Some(Ok(info)) = &ended
        && info.of != Some(id)
    {
        // It had asked for nothing, and took one of whoever has the name now.
        assert!(is_retaken && info.name == "demo@late", "{info:?}");
        return (is_between, false);
    }
    let is_stray = world
        .env
        .objects
        .contains_key(&root_key("demo@late"))
        .then(|| root_of(&world.env, "demo@late"))
        .is_some_and(|root| !root.deleted);
    let what = format!("{at} requests, {is_retaken} {dies}: {ended:?}");
    assert!(dies || !is_stray, "{what}");
    collect(&mut world);
    let pins = world.env.objects.keys();
    let pins = pins.filter(|key| key.starts_with("pins/")).count();
    assert!(pins == 0 || dies, "{what}");
    if is_retaken {
        delete(&mut world, "demo");
    }
    let is_there = snapshot_names(&mut world, "another").len() == 2;
    match &ended {
        Some(Ok(info)) if !was_there => assert_eq!(info.name, "another@late", "{what}"),
        _ => {}
    }
    assert!(is_there || !matches!(ended, Some(Ok(_))), "{what}");
    match is_there {
        true => check_followed(&mut world, &what),
        false => check_renamed(&mut world, &what),
    }
    (is_between, is_stray)
}

#[test]
fn a_snapshot_that_is_made_while_its_volume_is_renamed_goes_with_it() {
    for is_retaken in [false, true] {
        let cuts = (0..60).take_while(|at| made_beside(*at, is_retaken, false).0);
        assert!((3..60).contains(&cuts.count()));
        let stray = (0..20).filter(|at| made_beside(*at, is_retaken, true).1);
        assert!(stray.count() > 0, "none stayed behind");
    }
}

/// A snapshot that stayed behind: its host died when it had sent it.
fn with_stray() -> World {
    for at in 0..20 {
        let mut world = with_snapshot();
        let mut other = elsewhere(&world);
        hand_over(&mut world, &mut other);
        let made = other
            .host
            .create_snapshot("demo@late", Vec::new(), Durability::Store);
        steps(&mut other, at);
        drop(made);
        hand_over(&mut other, &mut world);
        rename(&mut world, "demo", "another").expect("renamed");
        for op in sent(&other) {
            let _ = world.store(op);
        }
        if world.env.objects.contains_key(&root_key("demo@late"))
            && !root_of(&world.env, "demo@late").deleted
        {
            return world;
        }
    }
    panic!("none stayed behind");
}

/// A pass, which has the snapshot follow, is cut at one request. Whether the request was reached.
fn cut_on_its_way(at: usize, fault: Fault) -> bool {
    let mut world = with_stray();
    let taken = root_of(&world.env, "demo@late");
    world.env.fault_after = Some((at, fault));
    let answer = world.host.collect_garbage(false);
    match fault {
        Fault::LostAnswer => drop(world.wait(|_| answer.try_take())),
        Fault::Outage | Fault::OutageBehind => world.pass(200),
    }
    let was_reached = world.env.fault_after.take().is_none();
    world.env.outage = false;
    let mut world = World::start(world.kill());
    let what = format!("request {at}, {fault:?}");
    // It is in a list at every moment, and is not deleted where it may be in two places.
    let listed = [
        snapshot_names(&mut world, "demo"),
        snapshot_names(&mut world, "another"),
    ];
    let listed = listed.concat();
    assert!(listed.iter().any(|name| name.ends_with("@late")), "{what}");
    if root_of(&world.env, "demo@late").rename_mark().is_some() {
        let mut there = elsewhere(&world);
        match delete_snapshot(&mut there, "demo@late") {
            Err(error @ OpenError::Renaming { .. }) => {
                let said = error.to_string();
                assert!(
                    said.contains("another@late") && said.contains("firn gc"),
                    "{said}"
                );
                let forked = make_fork(&mut there, "demo@late", "branch");
                assert_eq!(forked, Err(error));
            }
            Err(OpenError::NoSuchSnapshot(_)) => {}
            deleted => panic!("{what}: {deleted:?}"),
        }
    }
    collect(&mut world);
    check_followed(&mut world, &what);
    let infos = snapshot_infos(&mut world, "another");
    let late = infos.iter().find(|info| info.name == "another@late");
    let late = late.expect("it followed");
    assert_eq!(
        (late.id, late.unix_ms),
        (taken.volume, taken.unix_ms),
        "{what}"
    );
    was_reached
}

#[test]
fn a_snapshot_follows_its_volume_whichever_request_is_cut() {
    for fault in [Fault::LostAnswer, Fault::Outage, Fault::OutageBehind] {
        let cuts = (0..200).take_while(|at| cut_on_its_way(*at, fault)).count();
        assert!((15..200).contains(&cuts), "{fault:?}: {cuts} requests");
    }
}

#[test]
fn a_snapshot_whose_name_is_taken_under_the_new_one_stays_and_loses_nothing() {
    let mut world = with_stray();
    let taken = world
        .host
        .create_snapshot("another@late", Vec::new(), Durability::Store);
    let taken = world.wait(|_| taken.try_take()).expect("taken");
    collect(&mut world);
    assert_eq!(snapshot_names(&mut world, "demo"), ["demo@late"]);
    assert_eq!(fill(&mut world, "demo@late"), 2);
    assert_eq!(root_of(&world.env, "another@late").volume, taken.id);
    delete_snapshot(&mut world, "another@late").expect("deleted");
    gc(&mut world);
    collect(&mut world);
    check_followed(&mut world, "the name is free");
}

#[test]
fn of_a_volume_that_is_open_its_holder_alone_has_a_snapshot_follow() {
    let mut world = with_stray();
    let mut other = elsewhere(&world);
    hand_over(&mut world, &mut other);
    let volume = other.open("another");
    hand_over(&mut other, &mut world);
    collect(&mut world);
    assert_eq!(snapshot_names(&mut world, "demo"), ["demo@late"]);
    hand_over(&mut world, &mut other);
    gc(&mut other);
    assert_eq!(snapshot_names(&mut other, "demo"), [""; 0]);
    // The holder knows that the name is taken.
    let answer = other
        .host
        .create_snapshot("another@late", Vec::new(), Durability::Log);
    let refused = other.wait(|_| answer.try_take()).expect_err("it is taken");
    assert_eq!(refused, OpenError::Exists("another@late".into()));
    close(&mut other, &volume);
    check_followed(&mut other, "its holder did it");
}

#[test]
fn a_snapshot_follows_a_volume_that_has_gone_on_and_none_of_whoever_has_its_name_is_moved() {
    let mut world = with_stray();
    rename(&mut world, "another", "third").expect("renamed");
    for name in ["demo", "another"] {
        create(&mut world, name).expect("the name is free");
        let own = world
            .host
            .create_snapshot(&format!("{name}@own"), Vec::new(), Durability::Store);
        world.wait(|_| own.try_take()).expect("taken");
    }
    collect(&mut world);
    assert_eq!(names(&mut world), ["another", "demo", "third"]);
    assert_eq!(snapshot_names(&mut world, "demo"), ["demo@own"]);
    assert_eq!(snapshot_names(&mut world, "another"), ["another@own"]);
    let taken = snapshot_names(&mut world, "third");
    assert_eq!(taken, ["third@late", "third@one"]);
    let found = ["third", "third@late", "third@one"].map(|name| fill(&mut world, name));
    assert_eq!(found, [2, 2, 1]);
}

#[cfg(feature = "planted")]
#[test]
fn each_planted_bug_is_seen() {
    canary::each_is_seen(&[(
        "late_snapshots_stay",
        a_snapshot_that_is_made_while_its_volume_is_renamed_goes_with_it,
    )]);
}
