//! Groups of snapshots at one cut of the host (S6): what one volume has of a client's history, the others have, too.
//!
//! With the feature `planted` the planted bug is seen by the test that is there for it.

use volume::{Durability, OpenError, SnapshotInfo, Volume};

use crate::support::hosts::{elsewhere, hand_over, other_host};
use crate::support::points::{fork, snapshot_infos};
use crate::support::{World, with_volume};

const GROUP: [&str; 2] = ["demo@cut", "wal@cut"];

fn names(names: &[&str]) -> Vec<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

/// Two volumes of which the store has something, whose host knows which names are free.
fn two_volumes() -> (World, Volume, Volume) {
    let (mut world, data) = with_volume();
    world.create("wal", 64 << 20);
    let wal = world.open("wal");
    for volume in [&data, &wal] {
        world.write(volume, 0, 1, 4096);
        world.sync(volume);
    }
    take(&mut world, &["demo@first", "wal@first"]).expect("taken");
    world.pass(2000);
    (world, data, wal)
}

fn take(world: &mut World, members: &[&str]) -> Result<Vec<SnapshotInfo>, OpenError> {
    take_with(world, members, Vec::new(), Durability::Log)
}

fn take_with(
    world: &mut World,
    members: &[&str],
    labels: Vec<(String, String)>,
    durability: Durability,
) -> Result<Vec<SnapshotInfo>, OpenError> {
    let answer = world
        .host
        .create_snapshot_group(&names(members), labels, durability);
    world.wait(|_| answer.try_take())
}

/// What the two of the group begin with.
fn found(world: &mut World, suffix: &str) -> (u8, u8) {
    let [data, wal] = GROUP.map(|name| {
        let (volume, _) = name.split_once('@').expect("a snapshot's name");
        let fork = fork(world, name, &format!("{volume}-{suffix}")).expect("it is in the store");
        world.read_fill(&fork, 0, 4096)
    });
    (data, wal)
}

/// The second volume has as many points as it may have, so a group waits for it; a client writes on, to the first
/// volume and behind each answer to the second.
fn a_group_that_waits_is_one_cut() {
    let (mut world, data, wal) = two_volumes();
    world.env.store_ms = 50;
    for nth in 0..8 {
        world.write(&wal, 8, nth, 4096);
        let name = format!("wal@n{nth}");
        let answer = world
            .host
            .create_snapshot(&name, Vec::new(), Durability::Log);
        world.wait(|_| answer.try_take()).expect("there is a place");
    }
    let answer = world
        .host
        .create_snapshot_group(&names(&GROUP), Vec::new(), Durability::Log);
    let mut newest = 1;
    while answer.try_take().is_none() {
        newest += 1;
        world.write(&data, 0, newest, 4096);
        world.write(&wal, 0, newest, 4096);
        world.pass(5);
        assert!(newest < 200, "the group is not taken");
    }
    world.pass(10_000);
    let (in_data, in_wal) = found(&mut world, "was");
    assert!(newest > 3, "it did not wait");
    assert!(
        in_data == in_wal || in_data == in_wal + 1,
        "{in_wal} was written once the other volume had answered {in_wal}, and that has {in_data}"
    );
}

#[test]
fn a_group_has_a_write_only_with_all_that_were_answered_before_it() {
    a_group_that_waits_is_one_cut();
}

#[test]
fn a_group_is_whole_as_soon_as_it_is_acknowledged() {
    let (mut world, data, wal) = two_volumes();
    world.env.outage = true;
    world.write(&data, 0, 2, 4096);
    world.write(&wal, 0, 3, 4096);
    let answer = world
        .host
        .create_snapshot_group(&names(&GROUP), Vec::new(), Durability::Log);
    let taken = loop {
        world.host.run_jobs();
        if let Some(taken) = answer.try_take() {
            break taken.expect("no store is needed");
        }
        assert!(world.one_step(), "nothing goes on");
    };
    assert!(taken.iter().all(|info| !info.is_stored));
    let mut env = world.kill();
    // The power fails in the moment of the answer.
    (env.outage, env.boot) = (false, env.boot + 1);
    let mut world = World::start(env);
    for volume in ["demo", "wal"] {
        world.open(volume);
    }
    world.pass(60_000);
    assert_eq!(found(&mut world, "was"), (2, 3));
    assert_eq!(found(&mut elsewhere(&world), "there"), (2, 3));
    for (volume, taken) in ["demo", "wal"].into_iter().zip(&taken) {
        let listed = snapshot_infos(&mut world, volume);
        let listed = listed.iter().find(|info| info.id == taken.id);
        let listed = listed.expect("it is there, with its identity");
        let label = ("group".to_owned(), GROUP.join(" "));
        assert!(
            listed.is_stored && listed.labels.contains(&label),
            "{listed:?}"
        );
    }
}

#[test]
fn a_group_that_waits_for_the_store_ends_when_that_has_all() {
    let (mut world, data, _wal) = two_volumes();
    world.write(&data, 0, 2, 4096);
    let taken = take_with(&mut world, &GROUP, Vec::new(), Durability::Store).expect("taken");
    assert!(taken.iter().all(|info| info.is_stored));
    assert_eq!(found(&mut elsewhere(&world), "there"), (2, 1));
}

