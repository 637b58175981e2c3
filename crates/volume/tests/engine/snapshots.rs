//! Snapshots: a volume as it was at one moment, for ever (S6).
//!
//! With the feature `planted` each planted bug is seen by the test that is there for it.

use blkmq::error::ErrorKind;
use volume::hostlog::marks::Pin;
use volume::object::root_key;
use volume::{Durability, OpenError};

use crate::support::hosts::{self, close, elsewhere, hand_over, other_host, root_of, try_write};
use crate::support::points::{delete_snapshot, done, fold, fork, snapshot, snapshot_names};
use crate::support::{Environment, Fault, World, with_volume};

fn a_snapshot_is_the_volume_as_it_was_whatever_is_written_later() {
    let (mut world, volume) = with_volume();
    world.write(&volume, 0, 1, 4096);
    world.sync(&volume);
    world.write(&volume, 8, 2, 4096);
    let taken = snapshot(&mut world, "demo@one").expect("taken");
    assert_eq!((taken.name.as_str(), taken.lsn.0), ("demo@one", 2));
    world.write(&volume, 0, 3, 4096);
    world.write(&volume, 8, 4, 8192);
    fold(&mut world, &volume, 64);
    let mut other = elsewhere(&world);
    for world in [&mut world, &mut other] {
        let fork = fork(world, "demo@one", "was").expect("forked");
        assert_eq!(world.read_fill(&fork, 0, 4096), 1);
        assert_eq!(world.read_fill(&fork, 8, 4096), 2);
        assert_eq!(
            world.read_fill(&fork, 16, 4096),
            0,
            "nothing of what came later"
        );
        assert_eq!(world.read_fill(&fork, 64, 4096), 0);
    }
    assert_eq!(world.read_fill(&volume, 0, 4096), 3);
}

#[test]
fn a_snapshot_is_the_volume_as_it_was() {
    a_snapshot_is_the_volume_as_it_was_whatever_is_written_later();
}

/// What is written on both sides of a cut waits for the same slice, since one before it is not stored.
fn no_slice_spans_the_cut() {
    let (mut world, volume) = with_volume();
    world.write(&volume, 0, 1, 4096);
    world.env.hanging_puts = 1;
    let first = world.host.sync(&volume);
    world.pass(100);
    world.write(&volume, 0, 2, 4096);
    let answer = world
        .host
        .create_snapshot("demo@one", Vec::new(), Durability::Store);
    world.pass(100);
    world.write(&volume, 0, 3, 4096);
    world.write(&volume, 8, 3, 4096);
    let second = world
        .host
        .create_snapshot("demo@two", Vec::new(), Durability::Store);
    world.pass(2000);
    world.answer_hanging_puts();
    done(&mut world, &first);
    let later = done(&mut world, &second);
    let taken = done(&mut world, &answer);
    assert_eq!(taken.lsn.0, 2);
    // Both were asked for in the first half second, and are stored after two more.
    assert!(
        taken.unix_ms < later.unix_ms && later.unix_ms < 1000,
        "{taken:?}, {later:?}"
    );
    assert_eq!(snapshot_names(&mut world, "demo"), ["demo@one", "demo@two"]);
    let fork = fork(&mut world, "demo@one", "was").expect("forked");
    assert_eq!(world.read_fill(&fork, 0, 4096), 2);
    assert_eq!(world.read_fill(&fork, 8, 4096), 0);
}

#[test]
fn no_slice_spans_the_cut_of_a_snapshot() {
    no_slice_spans_the_cut();
}

