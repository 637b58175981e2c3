//! What stops a host, and what a host that has stopped does not do any more.
//!
//! With the feature `planted` each planted bug is seen by the test that is there for it.

use blkmq::error::ErrorKind;
use volume::hostlog::names::{low_key, record_key, record_of_key};
use volume::hostlog::stop::Stop;
use volume::{Durability, OpenError, OpenMode, Volume};

use crate::support::hosts::{root_of, try_write, with_closed_volume};
use crate::support::{Environment, World};

const MIB: u64 = 1 << 20;

#[test]
fn no_volume_goes_live_on_a_host_that_has_stopped() {
    let moments = (0..1500).step_by(50);
    // Between the adoption and the service there is no request to wait for, so the adoption is made to wait.
    let both = |at| [(at, false), (at, true)];
    for (moment, adoption_waits) in moments.flat_map(both) {
        let (mut world, demo) = with_closed_volume();
        world.env.store_ms = 100;
        world.write(&demo, 8, 3, 4096);
        let opening = world.host.open_volume("other", OpenMode::default());
        world.pass(moment);
        // The host was retired meanwhile.
        world.env.objects.retain(|key, _| !key.ends_with("/low"));
        if adoption_waits {
            world.env.failing_keys.push("volumes/other/root".into());
        }
        let synced = world.host.sync(&demo);
        let stopped = world.wait(|_| synced.try_take()).expect_err("it stops");
        assert!(matches!(stopped, OpenError::HostStopped(_)), "{stopped}");
        world.env.failing_keys.clear();
        if let Ok(other) = world.wait(|_| opening.try_take()) {
            let refused = try_write(&mut world, &other);
            assert_eq!(refused, Err(ErrorKind::Fenced), "opened at {moment}");
        }
    }
}

/// The host has met a pack of a stranger under a name of its own, at `next`, and stopped.
fn stop_by_a_strangers_pack(world: &mut World, demo: &Volume) -> (String, (Vec<u8>, u64)) {
    let packs = |world: &World| {
        let keys = world.env.objects.keys();
        keys.filter(|key| key.starts_with("packs/"))
            .cloned()
            .collect::<Vec<_>>()
    };
    let before = packs(world);
    // Another process that has the same memory: it draws the same names.
    world.write(demo, 8, 3, 4096);
    world.env.failing_creates = usize::MAX;
    let synced = world.host.sync(demo);
    world.pass(1_000);
    let own = packs(world).into_iter().find(|key| !before.contains(key));
    let own = own.expect("it is there, and no record names it yet");
    let number = own.rsplit('/').next().expect("a number").to_owned();
    let next = u64::from_str_radix(&number, 16).expect("hexadecimal") + 1;
    let width = number.len();
    let next = format!(
        "{}{next:0width$x}",
        own.strip_suffix(&number).expect("its end")
    );
    let stranger = (b"of another process".to_vec(), 1);
    world.env.objects.insert(next.clone(), stranger.clone());
    world.env.failing_creates = 0;
    world.wait(|_| synced.try_take()).expect("synced");
    world.write(demo, 16, 4, 4096);
    let synced = world.host.sync(demo);
    let stopped = world.wait(|_| synced.try_take()).expect_err("it stops");
    assert!(matches!(stopped, OpenError::HostStopped(_)), "{stopped}");
    (next, stranger)
}

#[test]
fn a_pack_of_a_stranger_under_its_own_name_stops_the_host_and_stays_as_it_is() {
    let (mut world, demo) = with_closed_volume();
    let (next, stranger) = stop_by_a_strangers_pack(&mut world, &demo);
    assert_eq!(world.env.objects[&next], stranger);
}

#[test]
fn a_host_that_stopped_writes_no_record_and_closes_no_volume_any_more() {
    let (mut world, demo) = with_closed_volume();
    let other = world.open("other");
    // Everything of it is stored: nothing but the stop can refuse its close.
    world.write(&other, 8, 3, 4096);
    world.sync(&other);
    // Of another volume a snapshot can be made without any write of this host's.
    world.create("idle", 64 * MIB);
    stop_by_a_strangers_pack(&mut world, &demo);
    let before = world.env.objects.clone();
    let taken = world
        .host
        .create_snapshot("idle@one", Vec::new(), Durability::Store);
    let refused = world.wait(|_| taken.try_take());
    assert!(
        matches!(refused, Err(OpenError::HostStopped(_))),
        "{refused:?}"
    );
    for _ in 0..2 {
        let closing = world.host.close_volume(&other);
        let refused = world.wait(|_| closing.try_take());
        assert!(
            matches!(refused, Err(OpenError::HostStopped(_))),
            "{refused:?}"
        );
    }
    world.pass(10_000);
    assert!(world.env.objects == before, "it wrote to the store");
    assert!(root_of(&world.env, "other").owner.is_some());
}

