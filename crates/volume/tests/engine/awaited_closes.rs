//! A volume that another host waits for is let go of and taken with few requests that follow each other, and whatever is cut, one
//! host has it with all that was committed.
//!
//! With the feature `planted` each planted bug is seen by the test that is there for it.

use std::ops::Range;

use blkmq::io::Op;
use volume::{OpenError, Volume};

use crate::support::hosts::{elsewhere, other_host, root_of};
use crate::support::points::gc;
use crate::support::{Environment, Fault, World, with_volume};

const MIB: u64 = 1 << 20;
/// What the store takes for a request.
const STORE_MS: u64 = 100;

fn close_awaited(world: &mut World, volume: &Volume) -> Result<(), OpenError> {
    let answer = world.host.close_awaited_volume(volume);
    world.wait(|_| answer.try_take())
}

/// Blocks that were written and stored in slices of their own, and one more that only the log has.
fn with_slices(count: u64) -> (World, Volume) {
    let (mut world, volume) = with_volume();
    for block in 0..count {
        world.write(&volume, block * 8, 1, 4096);
        world.sync(&volume);
    }
    world.write(&volume, 0, 2, 4096);
    (world, volume)
}

fn took_ms<T>(world: &mut World, work: impl FnOnce(&mut World) -> T) -> (T, u64) {
    let began = world.now_ns;
    let done = work(world);
    (done, (world.now_ns - began) / 1_000_000)
}

fn prepare(world: &mut World, sectors: Vec<Range<u64>>) -> volume::WarmUp {
    let answer = world.host.prepare_volume("demo", sectors);
    world.wait(|_| answer.try_take()).expect("prepared")
}

#[test]
fn letting_go_takes_four_requests_in_a_row_and_taking_three() {
    let (mut world, volume) = with_slices(2);
    world.env.store_ms = STORE_MS;
    // The pack, the record, the look around, the root.
    let (done, took) = took_ms(&mut world, |world| close_awaited(world, &volume));
    done.expect("closed");
    assert!((350..450).contains(&took), "{took} ms");
    let mut other = other_host(&mut world);
    other.env.store_ms = STORE_MS;
    // The root, the claim beside the own log, the adoption. The index is read meanwhile.
    let (volume, took) = took_ms(&mut other, |other| other.open("demo"));
    assert!((250..350).contains(&took), "{took} ms");
    let found = [0, 8].map(|sector| other.read_fill(&volume, sector, 4096));
    assert_eq!(found, [2, 1]);
}

/// How many footers another host reads when it opens a volume that it has prepared, if `is_prepared`.
fn footers_read(is_prepared: bool) -> usize {
    let (mut world, volume) = with_slices(3);
    let mut other = elsewhere(&world);
    if is_prepared {
        let warmed = prepare(&mut other, Vec::new());
        assert_eq!(warmed.fetched_bytes, 0, "the index alone");
    }
    world.write(&volume, 8, 3, 4096);
    close_awaited(&mut world, &volume).expect("closed");
    crate::support::hosts::hand_over(&mut world, &mut other);
    let key = ("range", "packs".to_owned());
    other.env.requests.clear();
    let volume = other.open("demo");
    let read = other.env.requests.get(&key).copied().unwrap_or_default();
    let found = [0, 8, 16].map(|sector| other.read_fill(&volume, sector, 4096));
    assert_eq!(found, [2, 3, 1]);
    read
}

#[test]
fn of_a_volume_that_was_prepared_only_the_newest_slices_are_read() {
    let (cold, prepared) = (footers_read(false), footers_read(true));
    assert!(cold > 2 && prepared == 1, "{cold}, {prepared}");
}

/// What was prepared is of an index that was folded since, or of an older volume of this name.
fn what_a_stale_index_gives() {
    let (mut world, volume) = with_slices(3);
    let mut other = elsewhere(&world);
    prepare(&mut other, vec![0..32, 32..64]);
    for block in 0..3 {
        world.write(&volume, block * 8, 4, 4096);
    }
    world.sync(&volume);
    gc(&mut world);
    assert!(
        !root_of(&world.env, "demo").nodes.is_empty(),
        "it is folded"
    );
    world.write(&volume, 0, 5, 4096);
    close_awaited(&mut world, &volume).expect("closed");
    crate::support::hosts::hand_over(&mut world, &mut other);
    let volume = other.open("demo");
    let found = [0, 8, 16].map(|sector| other.read_fill(&volume, sector, 4096));
    assert_eq!(found, [5, 4, 4]);
}

