//! Snapshots that the log keeps (S6): as durable as a FLUSH when the call ends, and in the store behind it.
//!
//! With the feature `planted` each planted bug is seen by the test that is there for it.

use std::sync::Arc;

use volume::object::root::Root;
use volume::object::root_key;
use volume::{Durability, ListPlace, OpenError, SnapshotInfo, Volume};

use crate::support::hosts::{close, elsewhere, hand_over, other_host, root_of, try_write};
use crate::support::points::{
    delete_snapshot, done, fold, fork, has_root, snapshot_infos, snapshot_names,
};
use crate::support::{Fault, World, with_volume};

/// Takes a snapshot without waiting for the store.
pub(crate) fn take(world: &mut World, name: &str) -> Result<SnapshotInfo, OpenError> {
    let answer = world
        .host
        .create_snapshot(name, Vec::new(), Durability::Log);
    world.wait(|_| answer.try_take())
}

/// A volume of which the store has something, whose host knows which names are free.
pub(crate) fn with_known_names() -> (World, Volume) {
    let (mut world, volume) = with_volume();
    world.write(&volume, 0, 1, 4096);
    world.sync(&volume);
    take(&mut world, "demo@first").expect("taken");
    world.pass(100);
    assert!(has_root(&world.env, "demo@first"));
    (world, volume)
}

/// Three snapshots in an outage, of a block that is written over each time, among much else.
fn three_in_an_outage() -> (World, Volume) {
    let (mut world, volume) = with_known_names();
    world.env.outage = true;
    for nth in 2..5_u8 {
        for place in 0..8 {
            world.write(&volume, place * 8, nth, 4096);
        }
        world.write(&volume, 1024 * u64::from(nth), nth, 65536);
        let taken = take(&mut world, &format!("demo@s{nth}")).expect("no store is needed");
        assert!(!taken.is_stored);
    }
    for place in 0..8 {
        world.write(&volume, place * 8, 9, 4096);
    }
    (world, volume)
}

/// Each of the three is what the volume was.
fn verify_three(world: &mut World, prefix: &str) {
    for nth in 2..5_u8 {
        let name = format!("{prefix}{nth}");
        let fork = fork(world, &format!("demo@s{nth}"), &name).expect("it is in the store");
        assert_eq!(world.read_fill(&fork, 0, 8 * 4096), nth);
        for other in 2..5_u8 {
            let expected = if other <= nth { other } else { 0 };
            assert_eq!(
                world.read_fill(&fork, 1024 * u64::from(other), 65536),
                expected,
                "{other} in {nth}"
            );
        }
    }
}

#[test]
fn a_snapshot_needs_no_store_and_is_there_when_the_store_is() {
    let (mut world, volume) = three_in_an_outage();
    assert!(!has_root(&world.env, "demo@s2"));
    world.env.outage = false;
    world.pass(60_000);
    let listed = snapshot_infos(&mut world, "demo");
    assert_eq!(listed.len(), 4);
    assert!(listed.iter().all(|info| info.is_stored), "{listed:?}");
    verify_three(&mut world, "was");
    assert_eq!(world.read_fill(&volume, 0, 8 * 4096), 9);
    // Folds go on, and other hosts read the same.
    fold(&mut world, &volume, 640);
    verify_three(&mut elsewhere(&world), "later");
}

/// The process dies, or the power fails, right after the last one was acknowledged, and again on its way to the store.
fn snapshots_survive(power_fails: bool) {
    let (world, _volume) = three_in_an_outage();
    let mut env = world.kill();
    env.outage = false;
    if power_fails {
        env.boot += 1;
    }
    // Killed again as soon as the volume is open: nothing is in the store yet, or a part of it.
    let mut world = World::start(env);
    let _ = world.open("demo");
    let mut env = world.kill();
    env.versions += 1;
    let mut world = World::start(env);
    let volume = world.open("demo");
    world.pass(60_000);
    let names = snapshot_names(&mut world, "demo");
    assert_eq!(names, ["demo@first", "demo@s2", "demo@s3", "demo@s4"]);
    verify_three(&mut world, "was");
    let newest = if power_fails { 4 } else { 9 };
    let found = world.read_fill(&volume, 0, 8 * 4096);
    assert!(found == newest || found == 9, "{found}");
}

