//! A restart of a host with several volumes: a root that is gone, spoilt or not answered for holds up its own volume
//! alone, and what a restart costs goes with their number.
//!
//! With the feature `planted` each planted bug is seen by the test that is there for it.

use blkmq::io::Op;
use volume::object::root_key;
use volume::{OpenMode, Options};

use crate::support::hosts::{other_host, with_closed_volume};
use crate::support::points::gc;
use crate::support::{Environment, World, options};

const MIB: u64 = 1 << 20;

/// What the root of a volume that was just opened may have become when its first record looks at it.
fn spoil_root(world: &mut World, spoil: impl FnOnce(&mut Environment, String)) {
    world.env.versions += 1;
    spoil(&mut world.env, root_key("other"));
}

fn a_spoilt_root_holds_up_its_own_volume_alone(
    spoil: fn(&mut Environment, String),
    is_named: bool,
) {
    let (mut world, demo) = with_closed_volume();
    let other = world.open("other");
    let (standing, _) = world.env.objects[&root_key("other")].clone();
    spoil_root(&mut world, spoil);
    world.write(&other, 8, 7, 4096);
    let synced = world.host.sync(&other);
    world.pass(100);
    for fill in 3..6 {
        world.write(&demo, 8, fill, 4096);
        let demo_synced = world.host.sync(&demo);
        world.pass(5_000);
        demo_synced.try_take().expect("in time").expect("synced");
    }
    match synced.try_take() {
        Some(refused) => assert!(is_named && refused.is_err(), "{refused:?}"),
        None => assert!(!is_named, "nobody says why"),
    }
    assert_eq!(other.check_serving(), Ok(()));
    assert!(other.watermarks().stored.lsn < volume::units::Lsn(2));
    world.env.failing_keys.clear();
    world.env.versions += 1;
    let object = (standing, world.env.versions);
    world.env.objects.insert(root_key("other"), object);
    world.pass(40_000);
    world.write(&other, 16, 8, 4096);
    world.sync(&other);
    let mut taker = other_host(&mut world);
    let other = taker.try_open("other", true).expect("taken over");
    assert_eq!(taker.read_fill(&other, 8, 4096), 7);
    assert_eq!(taker.read_fill(&other, 16, 4096), 8);
}

#[test]
fn a_volume_whose_root_is_gone_is_refused_alone_and_goes_on_when_it_is_back() {
    let spoil = |env: &mut Environment, key: String| drop(env.objects.remove(&key));
    a_spoilt_root_holds_up_its_own_volume_alone(spoil, true);
}

#[test]
fn a_volume_whose_root_cannot_be_read_is_refused_alone_and_goes_on_when_it_can() {
    let spoil = |env: &mut Environment, key: String| {
        let object = (b"nonsense".repeat(20), env.versions);
        env.objects.insert(key, object);
    };
    a_spoilt_root_holds_up_its_own_volume_alone(spoil, true);
}

#[test]
fn a_root_that_the_store_does_not_answer_for_holds_up_no_other_volume() {
    a_spoilt_root_holds_up_its_own_volume_alone(|env, key| env.failing_keys.push(key), false);
}

#[test]
fn a_root_that_the_store_does_not_answer_for_is_no_other_volumes_error() {
    let (mut world, demo) = with_closed_volume();
    let other = world.open("other");
    world.env.store_ms = 20;
    world.env.failing_keys.push(root_key("other"));
    for volume in [&other, &demo] {
        world.write(volume, 8, 7, 4096);
    }
    let synced = [world.host.sync(&other), world.host.sync(&demo)];
    let mut said = None;
    for _ in 0..500 {
        world.pass(10);
        assert_eq!(demo.upload_error(), None);
        said = said.or(other.upload_error());
    }
    assert!(said.is_some_and(|error| error.contains("other")));
    assert!(synced[1].try_take().is_some() && synced[0].try_take().is_none());
}

#[test]
fn on_a_poisoned_log_a_root_that_is_not_answered_holds_up_no_other_volume() {
    let (mut world, demo) = with_closed_volume();
    let other = world.open("other");
    world.create("third", 64 * MIB);
    let third = world.open("third");
    for volume in [&demo, &other] {
        world.write(volume, 8, 7, 4096);
        world.flush(volume);
    }
    world.write(&third, 8, 7, 4096);
    world.env.failing_syncs = 1;
    world
        .request(&third, Op::Flush, &mut [])
        .expect_err("poisoned");
    world.env.failing_keys.push(root_key("other"));
    let others = world.host.sync(&other);
    world.pass(1_000);
    let demos = world.host.sync(&demo);
    world.pass(20_000);
    demos.try_take().expect("in time").expect("synced");
    assert!(others.try_take().is_none());
    world.env.failing_keys.clear();
    world.wait(|_| others.try_take()).expect("synced");
}

