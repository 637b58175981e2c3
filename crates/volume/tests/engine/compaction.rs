//! Compaction: what is alive in packs with much garbage, and what random writes scattered, goes elsewhere, and nobody who
//! reads notices, whatever happens meanwhile.
//!
//! With the feature `planted` each planted bug is seen by the test that is there for it.

use std::collections::BTreeSet;

use crate::support::checks::check_all;
use crate::support::compactions::{
    BLOCK, BLOCKS, Disk, aged, copies, open_aged, pack_bytes, verify,
};
use crate::support::hosts::{elsewhere, root_of, taken_over};
use crate::support::points::{delete_snapshot, fold, gc, make_fork, packs, snapshot};
use crate::support::{Environment, Fault, World, compacting, options, random_bytes};
use blkmq::error::ErrorKind;
use blkmq::io::Op;
use volume::CompactOptions;
use volume::hostlog::names::object_of_key;
use volume::hostlog::record::{Content, Record};

#[test]
fn what_random_overwrites_leave_behind_is_bounded_by_what_is_alive() {
    let bytes_after = |compact| {
        let mut disk = Disk::new(compact);
        disk.age(120);
        disk.world.pass(3000);
        for _ in 0..3 {
            gc(&mut disk.world);
            disk.world.pass(1000);
        }
        disk.verify();
        let report = disk.world.host.compaction();
        (pack_bytes(&disk.world.env), report)
    };
    let (without, _) = bytes_after(None);
    let (with, report) = bytes_after(Some(compacting()));
    let live = BLOCKS * BLOCK;
    println!("{live} bytes alive; packs without compaction {without}, with it {with}; {report:?}");
    assert!(without > 2 * live, "there is something to do: {without}");
    // Entries in footers, 3 % of such blocks, come on top.
    assert!(
        with <= 2 * live + live / 16,
        "{with} bytes for {live}: {report:?}"
    );
    assert!(report.freed_bytes > 0 && report.steps > 0, "{report:?}");
    assert_eq!((report.failures, report.unreadable_chunks), (0, 0));
}

#[test]
fn after_it_a_reader_in_sequence_needs_two_requests_for_128_kib() {
    let requests = |env: &Environment, compact| {
        let (mut world, volume) = open_aged(env, compact);
        world.pass(3000);
        let (mut cold, theirs) = taken_over(&world);
        drop(volume);
        // The index is in memory after this, and not one of these chunks.
        cold.read(&theirs, (BLOCKS - 1) * 8, BLOCK as usize);
        let key = ("range", "packs".to_owned());
        let count = |world: &World| world.env.requests.get(&key).copied().unwrap_or(0);
        let mut most = 0;
        // From behind, so that nothing is read ahead.
        for window in (0..BLOCKS / 32 - 1).rev() {
            let before = count(&cold);
            cold.read(&theirs, window * 32 * 8, 128 << 10);
            most = most.max(count(&cold) - before);
        }
        most
    };
    let (env, _) = aged();
    let before = requests(&env, None);
    let after = requests(&env, Some(compacting()));
    println!("requests for 128 KiB, at most: {before} before, {after} after");
    assert!(before > 4, "{before}");
    assert!(after <= 2, "{after}");
}

#[test]
fn a_snapshot_and_a_fork_read_the_same_before_and_after() {
    let mut disk = Disk::new(Some(compacting()));
    disk.age(4);
    snapshot(&mut disk.world, "demo@before").expect("taken");
    make_fork(&mut disk.world, "demo", "fork").expect("forked");
    let then = disk.blocks.clone();
    disk.age(12);
    disk.fold();
    disk.world.pass(3000);
    disk.verify();
    assert!(disk.world.host.compaction().steps > 0);
    for _ in 0..2 {
        gc(&mut disk.world);
    }
    let mut other = elsewhere(&disk.world);
    let fork = other.try_open("fork", true).expect("opened");
    verify(&mut other, &fork, &then);
    // The fork is compacted by itself: its own blocks, and those that it shares.
    let mut fork = Disk {
        volume: fork,
        world: other,
        blocks: then.clone(),
        drawn: 1 << 32,
    };
    for round in 0..12 {
        for block in 0..32 {
            fork.write((block * 16 + round) % BLOCKS);
        }
        fork.sync();
    }
    fork.fold();
    fork.world.pass(3000);
    assert!(fork.world.host.compaction().steps > 0);
    fork.verify();
    assert!(check_all(&fork.world.env.objects, true).damage.is_empty());
    let mut last = elsewhere(&fork.world);
    let found = last.try_open("fork", true).expect("opened");
    verify(&mut last, &found, &fork.blocks);
    make_fork(&mut last, "demo@before", "again").expect("forked");
    let again = last.open("again");
    verify(&mut last, &again, &then);
}

