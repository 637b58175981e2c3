//! What of a host's log stays in the store: records that no root needs any more go, what a root needs never does,
//! and what is named nowhere yet lies above the floor.
//!
//! With the feature `planted` each planted bug is seen by the test that is there for it.

use std::collections::{BTreeMap, BTreeSet};

use volume::hostlog::marks::LowMark;
use volume::hostlog::names::{Position, record_of_key};
use volume::hostlog::record::{Content, Record, Slices};
use volume::object::root::Root;
use volume::object::root_key;
use volume::{Findings, OpenError, OpenMode, Options};

use crate::support::hosts::{hand_over, root_of};
use crate::support::{Environment, World, options};

const MIB: u64 = 1 << 20;

fn few_records(env: Environment) -> World {
    let options = Options {
        low_mark_records: 8,
        take_over: true,
        ..options()
    };
    World::try_start(env, options).unwrap_or_else(|e| panic!("{}", e.0))
}

/// Records of all hosts, by position.
fn records(env: &Environment) -> BTreeMap<Position, Slices> {
    let objects = env.objects.iter();
    let records = objects.filter_map(|(key, (bytes, _))| {
        let (_, position) = record_of_key(key)?;
        let record = Record::decode(bytes).expect("a record");
        match record.content {
            Content::Slices(slices) => Some((position, slices)),
            Content::Fence(_) => None,
        }
    });
    records.collect()
}

fn low_marks(env: &Environment) -> Vec<Position> {
    let objects = env.objects.iter();
    let marks = objects.filter(|(key, _)| key.ends_with("/low"));
    let decode = |bytes: &[u8]| LowMark::decode(bytes).expect("a low mark").position;
    marks.map(|(_, (bytes, _))| decode(bytes)).collect()
}

#[test]
fn records_that_no_root_needs_go_and_another_host_finds_all_that_was_stored() {
    let mut world = few_records(Environment::default());
    for name in ["busy", "idle"] {
        world.create(name, 64 * MIB);
    }
    let (busy, idle) = (world.open("busy"), world.open("idle"));
    world.write(&idle, 0, 7, 4096);
    world.sync(&idle);
    for nth in 0..60_u64 {
        world.write(&busy, 8 * (nth % 5), 1 + nth as u8, 4096);
        world.sync(&busy);
    }
    world.pass(5_000);
    let low = low_marks(&world.env);
    assert!(low[0] > Position(30), "{low:?}");
    let left = records(&world.env);
    assert!(left.len() < 30, "{} records are left", left.len());
    assert!(left.keys().all(|position| *position >= low[0]));
    // The host is lost with its disk.
    let objects = world.kill().objects;
    let mut other = few_records(Environment {
        objects,
        versions: 1_000,
        ..Environment::default()
    });
    let (busy, idle) = (other.open("busy"), other.open("idle"));
    assert_eq!(other.read_fill(&idle, 0, 4096), 7);
    for nth in 55..60_u64 {
        assert_eq!(other.read_fill(&busy, 8 * (nth % 5), 4096), 1 + nth as u8);
    }
}

/// A pass, whatever becomes of it.
fn gc(world: &mut World) -> Result<Findings, OpenError> {
    let answer = world.host.collect_garbage(false);
    world.wait(|_| answer.try_take())
}

#[test]
fn packs_of_many_bytes_bring_a_look_before_its_records_are_there() {
    for (bytes, is_raised) in [(256 << 10, true), (1 << 30, false)] {
        let options = Options {
            low_mark_records: 1_000,
            low_mark_bytes: bytes,
            ..options()
        };
        let mut world =
            World::try_start(Environment::default(), options).unwrap_or_else(|e| panic!("{}", e.0));
        world.create("demo", 64 * MIB);
        let volume = world.open("demo");
        for nth in 0..60_u64 {
            let mut content = crate::support::random_bytes(nth, 64 << 10);
            let op = blkmq::io::Op::Write {
                sector: 128 * nth,
                sectors: 128,
                fua: false,
            };
            world.request(&volume, op, &mut content).expect("written");
            world.sync(&volume);
        }
        world.pass(5_000);
        let low = low_marks(&world.env);
        assert_eq!(low[0] > Position(30), is_raised, "{bytes} bytes: {low:?}");
    }
}

/// A world in which a fold of one volume has written its objects, and another volume has something to upload.
fn with_a_fold_that_waits() -> (World, volume::Volume, volume::Volume) {
    let mut world = World::new();
    for name in ["folds", "other"] {
        world.create(name, 64 * MIB);
    }
    let (folds, other) = (world.open("folds"), world.open("other"));
    for nth in 0..options().deltas_max as u64 {
        world.write(&folds, 8 * nth, 1, 4096);
        world.sync(&folds);
    }
    world.write(&other, 0, 7, 4096);
    world.write(&folds, 80, 2, 4096);
    world.sync(&folds);
    world.pass(100);
    let indexes = world.env.objects.keys();
    assert!(indexes.into_iter().any(|key| key.starts_with("indexes/")));
    assert!(root_of(&world.env, "folds").nodes.is_empty(), "it waits");
    (world, folds, other)
}