#[test]
fn an_index_that_was_prepared_and_is_not_that_of_the_taken_root_is_not_used() {
    what_a_stale_index_gives();
}

#[test]
fn ranges_that_are_prepared_are_read_from_the_cache_later_and_hold_nobody_up_if_they_are_nonsense()
{
    let (mut world, volume) = with_slices(8);
    world.sync(&volume);
    let mut other = elsewhere(&world);
    prepare(&mut other, Vec::new());
    let end = 64 * MIB / 512;
    let wanted = vec![0..32, 24..64, end - 8..end + 800, u64::MAX - 1..u64::MAX];
    let warmed = prepare(&mut other, wanted);
    assert_eq!(warmed.ranges, 4);
    assert!(warmed.fetched_bytes > 0);
    let again = prepare(&mut other, vec![0..32, 32..64]);
    assert_eq!((again.ranges, again.fetched_bytes), (2, 0), "all is here");
    close_awaited(&mut world, &volume).expect("closed");
    crate::support::hosts::hand_over(&mut world, &mut other);
    let volume = other.open("demo");
    let key = ("range", "packs".to_owned());
    other.env.requests.clear();
    let found: Vec<u8> = (0..8)
        .map(|block| other.read_fill(&volume, block * 8, 4096))
        .collect();
    assert_eq!(found, [2, 1, 1, 1, 1, 1, 1, 1]);
    assert_eq!(other.env.requests.get(&key), None);
}

#[test]
fn hints_are_what_the_log_and_the_cache_have() {
    let (mut world, volume) = with_slices(2);
    let list = |world: &mut World, volume: &Volume| {
        let answer = world.host.hints(volume, 0, 100);
        let part = world.wait(|_| answer.try_take()).expect("listed");
        assert_eq!(part.next, None);
        part.hints
    };
    let hot = list(&mut world, &volume);
    assert_eq!(hot.len(), 1);
    assert_eq!((hot[0].sectors.clone(), hot[0].is_hot), (0..16, true));
    close_awaited(&mut world, &volume).expect("closed");
    let mut other = other_host(&mut world);
    let volume = other.open("demo");
    assert_eq!(list(&mut other, &volume), []);
    other.read_fill(&volume, 8, 4096);
    let read = list(&mut other, &volume);
    assert_eq!(read.len(), 1);
    assert_eq!((read[0].sectors.clone(), read[0].is_hot), (8..16, false));
}

/// Cuts such a close at one request. Then the volume is this host's, with all of it, and nobody else's; or it is free, with all of
/// it. Whether the request was reached.
fn with_fault(at: usize, fault: Fault) -> bool {
    let (mut world, volume) = with_slices(1);
    world.env.fault_after = Some((at, fault));
    let answer = world.host.close_awaited_volume(&volume);
    match fault {
        Fault::LostAnswer => {
            world
                .wait(|_| answer.try_take())
                .expect("it goes on by itself");
        }
        _ => world.pass(5_000),
    }
    let was_reached = world.env.fault_after.take().is_none();
    world.env.outage = false;
    let what = format!("request {at}, {fault:?}");
    let mut other = elsewhere(&world);
    let is_free = root_of(&world.env, "demo").owner.is_none();
    match other.try_open("demo", false) {
        Ok(volume) => {
            assert!(is_free, "{what}");
            assert_eq!(other.read_fill(&volume, 0, 4096), 2, "{what}");
        }
        Err(error) => {
            assert!(matches!(error, OpenError::Held { .. }), "{what}: {error}");
            assert!(!is_free, "{what}");
        }
    }
    let mut world = World::start(world.kill());
    let volume = world.open("demo");
    assert_eq!(world.read_fill(&volume, 0, 4096), 2, "{what}");
    world.write(&volume, 8, 7, 4096);
    close_awaited(&mut world, &volume).expect("closed");
    let mut other = other_host(&mut world);
    let volume = other.open("demo");
    let found = [0, 8].map(|sector| other.read_fill(&volume, sector, 4096));
    assert_eq!(found, [2, 7], "{what}");
    was_reached
}