#[test]
fn what_a_snapshot_keeps_is_not_copied_until_it_goes_and_holds_up_nothing_else() {
    let compact = CompactOptions {
        // For space alone.
        runs_max: usize::MAX,
        ..compacting()
    };
    let mut disk = Disk::new(None);
    (0..BLOCKS).for_each(|block| disk.write(block));
    disk.sync();
    snapshot(&mut disk.world, "demo@first").expect("taken");
    // Of the first packs every fourth block stays, of those behind the snapshot as well.
    for _ in 0..2 {
        (0..BLOCKS)
            .filter(|at| at % 4 > 0)
            .for_each(|at| disk.write(at));
        disk.sync();
    }
    disk.fold();
    let blocks = disk.blocks.clone();
    let env = disk.world.kill();
    let (mut world, volume) = open_aged(&env, Some(compact));
    world.pass(3000);
    verify(&mut world, &volume, &blocks);
    let kept = world.host.compaction();
    delete_snapshot(&mut world, "demo@first").expect("deleted");
    fold(&mut world, &volume, 0);
    world.pass(3000);
    let then = world.host.compaction();
    assert!(
        then.read_bytes > kept.read_bytes + (BLOCKS * BLOCK) / 8,
        "{kept:?}, {then:?}"
    );
    assert!(kept.read_bytes < (BLOCKS * BLOCK) / 8, "{kept:?}");
}

#[test]
fn what_a_snapshot_keeps_takes_no_room_from_what_can_go() {
    let compact = CompactOptions {
        runs_max: usize::MAX,
        // One pack is all that a pass takes.
        pass_bytes: 1,
        ..compacting()
    };
    let mut disk = Disk::new(None);
    (0..BLOCKS).for_each(|block| disk.write(block));
    disk.sync();
    snapshot(&mut disk.world, "demo@first").expect("taken");
    // Of the first packs a quarter stays, which the snapshot has, and of the next ones a third, which it has not.
    for rests in [&[1, 2, 3][..], &[1, 2]] {
        (0..BLOCKS)
            .filter(|at| rests.contains(&(at % 4)))
            .for_each(|at| disk.write(at));
        disk.sync();
    }
    disk.fold();
    let blocks = disk.blocks.clone();
    let env = disk.world.kill();
    let (mut world, volume) = open_aged(&env, Some(compact));
    world.wait(|world| {
        let read = world.host.compaction().read_bytes;
        (read > (BLOCKS * BLOCK) / 8).then_some(())
    });
    verify(&mut world, &volume, &blocks);
}

/// A scattered volume, of which a fork is all that is open.
fn an_unwritten_fork_moves_nothing() {
    let (env, blocks) = aged();
    let (mut world, _) = open_aged(&env, None);
    make_fork(&mut world, "demo", "fork").expect("forked");
    let mut world = World::start(Environment {
        compact: Some(compacting()),
        ..world.kill()
    });
    let fork = world.open("fork");
    let before = pack_bytes(&world.env);
    world.pass(3000);
    let report = world.host.compaction();
    assert_eq!(report.steps, 0, "it was moved: {report:?}");
    assert_eq!(pack_bytes(&world.env), before);
    verify(&mut world, &fork, &blocks);
}

#[test]
fn what_a_fork_has_from_its_parent_stays_where_it_lies() {
    an_unwritten_fork_moves_nothing();
}