/// The newest slice of the snapshot hangs; what comes later is ready before it, and all of it is published at
/// once: a fold is due at the moment when the snapshot is.
fn a_fold_waits_for_the_snapshots_that_are_under_way() {
    let (mut world, volume) = with_volume();
    for sector in 0..4 {
        world.write(&volume, sector * 8, 1, 4096);
        world.sync(&volume);
    }
    world.write(&volume, 0, 2, 4096);
    world.env.hanging_puts = 1;
    let answer = world
        .host
        .create_snapshot("demo@one", Vec::new(), Durability::Store);
    world.pass(100);
    let mut synced = Vec::new();
    for sector in 0..3 {
        world.write(&volume, sector * 8, 3, 4096);
        synced.push(world.host.sync(&volume));
        world.pass(100);
    }
    world.answer_hanging_puts();
    let taken = done(&mut world, &answer);
    assert_eq!(taken.lsn.0, 5);
    for synced in synced {
        done(&mut world, &synced);
    }
    fold(&mut world, &volume, 640);
    assert!(root_of(&world.env, "demo").deltas.len() < 6, "folds go on");
    let fork = fork(&mut world, "demo@one", "was").expect("forked");
    assert_eq!(world.read_fill(&fork, 0, 4096), 2);
    assert_eq!(world.read_fill(&fork, 8, 3 * 4096), 1);
}

#[test]
fn a_fold_waits_for_snapshots() {
    a_fold_waits_for_the_snapshots_that_are_under_way();
}

/// The cleaner and the checkpoint merge layers; a point in time is none of their business.
fn no_merge_spans_the_cut() {
    let (mut world, volume) = with_volume();
    world.write(&volume, 0, 1, 4096);
    world.env.hanging_puts = 1;
    let first = world.host.sync(&volume);
    world.pass(100);
    world.write(&volume, 0, 2, 4096);
    // No slice has it, as long as the one before is not stored.
    let answer = world
        .host
        .create_snapshot("demo@one", Vec::new(), Durability::Store);
    world.pass(100);
    // More than the log has room for, again and again at the same place.
    for round in 0..1000_u64 {
        world.write(&volume, round % 4 * 128, (round % 250) as u8 + 3, 65536);
    }
    world.answer_hanging_puts();
    done(&mut world, &first);
    done(&mut world, &answer);
    let fork = fork(&mut world, "demo@one", "was").expect("forked");
    assert_eq!(world.read_fill(&fork, 0, 4096), 2);
    assert_eq!(world.read_fill(&fork, 128, 4096), 0);
}

#[test]
fn no_merge_of_layers_spans_the_cut_of_a_snapshot() {
    no_merge_spans_the_cut();
}

fn a_pin_stands_before_the_snapshot_does() {
    let (mut world, volume) = with_volume();
    world.write(&volume, 0, 1, 4096);
    let taken = snapshot(&mut world, "demo@one").expect("taken");
    let pin = format!("pins/{}/{}", volume.info().id, taken.id);
    let (bytes, version) = world.env.objects.get(&pin).expect("a pin").clone();
    let pin = Pin::decode(&bytes).expect("a pin");
    assert_eq!(
        pin.root,
        root_of(&world.env, "demo@one"),
        "it holds what the snapshot names"
    );
    let (_, made) = &world.env.objects[&root_key("demo@one")];
    assert!(version < *made);
}

#[test]
fn a_pin_stands_before_its_snapshot() {
    a_pin_stands_before_the_snapshot_does();
}

/// This host does not know yet that another one took the volume, folds it and drops packs.
fn an_owner_that_was_fenced_makes_no_snapshot() {
    let (mut a, volume) = with_volume();
    a.write(&volume, 0, 1, 4096);
    a.sync(&volume);
    let mut b = World::start(Environment {
        versions: a.env.versions + 5000,
        ..Environment::default()
    });
    b.env.objects = std::mem::take(&mut a.env.objects);
    let taken = b.try_open("demo", true).expect("taken over");
    fold(&mut b, &taken, 0);
    a.env.versions = b.env.versions + 1;
    a.env.objects = std::mem::take(&mut b.env.objects);
    let refused = snapshot(&mut a, "demo@one").expect_err("it is not its volume any more");
    assert!(matches!(refused, OpenError::Fenced(_)), "{refused}");
    assert!(!a.env.objects.contains_key(&root_key("demo@one")));
    let is_pin = |key: &&String| key.starts_with("pins/");
    assert_eq!(
        a.env.objects.keys().filter(is_pin).count(),
        0,
        "nothing needs it"
    );
    assert_eq!(
        try_write(&mut a, &volume),
        Err(ErrorKind::Fenced),
        "whoever learned it acknowledges nothing more"
    );
}

