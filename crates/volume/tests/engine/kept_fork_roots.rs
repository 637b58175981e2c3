//! The way of a fork that the log keeps to its root (S6): lost answers, volumes of its name, parents that are deleted or
//! another host's, and stores that were set back.
//!
//! With the feature `planted` each planted bug is seen by the test that is there for it.

use volume::object::root_key;
use volume::{OpenError, OpenMode};

use crate::kept_forks::{BASE, FAULTS, LATE, forked_in_an_outage, take, try_take, verify_fork};
use crate::support::hosts::{close, delete, elsewhere, hand_over, root_of};
use crate::support::points::{done, fold, has_root};
use crate::support::unchecked::serve_named;
use crate::support::{Fault, World, with_volume};

/// A request on the fork's way to the store loses its answer, or takes effect in an outage that begins, and then the fork is opened.
fn a_root_on_its_way_decides_who_holds_the_fork() {
    for fault in FAULTS {
        for after in 0..16 {
            let (mut world, parent) = with_volume();
            world.write(&parent, 0, BASE, 8 * 4096);
            world.sync(&parent);
            world.env.fault_after = Some((after, fault));
            let taken = try_take(&mut world, "demo", "branch");
            world.pass(300);
            let answer = world.host.open_volume("branch", OpenMode::default());
            world.pass(20_000);
            let opened = answer.try_take().and_then(Result::ok);
            if let Some(fork) = &opened {
                world.write(fork, 0, 7, 4096);
                world.flush(fork);
            }
            (world.env.outage, world.env.fault_after) = (false, None);
            world.pass(60_000);
            if taken.is_err() && !has_root(&world.env, "branch") {
                continue;
            }
            let late = answer.try_take().and_then(Result::ok);
            let is_written = opened.is_some();
            let fork = match opened.or(late) {
                Some(fork) => fork,
                None => world.open("branch"),
            };
            assert_eq!(fork.check_serving(), Ok(()), "{fault:?} {after}");
            let first = if is_written { 7 } else { BASE };
            assert_eq!(world.read_fill(&fork, 0, 4096), first, "{fault:?} {after}");
            world.sync(&fork);
            let mut other = elsewhere(&world);
            let fork = other.try_open("branch", true).expect("taken over");
            assert_eq!(other.read_fill(&fork, 0, 4096), first);
        }
    }
}

#[test]
fn a_fork_whose_root_may_be_on_its_way_is_opened_when_it_has_it() {
    a_root_on_its_way_decides_who_holds_the_fork();
}

/// Another host makes a volume of the fork's name, and has opened and closed it some times before this one starts again.
fn a_start_beside_a_namesake_serves_the_fork() {
    let (world, _, _) = forked_in_an_outage();
    let mut other = elsewhere(&world);
    other.create("branch", 64 << 20);
    for fill in 20..24 {
        let volume = other.open("branch");
        other.write(&volume, 0, fill, 16 * 4096);
        close(&mut other, &volume);
    }
    let mut env = world.kill();
    env.outage = false;
    env.versions = other.env.versions + 1;
    let foreign = other.env.objects[&root_key("branch")].clone();
    env.objects.extend(other.env.objects.clone());
    let mut world = World::start(env);
    let _parent = world.open("demo");
    let fork = world.open("branch");
    assert!(fork.is_unchecked());
    assert_eq!(world.read_fill(&fork, 8 * 12, 4096), 6);
    world.pass(30_000);
    let said = world.host.sync(&fork);
    let said = world
        .wait(|_| said.try_take())
        .expect_err("it has no place");
    assert!(said.to_string().contains("another host has made"), "{said}");
    assert_eq!(world.env.objects[&root_key("branch")].0, foreign.0);
    world.env.objects.remove(&root_key("branch"));
    world.pass(120_000);
    assert!(!fork.is_unchecked());
    verify_fork(&mut world, &fork);
}

#[test]
fn a_start_beside_a_volume_of_the_forks_name_serves_the_fork_and_not_that_volume() {
    a_start_beside_a_namesake_serves_the_fork();
}

fn a_parent_is_deleted_after_its_forks() {
    let (world, _, _) = forked_in_an_outage();
    let mut env = world.kill();
    env.outage = false;
    let mut world = World::start(env);
    let answer = world.host.delete_volume("demo");
    let deleted = world.wait(|_| answer.try_take());
    assert!(matches!(deleted, Err(OpenError::Invalid(_))), "{deleted:?}");
    let parent = world.open("demo");
    world.pass(60_000);
    let fork = world.open("branch");
    world.pass(30_000);
    close(&mut world, &parent);
    delete(&mut world, "demo");
    verify_fork(&mut world, &fork);
}

#[test]
fn a_volume_whose_forks_only_the_log_has_is_not_deleted() {
    a_parent_is_deleted_after_its_forks();
}