fn snapshots_survive_the_process() {
    snapshots_survive(false);
}

fn snapshots_survive_loss_of_power() {
    snapshots_survive(true);
}

#[test]
fn an_acknowledged_snapshot_survives_the_death_of_the_process() {
    snapshots_survive_the_process();
}

#[test]
fn an_acknowledged_snapshot_survives_loss_of_power() {
    snapshots_survive_loss_of_power();
}

/// No request more is carried out once the snapshot is acknowledged.
fn power_fails_at_the_moment_of_the_answer() {
    let (mut world, volume) = with_known_names();
    world.env.outage = true;
    world.write(&volume, 0, 2, 4096);
    let answer = world
        .host
        .create_snapshot("demo@one", Vec::new(), Durability::Log);
    let taken = loop {
        world.host.run_jobs();
        if let Some(taken) = answer.try_take() {
            break taken.expect("no store is needed");
        }
        assert!(world.one_step(), "nothing goes on");
    };
    let mut env = world.kill();
    (env.outage, env.boot) = (false, env.boot + 1);
    let mut world = World::start(env);
    world.open("demo");
    world.pass(60_000);
    let listed = snapshot_infos(&mut world, "demo");
    assert_eq!(listed.last().map(|info| info.id), Some(taken.id));
    let fork = fork(&mut world, "demo@one", "was").expect("it is in the store");
    assert_eq!(world.read_fill(&fork, 0, 4096), 2);
}

#[test]
fn a_snapshot_is_acknowledged_once_it_survives_loss_of_power() {
    power_fails_at_the_moment_of_the_answer();
}

/// What is written behind snapshots fills several halves of the journal.
fn snapshots_survive_checkpoints() {
    let (mut world, volume) = three_in_an_outage();
    for round in 0..20_000_u64 {
        world.write(&volume, 8 * (round % 16), (round % 200) as u8 + 10, 4096);
        if round % 50 == 0 {
            world.flush(&volume);
        }
    }
    let mut env = world.kill();
    env.outage = false;
    let mut world = World::start(env);
    world.open("demo");
    world.pass(60_000);
    verify_three(&mut world, "was");
}

#[test]
fn a_snapshot_that_the_log_keeps_survives_checkpoints_of_the_journal() {
    snapshots_survive_checkpoints();
}

/// Dies, or loses an answer, at each request between the acknowledgement and the end.
fn a_crash_at_any_request_leaves_one_whole_snapshot() {
    for fault in [Fault::LostAnswer, Fault::Outage, Fault::OutageBehind] {
        for after in 0..40 {
            let (mut world, volume) = with_known_names();
            world.write(&volume, 0, 2, 4096);
            world.env.fault_after = Some((after, fault));
            let taken = take(&mut world, "demo@one").expect("taken");
            world.write(&volume, 0, 3, 4096);
            world.pass(500);
            let is_over = world.env.fault_after.is_some();
            let mut env = world.kill();
            (env.outage, env.fault_after) = (false, None);
            let mut world = World::start(env);
            let volume = world.open("demo");
            world.pass(30_000);
            let listed = snapshot_infos(&mut world, "demo");
            assert_eq!(listed.len(), 2, "{fault:?} {after}: {listed:?}");
            assert_eq!(listed[1].id, taken.id);
            let fork = fork(&mut world, "demo@one", "was").expect("forked");
            assert_eq!(world.read_fill(&fork, 0, 4096), 2, "{fault:?} {after}");
            assert_eq!(world.read_fill(&volume, 0, 4096), 3);
            if is_over {
                break;
            }
        }
    }
}

#[test]
fn a_crash_or_a_lost_answer_at_any_request_leaves_one_whole_snapshot() {
    a_crash_at_any_request_leaves_one_whole_snapshot();
}

/// The snapshot is in the store, and the host dies before its log says so; another host deletes the snapshot.
fn what_was_deleted_stays_deleted() {
    let (mut world, volume) = with_known_names();
    world.write(&volume, 0, 2, 4096);
    world.sync(&volume);
    world.env.outage = true;
    take(&mut world, "demo@one").expect("taken");
    // The log as it was before the store had the snapshot.
    let files = world.env.files.clone();
    let rings = Arc::new(world.env.rings.copy());
    world.env.outage = false;
    world.pass(60_000);
    assert!(has_root(&world.env, "demo@one"));
    let mut other = elsewhere(&world);
    delete_snapshot(&mut other, "demo@one").expect("deleted");
    let mut env = world.kill();
    (env.files, env.rings) = (files, rings);
    env.objects = std::mem::take(&mut other.env.objects);
    env.versions += 10_000;
    let mut world = World::start(env);
    world.open("demo");
    world.pass(30_000);
    assert_eq!(snapshot_names(&mut world, "demo"), ["demo@first"]);
}