#[test]
fn an_owner_that_was_fenced_is_refused_a_snapshot() {
    an_owner_that_was_fenced_makes_no_snapshot();
}

#[test]
fn an_owner_of_a_deleted_volume_learns_it_from_a_snapshot() {
    let (mut a, volume) = with_volume();
    a.write(&volume, 0, 1, 4096);
    a.sync(&volume);
    let mut b = other_host(&mut a);
    let taken = b.try_open("demo", true).expect("taken over");
    close(&mut b, &taken);
    hosts::delete(&mut b, "demo");
    hand_over(&mut b, &mut a);
    let refused = snapshot(&mut a, "demo@one").expect_err("there is none");
    assert!(matches!(refused, OpenError::Deleted(_)), "{refused}");
    assert_eq!(try_write(&mut a, &volume), Err(ErrorKind::Fenced));
}

#[test]
fn a_root_that_was_set_back_stops_the_host_that_looks_at_it_for_a_snapshot() {
    let (mut world, volume) = with_volume();
    world.write(&volume, 0, 1, 4096);
    let older = world.env.objects[&root_key("demo")].0.clone();
    fold(&mut world, &volume, 64);
    world.env.versions += 1;
    let object = (older, world.env.versions);
    world.env.objects.insert(root_key("demo"), object);
    let refused = snapshot(&mut world, "demo@one").expect_err("set back");
    assert!(matches!(refused, OpenError::HostStopped(_)), "{refused}");
    assert_eq!(try_write(&mut world, &volume), Err(ErrorKind::Fenced));
    assert!(!world.env.objects.contains_key(&root_key("demo@one")));
}

#[test]
fn snapshots_are_listed_with_their_labels_and_a_deleted_ones_name_is_free() {
    let (mut world, volume) = with_volume();
    world.write(&volume, 0, 1, 4096);
    let labels = vec![("why".to_owned(), "upgrade".to_owned())];
    let answer = world
        .host
        .create_snapshot("demo@one", labels.clone(), Durability::Store);
    let one = done(&mut world, &answer);
    assert_eq!((one.labels, one.of), (labels, Some(volume.info().id)));
    world.write(&volume, 0, 2, 4096);
    snapshot(&mut world, "demo@two").expect("taken");
    assert_eq!(snapshot_names(&mut world, "demo"), ["demo@one", "demo@two"]);
    assert!(snapshot_names(&mut world, "dem").is_empty());
    let taken = snapshot(&mut world, "demo@one").expect_err("its name is taken");
    assert_eq!(taken, OpenError::Exists("demo@one".into()));
    delete_snapshot(&mut world, "demo@one").expect("deleted");
    assert_eq!(snapshot_names(&mut world, "demo"), ["demo@two"]);
    let gone = delete_snapshot(&mut world, "demo@one").expect_err("it is gone");
    assert_eq!(gone, OpenError::NoSuchSnapshot("demo@one".into()));
    let gone = fork(&mut world, "demo@one", "was")
        .map(drop)
        .expect_err("it is gone");
    assert_eq!(gone, OpenError::NoSuchSnapshot("demo@one".into()));
    snapshot(&mut world, "demo@one").expect("the name is free");
    let fork = fork(&mut world, "demo@one", "was").expect("forked");
    assert_eq!(world.read_fill(&fork, 0, 4096), 2, "it is the new one");
}

#[test]
fn a_snapshot_that_is_being_made_is_busy_and_not_attached() {
    let (mut world, volume) = with_volume();
    world.write(&volume, 0, 1, 4096);
    world.env.hanging_puts = 1;
    let first = world
        .host
        .create_snapshot("demo@one", Vec::new(), Durability::Store);
    world.pass(100);
    let busy = OpenError::Busy("demo@one".into());
    assert_eq!(snapshot(&mut world, "demo@one"), Err(busy.clone()));
    assert_eq!(delete_snapshot(&mut world, "demo@one"), Err(busy.clone()));
    let text = busy.to_string();
    assert!(text.contains("try again") && !text.contains("attached"));
    world.answer_hanging_puts();
    done(&mut world, &first);
}

