//! The rebuild of a volume from its packs, after its root or its index was lost: each block is what it was when it was
//! last stored, and what cannot be known is said.
//!
//! With the feature `planted` each planted bug is seen by the test that is there for it.

use volume::check::DamageKind;
use volume::object::root_key;
use volume::rebuild::{RebuildError, RebuildRequest};

use crate::support::checks::check_all;
use crate::support::hosts::{close, delete, hand_over, other_host, root_of, try_write};
use crate::support::points::{gc, snapshot, write_over};
use crate::support::rebuilds::{
    WriteFault, of, rebuild_with, remove_below, taking_over, try_rebuild,
};
use crate::support::rebuilt::{assert_same, furnish, rebuilt, state};
use crate::support::{World, with_volume};

const MIB: u64 = 1 << 20;

#[test]
fn a_volume_that_lost_its_root_or_index_is_rebuilt_as_it_was_stored() {
    let losses: [&[&str]; 5] = [
        &["volumes/demo/"],
        &["indexes/"],
        &["volumes/demo/", "indexes/"],
        &["volumes/demo/", "hosts/"],
        &["volumes/demo/", "indexes/", "hosts/", "pins/"],
    ];
    for lost in losses {
        let (mut world, volume) = with_volume();
        furnish(&mut world, &volume);
        close(&mut world, &volume);
        let expected = state(&world, "demo");
        let id = root_of(&world.env, "demo").volume;
        for prefix in lost {
            assert!(remove_below(&mut world, prefix) > 0 || *prefix == "pins/");
        }
        let report = rebuilt(&mut world, &of("demo"));
        assert!(report.is_written && report.volume == id, "{report:?}");
        assert_same(&state(&world, "demo"), &expected, &format!("{lost:?}"));
        let logs_are_there = !lost.contains(&"hosts/");
        assert!(
            report.unknown.is_empty() || !logs_are_there,
            "{lost:?}: {:?}",
            report.unknown
        );
        assert_eq!(report.left_out, [], "{lost:?}");
        // It is a volume like any other: written, folded, collected, and opened elsewhere.
        let mut other = other_host(&mut world);
        let volume = other.open("demo");
        write_over(&mut other, &volume, 50);
        close(&mut other, &volume);
        gc(&mut other);
        gc(&mut other);
        let mut after = expected.clone();
        for place in 0..4 {
            after[place * 4096..][..4096].fill(57);
        }
        assert_same(
            &state(&other, "demo"),
            &after,
            &format!("{lost:?}, written"),
        );
    }
}

#[test]
fn a_check_names_a_volume_that_lost_its_root() {
    let (mut world, volume) = with_volume();
    furnish(&mut world, &volume);
    close(&mut world, &volume);
    remove_below(&mut world, "volumes/demo/");
    let found = check_all(&world.env.objects, false);
    let [damage] = &found.damage[..] else {
        panic!("{found:?}")
    };
    assert_eq!(
        (damage.object.as_str(), damage.kind, damage.bytes),
        ("volumes/demo/root", DamageKind::Missing, 64 * MIB)
    );
}

#[test]
fn a_check_names_a_volume_that_lost_its_root_and_whose_packs_a_snapshot_names() {
    let (mut world, volume) = with_volume();
    furnish(&mut world, &volume);
    world.sync(&volume);
    snapshot(&mut world, "demo@one").expect("taken");
    close(&mut world, &volume);
    assert_eq!(check_all(&world.env.objects, false).damage.len(), 0);
    remove_below(&mut world, "volumes/demo/");
    let found = check_all(&world.env.objects, false);
    let objects: Vec<_> = found
        .damage
        .iter()
        .map(|damage| (damage.object.as_str(), damage.kind, damage.bytes))
        .collect();
    assert_eq!(
        objects,
        [("volumes/demo/root", DamageKind::Missing, 64 * MIB)]
    );
}