#[test]
fn a_snapshot_that_was_deleted_before_the_log_knew_that_it_is_stored_stays_deleted() {
    what_was_deleted_stays_deleted();
}

#[test]
fn one_that_the_log_keeps_is_listed_and_deleted_and_its_name_is_free_again() {
    let (mut world, volume) = with_known_names();
    world.write(&volume, 0, 2, 4096);
    world.env.failing_puts = usize::MAX;
    take(&mut world, "demo@one").expect("taken");
    assert_eq!(
        take(&mut world, "demo@one").expect_err("taken"),
        OpenError::Exists("demo@one".into())
    );
    let listed = snapshot_infos(&mut world, "demo");
    assert_eq!(
        listed.iter().map(|info| info.is_stored).collect::<Vec<_>>(),
        [true, false]
    );
    delete_snapshot(&mut world, "demo@one").expect("deleted");
    assert_eq!(snapshot_names(&mut world, "demo"), ["demo@first"]);
    world.write(&volume, 0, 3, 4096);
    take(&mut world, "demo@one").expect("its name is free");
    world.env.failing_puts = 0;
    world.pass(60_000);
    let fork = fork(&mut world, "demo@one", "was").expect("forked");
    assert_eq!(world.read_fill(&fork, 0, 4096), 3);
    assert_eq!(
        snapshot_names(&mut world, "demo"),
        ["demo@first", "demo@one"]
    );
}

/// The store has another snapshot of the name, which it did not list when it was asked for all.
#[test]
fn one_whose_name_is_taken_after_all_is_stored_under_another_and_nothing_is_lost() {
    let (mut world, volume) = with_known_names();
    world.write(&volume, 0, 2, 4096);
    let foreign = Root {
        name: "demo@one".into(),
        ..root_of(&world.env, "demo@first")
    };
    let version = world.env.versions + 1;
    world.env.versions = version;
    let key = root_key("demo@one");
    world.env.objects.insert(key, (foreign.encode(), version));
    let taken = take(&mut world, "demo@one").expect("taken");
    world.pass(60_000);
    let listed = snapshot_infos(&mut world, "demo");
    let own = listed.iter().find(|info| info.id == taken.id);
    let own = own.expect("it is there").clone();
    assert!(
        own.is_stored && own.name.starts_with("demo@one."),
        "{own:?}"
    );
    let fork = fork(&mut world, &own.name, "was").expect("forked");
    assert_eq!(world.read_fill(&fork, 0, 4096), 2);
    let standing = root_of(&world.env, "demo@one");
    assert_eq!(
        standing.volume, foreign.volume,
        "what stood there stands there"
    );
}

/// Another host has gone on with the volume, without what only this log had.
#[test]
fn a_host_that_was_taken_over_stores_none_of_its_snapshots() {
    let (mut world, volume) = three_in_an_outage();
    let mut other = other_host(&mut world);
    let theirs = other.try_open("demo", true).expect("taken over");
    other.write(&theirs, 0, 77, 4096);
    other.sync(&theirs);
    hand_over(&mut other, &mut world);
    world.env.outage = false;
    world.pass(60_000);
    for nth in 2..5 {
        assert!(!has_root(&world.env, &format!("demo@s{nth}")), "{nth}");
    }
    assert!(try_write(&mut world, &volume).is_err(), "it is fenced");
    // Nor does its next start.
    let mut world = World::start(world.kill());
    world.pass(60_000);
    assert_eq!(snapshot_names(&mut world, "demo"), ["demo@first"]);
}