/// How the host ends that finds its own log like that.
fn stopped_by(spoil: fn(&mut Environment, last_record: &str)) -> (String, OpenError) {
    let (mut world, demo) = with_closed_volume();
    let keys = world.env.objects.keys();
    let last = keys.filter(|key| key.contains("/log/")).max().cloned();
    let last = last.expect("a record");
    spoil(&mut world.env, &last);
    world.write(&demo, 8, 3, 4096);
    let synced = world.host.sync(&demo);
    let stopped = world.wait(|_| synced.try_take()).expect_err("it stops");
    (last, stopped)
}

#[test]
fn a_damaged_object_of_a_hosts_own_log_is_said_as_damage_and_as_no_copy_or_retirement() {
    let damaged = |key: &str, stopped: &OpenError| {
        let is_damage = matches!(stopped, OpenError::HostStopped(Stop::Damaged(_)));
        assert!(is_damage, "{stopped}");
        let said = stopped.to_string();
        assert!(
            said.contains(key) && said.contains("Put the object back"),
            "{said}"
        );
    };
    // Where the next record was to go.
    let (last, stopped) = stopped_by(|env, last| {
        let (host, position) = record_of_key(last).expect("a record's");
        let next = record_key(host, position.next());
        env.objects.insert(next, (b"damaged".to_vec(), 1));
    });
    let (host, position) = record_of_key(&last).expect("a record's");
    damaged(&record_key(host, position.next()), &stopped);
    let (last, stopped) = stopped_by(|env, last| {
        let (host, _) = record_of_key(last).expect("a record's");
        let low = env.objects.get_mut(&low_key(host)).expect("it is there");
        low.0[20] ^= 1;
    });
    let (host, _) = record_of_key(&last).expect("a record's");
    damaged(&low_key(host), &stopped);
}

#[test]
fn packs_that_went_before_a_dead_servers_record_was_looked_at_stop_its_successor() {
    let (mut world, demo) = with_closed_volume();
    let packs = |env: &Environment| {
        let keys = env.objects.keys();
        keys.filter(|key| key.starts_with("packs/"))
            .cloned()
            .collect::<Vec<_>>()
    };
    let before = packs(&world.env);
    world.write(&demo, 8, 3, 4096);
    world.env.outage_after_record = true;
    let _synced = world.host.sync(&demo);
    world.pass(2_000);
    let mut env = world.kill();
    env.outage = false;
    env.outage_after_record = false;
    let new: Vec<_> = packs(&env)
        .into_iter()
        .filter(|key| !before.contains(key))
        .map(|key| {
            let stood = env.objects.remove(&key).expect("it is there");
            (key, stood)
        })
        .collect();
    assert!(!new.is_empty());
    let mut world = World::start(env);
    let refused = world.try_open("demo", false).expect_err("it stops");
    assert!(matches!(refused, OpenError::HostStopped(_)), "{refused}");
    let mut env = world.kill();
    env.objects.extend(new);
    let mut world = World::start(env);
    let demo = world.open("demo");
    assert_eq!(world.read_fill(&demo, 8, 4096), 3);
}

#[cfg(feature = "planted")]
#[test]
fn each_planted_bug_is_seen_by_its_test() {
    canary::each_is_seen(&[
        (
            "packs_are_not_read_back",
            a_pack_of_a_stranger_under_its_own_name_stops_the_host_and_stays_as_it_is,
        ),
        (
            "stopped_host_publishes",
            a_host_that_stopped_writes_no_record_and_closes_no_volume_any_more,
        ),
        (
            "packs_of_a_dead_server_are_believed",
            packs_that_went_before_a_dead_servers_record_was_looked_at_stop_its_successor,
        ),
        (
            "damage_is_a_copys",
            a_damaged_object_of_a_hosts_own_log_is_said_as_damage_and_as_no_copy_or_retirement,
        ),
        (
            "stopped_host_opens_volumes",
            no_volume_goes_live_on_a_host_that_has_stopped,
        ),
    ]);
}