#[test]
fn a_volume_that_is_open_is_rebuilt_on_demand_only_and_its_owner_cannot_part_from_it() {
    let (mut world, volume) = with_volume();
    furnish(&mut world, &volume);
    remove_below(&mut world, "volumes/demo/");
    let held = try_rebuild(&mut world, &of("demo")).expect_err("it is open");
    assert!(matches!(held, RebuildError::Held(..)), "{held}");
    assert!(!world.env.objects.contains_key(&root_key("demo")));
    let report = rebuilt(&mut world, &taking_over("demo"));
    assert_eq!(report.unknown, []);
    // The owner has not noticed. What it calls stored from now on is in the volume; or it calls nothing stored.
    world.write(&volume, 16, 77, 4096);
    let answer = world.host.sync(&volume);
    let synced = world.wait(|_| answer.try_take());
    let expected = if synced.is_ok() { 77 } else { 8 };
    let mut other = other_host(&mut world);
    let there = other.open("demo");
    assert_eq!(other.read_fill(&there, 16, 4096), expected, "{synced:?}");
    other.write(&there, 16, 78, 4096);
    other.sync(&there);
    hand_over(&mut other, &mut world);
    let answer = world.host.sync(&volume);
    let _ = try_write(&mut world, &volume);
    let _ = world.wait(|_| answer.try_take());
    let answer = world.host.sync(&volume);
    assert!(world.wait(|_| answer.try_take()).is_err(), "it is fenced");
    assert_eq!(state(&world, "demo")[8192], 78);
}

#[test]
fn a_tail_goes_on_over_an_index_that_was_rebuilt_below_its_root() {
    let (mut world, volume) = with_volume();
    furnish(&mut world, &volume);
    world.write(&volume, 8, 44, 4096);
    world.flush(&volume);
    let mut expected = state(&world, "demo");
    expected[4096..8192].fill(44);
    let env = world.kill();
    let mut world = World::start(env);
    remove_below(&mut world, "indexes/");
    let held = try_rebuild(&mut world, &of("demo")).expect_err("its host had it");
    assert!(matches!(held, RebuildError::Held(..)), "{held}");
    rebuilt(&mut world, &taking_over("demo"));
    let volume = world.open("demo");
    world.sync(&volume);
    assert_same(&state(&world, "demo"), &expected, "with what was flushed");
}

#[test]
fn what_is_not_lost_is_not_rebuilt() {
    let (mut world, volume) = with_volume();
    furnish(&mut world, &volume);
    close(&mut world, &volume);
    let before = world.env.objects.clone();
    let whole = try_rebuild(&mut world, &of("demo"));
    assert!(matches!(whole, Err(RebuildError::Whole(_))), "{whole:?}");
    let none = try_rebuild(&mut world, &of("dmo"));
    assert!(matches!(none, Err(RebuildError::NotFound(..))), "{none:?}");
    let snapshot = try_rebuild(&mut world, &of("demo@none"));
    assert!(matches!(snapshot, Err(RebuildError::Snapshot(_))));
    let bad = try_rebuild(&mut world, &of("a/b"));
    assert!(matches!(bad, Err(RebuildError::Invalid(_))), "{bad:?}");
    assert_eq!(world.env.objects, before);
    delete(&mut world, "demo");
    let before = world.env.objects.clone();
    let deleted = try_rebuild(&mut world, &of("demo"));
    assert!(matches!(deleted, Err(RebuildError::Deleted(_))));
    assert_eq!(world.env.objects, before);
}

#[test]
fn a_damaged_root_is_replaced_and_a_trial_changes_nothing() {
    let (mut world, volume) = with_volume();
    furnish(&mut world, &volume);
    close(&mut world, &volume);
    let expected = state(&world, "demo");
    let root = world.env.objects.get_mut(&root_key("demo"));
    root.expect("a root").0[40] ^= 1;
    let before = world.env.objects.clone();
    let trial = RebuildRequest {
        is_trial: true,
        ..of("demo")
    };
    let report = try_rebuild(&mut world, &trial).expect("found");
    assert!(!report.is_written);
    assert_eq!(world.env.objects, before);
    let small = RebuildRequest {
        bytes: Some(MIB),
        ..of("demo")
    };
    let small = try_rebuild(&mut world, &small);
    assert!(matches!(small, Err(RebuildError::TooSmall(_))), "{small:?}");
    rebuilt(&mut world, &of("demo"));
    assert_same(&state(&world, "demo"), &expected, "a damaged root");
}

