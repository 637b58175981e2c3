//! The rebuild of a volume from its packs, after its root or its index was lost: each block is what it was when it was
//! last stored, and what cannot be known is said.
//!
//! With the feature `planted` each planted bug is seen by the test that is there for it.

use blkmq::io::Op;
use volume::Volume;
use volume::check::DamageKind;
use volume::hostlog::marks::LowMark;
use volume::hostlog::names::{low_key, object_of_key, record_of_key};
use volume::object::pack::{self, Slice};
use volume::object::pack_writer::PackWriter;
use volume::object::root_key;
use volume::rebuild::{LeftOutReason, RebuildError, RebuildReport, RebuildRequest, Unknown};
use volume::units::{Lsn, Span};

use crate::support::checks::check_all;
use crate::support::hosts::{close, delete, elsewhere, hand_over, other_host, root_of, try_write};
use crate::support::points::{done, fork, gc, make_fork, packs, snapshot, write_over};
use crate::support::rebuilds::{
    WriteFault, of, rebuild_with, remove_below, taking_over, try_rebuild,
};
use crate::support::{World, with_volume};

const MIB: u64 = 1 << 20;
/// What is compared of each volume: where tests write, and its end.
const COMPARED: [(u64, u64); 2] = [(0, 4 * MIB), (60 * MIB, 4 * MIB)];

/// What anybody reads who opens the volume, from the store alone.
fn state(world: &World, name: &str) -> Vec<u8> {
    let mut other = elsewhere(world);
    let volume = other.try_open(name, true).expect("it opens");
    let mut all = Vec::new();
    for (from, bytes) in COMPARED {
        for at in (from..from + bytes).step_by(128 << 10) {
            all.extend(other.read(&volume, at / 512, 128 << 10));
        }
    }
    all
}

fn assert_same(found: &[u8], expected: &[u8], when: &str) {
    let blocks = found.chunks(4096).zip(expected.chunks(4096));
    let differs = blocks.enumerate().filter(|(_, (one, other))| one != other);
    let differs: Vec<String> = differs
        .map(|(nth, (one, other))| format!("block {nth}: {} for {}", one[0], other[0]))
        .collect();
    assert!(differs.is_empty(), "{when}: {differs:?}");
}

fn discard(world: &mut World, volume: &Volume, sector: u64, sectors: u64) {
    let op = Op::Discard {
        sector,
        sectors,
        fua: false,
    };
    world.request(volume, op, &mut []).expect("discarded");
}

/// A volume with folded pages, deltas over them, zeroes, content at its end and in two packs of one slice.
fn furnish(world: &mut World, volume: &Volume) {
    world.write(volume, 64, 7, 16384);
    world.write(volume, 60 * MIB / 512, 8, 65536);
    write_over(world, volume, 1);
    world.write_noise(volume, 1024, 3, 700 << 10);
    world.sync(volume);
    discard(world, volume, 72, 8);
    discard(world, volume, 1024, 256);
    world.sync(volume);
    world.write(volume, 1040, 9, 4096);
    world.sync(volume);
}

fn rebuilt(world: &mut World, request: &RebuildRequest) -> RebuildReport {
    let report = try_rebuild(world, request).unwrap_or_else(|error| panic!("{error}"));
    let found = check_all(&world.env.objects, true);
    assert_eq!(found.damage, [], "a rebuilt store is whole");
    report
}

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
fn a_fork_is_rebuilt_with_what_it_shares_and_nothing_that_its_parent_wrote_since() {
    for lost in ["pins/", "indexes/"] {
        let (mut world, volume) = with_volume();
        furnish(&mut world, &volume);
        let child = fork(&mut world, "demo", "child").expect("forked");
        // Both in one pack.
        world.write(&volume, 64, 30, 4096);
        world.write(&child, 0, 31, 4096);
        let answers = [world.host.sync(&volume), world.host.sync(&child)];
        for answer in answers {
            done(&mut world, &answer);
        }
        write_over(&mut world, &volume, 40);
        let grandchild = fork(&mut world, "child", "grandchild").expect("forked");
        world.write(&grandchild, 8, 32, 4096);
        world.sync(&grandchild);
        world.write(&child, 8, 33, 4096);
        world.sync(&child);
        for volume in [&volume, &child, &grandchild] {
            close(&mut world, volume);
        }
        gc(&mut world);
        gc(&mut world);
        let names = ["demo", "child", "grandchild"];
        let expected = names.map(|name| state(&world, name));
        for name in names {
            assert_eq!(remove_below(&mut world, &format!("volumes/{name}/")), 1);
        }
        remove_below(&mut world, lost);
        // A pass finds that roots are gone, and keeps all.
        let before = packs(&world.env);
        for _ in 0..3 {
            let answer = world.host.collect_garbage(false);
            let _ = world.wait(|_| answer.try_take());
        }
        assert_eq!(packs(&world.env), before);
        for (name, expected) in names.iter().zip(&expected) {
            rebuild_alone(&mut world, name);
            assert_same(&state(&world, name), expected, name);
        }
    }
}

/// Rebuilds one of several volumes that lost their roots: until all have theirs the store is not whole.
fn rebuild_alone(world: &mut World, name: &str) -> RebuildReport {
    try_rebuild(world, &of(name)).unwrap_or_else(|error| panic!("{error}"))
}