/// Three that only the log has, among one that the store has, a part at a time.
#[test]
fn they_are_listed_by_name_among_the_others_in_parts_of_any_size() {
    let (mut world, _volume) = three_in_an_outage();
    world.env.outage = false;
    world.env.failing_puts = usize::MAX;
    for limit in 1..6 {
        let (mut told, mut after) = (Vec::new(), None);
        loop {
            let place = ListPlace { after, limit };
            let answer = world.host.list_snapshots("demo", place);
            let part = done(&mut world, &answer);
            assert!(part.items.len() <= limit);
            told.extend(
                part.items
                    .into_iter()
                    .map(|info| (info.name, info.is_stored)),
            );
            after = part.next;
            if after.is_none() {
                break;
            }
        }
        let expected = [
            ("demo@first", true),
            ("demo@s2", false),
            ("demo@s3", false),
            ("demo@s4", false),
        ];
        let expected: Vec<_> = expected
            .iter()
            .map(|(name, is)| ((*name).to_owned(), *is))
            .collect();
        assert_eq!(told, expected, "{limit}");
    }
}

#[test]
fn deleted_before_it_was_stored_it_does_not_come_back_after_a_crash() {
    let (mut world, volume) = with_known_names();
    world.write(&volume, 0, 2, 4096);
    world.env.failing_puts = usize::MAX;
    take(&mut world, "demo@one").expect("taken");
    delete_snapshot(&mut world, "demo@one").expect("deleted");
    let mut env = world.kill();
    env.failing_puts = 0;
    let mut world = World::start(env);
    world.open("demo");
    world.pass(30_000);
    assert_eq!(snapshot_names(&mut world, "demo"), ["demo@first"]);
}

#[test]
fn a_fork_of_it_a_reader_and_a_diff_wait_until_the_store_has_it() {
    let (mut world, volume) = with_known_names();
    world.write(&volume, 0, 2, 4096);
    world.env.hanging_puts = 1;
    take(&mut world, "demo@one").expect("taken");
    let forked = world.host.fork_volume("demo@one", "was", Durability::Store);
    let opened = world.host.open_snapshot("demo@one");
    let differs = world.host.diff("demo@first", "demo@one", None, 10);
    world.pass(1000);
    assert!(forked.try_take().is_none(), "it waits");
    world.answer_hanging_puts();
    done(&mut world, &forked);
    let reader = done(&mut world, &opened);
    assert_eq!(world.read_fill(&reader, 0, 4096), 2);
    assert_eq!(done(&mut world, &differs).ranges.len(), 1);
}

/// Nobody opens the volume, so nothing goes to the store.
#[test]
fn whoever_waits_for_one_whose_volume_is_not_open_is_told_so() {
    let (world, _volume) = three_in_an_outage();
    let mut env = world.kill();
    env.outage = false;
    let mut world = World::start(env);
    let refused = fork(&mut world, "demo@s2", "was").expect_err("it is not in the store");
    assert!(refused.to_string().contains("not open here"), "{refused}");
    assert_eq!(snapshot_names(&mut world, "demo").len(), 4);
    world.open("demo");
    world.pass(60_000);
    verify_three(&mut world, "was");
}

#[test]
fn a_volume_is_closed_when_its_snapshots_are_in_the_store() {
    let (mut world, volume) = with_known_names();
    world.write(&volume, 0, 2, 4096);
    take(&mut world, "demo@one").expect("taken");
    close(&mut world, &volume);
    assert!(has_root(&world.env, "demo@one"));
    let root = root_of(&world.env, "demo@one");
    assert_eq!(root.lsn.0, 2);
}

#[test]
fn taking_one_costs_no_request_and_storing_it_three() {
    let (mut world, volume) = with_known_names();
    world.write(&volume, 0, 2, 4096);
    world.sync(&volume);
    world.pass(2000);
    let count = |world: &World| world.env.requests.values().sum::<usize>();
    let before = world.env.requests.clone();
    let answer = world
        .host
        .create_snapshot("demo@one", Vec::new(), Durability::Log);
    world.env.store_ms = 1000;
    let asked = count(&world);
    world.wait(|_| answer.try_take()).expect("taken");
    assert_eq!(count(&world), asked, "the call waits for the log alone");
    world.pass(10_000);
    let after = world.env.requests.clone();
    let of = |key: &(&'static str, String)| {
        after.get(key).copied().unwrap_or(0) - before.get(key).copied().unwrap_or(0)
    };
    let asked: Vec<_> = after
        .keys()
        .filter(|key| of(key) > 0)
        .map(|key| (key.clone(), of(key)))
        .collect();
    let sum: usize = asked.iter().map(|(_, count)| count).sum();
    assert_eq!(sum, 3, "{asked:?}");
}