#[test]
fn what_a_small_fold_names_rides_in_the_record_of_the_next_slices() {
    let (mut world, folds, _other) = with_a_fold_that_waits();
    world.pass(options().rpo_ns / 1_000_000 + 1_000);
    assert!(!root_of(&world.env, "folds").nodes.is_empty());
    let records = records(&world.env);
    let naming = records.values().filter(|slices| !slices.objects.is_empty());
    assert!(naming.clone().count() > 0);
    assert!(naming.into_iter().all(|slices| !slices.slices.is_empty()));
    assert_eq!(world.read_fill(&folds, 80, 4096), 2);
}

#[test]
fn a_fold_that_waits_for_a_record_holds_up_no_close_no_sync_no_snapshot_and_no_pass() {
    type Act = fn(&mut World, volume::Volume);
    let acts: [(&str, Act); 4] = [
        ("close", |world, folds| {
            crate::support::hosts::close(world, &folds)
        }),
        ("sync", |world, folds| {
            world.write(&folds, 160, 3, 4096);
            world.sync(&folds);
        }),
        ("snapshot", |world, _| {
            crate::support::points::snapshot(world, "folds@one").expect("made");
        }),
        ("pass", |world, _| {
            gc(world).expect("a pass");
        }),
    ];
    for (name, act) in acts {
        let (mut world, folds, _other) = with_a_fold_that_waits();
        let begun_ns = world.now_ns;
        act(&mut world, folds);
        let took_ms = (world.now_ns - begun_ns) / 1_000_000;
        assert!(took_ms < 3_000, "{name} took {took_ms} ms");
    }
}

#[test]
fn a_root_that_somebody_removed_costs_nothing_once_it_is_back() {
    let mut world = few_records(Environment::default());
    for name in ["busy", "idle"] {
        world.create(name, 64 * MIB);
    }
    let (busy, idle) = (world.open("busy"), world.open("idle"));
    world.write(&idle, 0, 7, 4096);
    world.sync(&idle);
    let root = world.env.objects.remove(&root_key("idle"));
    for nth in 0..60_u64 {
        world.write(&busy, 8 * (nth % 5), 1 + nth as u8, 4096);
        world.sync(&busy);
    }
    world.pass(5_000);
    let mut other = few_records(Environment {
        objects: world.env.objects.clone(),
        versions: 5_000,
        ..Environment::default()
    });
    for _ in 0..3 {
        let error = gc(&mut other).expect_err("one that serves it or not: nothing is removed");
        assert!(error.to_string().contains("the root of volume"), "{error}");
    }
    let mut objects = other.kill().objects;
    objects.insert(root_key("idle"), root.expect("it was there"));
    let mut third = few_records(Environment {
        objects,
        versions: 9_000,
        ..Environment::default()
    });
    let (busy, idle) = (third.open("busy"), third.open("idle"));
    assert_eq!(third.read_fill(&idle, 0, 4096), 7);
    assert_eq!(third.read_fill(&busy, 0, 4096), 56);
    for _ in 0..2 {
        gc(&mut third).expect("all roots are there");
    }
}

#[test]
fn a_deleted_volume_whose_name_another_has_keeps_no_record() {
    let mut world = few_records(Environment::default());
    world.create("busy", 64 * MIB);
    let busy = world.open("busy");
    for round in 0..6_u8 {
        world.create("short", 64 * MIB);
        let short = world.open("short");
        world.write(&short, 0, 1 + round, 4096);
        world.sync(&short);
        let closed = world.host.close_volume(&short);
        world.wait(|_| closed.try_take()).expect("closed");
        let deleted = world.host.delete_volume("short");
        world.wait(|_| deleted.try_take()).expect("deleted");
        for nth in 0..10_u64 {
            world.write(&busy, 8 * (nth % 5), 1 + nth as u8, 4096);
            world.sync(&busy);
        }
    }
    world.pass(5_000);
    gc(&mut world).expect("each has a tombstone");
    let low = low_marks(&world.env);
    assert!(low[0] > Position(50), "{low:?}");
}

#[test]
fn a_records_floor_never_passes_a_pack_that_no_record_names() {
    let mut world = World::new();
    for name in ["slow", "quick"] {
        world.create(name, 64 * MIB);
    }
    let (slow, quick) = (world.open("slow"), world.open("quick"));
    world.env.hanging_puts = 1;
    world.write(&slow, 0, 1, 4096);
    let synced = world.host.sync(&slow);
    world.pass(100);
    for fill in 2..6 {
        world.write(&quick, 0, fill, 4096);
        world.sync(&quick);
    }
    let named = |env: &Environment| -> BTreeSet<u64> {
        let records = records(env);
        let packs = records.values().flat_map(|slices| slices.packs.clone());
        packs.map(|pack| pack.number).collect()
    };
    let before = named(&world.env);
    let floor = |env: &Environment| records(env).values().last().expect("records").floor;
    let stuck = floor(&world.env);
    world.answer_hanging_puts();
    world.wait(|_| synced.try_take()).expect("synced");
    let late: Vec<u64> = named(&world.env).difference(&before).copied().collect();
    assert!(
        late.iter().all(|number| *number >= stuck),
        "{late:?}, {stuck}"
    );
    assert!(!late.is_empty());
    // It goes on when everything is named.
    world.write(&quick, 0, 9, 4096);
    world.sync(&quick);
    assert!(floor(&world.env) > late[0]);
}