#[test]
fn a_fork_that_was_never_written_is_rebuilt_from_its_pin() {
    let (mut world, volume) = with_volume();
    furnish(&mut world, &volume);
    make_fork(&mut world, "demo", "child").expect("forked");
    let expected = state(&world, "child");
    write_over(&mut world, &volume, 90);
    remove_below(&mut world, "volumes/child/");
    rebuilt(&mut world, &of("child"));
    assert_same(&state(&world, "child"), &expected, "the fork");
}

#[test]
fn what_a_lost_fork_shares_stays_also_where_its_own_packs_are_of_a_host_without_a_log() {
    let (mut world, volume) = with_volume();
    furnish(&mut world, &volume);
    make_fork(&mut world, "demo", "child").expect("forked");
    let before = world.env.objects.clone();
    let mut other = other_host(&mut world);
    let child = other.open("child");
    other.write(&child, 0, 31, 4096);
    close(&mut other, &child);
    hand_over(&mut other, &mut world);
    let expected = state(&world, "child");
    let hosts = world.env.objects.keys();
    let hosts = hosts.filter(|key| key.starts_with("hosts/") && !before.contains_key(*key));
    let hosts: Vec<String> = hosts.cloned().collect();
    hosts
        .iter()
        .for_each(|key| drop(world.env.objects.remove(key)));
    remove_below(&mut world, "volumes/child/");
    // The parent writes over all that it shares.
    world.write(&volume, 64, 90, 16384);
    world.write_noise(&volume, 1024, 4, 700 << 10);
    write_over(&mut world, &volume, 91);
    let count = packs(&world.env);
    for _ in 0..3 {
        let answer = world.host.collect_garbage(false);
        let _ = world.wait(|_| answer.try_take());
    }
    assert_eq!(packs(&world.env), count, "no pack goes");
    let report = rebuilt(&mut world, &of("child"));
    assert_same(&state(&world, "child"), &expected, "the fork");
    assert!(
        report
            .unknown
            .iter()
            .any(|it| matches!(it, Unknown::Log(_)))
    );
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

/// Folds all that was written at the volume's beginning, by writes behind it.
fn fold_elsewhere(world: &mut World, volume: &Volume) {
    for round in 0..6 {
        world.write(volume, 4096, 60 + round, 4096);
        world.sync(volume);
    }
    world.pass(2000);
}

#[test]
fn a_snapshot_that_lost_its_index_is_rebuilt_and_what_came_later_is_not_in_it() {
    let (mut world, volume) = with_volume();
    furnish(&mut world, &volume);
    snapshot(&mut world, "demo@one").expect("taken");
    write_over(&mut world, &volume, 70);
    close(&mut world, &volume);
    let forked = |world: &World| {
        let mut other = elsewhere(world);
        fork(&mut other, "demo@one", "of-one").expect("forked");
        state(&other, "of-one")
    };
    let (one, now) = (forked(&world), state(&world, "demo"));
    remove_below(&mut world, "indexes/");
    rebuild_alone(&mut world, "demo@one");
    rebuilt(&mut world, &of("demo"));
    assert_same(&state(&world, "demo"), &now, "the volume");
    assert_same(&forked(&world), &one, "the snapshot");
}

#[test]
fn a_volume_that_was_set_back_is_rebuilt_as_it_was_set_back() {
    for writes_after in [false, true] {
        let (mut world, volume) = with_volume();
        furnish(&mut world, &volume);
        snapshot(&mut world, "demo@one").expect("taken");
        world.write(&volume, 0, 80, 16384);
        world.write(&volume, 2048, 81, 4096);
        close(&mut world, &volume);
        let answer = world.host.restore_volume("demo@one", "demo@kept");
        done(&mut world, &answer);
        if writes_after {
            let volume = world.open("demo");
            world.write(&volume, 8, 82, 4096);
            close(&mut world, &volume);
        }
        let expected = state(&world, "demo");
        remove_below(&mut world, "volumes/demo/");
        remove_below(&mut world, "pins/");
        let report = rebuilt(&mut world, &of("demo"));
        assert_same(&state(&world, "demo"), &expected, "set back");
        assert_eq!(report.unknown, []);
        // Without the snapshots nothing says it, and without the one that it was set back to it is said.
        remove_below(&mut world, "volumes/demo/");
        remove_below(&mut world, "pins/");
        remove_below(&mut world, "snapshots/demo/one/");
        let report = rebuilt(&mut world, &of("demo"));
        let is_said = |it: &Unknown| matches!(it, Unknown::SetBack { .. });
        assert!(report.unknown.iter().any(is_said), "{report:?}");
    }
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
            "a_newer_root_is_lost",
            a_root_that_a_newer_firn_wrote_is_left_alone,
        ),
        ("a_whole_root_is_rebuilt", what_is_not_lost_is_not_rebuilt),
        (
            "the_rebuild_takes_the_next_epoch",
            a_start_after_a_loss_of_the_process_goes_on_in_what_is_rebuilt,
        ),
        (
            "owners_of_what_stays_are_not_asked_for",
            what_a_lost_fork_shares_stays_also_where_its_own_packs_are_of_a_host_without_a_log,
        ),
        (
            "the_check_believes_the_list_of_roots",
            a_check_names_a_volume_that_lost_its_root,
        ),
    ]);
}