#[test]
fn a_fork_whose_parent_another_host_has_after_a_restart_is_not_served_for_long() {
    let (world, _, _) = forked_in_an_outage();
    let mut other = elsewhere(&world);
    let taken = other.try_open("demo", true).expect("taken over");
    other.write(&taken, 0, 77, 4096);
    other.sync(&taken);
    let mut env = world.kill();
    env.outage = false;
    env.versions = other.env.versions + 1;
    env.objects = other.env.objects.clone();
    let mut world = World::start(env);
    assert!(world.try_open("demo", false).is_err());
    if let Ok(fork) = world.try_open("branch", false) {
        world.pass(120_000);
        assert!(fork.check_serving().is_err());
    }
    assert!(!has_root(&world.env, "branch"));
}

/// Another host has had a fork's parent, and this one takes that back, while nobody has the fork open.
fn a_fork_that_went_with_its_parent_is_no_volume_without_a_root() {
    for is_unchecked in [false, true] {
        let (world, _, _) = forked_in_an_outage();
        let mut other = elsewhere(&world);
        let taken = other.try_open("demo", true).expect("taken over");
        other.write(&taken, 0, 77, 4096);
        other.sync(&taken);
        let mut env = world.kill();
        env.outage = false;
        env.versions = other.env.versions + 1;
        env.objects = other.env.objects.clone();
        let mut world = World::start(env);
        world.try_open("demo", true).expect("taken back");
        if is_unchecked {
            let answer = world.host.open_unchecked("branch", OpenMode::default());
            let fork = world.wait(|_| answer.try_take()).expect("its log goes on");
            world.pass(120_000);
            let ended = fork.check_serving();
            assert!(ended.is_err(), "it has lost what it began with");
        }
        let gone = world.try_open("branch", false).expect_err("it is lost");
        assert!(matches!(gone, OpenError::NoSuchVolume(_)), "{gone:?}");
        let tails = world.host.unserved_tails();
        let left: Vec<_> = tails
            .iter()
            .filter(|tail| tail.volume == "branch")
            .collect();
        assert_eq!(left.len(), 1, "{tails:?}");
        assert!(left[0].rescue, "what was written to it is kept");
        // The name is free.
        world.create("branch", 1 << 20);
        world.open("branch");
    }
}

#[test]
fn a_fork_that_was_lost_with_its_parent_is_not_called_a_volume_whose_root_is_gone() {
    a_fork_that_went_with_its_parent_is_no_volume_without_a_root();
}

/// The store answers with an older copy of itself, and is put right.
fn a_store_that_was_set_back_costs_a_fork_nothing() {
    let (mut world, parent) = with_volume();
    world.write(&parent, 0, BASE, 8 * 4096);
    world.sync(&parent);
    fold(&mut world, &parent, 640);
    let older = world.env.objects.clone();
    fold(&mut world, &parent, 640);
    world.write(&parent, 0, BASE, 8 * 4096);
    world.sync(&parent);
    world.env.outage = true;
    world.write(&parent, 64, LATE, 8 * 4096);
    let fork = take(&mut world, "demo", "branch");
    world.write(&fork, 4 * 8, 5, 4096);
    world.write(&fork, 12 * 8, 6, 4096);
    let mut world = World::start(world.kill());
    for name in ["demo", "branch"] {
        let answer = world.host.open_unchecked(name, OpenMode::default());
        world.wait(|_| answer.try_take()).expect("its log goes on");
    }
    let right = std::mem::replace(&mut world.env.objects, older);
    world.env.outage = false;
    world.pass(60_000);
    let mut env = world.kill();
    env.objects = right;
    let mut world = World::start(env);
    let _parent = world.open("demo");
    world.pass(60_000);
    let fork = world.open("branch");
    world.pass(30_000);
    verify_fork(&mut world, &fork);
}

#[test]
fn what_was_written_to_a_fork_is_there_when_a_store_that_was_set_back_is_put_right() {
    a_store_that_was_set_back_costs_a_fork_nothing();
}

/// The log keeps a fork of which the store has the root, and this start finds another store, which has nothing.
fn a_fork_is_not_lost_in_another_store() {
    let (mut world, _, _) = forked_in_an_outage();
    (world.env.outage, world.env.store_ms) = (false, 50);
    while !has_root(&world.env, "branch") {
        world.pass(10);
    }
    // The log forgets the fork, and nobody here has read its root.
    world.env.outage = true;
    world.pass(1_000);
    let mut env = world.kill();
    let right = std::mem::take(&mut env.objects);
    env.outage = false;
    let mut world = World::start(env);
    let fork = serve_named(&mut world, "branch").expect("its log goes on");
    let _parent = serve_named(&mut world, "demo").expect("its log goes on");
    world.pass(60_000);
    assert_eq!(fork.check_serving(), Ok(()), "it is called lost");
    world.env.objects = right;
    world.pass(60_000);
    assert!(!fork.is_unchecked());
    verify_fork(&mut world, &fork);
}

