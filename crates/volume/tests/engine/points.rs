//! Points in time that wait for the store: few of a volume, and not for longer than the store is waited for (S10); and
//! one that is a copy.
//!
//! With the feature `planted` each planted bug is seen by the test that is there for it.

use std::collections::VecDeque;

use volume::object::root_key;
use volume::{Answer, Durability, OpenError, SnapshotInfo, Volume};

use crate::support::World;
use crate::support::hosts::{close, elsewhere, root_of};
use crate::support::points::{done, fork, snapshot_infos};

const MIB: u64 = 1 << 20;
/// See `request/points.rs`.
const POINTS_MAX: usize = 8;

type Asked = Answer<Result<SnapshotInfo, OpenError>>;

fn with_volume() -> (World, Volume) {
    let mut world = World::new();
    world.create("demo", 64 * MIB);
    let volume = world.open("demo");
    world.write(&volume, 0, 1, 4096);
    world.sync(&volume);
    (world, volume)
}

fn ask(world: &mut World, nth: usize) -> Asked {
    let asked = world
        .host
        .create_snapshot(&format!("demo@s{nth}"), Vec::new(), Durability::Store);
    world.run_until_idle();
    asked
}

/// The store gives answers, and takes no packs; a quarter of the log is written over again and again.
fn snapshots_end_while_the_store_takes_nothing() {
    let (mut world, volume) = with_volume();
    world.env.failing_puts = usize::MAX;
    world.write(&volume, 0, 1, 4096);
    let mut asked = Vec::new();
    for round in 0..50_u64 {
        if round < 20 {
            asked.push(ask(&mut world, round as usize));
        }
        for chunk in 0..16 {
            world.write(&volume, chunk * 128, round as u8 + 1, 65536);
        }
        world.pass(1000);
    }
    for (nth, asked) in asked.iter().enumerate() {
        let answer = asked.try_take();
        let refused = answer
            .unwrap_or_else(|| panic!("{nth} waits"))
            .expect_err("no store");
        assert!(
            matches!(refused, OpenError::Store(_) | OpenError::TooManyPoints(..)),
            "{nth}: {refused}"
        );
        assert!(refused.to_string().contains("try again"), "{refused}");
    }
    world.env.failing_puts = 0;
    world.sync(&volume);
    let is_point = |key: &&String| key.starts_with("pins/") || key.contains('@');
    assert_eq!(world.env.objects.keys().find(is_point), None);
    let taken = ask(&mut world, 0);
    world.wait(|_| taken.try_take()).expect("taken");
    assert!(world.env.objects.contains_key(&root_key("demo@s0")));
    assert_eq!(world.read_fill(&volume, 0, MIB as usize), 50);
}

#[test]
fn a_snapshot_ends_with_an_error_while_the_store_takes_nothing_and_writes_go_on() {
    snapshots_end_while_the_store_takes_nothing();
}

/// The store is slow and fails nothing: nobody is sent away who could have waited, and few points are held at once.
fn few_points_wait_at_once() {
    let (mut world, volume) = with_volume();
    world.write(&volume, 0, 2, 4096);
    world.env.hanging_puts = 1;
    let waiting: Vec<Asked> = (0..POINTS_MAX).map(|nth| ask(&mut world, nth)).collect();
    let one_more = ask(&mut world, POINTS_MAX);
    world.pass(40_000);
    assert!(waiting.iter().all(|asked| asked.try_take().is_none()));
    assert_eq!(one_more.try_take(), None, "it waits for its turn");
    world.write(&volume, 8, 3, 4096);
    world.answer_hanging_puts();
    for asked in waiting {
        world.wait(|_| asked.try_take()).expect("taken");
    }
    world.wait(|_| one_more.try_take()).expect("taken");
    for (snapshot, holds) in [("demo@s7", 0), ("demo@s8", 3)] {
        let fork = fork(&mut world, snapshot, &snapshot.replace('@', "-")).expect("forked");
        let found = world.read_fill(&fork, 8, 4096);
        assert_eq!(found, holds, "{snapshot}: its point is its turn");
    }
}