#[test]
fn what_a_fold_is_about_to_name_stands_in_a_record_that_no_root_has_passed() {
    let mut folds = 0;
    for moment in (0..2_000).step_by(50) {
        let mut world = World::new();
        world.create("demo", 64 * MIB);
        let volume = world.open("demo");
        for page in 0..options().deltas_max as u64 {
            world.write(&volume, page * 32_768, 1, 4096);
            world.sync(&volume);
        }
        world.env.store_ms = 100;
        world.write(&volume, 8, 2, 4096);
        let _synced = world.host.sync(&volume);
        let mut roots = vec![root_of(&world.env, "demo")];
        for at in (0..6_000).step_by(10) {
            if at == moment {
                drop(world.host.grow_volume(&volume, 65 * MIB));
            }
            world.pass(10);
            let root = root_of(&world.env, "demo");
            roots.extend((root.sequence > roots[roots.len() - 1].sequence).then_some(root));
        }
        let records = records(&world.env);
        for pair in roots.windows(2) {
            let indexes = |root: &Root| -> BTreeSet<u64> {
                let nodes = root.nodes.iter();
                nodes.map(|(_, block)| block.object.number).collect()
            };
            for object in indexes(&pair[1]).difference(&indexes(&pair[0])) {
                let names = |(at, slices): (&Position, &Slices)| {
                    let mut objects = slices.objects.iter();
                    *at > pair[0].mark && objects.any(|named| named.number == *object)
                };
                assert!(
                    records.iter().any(names),
                    "grown after {moment} ms: nothing holds {object}"
                );
                folds += 1;
            }
        }
    }
    assert!(folds > 20, "{folds}");
}

/// A host that starts again has claimed its volume. Before it reads its log another one takes the volume from it,
/// and a pass of that one's removes the records, which no root needs any more.
#[test]
fn a_host_whose_claim_was_outrun_does_not_take_records_that_went_for_a_loss() {
    let folds_late = Options {
        deltas_max: 1_000,
        ..options()
    };
    let world = World::try_start(Environment::default(), folds_late);
    let mut world = world.unwrap_or_else(|e| panic!("{}", e.0));
    world.create("demo", 64 * MIB);
    let volume = world.open("demo");
    for nth in 0..40_u64 {
        world.write(&volume, 8 * nth, 1, 4096);
        world.sync(&volume);
    }
    let mut one = World::start(world.kill());
    one.env.store_ms = 1_000;
    let opening = one.host.open_volume("demo", OpenMode::default());
    let claimed = |one: &mut World| root_of(&one.env, "demo").claimant.map(drop);
    one.wait(claimed);
    assert!(root_of(&one.env, "demo").lsn.0 < 40, "records have more");
    let mut other = few_records(Environment {
        versions: one.env.versions + 5_000,
        ..Environment::default()
    });
    hand_over(&mut one, &mut other);
    let theirs = other.open("demo");
    gc(&mut other).expect("the first log is too long");
    let low = low_marks(&other.env).into_iter().max();
    assert!(low > Some(Position(30)), "its records went: {low:?}");
    hand_over(&mut other, &mut one);
    let refused = one.wait(|_| opening.try_take());
    let refused = refused.expect_err("it is the other's");
    assert!(matches!(refused, OpenError::Held { .. }), "{refused}");
    hand_over(&mut one, &mut other);
    assert_eq!(other.read_fill(&theirs, 8 * 39, 4096), 1);
}

#[cfg(feature = "planted")]
mod planted {
    use super::*;

    #[test]
    fn each_planted_bug_is_seen() {
        canary::each_is_seen(&[
            (
                "floor_passes_unnamed_objects",
                a_records_floor_never_passes_a_pack_that_no_record_names,
            ),
            (
                "moved_root_names_what_was_named_before",
                what_a_fold_is_about_to_name_stands_in_a_record_that_no_root_has_passed,
            ),
            (
                "missing_root_needs_nothing",
                a_root_that_somebody_removed_costs_nothing_once_it_is_back,
            ),
            (
                "outrun_claim_is_judged",
                a_host_whose_claim_was_outrun_does_not_take_records_that_went_for_a_loss,
            ),
            (
                "low_mark_counts_no_bytes",
                packs_of_many_bytes_bring_a_look_before_its_records_are_there,
            ),
            (
                "waiting_folds_are_not_hurried",
                a_fold_that_waits_for_a_record_holds_up_no_close_no_sync_no_snapshot_and_no_pass,
            ),
            (
                "marks_keep_the_low_mark_back",
                records_that_no_root_needs_go_and_another_host_finds_all_that_was_stored,
            ),
        ]);
    }
}