/// Requests to the store from the start of a host to where all of its volumes are open.
fn requests_of_a_restart(volumes: usize) -> usize {
    let mut world = World::new();
    let names: Vec<_> = (0..volumes).map(|nth| format!("volume-{nth}")).collect();
    for name in &names {
        world.create(name, 64 * MIB);
        let volume = world.open(name);
        world.write(&volume, 0, 1, 4096);
        world.sync(&volume);
    }
    let mut env = world.kill();
    env.store_requests.clear();
    env.store_ms = 20;
    let mut world = World::start(env);
    let open = |name: &String| world.host.open_volume(name, OpenMode::default());
    let opening: Vec<_> = names.iter().map(open).collect();
    for answer in opening {
        let volume = world.wait(|_| answer.try_take()).expect("opened");
        assert_eq!(world.read_fill(&volume, 0, 4096), 1);
    }
    world.env.store_requests.values().sum()
}

#[test]
fn a_restart_costs_requests_by_volume_and_not_by_their_square() {
    let (few, many) = (requests_of_a_restart(4), requests_of_a_restart(32));
    let more = (many - few) / 28;
    assert!(
        more <= 9,
        "{few} of 4 volumes, {many} of 32: {more} by volume"
    );
}

#[cfg(feature = "planted")]
#[test]
fn each_planted_bug_is_seen_by_its_test() {
    canary::each_is_seen(&[
        (
            "one_key_is_everybodys",
            a_root_that_the_store_does_not_answer_for_is_no_other_volumes_error,
        ),
        (
            "one_root_stops_the_host",
            a_volume_whose_root_is_gone_is_refused_alone_and_goes_on_when_it_is_back,
        ),
        (
            "looks_have_no_limit",
            a_root_that_the_store_does_not_answer_for_holds_up_no_other_volume,
        ),
        ("low_mark_passes_marks", writes_of_a_closed_volume_stay),
    ]);
}

/// A host leaves a volume closed, start after start, and serves another on the same log. The log goes round many
/// times, its bytes lie between those of the others, records and objects of the store are removed, and power is lost.
#[test]
fn a_volume_that_starts_leave_closed_keeps_all_its_writes_while_log_and_store_are_used_by_others() {
    writes_of_a_closed_volume_stay();
}

fn writes_of_a_closed_volume_stay() {
    const BLOCKS: u64 = 48;
    let few_records = |env| {
        let options = Options {
            low_mark_records: 4,
            ..options()
        };
        World::try_start(env, options).unwrap_or_else(|e| panic!("{}", e.0))
    };
    let mut world = few_records(Environment::default());
    for name in ["closed", "other"] {
        world.create(name, 64 * MIB);
    }
    let (closed, other) = (world.open("closed"), world.open("other"));
    for block in 0..BLOCKS {
        world.write(&closed, block * 8, 1 + block as u8, 4096);
        world.write(&other, block * 8, 100, 4096);
        if block == BLOCKS / 3 {
            // What is stored so far, a record of this host names, and no root.
            world.sync(&closed);
        }
    }
    let before = world.host.unserved_tails().len();
    let mut env = world.kill();
    for life in 0..4_u64 {
        if life == 2 {
            env.boot += 1;
            env.rings.lose_all();
        }
        world = few_records(env);
        assert!(world.report.rings_lost.is_empty(), "{life}");
        assert_eq!(world.host.unserved_tails().len(), before + 2, "{life}");
        let other = world.open("other");
        for part in 0..32 {
            world.write_noise(&other, part % 8 * 1024, life * 100 + part, 512 << 10);
            world.sync(&other);
        }
        gc(&mut world);
        gc(&mut world);
        world.pass(5_000);
        env = world.kill();
    }
    let mut world = few_records(env);
    let closed = world.open("closed");
    for block in 0..BLOCKS {
        let found = world.read_fill(&closed, block * 8, 4096);
        assert_eq!(found, 1 + block as u8, "{block}");
    }
    world.sync(&closed);
}