#[test]
fn whoever_waits_for_a_turn_that_does_not_come_is_told_what_helps() {
    let (mut world, volume) = with_volume();
    world.write(&volume, 0, 2, 4096);
    world.env.hanging_puts = 1;
    let waiting: Vec<Asked> = (0..POINTS_MAX).map(|nth| ask(&mut world, nth)).collect();
    let one_more = ask(&mut world, POINTS_MAX);
    world.pass(90_000);
    let refused = one_more.try_take().expect("it ends").expect_err("no turn");
    assert_eq!(refused, OpenError::TooManyPoints("demo".into(), POINTS_MAX));
    let said = refused.to_string();
    assert!(
        said.contains("firn volume show demo") && said.contains("try again"),
        "{said}"
    );
    assert!(waiting.iter().all(|asked| asked.try_take().is_none()));
    world.answer_hanging_puts();
    for asked in waiting {
        world.wait(|_| asked.try_take()).expect("taken");
    }
}

#[test]
fn forks_of_a_live_volume_beside_a_snapshot_that_goes_to_the_store_wait_for_their_turn() {
    let (mut world, volume) = with_volume();
    world.env.store_ms = 100;
    world.write(&volume, 0, 2, 4096);
    let kept = world
        .host
        .create_snapshot("demo@kept", Vec::new(), Durability::Log);
    world.wait(|_| kept.try_take()).expect("the log has it");
    world.write(&volume, 0, 3, 4096);
    let forks: Vec<_> = (0..2 * POINTS_MAX)
        .map(|nth| {
            world
                .host
                .fork_volume("demo", &format!("f{nth}"), Durability::Store)
        })
        .collect();
    for asked in forks {
        world.wait(|_| asked.try_take()).expect("forked");
    }
    let volume = world.open("f15");
    assert_eq!(world.read_fill(&volume, 0, 4096), 3);
}

#[test]
fn few_snapshots_of_a_volume_wait_for_the_store_at_once() {
    few_points_wait_at_once();
}

/// There is no moment at which no snapshot is asked for.
fn snapshots_without_a_gap_leave_room_for_folds() {
    let (mut world, volume) = with_volume();
    world.env.store_ms = 100;
    let mut under_way: VecDeque<Asked> = VecDeque::new();
    for nth in 0..60 {
        world.write(&volume, nth % 16 * 8, nth as u8 + 1, 4096);
        under_way.push_back(ask(&mut world, nth as usize));
        world.pass(300);
        if under_way.len() > 3 {
            let oldest = under_way.pop_front().expect("there are four");
            world.wait(|_| oldest.try_take()).expect("taken");
        }
    }
    let root = root_of(&world.env, "demo");
    assert!(!root.nodes.is_empty(), "it was folded: {root:?}");
    assert!(root.deltas.len() < 40, "{}", root.deltas.len());
    let newest = under_way.pop_back().expect("there are three");
    assert!(newest.try_take().is_none(), "the snapshots overlap");
    world.wait(|_| newest.try_take()).expect("taken");
}

#[test]
fn snapshots_that_overlap_without_a_gap_do_not_starve_folds() {
    snapshots_without_a_gap_leave_room_for_folds();
}

#[cfg(feature = "planted")]
#[test]
fn each_planted_bug_of_points_is_seen() {
    canary::each_is_seen(&[
        (
            "points_wait_for_ever",
            snapshots_end_while_the_store_takes_nothing,
        ),
        ("points_without_number", few_points_wait_at_once),
        (
            "points_starve_folds",
            snapshots_without_a_gap_leave_room_for_folds,
        ),
    ]);
}

#[test]
fn a_copy_of_a_snapshot_has_its_time_and_what_the_volume_holds_and_is_in_the_store() {
    let (mut world, volume) = with_volume();
    world.write(&volume, 0, 1, 4096);
    let labels = vec![("copy-of".to_owned(), "one".to_owned())];
    let answer = world.host.copy_snapshot("demo@live", labels.clone(), 77);
    let live = done(&mut world, &answer);
    close(&mut world, &volume);
    let answer = world.host.copy_snapshot("demo@closed", labels.clone(), 78);
    let closed = done(&mut world, &answer);
    for (taken, unix_ms) in [(&live, 77), (&closed, 78)] {
        assert_eq!((taken.unix_ms, taken.is_stored), (unix_ms, true));
        assert_eq!(taken.labels, labels);
    }
    let mut other = elsewhere(&world);
    assert_eq!(snapshot_infos(&mut other, "demo"), [closed, live]);
    let fork = fork(&mut other, "demo@live", "was").expect("forked");
    assert_eq!(other.read_fill(&fork, 0, 4096), 1);
}