#[test]
fn a_fork_is_not_called_lost_by_a_store_that_this_host_has_never_written_to() {
    a_fork_is_not_lost_in_another_store();
}

/// A fork's root takes effect, and nobody hears of it before the fork was deleted on another host, which makes another volume
/// of its name.
fn a_deleted_fork_stays_deleted() {
    let mut deleted = 0;
    for (is_open, is_restarted) in [(false, false), (false, true), (true, false), (true, true)] {
        for after in 0..16 {
            let (mut world, parent) = with_volume();
            world.write(&parent, 0, BASE, 8 * 4096);
            world.sync(&parent);
            world.env.fault_after = Some((after, Fault::OutageBehind));
            let _ = try_take(&mut world, "demo", "branch");
            let opened = is_open.then(|| {
                let answer = world.host.open_volume("branch", OpenMode::default());
                world.pass(20_000);
                answer.try_take().and_then(Result::ok)
            });
            world.pass(300);
            if !world.env.outage || !has_root(&world.env, "branch") {
                continue;
            }
            deleted += 1;
            let mut other = elsewhere(&world);
            let taken = other.try_open("branch", true).expect("taken over");
            close(&mut other, &taken);
            delete(&mut other, "branch");
            other.create("branch", 64 << 20);
            if is_restarted {
                // That one goes, too, before this host hears of anything.
                delete(&mut other, "branch");
            }
            hand_over(&mut other, &mut world);
            world.env.outage = false;
            let parent = match is_restarted {
                true => {
                    world = World::start(world.kill());
                    world.open("demo")
                }
                false => parent,
            };
            world.pass(120_000);
            if !is_restarted {
                hand_over(&mut world, &mut other);
                delete(&mut other, "branch");
                hand_over(&mut other, &mut world);
                world.pass(120_000);
            }
            let root = root_of(&world.env, "branch");
            assert!(root.deleted, "{after}: it came back: {root:?}");
            let ended = opened.flatten().map(|fork| fork.check_serving());
            assert!(ended.is_none_or(|ended| is_restarted || ended.is_err()));
            // Nothing of it is in the log.
            close(&mut world, &parent);
            delete(&mut world, "demo");
        }
    }
    assert!(deleted > 3, "{deleted}");
}

#[test]
fn a_fork_that_was_deleted_on_another_host_does_not_come_back() {
    a_deleted_fork_stays_deleted();
}

/// The same, but the other host has given the fork another name.
fn a_renamed_fork_is_made_once() {
    let mut renamed = 0;
    for after in 0..16 {
        let (mut world, parent) = with_volume();
        world.write(&parent, 0, BASE, 8 * 4096);
        world.sync(&parent);
        world.env.fault_after = Some((after, Fault::OutageBehind));
        let _ = try_take(&mut world, "demo", "branch");
        world.pass(300);
        if !world.env.outage || !has_root(&world.env, "branch") {
            continue;
        }
        renamed += 1;
        let mut other = elsewhere(&world);
        let answer = other.host.rename_volume("branch", "moved");
        let moved = done(&mut other, &answer);
        other.create("branch", 64 << 20);
        delete(&mut other, "branch");
        hand_over(&mut other, &mut world);
        world.env.outage = false;
        world.pass(60_000);
        let root = root_of(&world.env, "branch");
        assert!(root.deleted, "{after}: made again: {root:?}");
        let fork = world.open("moved");
        assert_eq!(root_of(&world.env, "moved").volume, moved.id);
        assert_eq!(world.read_fill(&fork, 0, 8 * 4096), BASE);
        close(&mut world, &parent);
        delete(&mut world, "demo");
    }
    assert!(renamed > 0);
}

#[test]
fn a_fork_that_was_renamed_on_another_host_is_not_made_again() {
    a_renamed_fork_is_made_once();
}

#[test]
#[cfg_attr(not(feature = "planted"), ignore = "needs --features planted")]
fn planted_bugs_are_seen() {
    canary::each_is_seen(&[
        (
            "unheld_root_is_forgotten",
            a_root_on_its_way_decides_who_holds_the_fork,
        ),
        (
            "namesake_is_opened_as_the_fork",
            a_start_beside_a_namesake_serves_the_fork,
        ),
        (
            "volume_is_deleted_before_its_forks_are_stored",
            a_parent_is_deleted_after_its_forks,
        ),
        (
            "fork_is_lost_with_any_end_of_its_parent",
            a_store_that_was_set_back_costs_a_fork_nothing,
        ),
        (
            "lost_fork_waits_for_its_root",
            a_fork_that_went_with_its_parent_is_no_volume_without_a_root,
        ),
        (
            "fork_is_lost_in_any_store",
            a_fork_is_not_lost_in_another_store,
        ),
        ("deleted_fork_comes_back", a_deleted_fork_stays_deleted),
        ("renamed_volume_is_made_again", a_renamed_fork_is_made_once),
    ]);
}