#[test]
fn a_group_that_waits_for_the_store_ends_with_an_error_when_that_fails_and_goes_there_later() {
    let (mut world, data, wal) = two_volumes();
    world.env.outage = true;
    for volume in [&data, &wal] {
        world.write(volume, 0, 2, 4096);
    }
    let refused = take_with(&mut world, &GROUP, Vec::new(), Durability::Store);
    let refused = refused.expect_err("no store").to_string();
    assert!(
        refused.contains("is in the log of this host and not in the store yet")
            && refused.contains("try again"),
        "{refused}"
    );
    // It is taken all the same, as a group, and what is written now is not in it.
    let again = take(&mut world, &GROUP).expect_err("it is there");
    assert!(again.to_string().contains("exists already"), "{again}");
    for volume in [&data, &wal] {
        world.write(volume, 0, 3, 4096);
    }
    world.env.outage = false;
    world.pass(60_000);
    assert_eq!(found(&mut elsewhere(&world), "there"), (2, 2));
    for volume in ["demo", "wal"] {
        let listed = snapshot_infos(&mut world, volume);
        let cut = listed.iter().find(|info| info.name.ends_with("@cut"));
        let label = ("group".to_owned(), GROUP.join(" "));
        assert!(cut.is_some_and(|info| info.is_stored && info.labels.contains(&label)));
    }
}

/// While the store takes what they hold, another host takes one of the volumes over.
#[test]
fn a_group_that_waits_for_the_store_fails_if_a_volume_is_taken_over_meanwhile() {
    let (mut world, data, wal) = two_volumes();
    world.env.outage = true;
    for volume in [&data, &wal] {
        world.write(volume, 0, 2, 4096);
    }
    let answer = world
        .host
        .create_snapshot_group(&names(&GROUP), Vec::new(), Durability::Store);
    world.pass(100);
    let mut other = other_host(&mut world);
    let theirs = other.try_open("wal", true).expect("taken over");
    other.write(&theirs, 0, 77, 4096);
    other.sync(&theirs);
    hand_over(&mut other, &mut world);
    world.env.outage = false;
    let refused = world.wait(|_| answer.try_take()).expect_err("one is lost");
    assert!(refused.to_string().contains("not whole"), "{refused}");
    let stored = snapshot_infos(&mut world, "demo");
    assert!(
        stored
            .iter()
            .any(|info| info.name == "demo@cut" && info.is_stored)
    );
}

#[test]
fn a_group_that_cannot_be_is_refused_and_nothing_is_made() {
    let (mut world, data, _wal) = two_volumes();
    world.create("closed", 1 << 20);
    let many: Vec<String> = (0..17).map(|nth| format!("v{nth}@cut")).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    let long = |volume: &str| format!("{volume}@{}", "x".repeat(64));
    let long: Vec<String> = ["demo", "wal", "a", "b"].map(long).to_vec();
    let long: Vec<&str> = long.iter().map(String::as_str).collect();
    for (members, words) in [
        (vec!["demo@cut"], "2 to 16"),
        (many, "2 to 16"),
        (vec!["demo@a", "demo@b"], "twice"),
        (vec!["demo@cut", "closed@cut"], "closed is not open here"),
        (vec!["demo@cut", "none@cut"], "none is not open here"),
        (vec!["demo@cut", "wal"], "names no snapshot"),
        (vec!["demo@cut", "wal@first"], "already"),
        (long, "names of all members"),
    ] {
        let refused = take(&mut world, &members).expect_err("refused").to_string();
        assert!(refused.contains(words), "{members:?}: {refused}");
    }
    let labels = vec![("group".to_owned(), "mine".to_owned())];
    let refused = take_with(&mut world, &GROUP, labels, Durability::Log);
    let refused = refused.expect_err("that label is its own").to_string();
    assert!(refused.contains("leave it out"), "{refused}");
    assert_eq!(snapshot_infos(&mut world, "demo").len(), 1);
    // No point is held for what was refused.
    world.write(&data, 0, 2, 4096);
    take(&mut world, &GROUP).expect("taken");
    world.pass(10_000);
    assert_eq!(found(&mut world, "was"), (2, 1));
}

/// So many labels, each with a key and a value of `bytes`.
fn labels(count: usize, bytes: usize) -> Vec<(String, String)> {
    let label = |nth| (format!("{nth:0bytes$}"), "x".repeat(bytes));
    (0..count).map(label).collect()
}

/// A 16th of a half of the journal may be records of snapshots: 25,600 bytes of this log.
#[test]
fn a_group_for_whose_records_the_journal_has_no_place_is_refused_with_what_helps() {
    let (mut world, _data, _wal) = two_volumes();
    world.env.outage = true;
    let refused = take_with(&mut world, &GROUP, labels(63, 256), Durability::Log);
    let refused = refused.expect_err("66 KiB").to_string();
    assert!(
        refused.contains("fewer labels") && refused.contains("--log-size"),
        "{refused}"
    );
    // Half of the place, and then nearly all that is left; the rest is not enough for the same once more.
    let others = ["demo@more", "wal@more"];
    take_with(&mut world, &GROUP, labels(60, 50), Durability::Log).expect("taken");
    let refused = take_with(&mut world, &others, labels(63, 50), Durability::Log);
    let refused = refused.expect_err("no room").to_string();
    assert!(
        refused.contains("when the store has taken some"),
        "{refused}"
    );
    world.env.outage = false;
    world.pass(60_000);
    take_with(&mut world, &others, labels(63, 50), Durability::Log).expect("there is room again");
    world.pass(10_000);
    assert_eq!(found(&mut world, "was"), (1, 1));
}

#[test]
#[cfg_attr(not(feature = "planted"), ignore = "needs --features planted")]
fn the_planted_bug_is_seen() {
    canary::each_is_seen(&[("group_is_cut_one_by_one", a_group_that_waits_is_one_cut)]);
}
