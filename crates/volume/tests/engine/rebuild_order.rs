//! Which of several contents a rebuild takes for a block, and what it leaves out or calls unknown.
//!
//! With the feature `planted` each planted bug is seen by the test that is there for it.

use volume::hostlog::marks::LowMark;
use volume::hostlog::names::{low_key, object_of_key, record_of_key};
use volume::object::pack;
use volume::object::pack::Slice;
use volume::object::pack_writer::PackWriter;
use volume::rebuild::{LeftOutReason, RebuildRequest, Unknown};
use volume::units::{Lsn, Span};

use crate::support::hosts::{close, other_host};
use crate::support::points::{gc, packs, snapshot, write_over};
use crate::support::rebuilds::{of, remove_below, taking_over};
use crate::support::rebuilt::{assert_same, discard, fold_elsewhere, furnish, rebuilt, state};
use crate::support::{World, with_volume};

/// Two holds: what the first one brought and never committed has LSNs that the second one gave out again.
fn taken_over_with_leftovers() -> World {
    let (mut world, volume) = with_volume();
    world.write(&volume, 0, 1, 4096);
    world.sync(&volume);
    // Packs arrive, records do not.
    world.env.failing_creates = 1000;
    world.write(&volume, 0, 2, 4096);
    world.write(&volume, 64, 3, 4096);
    world.write(&volume, 128, 4, 4096);
    let before = packs(&world.env);
    drop(world.host.sync(&volume));
    world.pass(100);
    assert!(packs(&world.env) > before, "the pack is there");
    let mut other = other_host(&mut world);
    let there = other.try_open("demo", true).expect("taken over");
    assert_eq!(other.read_fill(&there, 0, 4096), 1);
    other.write(&there, 0, 9, 4096);
    other.sync(&there);
    other.write(&there, 256, 10, 4096);
    other.sync(&there);
    close(&mut other, &there);
    other
}

#[test]
fn what_a_fenced_owner_brought_never_wins() {
    for lost in ["pins/", "hosts/"] {
        let mut world = taken_over_with_leftovers();
        let expected = state(&world, "demo");
        remove_below(&mut world, "volumes/demo/");
        remove_below(&mut world, lost);
        let report = rebuilt(&mut world, &of("demo"));
        assert_same(&state(&world, "demo"), &expected, lost);
        let [left] = &report.left_out[..] else {
            panic!("{:?}", report.left_out)
        };
        assert_eq!(left.reason, LeftOutReason::Void, "{left:?}");
    }
}

#[test]
fn what_no_log_names_is_left_out_and_without_a_log_it_is_said_to_be_in_it() {
    for lost in ["pins/", "hosts/"] {
        let (mut world, volume) = with_volume();
        furnish(&mut world, &volume);
        let expected = state(&world, "demo");
        world.env.failing_creates = 1000;
        world.write(&volume, 0, 99, 4096);
        drop(world.host.sync(&volume));
        world.pass(100);
        remove_below(&mut world, "volumes/demo/");
        remove_below(&mut world, lost);
        let report = rebuilt(&mut world, &taking_over("demo"));
        let found = state(&world, "demo");
        if lost == "hosts/" {
            assert_eq!(found[0], 99, "nothing says that it was not committed");
            assert_same(&found[4096..], &expected[4096..], lost);
            let commit = |it: &&Unknown| matches!(it, Unknown::Commit { .. });
            assert!(report.unknown.iter().any(|it| commit(&it)), "{report:?}");
            let is_log = |it: &Unknown| matches!(it, Unknown::Log(_));
            assert!(report.unknown.iter().any(is_log), "{report:?}");
        } else {
            assert_same(&found, &expected, lost);
            let [left] = &report.left_out[..] else {
                panic!("{report:?}")
            };
            assert_eq!(left.reason, LeftOutReason::NotCommitted);
        }
    }
}

/// The host's log is trimmed: only its newest record is left, as when it has folded all that the others name.
fn trim_log(world: &mut World) {
    let records = || {
        world
            .env
            .objects
            .keys()
            .filter_map(|key| record_of_key(key))
    };
    let (host, newest) = records().max_by_key(|(_, at)| *at).expect("a record");
    let low = LowMark {
        host,
        position: newest,
    };
    let low = low.encode();
    let objects = &mut world.env.objects;
    objects.retain(|key, _| record_of_key(key).is_none_or(|(_, at)| at >= newest));
    objects.get_mut(&low_key(host)).expect("a low mark").0 = low;
}

/// The pack's slice is one of two LSNs later, as if those of a pack that did not arrive came before it.
fn move_slice(world: &mut World, key: &str) {
    let (data, _) = world.env.objects.get_mut(key).expect("a pack");
    let (session, number) = object_of_key(key).expect("its key");
    let slice = &pack::decode(data).expect("a pack").sections[0].slice;
    let later = |lsn: Lsn| Lsn(lsn.0 + 2);
    let moved = Slice {
        begin: later(slice.begin),
        last: later(slice.last),
        ..slice.clone()
    };
    let mut writer = PackWriter::new(session, number);
    writer.add(&moved, Span::new(8, 8), moved.last, &[91; 4096]);
    *data = writer.finish().bytes;
}