#[test]
#[cfg_attr(not(feature = "planted"), ignore = "needs --features planted")]
#[should_panic(expected = "it was moved")]
fn a_fork_that_copies_what_it_shares_is_seen() {
    canary::with(
        "a_fork_copies_what_it_shares",
        an_unwritten_fork_moves_nothing,
    );
}

#[test]
fn a_crash_or_a_lost_answer_at_any_request_loses_nothing() {
    let (env, blocks) = aged();
    for fault in [Fault::LostAnswer, Fault::Outage, Fault::OutageBehind] {
        for nth in 0.. {
            let (mut world, volume) = open_aged(&env, Some(compacting()));
            world.env.fault_after = Some((nth, fault));
            world.pass(300);
            let is_over = world.env.fault_after.is_some();
            let mut killed = world.kill();
            killed.outage = false;
            killed.fault_after = None;
            killed.compact = None;
            drop(volume);
            let mut world = World::start(killed);
            let volume = world.open("demo");
            verify(&mut world, &volume, &blocks);
            for _ in 0..2 {
                gc(&mut world);
            }
            let report = check_all(&world.env.objects, true);
            assert!(
                report.damage.is_empty(),
                "{fault:?} {nth}: {:?}",
                report.damage
            );
            let (mut other, theirs) = taken_over(&world);
            verify(&mut other, &theirs, &blocks);
            if is_over {
                assert!(nth > 20, "{nth} requests");
                break;
            }
        }
    }
}

#[test]
fn a_take_over_at_any_moment_finds_all_and_the_host_before_ends() {
    let (env, blocks) = aged();
    for ms in (0..900).step_by(30) {
        let (mut world, volume) = open_aged(&env, Some(compacting()));
        world.env.store_ms = 20;
        world.pass(80 + ms);
        let (other, _theirs) = taken_over(&world);
        world.env.objects = other.env.objects.clone();
        world.env.versions = other.env.versions + 1;
        world.pass(5000);
        let root = root_of(&world.env, "demo");
        assert_eq!(root, root_of(&other.env, "demo"), "after {ms} ms");
        assert!(check_all(&world.env.objects, true).damage.is_empty());
        drop(volume);
        let (mut last, found) = taken_over(&world);
        verify(&mut last, &found, &blocks);
    }
}

#[test]
fn what_is_damaged_in_the_store_stays_damaged_where_it_is_and_the_rest_goes_on() {
    let (mut env, blocks) = aged();
    // The first chunk of each pack that is the volume's, for packs are read from there.
    let keys: Vec<String> = env.objects.keys().cloned().collect();
    let damaged = keys.iter().filter(|key| key.starts_with("packs/"));
    for key in damaged {
        let (data, _) = env.objects.get_mut(key).expect("listed");
        data[20] ^= 1;
    }
    let before = check_all(&env.objects, true).damage;
    assert!(!before.is_empty(), "some of it is alive");
    let (mut world, volume) = open_aged(&env, Some(compacting()));
    world.pass(3000);
    let report = world.host.compaction();
    assert!(
        report.steps > 0 && report.unreadable_chunks > 0,
        "{report:?}"
    );
    let after = check_all(&world.env.objects, true).damage;
    let places = |damage: &[volume::check::Damage]| -> BTreeSet<(String, u64, u64)> {
        let place = |it: &volume::check::Damage| (it.object.clone(), it.offset, it.bytes);
        damage.iter().map(place).collect()
    };
    assert_eq!(places(&before), places(&after));
    let mut lost = 0;
    for (block, seed) in blocks.iter().enumerate() {
        let op = Op::Read {
            sector: block as u64 * 8,
            sectors: 8,
        };
        let mut data = vec![0; BLOCK as usize];
        match world.request(&volume, op, &mut data) {
            Ok(()) if *seed == 0 => assert!(data.iter().all(|byte| *byte == 0)),
            Ok(()) => assert!(data == random_bytes(*seed, BLOCK), "block {block}"),
            Err(ErrorKind::Corrupt) => lost += 1,
            Err(error) => panic!("{error:?}"),
        }
    }
    assert!(lost > 0 && lost < BLOCKS / 4, "{lost}");
    // It does not try again for ever.
    world.pass(3000);
    let later = world.host.compaction();
    assert_eq!(report.unreadable_chunks, later.unreadable_chunks);
}