/// Twenty at once, and a store that takes its time: each waits for a place, and none is refused.
#[test]
fn more_than_there_are_places_for_wait_while_the_store_goes_on() {
    let (mut world, volume) = with_known_names();
    world.env.store_ms = 50;
    let mut asked = Vec::new();
    for nth in 0..20_u8 {
        world.write(&volume, 0, nth + 10, 4096);
        let name = format!("demo@n{nth}");
        asked.push(
            world
                .host
                .create_snapshot(&name, Vec::new(), Durability::Log),
        );
        world.run_until_idle();
    }
    for asked in &asked {
        done(&mut world, asked);
    }
    world.pass(10_000);
    let listed = snapshot_infos(&mut world, "demo");
    assert_eq!(listed.iter().filter(|info| info.is_stored).count(), 21);
}

/// Each has room when it is asked for, as long as the others have none yet. What there is no room for goes to the store
/// before its call ends.
#[test]
fn snapshots_that_are_taken_at_once_count_each_others_records() {
    let (mut world, _volume) = with_known_names();
    let labels: Vec<_> = (0..60)
        .map(|nth| (format!("{nth:050}"), "x".repeat(50)))
        .collect();
    world.env.outage = true;
    let mut asked: Vec<_> = (0..8)
        .map(|nth| {
            let name = format!("demo@n{nth}");
            world
                .host
                .create_snapshot(&name, labels.clone(), Durability::Log)
        })
        .collect();
    world.pass(5000);
    asked.retain(|asked| {
        asked
            .try_take()
            .map(|taken| taken.expect("in the log"))
            .is_none()
    });
    // Of 6,240 bytes each, of 25,600.
    assert_eq!(asked.len(), 4, "go to the store");
    world.env.outage = false;
    for asked in &asked {
        done(&mut world, asked);
    }
    world.pass(60_000);
    let listed = snapshot_infos(&mut world, "demo");
    assert_eq!(listed.iter().filter(|info| info.is_stored).count(), 9);
}

#[test]
fn a_volume_says_how_many_snapshots_only_the_log_has_and_why() {
    let (mut world, volume) = with_known_names();
    assert_eq!(volume.log_snapshots().count, 0);
    world.sync(&volume);
    world.env.outage = true;
    for nth in 0..3 {
        take(&mut world, &format!("demo@n{nth}")).expect("taken");
    }
    assert_eq!(volume.log_snapshots().count, 3);
    world.pass(600_000);
    let log = volume.log_snapshots();
    assert!(log.count == 3 && log.failure.is_some(), "{log:?}");
    world.env.outage = false;
    world.pass(60_000);
    assert_eq!(volume.log_snapshots().count, 0);
}

/// More in an outage than one volume may have: the next is refused, and nothing that was acknowledged is lost.
#[test]
fn an_outage_leaves_room_for_few_and_says_so() {
    let (mut world, volume) = with_known_names();
    world.env.outage = true;
    for nth in 0..8 {
        world.write(&volume, 0, nth + 10, 4096);
        take(&mut world, &format!("demo@n{nth}")).expect("taken");
    }
    let refused = take(&mut world, "demo@more").expect_err("there are eight");
    assert!(matches!(refused, OpenError::TooManyPoints(..)), "{refused}");
    world.env.outage = false;
    world.pass(60_000);
    for nth in 0..8 {
        let fork = fork(&mut world, &format!("demo@n{nth}"), &format!("f{nth}")).expect("stored");
        assert_eq!(world.read_fill(&fork, 0, 4096), nth + 10);
    }
}

#[test]
#[cfg_attr(not(feature = "planted"), ignore = "needs --features planted")]
fn planted_bugs_are_seen() {
    canary::each_is_seen(&[
        ("recovery_forgets_points", snapshots_survive_the_process),
        (
            "checkpoint_forgets_snapshots",
            snapshots_survive_checkpoints,
        ),
        (
            "kept_snapshot_has_no_identity",
            what_was_deleted_stays_deleted,
        ),
        (
            "snapshot_is_acknowledged_before_its_frame",
            power_fails_at_the_moment_of_the_answer,
        ),
    ]);
}