/// Snapshot and deletion have each looked at the volume before the other one changes it.
fn a_deletion_does_not_pass_a_snapshot() {
    let (mut world, volume) = with_volume();
    world.write(&volume, 0, 1, 4096);
    close(&mut world, &volume);
    drop(volume);
    world.env.store_ms = 100;
    let taken = world
        .host
        .create_snapshot("demo@one", Vec::new(), Durability::Store);
    world.run_until_idle();
    let deleted = world.host.delete_volume("demo");
    let refused = world.wait(|_| deleted.try_take());
    assert_eq!(refused, Err(OpenError::Busy("demo@one".into())));
    done(&mut world, &taken);
    delete_snapshot(&mut world, "demo@one").expect("deleted");
    let deleted = world.host.delete_volume("demo");
    world.run_until_idle();
    let refused = snapshot(&mut world, "demo@two");
    assert_eq!(refused, Err(OpenError::Busy("demo".into())));
    done(&mut world, &deleted);
}

#[test]
fn a_volume_is_not_deleted_while_a_snapshot_of_it_is_made_nor_the_other_way_round() {
    a_deletion_does_not_pass_a_snapshot();
}

/// The root lacks records that its host's log in the store has.
#[test]
fn a_volume_of_which_the_store_has_all_is_snapshot_before_it_is_open_again() {
    let (mut world, volume) = with_volume();
    world.write(&volume, 0, 1, 4096);
    world.sync(&volume);
    drop(volume);
    let mut world = World::start(world.kill());
    assert_eq!(root_of(&world.env, "demo").lsn.0, 0, "only its log has it");
    let taken = snapshot(&mut world, "demo@one").expect("taken");
    assert_eq!(taken.lsn.0, 1);
    let fork = fork(&mut world, "demo@one", "was").expect("forked");
    assert_eq!(world.read_fill(&fork, 0, 4096), 1);
}

#[test]
fn what_is_no_name_for_a_snapshot_is_refused_and_nothing_is_changed() {
    let (mut world, volume) = with_volume();
    world.write(&volume, 0, 1, 4096);
    let before: Vec<String> = world.env.objects.keys().cloned().collect();
    for name in ["demo", "demo@", "@one", "demo@a@b", "demo@a/b", "de mo@a"] {
        let refused = snapshot(&mut world, name).expect_err(name);
        assert!(
            matches!(refused, OpenError::Invalid(_)),
            "{name}: {refused}"
        );
    }
    let twice = vec![("a".into(), "1".into()), ("a".into(), "2".into())];
    let answer = world
        .host
        .create_snapshot("demo@one", twice, Durability::Store);
    let refused = world.wait(|_| answer.try_take()).expect_err("twice");
    assert!(refused.to_string().contains("given twice"), "{refused}");
    let missing = snapshot(&mut world, "other@one").expect_err("no volume");
    assert_eq!(missing, OpenError::NoSuchVolume("other".into()));
    let refused = world
        .try_open("demo@one", false)
        .map(drop)
        .expect_err("no volume");
    assert!(matches!(refused, OpenError::Invalid(_)), "{refused}");
    let after: Vec<String> = world.env.objects.keys().cloned().collect();
    assert_eq!(after, before);
}

#[test]
fn a_closed_volume_has_snapshots_too_and_is_deleted_after_them() {
    let (mut world, volume) = with_volume();
    world.write(&volume, 0, 1, 4096);
    let answer = world.host.close_volume(&volume);
    done(&mut world, &answer);
    snapshot(&mut world, "demo@one").expect("taken");
    let answer = world.host.delete_volume("demo");
    let refused = world
        .wait(|_| answer.try_take())
        .expect_err("it has a snapshot");
    assert!(refused.to_string().contains("demo@one"), "{refused}");
    let fork = fork(&mut world, "demo@one", "was").expect("forked");
    delete_snapshot(&mut world, "demo@one").expect("deleted");
    let answer = world.host.delete_volume("demo");
    done(&mut world, &answer);
    assert_eq!(world.read_fill(&fork, 0, 4096), 1, "forks live on");
}