fn a_pack_is_named_by_a_record_before_any_page_points_to_it() {
    let (env, _) = aged();
    let (mut world, _volume) = open_aged(&env, Some(compacting()));
    world.pass(3000);
    let named: BTreeSet<u64> = world
        .env
        .objects
        .iter()
        .filter(|(key, _)| key.contains("/log/"))
        .filter_map(
            |(_, (data, _))| match Record::decode(data).expect("a record").content {
                Content::Slices(slices) => Some(slices.objects),
                Content::Fence(_) => None,
            },
        )
        .flatten()
        .filter(|object| !object.is_index)
        .map(|object| object.number)
        .collect();
    let copies = copies(&world.env);
    assert!(!copies.is_empty());
    for key in copies {
        let (_, number) = object_of_key(&key).expect("a pack");
        assert!(named.contains(&number), "no record names {key}");
    }
}

#[test]
fn a_record_names_what_a_compaction_wrote() {
    a_pack_is_named_by_a_record_before_any_page_points_to_it();
}

#[test]
#[cfg_attr(not(feature = "planted"), ignore = "needs --features planted")]
#[should_panic(expected = "no record names")]
fn a_pack_that_no_record_names_is_seen() {
    canary::with(
        "compaction_names_no_pack",
        a_pack_is_named_by_a_record_before_any_page_points_to_it,
    );
}

#[test]
fn old_packs_go_with_the_second_pass_behind_the_root_and_a_settled_volume_asks_for_nothing() {
    let (env, blocks) = aged();
    let (mut world, volume) = open_aged(&env, Some(compacting()));
    let before = packs(&world.env);
    let old: BTreeSet<String> = keys_of_packs(&world.env);
    world.pass(3000);
    assert!(
        old.is_subset(&keys_of_packs(&world.env)),
        "nothing goes yet"
    );
    for _ in 0..2 {
        gc(&mut world);
    }
    world.pass(2000);
    assert!(packs(&world.env) < before / 2, "of {before}");
    world.env.store_requests.clear();
    world.pass(5000);
    assert_eq!(world.env.store_requests.values().sum::<usize>(), 0);
    let space = volume.space().expect("surveyed");
    assert_eq!(
        (space.candidates, space.candidates_since_unix_ms),
        (0, None)
    );
    verify(&mut world, &volume, &blocks);
}

fn keys_of_packs(env: &Environment) -> BTreeSet<String> {
    let keys = env.objects.keys();
    keys.filter(|key| key.starts_with("packs/"))
        .cloned()
        .collect()
}

#[test]
fn switched_off_it_does_nothing() {
    assert_eq!(options().compact.interval_ns, 0);
    let (env, _) = aged();
    let (mut world, _volume) = open_aged(&env, None);
    world.pass(60_000);
    assert_eq!(world.host.compaction(), volume::CompactionReport::default());
    assert!(copies(&world.env).is_empty());
}

#[test]
fn it_begins_and_ends_when_it_is_told_to() {
    let (env, _) = aged();
    let (mut world, volume) = open_aged(&env, None);
    world.pass(10_000);
    assert!(world.host.set_compact_interval(1_000_000_000));
    world.pass(10_000);
    let done = world.host.compaction();
    assert!(!copies(&world.env).is_empty(), "{done:?}");
    assert!(world.host.set_compact_interval(0));
    world.pass(1000);
    let done = world.host.compaction();
    // Aged again, in as many places as before.
    for round in 0..12 {
        for n in 0..48 {
            let block = (n * 37 + round * 11) % 512;
            world.write_noise(&volume, block * 8, round * 48 + n, 4096);
        }
        world.sync(&volume);
    }
    world.pass(60_000);
    let later = world.host.compaction();
    assert_eq!(format!("{done:?}"), format!("{later:?}"));
    assert!(world.host.set_compact_interval(1_000_000_000));
    world.pass(60_000);
    let again = world.host.compaction();
    assert!(again.steps > later.steps, "{again:?}");
}