#[test]
fn what_a_trimmed_log_does_not_name_goes_on_without_a_gap_or_is_left_out() {
    for has_gap in [false, true] {
        let (mut world, volume) = with_volume();
        furnish(&mut world, &volume);
        close(&mut world, &volume);
        let expected = state(&world, "demo");
        // Brought in a new epoch, which no record names.
        let volume = world.open("demo");
        world.env.failing_creates = 1000;
        let before = world.env.objects.clone();
        world.write(&volume, 8, 91, 4096);
        drop(world.host.sync(&volume));
        world.pass(100);
        let is_new = |key: &&String| !before.contains_key(*key);
        let brought = world.env.objects.keys().find(is_new);
        let brought = brought.expect("a pack").clone();
        if has_gap {
            move_slice(&mut world, &brought);
        }
        trim_log(&mut world);
        remove_below(&mut world, "volumes/demo/");
        let report = rebuilt(&mut world, &of("demo"));
        let found = state(&world, "demo");
        if has_gap {
            assert_same(&found, &expected, "a prefix");
            let [left] = &report.left_out[..] else {
                panic!("{report:?}")
            };
            assert_eq!(left.reason, LeftOutReason::Behind);
        } else {
            assert_eq!(found[4096], 91);
            assert_same(&found[8192..], &expected[8192..], "the rest");
            let is_commit = |it: &Unknown| matches!(it, Unknown::Commit { .. });
            assert!(report.unknown.iter().any(is_commit), "{report:?}");
        }
    }
}

#[test]
fn a_start_after_a_loss_of_the_process_goes_on_in_what_is_rebuilt() {
    let (mut world, volume) = with_volume();
    furnish(&mut world, &volume);
    // Uploaded and not committed, killed, and uploaded again by the next server in slices of its own.
    world.env.failing_creates = 1000;
    world.write(&volume, 0, 20, 4096);
    drop(world.host.sync(&volume));
    world.pass(100);
    world.write(&volume, 8, 21, 4096);
    let mut env = world.kill();
    env.failing_creates = 0;
    let mut world = World::start(env);
    let volume = world.open("demo");
    world.write(&volume, 0, 22, 4096);
    world.sync(&volume);
    close(&mut world, &volume);
    let expected = state(&world, "demo");
    assert_eq!([expected[0], expected[4096]], [22, 21]);
    for lost in ["pins/", "indexes/", "hosts/"] {
        remove_below(&mut world, "volumes/demo/");
        remove_below(&mut world, lost);
        // A second rebuild takes an epoch above that of the first one.
        let request = RebuildRequest {
            unix_ms: of("demo").unix_ms + world.env.versions * 1000,
            nonce: world.env.versions,
            ..of("demo")
        };
        let report = rebuilt(&mut world, &request);
        assert_same(&state(&world, "demo"), &expected, lost);
        assert!(report.epoch.0 > 1 << 32, "above all that left no trace");
    }
}

#[test]
fn zeroes_whose_packs_were_collected_are_said_to_be_unknown_and_a_snapshot_knows_them() {
    for has_snapshot in [false, true] {
        let (mut world, volume) = with_volume();
        world.write(&volume, 0, 1, 4096);
        world.write(&volume, 512, 2, 4096);
        world.sync(&volume);
        discard(&mut world, &volume, 0, 8);
        world.sync(&volume);
        if has_snapshot {
            snapshot(&mut world, "demo@one").expect("taken");
        }
        write_over(&mut world, &volume, 10);
        discard(&mut world, &volume, 0, 8);
        world.sync(&volume);
        world.write(&volume, 0, 11, 512);
        discard(&mut world, &volume, 0, 8);
        write_over(&mut world, &volume, 20);
        discard(&mut world, &volume, 24, 8);
        world.sync(&volume);
        fold_elsewhere(&mut world, &volume);
        close(&mut world, &volume);
        gc(&mut world);
        gc(&mut world);
        let expected = state(&world, "demo");
        remove_below(&mut world, "volumes/demo/");
        let report = rebuilt(&mut world, &of("demo"));
        let is_gap = |it: &Unknown| matches!(it, Unknown::Gap { .. });
        assert!(report.unknown.iter().any(is_gap), "{report:?}");
        assert_eq!(report.base.is_some(), has_snapshot);
        let found = state(&world, "demo");
        // Everything that was written and not zeroed since is what it was.
        for (nth, (found, expected)) in found.chunks(4096).zip(expected.chunks(4096)).enumerate() {
            assert!(found == expected || expected[0] == 0, "block {nth}");
        }
    }
}

#[cfg(feature = "planted")]
#[test]
fn each_planted_bug_is_seen() {
    canary::each_is_seen(&[
        (
            "the_rebuild_orders_by_lsn_alone",
            what_a_fenced_owner_brought_never_wins,
        ),
        (
            "the_rebuild_reads_no_logs",
            what_no_log_names_is_left_out_and_without_a_log_it_is_said_to_be_in_it,
        ),
        (
            "the_rebuild_takes_what_has_a_gap_before_it",
            what_a_trimmed_log_does_not_name_goes_on_without_a_gap_or_is_left_out,
        ),
        (
            "the_rebuild_takes_the_next_epoch",
            a_start_after_a_loss_of_the_process_goes_on_in_what_is_rebuilt,
        ),
    ]);
}