#[test]
fn a_root_that_a_newer_firn_wrote_is_left_alone() {
    let (mut world, volume) = with_volume();
    furnish(&mut world, &volume);
    close(&mut world, &volume);
    let root = world.env.objects.get_mut(&root_key("demo"));
    root.expect("a root").0[8] = 2;
    let before = world.env.objects.clone();
    let newer = try_rebuild(&mut world, &of("demo"));
    assert!(matches!(newer, Err(RebuildError::Invalid(_))), "{newer:?}");
    assert_eq!(world.env.objects, before);
}

#[test]
fn a_lost_volume_whose_name_another_has_comes_back_under_a_new_one() {
    let (mut world, volume) = with_volume();
    furnish(&mut world, &volume);
    close(&mut world, &volume);
    let expected = state(&world, "demo");
    let id = root_of(&world.env, "demo").volume;
    remove_below(&mut world, "volumes/demo/");
    world.create("demo", 64 * MIB);
    let volume = world.open("demo");
    world.write(&volume, 0, 200, 4096);
    world.sync(&volume);
    close(&mut world, &volume);
    let whole = try_rebuild(&mut world, &of("demo"));
    assert!(matches!(whole, Err(RebuildError::Whole(_))), "{whole:?}");
    let request = RebuildRequest {
        volume: Some(id),
        ..of("demo")
    };
    let taken = try_rebuild(&mut world, &request);
    assert!(matches!(taken, Err(RebuildError::Taken(_))), "{taken:?}");
    let request = RebuildRequest {
        new_name: Some("old".into()),
        ..request
    };
    rebuilt(&mut world, &request);
    assert_same(&state(&world, "old"), &expected, "under a new name");
    assert_eq!(state(&world, "demo")[0], 200);
    // Both roots are lost: the name is not enough.
    remove_below(&mut world, "volumes/");
    let both = try_rebuild(&mut world, &of("demo"));
    assert!(
        matches!(&both, Err(RebuildError::Ambiguous(_, found)) if found.len() == 2),
        "{both:?}"
    );
}

#[test]
fn a_rebuild_that_dies_or_hears_no_answer_leaves_a_volume_or_none_and_is_done_again() {
    for fault in [
        WriteFault::LostAnswer(1),
        WriteFault::LostAnswer(2),
        WriteFault::Death(1),
        WriteFault::Death(2),
    ] {
        let (mut world, volume) = with_volume();
        furnish(&mut world, &volume);
        close(&mut world, &volume);
        let expected = state(&world, "demo");
        remove_below(&mut world, "volumes/demo/");
        let done = rebuild_with(&mut world, &of("demo"), Some(fault));
        if let WriteFault::Death(_) = fault {
            assert!(done.is_err(), "{fault:?}");
            let again = RebuildRequest {
                nonce: 8,
                ..of("demo")
            };
            rebuilt(&mut world, &again);
        } else {
            done.expect("the outcome is found out");
        }
        assert_same(&state(&world, "demo"), &expected, &format!("{fault:?}"));
        gc(&mut world);
        gc(&mut world);
        assert_same(&state(&world, "demo"), &expected, "after two passes");
    }
}

#[cfg(feature = "planted")]
#[test]
fn each_planted_bug_is_seen() {
    canary::each_is_seen(&[
        (
            "a_newer_root_is_lost",
            a_root_that_a_newer_firn_wrote_is_left_alone,
        ),
        ("a_whole_root_is_rebuilt", what_is_not_lost_is_not_rebuilt),
        (
            "the_check_believes_the_list_of_roots",
            a_check_names_a_volume_that_lost_its_root,
        ),
    ]);
}