#[test]
fn writes_that_only_a_log_has_are_in_a_snapshot_or_it_is_refused() {
    let (mut world, volume) = with_volume();
    world.write(&volume, 0, 1, 4096);
    world.flush(&volume);
    drop(volume);
    let mut world = World::start(world.kill());
    let refused = snapshot(&mut world, "demo@one").expect_err("not open yet");
    assert!(refused.to_string().contains("the store lacks"), "{refused}");
    let volume = world.open("demo");
    snapshot(&mut world, "demo@one").expect("taken");
    drop(volume);
    let fork = fork(&mut world, "demo@one", "was").expect("forked");
    assert_eq!(world.read_fill(&fork, 0, 4096), 1);
}

/// Each request of a snapshot in turn, and whether there is one in the end.
fn with_fault(at: usize, fault: Fault) -> bool {
    let (mut world, volume) = with_volume();
    world.write(&volume, 0, 1, 4096);
    world.sync(&volume);
    world.write(&volume, 8, 2, 4096);
    world.env.fault_after = Some((at, fault));
    let answer = world
        .host
        .create_snapshot("demo@one", Vec::new(), Durability::Store);
    world.pass(5);
    world.write(&volume, 8, 3, 4096);
    world.write(&volume, 16, 3, 4096);
    let mut made = None;
    if fault == Fault::LostAnswer {
        made = Some(world.wait(|_| answer.try_take()));
        world.sync(&volume);
    } else {
        world.pass(200);
    }
    drop(volume);
    world.env.fault_after = None;
    world.env.outage = false;
    let mut world = World::start(world.kill());
    let volume = world.open("demo");
    let found = snapshot_names(&mut world, "demo");
    if let Some(made) = made {
        let what = format!("request {at}: {made:?}, and {found:?}");
        assert!(made.is_err() || found == ["demo@one"], "{what}");
    }
    let made = found == ["demo@one"];
    if !made {
        assert!(found.is_empty());
        snapshot(&mut world, "demo@one").expect("the name is free");
    }
    let fork = fork(&mut world, "demo@one", "was").expect("forked");
    let fills = [0, 8, 16].map(|sector| world.read_fill(&fork, sector, 4096));
    assert_eq!(
        fills,
        if made { [1, 2, 0] } else { [1, 3, 3] },
        "request {at}, {fault:?}"
    );
    let fills = [0, 8, 16].map(|sector| world.read_fill(&volume, sector, 4096));
    assert_eq!(fills, [1, 3, 3], "request {at}, {fault:?}");
    made
}

#[test]
fn a_snapshot_that_is_cut_short_at_any_request_is_whole_or_not_there() {
    for fault in [Fault::Outage, Fault::OutageBehind] {
        let made: Vec<bool> = (0..24).map(|at| with_fault(at, fault)).collect();
        assert!(!made[0] && made[23], "{fault:?}: {made:?}");
    }
}

#[test]
fn a_snapshot_of_which_any_answer_is_lost_is_made_or_refused() {
    let made: Vec<bool> = (0..24)
        .map(|at| with_fault(at, Fault::LostAnswer))
        .collect();
    assert!(made[23], "{made:?}");
}

#[cfg(feature = "planted")]
#[test]
fn each_planted_bug_of_snapshots_is_seen() {
    canary::each_is_seen(&[
        ("slice_spans_a_point", no_slice_spans_the_cut),
        ("snapshot_is_taken_when_stored", no_slice_spans_the_cut),
        ("merge_spans_a_point", no_merge_spans_the_cut),
        (
            "deletion_passes_a_snapshot",
            a_deletion_does_not_pass_a_snapshot,
        ),
        ("child_without_a_pin", a_pin_stands_before_the_snapshot_does),
        (
            "no_look_after_the_pin",
            an_owner_that_was_fenced_makes_no_snapshot,
        ),
        (
            "point_forgets_the_fence",
            an_owner_that_was_fenced_makes_no_snapshot,
        ),
        (
            "child_has_what_came_later",
            a_fold_waits_for_the_snapshots_that_are_under_way,
        ),
    ]);
}