#[test]
fn an_awaited_close_that_is_cut_at_any_request_leaves_the_volume_whole_and_with_one_host() {
    for fault in [Fault::LostAnswer, Fault::Outage, Fault::OutageBehind] {
        let cuts = (0..100).take_while(|at| with_fault(*at, fault)).count();
        assert!((4..100).contains(&cuts), "{fault:?}: {cuts} requests");
    }
}

#[test]
fn a_sync_that_waits_beside_an_awaited_close_is_told_that_all_is_stored() {
    let (mut world, volume) = with_slices(1);
    world.env.store_ms = STORE_MS;
    let answer = world.host.close_awaited_volume(&volume);
    world.pass(50);
    let synced = world.host.sync(&volume);
    world.wait(|_| synced.try_take()).expect("stored");
    world.wait(|_| answer.try_take()).expect("closed");
    let refused = world.request(&volume, Op::Flush, &mut []);
    assert!(refused.is_err(), "it is not here any more");
}

#[test]
fn a_volume_whose_root_is_another_hosts_is_not_given_back() {
    let (mut world, volume) = with_slices(1);
    let mut other = elsewhere(&world);
    let theirs = other.try_open("demo", true).expect("taken over");
    other.write(&theirs, 16, 9, 4096);
    other.sync(&theirs);
    crate::support::hosts::hand_over(&mut other, &mut world);
    let refused = close_awaited(&mut world, &volume).expect_err("fenced");
    assert!(matches!(refused, OpenError::Fenced(_)), "{refused}");
    let kept = world.host.unserved_tails();
    assert!(kept.iter().any(|tail| tail.rescue), "{kept:?}");
}

#[test]
fn a_volume_whose_root_is_gone_is_served_on() {
    let (mut world, volume) = with_slices(1);
    let key = "volumes/demo/root".to_owned();
    let root = world.env.objects.remove(&key).expect("it is there");
    let refused = close_awaited(&mut world, &volume).expect_err("its root is gone");
    assert!(matches!(refused, OpenError::RootMissing(_)), "{refused}");
    assert_eq!(world.read_fill(&volume, 0, 4096), 2);
    world.write(&volume, 8, 3, 4096);
    world.env.objects.insert(key, root);
    world.pass(60_000);
    close_awaited(&mut world, &volume).expect("closed");
    let env = Environment {
        objects: world.kill().objects,
        versions: 5000,
        ..Environment::default()
    };
    let mut other = World::start(env);
    let volume = other.open("demo");
    assert_eq!(other.read_fill(&volume, 8, 4096), 3);
}

/// The record that ends the epoch stands, and for a while the store says nothing about the volume's root.
fn a_record_that_cannot_be_looked_around() {
    let (mut world, volume) = with_volume();
    world.write(&volume, 0, 2, 4096);
    world.env.store_ms = STORE_MS;
    let answer = world.host.close_awaited_volume(&volume);
    let records = |world: &World| {
        let keys = world.env.objects.keys();
        keys.filter(|key| key.contains("/log/")).count()
    };
    while records(&world) == 0 {
        world.pass(10);
    }
    world.env.failing_keys.push("volumes/demo/root".into());
    world.pass(10_000);
    assert!(answer.try_take().is_none(), "it is not known to be stored");
    assert!(records(&world) > 1, "it is said again");
    world.env.failing_keys.clear();
    world.wait(|_| answer.try_take()).expect("closed");
    world.env.store_ms = 0;
    let mut other = other_host(&mut world);
    let volume = other.open("demo");
    assert_eq!(other.read_fill(&volume, 0, 4096), 2);
}

#[test]
fn last_slices_that_cannot_be_looked_around_are_named_again_until_they_are() {
    a_record_that_cannot_be_looked_around();
}

#[cfg(feature = "planted")]
#[test]
fn each_planted_bug_is_seen_by_its_test() {
    canary::each_is_seen(&[
        ("prepared_index_is_any_roots", what_a_stale_index_gives),
        (
            "end_without_an_answer_is_the_end",
            a_record_that_cannot_be_looked_around,
        ),
    ]);
}
